# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A site with queues, on a real control plane with Kueue: its nodes with their devices, its claims and its quotas.

The devices are those that the drivers would publish on example machines. They are never prepared, because there are no
kubelets.
"""

from __future__ import annotations

import functools
import typing as t
from datetime import datetime, timezone
from fractions import Fraction

from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.compiler import (
    Compiled,
    CompileInput,
    compile_queues,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.divided_nics import with_setting
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.client import APPLY_PATCH
from ansible_collections.lanewise.dra.tests.cluster.queueing import KUEUE, Queueing
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

RESOURCE = "/apis/resource.k8s.io/v1"
DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
#: The API path and plural of each kind that is applied.
_PATHS = {
    "DeviceClass": (RESOURCE, "deviceclasses"),
    "ResourceClaimTemplate": (RESOURCE, "resourceclaimtemplates"),
    "ResourceFlavor": (KUEUE, "resourceflavors"),
    "Cohort": (KUEUE, "cohorts"),
    "ClusterQueue": (KUEUE, "clusterqueues"),
    "LocalQueue": (KUEUE, "localqueues"),
    "WorkloadPriorityClass": (KUEUE, "workloadpriorityclasses"),
}
#: Divides the PFs of an SR-IOV machine that have unused VFs.
DIVIDED = {"select": {"type": "pf"}, "mechanism": "vfs", "min": "1G", "step": "1G", "default": "10G"}


@functools.lru_cache(None)
def _engine() -> Engine:
    return Engine()


def machine(name: str, *rules: Object) -> Object:
    """The facts of an example machine, with Ethernet NICs that are divided by these rules."""
    found = facts(name)
    ethernet = {**found, "nics": [{**nic, "link_layer": "ethernet"} for nic in found["nics"]]}
    return with_setting(ethernet, list(rules) or None)


def collection_of(item: Object) -> str:
    """The API path of the collection that an object belongs to."""
    version, plural = _PATHS[item["kind"]]
    namespace = item["metadata"].get("namespace")
    return f"{version}{f'/namespaces/{namespace}' if namespace else ''}/{plural}"


def path_of(item: Object) -> str:
    """The API path of an object."""
    return f"{collection_of(item)}/{item['metadata']['name']}"


def compile_for(
    variables: Object, objects: list[Object], nodes: t.Mapping[str, Object], drivers: Object, site: str = "default"
) -> Compiled:
    """Compile a site's queues. `objects` are the objects of its claims. Raises Problems."""
    now = datetime.now(timezone.utc)
    inputs = CompileInput(objects, t.cast(t.Any, nodes), drivers, _engine(), Server(), now, site)
    return compile_queues(variables, inputs)


