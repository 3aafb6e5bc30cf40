# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A site's own description of a driver, which extends the built-in tables or describes a driver without any."""

from __future__ import annotations

import re
import typing as t
from dataclasses import replace

from ..kube.objects import Object
from ..kube.problems import Problem
from ..kube.reader import nearest
from .knowledge import ALIGNMENTS, COMPARISONS, KINDS, TYPES, UNITS, DriverKnowledge, Filter, Kind, Published, Term

_ATTRIBUTE_NAME = re.compile(r"^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}$")


class SiteKnowledge:
    """Reads a site's description of a driver and reports every error."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems

    def _wrong(self, path: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(path, message, "knowledge", fix))

    def _mapping(self, value: object, path: str, keys: t.Sequence[str] = ()) -> Object:
        if not isinstance(value, dict):
            self._wrong(path, "must be a dictionary")
            return {}
        for key in value:
            if keys and key not in keys:
                self._wrong(f"{path}.{key}", "unknown key", nearest(key, keys) or f"known: {', '.join(keys)}")
        return {str(key): item for key, item in value.items() if not keys or key in keys}

    def _list(self, value: object, path: str) -> list[object]:
        if isinstance(value, list):
            return value
        self._wrong(path, "must be a list")
        return []

    def _name(self, value: object, path: str) -> str:
        if isinstance(value, str) and _ATTRIBUTE_NAME.match(value):
            return value
        self._wrong(path, f"{value!r} is not an attribute name", "write id or domain/id")
        return "unknown"

    def _one_of(self, value: object, choices: t.Sequence[str], path: str) -> str:
        if value in choices:
            return str(value)
        self._wrong(path, f"must be one of {', '.join(c for c in choices if c)}", nearest(value, choices))
        return choices[0]

    def merge(self, driver: DriverKnowledge, given: object) -> DriverKnowledge:
        known = ("title", "kinds", "align", "vendors", "kubernetes")
        data = self._mapping(given, self.path, known)
        kinds = dict(driver.kinds)
        for kind, value in self._mapping(data.get("kinds", {}), f"{self.path}.kinds", KINDS).items():
            kinds[kind] = self._kind(kinds.get(kind, Kind()), value, f"{self.path}.kinds.{kind}")
        align = dict(driver.align)
        for level, names in self._mapping(data.get("align", {}), f"{self.path}.align", ALIGNMENTS).items():
            where = f"{self.path}.align.{level}"
            align[level] = tuple(
                Published(self._name(item, f"{where}[{index}]")) for index, item in enumerate(self._list(names, where))
            )
        vendors = driver.vendors
        if "vendors" in data:
            vendors = tuple(str(item).lower() for item in self._list(data["vendors"], f"{self.path}.vendors"))
            for index, vendor in enumerate(vendors):
                if not re.match(r"^[0-9a-f]{4}$", vendor):
                    self._wrong(f"{self.path}.vendors[{index}]", "must be a PCI vendor id of four hex digits")
        return replace(
            driver,
            title=str(data.get("title", driver.title)),
            kinds=kinds,
            align=align,
            vendors=vendors,
            kubernetes=str(data.get("kubernetes", driver.kubernetes)),
        )

    def _kind(self, kind: Kind, given: object, path: str) -> Kind:
        data = self._mapping(given, path, ("terms", "filters", "instead", "capacities"))
        filters = dict(kind.filters)
        for name, value in self._mapping(data.get("filters", {}), f"{path}.filters").items():
            filters[name] = (self._filter(value, f"{path}.filters.{name}"),)
        instead = dict(kind.instead)
        for name, value in self._mapping(data.get("instead", {}), f"{path}.instead").items():
            instead[name] = self._terms(value, f"{path}.instead.{name}")
        terms = self._terms(data["terms"], f"{path}.terms") if "terms" in data else kind.terms
        capacities = dict(kind.capacities)
        for name, key in self._mapping(data.get("capacities", {}), f"{path}.capacities").items():
            capacities[name] = self._name(key, f"{path}.capacities.{name}")
        return Kind(terms=terms, filters=filters, instead=instead, capacities=capacities)

    def _terms(self, given: object, path: str) -> tuple[Term, ...]:
        terms = []
        for index, item in enumerate(self._list(given, path)):
            where = f"{path}[{index}]"
            data = self._mapping(item, where, ("name", "value", "compare"))
            value = data.get("value")
            if not isinstance(value, (str, int)):
                self._wrong(f"{where}.value", "must be a string, a whole number or a boolean")
                continue
            compare = self._one_of(data.get("compare", "equals"), COMPARISONS[:2], f"{where}.compare")
            terms.append(Term(self._name(data.get("name"), f"{where}.name"), value, compare))
        return tuple(terms)

    def _filter(self, given: object, path: str) -> Filter:
        if isinstance(given, str):
            return Filter(self._name(given, path))
        data = self._mapping(given, path, ("name", "type", "compare", "source", "unit", "values"))
        values = self._mapping(data.get("values", {}), f"{path}.values")
        return Filter(
            name=self._name(data.get("name"), f"{path}.name"),
            type=self._one_of(data.get("type", "string"), TYPES, f"{path}.type"),
            compare=self._one_of(data.get("compare", "equals"), COMPARISONS, f"{path}.compare"),
            source=self._one_of(data.get("source", "attributes"), ("attributes", "capacity"), f"{path}.source"),
            unit=self._one_of(data.get("unit", ""), UNITS, f"{path}.unit"),
            values={key: str(value) for key, value in values.items()},
        )
