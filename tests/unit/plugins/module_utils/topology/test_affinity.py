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
    FAST,
    GPU,
    NIC,
    NIC_VF,
    NVME,
    healthy,
)
from hypothesis import given
from hypothesis import strategies as st

VMBUS = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00"


def function(path, numa=None, **more):
    parent, _slash, address = path.rpartition("/")
    root, bridges = locate(f"/sys/devices/{parent}")
    return PciFunction(address=address, root_complex=root, bridges=bridges, numa_node=numa, **more)


SWITCH = "pci0000:17/0000:17:01.0/0000:18:00.0"
GPU_PATH = f"{SWITCH}/0000:19:00.0/0000:1a:00.0"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
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
        # a switch behind a port of the other's switch
        (function(GPU_PATH, 0), function(f"{SWITCH}/0000:19:01.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0", 0), "PXB"),
        # two root ports of one root complex
        (function(GPU_PATH, 0), function("pci0000:17/0000:17:02.0/0000:1f:00.0", 0), "PHB"),
        # EPYC: another root complex of the same NUMA node (NPS1), and of another one of the same socket (NPS4)
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
        # two devices whose locality the machine does not report
        (
            function("pci0000:20/0000:20:01.1/0000:21:00.0"),
            function("pci0000:40/0000:40:01.1/0000:41:00.0", 0),
            "UNKNOWN",
        ),
        (PciFunction("0000:21:00.0"), PciFunction("0000:22:00.0"), "UNKNOWN"),
        # Azure: every device has its own root complex
        (function(f"{VMBUS}/a/pci0001:00/0001:00:00.0"), function(f"{VMBUS}/b/pci0002:00/0002:00:00.0"), "UNKNOWN"),
        (function(f"{VMBUS}/a/pci0001:00/0001:00:00.0", 0), function(f"{VMBUS}/b/pci0002:00/0002:00:00.0", 0), "NODE"),
        # Intel VMD: the NVMe domain hangs on a function of the outer root complex
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
        # the level that the site states by an override
        (PciFunction("0001:00:00.0", switch_label="sw0"), PciFunction("0002:00:00.0", switch_label="sw0"), "PIX"),
        (PciFunction("0001:00:00.0", switch_label="sw0"), PciFunction("0002:00:00.0", switch_label="sw1"), "UNKNOWN"),
    ],
)
def test_two_paths_have_the_level_of_their_nearest_common_part(one, other, expected):
    assert [level(*pair) for pair in ((one, other), (other, one))] == [expected, expected]


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
def test_the_meeting_point_is_the_nearest_common_part_of_two_paths(other, expected):
    assert meeting_point(function(GPU_PATH, 0), other) == expected


@st.composite
def functions(draw):
    """Functions of a small forest, some with an unknown root or NUMA node."""
    root = draw(st.sampled_from(["pci0000:00", "pci0000:40", None]))
    depth = draw(st.integers(0, 4))
    path = [f"{draw(st.integers(0, 1))}" for _step in range(depth)]
    bridges = [f"0000:{10 + index:02x}:0{''.join(path[: index + 1])}.0"[:10] + ".0" for index in range(depth)]
    address = f"0000:{draw(st.integers(0x80, 0x8F)):02x}:00.{draw(st.integers(0, 1))}"
    numa = draw(st.sampled_from([None, 0, 1]))
    return PciFunction(address, root_complex=root, bridges=bridges if root else [], numa_node=numa)


@given(functions(), functions())
def test_level_is_symmetric_and_never_near_without_evidence(one, other):
    found, reverse = (level(*pair) for pair in ((one, other), (other, one)))
    assert found == reverse
    if found == "NODE":
        assert one.numa_node is not None and one.numa_node == other.numa_node
    if found in ("PIX", "PXB"):
        assert set(one.bridges) & set(other.bridges)
    if found == "PHB":
        assert one.root_complex is not None and one.root_complex == other.root_complex


@given(st.lists(functions(), min_size=2, max_size=12, unique_by=lambda one: one.address))
def test_index_finds_what_comparing_all_pairs_finds(found):
    first, others = found[0], found[1:]
    proximity = Proximity(Topology(functions={one.address: one for one in found}))
    near = proximity.nearest(first.address, proximity.neighbours(one.address for one in others))
    levels = {one.address: level(first, one) for one in others}
    best = min(levels.values(), key=RANK.__getitem__)
    assert near.level == best
    assert sorted(near.devices) == sorted(
        address for address, one in levels.items() if one == best and best != "UNKNOWN"
    )


