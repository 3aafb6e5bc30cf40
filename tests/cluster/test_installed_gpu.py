# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""On a machine with an NVIDIA GPU and PyTorch: PyTorch's NCCL accepts our topology files. Skipped on other machines."""

from __future__ import annotations

import typing as t
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.nccl_file import nccl_file
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.nvidia import nccl
from environment import Missing  # tools/cluster.py has put its folder on the path

GPUS = Path("/proc/driver/nvidia/gpus")
pytestmark = pytest.mark.skipif(not GPUS.is_dir(), reason="this machine has no NVIDIA GPU")


def position(text: str, address: str) -> tuple[str | None, list[str]]:
    """The position of a PCI function in a topology file: its NUMA node, and the switches above it."""
    parents = {child: parent for parent in ET.fromstring(text).iter() for child in parent}
    [element] = [child for child in parents if child.get("busid") == address]
    above = []
    while element.tag != "cpu":
        element = parents[element]
        above.append(element)
    return above[-1].get("numaid"), [str(entry.get("busid")) for entry in above[-2::-1]]


def check_accepted(text: str, address: str, folder: Path) -> None:
    """Check that NCCL starts with a topology file, and that the GPU has the same position in NCCL's own output."""
    (folder / "nccl.xml").write_text(text)
    try:
        used = nccl.topology(folder / "nccl.xml")
    except Missing as missing:
        pytest.skip(str(missing))
    assert position(used, address) == position(text, address)


def first_gpu() -> str:
    return min(folder.name for folder in GPUS.iterdir())


def test_nccl_accepts_the_file_of_this_machine(tmp_path: Path) -> None:
    check_accepted(nccl_file(as_dict(probe("/"))), first_gpu(), tmp_path)


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("name", names())
def test_nccl_accepts_the_file_of_an_example_machine(name: str, which: int, tmp_path: Path) -> None:
    """In the file, one GPU of the example machine gets the address of this machine's GPU. NCCL puts the network, which
    has no PCI function, below the first processor. The last GPU is usually below another processor."""
    facts: t.Any = as_dict(probe(str(build(name, tmp_path / "machine"))))
    if not any(gpu["vendor"] == "NVIDIA" for gpu in facts["gpus"]):
        pytest.skip(f"{name} has no NVIDIA GPU")
    check_accepted(nccl_file(facts).replace(facts["gpus"][which]["address"], first_gpu()), first_gpu(), tmp_path)
