# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Warnings, deprecations and errors of a node: of limited length, and without characters that control a terminal.

Ansible prints them as they are. A node sends them as texts or as objects of Ansible, which contain more texts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import MAX_TEXT, clipped
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_facts import clean_lines

try:
    from ansible._internal._display_utils import DeferredWarningContext
except ImportError:  # an untested version of Ansible: only warnings in the result are cleaned
    DeferredWarningContext = None

#: The maximum number of warnings, and of deprecations, of a result.
_MAX_MESSAGES = 20
#: The maximum length of a warning or deprecation, in characters.
_MAX_MESSAGE = 2000
#: An object in a message counts as this many characters, which is about what Ansible prints besides its texts.
_PART_COST = 64
#: The maximum nesting of objects in a message. A cause is nested two deeper than its effect.
_MAX_DEPTH = 20


def clean_warnings(warnings: t.Sequence[object]) -> list[object]:
    return [_clean(warning, _MAX_MESSAGE) for warning in warnings[:_MAX_MESSAGES]]


def clean_deprecations(deprecations: t.Sequence[object]) -> list[object]:
    """Without those that Ansible could not print."""
    cleaned: list[object] = []
    for deprecation in deprecations[:_MAX_MESSAGES]:
        if hasattr(deprecation, "deprecator"):
            cleaned.append(_clean(deprecation, _MAX_MESSAGE))
        elif isinstance(deprecation, dict) and isinstance(deprecation.get("msg"), str):
            texts = {key: deprecation.get(key) for key in ("msg", "version", "date", "collection_name")}
            cleaned.append(
                {key: clean_lines(text[:_MAX_MESSAGE]) for key, text in texts.items() if isinstance(text, str)}
            )
    return cleaned


def clean_exception(error: object) -> object:
    return _clean(error, MAX_TEXT)


@contextlib.contextmanager
def cleaned_warnings(variables: dict[str, t.Any]) -> t.Iterator[None]:
    """Clean the warnings that Ansible collects for the task while it runs a module.

    Ansible 2.21 moves a module's warnings from the result to this collection before a plugin gets the result. All
    versions add a warning with what the node prints besides its result.
    """
    collected = DeferredWarningContext.current(optional=True) if DeferredWarningContext else None
    if collected is None:
        yield
        return
    own = DeferredWarningContext(variables=variables)
    try:
        with own:
            yield
    finally:
        for message in (*clean_warnings(own.get_warnings()), *clean_deprecations(own.get_deprecation_warnings())):
            collected.capture(message)


def _clean(message: object, limit: int) -> object:
    """A text, or an object of Ansible with an event, with at most `limit` characters. Others become a short text."""
    if dataclasses.is_dataclass(message) and hasattr(message, "event"):
        return _Copier(limit).copy(message)
    return clean_lines(message[:limit] if isinstance(message, str) else clipped(message))


class _Copier:
    """Copies objects with cleaned texts. Equal objects get equal copies, so that Ansible prints a message only once."""

    def __init__(self, limit: int) -> None:
        self.remaining = limit

    def copy(self, value: t.Any, depth: int = 0) -> t.Any:
        if isinstance(value, str):
            text = clean_lines(value[: max(self.remaining, 0)])
            self.remaining -= len(text)
            return text
        if isinstance(value, tuple):
            return tuple(self.copy(item, depth) for item in value if self.remaining > 0)
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        self.remaining -= _PART_COST
        parts: dict[str, t.Any] = {}
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            parts[field.name] = field.default if self._omits(field, part, depth) else self.copy(part, depth + 1)
        return dataclasses.replace(value, **parts)

    def _omits(self, field: dataclasses.Field[t.Any], part: object, depth: int) -> bool:
        if field.default is dataclasses.MISSING or not (isinstance(part, tuple) or dataclasses.is_dataclass(part)):
            return False
        if field.name == "deprecator" and not getattr(part, "resolved_name", None):
            return True  # Ansible raises an exception when it prints a plugin without a name
        return depth >= _MAX_DEPTH or self.remaining <= 0
