# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A pod moves its macvlan child, or another interface on it, to another namespace, to keep it when its claim ends. The
driver removes the child wherever it is. If the driver cannot determine the owner of an interface, it withholds the NIC.
Other claims with children of the NIC keep them."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox, ip
from ansible_collections.lanewise.dra.tests.driver.nodes import (
    ONE,
    HiddenNamespace,
    Pod,
    on_a_node,
    pair,
    run,
    without_dad,
)
from ansible_collections.lanewise.dra.tests.driver.plan_claims import config
from ansible_collections.lanewise.dra.tests.driver.rail_node import NICS, RailNode
from ansible_collections.lanewise.dra.tests.driver.test_take_back import name_namespace
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Busy
from lanewise_driver.claims import unclean
from lanewise_driver.interface import host_state, interfaces, take_back
from lanewise_driver.interface.children import Siblings
from lanewise_driver.kernel import links as kernel_links
from lanewise_driver.kernel import netns
from lanewise_driver.kernel.netlink import Netlink

MACVLAN = {"name": "net1", "child": {"type": "macvlan"}}
OTHER_MAC = "02:00:00:00:0e:01"
#: The kernel creates a macvlan on a macvlan child as another child of the same parent.
ADD_TAP = "ip link add link net1 name tap0"
_BRIDGE = "type macvlan mode bridge"
#: SOL_PACKET, PACKET_ADD_MEMBERSHIP and PACKET_MR_UNICAST of linux/socket.h and linux/if_packet.h.
_SOL_PACKET, _ADD_MEMBERSHIP, _UNICAST = 263, 1, 3


class Children:
    """Pods with a macvlan child each of the NIC `one`, and the host states that the driver records for their claims."""

    def __init__(self, *names: str) -> None:
        without_dad()
        pair("one")
        self.pods = {name: Pod(name) for name in names}
        self.hosts: dict[str, host_state.HostState] = {}
        for name, pod in self.pods.items():
            self.hosts[name] = interfaces.snapshot(ONE)
            interfaces.attach(ONE, self.hosts[name], MACVLAN, pod.pin)

    def siblings(self, name: str) -> Siblings:
        """The interface indexes of the children of other claims, by network namespace."""
        found: dict[tuple[int, int], list[int]] = {}
        for other in self.hosts.keys() - {name}:
            device, inode = netns.identity(self.pods[other].pin)
            found[device, inode] = [self.hosts[other]["child"]["index"]]
        return found

    def end(self, name: str, timeout: float = 0) -> list[str]:
        """End a claim. Returns the reasons why its NIC must be withheld."""
        outcome = take_back.take_back(
            ONE, self.hosts[name], self.pods[name].pin, MACVLAN, timeout=timeout, siblings=self.siblings(name)
        )
        assert not outcome.notes
        return [reason.text for reason in outcome.reasons]


def links(pod: Pod | HiddenNamespace) -> set[str]:
    return {link["ifname"] for link in json.loads(pod.run("ip -j link"))} - {"lo"}


def socket_for_address(mac: str, interface: str, namespace: Path | None) -> socket.socket:
    """Open a socket that lets an interface also receive frames to this address."""
    opened = netns.run(namespace, socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)
    with Netlink(namespace) as connection:
        link = kernel_links.get(connection, name=interface)
    assert link
    opened.setsockopt(
        _SOL_PACKET, _ADD_MEMBERSHIP, struct.pack("=IHH8s", link.index, _UNICAST, 6, kernel_links.mac_bytes(mac))
    )
    return opened


#: Commands by which a pod moves its interface to the namespace `away` before its claim ends.
MOVES = {
    "up": "ip link set net1 netns {away}",
    "down": "ip link set net1 down; ip link set net1 netns {away}",
    "renamed": "ip link set net1 netns {away} name eth7",
    "with another index": "ip link add dummy7 index 4000 type veth peer name dummy8; ip link set net1 netns {away}",
    "with a copy in its place": f"{ADD_TAP} address {{mac}} {_BRIDGE}; ip link set net1 netns {{away}}; "
    "ip link set tap0 name net1 up",
}


