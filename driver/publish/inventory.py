# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices of this node: what is published, and the names that the kernel has for each device."""

from __future__ import annotations

import contextlib
import os
import threading
import typing as t
from dataclasses import replace

from ..base import trace
from ..base.errors import DriverError
from ..kernel import rdma, traffic_control
from ..kernel.links import step
from ..kernel.netlink import Netlink
from ..topology import publish
from ..topology.model import Vpd, as_dict
from ..topology.overrides import OverrideError
from ..topology.probe import probe
from ..topology.publish_shares import SUFFIX, HeldShares, base_name, share_name
from ..topology.selector import like
from ..uplinks.carried import Path, Rule
from .device import Device, withheld_with
from .offer import Offer
from .places import Places, places

if t.TYPE_CHECKING:
    from ..base.objects import Object
    from ..base.settings import Settings
    from ..kernel.addresses import Address
    from ..topology.facts import NicFacts, NodeFacts

__all__ = ["Device", "Inventory"]

#: Maximum age in seconds of the list of SSH and storage sessions when a claim gets a device: pods that start together
#: share one scan. Links, addresses, rules and default routes are always current; other routes may be as old.
_SESSIONS_MAX_AGE = 1.0


class Inventory:
    """Probes the node. May be used from any thread.

    `settings` returns the current settings. `held` returns the devices that records hold, as they were at allocation:
    these stay published unchanged, whatever happens to their interfaces. `root` is the root of the tree to probe; the
    kernel is queried only for `/`. `unclean` returns the devices whose original state could not be restored, each with
    a short reason; a NIC's VFs and its device for shares are withheld with it. `held_shares` returns the shares that
    records hold, by the names of the devices for shares.
    """

    def __init__(
        self,
        settings: t.Callable[[], Settings],
        held: t.Callable[[], t.Iterable[Device]],
        root: str = "/",
        unclean: t.Callable[[], t.Mapping[str, str]] = dict,
        held_shares: t.Callable[[], t.Mapping[str, HeldShares]] = dict,
    ) -> None:
        self._unclean = unclean
        self._held_shares = held_shares
        self._settings = settings
        self._held = held
        self._root = root
        # one probe at a time, because a probe is slow on a large node; all results of a probe are replaced together
        self._probing = threading.Lock()
        self._counters = self._shares = True
        self._devices: dict[str, Device] = {}
        self._publication: publish.Publication | None = None
        self._offers: dict[str, Offer] = {}
        self._places = Places()
        #: VPD that earlier probes have read: if a read fails, the board's map must not change, and functions that
        #: manage NVLink switches must not be published as NICs.
        self._known_vpd: dict[str, Vpd] = {}
        self._rule = Rule(remember=True)
        #: Addresses of the Node object, and of the API server. Interfaces that have the former, or lead to the latter,
        #: are never published.
        self.node_addresses: tuple[Address, ...] = ()
        self.api_addresses: tuple[Address, ...] = ()

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self._settings()

    def refresh(self, counters: bool | None = None, shares: bool | None = None) -> publish.Publication:
        """Probe the node and return what to publish. `counters` and `shares` say whether the API server supports shared
        counters, and devices that are allocated several times. None keeps the last value, which is True at first.

        Raises DriverError.
        """
        with self._probing:
            self._counters = self._counters if counters is None else counters
            self._shares = self._shares if shares is None else shares
            return self._refresh()

    def _refresh(self) -> publish.Publication:
        settings = self.settings
        held = {device.name: device for device in self._held()}
        held_shares = self._held_shares()
        try:
            with trace.step("probe the node"):
                facts = as_dict(
                    probe(self._root, settings.locality_overrides, with_gids=False, known_vpd=self._known_vpd)
                )
        except (OSError, OverrideError) as error:
            raise DriverError(f"could not probe the node: {error}") from error
        # The probe may have missed a device that moved to a pod or back in the meantime: the device stays published
        # unchanged. After each return to the node, the publisher is woken.
        held.update((device.name, device) for device in self._held())
        held_shares = _all_shares(held_shares, self._held_shares())
        unclean = self._unclean()
        with trace.step("find the interfaces that carry the node's traffic"):
            uplinks = {**self.traffic_control_reasons(_candidates(facts, settings)), **self.uplink_reasons()}
        policy = publish.Policy(
            include=settings.include,
            exclude=settings.exclude,
            virtual=settings.virtual_interfaces,
            management=settings.management,
            aliases=dict(settings.aliases),
            rails=settings.interface_rails,
            uplinks=uplinks,
            keep_ib=settings.keep_ib_interfaces,
            exclusive=settings.keep_ib_interfaces and self._root == "/" and rdma.mode() == "exclusive",
            held={name: device.device for name, device in held.items()},
            held_shares=held_shares,
            unclean=frozenset(unclean),
        )
        with trace.step("compute the devices"):
            publication = publish.publication(facts, self._counters, policy, settings.shares if self._shares else ())
        devices = _devices(publication, facts, policy)
        _add_unclean_taints(publication, {**devices, **held}, unclean)
        self._places = places(facts, "nccl_topology" in settings.pod_environment)
        self._offers = _offers(publication, facts, devices)
        self._devices = {**devices, **held}
        self._publication = publication
        return publication

    @property
    def publication(self) -> publish.Publication:
        """The last publication; probes the node if there is none yet."""
        return self._publication or self.refresh()

    @property
    def places(self) -> Places:
        """The GPUs of the last probe, and NCCL's topology file if the current settings require it. Raises
        DriverError."""
        wanted = "nccl_topology" in self.settings.pod_environment
        was_not_wanted = not self._places.nccl and self._places.no_nccl_reason == Places.no_nccl_reason
        if self._publication is None or (wanted and was_not_wanted):
            self.refresh()
        return self._places

    def device(self, name: str) -> Device | None:
        """A device of the last probe, or one that a record holds. Probes again for an unknown name. Raises
        DriverError."""
        if name not in self._devices:
            self.refresh()
        return self._devices.get(name)

    def offer(self, name: str) -> Offer | None:
        """The divided NIC that belongs to a device for shares; None if there is no device of this name. Raises
        DriverError."""
        if self._publication is None:
            self.refresh()
        return self._offers.get(name)

    def withheld(self, name: str) -> str:
        """Why a device was not published at the last probe; empty if it was published, or does not exist. Raises
        DriverError."""
        for key, reason in self.publication.withheld.items():
            names = [publish.device_name(key), publish.interface_device_name(key)]
            if key.endswith(SUFFIX):  # the device for the shares of an interface
                names.append(share_name(publish.interface_device_name(base_name(key))))
            if name in names:
                return reason
        return ""

    def needed_by_node(self, names: t.Iterable[str]) -> dict[str, str]:
        """The devices among `names` that the node itself needs now, each with the reason (uplink, SSH session ...), and
        those that are not published, each with the reason for that.

        Queries the kernel once for all devices. Call this before a claim gets devices. Raises DriverError.
        """
        reason_of: dict[str, str] = {}
        reasons: t.Mapping[str, str] | None = None
        for name in names:
            device = self.device(name)
            if device is None:
                reason_of[name] = self.withheld(name)
            elif self._root == "/" and not (device.link_layer == "infiniband" and device.interface is None):
                interfaces = interfaces_of(device.address) if device.address else []
                interfaces = interfaces or ([device.interface] if device.interface else [])
                if reasons is None:
                    reasons = self.uplink_reasons(_SESSIONS_MAX_AGE)
                needed = {**self.traffic_control_reasons(interfaces), **reasons}
                reason_of[name] = next((needed[interface] for interface in interfaces if interface in needed), "")
        return {name: reason for name, reason in reason_of.items() if reason}

    def prefetch(self) -> None:
        """Query the kernel for `needed_by_node` early. Never raises: `needed_by_node` queries again, and reports
        errors."""
        with contextlib.suppress(OSError, DriverError):
            self.uplink_reasons(_SESSIONS_MAX_AGE)

    def traffic_control_reasons(self, interfaces: t.Sequence[str]) -> dict[str, str]:
        """The interfaces with traffic control settings that a move to a pod would delete, each with the reason.

        Raises KernelError.
        """
        if self._root != "/" or not interfaces:
            return {}
        with step("read the traffic control of interfaces"), Netlink() as connection:
            lost_by_interface = {name: traffic_control.lost_by_move(connection, name) for name in interfaces}
        return {name: f"it has tc {lost}, which a claim would lose" for name, lost in lost_by_interface.items() if lost}

    def uplink_reasons(self, max_age: float = 0.0) -> t.Mapping[str, str]:
        """The interfaces that carry this node's own traffic, each with the reason.

        The list of sessions may be up to `max_age` seconds old. Raises KernelError.
        """
        if self._root != "/":
            return {}
        paths = [Path(address, None, "it has the node's address", "") for address in self.node_addresses]
        paths += [Path(None, address, "", "the API server is reached over it") for address in self.api_addresses]
        with step("read the node's network tables"):
            return self._rule.now(paths, self.settings.default_routes, max_age=max_age).by_name


