# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes with a few GPUs each, pods that claim them, and the playbooks for holds, for tests on a real scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import KEY
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS

RESOURCE = "/apis/resource.k8s.io/v1"
ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
DRIVER = "gpu.example.com"


def claim_spec(count: int, hold: str = "", tolerations: t.Sequence[Object] = ()) -> Object:
    """The spec of a claim for GPUs. The claim tolerates the taint of `hold`."""
    body: Object = {"deviceClassName": DRIVER, "count": count}
    if hold:
        body["tolerations"] = [{"key": KEY, "operator": "Equal", "value": hold, "effect": "NoSchedule"}]
    if tolerations:
        body["tolerations"] = list(tolerations)
    return {"devices": {"requests": [{"name": "gpu", "exactly": body}]}}


class Fleet:
    """A namespace of a control plane with nodes that have GPUs; each test file has its own."""

    def __init__(self, plane: ControlPlane, namespace: str, nodes: t.Mapping[str, int]) -> None:
        self.plane, self.namespace, self.nodes = plane, namespace, list(nodes)
        plane.add_namespace(namespace)
        self.pods_at = f"/api/v1/namespaces/{namespace}/pods"
        self.claims_at = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
        self.templates_at = f"{RESOURCE}/namespaces/{namespace}/resourceclaimtemplates"
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        plane.request(
            "POST",
            f"{RESOURCE}/deviceclasses",
            {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}},
        )
        for name, count in nodes.items():
            plane.add_node(name)
            plane.expect("POST", f"{RESOURCE}/resourceslices", _slice(name, count))

    def template(self, name: str, count: int, hold: str = "", tolerations: t.Sequence[Object] = ()) -> None:
        spec = {"metadata": {"name": name}, "spec": {"spec": claim_spec(count, hold, tolerations)}}
        self.plane.expect("POST", self.templates_at, spec)

    def pod_spec(self, template: str, node: str = "") -> Object:
        resources = {"requests": {"cpu": "100m"}, "claims": [{"name": "d"}]}
        return {
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "containers": [{"name": "c", "image": "none.example.com/none", "resources": resources}],
            "resourceClaims": [{"name": "d", "resourceClaimTemplateName": template}],
        }

    def pod(self, name: str, template: str, node: str = "") -> None:
        self.plane.expect("POST", self.pods_at, {"metadata": {"name": name}, "spec": self.pod_spec(template, node)})

    def replica_set(self, name: str, template: str, node: str, **more: t.Any) -> None:
        """A ReplicaSet with one pod, which starts on `node`. After an eviction, its new pod can start on any node.
        `more` are fields of the pod's spec."""
        labels = {"app": name}
        others = [entry for entry in self.nodes if entry != node]
        for other in others:
            self.cordon(other, True)
        before = len(self.where())
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {**self.pod_spec(template), **more}},
            },
        }
        self.plane.expect("POST", f"/apis/apps/v1/namespaces/{self.namespace}/replicasets", body)
        self.bound(before + 1)
        for other in others:
            self.cordon(other, False)

    def cordon(self, node: str, cordoned: bool) -> None:
        self.plane.expect("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned}})

    def mark_running(self, app: str) -> None:
        """Mark the pods of a ReplicaSet as running, as a kubelet would: disruption budgets count only running pods."""
        for item in self.plane.expect("GET", f"{self.pods_at}?labelSelector=app%3D{app}")["items"]:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            path = f"{self.pods_at}/{item['metadata']['name']}/status"
            self.plane.expect("PATCH", path, {"status": status})

    def uids(self) -> dict[str, str]:
        """The name of each pod by its UID."""
        items = self.plane.expect("GET", self.pods_at)["items"]
        return {item["metadata"]["uid"]: item["metadata"]["name"] for item in items}

    def where(self) -> dict[str, str]:
        """The node of each pod that is bound."""
        items = self.plane.expect("GET", self.pods_at)["items"]
        return {item["metadata"]["name"]: item["spec"]["nodeName"] for item in items if item["spec"].get("nodeName")}

    def clear(self) -> None:
        """Remove all ReplicaSets and pods, and wait until their claims are deleted."""
        sets = f"/apis/apps/v1/namespaces/{self.namespace}/replicasets"
        for path in (sets, self.pods_at):
            self.plane.expect("DELETE", f"{path}?gracePeriodSeconds=0&propagationPolicy=Background")
        for path in (self.pods_at, self.claims_at):
            self.plane.wait_for(
                lambda path=path: not self.plane.expect("GET", path)["items"], f"the deletion of {path}"
            )

    def bound(self, count: int) -> dict[str, str]:
        """Wait until exactly this many pods are bound. Returns the node of each."""

        def found() -> t.Any:
            nodes = self.where()
            return nodes if len(nodes) == count else None

        return t.cast("dict[str, str]", self.plane.wait_for(found, f"{count} bound pods of {self.namespace}", 180))

    def rejection(self, pod: str) -> str:
        """Wait until the scheduler has rejected a pod. Returns its message."""

        def message() -> t.Any:
            current = self.plane.expect("GET", f"{self.pods_at}/{pod}")
            assert not current["spec"].get("nodeName"), current["spec"]["nodeName"]
            conditions = current.get("status", {}).get("conditions", ())
            return next(
                (c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
            )

        return str(self.plane.wait_for(message, f"the scheduler's decision on {pod}", 180))

    def devices(self, pod: str) -> set[str]:
        """The devices of the pod's claims, as driver/pool/device."""
        status = self.plane.expect("GET", f"{self.pods_at}/{pod}")["status"]
        names = [entry["resourceClaimName"] for entry in status["resourceClaimStatuses"]]
        claims = [self.plane.expect("GET", f"{self.claims_at}/{name}") for name in names]
        results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
        return {"/".join((result["driver"], result["pool"], result["device"])) for result in results}

    def rules(self, key: str = KEY) -> list[Object]:
        """The DeviceTaintRules whose taint has this key, by default the key of holds."""
        items = self.plane.expect("GET", f"{RESOURCE}/devicetaintrules")["items"]
        return [item for item in items if item["spec"]["taint"]["key"] == key]


def _slice(node: str, count: int) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(count)]
    spec = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices}
    return {"metadata": {"name": f"{node}-gpus"}, "spec": spec}


class Playbooks:
    """Runs the collection's playbooks against a control plane, in a clean environment."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.folder = folder
        hidden = ("ANSIBLE_", "KUBE", "K8S_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        paths = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
        environment["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, [str(COLLECTIONS), paths]))
        environment["ANSIBLE_HOME"] = str(folder / "home")
        environment["KUBECONFIG"] = str(plane.write_kubeconfig("system:admin", "system:masters"))
        self.environment = environment

    def command(self, name: str, *options: str, **variables: t.Any) -> list[str]:
        extra_vars = json.dumps(variables)
        return [str(ANSIBLE_PLAYBOOK), "-i", "localhost,", f"lanewise.dra.{name}", *options, "-e", extra_vars]

    def run(self, name: str, *options: str, rc: int = 0, **variables: t.Any) -> str:
        """Run a playbook, which must end with the status `rc`. Returns its output."""
        command = self.command(name, *options, **variables)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.folder, env=self.environment
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, name: str, **variables: t.Any) -> subprocess.Popen[str]:
        """Start a playbook in the background, in its own process group."""
        return subprocess.Popen(
            self.command(name, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        )
