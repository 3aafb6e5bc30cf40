# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices of other drivers in a claim (peers): their PCI addresses and UUIDs, from those drivers' ResourceSlices.

A claim without such devices costs no request. What another driver publishes is validated: if an address is not that of
a GPU that this node's probe has found, the peer's address is unknown.
"""

from __future__ import annotations

import re
import typing as t

from ..api.client import ApiError
from ..base import trace
from ..base.errors import bounded
from ..base.objects import Object
from ..dra.config.interface_config import DRIVER
from ..dra.kube import limits
from ..publish.places import GpuPlace, Places
from ..topology.pci import ADDRESS
from .records import DeviceRecord, PeerRecord

#: Attributes with a PCI address: the standard one of Kubernetes, then those that drivers used before it existed.
_ADDRESSES = ("resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID", "pciAddress", "pciAddr")
_UUID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
#: Maximum number of drivers whose slices are read for a claim. Each costs a request.
MAX_DRIVERS = 4

Attributes = t.Mapping[str, t.Any]


class Slices(t.Protocol):
    """The part of `api.cluster.Cluster` that reads other drivers' slices."""

    def slices_of(self, driver: str) -> list[Object]: ...


def peers(claim: Object, cluster: Slices, places: t.Callable[[], Places]) -> list[PeerRecord]:
    """The devices of other drivers that are allocated to a claim, in the order of the allocation; without `levels`.

    Invalid results are left out; the API server never writes such results. `places` is called only if there are such
    devices. Raises Unreachable if the API server does not answer.
    """
    peers = [peer for peer in map(_peer, results(claim)) if peer]
    published: dict[str, list[Object] | str] = {}
    for peer in peers:
        if peer.driver not in published:
            published[peer.driver] = _slices(cluster, peer.driver, len(published))
    for peer in peers:
        _locate(peer, published[peer.driver], places().gpus)
    return peers


def results(claim: Object) -> list[Object]:
    """The results of a claim's allocation; anything that is not a mapping is left out."""
    value: t.Any = claim
    for key in ("status", "allocation", "devices", "results"):
        value = value.get(key) if isinstance(value, dict) else None
    return [result for result in value if isinstance(result, dict)] if isinstance(value, list) else []


def add_levels(peers: t.Iterable[PeerRecord], devices: t.Iterable[DeviceRecord], places: Places) -> None:
    """Record how near each GPU is to each NIC of the claim."""
    nics = {device.device: device.known.pf or device.known.address for device in devices}
    for peer in peers:
        if peer.address:
            peer.levels = {name: places.level(peer.address, nic) for name, nic in nics.items() if nic}


def _peer(result: Object) -> PeerRecord | None:
    """The peer of a result; None for a device of this driver, and for an invalid result."""
    texts = [result.get(key) for key in ("driver", "pool", "device", "request")]
    if not all(isinstance(text, str) for text in texts) or texts[0] == DRIVER:
        return None
    driver, pool, device, request = map(str, texts)
    names = [limits.dns_label(part) for part in (device, *request.split("/"))]
    pools = [limits.dns_subdomain(part) for part in pool.split("/")]
    if any((limits.dns_subdomain(driver), *pools, *names)) or limits.size(pool) > limits.POOL_BYTES:
        return None
    return PeerRecord(driver, pool, device, request)


def _slices(cluster: Slices, driver: str, drivers_read: int) -> list[Object] | str:
    """A driver's slices of this node, or why they are unknown. `drivers_read` is the number of drivers whose slices
    were read before."""
    if drivers_read >= MAX_DRIVERS:
        return f"the claim has devices of more than {MAX_DRIVERS} other drivers"
    try:
        with trace.step("read the slices of another driver", driver):
            return cluster.slices_of(driver)
    except ApiError as error:
        return f"the slices of {driver} could not be read: {bounded(error.message, 120)}"


def _locate(peer: PeerRecord, slices: list[Object] | str, gpus: t.Mapping[str, GpuPlace]) -> None:
    """Add to a peer what its driver publishes about it, or why that is unknown."""
    if isinstance(slices, str):
        peer.unknown = slices
        return
    attributes = _attributes(peer, slices)
    if attributes is None:
        peer.unknown = f"{peer.driver} does not publish the device on this node now"
        return
    peer.uuid = _text(attributes, "uuid", peer.driver, _UUID)
    addresses = [_text(attributes, name, peer.driver, ADDRESS) for name in _ADDRESSES]
    address = next(filter(None, addresses), "")
    place = gpus.get(address)
    if place is None:
        if address:
            peer.unknown = f"the address {address} that {peer.driver} publishes is not that of a GPU on this node"
        else:
            peer.unknown = f"{peer.driver} publishes no PCI address for the device"
        return
    peer.address = address
    peer.rail, peer.numa_node, peer.pcie_root = place.rail, place.numa_node, place.pcie_root or ""


def _attributes(peer: PeerRecord, slices: list[Object]) -> Attributes | None:
    """The attributes of a peer in the newest generation of its pool; None if that does not contain the device."""
    newest, attributes = -1, None
    for resource_slice in slices:
        spec = _mapping(resource_slice.get("spec"))
        pool = _mapping(spec.get("pool"))
        generation = pool.get("generation", 0)
        if pool.get("name") != peer.pool or spec.get("driver") != peer.driver or not isinstance(generation, int):
            continue
        if generation > newest:
            newest, attributes = generation, None
        if generation == newest:
            devices = spec.get("devices")
            listed = map(_mapping, devices if isinstance(devices, list) else ())
            device = next((entry for entry in listed if entry.get("name") == peer.device), None)
            attributes = attributes if device is None else _mapping(device.get("attributes"))
    return attributes


def _text(attributes: Attributes, name: str, driver: str, pattern: re.Pattern[str]) -> str:
    """A string attribute that matches a pattern, addresses in lower case; empty otherwise."""
    value = attributes.get(name) or attributes.get(f"{driver}/{name}")
    text = _mapping(value).get("string")
    if not isinstance(text, str) or len(text) > limits.ATTRIBUTE_VALUE_BYTES:
        return ""
    text = text.lower() if pattern is ADDRESS else text
    return text if pattern.fullmatch(text) else ""


def _mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    return value if isinstance(value, dict) else {}
