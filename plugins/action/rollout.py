# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report the plan, the drift or the state of a rollout. The documentation is in plugins/modules/rollout.py."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.lanewise.dra.plugins.plugin_utils.cluster_drift import (
    claims_state,
    combined,
    holds_state,
    queues_state,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import needs_no_change, probe_of
from ansible_collections.lanewise.dra.plugins.plugin_utils.rollout import (
    DONE,
    FAILED,
    LOST,
    NOTHING_TO_CONFIGURE,
    UNKNOWN,
    WAITING,
    Node,
    batches,
    drift,
    drift_lines,
    plan_lines,
    problem_lines,
    state_lines,
    stop_lines,
    too_many,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Spec, Variables

_SPEC: Spec = {
    "show": {"type": "str", "choices": ["plan", "state", "drift"], "required": True, "aliases": ["tell"]},
    "serial": {"type": "list", "elements": "raw", "default": [1, "25%"]},
    "max_fail_percentage": {"type": "float", "default": 0},
}


class ActionModule(ControllerAction):
    """Reads variables that earlier plays have set for each host. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        names = variables.get("ansible_play_hosts_all") or []
        alive = set(variables.get("ansible_play_hosts") or [])
        # if a task with run_once fails, Ansible removes all hosts but one from the play, even if the failure is rescued
        checked = alive | {name for name in names if _host_variable(variables, name, "site_checked")}
        if options["show"] == "plan":
            limit = str(variables.get("ansible_limit") or "all")
            result.update(self._plan(_nodes(variables, names, checked), options["serial"], limit, alive))
        elif options["show"] == "drift":
            result.update(self._drift(variables, _nodes(variables, names, checked)))
        else:
            result.update(self._state(variables, names, alive, options["max_fail_percentage"]))
        result["changed"] = False
        return result

    def _plan(self, nodes: list[Node], serial: list[int | str], limit: str, alive: set[str]) -> Result:
        """The result for `show: plan`."""
        try:
            lines = plan_lines(nodes, serial)
            ordered = batches([node.name for node in nodes if node.has_work], serial)
        except (TypeError, ValueError) as error:
            raise AnsibleActionFail(f"serial: {serial!r} has neither numbers nor percentages: {error}") from error
        lines = lines or ([] if nodes else [NOTHING_TO_CONFIGURE])
        return {
            "summary": lines,
            "batches": ordered,
            "serial": serial,
            "problems": problem_lines(nodes),
            "unfit": [node.name for node in nodes if node.problems],
            "stops": stop_lines(nodes, limit, alive),
        }

    def _drift(self, variables: Variables, nodes: list[Node]) -> Result:
        """The result for `show: drift`."""
        queues = variables.get("queues_rendered")
        states = [
            claims_state(variables.get("dra_claims_applied"), variables.get("site_claims_problem")),
            holds_state(variables.get("site_holds")),
            queues_state(
                variables.get("queues_applied") if isinstance(queues, dict) else None,
                queues,
                variables.get("site_queues_problem"),
            ),
        ]
        state, lines = combined(states)
        result = drift(nodes, {"state": state, "lines": lines})
        unchecked = [line for verdict, lines_of_state in states if verdict == UNKNOWN for line in lines_of_state]
        problems = problem_lines(nodes) + [f"claims: {line}" for line in unchecked]
        return {"summary": drift_lines(result), "drift": result, "problems": problems}

    def _state(self, variables: Variables, names: t.Sequence[str], alive: set[str], percentage: float) -> Result:
        """The result for `show: state`."""
        states = {name: _state(variables, name, name in alive) for name in names}
        lines = state_lines(states)
        result: Result = {
            "summary": lines,
            "states": {name: {"state": state, "reason": reason} for name, (state, reason) in states.items()},
        }
        stopped = too_many(states, percentage)
        # Ansible ends the run if no host of the batch is left; it has already removed lost hosts from the batch
        batch = variables.get("ansible_play_batch") or []
        if stopped or (batch and all(states[name][0] == FAILED for name in batch)):
            untouched = sum(state == WAITING for state, _reason in states.values())
            lines.append(
                "The rollout stops here"
                + (
                    f", and {untouched} {'node was' if untouched == 1 else 'nodes were'} not touched"
                    if untouched
                    else ""
                )
                + ". Fix what failed, and run the rollout again; it continues where it stopped."
            )
        if stopped:
            result.update(failed=True, msg="\n".join(lines))
        return result


def _nodes(variables: Variables, names: t.Sequence[str], checked: set[str]) -> list[Node]:
    """The plans of the hosts that the inventory configures."""
    # if the inventory configures no host, unreachable hosts are not blockers
    configured = any(_is_configured(variables, name) for name in names)
    nodes = [_node(variables, name, name in checked) for name in names if configured]
    return [node for node in nodes if node]


def _planned_by_probe(variables: Variables, host: str) -> bool:
    """Whether the probe has already planned the host and found nothing to change, so that it was not checked again."""
    return _host_variable(variables, host, "site_parts") is None and needs_no_change(probe_of(variables, host))


def _is_configured(variables: Variables, host: str) -> bool:
    """Whether the inventory configures the host."""
    return bool(_host_variable(variables, host, "site_parts")) or _planned_by_probe(variables, host)


def _host_variable(variables: Variables, host: str, name: str) -> t.Any:
    """A variable that a task has set for a host."""
    raw = variables["hostvars"].raw_get(host)
    return raw.get(name) if isinstance(raw, dict) else None


def _node(variables: Variables, host: str, checked: bool) -> Node | None:
    """The plan of a host; None if it is not part of the rollout."""
    node = Node(host)
    problems = _host_variable(variables, host, "site_problems")
    node.problems = [str(problem) for problem in problems or ()]
    if not checked:
        probe = _host_variable(variables, host, "topology_probe")
        reason = probe.get("msg") if isinstance(probe, dict) else None
        node.problems.append(str(reason or "the host was lost during the check; see its messages above"))
    plan = _host_variable(variables, host, "fabric_plan")
    if _planned_by_probe(variables, host):
        plan = probe_of(variables, host)["plan"]
    if isinstance(plan, dict) and "changes" in plan:
        node.changes = plan["changes"]
        node.drain = plan.get("drain_reasons") or []
        node.reboot = plan.get("reboot_reasons") or []
        node.idle = plan.get("idle_rules") or []
        node.not_recorded = plan.get("not_recorded") or []
        node.left_alone = plan.get("left_alone") or []
        node.reboot_ok = boolean(variables["hostvars"][host].get("fabric_reboot_ok") or False)
    host_variables = variables["hostvars"][host]
    node.recorded = str(host_variables.get("fabric_root") or host_variables.get("topology_root") or "/") != "/"
    node.cordoned = _host_variable(variables, host, "fabric_left_cordoned") is True
    driver = _host_variable(variables, host, "dra_driver_plan")
    node.driver = [str(step) for step in driver or ()]
    return node if _is_configured(variables, host) or node.problems else None


def _state(variables: Variables, host: str, alive: bool) -> tuple[str, str]:
    """The state of a host in the rollout, and the reason for it."""
    state = _host_variable(variables, host, "site_state")
    if isinstance(state, dict) and state.get("state") in (DONE, FAILED):
        return state["state"], str(state.get("reason") or "")
    begun = bool(_host_variable(variables, host, "site_begun"))
    if begun and not alive:
        return LOST, "the host became unreachable while it was changed; the next run continues"
    return WAITING, ""
