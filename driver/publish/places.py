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
    """A GPU or another accelerator. `rail`, `pcie_root` and `numa_node` are None if the node does not report them."""

    rail: int | None
    pcie_root: str | None
    numa_node: int | None
    pf: str | None  # the PCI address of a VF's PF


@dataclass(frozen=True)
class Places:
    """`gpus` by PCI address. `nccl` is the topology file for NCCL, empty if there is none for the reason
    `no_nccl_reason`."""

    gpus: t.Mapping[str, GpuPlace] = field(default_factory=dict)
    board: Board = field(default_factory=Board)
    nccl: str = ""
    no_nccl_reason: str = "the setting pod_environment does not ask for it"

    def level(self, gpu: str, nic: str) -> str:
        """How near a GPU and a NIC are, by their PCI addresses (for a VF, that of its PF); UNKNOWN if not known."""
        place = self.gpus.get(gpu)
        return self.board.level(place.pf or gpu, nic) if place else "UNKNOWN"


def places(facts: NodeFacts, nccl: bool) -> Places:
    """From topology facts (`model.as_dict`). `nccl`: also create NCCL's file."""
    gpus = {gpu["address"]: _place(gpu, facts["functions"][gpu["address"]]) for gpu in facts["gpus"]}
    if not nccl:
        return Places(gpus, board_map(facts))
    others = {facts["functions"][address]["vendor_id"] for address in gpus} - {_NVIDIA}
    text, reason = "", ""
    if not gpus or others:
        reason = "the file is for NCCL, and the node's GPUs are not all NVIDIA's"
    else:
        try:
            text = nccl_file(facts)
        except ValueError as error:
            reason = str(error)
    return Places(gpus, board_map(facts), text, reason)


def _place(gpu: GpuFacts, function: FunctionFacts) -> GpuPlace:
    standard = function["kubernetes"]
    return GpuPlace(gpu["rail"], standard.get("pcieRoot"), gpu["numa_node"], function["physfn"])
