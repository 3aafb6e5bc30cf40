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
from .arena import ADMIN, NONE, RAW, Arena, Host, Listener, sh

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
    does: t.Callable[[Arena], bool]
    machines: int = 1


def outcome(arena: Arena, attempt: Attempt) -> tuple[str, list[str]]:
    """The result of an attempt, and what the driver could not restore after it. The result is the weakest capability
    with which the attempt succeeded (`none`, `NET_RAW` or `NET_ADMIN`) or `stopped`, and whether the driver then
    withheld the NIC."""
    left: list[str] = []
    arena.withheld.clear()
    succeeded = _succeeds(arena, attempt, ADMIN, left)
    withheld = ", withheld" if arena.withheld else ""
    if not succeeded:
        return f"stopped{withheld}", left
    least = next((fewer for fewer in (NONE, RAW) if _succeeds(arena, attempt, fewer, left)), ADMIN)
    return (least.split()[-1].upper() if least else "none") + withheld, left


def _succeeds(arena: Arena, attempt: Attempt, capabilities: str, left: list[str]) -> bool:
    arena.begin(capabilities)
    try:
        return attempt.does(arena)
    finally:
        left += arena.end_all()


# ---- forged senders


def _reaches(arena: Arena, target: Host, broadcaster: Host, *sent: bytes) -> bool:
    """Whether the target receives what the hostile pod sends. `broadcaster` marks the end of the wait."""
    with Listener(target) as listener:
        return arena.hostile.send(*sent) and any(
            frame.text == "forged" for frame in listener.received_before_broadcast(broadcaster)
        )


def forged_mac_to_neighbour(arena: Arena) -> bool:
    target, hostile = arena.neighbour, arena.hostile
    return _reaches(
        arena, target, arena.router, frames.datagram(target.mac, UNUSED_MAC, target.ipv4, hostile.ipv4, "forged")
    )


def forged_mac_to_machine(arena: Arena) -> bool:
    target, hostile = arena.router, arena.hostile
    return _reaches(
        arena, target, arena.neighbour, frames.datagram(target.mac, UNUSED_MAC, target.ipv4, hostile.ipv4, "forged")
    )


def forged_ip_to_neighbour(arena: Arena) -> bool:
    target, hostile = arena.neighbour, arena.hostile
    return _reaches(
        arena, target, arena.router, frames.datagram(target.mac, hostile.mac, target.ipv4, arena.router.ipv4, "forged")
    )


def forged_ip_to_machine(arena: Arena) -> bool:
    target, hostile = arena.router, arena.hostile
    return _reaches(
        arena,
        target,
        arena.neighbour,
        frames.datagram(target.mac, hostile.mac, target.ipv4, arena.neighbour.ipv4, "forged"),
    )


def takes_a_machines_traffic(arena: Arena) -> bool:
    """Whether the switch, after a frame with the machine's MAC address, no longer forwards frames to the machine."""
    assert arena.other
    frame = frames.datagram(arena.other.mac, arena.router.mac, arena.other.ipv4, arena.router.ipv4, "to-other")
    arena.other.broadcast_end()  # the switch learns its port
    forged = frames.datagram(frames.BROADCAST, arena.other.mac, "255.255.255.255", arena.other.ipv4, "forged")
    with Listener(arena.other) as listener:
        if not arena.hostile.send(forged):
            return False
        arena.router.send(frame)
        return not any(frame.text == "to-other" for frame in listener.received_before_broadcast(arena.router))


# ---- reading other traffic


def _receives(arena: Arena, sent: bytes, interface: str = "") -> bool:
    """Whether the hostile pod receives a frame with the text "secret" that the router sends."""
    with Listener(arena.hostile, interface, promiscuous=True) as listener:
        if not listener.permitted:
            return False
        arena.router.send(sent)
        return any(frame.text == "secret" for frame in listener.received_before_broadcast(arena.router))


def _secret(arena: Arena) -> bytes:
    """A frame of the router for the neighbour."""
    target, router = arena.neighbour, arena.router
    return frames.datagram(target.mac, router.mac, target.ipv4, router.ipv4, "secret")


def reads_unicast(arena: Arena) -> bool:
    return _receives(arena, _secret(arena))


