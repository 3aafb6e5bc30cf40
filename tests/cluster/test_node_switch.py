# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook switch_driver moves a running node from DRANET (a DaemonSet) to lanewise.dev (systemd), and back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.bench.dranet import FILTER
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.driver import API, add_rail
from ansible_collections.lanewise.dra.tests.cluster.node import IMAGE, ip
from ansible_collections.lanewise.dra.tests.cluster.site_node import REQUIRED, Site, SystemdNode
from ansible_collections.lanewise.dra.tests.cluster.systemd import Machine
from ansible_collections.lanewise.dra.tests.cluster.test_node_daemonset import apply
from ansible_collections.lanewise.dra.tools.cluster import programs
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytestmark = REQUIRED
DAEMONSET = "/apis/apps/v1/namespaces/kube-system/daemonsets/dranet"
PODS = "/api/v1/namespaces/default/pods"
LABEL, MARK = "lanewise.dev/nic-driver", "lanewise.dev/switch-driver"
LANEWISE, DRANET = "lanewise.dev", "dra.net"
AFFINITY = {"key": LABEL, "operator": "NotIn", "values": [LANEWISE]}


RBAC = "rbac.authorization.k8s.io"
NAME: Object = {"name": "dranet", "namespace": "kube-system"}
#: DRANET 1.4.0's permissions: API group, resource, verbs.
RULES = (
    ("", "nodes", ["get"]),
    ("", "events", ["create", "patch", "update"]),
    ("resource.k8s.io", "resourceslices", ["list", "watch", "create", "update", "delete"]),
    ("resource.k8s.io", "resourceclaims", ["get"]),
    ("resource.k8s.io", "deviceclasses", ["get"]),
    ("resource.k8s.io", "resourceclaims/status", ["patch", "update"]),
    ("resource.k8s.io", "resourceclaims/driver", ["associated-node:patch", "associated-node:update"]),
)
#: The folders of the node that DRANET mounts.
FOLDERS = (
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/run/nri",
    "/var/run/netns",
    "/dev/infiniband",
    "/sys/fs/bpf",
    "/var/run/dranet",
)


def dranet(plane: ControlPlane) -> list[Object]:
    """DRANET's objects, as in its release: service account, RBAC rules and DaemonSet, with this machine's program
    instead of an image."""
    try:
        program = programs(plane.minor, "dranet", build=False)["dranet"]
    except Missing as missing:
        pytest.skip(str(missing))
    rules = [{"apiGroups": [group], "resources": [resource], "verbs": verbs} for group, resource, verbs in RULES]
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "dranet"}
    subject = {"kind": "ServiceAccount", **NAME}
    labels = {"app": "dranet"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(plane, program)},
    }
    cluster = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": "dranet"}}
    return [
        {**cluster, "kind": "ClusterRole", "rules": rules},
        {**cluster, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": NAME},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {**NAME, "labels": labels}, "spec": spec},
    ]


def _pod(plane: ControlPlane, program: Path) -> Object:
    folders = {f"folder-{number}": path for number, path in enumerate((*FOLDERS, "/usr", str(program.parent)))}
    server = {  # the API server's cluster IP is not reachable here
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(plane.ports["kube-apiserver"]),
    }
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container = {
        "name": "dranet",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [str(program)],
        "args": ["--v=4", "--hostname-override=$(NODE_NAME)", f"--filter={FILTER}", "--cloud-provider-hint=NONE"],
        "env": [node, *({"name": name, "value": value} for name, value in server.items())],
        "securityContext": {"privileged": True},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 9177}},
        "volumeMounts": [
            {"name": name, "mountPath": path, "mountPropagation": "HostToContainer"} for name, path in folders.items()
        ],
    }
    return {
        "hostNetwork": True,
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "serviceAccountName": "dranet",
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for name, path in folders.items()
        ],
    }


class Fleet:
    """The node, and its state in the cluster."""

    def __init__(self, site: Site) -> None:
        self.site, self.node, self.plane = site, site.node, site.plane

    def play(self, to: str, *arguments: str, rc: int = 0) -> int:
        extra = ["-e", f"switch_driver_to={to}", "-e", "switch_driver_timeout=90"]
        return self.site.play(*extra, *arguments, rc=rc, playbook="lanewise.dra.switch_driver")

    def published(self, driver: str) -> set[str]:
        """The interfaces that a driver publishes."""
        items = self.plane.expect("GET", f"{API}/resourceslices")["items"]
        devices = [
            device for item in items if item["spec"]["driver"] == driver for device in item["spec"].get("devices") or ()
        ]
        return {
            (device["attributes"].get("ifName") or device["attributes"][f"{driver}/ifName"])["string"]
            for device in devices
        }

    def object(self) -> Object:
        return t.cast(Object, self.plane.expect("GET", f"/api/v1/nodes/{self.node.name}"))

    def state(self) -> tuple[bool, bool, bool]:
        """Whether the node is cordoned, has the playbook's annotation, and has the label of lanewise.dev."""
        node = self.object()
        metadata = node["metadata"]
        cordoned = bool(node["spec"].get("unschedulable"))
        return cordoned, MARK in metadata.get("annotations", {}), metadata.get("labels", {}).get(LABEL) == LANEWISE

    def replicas(self, driver: str, number: int) -> None:
        """Replace the ReplicaSet by one with `number` pods, each with a NIC of a driver."""
        attributes = f'device.attributes["{driver}"]'
        selector = {"cel": {"expression": f'device.driver == "{driver}" && {attributes}.ifName.startsWith("rail")'}}
        config = {"name": "net1", "addresses": ["203.0.113.2/28"]}
        interface = parameters(config) if driver == LANEWISE else {"interface": config}
        devices = {
            "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic", "selectors": [selector]}}],
            "config": [{"opaque": {"driver": driver, "parameters": interface}}],
        }
        pod = self.node.pod("x", resourceClaims=[{"name": "net", "resourceClaimTemplateName": "nic"}])["spec"]
        template = {"metadata": {"labels": {"app": "x"}}, "spec": {**pod, "restartPolicy": "Always"}}
        objects: list[Object] = [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": "nic", "namespace": "default"},
                "spec": {"spec": {"devices": devices}},
            },
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": "x", "namespace": "default"},
                "spec": {"replicas": number, "selector": {"matchLabels": {"app": "x"}}, "template": template},
            },
        ]
        templates = f"{API}/namespaces/default/resourceclaimtemplates/nic"
        self.plane.request("DELETE", templates)  # the spec of a template cannot be changed
        self.plane.request("DELETE", "/apis/apps/v1/namespaces/default/replicasets/x")
        self.plane.wait_for(lambda: not self.plane.expect("GET", PODS)["items"], "the deletion of the pods", 90)
        claims = f"{API}/namespaces/default/resourceclaims"
        self.plane.wait_for(lambda: not self.plane.expect("GET", claims)["items"], "the deletion of the claims", 60)
        for manifest in objects if number else ():
            apply(self.node, manifest)
        if number:
            self.plane.wait_for(self.running, "a pod with a NIC", 90)

    def running(self) -> bool:
        pods = self.plane.expect("GET", PODS)["items"]
        return bool(pods) and all(pod["status"]["phase"] == "Running" for pod in pods)


