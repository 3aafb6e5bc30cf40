# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get CPUs of the same socket as their GPU or NIC, from NVIDIA's real driver, lanewise.dev and a stand-in for the
CPU DRA driver.

The stand-in publishes the devices that the CPU driver's sources describe (cpu_driver.py). So the test shows that claims
for three drivers work with kubelet and the scheduler, but not what the real CPU driver does.
"""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import cpu_list
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster.cpu_driver import NAME, CpuDriver
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode

CPUS = 8  # of each pod
DRIVERS = {**gpu_claims.drivers("0.5.0"), NAME: {"version": "main"}}
CPU_REQUESTS = [{"name": "cpus", "kind": "cpu", "capacity": {"dra.cpu/cpu": CPUS}}]
NIC = {"name": "nic", "kind": "nic", "where": {"min_speed": "400G"}}
TEMPLATES = [
    {"name": name, "namespace": "default", "align": "numa_node", "devices": [*devices, *CPU_REQUESTS]}
    for name, devices in {"gpu-cpus": [gpu_claims.GPU], "nic-cpus": [NIC], "all-three": [NIC, gpu_claims.GPU]}.items()
]


@pytest.fixture(name="running", scope="module")
def _running(node: Node, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[tuple[GpuNode, CpuDriver]]:
    try:
        gpus = GpuNode(node, "hgx-h100", tmp_path_factory.mktemp("cpus"), "0.5.0")
    except Missing as missing:
        pytest.skip(str(missing))
    cpus = CpuDriver(node, gpus.judge)
    try:
        gpu_claims.apply(node, gpu_claims.variables("0.5.0", TEMPLATES, drivers=DRIVERS), gpus.facts)
        yield gpus, cpus
    finally:
        cpus.close()
        gpus.close()


def test_published_devices_equal_the_prediction(node: Node, running: tuple[GpuNode, CpuDriver]) -> None:
    gpus, cpus = running
    predicted = [offer for offer in offers(node.name, gpus.facts, DRIVERS) if offer.driver == NAME]
    assert len(predicted) == len(cpus.devices) == 2
    for entry, device in zip(predicted, cpus.devices):
        known = {name: value for name, value in device["attributes"].items() if name != "dra.cpu/smtEnabled"}
        assert entry.device["attributes"] == known  # without smtEnabled: the probe does not read SMT
        assert {**entry.device, "attributes": {}} == {**device, "attributes": {}}


@pytest.mark.parametrize(("template", "device_count"), [("gpu-cpus", 1), ("nic-cpus", 1), ("all-three", 2)])
def test_pods_get_cpus_of_the_same_socket(
    node: Node, running: tuple[GpuNode, CpuDriver], template: str, device_count: int
) -> None:
    """There are as many pods as GPUs and fabric NICs. The test reads a pod's CPUs from the environment variable that
    the real driver uses to pin containers."""
    gpus, driver = running
    tree = gpus.judge
    pods = len(tree.gpus)
    names = [f"{template}-{number}" for number in range(pods)]
    gpus.start(dict.fromkeys(names, template))
    all_cpus: list[int] = []
    sockets = set()
    for name in names:
        seen = gpus.seen(name)
        devices = [*seen.gpus, *seen.nics]
        assert len(devices) == device_count
        [cpuset] = re.findall(r"^DRA_CPUSET_[0-9a-f-]+=(.+)$", node.execute(name, "env"), re.MULTILINE)
        cpus = cpu_list(cpuset)
        assert len(cpus) == CPUS
        assert {tree.cpu_node(cpu) for cpu in cpus} == {tree.numa_node(device) for device in devices}
        [socket] = {tree.cpu_socket(cpu) for cpu in cpus}
        sockets.add(socket)
        all_cpus += cpus
    assert len(set(all_cpus)) == CPUS * pods and sockets == {0, 1}
    for name in names:
        node.delete_pod(name, wait=False)
    node.plane.wait_for(lambda: not driver.assigned, "the release of all CPUs", 120)
