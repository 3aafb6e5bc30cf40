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
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.what_if import after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.test_nearest import diagonal
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan import test_fit
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
NODES = ("a-0", "a-1", "b-0")
#: GPUs of the machine, and pairs of a claim.
GPUS, MOST = 8, 4


def template(count: int) -> Object:
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    groups = [{"align": "nearest", "count": count, "devices": devices}]
    return {"name": f"near-{count}", "namespace": "team", "groups": groups}


class Site:
    """Three nodes with the same map, and the claims that are compiled for it."""

    def __init__(self) -> None:
        machine = diagonal(copy.deepcopy(facts("hgx-h100")))
        values = {"dra_claims_drivers": DRIVERS, "dra_claims_templates": [template(n + 1) for n in range(MOST)]}
        self.machines = dict.fromkeys(NODES, machine)
        made = compile_site(values, self.machines)
        (form,) = {use.form for use in made.boards}
        assert form == "published map"
        self.pairs = {gpu: nic for _board, _level, gpu, nic in made.boards[0].pairs}
        assert len(self.pairs) == GPUS
        named = {(one["kind"], one["metadata"]["name"]): one for one in made.objects}
        self.classes = {name: one for (kind, name), one in named.items() if kind == "DeviceClass"}
        self.specs = {
            name: one["spec"]["spec"] for (kind, name), one in named.items() if kind == "ResourceClaimTemplate"
        }

    def work(self, count: int) -> Workload:
        return Workload(f"near-{count}", (self.specs[f"near-{count}"],))

    def fleet(self, *claims: tuple[str, str, t.Collection[str]]) -> Fleet:
        """The cluster with claims, each with its name, its node and the addresses of its devices."""
        bare = reader.probed(self.machines, DRIVERS, self.classes)
        published = [one for each in bare.nodes.values() for one in slices(each.offers)]
        nodes = [test_fit.node(name) for name in NODES]
        held = []
        for name, node, addresses in claims:
            places = [
                place
                for place, one in enumerate(bare.nodes[node].offers)
                if one.address in addresses and not one.possible
            ]
            assert len(places) == len(addresses)
            held.append(test_fit.claim(name, bare, node, *places))
        return reader.read([*nodes, *published, *self.classes.values(), *held])


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


@pytest.fixture(scope="module")
def site(engine: Engine) -> Site:
    return Site()


def test_all_pairs_of_an_empty_fleet_are_counted(site: Site, engine: Engine) -> None:
    counts = {count: fits.fit(site.fleet(), [site.work(count)], engine)[0].total for count in range(1, MOST + 1)}
    assert counts == {count: len(NODES) * (GPUS // count) for count in counts}


def test_a_gpu_whose_nic_is_in_use_is_named_with_the_claim(site: Site, engine: Engine) -> None:
    (gpu, nic), (other_gpu, _nic) = list(site.pairs.items())[:2]
    fleet = site.fleet(("training", "a-0", [nic]), ("serving", "a-0", [other_gpu]))
    (found,) = fits.fit(fleet, [site.work(1)], engine)
    assert (found.nodes["a-0"].count, found.nodes["a-1"].count, found.total) == (6, 8, 22)
    says = found.nodes["a-0"].unpaired
    assert says == (
        f"GPU {gpu} is free, but its NIC {nic} is in use by team/training",
        f"NIC {site.pairs[other_gpu]} is free, but its GPU {other_gpu} is in use by team/serving",
    )
    lines = report_lines.lines([found], [], [])
    assert [line for line in lines if "is in use" in line] == [f"  a-0: {one}" for one in says]


def test_only_the_first_of_many_such_devices_are_listed(site: Site, engine: Engine) -> None:
    fleet = site.fleet(*((f"c-{node}", node, list(site.pairs.values())) for node in NODES))
    (found,) = fits.fit(fleet, [site.work(1)], engine)
    assert found.total == 0 and all(len(one.unpaired) == GPUS for one in found.nodes.values())
    lines = [line for line in report_lines.lines([found], [], []) if "free" in line]
    assert len(lines) == 5 and lines[-1] == f"  and {3 * GPUS - 4} more free devices whose partners are unavailable"


def test_pairs_by_an_attribute_are_named_too(engine: Engine) -> None:
    empty = test_fit.cluster([test_fit.node("a-0")])
    place = test_fit._of(empty, "gpu.nvidia.com")[0]
    gpu = empty.nodes["a-0"].offers[place].address
    fleet = test_fit.cluster([test_fit.node("a-0")], test_fit.claim("c", empty, "a-0", place))
    (found,) = fits.fit(fleet, [test_fit.workload("two-pairs")], engine)
    (says,) = found.nodes["a-0"].unpaired
    assert says.startswith("nic 0000:") and says.endswith(f" is free, but its gpu {gpu} is in use by team/c")


def test_a_gpu_is_stranded_until_its_nearest_nic_is_released(site: Site, engine: Engine) -> None:
    gpu, nic = next(iter(site.pairs.items()))
    fleet = site.fleet(("training", "a-0", [nic]))
    lost = [one for one in stranded(fleet, [site.work(1)], engine) if one.holders]
    assert [(one.node, one.holders) for one in lost] == [("a-0", ("team/training",))]
    offers = {"/".join((one.driver, one.pool, one.device["name"])): one.address for one in fleet.nodes["a-0"].offers}
    assert offers[lost[0].device] == gpu
    freed = after(fleet, [{"release": {"claims": ["team/training"]}}])
    assert fits.fit(freed, [site.work(1)], engine)[0].total == len(NODES) * GPUS
    gone = after(fleet, [{"lose": {"node": "a-1", "devices": [gpu, site.pairs[list(site.pairs)[1]]]}}])
    assert fits.fit(gone, [site.work(1)], engine)[0].nodes["a-1"].count == GPUS - 2
    more = after(fleet, [{"add": {"like": "b-0", "count": 2}}, {"cordon": {"nodes": ["a-0"]}}])
    assert fits.fit(more, [site.work(2)], engine)[0].total == 4 * (GPUS // 2)


@pytest.mark.parametrize("count", range(1, MOST + 1))
def test_the_count_is_right_for_any_two_devices_in_use(site: Site, engine: Engine, count: int) -> None:
    """For any two devices in use on a board, the count is that of the pairs that are still whole."""
    devices = [*list(site.pairs)[:3], *list(site.pairs.values())[:3]]
    for held in itertools.combinations(devices, 2):
        whole = sum(gpu not in held and nic not in held for gpu, nic in site.pairs.items())
        (found,) = fits.fit(site.fleet(("c", "a-0", held)), [site.work(count)], engine)
        assert found.nodes["a-0"].count == whole // count, held
