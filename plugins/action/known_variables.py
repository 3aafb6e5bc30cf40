# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse variables that nothing reads. The documentation is in plugins/modules/known_variables.py."""

from __future__ import annotations

import contextlib
import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.known_variables import OWN, boards, hint, unknown_names
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Variables

_MAX_SHOWN = 4


class ActionModule(ControllerAction):
    """Checks the variables of all hosts of the play. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        self.validate_argument_spec(argument_spec={})
        hosts_by_problem: dict[str, list[str]] = {}
        for host in variables.get("ansible_play_hosts_all") or []:
            for problem in _problems(variables["hostvars"], host):
                hosts_by_problem.setdefault(problem, []).append(host)
        problems = [f"{_host_names(hosts)}: {problem}" for problem, hosts in hosts_by_problem.items()]
        result.update(changed=False, problems=problems)
        if problems:
            lines = "\n".join(problems)
            result.update(
                failed=True,
                msg=f"Nothing was done, because these variables have no effect:\n{lines}\n"
                f"Correct them. If one is your own variable, list it in {OWN}, or a pattern such as fabric_my_*.",
            )
        return result


def _problems(hostvars: t.Any, host: str) -> t.Iterator[str]:
    """The unknown variables of a host, and an unknown board."""
    variables = hostvars.raw_get(host)
    if not isinstance(variables, dict):
        return
    listed = variables.get(OWN)
    patterns = [listed] if isinstance(listed, str) else [str(pattern) for pattern in listed or ()]
    # variables that tasks have set and facts of a node are not part of the inventory
    from_tasks = _from_tasks(hostvars, host)
    names = (str(variable) for variable in variables if variable not in from_tasks)
    for name, suggestion in unknown_names(names, patterns).items():
        yield f"{name} is not known" + (f": {suggestion}" if suggestion else "")
    if variables.get("fabric_board"):
        board = str(hostvars[host]["fabric_board"])
        if board and board not in boards():
            suggestion = hint(board, boards()) or f"known: {', '.join(boards())}"
            yield f"fabric_board: there is no board {board!r}: {suggestion}"


def _from_tasks(hostvars: t.Any, host: str) -> t.Container[str]:
    """The variables that tasks of this run have set for a host, and its facts."""
    names: set[str] = set()
    for cache in ("_nonpersistent_fact_cache", "_fact_cache"):
        with contextlib.suppress(AttributeError, KeyError):  # another version of Ansible; a host without facts
            names.update(getattr(hostvars._variable_manager, cache).get(host) or ())
    return names


def _host_names(hosts: list[str]) -> str:
    more = len(hosts) - _MAX_SHOWN
    return ", ".join(hosts[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
