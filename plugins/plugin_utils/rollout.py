# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan and the state of a rollout, and the drift of a site, as data and as readable lines."""

from __future__ import annotations

import collections
import json
import typing as t
from dataclasses import dataclass, field

from ansible.utils.helpers import pct_to_int
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import Change

#: States of a node, in the order in which they are reported.
FAILED, LOST, DONE, WAITING = "failed", "lost", "done", "waiting"
#: Verdicts on a node, the claims or the whole site, compared with the inventory.
NO_DRIFT, DRIFTED, UNKNOWN = "no drift", "drifted", "unknown"
#: The verdict on claims that another program applies.
NOT_COMPARED = "not compared"
#: The message of a plan for nodes that the inventory does not configure.
NOTHING_TO_CONFIGURE = (
    "Nothing to configure on these nodes: the inventory sets neither fabric_board, fabric_nics or fabric_node, nor "
    "dra_driver_kubeconfig (or kubeconfig in dra_driver_settings)."
)
#: The maximum number of names or reasons in a line; the others are only counted.
_MAX_SHOWN = 8
#: The parts of the resource `boot`, which applies the settings at each boot.
_AT_BOOT = {
    "program": "boot program",
    "desired": "boot settings",
    "unit": "boot unit",
    "network_unit": "boot unit for what needs the network",
    "enabled": "boot unit enabled",
    "network_enabled": "boot unit for what needs the network enabled",
}
#: The maximum length of a value that is shown completely.
_MAX_VALUE = 60


@dataclass
class Node:
    """One node of the plan.

    `changes` are those of the module fabric; `driver` are the steps of the role dra_driver, as texts. `drain` and
    `reboot` are the reasons for a drain and a reboot. A `recorded` node is a folder, which is never changed; an
    interrupted run left a `cordoned` node cordoned. `idle` are rules that match none of its NICs, `not_recorded`
    settings that a recorded machine does not have. `left_alone` are NICs that pods have, which cannot be compared.
    `problems` prevent the rollout from starting.
    """

    name: str
    changes: list[Change] = field(default_factory=list)
    driver: list[str] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)
    reboot: list[str] = field(default_factory=list)
    reboot_ok: bool = False
    left_alone: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    not_recorded: list[str] = field(default_factory=list)
    recorded: bool = False
    cordoned: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        """Whether a rollout changes the node."""
        work = self.changes or self.driver or self.cordoned or (self.reboot and self.reboot_ok)
        return bool(work) and not self.recorded and not self.problems

    @property
    def notes(self) -> list[str]:
        """What was not compared or planned, one line each."""
        notes = [f"a rule matches no NIC: {rule}" for rule in self.idle]
        return notes + ([f"not recorded, so not planned: {_some(self.not_recorded)}"] if self.not_recorded else [])

    def lines(self) -> list[str]:
        """What a rollout does on the node."""
        lines = []
        if self.changes:
            counts = collections.Counter(change["resource"] for change in self.changes)
            kinds = ", ".join(f"{name} {count}" for name, count in counts.items())
            lines.append(f"{_count(len(self.changes), 'change')} ({kinds})")
        if self.driver:
            lines.append("driver: " + ", ".join(self.driver))
        if self.cordoned:
            lines.append("is uncordoned: an interrupted run left it cordoned")
        if self.drain:
            lines.append(f"its pods are drained first: {_some(self.drain)}")
        if self.reboot:
            allowed = "it reboots" if self.reboot_ok else "waits for a reboot (fabric_reboot_ok allows it)"
            lines.append(f"{allowed}: {_some(self.reboot)}")
        return lines


def batches(hosts: t.Sequence[str], serial: t.Sequence[int | str]) -> list[list[str]]:
    """The hosts in the batches of a play with this `serial` (Ansible's playbook keyword).

    Raises ValueError for anything but numbers and percentages.
    """
    batched: list[list[str]] = []
    remaining = list(hosts)
    sizes = list(serial) or [0]
    while remaining:
        size = pct_to_int(sizes[min(len(batched), len(sizes) - 1)], len(hosts))
        size = size if size > 0 else len(remaining)
        batched.append(remaining[:size])
        remaining = remaining[size:]
    return batched


