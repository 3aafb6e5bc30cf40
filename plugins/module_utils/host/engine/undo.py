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

    `now` is its value, or `Unread`. `reason` is why it was not restored, if that is known.
    """

    resource: str
    device: str
    setting: str
    before: object
    now: object
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        """The form of a module's result."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
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

    `change` is the change that failed. `unexpected` means that its error is not one that steps are expected to raise.
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
        what = f"{change}: {error}" if change else str(error)
        super().__init__(f"{what}. {self._state()}.")

    def _state(self) -> str:
        count = len(self.undone)
        undone = f"{count} change{'s' if count != 1 else ''} made before it {'were' if count != 1 else 'was'} undone"
        if self.remaining:
            left = "; ".join(map(str, self.remaining))
            return f"The node differs from its previous state: {left}" + (f"; {undone}" if count else "")
        state = "the node is in its previous state: all values that this run may have changed were read again"
        return f"{undone}, and {state}" if count else state.capitalize()


def undo(node: Node, error: BaseException, done: t.Sequence[StartedChange]) -> Failed:
    """Undo the changes, the last first, even if undoing one fails. Then read all of them again and compare.

    Returns the error to raise.
    """
    troubles: dict[int, list[str]] = {}
    for place in reversed(range(len(done))):
        one = done[place]
        for differs, step in ((_differs, _revert), (_side_effects_differ, _restore_side_effects)):
            try:
                if _with_retry(differs, node, one):
                    step(node, one)
            except Exception as trouble:  # noqa: BLE001  # the other changes must be undone even after a defect
                troubles.setdefault(place, []).append(describe(trouble))
    files = node.system.differences()
    remaining: list[Remaining] = []
    undone = []
    seen: set[tuple[str, str]] = set()
    for place, one in enumerate(done):
        left = list(_still_different(node, one, seen, "; ".join(troubles.get(place, ()))))
        remaining += left
        if not left and place < len(done) - 1:
            undone.append(one.change)
    remaining += [_of_file(one) for one in files]
    unexpected = not isinstance(error, (HostError, Unfit))
    return Failed(_as_host_error(error), done[-1].change if done else None, undone, remaining, unexpected)


def _value(node: Node, one: StartedChange) -> object:
    change = one.change
    state = one.resource.read(node, {change.device: {change.setting: change.before}})
    return state.get(change.device, {}).get(change.setting)


def _with_retry(differs: t.Callable[[Node, StartedChange], bool], node: Node, one: StartedChange) -> bool:
    """The result of `differs`, which is tried again if reading fails, as the node's state decides what is restored."""
    try:
        return differs(node, one)
    except Exception:  # noqa: BLE001  # the second read decides
        return differs(node, one)


def _differs(node: Node, one: StartedChange) -> bool:
    """Whether a setting differs from its value before the change. That of the failed change usually does not. Raises
    HostError."""
    return not one.resource.same(one.change.setting, _value(node, one), one.change.before)


def _revert(node: Node, one: StartedChange) -> None:
    """Undo the change itself. Raises HostError."""
    try:
        one.resource.apply(node, one.change.reversed())
    finally:
        if one.resource.recreates_devices:
            node.refresh()


def _side_effects_differ(node: Node, one: StartedChange) -> bool:
    """Whether a possible side effect of the change has a different value. Raises HostError."""
    return bool(one.side_effects) and one.resource.side_effects(node, one.change) != one.side_effects


def _restore_side_effects(node: Node, one: StartedChange) -> None:
    """Restore the values of the change's side effects. Raises HostError."""
    try:
        one.resource.restore_side_effects(node, one.change, one.side_effects)
    finally:
        if one.resource.recreates_devices:
            node.refresh()


def _still_different(node: Node, one: StartedChange, seen: set[tuple[str, str]], trouble: str) -> t.Iterator[Remaining]:
    """The values of a change and of its side effects that still differ. A value of several changes is only reported for
    the first of them."""
    change, resource = one.change, one.resource
    now: dict[str, object] = {change.setting: _read(lambda: _value(node, one))}
    if one.side_effects:
        found = _read(lambda: resource.side_effects(node, change))
        now.update({name: found if isinstance(found, Unread) else found.get(name) for name in one.side_effects})
    for name, before in {**one.side_effects, change.setting: change.before}.items():
        key, value = (change.device, name), now[name]
        if key in seen:
            continue
        seen.add(key)
        if isinstance(before, Unread) and not isinstance(value, Unread):
            value = Unread(f"it could not be read before the change: {before}")
        if isinstance(value, Unread):
            alike = False
        else:
            alike = resource.same(name, value, before) if name == change.setting else value == before
        if not alike or (trouble and name == change.setting):
            yield Remaining(change.resource, change.device, name, before, value, trouble)


def _read(request: t.Callable[[], T]) -> T | Unread:
    try:
        return request()
    except Exception as error:  # noqa: BLE001  # after any error, the rest must be read and reported
        return Unread(describe(error))


def _of_file(one: Difference) -> Remaining:
    return Remaining("file", NODE, one.path, one.before, one.now, one.reason)


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
