# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import cpu
from ansible_collections.lanewise.dra.plugins.module_utils.topology.reader import Reader


@pytest.fixture
def reader(tree):
    return Reader(str(tree.root))


def package_cpus(reader):
    return [(package.id, package.cpus) for package in cpu.read_packages(reader)]


def test_each_package_has_its_cpus(tree, reader):
    tree.cpus("0-3", "4-7")
    assert package_cpus(reader) == [(0, "0-3"), (1, "4-7")]


def test_a_package_without_a_number_is_left_out(tree, reader):
    tree.write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1")
    tree.write("sys/devices/system/cpu/cpu0/topology/core_siblings_list", "0")
    assert package_cpus(reader) == []


def test_an_offline_cpu_has_no_topology(tree, reader):
    tree.cpus("0-1")
    (tree.root / "sys/devices/system/cpu/cpu2").mkdir()
    assert package_cpus(reader) == [(0, "0-1")]
    assert reader.unreadable == []


def test_package_numbers_may_have_gaps(tree, reader):
    for number, (identifier, siblings) in enumerate([("0", "0"), ("8", "1")]):
        folder = f"sys/devices/system/cpu/cpu{number}/topology"
        tree.write(f"{folder}/physical_package_id", identifier)
        tree.write(f"{folder}/core_siblings_list", siblings)
    assert package_cpus(reader) == [(0, "0"), (8, "1")]


def test_siblings_are_read_from_a_mask_without_a_list(tree, reader):
    tree.write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0")
    tree.write("sys/devices/system/cpu/cpu0/topology/core_siblings", "00000001,0000000f")
    assert package_cpus(reader) == [(0, "0-3,32")]


def test_numa_nodes_have_their_memory_and_distances(tree, reader):
    tree.nodes("0-3", "4-7", distances=("10 21", "21 10"))
    nodes, sets = cpu.read_numa_nodes(reader)
    assert [(node.id, node.cpus, node.memory_bytes) for node in nodes] == [(0, "0-3", 1048576), (1, "4-7", 1048576)]
    assert nodes[1].distances == {"0": 21, "1": 10}
    assert sets == {0: 0x0F, 1: 0xF0}


def test_a_mask_may_end_in_a_zero_byte(tree, reader):
    tree.nodes("0-3", "4-7")
    for number, mask in enumerate((b"0f\n\0", b"f0\n\0")):
        tree.write(f"sys/devices/system/node/node{number}/cpumap", mask)
    nodes, sets = cpu.read_numa_nodes(reader)
    assert ([node.cpus for node in nodes], sets) == (["0-3", "4-7"], {0: 0x0F, 1: 0xF0})
    assert reader.unreadable == []


def test_a_truncated_mask_is_unreadable(tree, reader):
    tree.write("sys/devices/system/node/node0/cpumap", b"00000000,0000\0\0\0\0\0")
    assert cpu.read_numa_nodes(reader)[1] == {}
    assert reader.unreadable_count == 1


def test_distances_are_those_to_existing_nodes(tree, reader):
    for number, distance in ((0, "10 40"), (8, "40 10")):
        tree.write(f"sys/devices/system/node/node{number}/distance", distance)
    nodes, _sets = cpu.read_numa_nodes(reader)
    assert nodes[0].distances == {"0": 10, "8": 40}


@pytest.mark.parametrize("text", ["10", "10 21 21", "10 \u00b2", "10 x"])
def test_invalid_distances_are_unknown_and_counted_as_unreadable(tree, reader, text):
    tree.nodes("0", "1", distances=(text, "21 10"))
    nodes, _sets = cpu.read_numa_nodes(reader)
    assert nodes[0].distances == {}
    assert reader.unreadable_count == 1


@pytest.mark.parametrize(
    ("online", "expected"),
    [("0,2", [0, 2]), ("0-2", [0, 1, 2]), ("0-7", [0, 1, 2]), ("", [0, 1, 2]), ("0-", [0, 1, 2])],
)
def test_only_numa_nodes_that_are_online_are_listed(tree, reader, online, expected):
    tree.nodes("0-3", "", "4-7")
    tree.write("sys/devices/system/node/online", online)
    nodes, sets = cpu.read_numa_nodes(reader)
    assert [node.id for node in nodes] == list(sets) == expected


def test_a_numa_node_may_have_no_cpus(tree, reader):
    tree.nodes("0-3", "")
    nodes, sets = cpu.read_numa_nodes(reader)
    assert nodes[1].cpus == ""
    assert sets[1] == 0


def test_a_missing_cpu_list_does_not_mean_that_a_node_has_no_cpus(tree, reader):
    tree.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       1024 kB")
    nodes, sets = cpu.read_numa_nodes(reader)
    assert nodes[0].cpus is None
    assert sets == {}


