# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the probe's standard attributes with those of k8s.io/dynamic-resource-allocation/deviceattribute."""

from __future__ import annotations

import json
import os
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.oracle import trees, variants
from ansible_collections.lanewise.dra.tests.oracle.program import build, needs_go

SOURCE = Path(__file__).resolve().parent / "deviceattribute"

pytestmark = [pytest.mark.long, needs_go("Kubernetes' helper")]  # it builds a Go program


@pytest.fixture(scope="session")
def helper() -> Path:
    """The program that prints the attributes of every function below a root."""
    return build(SOURCE)


def check(name: str, root: Path, helper: Path, summarize: t.Callable[[t.Any], None]) -> None:
    done = subprocess.run([str(helper), str(root)], stdout=subprocess.PIPE, check=True)
    expected = json.loads(done.stdout)[str(root)]
    probed = {address: function.kubernetes for address, function in probe(str(root)).functions.items()}
    published = sum(len(function["attributes"]) for function in expected.values())
    refused = sum(len(function["refused"]) for function in expected.values())
    summarize(f"deviceattribute {name}: {len(expected)} functions, {published} attributes published, {refused} refused")
    assert probed == {address: function["attributes"] for address, function in expected.items()}
    assert all(len(function["attributes"]) + len(function["refused"]) == 3 for function in expected.values())


@pytest.mark.parametrize("name", trees.ALL)
def test_attributes_of_a_tree_are_those_of_kubernetes(
    name: str, helper: Path, summarize: t.Callable[[t.Any], None]
) -> None:
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
def test_attributes_of_a_variant_are_those_of_kubernetes(
    name: str, tmp_path: Path, helper: Path, summarize: t.Callable[[t.Any], None]
) -> None:
    check(f"variant:{name}", variants.make(name).write(tmp_path), helper, summarize)


# Targets of links in /sys/bus/pci/devices; all are relative, because the kernel writes no others
LINKS = {
    "name with the prefix pci that is no root complex": "../../../devices/pcielike:1/0000:15:01.0",
    "Hyper-V": "../../../devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/guid/pci0001:00/0000:15:01.0",
    "platform host bridge": "../../../devices/platform/soc/pci0000:15/0000:15:01.0",
    "another basename": "../../../devices/pci0000:15/0000:15:02.0",
    "directly below devices": "../../../devices/0000:15:01.0",
    "trailing slash": "../../../devices/pci0000:15/0000:15:01.0/",
    "dots and double slashes": "../../../bus/../devices/./pci0000:15//0000:15:01.0",
    "beside devices": "../../../devicesx/pci0000:15/0000:15:01.0",
}
NUMA_NODES = ["0", "1", "-1", "-2", "", "x", " 2 ", "0x1", "1.0", "1,2", "1023", "1024", "1_0"]


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
def test_attributes_for_unusual_links_are_those_of_kubernetes(
    link: str, tmp_path: Path, helper: Path, summarize: t.Callable[[t.Any], None]
) -> None:
    tree = variants.make("unchanged")
    tree.links["sys/bus/pci/devices/0000:15:01.0"] = link
    target = os.path.normpath(os.path.join("sys/bus/pci/devices", link))
    for name in ("class", "vendor", "device", "numa_node"):
        tree.files.setdefault(f"{target}/{name}", tree.files[f"sys/devices/pci0000:15/0000:15:01.0/{name}"])
    check(f"link {link}", tree.write(tmp_path), helper, summarize)


def test_attributes_for_unusual_numa_node_files_are_those_of_kubernetes(
    tmp_path: Path, helper: Path, summarize: t.Callable[[t.Any], None]
) -> None:
    tree = variants.make("unchanged")
    assert len(tree.functions()) >= len(NUMA_NODES)
    for path, text in zip(tree.functions(), NUMA_NODES):
        tree.put(f"{path}/numa_node", text)
    check("numa_node texts", tree.write(tmp_path), helper, summarize)
