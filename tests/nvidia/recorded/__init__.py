# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Machines with real NVIDIA GPUs, as tests/nvidia/record.py has recorded them. Standard library only."""

from __future__ import annotations

import base64
import functools
import json
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object

HERE = Path(__file__).parent


def names() -> list[str]:
    """The machines that are recorded."""
    return sorted(path.stem for path in HERE.glob("*.json"))


@functools.lru_cache(None)
def recording(machine: str) -> Object:
    return t.cast("Object", json.loads((HERE / f"{machine}.json").read_text()))


def write(machine: str, out: Path) -> Path:
    """Write the tree of a recorded machine below `out`, and return `out`."""
    tree = recording(machine)["tree"]
    for name in tree["folders"]:
        (out / name).mkdir(parents=True, exist_ok=True)
    for name, content in tree["files"].items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content[0]) if isinstance(content, list) else content.encode())
    for name, target in tree["links"].items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return out
