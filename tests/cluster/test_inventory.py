# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The inventory plugin, run by ansible-inventory against a real API server, and the listing of objects in pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils import cluster_lists
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_lists import read_all
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import kueue
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.module_utils.topology.publish import DRIVER, VERSION_ANNOTATION
from ansible_collections.lanewise.dra.tests.cluster.client import Client
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

ANSIBLE_INVENTORY = Path(sys.executable).with_name("ansible-inventory")
RESOURCE = "/apis/resource.k8s.io/v1"
DRIVERS = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}

kubernetes = pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
urllib3 = pytest.importorskip("urllib3", reason="comes with the Python client of Kubernetes")
pytest.importorskip("ansible", reason="needs ansible-core")
pytestmark = pytest.mark.skipif(not ANSIBLE_INVENTORY.exists(), reason="needs ansible-core beside this Python")

from ansible.module_utils.testing import patch_module_args  # noqa: E402
from ansible_collections.lanewise.dra.plugins.modules import dra_objects_info  # noqa: E402


def inventory(folder: Path, plane: ControlPlane | None, **options: t.Any) -> subprocess.CompletedProcess[str]:
    source = folder / "cluster.slices.yml"
    kubeconfig = str(plane.kubeconfig) if plane else str(folder / "none")
    source.write_text(yaml.safe_dump({"plugin": "lanewise.dra.slices", "kubeconfig": kubeconfig, **options}))
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
    }
    command = [str(ANSIBLE_INVENTORY), "-i", str(source), "--list"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


def read(output: str) -> t.Any:
    """Parse the output of ansible-inventory, with unsafe strings as plain strings."""
    return json.loads(output, object_hook=lambda mapping: mapping.get("__ansible_unsafe", mapping))


def test_hosts_are_the_nodes_with_their_devices(control_plane: ControlPlane, tmp_path: Path) -> None:
    plane, version = control_plane, control_plane.version.replace(".", "-")
    whole, incomplete = f"inventory-{version}-whole", f"inventory-{version}-incomplete"
    for node, machine in ((whole, "degraded"), (incomplete, "dgx-a100")):
        plane.add_node(node)
        node_slices = slices(offers(node, facts(machine), DRIVERS))
        for resource_slice in node_slices:
            if resource_slice["spec"]["driver"] == DRIVER:
                resource_slice["metadata"]["annotations"] = {VERSION_ANNOTATION: "1.0.0"}
            plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)
        if node == incomplete:
            lanewise_slice = next(entry for entry in node_slices if entry["spec"]["driver"] == "lanewise.dev")
            pool = {**lanewise_slice["spec"]["pool"], "generation": 7, "resourceSliceCount": 2}
            spec = {**lanewise_slice["spec"], "pool": pool}
            again = {**lanewise_slice, "metadata": {"name": f"{incomplete}-again"}, "spec": spec}
            plane.expect("POST", f"{RESOURCE}/resourceslices", again)
    done = inventory(
        tmp_path,
        plane,
        keyed_groups=[{"prefix": "rail", "key": "dra_rails"}],
        groups={"broken": "dra_findings | length > 0"},
        compose={"nics": "dra_devices | selectattr('driver', 'equalto', 'lanewise.dev') | length"},
    )
    assert done.returncode == 0, done.stderr
    listed = read(done.stdout)
    hosts = listed["_meta"]["hostvars"]
    assert hosts[whole]["dra_drivers"] == ["gpu.nvidia.com", "lanewise.dev"]
    assert hosts[whole]["dra_driver_versions"] == {"lanewise.dev": "1.0.0"}
    assert hosts[whole]["dra_numa_nodes"] == [0, 1]
    assert hosts[whole]["dra_ready"] is True and hosts[whole]["dra_schedulable"] is True
    published = [offer for offer in offers(whole, facts("degraded"), DRIVERS) if offer.driver == "lanewise.dev"]
    assert hosts[whole]["nics"] == len(published)
    down = any("lanewise.dev/link-down:NoSchedule" in finding for finding in hosts[whole]["dra_findings"])
    assert down is not plane.version.startswith("v1.34")  # which drops taints by default
    assert hosts[incomplete]["nics"] == 0
    assert (
        f"lanewise.dev: pool {incomplete} has 1 of 2 slices: none of its devices can be allocated"
        in hosts[incomplete]["dra_findings"]
    )
    broken = {host for host in listed["broken"]["hosts"] if host in (whole, incomplete)}
    assert broken == ({whole, incomplete} if down else {incomplete})
    assert whole in listed["rail_0"]["hosts"]
    only = read(inventory(tmp_path, plane, drivers=["gpu.nvidia.com"]).stdout)["_meta"]["hostvars"][whole]
    assert {dra_device["driver"] for dra_device in only["dra_devices"]} == {"gpu.nvidia.com"}


