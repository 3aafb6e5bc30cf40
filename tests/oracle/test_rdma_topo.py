# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the probe with rdma-core's rdma_topo, which pairs GPUs and NICs on NVIDIA's Grace boards.

`LANEWISE_RDMA_TOPO` names the program if it is not installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.oracle import trees

PROGRAM = os.environ.get("LANEWISE_RDMA_TOPO") or shutil.which("rdma_topo", path=f"{os.environ['PATH']}:/usr/sbin")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="rdma_topo is not installed (in recent packages of rdma-core)")


def run_rdma_topo(machine: str) -> tuple[list[dict[str, t.Any]], Topology]:
    """The entries that rdma_topo prints for an example machine, and what the probe finds there."""
    root = trees.root_of(f"machine:{machine}")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "topology", "--json"],
        env={**os.environ, "RDMA_TOPO_DEVDIR": f"{root}/sys/bus/pci/devices"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout), probe(str(root))


def check_subsystems(entry: dict[str, t.Any], topology: Topology) -> None:
    """Both must find the same interfaces, RDMA devices and NVMe controllers on the functions of an entry."""
    nics = {nic.address: nic for nic in topology.nics}
    drives = {nvme.address: nvme for nvme in topology.nvme}
    for address, found in entry["subsystems"].items():
        assert sorted(found.get("net", [])) == (sorted(nics[address].interfaces) if address in nics else [])
        assert sorted(found.get("infiniband", [])) == (sorted(nics[address].rdma_devices) if address in nics else [])
        assert sorted(found.get("nvme", [])) == (drives[address].controllers if address in drives else [])


def test_data_direct_functions_pair_gpus_and_nics_on_gb300(summarize: t.Callable[[t.Any], None]) -> None:
    """A GPU and its NIC are below different root complexes, and connected by the NIC's DMA function."""
    entries, topology = run_rdma_topo("gb300")
    nics, gpus = {nic.address: nic for nic in topology.nics}, {gpu.address: gpu for gpu in topology.gpus}
    assert {entry["gpu_bdf"] for entry in entries} == set(gpus)
    assert {entry["rdma_nic_pf_bdf"] for entry in entries} == {nic.address for nic in topology.nics if nic.data_direct}
    for entry in entries:
        nic, gpu = nics[entry["rdma_nic_pf_bdf"]], gpus[entry["gpu_bdf"]]
        assert nic.data_direct == entry["rdma_dma_bdf"]
        assert nic.nearest_gpus.devices == [gpu.address] and gpu.nearest_nics.devices == [nic.address]
        assert gpu.nearest_nics.via == {nic.address: entry["rdma_dma_bdf"]}
        assert nic.numa_node == gpu.numa_node == entry["numa_node"]
        vpd = topology.functions[nic.address].vpd
        assert vpd and vpd.name == entry["rdma_nic_vpd_name"]
        check_subsystems(entry, topology)
    summarize(f"rdma_topo gb300: {len(entries)} pairs of GPU and NIC")


def test_numa_nodes_pair_gpus_and_nics_on_gb200(summarize: t.Callable[[t.Any], None]) -> None:
    """Each root port has its own PCI domain, so only the NUMA node shows which devices belong together."""
    entries, topology = run_rdma_topo("gb200")
    gpus = {gpu.address: gpu for gpu in topology.gpus}
    assert sorted(address for entry in entries for address in entry["gpu_bdfs"]) == sorted(gpus)
    for entry in entries:
        for address in entry["gpu_bdfs"]:
            assert gpus[address].numa_node == entry["numa_node"]
            assert gpus[address].nearest_nics.level == "NODE"
        nearest = {name for address in entry["gpu_bdfs"] for name in gpus[address].nearest_nics.devices}
        nics = {address for address, found in entry["subsystems"].items() if "infiniband" in found}
        # rdma_topo names the ConnectX-7 NICs only; the BlueField-3 ports of the same node are near as well
        assert nics and nics <= nearest
        assert {topology.functions[address].numa_node for address in nics} == {entry["numa_node"]}
        check_subsystems(entry, topology)
    summarize(f"rdma_topo gb200: {len(entries)} NUMA nodes with {len(gpus)} GPUs")
