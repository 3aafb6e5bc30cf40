# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compiled claims on a real scheduler: it allocates what the offline allocator predicts, and only aligned devices.

Each trial is one claim on its own copy of an example machine: a node with the slices that the machine's drivers would
publish. The trials are a sample of all claims on all machines. LANEWISE_ALLOCATION_CLAIMS is their minimum number, or
`all`.
"""

from __future__ import annotations

import os
import random
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import features
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import (
    Allocation,
    Refusal,
    Result,
    allocate,
    attribute,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.board_node import LATE_SECONDS
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.machines.description import names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

TRIALS = os.environ.get("LANEWISE_ALLOCATION_CLAIMS", "60")
SEED = 20261121

RESOURCE = "/apis/resource.k8s.io/v1"
NAMESPACE = "allocation"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"

NO_DEVICES = "cannot allocate all claims"
#: A search that finds nothing may also take too long: the scheduler's filter times out after ten seconds.
TOO_LONG = "timed out trying to allocate devices"
#: The scheduler's possible messages about a pending pod, by the kind of the predicted refusal.
MESSAGES = {
    **dict.fromkeys(("absent", "selector", "capacity", "taint", "used"), (NO_DEVICES,)),
    **dict.fromkeys(("count", "constraint", "budget"), (NO_DEVICES, TOO_LONG)),
    "class": ("device class no-such-class does not exist",),
    "error": ("cel runtime error",),
}


def _template(name: str, *groups: Object, **more: t.Any) -> Object:
    return {"name": name, "namespace": NAMESPACE, "groups": list(groups), **more}


def _pairs(count: int, *levels: str, **where: t.Any) -> Object:
    nic = {"name": "nic", "kind": "rdma", "where": where}
    return {"count": count, "align": list(levels), "devices": [{"name": "gpu", "kind": "gpu"}, nic]}


TEMPLATES = [
    _template("one-pair", _pairs(1, "pcie_root")),
    _template("two-pairs", _pairs(2, "pcie_root")),
    _template("four-pairs", _pairs(4, "pcie_root")),
    _template("eight-pairs", _pairs(8, "pcie_root")),
    _template("two-near-pairs", _pairs(2, "pcie_root", "numa_node", "any")),
    _template("eight-near-pairs", _pairs(8, "pcie_root", "numa_node", "any")),
    _template("fast-pair", _pairs(1, "pcie_root", "any", min_speed="400G")),
    _template("too-fast", {"devices": [{"name": "nic", "kind": "rdma", "where": {"min_speed": "1600G"}}]}),
    _template("wide", {"devices": [{"name": "nic", "kind": "rdma", "bandwidth": "200G"}]}),
    _template("gpus", {"devices": [{"name": "gpu", "kind": "gpu", "count": 5}]}),
    _template("all-gpus", {"devices": [{"name": "gpu", "kind": "gpu", "all": True}]}),
    _template("vfs", {"devices": [{"name": "vf", "kind": "vf", "count": 3}]}),
    _template("nic-or-vf", {"devices": [{"name": "net", "first_of": [
        {"name": "vf", "kind": "vf", "count": 2}, {"name": "nic", "kind": "nic"}]}]}),
    _template("cpus", {"align": ["numa_node"], "devices": [
        {"name": "cpu", "kind": "cpu", "capacity": {"dra.cpu/cpu": "4"}}, {"name": "nic", "kind": "nic"}]}),
    _template("rails", {"devices": [{"name": "nic", "kind": "rdma", "count": 3}]}, distinct=["rail"]),
]  # fmt: skip
#: Not for gpu.amd.com, whose NUMA node has another attribute name than that of NICs.
NUMA_PAIRS = ("two-near-pairs", "eight-near-pairs")


def _exactly(name: str, device_class: str, *expressions: str) -> Object:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {
        "devices": {"requests": [{"name": name, "exactly": {"deviceClassName": device_class, "selectors": selectors}}]}
    }


#: Claims that `dra_claims_templates` cannot express.
RAW = {
    "no-class": _exactly("x", "no-such-class"),
    "unguarded": _exactly("x", "nic-lanewise", 'device.attributes["other.example.com"].nothing == "x"'),
    "together": {
        "devices": {
            "requests": [
                {"name": "a", "exactly": {"deviceClassName": "nic-lanewise", "count": 2}},
                {"name": "b", "exactly": {"deviceClassName": "nic-lanewise", "count": 2}},
            ],
            "constraints": [
                {"matchAttribute": NUMA_NODE, "requests": ["a"]},
                {"matchAttribute": NUMA_NODE, "requests": ["b"]},
                {"distinctAttribute": "resource.kubernetes.io/pciBusID"},
            ],
        }
    },
}
RAW_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "nic-lanewise"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "lanewise.dev"'}}]},
}


class Site:
    """The drivers of one vendor's machines, with the compiled classes and claims."""

    def __init__(self, gpu: str, version: str) -> None:
        self.drivers: Object = {gpu: {"version": version}, "lanewise.dev": {}, "dra.cpu": {"version": "main"}}
        self.vendor = gpu.split(".")[1]
        compiled = compile_site(
            {
                "dra_claims_drivers": self.drivers,
                "dra_claims_templates": [
                    template for template in TEMPLATES if gpu != "gpu.amd.com" or template["name"] not in NUMA_PAIRS
                ],
            }
        ).objects
        self.classes: dict[str, Object] = {"nic-lanewise": RAW_CLASS}
        self.claims: dict[str, Object] = dict(RAW)
        for manifest in compiled:
            if manifest["kind"] == "DeviceClass":
                self.classes[manifest["metadata"]["name"]] = manifest
            elif manifest["kind"] == "ResourceClaimTemplate":
                self.claims[manifest["metadata"]["name"]] = manifest["spec"]["spec"]
        self._rename()

    def _rename(self) -> None:
        """Rename the classes, because both sites are in the same cluster."""
        new_names = {name: f"{self.vendor}-{name}" for name in self.classes if name != "nic-lanewise"}
        self.classes = {
            new_names.get(name, name): {
                **deviceclass,
                "metadata": {**deviceclass["metadata"], "name": new_names.get(name, name)},
            }
            for name, deviceclass in self.classes.items()
        }
        for spec in self.claims.values():
            for request in spec["devices"]["requests"]:
                for body in [request["exactly"]] if "exactly" in request else request["firstAvailable"]:
                    body["deviceClassName"] = new_names.get(body["deviceClassName"], body["deviceClassName"])


