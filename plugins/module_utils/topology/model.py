# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The model of a node, as plain data.

Every class describes one kind of part. A field that the machine did not report is `None`; no value is guessed. PCI
addresses are `DDDD:BB:DD.F` strings in lower case, as the kernel writes them. The domain has five or more digits behind
Intel VMD and on some hypervisors. CPU sets are kernel list strings such as `0-15,32-47`.
"""

from __future__ import annotations

import dataclasses
import typing as t
from dataclasses import field

from .kubernetes import StandardAttributes

if t.TYPE_CHECKING:
    from .facts import NodeFacts

#: Version of the dictionaries that :func:`as_dict` returns. The major number is increased if readers of the old format
#: would fail, and the minor number if something is added.
SCHEMA_VERSION = "1.0"


class OverrideError(ValueError):
    """A malformed override. The text contains the entry and the problem."""


class _LazyFields:
    """`__dataclass_fields__` of a class of the model. It is created when it is first read, which never happens on a
    node."""

    def __get__(self, instance: object, cls: type) -> dict[str, t.Any]:
        if cls is Sheet:
            raise AttributeError("Sheet itself has no fields")
        dataclasses.dataclass(init=False, eq=False, repr=False)(cls)  # replaces this attribute with the real one
        return t.cast("dict[str, t.Any]", cls.__dict__["__dataclass_fields__"])


class Sheet:
    """The base of all classes of the model, with their methods.

    The classes look like dataclasses. But generating the methods of two dozen dataclasses takes longer than probing a
    node, and would be repeated in each run of the module.
    """

    __hash__ = None  # type: ignore[assignment]

    # typing.get_type_hints, with which the controller checks facts, must not find this annotation
    if t.TYPE_CHECKING:
        _names: t.ClassVar[tuple[str, ...]]
    else:
        __dataclass_fields__ = _LazyFields()

        def __init__(self, *values, **known):
            cls = type(self)
            if values:
                known.update(zip(cls._names, values))
            self.__dict__ = facts = cls._defaults | known
            for name, factory in cls._factories:
                if name not in known:
                    facts[name] = factory()
            if len(facts) != cls._count or len(values) > cls._count:
                raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._names)}, not {', '.join(facts)}")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


if t.TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(**options):
        """Replaces :func:`dataclasses.dataclass` for subclasses of Sheet, which has the methods."""

        def decorate(cls):
            cls._names = tuple(cls.__annotations__)
            cls._count = len(cls._names)
            values = {name: cls.__dict__[name] for name in cls._names if name in cls.__dict__}
            factories = {
                name: value.default_factory for name, value in values.items() if isinstance(value, dataclasses.Field)
            }
            cls._factories = list(factories.items())
            cls._defaults = {name: value for name, value in values.items() if name not in factories}
            return cls

        return decorate


@dataclass(eq=False, repr=False)
class Link(Sheet):
    """A PCIe link as one of its ends reports it. Speeds are in GT/s per lane, widths are numbers of lanes."""

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    gb_per_s: float | None = None  # current payload rate of one direction in GB/s (10^9 bytes), after line coding


@dataclass(eq=False, repr=False)
class Acs(Sheet):
    """PCIe Access Control Services of a port (PCIe Base Specification, section 7.7.11).

    Both lists contain suffixes of the kernel's constants PCI_ACS_* (pci_regs.h): SV, TB, RR, CR, UF, EC, DT.
    """

    capable: list[str] = field(default_factory=list)
    enabled: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Sriov(Sheet):
    """The SR-IOV capability of a PF (Documentation/ABI/testing/sysfs-bus-pci, sriov_*)."""

    total_vfs: int | None = None
    num_vfs: int | None = None
    offset: int | None = None
    stride: int | None = None
    vf_device_id: str | None = None
    drivers_autoprobe: bool | None = None
    vfs: list[str] = field(default_factory=list)  # addresses by VF number


@dataclass(eq=False, repr=False)
class Vpd(Sheet):
    """Vital product data of a card (PCI Local Bus Specification 3.0, appendix I)."""

    name: str | None = None
    part_number: str | None = None
    serial_number: str | None = None
    nvlink_management: bool = False  # a ConnectX function that manages an HGX baseboard's NVLink switches
    uuid: str | None = None  # NVIDIA's V3 field: shared by a ConnectX-8 PF and its data-direct DMA function


@dataclass(eq=False, repr=False)
class PciFunction(Sheet):
    """One PCI function.

    `bridges` are the addresses of the bridges from the root complex down to the function, which is not included.
    `root_complex` is the kernel's name of the outermost host bridge (`pci0000:17`).
    """

    address: str
    kind: str = "other"  # gpu, accelerator, nic, nvme, bridge, data_direct, nvlink_management, other
    class_code: str | None = None  # six hex digits: base class, subclass, programming interface
    vendor_id: str | None = None  # four hex digits
    device_id: str | None = None
    subsystem_vendor_id: str | None = None
    subsystem_device_id: str | None = None
    revision: str | None = None
    name: str | None = None
    driver: str | None = None
    slot: str | None = None
    root_complex: str | None = None
    bridges: list[str] = field(default_factory=list)
    numa_node: int | None = None
    numa_source: str | None = None  # kernel, local_cpus, override, import
    local_cpus: str | None = None
    link: Link | None = None
    iommu_group: int | None = None
    iommu_group_type: str | None = None
    acs: Acs | None = None
    sriov: Sriov | None = None
    physfn: str | None = None  # the PF, if this is a VF
    vf_number: int | None = None
    vpd: Vpd | None = None
    switch_label: str | None = None  # stated by the site: devices with the same label share a switch
    kubernetes: StandardAttributes = field(default_factory=StandardAttributes)


@dataclass(eq=False, repr=False)
class NumaNode(Sheet):
    """A NUMA node."""

    id: int
    cpus: str | None = None  # "" for a node without CPUs, None if the kernel does not report them
    memory_bytes: int | None = None
    package: int | None = None
    distances: dict[str, int] = field(default_factory=dict)  # node number (a string, for JSON) -> SLIT distance


@dataclass(eq=False, repr=False)
class Package(Sheet):
    """A CPU socket."""

    id: int
    cpus: str
    numa_nodes: list[int] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Interface(Sheet):
    """A network interface of the namespace that was read."""

    name: str
    # physical, vf, sf, representor, bond, bridge, vlan, macvlan, ipvlan, vxlan, wlan, usb, loopback, virtual
    kind: str = "virtual"
    address: str | None = None  # PCI function
    link_layer: str | None = None  # ethernet, infiniband, loopback, other
    ifindex: int | None = None
    mac: str | None = None
    permanent_mac: str | None = None
    mtu: int | None = None
    operstate: str | None = None
    carrier: bool | None = None
    speed_mbps: int | None = None
    dev_port: int | None = None
    phys_port_name: str | None = None
    phys_switch_id: str | None = None
    alias: str | None = None
    master: str | None = None
    lower: list[str] = field(default_factory=list)
    default_route: bool = False


@dataclass(eq=False, repr=False)
class Gid(Sheet):
    """An entry of an RDMA port's GID table."""

    index: int
    gid: str
    type: str | None = None  # "IB/RoCE v1" or "RoCE v2"
    interface: str | None = None


