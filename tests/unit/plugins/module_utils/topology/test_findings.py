# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import affinity
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis import findings
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import (
    DATA_DIRECT,
    ETHERNET,
    GPU,
    LINK_GEN5_X16,
    NIC,
    NIC_VF,
    config_with_acs,
    healthy_machine,
    vpd,
)

GPU0, GPU1, NIC0, NIC1 = "0000:1a:00.0", "0000:9a:00.0", "0000:1b:00.0", "0000:9b:00.0"
SWITCH = "pci0000:17/0000:17:01.0/0000:18:00.0"


@pytest.fixture
def machine(tmp_path):
    return healthy_machine(tmp_path / "machine")


def findings_with_id(tree, identifier, *overrides):
    return [finding for finding in tree.probe(*overrides).findings if finding.id == identifier]


def only_finding(tree, identifier, *overrides):
    (finding,) = findings_with_id(tree, identifier, *overrides)
    assert finding.action and finding.summary
    return finding


def test_a_healthy_machine_has_no_findings(machine):
    assert machine.probe().findings == []


def test_errors_come_first(machine):
    machine.write(f"{machine.folder(NIC0)}/current_link_width", "8")
    machine.write("sys/devices/system/node/node0/distance", "x")
    (machine.root / machine.folder(GPU0) / "driver").unlink()
    assert [finding.severity for finding in machine.probe().findings] == ["error", "warning", "info"]


def test_an_unreadable_file_is_reported_with_the_reason(machine):
    machine.write(f"{machine.folder(NIC0)}/numa_node", b"\xff\n")
    finding = only_finding(machine, "unreadable")
    assert finding.evidence == [f"/{machine.folder(NIC0)}/numa_node: not UTF-8 text"]


def test_a_restricted_config_space_is_reported(machine):
    machine.write(f"{machine.folder('0000:17:01.0')}/config", bytes(64))
    assert only_finding(machine, "config-space-restricted").severity == "info"


def test_restricted_config_space_above_other_devices_is_not_reported(tree):
    tree.pci("pci0000:17/0000:17:01.0/0000:18:00.0", ETHERNET, 0)
    tree.write(f"{tree.folder('0000:17:01.0')}/config", bytes(64))
    assert findings_with_id(tree, "config-space-restricted") == []


def test_a_link_with_fewer_lanes_than_possible_is_an_error(machine):
    machine.write(f"{machine.folder(NIC0)}/current_link_width", "8")
    finding = only_finding(machine, "link-degraded")
    assert (finding.severity, finding.devices) == ("error", [NIC0])
    assert finding.evidence == [
        f"{NIC0}: 32 GT/s x8, can do 32 GT/s x16",
        "0000:19:01.0 above it can do 32 GT/s x16",
    ]


def test_a_slow_link_of_a_nic_is_a_warning(machine):
    machine.write(f"{machine.folder(NIC0)}/current_link_speed", "8.0 GT/s PCIe")
    assert only_finding(machine, "link-degraded").severity == "warning"


def test_a_slow_link_of_a_gpu_is_only_information(machine):
    machine.write(f"{machine.folder(GPU0)}/current_link_speed", "2.5 GT/s PCIe")
    finding = only_finding(machine, "link-degraded")
    assert finding.severity == "info" and "load" in finding.action


def test_a_degraded_uplink_of_a_switch_is_reported_for_all_devices_below_it(machine):
    machine.write(f"{machine.folder('0000:18:00.0')}/current_link_width", "8")
    assert only_finding(machine, "link-degraded").devices == [GPU0, NIC0, "0000:1c:00.0"]


def test_a_card_with_fewer_lanes_than_its_slot_is_not_degraded(machine):
    for name in ("max_link_width", "current_link_width"):
        machine.write(f"{machine.folder(NIC0)}/{name}", "8")
    machine.write(f"{machine.folder('0000:19:01.0')}/current_link_width", "8")  # the port reports the same link
    assert machine.probe().findings == []


def test_a_card_behind_vmd_with_fewer_lanes_than_its_slot_is_not_degraded(tree):
    path = "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:1b.0/10000:01:00.0/10000:02:00.0/10000:03:00.0"
    tree.pci("/".join(path.split("/")[:2]), {"class": "0x010400"}, 0)
    for end in (4, 5, 6):
        part = path.split("/")[:end]
        tree.pci("/".join(part), {"class": "0x060400"}, 0, **LINK_GEN5_X16)
    tree.pci(path, NIC, 0, **{**LINK_GEN5_X16, "max_link_width": "8", "current_link_width": "8"})
    tree.write(f"{tree.folder('10000:02:00.0')}/current_link_width", "8")
    assert findings_with_id(tree, "link-degraded") == []


