# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Trees with damaged files: the affinity levels that the probe still reports are those of the intact tree.

`LANEWISE_DAMAGES` sets how often each tree is damaged. The seed of a round is the name of the tree and the number
of the round, so a failure repeats.
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
#: Kinds of damage. The last four are three times as frequent.
KINDS = ("gone", "cut", "empty", "junk", "folder", "fifo", "loop", "dangling", "outside", "renamed", "not-utf-8") + (
    "flip",
    "zeroes",
    "odd",
    "another",
) * 3
#: Contents for damage of the kind `odd`.
ODD_TEXTS = (
    b"-0",
    b"0x0",
    b"00",
    b"1",
    b"2",
    b"99999",
    b"18446744073709551616",
    b"-1",
    b"",
    b"0-",
    b"ffffffff",
    b"0\0",
)
#: Files that determine the locality of a device. Each round damages some of these, and some of all files.
LOCALITY = frozenset(
    ("numa_node", "local_cpus", "local_cpulist", "cpumap", "cpulist", "online", "uevent", "class", "vendor", "vpd")
    + ("physfn", "physical_package_id", "core_siblings", "core_siblings_list", "distance")
)


def levels(topology: Topology) -> dict[tuple[str, str], str]:
    """The affinity level of each pair of devices."""
    devices = topology.affinity.devices
    rows = zip(devices, topology.affinity.levels)
    return {(device, other): level for device, row in rows for other, level in zip(devices, row)}


def wrong_levels(intact: dict[tuple[str, str], str], damaged: Topology) -> list[str]:
    """Levels that differ from those of the intact tree.

    UNKNOWN is never wrong. NODE means that nothing nearer is known, so it is right for devices of one NUMA node.
    """
    wrong = []
    for pair, level in levels(damaged).items():
        if pair not in intact or level in (intact[pair], "UNKNOWN"):
            continue
        if level == "NODE" and RANK[intact[pair]] < RANK["NODE"]:
            continue
        wrong.append(f"{pair[0]} {pair[1]}: {level} instead of {intact[pair]}")
    return wrong


def _choose(rng: random.Random, entries: list[str], locality: list[str]) -> tuple[str, str]:
    """An entry, and another of the same kind: another link of the same folder, or a file of the same name elsewhere."""
    entry = rng.choice(locality if locality and rng.random() < 0.7 else entries)
    folder, name = os.path.split(entry)
    similar = [path for path in locality if os.path.dirname(path) == folder] if folder.startswith("sys/bus") else []
    similar = similar or [path for path in locality if os.path.basename(path) == name]
    return entry, rng.choice(similar or [entry])


@pytest.mark.parametrize("name", [name for name in trees.ALL if name != "live"])
def test_damaged_trees_give_no_wrong_level(name: str, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    shutil.copytree(trees.root_of(name), root, symlinks=True)
    intact = probe(str(root), diagnose=diagnose)
    intact_levels, intact_facts = levels(intact), as_dict(intact)
    entries = entries_below(root)
    locality = [
        path for path in entries if os.path.basename(path) in LOCALITY or path.startswith("sys/bus/pci/devices/")
    ]
    for number in range(ROUNDS):
        rng = random.Random(f"{name} {number}")
        changes: list[tuple[t.Any, ...]] = []
        with Damage(root) as damage:
            for _change in range(rng.randint(1, 4)):
                kind, (entry, other) = rng.choice(KINDS), _choose(rng, entries, locality)
                junk = rng.choice(ODD_TEXTS) if kind == "odd" else rng.randbytes(rng.randint(0, 80))
                changes.append((kind, entry, junk, other))
                damage.apply(*changes[-1])
            damaged = probe(str(root), diagnose=diagnose)
        json.dumps(as_dict(damaged), allow_nan=False)  # fails for NaN and infinity, which JSON lacks
        assert wrong_levels(intact_levels, damaged) == [], (number, changes)
    assert as_dict(probe(str(root), diagnose=diagnose)) == intact_facts, "the damage was not undone"


def test_a_wrong_level_is_found() -> None:
    intact = probe(str(trees.root_of("machine:hgx-h100")), diagnose=diagnose)
    intact_levels = levels(intact)
    row = intact.affinity.levels[0]
    row[row.index("SYS")] = "PIX"
    assert len(wrong_levels(intact_levels, intact)) == 1
