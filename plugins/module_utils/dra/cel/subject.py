# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A device in the form that selectors evaluate, and the values that an expression looks up."""

from __future__ import annotations

import typing as t

from ..kube import quantity
from ..kube.objects import ObjectView, Scalar
from .errors import EvaluationError, Uncheckable
from .expression import Node
from .functions import MAPS_WITH_DEFAULTS, SCALAR_FIELDS
from .values import VERSION, CelValue, Values, quantity_value, tag_of, version_value

#: What an expression looks up: the map, the domain, and the name in it; None if it only looks up the domain.
Lookups = tuple[tuple[str, str, t.Optional[str]], ...]


def lookups(root: Node) -> Lookups | None:
    """The attributes and capacities that an expression looks up by constant names; None if it may read others."""
    parents = {id(part): node for node in root.walk() for part in node.children()}
    reads = set()
    for node in root.walk():
        if node.kind != "ident" or "device" not in node.name or node.name in SCALAR_FIELDS:
            continue
        if node.name not in MAPS_WITH_DEFAULTS:
            return None
        domain, call = _constant_key(node, parents)
        if domain is None or call is None:
            return None
        name: str | None = None
        if call.name != "@in":
            parent = parents.get(id(call))
            if parent is not None and parent.kind == "select":
                name = parent.name
            else:
                name = _constant_key(call, parents)[0]
            if name is None:
                return None
        reads.add((node.name, domain, name))
    return tuple(sorted(reads, key=str))


def _constant_key(node: Node, parents: t.Mapping[int, Node]) -> tuple[str | None, Node | None]:
    """The constant key that a map is indexed by or searched for, and the call that does so; None for other uses."""
    call = parents.get(id(node))
    if call is None or call.kind != "call" or call.name not in ("_[_]", "@in") or call.target or len(call.parts) != 2:
        return None, None
    container, key = call.parts if call.name == "_[_]" else reversed(call.parts)
    if container is not node or key.kind != "literal" or key.literal_type != "string":
        return None, None
    return str(key.value), call


#: The values of a device that expressions with certain look-ups read.
ValueKey = tuple[t.Union[str, bool, None], ...]


class Subject:
    """A device in the form that selectors evaluate, converted once for all selectors.

    `device` is an entry of `spec.devices` of a v1 ResourceSlice: `attributes` and `capacity` by name, where a name
    without a domain belongs to `driver`. The entry must not change afterwards.
    """

    def __init__(self, device: ObjectView, driver: str) -> None:
        self.device = device
        self.driver = driver
        self.shared = bool(device.get("allowMultipleAllocations"))
        self.has_versions = False
        self.maps: dict[str, dict[str, Values]] = {}
        self._value_keys: dict[Lookups, ValueKey] = {}

    def convert(self) -> None:
        """Fill `maps` from the device, once.

        Raises EvaluationError or Uncheckable for values that the server or the engine refuses.
        """
        if self.maps:
            return
        attributes: dict[str, Values] = {}
        for name, attribute in (self.device.get("attributes") or {}).items():
            domain, _slash, identifier = name.rpartition("/")
            value = attribute_value(name, attribute)
            values = value if isinstance(value, list) else [value]
            if any(isinstance(item, dict) and tag_of(item) == VERSION for item in values):
                self.has_versions = True
            attributes.setdefault(domain or self.driver, {})[identifier] = value
        capacity: dict[str, Values] = {}
        for name, entry in (self.device.get("capacity") or {}).items():
            domain, _slash, identifier = name.rpartition("/")
            try:
                amount = quantity_value(quantity.parse(entry.get("value", "0")))
            except quantity.QuantityError as error:
                raise EvaluationError(f"capacity {name}: {error}") from error
            capacity.setdefault(domain or self.driver, {})[identifier] = amount
        self.maps = {"device.attributes": attributes, "device.capacity": capacity}

    def looked_up(self, reads: Lookups) -> dict[str, dict[str, Values]]:
        """The part of the maps that expressions with these look-ups read. Call `convert` first."""
        part: dict[str, dict[str, Values]] = {map_name: {} for map_name in self.maps}
        for map_name, domain, name in reads:
            values = self.maps[map_name].get(domain)
            if values is not None:
                part_values = part[map_name].setdefault(domain, {})
                if name in values:
                    part_values[name] = values[name]
        return part

    def value_key(self, reads: Lookups) -> ValueKey:
        """A key that is equal for devices that expressions with these look-ups cannot distinguish. Call `convert`
        first."""
        key = self._value_keys.get(reads)
        if key is None:
            values: list[str | bool | None] = [self.driver, self.shared, self.has_versions]
            for map_name, domain, name in reads:
                domain_values = self.maps[map_name].get(domain)
                if name is None:
                    values.append(domain_values is not None)
                else:  # repr, because 1 == True in Python
                    values.append(repr(domain_values[name]) if domain_values and name in domain_values else None)
            key = self._value_keys[reads] = tuple(values)
        return key


def attribute_value(name: str, attribute: ObjectView) -> CelValue:
    """The value of a v1 DeviceAttribute.

    Raises EvaluationError for an invalid version, as the scheduler does, and for an unsupported value; Uncheckable for
    text with a NUL.
    """
    if len(attribute) == 1:  # nearly always
        ((kind, value),) = attribute.items()
        if kind in ("string", "int", "bool") and value is not None:
            return _without_nul(name, value)
    for kind in ("ints", "bools", "strings"):
        if attribute.get(kind) is not None:
            return [_without_nul(name, item) for item in attribute[kind]]
    try:
        if attribute.get("versions") is not None:
            return [version_value(text) for text in attribute["versions"]]
        for kind in ("int", "bool", "string"):
            if attribute.get(kind) is not None:
                return _without_nul(name, attribute[kind])
        if attribute.get("version") is not None:
            return version_value(attribute["version"])
    except ValueError as error:
        raise EvaluationError(f"attribute {name}: {error}") from error
    raise EvaluationError(f"attribute {name}: unsupported attribute value")


def _without_nul(name: str, value: Scalar) -> Scalar:
    """The value. Raises Uncheckable for text with a NUL, at which the engine's binding would truncate it."""
    if isinstance(value, str) and "\0" in value:
        raise Uncheckable(f"cannot be evaluated offline: attribute {name} with a NUL character")
    return value
