# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each step of each resource fails on a node made of files: the node is restored, or the message says what remains.

Without LANEWISE_SLOW the kinds of errors alternate from step to step, and every other step takes effect before it
fails, as when the kernel's reply is lost. With LANEWISE_SLOW each step fails with each error, before and after it takes
effect: there is a test for each resource, kind of error and moment, so that ``-k "kubelet and EBUSY"`` selects some.
All of them take half an hour on one processor, most of it for "a whole node".
"""

from __future__ import annotations

import itertools
import os
import shutil
import typing as t
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Unread
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.resource import Resource
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist.program import Boot
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import kubelet, memlock
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.catalogue import _ORDER, resources
from ansible_collections.lanewise.dra.tests.host.emulated_node import (
    ICE,
    MLX5,
    RAIL,
    EmulatedNode,
    FailingEmulatedSystem,
)
from ansible_collections.lanewise.dra.tests.host.faults import ERRORS

pytest.importorskip("pyroute2")

SLOW = bool(os.environ.get("LANEWISE_SLOW"))
#: The moments at which a step fails: before or after it takes effect, or alternately.
BEFORE, AFTER, ALTERNATELY = "before the change", "after the change", "alternately"
MOMENTS = (BEFORE, AFTER) if SLOW else (ALTERNATELY,)
ERROR_KINDS = tuple(ERRORS) if SLOW else ("alternating errors",)
KUBELET = {"cpu_manager_policy": "static", "reserved_system_cpus": "0", "topology_manager_policy": "restricted"}
#: Settings by NIC and of the node, by resource.
CASES: dict[str, tuple[dict[str, dict[str, t.Any]], dict[str, t.Any]]] = {
    "kernel_args": ({}, {"kernel_args": ["iommu=pt"], "kernel_args_absent": ["quiet"]}),
    "kernel_modules": ({}, {"kernel_modules": ["rdma_cm"], "module_options": {"mlx5_core": "prof_sel=2"}}),
    "sysctl": ({}, {"sysctl": {"vm.zone_reclaim_mode": 0, "kernel.numa_balancing": 0}}),
    "memlock": ({}, {"memlock_unlimited": True}),
    "hugepages": ({}, {"hugepages": [{"size": "2M", "count": 16}]}),
    "cpu": ({}, {"cpu_governor": "performance", "cpu_idle_max_latency_us": 10}),
    "gpudirect": ({}, {"gpudirect": "peermem"}),
    "acs": ({}, {"acs": "gpudirect"}),
    "rdma_system": ({}, {"rdma_netns_mode": "exclusive"}),
    "firmware": ({MLX5: {"firmware": {"NUM_OF_VFS": 16, "SRIOV_EN": True}}}, {}),
    "sriov": ({MLX5: {"num_vfs": 2, "vfs_autoprobe": False}, ICE: {"num_vfs": 0}}, {}),
    "eswitch": ({MLX5: {"eswitch_mode": "switchdev"}, ICE: {"eswitch_mode": "switchdev"}}, {}),
    "pcie": ({RAIL: {"max_read_request_bytes": 4096, "relaxed_ordering": False}}, {}),
    "vf": ({MLX5: {"vf": {"trust": True, "vlan": 7}, "vfs": [{"index": 1, "mac": "02:00:00:00:00:09"}]}}, {}),
    "vf_driver": ({MLX5: {"vfs": [{"index": 0, "driver": "vfio-pci"}, {"index": 1, "driver": "none"}]}}, {}),
    "dcb": ({RAIL: {"dcb": {"trust": "dscp", "pfc": [3]}}}, {}),
    "roce": ({RAIL: {"roce": {"mode": "v2", "tos": 106}}}, {}),
    "irq": ({RAIL: {"irq_affinity": "local"}}, {}),
    "runtime": ({}, {"runtime_cdi": True, "runtime_nri": True}),
    "kubelet": ({}, {"kubelet": KUBELET}),
    "boot": ({}, {}),
    "a whole node": (
        {
            MLX5: {
                "num_vfs": 2,
                "vf": {"trust": True},
                "vfs": [{"index": 0, "mac": "02:00:00:00:00:09", "driver": "vfio-pci"}],
                "eswitch_mode": "switchdev",
            },
            RAIL: {"max_read_request_bytes": 4096, "roce": {"tos": 106}, "irq_affinity": "local"},
        },
        {"sysctl": {"vm.zone_reclaim_mode": 0}, "runtime_cdi": True, "kubelet": KUBELET, "kernel_args": ["iommu=pt"]},
    ),
}
#: Part of the message of a run that has restored everything, in which "The" starts a sentence or not.
PREVIOUS_STATE = "he node is in its previous state"
#: Resources that test_faults.py tests in a network namespace of the real kernel.
ELSEWHERE = {"ethtool", "mtu", "interface_sysctls", "rail_routes"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for kubelet: on this node it starts at once or not at all."""
    monkeypatch.setattr(kubelet, "_START_TIMEOUT_SECONDS", 0.0)


@pytest.fixture
def new_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[t.Callable[[], EmulatedNode]]:
    """A function that creates a node and deletes the previous one, as each has thousands of files."""
    numbers = itertools.count()
    existing: list[Path] = []

    def delete_nodes() -> None:
        for folder in existing:
            shutil.rmtree(folder)
        existing.clear()

    def create() -> EmulatedNode:
        delete_nodes()
        folder = tmp_path / str(next(numbers))
        existing.append(folder)
        node = EmulatedNode(folder)
        monkeypatch.setattr(memlock.resource, "prlimit", node.prlimit)
        (node.root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True, exist_ok=True)
        node.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
        return node

    yield create
    delete_nodes()


