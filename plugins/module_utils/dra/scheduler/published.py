# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads published devices from ResourceSlices: for alignment, for plans, and for nodes that were not probed."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ...topology.facts import NodeFacts
from ..kube import quantity
from ..kube.objects import Object, ObjectView
from ..kube.versions import convert
from ..vendors.drivers import DRIVERS
from ..vendors.knowledge import PCI_BUS_ID
from ..vendors.offer import Offer
from ..vendors.server import Server
from . import search_devices
from .search_devices import DeviceId, attribute

#: The ID of a counter: driver, pool, counter set, name.
Counter = tuple[str, str, str, str]

API_VERSION = "resource.k8s.io/v1"

_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
#: Device names that contain the function's address: `pci-0000-8a-00-0`, `0000-8a-00-0-0x56c0`.
_NAME_WITH_ADDRESS = re.compile(r"^(?:pci-)?([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])(?:-0x[0-9a-f]+)?$")


def value_of(typed: ObjectView | None) -> t.Any:
    """The value of an attribute: a scalar or a list; None if it has no value."""
    return next((value for value in (typed or {}).values() if value is not None), None)


def address_of(driver: str, device: ObjectView) -> str | None:
    """The PCI address of a published device, from an attribute or its name; None if it is not a PCI function."""
    names = [PCI_BUS_ID]
    vendor = DRIVERS.get(driver)
    for kind in vendor.kinds.values() if vendor else ():
        names += [
            vendor.qualified(filter_attribute.name)
            for filter_attribute in kind.filters.get("pci_address", ())
            if vendor
        ]
    offer = Offer(driver, "", "", dict(device))
    for name in [*dict.fromkeys(names), f"{driver}/pciAddress"]:
        value = value_of(attribute(offer, name))
        if isinstance(value, str) and _ADDRESS.match(value.lower()):
            return value.lower()
    match = _NAME_WITH_ADDRESS.match(str(device.get("name")))
    return "{}:{}:{}.{}".format(*match.groups()) if match else None


@dataclass
class Published:
    """A device of the current generation of a pool."""

    driver: str
    pool: str
    device: Object
    node: str | None  # None if the slice is for several nodes
    address: str | None

    @property
    def name(self) -> str:
        return str(self.device["name"])

    @property
    def id(self) -> DeviceId:
        return (self.driver, self.pool, self.name)

    @property
    def offer(self) -> Offer:
        return Offer(self.driver, self.pool, self.node or "", self.device, self.address or "")


@dataclass
class Pool:
    """The slices of the current generation of one pool.

    `older` maps devices that are only in an earlier generation to that generation. `counters` are the shared counters.
    """

    generation: int
    slices: int
    expected_slices: int
    nodes: set[str] = field(default_factory=set)
    devices: dict[str, Published] = field(default_factory=dict)
    older: dict[str, int] = field(default_factory=dict)
    counters: dict[Counter, Fraction] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all slices of the current generation exist. If not, the scheduler allocates no device of the pool."""
        return self.slices == self.expected_slices


class Pools:
    """ResourceSlices of any served version, by driver and pool.

    Raises ValueError for an object that is not a ResourceSlice.
    """

    def __init__(self, slices: t.Iterable[ObjectView]) -> None:
        specs: dict[tuple[str, str], list[Object]] = {}
        for resource_slice in slices:
            spec = v1(resource_slice, "ResourceSlice")["spec"]
            specs.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        self.pools = {key: self._pool(*key, members) for key, members in sorted(specs.items())}
        self._on: dict[str | None, list[Published]] = {}
        for pool in self.pools.values():
            for device in pool.devices.values() if pool.complete else ():
                self._on.setdefault(device.node, []).append(device)

    @staticmethod
    def _pool(driver: str, name: str, specs: list[Object]) -> Pool:
        newest = max(spec["pool"]["generation"] for spec in specs)
        current = [spec for spec in specs if spec["pool"]["generation"] == newest]
        pool = Pool(newest, len(current), current[0]["pool"]["resourceSliceCount"])
        for spec in specs:
            pool.nodes |= {spec["nodeName"]} if spec.get("nodeName") else set()
        for spec in current:
            for entry in spec.get("sharedCounters") or ():
                for key, counter in entry["counters"].items():
                    pool.counters[driver, name, entry["name"], key] = quantity.parse(counter["value"])
            for device in spec.get("devices") or ():
                node = spec.get("nodeName") or device.get("nodeName")
                published = Published(driver, name, device, node, address_of(driver, device))
                pool.devices[published.name] = published
        for spec in specs:
            for device in spec.get("devices") or ():
                if device["name"] not in pool.devices:
                    generation = spec["pool"]["generation"]
                    pool.older[device["name"]] = max(generation, pool.older.get(device["name"], 0))
        return pool

    def pool(self, driver: str, name: str) -> Pool | None:
        """A driver's pool; None if it publishes none with that name."""
        return self.pools.get((driver, name))

    def on(self, node: str) -> list[Published]:
        """The devices of a node that a scheduler can allocate, by driver and pool."""
        return self._on.get(node, [])

    def taken(self, holders: t.Mapping[DeviceId, str]) -> dict[DeviceId, str]:
        """The devices that cannot be allocated, each with the claim that prevents it. `holders` are claims by device.

        As in `search_devices.taken`, the counters of each pool are respected.
        """
        result = dict(holders)
        for pool in self.pools.values():
            offers = (published.offer for published in pool.devices.values())
            result.update(search_devices.taken(offers, pool.counters, holders))
        return result


