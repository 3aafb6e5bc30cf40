# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What each DRA driver calls the things that a site asks for, and since which of its versions.

The tables were read in the drivers' own sources: kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/
deviceinfo.go), ROCm/k8s-gpu-dra-driver (cmd/gpu-kubeletplugin/deviceinfo.go),
intel/intel-resource-drivers-for-kubernetes (cmd/kubelet-gpu-plugin, cmd/kubelet-gaudi-plugin),
kubernetes-sigs/dra-driver-cpu (pkg/device), kubernetes-sigs/dranet (pkg/apis/attributes.go, pkg/inventory) and
k8snetworkplumbingwg/dra-driver-sriov (pkg/consts, pkg/devicestate).
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ...topology import cpuset
from ..kube.problems import Problem, Problems
from ..kube.reader import nearest

KINDS = ("gpu", "nic", "rdma", "vf", "cpu")
#: How the devices of a group can be tied together; every level but C(any) needs an attribute that all drivers publish.
ALIGNMENTS = ("pcie_root", "numa_node")
COMPARISONS = ("equals", "not_equals", "contains", "at_least")
TYPES = ("string", "int", "bool", "version", "quantity")
#: What a filter's value is turned into: C(mbps) is an integer of Mbit/s made from a rate such as C(400G); C(semver)
#: a semantic version compared by its precedence, whatever type the attribute has.
UNITS = ("", "mbps", "semver")

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
NUMA_NODE = "resource.kubernetes.io/numaNode"
NUMA_NODE_DRANET = "dra.net/numaNode"  # the convention before Kubernetes had a name of its own

OWN = "lanewise.dev"

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$")
_NEWEST = ("main", "latest")
_NAME = re.compile(r"^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}$")
_DRIVER_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")


