# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The attempts of a hostile pod. Each returns whether it succeeded."""

from __future__ import annotations

import json
import time
import typing as t
from dataclasses import dataclass

from . import frames
from .testbed import ADMIN, NONE, RAW, Host, Listener, Testbed, sh

UNUSED_MAC = "02:00:00:00:0e:01"
#: A multicast group, its MAC address, and the number of datagrams of a flood.
GROUP, GROUP_MAC, FLOOD = "239.9.9.9", "01:00:5e:09:09:09", 500
#: A VLAN that the hostile pod is not in.
VLAN = 77
#: The network namespace of another pod.
_OTHER_POD = "other-pod"


@dataclass(frozen=True)
class Attempt:
    """`text` is the row's name in docs/security.md: what the hostile pod does, and to whom. `machines` is how many
    machines on the network it needs."""

    text: str
    run: t.Callable[[Testbed], bool]
    machines: int = 1


def outcome(testbed: Testbed, attempt: Attempt) -> tuple[str, list[str]]:
    """The result of an attempt, and what the driver could not restore after it. The result is the weakest capability
    with which the attempt succeeded (`none`, `NET_RAW` or `NET_ADMIN`) or `stopped`, and whether the driver then
    withheld the NIC."""
    left: list[str] = []
    testbed.withheld.clear()
    succeeded = _succeeds(testbed, attempt, ADMIN, left)
    withheld = ", withheld" if testbed.withheld else ""
    if not succeeded:
        return f"stopped{withheld}", left
    least = next((fewer for fewer in (NONE, RAW) if _succeeds(testbed, attempt, fewer, left)), ADMIN)
    return (least.split()[-1].upper() if least else "none") + withheld, left


def _succeeds(testbed: Testbed, attempt: Attempt, capabilities: str, left: list[str]) -> bool:
    testbed.begin(capabilities)
    try:
        return attempt.run(testbed)
    finally:
        left += testbed.end_all()


# ---- forged senders


def _reaches(testbed: Testbed, target: Host, broadcaster: Host, mac: str, ipv4: str) -> bool:
    """Whether the target receives what the hostile pod sends from these addresses. `broadcaster` marks the end of the
    wait."""
    frame = frames.datagram(target.mac, mac, target.ipv4, ipv4, "forged")
    with Listener(target) as listener:
        return testbed.hostile.send(frame) and any(
            received.text == "forged" for received in listener.received_before_broadcast(broadcaster)
        )


def forged_mac_to_neighbour(testbed: Testbed) -> bool:
    return _reaches(testbed, testbed.neighbour, testbed.router, UNUSED_MAC, testbed.hostile.ipv4)


def forged_mac_to_machine(testbed: Testbed) -> bool:
    return _reaches(testbed, testbed.router, testbed.neighbour, UNUSED_MAC, testbed.hostile.ipv4)


def forged_ip_to_neighbour(testbed: Testbed) -> bool:
    return _reaches(testbed, testbed.neighbour, testbed.router, testbed.hostile.mac, testbed.router.ipv4)


def forged_ip_to_machine(testbed: Testbed) -> bool:
    return _reaches(testbed, testbed.router, testbed.neighbour, testbed.hostile.mac, testbed.neighbour.ipv4)


def takes_a_machines_traffic(testbed: Testbed) -> bool:
    """Whether the switch, after a frame with the machine's MAC address, no longer forwards frames to the machine. The
    hostile pod tries it three times at most, because each frame of the machine itself (an MLD report, a router
    solicitation) teaches the switch the right port again."""
    assert testbed.other
    sent = frames.datagram(testbed.other.mac, testbed.router.mac, testbed.other.ipv4, testbed.router.ipv4, "to-other")
    forged = frames.datagram(frames.BROADCAST, testbed.other.mac, "255.255.255.255", testbed.other.ipv4, "forged")
    for _repetition in range(3):
        testbed.other.broadcast_end()  # the switch learns its port
        with Listener(testbed.other) as listener:
            if not testbed.hostile.send(forged):
                return False
            testbed.router.send(sent)
            if not any(frame.text == "to-other" for frame in listener.received_before_broadcast(testbed.router)):
                return True
    return False


# ---- reading other traffic


def _receives(testbed: Testbed, sent: bytes, interface: str = "") -> bool:
    """Whether the hostile pod receives a frame with the text "secret" that the router sends."""
    with Listener(testbed.hostile, interface, promiscuous=True) as listener:
        if not listener.permitted:
            return False
        testbed.router.send(sent)
        return any(frame.text == "secret" for frame in listener.received_before_broadcast(testbed.router))


def _secret(testbed: Testbed) -> bytes:
    """A frame of the router for the neighbour."""
    target, router = testbed.neighbour, testbed.router
    return frames.datagram(target.mac, router.mac, target.ipv4, router.ipv4, "secret")


