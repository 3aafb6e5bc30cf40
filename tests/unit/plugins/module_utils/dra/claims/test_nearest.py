# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`align: nearest`: what is written for each board, and that only nearest pairs are allocated.

Levels between GPUs and NICs of example machines are replaced by random ones. The answers of the allocator are compared
with a matching of the free devices, whatever other pods have.

This file has more than 500 lines because the matching and the random levels serve all of its tests.
"""

from __future__ import annotations

import itertools
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import search_cost
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pair_reasons import pair_reason
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pairing import constraint_sets, exclusions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.reach import reach_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem, Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler import allocator
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Allocation, Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.candidates import Question
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.node_cache import NodeCache
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import nodes_from_slices
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search import Search
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search_devices import identify
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import RANK
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import relevant_facts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

cel = pytest.importorskip("cel_expr_python")

Values = dict[str, t.Any]
GPU, NIC = {"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}
NVIDIA = {"gpu.nvidia.com": {"version": "0.5.0"}}
OURS = {"lanewise.dev": {"version": "1.0.0"}}
DRANET = {"dra.net": {"version": "1.4.0"}}
#: No shrinking: an example takes seconds to run on a board, and shrinking it would take an hour.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
PATH = "dra_claims_templates[0].groups[0]"


@pytest.fixture(scope="module")
def machines() -> t.Callable[[str], Values]:
    return relevant_facts


def site(devices: list[Values], drivers: Values | None = None, align: t.Any = "nearest", **group: t.Any) -> Values:
    groups = [{"align": align, "devices": devices, **group}]
    return {
        "dra_claims_drivers": drivers or {**NVIDIA, **OURS},
        "dra_claims_templates": [{"name": "pair", "namespace": "ml", "groups": groups}],
    }


def templates(made: Site) -> dict[str, Values]:
    found = [item for item in made.objects if item["kind"] == "ResourceClaimTemplate"]
    return {item["metadata"]["name"]: item["spec"]["spec"]["devices"] for item in found}


def refused(values: Values, nodes: Values | None) -> Problem:
    with pytest.raises(Problems) as caught:
        compile_site(values, nodes)
    assert len(caught.value.problems) == 1, caught.value
    return caught.value.problems[0]


def with_levels(facts: Values, levels: t.Callable[[int, int], str]) -> Values:
    """The machine with other levels between its GPUs and NICs."""
    board = board_map(facts)
    place = {address: index for index, address in enumerate(facts["affinity"]["devices"])}
    rows = facts["affinity"]["levels"]
    for i, gpu in enumerate(board.gpus):
        for j, nic in enumerate(board.nics):
            level = levels(i, j)
            rows[place[gpu]][place[nic]] = rows[place[nic]][place[gpu]] = level
    return facts


def with_own(facts: Values, own: t.Callable[[int], t.Collection[int]], level: str = "PIX") -> Values:
    """The machine where each GPU has fabric NICs `own` at `level`, and all others are far away."""
    nics = board_map(facts).nics
    fabric = [nic["address"] for nic in facts["nics"] if nic["rdma_devices"] and not nic["default_route"]]
    return with_levels(facts, lambda i, j: level if nics[j] in [fabric[k] for k in own(i)] else "SYS")


def diagonal(facts: Values) -> Values:
    """The machine with one near NIC for each GPU, which is not the one at its PCIe root."""
    number = len(board_map(facts).gpus)
    return with_own(facts, lambda i: [(3 * i + 1) % number])


class World:
    """A node on which claims of a site are allocated and released."""

    def __init__(self, values: Values, nodes: Values, node: str = "node", name: str = "pair") -> None:
        facts = nodes[node]
        self.made = compile_site(values, nodes)
        self.claim = {"devices": templates(self.made)[name]}
        self.classes = {item["metadata"]["name"]: item for item in self.made.objects if item["kind"] == "DeviceClass"}
        self.offers = offers("node", facts, values["dra_claims_drivers"])
        self.engine = Engine()
        self.board = board_map(facts)
        self.place = {nic["address"]: nic["physfn"] or nic["address"] for nic in facts["nics"]}
        self.held: dict[int, list[Result]] = {}
        self.published = {one.address for one in self.offers if one.device["name"] in _rdma(self.offers)}

    def take(self, number: int) -> bool:
        everything = [one for held in self.held.values() for one in held]
        answer = allocator.allocate([self.claim], self.classes, self.offers, self.engine, held=everything)
        if isinstance(answer, Allocation):
            self.held[number] = list(answer.results)
            return True
        assert answer.kind in ("count", "constraint", "used", "selector", "absent"), answer
        return False

    def nearest(self, at_least: str) -> dict[str, set[str]]:
        """The nearest published NICs of each GPU on the board's map, unless they are farther than `at_least`."""
        nics = [nic for nic in self.board.nics if nic in self.published]
        found = {}
        for gpu in self.board.gpus:
            levels = {nic: RANK[self.board.level(gpu, nic)] for nic in nics}
            best = min(levels.values(), default=RANK["UNKNOWN"])
            found[gpu] = {nic for nic, level in levels.items() if level == best} if best <= RANK[at_least] else set()
        return found

    def pairs(self) -> t.Iterator[tuple[str, str]]:
        """Each GPU with each NIC that was allocated together with it."""
        for results in self.held.values():
            gpus = {one.request.partition("/")[0]: one.offer.address for one in results if "gpu" in one.request}
            for one in results:
                request = one.request.partition("/")[0]
                if request.startswith("nic"):
                    index = request.rpartition("-")[2]
                    gpu = gpus.get("gpu") or gpus[f"gpu-{index}"]
                    yield gpu, self.place[one.offer.address]


