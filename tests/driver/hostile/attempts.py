# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a hostile pod tries. Each attempt returns whether it succeeded."""

from __future__ import annotations

import json
import time
import typing as t
from dataclasses import dataclass

from . import frames
from .arena import ADMIN, NONE, RAW, Arena, Host, Listener, sh

#: An unused MAC address, and the multicast group and number of datagrams of a flood.
NOBODY, GROUP, GROUP_MAC, FLOOD = "02:00:00:00:0e:01", "239.9.9.9", "01:00:5e:09:09:09", 500
#: The VLAN that the hostile pod is not in.
VLAN = 77
_HIDDEN = "hidden"


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
    through = _gets_through(arena, attempt, ADMIN, left)
    withheld = ", withheld" if arena.withheld else ""
    if not through:
        return f"stopped{withheld}", left
    least = next((one for one in (NONE, RAW) if _gets_through(arena, attempt, one, left)), ADMIN)
    return (least.split()[-1].upper() if least else "none") + withheld, left


def _gets_through(arena: Arena, attempt: Attempt, rights: str, left: list[str]) -> bool:
    arena.begin(rights)
    try:
        return attempt.does(arena)
    finally:
        left += arena.end_all()


# ---- forged senders


def _reaches(arena: Arena, to: Host, last: Host, *sent: bytes) -> bool:
    with Listener(to) as listener:
        return arena.hostile.send(*sent) and any(one.text == "forged" for one in listener.all(last))


def forged_mac_to_neighbour(arena: Arena) -> bool:
    to, own = arena.neighbour, arena.hostile
    return _reaches(arena, to, arena.router, frames.datagram(to.mac, NOBODY, to.ipv4, own.ipv4, "forged"))


def forged_mac_to_machine(arena: Arena) -> bool:
    to, own = arena.router, arena.hostile
    return _reaches(arena, to, arena.neighbour, frames.datagram(to.mac, NOBODY, to.ipv4, own.ipv4, "forged"))


def forged_ip_to_neighbour(arena: Arena) -> bool:
    to, own = arena.neighbour, arena.hostile
    return _reaches(arena, to, arena.router, frames.datagram(to.mac, own.mac, to.ipv4, arena.router.ipv4, "forged"))


def forged_ip_to_machine(arena: Arena) -> bool:
    to, own = arena.router, arena.hostile
    return _reaches(
        arena, to, arena.neighbour, frames.datagram(to.mac, own.mac, to.ipv4, arena.neighbour.ipv4, "forged")
    )


def takes_a_machines_traffic(arena: Arena) -> bool:
    """The switch learns that the machine is at the port of the card, so the machine receives nothing more."""
    assert arena.other
    frame = frames.datagram(arena.other.mac, arena.router.mac, arena.other.ipv4, arena.router.ipv4, "to-other")
    arena.other.broadcast_end()  # the switch learns its port
    claiming = frames.datagram(frames.BROADCAST, arena.other.mac, "255.255.255.255", arena.other.ipv4, "forged")
    with Listener(arena.other) as listener:
        if not arena.hostile.send(claiming):
            return False
        arena.router.send(frame)
        return not any(one.text == "to-other" for one in listener.all(arena.router))


# ---- reading the traffic of others


def _hears(arena: Arena, sent: bytes, interface: str = "", rights: str | None = None) -> bool:
    with Listener(arena.hostile, interface, promiscuous=True, rights=rights) as listener:
        if not listener.permitted:
            return False
        arena.router.send(sent)
        return any(one.text == "secret" for one in listener.all(arena.router))


def _secret(arena: Arena) -> bytes:
    to, router = arena.neighbour, arena.router
    return frames.datagram(to.mac, router.mac, to.ipv4, router.ipv4, "secret")


def reads_unicast(arena: Arena) -> bool:
    return _hears(arena, _secret(arena))


def reads_what_the_neighbour_sends(arena: Arena) -> bool:
    sender, router = arena.neighbour, arena.router
    with Listener(arena.hostile, promiscuous=True) as listener:
        if not listener.permitted:
            return False
        sender.send(frames.datagram(router.mac, sender.mac, router.ipv4, sender.ipv4, "secret"))
        return any(one.text == "secret" for one in listener.all(arena.router))


def reads_multicast(arena: Arena) -> bool:
    router = arena.router
    return _hears(arena, frames.datagram(GROUP_MAC, router.mac, GROUP, router.ipv4, "secret"))


