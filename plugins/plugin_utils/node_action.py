# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Base class of the action plugins whose modules run on nodes. It checks a node's result before Ansible uses it.

With `async`, it checks only the answer that the job was started. Ansible's own async_status gets the module's result
later, so that result is not checked.
"""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import (
    MAX_TEXT,
    Job,
    Refused,
    check,
    clipped,
    fault,
    prepare,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import SiteAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_messages import (
    clean_deprecations,
    clean_exception,
    clean_warnings,
    cleaned_warnings,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_facts import clean, clean_lines

#: How many characters of a module's unexpected output are kept.
_MAX_OUTPUT = 2000
#: The keys of a diff, and the maximum length of their values, in characters.
_DIFF_KEYS, _MAX_DIFF = ("before", "after", "before_header", "after_header", "prepared"), 1_000_000

prepare(Job)


class NodeAction(SiteAction):
    """Runs the module of the same name on the node. Returns only documented keys with values of documented types.

    If the task is asynchronous, returns only the keys of the job.
    """

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
        host = str((task_vars or {}).get("inventory_hostname", "the node"))
        if self._is_async():
            result.update(started_job(self._execute_module(task_vars=task_vars, wrap_async=True), host))
            return result
        answer = self._execute_module(task_vars=task_vars)
        self._remove_tmp_path(self._connection._shell.tmpdir)
        result.update(checked_result(answer, self.ANSWER, host))
        return result

    def _execute_module(self, *args: t.Any, **options: t.Any) -> dict[str, t.Any]:
        with cleaned_warnings(options.get("task_vars") or {}):
            return t.cast(dict[str, t.Any], super()._execute_module(*args, **options))

    def _is_async(self) -> bool:
        """Whether the task is asynchronous, so that its first result is that of starting a job, not the module's."""
        return bool(self._task.async_val) and not self._connection.has_native_async


def checked_result(answer: dict[str, t.Any], form: t.Any, host: str) -> dict[str, t.Any]:
    """The part of a module's result that Ansible gets: Ansible's own keys within limits, and the keys of `form`.

    Of `ansible_facts`, only discovered interpreters are kept. Warnings, errors and other texts are cleaned and cut.
    An invalid result becomes a failure.
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


def started_job(answer: dict[str, t.Any], host: str) -> dict[str, t.Any]:
    """The part of the answer to the start of an asynchronous job that Ansible gets, as `checked_result` returns it."""
    result = checked_result(answer, Job, host)
    for name in ("ansible_job_id", "results_file"):  # Ansible prints the former as it is
        if name in result:
            result[name] = clean(result[name])
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
    if isinstance(answer.get("warnings"), list):
        common["warnings"] = clean_warnings(answer["warnings"])
    if isinstance(answer.get("deprecations"), list):
        common["deprecations"] = clean_deprecations(answer["deprecations"])
    if "exception" in answer:
        common["exception"] = clean_exception(answer["exception"])
    if "invocation" in answer and not fault(answer["invocation"], dict[str, t.Any]):
        common["invocation"] = answer["invocation"]
    diff = answer.get("diff")
    if isinstance(diff, dict):
        common["diff"] = {
            key: clean_lines(text[:_MAX_DIFF])
            for key, text in diff.items()
            if key in _DIFF_KEYS and isinstance(text, str)
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
