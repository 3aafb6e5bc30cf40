# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A running node moves from DRANET, installed as its release is, to our driver and back, which is a systemd unit."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
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
Object = dict[str, t.Any]
DAEMONSET = "/apis/apps/v1/namespaces/kube-system/daemonsets/dranet"
PODS = "/api/v1/namespaces/default/pods"
LABEL, MARK = "lanewise.dev/nic-driver", "lanewise.dev/switch-driver"
OURS, THEIRS = "lanewise.dev", "dra.net"
AFFINITY = {"key": LABEL, "operator": "NotIn", "values": [OURS]}


RBAC = "rbac.authorization.k8s.io"
NAME: Object = {"name": "dranet", "namespace": "kube-system"}
#: What DRANET 1.4.0 asks of the API server: group, resource, verbs.
RULES = (
    ("", "nodes", ["get"]),
    ("", "events", ["create", "patch", "update"]),
    ("resource.k8s.io", "resourceslices", ["list", "watch", "create", "update", "delete"]),
    ("resource.k8s.io", "resourceclaims", ["get"]),
    ("resource.k8s.io", "deviceclasses", ["get"]),
    ("resource.k8s.io", "resourceclaims/status", ["patch", "update"]),
    ("resource.k8s.io", "resourceclaims/driver", ["associated-node:patch", "associated-node:update"]),
)
#: Folders of the node that DRANET uses.
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
    """DRANET as its release installs it: account, rights and DaemonSet, with this machine's program instead of an
    image."""
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
    server = {  # nothing here serves the cluster's own address of it
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
    """The node with what a site sees of it."""

    def __init__(self, site: Site) -> None:
        self.site, self.node, self.plane = site, site.node, site.plane

    def play(self, to: str, *arguments: str, rc: int = 0) -> int:
        extra = ["-e", f"switch_driver_to={to}", "-e", "switch_driver_timeout=90"]
        return self.site.play(*extra, *arguments, rc=rc, playbook="lanewise.dra.switch_driver")

    def published(self, driver: str) -> set[str]:
        """The interfaces that a driver publishes."""
        items = self.plane.expect("GET", f"{API}/resourceslices")["items"]
        devices = [
            one for item in items if item["spec"]["driver"] == driver for one in item["spec"].get("devices") or ()
        ]
        return {(one["attributes"].get("ifName") or one["attributes"][f"{driver}/ifName"])["string"] for one in devices}

    def object(self) -> Object:
        return t.cast(Object, self.plane.expect("GET", f"/api/v1/nodes/{self.node.name}"))

    def state(self) -> tuple[bool, bool, bool]:
        """Whether the node is cordoned, whether our annotation is there, and whether it has our label."""
        found = self.object()
        metadata = found["metadata"]
        cordoned = bool(found["spec"].get("unschedulable"))
        return cordoned, MARK in metadata.get("annotations", {}), metadata.get("labels", {}).get(LABEL) == OURS

    def replicas(self, driver: str, number: int) -> None:
        """This many pods, each with a NIC of a driver; a controller replaces those that are evicted."""
        attributes = f'device.attributes["{driver}"]'
        selector = {"cel": {"expression": f'device.driver == "{driver}" && {attributes}.ifName.startsWith("rail")'}}
        config = {"name": "net1", "addresses": ["203.0.113.2/28"]}
        given = parameters(config) if driver == OURS else {"interface": config}
        devices = {
            "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic", "selectors": [selector]}}],
            "config": [{"opaque": {"driver": driver, "parameters": given}}],
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
        self.plane.request("DELETE", templates)  # its spec cannot be changed
        self.plane.request("DELETE", "/apis/apps/v1/namespaces/default/replicasets/x")
        self.plane.wait_for(lambda: not self.plane.expect("GET", PODS)["items"], "the end of the pods", 90)
        claims = f"{API}/namespaces/default/resourceclaims"
        self.plane.wait_for(lambda: not self.plane.expect("GET", claims)["items"], "the end of the claims", 60)
        for one in objects if number else ():
            apply(self.node, one)
        if number:
            self.plane.wait_for(self.running, "a pod with a NIC", 90)

    def running(self) -> bool:
        pods = self.plane.expect("GET", PODS)["items"]
        return bool(pods) and all(one["status"]["phase"] == "Running" for one in pods)


