# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The map of a board: which NICs are near which GPUs, and a short name for the map.

Claims that align a GPU and a NIC without a common attribute are written for one map. The driver publishes the map's
name (the shape), and the collection selects devices by that name. Both compute the name here, from the same facts. The
map depends only on where devices are, not on who uses them.
"""

from __future__ import annotations

import hashlib
import json
import typing as t
from dataclasses import dataclass, field

from .affinity import RANK
from .pci import sort_key

if t.TYPE_CHECKING:
    from .facts import FunctionFacts, GpuFacts, NicFacts, NodeFacts

__all__ = ["Board", "board_map", "nearest"]

#: All levels but UNKNOWN, the nearest first.
_KNOWN = tuple(sorted((level for level in RANK if level != "UNKNOWN"), key=RANK.__getitem__))

#: The addresses of a GPU and of a NIC.
Pair = tuple[str, str]


@dataclass(frozen=True)
class Board:
    """The GPUs and NICs of a node, and how near they are to each other.

    `gpus` are the PCI addresses of GPUs and other accelerators, without their VFs, `nics` those of NICs that are not
    VFs, both in ascending order. `levels` contains one of SELF, PIX, PXB, PHB, NODE and SYS (see `affinity`) for each
    GPU and NIC; pairs of unknown distance have no entry. `shape` is sixteen hex digits of a SHA-256 over all of that.
    It is empty if the facts have no affinity, because only a subset was gathered, or because the node has more devices
    than :data:`affinity.MATRIX_LIMIT`.
    """

    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    levels: t.Mapping[Pair, str] = field(default_factory=dict)
    shape: str = ""

    def level(self, gpu: str, nic: str) -> str:
        """The level between a GPU and a NIC; `UNKNOWN` if the map does not contain the pair."""
        return self.levels.get((gpu, nic), "UNKNOWN")

    def nearest_gpus(self, nic: str) -> tuple[str, tuple[str, ...]]:
        """The best level of a NIC to any GPU, and all GPUs at that level, ascending; `UNKNOWN` and none if unknown."""
        return nearest({gpu: self.level(gpu, nic) for gpu in self.gpus})

    def nearest_nics(self, gpu: str) -> tuple[str, tuple[str, ...]]:
        """The best level of a GPU to any NIC, and all NICs at that level, ascending; `UNKNOWN` and none if unknown."""
        return nearest({nic: self.level(gpu, nic) for nic in self.nics})


def nearest(levels: t.Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The nearest level of a mapping, and the keys that have it, in their order; no keys if all levels are
    `UNKNOWN`."""
    best = min(levels.values(), key=RANK.__getitem__, default="UNKNOWN")
    return best, () if best == "UNKNOWN" else tuple(key for key, level in levels.items() if level == best)


def board_map(facts: NodeFacts) -> Board:
    """The map of a node, from its topology facts (see :func:`model.as_dict`).

    Site overrides of locality and data-direct functions are part of the facts' levels, so they are part of the map.
    """
    functions: t.Mapping[str, FunctionFacts] = facts.get("functions") or {}
    gpus = _physical(facts["gpus"], functions)
    nics = _physical(facts["nics"], functions)
    affinity = facts.get("affinity") or {}
    position = {address: index for index, address in enumerate(affinity.get("devices") or ())}
    rows: t.Sequence[t.Sequence[str]] = affinity.get("levels") or ()
    if len(rows) < len(position) or not all(address in position for address in (*gpus, *nics)):
        return Board(gpus, nics)
    levels = {(gpu, nic): rows[position[gpu]][position[nic]] for gpu in gpus for nic in nics}
    known = {pair: level for pair, level in levels.items() if level in _KNOWN}
    return Board(gpus, nics, known, _shape(gpus, nics, known))


def _physical(devices: t.Iterable[GpuFacts | NicFacts], functions: t.Mapping[str, FunctionFacts]) -> tuple[str, ...]:
    """The addresses of devices that are not VFs, in ascending order."""
    addresses = []
    for device in devices:
        address = device["address"]
        if not (device.get("physfn") or (functions.get(address) or {}).get("physfn")):
            addresses.append(address)
    return tuple(sorted(addresses, key=sort_key))


def _shape(gpus: t.Sequence[str], nics: t.Sequence[str], levels: t.Mapping[Pair, str]) -> str:
    """A short name of a map. Slices and stored claims contain it, so every release must compute the same name."""
    table = [[levels.get((gpu, nic), "UNKNOWN") for nic in nics] for gpu in gpus]
    text = json.dumps([list(gpus), list(nics), table], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