def takes_the_neighbours_mac(arena: Arena) -> bool:
    own = arena.hostile
    changes = f"ip link set {own.interface} down && ip link set {own.interface} address {arena.neighbour.mac}"
    return own.run(f"{changes} && ip link set {own.interface} up") and reads_unicast(arena)


# ---- forged ARP and ND


def _learns(arena: Arena, host: Host, address: str, truth: str, last: Host, *sent: bytes) -> bool:
    """Whether a host that knows where an address is believes something else afterwards."""
    sh(
        " ".join(
            host.command("ip", "neigh", "replace", address, "lladdr", truth, "dev", host.interface, "nud", "reachable")
        )
    )
    with Listener(host, rights=ADMIN) as listener:
        if not arena.hostile.send(*sent, times=3):
            return False
        listener.all(last)
        entries = host.shown(f"neigh show to {address}")
        return any(one.get("lladdr") == arena.hostile.mac for one in entries)


def _arp(arena: Arena, to: Host, address: str) -> list[bytes]:
    own = arena.hostile.mac
    return [
        frames.arp(2, to.mac, own, (own, address), (to.mac, to.ipv4)),
        frames.arp(1, to.mac, own, (own, address), ("00:00:00:00:00:00", to.ipv4)),
        frames.arp(2, frames.BROADCAST, own, (own, address), (own, address)),
    ]


def arp_to_neighbour(arena: Arena) -> bool:
    to, router = arena.neighbour, arena.router
    return _learns(arena, to, router.ipv4, router.mac, router, *_arp(arena, to, router.ipv4))


def arp_to_machine(arena: Arena) -> bool:
    to, owner = arena.router, arena.neighbour
    return _learns(arena, to, owner.ipv4, owner.mac, arena.neighbour, *_arp(arena, to, owner.ipv4))


def nd_to_neighbour(arena: Arena) -> bool:
    to, router = arena.neighbour, arena.router
    lie = frames.neighbor_advertisement(to.mac, arena.hostile.mac, to.ipv6, router.ipv6)
    return _learns(arena, to, router.ipv6, router.mac, router, lie)


def nd_to_machine(arena: Arena) -> bool:
    to, owner = arena.router, arena.neighbour
    lie = frames.neighbor_advertisement(to.mac, arena.hostile.mac, to.ipv6, owner.ipv6)
    return _learns(arena, to, owner.ipv6, owner.mac, arena.neighbour, lie)


def becomes_the_neighbours_router(arena: Arena) -> bool:
    to, own = arena.neighbour, arena.hostile
    with Listener(to) as listener:
        if not own.send(frames.router_advertisement(own.mac), times=3):
            return False
        listener.all(arena.router)
    return any("gateway" in one for one in to.shown("-6 route show default"))


# ---- VLANs, floods


def _tagged(arena: Arena, *vlans: int) -> bool:
    to, own = arena.router, arena.hostile
    frame = frames.datagram(to.mac, own.mac, to.ipv4, own.ipv4, "forged")
    with Listener(to, promiscuous=True, rights=ADMIN) as listener:
        sent = own.send(frames.tagged(frame, *vlans))
        return sent and any(one.text == "forged" and one.vlan for one in listener.all(arena.neighbour))


def one_tag(arena: Arena) -> bool:
    return _tagged(arena, VLAN)


def two_tags(arena: Arena) -> bool:
    return _tagged(arena, 1, VLAN)


def _floods(arena: Arena, to: Host, last: Host) -> bool:
    own = arena.hostile
    with Listener(to, promiscuous=True, rights=ADMIN) as listener:
        if not own.program("flood", own.ipv4, GROUP, str(FLOOD), "flood"):
            return False
        return sum(one.text == "flood" for one in listener.all(last)) > FLOOD / 2


def floods_the_neighbour(arena: Arena) -> bool:
    return _floods(arena, arena.neighbour, arena.router)


def floods_a_machine(arena: Arena) -> bool:
    return _floods(arena, arena.router, arena.neighbour)


# ---- stacked, moved and changed interfaces


def _stacked(arena: Arena, kind: str, sent_to: str = NOBODY) -> bool:
    """Whether an interface that the pod stacks on its own receives what the router sends to a MAC address."""
    own = arena.hostile
    if not own.run(f"ip link add link {own.interface} name tap address {NOBODY} type {kind} && ip link set tap up"):
        return False
    router = arena.router
    return _hears(arena, frames.datagram(sent_to, router.mac, own.ipv4, router.ipv4, "secret"), "tap")


