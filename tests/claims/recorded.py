# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real nodes in tests/claims/slices: the slices that their drivers published, and facts of machines that are
described after these nodes."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.machines.builder import build

SLICES = Path(__file__).resolve().parent / "slices"
NODES = tuple(sorted(path.stem for path in SLICES.glob("*.yml")))  # nodes with a machine description
#: Overrides of locality for AKS GB300, from the example's templates: that machine does not report which NIC belongs to
#: which GPU.
OVERRIDES = [
    {"address": address, "switch": f"gpu {number}"}
    for number, pair in enumerate(
        (
            ("0008:06:00.0", "0101:00:00.0"),
            ("0009:06:00.0", "0102:00:00.0"),
            ("0018:06:00.0", "0103:00:00.0"),
            ("0019:06:00.0", "0104:00:00.0"),
        )
    )
    for address in pair
]


def offers_of(name: str) -> list[Offer]:
    """The devices of a real node, in the order in which they were published."""
    found = []
    for entry in json.loads((SLICES / f"{name}.json").read_text()):
        for device in entry["spec"]["devices"]:
            values = device["attributes"]
            address = (values.get("resource.kubernetes.io/pciBusID") or values["dra.net/pciAddress"])["string"]
            found.append(Offer(entry["spec"]["driver"], name, name, device, address=address))
    return found


def facts_of(name: str, folder: Path, overrides: t.Sequence[t.Mapping[str, object]] = ()) -> Object:
    """The facts that a probe of the machine returns, with these overrides of locality."""
    return as_dict(probe(str(build(SLICES / f"{name}.yml", folder / name)), overrides))