def reads_what_the_neighbour_sends(arena: Arena) -> bool:
    sender, router = arena.neighbour, arena.router
    with Listener(arena.hostile, promiscuous=True) as listener:
        if not listener.permitted:
            return False
        sender.send(frames.datagram(router.mac, sender.mac, router.ipv4, sender.ipv4, "secret"))
        return any(frame.text == "secret" for frame in listener.received_before_broadcast(arena.router))


def reads_multicast(arena: Arena) -> bool:
    router = arena.router
    return _receives(arena, frames.datagram(GROUP_MAC, router.mac, GROUP, router.ipv4, "secret"))


def takes_the_neighbours_mac(arena: Arena) -> bool:
    hostile = arena.hostile
    changes = f"ip link set {hostile.interface} down && ip link set {hostile.interface} address {arena.neighbour.mac}"
    return hostile.run(f"{changes} && ip link set {hostile.interface} up") and reads_unicast(arena)


# ---- forged ARP and ND


def _learns(arena: Arena, host: Host, address: str, mac: str, broadcaster: Host, *sent: bytes) -> bool:
    """Whether frames of the hostile pod change the neighbor entry of a host from `mac` to the hostile pod's MAC
    address."""
    sh(
        " ".join(
            host.command("ip", "neigh", "replace", address, "lladdr", mac, "dev", host.interface, "nud", "reachable")
        )
    )
    with Listener(host, capabilities=ADMIN) as listener:
        if not arena.hostile.send(*sent, times=3):
            return False
        listener.received_before_broadcast(broadcaster)
        entries = host.ip_json(f"neigh show to {address}")
        return any(entry.get("lladdr") == arena.hostile.mac for entry in entries)


def _arp(arena: Arena, target: Host, address: str) -> list[bytes]:
    """An ARP reply, a request and a gratuitous reply, each with the hostile pod's MAC address for `address`."""
    mac = arena.hostile.mac
    return [
        frames.arp(2, target.mac, mac, (mac, address), (target.mac, target.ipv4)),
        frames.arp(1, target.mac, mac, (mac, address), ("00:00:00:00:00:00", target.ipv4)),
        frames.arp(2, frames.BROADCAST, mac, (mac, address), (mac, address)),
    ]


def arp_to_neighbour(arena: Arena) -> bool:
    target, router = arena.neighbour, arena.router
    return _learns(arena, target, router.ipv4, router.mac, router, *_arp(arena, target, router.ipv4))


def arp_to_machine(arena: Arena) -> bool:
    target, owner = arena.router, arena.neighbour
    return _learns(arena, target, owner.ipv4, owner.mac, arena.neighbour, *_arp(arena, target, owner.ipv4))


def nd_to_neighbour(arena: Arena) -> bool:
    target, router = arena.neighbour, arena.router
    advertisement = frames.neighbor_advertisement(target.mac, arena.hostile.mac, target.ipv6, router.ipv6)
    return _learns(arena, target, router.ipv6, router.mac, router, advertisement)


def nd_to_machine(arena: Arena) -> bool:
    target, owner = arena.router, arena.neighbour
    advertisement = frames.neighbor_advertisement(target.mac, arena.hostile.mac, target.ipv6, owner.ipv6)
    return _learns(arena, target, owner.ipv6, owner.mac, arena.neighbour, advertisement)


def becomes_the_neighbours_router(arena: Arena) -> bool:
    target, hostile = arena.neighbour, arena.hostile
    with Listener(target) as listener:
        if not hostile.send(frames.router_advertisement(hostile.mac), times=3):
            return False
        listener.received_before_broadcast(arena.router)
    return any("gateway" in route for route in target.ip_json("-6 route show default"))


# ---- VLANs and floods


def _tagged(arena: Arena, *vlans: int) -> bool:
    target, hostile = arena.router, arena.hostile
    frame = frames.datagram(target.mac, hostile.mac, target.ipv4, hostile.ipv4, "forged")
    with Listener(target, promiscuous=True, capabilities=ADMIN) as listener:
        sent = hostile.send(frames.tagged(frame, *vlans))
        return sent and any(
            frame.text == "forged" and frame.vlan for frame in listener.received_before_broadcast(arena.neighbour)
        )


def one_tag(arena: Arena) -> bool:
    return _tagged(arena, VLAN)


def two_tags(arena: Arena) -> bool:
    return _tagged(arena, 1, VLAN)


