# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The import of NCCL and lstopo files that were written for tests."""

from __future__ import annotations

import re

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import cpuset
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Link, as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.xml_import.read import read_xml
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.xml_documents import (
    CLOUD,
    DUMP,
    LSTOPO,
    LSTOPO_3,
    finding_ids,
    level,
    load,
)


def test_levels_groups_and_rails_are_those_of_an_nccl_file():
    cloud = load(CLOUD)
    assert level(cloud, "0000:10:1c.0", "0000:10:1b.0") == "PIX"
    assert level(cloud, "0000:10:1c.0", "0000:20:1b.0") == "NODE"
    assert level(cloud, "0000:10:1c.0", "0000:90:1b.0") == "SYS"
    assert [(group.level, group.common, group.gpus, group.nics) for group in cloud.groups] == [
        ("PIX", "ffff:ff:01.0", ["0000:10:1c.0", "0000:10:1d.0"], ["0000:10:1b.0"]),
        ("PIX", "ffff:ff:02.0", ["0000:20:1c.0"], ["0000:20:1b.0"]),
        ("PIX", "ffff:ff:03.0", ["0000:90:1c.0"], ["0000:90:1b.0"]),
    ]
    assert [gpu.rail for gpu in cloud.gpus] == [0, 0, 2, 3]  # the second GPU shares rail 0


def test_a_switch_below_another_in_an_nccl_file_is_a_separate_switch():
    nested = load(
        '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x060400">'
        '<pci busid="0000:02:00.0" class="0x060400"><pci busid="0000:03:00.0" class="0x030200"/></pci>'
        '<pci busid="0000:04:00.0" class="0x060400"><pci busid="0000:05:00.0" class="0x020700"/></pci>'
        '<pci busid="0000:06:00.0" class="0x020700"/>'
        "</pci></cpu></system>"
    )
    assert level(nested, "0000:03:00.0", "0000:05:00.0") == "PXB"
    assert level(nested, "0000:03:00.0", "0000:06:00.0") == "PXB"


def test_facts_are_read_from_an_nccl_file():
    cloud = load(CLOUD)
    assert (cloud.source.kind, cloud.system.architecture) == ("nccl_xml", "x86_64")
    assert [(node.id, node.cpus) for node in cloud.numa_nodes] == [(0, "0-47"), (1, "48-63")]
    gpu = cloud.functions["0000:10:1c.0"]
    assert (gpu.kind, gpu.name, gpu.numa_node, gpu.numa_source) == ("gpu", "NVIDIA A100 SXM4 40GB", 0, "import")
    assert gpu.link == Link(max_speed_gts=8.0, max_width=16)
    assert cloud.functions["0000:10:1d.0"].link == Link(max_speed_gts=8.0)
    assert cloud.functions["0000:10:1b.0"].link is None
    switch = cloud.functions["ffff:ff:01.0"]
    assert (switch.kind, switch.vendor_id, switch.bridges) == ("bridge", None, [])
    assert cloud.functions["0000:20:1c.0"].kind == "gpu"  # a class of 03 without a vendor
    for function in cloud.functions.values():
        assert function.root_complex is None
        assert function.kubernetes == {}


def test_facts_are_read_from_an_nccl_dump():
    dump = load(DUMP)
    assert dump.system.architecture == "aarch64"
    assert dump.numa_nodes == []
    kinds = {address: function.kind for address, function in dump.functions.items()}
    assert kinds == {
        "0000:0b:00.0": "bridge",
        "0000:0c:00.0": "gpu",
        "0000:0d:00.0": "nic",
        "0000:0e:00.0": "nic",
        "0000:0f:00.0": "gpu",
    }
    assert dump.functions["0000:0c:00.0"].class_code is None
    assert dump.functions["0000:0c:00.0"].numa_node is None
    first, second = dump.rdma_devices
    assert (first.name, first.address, first.sys_image_guid) == ("mlx5_0", "0000:0d:00.0", "a0a1:0300:1234:5678")
    assert [(port.port, port.rate_gbps, port.state) for port in first.ports] == [(1, 200.0, None), (2, 100.0, None)]
    assert (second.name, second.address, second.ports) == ("mlx5_1", None, [])
    assert [(net.name, net.kind, net.address, net.speed_mbps) for net in dump.interfaces] == [
        ("ens9f0", "physical", "0000:0e:00.0", 25000),
        ("eth0", "virtual", None, 10000),
    ]
    assert {nic.address: nic.speed_mbps for nic in dump.nics} == {"0000:0d:00.0": 200000, "0000:0e:00.0": 25000}


