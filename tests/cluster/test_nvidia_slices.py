# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices that NVIDIA's own driver publishes for the example machines, with a library that stands in for NVML.

The driver reads addresses, PCIe roots and NUMA nodes in the machine's sysfs tree. Models, memory and MIG profiles come
from our table, through nvml.c. So these tests prove the names and derivation of such attributes, but not the values.
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
from ansible_collections.lanewise.dra.tests.nvidia.driver import MODES, READING_RUNS, RUNS, NvidiaDriver
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
    """A function that runs a version of the driver on a machine and returns the slices, which are deleted after the
    test."""
    numbers = itertools.count()
    running: list[NvidiaDriver] = []
    sockets = tempfile.TemporaryDirectory(prefix="nv-", dir="/tmp")  # the path of a socket has at most 107 bytes

    def publish(
        machine: str, version: str, instances: t.Mapping[int, t.Sequence[tuple[int, int]]] | None = None, **more: t.Any
    ) -> list[Object]:
        folder = tmp_path / str(next(numbers))
        node = f"{tmp_path.name}-{folder.name}".replace("_", "-").lower()
        try:
            driver_root = Root(_tree(machine, tmp_path / machine), folder / "nvidia")
            driver_root.set(instances)
            plane.add_node(node)
            folders = {"kubelet": Path(sockets.name, folder.name), "cdi": folder / "cdi"}
            driver = NvidiaDriver(plane, node, driver_root, version, **folders, **more)
        except Missing as missing:
            pytest.skip(str(missing))
        running.append(driver)
        try:
            return driver.wait()
        finally:
            driver.stop()

    yield publish
    for driver in running:
        for resource_slice in driver.slices():
            plane.expect("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{resource_slice['metadata']['name']}")
    sockets.cleanup()


def _tree(machine: str, out: Path) -> Path:
    return write(machine, out) if machine in recorded() else build(machine, out)


@pytest.mark.parametrize("version", NVIDIA)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_machines_gpus_are_published(
    publish: t.Callable[..., list[Object]], tmp_path: Path, machine: str, version: str
) -> None:
    """The devices are named after the minor numbers, and have the UUIDs that the machine's kernel module reports."""
    published = {
        device["name"]: {name: next(iter(value.values())) for name, value in device["attributes"].items()}
        for entry in publish(machine, version)
        for device in entry["spec"]["devices"]
    }
    expected = {f"gpu-{gpu.minor}": (gpu.uuid, gpu.name, gpu.address) for gpu in root.gpus(tmp_path / machine)}
    known = ("uuid", "productName", "resource.kubernetes.io/pciBusID")
    assert all("resource.kubernetes.io/pcieRoot" in values for values in published.values())
    assert {name: tuple(values[key] for key in known) for name, values in published.items()} == expected


def _amounts(value: t.Any) -> t.Any:
    """The value with all quantities in it as numbers: 1Gi and 1024Mi are the same."""
    if isinstance(value, dict):
        return {key: _amounts(entry) for key, entry in value.items()}
    return str(quantity.parse(value)) if isinstance(value, str) else value


def differences(predicted: t.Sequence[Offer], published: t.Sequence[Object]) -> list[str]:
    """The differences between the predicted and the published devices: their names, the types and values of their
    attributes, capacities, counters.

    Attributes and capacities with a value that no probe can read must be published, too, and no others.
    """
    certain = {item.device["name"]: item for item in predicted if not item.possible}
    devices = {device["name"]: device for item in published for device in item["spec"].get("devices", ())}
    found = [f"{name}: not predicted" for name in sorted(devices.keys() - certain.keys())]
    found += [f"{name}: not published" for name in sorted(certain.keys() - devices.keys())]
    for name in sorted(devices.keys() & certain.keys()):
        real, offer = devices[name], certain[name]
        unknown = {key.removeprefix(f"{offer.driver}/") for key in offer.unknown}
        for part in ("attributes", "capacity"):
            actual, computed = real.get(part) or {}, offer.device.get(part) or {}
            normalize = _amounts if part == "capacity" else dict
            found += [
                f"{name}: {key} is {actual.get(key)}, not {computed[key]}"
                for key in computed
                if normalize(actual.get(key) or {}) != normalize(computed[key])
            ]
            found += [f"{name}: {key} not predicted" for key in actual.keys() - computed.keys() - unknown]
        # a real A100 publishes HMM with a newer driver; the library in place of NVML has no such mode
        missing = unknown - (real["attributes"].keys() | (real.get("capacity") or {}).keys()) - {"addressingMode"}
        found += [f"{name}: {key} not published" for key in sorted(missing)]
        for part in ("consumesCounters", "allowMultipleAllocations", "taints"):
            both = [_counters(item.get(part)) for item in (real, offer.device)]
            found += [f"{name}: {part} {both[0]}, not {both[1]}"] if both[0] != both[1] else []
    sets = {entry["name"]: entry for item in published for entry in item["spec"].get("sharedCounters", ())}
    expected = {entry["name"]: entry for item in certain.values() for entry in item.counter_sets}
    if _counters([*sets.values()]) != _counters([*expected.values()]):
        found.append(f"the counter sets {sorted(sets)} are not {sorted(expected)}")
    return found


def _counters(value: t.Any) -> t.Any:
    """Counter sets in a fixed order, with amounts as numbers."""
    if not isinstance(value, list):
        return value
    return sorted(
        (entry.get("name") or entry["counterSet"], sorted(_amounts(entry["counters"]).items())) for entry in value
    )


@pytest.mark.parametrize(("mode", "version"), RUNS)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_driver_publishes_the_predicted_devices(
    publish: t.Callable[..., list[Object]], tmp_path: Path, machine: str, version: str, mode: str
) -> None:
    stated, options = MODES[mode]
    published = publish(machine, version, **options)
    facts = as_dict(probe(str(tmp_path / machine)))
    predicted = offers("node", facts, {"gpu.nvidia.com": {"version": version, **stated}})
    assert not differences(predicted, published)


def test_a_wrong_prediction_is_found(publish: t.Callable[..., list[Object]], tmp_path: Path) -> None:
    published = publish("hgx-h100", "0.5.0", gates={"DynamicMIG": True})
    facts = as_dict(probe(str(tmp_path / "hgx-h100")))
    for version, more in (("0.5.0", {}), ("0.4.1", {"feature_gates": {"DynamicMIG": True}})):
        assert differences(offers("node", facts, {"gpu.nvidia.com": {"version": version, **more}}), published)


# machines with a real GPU, recorded by tests/nvidia/record.py

RECORDED = [(machine, mode, version) for machine in recorded() for mode, version in READING_RUNS]


def _devices(specs: t.Iterable[Object]) -> Object:
    """The devices and counter sets of slices, by name."""
    parts = ("devices", "sharedCounters")
    return {part: {entry["name"]: entry for spec in specs for entry in spec.get(part) or ()} for part in parts}


@pytest.mark.parametrize(("machine", "mode", "version"), RECORDED)
def test_the_slices_recorded_with_a_real_gpu_equal_the_prediction_and_those_with_our_library(
    publish: t.Callable[..., list[Object]], tmp_path: Path, machine: str, mode: str, version: str
) -> None:
    stated, options = MODES[mode]
    real = recording(machine)["slices"][f"{mode} {version}"]
    facts = as_dict(probe(str(write(machine, tmp_path / "probed"))))
    assert not differences(
        offers("node", facts, {"gpu.nvidia.com": {"version": version, **stated}}), [{"spec": spec} for spec in real]
    )
    assert _devices(entry["spec"] for entry in publish(machine, version, **options)) == _devices(real)