def groups(topology):
    return [(group.level, group.common, group.gpus, group.nics) for group in topology.groups]


def test_healthy_machine_pairs_by_switch(tmp_path):
    topology = healthy(tmp_path / "machine").probe()
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
    topology = healthy(tmp_path / "machine").probe()
    near = {nic.address: (nic.nearest_gpus.level, nic.nearest_gpus.devices) for nic in topology.nics}
    assert near["0000:9b:00.0"] == ("PIX", ["0000:9a:00.0"])
    assert near["0000:1f:00.0"] == ("PHB", ["0000:1a:00.0"])


def test_matrix_is_square_symmetric_and_self_on_its_diagonal(tmp_path):
    affinity = healthy(tmp_path / "machine").probe().affinity
    assert len(affinity.levels) == len(affinity.devices) == 7
    assert all(row[index] == "SELF" for index, row in enumerate(affinity.levels))
    assert affinity.levels == [list(column) for column in zip(*affinity.levels)]
    place = {address: index for index, address in enumerate(affinity.devices)}
    assert affinity.levels[place["0000:1a:00.0"]][place["0000:1c:00.0"]] == "PIX"
    assert affinity.levels[place["0000:1a:00.0"]][place["0000:9b:00.0"]] == "SYS"


def test_machine_without_locality_has_no_groups_and_no_rails(tree):
    tree.pci("pci0001:00/0001:00:00.0", GPU)
    nic = tree.pci("pci0002:00/0002:00:00.0", NIC)
    tree.rdma("mlx5_0", nic)
    topology = tree.probe()
    assert topology.groups == []
    assert topology.gpus[0].nearest_nics.level == "UNKNOWN"
    assert topology.gpus[0].nearest_nics.devices == []
    assert (topology.gpus[0].rail, topology.nics[0].rail) == (None, None)


def two_gpus_two_nics(tree, nic_paths, numa=0):
    for path in ("pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:27/0000:27:01.0/0000:28:00.0"):
        tree.pci(path, GPU, numa)
    for number, path in enumerate(nic_paths):
        tree.rdma(f"mlx5_{number}", tree.pci(path, NIC, numa))


def test_group_across_roots_names_the_numa_node_as_common(tree):
    two_gpus_two_nics(tree, ["pci0000:37/0000:37:01.0/0000:38:00.0"])
    assert groups(tree.probe()) == [
        ("NODE", "NUMA node 0", ["0000:18:00.0", "0000:28:00.0"], ["0000:38:00.0"]),
    ]


def test_pairs_of_different_levels_stay_apart(tree):
    for slot, kind in enumerate((GPU, NIC)):
        tree.pci(f"{SWITCH}/0000:19:{slot:02x}.0/0000:{0x1A + slot:02x}:00.0", kind, 0)
    tree.pci("pci0000:17/0000:17:02.0/0000:20:00.0", NIC, 0)
    tree.pci("pci0000:17/0000:17:03.0/0000:21:00.0", GPU, 0)
    tree.pci("pci0000:17/0000:17:04.0/0000:22:00.0", GPU, 0)
    assert groups(tree.probe()) == [
        ("PIX", "0000:18:00.0", ["0000:1a:00.0"], ["0000:1b:00.0"]),
        ("PHB", "pci0000:17", ["0000:21:00.0", "0000:22:00.0"], ["0000:20:00.0"]),
    ]


def test_gpu_whose_nic_is_missing_joins_no_other_pair(tree):
    two_gpus_two_nics(tree, ["pci0000:17/0000:17:01.0/0000:18:01.0"])
    assert groups(tree.probe()) == [("PIX", "0000:17:01.0", ["0000:18:00.0"], ["0000:18:01.0"])]