@dataclass(frozen=True)
class Filter:
    """One question to a device: an attribute or a capacity, and how it is compared.

    C(name) is qualified (C(domain/id)) in what :func:`knowledge` returns. C(type) is the type that the driver
    publishes. C(since) is the first driver version that publishes it (C(>1.4.0): the first after that one), C(until)
    the first that no longer does. C(values) maps our words to the driver's where those differ.
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
    """What every device of a kind has: an attribute and its value. C(not_equals) also holds where it is missing."""

    name: str
    value: str | int | bool
    compare: str = "equals"

    @property
    def type(self) -> str:
        return "bool" if isinstance(self.value, bool) else "int" if isinstance(self.value, int) else "string"


@dataclass(frozen=True)
class Published:
    """An attribute that devices can be aligned on. C(list) values need the gate DRAListTypeAttributes."""

    name: str
    since: str = ""
    until: str = ""
    list: bool = False


@dataclass(frozen=True)
class Kind:
    """How devices of one kind are told apart and asked for.

    C(filters) maps a vendor-neutral filter to the ways to ask it, the best first; :func:`knowledge` leaves those that
    the site's version has. C(instead) maps a filter to the terms that take the place of C(terms) where that filter is
    used: a MIG partition is no device of type gpu. C(capacities) maps what can be asked for by amount (bandwidth,
    cpus, memory) to the key that is published, which a capacity request has to repeat letter by letter.
    """

    terms: tuple[Term, ...] = ()
    filters: t.Mapping[str, tuple[Filter, ...]] = field(default_factory=dict)
    instead: t.Mapping[str, tuple[Term, ...]] = field(default_factory=dict)
    capacities: t.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverKnowledge:
    """A DRA driver as claims see it.

    C(align) maps an alignment level to the attributes that carry it; C(vendors) are PCI vendor ids of the functions
    it serves; C(epochs) are first versions in the order of their release, where numbers alone would lie;
    C(hints) tells, by filter, alignment level or C(version), what a user of an older driver can do instead.
    C(by_interface) are attributes, qualified, that it publishes only while the node has the device's interface,
    C(by_rdma) those that it leaves out or denies while a pod has the RDMA device; the hint C(in_use) tells how to keep
    them.
    """

    name: str
    title: str
    kinds: t.Mapping[str, Kind]
    align: t.Mapping[str, tuple[Published, ...]] = field(default_factory=dict)
    vendors: tuple[str, ...] = ()
    kubernetes: str = "1.34"  # the oldest minor version that it runs on
    version: str = ""
    epochs: tuple[str, ...] = ()
    oldest: str = ""  # the first version that these tables hold for
    newest: str = ""  # the last release that they were compared with
    hints: t.Mapping[str, str] = field(default_factory=dict)
    by_interface: tuple[str, ...] = ()
    by_rdma: tuple[str, ...] = ()

    def qualified(self, name: str) -> str:
        """C(domain/id) of an attribute or capacity; a bare name is in the driver's own domain."""
        return name if "/" in name else f"{self.name}/{name}"

    def has(self, since: str, until: str = "") -> bool:
        """Whether this version lies between C(since) and C(until)."""
        mine = _order(self.version or "main", self.epochs)
        if since.startswith(">"):
            if mine <= _order(since[1:], self.epochs):
                return False
        elif since and mine < _order(since, self.epochs):
            return False
        return not until or mine < _order(until, self.epochs)

    def beyond(self) -> str:
        """What to say of a version after the last release that is known here; empty where there is nothing to say."""
        if not self.newest or self.version in ("", *_NEWEST):
            return ""
        major, minor, _patch, _rest = parse_version(self.newest)
        if _order(self.version, self.epochs) < _order(f"{major}.{minor + 1}.0-0", self.epochs):
            return ""
        return (
            f"dra_claims_drivers.{self.name}.version: {self.title} is known here up to {self.newest}, oldest "
            f"{self.oldest}; {self.version} is taken to publish the same as the newest. Correct it if there is no such "
            "version"
        )

    def filter(self, kind: str, name: str) -> Filter | None:
        """How this version answers a filter; C(None) where it cannot."""
        served = self.kinds.get(kind)
        ways = served.filters.get(name, ()) if served else ()
        return next((way for way in ways if self.has(way.since, way.until)), None)

    def terms(self, kind: str, filters: t.Iterable[str] = ()) -> tuple[Term, ...]:
        """What tells devices of the kind from the driver's other devices, given the filters that are used."""
        served = self.kinds[kind]
        for name in filters:
            if name in served.instead:
                return served.instead[name]
        return served.terms

    def alignments(self, level: str, lists: bool = False) -> list[str]:
        """Qualified attributes that carry an alignment level, the best first. C(lists): the cluster compares lists."""
        return [p.name for p in self.align.get(level, ()) if self.has(p.since, p.until) and (lists or not p.list)]

    def publishes(self, name: str) -> bool:
        """Whether this version publishes a qualified attribute that claims can be aligned on."""
        return any(p.name == name and self.has(p.since, p.until) for ways in self.align.values() for p in ways)

    def hint(self, name: str) -> str:
        """What to do where a filter or an alignment level is not answered; empty where there is nothing to say."""
        return self.hints.get(name, "")


def parse_version(text: str) -> tuple[int, int, int, tuple[tuple[int, int, str], ...]]:
    """A driver's version as a key that sorts by semantic version precedence. Raises C(ValueError)."""
    match = _VERSION.match(text)
    if not match:
        raise ValueError(f"{text!r} is no version such as 1.2.3")
    major, minor, patch, suffix = match.groups()
    # A release sorts after its own pre-releases: an empty tuple would sort first.
    identifiers: tuple[tuple[int, int, str], ...] = ((2, 0, ""),)
    if suffix:
        identifiers = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in suffix.split("."))
    return int(major), int(minor), int(patch or 0), identifiers


