# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Would the scheduler find devices on a node for the claims of a pod, and which; and where it would not, why."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ..vendors.offer import Offer
from .answers import Allocation, Refusal, Result
from .candidates import Question
from .diagnosis import Diagnosis
from .node_memory import NodeMemory
from .search import Search
from .search_devices import Spec, attribute
from .search_requests import CONSTRAINTS, asked, class_selectors, expressions
from .search_selection import Engine

__all__ = ("BUDGET", "PATIENCE", "Allocation", "Engine", "Refusal", "Result", "allocate", "attribute")

#: Looks at devices before the search gives up; about a second of work.
BUDGET = 200_000
#: Looks at devices that a scheduler surely manages in its ten seconds for a node.
PATIENCE = 5_000_000


def not_predicted(driver: str) -> str:
    """Why nothing is certain of a driver's devices on a node that was only probed."""
    return f"what {driver} publishes on a node where it does not run yet is unknown"


def allocate(
    claims: t.Sequence[Spec],
    classes: t.Mapping[str, Spec],
    offers: t.Sequence[Offer],
    engine: Engine,
    *,
    held: t.Iterable[Result] = (),
    blind: t.Iterable[str] | t.Mapping[str, str] = (),
    constraints: t.Sequence[str] = CONSTRAINTS,
    budget: int = BUDGET,
    explain: bool = True,
) -> Allocation | Refusal:
    """Find devices of one node for all the claims of a pod, as the scheduler would.

    `claims` are `spec` of v1 ResourceClaims, `classes` v1 DeviceClasses by name, `offers` the node's devices (see
    `offers.offers`). `held` are results of earlier allocations, which still hold their devices. `blind` are drivers
    whose devices a probe cannot predict, or drivers with the reason why nothing is certain of their devices: requests
    for them have no answer. `constraints` are the kinds that the scheduler knows (see `offers.Server`).
    Paths begin with `claims[0].spec.devices`.

    Which devices a scheduler of 1.34 picks cannot be predicted: it goes through the pools in random order. It may pick
    others, or fail on a selector that is an error on some devices. Whether enough devices exist is the same.

    A device whose selector asks for something that the probe does not know is not a candidate at first. Where nothing
    is found without such devices, but something is with them, the answer is a Refusal of kind unknown.

    Without `explain` the Refusal of a search that found nothing is the search's own: that saves the time of a
    diagnosis, and of the search with uncertain devices.
    """
    question = Question(claims, classes, NodeMemory(offers, engine), list(held), budget, constraints)
    return answered(question, blind, explain)


def answered(
    question: Question, blind: t.Iterable[str] | t.Mapping[str, str] = (), explain: bool = True
) -> Allocation | Refusal:
    """The answer to a question; see `allocate`. Its memory may be that of earlier questions about the same devices."""
    claims, classes, budget = question.claims, question.classes, question.budget
    search = Search(question)
    answer = search.run()
    if isinstance(answer, Allocation):
        return answer if answer.steps <= PATIENCE else _long(answer)
    if answer.kind in ("class", "limit", "budget") or not explain:
        return answer
    for index, claim in enumerate(claims):
        for path, request, _base in asked(claim, index):
            texts = expressions([*class_selectors(classes, request), *(request.get("selectors") or ())])
            for driver in sorted(blind):
                if any(f'"{driver}"' in text or f"'{driver}'" in text for text in texts):
                    reason = blind[driver] if isinstance(blind, t.Mapping) else not_predicted(driver)
                    return Refusal(reason, path, "unknown", answer.steps)
    hopeful = Search(replace(question, budget=max(budget - search.looks, budget // 4)), optimist=True)
    doubtful = hopeful.doubtful()
    if doubtful:
        other = hopeful.run()
        if isinstance(other, Allocation):
            path, reason = hopeful.doubts(other)
            return Refusal(reason, path, "unknown", answer.steps + other.steps)
        if other.kind == "budget":
            return other
    if answer.kind == "error":
        return answer
    return Diagnosis(question, answer.steps, doubtful).run()


def _long(found: Allocation) -> Refusal:
    reason = (
        f"the devices are there, but the scheduler looks at devices {found.steps} times to find them, and it may run "
        "into its time limit of ten seconds a node: ask for fewer devices in one claim, or for fewer levels"
    )
    return Refusal(reason, "claims", "budget", found.steps)
