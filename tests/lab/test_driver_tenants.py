# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Changes of a pod to a PCI function do not affect the next pod: VLANs and ipvlans in other namespaces, driver
settings, and VF settings that a card refuses. On the lab's igb and igbvf."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.lab import test_driver_kernel as kernel
from ansible_collections.lanewise.dra.tests.lab.node import Node
from ansible_collections.lanewise.dra.tests.lab.test_driver_kernel import _pod, _vm, make_vfs, nics

__all__ = ["_pod", "_vm"]

BEGIN = """
import ctypes, os, socket, time
from lanewise_driver.kernel import links, netns, stacked
from lanewise_driver.interface import reset, take_back
def sh(command): return subprocess.run(["sh", "-c", command], check=True, stdout=-1, text=True).stdout
def hide_in_socket(descriptor):
    ends = socket.socketpair()
    socket.send_fds(ends[0], [b"x"], [descriptor])
    os.close(descriptor)
    return ends
def outcome(found): return dict(reasons=[list(reason) for reason in found.reasons], notes=found.notes)
"""


def python(node: Node, program: str) -> t.Any:
    return kernel.python(node, BEGIN + program)


LINK_TYPES = [
    "type vlan id 77",
    "type vlan protocol 802.1ad id 4000",
    "type ipvlan mode l2",
    "type macvlan mode bridge",
]


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("made", LINK_TYPES)
def test_interfaces_made_of_a_vf_are_removed_in_any_namespace(vm: Node, made: str) -> None:
    _pf, address, name = make_vfs(vm)
    found, links = python(
        vm,
        f"""
identity = Identity({address!r}, None, {name!r})
host = interfaces.snapshot(identity)
interfaces.attach(identity, host, dict(addresses=[]), POD)
other = netns.new()
sh("ip -n pod link add link {name} name tap0 {made}")
sh(f"ip -n pod link set tap0 netns /proc/{{os.getpid()}}/fd/{{other}}")
found = take_back.take_back(identity, host, POD, dict())
report([outcome(found), sh(f"nsenter --net=/proc/{{os.getpid()}}/fd/{{other}} ip -o link")])
""",
    )
    assert found == {"reasons": [], "notes": []}
    assert "tap0" not in links


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("made", LINK_TYPES[:1] + LINK_TYPES[3:])
def test_a_vf_is_reset_if_interfaces_made_of_it_cannot_be_found(vm: Node, made: str) -> None:
    _pf, address, name = make_vfs(vm)
    without_reset, with_reset, same, seconds = python(
        vm,
        f"""
identity = Identity({address!r}, None, {name!r})
host = interfaces.snapshot(identity)
index = int(Path("/sys/class/net/{name}/ifindex").read_text())
interfaces.attach(identity, host, dict(addresses=[]), POD)
other = netns.new()
sh("ip -n pod link add link {name} name tap0 {made}")
sh(f"ip -n pod link set tap0 netns /proc/{{os.getpid()}}/fd/{{other}}")
ends = hide_in_socket(other)
without_reset = take_back.take_back(identity, host, POD, dict())
start = time.monotonic()
with_reset = take_back.take_back(identity, host, POD, dict(), reset.WHEN_CHANGED)
seconds = time.monotonic() - start
now = int(Path("/sys/class/net/{name}/ifindex").read_text())
report([outcome(without_reset), outcome(with_reset), now == index, seconds])
""",
    )
    assert [reason[0] for reason in without_reset["reasons"]] == ["stacked"], without_reset
    assert with_reset == {"reasons": [], "notes": []}
    assert not same, "the function was not reset"
    print(f"reset of {made} took {seconds:.2f} s")


@pytest.mark.usefixtures("pod")
def test_a_vf_in_a_namespace_that_cannot_be_found_is_restored(vm: Node) -> None:
    _pf, address, name = make_vfs(vm)
    refused, found = python(
        vm,
        f"""
identity = Identity({address!r}, None, {name!r})
host = interfaces.snapshot(identity)
interfaces.attach(identity, host, dict(addresses=[]), POD)
other = netns.new()
sh(f"ip -n pod link set {name} netns /proc/{{os.getpid()}}/fd/{{other}}")
ends = hide_in_socket(other)
try:
    take_back.take_back(identity, host, POD, dict())
    refused = ""
except DriverError as error:
    refused = error.message
report([refused, outcome(take_back.take_back(identity, host, POD, dict(), reset.WHEN_CHANGED))])
""",
    )
    assert "in no network namespace that a process or a mount refers to" in refused
    assert found == {"reasons": [], "notes": []}


@pytest.mark.usefixtures("pod")
def test_a_vf_in_another_pod_is_restored(vm: Node) -> None:
    _pf, address, name = make_vfs(vm)
    found = python(
        vm,
        f"""
identity = Identity({address!r}, None, {name!r})
host = interfaces.snapshot(identity)
interfaces.attach(identity, host, dict(addresses=[]), POD)
other = netns.new()
sh(f"ip -n pod link set {name} netns /proc/{{os.getpid()}}/fd/{{other}} name mine")
report(outcome(take_back.take_back(identity, host, POD, dict())))
""",
    )
    assert found == {"reasons": [], "notes": []}


