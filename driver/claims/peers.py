# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices of other drivers in a claim: their PCI addresses and UUIDs, from those drivers' ResourceSlices.

Claims without such devices cost no request. What another driver publishes is validated: an address must be that of a
GPU that this node's probe has found, otherwise it is unknown.
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

#: Attributes with a PCI address: Kubernetes' own, then those that drivers used before it existed.
_ADDRESSES = ("resource.kubernetes.io/pciBusID", "pciBusID", "pcieBusID", "pciAddress", "pciAddr")
_UUID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
#: Maximum number of a claim's drivers whose slices are read. Each costs a request.
MOST_DRIVERS = 4

Attributes = t.Mapping[str, t.Any]


class Slices(t.Protocol):
    """The part of `api.cluster.Cluster` that reads other drivers' slices."""

    def slices_of(self, driver: str) -> list[Object]: ...


def peers(claim: Object, cluster: Slices, places: t.Callable[[], Places]) -> list[PeerRecord]:
    """The devices that other drivers give to a claim, in the order of its allocation; without `levels`.

    Invalid results are left out; the API server never writes such results. `places` is only called if there are
    devices. Raises Unreachable if the API server does not answer.
    """
    found = [one for one in map(_peer, results(claim)) if one]
    published: dict[str, list[Object] | str] = {}
    for peer in found:
        if peer.driver not in published:
            published[peer.driver] = _slices(cluster, peer.driver, len(published))
    for peer in found:
        _locate(peer, published[peer.driver], places().gpus)
    return found


def results(claim: Object) -> list[Object]:
    """Those results of a claim's allocation that are mappings."""
    value: t.Any = claim
    for key in ("status", "allocation", "devices", "results"):
        value = value.get(key) if isinstance(value, dict) else None
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def add_levels(found: t.Iterable[PeerRecord], devices: t.Iterable[DeviceRecord], places: Places) -> None:
    """Record how near each GPU is to each NIC of the claim."""
    nics = {one.device: one.known.pf or one.known.address for one in devices}
    for peer in found:
        if peer.address:
            peer.levels = {name: places.level(peer.address, nic) for name, nic in nics.items() if nic}


def _peer(result: Object) -> PeerRecord | None:
    """A device of another driver; None for one of ours, or a result that is not valid."""
    texts = [result.get(key) for key in ("driver", "pool", "device", "request")]
    if not all(isinstance(text, str) for text in texts) or texts[0] == DRIVER:
        return None
    driver, pool, device, request = map(str, texts)
    names = [limits.dns_label(part) for part in (device, *request.split("/"))]
    pools = [limits.dns_subdomain(part) for part in pool.split("/")]
    if any((limits.dns_subdomain(driver), *pools, *names)) or limits.size(pool) > limits.POOL_BYTES:
        return None
    return PeerRecord(driver, pool, device, request)


def _slices(cluster: Slices, driver: str, asked: int) -> list[Object] | str:
    """A driver's slices of this node, or why they are unknown."""
    if asked >= MOST_DRIVERS:
        return f"the claim has devices of more than {MOST_DRIVERS} other drivers"
    try:
        with trace.step("read the slices of another driver", driver):
            return cluster.slices_of(driver)
    except ApiError as error:
        return f"the slices of {driver} could not be read: {bounded(error.message, 120)}"


def _locate(peer: PeerRecord, slices: list[Object] | str, gpus: t.Mapping[str, GpuPlace]) -> None:
    """Fill in what a peer's own driver publishes about it, or why that is unknown."""
    if isinstance(slices, str):
        peer.unknown = slices
        return
    attributes = _attributes(peer, slices)
    if attributes is None:
        peer.unknown = f"{peer.driver} does not publish it on this node now"
        return
    peer.uuid = _text(attributes, "uuid", peer.driver, _UUID)
    stated = [_text(attributes, name, peer.driver, ADDRESS) for name in _ADDRESSES]
    address = next(filter(None, stated), "")
    place = gpus.get(address)
    if place is None:
        what = f"the address {address} that {peer.driver} publishes for it is not that of a GPU on this node"
        peer.unknown = what if address else f"{peer.driver} publishes no PCI address for it"
        return
    peer.address = address
    peer.rail, peer.numa_node, peer.pcie_root = place.rail, place.numa_node, place.pcie_root or ""


def _attributes(peer: PeerRecord, slices: list[Object]) -> Attributes | None:
    """The attributes of a device in the newest generation of its pool; None if it is not there."""
    newest, found = -1, None
    for one in slices:
        spec = _mapping(one.get("spec"))
        pool = _mapping(spec.get("pool"))
        generation = pool.get("generation", 0)
        if pool.get("name") != peer.pool or spec.get("driver") != peer.driver or not isinstance(generation, int):
            continue
        if generation > newest:
            newest, found = generation, None
        if generation == newest:
            devices = spec.get("devices")
            listed = map(_mapping, devices if isinstance(devices, list) else ())
            device = next((item for item in listed if item.get("name") == peer.device), None)
            found = found if device is None else _mapping(device.get("attributes"))
    return found


def _text(attributes: Attributes, name: str, driver: str, form: re.Pattern[str]) -> str:
    """A string attribute that has a form, in lower case if that is an address; empty otherwise."""
    value = attributes.get(name) or attributes.get(f"{driver}/{name}")
    text = _mapping(value).get("string")
    if not isinstance(text, str) or len(text) > limits.ATTRIBUTE_VALUE_BYTES:
        return ""
    text = text.lower() if form is ADDRESS else text
    return text if form.fullmatch(text) else ""


def _mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    return value if isinstance(value, dict) else {}
