# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Checks values of a configuration against the definitions of their fields."""

from __future__ import annotations

import ipaddress
import itertools
import re
import typing as t

from ..kube.problems import Problem
from ..kube.reader import child, nearest
from .fields import Field

#: The maximum number of errors reported for one configuration. It keeps the check of a bad configuration cheap.
MAX_PROBLEMS = 16


class TooManyProblems(Exception):
    """There are more errors than MAX_PROBLEMS."""


class LimitedProblems(list[Problem]):
    """The problems so far. The first problem beyond MAX_PROBLEMS ends the check."""

    def append(self, problem: Problem) -> None:
        if len(self) == MAX_PROBLEMS:
            raise TooManyProblems
        super().append(problem)


def validate_scalar(field: Field, value: object) -> bool:
    """Whether a value is valid for a scalar field."""
    return not _SCALARS[field.type](field, value)


def allowed_key(field: Field, key: object) -> bool:
    """Whether a field of type map may have this key."""
    return isinstance(key, str) and re.fullmatch(field.key, key) is not None


def check(field: Field, value: object, path: str, problems: LimitedProblems) -> None:
    """Add all errors of a value to `problems`, with paths that start with `path`. Raises TooManyProblems."""
    broken_rule = _SCALARS[field.type](field, value) if field.type in _SCALARS else ""
    if broken_rule:
        problems.append(Problem(path, f"must be {field.description}", broken_rule))
    elif field.type == "list":
        _check_list(field, value, path, problems)
    elif field.type == "map":
        _check_map(field, value, path, problems)
    elif field.type == "object":
        _check_object(field, value, path, problems)


def _check_list(field: Field, value: object, path: str, problems: LimitedProblems) -> None:
    if not isinstance(value, list):
        problems.append(Problem(path, f"must be {field.description}", "wrong-type"))
        return
    if len(value) > field.maximum:
        problems.append(Problem(path, f"has {len(value)} entries; at most {field.maximum} are allowed", "too-many"))
    for index, item in enumerate(value[: field.maximum]):
        if field.item:
            check(field.item, item, child(path, index), problems)
        if any(item == earlier and type(item) is type(earlier) for earlier in value[:index]):
            problems.append(Problem(child(path, index), "is a duplicate", "duplicate"))


def _check_map(field: Field, value: object, path: str, problems: LimitedProblems) -> None:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"must be {field.description}", "wrong-type"))
        return
    if len(value) > field.maximum:
        problems.append(Problem(path, f"has {len(value)} entries; at most {field.maximum} are allowed", "too-many"))
    for key, item in itertools.islice(value.items(), field.maximum):
        if not allowed_key(field, key):
            message = f"is not allowed; it must be {field.description}"
            problems.append(Problem(child(path, key), message, "unknown-key"))
        if field.item:
            check(field.item, item, child(path, key), problems)


def _check_object(field: Field, value: object, path: str, problems: LimitedProblems) -> None:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"must be {field.description}", "wrong-type"))
        return
    problems_before = len(problems)
    known = f"known: {', '.join(field.fields)}"
    for key in value:
        if key not in field.fields:
            suggestion = nearest(key, field.fields)
            problems.append(Problem(child(path, key), "is not known", "unknown-key", suggestion or known))
            if not suggestion:
                known = ""  # the list is long, so only the first unknown key gets it
    for name, inner in field.fields.items():
        if name in value:
            check(inner, value[name], child(path, name), problems)
        elif inner.required:
            problems.append(Problem(child(path, name), "is missing", "missing", f"it must be {inner.description}"))
    if len(problems) == problems_before:  # rules read well-formed fields only
        for rule in field.rules:
            if not rule.holds(value):
                problems.append(Problem(path, rule.description, "contradiction"))


def _string(field: Field, value: object) -> str:
    if not isinstance(value, str):
        return "wrong-type"
    if field.choices:
        return "" if value in field.choices else "bad-value"
    invalid = value in field.forbidden or (field.pattern and not re.fullmatch(field.pattern, value))
    return "bad-value" if invalid else ""


def _int(field: Field, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "wrong-type"
    return "" if field.minimum <= value <= field.maximum else "bad-value"


def _setting(field: Field, value: object) -> str:
    return _string(field, value) if isinstance(value, str) else _int(field, value)


def _bool(_field: Field, value: object) -> str:
    return "" if isinstance(value, bool) else "wrong-type"


def _address(field: Field, value: object) -> str:
    """Checks as Go's netip.ParseAddr and ParsePrefix do.

    An address must not have a zone or be IPv4-mapped; a prefix length must not have leading zeros.
    """
    if not isinstance(value, str):
        return "wrong-type"
    try:
        if field.type == "ip":
            address: t.Any = ipaddress.ip_address(value)
        elif not re.fullmatch(r"[^/]+/(?:0|[1-9][0-9]{0,2})", value):
            return "bad-value"
        else:
            interface = ipaddress.ip_interface(value)
            address = interface.ip
            if field.type == "network" and interface.network.network_address != address:
                return "bad-value"
    except ValueError:
        return "bad-value"
    return "bad-value" if "%" in value or getattr(address, "ipv4_mapped", None) else ""


#: Checks of scalar types. Each returns the name of the broken rule, or an empty string for a valid value.
_SCALARS: dict[str, t.Callable[[Field, object], str]] = {
    "string": _string,
    "int": _int,
    "bool": _bool,
    "setting": _setting,
    "ip": _address,
    "address": _address,
    "network": _address,
}
