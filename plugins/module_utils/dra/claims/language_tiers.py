# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads the tiers of the inventory, between which devices are swapped.

Each claim of a tier gets the tolerations of the tier when it is compiled, since they cannot be added later.
"""

from __future__ import annotations

import typing as t

from ..holds import swap
from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import Reader, child, nearest
from .inventory import Claim, Tier

#: The longest grace in seconds: a week.
MAX_GRACE_SECONDS = 7 * 24 * 3600


def read_tiers(reader: Reader, entries: t.Iterable[tuple[object, str]]) -> list[Tier]:
    """The entries of `dra_claims_tiers`, including those with errors."""
    found = []
    for value, path in entries:
        item = reader.mapping(value, path, ("name", "grace"), "a tier")
        if item is None:
            continue
        if "name" not in item:
            reader.problem(child(path, "name"), "is missing", "missing")
        name = reader.name(item["name"], child(path, "name"), limits.label_value) if "name" in item else None
        grace = reader.integer(item["grace"], child(path, "grace"), 0, MAX_GRACE_SECONDS) if "grace" in item else None
        found.append(Tier(path, name or "", grace))
    return found


def add_tolerations(reader: Reader, claims: t.Iterable[Claim], tiers: t.Iterable[Tier]) -> None:
    """Add the tolerations of its tier to each device of a claim with a tier."""
    known = {one.name: one for one in tiers if one.name}
    for claim in claims:
        if not claim.tier:
            continue
        tier = known.get(claim.tier)
        if tier is None:
            names = ", ".join(known) or "none"
            fix = nearest(claim.tier, known) or f"dra_claims_tiers has {names}"
            reader.problem(child(claim.path, "tier"), f"there is no tier {claim.tier!r}", "unknown-tier", fix)
            claim.broken = True
            continue
        for group in claim.groups:
            for device in (one for named in group.devices for one in named.choices()):
                if device.admin:
                    continue  # admin access does not take the device from others
                device.tolerations = [*device.tolerations, *tolerations(tier)]
                if len(device.tolerations) > limits.TOLERATIONS:
                    message = f"has {len(device.tolerations)} entries with those of its tier; {limits.TOLERATIONS} are"
                    reader.problem(child(device.path, "tolerations"), f"{message} the limit", "too-many")


def tolerations(tier: Tier) -> list[Object]:
    """The tolerations of each request of a tier's claims."""
    return swap.tier_tolerations(tier.name) + ([] if tier.grace is None else [swap.grace_toleration(tier.grace)])
