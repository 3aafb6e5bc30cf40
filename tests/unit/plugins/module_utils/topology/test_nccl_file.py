# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The file for NCCL, read back, against what NCCL finds itself in the same sysfs."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import affinity, ids
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import PciFunction, Topology, as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.nccl_file import MAX_ELEMENTS, nccl_file
from ansible_collections.lanewise.dra.plugins.module_utils.topology.overrides import check_overrides
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import complete, probe
from ansible_collections.lanewise.dra.plugins.module_utils.topology.xml_import.read import read_xml
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.nvidia import recorded
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.test_xml_import_any import (
    REAL,
    TREES_ON_FILE,
    needs_real_files,
    unpacked,
)
from hypothesis import given, settings
from hypothesis import strategies as st

#: What NCCL's parser takes: one element a line, attributes with one blank before each, no declaration, no escapes.
LINE = re.compile(r'^ *<(?:/[a-z]+|[a-z]+(?: [a-z_]+="[^"&<>\t\n]{0,250}")*/?)>$')


def read_back(facts, folder):
    """The file of a node as our importer reads it."""
    text = nccl_file(facts)
    assert all(LINE.match(line) for line in text.splitlines()), text
    path = folder / "nccl.xml"
    path.write_text(text)
    return read_xml(str(path))


def devices(topology):
    """The devices that a file must have: GPUs, NICs except VFs, and the DMA functions of NICs."""
    found = {gpu.address for gpu in topology.gpus} | {nic.address for nic in topology.nics}
    found |= {nic.data_direct for nic in topology.nics if nic.data_direct}
    return {one for one in found if not topology.functions[one].physfn}


def identity(function):
    names = ("class_code", "vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id")
    return [getattr(function, name) for name in names]


def climb(root, address):
    """The switches above a function, its NUMA node and its link, as ncclTopoGetXmlFromSys reads them."""
    place = os.path.realpath(root / "sys/bus/pci/devices" / address)
    speed, width = link(place)
    switches = []
    while True:
        numa = pathlib.Path(place, "numa_node").read_text().strip()
        first, second = os.path.dirname(place), os.path.dirname(os.path.dirname(place))
        if not (is_function(first) and is_function(second)):
            return switches[::-1], numa, speed, width
        switches.append(os.path.basename(second))
        place = second


def is_function(place):
    return re.fullmatch("[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-9a-f]", os.path.basename(place))


def link(place):
    """The lower of the two ends, as NCCL takes it."""
    speeds, widths = [], []
    for end in (place, os.path.dirname(place)):
        try:
            speeds.append(float(pathlib.Path(end, "max_link_speed").read_text().split()[0]))
            widths.append(int(pathlib.Path(end, "max_link_width").read_text()))
        except (OSError, ValueError):
            continue
    widths = [width for width in widths if 0 < width < 255]
    return min(speeds, default=None), min(widths, default=None)


def compare_with_nccl(root, folder):
    """Compare the file of a machine's tree, read back, with what NCCL climbs there. Returns the number of devices."""
    topology = probe(str(root))
    if not devices(topology):
        with pytest.raises(ValueError, match="no GPU and no NIC"):
            nccl_file(as_dict(topology))
        return 0
    found = read_back(as_dict(topology), folder)
    expected = devices(topology)
    assert {one.address for one in found.functions.values() if one.kind != "bridge"} >= expected
    for address in expected:
        function, own = found.functions[address], topology.functions[address]
        switches, numa, speed, width = climb(root, address)
        assert function.bridges == switches, address
        assert identity(function) == identity(own)
        assert own.kind in (function.kind, "data_direct")
        if numa != "-1":
            assert function.numa_node == int(numa)
        assert function.numa_node == own.numa_node
        read = function.link
        if own.bridges and own.bridges[-1] not in topology.functions:
            assert read is None  # the recording lacks the other end
            continue
        assert (read and read.max_speed_gts, read and read.max_width) == (speed, width), address
    same_nodes(topology, found)
    compare_levels(topology, found)
    return len(expected)


def same_nodes(topology, found):
    """The nodes of devices, and no others: NCCL would put a network below the first node, without a link to a GPU."""
    places = {topology.functions[one].numa_node for one in devices(topology)} - {None}
    assert {node.id for node in found.numa_nodes} == places
    assert all(node in [(one.id, one.cpus) for one in topology.numa_nodes] for node in nodes(found))


def nodes(topology):
    return [(node.id, node.cpus) for node in topology.numa_nodes]


