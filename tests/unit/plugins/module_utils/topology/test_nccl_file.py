# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The topology file for NCCL, read back, agrees with what NCCL itself reads from the same sysfs."""

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
    RECORDED_TREES,
    RECORDINGS,
    needs_recordings,
    unpack,
)
from hypothesis import given, settings
from hypothesis import strategies as st

#: What NCCL's parser accepts: one element per line, one blank before each attribute, no declaration, no escapes.
LINE = re.compile(r'^ *<(?:/[a-z]+|[a-z]+(?: [a-z_]+="[^"&<>\t\n]{0,253}")*/?)>$')


def write_and_import(facts, folder):
    """Write the file of a node, and import it."""
    text = nccl_file(facts)
    assert all(LINE.match(line) for line in text.splitlines()), text
    path = folder / "nccl.xml"
    path.write_text(text)
    return read_xml(str(path))


def devices(topology):
    """The addresses that a file must have: GPUs, NICs except VFs, and the data-direct functions of NICs."""
    addresses = {gpu.address for gpu in topology.gpus} | {nic.address for nic in topology.nics}
    addresses |= {nic.data_direct for nic in topology.nics if nic.data_direct}
    return {address for address in addresses if not topology.functions[address].physfn}


def identity(function):
    names = ("class_code", "vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id")
    return [getattr(function, name) for name in names]


def read_as_nccl(root, address):
    """The switches above a function, its NUMA node and its link, as ncclTopoGetXmlFromSys reads them."""
    folder = os.path.realpath(root / "sys/bus/pci/devices" / address)
    speed, width = link_speed_and_width(folder)
    switches = []
    while True:
        numa = pathlib.Path(folder, "numa_node").read_text().strip()
        parent, grandparent = os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))
        if not (is_function(parent) and is_function(grandparent)):
            return switches[::-1], numa, speed, width
        switches.append(os.path.basename(grandparent))
        folder = grandparent


def is_function(folder):
    return re.fullmatch("[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-9a-f]", os.path.basename(folder))


def link_speed_and_width(folder):
    """The lower speed and the lower width of the two ends of a link, which are those that NCCL uses."""
    speeds, widths = [], []
    for end in (folder, os.path.dirname(folder)):
        try:
            speeds.append(float(pathlib.Path(end, "max_link_speed").read_text().split()[0]))
            widths.append(int(pathlib.Path(end, "max_link_width").read_text()))
        except (OSError, ValueError):
            continue
    widths = [width for width in widths if 0 < width < 255]
    return min(speeds, default=None), min(widths, default=None)


def compare_with_nccl(root, folder):
    """Compare the file of a machine, read back, with what NCCL reads from its sysfs. Returns the number of devices."""
    topology = probe(str(root))
    if not devices(topology):
        with pytest.raises(ValueError, match="no GPU and no NIC"):
            nccl_file(as_dict(topology))
        return 0
    imported = write_and_import(as_dict(topology), folder)
    expected = devices(topology)
    assert {function.address for function in imported.functions.values() if function.kind != "bridge"} >= expected
    for address in expected:
        function, probed = imported.functions[address], topology.functions[address]
        switches, numa, speed, width = read_as_nccl(root, address)
        assert function.bridges == switches, address
        assert identity(function) == identity(probed)
        assert probed.kind in (function.kind, "data_direct")
        if numa != "-1":
            assert function.numa_node == int(numa)
        assert function.numa_node == probed.numa_node
        link = function.link
        if probed.bridges and probed.bridges[-1] not in topology.functions:
            assert link is None  # the recording lacks the other end
            continue
        assert (link and link.max_speed_gts, link and link.max_width) == (speed, width), address
    check_numa_nodes(topology, imported)
    compare_levels(topology, imported)
    return len(expected)


def check_numa_nodes(topology, imported):
    """The file has only NUMA nodes of devices: NCCL attaches networks to the first, even if it has no GPU."""
    expected = numa_nodes_of_devices(topology) - {None}
    assert {node.id for node in imported.numa_nodes} == expected
    assert set(ids_and_cpus(imported)) <= set(ids_and_cpus(topology))


def ids_and_cpus(topology):
    return [(node.id, node.cpus) for node in topology.numa_nodes]


def compare_levels(topology, imported):
    """Devices share a switch in the file if and only if they share one on the machine."""
    near = ("SELF", "PIX", "PXB")
    addresses = sorted(devices(topology))
    for first in addresses:
        for second in addresses:
            before = affinity.level(topology.functions[first], topology.functions[second])
            after = affinity.level(imported.functions[first], imported.functions[second])
            assert (before in near) == (after in near), (first, second, before, after)
            if before in ("NODE", "SYS", "UNKNOWN"):
                assert after == before, (first, second)