def stacks_a_macvlan(arena: Arena) -> bool:
    return _stacked(arena, "macvlan mode bridge")


def stacks_a_macvlan_that_takes_all(arena: Arena) -> bool:
    return _stacked(arena, "macvlan mode passthru", arena.neighbour.mac)


def stacks_a_macvlan_by_source(arena: Arena) -> bool:
    """A macvlan in mode source gets a copy of all that certain machines send."""
    own = arena.hostile
    made = "ip link add link {0} name tap type macvlan mode source && ip link set tap up"
    listed = "ip link set link dev tap type macvlan macaddr add {1}"
    if not own.run(f"{made} && {listed}".format(own.interface, arena.router.mac)):
        return False
    return _hears(arena, _secret(arena), "tap")


def _keeps(arena: Arena, interface: str, mac: str) -> bool:
    """Whether an interface that was moved to another pod still sends after the claim has ended."""
    own, to = arena.hostile, arena.router
    sh(f"ip netns add {_HIDDEN}")
    try:
        if not own.run(f"ip link set {interface} netns /run/netns/{_HIDDEN} name kept"):
            return False
        sh(f"ip -n {_HIDDEN} link set kept up", check=False)
        arena.ended += arena.end("hostile")
        kept = Host(_HIDDEN, "kept", mac, own.ipv4, own.ipv6)
        with Listener(to) as listener:
            sent = kept.send(frames.datagram(to.mac, mac, to.ipv4, kept.ipv4, "forged"))
            return sent and any(one.text == "forged" for one in listener.all(arena.neighbour))
    finally:
        sh(f"ip netns del {_HIDDEN}", check=False)


def keeps_the_interface(arena: Arena) -> bool:
    return _keeps(arena, arena.hostile.interface, arena.hostile.mac)


def keeps_the_interface_under_another_mac(arena: Arena) -> bool:
    own = arena.hostile
    changed = "ip link set {0} down && ip link set {0} address {1} && ip link set {0} up"
    return own.run(changed.format(own.interface, NOBODY)) and _keeps(arena, own.interface, NOBODY)


def keeps_an_interface_on_it(arena: Arena) -> bool:
    own = arena.hostile
    made = f"ip link add link {own.interface} name tap address {NOBODY} type macvlan mode bridge"
    return own.run(made) and _keeps(arena, "tap", NOBODY)


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
_VOLATILE = ("ifindex", "link_index", "link_netnsid", "stats64", "valid_life_time", "preferred_life_time")


def leaves_settings(arena: Arena) -> bool:
    """Whether the next pod with the NIC sees what the previous one changed. `Arena.end` returns the differences on the
    node."""
    first = _pod_view(arena)
    taken = [one for one in CHANGES if arena.hostile.run(one)]
    if not taken:
        return False
    left = arena.end("hostile")
    arena.ended += left
    arena.pods["hostile"] = arena.attach("hostile", arena.hostile_nic, 2)
    return bool(left) or _pod_view(arena) != first


def _pod_view(arena: Arena) -> t.Any:
    host = arena.hostile
    end = time.monotonic() + 20
    while True:  # until the link is up, and IPv6 has its addresses
        found = [
            host.shown(f"-d {what}") for what in ("link show net1", "addr show net1", "route show table all", "neigh")
        ]
        found.append(host.shown("maddr show dev net1"))
        text = json.dumps(found)
        if '"tentative"' not in text and "fe80" in text or time.monotonic() > end:
            break
        time.sleep(0.1)
    found[3] = [one for one in found[3] if "PERMANENT" in one.get("state", ())]
    own = ("33:33:ff:", "ff02::1:ff")  # they follow from the MAC address
    groups = [one.get("link") or one["address"] for one in found.pop()[0]["maddr"]]
    found.append([one for one in groups if not one.startswith(own)])
    mac = next(one["address"] for one in found[0])
    return json.loads(json.dumps(_without(found)).replace(mac, "MAC").replace(frames.link_local(mac), "LOCAL"))


def _without(value: t.Any) -> t.Any:
    if isinstance(value, dict):
        return {key: _without(one) for key, one in value.items() if key not in _VOLATILE}
    return [_without(one) for one in value] if isinstance(value, list) else value


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
    Attempt("makes a macvlan on its NIC and moves it to another pod, to keep it", keeps_an_interface_on_it),
    Attempt("changes its NIC before it gives it back, for the next pod", leaves_settings),
)
