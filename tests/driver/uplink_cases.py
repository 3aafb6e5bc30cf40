# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cases of traffic of a node itself: what causes it, and which interfaces carry it.

nic0 to nic3 of the node are connected to a namespace that stands for the rest of the network. A case lists the commands
that set it up and every interface that then carries traffic, with the reasons; all other interfaces carry none. This
file needs no other test helper than `ipv6`, so that nodes of the lab can run cases that this kernel does not support.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
import struct
import subprocess
import sys
import typing as t

from ansible_collections.lanewise.dra.tests.driver import ipv6
from lanewise_driver.kernel import netns
from lanewise_driver.uplinks import netlink

FAR = "/run/netns/far"
#: Sockets, files and processes that must stay open as long as the node exists.
kept_open: list[t.Any] = []


class Unsupported(Exception):
    """This kernel does not support what a case needs."""


def run(command: str, check: bool = True, text: str | None = None) -> str:
    """Run a shell command on the node. Returns its output."""
    done = subprocess.run(["sh", "-c", command], input=text, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def world() -> None:
    """Create the node with nic0 .. nic3 (192.0.N.1, 2001:db8:N::1), each with a cable to the world (.9, ::9).

    The world also has 198.51.100.1 and 2001:db8:100::1, to which the node has no route.
    """
    near, far = ["link set lo up"], ["link set lo up"]
    for number in range(4):
        near += [f"link add nic{number} type veth peer name far{number} netns far", f"link set nic{number} up"]
        near += [
            f"addr add 192.0.{number}.1/24 dev nic{number}",
            f"addr add 2001:db8:{number}::1/64 dev nic{number} nodad",
        ]
        far += [f"link set far{number} up", f"addr add 192.0.{number}.9/24 dev far{number}"]
        far += [f"addr add 2001:db8:{number}::9/64 dev far{number} nodad"]
    far += ["addr add 198.51.100.1/32 dev lo", "addr add 2001:db8:100::1/128 dev lo nodad"]
    run("mkdir -p /run/netns; ip netns add far")
    for where in ("", "ip netns exec far "):  # no duplicate address detection, which takes seconds
        run(f"{where}sysctl -qw net.ipv6.conf.default.accept_dad=0")
    run("ip -batch -", text="\n".join(near))
    run("ip -n far -batch -", text="\n".join(far))
    for where in ("", "ip netns exec far "):
        run(f"{where}sh -c 'for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done'")
    ipv6.wait(lambda words: run(f"ip {words}"))
    ipv6.wait(lambda words: run(f"ip -n far {words}"))


def connection(own: str, port: int, far: str, mark: int = 0, listen: str = "", device: str = "") -> None:
    """Connect a client of the world at the address `far` with a server of the node at `own`.

    The server listens on `listen` if that is given, and is bound to `device`.
    """
    server = _socket(listen or own, mark)
    if device:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    server.bind((listen or own, port))
    server.listen()
    client = netns.run(FAR, _socket, far)
    client.bind((far, 0))
    client.settimeout(20)
    client.connect((own, port))
    server.settimeout(20)
    kept_open.extend((server, client, server.accept()))


def _socket(address: str, mark: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if mark:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    return made


def session(to: str, port: int, own: str) -> None:
    """Connect a client of the node at the address `own` with a server of the world."""
    server = netns.run(FAR, _socket, to)
    server.bind((to, port))
    server.listen()
    client = _socket(own)
    client.bind((own, 0))
    client.settimeout(20)
    client.connect((to, port))
    kept_open.extend((server, client))


def server_named(name: str, own: str, port: int, far: str) -> None:
    """Like `connection`, with a server process of that name."""
    program = (
        f"import socket, sys\nopen('/proc/self/comm', 'w').write({name!r})\n"
        f"server = socket.create_server(({own!r}, {port}))\nprint('up', flush=True)\n"
        "client = server.accept()\nprint('in', flush=True)\nsys.stdin.read()"
    )
    pipes: dict[str, t.Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes)  # ends with its input
    assert process.stdout and process.stdout.readline() == "up\n"
    client = netns.run(FAR, _socket, far)
    client.bind((far, 0))
    client.settimeout(20)
    netns.run(FAR, client.connect, (own, port))
    assert process.stdout.readline() == "in\n"
    kept_open.extend((process, client))


def tun(name: str, tap: bool = False) -> None:
    """Create an interface whose packets go to this program. Raises Unsupported without /dev/net/tun."""
    try:
        opened = os.open("/dev/net/tun", os.O_RDWR)
    except OSError as error:
        raise Unsupported(f"needs /dev/net/tun: {error.strerror}") from None
    fcntl.ioctl(opened, 0x400454CA, struct.pack("16sH22x", name.encode(), (2 if tap else 1) | 0x1000))  # TUNSETIFF
    kept_open.append(opened)
    run(f"ip link set {name} up")


def ip(*commands: str) -> None:
    """Run commands of ip. Raises Unsupported if this kernel lacks the kind of link."""
    for command in commands:
        done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
        if "nknown device type" in done.stderr or "Operation not supported" in done.stderr:
            raise Unsupported(f"this kernel cannot 'ip {command}': {done.stderr.strip()}")
        assert not done.returncode, f"ip {command}: {done.stderr}"


def no_compat() -> None:
    """Let routes name only their nexthop objects, as FRR and others configure it."""
    run("echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode")


def accept_in_vrfs() -> None:
    """Let a server outside all VRFs accept connections of all VRFs."""
    run("echo 1 > /proc/sys/net/ipv4/tcp_l3mdev_accept")


def wireguard() -> None:
    """Add a peer at 192.0.1.9, by generic netlink as wg(8) does it."""
    key = bytes(range(1, 33))
    peer = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 51820) + socket.inet_aton("192.0.1.9") + bytes(8)
    with netlink.Connection(netlink.NETLINK_GENERIC) as kernel:
        (answer,) = kernel.request(16, struct.pack("=BBH", 3, 1, 0) + netlink.text(2, "wireguard"))
        family = netlink.number(netlink.attributes(answer[1], 4)[1])
        body = struct.pack("=BBH", 1, 1, 0) + netlink.text(2, "wg0") + netlink.attribute(3, key)
        one = netlink.nest(0, netlink.attribute(1, key), netlink.attribute(4, peer))
        kernel.request(family, body + netlink.nest(8, one))


DEFAULT = "it carries the default route"
HOLDS = "it has the address of an SSH session from"
LEADS = "it is on the route to the SSH client"
NEXTHOPS = ("nexthop add id 1 via 192.0.0.9 dev nic0", "nexthop add id 2 via 192.0.1.9 dev nic1")
NEXTHOPS6 = ("nexthop add id 1 via 2001:db8:0::9 dev nic0", "nexthop add id 2 via 2001:db8:1::9 dev nic1")
#: The address of the node is on its loopback interface, and the world has two routes to it.
LOOPBACK = (
    "addr add 203.0.113.1/32 dev lo",
    "-n far route add 203.0.113.0/24 nexthop via 192.0.0.1 nexthop via 192.0.1.1",
)
#: All interfaces except nic0 are in a VRF, in which the world is reached over nic2.
VRF = (
    *("link add red type vrf table 100", "link set red up", "link set nic1 master red", "link set nic2 master red"),
    *("link set nic3 master red", "route add 198.51.100.1 via 192.0.2.9 vrf red"),
)
Step = t.Union[str, t.Callable[[], None]]


@dataclasses.dataclass(frozen=True)
class Case:
    """`steps` are commands of ip and functions, in order. `carried` are the reasons by interface."""

    steps: t.Sequence[Step]
    carried: t.Mapping[str, str]


def ssh(own: str, far: str, **more: t.Any) -> t.Callable[[], None]:
    return lambda: connection(own, 22, far, **more)


CASES: dict[str, Case] = {
    "nothing": Case([], {}),
    # default routes
    "a default route": Case(["route add default via 192.0.0.9"], {"nic0": DEFAULT}),
    "of several hops": Case(
        ["route add default nexthop via 192.0.0.9 nexthop via 192.0.3.9"], {"nic0": DEFAULT, "nic3": DEFAULT}
    ),
    "by a nexthop object": Case([no_compat, *NEXTHOPS, "route add default nhid 2"], {"nic1": DEFAULT}),
    "by a nexthop group": Case(
        [no_compat, *NEXTHOPS, "nexthop add id 10 group 1/2", "route add default nhid 10"],
        {"nic0": DEFAULT, "nic1": DEFAULT},
    ),
    "of IPv6 by a nexthop group": Case(
        [no_compat, *NEXTHOPS6, "nexthop add id 10 group 1/2", "-6 route add default nhid 10"],
        {"nic0": DEFAULT, "nic1": DEFAULT},
    ),
    "of another table": Case(
        ["route add default via 192.0.2.9 table 100", "rule add from 192.0.2.1 table 100"],
        {"nic2": f"{DEFAULT} of table 100"},
    ),
    "in halves": Case(
        ["route add 0.0.0.0/1 via 192.0.0.9", "route add 128.0.0.0/1 via 192.0.0.9"],
        {"nic0": "it carries the route to 0.0.0.0/1"},
    ),
    "to more specific networks": Case(["route add 10.0.0.0/8 via 192.0.0.9", "-6 route add fd00::/8 dev nic1"], {}),
    "to all multicast": Case(["route add 224.0.0.0/4 dev nic1"], {}),
    "to the void": Case(["route add unreachable default"], {}),
    # SSH, both ways
    "SSH by the address of the interface": Case([ssh("192.0.1.1", "192.0.1.9")], {"nic1": f"{LEADS} 192.0.1.9"}),
    "SSH of IPv6": Case([ssh("2001:db8:1::1", "2001:db8:1::9")], {"nic1": f"{LEADS} 2001:db8:1::9"}),
    "SSH to a server for both": Case([ssh("192.0.1.1", "192.0.1.9", listen="::")], {"nic1": f"{LEADS} 192.0.1.9"}),
    "SSH of link-local addresses": Case(
        [
            *("addr add fe80::1/64 dev nic1 nodad", "addr add fe80::1/64 dev nic2 nodad"),
            *("-n far addr add fe80::9/64 dev far1 nodad", lambda: ipv6.wait(lambda words: run(f"ip {words}"))),
            lambda: link_local("fe80::1", "fe80::9", "nic1"),
        ],
        {"nic1": f"{LEADS} fe80::9"},
    ),
    "SSH to another interface than answers": Case(
        ["route add 198.51.100.1 via 192.0.2.9", ssh("192.0.1.1", "198.51.100.1")],
        {"nic1": f"{HOLDS} 198.51.100.1", "nic2": f"{LEADS} 198.51.100.1"},
    ),
    "SSH to an address on lo, by several hops and no default": Case(
        [*LOOPBACK, "route add 198.51.100.0/24 nexthop via 192.0.0.9 nexthop via 192.0.1.9"]
        + [ssh("203.0.113.1", "198.51.100.1")],
        {"nic0": f"{LEADS} 198.51.100.1", "nic1": f"{LEADS} 198.51.100.1"},
    ),
    "SSH to an address on lo, by a nexthop group": Case(
        [no_compat, *LOOPBACK, *NEXTHOPS, "nexthop add id 10 group 1/2", "route add 198.51.100.0/24 nhid 10"]
        + [ssh("203.0.113.1", "198.51.100.1")],
        {"nic0": f"{LEADS} 198.51.100.1", "nic1": f"{LEADS} 198.51.100.1"},
    ),
    "SSH of IPv6 to an address on lo, by several hops": Case(
        ["addr add 2001:db8:200::1/128 dev lo", "-6 -n far route add 2001:db8:200::1 via 2001:db8:1::1"]
        + ["-6 route add 2001:db8:100::/64 nexthop via 2001:db8:0::9 nexthop via 2001:db8:1::9"]
        + [ssh("2001:db8:200::1", "2001:db8:100::1")],
        {"nic0": f"{LEADS} 2001:db8:100::1", "nic1": f"{LEADS} 2001:db8:100::1"},
    ),
    "SSH to a network that is local as a whole": Case(
        ["route add local 203.0.113.0/24 dev lo", "-n far route add 203.0.113.0/24 via 192.0.0.1"]
        + [ssh("203.0.113.7", "192.0.2.9")],
        {"nic2": f"{LEADS} 192.0.2.9"},
    ),
    "SSH to a network that is local on an interface": Case(
        ["route add local 203.0.113.0/24 dev nic1", "-n far route add 203.0.113.0/24 via 192.0.0.1"]
        + [ssh("203.0.113.7", "192.0.2.9")],
        {"nic1": f"{HOLDS} 192.0.2.9", "nic2": f"{LEADS} 192.0.2.9"},
    ),
    "SSH with a rule by the own address": Case(
        ["route add 198.51.100.1 via 192.0.3.9", "route add 198.51.100.1 via 192.0.2.9 table 100"]
        + ["rule add from 192.0.1.1 table 100", ssh("192.0.1.1", "198.51.100.1")],
        {"nic1": f"{HOLDS} 198.51.100.1", "nic2": f"{LEADS} 198.51.100.1"},
    ),
    "SSH with a rule by the port": Case(
        ["route add 198.51.100.1 via 192.0.3.9", "route add 198.51.100.1 via 192.0.2.9 table 100"]
        + ["rule add ipproto tcp sport 22 table 100", ssh("192.0.2.1", "198.51.100.1")],
        {"nic2": f"{LEADS} 198.51.100.1"},
    ),
    "SSH with a rule by the mark": Case(
        ["route add 198.51.100.1 via 192.0.3.9", "route add 198.51.100.1 via 192.0.2.9 table 100"]
        + ["rule add fwmark 7 table 100", ssh("192.0.2.1", "198.51.100.1", mark=7)],
        {"nic2": f"{LEADS} 198.51.100.1"},
    ),
    "SSH on another port": Case(
        [lambda: server_named("sshd", "192.0.3.1", 2022, "192.0.3.9")], {"nic3": f"{LEADS} 192.0.3.9"}
    ),
    "another program on that port": Case([lambda: server_named("httpd", "192.0.3.1", 2022, "192.0.3.9")], {}),
    "SSH from this node": Case([lambda: session("192.0.1.9", 22, "192.0.1.1")], {}),
    "SSH of the node to itself": Case([lambda: to_itself("192.0.1.1", "192.0.2.1")], {}),
    "a web server": Case([lambda: connection("192.0.1.1", 8080, "192.0.1.9")], {}),
    # storage
    **{
        f"{what} on port {port}": Case(
            [lambda port=port: session("192.0.1.9", port, "192.0.1.1")],  # type: ignore[misc]
            {"nic1": f"it is on the route to the {what} server 192.0.1.9"},
        )
        for what, port in (("iSCSI", 3260), ("NFS", 2049), ("NVMe/TCP", 4420), ("Ceph", 6789))
    },
    "Ceph's monitor and a store": Case(
        [lambda: session("192.0.1.9", 3300, "192.0.1.1"), lambda: session("192.0.2.9", 6801, "192.0.2.1")],
        {
            "nic1": "it is on the route to the Ceph server 192.0.1.9",
            "nic2": "it is on the route to the Ceph server 192.0.2.9",
        },
    ),
    "a port as of Ceph's stores, without a monitor": Case([lambda: session("192.0.2.9", 6801, "192.0.2.1")], {}),
    "iSCSI by another interface": Case(
        ["route add 198.51.100.1 via 192.0.2.9", lambda: session("198.51.100.1", 3260, "192.0.1.1")],
        {
            "nic1": "it has the address of an iSCSI session to 198.51.100.1",
            "nic2": "it is on the route to the iSCSI server 198.51.100.1",
        },
    ),
    "iSCSI served by this node": Case(
        [lambda: connection("192.0.1.1", 3260, "192.0.1.9")],
        {"nic1": "it is on the route to the iSCSI client 192.0.1.9"},
    ),
    # interfaces below others
    "a bridge": Case(
        ["link add br0 type bridge", "link set nic0 master br0", "link set br0 up", "addr add 192.0.9.1/24 dev br0"]
        + ["route add default via 192.0.9.9"],
        {"br0": DEFAULT, "nic0": f"it is below br0: {DEFAULT}"},
    ),
    "a bridge with a guest": Case(
        [
            "link add br0 type bridge",
            "link add mv1 link nic0 type macvlan",
            "link set mv1 master br0",
            "link set br0 up",
        ]
        + [lambda: tun("tap0", tap=True), "link set tap0 master br0", "addr add 192.0.9.1/24 dev br0"]
        + ["route add default via 192.0.9.9"],
        {name: DEFAULT if name == "br0" else f"it is below br0: {DEFAULT}" for name in ("br0", "mv1", "nic0", "tap0")},
    ),
    "a cable into a bridge": Case(
        [
            "link add br0 type bridge",
            "link set nic0 master br0",
            "link set br0 up",
            "link add up0 type veth peer name up1",
        ]
        + ["link set up1 master br0", "link set up0 up", "link set up1 up", "addr add 192.0.9.1/24 dev up0"]
        + ["route add default via 192.0.9.9"],
        {name: DEFAULT if name == "up0" else f"it is below up0: {DEFAULT}" for name in ("up0", "up1", "br0", "nic0")},
    ),
    "a macvlan": Case(
        ["link add mv0 link nic1 type macvlan", "link set mv0 up", "addr add 192.0.9.1/24 dev mv0"]
        + ["route add default via 192.0.9.9"],
        {"mv0": DEFAULT, "nic1": f"it is below mv0: {DEFAULT}"},
    ),
    "a macvlan for something else": Case(["link add mv0 link nic1 type macvlan", "link set mv0 up"], {}),
    "a VLAN on a bond": Case(
        ["link add bond0 type bond mode 1", "link set nic0 down", "link set nic0 master bond0", "link set bond0 up"]
        + ["link add bond0.7 link bond0 type vlan id 7", "link set bond0.7 up", "addr add 192.0.9.1/24 dev bond0.7"]
        + ["route add default via 192.0.9.9"],
        {
            "bond0.7": DEFAULT,
            "bond0": f"it is below bond0.7: {DEFAULT}",
            "nic0": f"it is below bond0.7: {DEFAULT}",
        },
    ),
    "SSH in a VRF": Case(
        [*VRF, accept_in_vrfs, ssh("192.0.1.1", "198.51.100.1", listen="0.0.0.0")],
        {"nic1": f"{HOLDS} 198.51.100.1", "nic2": f"{LEADS} 198.51.100.1"},
    ),
    "SSH to a server of a VRF": Case(
        [*VRF, ssh("192.0.1.1", "198.51.100.1", device="red")],
        {"nic1": f"{HOLDS} 198.51.100.1", "nic2": f"{LEADS} 198.51.100.1"},
    ),
    "SSH to an address of the VRF": Case(
        [*VRF, "addr add 203.0.113.1/32 dev red", "-n far route add 203.0.113.0/24 via 192.0.1.1"]
        + [ssh("203.0.113.1", "198.51.100.1", device="red")],
        {"nic2": f"{LEADS} 198.51.100.1"},
    ),
    "a default route of a VRF": Case(
        ["link add red type vrf table 100", "link set red up", "link set nic1 master red"]
        + ["route add default via 192.0.1.9 vrf red"],
        {"nic1": f"{DEFAULT} of table 100"},
    ),
    "wireguard": Case(
        ["link add wg0 type wireguard", wireguard, "link set wg0 up", "route add default dev wg0"],
        {"wg0": DEFAULT, "nic1": f"it is below wg0: {DEFAULT}"},
    ),
    # tunnels
    "a vxlan to one far end": Case(
        [
            "link add vx0 type vxlan id 7 remote 192.0.1.9 dstport 4789",
            "link set vx0 up",
            "addr add 192.0.9.1/24 dev vx0",
        ]
        + ["route add default via 192.0.9.9"],
        {"vx0": DEFAULT, "nic1": f"it is below vx0: {DEFAULT}"},
    ),
    "a vxlan to several": Case(
        ["link add vx0 type vxlan id 7 dstport 4789", "link set vx0 up", "addr add 192.0.9.1/24 dev vx0"]
        + [lambda: run("bridge fdb append 00:00:00:00:00:00 dev vx0 dst 192.0.2.9") and None]
        + [lambda: run("bridge fdb append 00:00:00:00:00:00 dev vx0 dst 192.0.3.9") and None]
        + ["route add default via 192.0.9.9"],
        {"vx0": DEFAULT, "nic2": f"it is below vx0: {DEFAULT}", "nic3": f"it is below vx0: {DEFAULT}"},
    ),
    "a vxlan of one interface": Case(
        ["link add vx0 type vxlan id 7 group 239.1.1.1 dev nic2 dstport 4789", "link set vx0 up"]
        + ["addr add 192.0.9.1/24 dev vx0", "route add default via 192.0.9.9"],
        {"vx0": DEFAULT, "nic2": f"it is below vx0: {DEFAULT}"},
    ),
    "a vxlan that nobody uses": Case(
        ["link add vx0 type vxlan id 7 remote 192.0.1.9 dstport 4789", "link set vx0 up"], {}
    ),
    "a vxlan in a bridge": Case(
        ["link add vx0 type vxlan id 7 remote 192.0.1.9 dstport 4789", "link add br0 type bridge"]
        + ["link set vx0 master br0", "link set vx0 up", "link set br0 up", "addr add 192.0.9.1/24 dev br0"]
        + ["route add default via 192.0.9.9"],
        {"br0": DEFAULT, "vx0": f"it is below br0: {DEFAULT}", "nic1": f"it is below br0: {DEFAULT}"},
    ),
    "GRE": Case(
        ["link add gre7 type gre remote 192.0.1.9", "link set gre7 up", "route add default dev gre7"],
        {"gre7": DEFAULT, "nic1": f"it is below gre7: {DEFAULT}"},
    ),
    "IP in IP": Case(
        ["link add ipip7 type ipip remote 192.0.1.9", "link set ipip7 up", "route add default dev ipip7"],
        {"ipip7": DEFAULT, "nic1": f"it is below ipip7: {DEFAULT}"},
    ),
    "a tunnel of a program": Case(
        [lambda: tun("tun0"), "addr flush dev nic3", "-6 addr flush dev nic3", "route add default dev tun0"],
        {
            "tun0": DEFAULT,
            **dict.fromkeys(
                ("nic0", "nic1", "nic2"),
                f"tun0 may send through it, as the kernel does not report where the tunnel's packets go: {DEFAULT}",
            ),
        },
    ),
    "a tunnel of a program for something else": Case([lambda: tun("tun0"), "route add 10.0.0.0/8 dev tun0"], {}),
}


def link_local(own: str, far: str, interface: str) -> None:
    server = socket.socket(socket.AF_INET6)
    server.bind((own, 22, 0, socket.if_nametoindex(interface)))
    server.listen()
    other = netns.run(FAR, socket.if_nametoindex, interface.replace("nic", "far"))
    client = netns.run(FAR, socket.socket, socket.AF_INET6)
    client.bind((far, 0, 0, other))
    client.settimeout(20)
    client.connect((own, 22, 0, other))
    kept_open.extend((server, client, server.accept()))


def to_itself(own: str, other: str) -> None:
    server = socket.create_server((own, 22))
    client = socket.create_connection((own, 22), 20, (other, 0))
    kept_open.extend((server, client, server.accept()))


def make(name: str) -> None:
    """Create the node of a case. Raises Unsupported."""
    world()
    for one in CASES[name].steps:
        if callable(one):
            one()
        else:
            ip(one)
