# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What NVIDIA's own driver publishes with each legal set of its feature gates, against what we predict.

A few sets by default. `LANEWISE_ALL_GATES=1` runs all sets of the gates that the GPU plugin reads when it publishes, on
four machines: 1,224 runs, each of which names what only the library in place of NVML supplied.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import typing as t
from pathlib import Path

import pytest
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

Object = dict[str, t.Any]

#: What the GPU plugin asks for when it publishes (grep featuregates.Enabled in cmd/gpu-kubelet-plugin). MPSSupport,
#: TimeSlicingSettings and DeviceMetadata only change how claims are prepared; they are here to show that.
GATES = (
    *("DynamicMIG", "PassthroughSupport", "NVMLDeviceHealthCheck", "MPSSupport", "TimeSlicingSettings"),
    *("DeviceMetadata", "FabricManagerPartitioning", "DRAListTypeAttributes"),
)
#: The other gates, as they are not by default: the compute domain plugin reads them.
OTHERS = {"ComputeDomainCliques": False, "CrashOnNVLinkFabricErrors": False}
SHARES: tuple[t.Any, ...] = (None, "memory", "unlimited", 4)
ALL = bool(os.environ.get("LANEWISE_ALL_GATES"))


class Set(t.NamedTuple):
    """A legal set: what is on, and the shares."""

    version: str
    on: tuple[str, ...]
    shares: t.Any

    @property
    def stated(self) -> Object:
        shares = {"consumable_shares": self.shares} if self.shares else {}
        return {"version": self.version, "feature_gates": dict.fromkeys(self.on, True), **shares}

    def __str__(self) -> str:
        return "-".join([self.version, *self.on, str(self.shares or "whole")])


def legal(version: str) -> t.Iterator[Set]:
    """All sets that our table lets through; tests/oracle compares its rules with the driver's own."""
    for size in range(len(GATES) + 1):
        for on in itertools.combinations(GATES, size):
            for shares in SHARES:
                one = Set(version, on, shares)
                try:
                    knowledge("gpu.nvidia.com", one.stated)
                except Problems:
                    continue
                yield one


FEW = (
    Set("0.5.0", (), None),
    Set("0.5.0", ("PassthroughSupport", "DeviceMetadata", "MPSSupport"), "memory"),
    Set("0.5.0", ("DynamicMIG", "DRAListTypeAttributes", "FabricManagerPartitioning"), 4),
    Set("0.5.0", ("NVMLDeviceHealthCheck", "TimeSlicingSettings", "DRAListTypeAttributes"), "unlimited"),
    Set("0.4.1", ("PassthroughSupport",), None),
    Set("0.4.1", ("DynamicMIG", "TimeSlicingSettings"), None),
)
SETS = tuple(one for version in NVIDIA for one in legal(version)) if ALL else FEW


@pytest.fixture(name="plane", scope="module")
def _plane() -> t.Iterator[ControlPlane]:
    try:
        gates = {"DRAListTypeAttributes": True}
        with ControlPlane(scheduler=False, controller_manager=False, gates=gates) as plane:
            yield plane
    except Missing as missing:
        pytest.skip(str(missing))


class Machine:
    """An example machine with a driver root; one driver at a time runs on it."""

    def __init__(self, plane: ControlPlane, name: str, folder: Path) -> None:
        self.plane, self.name, self.folder = plane, name, folder
        self.tree = build(name, folder / name)
        self.facts = as_dict(probe(str(self.tree)))
        self.root = Root(self.tree, folder / "nvidia")
        self._numbers = itertools.count()
        self._sockets = tempfile.TemporaryDirectory(prefix="nv-", dir="/tmp")  # a socket's path has at most 107 bytes

    def published(self, one: Set, others: t.Mapping[str, bool]) -> list[Object]:
        """The driver's slices with a set of gates. Raises Failed with its log if it does not start."""
        number = next(self._numbers)
        node = f"{self.name}-{number}"
        self.root.set()
        self.plane.add_node(node)
        gates = {**dict.fromkeys(one.on, True), **others, **({"ConsumableShares": True} if one.shares else {})}
        places = {"kubelet": Path(self._sockets.name, str(number)), "cdi": self.folder / "cdi"}
        driver = NvidiaDriver(
            self.plane, node, self.root, one.version, gates=gates, shares=str(one.shares or ""), **places
        )
        try:
            return driver.wait()
        finally:
            driver.stop()
            for found in driver.slices():
                self.plane.expect("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{found['metadata']['name']}")

    def compared(self, one: Set, others: t.Mapping[str, bool]) -> list[str]:
        """Differences between the prediction and the driver, each with its set."""
        predicted = offers("node", self.facts, {"gpu.nvidia.com": one.stated})
        if not predicted:
            try:
                self.published(one, others)
            except Failed as failure:
                return [] if "IOMMU is not enabled" in str(failure) else [f"{one}: {failure}"]
            return [f"{one}: the driver starts without an IOMMU"]
        # no fabric manager runs here: the driver then publishes the number of a module and no partition
        parts = {f"{name}: {key} not published" for name in _names(predicted) for key in FABRIC[1:]}
        found = set(differences(predicted, self.published(one, others))) - parts
        return [f"{one}: {difference}" for difference in sorted(found)]

    def close(self) -> None:
        self._sockets.cleanup()


def _names(predicted: t.Iterable[t.Any]) -> set[str]:
    return {one.device["name"] for one in predicted}


@pytest.mark.parametrize("machine", MACHINES)
def test_each_legal_set_of_gates(plane: ControlPlane, tmp_path: Path, machine: str, capsys: t.Any) -> None:
    try:
        given = Machine(plane, machine, tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    found: list[str] = []
    try:
        for one in SETS:
            found += given.compared(one, {})
        found += given.compared(SETS[0], OTHERS)
    finally:
        given.close()
    with capsys.disabled():
        print(
            f"\n{machine}: {len(SETS) + 1} sets of gates, {len(found)} differences. From the library in place of NVML, "
            "by way of our table of models: memory, engines, multiprocessors, architecture, coherent memory"
        )
    assert not found
