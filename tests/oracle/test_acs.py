# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the ACS settings for a board with data-direct functions with those of rdma-core's rdma_topo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.pcie import AcsForGpudirect
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.oracle import test_rdma_topo

pytestmark = test_rdma_topo.pytestmark


def _commands(root: Path) -> list[str]:
    """The setpci commands for the ACS settings that rdma_topo would change."""
    done = subprocess.run(
        [sys.executable, str(test_rdma_topo.PROGRAM), "setpci-acs", "--dry-run"],
        env={**os.environ, "RDMA_TOPO_DEVDIR": f"{root}/sys/bus/pci/devices"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_rdma_topo_names_the_same_functions_and_none_after_converging(tmp_path: Path) -> None:
    root = build("gb300", tmp_path / "machine")
    system = System(str(root))
    resource = AcsForGpudirect(system)
    node = Node(system, general={"acs": "gpudirect"})
    wanted = resource.wanted(node)["node"]
    wrong = {"acs": {"node": {setting: ["SV"] for setting in wanted}}}
    assert converge(node, [resource], wanted=wrong).changes
    commands = _commands(root)
    assert sorted(line.split()[3] for line in commands) == sorted(setting.rpartition(" ")[2] for setting in wanted)
    assert len(converge(node, [resource]).changes) == len(commands)
    assert _commands(root) == []
