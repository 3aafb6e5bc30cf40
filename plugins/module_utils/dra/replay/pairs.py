# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Whether the GPUs and NICs of a job are aligned: each GPU has a NIC of its own on the GPU's PCIe root."""

from __future__ import annotations

import typing as t
from collections import Counter

from ..kube.objects import ObjectView
from ..vendors.drivers import DRIVERS, knowledge
from ..vendors.knowledge import DriverKnowledge

GPU, NIC = "gpu", "nic"
_NICS = frozenset(("nic", "rdma", "vf"))


def kinds(drivers: t.Mapping[str, ObjectView | None] | None = None) -> dict[str, str]:
    """The kind of each driver's devices, GPU or NIC; drivers of other devices are left out.

    `drivers` are those of the site, as in `dra_claims_drivers`. Built-in drivers are always included. Raises Problems.
    """
    known = {**DRIVERS, **{name: knowledge(name, options) for name, options in (drivers or {}).items()}}
    kinds_of = {name: _kind(driver) for name, driver in known.items()}
    return {name: kind for name, kind in kinds_of.items() if kind}


def _kind(driver: DriverKnowledge) -> str:
    """GPU or NIC; empty for a driver of other devices."""
    if GPU in driver.kinds:
        return GPU
    return NIC if _NICS & set(driver.kinds) else ""


def aligned(
    results: t.Iterable[ObjectView],
    roots: t.Mapping[tuple[str, str, str], str | None],
    kinds_of: t.Mapping[str, str],
) -> bool | None:
    """Whether each GPU of an allocation has a NIC of its own on its PCIe root; None without a GPU or without a NIC.

    `roots` has the PCIe root of each device by driver, pool and name. A GPU with an unknown root is not aligned.
    """
    by_kind: dict[str, list[str | None]] = {GPU: [], NIC: []}
    for result in results:
        kind = kinds_of.get(str(result["driver"]))
        if kind:
            by_kind[kind].append(roots.get((str(result["driver"]), str(result["pool"]), str(result["device"]))))
    if not by_kind[GPU] or not by_kind[NIC]:
        return None
    return None not in by_kind[GPU] and not Counter(by_kind[GPU]) - Counter(by_kind[NIC])
