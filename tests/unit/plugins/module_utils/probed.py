# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The topology facts of the example machines. Each machine is built and probed once per process."""

from __future__ import annotations

import copy
import functools
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import keep_relevant, probe
from ansible_collections.lanewise.dra.tests.machines.builder import build


@functools.lru_cache(None)
def _facts(name: str, relevant: bool = False) -> dict[str, t.Any]:
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine"
        build(name, machine)
        topology = probe(str(machine), diagnose=diagnose)
        if relevant:
            keep_relevant(topology)
        return t.cast("dict[str, t.Any]", as_dict(topology))


def facts(name: str) -> dict[str, t.Any]:
    """A copy of what topology_info returns for a machine of tests/machines with `pci_functions: all`."""
    return copy.deepcopy(_facts(name))


def relevant_facts(name: str) -> dict[str, t.Any]:
    """A copy of what topology_info returns for the machine with `pci_functions: relevant`, its default."""
    return copy.deepcopy(_facts(name, relevant=True))
