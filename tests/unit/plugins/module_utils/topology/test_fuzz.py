# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Damaged trees: the probe ends, reports no wrong facts, and lists the files that it could not read."""

from __future__ import annotations

import json
import time

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import RANK
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.reader import Folder, Reader
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.damage import Damage, entries_below
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import (
    DATA_DIRECT,
    GPU,
    NIC,
    NIC_VF,
    NVME,
    healthy_machine,
    vpd,
)
from hypothesis import given, settings
from hypothesis import strategies as st

SWITCH = "pci0000:17/0000:17:01.0/0000:18:00.0"
NIC0 = "0000:1b:00.0"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine with a VF, a data-direct NIC, a VMD domain, a device on no NUMA node, and GIDs."""
    tree = healthy_machine(tmp_path_factory.mktemp("fuzz") / "machine")
    tree.nodes("0-3", "4-7", "8-11", distances=("10 21 21", "21 10 21", "21 21 10"))
    tree.cpus("0-3", "4-7", "8-11")
    tree.vf(NIC0, 0, f"{SWITCH}/0000:19:01.0/0000:1b:00.1", NIC_VF, numa=0)
    same_vpd = vpd((b"V3", b"a-uuid"), name=b"NIC")
    tree.pci(f"{SWITCH}/0000:19:03.0/0000:1d:00.0", DATA_DIRECT, 0, vpd=same_vpd)
    tree.rdma("mlx5_7", tree.pci("pci0002:00/0002:00:00.0/0002:01:00.0", NIC, 1, vpd=same_vpd))
    tree.pci("pci0000:17/0000:17:0e.0/pci10000:00/10000:00:1b.0/10000:01:00.0", NVME, 0)
    tree.pci("pci0000:60/0000:60:01.0/0000:61:00.0", {**GPU, "numa_node": -1, "local_cpulist": "8-11"})
    tree.pci("pci0000:70/0000:70:01.0/0000:71:00.0", {**GPU, "numa_node": -1, "local_cpulist": "0-11"})
    for index, gid in enumerate(("fe80:0000:0000:0000:966d:aeff:fe00:0001", "0000:0000:0000:0000:0000:ffff:0a00:0001")):
        folder = f"{tree.folder(NIC0)}/infiniband/mlx5_0/ports/1"
        tree.write(f"{folder}/gids/{index}", gid)
        tree.write(f"{folder}/gid_attrs/types/{index}", "RoCE v2")
    tree.link(f"{tree.folder(NIC0)}/iommu_group", "sys/kernel/iommu_groups/42")
    tree.write("sys/kernel/iommu_groups/42/type", "identity")
    tree.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    tree.write("sys/bus/pci/slots/3/address", "0000:1b:00")
    tree.write("sys/class/dmi/id/product_name", "Machine")
    tree.write("proc/net/bonding/bond0", "Slave Interface: eno1\nPermanent HW addr: 02:00:00:00:00:99")
    return tree


KINDS = ("gone", "cut", "empty", "junk", "folder", "fifo", "loop", "dangling", "outside", "renamed", "not-utf-8")
#: Bytes that are neither a number nor a CPU set nor a link speed: a probe cannot recognize a valid value as damaged.
JUNK = st.binary(max_size=200).map(lambda data: b"?" + data)


def levels(topology):
    devices = topology.affinity.devices
    return {
        (first, second): level
        for first, row in zip(devices, topology.affinity.levels)
        for second, level in zip(devices, row)
    }


def check_facts(intact, broken):
    """Each fact of the broken tree is unknown or as in the intact tree, and no devices are nearer to each other."""
    for address, function in broken.functions.items():
        expected = intact.functions[address]
        assert function.root_complex in (None, expected.root_complex)
        assert function.bridges in ([], expected.bridges)
        assert function.numa_node in (None, expected.numa_node)
        assert function.local_cpus in (None, expected.local_cpus)
        assert function.physfn in (None, expected.physfn)
        assert function.vf_number in (None, expected.vf_number)
        assert function.kubernetes.items() <= expected.kubernetes.items()
    before = levels(intact)
    for pair, level in levels(broken).items():
        assert RANK[level] >= RANK[before.get(pair, "SELF")]
    nodes = {node.id: node for node in intact.numa_nodes}
    for node in broken.numa_nodes:
        assert node.cpus in (None, nodes[node.id].cpus)
        assert node.distances.items() <= nodes[node.id].distances.items()
    packages = {package.id: package for package in intact.packages}
    assert all(package.id in packages for package in broken.packages)


@pytest.fixture(scope="module")
def intact(machine):
    return machine.probe()


@settings(max_examples=80, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 16), JUNK), min_size=1, max_size=8))
def test_a_broken_tree_gives_no_wrong_facts_and_reports_what_is_unreadable(machine, intact, changes):
    entries = entries_below(machine.root)
    with Damage(machine.root) as damage:
        for kind, number, junk in changes:
            damage.apply(kind, entries[number % len(entries)], junk)
        start = time.monotonic()
        broken = machine.probe()
        assert time.monotonic() - start < 10
    json.dumps(as_dict(broken), ensure_ascii=False, allow_nan=False).encode("utf-8")
    check_facts(intact, broken)
    assert broken.source.unreadable_count >= len(broken.source.unreadable)
    assert bool(broken.source.unreadable) == any(finding.id == "unreadable" for finding in broken.findings)


def test_damage_is_undone(machine, intact):
    with Damage(machine.root) as damage:
        for number, entry in enumerate(entries_below(machine.root)):
            damage.apply(KINDS[number % len(KINDS)], entry, b"junk")
    assert as_dict(machine.probe()) == as_dict(intact)
    assert intact.source.unreadable == []


def paths_read(machine, monkeypatch, method):
    """The paths for which a probe gets a value from this method of Reader or of Folder."""
    found = set()

    def recording(original, path_of):
        def recorded(self, *args, **kwargs):
            value = original(self, *args, **kwargs)
            if value:
                found.add(path_of(self, *args))
            return value

        return recorded

    with monkeypatch.context() as patch:
        patch.setattr(Reader, method, recording(getattr(Reader, method), lambda reader, path, *_rest: path))
        patch.setattr(
            Folder, method, recording(getattr(Folder, method), lambda folder, *rest: "/".join((folder.path, *rest[:1])))
        )
        machine.probe()
    assert found
    return sorted(found)


def check_each_is_reported(machine, paths, kinds):
    not_reported = []
    for number, path in enumerate(paths):
        with Damage(machine.root) as damage:
            damage.apply(kinds[number % len(kinds)], path[1:], b"\xff\xfe")
            unreadable = machine.probe().source.unreadable
        # the report may name a directory above it
        if not any(path.startswith(line.partition(": ")[0]) for line in unreadable):
            not_reported.append(path)
    assert not_reported == []


def test_every_unreadable_file_is_reported(machine, monkeypatch):
    kinds = ("folder", "fifo", "loop", "outside", "junk")
    check_each_is_reported(machine, paths_read(machine, monkeypatch, "text"), kinds)


def test_every_unreadable_directory_is_reported(machine, monkeypatch):
    check_each_is_reported(machine, paths_read(machine, monkeypatch, "names"), ("junk", "loop", "outside"))


def test_every_invalid_link_is_reported(machine, monkeypatch):
    check_each_is_reported(machine, paths_read(machine, monkeypatch, "link"), ("junk",))


@pytest.mark.parametrize(("depth", "bridges"), [(50, 50), (150, 0)])
def test_bridges_are_unknown_if_a_path_is_too_deep(tmp_path, depth, bridges):
    tree = healthy_machine(tmp_path / "m")
    path = "pci0000:20/" + "/".join(f"0000:{number:02x}:00.0" for number in range(0x30, 0x30 + depth))
    tree.link("sys/bus/pci/devices/0000:20:00.0", f"sys/devices/{path}/0000:20:00.0")
    tree.write(f"sys/devices/{path}/0000:20:00.0/class", "0x030200")
    assert len(tree.probe().functions["0000:20:00.0"].bridges) == bridges
