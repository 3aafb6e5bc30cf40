# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A failing rollout over two nodes: it stops and reports the state of each node, and the next run continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.common.process_tree import kill_tree
from ansible_collections.lanewise.dra.tests.lab.node import Lab, Node

#: The kernel refuses so small a receive buffer, which only shows when it is set.
IMPOSSIBLE = {"fabric_node": {"sysctl": {"net.core.rmem_max": 1}}}
SITE: dict[str, t.Any] = {
    "fabric_nics": [{"name": "rails", "select": {"driver": ["igb"]}, "count": 2, "num_vfs": 2}],
    "fabric_node": {"sysctl": {"net.core.rmem_max": 8388608}},
}


#: Variables by host.
HostVars = dict[str, dict[str, t.Any]]


class Site:
    """Two nodes with an inventory, and the playbook."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self._folder = folder

    @property
    def nodes(self) -> list[Node]:
        return self.lab.nodes

    def command(self, host_vars: HostVars | None = None, *options: str, **extra_vars: t.Any) -> list[str]:
        """The command of a run."""
        inventory = self.lab.write_inventory(self._folder / "inventory.json")
        for node in self.nodes:
            (self._folder / "host_vars").mkdir(exist_ok=True)
            place = self._folder / "host_vars" / f"{node.name}.json"
            place.write_text(json.dumps({**SITE, **(host_vars or {}).get(node.name, {})}))
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        return [program, "-i", str(inventory), "playbooks/rollout.yml", "-e", json.dumps(extra_vars), *options]

    def play(self, host_vars: HostVars | None = None, *options: str, **extra_vars: t.Any) -> tuple[int, str]:
        done = subprocess.run(
            self.command(host_vars, *options, **extra_vars),
            cwd=COLLECTION,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def vfs(self) -> list[list[str]]:
        return [node.ssh("cat /sys/bus/pci/devices/*/sriov_numvfs").split() for node in self.nodes]


ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
}
NONE, TWO = ["0", "0"], ["2", "2"]


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    with Lab() as lab:
        lab.start(2)
        yield Site(lab, tmp_path_factory.mktemp("rollout"))


@pytest.fixture(autouse=True)
def _restore_nodes(site: Site) -> None:
    for node in site.nodes:
        node.restore()


def reported_state(output: str) -> list[str]:
    """The lines of the last report on the state of the rollout."""
    shown = output[output.rindex("TASK [Check the state of the rollout]") :]
    return [line.strip(" -'") for line in shown.splitlines()]


def test_an_unconfirmed_rollout_changes_no_node(site: Site) -> None:
    status, output = site.play(site_confirm=True)
    assert status == 2 and "No node was changed. Type 'yes'" in output
    assert "batch 1: 1 node, the canary" in output and "batch 2: 1 node" in output
    assert site.vfs() == [NONE, NONE]


def test_a_failed_canary_stops_the_rollout_and_the_next_run_continues(site: Site) -> None:
    canary, other = (node.name for node in site.nodes)
    status, output = site.play({canary: IMPOSSIBLE})
    assert status == 2
    report = reported_state(output)
    assert any(line.startswith(f"{canary}: Change") and "rmem_max" in line for line in report), report
    assert "waiting: 1 node" in report and "1 node was not touched" in output
    assert site.vfs() == [NONE, NONE]  # the VFs of the step before the failed one were removed again

    status, output = site.play({other: IMPOSSIBLE})
    assert status == 2 and "done: 1 node" in reported_state(output)
    assert site.vfs() == [TWO, NONE]

    status, output = site.play()
    assert status == 0 and "no changes needed: 1 node" in output
    assert f"batch 1: 1 node, the canary'\n    - '    {other}" in output
    assert site.vfs() == [TWO, TWO]

    status, output = site.play()
    assert status == 0 and "changed=0" in output and "skipping: no hosts matched" in output


def test_limit_touches_no_other_node(site: Site) -> None:
    status, _output = site.play(None, "--limit", site.nodes[1].name)
    assert status == 0 and site.vfs() == [NONE, TWO]


def test_a_node_that_is_lost_during_a_rollout_is_reported(site: Site) -> None:
    first, second = site.nodes
    address = "/sys/bus/pci/devices/0000:23:00.0/sriov_numvfs"
    off = f"until [ $(cat {address}) = 2 ]; do sleep 0.1; done; echo o > /proc/sysrq-trigger"
    second.ssh(f"nohup sh -c '{off}' >/dev/null 2>&1 &")
    status, output = site.play(site_serial=[2])
    report = reported_state(output)
    assert status & 4, output
    assert "lost: 1 node" in report and any(
        line.startswith(f"{second.name}: it could not be reached") for line in report
    )
    assert "done: 1 node" in report and first.ssh("cat /sys/bus/pci/devices/*/sriov_numvfs").split() == TWO


def test_the_rollout_of_a_killed_controller_is_finished_by_the_next(site: Site) -> None:
    first, second = site.nodes
    with open(os.devnull, "wb") as nowhere:
        run = subprocess.Popen(
            site.command(), cwd=COLLECTION, env=ENVIRONMENT, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        deadline = time.monotonic() + 300
        while site.vfs()[1] == NONE:
            assert run.poll() is None and time.monotonic() < deadline
        kill_tree(run.pid)
        run.wait()
    status, output = site.play()
    assert status == 0, output
    assert site.vfs() == [TWO, TWO]
    assert "changed=0" in site.play()[1]


def test_a_node_that_does_not_return_from_its_reboot_ends_the_rollout(site: Site) -> None:
    """While another network namespace exists, the exclusive mode of RDMA devices can be set only by a reboot."""
    first, second = site.nodes
    for node in site.nodes:
        node.ssh("modprobe ib_core; ip netns add other")
    first.qmp("set-action", reboot="shutdown")
    settings = {"rdma_netns_mode": "exclusive", "kernel_modules": ["ib_core"]}
    variables = {"fabric_node": settings, "fabric_reboot_ok": True}
    both = {node.name: variables for node in site.nodes}
    status, output = site.play(both, fabric_reboot_timeout=20)
    report = reported_state(output)
    assert status and "it reboots: " in output, output
    assert any(line.startswith(f"{first.name}: Reboot: ") for line in report), report
    assert "waiting: 1 node" in report and second.ssh("cat /sys/module/ib_core/parameters/netns_mode") == "Y"

    first.power_on()
    status, output = site.play(both)
    assert status == 0, output
    exclusive = [node.ssh("cat /sys/module/ib_core/parameters/netns_mode") for node in site.nodes]
    assert exclusive == ["N", "N"] and site.vfs() == [TWO, TWO]