def node_and_resources(name: str, system: FailingEmulatedSystem) -> tuple[Node, list[Resource]]:
    """The node with the settings of a case, and the resources that the case tests."""
    settings, general = CASES[name]
    rules = [Rule(address, selector({"address": address}), wanted, count=1) for address, wanted in settings.items()]
    node = Node(system, rules, general, allow_management=True)
    found = resources(system, settings.values(), general)
    if name in ("boot", "a whole node"):
        found.append(Boot(system, {"nics": [], "node": {"sysctl": {}}, "network": True}))
    return node, [resource for resource in found if name in (resource.name, "a whole node")]


def attempt(name: str, system: FailingEmulatedSystem) -> BaseException | None:
    """The exception with which a run ends; None if it succeeds."""
    node, found = node_and_resources(name, system)
    try:
        assert converge(node, found).changes
    except (Failed, KeyboardInterrupt) as error:
        return error
    return None


def error_of_step(kind: str, number: int, without: str = "") -> str:
    """The name of the error with which step `number` fails: `kind`, or another one for each step."""
    names = [name for name in ERRORS if name != without]
    return kind if kind in ERRORS else names[number * 5 % len(names)]


def takes_effect(moment: str, number: int) -> bool:
    """Whether step `number` takes effect before it fails."""
    return number % 2 == 1 if moment == ALTERNATELY else moment == AFTER


def test_every_resource_has_a_case() -> None:
    system = System()
    existing = {load()(system).name for _scope, _keys, load in _ORDER} | {"boot"}
    assert existing == {*CASES, *ELSEWHERE} - {"a whole node"}


@dataclass
class Run:
    """One run in which step `number` fails. `error` is the run's error; None if the run succeeds in spite of it."""

    node: EmulatedNode
    system: FailingEmulatedSystem
    number: int
    error_kind: str
    error: BaseException | None
    before: dict[str, t.Any]
    now: dict[str, t.Any]

    @property
    def description(self) -> str:
        return f"{self.error_kind} at {self.system.steps[self.number]!r}: {self.error}"


def failing_runs(
    name: str, moment: str, kind: str, new_node: t.Callable[[], EmulatedNode], without: str = "", always: bool = False
) -> t.Iterator[Run]:
    """A run for each step that can fail, then one run in which no step fails. A node that a run has left changed is
    replaced."""
    node = new_node()
    before = node.snapshot()
    number = -1
    while True:
        number += 1
        error_kind = error_of_step(kind, number, without)
        system = FailingEmulatedSystem(
            node,
            fail_at=number,
            error=ERRORS[error_kind],
            takes_effect=takes_effect(moment, number),
            reads=True,
            always=always,
        )
        error = attempt(name, system)
        now = node.snapshot()
        yield Run(node, system, number, error_kind, error, before, now)
        if not system.failed:
            return
        if error is None or now != before:
            node = new_node()


@pytest.mark.parametrize("kind", ERROR_KINDS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", CASES)
def test_the_node_is_restored_if_any_step_fails(
    name: str, moment: str, kind: str, new_node: t.Callable[[], EmulatedNode]
) -> None:
    number = steps = 0
    for run in failing_runs(name, moment, kind, new_node):
        number, steps = run.number, len(run.system.steps)
        if run.error is None:  # no step failed, or the step was not needed or succeeded when it was repeated
            assert run.now != run.before
            continue
        differences = {key for key in {*run.now, *run.before} if run.now.get(key) != run.before.get(key)}
        assert {key: run.now.get(key) for key in differences} == {}, run.description
        if run.error_kind == "interrupted":
            assert isinstance(run.error, KeyboardInterrupt), run.description
        else:
            assert isinstance(run.error, Failed) and not run.error.remaining, run.description
            assert PREVIOUS_STATE in str(run.error)
    assert number == steps > 0


@pytest.mark.parametrize("kind", [kind for kind in ERROR_KINDS if kind != "interrupted"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", [name for name in CASES if SLOW or name != "a whole node"])
def test_remaining_changes_are_reported_if_the_undo_fails_too(
    name: str, moment: str, kind: str, new_node: t.Callable[[], EmulatedNode]
) -> None:
    """The step fails in the undo, too, so changes may remain. They are reported with their current values."""
    for run in failing_runs(name, moment, kind, new_node, without="interrupted", always=True):
        if run.error is None:
            continue
        assert isinstance(run.error, Failed)
        claimed = PREVIOUS_STATE in str(run.error)
        assert not claimed or run.now == run.before, run.description
        assert claimed == (not run.error.remaining), run.description
        _check_current_values(name, run.node, run.error, run.description)


def _check_current_values(name: str, emulated: EmulatedNode, failed: Failed, description: str) -> None:
    """Check that the values of remaining changes are the current ones."""
    system = FailingEmulatedSystem(emulated)
    node, found = node_and_resources(name, system)
    by_name = {resource.name: resource for resource in found}
    for change in failed.remaining:
        assert change.setting in str(failed)
        if change.resource == "file" or isinstance(change.now, Unread) or change.now is None:
            continue  # the message has no current value to compare
        state = by_name[change.resource].read(node, {change.device: {change.setting: change.before}})
        if change.setting in state.get(change.device, {}):
            assert state[change.device][change.setting] == change.now, description