def _rdma(given_: list[Offer]) -> set[str]:
    """The devices that kind rdma asks for: PFs with an RDMA device."""
    found = set()
    for one in given_:
        values = {name.rpartition("/")[2]: value for name, value in one.device["attributes"].items()}
        if values.get("rdma") == {"bool": True} and values.get("isSriovVf") is None and one.driver != "gpu.nvidia.com":
            found.add(one.device["name"])
    return found


def most_pairs(allowed: t.Mapping[str, set[str]], taken: set[str]) -> int:
    """How many pairs are possible at the same time (Kuhn's algorithm)."""
    partner: dict[str, str] = {}

    def found(gpu: str, seen: set[str]) -> bool:
        for nic in allowed[gpu] - taken - seen:
            seen.add(nic)
            if nic not in partner or found(partner[nic], seen):
                partner[nic] = gpu
                return True
        return False

    return sum(found(gpu, set()) for gpu in allowed if gpu not in taken)


@given(st.integers(1, 8))
def test_constraints_forbid_different_alternatives_and_no_others(number: int) -> None:
    found = exclusions(number)
    covered = {(one, other) for ours, theirs in found for one in ours for other in theirs}
    assert covered == {(one, other) for one in range(number) for other in range(number) if one != other}
    assert len(set(constraint_sets(number))) == number
    # this is the minimum: the 2^k sets of k constraints have no larger antichain
    assert [len(exclusions(count)) for count in range(1, 9)] == [0, 2, 3, 4, 4, 4, 5, 5][: len(range(1, 9))]


def test_without_a_common_attribute_each_pair_is_an_alternative(machines: t.Callable[[str], Values]) -> None:
    made = compile_site(site([GPU, NIC]), {"node": machines("gb300")})
    body = templates(made)["pair"]
    gpu, nic = body["requests"]
    names = [one["name"] for one in gpu["firstAvailable"]]
    assert names == [one["name"] for one in nic["firstAvailable"]]
    assert len(names) == 4
    assert names[0].startswith("0008-")
    assert all("resource.kubernetes.io" in one["selectors"][-1]["cel"]["expression"] for one in gpu["firstAvailable"])
    assert {one["matchAttribute"] for one in body["constraints"]} == {"resource.kubernetes.io/pciBusID"}
    assert all("/" in name for one in body["constraints"] for name in one["requests"])
    assert [entry.nodes for entry in made.reach] == [["node"]]
    assert made.boards[0].gpus and not made.boards[0].without