class QueueSite:
    """A fleet of nodes, and the objects that were applied for it. `nodes` are facts by node name."""

    def __init__(self, queueing: Queueing, nodes: t.Mapping[str, Object], drivers: Object | None = None) -> None:
        self.queueing, self.plane = queueing, queueing.plane
        self.nodes = dict(nodes)
        self.drivers = drivers or DRIVERS
        self.applied: list[Object] = []
        for name, node_facts in self.nodes.items():
            queueing.add_node(name)
            for resource_slice in slices(offers(name, t.cast(t.Any, node_facts), self.drivers)):
                self.plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)

    def compile(self, variables: Object, claims: Object) -> Compiled:
        """Compile claims and queues, and apply the claims' objects. Raises Problems."""
        objects = compile_site({"dra_claims_drivers": self.drivers, **claims}, t.cast(t.Any, self.nodes)).objects
        for manifest in objects:
            if manifest["kind"] in _PATHS:
                self.apply(manifest)
        site = str(claims.get("dra_claims_site") or "default")
        return compile_for(variables, objects, self.nodes, self.drivers, site)

    def apply(self, item: Object) -> None:
        """Apply one object by server-side apply, and create its namespace if it is missing."""
        namespace = item["metadata"].get("namespace")
        if namespace and self.plane.request("GET", f"/api/v1/namespaces/{namespace}")[0] == 404:
            self.plane.add_namespace(namespace)
        self.plane.expect("PATCH", f"{path_of(item)}?fieldManager=lanewise&force=true", item, APPLY_PATCH)
        self.applied.append(item)

    def apply_queues(self, compiled: Compiled) -> None:
        """Apply queues, and wait until Kueue reports them as active."""
        for manifest in compiled.objects:
            self.apply(manifest)
        queues = [entry for entry in compiled.objects if entry["kind"] in ("ClusterQueue", "LocalQueue")]
        self.plane.wait_for(lambda: all(self._active(queue) for queue in queues), "queues to be active")

    def _active(self, item: Object) -> bool:
        status = self.plane.expect("GET", path_of(item)).get("status") or {}
        conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
        return conditions.get("Active") == "True"

    def objects(self) -> dict[str, list[Object]]:
        """The objects that a plan reads, by kind."""
        paths = {
            **{kind: f"{version}/{plural}" for kind, (version, plural) in _PATHS.items()},
            **{"ResourceSlice": f"{RESOURCE}/resourceslices", "ResourceClaim": f"{RESOURCE}/resourceclaims"},
            **{"Node": "/api/v1/nodes", "Pod": "/api/v1/pods"},
        }
        found: dict[str, list[Object]] = {}
        for kind, path in paths.items():
            answer = self.plane.expect("GET", path)
            found[kind] = [{"apiVersion": answer["apiVersion"], **item} for item in answer["items"]]
        return found

    def close(self) -> None:
        """Remove the nodes, their devices and the queues, to make room for another fleet."""
        for manifest in reversed(self.applied):
            if manifest["kind"] in ("LocalQueue", "ClusterQueue"):
                self.plane.request("DELETE", path_of(manifest))
        paths = [path_of(entry) for entry in self.applied if entry["kind"] == "ClusterQueue"]
        # a queue exists until Kueue removes its finalizer; a queue that is created before that is also deleted
        self.plane.wait_for(
            lambda: all(self.plane.request("GET", path)[0] == 404 for path in paths), "the deletion of the queues", 120
        )
        for name in self.nodes:
            self.plane.expect("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName%3D{name}")
            self.plane.expect("DELETE", f"/api/v1/nodes/{name}")

    def taint_device(self, name: str, node: str, driver: str, device: str) -> str:
        """Taint a device, so that no new claim gets it. Returns the API path of the rule."""
        selector = {"driver": driver, "pool": node, "device": device}
        spec = {"deviceSelector": selector, "taint": {"key": "test.lanewise.dev/broken", "effect": "NoSchedule"}}
        self.plane.expect("POST", f"{RESOURCE}/devicetaintrules", {"metadata": {"name": name}, "spec": spec})
        return f"{RESOURCE}/devicetaintrules/{name}"

    def allocated(self, namespace: str) -> dict[str, int]:
        """The number of devices that the scheduler has allocated to claims of a namespace, by driver."""
        found: dict[str, int] = {}
        for result in self._results(namespace):
            found[result["driver"]] = found.get(result["driver"], 0) + 1
        return found

    def consumed(self, namespace: str, capacity: str) -> Fraction:
        """The amount of a capacity that the scheduler has allocated to claims of a namespace."""
        amounts = [(result.get("consumedCapacity") or {}).get(capacity, "0") for result in self._results(namespace)]
        return sum((quantity.parse(amount) for amount in amounts), Fraction())

    def counter_used(self, namespace: str, counter: str) -> Fraction:
        """The amount of a counter that the allocated devices of a namespace consume."""
        devices = {}
        for item in self.plane.expect("GET", f"{RESOURCE}/resourceslices")["items"]:
            for device in item["spec"].get("devices") or ():
                devices[item["spec"]["driver"], item["spec"]["pool"]["name"], device["name"]] = device
        found = Fraction()
        for result in self._results(namespace):
            for used in devices[result["driver"], result["pool"], result["device"]].get("consumesCounters") or ():
                found += quantity.parse((used["counters"].get(counter) or {"value": "0"})["value"])
        return found

    def _results(self, namespace: str) -> list[Object]:
        claims = self.plane.expect("GET", f"{RESOURCE}/namespaces/{namespace}/resourceclaims")["items"]
        devices = [
            claim["status"]["allocation"]["devices"] for claim in claims if claim.get("status", {}).get("allocation")
        ]
        return [result for device in devices for result in device.get("results") or ()]

    def charged(self, queue: str, resource: str) -> Fraction:
        """The amount of a resource that Kueue has charged to a ClusterQueue."""
        name = resource if "/" in resource else f"lanewise.dev/{resource}"
        return quantity.parse(self.queueing.usage(queue).get(name, {}).get("total", "0"))

    def borrowed(self, queue: str, resource: str) -> Fraction:
        """The amount of a resource that a ClusterQueue has borrowed, as reported by Kueue."""
        name = f"lanewise.dev/{resource}"
        return quantity.parse(self.queueing.usage(queue).get(name, {}).get("borrowed", "0"))
