# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans for claims with `align: nearest`, on boards whose PCIe roots do not show which NIC is nearest to which GPU."""

from __future__ import annotations

import copy
import itertools
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader, report_lines
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, HeldDevice, Node, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.what_if import after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.simulated_node import (
    with_shuffled_nics,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan import test_fit
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
NODES = ("a-0", "a-1", "b-0")
#: The GPUs of the machine, and the largest number of pairs of a claim.
GPUS, MAX_PAIRS = 8, 4


def template(count: int) -> Object:
    """A claim template for this number of pairs."""
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    groups = [{"align": "nearest", "count": count, "devices": devices}]
    return {"name": f"near-{count}", "namespace": "team", "groups": groups}


class Site:
    """Three nodes with the same board, and the compiled classes and claims for them."""

    def __init__(self) -> None:
        machine = with_shuffled_nics(copy.deepcopy(facts("hgx-h100")))
        values = {"dra_claims_drivers": DRIVERS, "dra_claims_templates": [template(n + 1) for n in range(MAX_PAIRS)]}
        self.machines = dict.fromkeys(NODES, machine)
        compiled = compile_site(values, self.machines)
        (form,) = {use.form for use in compiled.boards}
        assert form == "published map"
        self.pairs = {gpu: nic for _board, _level, gpu, nic in compiled.boards[0].pairs}
        assert len(self.pairs) == GPUS
        objects = {(obj["kind"], obj["metadata"]["name"]): obj for obj in compiled.objects}
        self.classes = {name: obj for (kind, name), obj in objects.items() if kind == "DeviceClass"}
        self.specs = {
            name: obj["spec"]["spec"] for (kind, name), obj in objects.items() if kind == "ResourceClaimTemplate"
        }

    def workload(self, count: int) -> Workload:
        return Workload(f"near-{count}", (self.specs[f"near-{count}"],))

    def fleet(self, *claims: tuple[str, str, t.Collection[str]]) -> Fleet:
        """The cluster with these allocated claims: the name, the node and the PCI addresses of the devices of each."""
        probed = reader.probed(self.machines, DRIVERS, self.classes)
        published = [resource_slice for node in probed.nodes.values() for resource_slice in slices(node.offers)]
        nodes = [test_fit.node(name) for name in NODES]
        allocated = []
        for name, node_name, addresses in claims:
            positions = [
                position
                for position, offer in enumerate(probed.nodes[node_name].offers)
                if offer.address in addresses and not offer.possible
            ]
            assert len(positions) == len(addresses)
            allocated.append(test_fit.claim(name, probed, node_name, *positions))
        return reader.read([*nodes, *published, *self.classes.values(), *allocated])


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


@pytest.fixture(scope="module")
def site(engine: Engine) -> Site:
    return Site()


def test_all_pairs_of_an_empty_fleet_are_counted(site: Site, engine: Engine) -> None:
    counts = {
        count: fits.fit(site.fleet(), [site.workload(count)], engine)[0].total for count in range(1, MAX_PAIRS + 1)
    }
    assert counts == {count: len(NODES) * (GPUS // count) for count in counts}


def test_a_free_device_whose_partner_is_in_use_is_reported_with_the_claim(site: Site, engine: Engine) -> None:
    (gpu, nic), (other_gpu, _nic) = list(site.pairs.items())[:2]
    fleet = site.fleet(("training", "a-0", [nic]), ("serving", "a-0", [other_gpu]))
    (found,) = fits.fit(fleet, [site.workload(1)], engine)
    assert (found.nodes["a-0"].count, found.nodes["a-1"].count, found.total) == (6, 8, 22)
    reported = found.nodes["a-0"].unpaired
    assert reported == (
        f"GPU {gpu} is free, but its NIC {nic} is in use by team/training",
        f"NIC {site.pairs[other_gpu]} is free, but its GPU {other_gpu} is in use by team/serving",
    )
    lines = report_lines.lines([found], [], [])
    assert [line for line in lines if "is free, but" in line] == [f"  a-0: {unpaired}" for unpaired in reported]


def test_only_the_first_of_many_unpaired_devices_are_listed(site: Site, engine: Engine) -> None:
    fleet = site.fleet(*((f"c-{name}", name, list(site.pairs.values())) for name in NODES))
    (found,) = fits.fit(fleet, [site.workload(1)], engine)
    assert found.total == 0 and all(len(node_fit.unpaired) == GPUS for node_fit in found.nodes.values())
    lines = [line for line in report_lines.lines([found], [], []) if "free" in line]
    assert len(lines) == 5 and lines[-1] == f"  and {3 * GPUS - 4} more free devices whose partners are unavailable"


def test_unpaired_devices_are_also_reported_for_pairs_by_an_attribute(engine: Engine) -> None:
    empty = test_fit.cluster([test_fit.node("a-0")])
    position = test_fit.positions_of(empty, "gpu.nvidia.com")[0]
    gpu = empty.nodes["a-0"].offers[position].address
    fleet = test_fit.cluster([test_fit.node("a-0")], test_fit.claim("c", empty, "a-0", position))
    (found,) = fits.fit(fleet, [test_fit.workload("two-pairs")], engine)
    (reported,) = found.nodes["a-0"].unpaired
    assert reported.startswith("nic 0000:") and reported.endswith(f" is free, but its gpu {gpu} is in use by team/c")


def test_a_partition_in_use_takes_its_gpu_but_a_shared_nic_can_be_shared_again() -> None:
    def offer(name: str, consumed: str, **more: t.Any) -> Offer:
        consumes = [{"counterSet": "card", "counters": {"slices": {"value": consumed}}}] if consumed else []
        sets = ({"name": "card", "counters": {"slices": {"value": "7"}}},)
        return Offer("d", "n", "n", {"name": name, "consumesCounters": consumes, **more}, counter_sets=sets)

    gpu, half, small, nic = (
        offer("gpu", "7"),
        offer("half", "4"),
        offer("small", "3"),
        offer("nic", "", allowMultipleAllocations=True),
    )
    held = tuple(HeldDevice(Result(0, "r", taken, False, {}), "team/c") for taken in (half, nic))
    node = Node("n", offers=(gpu, half, small, nic), held=held)
    assert node.taken() == {("d", "n", "gpu"): "team/c", ("d", "n", "half"): "team/c"}


def test_a_gpu_is_stranded_while_its_nearest_nic_is_in_use(site: Site, engine: Engine) -> None:
    gpu, nic = next(iter(site.pairs.items()))
    fleet = site.fleet(("training", "a-0", [nic]))
    found = [device for device in stranded(fleet, [site.workload(1)], engine) if device.holders]
    assert [(device.node, device.holders) for device in found] == [("a-0", ("team/training",))]
    offers = {
        "/".join((offer.driver, offer.pool, offer.device["name"])): offer.address for offer in fleet.nodes["a-0"].offers
    }
    assert offers[found[0].device] == gpu
    freed = after(fleet, [{"release": {"claims": ["team/training"]}}])
    assert fits.fit(freed, [site.workload(1)], engine)[0].total == len(NODES) * GPUS
    without_two_devices = after(fleet, [{"lose": {"node": "a-1", "devices": [gpu, site.pairs[list(site.pairs)[1]]]}}])
    assert fits.fit(without_two_devices, [site.workload(1)], engine)[0].nodes["a-1"].count == GPUS - 2
    other_nodes = after(fleet, [{"add": {"like": "b-0", "count": 2}}, {"cordon": {"nodes": ["a-0"]}}])
    assert fits.fit(other_nodes, [site.workload(2)], engine)[0].total == 4 * (GPUS // 2)


@pytest.mark.parametrize("count", range(1, MAX_PAIRS + 1))
def test_with_two_devices_in_use_the_pairs_without_them_are_counted(site: Site, engine: Engine, count: int) -> None:
    devices = [*list(site.pairs)[:3], *list(site.pairs.values())[:3]]
    for held in itertools.combinations(devices, 2):
        free_pairs = sum(gpu not in held and nic not in held for gpu, nic in site.pairs.items())
        (found,) = fits.fit(site.fleet(("c", "a-0", held)), [site.workload(count)], engine)
        assert found.nodes["a-0"].count == free_pairs // count, held
