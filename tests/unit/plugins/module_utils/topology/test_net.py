# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import net
from ansible_collections.lanewise.dra.plugins.module_utils.topology.reader import Reader
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import ETHERNET, NIC, NIC_VF

PATH = "pci0000:17/0000:17:01.0/0000:18:00.0"


@pytest.fixture
def nic(tree):
    return tree.pci(PATH, {**NIC, "class": "0x020000"})


def interface(tree, name):
    return next(found for found in tree.probe().interfaces if found.name == name)


def nics_with_default_route(tree):
    return [nic.address for nic in tree.probe().nics if nic.default_route]


def test_a_physical_interface_has_all_its_values(tree, nic):
    tree.net(
        "eth0",
        nic,
        mtu=9000,
        operstate="up",
        carrier=1,
        speed=400000,
        addr_assign_type=0,
        address="94:6d:ae:00:00:01",
        phys_port_name="p0",
        dev_port=0,
        ifalias="spine 1",
    )
    found = interface(tree, "eth0")
    assert (found.kind, found.address, found.link_layer) == ("physical", nic, "ethernet")
    assert (found.mtu, found.operstate, found.carrier, found.speed_mbps) == (9000, "up", True, 400000)
    assert (found.mac, found.permanent_mac) == ("94:6d:ae:00:00:01", "94:6d:ae:00:00:01")
    assert (found.phys_port_name, found.dev_port, found.alias) == ("p0", 0, "spine 1")


@pytest.mark.parametrize("speed", ["-1", "4294967295", "0"])
def test_an_invalid_speed_is_unknown(tree, nic, speed):
    tree.net("eth0", nic, speed=speed)
    assert interface(tree, "eth0").speed_mbps is None


def test_a_changed_mac_address_is_not_the_permanent_one(tree, nic):
    tree.net("eth0", nic, addr_assign_type=3)
    assert interface(tree, "eth0").permanent_mac is None


def test_a_port_of_a_bond_has_the_permanent_mac_address_that_the_bond_reports(tree, nic):
    tree.net("eth0", nic, addr_assign_type=3)
    tree.net("bond0", **{"bonding/mode": "802.3ad 4"})
    tree.write(
        "proc/net/bonding/bond0", "Bonding Mode: x\n\nSlave Interface: eth0\nPermanent HW addr: 94:6D:AE:00:00:01"
    )
    assert interface(tree, "eth0").permanent_mac == "94:6d:ae:00:00:01"


def test_a_vlan_has_no_permanent_mac_address(tree):
    tree.net("eth0.7", uevent="DEVTYPE=vlan\nINTERFACE=eth0.7", addr_assign_type=0)
    assert interface(tree, "eth0.7").permanent_mac is None


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"type": 772}, "loopback"),
        ({"bonding/mode": "802.3ad 4"}, "bond"),
        ({"bridge/stp_state": "0"}, "bridge"),
        ({"uevent": "DEVTYPE=vlan"}, "vlan"),
        ({"uevent": "DEVTYPE=macvlan"}, "macvlan"),
        ({"uevent": "INTERFACE=x"}, "virtual"),
        ({}, "virtual"),
    ],
)
def test_the_kind_of_a_virtual_interface_follows_from_its_files(tree, attributes, kind):
    tree.net("x", **attributes)
    assert interface(tree, "x").kind == kind


@pytest.mark.parametrize(
    ("port", "switch", "kind"),
    [
        ("pf0vf3", "c4ab", "representor"),
        ("c1pf0vf3", "c4ab", "representor"),
        ("pf0sf88", "c4ab", "representor"),
        ("c1pf0", "c4ab", "representor"),
        ("pf0hpf", "c4ab", "representor"),
        ("p0", "c4ab", "physical"),
        ("pf0vf3", None, "physical"),
        (None, None, "physical"),
    ],
)
def test_representors_are_recognized_by_their_port_name_and_switch(tree, nic, port, switch, kind):
    values = {"phys_port_name": port, "phys_switch_id": switch}
    tree.net("eth0", nic, **{name: value for name, value in values.items() if value})
    assert interface(tree, "eth0").kind == kind


def test_a_representor_is_not_an_interface_of_its_nic(tree, nic):
    tree.net("eth0", nic, phys_port_name="p0", phys_switch_id="c4ab")
    tree.net("eth0_0", nic, phys_port_name="pf0vf0", phys_switch_id="c4ab")
    found = tree.probe().nics[0]
    assert (found.interfaces, found.representors) == (["eth0"], ["eth0_0"])


def test_the_interface_of_a_vf_is_of_kind_vf(tree, nic):
    vf = tree.vf(nic, 0, "pci0000:17/0000:17:01.0/0000:18:00.2", NIC_VF)
    tree.net("eth0v0", vf)
    assert interface(tree, "eth0v0").kind == "vf"


