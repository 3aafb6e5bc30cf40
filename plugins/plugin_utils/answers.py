# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The types and size limits of the results that the collection's modules return from a node.

A node is not trusted: Ansible accepts whatever its Python prints as the result. If a result does not have these types,
the task fails for that node, and nothing of the result is stored or shown.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing as t

from ..module_utils.topology.model import Topology

#: The absolute value of each number is below this, so that integers fit in 64 bits.
MAX_NUMBER = 2**63
#: The maximum length of a text, of a list or dictionary, and the maximum nesting of values without a declared type.
MAX_TEXT, MAX_ENTRIES, MAX_DEPTH = 65536, 20000, 12
#: The maximum sum of all entries of a result and of all characters beyond the first 64 of each text.
MAX_TOTAL = 4_000_000
_SHOWN = 200


class Refused(Exception):
    """The result does not have the expected form. The message is the path of the bad value and the reason."""


class Change(t.TypedDict, total=False):
    resource: str
    device: str
    setting: str
    before: object
    after: object
    interrupts: str


class Remaining(Change, total=False):
    now: object
    reason: str


class Rollback(t.TypedDict, total=False):
    id: str
    seconds: int


class Fabric(t.TypedDict, total=False):
    """The result of the module fabric and of the small modules for parts of it."""

    changes: list[Change]
    drain_reasons: list[str]
    reboot_required: bool
    reboot_reasons: list[str]
    rollback: Rollback | None
    left_alone: list[str]
    settings: dict[str, object]
    problems: list[str]
    idle_rules: list[str]
    not_recorded: list[str]
    failed_change: Change | None
    undone: list[Change]
    remaining: list[Remaining]


class FabricAndProbe(Fabric, total=False):
    """The result of the module fabric with its option topology."""

    topology: Topology


class Service(t.TypedDict, total=False):
    installed: bool
    enabled: bool
    state: str
    pid: int
    release: str
    reload: bool


class Claim(t.TypedDict, total=False):
    uid: str
    namespace: str
    name: str
    phase: str
    pod: str
    devices: list[str]


class Token(t.TypedDict, total=False):
    namespace: str
    account: str
    account_uid: str
    node: str
    node_uid: str
    expires: float


class Driver(t.TypedDict, total=False):
    """The result of the module dra_driver_info."""

    release: str
    previous: str
    releases: list[str]
    partial: list[str]
    service: Service
    files: dict[str, str]
    contents: dict[str, str]
    ready: bool
    reasons: list[str]
    claims: list[Claim]
    devices: list[dict[str, object]]
    withheld: dict[str, object]
    token: Token


class Preflight(t.TypedDict, total=False):
    """The result of the module dra_driver_preflight."""

    problems: list[str]
    python: str
    kubelet: str
    runtime: str


class Users(t.TypedDict, total=False):
    """The result of the module nic_users_info."""

    management: dict[str, str]
    users: dict[str, str]


class Probe(t.TypedDict, total=False):
    """The result of the module topology_info, without the plan, which the module fabric returns."""

    topology: Topology


class Job(t.TypedDict, total=False):
    """The answer of a node that starts a module as an asynchronous job."""

    ansible_job_id: str
    started: bool
    finished: bool
    results_file: str


class _Budget:
    """How many more entries and characters a result may have."""

    def __init__(self) -> None:
        self.remaining = MAX_TOTAL

    def take(self, count: int) -> None:
        self.remaining -= count
        if self.remaining < 0:
            raise Refused(f" has more than {MAX_TOTAL} entries and characters in total")


_Check = t.Callable[[object, _Budget], None]


def check(value: object, form: object) -> None:
    """Raise Refused if a JSON value does not have the form.

    `form` is a type: a scalar, a list, a dictionary whose keys are strings, a dataclass, or a TypedDict. The fields of
    a TypedDict are optional. Those of a dataclass are required, except for `Topology`, of which a probe may return a
    part. Unknown fields are refused.
    """
    _checker(form)(value, _Budget())


def fault(value: object, form: object) -> str:
    """The error in a value, or an empty text. See `check`."""
    try:
        check(value, form)
    except Refused as error:
        return str(error).lstrip(".")
    return ""