@pytest.fixture(scope="module")
def sites() -> dict[str, Site]:
    return {"nvidia": Site("gpu.nvidia.com", "0.5.0"), "amd": Site("gpu.amd.com", "1.0.0")}


@pytest.fixture(scope="module")
def engine() -> t.Any:
    return require_engine()


@pytest.fixture(scope="module")
def plane(newest: ControlPlane, sites: dict[str, Site]) -> ControlPlane:
    newest.add_namespace(NAMESPACE)
    classes = {name: entry for site in sites.values() for name, entry in site.classes.items()}
    for deviceclass in classes.values():
        newest.expect("POST", f"{RESOURCE}/deviceclasses", deviceclass)
    return newest


def publish(plane: ControlPlane, node: str, offered: list[Offer]) -> None:
    plane.add_node(node)
    for resource_slice in slices(offered):
        plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)


def start(plane: ControlPlane, name: str, spec: Object, node: str) -> None:
    """Create a claim, and a pod for it that can run on one node only."""
    plane.expect("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    pod = {
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}],
            "resourceClaims": [{"name": "d", "resourceClaimName": name}],
        },
    }
    plane.expect("POST", PODS, pod)


def outcome(plane: ControlPlane, name: str, should_fit: bool, seconds: float = 90) -> tuple[list[Object], str]:
    """The scheduler's decision: the claim's results, or the message about the pending pod.

    The scheduler may first reject a pod that fits, while it has not yet seen all objects. So a rejection of a pod that
    should fit counts only after LATE_SECONDS."""
    first_rejection = 0.0

    def decided() -> t.Any:
        nonlocal first_rejection
        pod = plane.expect("GET", f"{PODS}/{name}")
        if pod["spec"].get("nodeName"):
            claim = plane.expect("GET", f"{CLAIMS}/{name}")
            return claim["status"]["allocation"]["devices"]["results"], ""
        for condition in pod.get("status", {}).get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                first_rejection = first_rejection or time.monotonic()
                if not should_fit or time.monotonic() - first_rejection > LATE_SECONDS:
                    return [], condition["message"]
        return None

    return t.cast("tuple[list[Object], str]", plane.wait_for(decided, f"the scheduler's decision on {name}", seconds))


