# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The predicted devices against those that NVIDIA's driver publishes, for each legal set of its feature gates.

By default, only a few sets are tested. `LANEWISE_ALL_GATES=1` tests all sets of the gates that the GPU plugin reads
when it publishes, on four machines: 1,224 runs. The output lists the values that come only from the NVML stand-in.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.drivers import knowledge
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.nvidia_vfio import FABRIC
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed
from ansible_collections.lanewise.dra.tests.cluster.test_nvidia_slices import MACHINES, differences
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.nvidia.driver import NvidiaDriver
from ansible_collections.lanewise.dra.tests.nvidia.root import Root
from ansible_collections.lanewise.dra.tools.cluster import NVIDIA
from environment import Missing  # tools/cluster.py has put its folder on the path

#: The gates that the GPU plugin reads when it publishes (grep featuregates.Enabled in cmd/gpu-kubelet-plugin). Also
#: MPSSupport, TimeSlicingSettings and DeviceMetadata, which must change only how claims are prepared.
GATES = (
    *("DynamicMIG", "PassthroughSupport", "NVMLDeviceHealthCheck", "MPSSupport", "TimeSlicingSettings"),
    *("DeviceMetadata", "FabricManagerPartitioning", "DRAListTypeAttributes"),
)
#: The other gates, with the opposite of their defaults. Only the compute domain plugin reads them.
OTHERS = {"ComputeDomainCliques": False, "CrashOnNVLinkFabricErrors": False}
SHARES: tuple[t.Any, ...] = (None, "memory", "unlimited", 4)
ALL = bool(os.environ.get("LANEWISE_ALL_GATES"))


class GateSet(t.NamedTuple):
    """A legal set of gates: those that are on, and the setting of consumable shares, for a version of the driver."""

    version: str
    on: tuple[str, ...]
    shares: t.Any

    @property
    def options(self) -> Object:
        """The options of the driver in `dra_claims_drivers`."""
        shares = {"consumable_shares": self.shares} if self.shares else {}
        return {"version": self.version, "feature_gates": dict.fromkeys(self.on, True), **shares}

    def __str__(self) -> str:
        return "-".join([self.version, *self.on, str(self.shares or "whole")])


def legal_sets(version: str) -> t.Iterator[GateSet]:
    """All sets that the collection's rules accept. tests/oracle compares these rules with the driver's."""
    for size in range(len(GATES) + 1):
        for on in itertools.combinations(GATES, size):
            for shares in SHARES:
                gate_set = GateSet(version, on, shares)
                try:
                    knowledge("gpu.nvidia.com", gate_set.options)
                except Problems:
                    continue
                yield gate_set


FEW = (
    GateSet("0.5.0", (), None),
    GateSet("0.5.0", ("PassthroughSupport", "DeviceMetadata", "MPSSupport"), "memory"),
    GateSet("0.5.0", ("DynamicMIG", "DRAListTypeAttributes", "FabricManagerPartitioning"), 4),
    GateSet("0.5.0", ("NVMLDeviceHealthCheck", "TimeSlicingSettings", "DRAListTypeAttributes"), "unlimited"),
    GateSet("0.4.1", ("PassthroughSupport",), None),
    GateSet("0.4.1", ("DynamicMIG", "TimeSlicingSettings"), None),
)
SETS = tuple(members for version in NVIDIA for members in legal_sets(version)) if ALL else FEW


@pytest.fixture(name="plane", scope="module")
def _plane() -> t.Iterator[ControlPlane]:
    try:
        gates = {"DRAListTypeAttributes": True}
        with ControlPlane(scheduler=False, controller_manager=False, gates=gates) as plane:
            yield plane
    except Missing as missing:
        pytest.skip(str(missing))


class Machine:
    """An example machine with a driver root. One driver at a time runs on it."""

    def __init__(self, plane: ControlPlane, name: str, folder: Path) -> None:
        self.plane, self.name, self.folder = plane, name, folder
        self.tree = build(name, folder / name)
        self.facts = as_dict(probe(str(self.tree)))
        self.root = Root(self.tree, folder / "nvidia")
        self._numbers = itertools.count()
        self._sockets = tempfile.TemporaryDirectory(prefix="nv-", dir="/tmp")  # a socket's path has at most 107 bytes

    def published(self, gate_set: GateSet, others: t.Mapping[str, bool]) -> list[Object]:
        """The driver's slices with a set of gates. Raises Failed with its log if it does not start."""
        number = next(self._numbers)
        node = f"{self.name}-{number}"
        self.root.set()
        self.plane.add_node(node)
        gates = {
            **dict.fromkeys(gate_set.on, True),
            **others,
            **({"ConsumableShares": True} if gate_set.shares else {}),
        }
        folders = {"kubelet": Path(self._sockets.name, str(number)), "cdi": self.folder / "cdi"}
        driver = NvidiaDriver(
            self.plane, node, self.root, gate_set.version, gates=gates, shares=str(gate_set.shares or ""), **folders
        )
        try:
            return driver.wait()
        finally:
            driver.stop()
            for item in driver.slices():
                self.plane.expect("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")

    def compare(self, gate_set: GateSet, others: t.Mapping[str, bool]) -> list[str]:
        """The differences between the predicted and the published devices, each with the set of gates."""
        predicted = offers("node", self.facts, {"gpu.nvidia.com": gate_set.options})
        if not predicted:
            try:
                self.published(gate_set, others)
            except Failed as failure:
                return [] if "IOMMU is not enabled" in str(failure) else [f"{gate_set}: {failure}"]
            return [f"{gate_set}: the driver starts without an IOMMU"]
        # without a fabric manager, the driver publishes the module number but no partitions
        parts = {f"{name}: {key} not published" for name in _names(predicted) for key in FABRIC[1:]}
        found = set(differences(predicted, self.published(gate_set, others))) - parts
        return [f"{gate_set}: {difference}" for difference in sorted(found)]

    def close(self) -> None:
        self._sockets.cleanup()


def _names(predicted: t.Iterable[t.Any]) -> set[str]:
    return {device.device["name"] for device in predicted}


@pytest.mark.parametrize("machine", MACHINES)
def test_published_devices_equal_the_prediction_for_each_legal_set_of_gates(
    plane: ControlPlane, tmp_path: Path, machine: str, capsys: t.Any
) -> None:
    try:
        gpu_machine = Machine(plane, machine, tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    found: list[str] = []
    try:
        for members in SETS:
            found += gpu_machine.compare(members, {})
        found += gpu_machine.compare(SETS[0], OTHERS)
    finally:
        gpu_machine.close()
    with capsys.disabled():
        print(
            f"\n{machine}: {len(SETS) + 1} sets of gates, {len(found)} differences. The NVML stand-in takes these from "
            "the table of models: memory, engines, multiprocessors, architecture, coherent memory"
        )
    assert not found
