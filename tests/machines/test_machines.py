# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The built trees match their descriptions, read directly and by hwloc."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from .builder import STAMP, build, compose, synthetic
from .configspace import vpd
from .description import DESCRIPTIONS, DescriptionError, load, names, plan
from .files import cpu_list, cpu_mask

LSTOPO = shutil.which("lstopo-no-graphics")


@pytest.fixture(scope="session")
def trees(request, tmp_path_factory):
    """Build each machine on demand. A tree is kept until its description or the builder changes."""
    cache = getattr(request.config, "cache", None)
    top, done = cache.mkdir("machines") if cache else tmp_path_factory.mktemp("machines"), {}

    def get(name):
        if name not in done:
            done[name] = build(synthetic(int(name[10:])) if name.startswith("synthetic-") else name, top / name)
        return done[name]

    return get


def description(name):
    return synthetic(int(name[10:])) if name.startswith("synthetic-") else load(name)


def read(tree, path):
    return (tree / path).read_text(encoding="ascii").strip()


def pci(tree, address):
    return tree / "sys/bus/pci/devices" / address


def capability(config, identifier):
    """Offset of a capability, found as the kernel's pci_find_capability does; None without it."""
    at = config[0x34] if config[0x06] & 0x10 else 0
    while at:
        if config[at] == identifier:
            return at
        at = config[at + 1]
    return None


def extended(config, identifier):
    at = 0x100 if len(config) > 0x100 else 0
    while at:
        header = struct.unpack_from("<I", config, at)[0]
        if header & 0xFFFF == identifier:
            return at
        at = header >> 20
    return None


@pytest.mark.parametrize("name", [n for n in names() if n not in ("degraded", "missing-nic")])
def test_descriptions_name_the_sources_of_their_facts(name):
    text = (DESCRIPTIONS / f"{name}.yml").read_text(encoding="utf-8")
    assert "# Public facts" in text and "https://" in text and "# Assumed" in text