def test_the_interface_of_a_subfunction_has_the_address_of_its_pf(tree, nic):
    tree.net("en0s88", f"{tree.folder(nic)}/mlx5_core.sf.4")
    found = interface(tree, "en0s88")
    assert (found.kind, found.address) == ("sf", nic)


def test_a_virtio_interface_has_the_address_of_its_pci_function(tree):
    function = tree.pci("pci0000:00/0000:00:03.0", {"class": "0x020000", "vendor": "0x1af4", "device": "0x1000"})
    tree.net("eth0", f"{tree.folder(function)}/virtio0")
    assert interface(tree, "eth0").address == function


def test_an_ipoib_child_has_its_parent_as_lower_interface(tree):
    nic = tree.pci(PATH, NIC)
    tree.net("ib0", nic, type=32, ifindex=5, iflink=5)
    tree.net("ib0.8001", nic, type=32, ifindex=6, iflink=5)
    found = interface(tree, "ib0.8001")
    assert (found.kind, found.lower) == ("virtual", ["ib0"])
    assert interface(tree, "ib0").kind == "physical"


def test_an_ipoib_child_whose_parent_is_not_visible_has_no_lower_interface(tree):
    nic = tree.pci(PATH, NIC)
    tree.net("ib0.8001", nic, type=32, ifindex=6, iflink=5)
    found = interface(tree, "ib0.8001")
    assert (found.kind, found.lower) == ("virtual", [])


def test_the_file_bonding_masters_is_not_an_interface(tree):
    tree.net("bond0", **{"bonding/mode": "802.3ad 4"})
    tree.write("sys/class/net/bonding_masters", "bond0")
    topology = tree.probe()
    assert [interface.name for interface in topology.interfaces] == ["bond0"]
    assert topology.source.unreadable == []


def test_a_dangling_link_of_an_interface_is_reported(tree):
    tree.link("sys/class/net/eth0", "sys/devices/missing/net/eth0")
    topology = tree.probe()
    assert topology.interfaces == []
    assert topology.source.unreadable == ["/sys/class/net/eth0: not the directory of an interface"]


def test_an_interface_with_a_dangling_link_still_belongs_to_its_function(tree):
    nic = tree.pci(PATH, NIC)
    tree.link("sys/class/net/eth0", f"{tree.folder(nic)}/net/eth0")
    tree.link("sys/class/net/usb0", "sys/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/net/usb0")
    tree.routes("eth0")
    topology = tree.probe()
    found = [
        (interface.name, interface.kind, interface.address, interface.default_route, interface.mac)
        for interface in topology.interfaces
    ]
    assert found == [
        ("eth0", "physical", nic, True, None),
        ("usb0", "usb", "0000:00:14.0", False, None),
    ]
    assert [(device.address, device.interfaces, device.default_route) for device in topology.nics] == [
        (nic, ["eth0"], True)
    ]
    assert len(topology.source.unreadable) == 2


@pytest.mark.parametrize("attribute", ["addr_assign_type", "mtu", "operstate", "type"])
def test_an_interface_with_only_one_recorded_file_is_listed(tree, attribute):
    nic = tree.pci(PATH, NIC)
    tree.link("sys/class/net/enp3s0", f"{tree.folder(nic)}/net/enp3s0")
    tree.write(f"{tree.folder(nic)}/net/enp3s0/{attribute}", "0")
    topology = tree.probe()
    assert [
        (interface.name, interface.kind, interface.address, interface.mac) for interface in topology.interfaces
    ] == [("enp3s0", "physical", nic, None)]
    assert topology.source.unreadable == []


def test_a_link_to_the_folder_of_another_interface_is_reported_and_not_used(tree, nic):
    tree.net("eth0", nic)
    tree.link("sys/class/net/eth1", f"{tree.folder(nic)}/net/eth0")
    topology = tree.probe()
    assert [interface.name for interface in topology.interfaces] == ["eth0"]
    assert "leads to the folder of another device" in topology.source.unreadable[0]


def test_a_loopback_interface_without_files_in_a_recording_is_not_reported(tree):
    tree.link("sys/class/net/lo", "sys/devices/virtual/net/lo")
    topology = tree.probe()
    assert topology.interfaces == topology.source.unreadable == []


def test_interfaces_of_ipv4_default_routes_are_found(tree):
    tree.routes("eth0", "eth1")
    assert net.default_route_interfaces(Reader(str(tree.root))) == {"eth0", "eth1"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0" * 32 + " 00 " + "0" * 32 + " 00 fe80" + "0" * 28 + " 00000400 00000001 00000000 00450003 eth0", {"eth0"}),
        ("0" * 32 + " 00 " + "0" * 32 + " 00 " + "0" * 32 + " ffffffff 00000001 00000000 00200200 lo", set()),
        (
            "2001" + "0" * 28 + " 40 " + "0" * 32 + " 00 " + "0" * 32 + " 00000100 00000001 00000000 00000001 eth0",
            set(),
        ),
        ("0" * 32 + " 00 zz", set()),
    ],
)
def test_interfaces_of_ipv6_default_routes_are_found(tree, line, expected):
    tree.write("proc/net/ipv6_route", line)
    assert net.default_route_interfaces(Reader(str(tree.root))) == expected


