# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The locations of this node's GPUs, and their distances to its NICs, according to the last probe."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..topology.boards import Board, board_map
from ..topology.nccl_file import nccl_file

if t.TYPE_CHECKING:
    from ..topology.facts import FunctionFacts, GpuFacts, NodeFacts

_NVIDIA = "10de"


@dataclass(frozen=True)
class GpuPlace:
    """Where a GPU or another accelerator is. `rail`, `pcie_root` and `numa_node` are None if the node does not report
    them."""

    rail: int | None
    pcie_root: str | None
    numa_node: int | None
    pf: str | None  # the PCI address of a VF's PF


@dataclass(frozen=True)
class Places:
    """`gpus` are keyed by PCI address. `nccl` is the content of the topology file for NCCL. If it is empty,
    `no_nccl_reason` says why there is no file."""

    gpus: t.Mapping[str, GpuPlace] = field(default_factory=dict)
    board: Board = field(default_factory=Board)
    nccl: str = ""
    no_nccl_reason: str = "the setting pod_environment does not contain nccl_topology"

    def level(self, gpu: str, nic: str) -> str:
        """The topology level between a GPU and a NIC, by their PCI addresses. `nic` is the address of the PF for a VF.
        UNKNOWN if the GPU or the level is not known."""
        place = self.gpus.get(gpu)
        return self.board.level(place.pf or gpu, nic) if place else "UNKNOWN"


def places(facts: NodeFacts, nccl: bool) -> Places:
    """The locations, from topology facts (`model.as_dict`). With `nccl`, also create the topology file for NCCL."""
    gpus = {gpu["address"]: _place(gpu, facts["functions"][gpu["address"]]) for gpu in facts["gpus"]}
    if not nccl:
        return Places(gpus, board_map(facts))
    other_vendors = {facts["functions"][address]["vendor_id"] for address in gpus} - {_NVIDIA}
    text, reason = "", ""
    if not gpus or other_vendors:
        reason = "the file is for NCCL, and the node's GPUs are not all NVIDIA's"
    else:
        try:
            text = nccl_file(facts)
        except ValueError as error:
            reason = str(error)
    return Places(gpus, board_map(facts), text, reason)


def _place(gpu: GpuFacts, function: FunctionFacts) -> GpuPlace:
    attributes = function["kubernetes"]
    return GpuPlace(gpu["rail"], attributes.get("pcieRoot"), gpu["numa_node"], function["physfn"])
