# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Checks of values against the forms of their fields."""

from __future__ import annotations

import ipaddress
import itertools
import re
import typing as t

from ..kube.problems import Problem
from ..kube.reader import child, nearest
from .fields import Field

#: Errors that are reported of one configuration. A configuration with more must not make the check expensive.
MAX_PROBLEMS = 16


class TooManyProblems(Exception):
    """There are more errors than are reported."""


class LimitedProblems(list[Problem]):
    """The problems so far. One more than MAX_PROBLEMS ends the check."""

    def append(self, problem: Problem) -> None:
        if len(self) == MAX_PROBLEMS:
            raise TooManyProblems
        super().append(problem)


def validate_scalar(form: Field, value: object) -> bool:
    """Whether a value is right for a field that holds no others."""
    return not _SCALARS[form.type](form, value)


def allowed_key(form: Field, key: object) -> bool:
    """Whether a mapping of free keys may have this one."""
    return isinstance(key, str) and re.fullmatch(form.key, key) is not None


def check(form: Field, value: object, path: str, problems: LimitedProblems) -> None:
    fault = _SCALARS[form.type](form, value) if form.type in _SCALARS else ""
    if fault:
        problems.append(Problem(path, f"must be {form.says}", fault))
    elif form.type == "list":
        _check_list(form, value, path, problems)
    elif form.type == "map":
        _check_map(form, value, path, problems)
    elif form.type == "object":
        _check_object(form, value, path, problems)


def _check_list(form: Field, value: object, path: str, problems: LimitedProblems) -> None:
    if not isinstance(value, list):
        problems.append(Problem(path, f"must be {form.says}", "wrong-type"))
        return
    if len(value) > form.most:
        problems.append(Problem(path, f"has {len(value)} entries; at most {form.most} are allowed", "too-many"))
    for index, item in enumerate(value[: form.most]):
        if form.item:
            check(form.item, item, child(path, index), problems)
        if any(item == other and type(item) is type(other) for other in value[:index]):
            problems.append(Problem(child(path, index), "is a duplicate", "duplicate"))


def _check_map(form: Field, value: object, path: str, problems: LimitedProblems) -> None:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"must be {form.says}", "wrong-type"))
        return
    if len(value) > form.most:
        problems.append(Problem(path, f"has {len(value)} entries; at most {form.most} are allowed", "too-many"))
    for key, item in itertools.islice(value.items(), form.most):
        if not allowed_key(form, key):
            message = f"is not allowed; it must be {form.says}"
            problems.append(Problem(child(path, key), message, "unknown-key"))
        if form.item:
            check(form.item, item, child(path, key), problems)


def _check_object(form: Field, value: object, path: str, problems: LimitedProblems) -> None:
    if not isinstance(value, dict):
        problems.append(Problem(path, f"must be {form.says}", "wrong-type"))
        return
    before = len(problems)
    known = f"known are {', '.join(form.fields)}"
    for key in value:
        if key not in form.fields:
            near = nearest(key, form.fields)
            problems.append(Problem(child(path, key), "is not known", "unknown-key", near or known))
            if not near:
                known = ""  # the list is long: only the first unknown key gets it
    for name, inner in form.fields.items():
        if name in value:
            check(inner, value[name], child(path, name), problems)
        elif inner.required:
            problems.append(Problem(child(path, name), "is missing", "missing", f"it must be {inner.says}"))
    if len(problems) == before:  # rules read well-formed fields only
        for rule in form.rules:
            if not rule.holds(value):
                problems.append(Problem(path, rule.says, "contradiction"))


def _string(form: Field, value: object) -> str:
    if not isinstance(value, str):
        return "wrong-type"
    if form.words:
        return "" if value in form.words else "bad-value"
    bad = value in form.forbidden or (form.pattern and not re.fullmatch(form.pattern, value))
    return "bad-value" if bad else ""


def _int(form: Field, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return "wrong-type"
    return "" if form.least <= value <= form.most else "bad-value"


def _setting(form: Field, value: object) -> str:
    return _string(form, value) if isinstance(value, str) else _int(form, value)


def _bool(_form: Field, value: object) -> str:
    return "" if isinstance(value, bool) else "wrong-type"


def _address(form: Field, value: object) -> str:
    """As netip.ParseAddr and ParsePrefix have it: no zone, no IPv4 in IPv6, a prefix length without leading zeros."""
    if not isinstance(value, str):
        return "wrong-type"
    try:
        if form.type == "ip":
            address: t.Any = ipaddress.ip_address(value)
        elif not re.fullmatch(r"[^/]+/(?:0|[1-9][0-9]{0,2})", value):
            return "bad-value"
        else:
            interface = ipaddress.ip_interface(value)
            address = interface.ip
            if form.type == "network" and interface.network.network_address != address:
                return "bad-value"
    except ValueError:
        return "bad-value"
    return "bad-value" if "%" in value or getattr(address, "ipv4_mapped", None) else ""


_SCALARS: dict[str, t.Callable[[Field, object], str]] = {
    "string": _string,
    "int": _int,
    "bool": _bool,
    "setting": _setting,
    "ip": _address,
    "address": _address,
    "network": _address,
}