def test_the_cache_serves_one_cluster(newest: ControlPlane, oldest: ControlPlane, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(folder), "cache_timeout": 600}

    def hosts(plane: ControlPlane | None = None, **options: t.Any) -> set[str]:
        done = inventory(tmp_path, plane, **{"all_nodes": True, **cache, **options})
        assert done.returncode == 0, done.stderr
        return set(read(done.stdout)["_meta"]["hostvars"])

    newest.add_node("cached-newest")
    oldest.add_node("cached-oldest")
    first = hosts(newest)
    assert "cached-newest" in first
    newest.add_node("cached-later")
    assert hosts(newest) == first
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "cached-newest" in text and "managedFields" not in text
    assert "cached-oldest" in hosts(oldest) and not first & {"cached-oldest"}
    for plane, expected in ((newest, "cached-newest"), (oldest, "cached-oldest")):  # the same file with other contents
        (tmp_path / "one.yml").write_text(plane.kubeconfig.read_text())
        assert expected in hosts(kubeconfig=str(tmp_path / "one.yml"))
    assert "cached-newest" not in hosts(newest, drivers=["dra.net"], all_nodes=False)


def test_a_list_with_an_expired_continue_token_is_requested_again(newest: ControlPlane) -> None:
    """The test lists Events, because the API server does not cache them. So a compaction of etcd expires the token."""
    path, names = "/api/v1/namespaces/default/events", [f"part-{number}" for number in range(4)]
    api = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(newest.kubeconfig)))
    etcd = Client(newest.ports["etcd"], newest.authority.certificate, newest.authority.server)
    queries = []

    def add(name: str) -> str:
        metadata = {"name": name, "labels": {"test": "parts"}}
        created = newest.expect("POST", path, {"metadata": metadata, "involvedObject": {"namespace": "default"}})
        return str(created["metadata"]["resourceVersion"])

    def request(**query: t.Any) -> t.Any:
        page = api.list_namespaced_event("default", label_selector="test=parts", **query)
        if not queries:  # the list changes between the requests
            status, answer = etcd.request("POST", "/v3/kv/compaction", {"revision": add(names[-1])})
            assert status == 200, answer
        queries.append(query.keys() - {"_request_timeout", "_preload_content"})
        return page

    for name in names[:-1]:
        add(name)
    assert [entry["metadata"]["name"] for entry in read_all(request, "v1", "Event", chunk=2)] == names
    assert queries == [{"limit"}, {"limit"}, {"limit", "_continue"}]  # without the refused request
    etcd.close()


