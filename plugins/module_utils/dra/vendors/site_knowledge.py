# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A site's description of a driver, which adds to the built-in tables or describes a driver that has none."""

from __future__ import annotations

import re
import typing as t
from dataclasses import replace

from ..kube.objects import Object
from ..kube.problems import Problem
from ..kube.reader import nearest
from .knowledge import (
    ALIGNMENTS,
    COMPARISONS,
    CONVERSIONS,
    KINDS,
    TYPES,
    DriverKnowledge,
    Filter,
    Kind,
    Published,
    Term,
)

_ATTRIBUTE_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")


class SiteKnowledge:
    """Reads a site's description of a driver. Every error is added to `problems`."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems

    def _wrong(self, path: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(path, message, "knowledge", fix))

    def _mapping(self, value: object, path: str, keys: t.Sequence[str] = ()) -> Object:
        if not isinstance(value, dict):
            self._wrong(path, "must be a mapping")
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
        if isinstance(value, str) and _ATTRIBUTE_NAME.fullmatch(value):
            return value
        self._wrong(path, f"{value!r} is not an attribute name", "write ID or DOMAIN/ID")
        return "unknown"

    def _one_of(self, value: object, choices: t.Sequence[str], path: str) -> str:
        if value in choices:
            return str(value)
        self._wrong(
            path, f"must be one of {', '.join(choice for choice in choices if choice)}", nearest(value, choices)
        )
        return choices[0]

    def merge(self, driver: DriverKnowledge, description: object) -> DriverKnowledge:
        """The tables of a driver with the additions of the site."""
        known = ("title", "kinds", "align", "vendors", "kubernetes")
        data = self._mapping(description, self.path, known)
        kinds = dict(driver.kinds)
        for kind, value in self._mapping(data.get("kinds", {}), f"{self.path}.kinds", KINDS).items():
            kinds[kind] = self._kind(kinds.get(kind, Kind()), value, f"{self.path}.kinds.{kind}")
        align = dict(driver.align)
        for level, names in self._mapping(data.get("align", {}), f"{self.path}.align", ALIGNMENTS).items():
            level_path = f"{self.path}.align.{level}"
            align[level] = tuple(
                Published(self._name(item, f"{level_path}[{index}]"))
                for index, item in enumerate(self._list(names, level_path))
            )
        vendors = driver.vendors
        if "vendors" in data:
            vendors = tuple(str(item).lower() for item in self._list(data["vendors"], f"{self.path}.vendors"))
            for index, vendor in enumerate(vendors):
                if not re.fullmatch(r"[0-9a-f]{4}", vendor):
                    self._wrong(f"{self.path}.vendors[{index}]", "must be a PCI vendor ID of four hexadecimal digits")
        return replace(
            driver,
            title=str(data.get("title") or driver.title),
            kinds=kinds,
            align=align,
            vendors=vendors,
            kubernetes=str(data.get("kubernetes", driver.kubernetes)),
        )

    def _kind(self, kind: Kind, description: object, path: str) -> Kind:
        data = self._mapping(description, path, ("terms", "filters", "instead", "capacities"))
        filters = dict(kind.filters)
        for name, value in self._mapping(data.get("filters", {}), f"{path}.filters").items():
            filters[name] = (self._filter(value, f"{path}.filters.{name}"),)
        terms_by_filter = dict(kind.terms_by_filter)
        for name, value in self._mapping(data.get("instead", {}), f"{path}.instead").items():
            terms_by_filter[name] = self._terms(value, f"{path}.instead.{name}")
        terms = self._terms(data["terms"], f"{path}.terms") if "terms" in data else kind.terms
        capacities = dict(kind.capacities)
        for name, key in self._mapping(data.get("capacities", {}), f"{path}.capacities").items():
            capacities[name] = self._name(key, f"{path}.capacities.{name}")
        return Kind(terms=terms, filters=filters, terms_by_filter=terms_by_filter, capacities=capacities)

    def _terms(self, entries: object, path: str) -> tuple[Term, ...]:
        terms = []
        for index, item in enumerate(self._list(entries, path)):
            term_path = f"{path}[{index}]"
            data = self._mapping(item, term_path, ("name", "value", "compare"))
            value = data.get("value")
            if not isinstance(value, (str, int)):
                self._wrong(f"{term_path}.value", "must be a string, a whole number or a boolean")
                continue
            compare = self._one_of(data.get("compare", "equals"), COMPARISONS[:2], f"{term_path}.compare")
            terms.append(Term(self._name(data.get("name"), f"{term_path}.name"), value, compare))
        return tuple(terms)

    def _filter(self, description: object, path: str) -> Filter:
        if isinstance(description, str):
            return Filter(self._name(description, path))
        data = self._mapping(description, path, ("name", "type", "compare", "source", "unit", "values"))
        values = self._mapping(data.get("values", {}), f"{path}.values")
        return Filter(
            name=self._name(data.get("name"), f"{path}.name"),
            type=self._one_of(data.get("type", "string"), TYPES, f"{path}.type"),
            compare=self._one_of(data.get("compare", "equals"), COMPARISONS, f"{path}.compare"),
            source=self._one_of(data.get("source", "attributes"), ("attributes", "capacity"), f"{path}.source"),
            conversion=self._one_of(data.get("unit", ""), CONVERSIONS, f"{path}.unit"),
            values={key: str(value) for key, value in values.items()},
        )
