# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nearest pairs that real schedulers allocate, for pods with several claims and for partitioned or shared GPUs."""

from __future__ import annotations

import copy
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Allocation, Result, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search_devices import identify
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.divided_nics import with_setting
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster.boards import VFS, Map, shuffled_map, with_map, with_vfs
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import load
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

Pairs = list[tuple[str, str]]
LANEWISE: Object = {"lanewise.dev": {}}
NVIDIA: Object = {"gpu.nvidia.com": {"version": "0.5.0"}}
DYNAMIC_MIG: Object = {"gpu.nvidia.com": {"version": "0.5.0", "feature_gates": {"DynamicMIG": True}}}
SHARED: Object = {
    "gpu.nvidia.com": {"version": "0.5.0", "engine": "consumable-shares", "consumable_shares": "memory"},
}
RESOURCE = "/apis/resource.k8s.io/v1"


class Site:
    """A node with a random map, a template for pairs, and pods that are created one by one until one is pending."""

    def __init__(self, plane: ControlPlane, name: str, machine: Object, drivers: Object, devices: list[Object]) -> None:
        self.plane, self.name, self.engine = plane, name, require_engine()
        values = {
            "dra_claims_drivers": drivers,
            "dra_claims_templates": [{"name": "pair", "namespace": name, "align": "nearest", "devices": devices}],
        }
        compiled = compile_site(values, {name: machine})
        (use,) = compiled.boards
        assert use.form == "published map"
        [self.spec] = [
            manifest["spec"]["spec"] for manifest in compiled.objects if manifest["kind"] == "ResourceClaimTemplate"
        ]
        self.classes = {
            manifest["metadata"]["name"]: manifest for manifest in compiled.objects if manifest["kind"] == "DeviceClass"
        }
        self.offers = [Server(plane.version).stored(offer) for offer in offers(name, machine, drivers)]
        self.devices = {(offer.driver, str(offer.device["name"])): offer for offer in self.offers}
        self.pf_of = {nic["address"]: nic["physfn"] or nic["address"] for nic in machine["nics"]}
        plane.add_namespace(name)
        for deviceclass in self.classes.values():
            plane.request("POST", f"{RESOURCE}/deviceclasses", deviceclass)
        plane.add_node(name)
        for resource_slice in slices(self.offers):
            plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)

    def pod(self, number: int, claims: int) -> list[list[tuple[str, Offer]]]:
        """Create one more pod. Returns the devices of each of its claims; an empty list if the pod is pending."""
        names = [f"p{number}-{index}" for index in range(claims)]
        claims_path = f"{RESOURCE}/namespaces/{self.name}/resourceclaims"
        for name in names:
            self.plane.expect("POST", claims_path, {"metadata": {"name": name}, "spec": self.spec})
        container = {
            "name": "c",
            "image": "none.example.com/none",
            "resources": {"claims": [{"name": name} for name in names]},
        }
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": self.name},
            "containers": [container],
            "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
        }
        path = f"/api/v1/namespaces/{self.name}/pods"
        self.plane.expect("POST", path, {"metadata": {"name": f"p{number}"}, "spec": spec})

        def decided() -> t.Any:
            pod = self.plane.expect("GET", f"{path}/p{number}")
            if pod["spec"].get("nodeName"):
                return [self.plane.expect("GET", f"{claims_path}/{name}") for name in names]
            conditions = pod.get("status", {}).get("conditions", ())
            reported = [
                condition["message"]
                for condition in conditions
                if condition["type"] == "PodScheduled" and condition["status"] == "False"
            ]
            assert not reported or "cannot allocate all claims" in reported[0], reported
            return "pending" if reported else None

        answer = self.plane.wait_for(decided, f"the scheduler's decision on p{number}", 60)
        if answer == "pending":
            return []
        results = [entry["status"]["allocation"]["devices"]["results"] for entry in answer]
        return [
            [(entry["request"], self.devices[entry["driver"], entry["device"]]) for entry in found] for found in results
        ]

    def fill(self, claims: int) -> Pairs:
        """Create pods until one is pending. Returns the GPU and NIC of each claim, which must be those that the offline
        allocator predicts."""
        held: list[Result] = []
        pairs: Pairs = []
        for number in range(len(self.offers)):
            predicted = allocate([self.spec] * claims, self.classes, self.offers, self.engine, held=held)
            got = self.pod(number, claims)
            if not got:
                assert not isinstance(predicted, Allocation), (number, predicted)
                return pairs
            assert isinstance(predicted, Allocation), (number, predicted, got)
            flat = [(request, identify(offer)) for found in got for request, offer in found]
            assert [(result.request, result.id) for result in predicted.results] == flat
            held += predicted.results
            for found in got:
                by_name = {request.partition("/")[0]: offer.address for request, offer in found}
                pairs.append((by_name["gpu"], self.pf_of[by_name["nic"]]))
        raise AssertionError("no pod is pending")