@pytest.mark.usefixtures("pod")
def test_all_settings_of_a_vf_are_written_although_one_is_refused(vm: Node) -> None:
    _pf, address, name = make_vfs(vm)
    message, now, found = python(
        vm,
        f"""
function = vf.function({address!r})
identity = Identity({address!r}, None, {name!r})
with Netlink() as connection:
    vf.write(connection, function, dict(mac="02:00:00:00:00:77", vlan=42, spoofchk=False, trust=True))
    host = interfaces.snapshot(identity)
    vf.write(connection, function, dict(vlan=7, spoofchk=True, trust=False))
    host["vf"]["mac"] = "01:00:00:00:00:01"
    try:
        vf.write(connection, function, host["vf"])
        message = ""
    except OSError as error:
        message = str(error)
    now = vf.read(connection, function)
report([message, now, outcome(take_back.take_back(identity, host, None, dict()))])
""",
    )
    assert "vf.mac" in message
    assert (now["vlan"], now["spoofchk"], now["trust"]) == (42, False, True)
    assert ["vf-settings"] == [reason[0] for reason in found["reasons"]], found
    assert "vf: mac is" in found["reasons"][0][1]


@pytest.mark.usefixtures("pod")
def test_settings_of_a_card_are_restored(vm: Node) -> None:
    """A pod changes settings of a PF by ethtool."""
    device = nics(vm)[0]
    name = vm.interface(device)
    vm.ssh(f"ip link set {name} up; ethtool -s {name} msglvl 7", check=False)
    settings = [
        f"ethtool -C {name} rx-usecs 11",
        f"ethtool -G {name} rx 512 tx 512",
        f"ethtool -A {name} autoneg off rx off tx off",
        f"ethtool -s {name} wol g",
        f"ethtool -s {name} msglvl 0xffff",
        f"ethtool -L {name} combined 1",
        f"ethtool -X {name} equal 1",
        f"ethtool -K {name} gro off rxvlan off",
        f"ethtool -s {name} advertise 0x008",
    ]
    found, statuses, ethtool = python(
        vm,
        f"""
identity = Identity({device.address!r}, None, {name!r})
host = interfaces.snapshot(identity)
interfaces.attach(identity, host, dict(addresses=[]), POD)
statuses = [subprocess.run(["ip", "netns", "exec", "pod", "sh", "-c", command]).returncode for command in {settings!r}]
report([outcome(take_back.take_back(identity, host, POD, dict())), statuses, host["ethtool"]])
""",
    )
    assert statuses.count(0) >= 5, (dict(zip(settings, statuses)), ethtool)
    assert found == {"reasons": [], "notes": []}


@pytest.mark.usefixtures("pod")
def test_the_settings_of_vfs_are_restored_with_their_pf(vm: Node) -> None:
    pf, _address, _name = make_vfs(vm)
    found, first, last = python(
        vm,
        f"""
identity = Identity({nics(vm)[0].address!r}, None, {pf!r})
host = interfaces.snapshot(identity)
interfaces.attach(identity, host, dict(addresses=[]), POD)
sh("ip -n pod link set {pf} vf 0 mac 02:00:00:00:00:66 vlan 9; ip -n pod link set {pf} vf 1 spoofchk off trust on")
found = take_back.take_back(identity, host, POD, dict())
report([outcome(found), host["vfs"], interfaces.snapshot(identity)["vfs"]])
""",
    )
    assert found == {"reasons": [], "notes": []}
    assert first == last and set(first) == {"0", "1"}


@pytest.mark.usefixtures("pod")
def test_querying_all_vlans_takes_limited_time(vm: Node) -> None:
    """If the kernel's VLAN module is loaded, each detach queries all 8,192 VLANs. Here on emulated CPUs."""
    _pf, _address, name = make_vfs(vm)
    numbers, milliseconds, evidence = python(
        vm,
        f"""
sh("modprobe 8021q; ip link add link {name} name v5 type vlan id 5")
with Netlink() as connection:
    link = links.get(connection, name={name!r})
    start = time.monotonic()
    numbers = stacked.vlans(connection, link)
    middle = time.monotonic()
    stacked.evidence(connection, link)
    report([numbers, (middle - start) * 1000, (time.monotonic() - middle) * 1000])
sh("ip link del v5")
""",
    )
    assert numbers == [5]
    print(f"VLANs: {milliseconds:.0f} ms, macvlan and its like: {evidence:.1f} ms")


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize("called", ["rxe0", "mine"])
def test_an_rdma_device_that_a_pod_moved_to_another_is_restored(vm: Node, called: str) -> None:
    _pf, _address, name = make_vfs(vm)
    kernel.make_exclusive_rdma(vm, name)
    found, place, again = python(
        vm,
        f"""
known = rdma.identify("rxe0")
rdma.move("rxe0", POD)
sh("ip netns exec pod rdma dev set rxe0 name {called}") if {called!r} != "rxe0" else None
sh("ip netns add other; ip netns exec pod rdma dev set {called} netns other")
found = rdma.fetch("rxe0", known)
report([found, rdma.side("rxe0", POD), rdma.fetch("rxe0", known)])
sh("ip netns del other")
""",
    )
    assert (found, place, again) == (True, "host", True)


@pytest.mark.usefixtures("pod")
def test_the_rss_indirection_table_is_restored(vm: Node) -> None:
    """It is set by ioctl: kernels before 6.17 have no other way."""
    device = nics(vm)[0]
    name = vm.interface(device)
    vm.ssh(f"ip link set {name} up")
    found, first, changed, last = python(
        vm,
        f"""
from lanewise_driver.kernel.ethtool import Ethtool
identity = Identity({device.address!r}, None, {name!r})
host = interfaces.snapshot(identity)
interfaces.attach(identity, host, dict(addresses=[]), POD)
sh("ip netns exec pod ethtool -X {name} equal 1")
with Ethtool(POD) as tool:
    changed = tool.rss({name!r})
found = take_back.take_back(identity, host, POD, dict())
report([outcome(found), host["ethtool"]["spreading"], changed, interfaces.snapshot(identity)["ethtool"]["spreading"]])
""",
    )
    assert found == {"reasons": [], "notes": []}
    assert first == last != changed