def v1(obj: ObjectView, kind: str) -> Object:
    """An object of any served version as v1. Raises ValueError if it is not of `kind`."""
    if not isinstance(obj, dict) or obj.get("kind") != kind:
        raise ValueError(f"this is not a {kind}: {str(obj)[:80]}")
    return convert(obj, API_VERSION)


def hidden_attributes(published: Published) -> frozenset[str]:
    """Attributes that the driver does not publish now, because a pod has the interface and the driver cannot read them.

    A pod has the interface if the driver publishes none of the attributes that need it.
    """
    vendor = DRIVERS.get(published.driver)
    offer = published.offer
    if vendor is None or any(attribute(offer, name) for name in vendor.by_interface):
        return frozenset()
    unreadable = [name for name in vendor.by_rdma if not value_of(attribute(offer, name))]
    return frozenset([*vendor.by_interface, *unreadable])


@dataclass(frozen=True)
class PublishedNode:
    """A node as its ResourceSlices show it.

    `unclear` maps drivers whose devices on this node are uncertain to the reason. `taken` are the devices that no other
    claim can get, each with the claim that prevents it; empty if the claims are unknown.
    """

    offers: tuple[Offer, ...] = ()
    unclear: t.Mapping[str, str] = field(default_factory=dict)
    taken: t.Mapping[DeviceId, str] = field(default_factory=dict)


#: Nodes by name: topology facts, as `lanewise.dra.topology_info` returns them, or what their drivers publish.
Nodes = t.Mapping[str, t.Union[NodeFacts, PublishedNode]]