def _floods(arena: Arena, target: Host, broadcaster: Host) -> bool:
    hostile = arena.hostile
    with Listener(target, promiscuous=True, capabilities=ADMIN) as listener:
        if not hostile.run_program("flood", hostile.ipv4, GROUP, str(FLOOD), "flood"):
            return False
        return sum(frame.text == "flood" for frame in listener.received_before_broadcast(broadcaster)) > FLOOD / 2


def floods_the_neighbour(arena: Arena) -> bool:
    return _floods(arena, arena.neighbour, arena.router)


def floods_a_machine(arena: Arena) -> bool:
    return _floods(arena, arena.router, arena.neighbour)


# ---- stacked, moved and changed interfaces


def _stacked(arena: Arena, kind: str, sent_to: str = UNUSED_MAC) -> bool:
    """Whether an interface that the pod stacks on its own receives what the router sends to a MAC address."""
    hostile = arena.hostile
    if not hostile.run(
        f"ip link add link {hostile.interface} name tap address {UNUSED_MAC} type {kind} && ip link set tap up"
    ):
        return False
    router = arena.router
    return _receives(arena, frames.datagram(sent_to, router.mac, hostile.ipv4, router.ipv4, "secret"), "tap")


def stacks_a_macvlan(arena: Arena) -> bool:
    return _stacked(arena, "macvlan mode bridge")


def stacks_a_macvlan_that_takes_all(arena: Arena) -> bool:
    return _stacked(arena, "macvlan mode passthru", arena.neighbour.mac)


def stacks_a_macvlan_by_source(arena: Arena) -> bool:
    """A macvlan in mode source gets a copy of all that certain machines send."""
    hostile = arena.hostile
    made = "ip link add link {0} name tap type macvlan mode source && ip link set tap up"
    listed = "ip link set link dev tap type macvlan macaddr add {1}"
    if not hostile.run(f"{made} && {listed}".format(hostile.interface, arena.router.mac)):
        return False
    return _receives(arena, _secret(arena), "tap")


def _keeps_sending(arena: Arena, interface: str, mac: str) -> bool:
    """Whether an interface that was moved to another pod still sends after the claim has ended."""
    hostile, target = arena.hostile, arena.router
    sh(f"ip netns add {_OTHER_POD}")
    try:
        if not hostile.run(f"ip link set {interface} netns /run/netns/{_OTHER_POD} name kept"):
            return False
        sh(f"ip -n {_OTHER_POD} link set kept up", check=False)
        arena.not_restored += arena.end("hostile")
        kept = Host(_OTHER_POD, "kept", mac, hostile.ipv4, hostile.ipv6)
        with Listener(target) as listener:
            sent = kept.send(frames.datagram(target.mac, mac, target.ipv4, kept.ipv4, "forged"))
            return sent and any(frame.text == "forged" for frame in listener.received_before_broadcast(arena.neighbour))
    finally:
        sh(f"ip netns del {_OTHER_POD}", check=False)


def keeps_the_interface(arena: Arena) -> bool:
    return _keeps_sending(arena, arena.hostile.interface, arena.hostile.mac)


def keeps_the_interface_under_another_mac(arena: Arena) -> bool:
    hostile = arena.hostile
    changed = "ip link set {0} down && ip link set {0} address {1} && ip link set {0} up"
    return hostile.run(changed.format(hostile.interface, UNUSED_MAC)) and _keeps_sending(
        arena, hostile.interface, UNUSED_MAC
    )


def keeps_a_macvlan(arena: Arena) -> bool:
    hostile = arena.hostile
    made = f"ip link add link {hostile.interface} name tap address {UNUSED_MAC} type macvlan mode bridge"
    return hostile.run(made) and _keeps_sending(arena, "tap", UNUSED_MAC)


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


def leaves_settings(arena: Arena) -> bool:
    """Whether the next pod with the NIC, or the node, sees what the hostile pod changed."""
    first = _pod_view(arena)
    changed = [command for command in CHANGES if arena.hostile.run(command)]
    if not changed:
        return False
    left = arena.end("hostile")
    arena.not_restored += left
    arena.pods["hostile"] = arena.attach("hostile", arena.hostile_nic, 2)
    return bool(left) or _pod_view(arena) != first


def _pod_view(arena: Arena) -> t.Any:
    """What the hostile pod sees of its NIC, with placeholders for its MAC and link-local addresses."""
    host = arena.hostile
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
