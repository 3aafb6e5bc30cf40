# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that built trees match their descriptions, read directly and with hwloc."""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.oracle import lstopo

from .builder import STAMP, build, compose, synthetic
from .configspace import vpd
from .description import DESCRIPTIONS, DescriptionError, load, names, plan
from .files import cpu_list, cpu_mask


@pytest.fixture(scope="session")
def tree_of(tmp_path_factory):
    """Returns the root of a machine's tree, which is built at the first call."""
    top = tmp_path_factory.mktemp("machines")

    @functools.lru_cache(None)
    def build_tree(name):
        return build(description(name), top / name)

    return build_tree


def description(name):
    return synthetic(int(name[10:])) if name.startswith("synthetic-") else load(name)


def read(tree, path):
    return (tree / path).read_text(encoding="ascii").strip()


def function_path(tree, address):
    return tree / "sys/bus/pci/devices" / address


def find_capability(config, identifier):
    """The offset of a capability, found as the kernel's pci_find_capability does; None if there is none."""
    offset = config[0x34] if config[0x06] & 0x10 else 0
    while offset:
        if config[offset] == identifier:
            return offset
        offset = config[offset + 1]
    return None


def find_extended_capability(config, identifier):
    offset = 0x100 if len(config) > 0x100 else 0
    while offset:
        header = struct.unpack_from("<I", config, offset)[0]
        if header & 0xFFFF == identifier:
            return offset
        offset = header >> 20
    return None


@pytest.mark.parametrize("name", [n for n in names() if n not in ("degraded", "missing-nic")])
def test_descriptions_name_the_sources_of_their_facts(name):
    text = (DESCRIPTIONS / f"{name}.yml").read_text(encoding="utf-8")
    assert "# Public facts" in text and "https://" in text and "# Assumed" in text