def plan_lines(nodes: t.Sequence[Node], serial: t.Sequence[int | str]) -> list[str]:
    """The plan as lines: each batch with its nodes. Raises ValueError as `batches` does."""
    lines: list[str] = []
    changed = {node.name: node for node in nodes if node.has_work}
    for number, batch in enumerate(batches(list(changed), serial), 1):
        lines.append(f"batch {number}: {_count(len(batch), 'node')}{', the canary' if number == 1 else ''}")
        lines += _alike([changed[name] for name in batch])
    recorded = [node for node in nodes if node.recorded and (node.lines() or node.notes) and not node.problems]
    if recorded:
        lines.append(f"planned only (recorded machines): {_count(len(recorded), 'node')}")
        lines += _alike(recorded)
    others = [node for node in nodes if node not in recorded and not node.has_work and not node.problems]
    waiting = [node for node in others if node.reboot]
    if waiting:
        lines.append(f"no changes needed, but a reboot: {_count(len(waiting), 'node')}")
        lines += _alike(waiting)
    idle = [node for node in others if node.notes and not node.reboot]
    if idle:
        lines.append(f"no changes needed, but some rules match no NIC: {_count(len(idle), 'node')}")
        lines += _alike(idle)
    if len(others) > len(waiting) + len(idle):
        lines.append(f"no changes needed: {_count(len(others) - len(waiting) - len(idle), 'node')}")
    return lines + _left_alone({node.name: node.left_alone for node in nodes})


def problem_lines(nodes: t.Sequence[Node]) -> list[str]:
    """The blockers of each node as lines."""
    return [f"{node.name}: {line}" for node in nodes for problem in node.problems for line in _lines(problem)]


def stop_lines(nodes: t.Sequence[Node], limit: str, alive: t.Container[str]) -> dict[str, str]:
    """The error message of each node with blockers: the blockers, and how to continue with the other nodes.

    `limit` is the run's `--limit`. Ansible reports no more messages for a lost node, so the first node that is `alive`
    reports the lost ones too.
    """
    blocked = [node for node in nodes if node.problems]
    others = [node.name for node in nodes if not node.problems]
    names = [node.name for node in blocked]
    advice = ""
    if others:
        have = "has" if len(others) == 1 else "have"
        advice = f"\nThe other {_count(len(others), 'node')} ({_some(others, ', ')}) {have} no blockers"
        if len(names) <= _MAX_SHOWN:
            pattern = ",".join([limit, *(f"!{name}" for name in names)])
            advice += f": to continue without {_some(names, ', ')}, add --limit '{pattern}'"
    lost = [node for node in blocked if node.name not in alive]
    messages: dict[str, str] = {}
    for node in blocked:
        reported = [node, *lost] if node.name in alive and not messages else [node]
        if node.name in alive:
            lines = "\n".join(problem_lines(reported))
            messages[node.name] = f"No node was changed, because of these blockers:\n{lines}{advice}"
    return messages


class NodeDrift(t.TypedDict):
    """The drift of one node, as in drift.json."""

    state: str
    lines: list[str]
    idle_rules: list[str]
    not_recorded: list[str]
    changes: list[Change]
    driver: list[str]
    reboot: list[str]
    left_alone: list[str]
    problems: list[str]


class ClaimsDrift(t.TypedDict):
    """The drift of the claims in the cluster."""

    state: str
    lines: list[str]


class Drift(t.TypedDict):
    """The drift of a site: `unknown` if any node or the claims are unknown, else `drifted` if any has drifted."""

    verdict: str
    nodes: dict[str, NodeDrift]
    claims: ClaimsDrift


def drift(nodes: t.Sequence[Node], claims: ClaimsDrift) -> Drift:
    """The differences from the inventory."""
    node_drifts: dict[str, NodeDrift] = {
        node.name: {
            "state": UNKNOWN if node.problems else DRIFTED if node.lines() else NO_DRIFT,
            "lines": node.lines() + [_change_line(change) for change in node.changes] + node.notes,
            "idle_rules": node.idle,
            "not_recorded": node.not_recorded,
            "changes": node.changes,
            "driver": node.driver,
            "reboot": node.reboot,
            "left_alone": node.left_alone,
            "problems": [line for problem in node.problems for line in _lines(problem)],
        }
        for node in nodes
    }
    states = {node["state"] for node in node_drifts.values()} | {claims["state"]}
    verdict = next((state for state in (UNKNOWN, DRIFTED) if state in states), NO_DRIFT)
    return {"verdict": verdict, "nodes": node_drifts, "claims": claims}