@lru_cache(maxsize=1024)
def _order(version: str, epochs: tuple[str, ...]) -> tuple[t.Any, ...]:
    """Sort key of a version among all releases of a driver; C(main) comes after every release.

    An epoch begins at the version that it is named after and reaches to the next higher epoch.
    """
    if version in _NEWEST:
        return (len(epochs) + 1,)
    parsed = parse_version(version)
    if not epochs:
        return (0, parsed)
    began = [(parse_version(first), position) for position, first in enumerate(epochs)]
    # 0.4.0-rc.1 belongs to the epoch of 0.4.0
    reached = [(first, position) for first, position in began if first[:3] <= parsed[:3]]
    return (max(reached)[1] if reached else -1, parsed)


def _text(name: str, compare: str = "equals", since: str = "", until: str = "", unit: str = "") -> Filter:
    return Filter(name, "string", compare, unit=unit, since=since, until=until)


def _number(name: str, compare: str = "equals", since: str = "", unit: str = "", until: str = "") -> Filter:
    return Filter(name, "int", compare, unit=unit, since=since, until=until)


def _flag(name: str) -> Filter:
    return Filter(name, "bool")


def _at_least(name: str) -> Filter:
    return Filter(name, "quantity", "at_least", source="capacity")


def _version(name: str) -> Filter:
    return Filter(name, "version", "at_least", unit="semver")


_NVIDIA = DriverKnowledge(
    name="gpu.nvidia.com",
    title="NVIDIA GPU DRA driver",
    vendors=("10de",),
    kubernetes="1.32",
    # 25.12.0 was followed by 0.4.0; what was called 0.1.0 came before the calendar versions.
    epochs=("0.1.0", "25.3.0", "0.4.0"),
    oldest="25.3.0",
    newest="0.5.0",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            terms=(Term("type", "gpu"),),
            instead={"partition": (Term("type", "mig"),)},
            filters={
                "model": (_text("productName", "contains"),),
                "min_memory": (_at_least("memory"),),
                "architecture": (_text("architecture"),),
                "min_driver_version": (_version("driverVersion"),),
                "partition": (_text("profile"),),
                "uuid": (_text("uuid"),),
                "numa_node": (_number(NUMA_NODE, since="0.5.0"),),
                "pci_address": (_text(PCI_BUS_ID, since="25.12.0"), _text("pcieBusID", until="25.12.0")),
                "pcie_root": (_text(PCIE_ROOT, since="25.3.0"),),
            },
        )
    },
    align={
        "pcie_root": (Published(PCIE_ROOT, since="25.3.0"),),
        "numa_node": (Published(NUMA_NODE, since="0.5.0"),),
    },
    hints={
        "numa_node": "gpu.nvidia.com publishes resource.kubernetes.io/numaNode from 0.5.0 on; before it, align on "
        "pcie_root, or name the GPUs' PCIe roots with where: {pcie_root: ...}",
        "version": "0.4.0 and later are newer than 25.12.0",
    },
)

_AMD = DriverKnowledge(
    name="gpu.amd.com",
    title="AMD GPU DRA driver",
    vendors=("1002",),
    kubernetes="1.34",
    oldest="1.0.0",
    newest="1.0.0",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            terms=(Term("type", "amdgpu"),),
            instead={"partition": (Term("type", "amdgpu-partition"),)},
            filters={
                "model": (_text("productName", "contains"),),
                "min_memory": (_at_least("memory"),),
                "min_driver_version": (_version("driverVersion"),),
                "partition": (_text("partitionProfile"),),
                "numa_node": (_number("numaNode"),),
                "pci_address": (_text(PCI_BUS_ID),),
                "pcie_root": (_text(PCIE_ROOT),),
            },
        )
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published("numaNode"),),
    },
    hints={
        "numa_node": "gpu.amd.com publishes the NUMA node only as gpu.amd.com/numaNode, which no other driver has; "
        "align on pcie_root, or ask every device for the same numa_node with where",
        "architecture": "ask for the model",
        "uuid": "gpu.amd.com publishes no uuid; ask for pci_address",
    },
)

