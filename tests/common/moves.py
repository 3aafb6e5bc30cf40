# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An example of pods that are moved for a job: the fleet before the moves, with held devices, and with the job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as hold_rules
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet_map import fleet_map
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.movable import movable
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.room import Job, Room, room
from ansible_collections.lanewise.dra.plugins.modules.reservation_plan import lines
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import (
    CLASS,
    Object,
    claim_spec,
    node,
    pod,
)

JOB = "big"
#: The GPUs of each pod, by node.
USED: dict[str, list[list[int]]] = {
    "gpu-01": [[0, 1], [2], [4, 5]],
    "gpu-02": [[0, 1]],
    "gpu-03": [[0, 1, 2], [4, 5, 6]],
    "gpu-04": [[0, 1, 2, 3]],
}


@dataclass
class ExampleMoves:
    """The title of each step with the fleet's map, the plan, and the plan as lines of text."""

    steps: list[tuple[str, Object]]
    plan: Room
    lines: list[str]


def example_moves() -> ExampleMoves:
    """A plan for four nodes, none of which is empty, and the fleet after the moves. Skips the test without CEL."""
    nodes = [entry for name in USED for entry in node(name, 8)]
    pods = {
        f"{name}-{number}": pod(f"{name}-{number}", name, gpus)
        for name, node_pods in USED.items()
        for number, gpus in enumerate(node_pods)
    }
    before = [CLASS, *nodes, *(item for items in pods.values() for item in items)]
    job = Job(Workload(JOB, (claim_spec(8),), namespace="training"), 1, JOB, moves=10)
    plan = room(reader.read(before), job, movable(before)[0], require_engine())
    used = {name: list(node_pods) for name, node_pods in USED.items()}
    until = datetime(2026, 12, 1, tzinfo=timezone.utc)
    held = hold_rules.Hold(JOB, "ml-platform", "training", until, plan.devices)
    rules = [hold_rules.rule(held, entry, "resource.k8s.io/v1") for entry in plan.devices]
    for move in plan.moves:
        name = move.pod.partition("/")[2]
        count = len(next(gpus for number, gpus in enumerate(USED[move.node]) if f"{move.node}-{number}" == name))
        taken = {gpu for gpus in used[move.to] for gpu in gpus}
        free = [gpu for gpu in range(8) if gpu not in taken][:count]
        used[move.to].append(free)
        pods[name] = pod(name, move.to, free)
    after = [CLASS, *nodes, *rules, *(item for items in pods.values() for item in items)]
    gpus = [int(device.rpartition("-")[2]) for _driver, _pool, device in plan.devices]
    running = [*after, *pod(JOB, plan.placements[0][0], gpus)]
    steps = [
        (title, fleet_map(reader.read(objects), ()))
        for title, objects in (("now", before), ("the job's GPUs are held", after), ("the job runs", running))
    ]
    return ExampleMoves(steps, plan, lines(plan, job))
