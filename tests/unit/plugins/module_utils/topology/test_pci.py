# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import ids, pci
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Link, Sriov
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import (
    BRIDGE,
    DATA_DIRECT,
    GPU,
    LINK_GEN5_X16,
    NIC,
    NIC_VF,
    config_with_acs,
    vpd,
)

PATH = "pci0000:17/0000:17:01.0/0000:18:00.0"


@pytest.mark.parametrize(
    ("path", "root", "bridges"),
    [
        ("pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:17", ["0000:17:01.0"]),
        ("pci0000:00/0000:00:05.0", "pci0000:00", []),
        ("LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0", "pci0001:00", []),
        ("platform/40000000.pcie/pci0008:00/0008:00:00.0/0008:01:00.0", "pci0008:00", ["0008:00:00.0"]),
        (
            "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:1b.0/10000:01:00.0",
            "pci0000:00",
            ["0000:00:0e.0", "10000:00:1b.0"],
        ),
    ],
)
def test_a_function_has_its_root_complex_and_bridges(tree, path, root, bridges):
    address = tree.pci(path, GPU)
    function = tree.probe().functions[address]
    assert (function.root_complex, function.bridges) == (root, bridges)


@pytest.mark.parametrize(
    "target", ["sys/devices/pci0000:17/0000:17:01.0", "proc/pci0000:17/0000:18:00.0", "sys/devices/0000:18:00.0"]
)
def test_a_link_to_a_wrong_place_gives_no_root_and_no_bridges(tree, target):
    tree.write(f"{target}/class", "0x030200")
    tree.link("sys/bus/pci/devices/0000:18:00.0", target)
    topology = tree.probe()
    function = topology.functions["0000:18:00.0"]
    assert (function.root_complex, function.bridges, "pcieRoot" in function.kubernetes) == (None, [], False)
    assert topology.source.unreadable_count == 1


def test_addresses_are_sorted_by_their_numbers():
    addresses = ["10000:00:00.0", "0000:0a:00.0", "0000:09:1f.0", "0000:09:02.1", "not an address", "0000:09:02.0"]
    assert sorted(addresses, key=pci.sort_key) == [
        "0000:09:02.0",
        "0000:09:02.1",
        "0000:09:1f.0",
        "0000:0a:00.0",
        "10000:00:00.0",
        "not an address",
    ]


def test_the_address_in_the_path_of_an_auxiliary_device_is_that_of_its_function():
    assert pci.address_in("/sys/devices/pci0000:17/0000:18:00.0/mlx5_core.sf.4/net/eth0") == "0000:18:00.0"


@pytest.mark.parametrize(
    ("identity", "kind"),
    [
        (("030200", "10de", "2330", False), "gpu"),
        (("030000", "10de", "2330", True), "gpu"),
        (("120000", "1002", "74a1", False), "gpu"),
        (("038000", "8086", "0bd5", False), "gpu"),
        (("030000", "8086", "a780", True), "other"),
        (("030000", "1a03", "2000", False), "other"),
        (("030000", "1234", "1111", True), "other"),
        (("038000", "1d94", "55b7", False), "gpu"),  # Hygon
        (("030000", "1ed5", "0201", False), "gpu"),  # Moore Threads
        (("030200", "1ed5", "0323", True), "gpu"),  # on the root bus, as in a virtual machine
        (("038000", "9999", "4001", False), "gpu"),  # MetaX
        (("030200", "abcd", "0001", False), "gpu"),  # an unknown vendor
        (("030000", "102b", "0536", False), "other"),  # iDRAC, iLO
        (("030000", "18ca", "0020", False), "other"),
        (("030000", "126f", "0750", False), "other"),
        (("030000", "19e5", "1711", False), "other"),  # iBMC
        (("030000", "1002", "515e", False), "other"),
        (("030000", "1af4", "1050", True), "other"),
        (("038000", "1af4", "1050", True), "other"),
        (("030000", "1b36", "0100", True), "other"),
        (("030000", "15ad", "0405", True), "other"),
        (("030000", "1013", "00b8", True), "other"),
        (("030000", "1414", "5353", True), "other"),
        (("030000", "1d0f", "1111", True), "other"),
        (("030000", "1d17", "3a04", True), "other"),  # integrated graphics
        (("030200", None, None, False), "other"),
        (("120000", "1da3", "1020", False), "accelerator"),
        (("088000", "1d0f", "7264", True), "accelerator"),
        (("0b4000", "8086", "4940", False), "other"),
        (("020000", "15b3", "a2dc", False), "nic"),
        (("020700", "15b3", "1021", False), "nic"),
        (("020800", "8086", "24f0", False), "nic"),
        (("080100", "15b3", "2100", False), "data_direct"),
        (("010802", "144d", "a80a", False), "nvme"),
        (("060400", "1000", "c030", False), "bridge"),
        (("068000", "10de", "22a3", False), "other"),
        ((None, None, None, False), "other"),
    ],
)
def test_class_vendor_and_position_determine_the_kind_of_a_function(identity, kind):
    assert ids.kind(*identity) == kind