def clipped(value: object) -> str:
    """A value of any size as short text for a message."""
    if isinstance(value, int) and abs(value) >= MAX_NUMBER:
        return f"a number of about {value.bit_length()} bits"
    text = value if isinstance(value, str) else repr(value) if isinstance(value, (bool, int, float)) else "a value"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _text(value: object, budget: _Budget) -> None:
    if not isinstance(value, str):
        raise Refused(f" is not text: {clipped(value)}")
    if len(value) > 64:
        if len(value) > MAX_TEXT:
            raise Refused(f" is a text of {len(value)} characters, more than {MAX_TEXT}")
        budget.take(len(value) - 64)


def _integer(value: object, _budget: _Budget) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not -MAX_NUMBER < value < MAX_NUMBER:
        raise Refused(f" is not a 64-bit integer: {clipped(value)}")


def _number(value: object, budget: _Budget) -> None:
    if not isinstance(value, float):
        _integer(value, budget)
    elif not math.isfinite(value) or abs(value) >= MAX_NUMBER:
        raise Refused(f" is not a finite number below 2**63: {clipped(value)}")


def _boolean(value: object, _budget: _Budget) -> None:
    if not isinstance(value, bool):
        raise Refused(f" is neither true nor false: {clipped(value)}")


def _any_json(value: object, budget: _Budget, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise Refused(f" is nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        _number(value, budget)
    elif isinstance(value, dict):
        _check_entries(value.items(), len(value), budget, lambda item, rest: _any_json(item, rest, depth + 1))
    elif isinstance(value, list):
        _check_entries(enumerate(value), len(value), budget, lambda item, rest: _any_json(item, rest, depth + 1))
    else:
        _text(value, budget)


def _check_entries(items: t.Iterable[tuple[object, object]], count: int, budget: _Budget, inner: _Check) -> None:
    if count > MAX_ENTRIES:
        raise Refused(f" has {count} entries, more than {MAX_ENTRIES}")
    budget.take(count)
    for key, item in items:
        try:
            if isinstance(key, str):
                _text(key, budget)
            inner(item, budget)
        except Refused as error:
            step = f"[{key}]" if isinstance(key, int) else f"[{clipped(key)!r}]"
            raise Refused(f"{step}{error}") from None


_SCALARS: dict[object, _Check] = {
    str: _text,
    int: _integer,
    float: _number,
    bool: _boolean,
    object: _any_json,
    t.Any: _any_json,
}


def prepare(form: object) -> None:
    """Build the check of a form in advance."""
    _checker(form)


@functools.cache
def _checker(form: object) -> _Check:
    """The check of a form. It raises Refused; this function raises TypeError for a form without a check."""
    if form in _SCALARS:
        return _SCALARS[form]
    if dataclasses.is_dataclass(form) or t.is_typeddict(form):
        return _record_check(t.cast("type", form))
    origin, arguments = t.get_origin(form), t.get_args(form)
    if origin in (types.UnionType, t.Union):
        optional = _checker(next(argument for argument in arguments if argument is not types.NoneType))
        return lambda value, budget: None if value is None else optional(value, budget)
    if origin is list:
        return _collection_check(list, _checker(arguments[0]))
    if origin is dict:
        return _collection_check(dict, _checker(arguments[1]))
    raise TypeError(f"no check for {form!r}")


def _collection_check(kind: type, inner: _Check) -> _Check:
    """The check of a list, or of a dictionary with any keys, whose values pass `inner`."""

    def run(value: object, budget: _Budget) -> None:
        if kind is dict and isinstance(value, dict):
            _check_entries(value.items(), len(value), budget, inner)
        elif kind is list and isinstance(value, list):
            _check_entries(enumerate(value), len(value), budget, inner)
        else:
            raise Refused(f" is not a {'list' if kind is list else 'dictionary'}: {clipped(value)}")

    return run


def _record_check(form: type) -> _Check:
    """The check of a dictionary with known keys."""
    inner = {name: _checker(hint) for name, hint in t.get_type_hints(form).items()}
    required = set(inner) if dataclasses.is_dataclass(form) and form is not Topology else set()

    def run(value: object, budget: _Budget) -> None:
        if not isinstance(value, dict):
            raise Refused(f" is not a dictionary: {clipped(value)}")
        for name in required - value.keys():
            raise Refused(f" lacks {name}")
        budget.take(len(value))
        for name, item in value.items():
            field_check = inner.get(name)
            if field_check is None:
                raise Refused(f" has {clipped(name)!r}, which this release does not know")
            try:
                field_check(item, budget)
            except Refused as error:
                raise Refused(f".{name}{error}") from None

    return run
