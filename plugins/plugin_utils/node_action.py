# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Base class of the action plugins whose modules run on nodes. It checks a node's result before Ansible uses it."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import (
    MAX_TEXT,
    Refused,
    check,
    clipped,
    fault,
    prepare,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import SiteAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_facts import clean_lines

#: The maximum number of characters of a module's unexpected output that are kept, and of warnings.
_MAX_OUTPUT, _MAX_WARNINGS = 2000, 20
#: The maximum length of a side of a diff, in characters.
_MAX_DIFF = 1_000_000


class NodeAction(SiteAction):
    """Runs the module of the same name on the node. Returns only documented keys with values of documented types."""

    _supports_check_mode = True
    _supports_async = True
    #: The type of the module's own keys in the result, for `answers.check`.
    ANSWER: t.ClassVar[t.Any]
    #: Keys that the plugin itself adds. They are not in ANSWER, so `checked_result` drops them from a node's result.
    ADDED: t.ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: t.Any) -> None:
        """Prepare the check when the plugin is loaded, which is before Ansible forks a process for a task."""
        super().__init_subclass__(**options)
        if "ANSWER" in cls.__dict__:
            prepare(cls.ANSWER)
            conflicting = cls.ADDED & set(t.get_type_hints(cls.ANSWER))
            if conflicting:
                raise TypeError(
                    f"{cls.__module__}: {', '.join(sorted(conflicting))} would be taken from a node's answer"
                )

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        is_async = self._is_async()
        answer = self._execute_module(task_vars=task_vars, wrap_async=is_async)
        if is_async:  # this result is a job number; async_status gets the module's result later
            result.update(answer)
            return result
        self._remove_tmp_path(self._connection._shell.tmpdir)
        result.update(checked_result(answer, self.ANSWER, str((task_vars or {}).get("inventory_hostname", "the node"))))
        return result

    def _is_async(self) -> bool:
        """Whether the task is asynchronous, so that its first result is a job number and not the module's result."""
        return bool(self._task.async_val) and not self._connection.has_native_async


def checked_result(answer: dict[str, t.Any], form: t.Any, host: str) -> dict[str, t.Any]:
    """The part of a module's result that Ansible gets: Ansible's own keys within limits, and the keys of `form`.

    Of `ansible_facts`, only discovered interpreters are kept. An invalid result becomes a failure.
    """
    own_keys = {name: answer[name] for name in t.get_type_hints(form) if name in answer}
    try:
        result = {**_common(answer), **own_keys}
        check(own_keys, form)
    except Refused as error:
        return {
            "failed": True,
            "changed": False,
            "msg": (
                f"{host} returned an invalid result, which was discarded: "
                f"{str(error).lstrip('. ')}. Check the node: its Python may be broken or modified. If it is not, "
                "report this as a defect of lanewise.dra."
            ),
        }
    return result


def _common(answer: dict[str, t.Any]) -> dict[str, t.Any]:  # noqa: C901  # a rule per key
    """The keys that any module may return. Raises Refused."""
    common: dict[str, t.Any] = {}
    for name in ("changed", "failed"):
        if name in answer:
            if not isinstance(answer[name], bool):
                raise Refused(f"{name} is neither true nor false: {clipped(answer[name])}")
            common[name] = bool(answer[name])
    if "msg" in answer:
        text = answer["msg"] if isinstance(answer["msg"], str) else clipped(answer["msg"])
        common["msg"] = clean_lines(text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "...")
    for name in ("module_stdout", "module_stderr"):
        if isinstance(answer.get(name), str):
            common[name] = clean_lines(answer[name][:_MAX_OUTPUT])
    for name in ("warnings", "deprecations"):
        if isinstance(answer.get(name), list):
            warnings = answer[name][:_MAX_WARNINGS]
            common[name] = [
                clean_lines(warning[:_MAX_OUTPUT]) if isinstance(warning, str) else warning for warning in warnings
            ]
    if "exception" in answer:  # an object of Ansible, or a text
        trace = answer["exception"]
        common["exception"] = clean_lines(trace[:MAX_TEXT]) if isinstance(trace, str) else trace
    if "invocation" in answer and not fault(answer["invocation"], dict[str, t.Any]):
        common["invocation"] = answer["invocation"]
    diff = answer.get("diff")
    if isinstance(diff, dict):
        common["diff"] = {
            key: clean_lines(text[:_MAX_DIFF]) for key, text in diff.items() if key in _SIDES and isinstance(text, str)
        }
    facts = answer.get("ansible_facts")
    if isinstance(facts, dict):
        interpreters = {
            str(key): value for key, value in facts.items() if str(key).startswith("discovered_interpreter_")
        }
        if interpreters and not fault(interpreters, dict[str, str]):
            common["ansible_facts"] = interpreters
    common.update({key: value for key, value in answer.items() if key.startswith("_ansible_")})
    return common


_SIDES = ("before", "after", "before_header", "after_header", "prepared")
