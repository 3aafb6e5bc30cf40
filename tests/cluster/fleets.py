# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random fleets in a real control plane: example machines, some of them with pods, taints, cordons or few free CPUs.

There are four kinds of fleets: `plain` with whole GPUs and NICs, `mig` with GPUs that are partitioned on demand and use
shared counters, `shares` with GPUs whose memory several claims share, and `nics` with NICs whose bandwidth several
claims share. Before Kubernetes 1.36 there is only `plain`.
"""

from __future__ import annotations

import random
import typing as t
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.divided_nics import with_setting
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

RESOURCE = "/apis/resource.k8s.io/v1"
NAMESPACE = "plan"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
RULES = f"{RESOURCE}/devicetaintrules"
MERGE = "application/merge-patch+json"
TAINT = {"key": "maintenance", "effect": "NoSchedule"}

OPTIONS: dict[str, Object] = {
    "plain": {"version": "0.5.0"},
    "mig": {"version": "0.5.0", "feature_gates": {"DynamicMIG": True}},
    "shares": {"version": "0.5.0", "consumable_shares": "memory"},
    "nics": {"version": "0.5.0"},
}
#: How NICs are divided on fleets of the kind `nics`: in steps, so that amounts are rounded up.
DIVIDED = {
    "select": {"type": "pf"},
    "mechanism": "macvlan",
    "namespace": NAMESPACE,
    "min": "20G",
    "step": "10G",
    "default": "50G",
}
#: The machines of each kind. Some lack an attribute, or have slow links or mixed maps.
MACHINES: dict[str, tuple[str, ...]] = {
    "plain": ("hgx-h100", "dgx-a100", "missing-nic", "hgx-b200", "degraded", "epyc-nps4", "gb200", "vmd"),
    "mig": ("hgx-h100", "hgx-b200"),
    "shares": ("hgx-h100", "dgx-a100"),
    "nics": ("hgx-h100", "missing-nic", "degraded"),
}


def _pairs(count: int, *levels: str, **where: t.Any) -> Object:
    nic = {"name": "nic", "kind": "rdma", "where": where}
    return {"count": count, "align": list(levels), "devices": [{"name": "gpu", "kind": "gpu"}, nic]}


GROUPS: dict[str, list[Object]] = {
    "one-pair": [_pairs(1, "pcie_root")],
    "two-pairs": [_pairs(2, "pcie_root")],
    "three-pairs": [_pairs(3, "pcie_root")],
    "near-pair": [_pairs(1, "pcie_root", "numa_node", "any")],
    "two-near-pairs": [_pairs(2, "pcie_root", "numa_node")],
    "fast-pair": [_pairs(1, "pcie_root", "any", min_speed="400G")],
    "one-gpu": [{"devices": [{"name": "gpu", "kind": "gpu"}]}],
    "one-nic": [{"devices": [{"name": "nic", "kind": "rdma"}]}],
    "three-gpus": [{"devices": [{"name": "gpu", "kind": "gpu", "count": 3}]}],
    "all-gpus": [{"devices": [{"name": "gpu", "kind": "gpu", "all": True}]}],
}
_PART = {"name": "nic", "kind": "nic"}
#: Claims for shares of NICs, from the driver's default up to a whole NIC.
NIC_SHARES: dict[str, list[Object]] = {
    "nic-default": [{"devices": [{**_PART, "share": {"bandwidth": "default"}}]}],
    "nic-5g": [{"devices": [{**_PART, "share": {"bandwidth": "5G"}}]}],
    "nic-95g": [{"devices": [{**_PART, "share": {"bandwidth": "95G"}}]}],
    "nic-400g": [{"devices": [{**_PART, "share": {"bandwidth": "400G"}}]}],
    "two-nics-150g": [{"devices": [{**_PART, "count": 2, "share": {"bandwidth": "150G"}}]}],
    "gpu-and-nic-125g": [
        {
            "align": "pcie_root",
            "devices": [{"name": "gpu", "kind": "gpu"}, {**_PART, "share": {"bandwidth": "125500M"}}],
        }
    ],
}
_COMPILED = compile_site(
    {
        "dra_claims_drivers": {"gpu.nvidia.com": OPTIONS["plain"], "lanewise.dev": {}},
        "dra_claims_templates": [
            {"name": name, "namespace": NAMESPACE, "groups": groups}
            for name, groups in {**GROUPS, **NIC_SHARES}.items()
        ],
    }
).objects
CLASSES = {manifest["metadata"]["name"]: manifest for manifest in _COMPILED if manifest["kind"] == "DeviceClass"}
SPECS: dict[str, Object] = {
    manifest["metadata"]["name"]: manifest["spec"]["spec"]
    for manifest in _COMPILED
    if manifest["kind"] == "ResourceClaimTemplate"
}


def _any_gpu(name: str, expression: str, **more: t.Any) -> Object:
    selectors = [{"cel": {"expression": f'device.driver == "gpu.nvidia.com" && {expression}'}}]
    return {"name": name, "exactly": {"deviceClassName": "plan-any", "selectors": selectors, **more}}


def _mig(profile: str) -> str:
    kind = 'device.attributes["gpu.nvidia.com"]'
    return f'{kind}.type == "mig" && {kind}.profile.startsWith("{profile}")'


CLASSES["plan-any"] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "plan-any"},
    "spec": {},
}
SPECS["small-part"] = {"devices": {"requests": [_any_gpu("part", _mig("1g"))]}}
SPECS["large-part"] = {"devices": {"requests": [_any_gpu("part", _mig("3g"))]}}
SPECS["part-and-nic"] = {
    "devices": {
        "requests": [_any_gpu("part", _mig("2g")), *SPECS["one-nic"]["devices"]["requests"]],
        "constraints": [{"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["part", "nic"]}],
    }
}
_WHOLE = 'device.attributes["gpu.nvidia.com"].type == "gpu"'
for _amount in ("30Gi", "50Gi"):
    SPECS[f"memory-{_amount.lower()}"] = {
        "devices": {"requests": [_any_gpu("memory", _WHOLE, capacity={"requests": {"memory": _amount}})]}
    }
#: The claims of each kind of fleet. Their numbers are predicted, and pods of a used fleet already have some of them.
COUNTED: dict[str, list[str]] = {
    "plain": [*GROUPS],
    "mig": ["small-part", "large-part", "part-and-nic", "one-gpu", "one-pair"],
    "shares": ["memory-30gi", "memory-50gi", "one-nic"],
    "nics": [*NIC_SHARES, "one-nic", "one-pair"],
}


class Site:
    """A fleet in the cluster, with at most `max_nodes` nodes. `kind` is random by default.

    Without `used`, it has no pods, and each node accepts all pods that it has devices for.
    """

    def __init__(self, plane: ControlPlane, seed: int, max_nodes: int = 25, kind: str = "", used: bool = True) -> None:
        self.plane, self.name = plane, f"fleet-{seed}"
        self.rng = rng = random.Random(seed)
        self.oldest = plane.minor == "1.34"
        random_kind = rng.choice(["plain", "plain", "plain", "mig", "shares", "nics"])
        self.kind = kind or ("plain" if self.oldest else random_kind)
        self.started, self.used = 0, used
        self.spreads, self.tolerates = used and rng.random() < 0.25, rng.random() < 0.3
        self.zone = rng.choice(["", "", "", "a"]) if used else ""
        max_nodes = min(max_nodes, 3) if self.kind == "mig" else max_nodes
        count = min(rng.randint(1, max_nodes), rng.randint(1, max_nodes))
        self.nodes = [f"{self.name}-{index}" for index in range(count)]
        self.machines = {node: rng.choice(MACHINES[self.kind]) for node in self.nodes}
        for node in self.nodes:
            self._add(node)
        for name in sorted(self.machines):
            self.publish(name)
        if used:
            self._use()

    def _use(self) -> None:
        names = [entry for entry in COUNTED[self.kind] if entry not in ("all-gpus", "three-pairs")]
        for _index in range(self.rng.randint(0, 3 * len(self.nodes))):
            self.start(self.rng.choice(names))
        self.wait_decided()
        if not self.oldest:
            self._taint()

    def _add(self, node: str) -> None:
        rng = self.rng
        self.plane.add_node(node)
        labels = {"fleet": self.name, "zone": rng.choice("ab")}
        if not self.used:
            self.plane.expect("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}}, MERGE)
            return
        spec: Object = {"unschedulable": True} if rng.random() < 0.15 else {}
        if rng.random() < 0.1:
            spec["taints"] = [TAINT]
        self.plane.expect("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}, "spec": spec}, MERGE)
        if rng.random() < 0.3:
            few_cpus = {"cpu": str(rng.randint(1, 12))}
            status = {"status": {"allocatable": few_cpus, "capacity": few_cpus}}
            self.plane.expect("PATCH", f"/api/v1/nodes/{node}/status", status, MERGE)

    def facts(self, node: str) -> t.Any:
        """The facts of a node's machine, with the division of its NICs."""
        found = facts(self.machines[node])
        if self.kind != "nics":
            return found
        ethernet = {**found, "nics": [{**nic, "link_layer": "ethernet"} for nic in found["nics"]]}
        return with_setting(ethernet, [DIVIDED])

    def drivers(self) -> Object:
        return {"gpu.nvidia.com": OPTIONS[self.kind], "lanewise.dev": {}}

    def offers(self, node: str, drivers: Object | None = None) -> list[Offer]:
        """The devices that the drivers publish on a node."""
        return list(offers(node, self.facts(node), drivers or self.drivers()))

    def publish(self, node: str, drivers: Object | None = None) -> None:
        for resource_slice in slices(self.offers(node, drivers)):
            self.plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)

    def add(self, name: str, like: str) -> None:
        """Add a node with the machine, labels, taints and capacity of another one."""
        old = self.plane.expect("GET", f"/api/v1/nodes/{like}")
        labels = {key: old["metadata"]["labels"][key] for key in ("fleet", "zone")}
        self.plane.add_node(name, labels)
        taints = [taint for taint in old["spec"].get("taints", ()) if not taint["key"].startswith("node.kubernetes.io")]
        self.plane.expect("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}}, MERGE)
        status = {"status": {key: old["status"][key] for key in ("allocatable", "capacity")}}
        self.plane.expect("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE)
        self.nodes.append(name)
        self.machines[name] = self.machines[like]
        self.publish(name)

    def remove(self, node: str) -> None:
        """Remove a node with its pods and devices."""
        self.delete_pods(self.pods_on(node))
        self.unpublish(node)
        self.plane.expect("DELETE", f"/api/v1/nodes/{node}")
        self.nodes.remove(node)

    def pods_on(self, node: str) -> list[str]:
        """The pods on a node; each has a claim of the same name."""
        return [pod["metadata"]["name"] for pod in self.pods() if pod["spec"].get("nodeName") == node]

    def holders(self, node: str, devices: t.Collection[str]) -> list[str]:
        """The names of the claims that hold one of these devices of a node."""
        return [
            claim["metadata"]["name"]
            for claim in self.plane.expect("GET", CLAIMS)["items"]
            for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
            if result["pool"] == node and result["device"] in devices
        ]

    def _taint(self) -> None:
        """Create taint rules for some nodes, each for one device of the node, which may be in use."""
        for node in self.nodes:
            if self.rng.random() > 0.15:
                continue
            offer = self.rng.choice(self.offers(node, {"lanewise.dev": {}}))
            selector = {"driver": offer.driver, "pool": offer.pool, "device": offer.device["name"]}
            spec = {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": "NoSchedule"}}
            self.plane.expect("POST", RULES, {"metadata": {"name": f"{self.name}-{node}"}, "spec": spec})

    def pod(self, template: str) -> Object:
        """The spec of a pod for this fleet's nodes."""
        resources = {"requests": {"cpu": "500m"}, "claims": [{"name": "d"}]}
        return {
            "nodeSelector": {"fleet": self.name, **({"zone": self.zone} if self.zone else {})},
            "tolerations": [{"key": TAINT["key"], "operator": "Exists"}] if self.tolerates else [],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none.example.com/none", "resources": resources}],
            "topologySpreadConstraints": self.spread(template),
        }

    def spread(self, template: str) -> list[Object]:
        if not self.spreads:
            return []
        selector = {"matchLabels": {"of": f"{self.name}-{template}"}}
        rule = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
        return [rule]

    def workload(self, template: str) -> Workload:
        labels = {"of": f"{self.name}-{template}"}
        return Workload(template, (SPECS[template],), self.pod(template), NAMESPACE, labels)

    def start(self, template: str) -> str:
        self.started += 1
        name = f"{self.name}-{self.started}"
        self.plane.expect("POST", CLAIMS, {"metadata": {"name": name}, "spec": SPECS[template]})
        spec = {**self.pod(template), "resourceClaims": [{"name": "d", "resourceClaimName": name}]}
        labels = {"fleet": self.name, "of": f"{self.name}-{template}"}
        self.plane.expect("POST", PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        return name

    def pods(self) -> list[Object]:
        items = self.plane.expect("GET", f"{PODS}?labelSelector=fleet%3D{self.name}")["items"]
        return t.cast("list[Object]", items)

    def wait_decided(self) -> tuple[set[str], dict[str, str]]:
        """Wait until the scheduler has decided on every pod. Returns the names of the bound pods, and the scheduler's
        message for each pending pod."""

        def decided() -> t.Any:
            bound, waiting = set(), {}
            for pod in self.pods():
                name = pod["metadata"]["name"]
                conditions = pod.get("status", {}).get("conditions", ())
                rejections = [
                    c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"
                ]
                if pod["spec"].get("nodeName"):
                    bound.add(name)
                elif rejections:
                    waiting[name] = rejections[0]
                else:
                    return None
            return bound, waiting

        return t.cast("tuple[set[str], dict[str, str]]", self.plane.wait_for(decided, f"pods of {self.name}", 180))

    def objects(self) -> list[Object]:
        """The objects that a plan reads: this fleet's nodes, and the objects of all fleets in the control plane."""
        kinds = [
            ("Node", "v1", f"/api/v1/nodes?labelSelector=fleet%3D{self.name}"),
            ("Pod", "v1", PODS),
            ("ResourceSlice", "resource.k8s.io/v1", f"{RESOURCE}/resourceslices"),
            ("ResourceClaim", "resource.k8s.io/v1", CLAIMS),
            ("DeviceClass", "resource.k8s.io/v1", f"{RESOURCE}/deviceclasses"),
        ]
        if not self.oldest:
            kinds.append(("DeviceTaintRule", "resource.k8s.io/v1", RULES))
        found = []
        for kind, version, path in kinds:
            found += [{"apiVersion": version, "kind": kind, **item} for item in self.plane.expect("GET", path)["items"]]
        return found

    def delete_pods(self, names: t.Iterable[str]) -> None:
        """Delete pods with their claims."""

        def delete(name: str) -> None:
            self.plane.expect("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            self.plane.expect("DELETE", f"{CLAIMS}/{name}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(delete, names))

    def close(self) -> None:
        """Remove everything of this fleet, so that it does not slow down other fleets of the same control plane."""
        self.delete_pods([pod["metadata"]["name"] for pod in self.pods()])
        for node in self.machines:
            self.unpublish(node)
            self.plane.request("DELETE", f"/api/v1/nodes/{node}")
            self.plane.request("DELETE", f"{RULES}/{self.name}-{node}")

    def unpublish(self, node: str) -> None:
        self.plane.expect("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName%3D{node}")
