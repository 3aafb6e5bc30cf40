# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What the DRA drivers of a site would publish for a probed node."""

from __future__ import annotations

import typing as t

from ...topology.facts import NodeFacts
from ..kube.objects import ObjectView
from .drivers import VENDORS, knowledge
from .knowledge import DriverKnowledge
from .offer import Offer, Options
from .server import Server

_OFFERS = {vendor.knowledge.name: vendor.offers for vendor in VENDORS if vendor.offers}


def offers(
    node: str,
    facts: NodeFacts,
    drivers: t.Mapping[str, ObjectView],
    known: t.Mapping[str, DriverKnowledge] | None = None,
    server: Server | None = None,
) -> list[Offer]:
    """What each driver of the site would publish for the node: sorted by driver, then in the order of each driver.

    `facts` are the node's topology facts, `drivers` the options of each driver as in dra_claims_drivers. There are no
    offers of drivers that cannot be predicted (`unpredictable`). `known` contains the result of
    :func:`drivers.knowledge` for each driver; without it, that function is called here, and may raise Problems.
    `server` is the API server to which the devices are published, by default the newest release with its default
    feature gates.
    """
    server = server or Server()
    result: list[Offer] = []
    for name in sorted(drivers):
        driver = known[name] if known else knowledge(name, drivers[name])
        predict = _OFFERS.get(name)
        if predict:
            result += predict(node, facts, driver, _options(drivers[name] or {}, server))
    return [server.stored(offer) for offer in result] if server.dropped or server.rules else result


def _options(options: ObjectView, server: Server) -> Options:
    return {
        "group_by": options.get("group_by"),
        "reserved_cpus": options.get("reserved_cpus"),
        "counters": server.keeps_counters,
        "shares": server.shares,
        "consumable_shares": str(options.get("consumable_shares") or ""),
    }


def unpredictable(drivers: t.Iterable[str]) -> list[str]:
    """The drivers whose devices cannot be predicted from a probe.

    They are described only by the site, or their devices depend on data that a probe does not read.
    """
    return sorted(name for name in drivers if name not in _OFFERS)