@pytest.mark.parametrize("name", names())
def test_the_file_of_an_example_machine_agrees_with_nccl(name, tmp_path):
    assert compare_with_nccl(build(name, tmp_path / "machine"), tmp_path)


@needs_recordings
@pytest.mark.parametrize("archive", RECORDED_TREES, ids=lambda path: path and path.name)
def test_the_file_of_a_recorded_tree_agrees_with_nccl(archive, tmp_path):
    root = unpack(archive, tmp_path)
    compare_with_nccl(root, tmp_path)


@needs_recordings
def test_a_file_written_from_a_recorded_file_has_the_same_devices_and_locations(tmp_path):
    """That includes devices below switches with invented addresses."""
    for path in sorted(RECORDINGS.glob("nccl/*.xml")):
        before = read_xml(str(path))
        if not devices(before):  # the recorded file has only addresses, without classes
            with pytest.raises(ValueError, match="no GPU and no NIC"):
                nccl_file(as_dict(before))
            continue
        after = write_and_import(as_dict(before), tmp_path)
        assert facts_of(after, devices(before)) == facts_of(before, devices(before)), path.name
        expected = [node for node in ids_and_cpus(before) if node[1] or node[0] in numa_nodes_of_devices(before)]
        assert ids_and_cpus(after) == expected


def facts_of(topology, addresses):
    functions = [topology.functions[address] for address in sorted(addresses)]
    return [
        (function.address, function.kind, function.bridges, function.numa_node, identity(function), function.link)
        for function in functions
    ]


def numa_nodes_of_devices(topology):
    return {topology.functions[address].numa_node for address in devices(topology)}


GPU = {"class_code": "030200", "vendor_id": "10de", "device_id": "2330"}
NIC = {"class_code": "020000", "vendor_id": "15b3", "device_id": "1021"}

#: A bridge is the list of the bridges and devices below it, and a device is an empty list.
TREES = st.recursive(st.just([]), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=14)


def topology_of(trees, numa_nodes):
    """A topology with a root complex for each tree, at these NUMA nodes. Each device is a GPU or a NIC."""
    topology = Topology()
    topology.system.architecture = "x86_64"
    counter = iter(range(1, 1 << 12))

    def add(tree, above, root, numa):
        number = next(counter)
        address = f"{root[3:7]}:{number & 0xFF:02x}:00.0"
        location = {"root_complex": root, "bridges": above, "numa_node": numa, "numa_source": "kernel"}
        if not tree:
            values = GPU if number % 2 else NIC
            kind = ids.kind(values["class_code"], values["vendor_id"], values["device_id"], True)
            topology.functions[address] = PciFunction(address=address, kind=kind, **values, **location)
            return
        bridge = {"class_code": "060400", "vendor_id": "1000", "device_id": "c030"}
        topology.functions[address] = PciFunction(address=address, kind="bridge", **bridge, **location)
        for child in tree:
            add(child, [*above, address], root, numa)

    for index, (tree, numa) in enumerate(zip(trees, numa_nodes)):
        for child in tree or [[]]:
            add(child, [], f"pci{index:04x}:00", numa)
    complete(topology)
    return topology


@settings(max_examples=300)
@given(
    trees=st.lists(TREES, min_size=1, max_size=4),
    numa_nodes=st.lists(st.sampled_from([None, 0, 1]), min_size=4, max_size=4),
)
def test_the_file_of_any_topology_is_read_back(trees, numa_nodes, tmp_path_factory):
    topology = topology_of(trees, numa_nodes)
    facts = as_dict(topology)
    imported = write_and_import(facts, tmp_path_factory.getbasetemp())
    assert devices(imported) == devices(topology)
    for address in devices(topology):
        function, expected = imported.functions[address], topology.functions[address]
        assert (function.kind, function.numa_node) == (expected.kind, expected.numa_node)
        assert identity(function) == identity(expected)
        assert [bridge for bridge in expected.bridges if bridge in function.bridges] == function.bridges
    compare_levels(topology, imported)
    assert nccl_file(as_dict(imported)) == nccl_file(facts)


def probe_and_import(name, folder, *overrides):
    """The topology of an example machine, and the same as imported from its file."""
    topology = probe(str(build(name, folder / "machine")), [dict(override) for override in overrides])
    return topology, write_and_import(as_dict(topology), folder)


