# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What NVIDIA's own driver publishes for the example machines, over a library that stands in for NVML.

Addresses, PCIe roots and NUMA nodes come from the driver, which reads them in the machine's sysfs tree. Models, memory
and MIG profiles come from our table by way of nvml.c: of these, names and derivation are proven, values are not.
"""

from __future__ import annotations

import itertools
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.nvidia import root
from ansible_collections.lanewise.dra.tests.nvidia.driver import NvidiaDriver
from ansible_collections.lanewise.dra.tests.nvidia.root import Root
from ansible_collections.lanewise.dra.tools.cluster import NVIDIA
from environment import Missing  # tools/cluster.py has put its folder on the path

MACHINES = ("hgx-h100", "dgx-a100", "hgx-b200", "gb200")

Object = dict[str, t.Any]


@pytest.fixture(name="plane", scope="module")
def _plane() -> t.Iterator[ControlPlane]:
    try:
        with ControlPlane(scheduler=False, controller_manager=False) as plane:
            yield plane
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(name="publish")
def _publish(plane: ControlPlane, tmp_path: Path) -> t.Iterator[t.Callable[..., list[Object]]]:
    """Run a driver of a version on a machine; gives its slices. The driver ends with the test."""
    numbers = itertools.count()
    running: list[NvidiaDriver] = []
    sockets = tempfile.TemporaryDirectory(prefix="nv-", dir="/tmp")  # the path of a socket has at most 107 bytes

    def publish(
        machine: str, version: str, instances: t.Mapping[int, t.Sequence[tuple[int, int]]] | None = None, **more: t.Any
    ) -> list[Object]:
        folder = tmp_path / str(next(numbers))
        node = f"{tmp_path.name}-{folder.name}".replace("_", "-").lower()
        try:
            given = Root(build(machine, tmp_path / machine), folder / "nvidia")
            given.set(instances)
            plane.add_node(node)
            places = {"kubelet": Path(sockets.name, folder.name), "cdi": folder / "cdi"}
            driver = NvidiaDriver(plane, node, given, version, **places, **more)
        except Missing as missing:
            pytest.skip(str(missing))
        running.append(driver)
        try:
            return driver.wait()
        finally:
            driver.stop()

    yield publish
    for driver in running:
        for one in driver.slices():
            plane.expect("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{one['metadata']['name']}")
    sockets.cleanup()


@pytest.mark.parametrize("version", NVIDIA)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_machines_gpus_are_published(
    publish: t.Callable[..., list[Object]], tmp_path: Path, machine: str, version: str
) -> None:
    """Under their minor numbers, with the UUIDs that the machine's kernel module tells."""
    published = {
        device["name"]: {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        for one in publish(machine, version)
        for device in one["spec"]["devices"]
    }
    wanted = {f"gpu-{gpu.minor}": (gpu.uuid, gpu.name, gpu.address) for gpu in root.gpus(tmp_path / machine)}
    known = ("uuid", "productName", "resource.kubernetes.io/pciBusID")
    assert all("resource.kubernetes.io/pcieRoot" in values for values in published.values())
    assert {name: tuple(values[key] for key in known) for name, values in published.items()} == wanted
