# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests of the control plane that other tests use: it is real, schedules devices and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster.controlplane import RESOURCE_VERSIONS, ControlPlane, Failed
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tools.cluster import minors, module, programs, ready_folders
from environment import Missing

RESOURCE = "/apis/resource.k8s.io/v1"
DEFAULT = f"{RESOURCE}/namespaces/default"
PODS = "/api/v1/namespaces/default/pods"
OWNER_PROGRAM = """
import json, signal, sys, time
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with SIGINT ignored
with ControlPlane(scheduler=False, controller_manager=False) as plane:
    pids = {**plane.pids, "supervisor": plane._supervisor.pid}
    print(json.dumps({"folder": str(plane.folder), "ports": list(plane.ports.values()), "pids": pids}), flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def needs_programs() -> None:
    """Skip if the newest Kubernetes is not built."""
    try:
        programs(minors()[0], build=False)
    except Missing as missing:
        pytest.skip(str(missing))


def test_the_server_has_the_pinned_version(control_plane: ControlPlane) -> None:
    status, version = control_plane.request("GET", "/version")
    assert status == 200
    assert f"{version['major']}.{version['minor']}" == control_plane.minor
    if not ready_folders():
        assert version["gitVersion"] == f"v{module('kube-apiserver', control_plane.minor).version}"


def test_every_version_of_the_resource_api_is_served(control_plane: ControlPlane) -> None:
    groups = control_plane.expect("GET", "/apis")["groups"]
    group = next(group for group in groups if group["name"] == "resource.k8s.io")
    assert {entry["version"] for entry in group["versions"]} == set(RESOURCE_VERSIONS)
    assert group["preferredVersion"]["version"] == "v1"
    for version in ("v1", "v1beta2", "v1beta1"):
        kinds = {
            resource["kind"]
            for resource in control_plane.expect("GET", f"/apis/resource.k8s.io/{version}")["resources"]
        }
        assert kinds >= {"DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"}
    kinds = {
        resource["kind"] for resource in control_plane.expect("GET", "/apis/resource.k8s.io/v1alpha3")["resources"]
    }
    assert "DeviceTaintRule" in kinds


def test_openapi_documents_are_served(control_plane: ControlPlane) -> None:
    schemas = control_plane.openapi("resource.k8s.io/v1")["components"]["schemas"]
    assert "deviceClassName" in schemas["io.k8s.api.resource.v1.ExactDeviceRequest"]["properties"]
    assert "io.k8s.api.core.v1.Pod" in control_plane.openapi("v1")["components"]["schemas"]
    with pytest.raises(LookupError):
        control_plane.openapi("resource.k8s.io/v9")


def test_rbac_limits_what_users_may_do(control_plane: ControlPlane) -> None:
    anonymous = control_plane.anonymous()
    assert anonymous.request("GET", "/healthz")[0] == 200  # a public path
    status, answer = anonymous.request("GET", f"{RESOURCE}/deviceclasses")
    assert status == 403 and "system:anonymous" in answer["message"]

    alice = control_plane.client("alice", "readers")
    assert alice.request("GET", f"{RESOURCE}/deviceclasses")[0] == 403
    rbac, group = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["list"]}
    role = {"metadata": {"name": "readers"}, "rules": [rule]}
    binding = {
        "metadata": {"name": "readers"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "readers"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "readers"}],
    }
    control_plane.expect("POST", f"{rbac}/clusterroles", role)
    control_plane.expect("POST", f"{rbac}/clusterrolebindings", binding)
    control_plane.wait_for(lambda: alice.request("GET", f"{RESOURCE}/deviceclasses")[0] == 200, "the binding")
    assert alice.request("DELETE", f"{RESOURCE}/deviceclasses/none")[0] == 403


def test_a_device_class_is_stored_changed_and_deleted(control_plane: ControlPlane) -> None:
    spec = {"selectors": [{"cel": {"expression": "device.driver == 'round-trip.example.com'"}}]}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "round-trip"}, "spec": spec}
    control_plane.expect("POST", f"{RESOURCE}/deviceclasses", body)
    for version in ("v1", "v1beta2", "v1beta1"):
        found = control_plane.expect("GET", f"/apis/resource.k8s.io/{version}/deviceclasses/round-trip")
        assert (found["apiVersion"], found["spec"]) == (f"resource.k8s.io/{version}", spec)
    patch = {"metadata": {"labels": {"seen": "yes"}}}
    assert control_plane.expect("PATCH", f"{RESOURCE}/deviceclasses/round-trip", patch)["metadata"]["labels"] == {
        "seen": "yes"
    }
    broken = {
        **body,
        "metadata": {"name": "broken"},
        "spec": {"selectors": [{"cel": {"expression": "device.nothing"}}]},
    }
    status, answer = control_plane.request("POST", f"{RESOURCE}/deviceclasses", broken)
    assert status == 422 and "undefined field 'nothing'" in answer["message"]
    control_plane.expect("DELETE", f"{RESOURCE}/deviceclasses/round-trip")
    assert control_plane.request("GET", f"{RESOURCE}/deviceclasses/round-trip")[0] == 404


def test_the_scheduler_allocates_a_device_to_one_pod_only(control_plane: ControlPlane) -> None:
    """One of two nodes publishes one device. The first pod is bound to that node, and the second pod stays pending."""
    driver, name = "schedule.example.com", "schedule"
    for node in ("schedule-empty", "schedule-device"):
        control_plane.add_node(node, labels={"for": "schedule"})
    device_class = {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
    }
    device = {"name": "pci-0000-8a-00-0", "attributes": {f"{driver}/rail": {"int": 3}}}
    pool = {"name": "schedule-device", "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": driver, "nodeName": "schedule-device", "pool": pool, "devices": [device]}
    control_plane.expect("POST", f"{RESOURCE}/deviceclasses", device_class)
    control_plane.expect("POST", f"{RESOURCE}/resourceslices", {"metadata": {"name": name}, "spec": slice_spec})

    selector = {"cel": {"expression": f"device.attributes['{driver}'].rail == 3"}}
    request = {"name": "nic", "exactly": {"deviceClassName": name, "selectors": [selector]}}
    for number in ("first", "second"):
        claim = {"metadata": {"name": f"schedule-{number}"}, "spec": {"devices": {"requests": [request]}}}
        pod = {
            "metadata": {"name": f"schedule-{number}"},
            "spec": {
                "nodeSelector": {"for": "schedule"},
                "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "nic"}]}}],
                "resourceClaims": [{"name": "nic", "resourceClaimName": f"schedule-{number}"}],
            },
        }
        control_plane.expect("POST", f"{DEFAULT}/resourceclaims", claim)
        control_plane.expect("POST", PODS, pod)
        if number == "first":
            control_plane.wait_for(
                lambda: control_plane.expect("GET", f"{PODS}/schedule-first")["spec"].get("nodeName"), "the scheduler"
            )
    assert control_plane.expect("GET", f"{PODS}/schedule-first")["spec"]["nodeName"] == "schedule-device"
    status = control_plane.expect("GET", f"{DEFAULT}/resourceclaims/schedule-first")["status"]
    result = {"request": "nic", "driver": driver, "pool": "schedule-device", "device": "pci-0000-8a-00-0"}
    assert status["allocation"]["devices"]["results"] == [result]
    assert [consumer["name"] for consumer in status["reservedFor"]] == ["schedule-first"]

    def rejection() -> str:
        conditions = control_plane.expect("GET", f"{PODS}/schedule-second")["status"].get("conditions", [])
        return str(next((condition["message"] for condition in conditions if condition["type"] == "PodScheduled"), ""))

    assert "cannot allocate all claims" in control_plane.wait_for(rejection, "the scheduler's message")
    assert "allocation" not in control_plane.expect("GET", f"{DEFAULT}/resourceclaims/schedule-second").get(
        "status", {}
    )


def test_a_claim_is_created_from_a_template_and_allocated(control_plane: ControlPlane) -> None:
    """The controller manager creates the claim, and the scheduler allocates it. Both work in a new namespace."""
    driver, name = "template.example.com", "template"
    control_plane.add_node("template-node", labels={"for": "template"})
    control_plane.add_namespace(name)
    pool = {"name": "template-node", "generation": 1, "resourceSliceCount": 1}
    slice_spec = {"driver": driver, "nodeName": "template-node", "pool": pool, "devices": [{"name": "nic-0"}]}
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    control_plane.expect("POST", f"{RESOURCE}/resourceslices", {"metadata": {"name": name}, "spec": slice_spec})
    control_plane.expect(
        "POST", f"{RESOURCE}/deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": [selector]}}
    )
    body = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": name}}]}}
    template = {"metadata": {"name": name}, "spec": {"spec": body}}
    control_plane.expect("POST", f"{RESOURCE}/namespaces/{name}/resourceclaimtemplates", template)
    pod = {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "nic"}]}}],
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": name}],
        },
    }
    control_plane.expect("POST", f"/api/v1/namespaces/{name}/pods", pod)
    path = f"/api/v1/namespaces/{name}/pods/{name}"
    control_plane.wait_for(lambda: control_plane.expect("GET", path)["spec"].get("nodeName"), "the scheduler")
    claims = control_plane.expect("GET", f"{RESOURCE}/namespaces/{name}/resourceclaims")["items"]
    assert [claim["status"]["allocation"]["devices"]["results"][0]["device"] for claim in claims] == ["nic-0"]


def test_kubectl_reads_the_kubeconfig(control_plane: ControlPlane) -> None:
    command = [str(control_plane.programs["kubectl"]), "--kubeconfig", str(control_plane.kubeconfig)]
    answer = subprocess.run([*command, "auth", "whoami", "-o", "json"], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["status"]["userInfo"]["username"] == "lanewise-admin"
    assert control_plane.kubeconfig.stat().st_mode & 0o077 == 0


def test_gates_flags_and_apis_are_set_and_close_removes_everything(needs_programs: None, tmp_path: Path) -> None:
    """A control plane with a gate on, an API off, a flag of a program and a folder. `close` stops and removes all."""
    folder = tmp_path / "cluster"
    plane = ControlPlane(
        gates={"DRAListTypeAttributes": True},
        runtime_config={"resource.k8s.io/v1beta1": False},
        controller_manager=False,
        flags={"kube-scheduler": ["--v=3"]},
        folder=folder,
    )
    with plane:
        metrics = plane.request("GET", "/metrics")[1]
        assert re.search(r'kubernetes_feature_enabled\{name="DRAListTypeAttributes",.*\} 1', metrics)
        assert 'FLAG: --v="3"' in plane.log("kube-scheduler").read_text()
        assert plane.request("GET", "/apis/resource.k8s.io/v1beta1")[0] == 404
        # without a controller manager, there are no service accounts, and a pod does not need one
        pod = {"metadata": {"name": "alone"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        plane.add_node("alone")
        plane.expect("POST", PODS, pod)
        plane.wait_for(lambda: plane.expect("GET", f"{PODS}/alone")["spec"].get("nodeName"), "the scheduler")

        plane.stop("kube-scheduler")
        plane.expect("POST", PODS, {**pod, "metadata": {"name": "later"}})
        plane.start("kube-scheduler")
        plane.wait_for(lambda: plane.expect("GET", f"{PODS}/later")["spec"].get("nodeName"), "the new scheduler")

        pids = [*plane.pids.values(), plane._supervisor.pid]
        ports = [plane.ports[name] for name in ("etcd", "etcd-peers", "kube-apiserver", "kube-scheduler")]
        assert all(alive(pid) for pid in pids) and all(listening(port) for port in ports)
    assert not any(alive(pid) for pid in pids) and not any(listening(port) for port in ports)
    assert not folder.exists()
    plane.close()  # a second call does nothing


def test_a_failed_start_shows_the_log_and_leaves_no_folder(needs_programs: None, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="unknown flag: --no-such-flag"):
        ControlPlane(flags={"kube-apiserver": ["--no-such-flag"]}, folder=tmp_path / "cluster")
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("owner", signal.SIGINT),
        ("owner", signal.SIGTERM),
        ("owner", signal.SIGKILL),
        pytest.param(
            "supervisor",
            signal.SIGKILL,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the children of a dead parent"),
        ),
    ],
)
def test_processes_end_with_their_owner(needs_programs: None, victim: str, number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout
    reported: dict[str, t.Any] = {}
    try:
        reported = json.loads(owner.stdout.readline())
        # only processes that this test has started are signalled
        os.kill(owner.pid if victim == "owner" else reported["pids"]["supervisor"], number)
        if victim == "owner":
            owner.wait(timeout=30)
        others = [pid for name, pid in reported["pids"].items() if victim == "owner" or name != "supervisor"]
        until(lambda: not any(alive(pid) for pid in others), 30)
        assert not any(listening(port) for port in reported["ports"])
        if victim == "supervisor":  # then the owner removes the folder
            owner.send_signal(signal.SIGINT)
            owner.wait(timeout=30)
        assert not Path(reported["folder"]).exists()
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        if reported:
            shutil.rmtree(reported["folder"], ignore_errors=True)