@pytest.mark.parametrize("flags", ["0000", "0201", "zz"])
def test_a_route_that_is_down_or_rejects_does_not_count(tree, flags):
    tree.write("proc/net/route", f"Iface\tDestination\neth0\t00000000\t0\t{flags}\t0\t0\t0\t00000000\t0\t0\t0")
    assert net.default_route_interfaces(Reader(str(tree.root))) == set()


def test_a_list_of_routes_that_is_too_long_is_reported(tree):
    zeros = "0" * 32
    route = f"fd{'0' * 30} 40 {zeros} 00 {zeros} 00000400 00000001 00000000 00000001     eth0"
    count = (1 << 20) // len(route)
    for lines, is_reported in ((count - 1000, False), (count, True)):
        tree.write("proc/net/ipv6_route", "\n".join([route] * lines))
        reader = Reader(str(tree.root))
        assert net.default_route_interfaces(reader) == set()
        assert bool(reader.unreadable) == is_reported
    assert reader.unreadable == ["/proc/net/ipv6_route: longer than 1 MiB: a default route may be missing"]


def test_a_nic_with_the_default_route_carries_it(tree, nic):
    tree.net("eth0", nic)
    tree.routes("eth0")
    assert nics_with_default_route(tree) == [nic]


def test_all_nics_below_a_vlan_on_a_bond_carry_its_default_route(tree, nic):
    second = tree.pci("pci0000:17/0000:17:02.0/0000:19:00.0", ETHERNET)
    spare = tree.pci("pci0000:17/0000:17:03.0/0000:1a:00.0", ETHERNET)
    for name, address in (("eth0", nic), ("eth1", second), ("eth2", spare)):
        tree.net(name, address)
    tree.net("bond0", **{"bonding/mode": "802.3ad 4"})
    tree.net("bond0.7", uevent="DEVTYPE=vlan")
    tree.stack("bond0", "eth0", "eth1", master=True)
    tree.stack("bond0.7", "bond0")
    tree.routes("bond0.7")
    assert nics_with_default_route(tree) == [nic, second]


def test_a_port_of_a_bridge_carries_its_default_route(tree, nic):
    tree.net("eth0", nic)
    tree.net("br0", **{"bridge/stp_state": "0"})
    tree.link(f"{tree.folder(nic)}/net/eth0/master", "sys/devices/virtual/net/br0")
    tree.routes("br0")
    assert nics_with_default_route(tree) == [nic]


def test_the_accelerated_vf_of_hyper_v_carries_the_default_route(tree):
    vmbus = "sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00"
    vf = tree.pci(
        "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/abcd-0001/pci0001:00/0001:00:02.0",
        {**NIC_VF, "class": "0x020000"},
    )
    tree.net("eth0", f"{vmbus}/f8615163-0001")
    tree.net("enP1s0", vf)
    tree.link(f"{tree.folder(vf)}/net/enP1s0/master", f"{vmbus}/f8615163-0001/net/eth0")
    tree.routes("eth0")
    assert nics_with_default_route(tree) == [vf]
    assert interface(tree, "eth0").address is None


def test_the_search_for_nics_ends_if_interfaces_form_a_cycle(tree, nic):
    tree.net("eth0", nic)
    tree.net("x")
    tree.link(f"{tree.folder(nic)}/net/eth0/lower_x", "sys/devices/virtual/net/x")
    tree.link("sys/devices/virtual/net/x/lower_eth0", f"{tree.folder(nic)}/net/eth0")
    tree.routes("x")
    assert nics_with_default_route(tree) == [nic]


def test_a_function_of_another_class_with_an_interface_is_a_nic(tree):
    address = tree.pci(PATH, {**NIC, "class": "0x0c0600"})
    tree.net("ib0", address, type=32)
    assert [nic.address for nic in tree.probe().nics] == [address]


def route_table(*routes):
    header = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    rows = [f"{name} 00000000 0101A8C0 0003 0 0 {metric} 00000000 0 0 0" for name, metric in routes]
    return "\n".join([header, *rows])


def test_only_the_default_route_with_the_lowest_metric_counts(tree):
    tree.write("proc/net/route", route_table(("eth0", 200), ("eth1", 100), ("eth2", 300)))
    assert net.default_route_interfaces(Reader(str(tree.root))) == {"eth1"}


def test_ipv6_default_routes_do_not_count_beside_an_ipv4_default_route(tree):
    tree.write("proc/net/route", route_table(("eth0", 100)))
    route = f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 28} 00000400 00000001 00000000 00450003"
    tree.write("proc/net/ipv6_route", "\n".join(f"{route}     ib{number}" for number in range(8)))
    assert net.default_route_interfaces(Reader(str(tree.root))) == {"eth0"}