def test_facts_are_read_from_an_rccl_dump():
    dump = load(
        '<system version="2"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD">'
        '<pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">'
        '<pci busid="0000:02:00.0" class="0x120000" vendor="0x1002" device="0x74a1" link_speed="32.0 GT/s PCIe">'
        '<gpu dev="0" sm="94" gcn="gfx942" arch="38911" rank="0" gdr="1">'
        '<xgmi target="0000:22:00.0" count="1" tclass="0x120000"/></gpu></pci>'
        '<pci busid="0000:03:00.0" class="0x020000" vendor="0x14e4" device="0x1760">'
        '<nic><net name="bnxt_re0" dev="0" speed="400000" port="1" guid="0x1" gdr="1"/></nic></pci>'
        "</pci></cpu></system>"
    )
    assert [(gpu.address, gpu.nearest_nics.level) for gpu in dump.gpus] == [("0000:02:00.0", "PIX")]
    assert [nic.rdma_devices for nic in dump.nics] == [["bnxt_re0"]]


def switch_with_pair(bus, gpu, nic):
    """A switch with a GPU and a NIC, by their bus numbers."""
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x060400"><pci busid="0000:{gpu}:00.0" class="0x030200"/>'
        f'<pci busid="0000:{nic}:00.0" class="0x020700"/></pci>'
    )


def test_switches_with_the_same_bus_id_stay_separate():
    """In RCCL's example topo_4p4h, all switches of a level have the same bus ID."""
    node = load(
        '<system version="2"><cpu numaid="1"><pci busid="0000:c3:00.0" class="0x060400">'
        + switch_with_pair("c5", "cf", "cd")
        + switch_with_pair("c5", "d0", "cc")
        + switch_with_pair("c5", "d1", "ce")
        + "</pci></cpu></system>"
    )
    assert [gpu.nearest_nics.devices for gpu in node.gpus] == [["0000:cd:00.0"], ["0000:cc:00.0"], ["0000:ce:00.0"]]
    assert {gpu.nearest_nics.level for gpu in node.gpus} == {"PIX"}
    assert level(node, "0000:cf:00.0", "0000:d0:00.0") == "PXB"
    finding = next(finding for finding in node.findings if finding.id == "import-address-shared")
    assert finding.devices == ["ffff:fe:00.0", "ffff:fe:00.1"]
    assert finding.evidence[0] == "ffff:fe:00.0: 0000:c5:00.0 in line 1"


def test_a_nic_keeps_its_address_if_an_earlier_switch_has_the_same():
    """In RCCL's example topo_8p1h_1, a1:00.0 is a switch and also a NIC below another switch."""
    node = load(
        '<system version="2"><cpu numaid="1">'
        '<pci busid="0000:a1:00.0" class="0x060400"><pci busid="0000:ae:00.0" class="0x030200"/></pci>'
        + switch_with_pair("81", "8e", "a1")
        + "</cpu></system>"
    )
    assert [nic.address for nic in node.nics] == ["0000:a1:00.0"]
    assert node.functions["0000:ae:00.0"].bridges == ["ffff:fe:00.0"]
    assert level(node, "0000:8e:00.0", "0000:a1:00.0") == "PIX"
    assert level(node, "0000:ae:00.0", "0000:a1:00.0") == "NODE"


def test_two_gpus_with_the_same_bus_id_are_refused():
    pairs = switch_with_pair("01", "02", "03") + switch_with_pair("11", "02", "13")
    with pytest.raises(ValueError, match="an address of its own .line 1 has it too"):
        load(f'<system version="1"><cpu numaid="0">{pairs}</cpu></system>')


