# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import (
    RANK,
    Proximity,
    level,
    meeting_point,
)
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import PciFunction, Topology
from ansible_collections.lanewise.dra.plugins.module_utils.topology.pci import locate
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import (
    DATA_DIRECT,
    ETHERNET,
    GPU,
    LINK_GEN5_X16,
    NIC,
    NIC_VF,
    NVME,
    healthy_machine,
    vpd,
)
from hypothesis import given
from hypothesis import strategies as st

VMBUS = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00"


def function(path, numa=None, **more):
    """A function at a path below /sys/devices."""
    parent, _slash, address = path.rpartition("/")
    root, bridges = locate(f"/sys/devices/{parent}")
    return PciFunction(address=address, root_complex=root, bridges=bridges, numa_node=numa, **more)


SWITCH = "pci0000:17/0000:17:01.0/0000:18:00.0"
GPU_PATH = f"{SWITCH}/0000:19:00.0/0000:1a:00.0"


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        # the two ports of one card
        (
            function(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", 0),
            function(f"{SWITCH}/0000:19:01.0/0000:1b:00.1", 0),
            "SELF",
        ),
        # a PF and its VF on another device number
        (function("pci0000:17/0000:18:00.0", 0), function("pci0000:17/0000:18:01.2", 0, physfn="0000:18:00.0"), "SELF"),
        # two ports of one switch
        (function(GPU_PATH, 0), function(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", 0), "PIX"),
        # two devices below one port
        (function("pci0000:17/0000:17:01.0/0000:18:00.0"), function("pci0000:17/0000:17:01.0/0000:18:01.0"), "PIX"),
        # a switch below a port of the left device's switch
        (function(GPU_PATH, 0), function(f"{SWITCH}/0000:19:01.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0", 0), "PXB"),
        # two root ports of one root complex
        (function(GPU_PATH, 0), function("pci0000:17/0000:17:02.0/0000:1f:00.0", 0), "PHB"),
        # EPYC: two root complexes of one NUMA node (NPS1), and of two NUMA nodes of one socket (NPS4)
        (
            function("pci0000:20/0000:20:01.1/0000:21:00.0", 0),
            function("pci0000:40/0000:40:01.1/0000:41:00.0", 0),
            "NODE",
        ),
        (
            function("pci0000:20/0000:20:01.1/0000:21:00.0", 0),
            function("pci0000:40/0000:40:01.1/0000:41:00.0", 1),
            "SYS",
        ),
        # Grace: every root port has its own domain
        (
            function("pci0008:00/0008:00:00.0/0008:01:00.0", 0),
            function("pci0009:00/0009:00:00.0/0009:01:00.0", 0),
            "NODE",
        ),
        # the NUMA node of at least one device is unknown
        (
            function("pci0000:20/0000:20:01.1/0000:21:00.0"),
            function("pci0000:40/0000:40:01.1/0000:41:00.0", 0),
            "UNKNOWN",
        ),
        (PciFunction("0000:21:00.0"), PciFunction("0000:22:00.0"), "UNKNOWN"),
        # Azure: every device has its own root complex
        (function(f"{VMBUS}/a/pci0001:00/0001:00:00.0"), function(f"{VMBUS}/b/pci0002:00/0002:00:00.0"), "UNKNOWN"),
        (function(f"{VMBUS}/a/pci0001:00/0001:00:00.0", 0), function(f"{VMBUS}/b/pci0002:00/0002:00:00.0", 0), "NODE"),
        # Intel VMD: the domain of the NVMe drives is below a function of the outer root complex
        (
            function("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:1b.0/10000:01:00.0", 0),
            function("pci0000:00/0000:00:01.0/0000:01:00.0", 0),
            "PHB",
        ),
        (
            function("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:1b.0/10000:01:00.0", 0),
            function("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:1c.0/10000:02:00.0", 0),
            "PHB",
        ),
        (
            function("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:1b.0/10000:01:00.0/10000:02:00.0/10000:03:00.0"),
            function("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:1b.0/10000:01:00.0/10000:02:01.0/10000:04:00.0"),
            "PIX",
        ),
        # switches that the site's overrides state
        (PciFunction("0001:00:00.0", switch_label="sw0"), PciFunction("0002:00:00.0", switch_label="sw0"), "PIX"),
        (PciFunction("0001:00:00.0", switch_label="sw0"), PciFunction("0002:00:00.0", switch_label="sw1"), "UNKNOWN"),
    ],
)
def test_the_level_of_two_functions_follows_from_their_nearest_common_ancestor(left, right, expected):
    assert [level(left, right), level(right, left)] == [expected, expected]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (function(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", 0), "0000:18:00.0"),
        (function("pci0000:17/0000:17:02.0/0000:1f:00.0", 0), "pci0000:17"),
        (function("pci0000:20/0000:20:01.0/0000:21:00.0", 0), "NUMA node 0"),
        (function("pci0000:20/0000:20:01.0/0000:21:00.0", 1), None),
        (function("pci0000:20/0000:20:01.0/0000:21:00.0"), None),
    ],
)
def test_the_meeting_point_is_the_nearest_common_ancestor_of_two_functions(other, expected):
    assert meeting_point(function(GPU_PATH, 0), other) == expected


@st.composite
def functions(draw):
    """A function below up to four bridges. Its root complex and its NUMA node may be unknown."""
    root = draw(st.sampled_from(["pci0000:00", "pci0000:40", None]))
    depth = draw(st.integers(0, 4))
    choices = "".join(draw(st.sampled_from("01")) for _bridge in range(depth))
    bridges = [f"0000:{10 + index:02x}:{int(choices[: index + 1], 2):02x}.0" for index in range(depth)]
    address = f"0000:{draw(st.integers(0x80, 0x8F)):02x}:00.{draw(st.integers(0, 1))}"
    numa = draw(st.sampled_from([None, 0, 1]))
    return PciFunction(address, root_complex=root, bridges=bridges if root else [], numa_node=numa)


@given(functions(), functions())
def test_the_level_is_symmetric_and_near_only_if_a_common_ancestor_is_known(left, right):
    found = level(left, right)
    assert found == level(right, left)
    if found == "NODE":
        assert left.numa_node is not None and left.numa_node == right.numa_node
    if found in ("PIX", "PXB"):
        assert set(left.bridges) & set(right.bridges)
    if found == "PHB":
        assert left.root_complex is not None and left.root_complex == right.root_complex


@given(st.lists(functions(), min_size=2, max_size=12, unique_by=lambda drawn: drawn.address))
def test_proximity_finds_the_same_nearest_functions_as_comparing_all_pairs(drawn):
    by_address = {function.address: function for function in drawn}
    address, *others = by_address
    proximity = Proximity(Topology(functions=by_address))
    nearest = proximity.nearest(address, proximity.neighbours(others))
    levels = {other: level(by_address[address], by_address[other]) for other in others}
    best = min(levels.values(), key=RANK.__getitem__)
    assert nearest.level == best
    assert sorted(nearest.devices) == sorted(other for other in others if levels[other] == best and best != "UNKNOWN")


def groups(topology):
    return [(group.level, group.common, group.gpus, group.nics) for group in topology.groups]


def test_the_gpu_and_the_nic_of_a_switch_form_a_group_and_a_rail(tmp_path):
    topology = healthy_machine(tmp_path / "machine").probe()
    assert groups(topology) == [
        ("PIX", "0000:18:00.0", ["0000:1a:00.0"], ["0000:1b:00.0"]),
        ("PIX", "0000:98:00.0", ["0000:9a:00.0"], ["0000:9b:00.0"]),
    ]
    assert [gpu.rail for gpu in topology.gpus] == [0, 1]
    assert [(nic.address, nic.rail) for nic in topology.nics if nic.rail is not None] == [
        ("0000:1b:00.0", 0),
        ("0000:9b:00.0", 1),
    ]


def test_each_nic_has_its_nearest_gpus(tmp_path):
    topology = healthy_machine(tmp_path / "machine").probe()
    near = {nic.address: (nic.nearest_gpus.level, nic.nearest_gpus.devices) for nic in topology.nics}
    assert near["0000:9b:00.0"] == ("PIX", ["0000:9a:00.0"])
    assert near["0000:1f:00.0"] == ("PHB", ["0000:1a:00.0"])


def test_the_matrix_is_square_and_symmetric_with_self_on_its_diagonal(tmp_path):
    affinity = healthy_machine(tmp_path / "machine").probe().affinity
    assert len(affinity.levels) == len(affinity.devices) == 7
    assert all(row[index] == "SELF" for index, row in enumerate(affinity.levels))
    assert affinity.levels == [list(column) for column in zip(*affinity.levels)]
    position = {address: index for index, address in enumerate(affinity.devices)}
    assert affinity.levels[position["0000:1a:00.0"]][position["0000:1c:00.0"]] == "PIX"
    assert affinity.levels[position["0000:1a:00.0"]][position["0000:9b:00.0"]] == "SYS"


def test_a_machine_without_locality_has_no_groups_and_no_rails(tree):
    tree.pci("pci0001:00/0001:00:00.0", GPU)
    nic = tree.pci("pci0002:00/0002:00:00.0", NIC)
    tree.rdma("mlx5_0", nic)
    topology = tree.probe()
    assert topology.groups == []
    assert topology.gpus[0].nearest_nics.level == "UNKNOWN"
    assert topology.gpus[0].nearest_nics.devices == []
    assert (topology.gpus[0].rail, topology.nics[0].rail) == (None, None)


def add_two_gpus_and_a_nic(tree, nic_path):
    for path in ("pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:27/0000:27:01.0/0000:28:00.0"):
        tree.pci(path, GPU, 0)
    tree.rdma("mlx5_0", tree.pci(nic_path, NIC, 0))


def test_the_common_part_of_a_group_across_root_complexes_is_the_numa_node(tree):
    add_two_gpus_and_a_nic(tree, "pci0000:37/0000:37:01.0/0000:38:00.0")
    assert groups(tree.probe()) == [
        ("NODE", "NUMA node 0", ["0000:18:00.0", "0000:28:00.0"], ["0000:38:00.0"]),
    ]


def test_pairs_of_different_levels_are_separate_groups(tree):
    for slot, kind in enumerate((GPU, NIC)):
        tree.pci(f"{SWITCH}/0000:19:{slot:02x}.0/0000:{0x1A + slot:02x}:00.0", kind, 0)
    tree.pci("pci0000:17/0000:17:02.0/0000:20:00.0", NIC, 0)
    tree.pci("pci0000:17/0000:17:03.0/0000:21:00.0", GPU, 0)
    tree.pci("pci0000:17/0000:17:04.0/0000:22:00.0", GPU, 0)
    assert groups(tree.probe()) == [
        ("PIX", "0000:18:00.0", ["0000:1a:00.0"], ["0000:1b:00.0"]),
        ("PHB", "pci0000:17", ["0000:21:00.0", "0000:22:00.0"], ["0000:20:00.0"]),
    ]


def test_a_gpu_whose_nic_is_missing_joins_no_group(tree):
    add_two_gpus_and_a_nic(tree, "pci0000:17/0000:17:01.0/0000:18:01.0")
    assert groups(tree.probe()) == [("PIX", "0000:17:01.0", ["0000:18:00.0"], ["0000:18:01.0"])]


def test_a_management_nic_on_the_same_switch_is_not_a_rail(tree):
    tree.pci(GPU_PATH, GPU, 0)
    tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", ETHERNET, 0)
    fabric_nic = tree.pci("pci0000:17/0000:17:02.0/0000:1f:00.0", NIC, 0)
    tree.rdma("mlx5_0", fabric_nic)
    topology = tree.probe()
    assert topology.gpus[0].nearest_nics.devices == ["0000:1b:00.0"]
    assert groups(topology) == [("PHB", "pci0000:17", ["0000:1a:00.0"], [fabric_nic])]
    assert {nic.address: nic.rail for nic in topology.nics} == {"0000:1b:00.0": None, fabric_nic: 0}


def test_two_gpus_of_a_switch_get_one_nic_each(tree):
    for slot, kind in enumerate((GPU, GPU, NIC, NIC)):
        tree.pci(f"{SWITCH}/0000:19:{slot:02x}.0/0000:{0x1A + slot:02x}:00.0", kind, 0)
    topology = tree.probe()
    assert [gpu.rail for gpu in topology.gpus] == [0, 1]
    assert [nic.rail for nic in topology.nics] == [0, 1]


def test_two_gpus_share_the_only_nic_of_their_switch(tree):
    for slot, kind in enumerate((GPU, GPU, NIC)):
        tree.pci(f"{SWITCH}/0000:19:{slot:02x}.0/0000:{0x1A + slot:02x}:00.0", kind, 0)
    topology = tree.probe()
    assert [gpu.rail for gpu in topology.gpus] == [0, 0]


def test_four_nics_per_gpu_are_four_rails(tree):
    for switch in range(2):
        above = f"pci0000:{switch}0/0000:{switch}0:01.0/0000:{switch}1:00.0"
        tree.pci(f"{above}/0000:{switch}2:00.0/0000:{switch}3:00.0", GPU, switch)
        for slot in range(1, 5):
            tree.pci(f"{above}/0000:{switch}2:{slot:02x}.0/0000:{switch}{3 + slot}:00.0", NIC, switch)
    topology = tree.probe()
    assert [gpu.rail for gpu in topology.gpus] == [0, 4]
    assert [nic.rail for nic in topology.nics] == list(range(8))


def test_a_missing_nic_does_not_renumber_the_other_rails(tree):
    for switch in range(3):
        above = f"pci0000:{switch}0/0000:{switch}0:01.0/0000:{switch}1:00.0"
        tree.pci(f"{above}/0000:{switch}2:00.0/0000:{switch}3:00.0", GPU, 0)
        if switch != 1:
            tree.pci(f"{above}/0000:{switch}2:01.0/0000:{switch}4:00.0", NIC, 0)
    topology = tree.probe()
    assert [gpu.rail for gpu in topology.gpus] == [0, None, 2]
    assert [nic.rail for nic in topology.nics] == [0, 2]
    assert len(topology.groups) == 2
    assert [finding.devices for finding in topology.findings if finding.id == "gpu-without-near-nic"] == [
        ["0000:13:00.0"]
    ]


def test_the_faster_of_two_nics_is_the_rail_even_without_a_carrier(tree):
    tree.pci(GPU_PATH, GPU, 0)
    tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NIC, 0, max_link_speed="16.0 GT/s PCIe", max_link_width="8")
    faster = tree.pci(f"{SWITCH}/0000:19:02.0/0000:1c:00.0", NIC, 0, **LINK_GEN5_X16)
    tree.net("ib0", "0000:1b:00.0", carrier=1)
    tree.net("ib1", faster, carrier=0)
    assert {nic.address: nic.rail for nic in tree.probe().nics} == {"0000:1b:00.0": None, faster: 0}