@pytest.mark.parametrize("move", MOVES)
@on_a_node
def test_a_child_that_was_moved_out_of_its_pod_is_removed(move: str) -> None:
    children = Children("pod", "neighbour")
    with children.pods["pod"] as pod, children.pods["neighbour"] as neighbour, Pod("away") as away:
        mac = children.hosts["pod"]["child"]["mac"]
        pod.run(MOVES[move].format(away=name_namespace(away), mac=mac))
        assert links(away)
        away.run("ip link set net1 up", check=False)
        assert children.end("pod") == []
        assert links(away) == set() and "net1" not in links(pod) and links(neighbour) == {"net1"}
        assert children.end("neighbour") == []
        assert "UP" in run("ip -o link show one")


#: Commands after which the namespace `away` has an interface whose owner the driver cannot determine.
MOVES_OF_UNKNOWN_OWNER = {
    "the child with another address": f"ip link set net1 down; ip link set net1 address {OTHER_MAC}; "
    "ip link set net1 netns {away} name tap0",
    "another macvlan": f"{ADD_TAP} {_BRIDGE}; ip link set tap0 netns {{away}}",
    "a macvlan in source mode": f"{ADD_TAP} type macvlan mode source; ip link set tap0 netns {{away}}",
}


@pytest.mark.parametrize("neighbours", [["neighbour"], []], ids=["shared", "alone"])
@pytest.mark.parametrize("move", MOVES_OF_UNKNOWN_OWNER)
@on_a_node
def test_a_nic_with_an_interface_of_unknown_owner_is_withheld(move: str, neighbours: list[str]) -> None:
    children = Children("pod", *neighbours)
    with children.pods["pod"] as pod, Pod("away") as away:
        pod.run(MOVES_OF_UNKNOWN_OWNER[move].format(away=name_namespace(away)))
        away.run("ip link set tap0 up")
        (reason,) = children.end("pod")
        assert reason.startswith("one: the macvlan tap0 of the mount ") and "could still use its addresses" in reason
        assert links(away) == {"tap0"} and not links(pod)  # it may belong to another program, so it is not removed
        away.run("ip link del tap0")
        assert children.end("pod") == []
        for name in neighbours:
            assert links(children.pods[name]) == {"net1"}
            assert children.end(name) == []


@pytest.mark.parametrize("neighbours", [["neighbour"], []], ids=["shared", "alone"])
@pytest.mark.parametrize("mac", [OTHER_MAC, ""], ids=["another address", "its own address"])
@on_a_node
def test_a_nic_with_an_interface_in_a_hidden_namespace_is_withheld(mac: str, neighbours: list[str]) -> None:
    children = Children("pod", *neighbours)
    hidden = HiddenNamespace(passed=True)
    with children.pods["pod"] as pod:
        if mac:
            pod.run(f"ip link set net1 down; ip link set net1 address {mac}")
        pod.run(f"ip link set net1 netns {hidden.path()} name tap0")
        hidden.run("ip link set tap0 up")
        hidden.hide()
        (reason,) = children.end("pod")
        reported_mac = mac or children.hosts["pod"]["child"]["mac"]
        in_hidden_namespace = "a macvlan or macvtap uses it, in a network namespace that no process or mount refers to"
        assert (
            f"it receives packets for {reported_mac}, which is not the address" if neighbours else in_hidden_namespace
        ) in reason
        hidden.show()
        if mac:
            assert "the macvlan tap0 of an open file" in children.end("pod")[0]
            hidden.run("ip link del tap0")
        assert children.end("pod") == [] and not links(hidden)
        hidden.end()


@on_a_node
def test_macvlans_of_the_node_and_of_other_pods_stay() -> None:
    without_dad()
    pair("one")
    with Pod("before") as before, Pod("ended") as ended:
        run(f"ip link add link one name mv0 netns {name_namespace(before)} type macvlan mode bridge")
        before.run("ip link set mv0 up")
        run("bridge fdb add 02:00:00:00:0e:05 dev one")
        host = interfaces.snapshot(ONE)
        interfaces.attach(ONE, host, MACVLAN, ended.pin)
        run("ip link add link one name shim type macvlan mode bridge; ip link set shim up")
        sockets = [
            socket_for_address(OTHER_MAC, "mv0", before.pin),
            socket_for_address("02:00:00:00:0e:06", "shim", None),
        ]
        assert {OTHER_MAC, "02:00:00:00:0e:06"} <= set(run("bridge fdb show dev one").split())
        outcome = take_back.take_back(ONE, host, ended.pin, MACVLAN, timeout=0, siblings={})
        assert outcome == take_back.Outcome()
        assert links(before) == {"mv0"} and "shim" in run("ip -o link") and not links(ended)
        for opened in sockets:
            opened.close()


