# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cases of traffic of a node itself: what causes it, and which interfaces carry it.

nic0 to nic3 of the node are connected to a namespace that stands for a remote host. A case lists the commands that set
it up, and every interface that then carries the node's traffic, with the reason. This file needs no other test helper
than `ipv6`, so that nodes of the lab can run the cases that this machine's kernel does not support.
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

#: The network namespace of the remote host.
REMOTE_NETNS = "/run/netns/far"
#: Sockets, files and processes that must stay open as long as the node exists.
kept_open: list[t.Any] = []


class Unsupported(Exception):
    """This kernel does not support what a case needs."""


def run(command: str, check: bool = True, text: str | None = None) -> str:
    """Run a shell command on the node. Returns its output."""
    done = subprocess.run(["sh", "-c", command], input=text, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def create_network() -> None:
    """Create nic0 to nic3 of the node, with the addresses 192.0.N.1 and 2001:db8:N::1. Each is connected to an
    interface of the remote host, with the addresses 192.0.N.9 and 2001:db8:N::9.

    The remote host also has the addresses 198.51.100.1 and 2001:db8:100::1, to which the node has no route.
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
    for prefix in ("", "ip netns exec far "):  # no duplicate address detection, which takes seconds
        run(f"{prefix}sysctl -qw net.ipv6.conf.default.accept_dad=0")
    run("ip -batch -", text="\n".join(near))
    run("ip -n far -batch -", text="\n".join(far))
    for prefix in ("", "ip netns exec far "):
        run(f"{prefix}sh -c 'for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done'")
    ipv6.wait(lambda words: run(f"ip {words}"))
    ipv6.wait(lambda words: run(f"ip -n far {words}"))


def connect_to_node(
    local: str, port: int, remote: str, mark: int = 0, listen: str = "", device: str = "", remote_port: int = 0
) -> None:
    """Connect a client of the remote host, at the address `remote` and the port `remote_port`, to a server of the node
    at `local`.

    The server listens at `listen` instead if that is given. Its socket is bound to `device`, and has the mark.
    """
    server = _open_socket(listen or local, mark)
    if device:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    server.bind((listen or local, port))
    server.listen()
    client = netns.run(REMOTE_NETNS, _open_socket, remote)
    client.bind((remote, remote_port))
    client.settimeout(20)
    client.connect((local, port))
    server.settimeout(20)
    kept_open.extend((server, client, server.accept()))


def _open_socket(address: str, mark: int = 0) -> socket.socket:
    """Open a TCP socket for the family of an address."""
    opened = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if mark:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    return opened


def connect_from_node(remote: str, port: int, local: str) -> None:
    """Connect a client of the node, at the address `local`, to a server of the remote host."""
    server = netns.run(REMOTE_NETNS, _open_socket, remote)
    server.bind((remote, port))
    server.listen()
    client = _open_socket(local)
    client.bind((local, 0))
    client.settimeout(20)
    client.connect((remote, port))
    kept_open.extend((server, client))


def connect_to_process(name: str, local: str, port: int, remote: str) -> None:
    """Like `connect_to_node`, with a server process of this name."""
    program = (
        f"import socket, sys\nopen('/proc/self/comm', 'w').write({name!r})\n"
        f"server = socket.create_server(({local!r}, {port}))\nprint('up', flush=True)\n"
        "client = server.accept()\nprint('in', flush=True)\nsys.stdin.read()"
    )
    pipes: dict[str, t.Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes)  # ends with its input
    assert process.stdout and process.stdout.readline() == "up\n"
    client = netns.run(REMOTE_NETNS, _open_socket, remote)
    client.bind((remote, 0))
    client.settimeout(20)
    netns.run(REMOTE_NETNS, client.connect, (local, port))
    assert process.stdout.readline() == "in\n"
    kept_open.extend((process, client))


def add_tun(name: str, tap: bool = False) -> None:
    """Create a TUN or TAP interface of this process. Raises Unsupported without /dev/net/tun."""
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
    except OSError as error:
        raise Unsupported(f"needs /dev/net/tun: {error.strerror}") from None
    fcntl.ioctl(descriptor, 0x400454CA, struct.pack("16sH22x", name.encode(), (2 if tap else 1) | 0x1000))  # TUNSETIFF
    kept_open.append(descriptor)
    run(f"ip link set {name} up")


def ip(*commands: str) -> None:
    """Run commands of `ip`. Raises Unsupported if this kernel does not support the kind of link."""
    for command in commands:
        done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
        if "nknown device type" in done.stderr or "Operation not supported" in done.stderr:
            raise Unsupported(f"this kernel cannot 'ip {command}': {done.stderr.strip()}")
        assert not done.returncode, f"ip {command}: {done.stderr}"


def disable_nexthop_compat() -> None:
    """Let the kernel report only the nexthop objects of routes, which is what FRR configures."""
    run("echo 0 > /proc/sys/net/ipv4/nexthop_compat_mode")


def accept_in_vrfs() -> None:
    """Let a server outside all VRFs accept connections of all VRFs."""
    run("echo 1 > /proc/sys/net/ipv4/tcp_l3mdev_accept")


def add_wireguard_peer() -> None:
    """Add a peer at 192.0.1.9 to wg0, by generic netlink, as wg(8) does."""
    key = bytes(range(1, 33))
    peer = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 51820) + socket.inet_aton("192.0.1.9") + bytes(8)
    with netlink.Connection(netlink.NETLINK_GENERIC) as kernel:
        (answer,) = kernel.request(16, struct.pack("=BBH", 3, 1, 0) + netlink.text(2, "wireguard"))
        family = netlink.number(netlink.attributes(answer[1], 4)[1])
        body = struct.pack("=BBH", 1, 1, 0) + netlink.text(2, "wg0") + netlink.attribute(3, key)
        allowed_peer = netlink.nest(0, netlink.attribute(1, key), netlink.attribute(4, peer))
        kernel.request(family, body + netlink.nest(8, allowed_peer))


#: The reasons why an interface carries the node's traffic.
DEFAULT = "it carries the default route"
HAS_ADDRESS = "it has the address of an SSH session from"
ON_ROUTE = "it is on the route to the SSH client"
NEXTHOPS = ("nexthop add id 1 via 192.0.0.9 dev nic0", "nexthop add id 2 via 192.0.1.9 dev nic1")
NEXTHOPS6 = ("nexthop add id 1 via 2001:db8:0::9 dev nic0", "nexthop add id 2 via 2001:db8:1::9 dev nic1")
#: An address of the node is on its loopback interface, and the remote host has two routes to it.
LOOPBACK = (
    "addr add 203.0.113.1/32 dev lo",
    "-n far route add 203.0.113.0/24 nexthop via 192.0.0.1 nexthop via 192.0.1.1",
)
#: All interfaces except nic0 are in a VRF, in which 198.51.100.1 is reached through nic2.
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


def ssh_session(local: str, remote: str, **more: t.Any) -> t.Callable[[], None]:
    """The step that connects an SSH client at `remote` to the node's address `local`."""
    return lambda: connect_to_node(local, 22, remote, **more)


CASES: dict[str, Case] = {
    "no traffic": Case([], {}),
    # default routes
    "a default route": Case(["route add default via 192.0.0.9"], {"nic0": DEFAULT}),
    "a default route with several nexthops": Case(
        ["route add default nexthop via 192.0.0.9 nexthop via 192.0.3.9"], {"nic0": DEFAULT, "nic3": DEFAULT}
    ),
    "a default route with a nexthop object": Case(
        [disable_nexthop_compat, *NEXTHOPS, "route add default nhid 2"], {"nic1": DEFAULT}
    ),
    "a default route with a nexthop group": Case(
        [disable_nexthop_compat, *NEXTHOPS, "nexthop add id 10 group 1/2", "route add default nhid 10"],
        {"nic0": DEFAULT, "nic1": DEFAULT},
    ),
    "an IPv6 default route with a nexthop group": Case(
        [disable_nexthop_compat, *NEXTHOPS6, "nexthop add id 10 group 1/2", "-6 route add default nhid 10"],
        {"nic0": DEFAULT, "nic1": DEFAULT},
    ),
    "a default route in another table": Case(
        ["route add default via 192.0.2.9 table 100", "rule add from 192.0.2.1 table 100"],
        {"nic2": f"{DEFAULT} of table 100"},
    ),
    "two routes that together are a default route": Case(
        ["route add 0.0.0.0/1 via 192.0.0.9", "route add 128.0.0.0/1 via 192.0.0.9"],
        {"nic0": "it carries the route to 0.0.0.0/1"},
    ),
    "routes to more specific networks": Case(
        ["route add 10.0.0.0/8 via 192.0.0.9", "-6 route add fd00::/8 dev nic1"], {}
    ),
    "a route to all multicast addresses": Case(["route add 224.0.0.0/4 dev nic1"], {}),
    "an unreachable default route": Case(["route add unreachable default"], {}),
    # SSH sessions to and from the node
    "SSH to the address of an interface": Case(
        [ssh_session("192.0.1.1", "192.0.1.9")], {"nic1": f"{ON_ROUTE} 192.0.1.9"}
    ),
    "SSH over IPv6": Case([ssh_session("2001:db8:1::1", "2001:db8:1::9")], {"nic1": f"{ON_ROUTE} 2001:db8:1::9"}),
    "SSH over IPv4 to a server that listens for IPv6 and IPv4": Case(
        [ssh_session("192.0.1.1", "192.0.1.9", listen="::")], {"nic1": f"{ON_ROUTE} 192.0.1.9"}
    ),
    "SSH over link-local addresses": Case(
        [
            *("addr add fe80::1/64 dev nic1 nodad", "addr add fe80::1/64 dev nic2 nodad"),
            *("-n far addr add fe80::9/64 dev far1 nodad", lambda: ipv6.wait(lambda words: run(f"ip {words}"))),
            lambda: connect_link_local("fe80::1", "fe80::9", "nic1"),
        ],
        {"nic1": f"{ON_ROUTE} fe80::9"},
    ),
    "SSH with replies through another interface": Case(
        ["route add 198.51.100.1 via 192.0.2.9", ssh_session("192.0.1.1", "198.51.100.1")],
        {"nic1": f"{HAS_ADDRESS} 198.51.100.1", "nic2": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH to an address on lo, by several nexthops": Case(
        [*LOOPBACK, "route add 198.51.100.0/24 nexthop via 192.0.0.9 nexthop via 192.0.1.9"]
        + [ssh_session("203.0.113.1", "198.51.100.1")],
        {"nic0": f"{ON_ROUTE} 198.51.100.1", "nic1": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH to an address on lo, by a nexthop group": Case(
        [
            disable_nexthop_compat,
            *LOOPBACK,
            *NEXTHOPS,
            "nexthop add id 10 group 1/2",
            "route add 198.51.100.0/24 nhid 10",
        ]
        + [ssh_session("203.0.113.1", "198.51.100.1")],
        {"nic0": f"{ON_ROUTE} 198.51.100.1", "nic1": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH over IPv6 to an address on lo, by several nexthops": Case(
        ["addr add 2001:db8:200::1/128 dev lo", "-6 -n far route add 2001:db8:200::1 via 2001:db8:1::1"]
        + ["-6 route add 2001:db8:100::/64 nexthop via 2001:db8:0::9 nexthop via 2001:db8:1::9"]
        + [ssh_session("2001:db8:200::1", "2001:db8:100::1")],
        {"nic0": f"{ON_ROUTE} 2001:db8:100::1", "nic1": f"{ON_ROUTE} 2001:db8:100::1"},
    ),
    "SSH to an address of a local network on lo": Case(
        ["route add local 203.0.113.0/24 dev lo", "-n far route add 203.0.113.0/24 via 192.0.0.1"]
        + [ssh_session("203.0.113.7", "192.0.2.9")],
        {"nic2": f"{ON_ROUTE} 192.0.2.9"},
    ),
    "SSH to an address of a local network on an interface": Case(
        ["route add local 203.0.113.0/24 dev nic1", "-n far route add 203.0.113.0/24 via 192.0.0.1"]
        + [ssh_session("203.0.113.7", "192.0.2.9")],
        {"nic1": f"{HAS_ADDRESS} 192.0.2.9", "nic2": f"{ON_ROUTE} 192.0.2.9"},
    ),
    "SSH with a routing rule for the source address": Case(
        ["route add 198.51.100.1 via 192.0.3.9", "route add 198.51.100.1 via 192.0.2.9 table 100"]
        + ["rule add from 192.0.1.1 table 100", ssh_session("192.0.1.1", "198.51.100.1")],
        {"nic1": f"{HAS_ADDRESS} 198.51.100.1", "nic2": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH with a routing rule for the source port": Case(
        ["route add 198.51.100.1 via 192.0.3.9", "route add 198.51.100.1 via 192.0.2.9 table 100"]
        + ["rule add ipproto tcp sport 22 table 100", ssh_session("192.0.2.1", "198.51.100.1")],
        {"nic2": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH with a routing rule for the mark": Case(
        ["route add 198.51.100.1 via 192.0.3.9", "route add 198.51.100.1 via 192.0.2.9 table 100"]
        + ["rule add fwmark 7 table 100", ssh_session("192.0.2.1", "198.51.100.1", mark=7)],
        {"nic2": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH on port 2022": Case(
        [lambda: connect_to_process("sshd", "192.0.3.1", 2022, "192.0.3.9")], {"nic3": f"{ON_ROUTE} 192.0.3.9"}
    ),
    "a web server on port 2022": Case([lambda: connect_to_process("httpd", "192.0.3.1", 2022, "192.0.3.9")], {}),
    "SSH from the node": Case([lambda: connect_from_node("192.0.1.9", 22, "192.0.1.1")], {}),
    "SSH from the node to itself": Case([lambda: connect_to_itself("192.0.1.1", "192.0.2.1")], {}),
    "a web server": Case([lambda: connect_to_node("192.0.1.1", 8080, "192.0.1.9")], {}),
    # storage
    **{
        f"{protocol} on port {port}": Case(
            [lambda port=port: connect_from_node("192.0.1.9", port, "192.0.1.1")],  # type: ignore[misc]
            {"nic1": f"it is on the route to the {protocol} server 192.0.1.9"},
        )
        for protocol, port in (("iSCSI", 3260), ("NFS", 2049), ("NVMe/TCP", 4420), ("Ceph", 6789))
    },
    "a Ceph monitor and a Ceph OSD": Case(
        [
            lambda: connect_from_node("192.0.1.9", 3300, "192.0.1.1"),
            lambda: connect_from_node("192.0.2.9", 6801, "192.0.2.1"),
        ],
        {
            "nic1": "it is on the route to the Ceph server 192.0.1.9",
            "nic2": "it is on the route to the Ceph server 192.0.2.9",
        },
    ),
    "a port of Ceph OSDs, without a monitor": Case([lambda: connect_from_node("192.0.2.9", 6801, "192.0.2.1")], {}),
    "iSCSI with requests through another interface": Case(
        ["route add 198.51.100.1 via 192.0.2.9", lambda: connect_from_node("198.51.100.1", 3260, "192.0.1.1")],
        {
            "nic1": "it has the address of an iSCSI session to 198.51.100.1",
            "nic2": "it is on the route to the iSCSI server 198.51.100.1",
        },
    ),
    "clients of a web server that use ports of storage": Case(
        [
            lambda: connect_to_node("192.0.1.1", 8080, "192.0.1.9", remote_port=3260),
            lambda: connect_to_node("192.0.2.1", 8081, "192.0.2.9", remote_port=6789, listen="0.0.0.0"),
        ],
        {},
    ),
    "an iSCSI server on the node": Case(
        [lambda: connect_to_node("192.0.1.1", 3260, "192.0.1.9")],
        {"nic1": "it is on the route to the iSCSI client 192.0.1.9"},
    ),
    # interfaces below others
    "a bridge": Case(
        ["link add br0 type bridge", "link set nic0 master br0", "link set br0 up", "addr add 192.0.9.1/24 dev br0"]
        + ["route add default via 192.0.9.9"],
        {"br0": DEFAULT, "nic0": f"it is below br0: {DEFAULT}"},
    ),
    "a bridge with a virtual machine": Case(
        [
            "link add br0 type bridge",
            "link add mv1 link nic0 type macvlan",
            "link set mv1 master br0",
            "link set br0 up",
        ]
        + [lambda: add_tun("tap0", tap=True), "link set tap0 master br0", "addr add 192.0.9.1/24 dev br0"]
        + ["route add default via 192.0.9.9"],
        {name: DEFAULT if name == "br0" else f"it is below br0: {DEFAULT}" for name in ("br0", "mv1", "nic0", "tap0")},
    ),
    "a veth into a bridge": Case(
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
    "a macvlan without traffic of the node": Case(["link add mv0 link nic1 type macvlan", "link set mv0 up"], {}),
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
        [*VRF, accept_in_vrfs, ssh_session("192.0.1.1", "198.51.100.1", listen="0.0.0.0")],
        {"nic1": f"{HAS_ADDRESS} 198.51.100.1", "nic2": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH to a server that is bound to a VRF": Case(
        [*VRF, ssh_session("192.0.1.1", "198.51.100.1", device="red")],
        {"nic1": f"{HAS_ADDRESS} 198.51.100.1", "nic2": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "SSH to an address of the VRF device": Case(
        [*VRF, "addr add 203.0.113.1/32 dev red", "-n far route add 203.0.113.0/24 via 192.0.1.1"]
        + [ssh_session("203.0.113.1", "198.51.100.1", device="red")],
        {"nic2": f"{ON_ROUTE} 198.51.100.1"},
    ),
    "a default route of a VRF": Case(
        ["link add red type vrf table 100", "link set red up", "link set nic1 master red"]
        + ["route add default via 192.0.1.9 vrf red"],
        {"nic1": f"{DEFAULT} of table 100"},
    ),
    "WireGuard": Case(
        ["link add wg0 type wireguard", add_wireguard_peer, "link set wg0 up", "route add default dev wg0"],
        {"wg0": DEFAULT, "nic1": f"it is below wg0: {DEFAULT}"},
    ),
    # tunnels
    "a VXLAN with one remote address": Case(
        [
            "link add vx0 type vxlan id 7 remote 192.0.1.9 dstport 4789",
            "link set vx0 up",
            "addr add 192.0.9.1/24 dev vx0",
        ]
        + ["route add default via 192.0.9.9"],
        {"vx0": DEFAULT, "nic1": f"it is below vx0: {DEFAULT}"},
    ),
    "a VXLAN with several remote addresses": Case(
        ["link add vx0 type vxlan id 7 dstport 4789", "link set vx0 up", "addr add 192.0.9.1/24 dev vx0"]
        + [lambda: run("bridge fdb append 00:00:00:00:00:00 dev vx0 dst 192.0.2.9") and None]
        + [lambda: run("bridge fdb append 00:00:00:00:00:00 dev vx0 dst 192.0.3.9") and None]
        + ["route add default via 192.0.9.9"],
        {"vx0": DEFAULT, "nic2": f"it is below vx0: {DEFAULT}", "nic3": f"it is below vx0: {DEFAULT}"},
    ),
    "a VXLAN that is bound to an interface": Case(
        ["link add vx0 type vxlan id 7 group 239.1.1.1 dev nic2 dstport 4789", "link set vx0 up"]
        + ["addr add 192.0.9.1/24 dev vx0", "route add default via 192.0.9.9"],
        {"vx0": DEFAULT, "nic2": f"it is below vx0: {DEFAULT}"},
    ),
    "a VXLAN without traffic of the node": Case(
        ["link add vx0 type vxlan id 7 remote 192.0.1.9 dstport 4789", "link set vx0 up"], {}
    ),
    "a VXLAN in a bridge": Case(
        ["link add vx0 type vxlan id 7 remote 192.0.1.9 dstport 4789", "link add br0 type bridge"]
        + ["link set vx0 master br0", "link set vx0 up", "link set br0 up", "addr add 192.0.9.1/24 dev br0"]
        + ["route add default via 192.0.9.9"],
        {"br0": DEFAULT, "vx0": f"it is below br0: {DEFAULT}", "nic1": f"it is below br0: {DEFAULT}"},
    ),
    "a GRE tunnel": Case(
        ["link add gre7 type gre remote 192.0.1.9", "link set gre7 up", "route add default dev gre7"],
        {"gre7": DEFAULT, "nic1": f"it is below gre7: {DEFAULT}"},
    ),
    "an IP-in-IP tunnel": Case(
        ["link add ipip7 type ipip remote 192.0.1.9", "link set ipip7 up", "route add default dev ipip7"],
        {"ipip7": DEFAULT, "nic1": f"it is below ipip7: {DEFAULT}"},
    ),
    "a TUN interface with the default route": Case(
        [lambda: add_tun("tun0"), "addr flush dev nic3", "-6 addr flush dev nic3", "route add default dev tun0"],
        {
            "tun0": DEFAULT,
            **dict.fromkeys(
                ("nic0", "nic1", "nic2"),
                f"tun0 may send through it, as the kernel does not report where the tunnel's packets go: {DEFAULT}",
            ),
        },
    ),
    "a TUN interface without traffic of the node": Case([lambda: add_tun("tun0"), "route add 10.0.0.0/8 dev tun0"], {}),
}


def connect_link_local(local: str, remote: str, interface: str) -> None:
    """Connect an SSH client to the node by link-local addresses of an interface."""
    server = socket.socket(socket.AF_INET6)
    server.bind((local, 22, 0, socket.if_nametoindex(interface)))
    server.listen()
    remote_index = netns.run(REMOTE_NETNS, socket.if_nametoindex, interface.replace("nic", "far"))
    client = netns.run(REMOTE_NETNS, socket.socket, socket.AF_INET6)
    client.bind((remote, 0, 0, remote_index))
    client.settimeout(20)
    client.connect((local, 22, 0, remote_index))
    kept_open.extend((server, client, server.accept()))


def connect_to_itself(server_address: str, client_address: str) -> None:
    """Connect an SSH client of the node to the node itself."""
    server = socket.create_server((server_address, 22))
    client = socket.create_connection((server_address, 22), 20, (client_address, 0))
    kept_open.extend((server, client, server.accept()))


def set_up(name: str) -> None:
    """Set up the case of this name. Raises Unsupported if this kernel does not support it."""
    create_network()
    for step in CASES[name].steps:
        if callable(step):
            step()
        else:
            ip(step)
