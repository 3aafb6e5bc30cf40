# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the action plugins of the modules share that run on nodes: they check what came back before Ansible takes it."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import (
    LONGEST,
    Refused,
    check,
    clipped,
    fault,
    prepare,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import SiteAction

#: How much is shown of what a module printed that is not an answer, and how many warnings.
_NOISE, _WARNINGS = 2000, 20
#: The longest side of a diff, in characters.
_DIFF = 1_000_000


class NodeAction(SiteAction):
    """Runs the module of its own name on the node, and lets through what the module documents, in its form."""

    _supports_check_mode = True
    _supports_async = True
    #: The form of the module's own answer, for `answers.check`.
    ANSWER: t.ClassVar[t.Any]
    #: The keys that the plugin itself adds. They are not in ANSWER, so `answer` drops them from what a node returns.
    ADDED: t.ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: t.Any) -> None:
        """Prepare the check where the plugin is loaded first, which is before Ansible forks a process for a task."""
        super().__init_subclass__(**options)
        if "ANSWER" in cls.__dict__:
            prepare(cls.ANSWER)
            both = cls.ADDED & set(t.get_type_hints(cls.ANSWER))
            if both:
                raise TypeError(f"{cls.__module__}: {', '.join(sorted(both))} would be taken from a node's answer")

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        later = self._later()
        done = self._execute_module(task_vars=task_vars, wrap_async=later)
        if later:  # the answer is a job's number; that of the job comes by async_status
            result.update(done)
            return result
        self._remove_tmp_path(self._connection._shell.tmpdir)
        result.update(answer(done, self.ANSWER, str((task_vars or {}).get("inventory_hostname", "the node"))))
        return result

    def _later(self) -> bool:
        """Whether the task is asynchronous: its first result is a job number, not the module's answer."""
        return bool(self._task.async_val) and not self._connection.has_native_async


def answer(done: dict[str, t.Any], form: t.Any, host: str) -> dict[str, t.Any]:
    """The part of a module's result that is let through: Ansible's own keys within bounds, and those of the form.

    Of `ansible_facts`, only discovered interpreters are.
    """
    own = {name: done[name] for name in t.get_type_hints(form) if name in done}
    try:
        found = {**_common(done), **own}
        check(own, form)
    except Refused as error:
        return {
            "failed": True,
            "changed": False,
            "msg": (
                f"What {host} answered is not what the module returns, so nothing of it was kept: "
                f"{str(error).lstrip('. ')}. Either its Python or this collection is at fault: look at the node."
            ),
        }
    return found


def _common(done: dict[str, t.Any]) -> dict[str, t.Any]:  # noqa: C901  # a rule per key
    """The keys that any module may return. Raises Refused."""
    found: dict[str, t.Any] = {}
    for name in ("changed", "failed"):
        if name in done:
            if not isinstance(done[name], bool):
                raise Refused(f"{name} is neither true nor false: {clipped(done[name])}")
            found[name] = bool(done[name])
    if "msg" in done:
        text = done["msg"] if isinstance(done["msg"], str) else clipped(done["msg"])
        found["msg"] = text if len(text) <= LONGEST else text[:LONGEST] + "..."
    for name in ("module_stdout", "module_stderr"):
        if isinstance(done.get(name), str):
            found[name] = done[name][:_NOISE]
    for name in ("warnings", "deprecations"):
        if isinstance(done.get(name), list):
            found[name] = [one if not isinstance(one, str) else one[:_NOISE] for one in done[name][:_WARNINGS]]
    if "exception" in done:  # an object of Ansible's, or a text
        trace = done["exception"]
        found["exception"] = trace[:LONGEST] if isinstance(trace, str) else trace
    if "invocation" in done and not fault(done["invocation"], dict[str, t.Any]):
        found["invocation"] = done["invocation"]
    diff = done.get("diff")
    if isinstance(diff, dict):
        found["diff"] = {key: text[:_DIFF] for key, text in diff.items() if key in _SIDES and isinstance(text, str)}
    facts = done.get("ansible_facts")
    if isinstance(facts, dict):
        interpreters = {
            str(key): value for key, value in facts.items() if str(key).startswith("discovered_interpreter_")
        }
        if interpreters and not fault(interpreters, dict[str, str]):
            found["ansible_facts"] = interpreters
    found.update({key: value for key, value in done.items() if key.startswith("_ansible_")})
    return found


_SIDES = ("before", "after", "before_header", "after_header", "prepared")
