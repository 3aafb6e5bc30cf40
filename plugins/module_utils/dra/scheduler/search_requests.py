# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A claim's requests and constraints in the form that the scheduler's search uses."""

from __future__ import annotations

import json
import typing as t
from dataclasses import dataclass, field

from ..kube.objects import ObjectView, alternatives
from ..kube.quantity import Quantity
from .search_devices import LIST, Comparable

#: The kinds of constraints in Kubernetes 1.37.
CONSTRAINTS = ("matchAttribute", "distinctAttribute")


class Unsupported(ValueError):
    """A part of a claim or class that the scheduler does not support: scheduling of the pod fails."""


@dataclass
class Request:
    """A request or one of its alternatives, with values that are computed before the search.

    `key` contains the positions of the claim, of the request in it, and of the alternative.
    """

    key: tuple[int, int, int]
    path: str
    base: str
    sub: str
    spec: ObjectView
    is_sub: bool
    name: str = ""
    amounts: t.Mapping[str, Quantity] = field(default_factory=dict)  # by capacity
    admin: bool = False
    count: int = 1
    all_devices: list[int] | None = None  # positions of the devices of mode All
    texts: list[tuple[str, str]] = field(default_factory=list)  # its selectors, each with its path
    rules: list[Constraint] = field(default_factory=list)  # the constraints that cover it
    suitability_key: str = ""  # from `NodeCache`; equal for requests that the same devices suit

    def __post_init__(self) -> None:
        self.name = f"{self.base}/{self.sub}" if self.is_sub else self.base
        self.admin = bool(self.spec.get("adminAccess")) and not self.is_sub
        self.amounts = (self.spec.get("capacity") or {}).get("requests") or {}

    @classmethod
    def row(cls, claim: int, number: int, request: ObjectView) -> list[Request]:
        """The alternatives of a request, or the request itself if it has none."""
        path = f"claims[{claim}].spec.devices.requests[{number}]"
        base = request["name"]
        return [
            cls((claim, number, i), f"{path}.firstAvailable[{i}]", base, sub["name"], sub, True)
            for i, sub in enumerate(request.get("firstAvailable") or ())
        ] or [cls((claim, number, 0), f"{path}.exactly", base, "", request.get("exactly") or {}, False)]

    def read(
        self, of_class: t.Sequence[ObjectView], suitability_key: t.Callable[[ObjectView, list[str], bool], str]
    ) -> None:
        """Set `texts` from the request and the selectors of its class, and then `suitability_key` by this function.

        The function is `NodeCache.suitability_key`. Raises Unsupported.
        """
        if self.spec.get("allocationMode", "ExactCount") not in ("ExactCount", "All"):
            raise Unsupported(f"the scheduler does not support the allocationMode {self.spec['allocationMode']!r}")
        if self.spec.get("derivedAttributes"):
            raise Unsupported("derivedAttributes are not supported (gate DRADerivedAttributes, off by default)")
        request_selectors = self.spec.get("selectors") or ()
        selectors = [(f"class {self.spec['deviceClassName']}", entry) for entry in of_class]
        selectors += [(f"{self.path}.selectors[{number}]", entry) for number, entry in enumerate(request_selectors)]
        self.texts = [(path, expression_of(entry, path)) for path, entry in selectors]
        self.suitability_key = suitability_key(self.spec, [text for _where, text in self.texts], self.admin)


def expression_of(selector: ObjectView, path: str) -> str:
    """The CEL expression of a selector. Raises Unsupported if it has none."""
    expression = (selector.get("cel") or {}).get("expression")
    if expression is None:
        kinds = ", ".join(map(str, selector)) or "nothing"
        raise Unsupported(f"{path}: the scheduler only supports selectors of kind cel, and this one contains {kinds}")
    return str(expression)


def expressions(selectors: t.Iterable[ObjectView]) -> list[str]:
    """The CEL expressions of selectors; selectors of other kinds are ignored."""
    texts = [(selector.get("cel") or {}).get("expression") for selector in selectors]
    return [str(text) for text in texts if text is not None]