def _all_shares(before: t.Mapping[str, HeldShares], now: t.Mapping[str, HeldShares]) -> dict[str, HeldShares]:
    """The shares that pods have now, and those that ended since `before`. A NIC's VFs are those of both."""
    return {
        name: replace(shares, vfs=shares.vfs | before[name].vfs) if name in before else shares
        for name, shares in {**before, **now}.items()
    }


def _candidates(facts: NodeFacts, settings: Settings) -> list[str]:
    """The interfaces that may be published: those of PCI functions, and virtual ones that the settings list."""
    names = [(entry["name"], entry["address"]) for entry in facts["interfaces"]]
    return [name for name, address in names if address or like(name, settings.virtual_interfaces)]


def interfaces_of(address: str) -> list[str]:
    """The current interfaces of a PCI function and its VFs in this namespace. Raises KernelError."""
    folder = f"/sys/bus/pci/devices/{address}"
    with step(f"list the interfaces of {address}"):
        functions = ["", *(name for name in _names(folder) if name.startswith("virtfn"))]
        return [interface for function in functions for interface in _names(f"{folder}/{function}/net")]


def _names(folder: str) -> list[str]:
    """The names in a folder; empty if the folder does not exist. Raises OSError."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _devices(publication: publish.Publication, facts: NodeFacts, policy: publish.Policy) -> dict[str, Device]:
    """The published devices by name, with the names that the kernel has for them."""
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    nics = {nic["address"]: nic for nic in facts["nics"]}
    devices = {}
    for device in publication.devices:
        name = device["name"]
        if name in publication.interfaces:
            entry = interfaces[publication.interfaces[name]]
            rdma_names = [
                rdma_device["name"]
                for rdma_device in facts["rdma_devices"]
                if entry["name"] in rdma_device["interfaces"]
            ]
            devices[name] = Device(
                name=name,
                device=device,
                interface=entry["name"],
                rdma_devices=tuple(rdma_names),
                link_layer=entry["link_layer"],
            )
        elif publication.addresses.get(name) in nics:
            nic = nics[publication.addresses[name]]
            devices[name] = _function(device, nic, facts, policy.keeps_interface(nic))
    return devices


def _add_unclean_taints(
    publication: publish.Publication, devices: t.Mapping[str, Device], unclean: t.Mapping[str, str]
) -> None:
    """Taint the published devices that are withheld. `devices` are the published ones and those that claims hold;
    `unclean` has the devices whose original state could not be restored, each with the value of the taint."""
    for device in publication.devices:
        name = device["name"]
        pf = devices[name].pf if name in devices else None
        value = next((unclean[owner] for owner in withheld_with(name, pf) if owner in unclean), None)
        if value is not None:
            taint = {"key": publish.UNCLEAN, "value": value, "effect": "NoSchedule"}
            device["taints"] = [*device.get("taints", ()), taint]


def _function(device: Object, nic: NicFacts, facts: NodeFacts, keeps_interface: bool = False) -> Device:
    """The device of a PCI function. With `keeps_interface`, the interface stays on the node."""
    interface = nic["interfaces"][0] if len(nic["interfaces"]) == 1 and not keeps_interface else None
    macs = {entry["name"]: entry["permanent_mac"] for entry in facts["interfaces"]}
    return Device(
        name=device["name"],
        device=device,
        address=nic["address"],
        permanent_mac=macs.get(interface or ""),
        interface=interface,
        rdma_devices=tuple(nic["rdma_devices"]),
        pf=nic["physfn"],
        vf=facts["functions"][nic["address"]]["vf_number"] if nic["physfn"] else None,
        link_layer=nic["link_layer"],
    )


def _offers(publication: publish.Publication, facts: NodeFacts, devices: t.Mapping[str, Device]) -> dict[str, Offer]:
    """The divided NICs, by the names of the devices for shares."""
    nics = {nic["address"]: nic for nic in facts["nics"]}
    offers = {}
    for name, divided in publication.shared.items():
        base = devices.get(base_name(name))
        physical = divided.rule.physical(divided.mbps)
        if base is None or physical is None or name not in devices:
            continue
        vfs = [
            _function({"name": publish.device_name(address)}, nics[address], facts)
            for address in divided.vfs
            if address in nics
        ]
        offers[name] = Offer(base, devices[name].device, divided.rule, physical, tuple(vfs))
    return offers
