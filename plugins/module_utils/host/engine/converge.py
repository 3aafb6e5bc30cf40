# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Bring a node to its wanted state: plan everything, change in order, read back, and undo if a step fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import typing as t
from dataclasses import dataclass, field

from ..access.system import HostError, NotRecorded
from .change import Change, Plan, Refusal, State, shown
from .node import Node
from .resource import Resource
from .rules import Unfit
from .undo import StartedChange, undo

LOCK = "/run/lanewise/fabric.lock"
_LOCK_SECONDS = 30.0


class Refused(Unfit):
    """Nothing was changed, because some changes are refused. `refusals` are all of them."""

    def __init__(self, refusals: t.Sequence[Refusal]) -> None:
        self.refusals = list(refusals)
        super().__init__([str(one) for one in refusals])


@dataclass
class Outcome:
    """What a run did, or in check mode would do.

    `before` and `after` are the changed values by resource; `after` is read from the node, or, in check mode, the
    wanted value. `not_recorded` are the resources that a recorded tree cannot show, each with the missing files.
    `reboot` are the reasons for a reboot, `drain` the reasons to drain the node first.
    """

    changes: list[Change] = field(default_factory=list)
    not_recorded: list[str] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)
    before: dict[str, State] = field(default_factory=dict)
    after: dict[str, State] = field(default_factory=dict)


@contextlib.contextmanager
def node_lock(path: str = LOCK, seconds: float = _LOCK_SECONDS) -> t.Iterator[None]:
    """The lock of the node, so that only one run changes it. Raises HostError if another run has held it for `seconds`
    seconds."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with open(path, "a+", encoding="ascii") as file:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    who = file.read(32).strip() or "unknown"
                    step = "configure the node"
                    fix = "wait for it, then run again"
                    raise HostError(
                        step, f"another run (process {who}) has held the lock {path} for {seconds:.0f} s", fix
                    ) from None
                time.sleep(0.2)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def converge(
    node: Node,
    resources: t.Sequence[Resource],
    check_mode: bool = False,
    drained: bool = False,
    wanted: t.Mapping[str, State] | None = None,
    before_changes: t.Callable[[list[Change]], None] | None = None,
) -> Outcome:
    """Bring the node to its settings, or to `wanted` by resource, in the order of `resources`.

    `before_changes` is called with all changes before the first of them is made. In check mode with `drained`, a change
    that only pods prevent is not refused; it is reported as a reason to drain.

    Raises Refused before anything is changed; Failed if a step fails, after the steps before it were undone; and
    HostError if the node's state cannot be read.
    """
    outcome = Outcome()
    plans = _plans(node, resources, check_mode, wanted, outcome)
    refusals = [refusal for _resource, one in plans for refusal in one.refusals]
    if [one for one in refusals if not (check_mode and drained and one.drain)]:
        raise Refused(refusals)
    outcome.drain = [f"{one.device}: {one.message}" for one in refusals]
    for _resource, one in plans:
        _add_plan(one, outcome)
    if check_mode or not outcome.changes:
        return outcome
    if before_changes:
        before_changes(outcome.changes)
    node.system.begin()
    done: list[StartedChange] = []
    try:
        for resource, one in plans:
            if one.changes:
                outcome.after[resource.name] = _apply(node, resource, one, done)
    # after any error, also a defect or Ctrl+C, no part of the changes may remain
    except BaseException as error:
        failed = undo(node, error, done)
        if isinstance(error, Exception):
            raise failed from error
        raise
    return outcome


def _plans(
    node: Node,
    resources: t.Sequence[Resource],
    check_mode: bool,
    wanted: t.Mapping[str, State] | None,
    outcome: Outcome,
) -> list[tuple[Resource, Plan]]:
    """The plan of each resource. In check mode, resources that cannot be planned are added to
    `outcome.not_recorded`."""
    plans = []
    for resource in resources:
        missing = _missing_files(node, resource) if check_mode else ""
        try:
            if not missing:
                plans.append((resource, resource.plan(node, None if wanted is None else wanted.get(resource.name, {}))))
        except NotRecorded as error:
            if not check_mode:
                raise
            missing = error.reason
        if missing:
            outcome.not_recorded.append(f"{resource.name} ({missing})")
    return plans


def _add_plan(plan: Plan, outcome: Outcome) -> None:
    """Add the effects of a plan to the outcome."""
    outcome.reboot += [reason for reason in plan.reboot if reason not in outcome.reboot]
    for change in plan.changes:
        outcome.changes.append(change)
        if change.interrupts:
            outcome.drain.append(f"{change.device}: {change.interrupts}")
        for states, value in ((outcome.before, change.before), (outcome.after, change.after)):
            states.setdefault(change.resource, {}).setdefault(change.device, {})[change.setting] = value


def _missing_files(node: Node, resource: Resource) -> str:
    """The files that a resource needs and a recorded tree lacks; empty if it has all."""
    missing = [path for path in resource.recorded_in if not node.system.live and not node.system.exists(path)]
    return f"no {', '.join(missing)}" if missing else ""


def _apply(node: Node, resource: Resource, plan: Plan, done: list[StartedChange]) -> State:
    """Make the changes of one resource, and read them back. Each change is added to `done` before it is made, as it may
    fail in the middle."""
    for change in plan.changes:
        done.append(StartedChange(resource, change))
        done[-1].side_effects = resource.side_effects(node, change)
        resource.apply(node, change)
    if resource.recreates_devices:
        node.refresh()
    return _read_back(node, resource, plan.changes)


def _read_back(node: Node, resource: Resource, changes: t.Sequence[Change]) -> State:
    """The node's state after the changes. Raises HostError if it is not the wanted one."""
    wanted: State = {}
    for change in changes:
        wanted.setdefault(change.device, {})[change.setting] = change.after
    state = resource.read(node, wanted)
    found: State = {}
    for change in changes:
        value = state.get(change.device, {}).get(change.setting)
        found.setdefault(change.device, {})[change.setting] = value
        if not resource.same(change.setting, value, change.after):
            step = f"set {change.setting} of {change.device} to {shown(change.after)}"
            raise HostError(
                step, f"the kernel accepted it, but the value is {shown(value)}", "look at 'dmesg' for the reason"
            )
    return found