def test_a_link_that_the_slot_limits_is_not_degraded(machine):
    for name in ("max_link_speed", "current_link_speed"):
        machine.write(f"{machine.folder('0000:19:01.0')}/{name}", "16.0 GT/s PCIe")
    machine.write(f"{machine.folder(NIC0)}/current_link_speed", "16.0 GT/s PCIe")
    finding = only_finding(machine, "link-limited-by-slot")
    assert finding.devices == [NIC0] and "63.0 GB/s, its slot 31.5" in finding.summary
    assert findings_with_id(machine, "link-degraded") == []


def test_a_virtual_machine_has_no_link_findings(machine):
    machine.write(f"{machine.folder(NIC0)}/current_link_width", "8")
    machine.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu lm hypervisor")
    assert [finding.id for finding in machine.probe().findings] == ["virtual-machine"]


def test_a_port_of_a_rail_that_is_down_is_an_error(machine):
    machine.port("mlx5_1", 1, state="1: DOWN", phys_state="2: Polling")
    finding = only_finding(machine, "rdma-port-down")
    assert (finding.severity, finding.devices) == ("error", [NIC1])
    assert "rail 1" in finding.summary and "Polling" in finding.summary


def test_a_port_that_is_down_is_only_information_if_another_port_carries_the_rail(machine):
    machine.port("mlx5_1", 2, state="1: DOWN", phys_state="3: Disabled")
    finding = only_finding(machine, "rdma-port-down")
    assert finding.severity == "info" and "rail" not in finding.summary


def test_a_port_of_a_spare_nic_that_is_down_is_only_information(machine):
    spare = machine.pci("pci0000:17/0000:17:05.0/0000:40:00.0", NIC, 0, driver="mlx5_core")
    machine.rdma("mlx5_9", spare)
    machine.port("mlx5_9", 1, state="1: DOWN")
    assert only_finding(machine, "rdma-port-down").severity == "info"


def test_a_port_of_a_vf_that_is_down_is_not_reported(machine):
    vf = machine.vf(NIC0, 0, f"{SWITCH}/0000:19:01.0/0000:1b:00.1", NIC_VF)
    machine.rdma("mlx5_9", vf)
    machine.port("mlx5_9", 1, state="1: DOWN")
    assert findings_with_id(machine, "rdma-port-down") == []


def test_a_gpu_whose_fabric_nics_are_on_the_other_socket_is_reported(machine):
    (machine.root / "sys/bus/pci/devices" / NIC1).unlink()
    (machine.root / "sys/class/infiniband/mlx5_1").unlink()
    machine.pci("pci0000:97/0000:97:05.0/0000:a0:00.0", ETHERNET, 1, driver="igb")  # near, but not an RDMA NIC
    finding = only_finding(machine, "gpu-without-near-nic")
    assert finding.devices == [GPU1]
    assert "SYS" in finding.evidence[0] and NIC0 in finding.evidence[0]


def test_a_gpu_and_a_nic_of_one_numa_node_at_two_root_complexes_are_reported(tree):
    tree.nodes("0-3", "4-7")
    tree.pci("pci0000:17/0000:17:01.0/0000:18:00.0", GPU, 0)
    tree.pci("pci0000:27/0000:27:01.0/0000:28:00.0", NIC, 0)
    finding = only_finding(tree, "gpu-nic-through-cpu")
    assert (finding.devices, finding.evidence) == (["0000:18:00.0"], ["NUMA node 0: NODE"])


def test_an_unknown_locality_is_reported(tree):
    tree.pci("pci0001:00/0001:00:00.0", GPU)
    tree.pci("pci0002:00/0002:00:00.0", NIC)
    assert only_finding(tree, "gpu-nic-locality-unknown").devices == ["0001:00:00.0"]
    assert only_finding(tree, "numa-unknown").devices == ["0001:00:00.0", "0002:00:00.0"]


def test_a_node_without_nics_has_no_finding_about_locality(tree):
    tree.pci("pci0001:00/0001:00:00.0", GPU)
    assert findings_with_id(tree, "gpu-nic-locality-unknown") == []


def test_groups_of_different_size_are_reported(machine):
    machine.pci(f"{SWITCH}/0000:19:05.0/0000:1e:00.0", GPU, 0, driver="nvidia")
    finding = only_finding(machine, "asymmetric-groups")
    assert finding.evidence == ["0000:18:00.0: 2 GPU(s), 1 NIC(s)", "0000:98:00.0: 1 GPU(s), 1 NIC(s)"]
    assert only_finding(machine, "asymmetric-gpus").evidence == ["NUMA node 0: 2 GPU(s)", "NUMA node 1: 1 GPU(s)"]