def with_random_map(machine: Object, seed: int) -> tuple[Object, Map]:
    """The machine with a random map that assigns one NIC to each GPU, and the map."""
    gpus = [gpu["address"] for gpu in machine["gpus"]]
    nics = [nic["address"] for nic in machine["nics"] if nic["rdma_devices"] and not nic["physfn"]]
    near = {nic["address"]: nic["nearest_gpus"]["level"] for nic in machine["nics"]}
    pairs = shuffled_map(gpus, [nic for nic in nics if near[nic] == "PIX"], seed)
    return with_map(machine, pairs), pairs


@pytest.mark.parametrize("claims", [2, 3])
def test_several_claims_of_a_pod_share_the_free_pairs(control_plane: ControlPlane, claims: int) -> None:
    machine, near = with_random_map(copy.deepcopy(facts("hgx-h100")), claims)
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    site = Site(control_plane, f"claims-{claims}", machine, {**NVIDIA, **LANEWISE}, devices)
    pairs = site.fill(claims)
    assert len(pairs) == claims * (len(near) // claims)
    assert all(nic in near[gpu] for gpu, nic in pairs) and len({gpu for gpu, _nic in pairs}) == len(pairs)


def test_partitions_share_the_vfs_beside_their_gpu(newest: ControlPlane, tmp_path: Path) -> None:
    """Partitions are created on demand, and each GPU can have more of them than its NIC has VFs."""
    machine, near = with_random_map(as_dict(probe(str(build(with_vfs(load("hgx-h100"), VFS), tmp_path / "vfs")))), 9)
    devices = [{"name": "gpu", "kind": "gpu", "where": {"partition": "1g.10gb"}}, {"name": "nic", "kind": "vf"}]
    site = Site(newest, "partitions", machine, {**DYNAMIC_MIG, **LANEWISE}, devices)
    pairs = site.fill(1)
    assert len(pairs) == VFS * len(near)
    assert all(nic in near[gpu] for gpu, nic in pairs)
    assert {sum(gpu == entry for gpu, _nic in pairs) for entry in near} == {VFS}


def test_parts_of_memory_share_the_divided_nics_beside_their_gpu(newest: ControlPlane) -> None:
    """A GPU has room for two parts of 30Gi, and a NIC for four shares of 100G. So the GPUs limit the number of pods."""
    known = copy.deepcopy(facts("hgx-h100"))
    for entry in known["nics"]:
        entry["link_layer"] = "ethernet"
    machine, near = with_random_map(known, 11)
    divided = with_setting(machine, [{"select": {"type": "pf"}, "mechanism": "macvlan", "namespace": "parts"}])
    devices = [
        {"name": "gpu", "kind": "gpu", "share": {"memory": "30Gi"}},
        {"name": "nic", "kind": "nic", "where": {"min_speed": "400G"}, "share": {"bandwidth": "100G"}},
    ]
    site = Site(newest, "parts", divided, {**SHARED, **LANEWISE}, devices)
    pairs = site.fill(1)
    assert len(pairs) == 2 * len(near)
    assert all(nic in near[gpu] for gpu, nic in pairs)
    assert {sum(gpu == item for gpu, _nic in pairs) for item in near} == {2}