@on_a_node
def test_a_child_of_another_claim_with_the_same_mac_address_stays() -> None:
    """Claims may set MAC addresses, and two claims may set the same address."""
    children = Children("pod", "neighbour")
    with children.pods["pod"], children.pods["neighbour"] as neighbour:
        mac = children.hosts["pod"]["child"]["mac"]
        children.pods["pod"].run("ip link set net1 down")
        neighbour.run(f"ip link set net1 down; ip link set net1 address {mac}; ip link set net1 up")
        assert children.end("pod") == []
        assert links(neighbour) == {"net1"}


RANGES = [{"rail": 0, "range": "10.100.0.16/31", "pool": "10.100.0.0/16"}]


@contextlib.contextmanager
def _nics() -> t.Iterator[None]:
    """Create the NICs of the node, and remove them at the end."""
    for name in NICS:
        ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-far")
        ip("link", "set", f"{name}-far", "up")
        ip("link", "set", name, "up")
    try:
        yield
    finally:
        for name in NICS:
            ip("link", "del", name)


@pytest.mark.namespaces
def test_the_rail_address_of_a_child_that_is_still_in_use_is_not_assigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unclean, "_INTERVAL", 0.0)

    def allocate(name: str, nic: str) -> ClaimRef:
        fields: Object = {"name": "net1", "railAddresses": True, "dad": "none", "child": {"type": "macvlan"}}
        return node.allocate(name, {"nic": f"net-{nic}"}, config(fields))

    def addresses(name: str) -> list[str]:
        record = node.service.store.load(f"0000-{name}")
        assert record
        return [address for device in record.held for address in (device.network or {"ips": []})["ips"]]

    with _nics():
        node = RailNode(tmp_path, RANGES, rails=dict.fromkeys(NICS, 0))
        pods = {name: Sandbox() for name in ("hostile", "away", "second", "third")}
        try:
            hostile, second = allocate("hostile", NICS[0]), allocate("second", NICS[1])
            node.attach(hostile, pods["hostile"].path)
            (address,) = addresses("hostile")
            hostile_pid, away_pid = pods["hostile"].pid, pods["away"].pid
            ip("link", "set", "net1", "down", netns=hostile_pid)
            ip("link", "set", "net1", "address", OTHER_MAC, netns=hostile_pid)
            ip("link", "set", "net1", "netns", f"/proc/{away_pid}/ns/net", "name", "tap0", netns=hostile_pid)
            ip("link", "set", "tap0", "up", netns=away_pid)
            node.service.unprepare(hostile)
            (entry,) = node.service.unclean.all().values()
            assert entry.word == "stacked" and "the macvlan tap0 of process" in entry.text
            assert entry.text.endswith(f"; until then not assigned: {address.partition('/')[0]}")
            with pytest.raises(Busy, match="net-nic0 is withheld from pods until .*tap0"):
                node.service.prepare(allocate("next", NICS[0]))
            node.service = node.start()  # a restarted driver withholds the NIC too
            assert not node.service.retry_unclean()
            node.attach(second, pods["second"].path)
            assert addresses("second") and addresses("second") != [address]
            node.service.unprepare(second)
            node.attach(second, pods["second"].path)
            node.cluster.claims.pop("next")
            with pytest.raises(Busy, match="except 1 that devices withheld from pods could still use"):
                node.service.prepare(node.allocate("third", {"nic": "net-nic0"}, config({"railAddresses": True})))
            ip("link", "del", "tap0", netns=away_pid)
            assert node.service.retry_unclean() and not node.service.unclean.all()
            node.service.unprepare(second)
            third = allocate("third", NICS[1])
            node.attach(third, pods["third"].path)
            assert addresses("third") == [address]  # it was released before that of `second`
            node.service.unprepare(third)
        finally:
            for pod in pods.values():
                pod.end()