@pytest.mark.parametrize(
    ("names", "controllers"),
    [(("nvme0n1",), ["nvme0"]), (("nvme1n1", "nvme1n2"), ["nvme1"]), (("nvme0c2n1",), ["nvme2"])],
)
def test_an_nvme_controller_is_named_after_its_block_devices(names, controllers):
    devices = "".join(f'<object type="OSDev" name="{name}" osdev_type="0"/>' for name in names)
    node = load(re.sub('<object type="OSDev" name="nvme0n1".*?</object>', devices, LSTOPO, flags=re.DOTALL))
    assert [nvme.controllers for nvme in node.nvme] == [controllers]


@pytest.mark.parametrize(("digits", "vendor"), [("0x038000", "0x1a03"), ("0x0b4000", "0x8086"), ("0x088000", "0x1d0f")])
def test_a_function_with_a_gpu_element_is_a_gpu(digits, vendor):
    node = load(
        f'<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="{digits}" vendor="{vendor}" '
        'device="0x4940"><gpu dev="0" sm="90" rank="0"/></pci></cpu></system>'
    )
    assert [(gpu.address, gpu.kind) for gpu in node.gpus] == [("0000:01:00.0", "gpu")]


def test_functions_without_a_class_in_an_nccl_file_have_no_kind():
    bare = load(
        '<system version="1"><cpu numaid="0"><pci busid="0000:00:16.0"/><pci busid="0000:00:17.0"/></cpu>'
        '<cpu numaid="1"><pci busid="0000:00:1a.0"/></cpu></system>'
    )
    assert {function.kind for function in bare.functions.values()} == {"other"}
    assert bare.gpus == bare.nics == []
    assert bare.functions["0000:00:1a.0"].numa_node == 1
    finding = next(finding for finding in bare.findings if finding.id == "import-kind-unknown")
    assert finding.devices == ["0000:00:16.0", "0000:00:17.0", "0000:00:1a.0"]


def test_an_nccl_file_gives_no_findings_about_slots_drivers_and_root_attributes():
    slow_uplink = CLOUD.replace('device="0xffff" link_speed="8 GT/s"', 'device="0xffff" link_speed="2.5 GT/s"')
    assert slow_uplink != CLOUD
    not_applicable = {"link-limited-by-slot", "link-degraded", "no-driver", "no-pcie-root-attribute"}
    assert not not_applicable & finding_ids(load(slow_uplink))


def test_functions_without_a_switch_in_an_nccl_file_give_no_finding_about_root_complexes():
    flat = load(
        '<system version="1"><cpu numaid="0"><pci busid="0000:00:16.0" class="0x030200"/>'
        '<pci busid="0000:00:17.0" class="0x020000"/></cpu></system>'
    )
    assert flat.gpus[0].nearest_nics.level == "NODE"
    assert "gpu-nic-through-cpu" not in finding_ids(flat)


def test_overrides_apply_to_an_imported_file():
    overrides = [{"address": "0000:90:1c.0", "numa_node": 0}, {"address": "0000:10:1b.0", "rail": 7}]
    cloud = load(CLOUD, overrides=overrides)
    assert (cloud.functions["0000:90:1c.0"].numa_node, cloud.functions["0000:90:1c.0"].numa_source) == (0, "override")
    assert [(nic.rail, nic.rail_source) for nic in cloud.nics if nic.rail is not None] == [(7, "override")]
    with pytest.raises(ValueError, match="locality_overrides"):
        load(CLOUD, overrides=[{"address": "nonsense"}])


def test_the_machine_is_read_from_an_lstopo_file():
    node = load(LSTOPO)
    assert node.source.kind == "hwloc_xml"
    assert (node.system.product, node.system.vendor, node.system.kernel, node.system.cpu_model) == (
        "R1",
        "Vendor",
        "6.8.0",
        "CPU 1",
    )
    assert [
        (numa_node.id, numa_node.cpus, numa_node.package, numa_node.memory_bytes, numa_node.distances)
        for numa_node in node.numa_nodes
    ] == [
        (0, "0-7", 0, 1024, {"0": 10, "8": 40}),
        (8, "64-67", 1, None, {"0": 40, "8": 10}),
    ]
    assert [(package.id, package.cpus, package.numa_nodes) for package in node.packages] == [
        (0, "0-7", [0]),
        (1, "64-67", [8]),
    ]