def stop(plane: ControlPlane, name: str) -> None:
    plane.expect("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    plane.wait_for(lambda: plane.request("GET", f"{PODS}/{name}")[0] == 404, f"the deletion of pod {name}")
    plane.expect("DELETE", f"{CLAIMS}/{name}")
    plane.wait_for(lambda: plane.request("GET", f"{CLAIMS}/{name}")[0] == 404, f"the deletion of claim {name}")


def device_ids(allocation: Allocation) -> list[tuple[str, str, str]]:
    return [(result.request, result.offer.driver, result.offer.device["name"]) for result in allocation.results]


def violated_constraints(spec: Object, results: t.Sequence[tuple[str, Offer]]) -> list[str]:
    """The constraints of a claim that its devices violate, evaluated without the allocator."""
    violated = []
    for entry in spec["devices"].get("constraints", ()):
        name = entry.get("matchAttribute") or entry["distinctAttribute"]
        covered = [
            offer
            for request, offer in results
            if not entry.get("requests") or {request, request.partition("/")[0]} & set(entry["requests"])
        ]
        values = [str(attribute(offer, name)) for offer in covered]
        distinct = len(set(values))
        if "None" in values or (distinct > 1 if entry.get("matchAttribute") else distinct < len(values)):
            violated.append(f"{name} of {entry.get('requests')}: {values}")
    return violated


class Trial(t.NamedTuple):
    """A claim on its own copy of a machine, with the predicted outcome."""

    machine: str
    claim: str
    spec: Object
    classes: dict[str, Object]
    offered: list[Offer]
    predicted: Allocation | Refusal

    @property
    def node(self) -> str:
        return f"{self.machine}-{self.claim}"

    @property
    def kind(self) -> str:
        """`allocated`, or the kind of the predicted refusal."""
        return "allocated" if isinstance(self.predicted, Allocation) else self.predicted.kind

    @property
    def may_time_out(self) -> bool:
        """Whether the scheduler may search until its time limit without a result."""
        return self.kind in ("count", "constraint", "budget") and self.claim.startswith(("four", "eight"))


def trials(sites: dict[str, Site], engine: t.Any) -> list[Trial]:
    """All claims on all machines."""
    result = []
    for machine in names():
        probed = facts(machine)
        site = sites["amd" if any(gpu["vendor"] == "AMD" for gpu in probed["gpus"]) else "nvidia"]
        for claim, spec in site.claims.items():
            offered = offers(f"{machine}-{claim}", probed, site.drivers)
            answer = allocate([spec], site.classes, offered, engine)
            result.append(Trial(machine, claim, spec, site.classes, offered, answer))
    return result


def sample(all_trials: list[Trial]) -> list[Trial]:
    """Some of the trials: each machine, each claim with each of its outcomes, and one trial that may time out."""
    if TRIALS == "all":
        return all_trials
    shuffled = random.Random(SEED).sample(all_trials, len(all_trials))
    chosen = [entry for entry in shuffled if entry.may_time_out][:1]
    shuffled = [entry for entry in shuffled if not entry.may_time_out]
    covered: set[tuple[str, str]] = set()
    for device in shuffled:
        marks = {("machine", device.machine), (device.claim, device.kind)}
        if not marks <= covered:
            chosen.append(device)
            covered |= marks
    rest = [entry for entry in shuffled if entry not in chosen]
    return chosen + rest[: max(int(TRIALS) - len(chosen), 0)]


def test_the_scheduler_decides_as_predicted(plane: ControlPlane, sites: dict[str, Site], engine: t.Any) -> None:
    """The scheduler allocates the predicted devices, or rejects the pod with a message of the predicted kind."""
    all_trials = trials(sites, engine)
    chosen = sample(all_trials)

    def begin(trial: Trial) -> None:
        publish(plane, trial.node, trial.offered)
        start(plane, trial.node, trial.spec, trial.node)

    differences: list[str] = []
    kinds: dict[str, int] = {}
    with ThreadPoolExecutor(4) as pool:
        # long searches start last, so that the others do not wait for them
        list(pool.map(begin, sorted(chosen, key=lambda trial: trial.may_time_out)))
    for choice in chosen:
        results, message = outcome(plane, choice.node, isinstance(choice.predicted, Allocation), 300)
        got = [(result["request"], result["driver"], result["device"]) for result in results]
        if not results:  # otherwise the scheduler would retry on every change
            plane.expect("DELETE", f"{PODS}/{choice.node}?gracePeriodSeconds=0")
        kinds[choice.kind] = kinds.get(choice.kind, 0) + 1
        if isinstance(choice.predicted, Allocation):
            if got != device_ids(choice.predicted):
                differences.append(f"{choice.node}: predicted {device_ids(choice.predicted)}, got {got} {message}")
            by_name = {(o.driver, o.device["name"]): o for o in choice.offered if not o.possible}
            differences += violated_constraints(
                choice.spec, [(r, by_name[driver, device]) for r, driver, device in got]
            )
        elif got or not any(text in message.lower() for text in MESSAGES[choice.kind]):
            differences.append(
                f"{choice.node}: predicted {choice.kind} ({choice.predicted.reason}), got {got} {message}"
            )
    print(len(chosen), "of", len(all_trials), "trials:", kinds)
    assert not differences, "\n".join(differences)
    assert set(kinds) >= {"allocated", "absent", "selector", "capacity", "count", "constraint", "class", "error"}
    assert {entry.machine for entry in chosen} == set(names())


def test_a_claim_falls_back_level_by_level(plane: ControlPlane, sites: dict[str, Site], engine: t.Any) -> None:
    """The next level is used only if the node has no aligned pair left."""
    site = sites["nvidia"]
    probed = facts("missing-nic")
    node = "fallback"
    offered = offers(node, probed, site.drivers)
    publish(plane, node, offered)
    by_name = {(o.driver, o.device["name"]): o for o in offered if not o.possible}
    levels: list[str] = []
    held: list[Result] = []
    for number in range(4):  # two pairs each: the node has eight GPUs, and seven of them share a PCIe root with a NIC
        name = f"fallback-{number}"
        answer = allocate([site.claims["two-near-pairs"]], site.classes, offered, engine, held=held)
        assert isinstance(answer, Allocation), answer
        start(plane, name, site.claims["two-near-pairs"], node)
        results, message = outcome(plane, name, should_fit=True)
        assert [(r["request"], r["driver"], r["device"]) for r in results] == device_ids(answer), message
        pairs = [(r["request"], by_name[r["driver"], r["device"]]) for r in results]
        assert not violated_constraints(site.claims["two-near-pairs"], pairs)
        levels += [r["request"].partition("/")[2] for r in results if "/" in r["request"]]
        held += answer.results
    assert levels.count("pcie-root") == 7 and len(levels) == 8, levels
    assert levels[-1] in ("numa-node", "any")
    for number in range(4):
        stop(plane, f"fallback-{number}")


def test_a_hundred_pairs_among_other_claims_are_aligned(
    plane: ControlPlane, sites: dict[str, Site], engine: t.Any
) -> None:
    """Claims for pairs, for a GPU and for a NIC are created and deleted at random. Every allocated pair is aligned.

    Runs on four nodes at a time, because most of the time is spent waiting.
    """
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda number: _churn(plane, sites["nvidia"], engine, number, 25), range(4)))
    aligned, refused, claims = map(sum, zip(*counts))
    print(f"{aligned} pairs aligned, {refused} claims refused as predicted, {claims} claims in all")
    assert aligned == 100 and refused > 0


