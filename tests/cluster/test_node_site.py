# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook site.yml provisions a GPU node beside NVIDIA's driver, and pods get the promised pairs.

To all programs, the node is an example machine, whose tree is mounted at /sys and /proc/driver. Veth interfaces, which
have no PCI function, replace the NICs. So the driver is installed from a wheel with one changed function.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.site_node import (
    REQUIRED,
    WHEELHOUSE,
    Site,
    SystemdNode,
    other_wheel,
)
from ansible_collections.lanewise.dra.tests.cluster.systemd import Machine
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=install' does it")
pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs cel-expr-python")

from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode

pytestmark = REQUIRED

# The line where the driver identifies the interface of a PCI function, and the code inserted before it (see
# tree_driver.py).
MATCHES = "    # IPoIB interfaces are hardware too, except those of additional partitions"
BY_MAC = "    return bool(identity.permanent_mac) and link.mac == identity.permanent_mac\n"
AS_MACHINE = """
set -e
mkdir -p "$1/sys/fs/cgroup" "$2"
mount --rbind /sys/fs/cgroup "$2"
mount --rbind "$1/sys" /sys
mount --rbind "$2" /sys/fs/cgroup
mount --bind "$1/proc/driver" /proc/driver
"""


class GpuSite(t.NamedTuple):
    site: Site
    gpus: GpuNode
    variables: dict[str, t.Any]


def _variables(site: Site, gpus: GpuNode) -> dict[str, t.Any]:
    """The inventory's variables for the driver and the claims."""
    lock = COLLECTION / "requirements/driver.txt"
    options = {"source": str(COLLECTION), "lock": str(lock), "wheelhouse": str(WHEELHOUSE)}
    wheel = Path(site.module("dra_driver_wheel", dest=str(site.folder / "wheel"), **options)["wheel"])
    changed = other_wheel(wheel, site.folder, "1.0.1", (MATCHES, BY_MAC + MATCHES), file="interface/identity.py")
    return {
        **gpu_claims.variables("0.5.0", gpu_claims.templates(gpus.judge)),
        "dra_claims_kubeconfig": str(site.plane.kubeconfig),
        "dra_claims_dest": str(site.folder / "kubernetes"),
        "dra_driver_wheel": str(changed),
        "dra_driver_settings": {},
    }


@pytest.fixture(name="provisioned", scope="module")
def _provisioned(newest: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[GpuSite]:
    """The node after the first run of site.yml."""
    folder = tmp_path_factory.mktemp("site")
    with Machine() as machine, SystemdNode(newest, machine) as node:
        site = Site(node, machine, folder)
        variables: dict[str, t.Any] = {}

        def install(gpus: GpuNode) -> None:
            machine.run("sh", "-c", AS_MACHINE, "mount", str(gpus.tree), str(folder / "cgroup"))
            variables.update(_variables(site, gpus))
            site.play(playbook="lanewise.dra.site", **variables)

        try:
            gpus = GpuNode(node, "hgx-h100", folder, "0.5.0", install=install)
        except Missing as missing:
            pytest.skip(str(missing))
        try:
            yield GpuSite(site, gpus, variables)
        finally:
            gpus.close()


def test_one_run_of_the_playbook_provisions_the_node(provisioned: GpuSite) -> None:
    assert provisioned.site.systemctl("is-active", "lanewise-driver.service") == "active"
    assert provisioned.site.info()["ready"]
    assert "default/pair: 1 of 1 node(s)" in provisioned.site.output
    names = {item["metadata"]["name"] for item in provisioned.site.plane.expect("GET", gpu_claims.TEMPLATES)["items"]}
    assert {"pair", "two-pairs"} <= names


def test_eight_pods_get_eight_pairs(provisioned: GpuSite) -> None:
    names = [f"pair-{number}" for number in range(8)]
    provisioned.gpus.start(dict.fromkeys(names, "pair"))
    seen = [provisioned.gpus.seen(name) for name in names]
    assert all(provisioned.gpus.judge.aligned(entry) for entry in seen), seen
    assert [len(set(sum(devices, []))) for devices in zip(*seen)] == [8, 8]


def test_the_collection_verifies_the_pods_and_the_next_run_changes_nothing(provisioned: GpuSite) -> None:
    provisioned.site.play(playbook="lanewise.dra.verify", **provisioned.variables)
    assert provisioned.site.output.count(" on node-0: aligned as promised") == 8
    assert provisioned.site.play(playbook="lanewise.dra.site", **provisioned.variables) == 0