def test_a_vf_has_the_rail_of_its_pf_and_is_nearest_to_no_gpu(tree):
    tree.pci(GPU_PATH, GPU, 0)
    pf = tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NIC, 0)
    vf = tree.vf(pf, 0, f"{SWITCH}/0000:19:01.0/0000:1b:00.1", NIC_VF, numa=0)
    topology = tree.probe()
    assert topology.gpus[0].nearest_nics.devices == [pf]
    assert {nic.address: nic.rail for nic in topology.nics} == {pf: 0, vf: 0}
    assert vf not in topology.affinity.devices


def test_vfs_of_a_gpu_do_not_count_as_gpus(tree):
    address = tree.pci(GPU_PATH, GPU, 0)
    tree.vf(address, 0, f"{SWITCH}/0000:19:00.0/0000:1a:00.4", GPU, numa=0)
    assert [gpu.address for gpu in tree.probe().gpus] == [address]


def test_a_gpu_vf_in_a_virtual_machine_is_a_gpu(tree):
    address = tree.pci("pci0000:00/0000:00:05.0", GPU)
    assert [gpu.address for gpu in tree.probe().gpus] == [address]


def vpd_with_uuid(uuid):
    return vpd((b"V3", uuid))


NIC_UUID, OTHER_UUID = b"uuid-1", b"uuid-2"


