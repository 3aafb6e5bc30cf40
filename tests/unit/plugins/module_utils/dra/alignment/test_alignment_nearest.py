# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reports of claims with `align: nearest`, with devices that the scheduler would allocate, or that the test chooses."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pair_form import pair_forms
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler import allocator
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.node_with_claims import (
    NODE,
    NodeWithClaims,
    finding_ids,
    nearest_nic,
)

pytest.importorskip("cel_expr_python")
DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}


class NodeWithPairClaim(NodeWithClaims):
    """A node, and claims from a template for a GPU and its nearest NIC."""

    def __init__(self, machine: str, align: t.Any = "nearest", at_least: str = "PIX") -> None:
        super().__init__(machine, drivers=DRIVERS)
        devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
        template = {"name": "pair", "namespace": "ml", "align": align, "at_least": at_least, "devices": devices}
        values = {"dra_claims_drivers": DRIVERS, "dra_claims_templates": [template]}
        objects = compile_site(values, {NODE: self.facts}).objects
        self.classes = [item for item in objects if item["kind"] == "DeviceClass"]
        [self.spec] = [item["spec"]["spec"]["devices"] for item in objects if item["kind"] == "ResourceClaimTemplate"]

    def allocate(self) -> dict[str, str]:
        """The address of the device that a scheduler would allocate for each request."""
        classes = {item["metadata"]["name"]: item for item in self.classes}
        node_offers = offers(NODE, self.facts, DRIVERS)
        answer = allocator.allocate([{"devices": self.spec}], classes, node_offers, Engine())
        assert isinstance(answer, allocator.Allocation)
        return {result.request: result.offer.address for result in answer.results}

    def report_for(self, addresses: dict[str, str]) -> Object:
        """Add a claim that has the device at an address for each request, and return its report."""
        self.add_claim(addresses, *self.spec["constraints"], requests=self.spec["requests"])
        return self.report(engine=Engine(), classes=self.classes)


def test_the_promise_of_a_nearest_pair_is_kept_and_proven() -> None:
    node = NodeWithPairClaim("hgx-h100")
    report = node.report_for(node.allocate())
    assert (report["verdict"], report["proven"]) == ("kept", True)
    assert [promise["rule"] for promise in report["promises"]].count("nearest") == 1
    assert report["pairs"][0]["promised"] and report["pairs"][0]["level"] == "PIX"
    # the alternatives are the pairs of the board, none of which is a fallback
    assert report["preferences"] == [] and "fallback" not in finding_ids(report)


def test_a_gpu_and_a_nic_that_are_not_a_pair_break_the_promise() -> None:
    node = NodeWithPairClaim("hgx-h100")
    [form] = pair_forms(node.spec)
    addresses = node.allocate()
    gpu_request = next(name for name in addresses if name.startswith("gpu/"))
    other_sub = next(name for name in form.second_subs if not form.allowed(gpu_request.partition("/")[2], name))
    other_gpu_address = other_sub.replace("-", ":", 2).replace("-", ".")  # alternatives have the names of their GPUs
    nic_address = nearest_nic(node, other_gpu_address)
    report = node.report_for({gpu_request: addresses[gpu_request], f"nic/{other_sub}": nic_address})
    assert report["verdict"] == "broken"
    [promise] = [promise for promise in report["promises"] if promise["rule"] == "nearest"]
    assert "are not a pair of this claim" in promise["reason"]


def test_a_nic_that_is_no_longer_the_nearest_breaks_the_promise() -> None:
    """As after a change of the board's map: the allocated NIC is not the nearest one."""
    node = NodeWithPairClaim("hgx-h100")
    addresses = node.allocate()
    gpu_request, nic_request = sorted(addresses)
    far = next(
        address
        for address in _nic_addresses(node)
        if address != addresses[nic_request] and node.machine.level(addresses[gpu_request], address)[0] != "PIX"
    )
    report = node.report_for({gpu_request: addresses[gpu_request], nic_request: far})
    [promise] = [promise for promise in report["promises"] if promise["rule"] == "nearest"]
    assert promise["verdict"] == "broken"
    assert "is nearer now (PIX)" in promise["reason"] and "render the claims" in promise["fix"]


def test_a_nearest_pair_is_not_broken_because_the_classes_are_unknown() -> None:
    """A GPU that is nearer to the GPU than the NIC is no candidate. Without its class, a body selects any device."""
    node = NodeWithPairClaim("hgx-h100")
    addresses = node.allocate()
    node.add_claim(addresses, *node.spec["constraints"], requests=node.spec["requests"])
    for classes in (None, []):
        [report] = node.check(engine=Engine(), classes=classes)["claims"]
        [promise] = [promise for promise in report["promises"] if promise["rule"] == "nearest"]
        assert promise["verdict"] == "kept", promise


def test_the_promise_of_a_nearest_pair_is_not_proven_without_a_probe() -> None:
    node = NodeWithPairClaim("hgx-h100")
    addresses = node.allocate()
    node.add_claim(addresses, *node.spec["constraints"], requests=node.spec["requests"])
    [report] = node.check(probed=False, engine=Engine(), classes=node.classes)["claims"]
    assert (report["verdict"], report["proven"]) == ("kept", False)


def test_the_entry_chosen_from_a_list_is_reported_once() -> None:
    node = NodeWithPairClaim("gb300", ["nearest", "any"], "PXB")
    report = node.report_for(node.allocate())
    assert report["preferences"] == [
        {"request": "nic", "chosen": "nearest", "rank": 1, "of": 2, "better": []},
    ]
    assert "fallback" not in finding_ids(report)


def _nic_addresses(node: NodeWithClaims) -> list[str]:
    return [address for address, device in node.devices().items() if device["driver"] == "lanewise.dev"]
