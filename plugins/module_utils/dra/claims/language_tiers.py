# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads the tiers of the inventory: claims of different tiers can swap devices.

A claim of a tier gets the tolerations of the tier when it is compiled, because they cannot be added later.
"""

from __future__ import annotations

import typing as t

from ..holds import swap
from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import Reader, child, nearest
from .inventory import Claim, Tier

#: The maximum grace in seconds: a week.
MAX_GRACE_SECONDS = 7 * 24 * 3600


def read_tiers(reader: Reader, entries: t.Iterable[tuple[object, str]]) -> list[Tier]:
    """The entries of `dra_claims_tiers`, including those with errors."""
    tiers = []
    for value, path in entries:
        item = reader.mapping(value, path, ("name", "grace"), "a tier")
        if item is None:
            continue
        if "name" not in item:
            reader.problem(child(path, "name"), "is missing", "missing")
        name = reader.name(item["name"], child(path, "name"), limits.label_value) if "name" in item else None
        grace = reader.integer(item["grace"], child(path, "grace"), 0, MAX_GRACE_SECONDS) if "grace" in item else None
        tiers.append(Tier(path, name or "", grace))
    return tiers


def add_tolerations(reader: Reader, claims: t.Iterable[Claim], tiers: t.Iterable[Tier]) -> None:
    """Add the tolerations of its tier to each device of a claim with a tier. Errors are recorded in `reader`."""
    known = {tier.name: tier for tier in tiers if tier.name}
    for claim in claims:
        if not claim.tier:
            continue
        tier = known.get(claim.tier)
        if tier is None:
            names = ", ".join(known) or "none"
            fix = nearest(claim.tier, known) or f"tiers in dra_claims_tiers: {names}"
            reader.problem(child(claim.path, "tier"), f"there is no tier {claim.tier!r}", "unknown-tier", fix)
            claim.broken = True
            continue
        for group in claim.groups:
            for device in (choice for entry in group.devices for choice in entry.choices()):
                if device.admin:
                    continue  # such a request does not occupy the device, so it takes no part in swaps
                own = len(device.tolerations)
                device.tolerations = [*device.tolerations, *tolerations(tier)]
                if own <= limits.TOLERATIONS < len(device.tolerations):  # otherwise it was reported before
                    number = f"{len(device.tolerations)} entries, including those of its tier"
                    message = f"has {number}; the limit is {limits.TOLERATIONS}"
                    reader.problem(child(device.path, "tolerations"), message, "too-many")


def tolerations(tier: Tier) -> list[Object]:
    """The tolerations of each request of a tier's claims."""
    return swap.tier_tolerations(tier.name) + ([] if tier.grace is None else [swap.grace_toleration(tier.grace)])
