# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings of the fabric role that affect a whole machine (memory, modules, services, registers), so they are tested in
a VM. The results are checked with other programs, and in the last test after a reboot."""

from __future__ import annotations

import errno
import shlex

import pytest
from ansible_collections.lanewise.dra.tests.lab.fabric import converge, converge_checked, copy_package
from ansible_collections.lanewise.dra.tests.lab.node import Node

HUGEPAGES, SYSCTL, MODULES = ("hugepages", "Hugepages"), ("sysctl", "Sysctl"), ("kernel_modules", "KernelModules")
MEMLOCK, PCIE, RUNTIME, ARGS = (
    ("memlock", "Memlock"),
    ("pcie", "Pcie"),
    ("runtime", "Runtime"),
    ("kernel_args", "KernelArgs"),
)
NUMA_NODES = "/sys/devices/system/node"


@pytest.fixture(scope="module")
def vm(node: Node) -> Node:
    copy_package(node)
    return node


def test_huge_pages_are_set_on_each_numa_node(vm: Node) -> None:
    changes = converge_checked(vm, [HUGEPAGES], {}, {"hugepages": [{"size": "2M", "count": 16}]})
    assert len(changes) == 2
    assert vm.ssh(f"cat {NUMA_NODES}/node*/hugepages/hugepages-2048kB/nr_hugepages").split() == ["16", "16"]
    more = {
        "hugepages": [{"size": "2M", "count": 24, "numa_nodes": [0]}, {"size": "2M", "count": 9000, "numa_nodes": [1]}]
    }
    short = converge(vm, [HUGEPAGES], {}, more)
    assert "the kernel could allocate only" in short["failed"] and short["remaining"] == 0
    assert vm.ssh(f"cat {NUMA_NODES}/node*/hugepages/hugepages-2048kB/nr_hugepages").split() == ["16", "16"]
    converge_checked(vm, [HUGEPAGES], {}, {"hugepages": [{"size": "2M", "count": 0}]})
    assert converge(vm, [HUGEPAGES], {}, {"hugepages": [{"size": "3M", "count": 1}]})["refusals"]


def test_the_container_runtime_can_lock_memory(vm: Node) -> None:
    vm.ssh("systemctl start containerd")
    process = vm.ssh("systemctl show --property=MainPID --value containerd")
    vm.ssh(f"prlimit --pid {process} --memlock=65536:65536")
    for step in range(4):
        failed = converge(vm, [MEMLOCK], {}, {"memlock_unlimited": True}, fail_at=step, code=errno.EIO)
        assert failed["failed"] and failed["remaining"] == 0, failed
        assert "65536" in vm.ssh(f"grep 'Max locked' /proc/{process}/limits")
    assert converge_checked(vm, [MEMLOCK], {}, {"memlock_unlimited": True})
    assert "unlimited            unlimited" in vm.ssh(f"grep 'Max locked' /proc/{process}/limits")
    assert vm.ssh("systemctl show --property=LimitMEMLOCK --value containerd") == "infinity"
    vm.ssh("systemctl restart containerd")
    now = vm.ssh("systemctl show --property=MainPID --value containerd")
    assert now != process and "unlimited            unlimited" in vm.ssh(f"grep 'Max locked' /proc/{now}/limits")
    converge_checked(vm, [MEMLOCK], {}, {"memlock_unlimited": False})
    assert not vm.ssh("ls /etc/security/limits.d | grep lanewise", check=False)


def test_containerd_1_gets_nri_and_cdi_and_keeps_its_cgroup_driver(vm: Node) -> None:
    """In Debian 13's containerd 1.7, both are off by default.

    A plugin's table in an imported file replaces that plugin's whole table of the main file.
    """
    assert " 1.7." in vm.ssh("containerd --version")
    runc = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc'
    config = f'version = 2\n[{runc}]\n  runtime_type = "io.containerd.runc.v2"\n'
    config += f"  [{runc}.options]\n    SystemdCgroup = true\n"
    vm.ssh(f"mkdir -p /etc/containerd; printf %s {shlex.quote(config)} > /etc/containerd/config.toml")
    vm.ssh("systemctl restart containerd")
    before = vm.ssh("containerd config dump")
    changes = converge_checked(vm, [RUNTIME], {}, {"runtime_nri": True, "runtime_cdi": True})
    assert len(changes) == 1
    after = vm.ssh("containerd config dump")
    differing = [line for line in after.splitlines() if line not in before.splitlines()]
    assert {line.strip() for line in differing} <= {"enable_cdi = true", "disable = false"}, differing
    assert "SystemdCgroup = true" in after and "enable_cdi = true" in after
    assert vm.ssh("systemctl is-active containerd") == "active"
    assert vm.status("test -S /var/run/nri/nri.sock") == 0


def test_a_setting_that_a_nic_ignores_is_reported(vm: Node) -> None:
    """QEMU's NICs ignore a change of the maximum read request size (MRRS). This is detected by reading it back, and no
    bit changes."""
    nic = next(device for device in vm.devices if device.kind == "nic")
    config = f"sha256sum < /sys/bus/pci/devices/{nic.address}/config"
    before = vm.ssh(config)
    done = converge(vm, [PCIE], {nic.address: {"max_read_request_bytes": 4096}})
    assert "accepted it, but the value is 128" in done["failed"] and done["remaining"] == 0 and len(done["steps"]) == 1
    assert vm.ssh(config) == before
    assert converge_checked(vm, [PCIE], {nic.address: {"max_read_request_bytes": 128}}) == []


def test_a_node_without_a_boot_loader_is_reported(vm: Node) -> None:
    refused = converge(vm, [ARGS], {}, {"kernel_args": ["iommu=pt"]})["refusals"]
    assert len(refused) == 1 and "not started by a known boot loader" in refused[0]
    running = vm.ssh("cat /proc/cmdline").split()[-1]
    assert converge_checked(vm, [ARGS], {}, {"kernel_args": [running]}) == []


def test_persistent_settings_are_set_after_a_reboot(vm: Node) -> None:
    """This is the last test, as the node reboots."""
    general = {
        "sysctl": {"vm.zone_reclaim_mode": 0, "kernel.numa_balancing": 0, "net.core.rmem_max": 268435456},
        "kernel_modules": ["dummy"],
        "module_options": {"ib_core": "netns_mode=0"},
    }
    vm.ssh("modprobe ib_core")
    assert vm.ssh("cat /sys/module/ib_core/parameters/netns_mode") == "Y"
    planned = converge(vm, [SYSCTL, MODULES], {}, general, check=True)
    assert planned["reboot"] == ["module ib_core was loaded with netns_mode=Y, not 0"], planned
    converge_checked(vm, [SYSCTL, MODULES], {}, general)
    assert vm.ssh("sysctl -n net.core.rmem_max") == "268435456"
    assert vm.status("test -d /sys/module/dummy") == 0
    vm.reboot()
    vm.ssh("modprobe ib_core")
    after = converge(vm, [SYSCTL, MODULES], {}, general)
    assert after["changes"] == [] and after["reboot"] == [] and after["refusals"] == [], after
    assert vm.ssh("cat /sys/module/ib_core/parameters/netns_mode") == "N"