_INTEL = DriverKnowledge(
    name="gpu.intel.com",
    title="Intel GPU DRA driver",
    vendors=("8086",),
    kubernetes="1.34",
    oldest="0.9.0",
    newest="0.11.0",
    kinds={
        "gpu": Kind(
            capacities={"memory": "memory"},
            # from 0.11.0 on VFs are published beside their GPU
            terms=(Term("type", "vf", "not_equals"),),
            filters={
                "model": (_text("model", "contains"),),
                "architecture": (_text("family"),),
                "min_memory": (_at_least("memory"),),
                "pci_address": (_text(PCI_BUS_ID, since="0.10.0"), _text("pciAddress", until="0.10.0")),
                "pcie_root": (_text(PCIE_ROOT, since="0.10.0"),),
            },
        )
    },
    align={"pcie_root": (Published(PCIE_ROOT, since="0.10.0"),)},
    hints={
        "numa_node": "gpu.intel.com publishes no NUMA node; align on pcie_root",
        "pcie_root": "gpu.intel.com publishes the PCIe root from 0.10.0 on",
        "partition": "gpu.intel.com publishes whole GPUs and VFs, no partitions",
        "uuid": "gpu.intel.com publishes no uuid; ask for pci_address",
    },
)

_GAUDI = DriverKnowledge(
    name="gaudi.intel.com",
    title="Intel Gaudi DRA driver",
    vendors=("1da3",),
    kubernetes="1.34",
    oldest="0.5.0",
    newest="0.7.0",
    kinds={
        "gpu": Kind(
            filters={
                "model": (_text("model", "contains"),),
                "uuid": (_text("serial", since="0.7.0"), _text("serial", until="0.6.0")),
                "pcie_root": (_text(PCIE_ROOT, since="0.7.0"),),
            },
        )
    },
    align={"pcie_root": (Published(PCIE_ROOT, since="0.7.0"),)},
    hints={
        "numa_node": "gaudi.intel.com publishes no NUMA node; align on pcie_root",
        "pcie_root": "gaudi.intel.com publishes the PCIe root from 0.7.0 on",
        "pci_address": "gaudi.intel.com publishes no PCI address; ask for uuid, which is the card's serial number",
        "min_memory": "ask for the model",
        "uuid": "gaudi.intel.com 0.6.x publishes no serial number; ask for the model or the pcie_root",
    },
)

_CPU = DriverKnowledge(
    name="dra.cpu",
    title="CPU DRA driver",
    kubernetes="1.34",
    oldest="0.1.0",
    newest="0.2.0",
    kinds={
        "cpu": Kind(
            capacities={"cpus": "dra.cpu/cpu"},
            filters={
                "numa_node": (_number(NUMA_NODE, since=">0.2.0"), _number("numaNodeID", until="0.3.0")),
                "socket": (_number("socketID"),),
                "min_cpus": (_number("numCPUs", "at_least"),),
            },
        )
    },
    align={
        "numa_node": (Published(NUMA_NODE, since=">0.2.0"), Published(NUMA_NODE_DRANET)),
        "pcie_root": (Published(PCIE_ROOT, since="0.2.0", list=True),),
    },
    hints={
        "pcie_root": "dra.cpu publishes PCIe roots as a list from 0.2.0 on, with --expose-pcie-roots and the feature "
        "gate DRAListTypeAttributes; align on numa_node",
        "numa_node": "dra.cpu publishes resource.kubernetes.io/numaNode in builds after 0.2.0; with older ones CPUs "
        "align with drivers that publish dra.net/numaNode",
    },
)