def test_every_named_device_has_a_named_vendor():
    assert all(ids.device_name(vendor, device) for vendor, device in ids.DEVICES)


def test_the_identity_is_read_from_the_files_of_a_function(tree):
    tree.pci(PATH, {**NIC, "subsystem_vendor": "0x15b3", "subsystem_device": "0x0041", "revision": "0x00"})
    function = tree.probe().functions["0000:18:00.0"]
    assert (function.class_code, function.vendor_id, function.device_id) == ("020700", "15b3", "1021")
    assert (function.subsystem_vendor_id, function.subsystem_device_id, function.revision) == ("15b3", "0041", "00")
    assert function.name == "NVIDIA ConnectX-7"


def test_the_identity_is_read_from_config_space(tree):
    header = bytearray(64)
    struct.pack_into("<HH", header, 0, 0x15B3, 0x1021)
    header[8:12] = b"\x03\x00\x07\x02"
    struct.pack_into("<HH", header, 0x2C, 0x15B3, 0x0041)
    tree.pci(PATH, {"config": bytes(header)})
    function = tree.probe().functions["0000:18:00.0"]
    assert (function.class_code, function.vendor_id, function.device_id) == ("020700", "15b3", "1021")
    assert (function.revision, function.subsystem_device_id) == ("03", "0041")


def test_a_malformed_identity_is_unknown_and_reported(tree):
    tree.pci(PATH, {"class": "0x020700", "vendor": "15b3", "device": "0x10211"})
    topology = tree.probe()
    function = topology.functions["0000:18:00.0"]
    assert (function.vendor_id, function.device_id) == (None, None)
    assert topology.source.unreadable == [
        "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/vendor: not a hexadecimal number: '15b3'",
        "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/device: not a hexadecimal number: '0x10211'",
    ]


def test_a_function_has_its_driver_or_none(tree):
    tree.pci(PATH, GPU, driver="nvidia")
    tree.pci("pci0000:17/0000:17:02.0/0000:19:00.0", GPU)
    functions = tree.probe().functions
    assert (functions["0000:18:00.0"].driver, functions["0000:19:00.0"].driver) == ("nvidia", None)


def test_a_function_is_in_the_slot_with_its_address(tree):
    tree.pci(PATH, GPU)
    tree.write("sys/bus/pci/slots/3-1/address", "0000:18:00")
    assert tree.probe().functions["0000:18:00.0"].slot == "3-1"


@pytest.mark.parametrize(
    ("numa", "local", "node", "source"),
    [
        ("1", None, 1, "kernel"),
        ("-1", "4-7", 1, "local_cpus"),
        (None, "0-3", 0, "local_cpus"),
        ("-1", "0-7", None, None),
    ],
)
def test_the_numa_node_comes_from_the_kernel_or_the_local_cpus(tree, numa, local, node, source):
    tree.nodes("0-3", "4-7")
    files = {"numa_node": numa, "local_cpulist": local}
    tree.pci(PATH, {**GPU, **{name: value for name, value in files.items() if value}})
    function = tree.probe().functions["0000:18:00.0"]
    assert (function.numa_node, function.numa_source) == (node, source)


@pytest.mark.parametrize("content", [b"", b"1", b"1x\n", b"\xff\n"])
def test_a_damaged_numa_node_is_unknown(tree, content):
    tree.nodes("0-3", "4-7")
    tree.pci(PATH, {**GPU, "numa_node": content})
    topology = tree.probe()
    assert topology.functions["0000:18:00.0"].numa_node is None
    assert topology.source.unreadable_count == 1


@pytest.mark.parametrize("number", ["2", "99999", "-0", "00", "18446744073709551615", "99999999999999999999"])
def test_a_numa_node_that_does_not_exist_is_unknown(tree, number):
    tree.nodes("0-3", "4-7")
    tree.pci(PATH, {**GPU, "numa_node": number})
    topology = tree.probe()
    assert topology.functions["0000:18:00.0"].numa_node is None
    assert topology.source.unreadable_count == 1