def add_gpu_and_data_direct_nic(tree, *uuids):
    """Add a GPU, data-direct functions with these UUIDs at its switch, and a NIC with NIC_UUID at another NUMA node.

    Returns the addresses of the GPU and of the NIC.
    """
    gpu = tree.pci(GPU_PATH, GPU, 0)
    for slot, uuid in enumerate(uuids, 1):
        tree.pci(f"{SWITCH}/0000:19:{slot:02x}.0/0000:{0x1A + slot:02x}:00.0", DATA_DIRECT, 0, vpd=vpd_with_uuid(uuid))
    nic = tree.pci("pci0001:00/0001:00:00.0/0001:01:00.0", NIC, 1, vpd=vpd_with_uuid(NIC_UUID))
    return gpu, nic


def test_a_nic_is_near_the_gpu_that_shares_a_switch_with_its_data_direct_function(tree):
    gpu, nic = add_gpu_and_data_direct_nic(tree, OTHER_UUID, NIC_UUID)
    topology = tree.probe()
    near = topology.gpus[0].nearest_nics
    assert (near.level, near.devices, near.via) == ("PIX", [nic], {nic: "0000:1c:00.0"})
    assert topology.nics[0].data_direct == "0000:1c:00.0"
    assert topology.nics[0].nearest_gpus.devices == [gpu]
    assert groups(topology) == [("PIX", "0000:18:00.0", [gpu], [nic])]


