# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real schedulers on every board: each allocated pair is aligned, and a claim waits only if too few pairs are free.

Claims for one to four pairs are created and deleted at random, beside claims for single GPUs and NICs. The test checks
alignment with the board's map. It tries all combinations of free devices to decide whether a claim should fit. The
offline allocator must choose the same devices as the scheduler.
LANEWISE_BOARD_CLAIMS is the number of claims for pairs on each version: 100 by default, 1,000 with LANEWISE_SLOW=1.
"""

from __future__ import annotations

import collections
import os
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.tests.cluster import boards
from ansible_collections.lanewise.dra.tests.cluster.board_node import NAMESPACE, Counts, Node, prepare, unaligned
from ansible_collections.lanewise.dra.tests.cluster.boards import Board, aligned, has_pairs
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.engine import require_engine

CLAIMS = int(os.environ.get("LANEWISE_BOARD_CLAIMS") or (1000 if os.environ.get("LANEWISE_SLOW") else 100))
SEED = 20261123


@pytest.fixture(scope="module")
def engine() -> t.Any:
    return require_engine()


@pytest.fixture(scope="module")
def every_board(engine: t.Any, tmp_path_factory: pytest.TempPathFactory) -> list[Board]:
    vfs = boards.vf_board(tmp_path_factory.mktemp("machines") / "vfs")
    return [*boards.real_boards(), *boards.machine_boards(), vfs]


@pytest.fixture
def prepared(control_plane: ControlPlane, every_board: list[Board]) -> ControlPlane:
    prepare(control_plane, every_board)
    return control_plane


def test_pairs_are_allocated_correctly_on_every_board(
    prepared: ControlPlane, every_board: list[Board], engine: t.Any
) -> None:
    share = -(-CLAIMS // len(every_board))
    began = time.monotonic()

    def run(board: Board) -> Counts:
        return Node(prepared, board, engine, SEED).run_claims(share)

    with ThreadPoolExecutor(6) as pool:
        counts = dict(zip([board.name for board in every_board], pool.map(run, every_board)))
    for name, count in counts.items():
        print(f"{name}: {count.pairs} claims, {count.bound} bound, {count.waiting} waiting, {count.singles} singles")
    total = Counts()
    for count in counts.values():
        total.pairs += count.pairs
        total.bound += count.bound
        total.waiting += count.waiting
        total.singles += count.singles
        total.late += count.late
        total.slowest = max(total.slowest, count.slowest)
        total.sizes.update(count.sizes)
        total.faults += count.faults
    print(f"Kubernetes {prepared.version}: {total} in {time.monotonic() - began:.0f} s")
    assert not total.faults, "\n".join(total.faults)
    assert total.pairs >= CLAIMS and total.bound > CLAIMS / 5 and total.waiting > CLAIMS / 20
    assert set(total.sizes) == set(range(1, boards.MAX_PAIRS + 1))


@pytest.mark.parametrize(
    ("gpus", "nics", "near"),
    [
        (8, 8, lambda gpu: [(3 * gpu + 1) % 8]),
        (8, 8, lambda gpu: [gpu, (gpu + 1) % 8]),
        (8, 8, lambda gpu: range(4 * (gpu // 4), 4 * (gpu // 4) + 4)),
        (8, 16, lambda gpu: range(8 * (gpu // 4), 8 * (gpu // 4) + 8)),
        (8, 8, lambda gpu: range(8)),
    ],
    ids=["one NIC each", "ring", "halves", "halves of 16 NICs", "all NICs"],
)
def test_an_unsuccessful_search_stays_below_the_time_limit(
    gpus: int, nics: int, near: t.Callable[[int], t.Iterable[int]], newest: ControlPlane, engine: t.Any
) -> None:
    """A claim for four pairs when three are left. The scheduler tries every combination, with a time limit of ten
    seconds per node.

    These claims have the maximum of eight alternatives per request and 32 constraints. The compiler writes fewer, and
    refuses claims that exceed its limit of search time.
    """
    board = boards.synthetic_board(f"full-{gpus}-{nics}-{len(set(near(0)))}", gpus, nics, near)
    if newest.request("GET", f"/api/v1/namespaces/{NAMESPACE}")[0] == 404:
        prepare(newest, [board])
    node = Node(newest, board, engine, SEED)
    all_gpus, all_nics = sorted(node.free()[0]), sorted(node.free()[1])
    for held in (all_nics[:-3], all_gpus[:-3]):
        spec = boards.claim_for(board, held)
        node.start("held", spec)
        got, message = node.outcome("held", True)
        assert len(got) == len(held), message
        node.live["held"] = [Result(0, request, offer) for request, offer in got]
        free = node.free()
        assert not has_pairs(board.pairs, *free, 4)
        node.start("waiting", board.claims[4])
        got, message = node.outcome("waiting", False)
        assert not got and "cannot allocate all claims" in message and "timed out" not in message
        for name in ("waiting", "held"):
            node.stop(name)
    print(f"{board.name}: decided in {node.counts.slowest:.2f} s")
    assert node.counts.slowest < 10


def test_the_boards_cover_all_forms_of_claims_and_mixed_maps(every_board: list[Board]) -> None:
    """The boards are real nodes and example machines. A scheduler would not satisfy the mixed maps by chance."""
    forms = collections.Counter(board.form for board in every_board)
    assert set(forms) == {"matchAttribute", "nearestGPUs", "address", "alternatives"}
    assert {"eks-p4d", "aks-gb300-ours", "oke-gb200"} < {board.name for board in every_board}
    assert len(every_board) >= 18
    for board in every_board:
        addresses = {device.address for device in board.devices.values()}
        assert set(board.pairs) <= addresses and set().union(*board.pairs.values()) <= addresses
        if "mixed" in board.name:
            assert not all(aligned(board.pairs, gpu, nic) for gpu, nic in zip(sorted(board.pairs), sorted(addresses)))


@pytest.mark.parametrize(
    ("got", "count", "expected"),
    [
        ({"gpu": "a", "nic": "x"}, 1, []),
        ({"gpu-0/g0": "a", "nic-0/n0": "x", "gpu-1/g1": "b", "nic-1/n1": "y"}, 2, []),
        ({"gpu-0/g0": "a", "nic-0/n1": "y"}, 1, ["not aligned: {'gpu': 'a', 'nic': 'y'}"]),
        ({"gpu-0/g0": "a", "nic-0/n0": "x"}, 2, ["1 pairs instead of 2", "a device is missing or used twice"]),
        ({"gpu": "a"}, 1, ["a device is missing or used twice", "not aligned: {'gpu': 'a'}"]),
    ],
)
def test_unaligned_reports_unaligned_and_missing_pairs(got: dict[str, str], count: int, expected: list[str]) -> None:
    pairs = {"a": frozenset("x"), "b": frozenset("y")}
    devices = [(request, Offer("d", "p", "n", {"name": entry}, address=entry)) for request, entry in got.items()]
    assert unaligned(pairs, devices, count) == expected


@pytest.mark.parametrize(
    ("gpus", "nics", "count", "expected"),
    [
        ("a", "x", 1, True),
        ("b", "x", 1, False),
        ("ab", "xy", 2, True),
        ("ac", "xz", 2, False),
        ("abc", "xyz", 3, False),
    ],
)
def test_has_pairs_counts_disjoint_pairs(gpus: str, nics: str, count: int, expected: bool) -> None:
    pairs = {"a": frozenset("x"), "b": frozenset("y"), "c": frozenset("xy")}
    assert has_pairs(pairs, set(gpus), set(nics), count) is expected