def test_local_cpus_determine_the_numa_node_if_the_given_node_does_not_exist(tree):
    tree.nodes("0-3", "4-7")
    tree.pci(PATH, {**GPU, "numa_node": "7", "local_cpulist": "4-7"})
    function = tree.probe().functions["0000:18:00.0"]
    assert (function.numa_node, function.numa_source) == (1, "local_cpus")


@pytest.mark.parametrize(("number", "cpus", "node"), [("1", "0-3", None), ("1", "0-7", 1), ("0", "0-1", 0)])
def test_a_numa_node_that_the_local_cpus_contradict_is_unknown(tree, number, cpus, node):
    tree.nodes("0-3", "4-7")
    tree.pci(PATH, {**GPU, "numa_node": number, "local_cpulist": cpus})
    topology = tree.probe()
    assert topology.functions["0000:18:00.0"].numa_node == node
    assert topology.source.unreadable_count == (node is None)


@pytest.mark.parametrize(("number", "node"), [("0", 0), ("1023", 1023), ("1024", None)])
def test_without_a_list_of_nodes_a_plausible_numa_node_is_kept(tree, number, node):
    tree.pci(PATH, {**GPU, "numa_node": number})
    assert tree.probe().functions["0000:18:00.0"].numa_node == node


def test_a_link_to_the_folder_of_another_function_is_reported_and_not_used(tree):
    tree.nodes("0-3", "4-7")
    other = tree.pci(PATH, {**GPU, **LINK_GEN5_X16}, 1)
    tree.link("sys/bus/pci/devices/0000:99:00.0", tree.folder(other))
    topology = tree.probe()
    function = topology.functions["0000:99:00.0"]
    assert (function.kind, function.vendor_id, function.class_code, function.link) == ("other", None, None, None)
    assert (function.numa_node, function.root_complex, function.bridges) == (None, None, [])
    assert [gpu.address for gpu in topology.gpus] == [other]
    assert topology.source.unreadable == [
        f"/sys/bus/pci/devices/0000:99:00.0: leads to the folder of another device: /{tree.folder(other)}"
    ]


@pytest.mark.parametrize("pf", ["pci0000:17/0000:17:02.0/0000:20:00.0", "pci0000:97/0000:97:01.0/0000:98:00.0"])
def test_a_vf_whose_link_leads_to_a_function_that_cannot_be_its_pf_has_no_pf(tree, pf):
    tree.pci(pf, NIC, 0)
    tree.vf(pf[-12:], 3, "pci0000:17/0000:17:01.0/0000:18:00.1", NIC_VF, numa=0)
    topology = tree.probe()
    function = topology.functions["0000:18:00.1"]
    assert (function.physfn, function.vf_number) == (None, None)
    assert "which cannot be its PF" in topology.source.unreadable[0]


def test_local_cpus_alone_give_no_kubernetes_attribute(tree):
    tree.nodes("0-3", "4-7")
    tree.pci(PATH, {**GPU, "local_cpulist": "4-7"})
    assert "numaNode" not in tree.probe().functions["0000:18:00.0"].kubernetes


@pytest.mark.parametrize(
    ("online", "expected"),
    [
        ("0-6", (1, "local_cpus")),
        ("0-3", (None, None)),
        ("0-7", (None, None)),  # CPU 7 belongs to a NUMA node that could not be read
        (None, (None, None)),
    ],
)
def test_local_cpus_that_are_offline_are_ignored(tree, online, expected):
    tree.nodes("0-3", "4-6")
    if online:
        tree.write("sys/devices/system/cpu/online", online)
    tree.pci(PATH, {**GPU, "local_cpulist": "4-7"})
    function = tree.probe().functions["0000:18:00.0"]
    assert (function.numa_node, function.numa_source) == expected
    assert function.local_cpus == "4-7"


def test_the_current_and_the_maximum_speed_and_width_of_a_link_are_read(tree):
    tree.pci(PATH, {**GPU, **LINK_GEN5_X16, "current_link_speed": "2.5 GT/s PCIe", "current_link_width": "8"})
    assert tree.probe().functions["0000:18:00.0"].link == Link(2.5, 8, 32.0, 16, gb_per_s=2.0)


def test_link_speeds_are_read_in_the_format_of_old_kernels(tree):
    tree.pci(PATH, {**GPU, "current_link_speed": "8 GT/s", "max_link_speed": "16 GT/s"})
    assert tree.probe().functions["0000:18:00.0"].link == Link(speed_gts=8.0, max_speed_gts=16.0)


