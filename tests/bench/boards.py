# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure the CPU time of kube-scheduler for pairs by alternatives, against pairs by matchAttribute."""

from __future__ import annotations

import random
import statistics
import sys
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.tests.cluster import boards
from ansible_collections.lanewise.dra.tests.cluster.board_node import Node, prepare
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts
from environment import Missing  # importing tests.bench.__main__ adds tools/ to sys.path

MACHINE = "hgx-h100"
PODS = 24  # in each block
BLOCKS = 6  # of each form and state
SEED = 20261123

Figures = t.Iterator[dict[str, t.Any]]


class _Bench:
    """Two nodes with the same devices. The map of one follows its PCIe roots, so the compiler writes matchAttribute for
    it. The map of the other is shuffled, so the compiler writes alternatives."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        probed = facts(MACHINE)
        gpus = [gpu["address"] for gpu in probed["gpus"]]
        fabric = [nic["address"] for nic in probed["nics"] if nic["nearest_gpus"]["level"] == "PIX"]
        mixed = boards.with_map(facts(MACHINE), boards.shuffled_map(gpus, fabric, SEED))
        found = {"plain": boards.compiled_board("plain", probed), "alternatives": boards.compiled_board("mixed", mixed)}
        self.boards = {form: board for form, board in found.items() if board}
        assert [board.form for board in self.boards.values()] == ["matchAttribute", "alternatives"]
        prepare(plane, self.boards.values())
        self.nodes = {form: Node(plane, board, Engine(), SEED) for form, board in self.boards.items()}
        self.chance = random.Random(SEED)
        self.number = 0

    def seconds(self) -> float:
        """The CPU time of the scheduler so far."""
        pid = self.plane.pids["kube-scheduler"]
        tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def pod(self, form: str, pairs: int) -> str:
        """Schedule one pod, and return its name. Raises RuntimeError if the pod waits."""
        self.number += 1
        name = f"bench-{self.number}"
        self.nodes[form].start(name, self.boards[form].claims[pairs])
        got, words = self.nodes[form].outcome(name, True)
        if not got:
            raise RuntimeError(f"{name} waits: {words}")
        return name

    def block(self, form: str, pairs: int, left: int | None) -> float:
        """CPU seconds of the scheduler for a pod with this many pairs, on a board with this many pairs left, or all."""
        names = []
        if left is not None:
            names = [self.pod(form, 1) for _pair in self.boards[form].pairs]
            for name in self.chance.sample(names, left):
                self.nodes[form].stop(name)
                names.remove(name)
        before = self.seconds()
        for _turn in range(PODS):
            self.nodes[form].stop(self.pod(form, pairs))
        took = (self.seconds() - before) / PODS
        for name in names:
            self.nodes[form].stop(name)
        return took

    def state(self, pairs: int, left: int | None) -> dict[str, list[float]]:
        """Blocks of both forms in turns, on an empty board or on one with this many pairs left."""
        found: dict[str, list[float]] = {"plain": [], "alternatives": []}
        for turn in range(BLOCKS + 1):
            forms = list(found)
            self.chance.shuffle(forms)
            for form in forms:
                seconds = self.block(form, pairs, left)
                if turn:  # the first block warms up
                    found[form].append(seconds)
        return found


def board_pairs(trees: Path) -> Figures:
    try:
        plane = ControlPlane()
    except Missing as missing:
        print(f"board_pair_schedule_ratio left out: {missing}", file=sys.stderr)
        return
    with plane:
        bench = _Bench(plane)
        for name, pairs, left in (("", 1, None), ("_nearly_full", 1, 1), ("_four_pairs", 4, None)):
            found = bench.state(pairs, left)
            ratios = [ours / plain for ours, plain in zip(found["alternatives"], found["plain"])]
            ours, plain = (1000 * statistics.median(found[form]) for form in ("alternatives", "plain"))
            where = "an empty board" if left is None else f"a board with {left} pair left"
            constraints = len(bench.boards["alternatives"].claims[pairs]["devices"]["constraints"])
            yield {
                "name": f"board_pair_schedule_ratio{name}",
                "value": round(statistics.median(ratios), 2),
                "unit": "ratio",
                "against": f"matchAttribute on pcieRoot, {plain:.1f} ms (alternatives {ours:.1f} ms)",
                "method": f"CPU time of kube-scheduler {plane.version} for a pod of {pairs} pair(s) by the compiler, "
                f"eight alternatives and {constraints} constraints, on {where} of 8 GPUs and 8 NICs ({MACHINE}), "
                f"watches and requests included; {BLOCKS} blocks of {PODS} pods each, in turns, median of the ratios "
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            }