def test_functions_are_read_from_an_lstopo_file():
    node = load(LSTOPO)
    nic = node.functions["0000:18:00.0"]
    assert (nic.kind, nic.class_code, nic.name) == ("nic", "020700", "NVIDIA ConnectX-6")
    assert (nic.slot, nic.revision) == ("4", "00")
    assert (nic.bridges, nic.numa_node, nic.numa_source, nic.local_cpus) == (["0000:17:00.0"], 0, "import", "0-7")
    assert nic.link == Link(gb_per_s=31.508)
    assert node.functions["0000:19:00.0"].link is None
    assert (
        node.functions["0000:17:00.0"].class_code is None
    )  # the programming interface is 00 or 01 (subtractive decoding); hwloc does not report it
    assert node.functions["0001:04:00.0"].vendor_id is None
    assert node.functions["0001:04:00.0"].kind == "other"
    assert node.functions["0001:04:00.0"].numa_node == 8
    assert node.functions["0002:00:01.0"].numa_node is None  # its CPUs are those of the whole machine
    assert [(nvme.address, nvme.model, nvme.serial, nvme.numa_node) for nvme in node.nvme] == [
        ("10000:01:00.0", "Disk", "S1", 0)
    ]
    assert node.gpus[0].model == "NVIDIA A100-SXM4-80GB"
    assert all(function.kubernetes == {} for function in node.functions.values())


def test_a_root_complex_is_known_only_if_the_lstopo_file_proves_it():
    node = load(LSTOPO)
    roots = {address: function.root_complex for address, function in node.functions.items()}
    assert roots == {
        "0000:17:00.0": "pci0000:17",
        "0000:18:00.0": "pci0000:17",
        "0000:19:00.0": "pci0000:17",
        "0000:30:00.0": "pci0000:30",
        "0001:04:00.0": None,  # the file has no bridge in this domain, but bus 04 may be below a bridge
        "0002:00:01.0": "pci0002:00",  # bus 00 is never below a bridge
        "10000:01:00.0": None,  # VMD
    }
    assert level(node, "0000:18:00.0", "0000:19:00.0") == "PIX"
    assert level(node, "0000:18:00.0", "0000:30:00.0") == "NODE"
    assert level(node, "0000:18:00.0", "0001:04:00.0") == "SYS"
    assert level(node, "0000:18:00.0", "0002:00:01.0") == "UNKNOWN"


def test_interfaces_and_rdma_devices_are_read_from_an_lstopo_file():
    node = load(LSTOPO)
    (interface,) = node.interfaces
    assert (interface.name, interface.address, interface.link_layer, interface.dev_port) == (
        "ib0",
        "0000:18:00.0",
        "infiniband",
        0,
    )
    (device,) = node.rdma_devices
    assert (device.name, device.address, device.node_guid) == ("mlx5_0", "0000:18:00.0", "b859:9f03:0001:0203")
    (port,) = device.ports
    assert (port.port, port.state, port.lid, port.interfaces) == (1, "ACTIVE", "0x15", ["ib0"])
    assert [(gid.index, gid.gid) for gid in port.gids] == [(0, "fe80:0000:0000:0000:b859:9f03:0001:0203")]
    nic = next(nic for nic in node.nics if nic.address == "0000:18:00.0")
    assert (nic.up, nic.rdma_devices, nic.interfaces) == (True, ["mlx5_0"], ["ib0"])


def test_functions_have_no_numa_node_if_the_lstopo_file_has_only_one():
    start = LSTOPO.index('    <object type="Package" os_index="1"')
    end = LSTOPO.index('    <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0002')
    single = LSTOPO[:start] + LSTOPO[end : LSTOPO.index("  <distances2")] + "</topology>"
    node = load(single)
    assert len(node.numa_nodes) == 1
    assert {function.numa_node for function in node.functions.values()} == {None}


