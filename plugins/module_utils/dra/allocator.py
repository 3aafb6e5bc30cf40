# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Would the scheduler find devices on a node for the claims of a pod, and which; and where it would not, why."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from .diagnosis import Diagnosis
from .offers import Offer
from .search import Allocation, Basis, Engine, Refusal, Result, Search, Spec, asked, attribute, class_selectors

__all__ = ("BUDGET", "Allocation", "Engine", "Refusal", "Result", "allocate", "attribute")

#: Devices that the search looks at before it gives up; about a second of work.
BUDGET = 200_000


def allocate(
    claims: t.Sequence[Spec],
    classes: t.Mapping[str, Spec],
    offers: t.Sequence[Offer],
    engine: Engine,
    *,
    held: t.Iterable[Result] = (),
    blind: t.Iterable[str] = (),
    budget: int = BUDGET,
) -> Allocation | Refusal:
    """Find devices of one node for all the claims of a pod, as the scheduler would.

    C(claims) are C(spec) of v1 ResourceClaims, C(classes) v1 DeviceClasses by name, C(offers) the node's devices (see
    L(offers.offers,)). C(held) are results of earlier allocations, which still hold their devices. C(blind) are drivers
    whose devices no probe can tell: requests for them have no answer. Paths begin with C(claims[0].spec.devices).

    A device whose selector asks for something that the probe does not know is no candidate at first. Where nothing is
    found without such devices, but something is with them, the answer is a Refusal of kind unknown.
    """
    held = list(held)
    basis = Basis(claims, classes, list(offers), engine, held, budget)
    answer, decided = _look(basis)
    if isinstance(answer, Allocation) or answer.kind in ("class", "limit"):
        return answer
    if answer.kind == "budget" and decided is not False:
        return _undecided(answer, decided)
    for index, claim in enumerate(claims):
        for path, request, _base in asked(claim, index):
            texts = [entry["cel"]["expression"] for entry in class_selectors(classes, request)]
            texts += [entry["cel"]["expression"] for entry in request.get("selectors") or ()]
            for driver in sorted(blind):
                if any(f'"{driver}"' in text or f"'{driver}'" in text for text in texts):
                    reason = f"nothing tells what {driver} publishes on a node that it does not run on yet"
                    return Refusal(reason, path, "unknown", answer.steps)
    hopeful = Search(basis, optimist=True)
    if hopeful.doubtful():
        other = hopeful.run()
        if isinstance(other, Allocation):
            path, reason = hopeful.doubts(other)
            return Refusal(reason, path, "unknown", answer.steps + other.steps)
        if other.kind == "budget" and _satisfiable(basis, optimist=True) is not False:
            return other
    if answer.kind == "error":
        return answer
    return Diagnosis(basis, answer.steps).run()


def _look(basis: Basis) -> tuple[Allocation | Refusal, bool | None]:
    """The scheduler's search, and where it takes long, whether there is anything to be found."""
    answer = Search(replace(basis, budget=basis.budget // 10)).run()
    if isinstance(answer, Allocation) or answer.kind != "budget":
        return answer, None
    decided = _satisfiable(basis)
    if decided is False:
        return answer, False
    return Search(basis).run(), decided


def _undecided(answer: Refusal, satisfiable: bool | None) -> Refusal:
    if not satisfiable:
        return answer
    reason = (
        f"the devices are there, but the scheduler's search for them takes more than {answer.steps - 1} steps, and it "
        "may run into its time limit of ten seconds a node: ask for fewer devices in one claim, or for fewer levels"
    )
    return Refusal(reason, answer.path, "budget", answer.steps)


def _satisfiable(basis: Basis, optimist: bool = False) -> bool | None:
    """Whether there is any allocation at all, however the scheduler would search; None where that is too much work."""
    answer = Search(basis, optimist=optimist, ordered=True).run()
    return True if isinstance(answer, Allocation) else None if answer.kind == "budget" else False
