# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's requests to real API servers, with its service account, roles and policies.

The publishing driver runs in a separate network namespace, which has only veth interfaces.

This file has more than 500 lines because all tests use the same API servers, accounts and publishing driver.
"""

from __future__ import annotations

import base64
import functools
import importlib.metadata
import json
import os
import shutil
import subprocess
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.modules import dra_driver_access
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.big_machine import EIGHT_BY_SIXTEEN
from ansible_collections.lanewise.dra.tests.machines.builder import build

driver = pytest.importorskip("lanewise_driver.api.access", reason="the driver's package is not installed")

from ansible_collections.lanewise.dra.tests.cluster.driver_node import Node  # noqa: E402
from lanewise_driver.api import token as driver_token  # noqa: E402
from lanewise_driver.api.access import Access, AccessError  # noqa: E402
from lanewise_driver.api.client import ApiError  # noqa: E402
from lanewise_driver.api.cluster import Cluster  # noqa: E402
from lanewise_driver.api.features import Features  # noqa: E402
from lanewise_driver.base.errors import Unreachable  # noqa: E402
from lanewise_driver.base.settings import Settings  # noqa: E402
from lanewise_driver.dra.config import interface_config  # noqa: E402
from lanewise_driver.publish import slices as driver_slices  # noqa: E402
from lanewise_driver.publish.inventory import Inventory  # noqa: E402
from lanewise_driver.publish.publisher import Publisher  # noqa: E402

DRIVER = "lanewise.dev"
#: The path for creating an event without storing it.
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events?dryRun=All"
SYSTEM = "lanewise-system"
ACCOUNT = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/lanewise-driver"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MANIFESTS = COLLECTION / "driver" / "manifests"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


@dataclass
class Installed:
    """A control plane with the driver's manifests, and clients with the tokens of its nodes."""

    plane: ControlPlane

    def token(self, node: str | None, seconds: int = 3600) -> str:
        """A token of the driver's account, as an administrator creates it. Without `node`, it is not bound."""
        spec: Object = {"expirationSeconds": seconds}
        if node:
            uid = self.plane.expect("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        return str(self.plane.expect("POST", f"{ACCOUNT}/token", {"spec": spec})["status"]["token"])

    def cluster(self, node: str, token: str | None = None, retry_seconds: float = 5) -> Cluster:
        """The driver's client with a node's token."""
        access = Access(self.plane.url, self.plane.authority.certificate.read_text(), token=token or self.token(node))
        return Cluster(lambda: access, DRIVER, node, retry_seconds)

    def node(self, name: str) -> Cluster:
        if self.plane.request("GET", f"/api/v1/nodes/{name}")[0] == 404:
            self.plane.add_node(name)
        return self.cluster(name)

    def slices(self, node: str) -> list[Object]:
        query = f"fieldSelector=spec.nodeName={node},spec.driver={DRIVER}"
        return list(self.plane.expect("GET", f"{SLICES}?{query}")["items"])

    def devices(self, node: str) -> dict[str, Object]:
        """The devices that the scheduler considers: none while the pool is incomplete."""
        listed = self.slices(node)
        newest = max((entry["spec"]["pool"]["generation"] for entry in listed), default=0)
        pool = [entry["spec"] for entry in listed if entry["spec"]["pool"]["generation"] == newest]
        if not pool or len(pool) != pool[0]["pool"]["resourceSliceCount"]:
            return {}
        return {device["name"]: device for spec in pool for device in spec.get("devices") or ()}


def an_event(node: str) -> Object:
    """An event from a node's driver."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "a-", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": DRIVER,
        "reportingInstance": node,
        "action": "Prepare",
        "reason": "Tried",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "a"},
        "type": "Warning",
        "note": "a test",
    }


def install(plane: ControlPlane) -> Installed:
    """Apply the driver's manifests, and wait until the policies take effect."""
    for manifest in sorted(MANIFESTS.glob("*.yaml")):
        item = yaml.safe_load(manifest.read_text())
        collection = PATHS[item["kind"]].format(namespace=item["metadata"].get("namespace"))
        path = f"{collection}/{item['metadata']['name']}?fieldManager=test&fieldValidation=Strict"
        plane.expect("PATCH", path, item, "application/apply-patch+yaml")
    result = Installed(plane)
    plane.add_node("policy-probe")
    bound = result.cluster("policy-probe", retry_seconds=0)
    # a policy takes effect a moment after it is created
    plane.wait_for(
        lambda: "of that Node only" in refusal(lambda: bound.create_slice(a_slice("policy-other"), dry_run=True)),
        "the policy of slices",
    )
    plane.wait_for(
        lambda: "by name and UID" in refusal(lambda: request_token(bound, "nobody", "x")), "the policy of tokens"
    )
    plane.wait_for(
        lambda: "on its own Node only" in refusal(lambda: bound.request("POST", EVENTS, an_event("policy-other"))),
        "the policy of events",
    )
    return result


_INSTALLED: dict[str, Installed] = {}


@pytest.fixture
def installed(control_plane: ControlPlane) -> Installed:
    if control_plane.url not in _INSTALLED:
        _INSTALLED[control_plane.url] = install(control_plane)
    return _INSTALLED[control_plane.url]


def refusal(call: t.Callable[[], t.Any]) -> str:
    """The server's error message for a request; empty if it accepts the request."""
    try:
        call()
    except ApiError as error:
        return error.message
    return ""


def a_slice(node: str, **spec: t.Any) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    full_spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [], **spec}
    metadata = {"name": driver_slices.slice_name(0, DRIVER, node)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": full_spec}


def request_token(cluster: Cluster, node: str, uid: str, seconds: int = 3600) -> Object:
    return cluster.token(SYSTEM, "lanewise-driver", {"metadata": {"name": node, "uid": uid}}, seconds)


# permissions of the account


def test_a_driver_may_write_only_slices_of_its_own_node(installed: Installed) -> None:
    node, other = installed.node("rights-one"), installed.node("rights-two")
    created = node.create_slice(a_slice("rights-one"))
    foreign = other.create_slice(a_slice("rights-two"))
    created["spec"]["pool"]["generation"] = 2
    updated = node.update_slice(created)

    assert "of that Node only" in refusal(lambda: node.create_slice(a_slice("rights-two")))
    assert "of that Node only" in refusal(lambda: node.update_slice(foreign))
    with pytest.raises(ApiError, match="of that Node only") as denied:
        node.resource("DELETE", f"/resourceslices/{driver_slices.slice_name(0, DRIVER, 'rights-two')}")
    assert denied.value.status == 403
    for wrong in (
        a_slice("rights-one", driver="other.example.com"),
        a_slice("rights-one", pool={"name": "rights-two", "generation": 1, "resourceSliceCount": 1}),
    ):
        assert "of the pool that its Node names" in refusal(functools.partial(node.create_slice, wrong, dry_run=True))
    everywhere = a_slice("rights-one", allNodes=True)
    del everywhere["spec"]["nodeName"]
    assert "of that Node only" in refusal(lambda: node.create_slice(everywhere))

    assert installed.slices("rights-two")  # not deleted
    node.delete_slice(updated)
    assert not installed.slices("rights-one")
    node.delete_slice(updated)  # a missing slice is not an error


@pytest.mark.parametrize(
    "name",
    [
        "00000-lanewise.dev-names-two",
        "0000g-lanewise.dev-names-one",
        "000000-lanewise.dev-names-one",
        "00000-lanewise.dev-names-one-2",
        "00000-lanewise.dev-lanewise.dev-names-one",
        "00000-other.dev-names-one",
        "names-one",
    ],
)
def test_the_slice_name_of_another_node_is_refused(installed: Installed, name: str) -> None:
    node, other = installed.node("names-one"), installed.node("names-two")
    misnamed = a_slice("names-one")
    misnamed["metadata"]["name"] = name
    assert "under the names of its own Node only" in refusal(lambda: node.create_slice(misnamed))
    for index in (0, 1, 0xFFFFF):
        valid = a_slice("names-one")
        valid["metadata"]["name"] = driver_slices.slice_name(index, DRIVER, "names-one")
        node.delete_slice(node.create_slice(valid))
    other.delete_slice(other.create_slice(a_slice("names-two")))


def test_a_generated_slice_name_is_refused(installed: Installed) -> None:
    node = installed.node("names-one")
    unnamed = a_slice("names-one")
    unnamed["metadata"] = {"generateName": "00000-lanewise.dev-names-one"}
    assert "under the names of its own Node only" in refusal(lambda: node.create_slice(unnamed))


def test_a_node_may_publish_under_its_truncated_name(installed: Installed) -> None:
    long = ".".join(["n" * 60] * 3 + ["m" * 60])
    assert len(long) > 234
    installed.plane.expect("POST", "/api/v1/nodes", {"metadata": {"name": long}})
    cluster, other = installed.node(long), installed.node("names-one")
    created = a_slice(long)
    cluster.delete_slice(cluster.create_slice(created))
    created["spec"] = a_slice("names-one")["spec"]
    assert "under the names of its own Node only" in refusal(lambda: other.create_slice(created))
    installed.plane.expect("DELETE", f"/api/v1/nodes/{long}")


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_the_policy_applies_to_every_api_version(installed: Installed, version: str) -> None:
    node = installed.node("version-one")
    node._version = f"resource.k8s.io/{version}"
    assert "of that Node only" in refusal(lambda: node.create_slice(a_slice("version-two"), dry_run=True))
    assert not refusal(lambda: node.create_slice(a_slice("version-one"), dry_run=True))


def test_an_event_must_name_its_driver_and_node(installed: Installed) -> None:
    client = installed.node("events-one")
    installed.node("events-two")
    event = an_event("events-one")

    def reported(**changes: t.Any) -> str:
        return refusal(lambda: client.request("POST", EVENTS, {**event, **changes}))

    assert not reported()
    assert not reported(regarding={**event["regarding"], "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"})
    assert "as lanewise.dev on its own Node only" in reported(reportingInstance="events-two")
    assert "as lanewise.dev on its own Node only" in reported(reportingController="kubelet")
    node = {"apiVersion": "v1", "kind": "Node", "name": "events-two"}
    assert "about Pods, ResourceClaims and its own Node only" in reported(regarding=node)
    assert not reported(regarding={**node, "name": "events-one"})
    assert "neither related objects" in reported(related=node)
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}
    assert "neither related objects" in reported(series=series)
    assert "needs to be unset" in reported(deprecatedSource={"component": "kubelet", "host": "events-two"})