def compare_levels(topology, found):
    """Devices that share a switch on the machine share one in the file, and no others do."""
    near = ("SELF", "PIX", "PXB")
    addresses = sorted(devices(topology))
    for one in addresses:
        for other in addresses:
            before = affinity.level(topology.functions[one], topology.functions[other])
            after = affinity.level(found.functions[one], found.functions[other])
            assert (before in near) == (after in near), (one, other, before, after)
            if before in ("NODE", "SYS", "UNKNOWN"):
                assert after == before, (one, other)


@pytest.mark.parametrize("name", names())
def test_the_file_of_an_example_machine_agrees_with_nccl(name, tmp_path):
    assert compare_with_nccl(build(name, tmp_path / "machine"), tmp_path)


@needs_real_files
@pytest.mark.parametrize("archive", TREES_ON_FILE, ids=lambda path: path and path.name)
def test_the_file_of_a_recorded_tree_agrees_with_nccl(archive, tmp_path):
    root = unpacked(archive, tmp_path)
    compare_with_nccl(root, tmp_path)


@needs_real_files
def test_a_file_written_from_a_recorded_one_keeps_the_places(tmp_path):
    """A file that is written from a recorded one places devices alike, below switches with made-up addresses, too."""
    for path in sorted(REAL.glob("nccl/*.xml")):
        before = read_xml(str(path))
        if not devices(before):  # this file has addresses only
            with pytest.raises(ValueError, match="no GPU and no NIC"):
                nccl_file(as_dict(before))
            continue
        after = read_back(as_dict(before), tmp_path)
        assert places(after, devices(before)) == places(before, devices(before)), path.name
        known = [node for node in nodes(before) if node[1] or node[0] in numa_of(before)]
        assert nodes(after) == known


def places(topology, addresses):
    chosen = [topology.functions[address] for address in sorted(addresses)]
    return [(one.address, one.kind, one.bridges, one.numa_node, identity(one), one.link) for one in chosen]


def numa_of(topology):
    return {topology.functions[address].numa_node for address in devices(topology)}


GPU = {"class_code": "030200", "vendor_id": "10de", "device_id": "2330"}
NIC = {"class_code": "020000", "vendor_id": "15b3", "device_id": "1021"}

#: A bridge is the list of what is below it, a device is empty. A device below a list of bridges alone is odd, but
#: machines have it: a bridge to PCI with several slots.
TREES = st.recursive(st.just([]), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=14)


def forest(trees, places_of_roots):
    """A topology with a root complex for each tree. Devices are GPUs and NICs in turn."""
    topology = Topology()
    topology.system.architecture = "x86_64"
    counter = iter(range(1, 1 << 12))

    def add(tree, above, root, numa):
        number = next(counter)
        address = f"{number >> 8:04x}:{number & 0xFF:02x}:00.0"
        address = f"{root[3:7]}{address[4:]}"
        ours = {"root_complex": root, "bridges": above, "numa_node": numa, "numa_source": "kernel"}
        if not tree:
            values = GPU if number % 2 else NIC
            kind = ids.kind(values["class_code"], values["vendor_id"], values["device_id"], True)
            topology.functions[address] = PciFunction(address=address, kind=kind, **values, **ours)
            return
        bridge = {"class_code": "060400", "vendor_id": "1000", "device_id": "c030"}
        topology.functions[address] = PciFunction(address=address, kind="bridge", **bridge, **ours)
        for one in tree:
            add(one, [*above, address], root, numa)

    for index, (tree, numa) in enumerate(zip(trees, places_of_roots)):
        for one in tree or [[]]:
            add(one, [], f"pci{index:04x}:00", numa)
    complete(topology)
    return topology


@settings(max_examples=300)
@given(
    trees=st.lists(TREES, min_size=1, max_size=4),
    places_of_roots=st.lists(st.sampled_from([None, 0, 1]), min_size=4, max_size=4),
)
def test_the_file_of_any_tree_reads_back_the_same(trees, places_of_roots, tmp_path_factory):
    topology = forest(trees, places_of_roots)
    facts = as_dict(topology)
    found = read_back(facts, tmp_path_factory.getbasetemp())
    assert devices(found) == devices(topology)
    for address in devices(topology):
        function, own = found.functions[address], topology.functions[address]
        assert (function.kind, function.numa_node, identity(function)) == (own.kind, own.numa_node, identity(own))
        assert [one for one in own.bridges if one in function.bridges] == function.bridges
    compare_levels(topology, found)
    again = nccl_file(as_dict(found))
    assert again == nccl_file(facts)


def machine(name, folder, *stated):
    topology = probe(str(build(name, folder / "machine")), [dict(one) for one in stated])
    return topology, read_back(as_dict(topology), folder)