@dataclass
class Constraint:
    """A matchAttribute or distinctAttribute constraint, with the values of the devices that were picked so far."""

    attribute: str
    requests: frozenset[str]
    distinct: bool
    path: str
    values: list[Comparable] = field(default_factory=list)

    @classmethod
    def read(cls, entry: ObjectView, path: str, kinds: t.Sequence[str] = CONSTRAINTS) -> Constraint:
        """A constraint of a claim. Raises Unsupported if it is of another kind."""
        kind = next((kind for kind in kinds if entry.get(kind) is not None), None)
        if kind is None:
            known = " and ".join(kinds)
            raise Unsupported(f"the scheduler only supports constraints with {known}, so scheduling of the pod fails")
        return cls(entry[kind], frozenset(entry.get("requests") or ()), kind == "distinctAttribute", path)

    def covers(self, request: Request) -> bool:
        """Whether the constraint applies to the devices of a request."""
        return not self.requests or request.base in self.requests or request.name in self.requests

    def add(self, value: Comparable | None) -> bool:
        """Add the value of a device from `search_devices.comparable`. Returns False if the constraint forbids it."""
        if value is None:
            return False
        if self.values and value is LIST:
            return False
        if self.distinct:
            if value in self.values:
                return False
        elif self.values and value != self.values[0]:
            return False
        self.values.append(value)
        return True


def all_requests(claim: ObjectView, index: int) -> t.Iterator[tuple[str, ObjectView, str]]:
    """Every request and alternative of a claim: its path, its body, and the name of the request."""
    for number, request in enumerate(claim["devices"].get("requests") or ()):
        path = f"claims[{index}].spec.devices.requests[{number}]"
        if request.get("firstAvailable"):
            for position, sub in enumerate(request["firstAvailable"]):
                yield f"{path}.firstAvailable[{position}]", sub, request["name"]
        else:
            yield f"{path}.exactly", request.get("exactly") or {}, request["name"]


def class_selectors(classes: t.Mapping[str, ObjectView], request: ObjectView) -> list[ObjectView]:
    """The selectors of a request's DeviceClass."""
    device_class = classes.get(request.get("deviceClassName", ""))
    return list((device_class or {}).get("spec", {}).get("selectors") or ())


def alike_groups(claim: ObjectView) -> list[list[list[int]]]:
    """Lists of identical groups of requests, such as the repetitions of a group in an inventory.

    A group contains the positions of requests that constraints tie together. Constraints on all requests form no
    groups.
    """
    requests = claim["devices"].get("requests") or ()
    position_of = {request["name"]: position for position, request in enumerate(requests)}
    ties = []
    for entry in claim["devices"].get("constraints") or ():
        named = entry.get("requests") or ()
        if named:
            ties.append((entry, [position_of.get(name.partition("/")[0], -1) for name in named]))
    group = list(range(len(requests)))
    for _entry, members in ties:
        merged = {group[position] for position in members if position >= 0}
        group = [min(merged) if head in merged else head for head in group]
    members_of: dict[int, list[int]] = {}
    for position, head in enumerate(group):
        members_of.setdefault(head, []).append(position)
    shapes: dict[str, list[list[int]]] = {}
    for members in members_of.values():
        position_in_group = {requests[position]["name"]: str(i) for i, position in enumerate(members)}
        bodies = [{key: value for key, value in requests[position].items() if key != "name"} for position in members]
        rules = []
        for entry, tied in ties:
            if tied and tied[0] in members:
                names = sorted(
                    position_in_group.get(name.partition("/")[0], "") + "".join(name.partition("/")[1:])
                    for name in entry["requests"]
                )
                rules.append([entry.get("matchAttribute"), entry.get("distinctAttribute"), names])
        shape = json.dumps([bodies, sorted(rules, key=str)], sort_keys=True)
        shapes.setdefault(shape, []).append(members)
    return [groups for groups in shapes.values() if len(groups) > 1 and not _takes_all(requests, groups)]


def _takes_all(requests: t.Sequence[ObjectView], groups: list[list[int]]) -> bool:
    """Whether the first request of these groups is for all devices or has admin access."""
    first = requests[groups[0][0]]
    return any(body.get("adminAccess") or body.get("allocationMode") == "All" for body in alternatives(first))