@pytest.mark.parametrize("uuids", [(NIC_UUID, NIC_UUID), (OTHER_UUID,)])
def test_a_data_direct_function_with_a_repeated_or_unknown_uuid_belongs_to_no_nic(tree, uuids):
    add_gpu_and_data_direct_nic(tree, *uuids)
    topology = tree.probe()
    assert topology.nics[0].data_direct is None
    assert topology.gpus[0].nearest_nics.level == topology.nics[0].nearest_gpus.level == "UNKNOWN"
    assert topology.affinity.levels[0][1] == "UNKNOWN"
    assert topology.groups == []
    (finding,) = [finding for finding in topology.findings if finding.id == "gpu-nic-locality-unknown"]
    assert "as root" in finding.action


def test_an_nvme_controller_is_found_in_a_recording_without_its_class_directory(tree):
    nvme = tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NVME, 0)
    for name, text in (("model", "SAMSUNG MZWLO7T6HBLA-00A07   "), ("serial", "S1"), ("../power/control", "on")):
        tree.write(f"{tree.folder(nvme)}/nvme/nvme10/{name}", text)
    (found,) = tree.probe().nvme
    assert (found.controllers, found.model, found.serial) == (["nvme10"], "SAMSUNG MZWLO7T6HBLA-00A07", "S1")