def reads_unicast(testbed: Testbed) -> bool:
    return _receives(testbed, _secret(testbed))


def reads_what_the_neighbour_sends(testbed: Testbed) -> bool:
    sender, router = testbed.neighbour, testbed.router
    with Listener(testbed.hostile, promiscuous=True) as listener:
        if not listener.permitted:
            return False
        sender.send(frames.datagram(router.mac, sender.mac, router.ipv4, sender.ipv4, "secret"))
        return any(frame.text == "secret" for frame in listener.received_before_broadcast(testbed.router))


def reads_multicast(testbed: Testbed) -> bool:
    router = testbed.router
    return _receives(testbed, frames.datagram(GROUP_MAC, router.mac, GROUP, router.ipv4, "secret"))


def takes_the_neighbours_mac(testbed: Testbed) -> bool:
    hostile = testbed.hostile
    changes = f"ip link set {hostile.interface} down && ip link set {hostile.interface} address {testbed.neighbour.mac}"
    return hostile.run(f"{changes} && ip link set {hostile.interface} up") and reads_unicast(testbed)


# ---- forged ARP and ND


def _learns(testbed: Testbed, host: Host, address: str, mac: str, broadcaster: Host, *sent: bytes) -> bool:
    """Whether frames of the hostile pod change the neighbor entry of a host from `mac` to the hostile pod's MAC
    address."""
    sh(
        " ".join(
            host.command("ip", "neigh", "replace", address, "lladdr", mac, "dev", host.interface, "nud", "reachable")
        )
    )
    with Listener(host, capabilities=ADMIN) as listener:
        if not testbed.hostile.send(*sent, times=3):
            return False
        listener.received_before_broadcast(broadcaster)
        entries = host.ip_json(f"neigh show to {address}")
        return any(entry.get("lladdr") == testbed.hostile.mac for entry in entries)


def _arp(testbed: Testbed, target: Host, address: str) -> list[bytes]:
    """An ARP reply, a request and a gratuitous reply, each with the hostile pod's MAC address for `address`."""
    mac = testbed.hostile.mac
    return [
        frames.arp(2, target.mac, mac, (mac, address), (target.mac, target.ipv4)),
        frames.arp(1, target.mac, mac, (mac, address), ("00:00:00:00:00:00", target.ipv4)),
        frames.arp(2, frames.BROADCAST, mac, (mac, address), (mac, address)),
    ]


def arp_to_neighbour(testbed: Testbed) -> bool:
    target, router = testbed.neighbour, testbed.router
    return _learns(testbed, target, router.ipv4, router.mac, router, *_arp(testbed, target, router.ipv4))


def arp_to_machine(testbed: Testbed) -> bool:
    target, owner = testbed.router, testbed.neighbour
    return _learns(testbed, target, owner.ipv4, owner.mac, testbed.neighbour, *_arp(testbed, target, owner.ipv4))


def nd_to_neighbour(testbed: Testbed) -> bool:
    target, router = testbed.neighbour, testbed.router
    advertisement = frames.neighbor_advertisement(target.mac, testbed.hostile.mac, target.ipv6, router.ipv6)
    return _learns(testbed, target, router.ipv6, router.mac, router, advertisement)


def nd_to_machine(testbed: Testbed) -> bool:
    target, owner = testbed.router, testbed.neighbour
    advertisement = frames.neighbor_advertisement(target.mac, testbed.hostile.mac, target.ipv6, owner.ipv6)
    return _learns(testbed, target, owner.ipv6, owner.mac, testbed.neighbour, advertisement)


def becomes_the_neighbours_router(testbed: Testbed) -> bool:
    target, hostile = testbed.neighbour, testbed.hostile
    with Listener(target) as listener:
        if not hostile.send(frames.router_advertisement(hostile.mac), times=3):
            return False
        listener.received_before_broadcast(testbed.router)
    return any("gateway" in route for route in target.ip_json("-6 route show default"))


# ---- VLANs and floods


def _tagged(testbed: Testbed, *vlans: int) -> bool:
    target, hostile = testbed.router, testbed.hostile
    frame = frames.datagram(target.mac, hostile.mac, target.ipv4, hostile.ipv4, "forged")
    with Listener(target, promiscuous=True, capabilities=ADMIN) as listener:
        sent = hostile.send(frames.tagged(frame, *vlans))
        return sent and any(
            frame.text == "forged" and frame.vlan for frame in listener.received_before_broadcast(testbed.neighbour)
        )


def one_tag(testbed: Testbed) -> bool:
    return _tagged(testbed, VLAN)


def two_tags(testbed: Testbed) -> bool:
    return _tagged(testbed, 1, VLAN)