def config_with_link(speed, width, max_speed, max_width):
    """Configuration space with the PCI Express capability. Speeds are codes of the specification."""
    config = bytearray(256)
    config[0x06], config[0x34] = 0x10, 0x40
    struct.pack_into("<BBHIHHIHH", config, 0x40, 0x10, 0, 2, 0, 0, 0, max_width << 4 | max_speed, 0, width << 4 | speed)
    return bytes(config)


def link_files(*values):
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    return {name: value for name, value in zip(names, values) if value is not None}


@pytest.mark.parametrize(
    "files",
    [
        ("Unknown speed", "8", "Unknown speed", "16"),  # a kernel that is older than the generation of the link
        ("8 GT/s", "8", "Unknown speed", "16"),
        ("Unknown", "0", "Unknown", "255"),  # a device that does not respond
        ("8.0 GT/s PCIe", "8", "8.0 GT/s PCIe", "8"),
        (None, None, None, None),
    ],
)
def test_config_space_takes_precedence_over_the_link_files(tree, files):
    data = {
        **GPU,
        **link_files(*files),
        "revision": "0xa1",
        "config": config_with_link(speed=4, width=8, max_speed=5, max_width=16),
    }
    tree.pci(PATH, data)
    assert tree.probe().functions["0000:18:00.0"].link == Link(16.0, 8, 32.0, 16, gb_per_s=15.754)


@pytest.mark.parametrize(("speed", "width"), [(0, 0), (0, 63), (15, 0)])
def test_a_link_with_invalid_speed_and_width_in_config_space_is_unknown(tree, speed, width):
    tree.pci(PATH, {**GPU, "config": config_with_link(speed, width, speed, width)})
    assert tree.probe().functions["0000:18:00.0"].link is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("8 GT/s", "8", "Unknown speed", "16"), Link(8.0, 8, None, 16, gb_per_s=7.877)),
        (("Unknown", "4", None, None), Link(width=4)),
        (("Unknown", "0", "Unknown", "255"), None),
    ],
)
def test_the_link_files_are_used_if_only_64_bytes_of_config_space_are_readable(tree, files, expected):
    tree.pci(
        PATH,
        {**GPU, **link_files(*files), "config": config_with_link(speed=4, width=8, max_speed=5, max_width=16)[:64]},
    )
    assert tree.probe().functions["0000:18:00.0"].link == expected


@pytest.mark.parametrize("speed", ["Unknown", "Unknown speed", "9" * 400 + " GT/s", ""])
@pytest.mark.parametrize("width", ["0", "255"])
def test_a_link_without_speed_and_width_is_unknown(tree, speed, width):
    tree.pci(PATH, {**GPU, "current_link_speed": speed, "current_link_width": width})
    assert tree.probe().functions["0000:18:00.0"].link is None


def test_the_iommu_group_and_its_type_are_read(tree):
    tree.pci(PATH, GPU)
    tree.link(f"{tree.folder('0000:18:00.0')}/iommu_group", "sys/kernel/iommu_groups/42")
    tree.write("sys/kernel/iommu_groups/42/type", "DMA-FQ")
    function = tree.probe().functions["0000:18:00.0"]
    assert (function.iommu_group, function.iommu_group_type) == (42, "DMA-FQ")


def test_a_pf_has_its_sriov_settings_and_its_vfs(tree):
    pf = tree.pci(
        PATH, NIC, sriov_numvfs=2, sriov_offset=2, sriov_stride=1, sriov_vf_device="101e", sriov_drivers_autoprobe=0
    )
    for number in range(2):
        tree.vf(pf, number, f"pci0000:17/0000:17:01.0/0000:18:00.{number + 2}", NIC_VF)
    functions = tree.probe().functions
    assert functions[pf].sriov == Sriov(8, 2, 2, 1, "101e", False, ["0000:18:00.2", "0000:18:00.3"])
    assert [(functions[vf].physfn, functions[vf].vf_number) for vf in functions[pf].sriov.vfs] == [(pf, 0), (pf, 1)]


def test_vf_numbers_come_from_the_names_of_the_links(tree):
    pf = tree.pci(PATH, NIC)
    tree.vf(pf, 10, "pci0000:17/0000:17:01.0/0000:18:01.4", NIC_VF)
    tree.vf(pf, 9, "pci0000:17/0000:17:01.0/0000:18:01.3", NIC_VF)
    tree.write(f"{tree.folder(pf)}/virtfn0", "")
    topology = tree.probe()
    assert topology.functions[pf].sriov.vfs == ["0000:18:01.3", "0000:18:01.4"]
    assert topology.functions["0000:18:01.3"].vf_number == 9
    assert topology.source.unreadable == [f"/{tree.folder(pf)}/virtfn0: not a symbolic link"]


