# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Undoes a run's changes, and reads the node's state again to report what still differs."""

from __future__ import annotations

import dataclasses
import typing as t
from dataclasses import dataclass, field

from ..access.system import Difference, HostError
from .change import NODE, Change, SideEffects, Unread, shown, stored
from .node import Node
from .resource import Resource
from .rules import Unfit

T = t.TypeVar("T")


@dataclass
class StartedChange:
    """A change that was started, and the previous values of its possible side effects."""

    resource: Resource
    change: Change
    side_effects: SideEffects = field(default_factory=dict)


@dataclass(frozen=True)
class Remaining:
    """Something that differs from its state before the run, or whose state is unknown.

    `now` is the current value, or `Unread`. `reason` is why it was not restored, if that is known.
    """

    resource: str
    device: str
    setting: str
    before: object
    now: object
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        """The form that a module returns."""
        fields = {attribute.name: getattr(self, attribute.name) for attribute in dataclasses.fields(self)}
        return {**fields, "before": stored(self.before), "now": stored(self.now)}

    def __str__(self) -> str:
        if isinstance(self.now, Unread):
            text = f"cannot be read now ({self.now})"
        elif self.now is None and self.before is not None:
            text = f"is now missing or not reported, and was {_brief(self.before)}"
        elif self.now == self.before:
            text = f"is {_brief(self.now)} as before, but a step of restoring it failed"
        else:
            text = f"is {_brief(self.now)} and was {_brief(self.before)}"
        return f"{self.device}: {self.setting} {text}" + (f": {self.reason}" if self.reason else "")


class Failed(Exception):
    """A step failed. `undone` are the changes that were undone; `remaining` is everything that still differs.

    `change` is the change that failed. `unexpected` means that the error is of a type that steps should not raise.
    """

    def __init__(
        self,
        error: HostError,
        change: Change | None,
        undone: t.Sequence[Change],
        remaining: t.Sequence[Remaining],
        unexpected: bool = False,
    ) -> None:
        self.error = error
        self.change = change
        self.undone = list(undone)
        self.remaining = list(remaining)
        self.unexpected = unexpected
        cause = f"{change}: {error}" if change else str(error)
        super().__init__(f"{cause}. {self._state()}.")

    def _state(self) -> str:
        count = len(self.undone)
        undone = f"{count} change{'s' if count != 1 else ''} made before it {'were' if count != 1 else 'was'} undone"
        if self.remaining:
            differences = "; ".join(map(str, self.remaining))
            return f"The node differs from its previous state: {differences}" + (f"; {undone}" if count else "")
        state = "the node is in its previous state: all values that this run may have changed were read again"
        return f"{undone}, and {state}" if count else state.capitalize()


def undo(node: Node, error: BaseException, started: t.Sequence[StartedChange]) -> Failed:
    """Undo the changes, the last first, even if undoing one of them fails. Then read all values again and compare them.

    Returns the error to raise.
    """
    undo_errors: dict[int, list[str]] = {}
    for index in reversed(range(len(started))):
        started_change = started[index]
        for differs, step in ((_differs, _revert), (_side_effects_differ, _restore_side_effects)):
            try:
                if _with_retry(differs, node, started_change):
                    step(node, started_change)
            except Exception as undo_error:  # noqa: BLE001  # the other changes must be undone even after a bug
                undo_errors.setdefault(index, []).append(describe(undo_error))
    files = node.system.differences()
    remaining: list[Remaining] = []
    undone = []
    seen: set[tuple[str, str]] = set()
    for index, started_change in enumerate(started):
        differences = list(_still_different(node, started_change, seen, "; ".join(undo_errors.get(index, ()))))
        remaining += differences
        if not differences and index < len(started) - 1:
            undone.append(started_change.change)
    remaining += [_from_file(file) for file in files]
    unexpected = not isinstance(error, (HostError, Unfit))
    return Failed(_as_host_error(error), started[-1].change if started else None, undone, remaining, unexpected)