def _create_three_of_each_kind(plane: ControlPlane, namespace: str) -> None:
    """Create three objects of each listed kind of Kubernetes itself."""
    plane.add_namespace(namespace)
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "pages-0"}}]}}
    space = f"namespaces/{namespace}"
    for number in range(3):
        name = f"pages-{number}"
        plane.add_node(name)
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        selector = {"driver": DRIVER, "pool": name}
        container = {"name": "c", "image": "none.example.com/none"}
        for path, spec in (
            (f"{RESOURCE}/deviceclasses", {}),
            (f"{RESOURCE}/{space}/resourceclaims", claim),
            (f"{RESOURCE}/{space}/resourceclaimtemplates", {"spec": claim}),
            (f"{RESOURCE}/resourceslices", {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": []}),
            (
                f"{RESOURCE}/devicetaintrules",
                {"deviceSelector": selector, "taint": {"key": "example.com/pages", "effect": "NoSchedule"}},
            ),
            (f"/api/v1/{space}/pods", {"schedulerName": "none", "containers": [container]}),
            (f"/api/v1/{space}/resourcequotas", {"hard": {"pods": "9"}}),
            (f"/apis/policy/v1/{space}/poddisruptionbudgets", {"maxUnavailable": 1, "selector": {}}),
        ):
            plane.expect("POST", path, {"metadata": {"name": name}, "spec": spec})


def test_every_kind_is_listed_in_pages(
    newest: ControlPlane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request has a limit, and continues where the previous one ended. The pages together are the whole list. A
    list with too many objects is an error, and is not truncated."""
    _create_three_of_each_kind(newest, "pages")
    sent: dict[str, list[dict[str, list[str]]]] = {}
    urlopen = urllib3.connectionpool.HTTPConnectionPool.urlopen

    def recorded(pool: t.Any, method: str, url: str, *arguments: t.Any, **more: t.Any) -> t.Any:
        path, _mark, query = url.partition("?")
        sent.setdefault(path, []).append(parse_qs(query))
        return urlopen(pool, method, url, *arguments, **more)

    monkeypatch.setattr(urllib3.connectionpool.HTTPConnectionPool, "urlopen", recorded)
    monkeypatch.setattr(cluster_lists, "CHUNK", 2)
    kinds = [*dra_objects_info.KINDS, *dra_objects_info.OPTIONAL_KINDS]

    def listed() -> Object:
        sent.clear()
        with (
            patch_module_args({"kubeconfig": str(newest.kubeconfig), "kinds": kinds}),
            pytest.raises(SystemExit),
        ):
            dra_objects_info.main()
        return t.cast("Object", json.loads(capsys.readouterr().out))

    found = listed()
    assert sorted(found["missing"]) == sorted(kueue.KINDS)
    lists = {path: queries for path, queries in sent.items() if not path.startswith("/version")}
    assert len(lists) == len(kinds)
    for path, queries in lists.items():
        assert all(entry["limit"] == ["2"] for entry in queries), (path, queries)
        status, answer = newest.request("GET", path)
        if status == 404:  # a kind of Kueue
            continue
        names = [(item["metadata"].get("namespace"), item["metadata"]["name"]) for item in answer["items"]]
        assert len(names) >= 3 and len(queries) == (len(names) + 1) // 2, (path, queries)
        assert ["continue" in entry for entry in queries] == [False] + [True] * (len(queries) - 1)
        (kind,) = [kind for kind in found["objects"] if answer["kind"] == f"{kind}List"]
        metadata = [manifest["metadata"] for manifest in found["objects"][kind]]
        assert [(entry.get("namespace"), entry["name"]) for entry in metadata] == names
    monkeypatch.setattr(cluster_lists, "MAX_OBJECTS", 2)
    refused = listed()
    assert (
        refused["failed"]
        and "ResourceClaims of resource.k8s.io/v1 cannot be listed: there are more than 2" in (refused["msg"])
    )


def test_hostile_claims_do_not_hide_hosts(control_plane: ControlPlane, tmp_path: Path) -> None:
    """The API server accepts these opaque configurations. The Python version decides which of them can be parsed."""
    plane, node = control_plane, f"hostile-{control_plane.version.replace('.', '-')}"
    plane.add_node(node)
    plane.expect("POST", f"{RESOURCE}/resourceslices", next(iter(slices(offers(node, facts("dgx-a100"), DRIVERS)))))
    odd = {
        "nested": b"[" * 990 + b"]" * 990,
        "deep": b"[" * 4900 + b"]" * 4900,
        "mappings": b'{"a":' * 1200 + b"1" + b"}" * 1200,
        "bytes": b'"\xff\xfe"',
        "half": b'"\\ud800"',
    }
    for name, content in odd.items():
        head = (
            b'{"metadata":{"name":"%s"},"spec":{"devices":{"config":[{"opaque":{"driver":"lanewise.dev",'
            % name.encode()
        )
        rest = b'"parameters":{"a":%s}}}],"requests":[{"name":"r","exactly":{"deviceClassName":"c"}}]}}}' % content
        status, answer = plane.request("POST", f"{RESOURCE}/namespaces/default/resourceclaims", head + rest)
        assert status == 201, (name, answer)
    done = inventory(tmp_path, plane, all_nodes=True)
    assert done.returncode == 0, done.stderr
    assert read(done.stdout)["_meta"]["hostvars"][node]["dra_devices"]
    for name in odd:
        plane.expect("DELETE", f"{RESOURCE}/namespaces/default/resourceclaims/{name}")


def test_the_reason_for_a_failed_read_is_reported(newest: ControlPlane, tmp_path: Path) -> None:
    missing = inventory(tmp_path, None)
    assert missing.returncode and "cannot use the kubeconfig" in missing.stderr
    content = yaml.safe_load(newest.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "none").write_text(yaml.safe_dump(content))
    unreachable = inventory(tmp_path, None)
    assert unreachable.returncode and "cannot reach the API server" in unreachable.stderr
