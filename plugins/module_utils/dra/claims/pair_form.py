# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Finds nearest pairs in the requests and constraints of any claim with the structure that `pairing` writes."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..kube.objects import ObjectView


@dataclass(frozen=True)
class PairForm:
    """Two requests whose combinations of alternatives are limited by constraints.

    `first_subs` and `second_subs` are the alternatives of the first and the second request that the constraints cover,
    in order. `forbidden` are the combinations that the constraints exclude.
    """

    first: str
    second: str
    first_subs: tuple[str, ...]
    second_subs: tuple[str, ...]
    forbidden: frozenset[tuple[str, str]]

    def allowed(self, first: str, second: str) -> bool:
        return (first, second) not in self.forbidden

    def pairs(self) -> list[tuple[str, str]]:
        """The combinations of alternatives that can be allocated together."""
        return [
            (first, second) for first in self.first_subs for second in self.second_subs if self.allowed(first, second)
        ]


def pair_forms(devices: ObjectView) -> list[PairForm]:
    """The pair forms in the `devices` of a v1 ResourceClaim.

    A pair form is a pair of requests with `matchAttribute` constraints that cover only alternatives of these requests,
    and allow at least one combination of alternatives.
    """
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
        first_subs, second_subs = ([sub for name, _slash, sub in names if name == request] for request in requests)
        pair = (requests[0], requests[1])
        covered.setdefault(pair, set()).update((first, second) for first in first_subs for second in second_subs)
    return [form for pair, forbidden in covered.items() if (form := _form(pair, forbidden, order)) is not None]


def _form(
    pair: tuple[str, str], forbidden: t.AbstractSet[tuple[str, str]], order: t.Mapping[str, list[str]]
) -> PairForm | None:
    first, second = pair
    of_first, of_second = {sub for sub, _other in forbidden}, {sub for _other, sub in forbidden}
    first_subs = tuple(name for name in order.get(first, ()) if name in of_first)
    second_subs = tuple(name for name in order.get(second, ()) if name in of_second)
    form = PairForm(first, second, first_subs, second_subs, frozenset(forbidden))
    return form if form.pairs() else None
