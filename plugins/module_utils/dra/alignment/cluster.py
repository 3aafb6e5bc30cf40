# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The state of a cluster, with which claims are compared."""

from __future__ import annotations

import typing as t

from ..scheduler.published import Pools, v1
from ..scheduler.search_devices import DeviceId
from ..scheduler.search_selection import Engine
from .devices import Facts, Machine


class Cluster:
    """The state of a cluster, with which claims are compared.

    `slices`, `classes` and `pods` are objects as the API serves them, and `machines` are topology facts by node. None
    for `pods` or `classes` means that they were not read. `cpusets` are CPU lists by pod UID and container name or ID,
    read on the node. `engine` evaluates selectors; without it, their verdict is unknown. Raises ValueError for objects
    of other kinds.
    """

    def __init__(
        self,
        slices: t.Iterable[Facts],
        pods: t.Iterable[Facts] | None = None,
        classes: t.Iterable[Facts] | None = None,
        machines: t.Mapping[str, Facts] | None = None,
        cpusets: t.Mapping[str, t.Mapping[str, str]] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.pools = Pools(slices)
        self.pods: dict[tuple[str, str], Facts] | None = None
        if pods is not None:
            self.pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods}
        self.classes: dict[str, Facts] | None = None
        if classes is not None:
            self.classes = {
                device_class["metadata"]["name"]: v1(device_class, "DeviceClass") for device_class in classes
            }
        self.machines: dict[str, Machine] = {}
        self.unusable: dict[str, str] = {}
        for node, facts in (machines or {}).items():
            try:
                self.machines[node] = Machine(facts, self.pools.on(node))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.unusable[node] = str(error)
        self.cpusets = cpusets or {}
        self.engine = engine
        self.holders: dict[DeviceId, str] = {}
        self.consumed: dict[DeviceId, list[Facts]] = {}  # consumedCapacity of each share
        self.taken: dict[DeviceId, str] = {}


def title(claim: Facts) -> str:
    """`NAMESPACE/NAME` of a claim."""
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"


def allocation(claim: Facts) -> Facts:
    """The allocation of a claim; empty if it is not allocated."""
    return (claim.get("status") or {}).get("allocation") or {}


def results(claim: Facts) -> list[Facts]:
    """The allocated devices of a claim."""
    return list((allocation(claim).get("devices") or {}).get("results") or ())