@pytest.mark.parametrize("name", [*names(), "synthetic-250"])
class TestEveryMachine:
    def test_has_every_function_once(self, name, tree_of):
        tree = tree_of(name)
        planned = plan(description(name)).by_address()
        assert sorted(os.listdir(tree / "sys/bus/pci/devices")) == sorted(planned)
        for address, function in planned.items():
            assert Path(os.path.realpath(function_path(tree, address))) == (tree / "sys" / function.path).resolve()

    def test_links_lead_to_files_of_the_tree(self, name, tree_of):
        tree = tree_of(name).resolve()
        broken = []
        for folder, folders, files in os.walk(tree):
            for entry in folders + files:
                path = os.path.join(folder, entry)
                if os.path.islink(path):
                    target = os.path.realpath(path)
                    if not os.path.exists(target) or not target.startswith(f"{tree}/sys/"):
                        broken.append(path)
        assert not broken

    def test_config_space_contains_ids_and_buses(self, name, tree_of):
        tree = tree_of(name)
        for address, function in plan(description(name)).by_address().items():
            config = (function_path(tree, address) / "config").read_bytes()
            vendor, device, _command, _status, class_and_revision = struct.unpack_from("<HHHHI", config)
            ids = tuple(int(number, 16) for number in function.spec["id"].split(":"))
            assert (vendor, device) == ((0xFFFF, 0xFFFF) if function.pf else ids), address
            assert int(read(function_path(tree, address), "vendor"), 16) == ids[0]
            assert int(read(function_path(tree, address), "device"), 16) == ids[1]
            class_code = int(read(function_path(tree, address), "class"), 16)
            assert class_and_revision >> 8 == class_code == int(function.spec["class"], 16)
            assert config[0x0E] & 0x7F == (1 if function.is_bridge else 0)
            assert len(config) == (4096 if find_capability(config, 0x10) else 256)
            if function.is_bridge:
                assert tuple(config[0x18:0x1B]) == (function.bus, function.secondary, function.subordinate)
                assert all(function.secondary <= child.bus <= function.subordinate for child in function.children)

    def test_config_space_agrees_with_the_link_files(self, name, tree_of):
        tree = tree_of(name)
        speeds = {
            0: "Unknown",
            1: "2.5 GT/s PCIe",
            2: "5.0 GT/s PCIe",
            3: "8.0 GT/s PCIe",
            4: "16.0 GT/s PCIe",
            5: "32.0 GT/s PCIe",
            6: "64.0 GT/s PCIe",
        }
        for address in os.listdir(tree / "sys/bus/pci/devices"):
            folder = function_path(tree, address)
            config = (folder / "config").read_bytes()
            offset = find_capability(config, 0x10)
            assert (offset is not None) == (folder / "current_link_speed").exists(), address
            if offset is None:
                continue
            capabilities = struct.unpack_from("<I", config, offset + 0x0C)[0]
            status = struct.unpack_from("<H", config, offset + 0x12)[0]
            assert read(folder, "max_link_speed") == speeds[capabilities & 0xF]
            assert read(folder, "max_link_width") == str(capabilities >> 4 & 0x3F)
            assert read(folder, "current_link_speed") == speeds[status & 0xF]
            assert read(folder, "current_link_width") == str(status >> 4 & 0x3F)

    def test_both_ends_of_a_link_agree(self, name, tree_of):
        tree = tree_of(name)
        for address, function in plan(description(name)).by_address().items():
            bridge = function.parent
            if bridge is None or function.pf or "link" not in function.spec:
                continue
            if bridge.port not in ("root", "downstream") or function is not bridge.children[0]:
                continue
            for attribute in ("current_link_speed", "current_link_width"):
                ends = {read(function_path(tree, end), attribute) for end in (address, bridge.address)}
                assert len(ends) == 1, (address, attribute, ends)

    def test_local_cpus_are_those_of_the_numa_node(self, name, tree_of):
        tree = tree_of(name)
        for address in os.listdir(tree / "sys/bus/pci/devices"):
            folder = function_path(tree, address)
            node = int(read(folder, "numa_node"))
            path = f"node/node{node}/cpulist" if node >= 0 else "cpu/online"
            assert read(folder, "local_cpulist") == read(tree, f"sys/devices/system/{path}")

    def test_is_built_the_same_each_time(self, name):
        assert compose(description(name)) == compose(description(name))

    @pytest.mark.skipif(lstopo.BINARY is None, reason="hwloc's lstopo is not installed")
    def test_hwloc_finds_the_same_functions_below_the_same_bridges(self, name, tree_of):
        machine = lstopo.run_lstopo(tree_of(name).resolve())
        expected = {}
        for address, function in plan(description(name)).by_address().items():
            if function.domain > 0xFFFF:  # hwloc 2.9 leaves such devices out
                continue
            bridge, bridges = function.parent, []
            while bridge:
                bridges.insert(0, bridge.address)
                bridge = bridge.parent
            expected[address] = bridges
        assert {address: function.bridges for address, function in machine.functions.items()} == expected


