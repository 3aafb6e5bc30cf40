# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The formats of the files of a site report, and of the facts in them, as other releases may read or write them."""

from __future__ import annotations

import json
import pathlib
import re

from ..module_utils.topology.model import SCHEMA_VERSION
from ..module_utils.topology.stored import Formats, NewerFormat
from .values import Json

#: The formats of `site.json` and of the files in `nodes`.
FORMATS = Formats()
#: The formats of the files in `replaced`. The first release wrote no format number.
REPLACED = Formats(unnumbered=1)
_VERSION = re.compile(r"([0-9]{1,4})\.[0-9]+")
_KNOWN = int(SCHEMA_VERSION.partition(".")[0])
_IN_TEXT = '\n "schema_version": '


class Unusable(ValueError):
    """A file of the report, or facts, that this release cannot use, with what to do."""


def read_stored(value: object, path: pathlib.Path, formats: Formats = FORMATS) -> Json:
    """The content of a file of the report, converted to the newest format.

    `value` is the content of `site.json` or of a file in `replaced`, or the head of a file in `nodes`. Raises
    ValueError for any other value, and Unusable if only a newer release can read it.
    """
    try:
        return formats.read(value)
    except NewerFormat as error:
        raise Unusable(
            f"{path}: a newer release of lanewise.dra wrote this report ({error}). Nothing was changed. Use that "
            "release or a newer one, or set another folder."
        ) from None


def check_facts_version(version: object, source: str) -> None:
    """Raises Unusable if this release may misread facts of that `schema_version`."""
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match and int(match.group(1)) > _KNOWN:
        raise Unusable(
            f"{source}: a newer release of lanewise.dra probed this node (its facts have schema_version {version}, and "
            f"this release knows {_KNOWN}.x). Use that release or a newer one, or probe the node "
            "again with this release."
        )


def version_in(facts: str) -> object:
    """The `schema_version` in the text of stored facts, in which each section begins a line; None if there is none."""
    start = facts.find(_IN_TEXT)
    if start < 0:
        return None
    line = facts[start + len(_IN_TEXT) :].partition("\n")[0].rstrip(",")
    try:
        version: object = json.loads(line)
    except ValueError:
        return None
    return version
