# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Bringing a node to what is wanted: plan all, change in order, read back, and undo where a step fails."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import typing as t
from dataclasses import dataclass, field

from .node import Node, Unfit
from .resource import Change, Refusal, Resource, State
from .system import HostError

LOCK = "/run/lanewise/fabric.lock"
_LOCK_SECONDS = 30.0


class Refused(Unfit):
    """Nothing was changed: some of what is wanted will not be done. C(refusals) are all of them."""

    def __init__(self, refusals: t.Sequence[Refusal]) -> None:
        self.refusals = list(refusals)
        super().__init__([str(one) for one in refusals])


class Failed(Exception):
    """A step failed. C(undone) were taken back; C(remaining) could not be, each with the reason."""

    def __init__(self, error: HostError, change: Change, undone: list[Change], remaining: list[tuple[Change, str]]):
        self.error = error
        self.change = change
        self.undone = undone
        self.remaining = remaining
        state = "The node is as it was before this run"
        if undone:
            state = f"What this run had done before was undone ({len(undone)} changes): the node is as it was"
        if remaining:
            kept = "; ".join(f"{one}: {reason}" for one, reason in remaining)
            state = f"{len(undone)} changes were undone, {len(remaining)} could not be, and stand: {kept}"
        super().__init__(f"{change}: {error}. {state}.")


@dataclass
class Outcome:
    """What a run did, or in check mode would do.

    C(before) and C(after) hold what changed, by resource; C(after) is what the node shows, in check mode what was
    asked for. C(reboot) are the reasons for a reboot, C(drain) those to take the node's pods away first.
    """

    changes: list[Change] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)
    before: dict[str, State] = field(default_factory=dict)
    after: dict[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class _Done:
    """A change that was begun, and what puts back the rest of what it takes."""

    resource: Resource
    change: Change
    restore: t.Callable[[], None] | None


@contextlib.contextmanager
def alone(path: str = LOCK, seconds: float = _LOCK_SECONDS) -> t.Iterator[None]:
    """Keep a second run off the node. Raises HostError where another one goes on after C(seconds)."""
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
                    raise HostError(step, f"another run (process {who}) is at it for {seconds:.0f} s", fix) from None
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
    ready: t.Callable[[list[Change]], None] | None = None,
) -> Outcome:
    """Bring the node to what its settings say, or to C(wanted) by resource, in the order of C(resources).

    C(ready) is called with all changes before the first of them is made. In check mode with C(drained), what only pods
    are in the way of is no refusal but a reason to drain.

    Raises Refused before anything is changed, Failed where a step fails, after the steps before it were undone, and
    HostError where the node's state cannot be read.
    """
    outcome = Outcome()
    done: list[_Done] = []
    plans = [(one, one.plan(node, None if wanted is None else wanted.get(one.name, {}))) for one in resources]
    refusals = [refusal for _resource, one in plans for refusal in one.refusals]
    if [one for one in refusals if not (check_mode and drained and one.drain)]:
        raise Refused(refusals)
    outcome.drain = [f"{one.device}: {one.message}" for one in refusals]
    for resource, one in plans:
        outcome.reboot += [reason for reason in one.reboot if reason not in outcome.reboot]
        for change in one.changes:
            outcome.changes.append(change)
            if change.interrupts:
                outcome.drain.append(f"{change.device}: {change.interrupts}")
            for states, value in ((outcome.before, change.before), (outcome.after, change.after)):
                states.setdefault(resource.name, {}).setdefault(change.device, {})[change.setting] = value
    if check_mode or not outcome.changes:
        return outcome
    if ready:
        ready(outcome.changes)
    by_name = {resource.name: resource for resource in resources}
    failed = outcome.changes[0]
    try:
        for name in outcome.before:
            resource = by_name[name]
            changes = [change for change in outcome.changes if change.resource == name]
            for change in changes:
                failed = change
                # before it is made: half of it may have happened
                done.append(_Done(resource, change, resource.keep(node, change)))
                resource.apply(node, change)
            if resource.renews:
                node.refresh()
            outcome.after[name] = _read_back(node, resource, changes)
    except (HostError, Unfit) as error:
        if isinstance(error, Unfit):  # the NICs are others than before the change
            error = HostError("find the NICs again", str(error))
        raise _undo(node, error, failed, done) from None
    return outcome


def _read_back(node: Node, resource: Resource, changes: t.Sequence[Change]) -> State:
    """What the node shows of what was changed. Raises HostError where it is not what was asked for."""
    wanted: State = {}
    for change in changes:
        wanted.setdefault(change.device, {})[change.setting] = change.after
    state = resource.read(node, wanted)
    shown: State = {}
    for change in changes:
        value = state.get(change.device, {}).get(change.setting)
        shown.setdefault(change.device, {})[change.setting] = value
        if not resource.same(change.setting, value, change.after):
            step = f"set {change.setting} of {change.device} to {change.after}"
            raise HostError(step, f"it was accepted, but the node shows {value}", "look at 'dmesg' for the reason")
    return shown


def _undo(node: Node, error: HostError, failed: Change, done: list[_Done]) -> Failed:
    """Take back what was done, the last first, and go on where that fails."""
    undone: list[Change] = []
    remaining: list[tuple[Change, str]] = []
    for one in reversed(done):
        resource, change = one.resource, one.change
        wanted = {change.device: {change.setting: change.before}}
        try:
            value = resource.read(node, wanted).get(change.device, {}).get(change.setting)
            if resource.same(change.setting, value, change.before):
                continue  # the failed one, most often
            resource.apply(node, change.reversed())
            if resource.renews:
                node.refresh()
            value = resource.read(node, wanted).get(change.device, {}).get(change.setting)
            if not resource.same(change.setting, value, change.before):
                remaining.append((change, f"the node shows {value}"))
                continue
            if one.restore:
                one.restore()
        except HostError as problem:
            remaining.append((change, str(problem)))
            continue
        if change != failed:
            undone.append(change)
    return Failed(error, failed, undone, remaining)