class TestSingleMachines:
    """What is special about single machines, the reason why they exist."""

    def test_data_direct_functions_have_the_uuid_of_a_nic_in_another_domain(self, tree_of):
        tree, functions_by_uuid = tree_of("gb300"), {}
        for address in os.listdir(tree / "sys/bus/pci/devices"):
            folder = function_path(tree, address)
            if read(folder, "vendor") == "0x15b3" and read(folder, "device") in ("0x1023", "0x2100"):
                image = (folder / "vpd").read_bytes()
                offset = image.index(b"V3\x20")
                uuid = image[offset + 3 : offset + 35]
                functions_by_uuid.setdefault(uuid, set()).add((read(folder, "device"), address[:4]))
        assert len(functions_by_uuid) == 4
        for functions in functions_by_uuid.values():
            assert {device for device, _domain in functions} == {"0x1023", "0x2100"}
            assert len({domain for _device, domain in functions}) == 2

    def test_gpu_and_data_direct_function_are_in_one_iommu_group(self, tree_of):
        tree = tree_of("gb300")
        groups = {
            address: os.path.basename(os.readlink(function_path(tree, address) / "iommu_group"))
            for address in ("0008:00:00.0", "0008:03:00.0", "0008:06:00.0", "0000:03:00.0")
        }
        assert groups["0008:00:00.0"] == groups["0008:03:00.0"] == groups["0008:06:00.0"] != groups["0000:03:00.0"]

    def test_ports_above_gpu_and_data_direct_function_have_the_acs_bits_of_rdma_topo(self, tree_of):
        tree = tree_of("gb300")
        acs_bits = {"0008:00:00.0": 0b11100, "0008:02:00.0": 0b11001, "0008:02:03.0": 0b10101, "0008:05:00.0": 0b11101}
        for address, bits in acs_bits.items():  # xx111x0, xx110x1, xx101x1 and xx111x1 in rdma_topo's notation
            config = (function_path(tree, address) / "config").read_bytes()
            control = struct.unpack_from("<H", config, find_extended_capability(config, 0x0D) + 6)[0]
            assert control & 0b11101 == bits, address

    def test_isolated_functions_have_groups_of_their_own(self, tree_of):
        tree = tree_of("epyc-nps4")
        groups = [
            os.readlink(path / "iommu_group")
            for path in (tree / "sys/bus/pci/devices").iterdir()
            if read(path, "class").startswith(("0x0302", "0x02"))
        ]
        assert len({os.path.basename(group) for group in groups}) == len(groups) == 10

    def test_grace_has_memory_nodes_without_cpus(self, tree_of):
        nodes = tree_of("gb200") / "sys/devices/system/node"
        assert read(nodes, "online") == "0-33"
        assert read(nodes, "has_cpu") == "0-1"
        assert read(nodes, "has_memory") == "0-2,10,18,26"
        assert read(nodes, "node18/cpulist") == ""
        assert len(read(nodes, "node18/distance").split()) == 34

    def test_degraded_has_slow_and_narrow_links_and_a_port_that_is_down(self, tree_of):
        tree = tree_of("degraded")
        assert read(function_path(tree, "0000:19:00.0"), "current_link_speed") == "16.0 GT/s PCIe"
        assert read(function_path(tree, "0000:19:00.0"), "max_link_speed") == "32.0 GT/s PCIe"
        assert read(function_path(tree, "0000:98:00.0"), "current_link_width") == "8"
        port = next((function_path(tree, "0000:da:00.0") / "infiniband").iterdir()) / "ports/1"
        assert (read(port, "state"), read(port, "phys_state")) == ("1: DOWN", "2: Polling")

    def test_sriov_has_vfs_at_computed_addresses_with_and_without_drivers(self, tree_of):
        tree = tree_of("sriov")
        pf = function_path(tree, "0000:16:00.0")
        assert read(pf, "sriov_numvfs") == "8"
        for number in range(8):
            vf = (pf / f"virtfn{number}").resolve()
            assert vf.name == f"0000:16:{2 + number >> 3:02x}.{2 + number & 7}"
            assert (vf / "physfn").resolve() == pf.resolve()
        assert os.path.basename(os.readlink(function_path(tree, "0000:16:00.7") / "driver")) == "vfio-pci"
        assert not (function_path(tree, "0000:16:01.1") / "driver").exists()
        assert (function_path(tree, "0000:c9:00.1") / "virtfn127").resolve().name == "0000:ca:00.1"

    def test_representors_share_the_switch_of_their_uplink(self, tree_of):
        tree = tree_of("sriov")
        nets = function_path(tree, "0000:98:00.0") / "net"
        uplink = read(nets, "enp152s0np0/phys_switch_id")
        for number in range(4):
            assert read(nets, f"enp152s0npf0vf{number}/phys_switch_id") == uplink
            assert read(nets, f"enp152s0npf0vf{number}/phys_port_name") == f"pf0vf{number}"
        assert not (function_path(tree, "0000:16:00.0") / "net/enp22s0f0np0/phys_switch_id").exists()

    def test_bond_and_vlan_carry_the_default_route(self, tree_of):
        tree = tree_of("sriov")
        assert (tree / "proc/net/route").read_text().splitlines()[1].split("\t")[:2] == ["bond0.100", "00000000"]
        assert read(tree, "sys/class/net/bond0/bonding/slaves") == "enp1s0f0 enp1s0f1"
        assert (tree / "sys/class/net/enp1s0f1/master").resolve().name == "bond0"
        assert (tree / "sys/class/net/bond0.100/lower_bond0").resolve().name == "bond0"
        assert "bond0.100" in read(tree, "proc/net/vlan/config")

    def test_devices_behind_vmbus_and_vmd_have_the_same_paths_as_in_the_kernel(self, tree_of):
        vm = tree_of("azure-vm")
        parts = (vm / "sys/class/infiniband/mlx5_ib0").resolve().relative_to((vm / "sys").resolve()).parts
        assert parts[:5] == ("devices", "LNXSYSTM:00", "LNXSYBUS:00", "ACPI0004:00", "VMBUS:00")
        assert parts[6:8] == ("pci0101:00", "0101:00:00.0")
        assert "hypervisor" in (vm / "proc/cpuinfo").read_text()
        vmd = tree_of("vmd")
        path = (vmd / "sys/class/nvme/nvme0").resolve().relative_to((vmd / "sys").resolve())
        assert str(path) == ("devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0")

    def test_functions_for_fabric_management_have_the_device_id_of_a_nic_and_a_mark_in_their_vpd(self, tree_of):
        tree = tree_of("hgx-b200")
        marked = {
            path.name
            for path in (tree / "sys/bus/pci/devices").iterdir()
            if (path / "vpd").exists() and b"SMDL=SW_MNG" in (path / "vpd").read_bytes()
        }
        assert marked == {f"0000:05:00.{n}" for n in range(4)}
        assert {read(function_path(tree, address), "device") for address in marked} == {"0x1021"}

    def test_both_upstream_ports_of_a_switch_have_its_serial_number(self, tree_of):
        tree = tree_of("mi300x")

        def serial(address):
            config = (function_path(tree, address) / "config").read_bytes()
            return struct.unpack_from("<Q", config, find_extended_capability(config, 3) + 4)[0]

        assert serial("0000:01:00.0") == serial("0000:21:00.0") != serial("0000:41:00.0")


