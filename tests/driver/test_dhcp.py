# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DHCP leases, requested and renewed in a pod's network namespace. The server is dnsmasq at the other end of a veth
pair."""

from __future__ import annotations

import contextlib
import re
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
from lanewise_driver.dhcp.dhcpv4 import Client4
from lanewise_driver.dhcp.exchange import datagram, new_lease
from lanewise_driver.dhcp.lease import FOREVER, Lease
from lanewise_driver.dhcp.lease_renewer import LeaseRenewer, _Renewal
from lanewise_driver.interface import interfaces
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import addresses, links
from lanewise_driver.kernel.netlink import Netlink

ONE = Identity(None, None, "one")
#: Options of dnsmasq; `lease` is the lifetime of leases.
RANGE_IPV6 = "--dhcp-range=fd00::1000,fd00::1fff,64,{lease}"
ROUTES_IPV4 = "--dhcp-option=121,10.50.0.0/16,10.1.0.1,10.51.0.0/17,0.0.0.0,0.0.0.0/0,10.1.0.1"
OPTIONS = (
    "--dhcp-range=10.1.0.50,10.1.0.60,255.255.255.0,{lease}",
    RANGE_IPV6,
    ROUTES_IPV4,
    "--dhcp-option=26,1400",
    "--dhcp-authoritative",
)


@contextlib.contextmanager
def server(lease: str = "2m", *more: str, without: str = "") -> t.Iterator[subprocess.Popen[bytes]]:
    """Run a DHCP server with OPTIONS except `without`, and with `more`."""
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
                *(option.format(lease=lease) for option in OPTIONS if option != without),
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


def recording_renewer() -> tuple[LeaseRenewer, list[Lease]]:
    """A renewer, and the list of changed leases that it reports."""
    changes: list[Lease] = []
    return LeaseRenewer(lambda _key, lease: changes.append(lease)), changes


def node() -> dict[str, t.Any]:
    """Create the interface `one`, with addresses of the server at its peer. Returns the state of `one` on the node."""
    pair("one")
    run("""echo 0 > /proc/sys/net/ipv6/conf/one-far/disable_ipv6; ip addr add 10.1.0.1/24 dev one-far
    ip addr add fd00::1/64 dev one-far nodad""")
    return interfaces.snapshot(ONE)


def attach(host: dict[str, t.Any], config: dict[str, t.Any], netns: Path, timeout: float = 5.0) -> t.Any:
    """Attach the interface as for a claim, and request its leases. Detach it if that fails. Returns the result of
    request_leases."""
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
    return Path("/run/dnsmasq.log").read_text()


@on_a_node
def test_a_pod_gets_leases_of_both_families() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4", "ipv6"]}
    with server(), Pod() as pod:
        result = attach(host, config, pod.pin)
        ipv4, ipv6 = result.leases
        assert ipv4["address"].startswith("10.1.0.5") and ipv4["address"].endswith("/24")
        assert ipv6["address"].startswith("fd00::1") and ipv6["address"].endswith("/128")
        assert set(result.network["ips"]) == {ipv4["address"], ipv6["address"]}
        assert (ipv4["server"], ipv4["lifetime"], ipv4["mtu"]) == ("10.1.0.1", 120, 1400)
        assert ipv4["routes"] == [
            {"destination": "10.50.0.0/16", "gateway": "10.1.0.1"},
            {"destination": "10.51.0.0/17", "scope": "link"},
        ]
        routes = pod.run("ip route")
        assert "10.50.0.0/16 via 10.1.0.1 dev net1" in routes and "10.51.0.0/17 dev net1" in routes
        assert "default" not in routes
        assert "mtu 1400" in pod.run("ip link show net1")
        remaining = int(pod.run("ip -o -4 addr show net1").split("valid_lft ")[1].split("sec")[0])
        assert 100 < remaining <= 120
        renewed = [dhcp.renew(pod.pin, lease, rebind, 3) for lease in result.leases for rebind in (False, True)]
        assert [lease["address"] for lease in renewed] == [ipv4["address"]] * 2 + [ipv6["address"]] * 2
        for lease in result.leases:
            dhcp.release(pod.pin, lease)
        time.sleep(0.2)
        assert "DHCPRELEASE" in server_log()
        assert interfaces.detach(ONE, host, pod.pin, config) == []
    assert interfaces.snapshot(ONE)["mtu"] == host["mtu"]


@on_a_node
def test_without_a_server_attach_fails_and_the_interface_stays_on_the_node() -> None:
    host = node()
    with Pod() as pod:
        for family in ("ipv4", "ipv6"):
            with pytest.raises(KernelError, match="no DHCP.* answered in time"):
                attach(host, {"dhcp": [family]}, pod.pin, 2.5)
            assert interfaces.locate(ONE, pod.pin).side == "host"


@on_a_node
def test_an_ipv4_lease_is_released_if_no_server_grants_an_ipv6_lease() -> None:
    host = node()
    with server(without=RANGE_IPV6), Pod() as pod:
        with pytest.raises(KernelError, match="no DHCPv6 server answered in time"):
            attach(host, {"name": "net1", "dhcp": ["ipv4", "ipv6"]}, pod.pin, 2.5)
        (address,) = re.findall(r"DHCPACK\(one-far\) (\S+)", server_log())
        until(lambda: f"DHCPRELEASE(one-far) {address}" in server_log())
        assert interfaces.locate(ONE, pod.pin).side == "host"


@on_a_node
def test_a_recorded_lease_is_renewed_and_replaced_if_the_server_refuses_it() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"], "routes": [{"destination": "10.60.0.0/16", "scope": "link"}]}
    renewer, changes = recording_renewer()
    with Pod() as pod:
        with server():
            (lease,) = attach(host, config, pod.pin).leases
            due = older(lease, lease["renew"])
            renewer.start("claim/one", pod.pin, due, config)  # as after a restart of the driver
            until(lambda: changes)
            assert changes[-1]["address"] == lease["address"]
            assert dhcp.age(changes[-1]) < 30
            renewer.stop("claim/one", release_lease=False)
        # the next server refuses the old address and assigns another one
        run("ip addr flush dev one-far; ip addr add 10.1.0.1/24 dev one-far")
        other_range = "--dhcp-range=10.1.0.70,10.1.0.80,255.255.255.0,2m"
        with server("2m", other_range, "--dhcp-ignore=nothing", "--dhcp-host=02:00:00:00:00:03,10.1.0.77"):
            renewer.start("claim/one", pod.pin, older(lease, 130), config)
            until(lambda: changes[-1]["address"] == "10.1.0.77/24")
            shown = pod.run("ip -4 addr show net1")
            assert "10.1.0.77/24" in shown and lease["address"] not in shown
            assert "10.60.0.0/16 dev net1" in pod.run("ip route")  # the kernel had removed it with the old address
            renewer.stop("claim/one")
            until(lambda: "DHCPRELEASE" in server_log())
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_a_renewal_removes_only_the_routes_that_the_lease_no_longer_has() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"], "routes": [{"destination": "10.51.0.0/17", "scope": "link"}]}
    renewer, changes = recording_renewer()
    before = "--dhcp-option=121,10.50.0.0/16,10.1.0.1,10.51.0.0/17,0.0.0.0,10.52.0.0/16,0.0.0.0,10.53.0.0/16,10.1.0.1"
    after = "--dhcp-option=121,10.53.0.0/16,10.1.0.1,10.55.0.0/16,10.1.0.1"
    with Pod() as pod:
        with server("2m", before, without=ROUTES_IPV4):
            (lease,) = attach(host, config, pod.pin).leases
        added = pod.run("ip route")
        assert "10.50.0.0/16 via" in added and "10.52.0.0/16 dev" in added and "10.53.0.0/16 via" in added
        # the pod's own routes, some of which differ from leased ones only in their metric
        pod.run("""ip route add 10.54.0.0/16 via 10.1.0.1 dev net1
        ip route append 10.50.0.0/16 via 10.1.0.1 dev net1 proto static metric 5
        ip route del 10.52.0.0/16 dev net1; ip route add 10.52.0.0/16 dev net1 proto static metric 7""")
        with server("2m", after, without=ROUTES_IPV4):
            renewer.start("claim/one", pod.pin, older(lease, lease["renew"]), config)
            until(lambda: changes)
        shown = [line.strip() for line in pod.run("ip route").splitlines() if "kernel" not in line]
        assert sorted(shown) == [
            "10.50.0.0/16 via 10.1.0.1 dev net1 proto static metric 5",
            "10.51.0.0/17 dev net1 proto static scope link",
            "10.52.0.0/16 dev net1 proto static scope link metric 7",
            "10.53.0.0/16 via 10.1.0.1 dev net1 proto static",
            "10.54.0.0/16 via 10.1.0.1 dev net1",
            "10.55.0.0/16 via 10.1.0.1 dev net1 proto static",
        ]
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_a_renewed_lease_is_kept_if_one_of_its_routes_cannot_be_added(caplog: pytest.LogCaptureFixture) -> None:
    """The server begins to announce a route through a gateway that the pod cannot reach."""
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording_renewer()
    with Pod() as pod:
        with server("2m"):
            (lease,) = attach(host, config, pod.pin).leases
        unreachable = "--dhcp-option=121,10.70.0.0/16,10.99.0.1,10.71.0.0/16,10.1.0.1"
        with server("2m", unreachable, without=ROUTES_IPV4):
            renewer.start("claim/one", pod.pin, older(lease, lease["renew"]), config)
            until(lambda: changes)
        renewer.close()
        assert changes[-1]["address"] == lease["address"] and dhcp.age(changes[-1]) < 30 and len(changes) == 1
        (message,) = (record.getMessage() for record in caplog.records if "after a renewal" in record.getMessage())
        assert "add the leased route to 10.70.0.0/16 on net1" in message and "Network is unreachable" in message
        assert "10.71.0.0/16 via 10.1.0.1" in pod.run("ip route")
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_a_renewal_is_reported_again_until_the_report_succeeds() -> None:
    """A report fails while the claim is locked, for example while the driver starts."""
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    reported: list[Lease] = []

    def changed(_key: str, lease: Lease) -> None:
        reported.append(lease)
        if len(reported) < 3:
            raise Busy("claim is being worked on")

    renewer = LeaseRenewer(changed)
    with Pod() as pod, server():
        (lease,) = attach(host, config, pod.pin).leases
        renewer.start("claim/one", pod.pin, older(lease, lease["renew"]), config)
        until(lambda: len(reported) == 3)
        time.sleep(1.5)
        assert len(reported) == 3 and reported[0] is reported[2]  # renewed once
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_leases_are_renewed_after_a_limit_of_threads_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording_renewer()

    def no_more_threads(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with Pod() as pod, server():
        (lease,) = attach(host, config, pod.pin).leases
        due = older(lease, lease["renew"])
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", no_more_threads)
            with pytest.raises(RuntimeError):
                renewer.start("claim/one", pod.pin, due, config)
        with monkeypatch.context() as limited:
            limited.setattr(renewer._workers, "submit", no_more_threads)
            renewer.start("claim/one", pod.pin, due, config)
            time.sleep(0.5)
        assert not changes
        until(lambda: changes)  # a second later
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_setting_the_clock_does_not_change_when_a_lease_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording_renewer()
    real_time = time.time
    with Pod() as pod, server():
        (lease,) = attach(host, config, pod.pin).leases
        # set forward: the lease does not expire
        monkeypatch.setattr(time, "time", lambda: real_time() + 400)
        renewer.start("claim/one", pod.pin, lease, config)
        time.sleep(1.0)
        assert not changes and lease["address"] in pod.run("ip -4 addr show net1")
        renewer.stop("claim/one", release_lease=False)
        # set back: the lease is renewed for its full lifetime
        monkeypatch.setattr(time, "time", lambda: real_time() - 7200)
        renewer.start("claim/one", pod.pin, older(lease, lease["renew"]), config)
        until(lambda: changes)
        remaining = int(pod.run("ip -o -4 addr show net1").split("valid_lft ")[1].split("sec")[0])
        assert 100 < remaining <= 120
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


def test_the_age_of_a_lease_without_boottime_follows_the_wall_clock() -> None:
    """Leases in records of older releases have no boottime."""
    lease = {"obtained": int(time.time()) - 100, "lifetime": 120}
    assert 99 <= dhcp.age(lease) <= 102


@on_a_node
def test_a_lost_lease_is_reported_once_and_requested_until_a_server_answers() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording_renewer()
    with Pod() as pod:
        with server():
            (lease,) = attach(host, config, pod.pin).leases
        # no server answers for longer than one attempt takes
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
        (lease,) = attach(host, config, pod.pin).leases
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
def test_a_lease_that_is_stopped_while_all_workers_are_busy_is_not_renewed() -> None:
    host = node()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    changed: list[str] = []
    renewer = LeaseRenewer(lambda key, _lease: changed.append(key))
    with Pod() as pod, server():
        (lease,) = attach(host, config, pod.pin).leases
        silent = older({**lease, "server": "10.1.0.99"}, lease["renew"])
        for number in range(8):
            renewer.start(f"silent {number}", pod.pin, silent, config)
        time.sleep(0.2)
        renewer.start("stopped", pod.pin, older(lease, lease["renew"]), config)
        time.sleep(0.2)
        assert renewer.stop("stopped", release_lease=False)
        assert changed == []
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_the_client_receives_only_whole_datagrams_to_its_port() -> None:
    node()
    run("ip addr add 10.1.0.2/24 dev one; ip link set one up; ip link set one-far up")
    with Client4(Path("/proc/self/ns/net"), "one", "test") as client:
        received = client._socket
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        mac = bytes.fromhex(run("cat /sys/class/net/one/address").strip().replace(":", ""))

        def send(port: int, protocol: int = 17, fragment: int = 0, options: bytes = b"") -> None:
            head = struct.pack("!BBHHHBBH4s4s", 0x45 + len(options) // 4, 0, 0, 0, fragment, 64, protocol, 0, b"", b"")
            sender.sendto(head + options + struct.pack("!HHHH", 67, port, 8, 0), ("one-far", 0x0800, 0, 0, mac))

        # another port, TCP, and the first and second fragment of a datagram
        for other in ((53,), (68, 6), (68, 17, 0x2000), (68, 17, 0x0001)):
            send(*other)
        send(68)
        send(68, 17, 0, bytes(8))  # with IP options
        datagrams = [datagram(received, 2.0), datagram(received, 2.0), datagram(received, 0.3)]
        assert [content and len(content) for content in datagrams] == [28, 36, None]
        sender.close()


@on_a_node
def test_an_address_gets_the_preferred_lifetime_of_its_lease() -> None:
    host = node()
    without_dad()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    with Pod() as pod, server():
        attach(host, config, pod.pin)
        lease = dhcp.acquire(pod.pin, "net1", "ipv6", 5)
        assert lease["preferred"] == 120
        with Netlink(pod.pin) as connection:
            index = links.get(connection, name="net1").index
            dhcp.apply(connection, index, {**lease, "preferred": 60}, config)
            (entry,) = [
                address
                for address, _flags in addresses.listed(connection, index)
                if address["address"] == lease["address"]
            ]
        assert 50 <= entry["preferredBoottime"] - addresses.boottime() <= 60
        assert 110 <= entry["validBoottime"] - addresses.boottime() <= 120
        interfaces.detach(ONE, host, pod.pin, config)


@on_a_node
def test_an_address_that_does_not_expire_keeps_its_preferred_lifetime() -> None:
    host = node()
    without_dad()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    renewer, changes = recording_renewer()
    with Pod() as pod, server():
        attach(host, config, pod.pin)
        lease = {**dhcp.acquire(pod.pin, "net1", "ipv6", 5), "lifetime": FOREVER, "preferred": 60}
        with Netlink(pod.pin) as connection:
            dhcp.apply(connection, links.get(connection, name="net1").index, lease, config)
        shown = pod.run(f"ip -o addr show dev net1 to {lease['address']}")
        assert "valid_lft forever" in shown
        assert 50 <= int(shown.split("preferred_lft ")[1].split("sec")[0]) <= 60
        # a lease that does not expire is renewed only for its preferred lifetime
        renewer.start("preferred forever", pod.pin, {**older(lease, 60), "preferred": FOREVER}, config)
        renewer.start("preferred for 60 s", pod.pin, older(lease, lease["renew"]), config)
        until(lambda: changes)
        assert len(changes) == 1 and changes[0]["lifetime"] == 120
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


def test_a_lease_that_does_not_expire_is_renewed_again_after_its_rebind_time() -> None:
    renewer, _changes = recording_renewer()
    lease = new_lease("ipv6", "net1", "fd00::1/128", FOREVER, 0, 0, preferred=100)
    lease["preferred"] = 100
    renewal = _Renewal(Path("/nowhere"), older(lease, 90), {}, 0.0)
    renewer._reschedule(renewal, "no server answered")
    assert 590 < renewal.next_attempt - addresses.boottime() <= 600
    renewer.close()
