# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A plan's counts of pods with `align: nearest` that fit, on boards with random maps, against the real scheduler.

LANEWISE_BOARD_FLEETS is the number of fleets.
"""

from __future__ import annotations

import copy
import os
import random
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.what_if import after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.boards import shuffled_map, with_map
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

FLEETS = int(os.environ.get("LANEWISE_BOARD_FLEETS", "4"))
SEED = 20261124
MAPS, NODES, MAX_PAIRS = 3, 4, 3
#: Seconds to wait for the extra pod, which must not be bound.
SETTLE_SECONDS = 1.0
DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {}}
RESOURCE = "/apis/resource.k8s.io/v1"
NAMESPACE = "plan-boards"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"


def machines() -> dict[str, Object]:
    """The facts of machines with the same addresses and different maps."""
    result = {}
    for number in range(MAPS):
        machine = copy.deepcopy(facts("hgx-h100"))
        gpus = [gpu["address"] for gpu in machine["gpus"]]
        fabric = [nic["address"] for nic in machine["nics"] if nic["rdma_devices"] and not nic["default_route"]]
        result[f"map-{number}"] = with_map(machine, shuffled_map(gpus, fabric[: len(gpus)], SEED + number))
    return result


def compile_claims(boards: Object) -> tuple[dict[str, Object], dict[str, Object]]:
    """The device classes, and the specs of claims for pairs and for single devices."""
    gpu, nic = {"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}
    templates: list[Object] = [
        {
            "name": f"near-{count}",
            "namespace": NAMESPACE,
            "groups": [{"align": "nearest", "count": count, "devices": [gpu, nic]}],
        }
        for count in range(1, MAX_PAIRS + 1)
    ]
    templates += [{"name": f"one-{entry['name']}", "namespace": NAMESPACE, "devices": [entry]} for entry in (gpu, nic)]
    compiled = compile_site({"dra_claims_drivers": DRIVERS, "dra_claims_templates": templates}, boards)
    assert {use.form for use in compiled.boards} == {"published map"}
    by_kind = {
        kind: {manifest["metadata"]["name"]: manifest for manifest in compiled.objects if manifest["kind"] == kind}
        for kind in _KINDS
    }
    return by_kind["DeviceClass"], {
        name: entry["spec"]["spec"] for name, entry in by_kind["ResourceClaimTemplate"].items()
    }


_KINDS = ("DeviceClass", "ResourceClaimTemplate")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


class BoardFleet:
    """A random fleet of these machines in a control plane. Pods have some of its devices."""

    def __init__(self, plane: ControlPlane, number: int) -> None:
        self.plane, self.name, self.started = plane, f"boards-{number}", 0
        self.rng = random.Random(SEED + number)
        boards = machines()
        self.classes, self.specs = compile_claims(boards)
        if plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}")[0] == 404:
            plane.add_namespace(NAMESPACE)
        for deviceclass in self.classes.values():
            plane.request("POST", f"{RESOURCE}/deviceclasses", deviceclass)
        self.nodes = [f"{self.name}-{index}" for index in range(self.rng.randint(2, NODES))]
        for node in self.nodes:
            plane.add_node(node, {"fleet": self.name})
            for resource_slice in slices(offers(node, boards[self.rng.choice(sorted(boards))], DRIVERS)):
                plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)
        for _index in range(self.rng.randint(2, 4 * len(self.nodes))):
            self.start(self.rng.choice(["one-gpu", "one-nic", "near-1"]))
        self.wait_decided()

    def workload(self, template: str) -> Workload:
        return Workload(template, (self.specs[template],), {"nodeSelector": {"fleet": self.name}}, NAMESPACE)

    def start(self, template: str) -> None:
        self.started += 1
        name = f"{self.name}-{self.started}"
        self.plane.expect("POST", CLAIMS, {"metadata": {"name": name}, "spec": self.specs[template]})
        container = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        spec = {
            "nodeSelector": {"fleet": self.name},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "resourceClaims": [{"name": "d", "resourceClaimName": name}],
        }
        self.plane.expect("POST", PODS, {"metadata": {"name": name, "labels": {"fleet": self.name}}, "spec": spec})

    def wait_decided(self) -> tuple[set[str], set[str]]:
        """Wait until the scheduler has decided on every pod. Returns the bound and the pending pods."""

        def decided() -> t.Any:
            bound, waiting = set(), set()
            for pod in self.plane.expect("GET", f"{PODS}?labelSelector=fleet%3D{self.name}")["items"]:
                conditions = pod.get("status", {}).get("conditions", ())
                if pod["spec"].get("nodeName"):
                    bound.add(pod["metadata"]["name"])
                elif any(
                    condition["type"] == "PodScheduled" and condition["status"] == "False" for condition in conditions
                ):
                    waiting.add(pod["metadata"]["name"])
                else:
                    return None
            return bound, waiting

        return t.cast("tuple[set[str], set[str]]", self.plane.wait_for(decided, f"pods of {self.name}", 120))

    def delete_pods(self, names: t.Iterable[str]) -> None:
        for name in names:
            self.plane.expect("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            self.plane.expect("DELETE", f"{CLAIMS}/{name}")

    def fleet(self) -> Fleet:
        """The state of this fleet's nodes. The control plane also has the nodes of other fleets."""
        kinds = (
            ("Node", "v1", f"/api/v1/nodes?labelSelector=fleet%3D{self.name}"),
            ("Pod", "v1", f"{PODS}?labelSelector=fleet%3D{self.name}"),
            ("ResourceSlice", "resource.k8s.io/v1", f"{RESOURCE}/resourceslices"),
            ("ResourceClaim", "resource.k8s.io/v1", CLAIMS),
            ("DeviceClass", "resource.k8s.io/v1", f"{RESOURCE}/deviceclasses"),
        )
        found = []
        for kind, version, path in kinds:
            found += [{"apiVersion": version, "kind": kind, **item} for item in self.plane.expect("GET", path)["items"]]
        fleet = reader.read(found, self.plane.minor)
        assert set(fleet.nodes) == set(self.nodes)
        return fleet


