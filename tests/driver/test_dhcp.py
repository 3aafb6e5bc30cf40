# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases from a real dnsmasq at the other end of a veth pair, asked for and kept in a pod's namespace; and answers of a
server that lies."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver.nodes import Pod, on_a_node, pair, run
from lanewise_driver import dhcp, interfaces
from lanewise_driver.errors import Busy, KernelError
from lanewise_driver.interfaces import Identity

ONE = Identity(None, None, "one")
OPTIONS = (
    "--dhcp-range=10.1.0.50,10.1.0.60,255.255.255.0,{lease}",
    "--dhcp-range=fd00::1000,fd00::1fff,64,{lease}",
    "--dhcp-option=121,10.50.0.0/16,10.1.0.1,10.51.0.0/17,0.0.0.0,0.0.0.0/0,10.1.0.1",
    "--dhcp-option=26,1400",
    "--dhcp-authoritative",
)


@contextlib.contextmanager
def server(lease: str = "2m", *more: str) -> t.Iterator[subprocess.Popen[bytes]]:
    if not shutil.which("dnsmasq"):
        pytest.skip("needs dnsmasq")
    with open("/run/dnsmasq.log", "wb") as log:
        process = subprocess.Popen(
            [
                "dnsmasq",
                "--no-daemon",
                "--port=0",
                "--interface=one-far",
                "--bind-dynamic",
                "--log-dhcp",
                "--conf-file=/dev/null",
                "--leasefile-ro",
                "--no-ping",
                "--user=root",
                *(one.format(lease=lease) for one in OPTIONS),
                *more,
            ],
            stdout=log,
            stderr=log,
        )
        try:
            end = time.monotonic() + 5
            while "DHCP" not in open("/run/dnsmasq.log").read() and time.monotonic() < end:
                time.sleep(0.01)
            yield process
        finally:
            process.terminate()
            process.wait(5)


def node() -> dict[str, t.Any]:
    pair("one")
    run("""echo 0 > /proc/sys/net/ipv6/conf/one-far/disable_ipv6; ip addr add 10.1.0.1/24 dev one-far
    ip addr add fd00::1/64 dev one-far nodad""")
    return interfaces.snapshot(ONE)


def said() -> str:
    return open("/run/dnsmasq.log").read()


