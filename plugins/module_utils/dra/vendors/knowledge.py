# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What claims need to know about a DRA driver: the types of the vendors' tables."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field
from functools import lru_cache

KINDS = ("gpu", "nic", "rdma", "vf", "cpu")


#: The levels on which the devices of a group can be aligned. Each needs an attribute that all drivers publish.
ALIGNMENTS = ("pcie_root", "numa_node")


COMPARISONS = ("equals", "not_equals", "contains", "at_least")


TYPES = ("string", "int", "bool", "version", "quantity")


#: The conversion of a filter's value: `mbps` is an integer of Mbit/s made from a rate such as `400G`; `semver`
#: a semantic version compared by its precedence, whatever type the attribute has.
UNITS = ("", "mbps", "semver")


PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


PCI_BUS_ID = "resource.kubernetes.io/pciBusID"


NUMA_NODE = "resource.kubernetes.io/numaNode"


NUMA_NODE_DRANET = "dra.net/numaNode"  # used before Kubernetes standardized a name


LANEWISE = "lanewise.dev"


_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$")


NEWEST = ("main", "latest")


@dataclass(frozen=True)
class Filter:
    """One test of a device: an attribute or a capacity, and how it is compared.

    `name` is qualified (`domain/id`) in what :func:`knowledge` returns. `type` is the type that the driver
    publishes. `since` is the first driver version that publishes it (`>1.4.0`: the first after that one), `until`
    the first that no longer does. `values` maps the inventory's values to the driver's if they differ.
    """

    name: str
    type: str = "string"
    compare: str = "equals"
    source: str = "attributes"  # attributes, capacity
    unit: str = ""
    since: str = ""
    until: str = ""
    values: t.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Term:
    """What every device of a kind has: an attribute and its value. `not_equals` also matches if it is missing."""

    name: str
    value: str | int | bool
    compare: str = "equals"

    @property
    def type(self) -> str:
        return "bool" if isinstance(self.value, bool) else "int" if isinstance(self.value, int) else "string"


@dataclass(frozen=True)
class Published:
    """An attribute that devices can be aligned on. `list` values need the cluster's gate DRAListTypeAttributes.

    `list_gate` is the driver's gate that publishes a list instead of a single value.
    """

    name: str
    since: str = ""
    until: str = ""
    list: bool = False
    list_gate: str = ""