def _floods(testbed: Testbed, target: Host, broadcaster: Host) -> bool:
    hostile = testbed.hostile
    with Listener(target, promiscuous=True, capabilities=ADMIN) as listener:
        if not hostile.run_program("flood", hostile.ipv4, GROUP, str(FLOOD), "flood"):
            return False
        return sum(frame.text == "flood" for frame in listener.received_before_broadcast(broadcaster)) > FLOOD / 2


def floods_the_neighbour(testbed: Testbed) -> bool:
    return _floods(testbed, testbed.neighbour, testbed.router)


def floods_a_machine(testbed: Testbed) -> bool:
    return _floods(testbed, testbed.router, testbed.neighbour)


# ---- stacked, moved and changed interfaces


def _stacked(testbed: Testbed, kind: str, sent_to: str = UNUSED_MAC) -> bool:
    """Whether an interface that the pod stacks on its own receives what the router sends to a MAC address."""
    hostile = testbed.hostile
    if not hostile.run(
        f"ip link add link {hostile.interface} name tap address {UNUSED_MAC} type {kind} && ip link set tap up"
    ):
        return False
    router = testbed.router
    return _receives(testbed, frames.datagram(sent_to, router.mac, hostile.ipv4, router.ipv4, "secret"), "tap")


def stacks_a_macvlan(testbed: Testbed) -> bool:
    return _stacked(testbed, "macvlan mode bridge")


def stacks_a_macvlan_that_takes_all(testbed: Testbed) -> bool:
    return _stacked(testbed, "macvlan mode passthru", testbed.neighbour.mac)


def stacks_a_macvlan_by_source(testbed: Testbed) -> bool:
    """A macvlan in mode source gets a copy of all that certain machines send."""
    hostile = testbed.hostile
    made = "ip link add link {0} name tap type macvlan mode source && ip link set tap up"
    listed = "ip link set link dev tap type macvlan macaddr add {1}"
    if not hostile.run(f"{made} && {listed}".format(hostile.interface, testbed.router.mac)):
        return False
    return _receives(testbed, _secret(testbed), "tap")


def _keeps_sending(testbed: Testbed, interface: str, mac: str) -> bool:
    """Whether an interface that was moved to another pod still sends after the claim has ended."""
    hostile, target = testbed.hostile, testbed.router
    sh(f"ip netns add {_OTHER_POD}")
    try:
        if not hostile.run(f"ip link set {interface} netns /run/netns/{_OTHER_POD} name kept"):
            return False
        sh(f"ip -n {_OTHER_POD} link set kept up", check=False)
        testbed.not_restored += testbed.end("hostile")
        kept = Host(_OTHER_POD, "kept", mac, hostile.ipv4, hostile.ipv6)
        with Listener(target) as listener:
            sent = kept.send(frames.datagram(target.mac, mac, target.ipv4, kept.ipv4, "forged"))
            return sent and any(
                frame.text == "forged" for frame in listener.received_before_broadcast(testbed.neighbour)
            )
    finally:
        sh(f"ip netns del {_OTHER_POD}", check=False)


def keeps_the_interface(testbed: Testbed) -> bool:
    return _keeps_sending(testbed, testbed.hostile.interface, testbed.hostile.mac)


def keeps_the_interface_under_another_mac(testbed: Testbed) -> bool:
    hostile = testbed.hostile
    changed = "ip link set {0} down && ip link set {0} address {1} && ip link set {0} up"
    return hostile.run(changed.format(hostile.interface, UNUSED_MAC)) and _keeps_sending(
        testbed, hostile.interface, UNUSED_MAC
    )


def keeps_a_macvlan(testbed: Testbed) -> bool:
    hostile = testbed.hostile
    made = f"ip link add link {hostile.interface} name tap address {UNUSED_MAC} type macvlan mode bridge"
    return hostile.run(made) and _keeps_sending(testbed, "tap", UNUSED_MAC)


#: Commands by which the hostile pod changes its NIC.
CHANGES = (
    "ip link set net1 down", "ip link set net1 address 02:00:00:00:0e:02", "ip link set net1 mtu 1400",
    "ip link set net1 promisc on", "ip link set net1 allmulticast on", "ip link set net1 txqueuelen 7",
    "ip link set net1 alias mine", "ip link set net1 arp off", "ip link property add dev net1 altname mine",
    "ip link set net1 up", "ip addr add 192.0.2.9/24 dev net1", "ip route add 198.51.100.0/24 dev net1",
    "ip neigh add 192.0.2.1 lladdr 02:00:00:00:0e:03 dev net1", "tc qdisc add dev net1 root pfifo limit 3",
    "echo 1 > /proc/sys/net/ipv4/conf/net1/proxy_arp", "echo 7 > /proc/sys/net/ipv6/conf/net1/hop_limit",
    "bridge fdb add 02:00:00:00:0e:04 dev net1", "ip link set net1 name mine",
    "ip maddr add 01:00:5e:00:00:63 dev mine",
)  # fmt: skip
#: Values that differ between two pods with one NIC.
_VOLATILE = ("ifindex", "link_index", "link_netnsid", "stats64", "valid_life_time", "preferred_life_time")