def test_a_vf_has_the_number_that_its_own_pf_gives_it(tree):
    pf = tree.pci(PATH, NIC)
    other = tree.pci(f"{PATH[:-1]}1", NIC, sriov_totalvfs=8)
    vf = "pci0000:17/0000:17:01.0/0000:18:00.2"
    tree.vf(pf, 3, vf, NIC_VF)
    tree.link(f"{tree.folder(other)}/virtfn5", f"sys/devices/{vf}")
    assert tree.probe().functions["0000:18:00.2"].vf_number == 3


@pytest.mark.parametrize("target", ["virtfn0", "../0000:18:00.2/away"])
def test_a_vf_link_that_leads_to_no_function_is_reported(tree, target):
    pf = tree.pci(PATH, NIC, sriov_totalvfs=8)
    (tree.root / tree.folder(pf) / "virtfn0").symlink_to(target)
    topology = tree.probe()
    assert (topology.functions[pf].sriov.vfs, topology.functions[pf].vf_number) == ([], None)
    assert topology.source.unreadable == [f"/{tree.folder(pf)}/virtfn0: does not lead to a PCI function"]


def test_enabled_acs_controls_of_a_bridge_are_read(tree):
    tree.pci("pci0000:17/0000:17:01.0", BRIDGE, config=config_with_acs(0x1D))
    topology = tree.probe()
    assert topology.functions["0000:17:01.0"].acs.enabled == ["SV", "RR", "CR", "UF"]
    assert topology.source.config_space is True


def test_acs_is_unknown_to_an_ordinary_user(tree):
    tree.pci("pci0000:17/0000:17:01.0", BRIDGE, config=bytes(64))
    topology = tree.probe()
    assert topology.functions["0000:17:01.0"].acs is None
    assert topology.source.config_space is False


@pytest.mark.parametrize(("attributes", "read"), [(NIC, True), (DATA_DIRECT, True), (GPU, False)])
def test_vpd_is_read_only_from_nics_and_data_direct_functions(tree, attributes, read):
    tree.pci(PATH, attributes, vpd=b"\x82\x04\x00Card\x78")
    found = tree.probe().functions["0000:18:00.0"].vpd
    assert (found.name if found else None) == ("Card" if read else None)


def test_vpd_of_an_earlier_probe_is_used_if_it_cannot_be_read(tree):
    known = {}
    address = tree.pci(PATH, NIC, vpd=b"")

    def probed_vpd(content):
        (tree.root / tree.folder(address) / "vpd").write_bytes(content)
        return tree.probe(known_vpd=known).functions[address].vpd

    whole = vpd((b"SN", b"MT1"), (b"V3", b"6d1c0b0e"))
    first = probed_vpd(whole)
    assert (first.serial_number, first.uuid) == ("MT1", "6d1c0b0e")
    assert probed_vpd(b"") == probed_vpd(vpd((b"SN", b"MT1"))) == probed_vpd(b"\x82\x04\x00Card\x78") == first
    other = probed_vpd(vpd((b"SN", b"MT2")))  # another card at the same address
    assert (other.serial_number, other.uuid) == ("MT2", None)
    assert probed_vpd(whole) == first
    known.clear()
    assert probed_vpd(b"") is None


def test_vpd_is_not_read_if_it_is_not_requested(tree):
    tree.pci(PATH, NIC, vpd=b"\x82\x04\x00Card\x78")
    assert tree.probe(with_vpd=False).functions["0000:18:00.0"].vpd is None


def test_a_dangling_link_of_a_function_is_reported(tree):
    tree.link("sys/bus/pci/devices/0000:18:00.0", f"sys/devices/{PATH}")
    topology = tree.probe()
    assert topology.functions["0000:18:00.0"].kind == "other"
    assert topology.source.unreadable == ["/sys/bus/pci/devices/0000:18:00.0: an empty or missing device directory"]


def test_a_directory_in_place_of_a_device_link_has_no_root_complex(tree):
    tree.write("sys/bus/pci/devices/0000:18:00.0/class", "0x030200")
    topology = tree.probe()
    function = topology.functions["0000:18:00.0"]
    assert (function.class_code, function.root_complex, function.kubernetes.get("pcieRoot")) == ("030200", None, None)
    assert topology.source.unreadable_count == 1


def test_a_name_that_is_not_a_pci_address_is_reported_as_unreadable(tree):
    (tree.root / "sys/bus/pci/devices/invalid").mkdir(parents=True)
    topology = tree.probe()
    assert topology.functions == {}
    assert topology.source.unreadable == ["/sys/bus/pci/devices/invalid: not a PCI address"]
