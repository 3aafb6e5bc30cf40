# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.kubelet import Kubelet
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.conftest import MakeNode
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine

STATIC: Object = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
MEMORY: Object = {"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}]}


@pytest.mark.parametrize(
    ("before", "after", "needs_drain"),
    [
        ({}, STATIC, True),
        (STATIC, {}, True),
        (STATIC, {**STATIC, "reservedSystemCPUs": "0-1"}, True),
        (STATIC, {**STATIC, "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}}, True),
        ({}, {"reservedSystemCPUs": "0"}, True),  # another file of kubelet may contain the policy
        (MEMORY, {**MEMORY, "reservedMemory": [{"numaNode": 1, "limits": {"memory": "1Gi"}}]}, True),
        (STATIC, {**STATIC, "topologyManagerPolicy": "restricted"}, False),
        ({"cpuManagerPolicy": "none"}, {"cpuManagerPolicy": "none", "reservedSystemCPUs": "0"}, False),
    ],
)
def test_changes_that_invalidate_the_state_files_of_kubelet_need_a_drained_node(
    make_node: MakeNode, before: Object, after: Object, needs_drain: bool
) -> None:
    node = make_node("hgx-h100")
    texts = [json.dumps(settings) if settings else None for settings in (before, after)]
    change = Change("kubelet", "node", "/etc/kubernetes/kubelet.conf.d/90-lanewise.conf", *texts)
    assert ("must be drained" in Kubelet(node.system).interrupts(node, change)) is needs_drain


FOLDER = "/etc/kubernetes/kubelet.conf.d"


@pytest.fixture
def machine() -> t.Iterator[Machine]:
    """A node whose kubelet reads drop-ins. A container and an ordinary user have processes of the same name."""
    with Machine("sriov") as machine:
        machine.write("/container/etc/hostname", "pod")
        for process, folder, user, root in (
            ("600", "/user", os.geteuid() + 1, ""),
            ("650", "/container", 0, "container"),
            ("700", FOLDER, 0, ""),
            ("900", "/user", 65534, ""),
        ):
            machine.write(f"/proc/{process}/comm", "kubelet")
            machine.write(f"/proc/{process}/cmdline", f"/usr/bin/kubelet\0--config-dir={folder}\0")
            machine.write(f"/proc/{process}/status", f"Name:\tkubelet\nUid:\t{user}\t{user}\t{user}\t{user}\n")
            (machine.root / f"proc/{process}/root").symlink_to(machine.root / root)
        yield machine


def test_a_process_of_a_container_or_another_user_is_not_kubelet(machine: Machine) -> None:
    plan = machine.plan(Kubelet, {}, kubelet={"topology_manager_policy": "restricted"})
    assert [change.setting for change in plan.changes] == [f"{FOLDER}/90-lanewise.conf"] and not plan.refusals


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("topologyManagerPolicyOptions:\n  prefer-closest-numa-nodes: 'true'", False),
        ("kind: KubeletConfiguration\ntopologyManagerPolicy: none", True),
        ('{"kind": "KubeletConfiguration", "topologyManagerPolicy": "none"}', True),
        ('{\n  "topologyManagerPolicy" : "none"\n}', True),
    ],
)
def test_a_later_drop_in_with_the_same_field_is_refused(machine: Machine, text: str, overrides: bool) -> None:
    machine.write(f"{FOLDER}/95-site.conf", text)
    plan = machine.plan(Kubelet, {}, kubelet={"topology_manager_policy": "restricted"})
    messages = [str(refusal) for refusal in plan.refusals]
    expected = f"node: kubelet: {FOLDER}/95-site.conf sets topologyManagerPolicy too, and takes precedence"
    assert messages == ([f"{expected} (remove it there)"] if overrides else [])


def test_the_file_is_removed_from_a_node_without_kubelet(make_node: MakeNode) -> None:
    """The node may have left the cluster."""
    node = make_node("hgx-h100")
    kubelet = Kubelet(node.system)
    path = f"{FOLDER}/90-lanewise.conf"
    removal = Change("kubelet", "node", path, json.dumps(STATIC), None)
    assert kubelet.check(node, removal) is None
    refusal = kubelet.check(node, removal.reversed())
    assert refusal and "no kubelet runs" in refusal.message


@pytest.mark.parametrize("text", ["cpuManagerPolicy: static", "[]", "["])
def test_a_file_that_is_not_json_is_named(make_node: MakeNode, text: str) -> None:
    with pytest.raises(HostError, match="90-lanewise.conf: it is not JSON.*remove this file"):
        Kubelet(make_node("hgx-h100").system).same("path", text, None)