@pytest.mark.parametrize(
    "document",
    [
        '<system version="1"><cpu numaid="0"><pci busid="0000:00:14.0" class="0x0c0330"><nic>'
        '<net name="usb0" dev="0" speed="1000" port="0"/></nic></pci></cpu></system>',
        '<topology version="2.0"><object type="Machine" cpuset="0x1"><object type="Bridge" bridge_type="0-1" '
        'bridge_pci="0000:[00-00]"><object type="PCIDev" pci_busid="0000:00:14.0" '
        'pci_type="0c03 [8086:a1af] [1028:0715] 09"><object type="OSDev" name="usb0" osdev_type="2"/></object></object>'
        "</object></topology>",
    ],
)
def test_a_usb_controller_with_an_interface_is_not_a_nic(document):
    node = load(document)
    assert [(interface.name, interface.kind, interface.address) for interface in node.interfaces] == [
        ("usb0", "usb", "0000:00:14.0")
    ]
    assert node.functions["0000:00:14.0"].kind == "other"
    assert node.nics == []


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ({0: 0x0F, 8: 0xF0, 255: 0x0F}, {0: "0-3", 8: "4-7", 255: ""}),  # the memory of a GPU
        ({3: 0xF0, 1: 0xF0, 2: 0x0F, 0: 0x0F}, {0: "0-3", 1: "4-7", 2: "", 3: ""}),  # HBM beside DRAM
        # memory of a package with clusters
        ({0: 0x03, 1: 0x0C, 2: 0x0F, 3: 0xF0}, {0: "0-1", 1: "2-3", 2: "", 3: "4-7"}),
        ({0: 0x0F, 1: 0xF0, 2: 0xFF}, {0: "0-3", 1: "4-7", 2: ""}),  # memory of the machine
        ({0: 0x0F, 1: 0xF0, 2: 0x03}, {0: "0-3", 1: "4-7", 2: "0-1"}),  # both may have these CPUs
        ({0: 0x0F, 1: 0x0F}, {0: "0-3", 1: ""}),
    ],
)
def test_nearby_cpus_that_lstopo_lists_for_numa_nodes_without_cpus_are_removed(sets, expected):
    objects = [f'<object type="NUMANode" os_index="{number}" cpuset="{cpus:#010x}"/>' for number, cpus in sets.items()]
    socket = (
        '<object type="Package" os_index="0" cpuset="0x0000000c"><object type="Bridge" bridge_type="0-1" '
        'bridge_pci="0000:[17-17]"><object type="PCIDev" pci_busid="0000:17:00.0" '
        'pci_type="0302 [10de:2330] [10de:16c1] a1"/></object></object>'
    )
    machine = f'<object type="Machine" cpuset="0x000000ff">{"".join(objects)}{socket}</object>'
    node = load(f'<topology version="2.0">{machine}</topology>')
    assert {numa_node.id: numa_node.cpus for numa_node in node.numa_nodes} == expected
    holders = [number for number, cpus in expected.items() if cpuset.from_list(cpus) & 0x0C]
    several = sum(bool(cpus) for cpus in expected.values()) > 1
    assert node.functions["0000:17:00.0"].numa_node == (holders[0] if several and len(holders) == 1 else None)


def test_packages_are_called_sockets_in_files_of_lstopo_1():
    old = LSTOPO.replace(' version="2.0"', "", 1).replace("Package", "Socket")
    old = old[: old.index("  <distances2")] + "</topology>"
    assert load(old).packages == load(LSTOPO).packages


def test_files_of_lstopo_3_also_have_the_programming_interface():
    second, third = as_dict(load(LSTOPO)), as_dict(load(LSTOPO_3))
    codes = {address: function["class_code"] for address, function in third["functions"].items()}
    assert codes == {
        "0000:17:00.0": "060401",
        "0000:18:00.0": "020700",
        "0000:19:00.0": "030200",
        "0000:30:00.0": "030200",
        "0001:04:00.0": "030000",
        "0002:00:01.0": "020000",
        "10000:01:00.0": "010802",
    }
    for document in (second, third):
        for function in document["functions"].values():
            function["class_code"] = None
        del document["source"], document["fingerprint"]
    assert third == second