def test_an_unknown_numa_node_is_a_warning_on_a_machine_with_several(machine):
    for name in ("numa_node", "local_cpulist"):
        (machine.root / machine.folder(NIC0) / name).unlink()
    finding = only_finding(machine, "numa-unknown")
    assert (finding.severity, finding.devices) == ("warning", [NIC0])


@pytest.mark.parametrize(
    ("values", "evidence"),
    [
        ({"local_cpulist": "4-7"}, f"{NIC0}: NUMA node 0, but CPUs 4-7"),
        ({"numa_node": "5"}, f"{NIC0}: NUMA node 5 does not exist"),
        ({"numa_node": "1", "local_cpulist": "4-7"}, f"pci0000:17: {GPU0} on node 0, {NIC0} on node 1"),
    ],
)
def test_contradictory_numa_nodes_are_reported(machine, values, evidence):
    for attribute, value in values.items():
        machine.write(f"{machine.folder(NIC0)}/{attribute}", value)
    finding = only_finding(machine, "numa-conflict")
    assert evidence in finding.evidence and NIC0 in finding.devices


def test_an_override_is_not_a_conflict(machine):
    assert findings_with_id(machine, "numa-conflict", {"address": NIC0, "numa_node": 1}) == []


def test_an_iommu_that_translates_is_reported(machine):
    machine.link(f"{machine.folder(GPU0)}/iommu_group", "sys/kernel/iommu_groups/7")
    machine.write("sys/kernel/iommu_groups/7/type", "DMA-FQ")
    finding = only_finding(machine, "iommu-translation")
    assert finding.devices == [GPU0]
    assert finding.evidence == [f"{GPU0}: IOMMU group 7 type DMA-FQ", "kernel arguments: iommu=pt"]


@pytest.mark.parametrize("kind", ["identity", "blocked", ""])
def test_an_iommu_that_does_not_translate_is_not_reported(machine, kind):
    machine.link(f"{machine.folder(GPU0)}/iommu_group", "sys/kernel/iommu_groups/7")
    machine.write("sys/kernel/iommu_groups/7/type", kind)
    assert findings_with_id(machine, "iommu-translation") == []


def test_acs_redirects_between_a_gpu_and_a_nic_are_reported(machine):
    machine.write(f"{machine.folder('0000:19:00.0')}/config", config_with_acs(0x1D))
    finding = only_finding(machine, "acs-redirect")
    assert (finding.devices, finding.evidence) == ([GPU0, NIC0], ["0000:19:00.0: RR, CR enabled"])


@pytest.mark.parametrize(
    ("port", "control"),
    [
        ("0000:19:00.0", 0x01),  # source validation redirects nothing
        ("0000:17:01.0", 0x1D),  # the root port, which is above the switch where they meet
        ("0000:19:02.0", 0x1D),  # the NVMe's port
    ],
)
def test_other_acs_controls_and_ports_are_not_reported(machine, port, control):
    machine.write(f"{machine.folder(port)}/config", config_with_acs(control))
    assert findings_with_id(machine, "acs-redirect") == []


def add_data_direct_board(tree, gpu_port, nic_port):
    """Add a GPU and a data-direct NIC. `gpu_port` and `nic_port` are the ACS controls of the switch's ports."""
    same_vpd = vpd((b"V3", b"uuid"))
    tree.pci(f"{SWITCH}/0000:19:00.0/{GPU0}", GPU, 0)
    tree.pci(f"{SWITCH}/0000:19:01.0/{NIC0}", DATA_DIRECT, 0, vpd=same_vpd)
    tree.pci("pci0001:00/0001:00:00.0/0001:01:00.0", NIC, 1, vpd=same_vpd)
    tree.write(f"{tree.folder('0000:19:00.0')}/config", config_with_acs(gpu_port))
    tree.write(f"{tree.folder('0000:19:01.0')}/config", config_with_acs(nic_port))


def test_the_acs_that_a_data_direct_board_needs_is_not_reported(tree):
    add_data_direct_board(tree, 0x04, 0x08)
    assert findings_with_id(tree, "acs-data-direct") == findings_with_id(tree, "acs-redirect") == []


