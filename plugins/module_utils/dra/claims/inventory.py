# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The data model of a site's inventory: `language` reads it, and `compiler` compiles it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..kube.objects import Object

#: The prefix of the inventory's variables.
PREFIX = "dra_claims_"
ANY = "any"
#: The placeholder in the name of an interface for the number of the repetition.
INDEX = "{index}"
#: The level that selects the nearest NICs of a GPU by the map of its board.
NEAREST = "nearest"
LEVELS = ("pcie_root", NEAREST, "numa_node", ANY)
#: The values of `at_least`, the farthest level that `nearest` accepts; the nearest first.
AT_LEAST = ("PIX", "PXB", "PHB", "NODE")

_NETWORK: dict[str, str] = {
    "min_speed": "amount",
    "link_layer": "link_layer",
    "rail": "integer",
    "numa_node": "integer",
    "model": "string",
    "min_firmware": "string",
    "interface": "string",
    "pci_address": "string",
    "pcie_root": "string",
    "min_mtu": "integer",
    "rdma": "boolean",
}
#: The filters of each kind, with the type of their value.
FILTERS: dict[str, dict[str, str]] = {
    "gpu": {
        "model": "string",
        "min_memory": "amount",
        "architecture": "string",
        "min_driver_version": "string",
        "partition": "string",
        "numa_node": "integer",
        "pci_address": "string",
        "pcie_root": "string",
        "uuid": "string",
    },
    "nic": _NETWORK,
    "rdma": _NETWORK,
    "vf": _NETWORK,
    "cpu": {"numa_node": "integer", "socket": "integer", "min_cpus": "integer"},
}
LINK_LAYERS = ("ethernet", "infiniband")

#: The keys of a share of a NIC; all others are for shares of GPUs.
NIC_SHARE = ("bandwidth", "burst", "hard", "factor")
#: The kinds of NICs that can be requested in shares.
SHARED_NICS = ("nic", "rdma")
#: The bandwidth of a share without an amount: the default of the NIC.
DEFAULT = "default"

#: The prefix of annotations that describe shares: what is enforced, what is only counted, how idle capacity is used.
SHARE_ANNOTATION = "share.lanewise.dev/"

#: The annotation of objects for the boards of the site: how they select NICs, and the farthest level of pairs.
NEAREST_ANNOTATION = "lanewise.dev/nearest"
#: The labels that the compiler sets.
OWN_LABELS = ("app.kubernetes.io/managed-by", "lanewise.dev/site")


@dataclass
class Device:
    """One entry of a claim: a request, or one alternative of a request."""

    path: str
    name: str
    kind: str = ""
    class_name: str = ""
    driver: str = ""
    count: int = 1
    all: bool = False
    where: Object = field(default_factory=dict)
    cel: list[str] = field(default_factory=list)
    alternatives: list[Device] = field(default_factory=list)
    admin: bool = False
    capacity: dict[str, str] = field(default_factory=dict)
    bandwidth: str = ""
    tolerations: list[Object] = field(default_factory=list)
    configs: list[Object] = field(default_factory=list)
    #: A part of a GPU (partition, memory, cores, shares, interval) or of a NIC (`NIC_SHARE`).
    share: Object = field(default_factory=dict)
    #: The namespace of the claim, if it has only one.
    namespace: str = ""

    @property
    def divided(self) -> bool:
        """Whether the device is a share of a NIC."""
        return any(key in self.share for key in NIC_SHARE)

    def filter_names(self) -> list[str]:
        """The names that may change the terms of the device's kind: its filters, and `share` for a share of a NIC."""
        return [*self.where, *(["share"] if self.divided else [])]

    def choices(self) -> list[Device]:
        """The alternatives, or the device itself if it has none."""
        return self.alternatives or [self]


@dataclass
class Group:
    """Devices that are aligned with each other, `count` times. `align` are the acceptable levels, the best first.

    `at_least` is the farthest level that `nearest` accepts; empty for the default.
    """

    path: str
    name: str
    count: int
    align: tuple[str, ...]
    devices: list[Device]
    align_path: str = ""
    at_least: str = ""


@dataclass
class Distinct:
    """Devices of a claim that must differ in an attribute. Without `devices`, they are all devices that publish it."""

    path: str
    by: str
    devices: list[str]


@dataclass
class Claim:
    """The body of a ResourceClaimTemplate (`template`) or of a ResourceClaim, in one or more namespaces."""

    path: str
    name: str
    template: bool
    namespaces: list[str]
    labels: dict[str, str]
    annotations: dict[str, str]
    groups: list[Group]
    align: str
    distinct: list[Distinct]
    #: The name of a tier, empty for none.
    tier: str = ""
    broken: bool = False


@dataclass
class Class:
    """A DeviceClass in the inventory of the site."""

    path: str
    name: str
    kind: str
    driver: str
    where: Object
    cel: list[str]
    configs: list[Object]
    extended_resource: str
    labels: dict[str, str]
    annotations: dict[str, str]
    #: Whether its devices are shares of NICs.
    share: bool = False
    broken: bool = False

    def filter_names(self) -> list[str]:
        """The names that may change the terms of the class's kind: its filters, and `share` for shares of NICs."""
        return [*self.where, *(["share"] if self.share else [])]


@dataclass
class Quota:
    """A ResourceQuota for the devices of classes, by class, and for the number of claims."""

    path: str
    name: str
    namespace: str
    devices: dict[str, int]
    claims: int | None
    broken: bool = False


@dataclass
class Taint:
    """A DeviceTaintRule."""

    path: str
    name: str
    selector: dict[str, str]
    taint: dict[str, str]
    broken: bool = False


@dataclass
class Tier:
    """A tier of claims, between which devices can be swapped.

    Pods of these claims are evicted for other tiers after `grace` seconds, or never if it is None.
    """

    path: str
    name: str
    grace: int | None


@dataclass
class Inventory:
    """The contents of the `dra_claims_*` variables of a site."""

    site: str
    drivers: dict[str, Object]
    classes: list[Class]
    claims: list[Claim]
    quotas: list[Quota]
    admin_namespaces: list[str]
    taints: list[Taint]
    policy: bool
    raw: list[tuple[str, Object]]
    #: The InterfacePolicy for classes without one, as an opaque configuration; empty if the site sets none.
    tenants: list[Object]
    allow_unreachable: bool


def request_name(device: Device, group: Group, index: int) -> str:
    """The name of a device's request in a repetition of its group: `gpu`, or `gpu-0` if the group is repeated."""
    return device.name if group.count == 1 else f"{device.name}-{index}"
