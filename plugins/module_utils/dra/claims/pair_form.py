# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Claims of `pairing`, recognised by their requests and constraints. Other programs may have written them."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..kube.objects import ObjectView


@dataclass(frozen=True)
class PairForm:
    """Two requests whose alternatives constraints tie together.

    `ours` and `theirs` are the alternatives of the first and the second request that take part, in their order;
    `forbidden` the combinations that no allocation has.
    """

    first: str
    second: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    forbidden: frozenset[tuple[str, str]]

    def allowed(self, first: str, second: str) -> bool:
        return (first, second) not in self.forbidden

    def pairs(self) -> list[tuple[str, str]]:
        """The combinations of alternatives that can be allocated together."""
        return [(one, other) for one in self.ours for other in self.theirs if self.allowed(one, other)]


def pair_forms(devices: ObjectView) -> list[PairForm]:
    """The forms in the `devices` of a v1 ResourceClaim: pairs of requests with constraints by `matchAttribute` that
    cover only alternatives of the two, and that allow at least one of their combinations."""
    order = {
        str(request.get("name")): [str(sub.get("name")) for sub in request.get("firstAvailable") or ()]
        for request in devices.get("requests") or ()
    }
    covered: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for entry in devices.get("constraints") or ():
        names = [str(name).partition("/") for name in entry.get("requests") or ()]
        requests = list(dict.fromkeys(name for name, _slash, _sub in names))
        if not entry.get("matchAttribute") or len(requests) != 2 or not all(sub for _name, _slash, sub in names):
            continue
        ours, theirs = ([sub for name, _slash, sub in names if name == request] for request in requests)
        pair = (requests[0], requests[1])
        covered.setdefault(pair, set()).update((one, other) for one in ours for other in theirs)
    return [form for pair, forbidden in covered.items() if (form := _form(pair, forbidden, order)) is not None]


def _form(
    pair: tuple[str, str], forbidden: t.AbstractSet[tuple[str, str]], order: t.Mapping[str, list[str]]
) -> PairForm | None:
    first, second = pair
    mine, its = {one for one, _other in forbidden}, {other for _one, other in forbidden}
    ours = tuple(name for name in order.get(first, ()) if name in mine)
    theirs = tuple(name for name in order.get(second, ()) if name in its)
    form = PairForm(first, second, ours, theirs, frozenset(forbidden))
    return form if form.pairs() else None