def test_the_file_has_the_stated_locality_of_a_virtual_machine(tmp_path):
    """The provider hides switches and sockets; the file has those that the site states."""
    plain, imported = probe_and_import("azure-vm", tmp_path / "plain")
    assert all(not imported.functions[address].bridges for address in devices(plain))
    pairs = list(zip(plain.gpus, [nic for nic in plain.nics if nic.rdma_devices]))
    assert pairs
    overrides = [
        {"address": device.address, "switch": f"switch {number}", "numa_node": number % 2}
        for number, pair in enumerate(pairs)
        for device in pair
    ]
    assert check_overrides(overrides)
    topology, imported = probe_and_import("azure-vm", tmp_path / "stated", *overrides)
    compare_levels(topology, imported)
    for number, pair in enumerate(pairs):
        gpu, nic = (imported.functions[device.address] for device in pair)
        assert len(gpu.bridges) == 1 and gpu.bridges == nic.bridges
        assert gpu.numa_node == nic.numa_node == number % 2
        assert gpu.bridges[0].startswith("ffff:ff:")
        switch = imported.functions[gpu.bridges[0]]
        assert switch.class_code == "060400"


def processors(text):
    """The attributes of each cpu element of a file."""
    return [dict(re.findall(r'([a-z_]+)="([^"]*)"', line)) for line in text.splitlines() if "<cpu " in line]


@pytest.mark.parametrize("name", recorded.names())
def test_each_processor_has_the_attributes_that_nccl_gives_it(name, tmp_path):
    """NCCL itself reads them only for NUMA nodes of its devices, and fails if the first node has no vendor."""
    [expected] = processors(recorded.recording(name)["nccl"])
    written = processors(nccl_file(as_dict(probe(str(recorded.write(name, tmp_path))))))
    required = ("arch", "vendor", "familyid", "modelid")
    assert written and all(
        {key: processor[key] for key in required} == {key: expected[key] for key in required} for processor in written
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
def test_vendor_and_family_are_written_only_if_nccl_interprets_them_in_the_same_way(system, attributes, tmp_path):
    facts = as_dict(probe(str(build("hgx-h100", tmp_path / "machine"))))
    for key in ("cpu_vendor", "cpu_family", "cpu_model_number"):
        facts["system"].pop(key)
    facts["system"].update(system)
    written = processors(nccl_file(facts))
    assert len(written) == 2
    assert all(
        tuple(processor.get(key) for key in ("vendor", "familyid", "modelid")) == attributes for processor in written
    )


def test_hostile_ids_are_not_written(tmp_path):
    facts = as_dict(probe(str(build("hgx-h100", tmp_path / "machine"))))
    gpu = facts["gpus"][0]["address"]
    facts["functions"][gpu]["vendor_id"] = '10de"/><pci busid="0000:00:00.0'
    facts["functions"][gpu]["class_code"] = "0302&quot;"
    imported = write_and_import(facts, tmp_path)
    assert imported.functions[gpu].vendor_id is None
    assert imported.functions[gpu].class_code is None


@pytest.mark.parametrize(("cpus", "is_written"), [(896, True), (897, False)])
def test_the_cpus_of_a_numa_node_are_written_only_if_nccl_reads_so_many(cpus, is_written, tmp_path):
    facts = as_dict(probe(str(build("hgx-h100", tmp_path / "machine"))))
    facts["numa_nodes"][0]["cpus"] = f"0-{cpus - 1}"
    imported = write_and_import(facts, tmp_path)
    assert imported.numa_nodes[0].cpus == (f"0-{cpus - 1}" if is_written else None)


def test_a_node_with_too_many_devices_has_no_file():
    topology = topology_of([[[] for _number in range(MAX_ELEMENTS)]], [0])
    with pytest.raises(ValueError, match="elements"):
        nccl_file(as_dict(topology))


def test_a_nic_below_a_wrong_switch_is_found(tmp_path):
    """The comparison with NCCL can fail."""
    root = build("hgx-h100", tmp_path / "machine")
    topology = probe(str(root))
    facts = as_dict(topology)
    nics = [nic["address"] for nic in facts["nics"] if facts["functions"][nic["address"]]["bridges"]]
    nic, other = nics[0], nics[-1]
    facts["functions"][nic]["bridges"] = facts["functions"][other]["bridges"]
    imported = write_and_import(facts, tmp_path)
    assert imported.functions[nic].bridges != read_as_nccl(root, nic)[0]