@pytest.mark.parametrize(
    ("document", "form", "message"),
    [
        ("", "auto", "not well-formed"),
        ("<system", "auto", "not well-formed"),
        (b"\xff\xfe<\x00a\x00", "auto", "not well-formed"),
        ("<?xml version='1.0' encoding='utf-7'?><a>+</a>", "auto", "root element is <a>"),
        ("<svg/>", "auto", "line 1: the root element is <svg>"),
        ('<graphs version="1"/>', "auto", "NCCL_TOPO_DUMP_FILE"),
        (CLOUD, "hwloc", "line 3: <system> is the nccl form"),
        (LSTOPO, "nccl", "<topology> is the hwloc form"),
        (CLOUD, "other", "unknown form"),
        ('<system version="3"><cpu numaid="0"/></system>', "auto", "version"),
        ("<system version='1'/>", "auto", "no <cpu>"),
        ("<topology version='2.0'/>", "auto", "no <object>"),
        ('<topology version="4.0"><object type="Machine"/></topology>', "auto", "--export-xml-flags v2"),
        (CLOUD.replace("0000:10:1d.0", "10:1d.0"), "auto", "line 7: <pci> has busid='10:1d.0'"),
        (CLOUD.replace("0000:10:1d.0", "0000:10:1c.0"), "auto", "line 6 has it too"),
        (CLOUD.replace('affinity="ffff0000,00000000"', 'affinity="48-63"'), "auto", "affinity='48-63'"),
        (CLOUD.replace('numaid="1"', 'numaid="one"'), "auto", "numaid='one'"),
        (CLOUD.replace('numaid="1"', 'numaid="0"'), "auto", "NUMA node 0 has further up, 0-47"),
        (CLOUD.replace("0x1d0f", "amazon"), "auto", "vendor='amazon'"),
        (DUMP.replace('host_hash="0x1"', 'host_hash="0x2"', 1), "auto", "2 hosts"),
        (LSTOPO.replace("0x000000ff", "all", 1), "auto", "cpuset"),
        (LSTOPO.replace("0207 [15b3:101b]", "0207"), "auto", "pci_type"),
        (LSTOPO.replace("0000:[17-1e]", "17"), "auto", "bridge_pci"),
        (LSTOPO.replace("0000:19:00.0", "0000:18:00.0"), "auto", "address of its own"),
        (LSTOPO.replace("40 10 <", "40 <"), "auto", "3 values for 2 NUMA nodes"),
        (LSTOPO.replace("40 10 <", "40 x <"), "auto", "not a number"),
        ("<system>" * 300, "auto", "levels"),
        (b"<system>" + b" " * (17 << 20), "auto", "larger than 16 MiB"),
    ],
)
def test_invalid_documents_are_refused_with_a_reason(document, form, message):
    with pytest.raises(ValueError) as caught:
        load(document, form)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "declaration",
    [
        '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">',
        '<!ENTITY a SYSTEM "file:///etc/hostname">',
        '<!ENTITY % a SYSTEM "http://localhost/a.dtd"> %a;',
        "<!ATTLIST cpu " + " ".join(f"a{number} CDATA '{'x' * 60}'" for number in range(9000)) + ">",
        "<!ELEMENT cpu EMPTY>",
        "<!NOTATION n SYSTEM 'n'>",
        "",
    ],
    ids=["nested", "file", "parameter", "defaults", "element", "notation", "no-declaration"],
)
def test_declarations_are_refused_before_they_are_read(declaration):
    """Default attributes (`defaults`) would take 21 GB of memory for a file of 1.4 MB."""
    document = f"<!DOCTYPE system [{declaration}]><system version='1'>{'<cpu/>' * 9000}</system>"
    with pytest.raises(ValueError, match="line 1: the document type contains declarations in brackets"):
        load(document)


def test_a_document_type_by_name_alone_is_read():
    assert load('<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<system version="1"><cpu numaid="0"/></system>')


def test_too_many_elements_are_refused():
    with pytest.raises(ValueError, match="elements"):
        load("<system>" + "<cpu/>" * 200_001 + "</system>")


def test_an_unreadable_file_raises_oserror(tmp_path):
    with pytest.raises(OSError):
        read_xml(str(tmp_path / "absent.xml"))
    with pytest.raises(OSError):
        read_xml(str(tmp_path))
