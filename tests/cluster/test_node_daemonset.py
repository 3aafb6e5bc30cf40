# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver as a DaemonSet: the manifests of driver/manifests/daemonset with a real kubelet and container runtime.

No image is built: this machine's Python and the driver's package are mounted into the pod's container at their paths.
Everything else is as in the manifest: permissions, mounts with their propagation, service account, probes.
"""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.controlplane import Failed
from ansible_collections.lanewise.dra.tests.cluster.node import IMAGE, Node, ip

lanewise_driver = pytest.importorskip(
    "lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it"
)

from ansible_collections.lanewise.dra.tests.cluster.driver import (  # noqa: E402
    API,
    MANIFESTS,
    NAME,
    NAMESPACE,
    READY,
    add_rail,
    host_state,
)

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_PLURALS = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}


def apply(node: Node, item: Object) -> None:
    plural = _PLURALS.get(item["kind"], f"{item['kind'].lower()}s")
    metadata, group = item["metadata"], item["apiVersion"]
    collection = f"namespaces/{metadata['namespace']}/{plural}" if "namespace" in metadata else plural
    path = f"/{'apis' if '/' in group else 'api'}/{group}/{collection}/{metadata['name']}"
    node.plane.expect("PATCH", f"{path}?fieldManager=test&fieldValidation=Strict", item, "application/apply-patch+yaml")


def with_local_programs(item: Object, node: Node) -> Object:
    """The DaemonSet with this machine's programs instead of an image."""
    (container,) = item["spec"]["template"]["spec"]["containers"]
    container["image"], container["imagePullPolicy"] = IMAGE, "Never"
    container["command"] = [sys.executable, "-m", "lanewise_driver.cli"]
    port = str(node.plane.ports["kube-apiserver"])  # the API server's cluster IP is not reachable here
    more = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port, "PYTHONPATH": ":".join(sys.path)}
    container["env"] += [{"name": name, "value": value} for name, value in more.items()]
    paths = {Path(path).resolve() for path in sys.path if path.startswith("/")}
    paths |= {Path(path) for path in (*sys.path, sys.prefix) if path.startswith("/")} | {Path(sys.base_prefix)}
    paths |= {Path(path).resolve() for path in (*lanewise_driver.__path__, __file__)}
    paths |= {path.resolve() for folder in lanewise_driver.__path__ for path in Path(folder).iterdir()}
    all_folders = {path if path.is_dir() else path.parent for path in paths if path.exists()} | {Path("/usr")}
    folders = sorted(path for path in all_folders if not any(parent in all_folders for parent in path.parents))
    for number, folder in enumerate(folders):
        name = f"local-{number}"
        container["volumeMounts"].append({"name": name, "mountPath": str(folder), "readOnly": True})
        volume = {"name": name, "hostPath": {"path": str(folder)}}
        item["spec"]["template"]["spec"]["volumes"].append(volume)
    return item


def driver_pod(node: Node) -> Object | None:
    """The driver's pod, if it is ready and the only one."""
    pods = node.plane.expect("GET", PODS)["items"]
    if len(pods) != 1:
        return None
    conditions = pods[0]["status"].get("conditions", ())
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return t.cast(Object, pods[0]) if ready else None


def diagnostics(node: Node) -> str:
    """The status, events and logs of the driver's pods."""
    pods = node.plane.expect("GET", PODS)["items"]
    events = node.plane.expect("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    logs = [path.read_text() for path in Path("/var/log/pods").rglob("*.log")]
    reported = [f"{event['reason']}: {event['message']}" for event in events]
    return "\n".join([json.dumps([pod["status"] for pod in pods]), *reported, *logs])


@pytest.fixture(name="driver", scope="module")
def _driver(node: Node) -> Object:
    add_rail(0)
    for path in sorted(MANIFESTS.glob("*.yaml")) + sorted(MANIFESTS.glob("daemonset/*.yaml")):
        item = yaml.safe_load(path.read_text())
        if item["kind"] == "ConfigMap":
            item["data"]["driver.yml"] += 'virtual_interfaces: ["rail*"]\n'
        apply(node, with_local_programs(item, node) if item["kind"] == "DaemonSet" else item)
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    device_class = {"metadata": {"name": "nic"}, "spec": {"selectors": [selector]}}
    node.plane.expect("POST", f"{API}/deviceclasses", device_class)
    try:
        return t.cast(Object, node.plane.wait_for(lambda: driver_pod(node), "the driver's pod to be ready", 120))
    except Failed as failure:
        raise Failed(f"{failure} ({READY}):\n{diagnostics(node)}") from None


def test_the_driver_publishes_with_the_account_of_its_pod(node: Node, driver: Object) -> None:
    (item,) = node.plane.expect("GET", f"{API}/resourceslices")["items"]
    assert item["spec"]["nodeName"] == node.name
    assert [device["attributes"]["ifName"]["string"] for device in item["spec"]["devices"]] == ["rail0"]


def test_a_pod_keeps_its_device_while_the_driver_is_replaced(node: Node, driver: Object) -> None:
    before = host_state("rail0")
    config = {"name": "net1", "addresses": ["203.0.113.2/28"], "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2}}
    devices = {
        "requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}],
        "config": [{"opaque": {"driver": NAME, "parameters": parameters(config)}}],
    }
    claim = {"metadata": {"name": "one"}, "spec": {"devices": devices}}
    node.plane.expect("POST", f"{API}/namespaces/default/resourceclaims", claim)
    try:
        node.run_pod(node.pod("one", resourceClaims=[{"name": "net", "resourceClaimName": "one"}]))
    except Failed as failure:
        raise Failed(f"{failure}\n{diagnostics(node)}") from None
    assert "203.0.113.2/28" in node.execute("one", "ip", "address", "show", "dev", "net1")
    assert node.execute("one", "cat", "/proc/sys/net/ipv4/conf/net1/rp_filter") == "2\n"
    assert "rail0" not in ip("-brief link")
    uid = node.plane.expect("GET", f"{API}/namespaces/default/resourceclaims/one")["metadata"]["uid"]
    pinned = f" /run/lanewise/netns/{uid} nsfs "
    assert pinned in Path("/proc/mounts").read_text()  # mounted on the node, not only in the driver's container

    old = driver["metadata"]
    node.plane.expect("DELETE", f"{PODS}/{old['name']}")

    def replaced() -> bool:
        pod = driver_pod(node)
        return bool(pod and pod["metadata"]["uid"] != old["uid"])

    node.plane.wait_for(replaced, "a new pod of the driver", 120)
    assert pinned in Path("/proc/mounts").read_text()
    assert "203.0.113.2/28" in node.execute("one", "ip", "address", "show", "dev", "net1")
    node.delete_pod("one")
    node.plane.wait_for(lambda: "rail0" in ip("-brief link"), "rail0 to return to the node", 30)
    node.plane.wait_for(
        lambda: pinned not in Path("/proc/mounts").read_text(), "the pinned namespace to be removed", 30
    )
    assert host_state("rail0") == before
