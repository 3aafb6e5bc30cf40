# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.kubelet import Kubelet
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.conftest import MakeNode

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