@pytest.mark.parametrize("name", [*names(), "synthetic-250"])
class TestEveryMachine:
    def test_has_every_function_once(self, name, trees):
        tree = trees(name)
        planned = plan(description(name)).by_address()
        found = sorted(os.listdir(tree / "sys/bus/pci/devices"))
        assert found == sorted(planned)
        for address, function in planned.items():
            assert Path(os.path.realpath(pci(tree, address))) == (tree / "sys" / function.path).resolve()

    def test_links_stay_inside_the_tree(self, name, trees):
        tree = trees(name).resolve()
        broken = []
        for folder, folders, files in os.walk(tree):
            for entry in folders + files:
                path = os.path.join(folder, entry)
                if os.path.islink(path):
                    target = os.path.realpath(path)
                    if not os.path.exists(target) or not target.startswith(f"{tree}/sys/"):
                        broken.append(path)
        assert not broken

    def test_config_space_holds_the_ids(self, name, trees):
        tree = trees(name)
        for address, function in plan(description(name)).by_address().items():
            config = (pci(tree, address) / "config").read_bytes()
            vendor, device, _command, _status, word = struct.unpack_from("<HHHHI", config)
            reported = tuple(int(x, 16) for x in function.spec["id"].split(":"))
            assert (vendor, device) == ((0xFFFF, 0xFFFF) if function.pf else reported), address
            assert int(read(pci(tree, address), "vendor"), 16) == reported[0]
            assert int(read(pci(tree, address), "device"), 16) == reported[1]
            assert word >> 8 == int(read(pci(tree, address), "class"), 16) == int(function.spec["class"], 16)
            assert config[0x0E] & 0x7F == (1 if function.is_bridge else 0)
            assert len(config) == (4096 if capability(config, 0x10) else 256)
            if function.is_bridge:
                assert tuple(config[0x18:0x1B]) == (function.bus, function.secondary, function.subordinate)
                assert all(function.secondary <= c.bus <= function.subordinate for c in function.children)

    def test_config_space_agrees_with_the_link_files(self, name, trees):
        tree = trees(name)
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
            folder = pci(tree, address)
            config = (folder / "config").read_bytes()
            at = capability(config, 0x10)
            assert (at is not None) == (folder / "current_link_speed").exists(), address
            if at is None:
                continue
            best = struct.unpack_from("<I", config, at + 0x0C)[0]
            status = struct.unpack_from("<H", config, at + 0x12)[0]
            assert read(folder, "max_link_speed") == speeds[best & 0xF]
            assert read(folder, "max_link_width") == str(best >> 4 & 0x3F)
            assert read(folder, "current_link_speed") == speeds[status & 0xF]
            assert read(folder, "current_link_width") == str(status >> 4 & 0x3F)

    def test_both_ends_of_a_link_agree(self, name, trees):
        tree = trees(name)
        for address, function in plan(description(name)).by_address().items():
            above = function.parent
            if above is None or function.pf or above.port not in ("root", "downstream") or "link" not in function.spec:
                continue
            if function is not above.children[0]:
                continue
            for attribute in ("current_link_speed", "current_link_width"):
                ends = {read(pci(tree, a), attribute) for a in (address, above.address)}
                assert len(ends) == 1, (address, attribute, ends)

    def test_numa_and_cpus_agree(self, name, trees):
        tree = trees(name)
        for address in os.listdir(tree / "sys/bus/pci/devices"):
            folder = pci(tree, address)
            node = int(read(folder, "numa_node"))
            where = f"node/node{node}/cpulist" if node >= 0 else "cpu/online"
            assert read(folder, "local_cpulist") == read(tree, f"sys/devices/system/{where}")

    def test_is_built_the_same_each_time(self, name):
        assert compose(description(name)) == compose(description(name))

    @pytest.mark.skipif(LSTOPO is None, reason="hwloc's lstopo-no-graphics is not installed")
    def test_hwloc_sees_the_same_tree(self, name, trees):
        tree = trees(name)
        environment = {
            **os.environ,
            "HWLOC_FSROOT": str(tree.resolve()),
            "HWLOC_COMPONENTS": "linux,stop",
            "LC_ALL": "C",
            "HWLOC_DUMPED_HWDATA_DIR": "/var/run/hwloc",
            "HWLOC_DONT_ADD_VERSION_INFO": "1",
        }
        done = subprocess.run(
            [LSTOPO, "--of", "xml", "--whole-io"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        seen = {}

        def walk(element, bridges):
            address = element.get("pci_busid")
            if address:
                seen[address] = bridges
                if element.get("type") == "Bridge":
                    bridges = [*bridges, address]
            for child in element.findall("object"):
                walk(child, bridges)

        walk(ET.fromstring(done.stdout).find("object"), [])
        wanted = {}
        for address, function in plan(description(name)).by_address().items():
            if function.domain > 0xFFFF:  # hwloc 2.9 leaves such devices out
                continue
            above, bridges = function.parent, []
            while above:
                bridges.insert(0, above.address)
                above = above.parent
            wanted[address] = bridges
        assert seen == wanted


class TestFacts:
    """The property that each machine covers."""

    def test_data_direct_pairs_by_uuid_across_domains(self, trees):
        tree, uuids = trees("gb300"), {}
        for address in os.listdir(tree / "sys/bus/pci/devices"):
            folder = pci(tree, address)
            if read(folder, "vendor") == "0x15b3" and read(folder, "device") in ("0x1023", "0x2100"):
                image = (folder / "vpd").read_bytes()
                at = image.index(b"V3\x20")
                uuids.setdefault(image[at + 3 : at + 35], set()).add((read(folder, "device"), address[:4]))
        assert len(uuids) == 4
        for members in uuids.values():
            assert {device for device, _domain in members} == {"0x1023", "0x2100"}
            assert len({domain for _device, domain in members}) == 2

    def test_data_direct_segment_is_one_iommu_group(self, trees):
        tree = trees("gb300")
        groups = {
            a: os.path.basename(os.readlink(pci(tree, a) / "iommu_group"))
            for a in ("0008:00:00.0", "0008:03:00.0", "0008:06:00.0", "0000:03:00.0")
        }
        assert groups["0008:00:00.0"] == groups["0008:03:00.0"] == groups["0008:06:00.0"] != groups["0000:03:00.0"]
        wanted = {"0008:00:00.0": 0b11100, "0008:02:00.0": 0b11001, "0008:02:03.0": 0b10101, "0008:05:00.0": 0b11101}
        for address, word in wanted.items():  # xx111x0, xx110x1, xx101x1 and xx111x1 in rdma_topo's notation
            config = (pci(tree, address) / "config").read_bytes()
            assert struct.unpack_from("<H", config, extended(config, 0x0D) + 6)[0] & 0b11101 == word, address

    def test_isolated_functions_have_groups_of_their_own(self, trees):
        tree = trees("epyc-nps4")
        groups = [
            os.readlink(path / "iommu_group")
            for path in (tree / "sys/bus/pci/devices").iterdir()
            if read(path, "class").startswith(("0x0302", "0x02"))
        ]
        assert len({os.path.basename(g) for g in groups}) == len(groups) == 10

    def test_grace_has_memory_nodes_without_cpus(self, trees):
        nodes = trees("gb200") / "sys/devices/system/node"
        assert read(nodes, "online") == "0-33"
        assert read(nodes, "has_cpu") == "0-1"
        assert read(nodes, "has_memory") == "0-2,10,18,26"
        assert read(nodes, "node18/cpulist") == ""
        assert len(read(nodes, "node18/distance").split()) == 34

    def test_degraded_has_slow_and_narrow_links_and_a_port_that_is_down(self, trees):
        tree = trees("degraded")
        assert read(pci(tree, "0000:19:00.0"), "current_link_speed") == "16.0 GT/s PCIe"
        assert read(pci(tree, "0000:19:00.0"), "max_link_speed") == "32.0 GT/s PCIe"
        assert read(pci(tree, "0000:98:00.0"), "current_link_width") == "8"
        port = next((pci(tree, "0000:da:00.0") / "infiniband").iterdir()) / "ports/1"
        assert (read(port, "state"), read(port, "phys_state")) == ("1: DOWN", "2: Polling")

    def test_sriov_has_vfs_at_computed_addresses_with_and_without_drivers(self, trees):
        tree = trees("sriov")
        pf = pci(tree, "0000:16:00.0")
        assert read(pf, "sriov_numvfs") == "8"
        for number in range(8):
            vf = (pf / f"virtfn{number}").resolve()
            assert vf.name == f"0000:16:{2 + number >> 3:02x}.{2 + number & 7}"
            assert (vf / "physfn").resolve() == pf.resolve()
        assert os.path.basename(os.readlink(pci(tree, "0000:16:00.7") / "driver")) == "vfio-pci"
        assert not (pci(tree, "0000:16:01.1") / "driver").exists()
        assert (pci(tree, "0000:c9:00.1") / "virtfn127").resolve().name == "0000:ca:00.1"

    def test_representors_share_the_switch_of_their_uplink(self, trees):
        tree = trees("sriov")
        nets = pci(tree, "0000:98:00.0") / "net"
        uplink = read(nets, "enp152s0np0/phys_switch_id")
        for number in range(4):
            assert read(nets, f"enp152s0npf0vf{number}/phys_switch_id") == uplink
            assert read(nets, f"enp152s0npf0vf{number}/phys_port_name") == f"pf0vf{number}"
        assert not (pci(tree, "0000:16:00.0") / "net/enp22s0f0np0/phys_switch_id").exists()

    def test_bond_and_vlan_carry_the_default_route(self, trees):
        tree = trees("sriov")
        assert (tree / "proc/net/route").read_text().splitlines()[1].split("\t")[:2] == ["bond0.100", "00000000"]
        assert read(tree, "sys/class/net/bond0/bonding/slaves") == "enp1s0f0 enp1s0f1"
        assert (tree / "sys/class/net/enp1s0f1/master").resolve().name == "bond0"
        assert (tree / "sys/class/net/bond0.100/lower_bond0").resolve().name == "bond0"
        assert "bond0.100" in read(tree, "proc/net/vlan/config")

    def test_devices_behind_vmbus_and_vmd_have_the_kernels_paths(self, trees):
        vm = trees("azure-vm")
        parts = (vm / "sys/class/infiniband/mlx5_ib0").resolve().relative_to((vm / "sys").resolve()).parts
        assert parts[:5] == ("devices", "LNXSYSTM:00", "LNXSYBUS:00", "ACPI0004:00", "VMBUS:00")
        assert parts[6:8] == ("pci0101:00", "0101:00:00.0")
        assert "hypervisor" in (vm / "proc/cpuinfo").read_text()
        vmd = trees("vmd")
        path = (vmd / "sys/class/nvme/nvme0").resolve().relative_to((vmd / "sys").resolve())
        assert str(path) == ("devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0")

    def test_fabric_management_differs_from_a_nic_only_by_its_vpd(self, trees):
        tree = trees("hgx-b200")
        marked = {
            p.name
            for p in (tree / "sys/bus/pci/devices").iterdir()
            if (p / "vpd").exists() and b"SMDL=SW_MNG" in (p / "vpd").read_bytes()
        }
        assert marked == {f"0000:05:00.{n}" for n in range(4)}
        assert {read(pci(tree, a), "device") for a in marked} == {"0x1021"}

    def test_switch_halves_share_a_serial_number(self, trees):
        tree = trees("mi300x")

        def serial(address):
            config = (pci(tree, address) / "config").read_bytes()
            return struct.unpack_from("<Q", config, extended(config, 3) + 4)[0]

        assert serial("0000:01:00.0") == serial("0000:21:00.0") != serial("0000:41:00.0")


class TestBuilder:
    def test_nothing_is_written_twice(self, tmp_path):
        out = build("vmd", tmp_path / "vmd")
        before = out.stat().st_ino
        assert build("vmd", out).stat().st_ino == before
        changed = {**load("vmd"), "name": "vmd-2"}
        assert build(changed, out).stat().st_ino != before
        assert read(out, "proc/sys/kernel/hostname") == "vmd-2"
        files, links = compose(changed)
        for folder, _folders, entries in os.walk(out):
            for entry in entries:
                path = os.path.join(folder, entry)
                assert os.lstat(path).st_nlink == 1
                known = links if os.path.islink(path) else files
                assert os.path.relpath(path, out) in known or entry == STAMP
        assert [p.name for p in tmp_path.iterdir()] == ["vmd"]

    def test_a_folder_that_is_not_a_machine_is_left_alone(self, tmp_path):
        (tmp_path / "keep").write_text("mine")
        with pytest.raises(FileExistsError):
            build("vmd", tmp_path)
        assert (tmp_path / "keep").read_text() == "mine"

    @pytest.mark.parametrize("count", [1, 5, 6, 10, 37, 100, 1000, 5000])
    def test_synthetic_has_the_requested_number(self, count):
        assert len(plan(synthetic(count)).functions) == count

    def test_errors_in_descriptions_are_named(self):
        base = {"name": "x", "cpu": {"model": "m", "cores": 1}}
        with pytest.raises(DescriptionError, match="unknown part 'nosuch'"):
            plan({**base, "roots": {"0000:00": {"00.0 nosuch": {}}}})
        with pytest.raises(DescriptionError, match="override without a function: 0000:00:01.0"):
            plan({**base, "roots": {"0000:00": {}}, "override": {"0000:00:01.0": {}}})
        with pytest.raises(DescriptionError, match="no machine"):
            load("nosuch")

    def test_cpu_lists_masks_and_vpd_have_the_kernels_form(self):
        assert cpu_list([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"
        assert cpu_mask([0, 35], 36) == "8,00000001"
        assert cpu_mask(range(48), 192) == "00000000,00000000,00000000,00000000,0000ffff,ffffffff"
        image = vpd("Card", {"PN": "1"})
        assert image[:3] == b"\x82\x04\x00" and sum(image[:-1]) % 256 == 0 and image[-1] == 0x78
