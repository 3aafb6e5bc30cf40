# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which devices of a node the scheduler would allocate for the claims of a pod, or why it finds none."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ..kube.objects import ObjectView
from ..vendors.offer import Offer
from .answers import Allocation, Refusal, Result
from .candidates import Question
from .diagnosis import Diagnosis
from .node_cache import NodeCache
from .search import Search
from .search_devices import attribute
from .search_requests import CONSTRAINTS, all_requests, class_selectors, expressions
from .search_selection import Engine

__all__ = ("BUDGET", "SCHEDULER_BUDGET", "Allocation", "Engine", "Refusal", "Result", "allocate", "attribute")

#: Maximum number of devices that the search examines before it gives up. This takes about a second.
BUDGET = 200_000
#: Number of devices that a scheduler can certainly examine in its time limit of ten seconds per node.
SCHEDULER_BUDGET = 5_000_000


def not_predicted(driver: str) -> str:
    """The reason why a driver's devices on a node that was only probed are uncertain."""
    return f"what {driver} publishes on a node where it does not run yet is unknown"


def allocate(
    claims: t.Sequence[ObjectView],
    classes: t.Mapping[str, ObjectView],
    offers: t.Sequence[Offer],
    engine: Engine,
    *,
    held: t.Iterable[Result] = (),
    uncertain: t.Iterable[str] | t.Mapping[str, str] = (),
    constraints: t.Sequence[str] = CONSTRAINTS,
    budget: int = BUDGET,
    explain: bool = True,
) -> Allocation | Refusal:
    """Find devices of a node for all claims of a pod, as the scheduler does.

    `claims` are `spec` of v1 ResourceClaims, `classes` v1 DeviceClasses by name, `offers` the node's devices (see
    `offers.offers`). `held` are results of earlier allocations, which still hold their devices. `uncertain` are drivers
    whose devices a probe cannot predict, or a mapping of such drivers to the reason: a failed request for their devices
    has the result unknown. `constraints` are the kinds that the scheduler supports (see `offers.Server`). Paths begin
    with `claims[0].spec.devices`.

    The devices that a 1.34 scheduler picks cannot be predicted, because it visits the pools in random order. It may
    pick other devices, or fail on a selector that is an error on some of them. Whether enough devices exist does not
    change.

    At first, a device is not a candidate if a selector needs one of its values that the probe does not know. If there
    is only an allocation with such devices, the result is a Refusal of kind unknown.

    Without `explain`, a failed search returns its own Refusal, which saves the time for a diagnosis and for the
    search with uncertain devices.
    """
    question = Question(claims, classes, NodeCache(offers, engine), list(held), budget, constraints)
    return answer_of(question, uncertain, explain)


def answer_of(
    question: Question, uncertain: t.Iterable[str] | t.Mapping[str, str] = (), explain: bool = True
) -> Allocation | Refusal:
    """The answer to a question, see `allocate`. Its cache may contain results of questions about the same devices."""
    claims, classes, budget = question.claims, question.classes, question.budget
    search = Search(question)
    answer = search.run()
    if isinstance(answer, Allocation):
        return answer if answer.steps <= SCHEDULER_BUDGET else _beyond_time_limit(answer)
    if answer.kind in ("class", "limit", "budget") or not explain:
        return answer
    for index, claim in enumerate(claims):
        for path, request, _name in all_requests(claim, index):
            texts = expressions([*class_selectors(classes, request), *(request.get("selectors") or ())])
            for driver in sorted(uncertain):
                if any(f'"{driver}"' in text or f"'{driver}'" in text for text in texts):
                    reason = uncertain[driver] if isinstance(uncertain, t.Mapping) else not_predicted(driver)
                    return Refusal(reason, path, "unknown", answer.steps)
    optimistic_search = Search(replace(question, budget=max(budget - search.examined, budget // 4)), optimistic=True)
    doubtful = optimistic_search.is_doubtful()
    if doubtful:
        optimistic_answer = optimistic_search.run()
        if isinstance(optimistic_answer, Allocation):
            path, reason = optimistic_search.uncertain_part(optimistic_answer)
            return Refusal(reason, path, "unknown", answer.steps + optimistic_answer.steps)
        if optimistic_answer.kind == "budget":
            return optimistic_answer
    if answer.kind == "error":
        return answer
    return Diagnosis(question, answer.steps, doubtful).run()


def _beyond_time_limit(allocation: Allocation) -> Refusal:
    """The refusal of an allocation that the scheduler may not find in time."""
    reason = (
        f"the devices exist, but the scheduler examines {allocation.steps} devices to find them, so it may reach its "
        "time limit of ten seconds per node: request fewer devices in one claim, or fewer levels"
    )
    return Refusal(reason, "claims", "budget", allocation.steps)