@pytest.fixture(name="fleet", scope="module")
def _fleet(newest: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Fleet]:
    items = dranet(newest)
    with Machine() as machine, SystemdNode(newest, machine) as node:
        for number in range(2):
            add_rail(number)
        for item in items:
            apply(node, item)
        fleet = Fleet(Site(node, machine, tmp_path_factory.mktemp("site")))
        newest.wait_for(lambda: fleet.published(THEIRS), "DRANET to publish", 120)
        newest.expect("POST", f"{API}/deviceclasses", {"metadata": {"name": "nic"}, "spec": {}})
        yield fleet


def test_dranet_that_would_stay_is_refused(fleet: Fleet) -> None:
    """Its DaemonSet has to keep away from nodes with the label; the refusal has the affinity to add."""
    fleet.play(OURS, rc=2)
    assert '"nodeAffinity"' in fleet.site.output and '"NotIn"' in fleet.site.output
    assert fleet.state() == (False, False, False)
    terms = [{"matchExpressions": [AFFINITY]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    template = {"spec": {"affinity": {"nodeAffinity": required}}}
    fleet.plane.expect("PATCH", DAEMONSET, {"spec": {"template": template}}, "application/strategic-merge-patch+json")


def test_a_node_whose_pods_have_devices_is_not_changed(fleet: Fleet) -> None:
    fleet.replicas(THEIRS, 1)
    fleet.play(OURS, rc=2)
    assert "have devices from dra.net" in fleet.site.output and "switch_driver_drain" in fleet.site.output
    assert fleet.state() == (False, False, False) and fleet.running()
    fleet.replicas(THEIRS, 0)


def test_check_mode_changes_nothing(fleet: Fleet) -> None:
    before = fleet.object()["metadata"]["resourceVersion"], fleet.published(THEIRS)
    fleet.play(OURS, "--check")
    assert fleet.state() == (False, False, False) and fleet.published(THEIRS) == before[1]
    assert fleet.site.property("LoadState") == "not-found"


def test_a_killed_switch_is_continued_by_the_next_run(fleet: Fleet) -> None:
    """Killed between the two drivers: DRANET is being removed, ours is not installed."""
    uplink = ip("route show default")
    run = threading.Thread(target=quiet, args=(fleet,))
    run.start()
    fleet.plane.wait_for(lambda: fleet.state()[2], "the label", 120)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(fleet.site.inventory).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    run.join(60)
    assert fleet.state() == (True, True, True) and fleet.site.property("LoadState") == "not-found"

    fleet.play(OURS)
    assert fleet.state() == (False, False, True)
    assert fleet.published(OURS) == {"rail0", "rail1"} and not fleet.published(THEIRS)
    assert ip("route show default") == uplink
    fleet.replicas(OURS, 1)
    fleet.replicas(OURS, 0)


def quiet(fleet: Fleet) -> None:
    """Play, and ignore a failure."""
    with contextlib.suppress(AssertionError):
        fleet.play(OURS)


def test_a_second_switch_changes_nothing(fleet: Fleet) -> None:
    assert fleet.play(OURS) == 0


def test_switching_back_drains_the_node(fleet: Fleet) -> None:
    """The pods are evicted; another cordon stays."""
    fleet.replicas(OURS, 1)
    node = f"/api/v1/nodes/{fleet.node.name}"
    fleet.plane.expect("PATCH", node, {"spec": {"unschedulable": True}})
    fleet.play(THEIRS, "-e", "switch_driver_drain=true")
    assert fleet.state() == (True, False, False)
    assert not fleet.published(OURS) and fleet.published(THEIRS) == {"rail0", "rail1"}
    assert fleet.site.property("LoadState") == "not-found"
    fleet.plane.expect("PATCH", node, {"spec": {"unschedulable": None}})
    fleet.replicas(THEIRS, 1)
    assert fleet.play(THEIRS) == 0
