# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The forms of what a site report stores, and of the facts in it. A report is read by other releases, too."""

from __future__ import annotations

import json
import pathlib
import re

from ..module_utils.topology.model import SCHEMA_VERSION
from ..module_utils.topology.stored import Forms, NewerForm
from .values import Json

#: The forms of `site.json` and of the files in `nodes`.
FORMS = Forms()
#: The forms of the files in `replaced`, to which the first release gave no number.
REPLACED = Forms(unnumbered=1)
_VERSION = re.compile(r"([0-9]{1,4})\.[0-9]+")
_KNOWN = int(SCHEMA_VERSION.partition(".")[0])
_IN_TEXT = '\n "schema_version": '


class Unusable(ValueError):
    """A file of the report, or facts, that this release cannot use, with what to do."""


def of_release(value: object, path: pathlib.Path, forms: Forms = FORMS) -> Json:
    """What a file of the report holds: `site.json`, one in `replaced`, or the head of one in `nodes`. Raises
    ValueError for anything else, Unusable where only a newer release can read it."""
    try:
        return forms.read(value)
    except NewerForm as error:
        raise Unusable(
            f"{path}: a newer release of lanewise.dra wrote this report ({error}). Use that release or a newer one, or "
            "another folder. Nothing was changed."
        ) from None


def check_facts(version: object, of: str) -> None:
    """Raises Unusable where facts of that `schema_version` mean something else than this release takes them for."""
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match and int(match.group(1)) > _KNOWN:
        raise Unusable(
            f"{of}: a newer release of lanewise.dra probed it (its facts have schema_version {version}, and this "
            f"release knows {_KNOWN}.x). Use that release or a newer one, or probe the node again with this one."
        )


def version_in(facts: str) -> object:
    """The `schema_version` of stored facts, from their text, in which each section begins a line. None without one."""
    start = facts.find(_IN_TEXT)
    if start < 0:
        return None
    line = facts[start + len(_IN_TEXT) :].partition("\n")[0].rstrip(",")
    try:
        version: object = json.loads(line)
    except ValueError:
        return None
    return version