class PublishedNodes:
    """The nodes of a cluster by the devices that their drivers publish, for a server.

    `nodes` contains all nodes that a slice names. `notes` say which devices are left out and why. With `as_if_free`,
    devices are read as if no pod had them: values that a driver leaves out while the device is in use are unknown, not
    absent. `held` are the devices that claims have, each with its claim; the claim is empty for admin access, which
    takes no device. If `held` is None, any device may be in use. Raises ValueError for an object that is not a
    ResourceSlice.
    """

    def __init__(
        self,
        slices: t.Iterable[ObjectView],
        server: Server | None = None,
        as_if_free: bool = False,
        held: t.Mapping[DeviceId, str] | None = None,
    ) -> None:
        self.pools = Pools(
            sorted(slices, key=lambda resource_slice: str((resource_slice.get("metadata") or {}).get("name")))
        )
        self.notes: list[str] = []
        self._server = server or Server()
        self._as_if_free = as_if_free
        self._held = held
        offers: dict[str, list[Offer]] = {}
        unclear: dict[str, dict[str, str]] = {}
        shared_by: dict[str, str] = {}
        for (driver, name), pool in self.pools.pools.items():
            if not pool.complete:
                number = f"{pool.slices} of {pool.expected_slices} slices"
                reason = f"pool {name} of {driver} has {number}, so the scheduler does not use it"
                for node in pool.nodes:
                    unclear.setdefault(node, {})[driver] = reason
                self.notes.append(f"{reason}; its devices are not counted")
                continue
            for node in pool.nodes:
                offers.setdefault(node, [])  # a driver can publish a pool without devices
            for offer in self._offers(pool):
                offers.setdefault(offer.node, []).append(offer)
            shared = sum(device.node is None for device in pool.devices.values())
            if shared:
                text = f"pool {name} of {driver}: {shared} device(s) belong to several nodes"
                self.notes.append(f"{text}, and are not counted")
                if as_if_free:  # plans do not set this: they leave these devices out
                    shared_by[driver] = text
        taken = self._taken()
        self.nodes = {
            name: PublishedNode(
                tuple(offers.get(name, ())), {**shared_by, **unclear.get(name, {})}, taken.get(name, {})
            )
            for name in sorted({*offers, *unclear})
        }

    def _taken(self) -> dict[str, dict[DeviceId, str]]:
        """By node, the devices that cannot be allocated, each with its claim. Shared devices are never taken."""
        taken: dict[str, dict[DeviceId, str]] = {}
        holders = {device: claim for device, claim in (self._held or {}).items() if claim}
        for device, claim in self.pools.taken(holders).items() if holders else ():
            pool = self.pools.pool(*device[:2])
            published = pool.devices.get(device[2]) if pool else None
            if published and published.node is not None and not published.device.get("allowMultipleAllocations"):
                taken.setdefault(published.node, {})[device] = claim
        return taken

    def _offers(self, pool: Pool) -> t.Iterator[Offer]:
        """The devices of a pool that belong to one node, as the server stores them."""
        sets = _counter_sets(pool)
        for published in pool.devices.values():
            if published.node is not None:
                names = [entry["counterSet"] for entry in published.device.get("consumesCounters") or ()]
                counters = tuple(sets[name] for name in names if name in sets)
                offer = replace(published.offer, counter_sets=counters)
                if self._as_if_free and (self._held is None or published.id in self._held):
                    offer = replace(offer, unknown=hidden_attributes(published))
                yield self._server.stored(offer)


def nodes_from_slices(
    objects: t.Iterable[ObjectView], server: Server | None = None, claims_known: bool = False
) -> PublishedNodes:
    """Nodes that replace probed ones, from the ResourceSlices among objects of any served version.

    The ResourceClaims among the objects say which devices are in use. If none has a device, any device may be in use,
    unless `claims_known` says that the objects include all claims. Raises ValueError for objects that the Kubernetes
    API would not return, or if there is no slice.
    """
    all_objects = list(objects)
    slices = [item for item in all_objects if item.get("kind") == "ResourceSlice"]
    claims = [item for item in all_objects if item.get("kind") == "ResourceClaim"]
    if not slices:
        raise ValueError("there is no ResourceSlice among the objects")
    try:
        held: dict[DeviceId, str] = {}
        for claim in claims:
            for result in _results(claim):
                device = (result["driver"], result["pool"], result["device"])
                held[device] = held.get(device) or ("" if result.get("adminAccess") else _title(claim))
        return PublishedNodes(slices, server, as_if_free=True, held=held if held or claims_known else None)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the slices or claims cannot be read: {type(error).__name__} {error}") from None


def _results(claim: ObjectView) -> t.Sequence[ObjectView]:
    """The devices that a claim has."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return devices.get("results") or ()


def _title(claim: ObjectView) -> str:
    """`NAMESPACE/NAME` of a claim."""
    metadata = claim.get("metadata") or {}
    return f"{metadata.get('namespace') or 'default'}/{metadata.get('name')}"


def _counter_sets(pool: Pool) -> dict[str, Object]:
    """The v1 CounterSets of a pool, by name."""
    sets: dict[str, Object] = {}
    for (_driver, _pool, name, counter), value in pool.counters.items():
        entry = sets.setdefault(name, {"name": name, "counters": {}})
        entry["counters"][counter] = {"value": quantity.canonical(value)}
    return sets
