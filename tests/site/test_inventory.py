# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the inventory plugin makes of a cluster's objects, and what it keeps of them in its cache.

ansible-inventory asks a server that knows four lists; tests/cluster has real ones.
"""

from __future__ import annotations

import copy
import http.server
import json
import os
import subprocess
import sys
import threading
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.plugin_utils import cluster_nodes
from ansible_collections.lanewise.dra.plugins.plugin_utils.cluster_nodes import describe

PROGRAM = Path(sys.executable).with_name("ansible-inventory")
COLLECTIONS = Path(cluster_nodes.__file__).absolute().parents[5]

Object = dict[str, t.Any]


def node(name: str) -> Object:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def piece(driver: str, pool: str, where: str | None, *devices: Object, generation: int = 1, count: int = 1) -> Object:
    """A ResourceSlice of a node, or of none in particular."""
    place = {"nodeName": where} if where else {"allNodes": True}
    members = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{pool}-{driver}-{where}", "annotations": {f"{driver}/version": "1.0.0"}},
        "spec": {"driver": driver, "pool": members, **place, "devices": list(devices)},
    }


def device(name: str, **attributes: t.Any) -> Object:
    typed = {key: {"int" if isinstance(value, int) else "string": value} for key, value in attributes.items()}
    return {"name": name, "attributes": typed}


def test_drivers_that_nobody_asked_for_tell_nothing() -> None:
    """Neither devices nor what follows from them, and a node with such drivers alone has none."""
    nodes = [node("both"), node("foreign")]
    tainted = {**device("gpu-0", model="H100", numaNode=1), "taints": [{"key": "x", "effect": "NoSchedule"}]}
    nic = device("nic-0", model="ConnectX-7", numaNode=0, rail=3)
    slices = [piece("gpu.nvidia.com", name, name, tainted) for name in ("both", "foreign")]
    slices.append(piece("lanewise.dev", "both", "both", nic))
    found = describe(nodes, slices, [], ["lanewise.dev"])
    both, foreign = found["both"], found["foreign"]
    assert [one["name"] for one in both["devices"]] == ["nic-0"] and both["drivers"] == ["lanewise.dev"]
    assert (both["models"], both["numa_nodes"], both["rails"]) == (["ConnectX-7"], [0], [3])
    assert both["findings"] == [] and both["driver_versions"] == {"lanewise.dev": "1.0.0"}
    assert not foreign["devices"] and not foreign["drivers"] and not foreign["findings"]
    everything = describe(nodes, slices, [])
    assert everything["both"]["drivers"] == ["gpu.nvidia.com", "lanewise.dev"]
    assert everything["foreign"]["models"] == ["H100"] and len(everything["foreign"]["findings"]) == 1


def test_a_pool_may_have_slices_of_several_nodes() -> None:
    """It is whole where all of them are there, and each node has its own devices."""
    nodes = [node("one"), node("two")]
    slices = [piece("fabric.example.com", "rack", name, device(f"nic-{name}"), count=3) for name in ("one", "two")]
    slices.append(piece("fabric.example.com", "rack", None, device("switch"), count=3))
    found = describe(nodes, slices, [])
    for name in ("one", "two"):
        assert [one["name"] for one in found[name]["devices"]] == [f"nic-{name}"] and not found[name]["findings"]
    torn = describe(nodes, slices[1:], [])
    assert not torn["two"]["devices"] and torn["two"]["drivers"] == ["fabric.example.com"]
    assert torn["two"]["findings"] == ["fabric.example.com: pool rack has 2 of 3 slices: nobody gets of it"]
    # what an older generation has is not there
    slices.append(piece("fabric.example.com", "rack", "one", device("nic-new"), generation=2))
    newer = describe(nodes, slices, [])
    assert [one["name"] for one in newer["one"]["devices"]] == ["nic-new"] and not newer["two"]["devices"]


class Cluster:
    """A server with one node, which counts what it is asked, and a kubeconfig for it."""

    def __init__(self, name: str, folder: Path) -> None:
        config = {"opaque": {"driver": "lanewise.dev", "parameters": {"secret": "Zq-opaque"}}}
        result = {"driver": "lanewise.dev", "pool": name, "device": "nic-0", "request": "nic"}
        allocation = {"devices": {"results": [result], "config": [config]}}
        claim = {"metadata": {"namespace": "ml", "name": "job"}, "spec": {}, "status": {"allocation": allocation}}
        managed = {**node(name), "spec": {}}
        managed["metadata"]["managedFields"] = [{"manager": "Zq-manager"}]
        group = {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
        versions = {"name": "resource.k8s.io", "versions": [group], "preferredVersion": group}
        slices = [
            piece("lanewise.dev", name, name, device("nic-0", rail=1)),
            piece("gpu.nvidia.com", name, name, device("gpu-0", model="H100")),
        ]
        answers = {
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [versions]},
            "/api/v1/nodes": {"metadata": {}, "items": [managed]},
            "/apis/resource.k8s.io/v1/resourceslices": {"metadata": {}, "items": slices},
            "/apis/resource.k8s.io/v1/resourceclaims": {"metadata": {}, "items": [claim]},
        }
        self.asked = asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].rstrip("/")
                asked.append(path)
                body = json.dumps(answers[path]).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: t.Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": address}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        self.kubeconfig = folder / f"{name}.yml"
        self.kubeconfig.write_text(yaml.safe_dump(self.content))


@pytest.mark.skipif(not PROGRAM.exists(), reason="needs ansible-core beside this Python")
def test_the_cache_serves_one_cluster(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
    one, two = Cluster("one", tmp_path), Cluster("two", tmp_path)
    source, cache = tmp_path / "cluster.slices.yml", tmp_path / "cache"
    options = {"plugin": "lanewise.dra.slices", "cache": True, "cache_plugin": "jsonfile"}
    options.update(cache_connection=str(cache), cache_timeout=600)

    def hosts(kubeconfig: Path, **more: t.Any) -> dict[str, Object]:
        source.write_text(yaml.safe_dump({**options, **more}))
        own = {"ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_HOME": str(tmp_path / "home")}
        own.update(KUBECONFIG=str(kubeconfig), ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED="true")
        command = [str(PROGRAM), "-i", str(source), "--list"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own}, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout, object_hook=lambda entry: entry.get("__ansible_unsafe", entry))
        return t.cast("dict[str, Object]", told["_meta"]["hostvars"])

    try:
        first = hosts(one.kubeconfig)
        assert list(first) == ["one"] and first["one"]["dra_devices"][1]["claim"] == "ml/job"
        before = len(one.asked)
        assert hosts(one.kubeconfig) == first and len(one.asked) == before, "from the cache"
        kept = "".join(path.read_text() for path in cache.iterdir())
        assert "nic-0" in kept and "Zq-" not in kept
        # the same source for another cluster, by another file, by another context of one file
        assert list(hosts(two.kubeconfig)) == ["two"]
        both = copy.deepcopy(one.content)
        for key in ("clusters", "users", "contexts"):
            both[key] += two.content[key]
        (tmp_path / "both.yml").write_text(yaml.safe_dump(both))
        assert list(hosts(tmp_path / "both.yml")) == ["one"]
        assert list(hosts(tmp_path / "both.yml", context="two")) == ["two"]
        (tmp_path / "both.yml").write_text(yaml.safe_dump({**both, "current-context": "two"}))
        assert list(hosts(tmp_path / "both.yml")) == ["two"]
        # and for other drivers
        assert hosts(one.kubeconfig, drivers=["dra.net"]) == {}
    finally:
        for cluster in (one, two):
            cluster.server.shutdown()
            cluster.server.server_close()
