# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs PyTorch's NCCL on this machine: one rank on the first GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import Missing  # tools/cluster.py has put its folder on the path

#: The argument is a file for PyTorch's own store, which must not exist.
_ALL_REDUCE = """
import sys, torch, torch.distributed
torch.distributed.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
ones = torch.ones(1 << 20, device="cuda")
torch.distributed.all_reduce(ones)
torch.distributed.destroy_process_group()
"""


class Failed(Exception):
    """NCCL did not start. The message is its log."""


def topology(file: Path | None = None) -> str:
    """The topology that NCCL uses, as XML: the detected one, or the one that it reads from `file` (NCCL_TOPO_FILE).

    Raises Missing if PyTorch is missing, and Failed.
    """
    if importlib.util.find_spec("torch") is None:
        raise Missing("PyTorch, whose NCCL is used, is not installed")
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder, "dump.xml")
        variables = {**os.environ, "NCCL_DEBUG": "INFO", "NCCL_TOPO_DUMP_FILE": str(dump)}
        if file:
            variables["NCCL_TOPO_FILE"] = str(file)
        command = [sys.executable, "-c", _ALL_REDUCE, str(Path(folder, "store"))]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode or not dump.exists():
            raise Failed(done.stdout + done.stderr)
        return dump.read_text()
