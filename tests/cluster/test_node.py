# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests of the node that other tests use: it runs pods, reports why a pod cannot start, and deletes pods."""

from __future__ import annotations

import json

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip


def test_a_pod_runs_in_a_separate_network_namespace(node: Node) -> None:
    node.run_pod(node.pod("plain"))
    links = {link["ifname"] for link in json.loads(node.execute("plain", "ip", "-json", "link"))}
    assert links == {"lo", "eth0"}
    assert "uplink" in ip("-brief link")
    node.delete_pod("plain")
    assert node.plane.request("GET", "/api/v1/namespaces/default/pods/plain")[0] == 404


def test_a_pod_that_cannot_start_is_reported_with_its_events(node: Node) -> None:
    pod = node.pod("broken")
    pod["spec"]["containers"][0]["image"] = "lanewise.dev/missing:1"
    with pytest.raises(Failed, match="is not present with pull policy of Never"):
        node.run_pod(pod, seconds=20)
    node.delete_pod("broken")


def test_a_pod_survives_a_restart_of_kubelet(node: Node) -> None:
    node.run_pod(node.pod("lasting"))
    node.stop("kubelet")
    node.start("kubelet")
    node.plane.wait_for(lambda: _responds(node, "lasting"), "the pod's container", 60)
    node.delete_pod("lasting")


def _responds(node: Node, pod: str) -> bool:
    try:
        return node.execute(pod, "echo", "test") == "test\n"
    except Failed:
        return False
