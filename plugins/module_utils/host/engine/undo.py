# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Undo a run's changes, and report the node's state after that, as read again from the node."""

from __future__ import annotations

import dataclasses
import typing as t
from dataclasses import dataclass, field

from ..access.system import Difference, HostError
from .change import NODE, Beside, Change, Unread, shown, stored
from .node import Node
from .resource import Resource
from .rules import Unfit

T = t.TypeVar("T")


@dataclass
class Done:
    """A change that was begun, and the previous values of what it may have altered `beside` its own setting."""

    resource: Resource
    change: Change
    beside: Beside = field(default_factory=dict)


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
        """This as a module returns it."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {**fields, "before": stored(self.before), "now": stored(self.now)}

    def __str__(self) -> str:
        if isinstance(self.now, Unread):
            text = f"cannot be read now ({self.now})"
        elif self.now is None and self.before is not None:
            text = f"is missing or not shown now, and was {_brief(self.before)}"
        elif self.now == self.before:
            text = f"is {_brief(self.now)} as before, but a step of restoring it failed"
        else:
            text = f"is {_brief(self.now)} and was {_brief(self.before)}"
        return f"{self.device}: {self.setting} {text}" + (f": {self.reason}" if self.reason else "")


class Failed(Exception):
    """A step failed. `undone` are the changes that were undone; `remaining` is everything that still differs.

    `change` is the change that failed. `surprise` means that its error is not one that steps are expected to raise.
    """

    def __init__(
        self,
        error: HostError,
        change: Change | None,
        undone: t.Sequence[Change],
        remaining: t.Sequence[Remaining],
        surprise: bool = False,
    ) -> None:
        self.error = error
        self.change = change
        self.undone = list(undone)
        self.remaining = list(remaining)
        self.surprise = surprise
        what = f"{change}: {error}" if change else str(error)
        super().__init__(f"{what}. {self._state()}.")

    def _state(self) -> str:
        count = len(self.undone)
        undone = f"{count} change{'s' if count != 1 else ''} made before it {'were' if count != 1 else 'was'} undone"
        if self.remaining:
            left = "; ".join(map(str, self.remaining))
            return f"The node is not as it was before this run: {left}" + (f"; {undone}" if count else "")
        state = "the node is as it was before this run: all that it had begun to change was read again and compared"
        return f"{undone}, and {state}" if count else state.capitalize()


def undo(node: Node, error: BaseException, done: t.Sequence[Done]) -> Failed:
    """Undo the changes, the last first, even if undoing one fails. Then read all of them again and compare.

    Returns the error to raise.
    """
    troubles: dict[int, list[str]] = {}
    for place in reversed(range(len(done))):
        one = done[place]
        for differs, step in ((_differs, _take_back), (_differs_beside, _put_back_beside)):
            try:
                if _twice(differs, node, one):
                    step(node, one)
            except Exception as trouble:  # noqa: BLE001  # not even a bug may keep the others from being undone
                troubles.setdefault(place, []).append(described(trouble))
    files = node.system.differences()
    remaining: list[Remaining] = []
    undone = []
    seen: set[tuple[str, str]] = set()
    for place, one in enumerate(done):
        left = list(_left(node, one, seen, "; ".join(troubles.get(place, ()))))
        remaining += left
        if not left and place < len(done) - 1:
            undone.append(one.change)
    remaining += [_of_file(one) for one in files]
    surprise = not isinstance(error, (HostError, Unfit))
    return Failed(_as_host_error(error), done[-1].change if done else None, undone, remaining, surprise)


def _value(node: Node, one: Done) -> object:
    change = one.change
    state = one.resource.read(node, {change.device: {change.setting: change.before}})
    return state.get(change.device, {}).get(change.setting)


def _twice(differs: t.Callable[[Node, Done], bool], node: Node, one: Done) -> bool:
    """`differs`, with a second try if reading fails: the node's state decides what is restored."""
    try:
        return differs(node, one)
    except Exception:  # noqa: BLE001  # the second read decides
        return differs(node, one)


def _differs(node: Node, one: Done) -> bool:
    """Whether a setting differs from its value before the change; usually not for the failed change. Raises
    HostError."""
    return not one.resource.same(one.change.setting, _value(node, one), one.change.before)


def _take_back(node: Node, one: Done) -> None:
    """Undo the change itself. Raises HostError."""
    try:
        one.resource.apply(node, one.change.reversed())
    finally:
        if one.resource.renews:
            node.refresh()


def _differs_beside(node: Node, one: Done) -> bool:
    """Whether a value that the change may have altered beside its own setting differs. Raises HostError."""
    return bool(one.beside) and one.resource.beside(node, one.change) != one.beside


def _put_back_beside(node: Node, one: Done) -> None:
    """Restore the values beside the change's own setting. Raises HostError."""
    try:
        one.resource.put_back(node, one.change, one.beside)
    finally:
        if one.resource.renews:
            node.refresh()


def _left(node: Node, one: Done, seen: set[tuple[str, str]], trouble: str) -> t.Iterator[Remaining]:
    """The values of a change and beside it that still differ. If several changes list a value, the first one counts."""
    change, resource = one.change, one.resource
    now: dict[str, object] = {change.setting: _read(lambda: _value(node, one))}
    if one.beside:
        found = _read(lambda: resource.beside(node, change))
        now.update({name: found if isinstance(found, Unread) else found.get(name) for name in one.beside})
    for name, before in {**one.beside, change.setting: change.before}.items():
        key, value = (change.device, name), now[name]
        if key in seen:
            continue
        seen.add(key)
        if isinstance(before, Unread) and not isinstance(value, Unread):
            value = Unread(f"it could not be read before the change either: {before}")
        if isinstance(value, Unread):
            alike = False
        else:
            alike = resource.same(name, value, before) if name == change.setting else value == before
        if not alike or (trouble and name == change.setting):
            yield Remaining(change.resource, change.device, name, before, value, trouble)


def _read(request: t.Callable[[], T]) -> T | Unread:
    try:
        return request()
    except Exception as error:  # noqa: BLE001  # whatever it is, the rest must be read and reported
        return Unread(described(error))


def _of_file(one: Difference) -> Remaining:
    return Remaining("file", NODE, one.path, one.before, one.now, one.reason)


def _as_host_error(error: BaseException) -> HostError:
    if isinstance(error, HostError):
        return error
    if isinstance(error, Unfit):  # the node has other NICs than before the change
        return HostError("find the NICs again", str(error))
    return HostError("continue", described(error), "this is a bug: please report it")


def described(error: BaseException) -> str:
    """The text of an error; for an unexpected kind of error, with its type."""
    return (
        str(error) if isinstance(error, (HostError, Unfit, Failed)) else f"{type(error).__name__}: {error}".rstrip(": ")
    )


def _brief(value: object) -> str:
    text = shown(value)
    return text if "\n" not in text.strip() and len(text) <= 200 else f"a text of {len(text)} characters"