def _churn(plane: ControlPlane, site: Site, engine: t.Any, seed: int, pairs: int) -> tuple[int, int, int]:
    """Create claims until `pairs` pairs were allocated. Returns the numbers of pairs, refusals and claims."""
    node = f"churn-{seed}"
    offered = offers(node, facts("hgx-h100"), site.drivers)
    publish(plane, node, offered)
    by_name = {(o.driver, o.device["name"]): o for o in offered if not o.possible}
    single = {"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "nvidia-gpu"}}]}}
    nic = {"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "nvidia-rdma"}}]}}
    rng = random.Random(SEED + seed)
    live: dict[str, list[Result]] = {}
    aligned = refused = number = 0
    while aligned < pairs:
        number += 1
        assert number < 20 * pairs
        if len(live) > 8 or (live and rng.random() < 0.35):
            ended = rng.choice(sorted(live))
            stop(plane, ended)
            del live[ended]
        kind, spec = rng.choice([("gpu", single), ("nic", nic), *[("pair", site.claims["one-pair"])] * 4])
        name = f"{node}-{number}"
        held = [result for results in live.values() for result in results]
        answer = allocate([spec], site.classes, offered, engine, held=held)
        start(plane, name, spec, node)
        results, message = outcome(plane, name, isinstance(answer, Allocation))
        assert bool(results) == isinstance(answer, Allocation), (name, answer, results, message)
        allocated = [Result(0, entry["request"], by_name[entry["driver"], entry["device"]]) for entry in results]
        assert not {entry.id for entry in allocated} & {entry.id for entry in held}
        if not results:
            assert isinstance(answer, Refusal) and NO_DEVICES in message
            refused += 1
            stop(plane, name)
            continue
        live[name] = allocated
        if kind == "pair":
            roots = {str(attribute(entry.offer, PCIE_ROOT)) for entry in allocated}
            assert len(allocated) == 2 and len(roots) == 1, results
            assert not violated_constraints(spec, [(entry.request, entry.offer) for entry in allocated])
            aligned += 1
    for name in live:
        stop(plane, name)
    return aligned, refused, number


def test_taint_rules_exclude_the_predicted_devices(plane: ControlPlane, sites: dict[str, Site], engine: t.Any) -> None:
    """A DeviceTaintRule for one GPU, and one for all NICs of a node, have the effect that the allocator predicts."""
    site, node = sites["nvidia"], "tainted"
    taint = {"key": "example.com/service", "effect": "NoSchedule"}
    selectors = {
        "gpu": {"driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"},
        "nics": {"driver": "lanewise.dev", "pool": node},
    }
    rules = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": f"{node}-{name}"},
            "spec": {"deviceSelector": selector, "taint": taint},
        }
        for name, selector in selectors.items()
    ]
    for rule in rules:
        plane.expect("POST", f"{RESOURCE}/devicetaintrules", rule)
    publish(plane, node, offers(node, facts("hgx-h100"), site.drivers))
    offered = offers(node, facts("hgx-h100"), site.drivers, server=Server(rules=rules))
    kinds = {}
    for name in ("gpus", "all-gpus", "one-pair"):
        predicted = allocate([site.claims[name]], site.classes, offered, engine)
        kinds[name] = "allocated" if isinstance(predicted, Allocation) else predicted.kind
        start(plane, f"{node}-{name}", site.claims[name], node)
        results, message = outcome(plane, f"{node}-{name}", isinstance(predicted, Allocation))
        if isinstance(predicted, Allocation):
            assert [(result["request"], result["driver"], result["device"]) for result in results] == device_ids(
                predicted
            ), message
            assert "gpu-0" not in {result["device"] for result in results}
        else:
            assert NO_DEVICES in message, message
        stop(plane, f"{node}-{name}")
    for rule in rules:
        plane.expect("DELETE", f"{RESOURCE}/devicetaintrules/{rule['metadata']['name']}")
    assert kinds == {"gpus": "allocated", "all-gpus": "taint", "one-pair": "taint"}


