# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Copies of the functions with which release 1.0.0 read the files that a run stores on a node. Do not change them.

They differ from the originals in their arguments, which are the texts of the files, and in names where several
functions were called `load`.

The JSON files in this folder are those that 1.0.0 wrote on the node of tests/host/emulated_node.py with the settings of
test_releases.py.
"""

from __future__ import annotations

import json
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE, Change, State
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector

if t.TYPE_CHECKING:
    from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node


def origin_load(text: str) -> dict[str, State]:
    return t.cast("dict[str, State]", json.loads(text or "{}"))


def origin_remember(text: str, changes: t.Sequence[Change]) -> str:
    known = origin_load(text)
    for change in changes:
        known.setdefault(change.resource, {}).setdefault(change.device, {}).setdefault(change.setting, change.before)
    return json.dumps(known, indent=2, sort_keys=True) + "\n"


def origin_wanted(text: str, node: Node) -> dict[str, State]:
    found: dict[str, State] = {}
    for resource, state in origin_load(text).items():
        for device, settings in state.items():
            if device == NODE or device.partition(" ")[0] in node.devices:
                found.setdefault(resource, {})[device] = settings
    return found


def boot_load(text: str) -> tuple[list[Rule], dict[str, t.Any], bool]:
    desired = json.loads(text or "{}")
    nics, general = rules(desired.get("nics", ())), desired.get("node", {})
    return nics, general, bool(desired.get("network"))


def rules(nics: t.Iterable[t.Mapping[str, t.Any]]) -> list[Rule]:
    return [
        Rule(
            nic["name"],
            selector(nic["select"]),
            nic["settings"],
            nic.get("count"),
            nic.get("at_least"),
            tuple(nic.get("fast", ())),
        )
        for nic in nics
    ]


def undo_load(text: str) -> tuple[float, list[Change]]:
    return float(json.loads(text)["until"]), [Change(**change) for change in json.loads(text)["changes"]]