def test_a_plain_attribute_is_written_if_it_is_equivalent(machines: t.Callable[[str], Values]) -> None:
    made = compile_site(site([GPU, NIC]), {"node": machines("hgx-h100")})
    plain = compile_site(site([GPU, NIC], align="pcie_root"), {"node": machines("hgx-h100")})
    assert templates(made) == templates(plain)
    assert made.boards[0].form == "pcie_root"
    # a common root alone does not promise a common switch on a board that nobody has probed
    strict = compile_site(site([GPU, NIC], at_least="PIX"), {"node": machines("hgx-h100")})
    assert strict.boards[0].form != "pcie_root"
    assert "firstAvailable" in templates(strict)["pair"]["requests"][0]
    # one board on which the attribute gives other pairs is enough to write the other form
    both = {"a": machines("hgx-h100"), "b": diagonal(machines("hgx-h100"))}
    assert all(one.form != "pcie_root" for one in compile_site(site([GPU, NIC]), both).boards)


def test_far_devices_are_never_allocated_without_request(machines: t.Callable[[str], Values]) -> None:
    problem = refused(site([GPU, NIC]), {"node": machines("gb200")})
    assert (problem.path, problem.rule) == (f"{PATH}.align", "unreachable")
    assert "NODE on node" in problem.message
    assert "at_least: NODE" in problem.fix
    assert compile_site(site([GPU, NIC], at_least="NODE"), {"node": machines("gb200")}).boards[0].form == "numa_node"
    far = with_levels(machines("gb300"), lambda i, j: "PIX" if i == j == 0 else "SYS")
    made = compile_site(site([GPU, NIC]), {"node": far})
    assert len(made.boards[0].gpus) == 1 and len(made.boards[0].without) == 3
    assert "exactly" in templates(made)["pair"]["requests"][0]


def test_requests_that_nearest_cannot_pair_are_refused(machines: t.Callable[[str], Values]) -> None:
    nodes = {"node": machines("gb300")}
    cpu = {"name": "cpu", "kind": "cpu"}
    drivers = {**NVIDIA, **OURS, "dra.cpu": {"version": "0.2.0"}}
    cases: list[tuple[list[Values], str, str]] = [
        ([GPU], "align", "1 GPU request(s) and 0 NIC request(s)"),
        ([GPU, {**GPU, "name": "b"}, NIC], "align", "2 GPU request(s)"),
        ([{**GPU, "count": 2}, NIC], "devices[0].count", "must be 1 in a group"),
        ([{**GPU, "all": True}, NIC], "devices[0].all", "cannot be combined with nearest"),
        ([GPU, {**NIC, "admin": True}], "devices[1].admin", "cannot be combined with nearest"),
        ([GPU, {"name": "nic", "first_of": [NIC]}], "devices[1].first_of", "cannot be combined with nearest"),
        ([GPU, NIC, cpu], "devices[2]", "pairs a GPU with NICs"),
        (
            [GPU, {**NIC, "count": 2, "interface": {"name": "net0"}}],
            "devices[1].interface.name",
            "the same for several",
        ),
    ]
    for devices, place, words in cases:
        values = site(devices, drivers)
        values["dra_claims_admin_namespaces"] = ["ml"]
        problem = refused(values, nodes)
        assert problem.path == f"{PATH}.{place}", problem
        assert words in problem.message
    problem = refused(site([GPU, NIC]), None)
    assert problem.rule == "no-boards"
    assert "lanewise.dra.probe" in problem.fix
    assert refused(site([GPU, NIC], align="pcie_root", at_least="PIX"), nodes).path == f"{PATH}.at_least"
    over = {**site([GPU, NIC], align="any")}
    over["dra_claims_templates"][0]["align"] = "nearest"
    assert "nearest cannot apply to all groups" in refused(over, nodes).message