@pytest.mark.parametrize("number", range(FLEETS))
def test_exactly_the_predicted_number_of_nearest_pairs_is_bound(
    newest: ControlPlane, engine: Engine, number: int
) -> None:
    site = BoardFleet(newest, number)
    site.delete_pods(site.wait_decided()[1])
    template = f"near-{site.rng.randint(1, MAX_PAIRS)}"
    (predicted,) = fits.fit(site.fleet(), [site.workload(template)], engine)
    assert not predicted.at_least and not predicted.at_most, predicted.notes
    before, _waiting = site.wait_decided()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _index: site.start(template), range(predicted.total + 1)))
    bound, waiting = site.wait_decided()
    time.sleep(SETTLE_SECONDS)
    assert site.wait_decided()[0] == bound
    assert len(bound - before) == predicted.total and len(waiting) == 1, (
        template,
        predicted.total,
        predicted.reasons(),
    )


def test_released_claims_free_stranded_gpus_as_predicted(newest: ControlPlane, engine: Engine) -> None:
    """Claims for single NICs strand the GPUs beside these NICs. When the claims are released, the predicted number of
    additional pairs is bound."""
    site = BoardFleet(newest, 1000)
    site.delete_pods({*site.wait_decided()[0], *site.wait_decided()[1]})
    for _index in range(5):
        site.start("one-nic")
    site.wait_decided()
    fleet, workload = site.fleet(), site.workload("near-1")
    held = [entry for entry in stranded(fleet, [workload], engine) if entry.holders]
    assert held and all(len(entry.holders) == 1 for entry in held)
    (before_release,) = fits.fit(fleet, [workload], engine)
    unpaired = [line for node in before_release.nodes.values() for line in node.unpaired]
    assert len(unpaired) == len(held) and all(
        " is free, but its NIC " in line and NAMESPACE in line for line in unpaired
    )
    freed = sorted({holder for entry in held for holder in entry.holders})
    (after_release,) = fits.fit(after(fleet, [{"release": {"claims": freed}}]), [workload], engine)
    assert after_release.total == before_release.total + len(freed)
    site.delete_pods(entry.partition("/")[2] for entry in freed)
    before, _waiting = site.wait_decided()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _index: site.start("near-1"), range(after_release.total + 1)))
    bound, waiting = site.wait_decided()
    assert len(bound - before) == after_release.total and len(waiting) == 1