@on_a_node
def test_a_pod_gets_leases_of_both_families() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4", "ipv6"]}
    with server(), Pod() as pod:
        got = interfaces.attach(ONE, host, config, pod.pin)
        four, six = got.leases
        assert four["address"].startswith("10.1.0.5") and four["address"].endswith("/24")
        assert six["address"].startswith("fd00::1") and six["address"].endswith("/128")
        assert set(got.network["ips"]) == {four["address"], six["address"]}
        assert (four["server"], four["lifetime"], four["mtu"]) == ("10.1.0.1", 120, 1400)
        assert four["routes"] == [
            {"destination": "10.50.0.0/16", "gateway": "10.1.0.1"},
            {"destination": "10.51.0.0/17", "scope": "link"},
        ]
        shown = pod.run("ip route")
        assert "10.50.0.0/16 via 10.1.0.1 dev net1" in shown and "10.51.0.0/17 dev net1" in shown
        assert "default" not in shown
        assert "mtu 1400" in pod.run("ip link show net1")
        left = int(pod.run("ip -o -4 addr show net1").split("valid_lft ")[1].split("sec")[0])
        assert 100 < left <= 120
        again = [dhcp.renew(pod.pin, lease, rebind, 3) for lease in got.leases for rebind in (False, True)]
        assert [lease["address"] for lease in again] == [four["address"]] * 2 + [six["address"]] * 2
        for lease in got.leases:
            dhcp.release(pod.pin, lease)
        time.sleep(0.2)
        assert "DHCPRELEASE" in said()
        assert interfaces.detach(ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(ONE)["mtu"] == host["mtu"]


@on_a_node
def test_no_server_leaves_the_interface_on_the_node() -> None:
    host = node()
    with Pod() as pod:
        for family in ("ipv4", "ipv6"):
            with pytest.raises(KernelError, match="no DHCP.* answered in time"):
                interfaces.attach(ONE, host, {"dhcp": [family]}, pod.pin, dhcp_timeout=2.5)
            assert interfaces.where(ONE, pod.pin).side == "host"


@on_a_node
def test_a_kept_lease_is_renewed_and_replaced() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    changes: list[dhcp.Lease] = []
    keeper = dhcp.Keeper(lambda _key, lease: changes.append(lease))
    with Pod() as pod:
        with server():
            (lease,) = interfaces.attach(ONE, host, config, pod.pin).leases
            due = {**lease, "obtained": lease["obtained"] - lease["renew"]}
            keeper.start("claim/one", pod.pin, due, config)  # as after a restart of the driver
            _wait(lambda: changes)
            assert changes[-1]["address"] == lease["address"]
            assert changes[-1]["obtained"] >= lease["obtained"]
            keeper.stop("claim/one", give_back=False)
        # another network now: the server takes the address away, and gives another one
        run("ip addr flush dev one-far; ip addr add 10.1.0.1/24 dev one-far")
        OTHER = "--dhcp-range=10.1.0.70,10.1.0.80,255.255.255.0,2m"
        with server("2m", OTHER, "--dhcp-ignore=nothing", "--dhcp-host=02:00:00:00:00:03,10.1.0.77"):
            keeper.start("claim/one", pod.pin, {**lease, "obtained": int(time.time()) - 130}, config)
            _wait(lambda: changes[-1]["address"] == "10.1.0.77/24")
            now = pod.run("ip -4 addr show net1")
            assert "10.1.0.77/24" in now and lease["address"] not in now
            keeper.stop("claim/one")
            _wait(lambda: "DHCPRELEASE" in said())
        keeper.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_a_renewal_is_told_until_it_is_heard() -> None:
    """The claim's record may be in work when its lease is renewed, as while the driver starts."""
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    told: list[dhcp.Lease] = []

    def changed(_key: str, lease: dhcp.Lease) -> None:
        told.append(lease)
        if len(told) < 3:
            raise Busy("claim is being worked on")

    keeper = dhcp.Keeper(changed)
    with Pod() as pod, server():
        (lease,) = interfaces.attach(ONE, host, config, pod.pin).leases
        keeper.start("claim/one", pod.pin, {**lease, "obtained": lease["obtained"] - lease["renew"]}, config)
        _wait(lambda: len(told) == 3)
        time.sleep(1.5)
        assert len(told) == 3 and told[0] is told[2]  # renewed once
        keeper.close()
        interfaces.detach(ONE, host, pod.pin, config)


class Liar(threading.Thread):
    """A server of both families whose answers are well formed where they must be to be heard, and nonsense else."""

    #: Options of DHCPv4 behind the type and the server, and what an address of DHCPv6 says.
    FOUR = (b"\x01\x05\xff\xff\xff\xff\xff", b"\x33\x04\0\0\0\x0a\x3a\x04\0\0\0\0\x3b\x04\0\0\0\0", b"\x79\x03\x40\1\2")
    SIX = (b"", bytes(15), bytes(16), bytes(23), b"\xff" * 16)

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.turn = 0
        self.four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.four.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.four.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"one-far")
        self.four.bind(("", 67))
        self.six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.six.bind(("::", 547))
        index = socket.if_nametoindex("one-far")
        group = socket.inet_pton(socket.AF_INET6, "ff02::1:2") + struct.pack("=I", index)
        self.six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)

    def run(self) -> None:
        while True:
            for one in select.select([self.four, self.six], [], [])[0]:
                asked, client = one.recvfrom(4096)
                self.turn += 1
                if one is self.four:
                    one.sendto(self.offer(asked), client if client[0] != "0.0.0.0" else ("255.255.255.255", 68))
                else:
                    one.sendto(self.advertise(asked), client)

    def offer(self, asked: bytes) -> bytes:
        kind = 2 if asked[242] == 1 else 5  # after the magic: 53, 1, type
        head = b"\2" + asked[1:16] + socket.inet_aton("10.1.0.50") + asked[20:240]
        more = self.FOUR[self.turn % len(self.FOUR)]
        return head + bytes((53, 1, kind, 54, 4, 10, 1, 0, 1)) + more + b"\xff"

    def advertise(self, asked: bytes) -> bytes:
        options = dict(dhcp._options(asked[4:]))
        address = dhcp._option(5, self.SIX[self.turn % len(self.SIX)])
        ia = dhcp._option(3, bytes(self.turn % 2 * 12) + address)
        return (
            bytes((2 if asked[0] == 1 else 7,)) + asked[1:4] + dhcp._option(1, options[1]) + dhcp._option(2, b"x") + ia
        )


@on_a_node
def test_a_server_that_lies_is_survived() -> None:
    host = node()
    run("sysctl -qw net.ipv6.conf.default.accept_dad=0")
    server = Liar()
    server.start()
    changes: list[dhcp.Lease] = []
    keeper = dhcp.Keeper(lambda _key, lease: changes.append(lease))
    config = {"name": "net1", "dhcp": ["ipv4"]}
    with Pod() as pod:
        interfaces.attach(ONE, host, config, pod.pin)
        for _unused in range(3):
            lease = dhcp.acquire(pod.pin, "net1", "ipv4", 3)
            assert lease["address"] in ("10.1.0.50/32",) and lease["routes"] == []
            assert lease["renew"] >= 5 and lease["rebind"] >= 5  # never at once
            with pytest.raises(KernelError):
                dhcp.acquire(pod.pin, "net1", "ipv6", 1.5)
        assert server.turn >= 9
        # a lease that cannot be kept, whatever the mistake, does not end the thread that keeps the others
        due = {**lease, "obtained": int(time.time()) - 60, "lifetime": 120, "renew": 60, "rebind": 96}
        keeper.start("wrong", pod.pin, {**due, "family": "ipv6", "serverDuid": "no hexadecimal"}, config)
        keeper.start("right", pod.pin, due, config)
        _wait(lambda: changes)
        keeper.close()
        interfaces.detach(ONE, host, pod.pin, config)


@pytest.mark.parametrize(
    ("lifetime", "renew", "rebind", "expected"),
    [
        (120, 0, 0, (60, 96)),
        (120, 50, 100, (50, 100)),
        (120, 200, 100, (60, 96)),
        (120, 50, 2**32 - 1, (60, 96)),
        (1, 0, 0, (5, 5)),
        (0, 0, 0, (5, 5)),
    ],
)
def test_times_of_a_lease(lifetime: int, renew: int, rebind: int, expected: tuple[int, int]) -> None:
    times = dhcp._times(lifetime, renew, rebind, 4 / 5)
    assert (times["renew"], times["rebind"]) == expected and times["lifetime"] == lifetime


def _wait(true: t.Callable[[], object]) -> None:
    end = time.monotonic() + 8
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