def test_more_constraints_than_a_claim_may_have_are_refused(machines: t.Callable[[str], Values]) -> None:
    board = diagonal(machines("hgx-h100"))
    made = compile_site(site([GPU, NIC], count=6), {"node": board})
    assert len(templates(made)["pair"]["constraints"]) == 30
    problem = refused(site([GPU, NIC], count=7), {"node": board})
    assert problem.rule == "too-many"
    assert "35 constraints" in problem.message
    assert "at most 6" in problem.fix and "all: true" in problem.fix


def test_a_claim_that_could_take_the_scheduler_long_is_refused(machines: t.Callable[[str], Values]) -> None:
    """If GPUs share some NICs but not all, the scheduler may try every order of pairs."""
    board = with_own(machines("hgx-h100"), lambda i: {(i + step) % 8 for step in range(7)})
    assert compile_site(site([GPU, NIC], count=3), {"node": board})
    problem = refused(site([GPU, NIC], count=6), {"node": board})
    assert problem.rule == "search-cost"
    assert "fewer repetitions" in problem.fix and "all: true" in problem.fix


def test_a_quota_counts_one_device_for_all_alternatives(machines: t.Callable[[str], Values]) -> None:
    """Kubernetes charges the most of a class that one choice of alternatives takes: one GPU and one NIC a pair."""
    values = site([GPU, NIC], count=2)
    values["dra_claims_quotas"] = [{"namespace": "ml", "devices": {"gpu": 2, "rdma": 2}}]
    made = compile_site(values, {"node": diagonal(machines("hgx-h100"))})
    charged: dict[str, int] = {}
    for request in templates(made)["pair"]["requests"]:
        classes = {one["deviceClassName"] for one in request["firstAvailable"]}
        for name in classes:
            alternatives = [one["count"] for one in request["firstAvailable"] if one["deviceClassName"] == name]
            charged[name] = charged.get(name, 0) + max(alternatives)
    [quota] = [item for item in made.objects if item["kind"] == "ResourceQuota"]
    limit = {name.partition(".")[0]: int(value) for name, value in quota["spec"]["hard"].items() if "devices" in name}
    assert charged == limit == {"gpu": 2, "rdma": 2}


def test_a_claim_without_a_common_attribute_is_refused(machines: t.Callable[[str], Values]) -> None:
    # the roots are common, so they cannot tell wrong pairs apart; DRANET publishes no pciBusID
    problem = refused(site([GPU, NIC], {**NVIDIA, **DRANET}), {"node": diagonal(machines("hgx-h100"))})
    assert problem.rule == "no-common-attribute"
    assert "lanewise.dev" in problem.fix


def test_claims_for_dranet_use_addresses_if_the_roots_differ(machines: t.Callable[[str], Values]) -> None:
    facts = machines("gb200")
    values = site([GPU, NIC], {"gpu.nvidia.com": {"version": "0.4.0"}, **DRANET}, at_least="NODE")
    world = World(values, {"node": facts})
    text = str(world.claim)
    assert "pciAddress" in text and "lanewise.dev" not in text
    assert world.made.boards[0].form == "address"
    while world.take(len(world.held)):
        pass
    allowed = world.nearest("NODE")
    assert len(world.held) == most_pairs(allowed, set()) == 4
    assert all(nic in allowed[gpu] for gpu, nic in world.pairs())


def _drained(values: Values, nodes: Values, node: str, name: str, at_least: str = "PHB") -> tuple[int, int]:
    """The number of claims that a node takes, and the number that a matching allows. Checks the pairs."""
    world = World(values, nodes, node, name)
    while world.take(len(world.held)):
        pass
    allowed = world.nearest(at_least)
    assert all(nic in allowed[gpu] for gpu, nic in world.pairs())
    return len(world.held), most_pairs(allowed, _taken(World(values, nodes, node, name)))


