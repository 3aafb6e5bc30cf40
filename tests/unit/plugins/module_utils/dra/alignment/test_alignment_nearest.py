# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reports of claims with `align: nearest`, allocated as by a scheduler or by hand."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pair_form import pair_forms
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler import allocator
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.test_alignment import (
    NODE,
    Object,
    World,
    ids,
)

cel = pytest.importorskip("cel_expr_python")
DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}


class Pairs(World):
    """A node, and claims of a template with `align: nearest`."""

    def __init__(self, machine: str, align: t.Any = "nearest", at_least: str = "PIX") -> None:
        super().__init__(machine, drivers=DRIVERS)
        devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
        template = {"name": "pair", "namespace": "ml", "align": align, "at_least": at_least, "devices": devices}
        values = {"dra_claims_drivers": DRIVERS, "dra_claims_templates": [template]}
        made = compile_site(values, {NODE: self.facts}).objects
        self.classes = [item for item in made if item["kind"] == "DeviceClass"]
        [self.spec] = [item["spec"]["spec"]["devices"] for item in made if item["kind"] == "ResourceClaimTemplate"]

    def allocated(self) -> dict[str, str]:
        """The address that a scheduler allocates for each request."""
        classes = {item["metadata"]["name"]: item for item in self.classes}
        offered = offers(NODE, self.facts, DRIVERS)
        answer = allocator.allocate([{"devices": self.spec}], classes, offered, Engine())
        assert isinstance(answer, allocator.Allocation)
        return {one.request: one.offer.address for one in answer.results}

    def report_for(self, given: dict[str, str]) -> Object:
        self.claim(given, *self.spec["constraints"], requests=self.spec["requests"])
        return self.only(engine=Engine(), classes=self.classes)


def test_a_nearest_pair_is_kept_and_proven() -> None:
    world = Pairs("hgx-h100")
    report = world.report_for(world.allocated())
    assert (report["verdict"], report["proven"]) == ("kept", True)
    assert [one["rule"] for one in report["promises"]].count("nearest") == 1
    assert report["pairs"][0]["promised"] and report["pairs"][0]["level"] == "PIX"
    # each alternative stands for a pair of the board, and none is a fallback
    assert report["preferences"] == [] and "fallback" not in ids(report)


def test_a_gpu_and_a_nic_that_are_not_a_pair_break_the_promise() -> None:
    world = Pairs("hgx-h100")
    [form] = pair_forms(world.spec)
    given = world.allocated()
    gpu = next(name for name in given if name.startswith("gpu/"))
    other = next(name for name in form.second_subs if not form.allowed(gpu.partition("/")[2], name))
    nic = other.replace("-", ":", 2).replace("-", ".")
    report = world.report_for({gpu: given[gpu], f"nic/{other}": _nic_near(world, nic)})
    assert report["verdict"] == "broken"
    [promise] = [one for one in report["promises"] if one["rule"] == "nearest"]
    assert "are not a pair of this claim" in promise["reason"]


def test_a_nic_that_is_no_longer_the_nearest_breaks_the_promise() -> None:
    """The map of the board changed after the claim was allocated."""
    world = Pairs("hgx-h100")
    given = world.allocated()
    gpu, nic = sorted(given)
    far = next(one for one in _near(world) if one != given[nic] and world.machine.level(given[gpu], one)[0] != "PIX")
    report = world.report_for({gpu: given[gpu], nic: far})
    [promise] = [one for one in report["promises"] if one["rule"] == "nearest"]
    assert promise["verdict"] == "broken"
    assert "is at PIX now" in promise["reason"] and "render the claims" in promise["fix"]


def test_a_nearest_pair_is_not_proven_without_a_probe() -> None:
    world = Pairs("hgx-h100")
    given = world.allocated()
    world.claim(given, *world.spec["constraints"], requests=world.spec["requests"])
    [report] = world.check(machines=False, engine=Engine(), classes=world.classes)["claims"]
    assert (report["verdict"], report["proven"]) == ("kept", False)


def test_the_level_of_a_list_is_reported_once() -> None:
    world = Pairs("gb300", ["nearest", "any"], "PXB")
    report = world.report_for(world.allocated())
    assert report["preferences"] == [
        {"request": "nic", "chosen": "nearest", "rank": 1, "of": 2, "better": []},
    ]
    assert "fallback" not in ids(report)


def _near(world: World) -> list[str]:
    return [address for address, one in world.devices().items() if one["driver"] == "lanewise.dev"]


def _nic_near(world: World, gpu: str) -> str:
    return next(nic for nic in _near(world) if world.machine.level(gpu, nic)[0] == "PIX")