@dataclass(eq=False, repr=False)
class RdmaPort(Sheet):
    """A port of an RDMA device."""

    port: int
    link_layer: str | None = None  # infiniband, ethernet
    state: str | None = None  # as the kernel writes it: ACTIVE, DOWN, INIT, ARMED
    phys_state: str | None = None  # LinkUp, Disabled, Polling, ...
    rate_gbps: float | None = None
    lid: str | None = None
    sm_lid: str | None = None
    interfaces: list[str] = field(default_factory=list)
    gids: list[Gid] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class RdmaDevice(Sheet):
    """An RDMA device (Documentation/ABI/stable/sysfs-class-infiniband)."""

    name: str
    address: str | None = None
    node_type: str | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    firmware: str | None = None
    board_id: str | None = None
    interfaces: list[str] = field(default_factory=list)
    ports: list[RdmaPort] = field(default_factory=list)
    char_devices: list[str] = field(default_factory=list)  # paths under /dev/infiniband


@dataclass(eq=False, repr=False)
class Nearest(Sheet):
    """The nearest devices of another kind. `via` maps a NIC to its data-direct function if only that function is
    near."""

    level: str = "UNKNOWN"
    devices: list[str] = field(default_factory=list)
    via: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Gpu(Sheet):
    """A GPU or another accelerator. `index` counts in PCI address order from 0."""

    address: str
    index: int
    kind: str = "gpu"
    vendor: str | None = None
    model: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    rail: int | None = None
    nearest_nics: Nearest = field(default_factory=Nearest)