def test_a_token_is_renewed_for_the_api_server_only(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the role requests a token for a node, it records the audiences of the API server. The policy allows no
    others."""
    node = installed.node("audience")
    uid = node.node_object()["metadata"]["uid"]
    with (
        patch_module_args(
            {"kubeconfig": str(installed.plane.kubeconfig), "node": "audience", "account": "lanewise-driver"}
        ),
        pytest.raises(SystemExit),
    ):
        dra_driver_access.main()
    assert json.loads(capsys.readouterr().out)["changed"] is True

    def token_refusal(**more: t.Any) -> str:
        bound = {"apiVersion": "v1", "kind": "Node", "name": "audience", "uid": uid}
        spec = {"expirationSeconds": 3600, "boundObjectRef": bound, **more}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return refusal(lambda: node.request("POST", f"{ACCOUNT}/token", body))

    reason = "for the API server only"
    installed.plane.wait_for(lambda: reason in token_refusal(audiences=["vault"]), "the policy of audiences")
    assert not token_refusal() and not token_refusal(audiences=[])
    assert reason in token_refusal(audiences=["vault", installed.plane.url])


def test_an_unbound_token_may_write_no_slice(installed: Installed) -> None:
    installed.node("unbound-one")
    unbound = installed.cluster("unbound-one", installed.token(None))
    assert "not bound to a Node" in refusal(lambda: unbound.create_slice(a_slice("unbound-one")))
    assert "not bound to a Node" in refusal(lambda: request_token(unbound, "unbound-one", "x"))


def test_a_driver_renews_its_own_token_only(installed: Installed) -> None:
    node = installed.node("token-one")
    installed.node("token-two")
    uid = {name: installed.plane.expect("GET", f"/api/v1/nodes/{name}")["metadata"]["uid"] for name in NODES}
    new = request_token(node, "token-one", uid["token-one"])["status"]["token"]
    reported = driver_token.read(new)
    assert (reported.node, reported.node_uid, reported.account, reported.namespace) == (
        "token-one",
        uid["token-one"],
        "lanewise-driver",
        SYSTEM,
    )
    assert not refusal(lambda: installed.cluster("token-one", new).create_slice(a_slice("token-one"), dry_run=True))

    assert "by name and UID" in refusal(lambda: request_token(node, "token-two", uid["token-two"]))
    assert "by name and UID" in refusal(lambda: request_token(node, "token-one", uid["token-two"]))
    assert "for a week" in refusal(lambda: request_token(node, "token-one", uid["token-one"], 700000))
    path = f"{ACCOUNT}/token"
    spec: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    assert "by name and UID" in refusal(lambda: node.request("POST", path, spec))
    other = path.replace("lanewise-driver", "default")
    with pytest.raises(ApiError) as denied:
        node.request("POST", other, spec)
    assert denied.value.status == 403


NODES = ("token-one", "token-two")


def test_the_token_of_a_pod_is_bound_to_its_node(installed: Installed) -> None:
    """For a driver in a DaemonSet, kubelet requests a token that is bound to the pod. The server adds the pod's node to
    the token."""
    plane = installed.plane
    for name in ("pod-one", "pod-two"):
        installed.node(name)
    container = {"name": "driver", "image": "none"}
    spec: Object = {"serviceAccountName": "lanewise-driver", "nodeName": "pod-one", "containers": [container]}
    pods = f"/api/v1/namespaces/{SYSTEM}/pods"
    plane.expect("POST", pods, {"metadata": {"name": "driver-of-one"}, "spec": spec})
    pod = plane.expect("GET", f"{pods}/driver-of-one")["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
    token_request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    token = str(plane.expect("POST", f"{ACCOUNT}/token", token_request)["status"]["token"])
    cluster = installed.cluster("pod-one", token)
    cluster.delete_slice(cluster.create_slice(a_slice("pod-one")))
    assert "of that Node only" in refusal(lambda: cluster.create_slice(a_slice("pod-two")))
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod, "namespace": SYSTEM}}
    cluster.event(about, "Tested", "an event from the account of a pod")
    with pytest.raises(ApiError) as denied:
        cluster.request("GET", f"/apis/events.k8s.io/v1/namespaces/{SYSTEM}/events")
    assert denied.value.status == 403
    plane.expect("DELETE", f"{pods}/driver-of-one?gracePeriodSeconds=0")


def test_the_server_accepts_the_daemonset(installed: Installed) -> None:
    """The server accepts every field of the manifests. Paths are the same on the node and in the container."""
    accepted = {}
    for manifest in sorted(MANIFESTS.glob("daemonset/*.yaml")):
        item = yaml.safe_load(manifest.read_text())
        collection = PATHS[item["kind"]].format(namespace=item["metadata"].get("namespace"))
        path = f"{collection}/{item['metadata']['name']}?fieldManager=test&fieldValidation=Strict&dryRun=All"
        accepted[item["kind"]] = installed.plane.expect("PATCH", path, item, "application/apply-patch+yaml")
    assert sorted(accepted) == ["ConfigMap", "DaemonSet"]
    pod = accepted["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    for volume in pod["volumes"]:
        if volume["name"] not in ("settings", "hook-python"):  # CDI specs need the same path on the node
            assert mounts[volume["name"]]["mountPath"] == volume["hostPath"]["path"]
    assert mounts["run"]["mountPropagation"] == "Bidirectional"


def test_other_requests_are_denied(installed: Installed) -> None:
    node = installed.node("denied-one")
    assert node.node_object()["metadata"]["name"] == "denied-one"
    for method, path in (
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/pods"),
        ("DELETE", "/api/v1/nodes/denied-one"),
        ("DELETE", SLICES),
        ("GET", "/apis/resource.k8s.io/v1/resourceclaims"),
    ):
        with pytest.raises(ApiError) as denied:
            node.request(method, path)
        assert denied.value.status == 403, path


def test_a_token_file_is_renewed(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.node("renewal")
    path = tmp_path / "token"
    old = installed.token("renewal", 600)
    path.write_text(old)
    access = Access(installed.plane.url, installed.plane.authority.certificate.read_text(), token_file=path)
    cluster = Cluster(lambda: access, DRIVER, "renewal")
    renewal = driver_token.TokenRenewer(cluster, path)
    new = renewal.renew()
    assert path.read_text() != old and path.stat().st_mode & 0o777 == 0o600
    assert new.expires - new.issued > 600 and renewal.expires == new.expires
    assert cluster.node_object()["metadata"]["name"] == "renewal"
    # the thread does not renew a fresh token
    renewal = driver_token.TokenRenewer(cluster, path)
    text = path.read_text()
    renewal.start()
    installed.plane.wait_for(lambda: renewal.expires, "the thread")
    renewal.stop()
    assert path.read_text() == text and renewal.problem == ""
    # the thread renews a token whenever renewal is due
    with monkeypatch.context() as patch:
        patch.setattr(driver_token, "_RENEW_AFTER", 0.0)
        renewal = driver_token.TokenRenewer(cluster, path)
        renewal.start()
        for _renewal in range(2):
            text = path.read_text()
            installed.plane.wait_for(functools.partial(lambda old: path.read_text() != old, text), "a new token")
        renewal.stop()
    assert cluster.node_object()["metadata"]["name"] == "renewal" and renewal.problem == ""

    path.write_text(installed.token(None))
    with pytest.raises(AccessError, match="not bound"):
        renewal.renew()
    path.write_text(old)
    other = driver_token.TokenRenewer(Cluster(lambda: access, DRIVER, "elsewhere"), path)
    with pytest.raises(AccessError, match="is bound to the Node renewal"):
        other.renew()
    installed.plane.expect("DELETE", "/api/v1/nodes/renewal")

    def invalid() -> bool:
        try:
            renewal.renew()
        except AccessError as error:
            return "the API server rejects the token" in error.message
        except ApiError:
            return False  # the server caches for a moment that the token was valid
        return False

    installed.plane.wait_for(invalid, "the token to become invalid with its node")


def test_an_expired_token_is_reported_with_the_fix(installed: Installed, tmp_path: Path) -> None:
    installed.node("was-off")
    path = tmp_path / "token"
    access = Access(installed.plane.url, installed.plane.authority.certificate.read_text(), token_file=path)
    renewal = driver_token.TokenRenewer(Cluster(lambda: access, DRIVER, "was-off"), path)
    head, body, signature = installed.token("was-off").split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims.update(iat=1000000000, exp=1000086400)
    old = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    path.write_text(f"{head}.{old}.{signature}")
    renewal.start()
    installed.plane.wait_for(lambda: renewal.problem, "the thread")
    renewal.stop()
    assert "the token expired on 2001-09-10 01:46 UTC, while the node was off" in renewal.problem
    assert "ansible-playbook lanewise.dra.driver --limit was-off" in renewal.problem


def test_with_the_policy_of_an_earlier_release_a_token_is_valid_for_a_day(installed: Installed, tmp_path: Path) -> None:
    plane, name = installed.plane, "lanewise-driver-token"
    installed.node("earlier")
    policy_path = f"{PATHS['ValidatingAdmissionPolicy']}/{name}"
    policy = yaml.safe_load((MANIFESTS / "32-policy-token.yaml").read_text().replace("604800", "86400"))
    apply = "?fieldManager=test&force=true"
    plane.expect("PATCH", policy_path + apply, policy, "application/apply-patch+yaml")
    path = tmp_path / "token"
    path.write_text(installed.token("earlier"))
    access = Access(plane.url, plane.authority.certificate.read_text(), token_file=path)
    cluster = Cluster(lambda: access, DRIVER, "earlier")
    uid = cluster.node_object()["metadata"]["uid"]
    plane.wait_for(lambda: refusal(lambda: request_token(cluster, "earlier", uid, 604800)), "the earlier policy")
    new = driver_token.TokenRenewer(cluster, path).renew()
    assert new.expires - new.issued == 86400
    policy = yaml.safe_load((MANIFESTS / "32-policy-token.yaml").read_text())
    plane.expect("PATCH", policy_path + apply, policy, "application/apply-patch+yaml")
    plane.wait_for(lambda: not refusal(lambda: request_token(cluster, "earlier", uid, 604800)), "the current policy")
    new = driver_token.TokenRenewer(cluster, path).renew()
    assert new.expires - new.issued == 604800


# slices


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_eight_pfs_of_sixteen_vfs_are_stored_unchanged(installed: Installed, tmp_path: Path, version: str) -> None:
    """The slices of a machine with eight PFs and sixteen VFs each are the same on the server, in each API version."""
    name = f"big-{version}"
    cluster = installed.node(name)
    cluster._version = f"resource.k8s.io/{version}"
    modern = installed.plane.minor != "1.34"
    features = cluster.features()
    assert features == Features(taints=modern, counters=modern, shares=modern)
    inventory = Inventory(Settings, lambda: (), str(build(EIGHT_BY_SIXTEEN, tmp_path / "machine")))
    publisher = Publisher(cluster, inventory)
    plan = publisher.publish("test")
    assert plan.generation == 1 and len(plan.create) == (4 if modern else 1)
    assert len(installed.devices(name)) == (136 if modern else 128)
    assert publisher._features == features  # nothing was dropped
    for sent in plan.create:
        stored = installed.plane.expect("GET", f"{SLICES}/{sent['metadata']['name']}")
        assert driver_slices.same(stored["spec"], sent["spec"])
        assert stored["metadata"]["ownerReferences"][0]["name"] == name
        assert stored["metadata"]["annotations"] == {
            "lanewise.dev/version": importlib.metadata.version("lanewise-driver")
        }
    assert not publisher.publish("again")
    listed, _version = cluster.slices()
    assert {entry["apiVersion"] for entry in listed} == {"resource.k8s.io/v1"}


def test_the_api_version_is_changed_to_one_that_the_server_serves(
    planes: t.Callable[[str], ControlPlane], tmp_path: Path
) -> None:
    """The server no longer serves the API version in use.

    A 1.34 server starts without resource.k8s.io/v1 only if its own use of that API is switched off.
    """
    plane = ControlPlane(
        "1.34",
        gates={"DynamicResourceAllocation": False},
        runtime_config={"resource.k8s.io/v1": False},
        scheduler=False,
        controller_manager=False,
        folder=tmp_path / "cluster",
    )
    with plane:
        installed = install(plane)
        cluster = installed.node("old")
        assert cluster.api_version == "resource.k8s.io/v1beta2"
        cluster._version = "resource.k8s.io/v1"  # as if the server had been downgraded
        assert refusal(lambda: cluster.create_slice(a_slice("old"))) == ""
        assert cluster.api_version == "resource.k8s.io/v1beta2"
        assert [resource_slice["metadata"]["name"] for resource_slice in cluster.slices()[0]] == [
            "00000-lanewise.dev-old"
        ]


# claims


def _allocated(plane: ControlPlane, node: str) -> tuple[str, dict[str, t.Any]]:
    """Create the claim `status` and a pod, and wait until the claim is allocated on the node. Returns the claim's UID
    and the pod."""
    base = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    plane.expect(
        "POST",
        "/apis/resource.k8s.io/v1/deviceclasses",
        {"metadata": {"name": "status-nic"}, "spec": {"selectors": [selector]}},
    )
    request = {"name": "nic", "exactly": {"deviceClassName": "status-nic"}}
    # unsorted keys: the server would treat a configuration with sorted keys as changed
    config = {"opaque": {"driver": DRIVER, "parameters": {"z": {"y": 1, "b": 2}, "a": 1}}}
    claim = {"metadata": {"name": "status"}, "spec": {"devices": {"requests": [request], "config": [config]}}}
    uid = plane.expect("POST", base, claim)["metadata"]["uid"]
    pod = {
        "metadata": {"name": "status"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "nic"}]}}],
            "resourceClaims": [{"name": "nic", "resourceClaimName": "status"}],
        },
    }
    plane.expect("POST", "/api/v1/namespaces/default/pods", pod)
    plane.wait_for(lambda: "allocation" in plane.expect("GET", f"{base}/status").get("status", {}), "the scheduler")
    return uid, pod


def test_a_driver_may_write_only_the_status_of_claims_on_its_node(installed: Installed) -> None:
    """The driver may write the status of a claim that is allocated on its node, and no other part of a claim."""
    plane, node = installed.plane, "status-node"
    cluster = installed.node(node)
    installed.node("status-other")
    device = {"name": "pci-0000-8a-00-0"}
    cluster.create_slice(a_slice(node, devices=[device]))
    base = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    uid, pod = _allocated(plane, node)

    stored_claim = cluster.claim("default", "status")
    assert (
        stored_claim
        and stored_claim["metadata"]["uid"] == uid
        and stored_claim["spec"]["devices"]["requests"][0]["exactly"]
    )
    assert cluster.claim("default", "none") is None and cluster.pod("default", "none") is None
    assert (cluster.pod("default", "status") or {})["spec"]["nodeName"] == node
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Attached",
        "message": "",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    result = {
        "driver": DRIVER,
        "pool": node,
        "device": device["name"],
        "conditions": [condition],
        "networkData": {"interfaceName": "net1", "hardwareAddress": "02:00:00:00:00:01", "ips": ["10.0.0.2/24"]},
    }
    assert cluster.set_claim_devices("default", "status", uid, [result])
    (stored,) = plane.expect("GET", f"{base}/status")["status"]["devices"]
    assert driver_slices.same(stored, result)
    cluster._version = "resource.k8s.io/v1beta1"
    stored_claim = cluster.claim("default", "status")
    assert (
        stored_claim
        and stored_claim["apiVersion"] == "resource.k8s.io/v1"
        and stored_claim["spec"]["devices"]["requests"][0]["exactly"]
    )
    assert cluster.set_claim_devices("default", "status", uid, [])
    assert "devices" not in plane.expect("GET", f"{base}/status")["status"]
    assert not cluster.set_claim_devices("default", "status", "00000000-0000-0000-0000-000000000000", [result])
    assert not cluster.set_claim_devices("default", "missing", uid, [result])
    if plane.minor != "1.34":  # since 1.36, the server checks the node
        other = installed.cluster("status-other")
        assert "arbitrary-node:patch" in refusal(lambda: other.set_claim_devices("default", "status", uid, [result]))

    cluster.event(
        pod | {"kind": "Pod", "apiVersion": "v1", "metadata": stored_claim["metadata"]}, "NotReady", "x" * 2000, True
    )
    events = plane.expect("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    (event,) = [entry for entry in events if entry.get("reportingController") == DRIVER]
    assert (event["type"], event["reason"], event["reportingInstance"]) == ("Warning", "NotReady", node)


@pytest.mark.parametrize(
    "odd",
    [b"[" * 990 + b"]" * 990, b"[" * 4900 + b"]" * 4900, b'"\xff"', b'"\\ud800"'],
    ids=["nested", "deep", "bytes", "half"],
)
def test_a_claim_with_any_configuration_is_read(installed: Installed, odd: bytes) -> None:
    """Kubernetes accepts all these configurations. A driver must be able to read the claim, to refuse it or to clear
    its status."""
    cluster, base = installed.node("odd-node"), "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    head = b'{"metadata":{"name":"odd"},"spec":{"devices":{"config":[{"opaque":{"driver":"lanewise.dev",'
    rest = b'"parameters":{"mtu":%s}}}],"requests":[{"name":"nic","exactly":{"deviceClassName":"none"}}]}}}' % odd
    uid = installed.plane.expect("POST", base, head + rest)["metadata"]["uid"]
    try:
        found = cluster.claim("default", "odd")
        assert found and found["metadata"]["uid"] == uid
        (config,) = found["spec"]["devices"]["config"]
        assert "mtu" in config["opaque"]["parameters"]
        assert interface_config.validate(config["opaque"]["parameters"], "config")
        assert cluster.set_claim_devices("default", "odd", uid, [])
    finally:
        installed.plane.expect("DELETE", f"{base}/odd")


# a running driver


@pytest.fixture
def running(installed: Installed, tmp_path: Path) -> t.Iterator[t.Callable[[str, str], Node]]:
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs root, unshare and ip for a network namespace")
    started: list[Node] = []

    def start(name: str, settings: str) -> Node:
        installed.plane.add_node(name)
        port = installed.plane.ports["kube-apiserver"]
        authority = installed.plane.authority.certificate
        started.append(Node(port, tmp_path, installed.token(name), authority, name, settings))
        return started[-1]

    yield start
    for node in started:
        node.close()


SETTINGS = "virtual_interfaces: [nic*]\n"


def attribute(devices: dict[str, Object], name: str, key: str) -> t.Any:
    found = devices.get(name, {}).get("attributes", {}).get(key)
    return next(iter(found.values())) if found else None


def _check_links(installed: Installed, node: Node, name: str) -> None:
    """Check that new interfaces and link changes are published."""
    plane = installed.plane
    node.ip("link", "add", "nic0", "type", "veth", "peer", "name", "peer0")
    until(lambda: set(installed.devices(name)) == {"net-nic0"})
    assert attribute(installed.devices(name), "net-nic0", "up") is False
    node.ip("link", "set", "peer0", "up")
    time.sleep(1)
    node.ip("link", "set", "nic0", "up")
    until(lambda: attribute(installed.devices(name), "net-nic0", "up") is True)
    time.sleep(1)
    node.ip("link", "set", "peer0", "down")
    until(lambda: attribute(installed.devices(name), "net-nic0", "up") is False)
    if plane.minor != "1.34":
        assert installed.devices(name)["net-nic0"]["taints"][0]["key"] == "lanewise.dev/link-down"
    time.sleep(1)
    node.ip("link", "set", "peer0", "up")
    until(lambda: attribute(installed.devices(name), "net-nic0", "up") is True)


def _check_changes_by_others(installed: Installed, node: Node, name: str) -> None:
    """Check that the slices are restored after others delete all (as kubelet does when it starts), change one or add
    one."""
    plane = installed.plane
    time.sleep(1)
    plane.expect("DELETE", f"{SLICES}?fieldSelector=spec.nodeName={name}")
    until(lambda: attribute(installed.devices(name), "net-nic0", "up") is True)
    time.sleep(1)
    (resource_slice,) = installed.slices(name)
    resource_slice["spec"]["devices"][0]["attributes"] = {"forged": {"bool": True}}
    plane.expect("PUT", f"{SLICES}/{resource_slice['metadata']['name']}", resource_slice)
    until(lambda: attribute(installed.devices(name), "net-nic0", "up") is True)
    stray = a_slice(name, pool={"name": "stray", "generation": 7, "resourceSliceCount": 1})
    stray["metadata"]["name"] = driver_slices.slice_name(7, DRIVER, name)
    plane.expect("POST", SLICES, stray)
    until(lambda: len(installed.slices(name)) == 1)


def _check_that_nothing_is_written(installed: Installed, node: Node, name: str) -> list[str]:
    """Check that nothing is written while only irrelevant interfaces are added. Returns the slices' resource
    versions."""
    until(lambda: "nic0" in installed.devices(name)["net-nic0"]["attributes"]["ifName"]["string"])
    time.sleep(1.5)
    before = [resource_slice["metadata"]["resourceVersion"] for resource_slice in installed.slices(name)]
    for number in range(10):
        node.ip("link", "add", f"pod{number}", "type", "veth", "peer", "name", f"other{number}")
    time.sleep(2)
    assert [resource_slice["metadata"]["resourceVersion"] for resource_slice in installed.slices(name)] == before
    return before


def _check_settings(installed: Installed, node: Node, name: str, before: list[str]) -> None:
    """Check that new settings are published, and that invalid ones change nothing."""
    node.settings.write_text("virtual_interfaces: [nic*]\naliases: {nic0: storage}\nnonsense: 1\n")
    until(lambda: "nonsense" in node.log.read_text())
    time.sleep(1)
    assert [resource_slice["metadata"]["resourceVersion"] for resource_slice in installed.slices(name)] == before
    node.settings.write_text("virtual_interfaces: [nic*]\naliases: {nic0: storage}\n")
    until(lambda: attribute(installed.devices(name), "net-nic0", "alias") == "storage")


def _check_uplinks(installed: Installed, node: Node, name: str) -> None:
    """Check that an interface is no longer published while the node itself uses it."""
    node.ip("link", "add", "br0", "type", "bridge")
    node.ip("link", "set", "nic0", "master", "br0")
    until(lambda: installed.devices(name) == {})
    node.ip("link", "set", "nic0", "nomaster")
    until(lambda: set(installed.devices(name)) == {"net-nic0"})
    node.ip("addr", "add", "192.0.2.2/24", "dev", "nic0")
    node.ip("route", "add", "default", "via", "192.0.2.1", "table", "77")
    until(lambda: installed.devices(name) == {})
    node.ip("route", "del", "default", "via", "192.0.2.1", "table", "77")
    until(lambda: set(installed.devices(name)) == {"net-nic0"})


def _check_an_outage(installed: Installed, node: Node, name: str) -> None:
    """Check that changes during an outage of the API server are published after it."""
    plane = installed.plane
    plane.stop("kube-apiserver")
    node.ip("link", "add", "nic1", "type", "veth", "peer", "name", "peer1")
    time.sleep(3)
    assert node.alive()
    plane.start("kube-apiserver")
    plane.wait_ready("kube-apiserver")
    until(lambda: set(installed.devices(name)) == {"net-nic0", "net-nic1"}, 45)
    time.sleep(3)
    # restored only if the watch works again
    plane.expect("DELETE", f"{SLICES}?fieldSelector=spec.nodeName={name}")
    until(lambda: set(installed.devices(name)) == {"net-nic0", "net-nic1"})
    generations = {resource_slice["spec"]["pool"]["generation"] for resource_slice in installed.slices(name)}
    assert len(generations) == 1


def test_publishing_follows_the_node(installed: Installed, running: t.Callable[[str, str], Node]) -> None:
    """The driver publishes changes of links and settings, restores slices that others changed, and recovers from an
    outage of the API server.

    The waits are far shorter than the publisher's resync interval (`RESYNC_SECONDS`), so only events can end them.
    """
    name = "follows"
    node = running(name, SETTINGS)
    until(lambda: installed.slices(name))
    assert installed.devices(name) == {}  # an empty pool is published, too
    _check_links(installed, node, name)
    _check_changes_by_others(installed, node, name)
    before = _check_that_nothing_is_written(installed, node, name)
    _check_settings(installed, node, name, before)
    _check_uplinks(installed, node, name)
    _check_an_outage(installed, node, name)


def test_a_recreated_node_gets_its_slices(
    installed: Installed, running: t.Callable[[str, str], Node], tmp_path: Path
) -> None:
    """The old Node's token becomes invalid. With a new token, the driver publishes slices owned by the new Node."""
    plane, name = installed.plane, "recreated"
    node = running(name, SETTINGS)
    until(lambda: installed.slices(name))
    plane.expect("DELETE", f"/api/v1/nodes/{name}")
    plane.wait_for(lambda: not installed.slices(name), "the garbage collector")
    uid = plane.add_node(name)["metadata"]["uid"]
    (tmp_path / "token").write_text(installed.token(name))
    until(lambda: installed.slices(name), 60)
    time.sleep(2)
    (resource_slice,) = installed.slices(name)
    assert resource_slice["metadata"]["ownerReferences"][0]["uid"] == uid and node.alive()


def test_two_instances_of_a_driver_agree_on_one_set_of_slices(installed: Installed, tmp_path: Path) -> None:
    """During a rolling update, two instances publish at once. They agree on one set of slices and stop writing."""
    installed.node("twice")
    root = str(build("sriov", tmp_path / "machine"))
    publishers = [Publisher(installed.cluster("twice"), Inventory(Settings, lambda: (), root)) for _number in range(2)]

    def versions() -> set[tuple[str, str]]:
        return {
            (resource_slice["metadata"]["uid"], resource_slice["metadata"]["resourceVersion"])
            for resource_slice in installed.slices("twice")
        }

    def quiet() -> bool:
        before = versions()
        time.sleep(2)  # longer than a publisher waits for further events
        published = all(publisher.last_published and not publisher.problem for publisher in publishers)
        return published and versions() == before

    for publisher in publishers:
        publisher.start()
    try:
        installed.plane.wait_for(quiet, "two publishers to stop changing slices")
    finally:
        for publisher in publishers:
            publisher.stop()
    assert not any(entry.publish("again") for entry in publishers)
    assert installed.devices("twice")


def test_credentials_of_kubeconfigs_are_used_or_refused(installed: Installed, tmp_path: Path) -> None:
    """Kubeconfigs in kubeadm's format are used. Others are refused, with the reason."""
    plane = installed.plane
    admin_access = driver.from_kubeconfig(plane.kubeconfig)
    admin = Cluster(lambda: admin_access, DRIVER, "policy-probe")
    assert admin.node_object()["metadata"]["name"] == "policy-probe"
    assert [str(address) for address in admin.api_addresses()] == ["127.0.0.1"]
    data = json.loads(plane.kubeconfig.read_text())
    path = tmp_path / "kubeconfig"
    (tmp_path / "client.pem").write_bytes(plane.authority.issue("alice").read_bytes())
    (tmp_path / "ca.pem").write_bytes(plane.authority.certificate.read_bytes())
    data["users"][0]["user"] = {"client-certificate": "client.pem", "client-key": "client.pem"}
    data["clusters"][0]["cluster"] = {"server": plane.url, "certificate-authority": "ca.pem"}
    path.write_text(json.dumps(data))
    alice = Cluster(lambda: driver.from_kubeconfig(path), DRIVER, "policy-probe")
    with pytest.raises(ApiError, match='User "alice"'):
        alice.node_object()
    (tmp_path / "client.pem").write_bytes(plane.authority.issue("bob").read_bytes())  # rotated
    with pytest.raises(ApiError, match='User "bob"'):
        alice.node_object()
    data["users"][0]["user"] = {"exec": {"command": "login"}}
    path.write_text(json.dumps(data))
    with pytest.raises(AccessError, match="needs a program to authenticate"):
        alice.node_object()
    path.write_text("current-context: none\n")
    with pytest.raises(AccessError, match="not a valid kubeconfig"):
        alice.node_object()
    with pytest.raises(AccessError, match="could not read"):
        driver.from_kubeconfig(tmp_path / "none")
    stranger = Access(plane.url, "", token="x")
    with pytest.raises(Unreachable, match=r"(?i)certificate"):
        Cluster(lambda: stranger, DRIVER, "policy-probe", 0).node_object()
    with pytest.raises(ApiError) as denied:
        installed.cluster("policy-probe", "no.token.atall").node_object()
    assert denied.value.status == 401


def test_nodes_get_only_the_certificates_of_an_authority_file(
    installed: Installed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = installed.plane.authority.certificate.read_text()
    data = json.loads(installed.plane.kubeconfig.read_text())
    data["clusters"][0]["cluster"] = {"server": installed.plane.url, "certificate-authority": "ca.pem"}
    (tmp_path / "kubeconfig").write_text(json.dumps(data))

    def authority_of(text: str) -> str:
        (tmp_path / "ca.pem").write_text(text, encoding="utf-8")
        arguments = {"kubeconfig": str(tmp_path / "kubeconfig"), "node": "none"}
        with patch_module_args(arguments), pytest.raises(SystemExit) as stop:
            dra_driver_access.main()
        output = capsys.readouterr().out
        assert not stop.value.code, output
        return str(json.loads(output)["certificate_authority"])

    for same in (plain, plain.rstrip(), f"\n{plain}\n\n{plain}\n"):
        assert authority_of(same) == same
    key = installed.plane.authority.account_key.read_text()
    assert authority_of(f"# de la Société\n{plain}{key}# -----BEGIN CERTIFICATE-----\n{plain}") == plain * 2


def test_kubectl_applies_the_manifests(installed: Installed) -> None:
    """kubectl applies the unchanged files, with strict validation."""
    plane = installed.plane
    kubectl = [str(plane.programs["kubectl"]), "--kubeconfig", str(plane.kubeconfig), "apply", "--server-side"]
    command = [*kubectl, "--dry-run=server", "--validate=strict", "--force-conflicts", "-f", str(MANIFESTS)]
    subprocess.run(command, check=True, capture_output=True)