def test_the_file_has_the_stated_locality_of_a_virtual_machine(tmp_path):
    """The provider hides switches and sockets; the file has those that the site states."""
    plain, found = machine("azure-vm", tmp_path / "plain")
    assert all(not found.functions[address].bridges for address in devices(plain))
    pairs = list(zip(plain.gpus, [nic for nic in plain.nics if nic.rdma_devices]))
    assert pairs
    stated = [
        {"address": one.address, "switch": f"switch {number}", "numa_node": number % 2}
        for number, pair in enumerate(pairs)
        for one in pair
    ]
    assert check_overrides(stated)
    topology, found = machine("azure-vm", tmp_path / "stated", *stated)
    compare_levels(topology, found)
    for number, (gpu, nic) in enumerate(pairs):
        ours, theirs = found.functions[gpu.address], found.functions[nic.address]
        assert len(ours.bridges) == 1 and ours.bridges == theirs.bridges
        assert ours.numa_node == theirs.numa_node == number % 2
        assert ours.bridges[0].startswith("ffff:ff:")
        switch = found.functions[ours.bridges[0]]
        assert switch.class_code == "060400"


def processors(text):
    """The attributes of each cpu element of a file."""
    return [dict(re.findall(r'([a-z_]+)="([^"]*)"', line)) for line in text.splitlines() if "<cpu " in line]


@pytest.mark.parametrize("name", recorded.names())
def test_each_processor_has_the_attributes_that_nccl_gives_it(name, tmp_path):
    """NCCL ends if the first one lacks them, and reads them itself only beside the GPUs and NICs of a process."""
    [own] = processors(recorded.recording(name)["nccl"])
    written = processors(nccl_file(as_dict(probe(str(recorded.write(name, tmp_path))))))
    demanded = ("arch", "vendor", "familyid", "modelid")
    assert written and all(
        {key: one[key] for key in demanded} == {key: own[key] for key in demanded} for one in written
    )


@pytest.mark.parametrize(
    ("system", "attributes"),
    [
        ({"cpu_vendor": "GenuineIntel", "cpu_family": 6, "cpu_model_number": 143}, ("GenuineIntel", "6", "143")),
        ({"cpu_vendor": "AuthenticAMD", "cpu_family": 25, "cpu_model_number": 17}, ("AuthenticAMD", None, None)),
        ({"cpu_vendor": "GenuineIntel", "cpu_family": 6}, (None, None, None)),
        ({"cpu_vendor": "GenuineIntel", "cpu_family": 19, "cpu_model_number": 1}, (None, None, None)),
        ({"cpu_vendor": "AuthenticAMD"}, ("AuthenticAMD", None, None)),
        ({"cpu_vendor": "Shanghai", "cpu_family": 7, "cpu_model_number": 91}, (None, None, None)),
        ({"cpu_vendor": None}, (None, None, None)),
        ({}, (None, None, None)),
    ],
)
def test_a_processor_is_described_as_nccl_counts_families(system, attributes, tmp_path):
    facts = as_dict(probe(str(build("hgx-h100", tmp_path / "machine"))))
    for key in ("cpu_vendor", "cpu_family", "cpu_model_number"):
        facts["system"].pop(key)
    facts["system"].update(system)
    found = processors(nccl_file(facts))
    assert len(found) == 2
    assert all(tuple(one.get(key) for key in ("vendor", "familyid", "modelid")) == attributes for one in found)


def test_hostile_text_stays_within_its_attribute(tmp_path):
    topology, _found = machine("hgx-h100", tmp_path)
    facts = as_dict(topology)
    gpu = facts["gpus"][0]["address"]
    facts["functions"][gpu]["vendor_id"] = '10de"/><pci busid="0000:00:00.0'
    facts["functions"][gpu]["class_code"] = "0302&quot;"
    found = read_back(facts, tmp_path)
    assert found.functions[gpu].vendor_id is None
    assert found.functions[gpu].class_code is None


def test_a_node_with_too_many_devices_has_no_file():
    topology = forest([[[] for _number in range(MAX_ELEMENTS)]], [0])
    with pytest.raises(ValueError, match="elements"):
        nccl_file(as_dict(topology))


def test_a_device_on_another_switch_is_noticed(tmp_path):
    """The comparison can fail: here a file has one NIC below a wrong switch."""
    root = build("hgx-h100", tmp_path / "machine")
    topology = probe(str(root))
    facts = as_dict(topology)
    nics = [nic["address"] for nic in facts["nics"] if facts["functions"][nic["address"]]["bridges"]]
    one, other = nics[0], nics[-1]
    facts["functions"][one]["bridges"] = facts["functions"][other]["bridges"]
    found = read_back(facts, tmp_path)
    assert found.functions[one].bridges != climb(root, one)[0]