def drift_lines(report: Drift) -> list[str]:
    """A drift as lines; nodes without drift are only counted."""
    lines: list[str] = []
    for name, node in report["nodes"].items():
        if node["state"] != NO_DRIFT or node["lines"]:
            state = node["state"] if node["state"] != NO_DRIFT else "no drift, but some rules match no NIC"
            lines.append(f"{name}: {state}")
            lines += [f"    {line}" for line in node["problems"] + node["lines"]]
    if report["claims"]["state"] in (DRIFTED, UNKNOWN) or report["claims"]["lines"]:
        lines.append(f"claims: {report['claims']['state']}")
        lines += [f"    {line}" for line in report["claims"]["lines"]]
    lines += _left_alone({name: node["left_alone"] for name, node in report["nodes"].items()})
    unchanged = sum(node["state"] == NO_DRIFT and not node["lines"] for node in report["nodes"].values())
    return [*lines, f"{_count(unchanged, 'node')} without drift"]


def _left_alone(nics: t.Mapping[str, list[str]]) -> list[str]:
    """A line about NICs that pods have, from these NICs by node; empty if there are none."""
    nodes = [name for name, left_alone in nics.items() if left_alone]
    count = sum(map(len, nics.values()))
    return [f"left alone while pods have them: {_count(count, 'NIC')} of {_some(nodes)}"] if nodes else []


def _change_line(change: Change) -> str:
    """A change in one line, without the content of files."""
    device, setting = change["device"], change["setting"]
    if change.get("resource") == "boot" and setting in _AT_BOOT:
        return f"{device}: {_AT_BOOT[setting]}: {_step(change)}"
    return f"{device}: {setting}: {_value(change['before'])} -> {_value(change['after'])}"


def _step(change: Change) -> str:
    if change["setting"].endswith("enabled"):
        return "no -> yes" if change["after"] else "yes -> no"
    if change["before"] is None:
        return "not installed -> install"
    return "installed -> remove" if change["after"] is None else "installed -> update"


def _value(value: object) -> str:
    if value is None:
        return "unset"
    text = value if isinstance(value, str) else json.dumps(value)
    if "\n" in text:
        return f"{len(text.splitlines())} lines"
    return text if len(text) <= _MAX_VALUE else f"{text[:12]}..."


def _alike(nodes: t.Sequence[Node]) -> list[str]:
    """The names of nodes with the same plan, followed by the lines of this plan."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        alike.setdefault((*node.lines(), *node.notes), []).append(node.name)
    lines = []
    for plan, names in alike.items():
        lines.append(f"    {_some(names, ', ')}")
        lines += [f"        {line}" for line in plan]
    return lines


def state_lines(states: t.Mapping[str, tuple[str, str]]) -> list[str]:
    """The state of the rollout as lines, from state and reason by node: failed and lost nodes first."""
    lines: list[str] = []
    for state in (FAILED, LOST, DONE, WAITING):
        names = [name for name, (node_state, _reason) in states.items() if node_state == state]
        if not names:
            continue
        lines.append(f"{state}: {_count(len(names), 'node')}")
        if state in (FAILED, LOST):
            lines += [f"    {name}: {line}" for name in names for line in _lines(states[name][1])]
        else:
            lines.append(f"    {_some(names, ', ')}")
    return lines


def too_many(states: t.Mapping[str, tuple[str, str]], percentage: float) -> bool:
    """Whether more than this percentage of the nodes have failed or are lost."""
    failed = sum(state in (FAILED, LOST) for state, _reason in states.values())
    return bool(states) and failed / len(states) * 100 > percentage


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()] or ["no reason was given"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _some(items: t.Sequence[str], separator: str = "; ") -> str:
    more = len(items) - _MAX_SHOWN
    return separator.join(items[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