_DRANET = DriverKnowledge(
    name="dra.net",
    title="DRANET",
    vendors=(),
    kubernetes="1.34",
    oldest="1.0.1",
    newest="1.4.0",
    kinds={
        kind: Kind(
            terms=terms,
            filters={
                "interface": (_text("ifName"),),
                "numa_node": (_number(NUMA_NODE, since=">1.4.0"), _number(NUMA_NODE_DRANET)),
                "pci_address": (_text("pciAddress"),),
                "pcie_root": (_text(PCIE_ROOT),),
                "min_mtu": (_number("mtu", "at_least"),),
                "rdma": (_flag("rdma"),),
                # netlink's name of the hardware type
                "link_layer": (Filter("encapsulation", values={"ethernet": "ether"}),),
                "model": (_text("pciDevice", "contains"),),
            },
        )
        for kind, terms in {
            "nic": (Term("virtual", False), Term("isSriovVf", True, "not_equals")),
            "rdma": (Term("rdma", True), Term("isSriovVf", True, "not_equals")),
            "vf": (Term("isSriovVf", True),),
        }.items()
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published(NUMA_NODE, since=">1.4.0"), Published(NUMA_NODE_DRANET)),
    },
    hints={
        "min_speed": "dra.net publishes no link speed; ask for the model, or let lanewise.dev serve these NICs",
        "rail": "dra.net publishes no rail; ask for the interface or the pci_address",
        "min_firmware": "dra.net publishes no firmware version",
        "numa_node": "dra.net publishes resource.kubernetes.io/numaNode in builds after 1.4.0; with older ones align "
        "on pcie_root",
        "in_use": "from 1.4.0 on, DRANET's feature gate PersistentResourceSliceAttributes (alpha) keeps them published",
    },
    # pkg/inventory/db.go, addLinkAttributes; those of gce.dra.net are found by the MAC address
    by_interface=(
        *("dra.net/alias", "dra.net/ebpf", "dra.net/encapsulation", "dra.net/ifName", "dra.net/ipv4", "dra.net/ipv6"),
        *("dra.net/isSriovVf", "dra.net/mac", "dra.net/mtu", "dra.net/sriov", "dra.net/sriovVfs", "dra.net/state"),
        *("dra.net/tcFilterNames", "dra.net/tcxProgramNames", "dra.net/type", "dra.net/virtual"),
        *("gce.dra.net/ipAliases", "gce.dra.net/networkName", "gce.dra.net/networkProjectNumber"),
    ),
    # in RDMA's exclusive mode the first is false and the second missing
    by_rdma=("dra.net/rdma", "dra.net/rdmaDevice"),
)

_SRIOV = DriverKnowledge(
    name="sriovnetwork.k8snetworkplumbingwg.io",
    title="SR-IOV DRA driver",
    kubernetes="1.34",
    oldest="0.1.0",
    kinds={
        "vf": Kind(
            filters={
                "interface": (_text("PFName"),),
                "pci_address": (_text(PCI_BUS_ID),),
                "pcie_root": (_text(PCIE_ROOT),),
                "numa_node": (_number(NUMA_NODE_DRANET),),
                "link_layer": (_text("linkType"),),
                "rdma": (_flag("rdmaCapable"),),
            },
        )
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published(NUMA_NODE_DRANET),),
    },
    hints={
        "min_speed": "this driver publishes no link speed; ask for the interface, which is the PF's name",
        "numa_node": "this driver publishes the NUMA node only as dra.net/numaNode; align on pcie_root",
        "rail": "this driver publishes no rail; ask for the interface, which is the PF's name",
    },
)

_LANEWISE = DriverKnowledge(
    name=OWN,
    title="lanewise",
    kubernetes="1.34",
    oldest="1.0.0",
    newest="1.0.0",  # the collection's own version
    kinds={
        kind: Kind(
            terms=terms,
            # how much of the port a VF gets is not a fact of the hardware
            capacities={} if kind == "vf" else {"bandwidth": "bandwidth"},
            filters={
                "min_speed": (_number("linkSpeedMbps", "at_least", unit="mbps"),),
                "link_layer": (_text("linkLayer"),),
                "rail": (_number("rail"),),
                "numa_node": (_number(NUMA_NODE),),
                "model": (_text("model", "contains"),),
                "min_firmware": (_text("firmware", "at_least", unit="semver"),),
                "interface": (_text("ifName"),),
                "pci_address": (_text(PCI_BUS_ID),),
                "pcie_root": (_text(PCIE_ROOT),),
                "min_mtu": (_number("mtu", "at_least"),),
                "rdma": (_flag("rdma"),),
            },
        )
        for kind, terms in {
            "nic": (Term("type", "pf"),),
            "rdma": (Term("type", "pf"), Term("rdma", True)),
            "vf": (Term("type", "vf"),),
        }.items()
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published(NUMA_NODE), Published(NUMA_NODE_DRANET)),
    },
)

