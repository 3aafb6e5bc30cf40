# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Drift of a cluster from the inventory: claims, holds and queues."""

from __future__ import annotations

import typing as t

from .rollout import DRIFTED, NO_DRIFT, NOT_COMPARED, UNKNOWN

#: A verdict (NO_DRIFT, DRIFTED, UNKNOWN or NOT_COMPARED), and lines of text that explain it.
State = tuple[str, list[str]]


def combined(states: t.Sequence[State]) -> State:
    """The worst verdict of all states, with the lines of all."""
    verdicts = [verdict for verdict, _lines in states]
    worst = next((verdict for verdict in (UNKNOWN, DRIFTED, NO_DRIFT) if verdict in verdicts), NOT_COMPARED)
    return worst, [line for _verdict, lines in states for line in lines]


def claims_state(applied: object, problem: object) -> State:
    """The state of the claims, from the result of `dra_apply` in check mode or from the reason why there is none."""
    if problem:
        return UNKNOWN, str(problem).splitlines()
    if not isinstance(applied, dict):
        return NOT_COMPARED, []
    if applied.get("skipped"):
        return NOT_COMPARED, ["dra_claims_apply is false: check the claims with the program that applies them"]
    if not applied.get("changed"):
        return NO_DRIFT, []
    replaced = applied.get("replaced") or ()
    lines = [f"{title} no longer fits the boards of the site: render and apply the claims" for title in replaced]
    lines += [f"{title} differs or is missing" for title in applied.get("differing") or () if title not in replaced]
    return DRIFTED, lines + [f"{title} is no longer in the inventory" for title in applied.get("pruned") or ()]


def holds_state(holds: object) -> State:
    """Overdue holds, from the result of `dra_holds_info`.

    NOT_COMPARED without overdue holds, because this does not show that anything agrees with the inventory.
    """
    lines = [str(line) for line in holds.get("overdue") or ()] if isinstance(holds, dict) else []
    return (DRIFTED if lines else NOT_COMPARED), lines


def queues_state(applied: object, rendered: object, problem: object) -> State:
    """The state of the queues.

    `applied` is the result of `dra_apply` in check mode. `rendered` is that of `queue_render`, which has overdue loans
    and the differences of Kueue's configuration. An overdue loan alone is not drift.
    """
    if problem:
        return UNKNOWN, [f"queues: {line}" for line in str(problem).splitlines()]
    if not isinstance(applied, dict) or not isinstance(rendered, dict):
        return NOT_COMPARED, []
    overdue = rendered.get("overdue") or ()
    if applied.get("skipped"):
        lines = ["queues_apply is false: check the queues with the program that applies them"]
        return NOT_COMPARED, lines + [f"overdue loan: {loan}" for loan in overdue]
    differing = applied.get("differing") or ()
    still_lent = any(title.startswith("ClusterQueue ") for title in differing)
    action = (
        "run lanewise.dra.queues to reclaim the quota"
        if still_lent
        else "the quota is reclaimed; remove the loan from queues_loans"
    )
    lines = [f"overdue loan: {loan}: {action}" for loan in overdue]
    lines += [f"{title} differs or is missing" for title in differing]
    lines += [f"{title} is no longer in the inventory" for title in applied.get("pruned") or ()]
    configuration = rendered.get("configuration_differences") or ()
    lines += [f"Kueue's configuration: {difference}" for difference in configuration]
    return (DRIFTED if applied.get("changed") or configuration else NO_DRIFT), lines