def test_an_nvme_drive_is_in_the_matrix_and_has_its_controller(tree):
    tree.pci(GPU_PATH, GPU, 0)
    nvme = tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NVME, 0)
    tree.link("sys/class/nvme/nvme0", f"{tree.folder(nvme)}/nvme/nvme0")
    tree.write(f"{tree.folder(nvme)}/nvme/nvme0/model", "SAMSUNG MZWLO7T6HBLA-00A07   ")
    topology = tree.probe()
    assert [(nvme.address, nvme.controllers, nvme.model) for nvme in topology.nvme] == [
        (nvme, ["nvme0"], "SAMSUNG MZWLO7T6HBLA-00A07")
    ]
    assert topology.affinity.levels == [["SELF", "PIX"], ["PIX", "SELF"]]


@pytest.mark.parametrize(
    ("driver", "path", "text", "model"),
    [
        ("nvidia", "proc/driver/nvidia/gpus/0000:1a:00.0/information", "Model: \t NVIDIA H100\nIRQ: 1", "NVIDIA H100"),
        ("amdgpu", f"sys/devices/{GPU_PATH}/product_name", "AMD Instinct MI300X OAM", "AMD Instinct MI300X OAM"),
        ("vfio-pci", "proc/driver/nvidia/gpus/0000:1a:00.0/information", "Model: \t other", "NVIDIA H100 SXM5 80GB"),
    ],
)
def test_the_gpu_model_comes_from_the_bound_driver_or_from_the_device_id(tree, driver, path, text, model):
    tree.pci(GPU_PATH, GPU, driver=driver)
    tree.write(path, text)
    assert tree.probe().gpus[0].model == model


