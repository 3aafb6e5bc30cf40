# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Recorded machines with damaged files: places of devices that the probe still reports are those of the whole tree.

`LANEWISE_DAMAGES` is how often each machine is damaged. The seed of a round is its number, so a failure repeats.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import RANK
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology, as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.oracle import trees
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.damage import Damage, entries_below

ROUNDS = int(os.environ.get("LANEWISE_DAMAGES", "4"))
KINDS = ("gone", "cut", "empty", "junk", "folder", "fifo", "loop", "dangling", "outside", "renamed", "not-utf-8") + (
    "flip",
    "zeroes",
    "odd",
    "another",
) * 3
ODD = (b"-0", b"0x0", b"00", b"1", b"2", b"99999", b"18446744073709551616", b"-1", b"", b"0-", b"ffffffff", b"0\0")
#: What says where a device is: each round damages some of these, and some of all files.
TELLING = frozenset(
    ("numa_node", "local_cpus", "local_cpulist", "cpumap", "cpulist", "online", "uevent", "class", "vendor", "vpd")
    + ("physfn", "physical_package_id", "core_siblings", "core_siblings_list", "distance")
)


def levels(topology: Topology) -> dict[tuple[str, str], str]:
    devices = topology.affinity.devices
    return {
        (one, other): near for one, row in zip(devices, topology.affinity.levels) for other, near in zip(devices, row)
    }


def wrong_levels(whole: dict[tuple[str, str], str], broken: Topology) -> list[str]:
    """Levels that the whole tree contradicts.

    Unknown is right. NODE says that nothing nearer is known, so it is right of what is on one NUMA node.
    """
    wrong = []
    for pair, near in levels(broken).items():
        true = whole.get(pair, "SELF")
        weaker = near == "NODE" and RANK[true] < RANK["NODE"]
        if near not in (true, "UNKNOWN") and not weaker and pair in whole:
            wrong.append(f"{pair[0]} {pair[1]}: {near} instead of {true}")
    return wrong


def _chosen(dice: random.Random, entries: list[str], telling: list[str]) -> tuple[str, str]:
    """An entry, and another of its kind: a link beside a link, a file of the same name elsewhere."""
    entry = dice.choice(telling if telling and dice.random() < 0.7 else entries)
    folder, name = os.path.split(entry)
    beside = [one for one in telling if os.path.dirname(one) == folder] if folder.startswith("sys/bus") else []
    beside = beside or [one for one in telling if os.path.basename(one) == name]
    return entry, dice.choice(beside or [entry])


@pytest.mark.parametrize("name", [name for name in trees.ALL if name != "live"])
def test_damaged_trees_say_nothing_wrong(name: str, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    shutil.copytree(trees.root_of(name), root, symlinks=True)
    whole = probe(str(root), diagnose=diagnose)
    before, state = levels(whole), as_dict(whole)
    entries = entries_below(root)
    telling = [one for one in entries if os.path.basename(one) in TELLING or one.startswith("sys/bus/pci/devices/")]
    for number in range(ROUNDS):
        dice = random.Random(f"{name} {number}")
        changes: list[tuple[t.Any, ...]] = []
        with Damage(root) as damage:
            for _change in range(dice.randint(1, 4)):
                kind, (entry, other) = dice.choice(KINDS), _chosen(dice, entries, telling)
                junk = dice.choice(ODD) if kind == "odd" else dice.randbytes(dice.randint(0, 80))
                changes.append((kind, entry, junk, other))
                damage.apply(*changes[-1])
            broken = probe(str(root), diagnose=diagnose)
        json.dumps(as_dict(broken), allow_nan=False)
        assert wrong_levels(before, broken) == [], (number, changes)
    assert as_dict(probe(str(root), diagnose=diagnose)) == state, "the damage is undone"


def test_a_wrong_level_is_found() -> None:
    whole = probe(str(trees.root_of("machine:hgx-h100")), diagnose=diagnose)
    before = levels(whole)
    row = whole.affinity.levels[0]
    row[row.index("SYS")] = "PIX"
    assert len(wrong_levels(before, whole)) == 1