class TestBuilder:
    def test_a_tree_is_replaced_only_after_a_change(self, tmp_path):
        out = build("vmd", tmp_path / "vmd")
        inode = out.stat().st_ino
        assert build("vmd", out).stat().st_ino == inode
        changed = {**load("vmd"), "name": "vmd-2"}
        assert build(changed, out).stat().st_ino != inode
        assert read(out, "proc/sys/kernel/hostname") == "vmd-2"
        files, links = compose(changed)
        for folder, _folders, entries in os.walk(out):
            for entry in entries:
                path = os.path.join(folder, entry)
                assert os.lstat(path).st_nlink == 1
                expected = links if os.path.islink(path) else files
                assert os.path.relpath(path, out) in expected or entry == STAMP
        assert [path.name for path in tmp_path.iterdir()] == ["vmd"]

    def test_a_folder_that_is_not_a_machine_is_not_replaced(self, tmp_path):
        (tmp_path / "notes").write_text("text")
        with pytest.raises(FileExistsError):
            build("vmd", tmp_path)
        assert (tmp_path / "notes").read_text() == "text"

    @pytest.mark.parametrize("count", [1, 5, 6, 10, 37, 100, 1000, 5000])
    def test_synthetic_machine_has_the_requested_number_of_functions(self, count):
        assert len(plan(synthetic(count)).functions) == count

    def test_errors_in_descriptions_are_reported(self):
        base = {"name": "x", "cpu": {"model": "m", "cores": 1}}
        with pytest.raises(DescriptionError, match="unknown part 'nosuch'"):
            plan({**base, "roots": {"0000:00": {"00.0 nosuch": {}}}})
        with pytest.raises(DescriptionError, match="override without a function: 0000:00:01.0"):
            plan({**base, "roots": {"0000:00": {}}, "override": {"0000:00:01.0": {}}})
        with pytest.raises(DescriptionError, match="no machine"):
            load("nosuch")

    def test_cpu_lists_and_masks_have_the_kernels_format(self):
        assert cpu_list([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"
        assert cpu_mask([0, 35], 36) == "8,00000001"
        assert cpu_mask(range(48), 192) == "00000000,00000000,00000000,00000000,0000ffff,ffffffff"

    def test_vpd_ends_with_a_checksum_and_an_end_tag(self):
        image = vpd("Card", {"PN": "1"})
        assert image[:3] == b"\x82\x04\x00" and sum(image[:-1]) % 256 == 0 and image[-1] == 0x78
