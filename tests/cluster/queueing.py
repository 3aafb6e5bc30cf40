# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kueue and JobSet with their webhooks, and nodes simulated by kwok, beside a control plane.

    with ControlPlane("1.37") as plane:
        queueing = Queueing(plane, {"resources": {"deviceClassMappings": [...]}})

All programs end with the control plane. Kueue reads its configuration only at its start, so `configure` restarts it.

Pods on nodes that `add_node` creates run as soon as they are bound. The RUN_TIME_ANNOTATION sets how long a pod runs,
such as `2s`; without it, a pod runs until it is deleted.
"""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import ssl
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_replay import NODE_LABEL, RUN_TIME_ANNOTATION
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.configuration import merged
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed, free_ports
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tools.cluster import QUEUES, module, programs

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
NAMESPACE, CONFIG_MAP, CONFIG_KEY = "kueue-system", "kueue-manager-config", "controller_manager_config.yaml"
STAGES = sorted((COLLECTION / "playbooks" / "files" / "no-machine-stages").glob("*.yaml"))
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Kueue reads the certificate for its metrics below /etc, so it runs in a mount namespace with its own /etc.
_WITH_ETC = """
mount -t tmpfs -o mode=755 tmpfs /etc
mkdir -p /etc/kueue/metrics
ln -s "$1" /etc/kueue/metrics/certs
shift
exec "$@"
"""


class Queueing:
    """Kueue, JobSet and kwok. `configuration` is merged into the configuration that Kueue needs to run here.
    `lease_seconds` is the duration of the leases that kwok renews for its nodes; with 0, kwok renews none.

    Raises environment.Missing if programs are missing, and Failed.
    """

    def __init__(
        self, plane: ControlPlane, configuration: t.Mapping[str, t.Any] | None = None, lease_seconds: int = 0
    ) -> None:
        self.plane = plane
        self._lease_seconds = lease_seconds
        self.programs = programs(plane.minor, *QUEUES, build=False)
        self.folder = plane.folder / "queueing"
        self.folder.mkdir()
        names = ("kueue", "kueue-health", "kueue-metrics", "jobset", "jobset-health")
        self.ports = dict(zip(names, free_ports(len(names))))
        self._certificates()
        self._definitions()
        self.plane.add_namespace(NAMESPACE)
        self.configuration: Object = {}
        self.configure(configuration or {})
        self._start_jobset()
        for name in ("kueue", "jobset"):
            self._webhooks(name)
        self._start_kwok()

    # installing

    def _components(self, name: str) -> Path:
        return module(name, self.plane.minor).cache / "config" / "components"

    def _certificates(self) -> None:
        """Issue one certificate for both programs, with the file names of a TLS Secret."""
        issued = self.plane.authority.issue("webhooks", addresses=("127.0.0.1",))
        for name in ("tls.crt", "tls.key"):  # readers pick the certificate or the key from the file
            shutil.copy(issued, self.folder / name)

    def _definitions(self) -> None:
        """Create the custom resource definitions, those of Kueue with conversion webhooks, and wait until they are
        served: Kueue looks for them only when it starts."""
        definitions = []
        for name in ("kueue", "jobset"):
            folder = self._components(name) / "crd"
            patches = (_read(folder / "kustomization.yaml")[0].get("patches") or []) if name == "kueue" else []
            conversions = [_read(folder / patch["path"])[0] for patch in patches]
            by_name = {entry["metadata"]["name"]: entry["spec"]["conversion"] for entry in conversions}
            for path in sorted((folder / "bases").glob("*.yaml")):
                (item,) = _read(path)
                conversion = by_name.get(item["metadata"]["name"])
                if conversion:
                    self._redirect(conversion["webhook"]["clientConfig"], name)
                    item["spec"]["conversion"] = conversion
                definitions.append(item)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda item: self.plane.expect("POST", _CRDS, item), definitions))
        for item in definitions:
            spec = item["spec"]
            for version in (entry["name"] for entry in spec["versions"] if entry["served"]):
                self._wait_served(f"/apis/{spec['group']}/{version}", spec["names"]["plural"])

    def _wait_served(self, path: str, plural: str) -> None:
        def served() -> bool:
            status, answer = self.plane.request("GET", path)
            return status == 200 and plural in [resource["name"] for resource in answer["resources"]]

        self.plane.wait_for(served, f"{plural} of {path} to be served")

    def _redirect(self, client: Object, name: str) -> None:
        """Let the API server call a process on loopback instead of a Service."""
        path = client.pop("service")["path"]
        client["url"] = f"https://127.0.0.1:{self.ports[name]}{path}"
        client["caBundle"] = _base64(self.plane.authority.certificate)

    def _webhooks(self, name: str) -> None:
        """Register all webhooks of a program, with the selectors that its kustomization adds."""
        folder = self._components(name) / "webhook"
        for item in _read(folder / "manifests.yaml"):
            kind = item["kind"]
            item["metadata"]["name"] = f"{name}-{item['metadata']['name']}"
            patch = folder / "patches" / f"{'mutating' if kind.startswith('Mutating') else 'validating'}-patch.yaml"
            for change in (_read(patch)[0] or []) if patch.exists() else []:
                path = change["path"].strip("/").split("/")
                if change["op"] == "replace" and path[0] == "webhooks" and len(path) == 2:
                    item["webhooks"][int(path[1])] = change["value"]
            for webhook in item["webhooks"]:
                self._redirect(webhook["clientConfig"], name)
                if name == "kueue" and webhook["name"] in ("mpod.kb.io", "vpod.kb.io"):
                    key = "kubernetes.io/metadata.name"
                    rule = {"key": key, "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
                    webhook["namespaceSelector"] = {"matchExpressions": [rule]}
            self.plane.expect("POST", f"{_WEBHOOKS}/{kind.lower()}s", item)

    # the programs

    def configure(self, configuration: t.Mapping[str, t.Any]) -> None:
        """Start or restart Kueue with a configuration, and write the same configuration to its ConfigMap."""
        self.configuration = merged(self._base(), configuration)
        for key, value in configuration.items():
            if key not in ("featureGates", "resources", "fairSharing"):
                self.configuration[key] = value
        text = yaml.safe_dump(self.configuration)
        path = self.folder / "kueue.yaml"
        path.write_text(text)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP},
            "data": {CONFIG_KEY: text},
        }
        maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        if "kueue" in self.plane.pids:
            self.plane.stop("kueue")
            self.plane.expect("PUT", f"{maps}/{CONFIG_MAP}", body)
        else:
            self.plane.expect("POST", maps, body)
        self._start_kueue(path)

    def restart(self) -> None:
        """Restart Kueue with the configuration in its ConfigMap, as its Deployment would."""
        maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        text = self.plane.expect("GET", f"{maps}/{CONFIG_MAP}")["data"][CONFIG_KEY]
        self.configuration = yaml.load(text, Loader=_LOADER)
        path = self.folder / "kueue.yaml"
        path.write_text(text)
        self.plane.stop("kueue")
        self._start_kueue(path)

    def _start_kueue(self, path: Path) -> None:
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        unshare = ["unshare", "--mount", "--propagation", "private", *user, "sh", "-ec", _WITH_ETC, "sh"]
        kubeconfig = self.plane.write_kubeconfig("kueue", "system:masters")
        command = [str(self.programs["kueue"]), f"--config={path}", f"--kubeconfig={kubeconfig}", "--zap-log-level=2"]
        self.plane.run("kueue", [*unshare, str(self.folder), *command])
        self._wait_ready("kueue")

    def _base(self) -> Object:
        local = "127.0.0.1"
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"{local}:{self.ports['kueue-health']}"},
            "metrics": {
                "bindAddress": f"{local}:{self.ports['kueue-metrics']}",
                "enableClusterQueueResources": True,
            },
            "webhook": {"port": self.ports["kueue"], "host": local, "certDir": str(self.folder)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 1000, "burst": 2000},
            "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
            "featureGates": {"VisibilityOnDemand": False},  # it would be a separate API server on another port
        }

    def _start_jobset(self) -> None:
        local = "127.0.0.1"
        configuration = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"{local}:{self.ports['jobset-health']}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": self.ports["jobset"], "host": local, "certDir": str(self.folder)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
        path = self.folder / "jobset.yaml"
        path.write_text(yaml.safe_dump(configuration))
        kubeconfig = self.plane.write_kubeconfig("jobset", "system:masters")
        self.plane.run("jobset", [str(self.programs["jobset"]), f"--config={path}", f"--kubeconfig={kubeconfig}"])
        self._wait_ready("jobset")

    def _start_kwok(self) -> None:
        kubeconfig = self.plane.write_kubeconfig("kwok", "system:masters")
        options = [
            f"--kubeconfig={kubeconfig}",
            *(f"--config={stage}" for stage in STAGES),
            f"--manage-nodes-with-label-selector={NODE_LABEL}=true",
            f"--node-lease-duration-seconds={self._lease_seconds}",
        ]
        self.plane.run("kwok", [str(self.programs["kwok"]), *options])

    def _wait_ready(self, name: str) -> None:
        """Wait until a program reports that it is ready. Raises Failed."""
        deadline = time.monotonic() + 120
        while True:
            self.plane.check()
            probe = http.client.HTTPConnection("127.0.0.1", self.ports[f"{name}-health"], timeout=5)
            try:
                probe.request("GET", "/readyz")
                if probe.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                probe.close()
            if time.monotonic() > deadline:
                raise Failed(f"{name} is not ready after 120 s:\n{self.log(name)[-4000:]}")
            time.sleep(0.1)

    def log(self, name: str) -> str:
        """The log of kueue, jobset or kwok."""
        return self.plane.log(name).read_text(errors="replace")

    # using

    def add_node(
        self, name: str, labels: t.Mapping[str, str] | None = None, capacity: t.Mapping[str, str] | None = None
    ) -> None:
        """Add a simulated node, on which pods run."""
        self.plane.add_node(name, {**(labels or {}), NODE_LABEL: "true"}, capacity)

    def lose(self, name: str) -> None:
        """Simulate the loss of a node: kwok, in place of kubelet, no longer runs its pods or renews its lease."""
        self.plane.expect("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {NODE_LABEL: None}}})

    def job(
        self,
        name: str,
        queue: str,
        template: str,
        *,
        pods: int = 1,
        priority: str = "",
        seconds: float | None = None,
        node_selector: t.Mapping[str, str] | None = None,
    ) -> Object:
        """A Job for a LocalQueue. Each of its pods has a claim from a ResourceClaimTemplate."""
        labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
        labels.update({"kueue.x-k8s.io/priority-class": priority} if priority else {})
        spec = {"parallelism": pods, "completions": pods, "template": pod_template(template, seconds, node_selector)}
        metadata = {"name": name, "labels": labels}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}

    def submit(self, namespace: str, job: Object) -> str:
        """Create a Job. Returns its name."""
        created = self.plane.expect("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", job)
        return str(created["metadata"]["name"])

    def remove(self, namespace: str, *names: str) -> None:
        """Delete Jobs with their pods and workloads, and wait until none of them exists."""
        for name in names:
            path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
            self.plane.expect("DELETE", path, {"propagationPolicy": "Background"})
        removed = set(names)
        self.plane.wait_for(
            lambda: (
                not [pod for pod in self.pods(namespace) if _owner(pod) in removed]
                and not [workload for workload in self.workloads(namespace) if _owner(workload) in removed]
            ),
            f"the deletion of the jobs {', '.join(names)}",
            120,
        )

    def pods(self, namespace: str) -> list[Object]:
        return t.cast("list[Object]", self.plane.expect("GET", f"/api/v1/namespaces/{namespace}/pods")["items"])

    def running(self, namespace: str, job: str) -> list[Object]:
        """The running pods of a Job."""
        return [pod for pod in self.pods(namespace) if _owner(pod) == job and pod["status"].get("phase") == "Running"]

    def workloads(self, namespace: str) -> list[Object]:
        return t.cast("list[Object]", self.plane.expect("GET", f"{KUEUE}/namespaces/{namespace}/workloads")["items"])

    def workload(self, namespace: str, owner: str) -> Object:
        """The workload of a Job or JobSet; empty if Kueue has not created it."""
        return next((entry for entry in self.workloads(namespace) if _owner(entry) == owner), {})

    def condition(self, namespace: str, owner: str, kind: str) -> Object:
        """A condition of a workload; empty if there is none."""
        conditions = self.workload(namespace, owner).get("status", {}).get("conditions") or ()
        return next((entry for entry in conditions if entry["type"] == kind), {})

    def admitted(self, namespace: str, owner: str) -> bool:
        return self.condition(namespace, owner, "Admitted").get("status") == "True"

    def usage(self, queue: str, reserved: bool = True) -> dict[str, Object]:
        """The usage of a ClusterQueue by resource, as reported by Kueue, with `total` and `borrowed`."""
        status = self.plane.expect("GET", f"{KUEUE}/clusterqueues/{queue}").get("status") or {}
        flavors = status.get("flavorsReservation" if reserved else "flavorsUsage") or ()
        return {resource["name"]: resource for flavor in flavors for resource in flavor.get("resources") or ()}

    def metrics(self) -> str:
        """Kueue's metrics in Prometheus' text format, read with a token, as a monitoring system does."""
        token = self.token()
        context = ssl.create_default_context(cafile=str(self.plane.authority.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", self.ports["kueue-metrics"], timeout=30, context=context)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != 200:
                raise Failed(f"metrics of Kueue: {answer.status} {text}")
            return text
        finally:
            connection.close()

    def token(self) -> str:
        """A token of a service account that may read metrics. The first call creates the account."""
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        if self.plane.request("GET", f"{accounts}/metrics")[0] == 404:
            self.plane.expect("POST", accounts, {"metadata": {"name": "metrics"}})
            rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
            rbac = "/apis/rbac.authorization.k8s.io/v1"
            self.plane.expect("POST", f"{rbac}/clusterroles", {"metadata": {"name": "kueue-metrics"}, "rules": [rule]})
            subject = {"kind": "ServiceAccount", "name": "metrics", "namespace": NAMESPACE}
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kueue-metrics"}
            binding = {"metadata": {"name": "kueue-metrics"}, "subjects": [subject], "roleRef": role}
            self.plane.expect("POST", f"{rbac}/clusterrolebindings", binding)
        answer = self.plane.expect("POST", f"{accounts}/metrics/token", {"spec": {}})
        return str(answer["status"]["token"])


def pod_template(
    template: str, seconds: float | None = None, node_selector: t.Mapping[str, str] | None = None
) -> Object:
    """A pod with a claim from a ResourceClaimTemplate. It ends after `seconds`, or never."""
    container = {
        "name": "main",
        "image": "none.example.com/none",
        "resources": {"claims": [{"name": "devices"}], "requests": {"cpu": "1"}},
    }
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": template}],
    }
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    annotations = {} if seconds is None else {RUN_TIME_ANNOTATION: f"{seconds}s"}
    return {"metadata": {"annotations": annotations}, "spec": spec}


def _owner(item: Object) -> str:
    """The name of a pod's or workload's owner."""
    owners = item["metadata"].get("ownerReferences") or ()
    return str(owners[0]["name"]) if owners else ""


def _read(path: Path) -> list[t.Any]:
    return list(yaml.load_all(path.read_text(), Loader=_LOADER))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