@dataclass(frozen=True)
class Gate:
    """A feature gate of a driver, with the rules that the driver checks when it starts."""

    since: str = ""  # the first version that has it
    default: bool = False
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """How devices of one kind are selected and requested.

    `filters` maps a vendor-neutral filter to the ways to test it, the best first; :func:`knowledge` keeps those that
    the site's version has. `instead` maps a filter to the terms that replace `terms` if that filter is used: a MIG
    partition is not a device of type gpu. `capacities` maps what can be requested by amount (bandwidth, cpus, memory)
    to the key that is published, which a capacity request has to use exactly.
    """

    terms: tuple[Term, ...] = ()
    filters: t.Mapping[str, tuple[Filter, ...]] = field(default_factory=dict)
    instead: t.Mapping[str, tuple[Term, ...]] = field(default_factory=dict)
    capacities: t.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverKnowledge:
    """What claims need to know about a DRA driver.

    `align` maps an alignment level to its attributes; `vendors` are PCI vendor ids of the functions
    it serves; `epochs` are first versions in the order of their release, where that is not the order of their numbers;
    `hints` advise, by filter, alignment level or `version`, what to do if the driver does not support it.
    `by_interface` are attributes, qualified, that it publishes only while the node has the device's interface,
    `by_rdma` those that are missing or false while a pod has the RDMA device; the hint `in_use` says how to keep
    them. `pf_address` is the attribute, qualified, with the PCI address of a VF's PF.
    `lines` are the release lines (major.minor) that were published; `gates` the driver's own feature gates, of which
    the site has switched on those in `enabled`. `source` is where the tables come from; `ran` names the versions of the
    driver that were tested with this collection, if any.
    `extended_resources` are those of the DeviceClasses in the driver's chart, with the first version that has them.
    """

    name: str
    title: str
    kinds: t.Mapping[str, Kind]
    align: t.Mapping[str, tuple[Published, ...]] = field(default_factory=dict)
    vendors: tuple[str, ...] = ()
    kubernetes: str = "1.34"  # the oldest minor version that it runs on
    version: str = ""
    epochs: tuple[str, ...] = ()
    oldest: str = ""  # the first version that these tables describe
    newest: str = ""  # the last release that they were compared with
    hints: t.Mapping[str, str] = field(default_factory=dict)
    by_interface: tuple[str, ...] = ()
    by_rdma: tuple[str, ...] = ()
    pf_address: str = ""
    lines: tuple[str, ...] = ()
    gates: t.Mapping[str, Gate] = field(default_factory=dict)
    enabled: frozenset[str] = frozenset()
    source: str = ""
    ran: str = ""
    extended_resources: t.Mapping[str, str] = field(default_factory=dict)

    def qualified(self, name: str) -> str:
        """`domain/id` of an attribute or capacity; an unqualified name belongs to the driver's domain."""
        return name if "/" in name else f"{self.name}/{name}"

    def has(self, since: str, until: str = "") -> bool:
        """Whether this version is at least `since` (later, with a leading `>`), and before `until` if that is set."""
        mine = version_order(self.version or "main", self.epochs)
        if since.startswith(">"):
            if mine <= version_order(since[1:], self.epochs):
                return False
        elif since and mine < version_order(since, self.epochs):
            return False
        return not until or mine < version_order(until, self.epochs)

    def version_warning(self) -> str:
        """A warning about a version that is newer than these tables, or that was never released; empty for others."""
        if not self.newest or self.version in ("", *NEWEST):
            return ""
        major, minor, _patch, _rest = parse_version(self.newest)
        if version_order(self.version, self.epochs) < version_order(f"{major}.{minor + 1}.0-0", self.epochs):
            return self._unpublished()
        return (
            f"dra_claims_drivers.{self.name}.version: {self.title} {self.oldest} to {self.newest} are known; "
            f"{self.version} is assumed to publish the same as {self.newest}. Correct it if there is no such version"
        )

    def _unpublished(self) -> str:
        """A warning about a version outside the published release lines; empty for others."""
        major, minor, _patch, _rest = parse_version(self.version)
        if not self.lines or f"{major}.{minor}" in self.lines:
            return ""
        return (
            f"dra_claims_drivers.{self.name}.version: there is no release {self.version} of {self.title}; its "
            f"release lines are {', '.join(f'{line}.x' for line in self.lines)}. Correct it if it is a typing error"
        )

    def filter(self, kind: str, name: str) -> Filter | None:
        """The test of a filter in this version; None if it does not support the filter."""
        served = self.kinds.get(kind)
        ways = served.filters.get(name, ()) if served else ()
        return next((way for way in ways if self.has(way.since, way.until)), None)

    def terms(self, kind: str, filters: t.Iterable[str] = ()) -> tuple[Term, ...]:
        """What distinguishes devices of the kind from the driver's other devices, given the filters that are used."""
        served = self.kinds[kind]
        for name in filters:
            if name in served.instead:
                return served.instead[name]
        return served.terms

    def alignments(self, level: str, lists: bool = False) -> list[str]:
        """Qualified attributes of an alignment level, the best first. `lists`: whether the cluster compares lists."""
        return [p.name for p in self.align.get(level, ()) if self.has(p.since, p.until) and (lists or not p.list)]

    def publishes(self, name: str) -> bool:
        """Whether this version publishes a qualified attribute that claims can be aligned on."""
        return any(p.name == name and self.has(p.since, p.until) for ways in self.align.values() for p in ways)

    def hint(self, name: str) -> str:
        """What to do if a filter or an alignment level is not supported; empty if there is no advice."""
        return self.hints.get(name, "")


def parse_version(text: str) -> tuple[int, int, int, tuple[tuple[int, int, str], ...]]:
    """A driver's version as a key that sorts by semantic version precedence. Raises `ValueError`."""
    match = _VERSION.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a version such as 1.2.3")
    major, minor, patch, suffix = match.groups()
    # A release sorts after its own pre-releases: an empty tuple would sort first.
    identifiers: tuple[tuple[int, int, str], ...] = ((2, 0, ""),)
    if suffix:
        identifiers = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in suffix.split("."))
    return int(major), int(minor), int(patch or 0), identifiers


@lru_cache(maxsize=1024)
def version_order(version: str, epochs: tuple[str, ...]) -> tuple[t.Any, ...]:
    """Sort key of a version among all releases of a driver; `main` comes after every release.

    An epoch begins at the version that it is named after and reaches to the next higher epoch.
    """
    if version in NEWEST:
        return (len(epochs) + 1,)
    parsed = parse_version(version)
    if not epochs:
        return (0, parsed)
    began = [(parse_version(first), position) for position, first in enumerate(epochs)]
    # 0.4.0-rc.1 belongs to the epoch of 0.4.0
    reached = [(first, position) for first, position in began if first[:3] <= parsed[:3]]
    return (max(reached)[1] if reached else -1, parsed)
