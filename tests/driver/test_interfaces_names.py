# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Interfaces are found and restored, even if they are renamed or other interfaces have their names."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import nodes
from lanewise_driver.base.errors import KernelError
from lanewise_driver.interface import interfaces, take_back
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import addresses, links, sysctls
from lanewise_driver.kernel.netlink import Netlink


@nodes.on_a_node
def test_a_virtual_interface_that_was_deleted_with_its_namespace_is_reported() -> None:
    host = nodes.node()
    pod = nodes.Pod()
    interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
    pod.end()
    until(lambda: not nodes.run("ip link show one-far", check=False))  # the kernel deletes both ends
    assert interfaces.locate(nodes.ONE, pod.pin) == interfaces.InterfaceLocation("missing")
    (note,) = interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"})
    assert "gone" in note
    nodes.pair("one", "two")  # another interface with this name is not changed
    nodes.wait_for_ipv6()
    other = interfaces.snapshot(nodes.ONE)
    assert interfaces.detach(nodes.ONE, host, None, {"name": "net1"}) == []
    assert interfaces.snapshot(nodes.ONE) == other
    (note,) = interfaces.detach(Identity("0000:ff:1f.7", None, "one"), host, None, {})
    assert "no PCI function" in note  # an error would block the pod forever


@nodes.on_a_node
def test_detach_fails_while_the_function_has_no_interface() -> None:
    host = nodes.node()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(take_back, "PCI", folder):
        function = Path(folder, "0000:01:00.0")
        function.mkdir()
        with pytest.raises(KernelError, match="the PCI function 0000:01:00.0 has no driver, so it has no interface"):
            interfaces.detach(Identity(function.name, None, "one"), host, None, {})
        (function / "driver").symlink_to("/sys/bus/pci/drivers/vfio-pci")
        with pytest.raises(KernelError, match="has the driver vfio-pci, so it has no interface: bind the function to"):
            interfaces.detach(Identity(function.name, None, "one"), host, None, {})
        (function / "net").mkdir()
        with pytest.raises(KernelError, match="in no network namespace that"):
            interfaces.detach(Identity(function.name, None, "one"), host, None, {})


@nodes.on_a_node
def test_an_interface_returns_under_another_name_if_its_name_is_taken() -> None:
    host = nodes.node("ip addr add 10.1.0.2/24 dev one")
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        nodes.pair("one", "two")
        notes = interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"})
        assert notes and "the name one is taken by another interface" in notes[0]
        location = interfaces.locate(Identity(None, None, notes[0].split()[-1]), pod.pin)
        assert location.side == "host"
        assert "10.1.0.2/24" in nodes.run(f"ip addr show dev {location.name}")


def _pci_interfaces() -> list[tuple[str, str]]:
    """PCI addresses and names of this machine's interfaces. Skips the test if there are none."""
    found = []
    for name in os.listdir("/sys/class/net"):
        device = os.path.realpath(f"/sys/class/net/{name}/device")
        match = re.search(r"/([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:/virtio[0-9]+)?$", device)
        if match:
            found.append((match.group(1), name))
    if not found:
        pytest.skip("this machine has no network interface on PCI")
    return found


def test_an_interface_is_found_by_its_pci_address() -> None:
    for address, name in _pci_interfaces():
        for hint in (name, "lo", "nothing"):
            location = interfaces.locate(Identity(address, None, hint), None)
            assert (location.side, location.name) == ("host", name)


def test_an_interface_that_does_not_exist_is_missing() -> None:
    assert interfaces.locate(Identity("0000:ff:1f.7", None, "lo"), None).side == "missing"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the kernel shows some settings to CAP_NET_ADMIN only")
def test_the_state_of_an_interface_is_read_by_its_pci_address() -> None:
    """Reads the interfaces of the machine that runs the tests, without changing them."""
    for address, name in _pci_interfaces():
        state = interfaces.snapshot(Identity(address, None, "nothing"))
        with open(f"/sys/class/net/{name}/address") as file:
            assert (state["name"], state["mac"]) == (name, file.read().strip())