def test_gpus_keep_their_rails_if_most_nics_have_default_routes(tree):
    for switch in range(4):
        above = f"pci0000:{switch}0/0000:{switch}0:01.0/0000:{switch}1:00.0"
        tree.pci(f"{above}/0000:{switch}2:00.0/0000:{switch}3:00.0", GPU, 0)
        tree.net(f"eth{switch}", tree.pci(f"{above}/0000:{switch}2:01.0/0000:{switch}4:00.0", NIC, 0))
    tree.routes("eth0", "eth1", "eth2")
    assert [gpu.rail for gpu in tree.probe().gpus] == [0, 1, 2, 3]


def test_of_nics_on_other_numa_nodes_the_nearest_is_at_the_smallest_distance(tree):
    tree.nodes("0-1", "2-3", "4-5", distances=("10 12 32", "12 10 32", "32 32 10"))
    tree.pci(GPU_PATH, GPU, 0)
    near = tree.pci("pci0000:40/0000:40:01.0/0000:41:00.0", NIC, 1)
    tree.pci("pci0000:60/0000:60:01.0/0000:61:00.0", NIC, 2)
    nearest = tree.probe().gpus[0].nearest_nics
    assert (nearest.level, nearest.devices) == ("SYS", [near])


def test_a_uuid_that_two_cards_have_is_not_used(tree):
    """Two cards have the same VPD, as in a recording with mixed-up files."""
    same_vpd = vpd_with_uuid(NIC_UUID)
    tree.pci(GPU_PATH, GPU, 0)
    tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", DATA_DIRECT, 0, vpd=same_vpd)
    tree.pci("pci0001:00/0001:00:00.0/0001:01:00.0", NIC, 1, vpd=same_vpd)
    tree.pci("pci0001:00/0001:00:00.0/0001:01:00.1", NIC, 1, vpd=same_vpd)
    topology = tree.probe()
    assert [gpu.nearest_nics.level for gpu in topology.gpus] == ["PIX"], "two functions of one card"
    tree.pci("pci0002:00/0002:00:00.0/0002:01:00.0", NIC, 1, vpd=same_vpd)
    topology = tree.probe()
    assert [nic.data_direct for nic in topology.nics] == [None] * 3
    assert [gpu.nearest_nics.level for gpu in topology.gpus] == ["UNKNOWN"]
