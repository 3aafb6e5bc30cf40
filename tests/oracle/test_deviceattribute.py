# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The standard attributes of the probe against those of k8s.io/dynamic-resource-allocation/deviceattribute."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.oracle import trees, variants
from ansible_collections.lanewise.dra.tests.oracle.program import needs_go

SOURCE = Path(__file__).resolve().parent / "deviceattribute"

pytestmark = [pytest.mark.long, needs_go("Kubernetes' helper")]  # it builds a Go program


@pytest.fixture(scope="session")
def helper() -> Path:
    binary = trees.CACHE / "deviceattribute"
    newest = max(path.stat().st_mtime for path in SOURCE.iterdir())
    if not binary.exists() or binary.stat().st_mtime < newest:
        binary.parent.mkdir(parents=True, exist_ok=True)
        command = [str(shutil.which("go")), "build", "-trimpath", "-o", str(binary), "."]
        subprocess.run(command, cwd=SOURCE, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
        os.utime(binary)
    return binary


def check(name: str, root: Path, helper: Path, summarize: t.Callable[[t.Any], None]) -> None:
    done = subprocess.run([str(helper), str(root)], stdout=subprocess.PIPE, check=True)
    theirs = json.loads(done.stdout)[str(root)]
    ours = {address: function.kubernetes for address, function in probe(str(root)).functions.items()}
    published = sum(len(one["attributes"]) for one in theirs.values())
    refused = sum(len(one["refused"]) for one in theirs.values())
    summarize(f"deviceattribute {name}: {len(theirs)} functions, {published} attributes published, {refused} refused")
    assert ours == {address: one["attributes"] for address, one in theirs.items()}
    assert all(len(one["attributes"]) + len(one["refused"]) == 3 for one in theirs.values())


@pytest.mark.parametrize("name", trees.ALL)
def test_tree(name: str, helper: Path, summarize: t.Callable[[t.Any], None]) -> None:
    check(name, trees.root_of(name), helper, summarize)


VARIANTS = [
    "unchanged",
    "plain_directories",
    "another_domain",
    "domain_of_five_digits",
    "two_buses_on_one_root_complex",
    "no_node_number",
    "node_number_only",
    "firmware_without_proximity",
    "sparse_numbers",
    "node_of_memory_only",
]


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, tmp_path: Path, helper: Path, summarize: t.Callable[[t.Any], None]) -> None:
    check(f"variant:{name}", variants.make(name).write(tmp_path), helper, summarize)


# What the links of /sys/bus/pci/devices may lead to; the kernel writes relative links only
LINKS = {
    "a root only by its prefix": "../../../devices/pcielike:1/0000:15:01.0",
    "Hyper-V": "../../../devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/guid/pci0001:00/0000:15:01.0",
    "platform host bridge": "../../../devices/platform/soc/pci0000:15/0000:15:01.0",
    "another basename": "../../../devices/pci0000:15/0000:15:02.0",
    "directly below devices": "../../../devices/0000:15:01.0",
    "trailing slash": "../../../devices/pci0000:15/0000:15:01.0/",
    "twisted": "../../../bus/../devices/./pci0000:15//0000:15:01.0",
    "beside devices": "../../../devicesx/pci0000:15/0000:15:01.0",
}
NUMBERS = ["0", "1", "-1", "-2", "", "x", " 2 ", "0x1", "1.0", "1,2", "1023", "1024", "1_0"]


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
def test_link(link: str, tmp_path: Path, helper: Path, summarize: t.Callable[[t.Any], None]) -> None:
    tree = variants.make("unchanged")
    tree.links["sys/bus/pci/devices/0000:15:01.0"] = link
    home = os.path.normpath(os.path.join("sys/bus/pci/devices", link))
    for name in ("class", "vendor", "device", "numa_node"):
        tree.files.setdefault(f"{home}/{name}", tree.files[f"sys/devices/pci0000:15/0000:15:01.0/{name}"])
    check(f"link {link}", tree.write(tmp_path), helper, summarize)


def test_numbers(tmp_path: Path, helper: Path, summarize: t.Callable[[t.Any], None]) -> None:
    """Any content of numa_node."""
    tree = variants.make("unchanged")
    for path, text in zip(tree.functions(), NUMBERS):
        tree.put(f"{path}/numa_node", text)
    assert len(tree.functions()) >= len(NUMBERS)
    check("numa_node texts", tree.write(tmp_path), helper, summarize)
