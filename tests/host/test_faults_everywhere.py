# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each step of each resource fails in every way, on a node made of files: messages must describe the resulting state.

Without LANEWISE_SLOW the kinds of errors alternate from step to step, and every other step takes effect before it
fails, as when an answer is lost. With LANEWISE_SLOW each step fails in each way: there is a test for each resource,
kind of error and moment, so that ``-k "kubelet and EBUSY"`` selects some. All of them take half an hour of one
processor, most of it for "a whole node".
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
from ansible_collections.lanewise.dra.tests.host.faults import ERRORS
from ansible_collections.lanewise.dra.tests.host.world import ICE, MLX5, RAIL, FailingNode, World

pytest.importorskip("pyroute2")

WHOLE = bool(os.environ.get("LANEWISE_SLOW"))
#: Each step fails before it takes effect, or after it (a lost answer), or alternately.
AFTER = ("not made", "made, and the answer lost") if WHOLE else ("in turns",)
KINDS = tuple(ERRORS) if WHOLE else ("errors in turns",)
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
#: Resources that work in a network namespace of a real kernel; test_faults.py tests them.
ELSEWHERE = {"ethtool", "mtu", "interface_sysctls", "rail_routes"}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for kubelet: on this node it runs at once or never."""
    monkeypatch.setattr(kubelet, "_START_TIMEOUT_SECONDS", 0.0)


@pytest.fixture
def new_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[t.Callable[[], World]]:
    """Makes a world and deletes the previous one, as each has thousands of files."""
    numbers = itertools.count()
    made: list[Path] = []

    def delete_worlds() -> None:
        for folder in made:
            shutil.rmtree(folder)
        made.clear()

    def make() -> World:
        delete_worlds()
        made.append(tmp_path / str(next(numbers)))
        world = World(made[0])
        monkeypatch.setattr(memlock.resource, "prlimit", world.prlimit)
        (world.root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True, exist_ok=True)
        world.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
        return world

    yield make
    delete_worlds()


def node_and_resources(name: str, system: FailingNode) -> tuple[Node, list[Resource]]:
    settings, general = CASES[name]
    rules = [Rule(key, selector({"address": key}), one, count=1) for key, one in settings.items()]
    node = Node(system, rules, general, allow_management=True)
    found = resources(system, settings.values(), general)
    if name in ("boot", "a whole node"):
        found.append(Boot(system, {"nics": [], "node": {"sysctl": {}}, "network": True}))
    return node, [one for one in found if name in (one.name, "a whole node")]


def attempt(name: str, system: FailingNode) -> BaseException | None:
    """The exception with which a run ends; None if it succeeds."""
    node, found = node_and_resources(name, system)
    try:
        assert converge(node, found).changes
    except (Failed, KeyboardInterrupt) as error:
        return error
    return None


def error(kind: str, number: int, without: str = "") -> str:
    """The kind of error that step `number` meets."""
    names = [one for one in ERRORS if one != without]
    return kind if kind in ERRORS else names[number * 5 % len(names)]


def takes_effect(after: str, number: int) -> bool:
    """Whether step `number` takes effect before it fails."""
    return number % 2 == 1 if after not in ("not made", "made, and the answer lost") else after != "not made"


def test_every_resource_is_tried() -> None:
    system = System()
    known = {load()(system).name for _scope, _keys, load in _ORDER} | {"boot"}
    assert known == {*CASES, *ELSEWHERE} - {"a whole node"}


@dataclass
class Run:
    """One run in which a step fails; `failed` is the run's error, None if the run succeeds all the same."""

    world: World
    system: FailingNode
    number: int
    error_kind: str
    failed: BaseException | None
    before: dict[str, t.Any]
    now: dict[str, t.Any]

    @property
    def place(self) -> str:
        return f"{self.error_kind} at {self.system.steps[self.number]!r}: {self.failed}"


def failing_runs(
    name: str, after: str, kind: str, new_world: t.Callable[[], World], without: str = "", always: bool = False
) -> t.Iterator[Run]:
    """A run for each step that can fail, then one run in which no step fails. A world that a run has left changed is
    replaced."""
    world = new_world()
    before = world.snapshot()
    number = -1
    while True:
        number += 1
        wrong = error(kind, number, without)
        system = FailingNode(
            world, fail_at=number, error=ERRORS[wrong], after=takes_effect(after, number), reads=True, always=always
        )
        failed = attempt(name, system)
        now = world.snapshot()
        yield Run(world, system, number, wrong, failed, before, now)
        if not system.failed:
            return
        if failed is None or now != before:
            world = new_world()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", CASES)
def test_the_node_is_restored_if_any_step_fails(
    name: str, after: str, kind: str, new_world: t.Callable[[], World]
) -> None:
    number = steps = 0
    for run in failing_runs(name, after, kind, new_world):
        number, steps = run.number, len(run.system.steps)
        if run.failed is None:  # no more steps, or the step was not needed or succeeded when tried again
            assert run.now != run.before
            continue
        differences = {key for key in {*run.now, *run.before} if run.now.get(key) != run.before.get(key)}
        assert {key: run.now.get(key) for key in differences} == {}, run.place
        if run.error_kind == "interrupted":
            assert isinstance(run.failed, KeyboardInterrupt), run.place
        else:
            assert isinstance(run.failed, Failed) and not run.failed.remaining, run.place
            assert "he node is in its previous state" in str(run.failed)
    assert number == steps > 0


@pytest.mark.parametrize("kind", [one for one in KINDS if one != "interrupted"])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", [one for one in CASES if WHOLE or one != "a whole node"])
def test_remaining_changes_are_reported_if_the_undo_fails_too(
    name: str, after: str, kind: str, new_world: t.Callable[[], World]
) -> None:
    """The undo meets the same error, so something may stay changed: it is reported with its current value."""
    for run in failing_runs(name, after, kind, new_world, without="interrupted", always=True):
        if run.failed is None:
            continue
        assert isinstance(run.failed, Failed)
        claimed = "he node is in its previous state" in str(run.failed)
        assert not claimed or run.now == run.before, run.place
        assert claimed == (not run.failed.remaining), run.place
        _compare(name, run.world, run.failed, run.place)


def _compare(name: str, world: World, failed: Failed, place: str) -> None:
    """Check that each value in the message is the current one."""
    system = FailingNode(world)
    node, found = node_and_resources(name, system)
    by_name = {one.name: one for one in found}
    for one in failed.remaining:
        assert one.setting in str(failed)
        if one.resource == "file" or isinstance(one.now, Unread) or one.now is None:
            continue  # the message has no current value to compare
        state = by_name[one.resource].read(node, {one.device: {one.setting: one.before}})
        if one.setting in state.get(one.device, {}):
            assert state[one.device][one.setting] == one.now, place
