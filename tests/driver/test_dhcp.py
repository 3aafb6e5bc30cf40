# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases from a real dnsmasq at the other end of a veth pair, requested and renewed in a pod's namespace; and a hostile
server."""

from __future__ import annotations

import contextlib
import re
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.nodes import Pod, on_a_node, pair, run, without_dad
from lanewise_driver.base.errors import Busy, KernelError
from lanewise_driver.dhcp import client as dhcp
from lanewise_driver.dhcp import dhcpv6
from lanewise_driver.dhcp.dhcpv4 import Client4
from lanewise_driver.dhcp.exchange import datagram, new_lease
from lanewise_driver.dhcp.lease import Lease
from lanewise_driver.dhcp.lease_renewer import LeaseRenewer
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import addresses, links
from lanewise_driver.kernel.netlink import Netlink

ONE = Identity(None, None, "one")
SIX = "--dhcp-range=fd00::1000,fd00::1fff,64,{lease}"
OPTIONS = (
    "--dhcp-range=10.1.0.50,10.1.0.60,255.255.255.0,{lease}",
    SIX,
    "--dhcp-option=121,10.50.0.0/16,10.1.0.1,10.51.0.0/17,0.0.0.0,0.0.0.0/0,10.1.0.1",
    "--dhcp-option=26,1400",
    "--dhcp-authoritative",
)


@contextlib.contextmanager
def server(lease: str = "2m", *more: str, without: str = "") -> t.Iterator[subprocess.Popen[bytes]]:
    """A DHCP server with OPTIONS except `without`, and with `more`."""
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
                *(one.format(lease=lease) for one in OPTIONS if one != without),
                *more,
            ],
            stdout=log,
            stderr=log,
        )
        try:
            until(lambda: "DHCP" in Path("/run/dnsmasq.log").read_text(), 5)
            yield process
        finally:
            process.terminate()
            process.wait(5)


def recording() -> tuple[LeaseRenewer, list[Lease]]:
    """A renewer, and the leases that it reports."""
    changes: list[Lease] = []
    return LeaseRenewer(lambda _key, lease: changes.append(lease)), changes


def node() -> dict[str, t.Any]:
    pair("one")
    run("""echo 0 > /proc/sys/net/ipv6/conf/one-far/disable_ipv6; ip addr add 10.1.0.1/24 dev one-far
    ip addr add fd00::1/64 dev one-far nodad""")
    return interfaces.snapshot(ONE)


def attached(host: dict[str, t.Any], config: dict[str, t.Any], netns: Path, timeout: float = 5.0) -> t.Any:
    """Attach the interface as for a claim; detach it if a step fails. Returns the result of request_leases."""
    interfaces.attach(ONE, host, config, netns)
    try:
        return interfaces.request_leases(host, config, netns, timeout)
    except BaseException:
        interfaces.detach(ONE, host, netns, config)
        raise


def older(lease: Lease, seconds: float) -> Lease:
    """The lease as if it had been obtained this many seconds earlier."""
    return {**lease, "boottime": lease["boottime"] - seconds, "obtained": int(lease["obtained"] - seconds)}


def server_log() -> str:
    return open("/run/dnsmasq.log").read()


@on_a_node
def test_a_pod_gets_leases_of_both_families() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4", "ipv6"]}
    with server(), Pod() as pod:
        got = attached(host, config, pod.pin)
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
        assert "DHCPRELEASE" in server_log()
        assert interfaces.detach(ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(ONE)["mtu"] == host["mtu"]


@on_a_node
def test_no_server_leaves_the_interface_on_the_node() -> None:
    host = node()
    with Pod() as pod:
        for family in ("ipv4", "ipv6"):
            with pytest.raises(KernelError, match="no DHCP.* answered in time"):
                attached(host, {"dhcp": [family]}, pod.pin, 2.5)
            assert interfaces.locate(ONE, pod.pin).side == "host"


@on_a_node
def test_a_lease_is_released_if_there_is_none_of_the_other_family() -> None:
    host = node()
    with server(without=SIX), Pod() as pod:
        with pytest.raises(KernelError, match="no DHCPv6 server answered in time"):
            attached(host, {"name": "net1", "dhcp": ["ipv4", "ipv6"]}, pod.pin, 2.5)
        (given,) = re.findall(r"DHCPACK\(one-far\) (\S+)", server_log())
        until(lambda: f"DHCPRELEASE(one-far) {given}" in server_log())
        assert interfaces.locate(ONE, pod.pin).side == "host"


@on_a_node
def test_a_kept_lease_is_renewed_and_replaced() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording()
    with Pod() as pod:
        with server():
            (lease,) = attached(host, config, pod.pin).leases
            due = older(lease, lease["renew"])
            renewer.start("claim/one", pod.pin, due, config)  # as after a restart of the driver
            until(lambda: changes)
            assert changes[-1]["address"] == lease["address"]
            assert dhcp.age(changes[-1]) < 30
            renewer.stop("claim/one", release_lease=False)
        # now another network: the server refuses the old address and assigns another one
        run("ip addr flush dev one-far; ip addr add 10.1.0.1/24 dev one-far")
        OTHER = "--dhcp-range=10.1.0.70,10.1.0.80,255.255.255.0,2m"
        with server("2m", OTHER, "--dhcp-ignore=nothing", "--dhcp-host=02:00:00:00:00:03,10.1.0.77"):
            renewer.start("claim/one", pod.pin, older(lease, 130), config)
            until(lambda: changes[-1]["address"] == "10.1.0.77/24")
            now = pod.run("ip -4 addr show net1")
            assert "10.1.0.77/24" in now and lease["address"] not in now
            renewer.stop("claim/one")
            until(lambda: "DHCPRELEASE" in server_log())
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_a_renewal_is_reported_until_it_is_recorded() -> None:
    """The record of the claim may be locked when its lease is renewed, as while the driver starts."""
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    reported: list[Lease] = []

    def changed(_key: str, lease: Lease) -> None:
        reported.append(lease)
        if len(reported) < 3:
            raise Busy("claim is being worked on")

    renewer = LeaseRenewer(changed)
    with Pod() as pod, server():
        (lease,) = attached(host, config, pod.pin).leases
        renewer.start("claim/one", pod.pin, older(lease, lease["renew"]), config)
        until(lambda: len(reported) == 3)
        time.sleep(1.5)
        assert len(reported) == 3 and reported[0] is reported[2]  # renewed once
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_setting_the_clock_does_not_change_when_a_lease_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording()
    real = time.time
    with Pod() as pod, server():
        (lease,) = attached(host, config, pod.pin).leases
        monkeypatch.setattr(time, "time", lambda: real() + 400)  # forward: the lease has not expired
        renewer.start("claim/one", pod.pin, lease, config)
        time.sleep(1.0)
        assert not changes and lease["address"] in pod.run("ip -4 addr show net1")
        renewer.stop("claim/one", release_lease=False)
        monkeypatch.setattr(time, "time", lambda: real() - 7200)  # back: it is renewed in time, for its full lifetime
        renewer.start("claim/one", pod.pin, older(lease, lease["renew"]), config)
        until(lambda: changes)
        left = int(pod.run("ip -o -4 addr show net1").split("valid_lft ")[1].split("sec")[0])
        assert 100 < left <= 120
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_a_lease_of_an_older_release_is_aged_by_the_wall_clock() -> None:
    lease = {"obtained": int(time.time()) - 100, "lifetime": 120}
    assert 99 <= dhcp.age(lease) <= 102


@on_a_node
def test_a_lost_lease_is_reported_and_requested_until_there_is_a_new_one() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording()
    with Pod() as pod:
        with server():
            (lease,) = attached(host, config, pod.pin).leases
        # no server answers when it is due, for longer than one attempt
        renewer.start("claim/one", pod.pin, older(lease, 130), config)
        until(lambda: changes)
        assert changes[-1]["lost"] and lease["address"] not in pod.run("ip -4 addr show net1")
        time.sleep(6)  # the first attempt has ended
        assert len(changes) == 1
        with server():
            until(lambda: len(changes) > 1, 30)
            assert not changes[-1].get("lost") and changes[-1]["address"] in pod.run("ip -4 addr show net1")
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_a_silent_server_delays_no_other_lease() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    changes: dict[str, float] = {}
    renewer = LeaseRenewer(lambda key, _lease: changes.setdefault(key, time.monotonic()))
    with Pod() as pod, server():
        (lease,) = attached(host, config, pod.pin).leases
        silent = older({**lease, "server": "10.1.0.99"}, lease["renew"])
        start = time.monotonic()
        for number in range(3):
            renewer.start(f"silent {number}", pod.pin, silent, config)
        time.sleep(0.2)
        renewer.start("right", pod.pin, older(lease, lease["renew"]), config)
        until(lambda: "right" in changes)
        assert set(changes) == {"right"}, "the renewals at the silent server still wait"
        assert time.monotonic() - start < 5
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_other_traffic_of_the_pod_stays_out_of_the_driver() -> None:
    node()
    run("ip addr add 10.1.0.2/24 dev one; ip link set one up; ip link set one-far up")
    with Client4(Path("/proc/self/ns/net"), "one") as client:
        packets = client._socket
        far = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        mac = bytes.fromhex(run("cat /sys/class/net/one/address").strip().replace(":", ""))

        def send(port: int, protocol: int = 17, fragment: int = 0, options: bytes = b"") -> None:
            head = struct.pack("!BBHHHBBH4s4s", 0x45 + len(options) // 4, 0, 0, 0, fragment, 64, protocol, 0, b"", b"")
            far.sendto(head + options + struct.pack("!HHHH", 67, port, 8, 0), ("one-far", 0x0800, 0, 0, mac))

        for wrong in ((53,), (68, 6), (68, 17, 0x2000), (68, 17, 0x0001)):
            send(*wrong)
        send(68)
        send(68, 17, 0, bytes(8))
        got = [datagram(packets, 2.0), datagram(packets, 2.0), datagram(packets, 0.3)]
        assert [data and len(data) for data in got] == [28, 36, None]
        far.close()


@on_a_node
def test_an_address_is_preferred_as_long_as_its_server_says() -> None:
    host = node()
    without_dad()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    with Pod() as pod, server():
        attached(host, config, pod.pin)
        lease = dhcp.acquire(pod.pin, "net1", "ipv6", 5)
        assert lease["preferred"] == 120
        with Netlink(pod.pin) as connection:
            index = links.get(connection, name="net1").index
            dhcp.apply(connection, index, {**lease, "preferred": 60}, config)
            (entry,) = [one for one, _f in addresses.listed(connection, index) if one["address"] == lease["address"]]
        assert 50 <= entry["preferredBoottime"] - addresses.boottime() <= 60
        assert 110 <= entry["validBoottime"] - addresses.boottime() <= 120
        interfaces.detach(ONE, host, pod.pin, config)


class LyingServer(threading.Thread):
    """A server of both families with malicious replies, just valid enough that a client accepts them."""

    #: Options of DHCPv4 after the type and the server, and contents of a DHCPv6 address option.
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
        options = dict(dhcpv6.parse_options(asked[4:]))
        address = dhcpv6.option(5, self.SIX[self.turn % len(self.SIX)])
        ia = dhcpv6.option(3, bytes(self.turn % 2 * 12) + address)
        return (
            bytes((2 if asked[0] == 1 else 7,))
            + asked[1:4]
            + dhcpv6.option(1, options[1])
            + dhcpv6.option(2, b"x")
            + ia
        )


@on_a_node
def test_a_lying_server_does_no_harm() -> None:
    host = node()
    without_dad()
    server = LyingServer()
    server.start()
    renewer, changes = recording()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    with Pod() as pod:
        attached(host, config, pod.pin)
        for _unused in range(3):
            lease = dhcp.acquire(pod.pin, "net1", "ipv4", 3)
            assert lease["address"] in ("10.1.0.50/32",) and lease["routes"] == []
            assert lease["renew"] >= 5 and lease["rebind"] >= 5  # never at once
            with pytest.raises(KernelError):
                dhcp.acquire(pod.pin, "net1", "ipv6", 1.5)
        assert server.turn >= 9
        # an error with one lease does not end the thread that renews the others
        due = older({**lease, "lifetime": 120, "renew": 60, "rebind": 96}, 60)
        renewer.start("wrong", pod.pin, {**due, "family": "ipv6", "serverDuid": "no hexadecimal"}, config)
        renewer.start("right", pod.pin, due, config)
        until(lambda: changes)
        renewer.close()
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
def test_impossible_renewal_times_of_a_lease_are_replaced(
    lifetime: int, renew: int, rebind: int, expected: tuple[int, int]
) -> None:
    lease = new_lease("ipv6", "net1", "fd00::1/128", lifetime, renew, rebind)
    assert (lease["renew"], lease["rebind"]) == expected and lease["lifetime"] == lifetime