@pytest.mark.parametrize("content", [b"", b"0-", b"0-3"])
def test_a_truncated_cpu_list_is_unknown(tree, reader, content):
    tree.write("sys/devices/system/node/node0/cpulist", content)
    nodes, _sets = cpu.read_numa_nodes(reader)
    assert nodes[0].cpus is None
    assert reader.unreadable == ["/sys/devices/system/node/node0/cpulist: truncated: no line end"]


def test_a_cpu_list_that_the_kernel_cuts_at_a_page_is_replaced_by_the_mask(tree, reader):
    cpus = range(0, 4000, 2)
    digits = f"{sum(1 << number for number in cpus):01000x}"
    cut_list = ",".join(map(str, cpus))[:4095]
    tree.write("sys/devices/system/node/node0/cpulist", cut_list.encode())
    tree.write("sys/devices/system/node/node0/cpumap", ",".join(digits[i : i + 8] for i in range(0, 1000, 8)))
    nodes, _sets = cpu.read_numa_nodes(reader)
    assert nodes[0].cpus == ",".join(map(str, cpus))


def test_a_mask_replaces_an_invalid_list(tree, reader):
    tree.write("sys/devices/system/node/node0/cpulist", "invalid")
    tree.write("sys/devices/system/node/node0/cpumap", "f0")
    nodes, _sets = cpu.read_numa_nodes(reader)
    assert nodes[0].cpus == "4-7"


def test_each_of_several_numa_nodes_of_a_package_has_that_package(tree, reader):
    tree.cpus("0-3", "4-7")
    tree.nodes("0-1", "2-3", "4-5", "6-7")
    packages = cpu.read_packages(reader)
    nodes, sets = cpu.read_numa_nodes(reader)
    cpu.join_packages(nodes, sets, packages)
    assert [node.package for node in nodes] == [0, 0, 1, 1]
    assert [package.numa_nodes for package in packages] == [[0, 1], [2, 3]]


def test_a_numa_node_across_packages_has_no_package(tree, reader):
    tree.cpus("0-3", "4-7")
    tree.nodes("0-7")
    packages = cpu.read_packages(reader)
    nodes, sets = cpu.read_numa_nodes(reader)
    cpu.join_packages(nodes, sets, packages)
    assert nodes[0].package is None


@pytest.mark.parametrize(
    ("cpus", "sets", "expected"),
    [
        (0x0F, {0: 0x0F, 1: 0xF0}, 0),
        (0x30, {0: 0x0F, 1: 0xF0}, 1),
        (0xFF, {0: 0x0F, 1: 0xF0}, None),
        (0x0F, {0: 0x0F}, None),
        (0x0F, {0: 0x0F, 1: 0}, None),
        (0, {0: 0x0F, 1: 0xF0}, None),
        (None, {0: 0x0F, 1: 0xF0}, None),
        (0xFF0, {0: 0x00F, 1: 0x0F0}, None),  # some of the CPUs belong to a NUMA node that could not be read
    ],
)
def test_a_cpu_set_belongs_to_the_only_numa_node_that_contains_it(cpus, sets, expected):
    assert cpu.numa_node_of(cpus, sets) == expected


@pytest.mark.parametrize(
    ("files", "architecture", "model", "virtual"),
    [
        ({"proc/cpuinfo": "processor: 0\nmodel name: X\nflags: fpu lm\n\nprocessor: 1"}, "x86_64", "X", False),
        ({"proc/cpuinfo": "processor: 0\nmodel name: X\nflags: fpu lm hypervisor"}, "x86_64", "X", True),
        (
            {"proc/cpuinfo": "processor\t: 0\ncpu\t\t: POWER9, altivec supported"},
            None,
            "POWER9, altivec supported",
            None,
        ),
        ({"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41"}, "aarch64", None, None),
        (
            {"proc/cpuinfo": "CPU implementer: 0x41", "sys/class/dmi/id/product_name": "KVM Virtual Machine"},
            "aarch64",
            None,
            True,
        ),
        ({"proc/sys/kernel/arch": "riscv64"}, "riscv64", None, None),
        ({}, None, None, None),
    ],
)
def test_architecture_model_and_virtualization_are_read(tree, reader, files, architecture, model, virtual):
    for path, text in files.items():
        tree.write(path, text)
    system = cpu.read_system(reader)
    assert (system.architecture, system.cpu_model, system.virtual) == (architecture, model, virtual)


def test_the_iommu_arguments_of_the_kernel_are_read(tree, reader):
    tree.write("proc/cmdline", "quiet intel_iommu=on iommu=pt pci=config_acs=1 iommufoo root=iommu")
    assert cpu.read_system(reader).iommu_arguments == ["intel_iommu=on", "iommu=pt", "pci=config_acs=1", "iommufoo"]