#: Built-in tables by driver name, for all versions; :func:`knowledge` gives those of a site's version.
DRIVERS: dict[str, DriverKnowledge] = {
    driver.name: driver for driver in (_NVIDIA, _AMD, _INTEL, _GAUDI, _CPU, _DRANET, _SRIOV, _LANEWISE)
}


def knowledge(name: str, options: t.Mapping[str, t.Any] | None = None) -> DriverKnowledge:
    """What claims can ask of driver C(name) in the version that the site runs.

    C(options) is the driver's entry in dra_claims_drivers: C(version), and C(knowledge), a dictionary that adds to the
    built-in tables or describes a driver that has none::

        knowledge:
          kinds:
            gpu:
              terms: [{name: type, value: gpu}]         # attribute, value, compare: equals or not_equals
              capacities: {memory: memory}
              filters: {min_memory: {name: memory, source: capacity, type: quantity, compare: at_least}}
          align: {pcie_root: [resource.kubernetes.io/pcieRoot]}
          vendors: ["10de"]

    Every name in the result is qualified, and it holds only what the version publishes. Raises L(Problems,) with paths
    below dra_claims_drivers.
    """
    path = f"dra_claims_drivers.{name}"
    problems: list[Problem] = []
    options = dict(options or {})
    if len(name) > 63 or not _DRIVER_NAME.match(name):
        problems.append(
            Problem(path, f"{name!r} is no driver name: a DNS subdomain of at most 63 characters", "driver")
        )
    for key in sorted(set(options) - {"version", "knowledge", *_OTHER_OPTIONS}):
        problems.append(
            Problem(f"{path}.{key}", "unknown option", "unknown", "known are version, knowledge, " + _OTHERS)
        )
    for key, form in _OTHER_OPTIONS.items():
        if options.get(key) is not None and not form.holds(options[key]):
            problems.append(Problem(f"{path}.{key}", f"must be {form.says}, not {options[key]!r}", "bad-value"))
    driver = DRIVERS.get(name)
    own = options.get("knowledge")
    if driver is None and not own:
        near = nearest(name, sorted(DRIVERS))
        near = f"{near} Else " if near else ""
        problems.append(
            Problem(
                path,
                "no knowledge of this driver is built in",
                "driver",
                f"{near}describe its devices in {path}.knowledge; built in are {', '.join(sorted(DRIVERS))}",
            )
        )
        raise Problems(problems)
    built_in = driver is not None
    if driver is None:
        driver = DriverKnowledge(name=name, title=name, kinds={})
    if own is not None:
        driver = _Site(path + ".knowledge", problems).merge(driver, own)
    driver = replace(driver, version=_check_version(driver, built_in, options.get("version"), path, problems))
    if problems:
        raise Problems(problems)
    return _resolve(driver)


@dataclass(frozen=True)
class _Option:
    """An option that only the offers read."""

    says: str
    holds: t.Callable[[t.Any], bool]


_GROUPS = ("numa_node", "socket", "machine")
_OTHER_OPTIONS = {
    "group_by": _Option(f"one of {', '.join(_GROUPS)}", lambda value: value in _GROUPS),
    "reserved_cpus": _Option(
        'a list of CPUs as the kernel writes it, such as "0-3,64"',
        lambda value: isinstance(value, str) and cpuset.from_list(value) is not None,
    ),
}
_OTHERS = ", ".join(_OTHER_OPTIONS)