def test_management_nic_on_the_same_switch_is_not_a_rail(tree):
    tree.pci(GPU_PATH, GPU, 0)
    tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", ETHERNET, 0)
    rail = tree.pci("pci0000:17/0000:17:02.0/0000:1f:00.0", NIC, 0)
    tree.rdma("mlx5_0", rail)
    topology = tree.probe()
    assert topology.gpus[0].nearest_nics.devices == ["0000:1b:00.0"]
    assert groups(topology) == [("PHB", "pci0000:17", ["0000:1a:00.0"], [rail])]
    assert {nic.address: nic.rail for nic in topology.nics} == {"0000:1b:00.0": None, rail: 0}


def test_two_gpus_of_a_switch_get_one_nic_each(tree):
    for slot, kind in enumerate((GPU, GPU, NIC, NIC)):
        tree.pci(f"{SWITCH}/0000:19:{slot:02x}.0/0000:{0x1A + slot:02x}:00.0", kind, 0)
    topology = tree.probe()
    assert [gpu.rail for gpu in topology.gpus] == [0, 1]
    assert [nic.rail for nic in topology.nics] == [0, 1]


def test_two_gpus_share_a_switchs_only_nic(tree):
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
    assert [one.devices for one in topology.findings if one.id == "gpu-without-near-nic"] == [["0000:13:00.0"]]


def test_rail_is_the_wider_of_two_cards_even_with_its_cable_out(tree):
    tree.pci(GPU_PATH, GPU, 0)
    tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NIC, 0, max_link_speed="16.0 GT/s PCIe", max_link_width="8")
    wide = tree.pci(f"{SWITCH}/0000:19:02.0/0000:1c:00.0", NIC, 0, **FAST)
    tree.net("ib0", "0000:1b:00.0", carrier=1)
    tree.net("ib1", wide, carrier=0)
    assert {nic.address: nic.rail for nic in tree.probe().nics} == {"0000:1b:00.0": None, wide: 0}


def test_vf_has_its_pfs_rail_and_is_nearest_to_no_gpu(tree):
    tree.pci(GPU_PATH, GPU, 0)
    pf = tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NIC, 0)
    vf = tree.vf(pf, 0, f"{SWITCH}/0000:19:01.0/0000:1b:00.1", NIC_VF, numa=0)
    topology = tree.probe()
    assert topology.gpus[0].nearest_nics.devices == [pf]
    assert {nic.address: nic.rail for nic in topology.nics} == {pf: 0, vf: 0}
    assert vf not in topology.affinity.devices


def test_vfs_of_a_gpu_do_not_count_as_gpus(tree):
    gpu = tree.pci(GPU_PATH, GPU, 0)
    tree.vf(gpu, 0, f"{SWITCH}/0000:19:00.0/0000:1a:00.4", GPU, numa=0)
    assert [one.address for one in tree.probe().gpus] == [gpu]


def test_gpu_vf_in_a_virtual_machine_is_a_gpu(tree):
    gpu = tree.pci("pci0000:00/0000:00:05.0", GPU)
    assert [one.address for one in tree.probe().gpus] == [gpu]


def vpd(uuid):
    field = b"V3" + bytes([len(uuid)]) + uuid.encode()
    return b"\x90" + len(field).to_bytes(2, "little") + field + b"\x78"


def data_direct(tree, *uuids):
    """A GPU whose switch holds DMA functions, and a NIC with UUID 'one' on another root complex of another node."""
    gpu = tree.pci(GPU_PATH, GPU, 0)
    for slot, uuid in enumerate(uuids, 1):
        tree.pci(f"{SWITCH}/0000:19:{slot:02x}.0/0000:{0x1A + slot:02x}:00.0", DATA_DIRECT, 0, vpd=vpd(uuid))
    nic = tree.pci("pci0001:00/0001:00:00.0/0001:01:00.0", NIC, 1, vpd=vpd("one"))
    return gpu, nic


def test_data_direct_function_makes_its_nic_near(tree):
    gpu, nic = data_direct(tree, "two", "one")
    topology = tree.probe()
    near = topology.gpus[0].nearest_nics
    assert (near.level, near.devices, near.via) == ("PIX", [nic], {nic: "0000:1c:00.0"})
    assert topology.nics[0].data_direct == "0000:1c:00.0"
    assert topology.nics[0].nearest_gpus.devices == [gpu]
    assert groups(topology) == [("PIX", "0000:18:00.0", [gpu], [nic])]


