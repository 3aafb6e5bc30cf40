# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Gid
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import NIC

PATH = "pci0000:17/0000:17:01.0/0000:18:00.0"
LINK_LOCAL_GID = "fe80:0000:0000:0000:966d:aeff:fe00:0001"


@pytest.fixture
def nic(tree):
    return tree.pci(PATH, NIC)


def probed_device(tree, **options):
    """The only RDMA device of a machine."""
    (device,) = tree.probe(**options).rdma_devices
    return device


def test_a_device_has_its_guids_firmware_and_board(tree, nic):
    tree.rdma(
        "mlx5_0",
        nic,
        node_guid="946d:ae03:0000:0001",
        sys_image_guid="946d:ae03:0000:0000",
        fw_ver="28.43.1014",
        board_id="MT_0000000838",
    )
    device = probed_device(tree)
    assert (device.address, device.node_type, device.firmware, device.board_id) == (
        nic,
        "CA",
        "28.43.1014",
        "MT_0000000838",
    )
    assert (device.node_guid, device.sys_image_guid) == ("946d:ae03:0000:0001", "946d:ae03:0000:0000")


def test_a_port_has_its_state_rate_and_lids(tree, nic):
    tree.rdma("mlx5_0", nic)
    tree.port("mlx5_0", 1, lid="0x1f", sm_lid="0x1")
    (port,) = probed_device(tree).ports
    assert (port.port, port.link_layer, port.state, port.phys_state) == (1, "infiniband", "ACTIVE", "LinkUp")
    assert (port.rate_gbps, port.lid, port.sm_lid) == (400.0, "0x1f", "0x1")


@pytest.mark.parametrize("rate", ["", "fast", "9" * 400 + " Gb/sec"])
def test_an_invalid_rate_is_unknown(tree, nic, rate):
    tree.rdma("mlx5_0", nic)
    tree.port("mlx5_0", 1, rate=rate)
    assert probed_device(tree).ports[0].rate_gbps is None


def test_a_device_has_its_character_devices(tree, nic):
    tree.rdma("mlx5_0", nic)
    for path, device in (
        ("infiniband_verbs/uverbs0", "mlx5_0"),
        ("infiniband_mad/umad0", "mlx5_0"),
        ("infiniband_mad/issm0", "mlx5_0"),
        ("infiniband_verbs/uverbs1", "mlx5_1"),
    ):
        tree.write(f"sys/class/{path}/ibdev", device)
    tree.write("sys/class/infiniband_verbs/abi_version", "6")
    assert probed_device(tree).char_devices == [
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/issm0",
        "/dev/infiniband/umad0",
    ]


