# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The types of the tables that describe what each DRA driver publishes."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field
from functools import lru_cache

#: The kinds of devices that claims can request.
KINDS = ("gpu", "nic", "rdma", "vf", "cpu")


#: The levels on which the devices of a group can be aligned. Each needs an attribute that the drivers of all these
#: devices publish.
ALIGNMENTS = ("pcie_root", "numa_node")


#: How a filter can compare the published value with the requested one.
COMPARISONS = ("equals", "not_equals", "contains", "at_least")


#: The types of published values.
TYPES = ("string", "int", "bool", "version", "quantity")


#: The conversions before a filter compares values; empty for none. `mbps` converts a requested rate such as `400G` to
#: an integer of Mbit/s. `semver` reads both values as semantic versions, even if the attribute is a string.
CONVERSIONS = ("", "mbps", "semver")


PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


PCI_BUS_ID = "resource.kubernetes.io/pciBusID"


NUMA_NODE = "resource.kubernetes.io/numaNode"


#: The name of the NUMA node in DRANET and drivers that align with it, from before Kubernetes standardized NUMA_NODE.
NUMA_NODE_DRANET = "dra.net/numaNode"


LANEWISE = "lanewise.dev"


_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


#: The names of a driver's newest build, in place of a version.
NEWEST_BUILD = ("main", "latest")


@dataclass(frozen=True)
class Filter:
    """One test of a device: an attribute or a capacity, and how its value is compared.

    `name` is qualified (`domain/id`) in what :func:`drivers.knowledge` returns. `type` is the type of the published
    value, `conversion` one of CONVERSIONS. `since` is the first driver version that publishes the value (`>1.4.0` for
    the first build after 1.4.0), `until` the first version that no longer does. `values` maps values of the inventory
    to those of the driver where they differ.
    """

    name: str
    type: str = "string"
    compare: str = "equals"
    source: str = "attributes"  # attributes or capacity
    conversion: str = ""
    since: str = ""
    until: str = ""
    values: t.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Term:
    """A condition that every device of a kind meets: an attribute and its value.

    `not_equals` also matches devices without the attribute.
    """

    name: str
    value: str | int | bool
    compare: str = "equals"

    @property
    def type(self) -> str:
        return "bool" if isinstance(self.value, bool) else "int" if isinstance(self.value, int) else "string"


@dataclass(frozen=True)
class Published:
    """An attribute that devices can be aligned on.

    `since` and `until` are as for Filter. `list` says that its value is a list, for which the cluster needs the feature
    gate DRAListTypeAttributes. `list_gate` is the driver's feature gate with which it publishes a list instead of a
    single value.
    """

    name: str
    since: str = ""
    until: str = ""
    list: bool = False
    list_gate: str = ""