def test_boards_with_the_same_gpus_share_a_template(machines: t.Callable[[str], Values]) -> None:
    """NICs publish their map, so boards with different maps share the alternatives."""
    nodes = {
        "a": with_own(machines("hgx-h100"), lambda i: [i]),
        "b": with_own(machines("hgx-h100"), lambda i: [(3 * i + 1) % 8]),
        "c": with_own(machines("hgx-h100"), lambda i: [i // 2]),
        "d": with_own(machines("hgx-h100"), lambda i: [i] if i != 5 else []),
    }
    values = site([GPU, NIC])
    made = compile_site(values, nodes)
    assert sorted(templates(made)) == ["pair"]
    assert len(templates(made)["pair"]["requests"][0]["firstAvailable"]) == 8
    assert [(one.form, one.nodes, len(one.boards)) for one in made.boards] == [("published map", sorted(nodes), 4)]
    for node, number in (("a", 8), ("b", 8), ("c", 4), ("d", 7)):
        assert _drained(values, nodes, node, "pair") == (number, number)


def test_boards_that_do_not_fit_in_one_object_get_one_each(machines: t.Callable[[str], Values]) -> None:
    nodes = {"h": diagonal(machines("hgx-h100")), "h2": diagonal(machines("hgx-h100")), "b": machines("hgx-b200")}
    nodes["b"] = diagonal(nodes["b"])
    values = site([GPU, NIC])
    made = compile_site(values, nodes)
    shapes = {name: board_map(facts).shape for name, facts in nodes.items()}
    names = {f"pair-{shapes['h'][:8]}": ["h", "h2"], f"pair-{shapes['b'][:8]}": ["b"]}
    assert {one.name: one.nodes for one in made.boards} == names
    assert sorted(templates(made)) == sorted(names)
    # the scheduler finds the nodes of a template by itself, and no others
    assert {entry.claim.partition("/")[2]: entry.nodes for entry in made.reach} == names
    assert {node for entry in made.reach for node in entry.refused} == set(nodes)
    for name, on in names.items():
        assert _drained(values, nodes, on[0], name) == (8, 8)
        other = next(node for node in nodes if node not in on)
        assert not World(values, nodes, other, name).take(0)
    claims = {"dra_claims_claims": values.pop("dra_claims_templates"), **values}
    with pytest.raises(Problems, match="boards of 2 kinds"):
        compile_site(claims, nodes)


def test_nothing_is_allocated_on_an_unknown_board(machines: t.Callable[[str], Values]) -> None:
    """Addresses have another meaning on another board, so the name of the map decides."""
    # six GPUs are more than an attribute can list
    here = with_own(machines("hgx-h100"), lambda i: [0] if i < 6 else [1])
    values = site([GPU, NIC])
    world = World(values, {"node": here})
    assert world.made.boards[0].form == "board and address"
    assert world.take(0)
    moved = World(values, {"node": here})
    moved.offers = offers("node", with_own(machines("hgx-h100"), lambda i: [i]), values["dra_claims_drivers"])
    assert not moved.take(0)
    # with the published map, a NIC is allocated by the map of its own board
    mapped = World(values, {"node": diagonal(machines("hgx-h100"))})
    other = with_own(machines("hgx-h100"), lambda i: [i])
    mapped.offers, mapped.board = offers("node", other, values["dra_claims_drivers"]), board_map(other)
    while mapped.take(len(mapped.held)):
        pass
    assert len(mapped.held) == 8
    assert all(nic in mapped.nearest("PHB")[gpu] for gpu, nic in mapped.pairs())


def test_reach_says_which_gpu_lacks_its_nic(machines: t.Callable[[str], Values]) -> None:
    facts = diagonal(machines("hgx-h100"))
    values = site([GPU, NIC])
    world = World(values, {"node": facts})
    pairs = [(gpu, nic) for gpu, nics in world.nearest("PHB").items() for nic in nics]
    held = [one for one in world.offers if one.address in [nic for _gpu, nic in pairs]]
    asked = world.claim["devices"]
    owners = {identify(one): "ml/other" for one in held}
    reason = pair_reason(asked, world.classes, world.offers, world.engine, owners)
    assert reason.startswith("0 of 1 nearest pairs are possible: ")
    assert f"GPU {pairs[0][0]} is free, but its NIC {pairs[0][1]} is in use by ml/other" in reason
    assert "and 5 more" in reason
    assert pair_reason(asked, world.classes, world.offers, world.engine) == ""
    # the same through the report of where claims can run: another node has other GPUs, a third one dead links
    nodes = {"node": facts, "other": machines("hgx-b200"), "down": diagonal(machines("hgx-h100"))}
    for nic in nodes["down"]["nics"]:
        nic["up"] = False
    objects = compile_site(values, {"node": facts}).objects
    [found] = reach_of(objects, nodes, values["dra_claims_drivers"], world.engine)
    assert found.nodes == ["node"]
    assert "it has another board" in found.refused["other"]
    assert (
        "is free, but its NIC" in found.refused["down"]
        and "tainted with lanewise.dev/link-down" in found.refused["down"]
    )


def test_reach_by_slices_names_free_devices_whose_partner_is_in_use(machines: t.Callable[[str], Values]) -> None:
    facts = diagonal(machines("hgx-h100"))
    values = site([GPU, NIC])
    world = World(values, {"node": facts})
    (gpu, nics), *_others = world.nearest("PHB").items()
    [nic] = nics
    held = next(one for one in world.offers if one.address == nic and one.driver == "lanewise.dev")
    result = {"driver": held.driver, "pool": held.pool, "device": held.device["name"], "request": "nic"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ml", "name": "other"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    sure = [one for one in world.offers if not one.possible]
    shown = nodes_from_slices([*slices(sure), claim]).nodes
    [found] = reach_of(world.made.objects, shown, values["dra_claims_drivers"], world.engine)
    assert found.nodes == ["node"] and found.unpaired == {
        "node": [f"GPU {gpu} is free, but its NIC {nic} is in use by ml/other"]
    }


def test_boards_without_a_distinct_attribute_are_split_for_dranet(machines: t.Callable[[str], Values]) -> None:
    """DRANET publishes neither the map nor its name."""
    drivers = {"gpu.nvidia.com": {"version": "0.4.0"}, **DRANET}
    nodes = {
        "a": with_own(machines("gb200"), lambda i: [i]),
        "b": with_own(machines("gb200"), lambda i: [(i + 1) % 4]),
    }
    made = compile_site(site([GPU, NIC], drivers), nodes)
    assert len(templates(made)) == 2
    assert sorted(one.nodes for one in made.boards) == [["a"], ["b"]]


def test_a_gpu_can_get_several_of_its_nearest_nics(machines: t.Callable[[str], Values]) -> None:
    near = with_own(machines("gb300"), lambda i: [2 * i, 2 * i + 1] if i < 2 else [])
    world = World(site([GPU, {**NIC, "count": 2}]), {"node": near})
    assert [one["name"] for one in world.claim["devices"]["requests"]] == ["gpu", "nic-a", "nic-b"]
    while world.take(len(world.held)):
        pass
    allowed = world.nearest("PHB")
    assert len(world.held) == 2
    assert all(nic in allowed[gpu] for gpu, nic in world.pairs())


def test_a_list_tries_nearest_before_what_is_farther(machines: t.Callable[[str], Values]) -> None:
    facts = with_own(machines("gb300"), lambda i: [3 - i], "PXB")
    world = World(site([GPU, NIC], align=["nearest", "any"]), {"node": facts})
    allowed = world.nearest("PHB")
    for number in range(4):
        assert world.take(number)
    assert all(nic in allowed[gpu] for gpu, nic in world.pairs())
    # with the NICs of the near pairs held, a GPU gets any other
    blocked = World(site([GPU, NIC], align=["nearest", "any"]), {"node": facts})
    near = [nic for gpu in list(allowed)[:1] for nic in allowed[gpu]]
    others = [one for one in blocked.offers if one.driver == "lanewise.dev" and one.address not in near]
    gpus = [one for one in blocked.offers if one.address == list(allowed)[0]]
    blocked.held[-1] = [Result(0, "nic", one) for one in others[1:]] + [Result(0, "gpu", one) for one in gpus]
    assert blocked.take(0)


@settings(max_examples=12, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_exactly_the_free_nearest_pairs_are_allocated(machines: t.Callable[[str], Values], data: st.DataObject) -> None:
    """Claims of one to three pairs start and end beside pods with single devices, on boards with random levels."""
    name = data.draw(st.sampled_from(["gb300", "hgx-h100", "mi300x", "gb200", "missing-nic", "degraded"]))
    levels = data.draw(
        st.lists(st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", "SYS"]), min_size=400, max_size=400)
    )
    at_least = data.draw(st.sampled_from(["PIX", "PHB", "NODE"]))
    drivers = {"gpu.amd.com": {"version": "1.0.0"}, **OURS} if name == "mi300x" else {**NVIDIA, **OURS}
    facts = with_levels(machines(name), lambda i, j: levels[20 * i + j])
    pairs = data.draw(st.integers(1, 3))
    values = site([GPU, NIC], drivers, at_least=at_least, count=pairs)
    values["dra_claims_allow_unreachable"] = True
    try:
        world = World(values, {"node": facts})
    except Problems as problems:
        assert all(one.rule in ("unreachable", "search-cost", "too-many") for one in problems.problems), problems
        return
    allowed = world.nearest(at_least)
    singles = [one for one in world.offers if not one.possible]
    for number in range(12):
        what = data.draw(st.integers(0, 3))
        if what == 0 and world.held:
            world.held.pop(data.draw(st.sampled_from(sorted(world.held))))
        elif what == 1:
            free = [one for one in singles if one.address not in _taken(world)]
            if free:
                world.held[1000 + number] = [Result(0, "single", data.draw(st.sampled_from(free)))]
        else:
            possible = most_pairs(allowed, _taken(world)) >= pairs
            assert world.take(number) is possible
    assert all(nic in allowed[gpu] for gpu, nic in world.pairs())


def _taken(world: World) -> set[str]:
    """Devices that cannot be allocated: those of other claims, and NICs whose link is down."""
    tainted = {one.address for one in world.offers if one.device.get("taints")}
    return tainted | {one.offer.address for held in world.held.values() for one in held}


class _Whole(Search):
    """Searches like the scheduler, which does not count devices first."""

    def _short(self) -> bool:
        return False


@settings(max_examples=15, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_search_of_the_scheduler_stays_within_the_bound(
    machines: t.Callable[[str], Values], data: st.DataObject
) -> None:
    number = 4
    levels = data.draw(st.lists(st.sampled_from(["PIX", "PIX", "SYS"]), min_size=400, max_size=400))
    facts = with_levels(machines("gb300"), lambda i, j: levels[20 * i + j])
    pairs = data.draw(st.integers(1, number))
    each = data.draw(st.integers(1, 2))
    values = site([GPU, {**NIC, "count": each}], count=pairs)
    values["dra_claims_allow_unreachable"] = True
    try:
        world = World(values, {"node": facts})
    except Problems:
        return
    allowed = world.nearest("PHB")
    graphs = [{gpu: frozenset(nics) for gpu, nics in allowed.items() if nics}] * each
    ways = max(len(one.get("firstAvailable", "1")) for one in world.claim["devices"]["requests"])
    bound = search_cost.worst_case_tries(graphs, pairs, search_cost.Size(ways, len(world.offers)))
    for gone in itertools.islice(_subsets(world.offers, data), 6):
        held = [Result(0, "single", one) for one in gone]
        question = Question([world.claim], world.classes, NodeCache(world.offers, world.engine), held, 10**6)
        search = _Whole(question)
        search.run()
        assert search.steps <= bound, (search.steps, bound, pairs, each)


def _subsets(given_: list[Offer], data: st.DataObject) -> t.Iterator[list[Offer]]:
    yield []
    whole = [one for one in given_ if not one.possible]
    while True:
        yield data.draw(st.lists(st.sampled_from(whole), max_size=6, unique_by=id))