@nodes.on_a_node
def test_an_interface_whose_name_is_any_bytes_is_attached_and_restored() -> None:
    nodes.without_dad()
    for number, raw in enumerate((b"o.n\xff", b"$(id);=", b"..a", b"-x")):
        name, peer = os.fsdecode(raw), f"peer{number}"
        nodes.run(f"ip link add name {peer} type veth; ip link set {peer} up")
        with Netlink() as connection:
            (link,) = [link for link in links.listed(connection) if link.name.startswith("veth")]
            links.change(connection, link.index, links.netlink.text(links.IFLA_IFNAME, name))
            links.set_link_state(connection, link.index, up=True)
            addresses.add(connection, link.index, {"address": f"10.1.{number}.2/24"})
        nodes.wait_for_ipv6()
        device = Identity(None, None, name)
        host = json.loads(json.dumps(interfaces.snapshot(device)))  # as in a record
        assert host["name"] == name and host["ethtool"]["features"]
        assert f"net.ipv4.conf.{sysctls.IFNAME}.rp_filter" in host["sysctls"]
        with nodes.Pod() as pod:
            interfaces.attach(device, host, {"name": "net1", "mtu": 1400}, pod.pin)
            assert interfaces.detach(device, host, pod.pin, {"name": "net1"}) == []
        assert interfaces.snapshot(device) == host


@nodes.on_a_node
def test_an_interface_is_restored_although_udev_renames_it_at_that_moment() -> None:
    """udev renames new interfaces according to its rules. That can happen at any moment of the restore."""
    host = nodes.node(
        """ip addr add 10.1.0.2/24 dev one; ip route add 10.50.0.0/16 via 10.1.0.1
        sysctl -qw net.ipv4.conf.one.rp_filter=2"""
    )
    renamed = 0

    def rename(delay: float) -> None:
        nonlocal renamed
        with Netlink() as connection:
            while not ended.is_set():
                link = links.get(connection, name="one")
                if link is not None:
                    time.sleep(delay)
                    with contextlib.suppress(OSError):
                        links.change(connection, link.index, links.netlink.text(links.IFLA_IFNAME, "enp9s0"))
                        renamed += 1
                    return

    for number in range(8):
        with nodes.Pod() as pod:
            interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
            ended = threading.Event()
            udev = threading.Thread(target=rename, args=(number * 0.003,))
            udev.start()
            notes = interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"})
            ended.set()
            udev.join()
        if nodes.run("ip link show dev enp9s0", check=False):  # renamed after the last check of the driver
            nodes.run("ip link set enp9s0 name one")
        else:
            assert notes == [] and interfaces.snapshot(nodes.ONE) == host
    assert renamed >= 4


@nodes.on_a_node
def test_an_interface_returns_under_a_free_name_if_all_its_names_are_taken() -> None:
    """Another interface has them as names and altnames."""
    host = nodes.node("ip addr add 10.1.0.2/24 dev one; ip link property add dev one altname enp9s0")
    with nodes.Pod() as pod:
        interfaces.attach(nodes.ONE, host, {"name": "net1"}, pod.pin)
        nodes.pair("two", "net1")  # its name in the pod is taken, too
        nodes.run("ip link property add dev two altname one altname enp9s0")
        notes = interfaces.detach(nodes.ONE, host, pod.pin, {"name": "net1"})
        assert any("the name one is taken by another interface" in note for note in notes)
        assert any(note.startswith("altname enp9s0") for note in notes)
        nodes.run("ip link property del dev two altname one altname enp9s0")
        location = interfaces.locate(Identity(None, None, re.findall("this one is ([a-z0-9]+)", notes[0])[0]), None)
        assert location.side == "host" and "10.1.0.2/24" in nodes.run(f"ip addr show dev {location.name}")
