# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Machines with damaged files: the localities of devices that the probe still reports are those of the intact tree.

`LANEWISE_DAMAGES` sets how often each machine is damaged. The seed of a round is its number, so a failure repeats.
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
#: Files that determine the locality of a device. Each round damages some of these, and some of all files.
LOCALITY = frozenset(
    ("numa_node", "local_cpus", "local_cpulist", "cpumap", "cpulist", "online", "uevent", "class", "vendor", "vpd")
    + ("physfn", "physical_package_id", "core_siblings", "core_siblings_list", "distance")
)


def levels(topology: Topology) -> dict[tuple[str, str], str]:
    devices = topology.affinity.devices
    return {
        (one, other): near for one, row in zip(devices, topology.affinity.levels) for other, near in zip(devices, row)
    }


def wrong_levels(intact: dict[tuple[str, str], str], broken: Topology) -> list[str]:
    """Levels that the intact tree contradicts.

    UNKNOWN is never wrong. NODE means that nothing nearer is known, so it is right for devices of one NUMA node.
    """
    wrong = []
    for pair, near in levels(broken).items():
        true = intact.get(pair, "SELF")
        weaker = near == "NODE" and RANK[true] < RANK["NODE"]
        if near not in (true, "UNKNOWN") and not weaker and pair in intact:
            wrong.append(f"{pair[0]} {pair[1]}: {near} instead of {true}")
    return wrong


def _choose(dice: random.Random, entries: list[str], locality: list[str]) -> tuple[str, str]:
    """An entry, and another of the same kind: another link of the same folder, or a file of the same name elsewhere."""
    entry = dice.choice(locality if locality and dice.random() < 0.7 else entries)
    folder, name = os.path.split(entry)
    beside = [one for one in locality if os.path.dirname(one) == folder] if folder.startswith("sys/bus") else []
    beside = beside or [one for one in locality if os.path.basename(one) == name]
    return entry, dice.choice(beside or [entry])


@pytest.mark.parametrize("name", [name for name in trees.ALL if name != "live"])
def test_damaged_trees_give_no_wrong_level(name: str, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    shutil.copytree(trees.root_of(name), root, symlinks=True)
    intact = probe(str(root), diagnose=diagnose)
    before, state = levels(intact), as_dict(intact)
    entries = entries_below(root)
    locality = [one for one in entries if os.path.basename(one) in LOCALITY or one.startswith("sys/bus/pci/devices/")]
    for number in range(ROUNDS):
        dice = random.Random(f"{name} {number}")
        changes: list[tuple[t.Any, ...]] = []
        with Damage(root) as damage:
            for _change in range(dice.randint(1, 4)):
                kind, (entry, other) = dice.choice(KINDS), _choose(dice, entries, locality)
                junk = dice.choice(ODD) if kind == "odd" else dice.randbytes(dice.randint(0, 80))
                changes.append((kind, entry, junk, other))
                damage.apply(*changes[-1])
            broken = probe(str(root), diagnose=diagnose)
        json.dumps(as_dict(broken), allow_nan=False)
        assert wrong_levels(before, broken) == [], (number, changes)
    assert as_dict(probe(str(root), diagnose=diagnose)) == state, "the damage is undone"


def test_a_wrong_level_is_found() -> None:
    intact = probe(str(trees.root_of("machine:hgx-h100")), diagnose=diagnose)
    before = levels(intact)
    row = intact.affinity.levels[0]
    row[row.index("SYS")] = "PIX"
    assert len(wrong_levels(before, intact)) == 1