@dataclass(frozen=True)
class Gate:
    """A feature gate of a driver. The driver does not start if an enabled gate violates `excludes` or `needs`."""

    since: str = ""  # the first version with the gate
    default: bool = False
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """How devices of one kind are selected and requested.

    `filters` maps each vendor-neutral filter to its possible tests, the best first; :func:`drivers.knowledge` keeps the
    tests for the site's version. `terms_by_filter` maps a filter to the terms that replace `terms` if the filter is
    used: a MIG partition, for example, does not have the type gpu. `capacities` maps what can be requested by amount
    (bandwidth, cpus, memory) to the published capacity, which is the name that a capacity request must use.
    """

    terms: tuple[Term, ...] = ()
    filters: t.Mapping[str, tuple[Filter, ...]] = field(default_factory=dict)
    terms_by_filter: t.Mapping[str, tuple[Term, ...]] = field(default_factory=dict)
    capacities: t.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverKnowledge:
    """What claims need to know about a DRA driver. Names of attributes in `by_interface`, `by_rdma` and `pf_address`
    are qualified.

    - `align` maps an alignment level to the attributes for it, the best first.
    - `vendors` are the PCI vendor IDs of the functions that the driver serves.
    - `version_series` is empty if the releases are in the order of their numbers. Otherwise it is the first version of
      each series of ascending numbers, in the order of release.
    - `release_lines` are the release lines (major.minor) that were published.
    - `hints` say, by filter, alignment level or `version`, what to do if the driver does not support it.
    - `by_interface` are attributes that are published only while the device's interface is on the host. `by_rdma` are
      those that are missing or false while a pod has the RDMA device. The hint `in_use` says how to keep them.
    - `pf_address` is the attribute with the PCI address of a VF's PF.
    - `gates` are the driver's own feature gates, and `enabled` those of them that are on at this site.
    - `source` is where the tables come from, and `tested_versions` the versions of the driver that ran in our tests.
    - `extended_resources` are those of the DeviceClasses in the driver's chart, each with its first version.
    """

    name: str
    title: str
    kinds: t.Mapping[str, Kind]
    align: t.Mapping[str, tuple[Published, ...]] = field(default_factory=dict)
    vendors: tuple[str, ...] = ()
    kubernetes: str = "1.34"  # the oldest minor version that the driver supports
    version: str = ""
    version_series: tuple[str, ...] = ()
    oldest: str = ""  # the first version that these tables describe
    newest: str = ""  # the last release that these tables were compared with
    hints: t.Mapping[str, str] = field(default_factory=dict)
    by_interface: tuple[str, ...] = ()
    by_rdma: tuple[str, ...] = ()
    pf_address: str = ""
    release_lines: tuple[str, ...] = ()
    gates: t.Mapping[str, Gate] = field(default_factory=dict)
    enabled: frozenset[str] = frozenset()
    source: str = ""
    tested_versions: str = ""
    extended_resources: t.Mapping[str, str] = field(default_factory=dict)

    def qualified(self, name: str) -> str:
        """`domain/id` of an attribute or capacity; an unqualified name belongs to the driver's domain."""
        return name if "/" in name else f"{self.name}/{name}"

    def version_in_range(self, since: str, until: str = "") -> bool:
        """Whether the version is at least `since`, or later than it (leading `>`), and before `until` if that is
        set."""
        version = version_order(self.version or "main", self.version_series)
        if since.startswith(">"):
            if version <= version_order(since[1:], self.version_series):
                return False
        elif since and version < version_order(since, self.version_series):
            return False
        return not until or version < version_order(until, self.version_series)

    def version_warning(self) -> str:
        """A warning about a version that is newer than these tables, or that was never released; empty for others."""
        if not self.newest or self.version in ("", *NEWEST_BUILD):
            return ""
        major, minor, _patch, _rest = parse_version(self.newest)
        if version_order(self.version, self.version_series) < version_order(
            f"{major}.{minor + 1}.0-0", self.version_series
        ):
            return self._unreleased_warning()
        return (
            f"dra_claims_drivers.{self.name}.version: {self.title} {self.oldest} to {self.newest} are known; "
            f"{self.version} is assumed to publish the same as the newest known build. Correct it if there is no such "
            "version"
        )

    def _unreleased_warning(self) -> str:
        """A warning about a version outside the published release lines; empty for others."""
        major, minor, _patch, _rest = parse_version(self.version)
        if not self.release_lines or f"{major}.{minor}" in self.release_lines:
            return ""
        return (
            f"dra_claims_drivers.{self.name}.version: there is no release {self.version} of {self.title}; its release "
            f"lines are {', '.join(f'{line}.x' for line in self.release_lines)}. Correct it if it is a typing error"
        )

    def filter(self, kind: str, name: str) -> Filter | None:
        """The test of a filter in this version, or None if this version does not support the filter."""
        tables = self.kinds.get(kind)
        tests = tables.filters.get(name, ()) if tables else ()
        return next((test for test in tests if self.version_in_range(test.since, test.until)), None)

    def terms(self, kind: str, filters: t.Iterable[str] = ()) -> tuple[Term, ...]:
        """The terms that select devices of the kind among the driver's devices, given the filters that are used."""
        tables = self.kinds[kind]
        for name in filters:
            if name in tables.terms_by_filter:
                return tables.terms_by_filter[name]
        return tables.terms

    def alignments(self, level: str, lists: bool = False) -> list[str]:
        """Qualified attributes of an alignment level, the best first. `lists`: whether the cluster compares lists."""
        return [
            attribute.name for attribute in self._in_version(self.align.get(level, ())) if lists or not attribute.list
        ]

    def publishes_alignment(self, name: str) -> bool:
        """Whether this version publishes an alignment attribute with this qualified name."""
        return any(attribute.name == name for level in self.align.values() for attribute in self._in_version(level))

    def _in_version(self, attributes: t.Iterable[Published]) -> list[Published]:
        return [attribute for attribute in attributes if self.version_in_range(attribute.since, attribute.until)]

    def hint(self, name: str) -> str:
        """What to do if a filter or an alignment level is not supported; empty if there is no advice."""
        return self.hints.get(name, "")


def parse_version(text: str) -> tuple[int, int, int, tuple[tuple[int, int, str], ...]]:
    """A driver's version as a key that sorts by the precedence of semantic versions.

    Raises ValueError if it is not a version.
    """
    match = _VERSION.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a version such as 1.2.3")
    major, minor, patch, suffix = match.groups()
    # a release sorts after its own pre-releases
    identifiers: tuple[tuple[int, int, str], ...] = ((2, 0, ""),)
    if suffix:
        identifiers = tuple(
            (0, int(identifier), "") if identifier.isdigit() else (1, 0, identifier) for identifier in suffix.split(".")
        )
    return int(major), int(minor), int(patch or 0), identifiers


@lru_cache(maxsize=1024)
def version_order(version: str, version_series: tuple[str, ...]) -> tuple[t.Any, ...]:
    """The sort key of a version among all releases of a driver; `main` comes after every release.

    A series (`DriverKnowledge.version_series`) reaches from its first version to the next higher first version.
    """
    if version in NEWEST_BUILD:
        return (len(version_series) + 1,)
    parsed = parse_version(version)
    if not version_series:
        return (0, parsed)
    first_versions = [(parse_version(first), position) for position, first in enumerate(version_series)]
    # compare only the three numbers, as 0.4.0-rc.1 belongs to the series of 0.4.0
    lower = [(first, position) for first, position in first_versions if first[:3] <= parsed[:3]]
    return (max(lower)[1] if lower else -1, parsed)
