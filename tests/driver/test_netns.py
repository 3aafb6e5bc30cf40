# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Network namespaces, pins and netlink in them, on the real kernel."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.nodes import Pod, on_a_node, pair, run
from lanewise_driver.base.errors import Busy, KernelError
from lanewise_driver.kernel import addresses, links, netlink, netns, routes
from lanewise_driver.kernel.netlink import Netlink


def start_process() -> subprocess.Popen[bytes]:
    """Start a process in a new network namespace."""
    started = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
    until(lambda: not netns.same(f"/proc/{started.pid}/ns/net", netns.HOST))
    return started


@on_a_node
def test_a_pin_keeps_a_namespace_after_its_processes() -> None:
    pod = start_process()
    source, pin = f"/proc/{pod.pid}/ns/net", Path("/run/lanewise/netns/uid")
    assert not netns.alive(pin)
    netns.pin(source, pin)
    netns.pin(source, pin)
    assert netns.alive(pin) and netns.same(source, pin) and not netns.is_host(pin)
    assert netns.is_host(f"/proc/{os.getpid()}/ns/net")
    assert netns.processes(pin) == [pod.pid]
    identity = netns.identity(source)
    other = start_process()
    with pytest.raises(Busy):
        netns.pin(f"/proc/{other.pid}/ns/net", pin)
    for child in (pod, other):
        child.kill()
        child.wait()
    assert netns.identity(pin) == identity and netns.processes(pin) == []
    with Netlink(pin) as connection:
        assert [link.name for link in links.listed(connection)] == ["lo"]
    netns.unpin(pin)
    netns.unpin(pin)
    assert not netns.alive(pin) and not pin.exists()
    pin.touch()  # as after a crash between the creation of the file and the mount
    assert not netns.alive(pin)
    netns.pin(netns.HOST, pin)
    assert netns.is_host(pin)


@on_a_node
def test_a_pin_can_be_created_in_another_mount_namespace() -> None:
    holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "1000"])
    pod = start_process()
    mounts, pin = f"/proc/{holder.pid}/ns/mnt", Path("/run/lanewise/netns/uid")
    while netns.same(mounts, "/proc/self/ns/mnt"):
        time.sleep(0.005)
    pin.parent.mkdir(parents=True)
    source = f"/proc/{pod.pid}/ns/net"
    # mounts are private here, so the pin exists in the other mount namespace only, and the error reports that
    with pytest.raises(KernelError, match="not a network namespace after mounting"):
        netns.pin(source, pin, mounts)
    assert netns.same(f"/proc/{holder.pid}/root{pin}", source)
    netns.unpin(pin, mounts)
    assert not netns.alive(f"/proc/{holder.pid}/root{pin}")
    for child in (pod, holder):
        child.kill()
        child.wait()


@on_a_node
def test_a_function_that_runs_in_a_namespace_leaves_no_thread_there() -> None:
    with Pod() as pod:
        before = netns.identity(netns.HOST)
        inside = netns.run(pod.pin, lambda: netns.identity("/proc/thread-self/ns/net"))
        assert inside == netns.identity(pod.pin) != before
        assert netns.identity("/proc/thread-self/ns/net") == before
        assert threading.active_count() == 1
        with pytest.raises(ZeroDivisionError):
            netns.run(pod.pin, lambda: 1 // 0)
        assert netns.processes(pod.pin) == []
    with pytest.raises(KernelError):
        netns.run(pod.pin, lambda: None)
    with pytest.raises(KernelError):
        netns.run(Path("/run"), lambda: None)


@on_a_node
def test_a_refused_netlink_request_raises_the_message_of_the_kernel() -> None:
    pair("one")
    with Netlink() as connection:
        link = links.get(connection, name="one")
        assert link is not None
        with pytest.raises(KernelError, match="mtu greater than device maximum") as caught:
            with links.step("set the MTU"):
                links.change(connection, link.index, links.netlink.u32(links.IFLA_MTU, 10**6))
        assert caught.value.errno == errno.EINVAL
        assert links.get(connection, name="nothing") is None
        assert links.get(connection, altname="nothing") is None
        assert links.get(connection, index=9999) is None


@on_a_node
def test_netlink_messages_of_other_processes_are_ignored() -> None:
    """Processes of a pod may send to sockets in its namespace, including those of the driver."""
    with Netlink() as connection, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETLINK_ROUTE) as other:
        links.listed(connection)  # binds the socket
        target = connection._socket.getsockname()[0]
        for sequence in range(1, 5):
            refused = struct.pack("=IHHIIi", 20, 2, 0, sequence, 0, -errno.EPERM)
            other.sendto(refused, (target, 0))
        for _unused in range(3):
            link = links.get(connection, name="lo")
            assert link is not None and link.name == "lo"


@on_a_node
def test_an_optional_dump_that_the_kernel_does_not_support_is_empty() -> None:
    """Such as the IPv6 rules of a kernel without IPv6. This test requests the rules of DECnet."""
    request = bytes([12]) + bytes(11)
    with Netlink() as connection:
        with pytest.raises(OSError):
            connection.dump(routes.RTM_GETRULE, request)
        assert connection.dump(routes.RTM_GETRULE, request, optional=True) == []


@on_a_node
def test_a_long_dump_is_complete_although_addresses_change_meanwhile() -> None:
    pair("one")
    run("ip -batch -", text="".join(f"addr add 10.{n // 250}.{n % 250}.1/32 dev one\n" for n in range(3000)))
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            run("ip addr add 10.200.0.1/32 dev one; ip addr del 10.200.0.1/32 dev one")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with Netlink() as connection:
            link = links.get(connection, name="one")
            assert link is not None
            for _unused in range(5):
                listed = {entry["address"] for entry, _unused in addresses.listed(connection, link.index)}
                unchanged = {text for text in listed if text.startswith("10.") and not text.startswith("10.200")}
                assert len(unchanged) == 3000
    finally:
        stop.set()
        thread.join()
