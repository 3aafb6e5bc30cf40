# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE, Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.rdma_system import PARAMETER, PATH, RdmaSystem
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine


@pytest.fixture
def machine():
    with Machine("cpu-rdma") as machine:
        machine.remove(PARAMETER)  # ib_core is not loaded, unless a test loads it
        yield machine


def test_the_mode_is_set_now_and_for_the_next_boot(machine):
    machine.write(PARAMETER, "Y")
    plan = machine.plan(RdmaSystem, {}, rdma_netns_mode="exclusive")
    assert [str(change) for change in plan.changes] == [
        "node: rdma_netns_mode shared -> exclusive",
        "node: rdma_netns_mode_at_boot unset -> exclusive",
    ]
    assert not plan.reboot


def test_without_rdma_only_the_next_boot_is_configured(machine):
    plan = machine.plan(RdmaSystem, {}, rdma_netns_mode="shared")
    assert [change.setting for change in plan.changes] == ["rdma_netns_mode_at_boot"] and not plan.reboot


def test_a_pods_network_namespace_makes_the_mode_wait_for_a_reboot(machine, monkeypatch):
    machine.write(PARAMETER, "Y")
    reason = "process 7 (pause) is in another network namespace"
    monkeypatch.setattr(RdmaSystem, "_other_namespace", lambda self: reason)
    plan = machine.plan(RdmaSystem, {}, rdma_netns_mode="exclusive")
    assert [change.setting for change in plan.changes] == ["rdma_netns_mode_at_boot"]
    assert len(plan.reboot) == 1 and reason in plan.reboot[0]


def test_a_file_of_another_program_is_replaced_and_restored(machine):
    content = "# other program\noptions ib_core netns_mode=1\n"
    file = machine.root / PATH.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(content)
    resource = RdmaSystem(System(str(machine.root)))
    for change in machine.plan(RdmaSystem, {}, rdma_netns_mode="exclusive").changes:
        resource.apply(None, change)
        assert file.read_text() == "options ib_core netns_mode=0\n"
        resource.apply(None, change.reversed())
    assert file.read_text() == content
    resource.apply(None, Change("rdma_system", NODE, "rdma_netns_mode_at_boot", "shared", None))
    assert not file.exists()
