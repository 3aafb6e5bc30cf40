# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranges of addresses for the rails of each node, computed from the site's plan and the node's index."""

from __future__ import annotations

import csv
import io
import ipaddress
import os
import random

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses import formats
from ansible_collections.lanewise.dra.plugins.module_utils.dra.addresses.site_plan import (
    NodeInput,
    Site,
    ranges_of,
    site_plan,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.rail_range import RailRange, read_ranges
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.reader import Reader

#: How many random sites are planned.
RANDOM_PLANS = int(os.environ.get("LANEWISE_PLANS", "1000"))

PLAN: Object = {
    "per_node": 64,
    "rails": [
        {"rail": 0, "pool": "10.100.0.0/16"},
        {"rail": 0, "pool": "fd00:100::/64"},
        {"rail": 1, "pool": "10.101.0.0/16", "per_node": 32, "prefix": 27, "gateway": "first"},
    ],
}


def node(name: str, index: object, plan: Object | None = None, *node_addresses: str) -> NodeInput:
    return NodeInput(name, PLAN if plan is None else plan, index, node_addresses)


def refusal_of(*nodes: NodeInput) -> str:
    with pytest.raises(Problems) as caught:
        site_plan(nodes)
    return str(caught.value)


def test_the_ranges_of_a_node_follow_from_its_index() -> None:
    found = site_plan([node("a", 0), node("b", 17), node("c", "1023")]).ranges
    assert [str(rail_range.range) for rail_range in found["b"]] == [
        "10.100.4.64/26",
        "fd00:100::440/122",
        "10.101.2.32/27",
    ]
    assert str(found["c"][0].range) == "10.100.255.192/26"
    assert [rail_range.usable for rail_range in found["a"]] == [63, 63, 29], (
        "without the subnet's own addresses and the gateway"
    )
    assert [rail_range.usable for rail_range in found["b"]] == [64, 64, 29]
    assert found["c"][0].usable == 63, "without the broadcast address"
    assert str(found["b"][2].gateway) == "10.101.2.33"


def test_the_driver_reads_the_ranges_of_the_plan() -> None:
    reader = Reader()
    read = read_ranges(reader, ranges_of(PLAN, 17), "rail_addresses")
    assert not reader.problems
    assert read == site_plan([node("b", 17)]).ranges["b"]


def test_addresses_of_the_subnet_and_its_gateway_are_not_assigned() -> None:
    (rail_range,) = (rail_range for rail_range in site_plan([node("b", 17)]).ranges["b"] if rail_range.rail == 1)
    found = [str(address) for address in rail_range.addresses()]
    assert len(found) == rail_range.usable == 29
    assert found[0] == "10.101.2.34" and found[-1] == "10.101.2.62"


def test_every_address_has_its_own_routing_table() -> None:
    found = site_plan([node("b", 17)]).ranges["b"]
    tables = [
        rail_range.table(address)
        for rail_range in found
        if rail_range.family == "ipv4"
        for address in rail_range.addresses()
    ]
    assert len(set(tables)) == len(tables)
    assert min(tables) > 1_001_000, "above the tables of VRFs"


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("a", 3), node("b", 3)], "b: dra_driver_rail_index: 3 is already the index of a"),
        ([node("a", None)], "a: dra_driver_rail_index: is missing"),
        ([node("a", -1)], "must be from 0"),
        ([node("a", "x")], "must be a whole number"),
        ([node("a", True)], "must be a whole number"),
        ([node("a", 1024)], "1024 is beyond the pool 10.100.0.0/16 of rail 0, which has room for 1024 nodes"),
        ([node("a", 0, PLAN, "10.100.9.9")], "overlaps 10.100.9.9, which is in use on the node"),
        ([node("a", 0, PLAN, "10.0.0.0/8")], "overlaps 10.0.0.0/8, which is in use on the node"),
        (
            [node("a", 0), node("b", 0, {"rails": [{"rail": 0, "pool": "10.102.0.0/16"}]}, "10.100.9.9")],
            "b: dra_driver_rail_addresses: the pool 10.100.0.0/16 of rail 0 overlaps 10.100.9.9, which is in use",
        ),
        (
            [node("a", 0), NodeInput("storage", None, None, ("10.101.9.9",))],
            "storage: dra_driver_rail_addresses: the pool 10.101.0.0/16 of rail 1 overlaps 10.101.9.9",
        ),
        ([node("a", 0, {"rails": [{0: "10.0.0.0/16", "prefix": 24}]})], "dra_driver_rail_addresses.rails[0]"),
        ([node("a", "0" * 20 + "5")], "must be from 0 to"),
        ([node("a", 0, {"per_node": 60, "rails": PLAN["rails"]})], "must be a power of two, not 60 (use 32 or 64"),
        ([node("a", 0, {"rails": []})], "dra_driver_rail_addresses.rails: is missing"),
        ([node("a", 0, {"rails": ""})], "dra_driver_rail_addresses.rails: must be a list, not the string ''"),
        *(
            ([node("a", 0, {"rails": [{"rail": 0, "pool": "fd00::/64", "prefix": 128, **fields}]})], words)
            for fields, words in (
                ({"gateway": "fe80::1%eth0"}, "'fe80::1%eth0' has a zone, which is not allowed"),
                ({"pool": "fe80::%eth0/64"}, "has a zone, which is not allowed"),
                ({"pool": "::ffff:10.0.0.0/112"}, "is IPv4-mapped, which is not allowed"),
            )
        ),
        ([node("a", 0, {"rail": []})], "did you mean 'rails'?"),
        (
            [node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/16"}, {"rail": 1, "pool": "10.0.128.0/17"}]})],
            "10.0.128.0/17 overlaps 10.0.0.0/16 of rail 0",
        ),
        (
            [node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/16"}, {"rail": 0, "pool": "10.1.0.0/16"}]})],
            "rail 0 already has the IPv4 pool",
        ),
        ([node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.1/16"}]})], "is not a network without host bits"),
        ([node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0"}]})], "the prefix length is missing"),
        ([node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/28"}]})], "fewer than the 64 that one node needs"),
        (
            [node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/16", "reach": "all"}]})],
            "is required because reach is all",
        ),
        ([node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/16", "prefix": 32}]})], "gateway: is required"),
        ([node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/16", "prefix": 28}]})], "must be from 16 to 26, or 32"),
        (
            [node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/16", "prefix": 26, "gateway": "10.0.9.1"}]})],
            "10.0.9.1 is not in 10.0.0.0/26, the subnet of this node",
        ),
        (
            [node("a", 0, {"rails": [{"rail": 0, "pool": "10.0.0.0/16", "gateway": "fd00::1"}]})],
            "is not in the same IP family",
        ),
        (
            [node("a", 0, {"per_node": 1, "rails": [{"rail": 0, "pool": "10.0.0.0/16"}]})],
            "10.0.0.0/32 of rail 0 has no address that can be handed out",
        ),
        (
            [node("a", 0), node("b", 1, {"rails": [{"rail": 5, "pool": "10.100.7.0/24"}]})],
            "b: dra_driver_rail_addresses: the pool 10.100.7.0/24 overlaps 10.100.0.0/16 in the plan of a",
        ),
    ],
)
def test_wrong_indexes_and_pools_are_refused(nodes: list[NodeInput], words: str) -> None:
    assert words in refusal_of(*nodes)


def test_all_problems_are_reported_together() -> None:
    reported = refusal_of(node("a", 3), node("b", 3), node("c", None), node("d", 5000))
    assert all(f"{name}: " in reported for name in "bcd")


def test_nodes_of_different_plans_may_have_the_same_index_and_a_node_without_a_plan_is_left_out() -> None:
    other = {"rails": [{"rail": 0, "pool": "10.200.0.0/16"}]}
    found = site_plan([node("a", 0), node("b", 0, other), NodeInput("c", None, None)])
    assert set(found.ranges) == {"a", "b"}


def test_the_plan_is_written_as_csv_and_as_lines() -> None:
    # a spreadsheet would run a name that begins with = as a formula
    site = site_plan([node("=cmd()", 0), node("b", 17)])
    table = list(csv.DictReader(io.StringIO(formats.as_csv(site))))
    assert [row["node"] for row in table if row["rail"] == "1"] == ["'=cmd()", "b"]
    assert table[1]["range"] == "10.100.4.64/26" and table[1]["gateway"] == ""
    lines = formats.lines(site)
    assert lines[0].startswith("rail 0, 10.100.0.0/16: 64 addresses per node, 2 nodes, room for 1024")
    assert any("10.100.4.64/26" in line and line.split()[0] == "b" for line in lines)


class RandomPlans:
    """Random plans, valid and invalid ones, and nodes that have them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def plan(self) -> Object:
        rails = [self.rail() for _each in range(self.random.randint(1, 3))]
        return {"per_node": self.random.choice([2, 4, 4, 8, 8, 16, 64, 3]), "rails": rails}

    def rail(self) -> Object:
        length = self.random.choice([16, 20, 24, 24, 28])
        if self.random.random() < 0.3:
            base = int(ipaddress.ip_address("fd00::")) + (self.random.randrange(16) << 64)
            pool = ipaddress.ip_network((base, 128 - (32 - length)))
        else:
            base = (10 << 24) + (self.random.randrange(1 << (length - 8)) << (32 - length))
            pool = ipaddress.ip_network((base, length))
        rail: Object = {"rail": self.random.randrange(6), "pool": str(pool)}
        if self.random.random() < 0.2:
            rail["prefix"] = self.random.choice([length, 26, 27, 30, 32, 128])
        if self.random.random() < 0.5:
            inside = str(pool[self.random.randrange(min(pool.num_addresses, 64))])
            rail["gateway"] = self.random.choice(["first", "last", inside, inside])
        if self.random.random() < 0.2:
            rail["reach"] = self.random.choice(["rail", "all"])
        return rail

    def nodes(self) -> list[NodeInput]:
        plans = [self.plan() for _each in range(1 if self.random.random() < 0.8 else 2)]
        index_count = self.random.choice([6, 8, 8, 64, 1024])
        count = self.random.randint(2, 6)
        indexes = self.random.sample(range(index_count), count)
        if self.random.random() < 0.1:
            indexes[0] = indexes[1]
        return [NodeInput(f"n{number}", self.random.choice(plans), index) for number, index in enumerate(indexes)]


def span_of(rail_range: RailRange) -> tuple[int, int, int]:
    """The IP version and the first and last address of a range, as numbers."""
    return rail_range.range.version, int(rail_range.range[0]), int(rail_range.range[-1])


def check_ranges(site: Site) -> None:
    """Check that ranges do not overlap, and that no gateway can be assigned."""
    spans = sorted(span_of(rail_range) for ranges in site.ranges.values() for rail_range in ranges)
    for (version, _first, last), (next_version, first, _last) in zip(spans, spans[1:]):
        assert version != next_version or last < first, (spans, site)
    gateways = {rail_range.gateway for ranges in site.ranges.values() for rail_range in ranges if rail_range.gateway}
    for ranges in site.ranges.values():
        for rail_range in ranges:
            assert rail_range.usable > 0 and rail_range.range.subnet_of(rail_range.pool)  # type: ignore[arg-type]
            if rail_range.range.num_addresses <= 128:
                found = list(rail_range.addresses())
                assert len(found) == rail_range.usable
                assert not gateways & set(found), "nor the gateways of other nodes in the same pool"


def test_random_plans_have_disjoint_ranges_or_are_refused() -> None:
    generator, planned, refusals = RandomPlans(7), 0, 0
    for _each in range(RANDOM_PLANS):
        nodes = generator.nodes()
        try:
            site = site_plan(nodes)
        except Problems:
            refusals += 1
            continue
        planned += 1
        check_ranges(site)
        # removing a node changes no ranges of other nodes
        rest = site_plan(nodes[1:])
        assert {name: rest.ranges[name] for name in rest.ranges} == {
            name: ranges for name, ranges in site.ranges.items() if name != nodes[0].name
        }
        for node_input in nodes:
            assert ranges_of(node_input.plan, node_input.index) == [
                rail_range.setting() for rail_range in site.ranges[node_input.name]
            ]
    assert planned > RANDOM_PLANS / 5 and refusals > RANDOM_PLANS / 5, (planned, refusals)