def test_gids_have_their_type_and_interface(tree, nic):
    folder = tree.rdma("mlx5_0", nic) + "/ports/1"
    for index, (gid, kind) in {
        0: (LINK_LOCAL_GID, "IB/RoCE v1"),
        10: ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        2: ("0000:0000:0000:0000:0000:0000:0000:0000", None),
        3: ("fe80:0000:0000:0000:0000:0000:0000:0000", None),
    }.items():
        tree.write(f"{folder}/gids/{index}", gid)
        if kind:
            tree.write(f"{folder}/gid_attrs/types/{index}", kind)
            tree.write(f"{folder}/gid_attrs/ndevs/{index}", "eth0")
    port = probed_device(tree).ports[0]
    assert port.gids == [
        Gid(0, LINK_LOCAL_GID, "IB/RoCE v1", "eth0"),
        Gid(10, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth0"),
    ]
    assert port.interfaces == ["eth0"]


def test_gids_are_not_read_if_they_are_not_requested(tree, nic):
    folder = tree.rdma("mlx5_0", nic)
    tree.write(f"{folder}/ports/1/gids/0", LINK_LOCAL_GID)
    assert probed_device(tree, with_gids=False).ports[0].gids == []


def test_the_only_interface_belongs_to_the_only_port_whatever_its_number(tree, nic):
    tree.rdma("bnxt_re1", nic)
    tree.net("eth1", nic, dev_port=1)
    assert probed_device(tree).interfaces == ["eth1"]


def test_each_of_two_ports_on_one_function_has_its_interface(tree, nic):
    tree.rdma("mlx4_0", nic, ports=2)
    tree.net("ib1", nic, type=32, dev_port=1)
    tree.net("ib0", nic, type=32, dev_port=0)
    assert [port.interfaces for port in probed_device(tree).ports] == [["ib0"], ["ib1"]]


def test_an_interface_belongs_to_the_port_with_its_number(tree, nic):
    tree.rdma("mlx4_0", nic, ports=2)
    tree.net("eth1", nic, dev_port=1)
    assert [port.interfaces for port in probed_device(tree).ports] == [[], ["eth1"]]


def test_a_subfunction_and_its_pf_have_separate_interfaces(tree, nic):
    auxiliary = f"{tree.folder(nic)}/mlx5_core.sf.4"
    tree.net("eth0", nic, dev_port=0)
    tree.net("en0s88", auxiliary, dev_port=0)
    tree.rdma("mlx5_0", nic)
    tree.rdma("mlx5_2", auxiliary)
    assert {device.name: device.interfaces for device in tree.probe().rdma_devices} == {
        "mlx5_0": ["eth0"],
        "mlx5_2": ["en0s88"],
    }


def test_a_representor_is_not_the_interface_of_a_port(tree, nic):
    tree.rdma("mlx5_0", nic)
    tree.net("eth0", nic, dev_port=0, phys_switch_id="c4ab", phys_port_name="p0")
    tree.net("eth0_0", nic, dev_port=0, phys_switch_id="c4ab", phys_port_name="pf0vf0")
    assert probed_device(tree).interfaces == ["eth0"]


def test_an_ipoib_child_is_not_the_interface_of_a_port(tree, nic):
    tree.rdma("mlx5_0", nic)
    tree.net("ib0", nic, type=32, dev_port=0, ifindex=5, iflink=5)
    tree.net("ib0.8001", nic, type=32, dev_port=0, ifindex=6, iflink=5)
    assert probed_device(tree).interfaces == ["ib0"]


def test_a_bonded_device_has_the_bond_as_an_interface(tree, nic):
    folder = tree.rdma("mlx5_bond_0", nic)
    tree.net("eth0", nic, dev_port=0)
    tree.net("bond0", **{"bonding/mode": "802.3ad 4"})
    tree.write(f"{folder}/ports/1/gids/0", LINK_LOCAL_GID)
    tree.write(f"{folder}/ports/1/gid_attrs/ndevs/0", "bond0")
    device = probed_device(tree)
    assert (device.address, device.interfaces) == (nic, ["bond0", "eth0"])


def test_a_software_device_has_its_parent_as_interface(tree):
    tree.rdma("rxe0", None, parent="eth0")
    device = probed_device(tree)
    assert (device.address, device.interfaces) == (None, ["eth0"])


def test_a_directory_in_place_of_a_device_link_has_no_interfaces(tree, nic):
    tree.net("eth0", nic, dev_port=0)
    tree.write("sys/class/infiniband/mlx5_0/node_type", "1: CA")
    tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    device = probed_device(tree)
    assert (device.address, device.interfaces) == (None, [])


def test_a_link_to_the_folder_of_another_device_is_reported_and_not_used(tree, nic):
    folder = tree.rdma("mlx5_0", nic)
    tree.link("sys/class/infiniband/mlx5_1", folder)
    topology = tree.probe()
    assert [device.name for device in topology.rdma_devices] == ["mlx5_0"]
    assert "leads to the folder of another device" in topology.source.unreadable[0]


def test_a_dangling_link_of_a_device_is_reported(tree):
    tree.link("sys/class/infiniband/mlx5_0", "sys/devices/missing/infiniband/mlx5_0")
    topology = tree.probe()
    assert topology.source.unreadable == ["/sys/class/infiniband/mlx5_0: an empty or missing device directory"]


def test_the_rate_of_a_port_that_is_down_is_ignored(tree, nic):
    tree.rdma("mlx5_0", nic)
    tree.port("mlx5_0", 1, state="1: DOWN", rate="10 Gb/sec (4X SDR)")
    (probed_nic,) = tree.probe().nics
    assert (probed_nic.speed_mbps, probed_nic.up) == (None, False)


def test_invalid_names_beside_ports_and_gids_are_ignored(tree, nic):
    folder = tree.rdma("mlx5_0", nic)
    tree.write(f"{folder}/ports/\u00b2/state", "4: ACTIVE")
    tree.write(f"{folder}/ports/1/gids/\u00b2", LINK_LOCAL_GID)
    device = probed_device(tree)
    assert [(port.port, port.gids) for port in device.ports] == [(1, [])]
