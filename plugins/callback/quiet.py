# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: quiet
type: stdout
short_description: Show changes, failures and messages only
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Like Ansible's own output, but without a line for each host that is unchanged or skipped. Warnings, changes, diffs
    and failures are shown as usual.
  - Messages of C(ansible.builtin.debug) are shown as plain lines below the name of their task. Characters that could
    control the terminal are replaced.
  - The recap only counts hosts without changes and failures. Custom stats of C(ansible.builtin.set_stats) are shown
    with C(-v) only.
  - With C(-v) the output is Ansible's default.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - Set as C(stdout_callback) in C(ansible.cfg), or by C(ANSIBLE_STDOUT_CALLBACK).
"""

import typing as t

from ansible import constants
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.utils.color import colorize, hostcolor
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_facts import clean

if t.TYPE_CHECKING:
    from ansible.executor.stats import AggregateStats
    from ansible.executor.task_result import CallbackTaskResult
    from ansible.playbook.included_file import IncludedFile
    from ansible.playbook.play import Play
    from ansible.playbook.task import Task

_DEBUG = ("debug", "ansible.builtin.debug", "ansible.legacy.debug")
_COLORS = {
    "ok": constants.COLOR_OK,
    "changed": constants.COLOR_CHANGED,
    "unreachable": constants.COLOR_UNREACHABLE,
    "failed": constants.COLOR_ERROR,
    "skipped": constants.COLOR_SKIP,
    "rescued": constants.COLOR_OK,
    "ignored": constants.COLOR_WARN,
}
#: The maximum length of a line of a message, in characters.
_MAX_LINE = 100_000
#: Counters of the recap. A host has its own line only if one of them is not 0.
_NOTABLE = ("changed", "unreachable", "failures", "rescued", "ignored")


class CallbackModule(Default):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "lanewise.dra.quiet"

    def get_option(self, k: str, hostvars: object = None) -> object:
        if k in ("display_ok_hosts", "display_skipped_hosts") and not (self._display.verbosity or self._shows_value):
            return False  # Ansible then shows the name of a task only if a line follows
        return super().get_option(k, hostvars)

    def __init__(self) -> None:
        super().__init__()
        self._pending_play: Play | None = None
        self._shows_value = False

    def v2_playbook_on_play_start(self, play: Play) -> None:
        if self._display.verbosity:
            super().v2_playbook_on_play_start(play)
        else:
            self._pending_play = play  # shown with the first task, because a play without hosts has none

    def v2_playbook_on_task_start(self, task: Task, is_conditional: bool) -> None:
        if self._pending_play is not None:
            super().v2_playbook_on_play_start(self._pending_play)
            self._pending_play = None
        super().v2_playbook_on_task_start(task, is_conditional)

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        if self._display.verbosity or result.result.get("changed"):
            super().v2_runner_on_ok(result)
            return
        if result.task.action not in _DEBUG:
            self._handle_warnings_and_exception(result)
        elif not result.task.loop:  # the messages of items are shown with each item
            self._show(result, super().v2_runner_on_ok)

    def v2_runner_item_on_ok(self, result: CallbackTaskResult) -> None:
        if self._display.verbosity or result.task.action not in _DEBUG or result.result.get("changed"):
            super().v2_runner_item_on_ok(result)
        else:
            self._show(result, super().v2_runner_item_on_ok)

    def v2_playbook_on_include(self, included_file: IncludedFile) -> None:
        if self._display.verbosity:
            super().v2_playbook_on_include(included_file)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        if self._display.verbosity:
            super().v2_playbook_on_no_hosts_matched()

    def v2_playbook_on_stats(self, stats: AggregateStats) -> None:
        if self._display.verbosity:
            super().v2_playbook_on_stats(stats)
            return
        self._display.banner("PLAY RECAP")
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        notable = {host: summary for host, summary in hosts.items() if any(summary[key] for key in _NOTABLE)}
        for host, counters in notable.items():
            shown = {("failed" if key == "failures" else key): value for key, value in counters.items()}
            line = " ".join(colorize(key, shown[key], color) for key, color in _COLORS.items())
            self._display.display(f"{hostcolor(host, counters)} : {line}")
        unchanged = len(hosts) - len(notable)
        if unchanged:
            self._display.display(f"{unchanged} host{'s' * (unchanged > 1)}: nothing changed, nothing failed")
        self._display.display("")

    def _show(self, result: CallbackTaskResult, show_default: t.Callable[[CallbackTaskResult], None]) -> None:
        """Show the message of a task, with the host's name unless the task has `run_once`.

        A message may contain text of a node, which is not trusted.
        """
        if "msg" not in result.result:  # the value of a variable
            self._shows_value = True
            try:
                show_default(result)
            finally:
                self._shows_value = False
            return
        self._handle_warnings_and_exception(result)
        if self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)
        message = result.result["msg"]
        texts = message if isinstance(message, list) else str(message).splitlines()
        host = "" if result.task.run_once else f"{result.host.get_name()}: "
        for line in (line for text in texts for line in str(text).splitlines() or [""]):
            self._display.display(f"{host}{clean(line, _MAX_LINE)}")
