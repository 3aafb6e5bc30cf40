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


def slices(offers: t.Iterable[Offer], generation: int = 1) -> list[Object]:
    """v1 ResourceSlices that publish the offers, within the limits of every API server from 1.34 on.

    A slice has up to 128 devices, or up to 64 if some device of its pool has taints or consumes counters. The counter
    sets of a pool (driver, pool name and node) are in separate slices, eight per slice. Names end in the slice's
    number, so that the scheduler, which reads the slices of a pool by name, sees the devices in the order of the
    offers.
    """
    pools: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in offers:
        if not offer.possible:
            pools.setdefault((offer.driver, offer.pool, offer.node), []).append(offer)
    result = []
    for (driver, pool, node), members in pools.items():
        devices = [offer.device for offer in members]
        sets = {entry["name"]: entry for offer in members for entry in offer.counter_sets}
        advanced = any(device.get("taints") or device.get("consumesCounters") for device in devices)
        max_devices = limits.at(limits.DEVICES_ADVANCED, 37) if advanced else limits.DEVICES
        max_sets = limits.at(limits.COUNTER_SETS, 37) or len(sets)
        bodies: list[Object] = []
        bodies += [{"devices": devices[at : at + max_devices]} for at in range(0, len(devices), max_devices)]
        entries = list(sets.values())
        bodies += [{"sharedCounters": entries[at : at + max_sets]} for at in range(0, len(entries), max_sets)]
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