def _value(node: Node, started_change: StartedChange) -> object:
    """The current value of a change's setting. Raises HostError."""
    change = started_change.change
    state = started_change.resource.read(node, {change.device: {change.setting: change.before}})
    return state.get(change.device, {}).get(change.setting)


def _with_retry(differs: t.Callable[[Node, StartedChange], bool], node: Node, started_change: StartedChange) -> bool:
    """The result of `differs`, which is called again if reading fails, as its result decides what is restored."""
    try:
        return differs(node, started_change)
    except Exception:  # noqa: BLE001  # the second read decides
        return differs(node, started_change)


def _differs(node: Node, started_change: StartedChange) -> bool:
    """Whether a setting differs from its value before the change. After a failed change, it usually does not. Raises
    HostError."""
    return not started_change.resource.same(
        started_change.change.setting, _value(node, started_change), started_change.change.before
    )


def _revert(node: Node, started_change: StartedChange) -> None:
    """Undo the change itself. Raises HostError."""
    try:
        started_change.resource.apply(node, started_change.change.reversed())
    finally:
        if started_change.resource.recreates_devices:
            node.refresh()


def _side_effects_differ(node: Node, started_change: StartedChange) -> bool:
    """Whether a possible side effect of the change has a different value. Raises HostError."""
    return (
        bool(started_change.side_effects)
        and started_change.resource.side_effects(node, started_change.change) != started_change.side_effects
    )


def _restore_side_effects(node: Node, started_change: StartedChange) -> None:
    """Restore the values of the change's side effects. Raises HostError."""
    try:
        started_change.resource.restore_side_effects(node, started_change.change, started_change.side_effects)
    finally:
        if started_change.resource.recreates_devices:
            node.refresh()


def _still_different(
    node: Node, started_change: StartedChange, seen: set[tuple[str, str]], undo_error: str
) -> t.Iterator[Remaining]:
    """The values of a change and of its side effects that still differ. A value that several changes alter is only
    reported for the first of them."""
    change, resource = started_change.change, started_change.resource
    now: dict[str, object] = {change.setting: _read(lambda: _value(node, started_change))}
    if started_change.side_effects:
        effects = _read(lambda: resource.side_effects(node, change))
        now.update(
            {
                name: effects if isinstance(effects, Unread) else effects.get(name)
                for name in started_change.side_effects
            }
        )
    for name, before in {**started_change.side_effects, change.setting: change.before}.items():
        key, value = (change.device, name), now[name]
        if key in seen:
            continue
        seen.add(key)
        if isinstance(before, Unread) and not isinstance(value, Unread):
            value = Unread(f"it could not be read before the change: {before}")
        if isinstance(value, Unread):
            unchanged = False
        else:
            unchanged = resource.same(name, value, before) if name == change.setting else value == before
        if not unchanged or (undo_error and name == change.setting):
            yield Remaining(change.resource, change.device, name, before, value, undo_error)


def _read(request: t.Callable[[], T]) -> T | Unread:
    try:
        return request()
    except Exception as error:  # noqa: BLE001  # after any error, the rest must be read and reported
        return Unread(describe(error))


def _from_file(file: Difference) -> Remaining:
    return Remaining("file", NODE, file.path, file.before, file.now, file.reason)


def _as_host_error(error: BaseException) -> HostError:
    if isinstance(error, HostError):
        return error
    if isinstance(error, Unfit):  # the node has other NICs than before the change
        return HostError("find the NICs again", str(error))
    return HostError("continue", describe(error), "this is a bug: please report it")


def describe(error: BaseException) -> str:
    """The message of an error; for an unexpected error, with its type."""
    return (
        str(error) if isinstance(error, (HostError, Unfit, Failed)) else f"{type(error).__name__}: {error}".rstrip(": ")
    )


def _brief(value: object) -> str:
    text = shown(value)
    return text if "\n" not in text.strip() and len(text) <= 200 else f"a text of {len(text)} characters"
