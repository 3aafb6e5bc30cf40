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
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.nvidia import root
from ansible_collections.lanewise.dra.tests.nvidia.driver import READING_RUNS, RUNS, WAYS, NvidiaDriver
from ansible_collections.lanewise.dra.tests.nvidia.recorded import names as recorded
from ansible_collections.lanewise.dra.tests.nvidia.recorded import recording, write
from ansible_collections.lanewise.dra.tests.nvidia.root import Root
from ansible_collections.lanewise.dra.tools.cluster import NVIDIA
from environment import Missing  # tools/cluster.py has put its folder on the path

MACHINES = ("hgx-h100", "dgx-a100", "hgx-b200", "gb200")


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
            given = Root(_tree(machine, tmp_path / machine), folder / "nvidia")
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


def _tree(machine: str, out: Path) -> Path:
    return write(machine, out) if machine in recorded() else build(machine, out)


@pytest.mark.parametrize("version", NVIDIA)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_machines_gpus_are_published(
    publish: t.Callable[..., list[Object]], tmp_path: Path, machine: str, version: str
) -> None:
    """Under their minor numbers, with the UUIDs that the machine's kernel module reports."""
    published = {
        device["name"]: {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        for one in publish(machine, version)
        for device in one["spec"]["devices"]
    }
    wanted = {f"gpu-{gpu.minor}": (gpu.uuid, gpu.name, gpu.address) for gpu in root.gpus(tmp_path / machine)}
    known = ("uuid", "productName", "resource.kubernetes.io/pciBusID")
    assert all("resource.kubernetes.io/pcieRoot" in values for values in published.values())
    assert {name: tuple(values[key] for key in known) for name, values in published.items()} == wanted


def _amounts(value: t.Any) -> t.Any:
    """Quantities as numbers, wherever they are: 1Gi and 1024Mi are the same."""
    if isinstance(value, dict):
        return {key: _amounts(one) for key, one in value.items()}
    return str(quantity.parse(value)) if isinstance(value, str) else value


def differences(predicted: t.Sequence[Offer], published: t.Sequence[Object]) -> list[str]:
    """Between what we predict and what a driver publishes: devices, attributes by type and value, capacities, counters.

    An attribute or capacity whose value no probe sees has to be there, and nothing else may be.
    """
    sure = {one.device["name"]: one for one in predicted if not one.possible}
    devices = {device["name"]: device for one in published for device in one["spec"].get("devices", ())}
    found = [f"{name}: not predicted" for name in sorted(devices.keys() - sure.keys())]
    found += [f"{name}: not published" for name in sorted(sure.keys() - devices.keys())]
    for name in sorted(devices.keys() & sure.keys()):
        real, ours = devices[name], sure[name]
        blind = {key.removeprefix(f"{ours.driver}/") for key in ours.unknown}
        for part in ("attributes", "capacity"):
            given, computed = real.get(part) or {}, ours.device.get(part) or {}
            equal = _amounts if part == "capacity" else dict
            found += [
                f"{name}: {key} is {given.get(key)}, not {computed[key]}"
                for key in computed
                if equal(given.get(key) or {}) != equal(computed[key])
            ]
            found += [f"{name}: {key} not predicted" for key in given.keys() - computed.keys() - blind]
        # a real A100 publishes HMM with a newer driver; the library in place of NVML has no such mode
        missing = blind - (real["attributes"].keys() | (real.get("capacity") or {}).keys()) - {"addressingMode"}
        found += [f"{name}: {key} not published" for key in sorted(missing)]
        for part in ("consumesCounters", "allowMultipleAllocations", "taints"):
            both = [_counters(one.get(part)) for one in (real, ours.device)]
            found += [f"{name}: {part} {both[0]}, not {both[1]}"] if both[0] != both[1] else []
    sets = {entry["name"]: entry for one in published for entry in one["spec"].get("sharedCounters", ())}
    wanted = {entry["name"]: entry for one in sure.values() for entry in one.counter_sets}
    if _counters([*sets.values()]) != _counters([*wanted.values()]):
        found.append(f"the counter sets {sorted(sets)} are not {sorted(wanted)}")
    return found


def _counters(value: t.Any) -> t.Any:
    """Sets of counters in one order, with amounts as numbers."""
    if not isinstance(value, list):
        return value
    return sorted((one.get("name") or one["counterSet"], sorted(_amounts(one["counters"]).items())) for one in value)


@pytest.mark.parametrize(("way", "version"), RUNS, ids="-".join)
@pytest.mark.parametrize("machine", MACHINES)
def test_our_prediction_is_what_the_driver_publishes(
    publish: t.Callable[..., list[Object]], tmp_path: Path, machine: str, version: str, way: str
) -> None:
    stated, given = WAYS[way]
    published = publish(machine, version, **given)
    facts = as_dict(probe(str(tmp_path / machine)))
    predicted = offers("node", facts, {"gpu.nvidia.com": {"version": version, **stated}})
    assert not differences(predicted, published)


def test_a_wrong_prediction_is_found(publish: t.Callable[..., list[Object]], tmp_path: Path) -> None:
    published = publish("hgx-h100", "0.5.0", gates={"DynamicMIG": True})
    facts = as_dict(probe(str(tmp_path / "hgx-h100")))
    for version, more in (("0.5.0", {}), ("0.4.1", {"feature_gates": {"DynamicMIG": True}})):
        assert differences(offers("node", facts, {"gpu.nvidia.com": {"version": version, **more}}), published)


# machines with a real GPU, recorded by tests/nvidia/record.py

RECORDED = [(machine, way, version) for machine in recorded() for way, version in READING_RUNS]


def _devices(specs: t.Iterable[Object]) -> Object:
    """Devices and sets of counters of slices, each by its name."""
    parts = ("devices", "sharedCounters")
    return {part: {one["name"]: one for spec in specs for one in spec.get(part) or ()} for part in parts}


@pytest.mark.parametrize(("machine", "way", "version"), RECORDED, ids="-".join)
def test_the_driver_published_with_a_real_gpu_what_it_publishes_over_our_library_and_what_we_predict(
    publish: t.Callable[..., list[Object]], tmp_path: Path, machine: str, way: str, version: str
) -> None:
    stated, given = WAYS[way]
    real = recording(machine)["slices"][f"{way} {version}"]
    facts = as_dict(probe(str(write(machine, tmp_path / "probed"))))
    assert not differences(
        offers("node", facts, {"gpu.nvidia.com": {"version": version, **stated}}), [{"spec": spec} for spec in real]
    )
    assert _devices(one["spec"] for one in publish(machine, version, **given)) == _devices(real)