def _check_version(driver: DriverKnowledge, built_in: bool, version: t.Any, path: str, problems: list[Problem]) -> str:
    if version is None:
        if built_in and driver.name != OWN:
            problems.append(
                Problem(
                    path,
                    f"which version of {driver.title} runs is not said, so neither are its attributes",
                    "version",
                    'write version: "X.Y.Z", or main for the newest',
                )
            )
        return "main"
    text = str(version)
    where = f"{path}.version"
    if not isinstance(version, str):
        # YAML reads 1.10 as the number 1.1
        problems.append(Problem(where, f"must be a string, not {version}", "version", 'quote it: "1.10.0"'))
        return "main"
    if text in _NEWEST:
        return "main"
    try:
        order = _order(text, driver.epochs)
    except ValueError as error:
        problems.append(Problem(where, str(error), "version", "quote it, and write all three numbers"))
        return "main"
    if driver.oldest and order < _order(driver.oldest, driver.epochs):
        hint = driver.hint("version")
        problems.append(
            Problem(
                where,
                f"{driver.title} {text} is too old: {driver.oldest} is the oldest version that claims can be made for",
                "version",
                f"upgrade the driver{'; ' + hint if hint else ''}",
            )
        )
    return text[1:] if text.startswith("v") else text


def _resolve(driver: DriverKnowledge) -> DriverKnowledge:
    """Leave what the driver's version has, under qualified names."""

    def terms(given: tuple[Term, ...]) -> tuple[Term, ...]:
        return tuple(replace(term, name=driver.qualified(term.name)) for term in given)

    kinds = {}
    for kind, served in driver.kinds.items():
        filters = {}
        for name, ways in served.filters.items():
            kept = tuple(
                replace(way, name=driver.qualified(way.name)) for way in ways if driver.has(way.since, way.until)
            )
            if kept:
                filters[name] = kept
        kinds[kind] = Kind(
            terms=terms(served.terms),
            filters=filters,
            instead={name: terms(given) for name, given in served.instead.items()},
            capacities=served.capacities,
        )
    align = {
        level: tuple(replace(way, name=driver.qualified(way.name)) for way in ways if driver.has(way.since, way.until))
        for level, ways in driver.align.items()
    }
    return replace(driver, kinds=kinds, align=align)


class _Site:
    """Reads a site's own knowledge, telling every mistake."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems

    def _wrong(self, path: str, message: str, fix: str = "") -> None:
        self.problems.append(Problem(path, message, "knowledge", fix))

    def _mapping(self, value: t.Any, path: str, keys: t.Sequence[str] = ()) -> dict[str, t.Any]:
        if not isinstance(value, dict):
            self._wrong(path, "must be a dictionary")
            return {}
        for key in value:
            if keys and key not in keys:
                self._wrong(f"{path}.{key}", "unknown key", nearest(key, keys) or f"known are {', '.join(keys)}")
        return {str(key): item for key, item in value.items() if not keys or key in keys}

    def _list(self, value: t.Any, path: str) -> list[t.Any]:
        if isinstance(value, list):
            return value
        self._wrong(path, "must be a list")
        return []

    def _name(self, value: t.Any, path: str) -> str:
        if isinstance(value, str) and _NAME.match(value):
            return value
        self._wrong(path, f"{value!r} is no attribute name", "write id or domain/id")
        return "unknown"

    def _one_of(self, value: t.Any, choices: t.Sequence[str], path: str) -> str:
        if value in choices:
            return str(value)
        self._wrong(path, f"must be one of {', '.join(c for c in choices if c)}", nearest(value, choices))
        return choices[0]

    def merge(self, driver: DriverKnowledge, given: t.Any) -> DriverKnowledge:
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

    def _kind(self, kind: Kind, given: t.Any, path: str) -> Kind:
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

    def _terms(self, given: t.Any, path: str) -> tuple[Term, ...]:
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

    def _filter(self, given: t.Any, path: str) -> Filter:
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
