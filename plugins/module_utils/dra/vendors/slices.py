# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The ResourceSlices in which drivers would publish their devices."""

from __future__ import annotations

import typing as t

from ..kube import limits
from ..kube.objects import Object
from .offer import Offer

API_VERSION = "resource.k8s.io/v1"


def slices(given: t.Iterable[Offer], generation: int = 1) -> list[Object]:
    """v1 ResourceSlices that publish the offers, within the limits of every server from 1.34 on.

    A pool (driver, pool name and node) has pages of 128 devices, or of 64 if a device has taints or consumes
    counters; its counter sets are in separate slices, eight per slice. Names end in the page's number, so that the
    scheduler, which reads the slices of a pool by name, sees the devices in the order of the offers.
    """
    pools: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in given:
        if not offer.possible:
            pools.setdefault((offer.driver, offer.pool, offer.node), []).append(offer)
    result = []
    for (driver, pool, node), members in pools.items():
        devices = [offer.device for offer in members]
        sets = {entry["name"]: entry for offer in members for entry in offer.counter_sets}
        advanced = any(d.get("taints") or d.get("consumesCounters") for d in devices)
        page = limits.at(limits.DEVICES_ADVANCED, 37) if advanced else limits.DEVICES
        shared = limits.at(limits.COUNTER_SETS, 37) or len(sets)
        bodies: list[Object] = []
        bodies += [{"devices": devices[at : at + page]} for at in range(0, len(devices), page)]
        entries = list(sets.values())
        bodies += [{"sharedCounters": entries[at : at + shared]} for at in range(0, len(entries), shared)]
        for index, body in enumerate(bodies):
            spec = {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": len(bodies)},
                **body,
            }
            result.append(
                {
                    "apiVersion": API_VERSION,
                    "kind": "ResourceSlice",
                    "metadata": {"name": f"{node}-{driver}-{index:05}"},
                    "spec": spec,
                }
            )
    return result
