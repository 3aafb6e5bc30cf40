# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Bring a node to its wanted state: plan everything, change in order, read back, and undo if a step fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
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
_LOCK_TIMEOUT_SECONDS = 30.0


class Refused(Unfit):
    """Nothing was changed, because some changes are refused. `refusals` lists all of them."""

    def __init__(self, refusals: t.Sequence[Refusal]) -> None:
        self.refusals = list(refusals)
        super().__init__([str(refusal) for refusal in refusals])


@dataclass
class Outcome:
    """What a run did, or in check mode would do.

    `before` and `after` are the changed values by resource. `after` is read from the node; in check mode, it is the
    wanted value. `not_recorded` lists the resources that a recorded tree cannot show, each with the missing files.
    `reboot` lists the reasons for a reboot, and `drain` the reasons to drain the node first.
    """

    changes: list[Change] = field(default_factory=list)
    not_recorded: list[str] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)
    before: dict[str, State] = field(default_factory=dict)
    after: dict[str, State] = field(default_factory=dict)


@contextlib.contextmanager
def node_lock(path: str = LOCK, timeout: float = _LOCK_TIMEOUT_SECONDS) -> t.Iterator[None]:
    """Hold the lock of the node, so that only one run changes it.

    Raises HostError if the lock is still held by another run after `timeout` seconds.
    """
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with open(path, "a+", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)  # a user who can read the file could hold its lock
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    holder = file.read(32).strip() or "unknown"
                    step = "configure the node"
                    fix = "wait until that run has ended, then run again"
                    raise HostError(
                        step, f"another run (process {holder}) has held the lock {path} for {timeout:.0f} s", fix
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
    """Apply the settings of the node, or the states in `wanted` (by resource), in the order of `resources`.

    `before_changes` is called with all changes before the first of them is made. In check mode with `drained`, a change
    that only pods or guests prevent is not refused, but reported as a reason to drain.

    Raises Refused before anything is changed; Failed if a step fails, after the steps before it were undone; and
    HostError if the node's state cannot be read.
    """
    outcome = Outcome()
    plans = _plans(node, resources, check_mode, wanted, outcome)
    refusals = [refusal for _resource, plan in plans for refusal in plan.refusals]
    if [refusal for refusal in refusals if not (check_mode and drained and refusal.drain)]:
        raise Refused(refusals)
    outcome.drain = [f"{refusal.device}: {refusal.message}" for refusal in refusals]
    for _resource, plan in plans:
        _add_plan(plan, outcome)
    if check_mode or not outcome.changes:
        return outcome
    if before_changes:
        before_changes(outcome.changes)
    node.system.begin()
    started: list[StartedChange] = []
    with _signals_as_exceptions() as ignore_signals:
        try:
            for resource, plan in plans:
                if plan.changes:
                    outcome.after[resource.name] = _apply(node, resource, plan, started)
        # after any error, including a bug, Ctrl+C or a lost connection, no part of the changes may remain
        except BaseException as error:
            ignore_signals()
            failed = undo(node, error, started)
            if isinstance(error, Exception):
                raise failed from error
            raise
    return outcome


@contextlib.contextmanager
def _signals_as_exceptions() -> t.Iterator[t.Callable[[], None]]:
    """Raise SystemExit at SIGHUP or SIGTERM, which would otherwise end the process at once. Yields a function that
    ignores these signals from then on, for the undo. sshd and systemd send them. Only the main thread can do this."""
    numbers = (signal.SIGHUP, signal.SIGTERM)

    def ignore() -> None:
        for number in numbers if is_main else ():
            signal.signal(number, signal.SIG_IGN)

    def stop(number: int, _frame: object) -> None:
        ignore()
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    before = [(number, signal.signal(number, stop)) for number in numbers if is_main]
    try:
        yield ignore
    finally:
        for number, handler in before:
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


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
    """The files that a resource needs and a recorded tree lacks, as `no PATH, PATH`; empty if none is missing."""
    missing = [path for path in resource.recorded_in if not node.system.live and not node.system.exists(path)]
    return f"no {', '.join(missing)}" if missing else ""


def _apply(node: Node, resource: Resource, plan: Plan, started: list[StartedChange]) -> State:
    """Make the changes of one resource, and read them back. Each change is added to `started` before it is made, as it
    may fail halfway."""
    for change in plan.changes:
        started.append(StartedChange(resource, change))
        started[-1].side_effects = resource.side_effects(node, change)
        resource.apply(node, change)
    if resource.recreates_devices:
        node.refresh()
    return _read_back(node, resource, plan.changes)


def _read_back(node: Node, resource: Resource, changes: t.Sequence[Change]) -> State:
    """The values of the changed settings, read from the node. Raises HostError if one is not the wanted value."""
    wanted: State = {}
    for change in changes:
        wanted.setdefault(change.device, {})[change.setting] = change.after
    state = resource.read(node, wanted)
    actual: State = {}
    for change in changes:
        value = state.get(change.device, {}).get(change.setting)
        actual.setdefault(change.device, {})[change.setting] = value
        if not resource.same(change.setting, value, change.after):
            step = f"set {change.setting} of {change.device} to {shown(change.after)}"
            raise HostError(
                step, f"the kernel accepted it, but the value is {shown(value)}", "look at 'dmesg' for the reason"
            )
    return actual