@pytest.mark.parametrize(
    ("gates", "rule"),
    [
        ({}, "inactive"),
        ({"DRAConsumableCapacity": True}, "inactive"),
        ({"DRAResourceClaimDeviceStatus": False}, "fatal"),
    ],
)
def test_the_oldest_scheduler_ignores_distinct_attributes_or_rejects_the_pod(
    gates: dict[str, bool], rule: str, planes: t.Any, engine: t.Any
) -> None:
    """Kubernetes 1.34 stores `distinctAttribute`, but also allocates devices with equal values.

    Without the gate DRAResourceClaimDeviceStatus, its scheduler rejects the pod."""
    plane = ControlPlane("1.34", gates=gates) if gates else planes("1.34")
    try:
        plane.add_namespace(NAMESPACE)
        plane.expect("POST", f"{RESOURCE}/deviceclasses", RAW_CLASS)
        offered = offers("distinct", facts("hgx-h100"), {"lanewise.dev": {}})
        publish(plane, "distinct", offered)
        body = {"deviceClassName": "nic-lanewise", "allocationMode": "ExactCount", "count": 2}
        constraints = [{"distinctAttribute": "lanewise.dev/type"}]  # the same for all
        spec = {"devices": {"requests": [{"name": "nic", "exactly": body}], "constraints": constraints}}
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": spec}
        assert [entry.rule for entry in features.unsupported(claim, plane.version, gates)] == [rule]
        known = Server(plane.version, gates).constraints
        answer = allocate([spec], {"nic-lanewise": RAW_CLASS}, offered, engine, constraints=known)
        start(plane, "distinct", spec, "distinct")
        results, message = outcome(plane, "distinct", should_fit=rule != "fatal")
        assert isinstance(answer, Refusal)
        if rule == "fatal":
            assert answer.kind == "error" and not results and "empty constraint" in message
        else:  # the constraint was ignored
            assert answer.kind == "constraint" and len(results) == 2
        stop(plane, "distinct")
    finally:
        if gates:
            plane.close()