@dataclass(eq=False, repr=False)
class Nic(Sheet):
    """A PCI function that carries network or RDMA traffic: PFs and VFs alike."""

    address: str
    vendor: str | None = None
    model: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    physfn: str | None = None
    interfaces: list[str] = field(default_factory=list)
    representors: list[str] = field(default_factory=list)
    rdma_devices: list[str] = field(default_factory=list)
    # interface, rdma_device: what the function has in another network namespace, which a probe cannot read
    elsewhere: list[str] = field(default_factory=list)
    link_layer: str | None = None
    speed_mbps: int | None = None
    up: bool | None = None
    default_route: bool = False
    data_direct: str | None = None  # the DMA function that carries this NIC's GPU traffic
    rail: int | None = None
    rail_source: str | None = None  # derived, override
    nearest_gpus: Nearest = field(default_factory=Nearest)


@dataclass(eq=False, repr=False)
class Nvme(Sheet):
    """An NVMe function and its controllers."""

    address: str
    controllers: list[str] = field(default_factory=list)
    model: str | None = None
    serial: str | None = None
    driver: str | None = None
    numa_node: int | None = None


@dataclass(eq=False, repr=False)
class Affinity(Sheet):
    """Levels between GPUs, NICs that are not VFs, and NVMe functions.

    `levels` is a square matrix in the order of `devices`. It is empty if there are more devices than
    `affinity.MATRIX_LIMIT`.
    """

    devices: list[str] = field(default_factory=list)
    levels: list[list[str]] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Group(Sheet):
    """GPUs and NICs that are each other's nearest devices. `common` is what they share: a bridge, a root or a NUMA
    node."""

    level: str
    common: str | None = None
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Finding(Sheet):
    """A fact that an operator should know. `evidence` contains the values on which it is based."""

    id: str
    severity: str  # error, warning, info
    summary: str
    action: str
    devices: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class System(Sheet):
    """The machine as a whole."""

    architecture: str | None = None
    vendor: str | None = None
    product: str | None = None
    board: str | None = None
    bios_version: str | None = None
    cpu_model: str | None = None
    cpu_vendor: str | None = None  # as CPUID reports it, such as GenuineIntel
    cpu_family: int | None = None
    cpu_model_number: int | None = None
    kernel: str | None = None
    virtual: bool | None = None
    iommu_enabled: bool | None = None
    iommu_arguments: list[str] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Source(Sheet):
    """Where the facts come from."""

    kind: str = "sysfs"  # sysfs, nccl_xml, hwloc_xml
    path: str = "/"
    config_space: bool | None = None  # whether PCI config space beyond the first 64 bytes could be read
    unreadable: list[str] = field(default_factory=list)  # "path: reason", the first hundred
    unreadable_count: int = 0


@dataclass(eq=False, repr=False)
class Topology(Sheet):
    """A whole node."""

    schema_version: str = SCHEMA_VERSION
    source: Source = field(default_factory=Source)
    system: System = field(default_factory=System)
    numa_nodes: list[NumaNode] = field(default_factory=list)
    packages: list[Package] = field(default_factory=list)
    functions: dict[str, PciFunction] = field(default_factory=dict)
    interfaces: list[Interface] = field(default_factory=list)
    rdma_devices: list[RdmaDevice] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    nvme: list[Nvme] = field(default_factory=list)
    affinity: Affinity = field(default_factory=Affinity)
    groups: list[Group] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    fingerprint: str | None = None  # equal for nodes of the same shape, whatever their serial numbers


@t.overload
def as_dict(value: Topology) -> NodeFacts: ...


@t.overload
def as_dict(value: object) -> object: ...


def as_dict(value: object) -> object:
    """Turn an object of the model into dictionaries, lists and scalars, as for JSON and Ansible facts."""
    if isinstance(value, Sheet):
        facts = value.__dict__
        return {name: as_dict(facts[name]) for name in value._names}
    if isinstance(value, list):
        return [as_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: as_dict(item) for key, item in value.items()}
    return value