def leaves_settings(testbed: Testbed) -> bool:
    """Whether the next pod with the NIC, or the node, sees what the hostile pod changed."""
    first = _pod_view(testbed)
    changed = [command for command in CHANGES if testbed.hostile.run(command)]
    if not changed:
        return False
    left = testbed.end("hostile")
    testbed.not_restored += left
    testbed.pods["hostile"] = testbed.attach("hostile", testbed.hostile_nic, 2)
    return bool(left) or _pod_view(testbed) != first


def _pod_view(testbed: Testbed) -> t.Any:
    """What the hostile pod sees of its NIC, with placeholders for its MAC and link-local addresses."""
    host = testbed.hostile
    end = time.monotonic() + 20
    while True:  # until the link is up, and IPv6 has its addresses
        found = [
            host.ip_json(f"-d {what}") for what in ("link show net1", "addr show net1", "route show table all", "neigh")
        ]
        found.append(host.ip_json("maddr show dev net1"))
        text = json.dumps(found)
        if '"tentative"' not in text and "fe80" in text or time.monotonic() > end:
            break
        time.sleep(0.1)
    found[3] = [entry for entry in found[3] if "PERMANENT" in entry.get("state", ())]
    solicited_node = ("33:33:ff:", "ff02::1:ff")  # groups that follow from the MAC address
    groups = [entry.get("link") or entry["address"] for entry in found.pop()[0]["maddr"]]
    found.append([group for group in groups if not group.startswith(solicited_node)])
    mac = next(link["address"] for link in found[0])
    return json.loads(json.dumps(_without_volatile(found)).replace(mac, "MAC").replace(frames.link_local(mac), "LOCAL"))


def _without_volatile(value: t.Any) -> t.Any:
    if isinstance(value, dict):
        return {key: _without_volatile(item) for key, item in value.items() if key not in _VOLATILE}
    return [_without_volatile(item) for item in value] if isinstance(value, list) else value


ATTEMPTS = (
    Attempt("sends to its neighbour from a made-up MAC address", forged_mac_to_neighbour),
    Attempt("sends to a machine from a made-up MAC address", forged_mac_to_machine),
    Attempt("sends to its neighbour with a machine's IP address", forged_ip_to_neighbour),
    Attempt("sends to a machine with its neighbour's IP address", forged_ip_to_machine),
    Attempt("cuts a machine off by sending from its MAC address", takes_a_machines_traffic, 2),
    Attempt("reads what a machine sends to its neighbour, in promiscuous mode", reads_unicast),
    Attempt("reads what its neighbour sends to a machine, in promiscuous mode", reads_what_the_neighbour_sends),
    Attempt("reads multicast of the network, in promiscuous mode", reads_multicast),
    Attempt("takes its neighbour's MAC address, to read what is sent to it", takes_the_neighbours_mac),
    Attempt("claims a machine's address to its neighbour, by ARP", arp_to_neighbour),
    Attempt("claims its neighbour's address to a machine, by ARP", arp_to_machine),
    Attempt("claims a machine's address to its neighbour, by ND", nd_to_neighbour),
    Attempt("claims its neighbour's address to a machine, by ND", nd_to_machine),
    Attempt("becomes its neighbour's IPv6 router", becomes_the_neighbours_router),
    Attempt("sends into another VLAN with a tag", one_tag),
    Attempt("sends into another VLAN with two tags", two_tags),
    Attempt("floods its neighbour with multicast", floods_the_neighbour),
    Attempt("floods a machine with multicast", floods_a_machine),
    Attempt("makes a macvlan on its NIC, to have a second MAC address", stacks_a_macvlan),
    Attempt("makes a macvlan in mode passthru, to get everything", stacks_a_macvlan_that_takes_all),
    Attempt(
        "makes a macvlan in mode source, to read what a machine sends to its neighbour", stacks_a_macvlan_by_source
    ),
    Attempt("moves its NIC to another pod, to keep it after its claim", keeps_the_interface),
    Attempt("does the same under another MAC address", keeps_the_interface_under_another_mac),
    Attempt("makes a macvlan on its NIC and moves it to another pod, to keep it", keeps_a_macvlan),
    Attempt("changes its NIC before it gives it back, for the next pod", leaves_settings),
)