def test_acs_that_a_data_direct_board_needs_but_lacks_is_reported(tree):
    add_data_direct_board(tree, 0x00, 0x08)
    finding = only_finding(tree, "acs-data-direct")
    assert finding.evidence == ["0000:19:00.0 towards the gpu: nothing enabled, needs RR on and CR off"]


def test_each_finding_about_acs_has_only_its_own_devices(tree):
    add_data_direct_board(tree, 0x00, 0x08)
    other_switch = "pci0000:97/0000:97:01.0/0000:98:00.0"
    gpu = tree.pci(f"{other_switch}/0000:99:00.0/0000:9a:00.0", GPU, 0)
    nic = tree.pci(f"{other_switch}/0000:99:01.0/0000:9b:00.0", NIC, 0)
    tree.write(f"{tree.folder('0000:99:00.0')}/config", config_with_acs(0x1D))
    assert only_finding(tree, "acs-redirect").devices == [gpu, nic]
    assert only_finding(tree, "acs-data-direct").devices == ["0000:1a:00.0", "0001:01:00.0"]


def test_pcie_roots_that_no_claim_can_match_are_reported(tree):
    add_data_direct_board(tree, 0x04, 0x08)
    finding = only_finding(tree, "disjoint-pcie-roots")
    assert finding.devices == [GPU0]
    assert finding.evidence == [f"{GPU0} on pci0000:17, 0001:01:00.0 on pci0001:00"]


def test_a_gpu_behind_vmbus_without_a_pcie_root_is_reported(tree):
    address = tree.pci("LNXSYSTM:00/VMBUS:00/abcd/pci0001:00/0001:00:00.0", GPU, 0)
    assert only_finding(tree, "no-pcie-root-attribute").devices == [address]


def test_a_gpu_without_a_driver_is_reported(machine):
    (machine.root / machine.folder(GPU0) / "driver").unlink()
    finding = only_finding(machine, "no-driver")
    assert (finding.devices, finding.evidence) == ([GPU0], [f"{GPU0}: NVIDIA H100 SXM5 80GB 10de:2330"])


def test_a_vf_without_a_driver_is_not_reported(machine):
    machine.vf(NIC0, 0, f"{SWITCH}/0000:19:01.0/0000:1b:00.1", NIC_VF, numa=0)
    assert machine.probe().findings == []


@pytest.mark.parametrize(
    ("identity", "reported"), [(("1d94", "55b7"), False), (("1ed5", "0323"), False), (("abcd", "1"), True)]
)
def test_gpus_of_any_vendor_are_used_and_unlisted_ones_are_reported(machine, identity, reported):
    vendor, device = identity
    path = f"{SWITCH}/0000:19:03.0/0000:1d:00.0"
    machine.pci(path, {**GPU, "class": "0x038000", "vendor": f"0x{vendor}", "device": f"0x{device:0>4}"}, 0, driver="d")
    node = machine.probe()
    assert [gpu.address for gpu in node.gpus] == [GPU0, "0000:1d:00.0", "0000:9a:00.0"]
    assert node.gpus[1].nearest_nics.level == "PIX"
    findings = [finding for finding in node.findings if finding.id == "display-unlisted"]
    assert [finding.devices for finding in findings] == ([["0000:1d:00.0"]] if reported else [])


def test_a_display_controller_without_a_vendor_is_not_a_gpu_and_is_reported(machine):
    machine.pci(f"{SWITCH}/0000:19:03.0/0000:1d:00.0", {"class": "0x030200"}, 0)
    finding = only_finding(machine, "display-unlisted")
    assert (finding.devices, finding.severity) == (["0000:1d:00.0"], "warning")
    assert len(machine.probe().gpus) == 2


def test_graphics_of_a_management_processor_are_not_reported(machine):
    machine.pci(f"{SWITCH}/0000:19:03.0/0000:1d:00.0", {"class": "0x030000", "vendor": "0x1a03", "device": "0x2000"}, 0)
    assert machine.probe().findings == []


def test_the_fix_for_unreadable_files_is_to_record_or_probe_again_as_root(machine):
    machine.write(f"{machine.folder(NIC0)}/numa_node", b"\xff\n")
    node = machine.probe()
    assert "Record the machine again as root" in next(
        finding.action for finding in node.findings if finding.id == "unreadable"
    )
    node.source.path = "/"
    live_findings = findings.find(node, affinity.Proximity(node))
    assert "Run the probe as root (become)" in next(
        finding.action for finding in live_findings if finding.id == "unreadable"
    )


def test_a_machine_without_pci_functions_is_reported(tree):
    tree.cpus("0-3")
    assert only_finding(tree, "no-pci-functions").severity == "info"