@pytest.fixture(name="fleet", scope="module")
def _fleet(newest: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    items = dranet(newest)
    with Machine() as machine, SystemdNode(newest, machine) as node:
        for number in range(2):
            add_rail(number)
        for item in items:
            apply(node, item)
        fleet = Fleet(Site(node, machine, tmp_path_factory.mktemp("site")))
        newest.wait_for(lambda: fleet.published(DRANET), "DRANET to publish", 120)
        newest.expect("POST", f"{API}/deviceclasses", {"metadata": {"name": "nic"}, "spec": {}})
        yield fleet


def test_dranet_without_the_node_affinity_is_refused(fleet: Fleet) -> None:
    """DRANET's DaemonSet must avoid nodes with the label. The message contains the affinity to add."""
    fleet.play(LANEWISE, rc=2)
    assert '"nodeAffinity"' in fleet.site.output and '"NotIn"' in fleet.site.output
    assert fleet.state() == (False, False, False)
    terms = [{"matchExpressions": [AFFINITY]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    template = {"spec": {"affinity": {"nodeAffinity": required}}}
    fleet.plane.expect("PATCH", DAEMONSET, {"spec": {"template": template}}, "application/strategic-merge-patch+json")


def test_a_node_whose_pods_have_devices_is_not_changed(fleet: Fleet) -> None:
    fleet.replicas(DRANET, 1)
    fleet.play(LANEWISE, rc=2)
    assert "have devices from dra.net" in fleet.site.output and "switch_driver_drain" in fleet.site.output
    assert fleet.state() == (False, False, False) and fleet.running()
    fleet.replicas(DRANET, 0)


def test_check_mode_changes_nothing(fleet: Fleet) -> None:
    before = fleet.object()["metadata"]["resourceVersion"], fleet.published(DRANET)
    fleet.play(LANEWISE, "--check")
    assert fleet.state() == (False, False, False) and fleet.published(DRANET) == before[1]
    assert fleet.site.property("LoadState") == "not-found"


def test_the_next_run_continues_a_killed_switch(fleet: Fleet) -> None:
    """The run is killed while DRANET is being removed and lanewise.dev is not yet installed."""
    uplink = ip("route show default")
    run = threading.Thread(target=play_ignoring_failure, args=(fleet,))
    run.start()
    fleet.plane.wait_for(lambda: fleet.state()[2], "the label", 120)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(fleet.site.inventory).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    run.join(60)
    assert fleet.state() == (True, True, True) and fleet.site.property("LoadState") == "not-found"

    fleet.play(LANEWISE)
    assert fleet.state() == (False, False, True)
    assert fleet.published(LANEWISE) == {"rail0", "rail1"} and not fleet.published(DRANET)
    assert ip("route show default") == uplink
    fleet.replicas(LANEWISE, 1)
    fleet.replicas(LANEWISE, 0)


def play_ignoring_failure(fleet: Fleet) -> None:
    with contextlib.suppress(AssertionError):
        fleet.play(LANEWISE)


def test_a_second_switch_changes_nothing(fleet: Fleet) -> None:
    assert fleet.play(LANEWISE) == 0


def test_switching_back_drains_the_node(fleet: Fleet) -> None:
    """The pods are evicted. The cordon of another user is kept."""
    fleet.replicas(LANEWISE, 1)
    node = f"/api/v1/nodes/{fleet.node.name}"
    fleet.plane.expect("PATCH", node, {"spec": {"unschedulable": True}})
    fleet.play(DRANET, "-e", "switch_driver_drain=true")
    assert fleet.state() == (True, False, False)
    assert not fleet.published(LANEWISE) and fleet.published(DRANET) == {"rail0", "rail1"}
    assert fleet.site.property("LoadState") == "not-found"
    fleet.plane.expect("PATCH", node, {"spec": {"unschedulable": None}})
    fleet.replicas(DRANET, 1)
    assert fleet.play(DRANET) == 0
