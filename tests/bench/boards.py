# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure kube-scheduler's CPU time for pairs of GPU and NIC: claims with alternatives, and with matchAttribute."""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.tests.cluster import boards
from ansible_collections.lanewise.dra.tests.cluster.board_node import Node, prepare
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts
from environment import Missing  # importing tests.bench.__main__ adds tools/ to sys.path

from tests.bench.figures import Figures, scheduler_cpu_seconds

MACHINE = "hgx-h100"
PODS = 24  # in each block
BLOCKS = 6  # of each form of claim
SEED = 20261123


class _Bench:
    """Two nodes with the same devices, and a claim of another form for each.

    On the first node, the nearest NIC of a GPU is below the same PCIe root, so the compiler writes matchAttribute. On
    the second, the nearest NICs are shuffled, so the compiler writes alternatives.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        probed = facts(MACHINE)
        gpus = [gpu["address"] for gpu in probed["gpus"]]
        nics = [nic["address"] for nic in probed["nics"] if nic["nearest_gpus"]["level"] == "PIX"]
        shuffled = boards.with_map(facts(MACHINE), boards.shuffled_map(gpus, nics, SEED))
        compiled = {
            "plain": boards.compiled_board("plain", probed),
            "alternatives": boards.compiled_board("mixed", shuffled),
        }
        self.boards = {form: board for form, board in compiled.items() if board}
        assert [board.form for board in self.boards.values()] == ["matchAttribute", "alternatives"]
        prepare(plane, self.boards.values())
        self.nodes = {form: Node(plane, board, Engine(), SEED) for form, board in self.boards.items()}
        self.rng = random.Random(SEED)
        self.number = 0

    def schedule_pod(self, form: str, pairs: int) -> str:
        """Schedule one pod, and return its name. Raises RuntimeError if the pod waits."""
        self.number += 1
        name = f"bench-{self.number}"
        self.nodes[form].start(name, self.boards[form].claims[pairs])
        devices, message = self.nodes[form].outcome(name, True)
        if not devices:
            raise RuntimeError(f"{name} waits: {message}")
        return name

    def measure_block(self, form: str, pairs: int, free: int | None) -> float:
        """CPU seconds of the scheduler for a pod of `pairs` pairs. `free` pairs of the node are free (None: all)."""
        names = []
        if free is not None:
            names = [self.schedule_pod(form, 1) for _pair in self.boards[form].pairs]
            for name in self.rng.sample(names, free):
                self.nodes[form].stop(name)
                names.remove(name)
        before = scheduler_cpu_seconds(self.plane)
        for _pod in range(PODS):
            self.nodes[form].stop(self.schedule_pod(form, pairs))
        seconds = (scheduler_cpu_seconds(self.plane) - before) / PODS
        for name in names:
            self.nodes[form].stop(name)
        return seconds

    def measure_blocks(self, pairs: int, free: int | None) -> dict[str, list[float]]:
        """The results of `measure_block` by form, measured in turns."""
        seconds: dict[str, list[float]] = {"plain": [], "alternatives": []}
        for turn in range(BLOCKS + 1):
            forms = list(seconds)
            self.rng.shuffle(forms)
            for form in forms:
                block_seconds = self.measure_block(form, pairs, free)
                if turn:  # the first turn is a warm-up
                    seconds[form].append(block_seconds)
        return seconds


def board_pairs(trees: Path) -> Figures:
    try:
        plane = ControlPlane()
    except Missing as missing:
        print(f"board_pair_schedule_ratio left out: {missing}", file=sys.stderr)
        return
    with plane:
        bench = _Bench(plane)
        for name, pairs, free in (("", 1, None), ("_nearly_full", 1, 1), ("_four_pairs", 4, None)):
            seconds = bench.measure_blocks(pairs, free)
            ratios = [alternatives / plain for alternatives, plain in zip(seconds["alternatives"], seconds["plain"])]
            alternatives_ms, plain_ms = (1000 * statistics.median(seconds[form]) for form in ("alternatives", "plain"))
            board = "an empty board" if free is None else f"a board with {free} pair left"
            constraints = len(bench.boards["alternatives"].claims[pairs]["devices"]["constraints"])
            yield {
                "name": f"board_pair_schedule_ratio{name}",
                "value": round(statistics.median(ratios), 2),
                "unit": "ratio",
                "against": f"matchAttribute on pcieRoot, {plain_ms:.1f} ms (alternatives {alternatives_ms:.1f} ms)",
                "method": f"CPU time of kube-scheduler {plane.version} for a pod of {pairs} pair(s) by the compiler, "
                f"eight alternatives and {constraints} constraints, on {board} of 8 GPUs and 8 NICs ({MACHINE}), "
                f"watches and requests included; {BLOCKS} blocks of {PODS} pods each, in turns, median of the ratios "
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            }