@pytest.mark.parametrize("uuids", [("one", "one"), ("two",)])
def test_an_ambiguous_or_foreign_data_direct_function_pairs_nothing(tree, uuids):
    data_direct(tree, *uuids)
    topology = tree.probe()
    assert topology.nics[0].data_direct is None
    assert topology.gpus[0].nearest_nics.level == topology.nics[0].nearest_gpus.level == "UNKNOWN"
    assert topology.affinity.levels[0][1] == "UNKNOWN"
    assert topology.groups == []
    (finding,) = [one for one in topology.findings if one.id == "gpu-nic-locality-unknown"]
    assert "as root" in finding.action


def test_nvme_has_its_controller_in_a_recording_without_the_class(tree):
    nvme = tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NVME, 0)
    for name, text in (("model", "SAMSUNG MZWLO7T6HBLA-00A07   "), ("serial", "S1"), ("../power/control", "on")):
        tree.write(f"{tree.folder(nvme)}/nvme/nvme10/{name}", text)
    (found,) = tree.probe().nvme
    assert (found.controllers, found.model, found.serial) == (["nvme10"], "SAMSUNG MZWLO7T6HBLA-00A07", "S1")


def test_nvme_is_in_the_matrix_and_has_its_controller(tree):
    tree.pci(GPU_PATH, GPU, 0)
    nvme = tree.pci(f"{SWITCH}/0000:19:01.0/0000:1b:00.0", NVME, 0)
    tree.link("sys/class/nvme/nvme0", f"{tree.folder(nvme)}/nvme/nvme0")
    tree.write(f"{tree.folder(nvme)}/nvme/nvme0/model", "SAMSUNG MZWLO7T6HBLA-00A07   ")
    topology = tree.probe()
    assert [(one.address, one.controllers, one.model) for one in topology.nvme] == [
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
def test_the_gpu_model_is_that_of_its_driver(tree, driver, path, text, model):
    tree.pci(GPU_PATH, GPU, driver=driver)
    tree.write(path, text)
    assert tree.probe().gpus[0].model == model


def test_routes_on_most_nics_take_no_rail_away(tree):
    for switch in range(4):
        above = f"pci0000:{switch}0/0000:{switch}0:01.0/0000:{switch}1:00.0"
        tree.pci(f"{above}/0000:{switch}2:00.0/0000:{switch}3:00.0", GPU, 0)
        tree.net(f"eth{switch}", tree.pci(f"{above}/0000:{switch}2:01.0/0000:{switch}4:00.0", NIC, 0))
    tree.routes("eth0", "eth1", "eth2")
    assert [gpu.rail for gpu in tree.probe().gpus] == [0, 1, 2, 3]


def test_nearest_of_several_far_nodes_is_the_one_at_the_smallest_distance(tree):
    tree.nodes("0-1", "2-3", "4-5", distances=("10 12 32", "12 10 32", "32 32 10"))
    tree.pci(GPU_PATH, GPU, 0)
    near = tree.pci("pci0000:40/0000:40:01.0/0000:41:00.0", NIC, 1)
    tree.pci("pci0000:60/0000:60:01.0/0000:61:00.0", NIC, 2)
    nearest = tree.probe().gpus[0].nearest_nics
    assert (nearest.level, nearest.devices) == ("SYS", [near])


def test_a_uuid_that_two_cards_have_pairs_neither(tree):
    """One of two cards has the other's VPD, as in a recording whose files were mixed up."""
    field = b"\x90\x06\x00V3\x03one\x78"
    gpu = tree.pci("pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0", GPU, 0)
    tree.pci("pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0", DATA_DIRECT, 0, vpd=field)
    tree.pci("pci0001:00/0001:00:00.0/0001:01:00.0", NIC, 1, vpd=field)
    tree.pci("pci0001:00/0001:00:00.0/0001:01:00.1", NIC, 1, vpd=field)
    node = tree.probe()
    assert [(one.address, one.nearest_nics.level) for one in node.gpus] == [(gpu, "PIX")], "two functions of one card"
    tree.pci("pci0002:00/0002:00:00.0/0002:01:00.0", NIC, 1, vpd=field)
    node = tree.probe()
    assert [nic.data_direct for nic in node.nics] == [None] * 3
    assert [one.nearest_nics.level for one in node.gpus] == ["UNKNOWN"]
