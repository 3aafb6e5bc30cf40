# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Resources of NICs on a real kernel: igb with VFs, soft-RoCE, DCB and netdevsim. The results are read by iproute2 and
other programs."""

from __future__ import annotations

import errno
import json
import shlex
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.lab.fabric import FOLDER, converge, converge_checked, copy_package
from ansible_collections.lanewise.dra.tests.lab.node import Device, Node

SYS = "/sys/bus/pci/devices"
SRIOV, VF, VF_DRIVER, MTU = ("sriov", "Sriov"), ("vf", "Vf"), ("vf_driver", "VfDriver"), ("mtu", "Mtu")
ETHTOOL, DCB, ROCE, IRQ = ("ethtool", "Ethtool"), ("dcb", "Dcb"), ("roce", "Roce"), ("irq", "Irq")
RDMA = ("rdma_system", "RdmaSystem")


@pytest.fixture(scope="module")
def vm(node: Node) -> Node:
    copy_package(node)
    return node


@pytest.fixture
def nic(vm: Node) -> t.Iterator[Device]:
    device = [device for device in vm.devices if device.kind == "nic"][0]
    yield device
    vm.ssh(f"echo 0 > {SYS}/{device.address}/sriov_numvfs", check=False)


def vfs(node: Node, device: Device) -> list[dict[str, t.Any]]:
    shown = json.loads(node.ssh(f"ip -json -details link show {node.interface(device)}"))[0].get("vfinfo_list", [])
    return [{key: value for key, value in entry.items() if key != "stats"} for entry in shown]


def drivers(node: Node, device: Device) -> list[str]:
    folder = f"{SYS}/{device.address}"
    links = f"for vf in {folder}/virtfn*; do basename $(readlink $vf/driver || echo none); done"
    return node.ssh(f"[ -e {folder}/virtfn0 ] && {links}; true").split()


def test_vfs_are_made_and_each_is_set_up(vm: Node, nic: Device) -> None:
    settings = {
        "num_vfs": 3,
        "vf": {"spoof_check": False, "vlan": 100, "qos": 3},
        "vfs": [{"index": 1, "mac": "02:00:00:00:00:11", "trust": True}, {"index": "2", "vlan": 0, "qos": 0}],
    }
    changes = converge_checked(vm, [SRIOV, VF], {nic.address: settings})
    assert changes[0] == f"{nic.address}: num_vfs 0 -> 3" and all("unset ->" in text for text in changes[1:])
    shown = vfs(vm, nic)
    assert [entry["spoofchk"] for entry in shown] == [False] * 3
    assert [entry["vlan_list"] for entry in shown[:2]] == [[{"vlan": 100, "qos": 3}]] * 2
    assert shown[1].get("address", shown[1].get("mac")) == "02:00:00:00:00:11" and shown[1]["trust"] is True
    # another number recreates the VFs, and they are set up again
    settings["num_vfs"] = 2
    settings["vfs"] = settings["vfs"][:1]
    converge_checked(vm, [SRIOV, VF], {nic.address: settings})
    assert vfs(vm, nic)[1].get("address", vfs(vm, nic)[1].get("mac")) == "02:00:00:00:00:11"


def test_vfs_are_restored_whichever_step_fails(vm: Node, nic: Device) -> None:
    vm.ssh(f"echo 2 > {SYS}/{nic.address}/sriov_numvfs; udevadm settle")
    vm.ssh(f"ip link set {vm.interface(nic)} vf 0 mac 02:00:00:00:00:01 vlan 5; modprobe igbvf")
    settings = {
        nic.address: {
            "vf": {"vlan": 7, "spoof_check": False},
            "vfs": [{"index": 0, "mac": "02:00:00:00:00:09", "driver": "none"}],
        }
    }
    before = (vfs(vm, nic), drivers(vm, nic))
    codes = (errno.EBUSY, errno.EIO, errno.ERANGE, errno.ENODEV, errno.EPERM)
    number = 0
    while True:
        result = converge(vm, [VF, VF_DRIVER], settings, fail_at=number, code=codes[number % 5])
        if not result["failed"]:
            break
        assert (vfs(vm, nic), drivers(vm, nic)) == before, result
        assert "node is in its previous state" in result["failed"] and not result["remaining"]
        assert nic.address in result["failed"]
        number += 1
    assert number == len(result["steps"]) == 6
    assert drivers(vm, nic) == ["none", "igbvf"]


def test_recreated_vfs_have_their_settings_whichever_step_fails(vm: Node, nic: Device) -> None:
    vm.ssh(f"modprobe igbvf; echo 2 > {SYS}/{nic.address}/sriov_numvfs; udevadm settle")
    first = vm.ssh(f"basename $(readlink {SYS}/{nic.address}/virtfn0)")
    vm.ssh(f"ip link set {vm.interface(nic)} vf 1 mac 02:00:00:00:00:01 vlan 5 spoofchk off")
    vm.ssh(f"echo {first} > {SYS}/{first}/driver/unbind")
    before = (vfs(vm, nic), drivers(vm, nic))
    assert before[1] == ["none", "igbvf"]
    settings = {nic.address: {"num_vfs": 3, "vf": {"vlan": 7}}}
    number = 0
    while (result := converge(vm, [SRIOV, VF], settings, fail_at=number, code=errno.EIO))["failed"]:
        assert (vfs(vm, nic), drivers(vm, nic)) == before, result
        assert "node is in its previous state" in result["failed"] and not result["remaining"]
        number += 1
    assert number == len(result["steps"]) == 5  # no VFs, three VFs, and a VLAN for each


def test_a_vf_in_a_container_is_not_changed(vm: Node, nic: Device) -> None:
    vm.ssh(f"echo 2 > {SYS}/{nic.address}/sriov_numvfs; udevadm settle; modprobe igbvf; ip netns add pod")
    try:
        name = vm.ssh(f"ls {SYS}/{nic.address}/virtfn1/net")
        vm.ssh(f"ip link set {name} netns pod")
        result = converge(vm, [VF, VF_DRIVER], {nic.address: {"vf": {"vlan": 9, "driver": "none"}}})
        assert len(result["refusals"]) == 2 and all("another network namespace" in text for text in result["refusals"])
        assert drivers(vm, nic) == ["igbvf", "igbvf"] and not result["steps"]
    finally:
        vm.ssh("ip netns delete pod")


def test_the_mtu_is_raised_on_the_pf_first_and_lowered_on_the_vf_first(vm: Node, nic: Device) -> None:
    vm.ssh(f"modprobe igbvf; echo 1 > {SYS}/{nic.address}/sriov_numvfs; udevadm settle")
    vf = vm.ssh(f"basename $(readlink {SYS}/{nic.address}/virtfn0)")
    both = {vf: {"mtu": 4000}, nic.address: {"mtu": 4000}}
    changes = converge_checked(vm, [MTU], both)
    assert [text.split(":")[0:3] for text in changes] == [nic.address.split(":"), vf.split(":")]
    result = converge(vm, [MTU], {nic.address: {"mtu": 9999}})
    assert "request 68 to 9216" in result["refusals"][0]
    down = {nic.address: {"mtu": 1500}, vf: {"mtu": 1500}}
    assert [text.split(" ")[0] for text in converge_checked(vm, [MTU], down)] == [f"{vf}:", f"{nic.address}:"]


def test_rings_channels_and_flags_of_a_real_driver_are_set(vm: Node, nic: Device) -> None:
    settings = {
        "rings": {"rx": 512, "tx": 1024},
        "channels": {"combined": 1},
        "coalesce": {"rx_usecs": 50},
    }
    name = vm.interface(nic)
    vm.ssh(f"ip link set {name} up")
    converge_checked(vm, [ETHTOOL], {nic.address: {"ethtool": settings}})
    result = converge(vm, [ETHTOOL], {nic.address: {"ethtool": {"rings": {"rx": 100000}}}})
    assert "request at most 4096" in result["refusals"][0]
    flags = converge(vm, [ETHTOOL], {nic.address: {"ethtool": {"private_flags": {"legacy-rx": True}}}})
    assert flags["changes"] == [f"{nic.address}: private_flags.legacy-rx false -> true"]
    converge_checked(vm, [ETHTOOL], {nic.address: {"ethtool": {"private_flags": {"legacy-rx": False}}}})


def test_interrupts_go_to_the_numa_node(vm: Node, nic: Device) -> None:
    vm.ssh(f"ip link set {vm.interface(nic)} up")
    # the kernel already assigns new interrupts to the NUMA node's CPUs, so they are spread first
    assert converge_checked(vm, [IRQ], {nic.address: {"irq_affinity": "spread"}})
    assert converge_checked(vm, [IRQ], {nic.address: {"irq_affinity": "local"}})
    irqs = vm.ssh(f"cd {SYS}/{nic.address}/msi_irqs; for irq in *; do cat /proc/irq/$irq/smp_affinity_list; done")
    assert set(irqs.split()) == {vm.ssh(f"cat /sys/devices/system/node/node{nic.numa}/cpulist")}


def test_dcb_settings_are_shown_by_the_dcb_program(vm: Node, nic: Device) -> None:
    vm.ssh("modprobe lab_dcb driver=igb")
    try:
        name = vm.interface(nic)
        vm.ssh(f"ip link set {name} down")  # igb changes pause frames when its link comes up
        pause = {"pause": {"autoneg": False, "rx": False, "tx": False}}
        settings = {
            "trust": "dscp",
            "dscp_priorities": {"26": 3},
            "pfc": [3],
            "ets": {"tsa": ["ets"] * 2 + ["strict"] * 6, "bandwidth": [60, 40] + [0] * 6},
            "buffer": {"size": [4096] * 2 + [0] * 6},
        }
        converge_checked(vm, [ETHTOOL, DCB], {nic.address: {"ethtool": pause, "dcb": settings}})
        shown = json.loads(vm.ssh(f"dcb -j pfc show dev {name}"))
        assert shown["prio_pfc"] == [priority == 3 for priority in range(8)]
        shown = json.loads(vm.ssh(f"dcb -j ets show dev {name}"))
        assert shown["tc_bw"] == [60, 40] + [0] * 6 and shown["tc_tsa"] == ["ets"] * 2 + ["strict"] * 6
        assert json.loads(vm.ssh(f"dcb -j buffer show dev {name}"))["buffer_size"][:3] == [4096, 4096, 0]
        apps = vm.ssh(f"dcb -N app show dev {name} dscp-prio").split()[1:]
        assert apps == [f"{code}:{3 if code == 26 else code >> 3}" for code in range(64)]
        converge_checked(vm, [DCB], {nic.address: {"dcb": {"trust": "pcp", "pfc": []}}})
        assert ":" not in vm.ssh(f"dcb -N app show dev {name} dscp-prio")
        before = vm.ssh(f"dcb pfc show dev {name}; dcb ets show dev {name}; dcb app show dev {name}")
        for number in range(4):
            result = converge(
                vm, [DCB], {nic.address: {"dcb": {**settings, "pfc": [4]}}}, fail_at=number, code=errno.EIO
            )
            if not result["failed"]:
                break
            assert vm.ssh(f"dcb pfc show dev {name}; dcb ets show dev {name}; dcb app show dev {name}") == before
        assert number >= 2 and not result["failed"]
    finally:
        vm.ssh("rmmod lab_dcb")


def test_the_roce_mode_of_the_connection_manager_is_set(vm: Node, nic: Device) -> None:
    mounted = "mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config"
    vm.ssh(f"modprobe rdma_rxe; modprobe rdma_cm; {mounted}")
    name = vm.interface(nic)
    vm.ssh(f"ip link set {name} up; rdma link add rxe7 type rxe netdev {name}")
    try:
        folder = "/sys/kernel/config/rdma_cm/rxe7"
        settings = {nic.address: {"roce": {"mode": "v2", "tos": 106}}}
        assert converge(vm, [ROCE], settings, check=True)["changes"] and vm.status(f"[ -d {folder} ]")
        # the first run cannot read the current values, so it writes them
        assert len(converge_checked(vm, [ROCE], settings)) == 2
        shown = vm.ssh(f"cat {folder}/ports/1/default_roce_mode {folder}/ports/1/default_roce_tos").splitlines()
        assert shown == ["RoCE v2", "106"]
        result = converge(vm, [ROCE], {nic.address: {"roce": {"tos": 7}}}, fail_at=0, code=errno.EIO)
        assert "node is in its previous state" in result["failed"]
        assert vm.ssh(f"cat {folder}/ports/1/default_roce_tos") == "106"
    finally:
        vm.ssh("rmdir /sys/kernel/config/rdma_cm/rxe7; rdma link delete rxe7", check=False)


def test_the_rdma_netns_mode_is_set_now_or_at_boot(vm: Node) -> None:
    vm.ssh("modprobe rdma_rxe; rdma system set netns shared")
    try:
        result = converge(vm, [RDMA], {}, {"rdma_netns_mode": "exclusive"}, check=True)
        if result["reboot"]:
            # system services have network namespaces, so the kernel also refuses it now
            assert vm.status("rdma system set netns exclusive"), result
        else:
            converge_checked(vm, [RDMA], {}, general={"rdma_netns_mode": "exclusive"})
            assert vm.ssh("rdma system").startswith("netns exclusive")
            vm.ssh("ip netns add pod")
            result = converge(vm, [RDMA], {}, {"rdma_netns_mode": "shared"})
            assert result["changes"] == ["node: rdma_netns_mode_at_boot exclusive -> shared"]
            assert "/run/netns/pod exists" in result["reboot"][0]
            assert vm.status("rdma system set netns shared")
        assert vm.ssh("cat /etc/modprobe.d/lanewise-rdma.conf").startswith("options ib_core netns_mode=")
    finally:
        vm.ssh(
            "ip netns delete pod; rdma system set netns shared; rm -f /etc/modprobe.d/lanewise-rdma.conf", check=False
        )


def test_the_switch_mode_is_read_and_set(vm: Node) -> None:
    """With netdevsim, which is not a PCI device: only the bus name is replaced."""
    program = f"""
import sys; sys.path.insert(0, "{FOLDER}")
from ansible_collections.lanewise.dra.plugins.module_utils.host.access import devlink
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
devlink._device_attributes = lambda name: [("DEVLINK_ATTR_BUS_NAME", "netdevsim"), ("DEVLINK_ATTR_DEV_NAME", name)]
system = System()
print(devlink.eswitch_mode(system, "netdevsim8"))
devlink.set_eswitch_mode(system, "netdevsim8", "switchdev", "set it", "")
print(devlink.eswitch_mode(system, "netdevsim8"))
"""
    vm.ssh("modprobe netdevsim; echo '8 1' > /sys/bus/netdevsim/new_device; udevadm settle")
    try:
        vm.ssh("echo 2 > /sys/bus/netdevsim/devices/netdevsim8/sriov_numvfs")
        assert vm.ssh(f"python3 -c {shlex.quote(program)}").split() == ["legacy", "switchdev"]
        answer = json.loads(vm.ssh("devlink -j dev eswitch show netdevsim/netdevsim8"))
        assert answer["dev"]["netdevsim/netdevsim8"]["mode"] == "switchdev"
    finally:
        vm.ssh("echo 8 > /sys/bus/netdevsim/del_device")
