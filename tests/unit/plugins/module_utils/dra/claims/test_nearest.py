# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`align: nearest`: what is written for each board, and that only nearest pairs are allocated.

Most tests change the levels between the GPUs and NICs of example machines. Two tests use random levels: one compares
the answers of the allocator with a matching of the free devices, the other checks the bound of the scheduler's search.
"""

from __future__ import annotations

import itertools
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import search_cost
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pair_reasons import pair_reason
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pairing import constraint_sets, exclusions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.reach import reach_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem, Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.candidates import Question
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.node_cache import NodeCache
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import nodes_from_slices
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search import Search
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search_devices import identify
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.simulated_node import (
    DRANET,
    GPU,
    LANEWISE,
    NIC,
    NVIDIA,
    SimulatedNode,
    Values,
    site,
    templates,
    with_levels,
    with_near_nics,
    with_shuffled_nics,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import relevant_facts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("cel_expr_python")

#: No shrinking: an example takes seconds to run on a board, and shrinking it would take an hour.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
PATH = "dra_claims_templates[0].groups[0]"


def only_problem(values: Values, nodes: Values | None) -> Problem:
    """The problem of a site that must not compile."""
    with pytest.raises(Problems) as caught:
        compile_site(values, nodes)
    assert len(caught.value.problems) == 1, caught.value
    return caught.value.problems[0]


def most_pairs(allowed: t.Mapping[str, set[str]], taken: set[str]) -> int:
    """The maximum number of pairs at the same time (Kuhn's algorithm)."""
    partner: dict[str, str] = {}

    def find_partner(gpu: str, seen: set[str]) -> bool:
        for nic in allowed[gpu] - taken - seen:
            seen.add(nic)
            if nic not in partner or find_partner(partner[nic], seen):
                partner[nic] = gpu
                return True
        return False

    return sum(find_partner(gpu, set()) for gpu in allowed if gpu not in taken)


def check_pairs(node: SimulatedNode, at_least: str) -> None:
    """Check that each NIC was allocated together with a GPU to which it is nearest."""
    nearest = node.nearest_nics(at_least)
    assert all(nic in nearest[gpu] for gpu, nic in node.allocated_pairs())


@given(st.integers(1, 8))
def test_constraints_forbid_different_alternatives_and_no_others(count: int) -> None:
    constraints = exclusions(count)
    covered = {(a, b) for first_group, second_group in constraints for a in first_group for b in second_group}
    assert covered == {(a, b) for a in range(count) for b in range(count) if a != b}
    assert len(set(constraint_sets(count))) == count


def test_the_number_of_constraints_is_the_minimum() -> None:
    """No alternative may be in all constraints of another, so k constraints serve at most C(k, k // 2) (Sperner)."""
    assert [len(exclusions(count)) for count in range(1, 9)] == [0, 2, 3, 4, 4, 4, 5, 5]


def test_without_a_common_attribute_each_pair_is_an_alternative() -> None:
    compiled = compile_site(site([GPU, NIC]), {"node": relevant_facts("gb300")})
    body = templates(compiled)["pair"]
    gpu, nic = body["requests"]
    names = [alternative["name"] for alternative in gpu["firstAvailable"]]
    assert names == [alternative["name"] for alternative in nic["firstAvailable"]]
    assert len(names) == 4
    assert names[0].startswith("0008-")
    assert all(
        "resource.kubernetes.io" in alternative["selectors"][-1]["cel"]["expression"]
        for alternative in gpu["firstAvailable"]
    )
    assert {constraint["matchAttribute"] for constraint in body["constraints"]} == {"resource.kubernetes.io/pciBusID"}
    assert all("/" in request for constraint in body["constraints"] for request in constraint["requests"])
    assert [entry.nodes for entry in compiled.reach] == [["node"]]
    assert compiled.boards[0].gpus and not compiled.boards[0].without


def test_one_attribute_is_written_if_it_selects_the_same_pairs() -> None:
    compiled = compile_site(site([GPU, NIC]), {"node": relevant_facts("hgx-h100")})
    plain = compile_site(site([GPU, NIC], align="pcie_root"), {"node": relevant_facts("hgx-h100")})
    assert templates(compiled) == templates(plain)
    assert compiled.boards[0].form == "pcie_root"
    # on a board that was not probed, devices with a common root may not have a common switch
    strict = compile_site(site([GPU, NIC], at_least="PIX"), {"node": relevant_facts("hgx-h100")})
    assert strict.boards[0].form != "pcie_root"
    assert "firstAvailable" in templates(strict)["pair"]["requests"][0]
    # the attribute is not written if it selects other pairs on one of the boards
    both = {"a": relevant_facts("hgx-h100"), "b": with_shuffled_nics(relevant_facts("hgx-h100"))}
    assert all(board.form != "pcie_root" for board in compile_site(site([GPU, NIC]), both).boards)


def test_devices_farther_than_phb_are_only_paired_on_request() -> None:
    problem = only_problem(site([GPU, NIC]), {"node": relevant_facts("gb200")})
    assert (problem.path, problem.rule) == (f"{PATH}.align", "unreachable")
    assert "NODE on node" in problem.message
    assert "at_least: NODE" in problem.fix
    assert (
        compile_site(site([GPU, NIC], at_least="NODE"), {"node": relevant_facts("gb200")}).boards[0].form == "numa_node"
    )
    far = with_levels(relevant_facts("gb300"), lambda i, j: "PIX" if i == j == 0 else "SYS")
    compiled = compile_site(site([GPU, NIC]), {"node": far})
    assert len(compiled.boards[0].gpus) == 1 and len(compiled.boards[0].without) == 3
    assert "exactly" in templates(compiled)["pair"]["requests"][0]


def test_requests_that_nearest_cannot_pair_are_refused() -> None:
    nodes = {"node": relevant_facts("gb300")}
    cpu = {"name": "cpu", "kind": "cpu"}
    drivers = {**NVIDIA, **LANEWISE, "dra.cpu": {"version": "0.2.0"}}
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
    for devices, key, words in cases:
        values = site(devices, drivers)
        values["dra_claims_admin_namespaces"] = ["ml"]
        problem = only_problem(values, nodes)
        assert problem.path == f"{PATH}.{key}", problem
        assert words in problem.message
    problem = only_problem(site([GPU, NIC]), None)
    assert problem.rule == "no-boards"
    assert "lanewise.dra.probe" in problem.fix
    assert only_problem(site([GPU, NIC], align="pcie_root", at_least="PIX"), nodes).path == f"{PATH}.at_least"
    for_all_groups = site([GPU, NIC], align="any")
    for_all_groups["dra_claims_templates"][0]["align"] = "nearest"
    assert "nearest cannot apply to all groups" in only_problem(for_all_groups, nodes).message


def test_more_constraints_than_a_claim_may_have_are_refused() -> None:
    board = with_shuffled_nics(relevant_facts("hgx-h100"))
    compiled = compile_site(site([GPU, NIC], count=6), {"node": board})
    assert len(templates(compiled)["pair"]["constraints"]) == 30
    problem = only_problem(site([GPU, NIC], count=7), {"node": board})
    assert problem.rule == "too-many"
    assert "35 constraints" in problem.message
    assert "at most 6" in problem.fix and "all: true" in problem.fix


def test_a_claim_that_the_scheduler_could_search_for_a_long_time_is_refused() -> None:
    """If GPUs share some NICs but not all, the scheduler may try every order of pairs."""
    board = with_near_nics(relevant_facts("hgx-h100"), lambda i: {(i + step) % 8 for step in range(7)})
    assert compile_site(site([GPU, NIC], count=3), {"node": board})
    problem = only_problem(site([GPU, NIC], count=6), {"node": board})
    assert problem.rule == "search-cost"
    assert "fewer repetitions" in problem.fix and "all: true" in problem.fix


def test_a_quota_counts_one_device_for_all_alternatives() -> None:
    """Kubernetes charges each class for the alternative with the most devices: one GPU and one NIC of each pair."""
    values = site([GPU, NIC], count=2)
    values["dra_claims_quotas"] = [{"namespace": "ml", "devices": {"gpu": 2, "rdma": 2}}]
    compiled = compile_site(values, {"node": with_shuffled_nics(relevant_facts("hgx-h100"))})
    charged: dict[str, int] = {}
    for request in templates(compiled)["pair"]["requests"]:
        classes = {alternative["deviceClassName"] for alternative in request["firstAvailable"]}
        for name in classes:
            alternatives = [
                alternative["count"]
                for alternative in request["firstAvailable"]
                if alternative["deviceClassName"] == name
            ]
            charged[name] = charged.get(name, 0) + max(alternatives)
    [quota] = [item for item in compiled.objects if item["kind"] == "ResourceQuota"]
    limit = {name.partition(".")[0]: int(value) for name, value in quota["spec"]["hard"].items() if "devices" in name}
    assert charged == limit == {"gpu": 2, "rdma": 2}


def test_a_claim_without_a_common_attribute_is_refused() -> None:
    # each root has devices of several pairs, and DRANET publishes no pciBusID
    problem = only_problem(
        site([GPU, NIC], {**NVIDIA, **DRANET}), {"node": with_shuffled_nics(relevant_facts("hgx-h100"))}
    )
    assert problem.rule == "no-common-attribute"
    assert "lanewise.dev" in problem.fix


def test_claims_for_dranet_use_addresses_if_the_roots_differ() -> None:
    facts = relevant_facts("gb200")
    values = site([GPU, NIC], {"gpu.nvidia.com": {"version": "0.4.0"}, **DRANET}, at_least="NODE")
    node = SimulatedNode(values, {"node": facts})
    text = str(node.claim)
    assert "pciAddress" in text and "lanewise.dev" not in text
    assert node.site.boards[0].form == "address"
    node.allocate_all()
    assert len(node.allocated) == most_pairs(node.nearest_nics("NODE"), set()) == 4
    check_pairs(node, "NODE")


def check_all_pairs_are_allocated(values: Values, nodes: Values, node_name: str, template: str, count: int) -> None:
    """Check that a node gets `count` claims of a template, which is the maximum, and that their pairs are nearest."""
    node = SimulatedNode(values, nodes, node_name, template)
    possible = most_pairs(node.nearest_nics("PHB"), node.unavailable_devices())
    node.allocate_all()
    check_pairs(node, "PHB")
    assert len(node.allocated) == possible == count


def test_boards_with_the_same_gpus_share_a_template() -> None:
    """NICs publish the map of their board, so boards with different maps share the alternatives."""
    nodes = {
        "a": with_near_nics(relevant_facts("hgx-h100"), lambda i: [i]),
        "b": with_near_nics(relevant_facts("hgx-h100"), lambda i: [(3 * i + 1) % 8]),
        "c": with_near_nics(relevant_facts("hgx-h100"), lambda i: [i // 2]),
        "d": with_near_nics(relevant_facts("hgx-h100"), lambda i: [i] if i != 5 else []),
    }
    values = site([GPU, NIC])
    compiled = compile_site(values, nodes)
    assert sorted(templates(compiled)) == ["pair"]
    assert len(templates(compiled)["pair"]["requests"][0]["firstAvailable"]) == 8
    assert [(board.form, board.nodes, len(board.boards)) for board in compiled.boards] == [
        ("published map", sorted(nodes), 4)
    ]
    for node, count in (("a", 8), ("b", 8), ("c", 4), ("d", 7)):
        check_all_pairs_are_allocated(values, nodes, node, "pair", count)


def test_boards_that_do_not_fit_in_one_template_get_separate_templates() -> None:
    nodes = {
        "h": with_shuffled_nics(relevant_facts("hgx-h100")),
        "h2": with_shuffled_nics(relevant_facts("hgx-h100")),
        "b": with_shuffled_nics(relevant_facts("hgx-b200")),
    }
    values = site([GPU, NIC])
    compiled = compile_site(values, nodes)
    shapes = {name: board_map(facts).shape for name, facts in nodes.items()}
    nodes_of = {f"pair-{shapes['h'][:8]}": ["h", "h2"], f"pair-{shapes['b'][:8]}": ["b"]}
    assert {board.name: board.nodes for board in compiled.boards} == nodes_of
    assert sorted(templates(compiled)) == sorted(nodes_of)
    # each template can only be allocated on its own boards
    assert {entry.claim.partition("/")[2]: entry.nodes for entry in compiled.reach} == nodes_of
    assert {node for entry in compiled.reach for node in entry.refused} == set(nodes)
    for template, node_names in nodes_of.items():
        check_all_pairs_are_allocated(values, nodes, node_names[0], template, 8)
        other_node = next(node for node in nodes if node not in node_names)
        assert not SimulatedNode(values, nodes, other_node, template).allocate(0)
    claims = {"dra_claims_claims": values.pop("dra_claims_templates"), **values}
    with pytest.raises(Problems, match="boards of 2 kinds"):
        compile_site(claims, nodes)


def test_only_a_template_with_the_published_map_is_allocated_on_an_unknown_board() -> None:
    """On another board, the same addresses may not be near each other, so other templates name their boards."""
    # one NIC is nearest to six GPUs, which are too many for the map that a NIC publishes
    facts = with_near_nics(relevant_facts("hgx-h100"), lambda i: [0] if i < 6 else [1])
    values = site([GPU, NIC])
    node = SimulatedNode(values, {"node": facts})
    assert node.site.boards[0].form == "board and address"
    assert node.allocate(0)
    moved = SimulatedNode(values, {"node": facts})
    moved.offers = offers(
        "node", with_near_nics(relevant_facts("hgx-h100"), lambda i: [i]), values["dra_claims_drivers"]
    )
    assert not moved.allocate(0)
    # with the published map, pairs are allocated by the map of the other board
    mapped = SimulatedNode(values, {"node": with_shuffled_nics(relevant_facts("hgx-h100"))})
    other_board = with_near_nics(relevant_facts("hgx-h100"), lambda i: [i])
    mapped.offers, mapped.board = offers("node", other_board, values["dra_claims_drivers"]), board_map(other_board)
    mapped.allocate_all()
    assert len(mapped.allocated) == 8
    check_pairs(mapped, "PHB")


def test_reach_names_the_free_gpu_whose_nic_is_in_use_or_tainted() -> None:
    facts = with_shuffled_nics(relevant_facts("hgx-h100"))
    values = site([GPU, NIC])
    node = SimulatedNode(values, {"node": facts})
    pairs = [(gpu, nic) for gpu, nics in node.nearest_nics("PHB").items() for nic in nics]
    held = [offer for offer in node.offers if offer.address in [nic for _gpu, nic in pairs]]
    asked = node.claim["devices"]
    owners = {identify(offer): "ml/other" for offer in held}
    reason = pair_reason(asked, node.classes, node.offers, node.engine, owners)
    assert reason.startswith("0 of 1 nearest pairs are possible: ")
    assert f"GPU {pairs[0][0]} is free, but its NIC {pairs[0][1]} is in use by ml/other" in reason
    assert "and 5 more" in reason
    assert pair_reason(asked, node.classes, node.offers, node.engine) == ""
    # reach_of gives such a reason for each node: one has other GPUs, and the links of another are down
    nodes = {"node": facts, "other": relevant_facts("hgx-b200"), "down": with_shuffled_nics(relevant_facts("hgx-h100"))}
    for nic in nodes["down"]["nics"]:
        nic["up"] = False
    objects = compile_site(values, {"node": facts}).objects
    [found] = reach_of(objects, nodes, values["dra_claims_drivers"], node.engine)
    assert found.nodes == ["node"]
    assert "none of the GPUs that this claim was rendered for" in found.refused["other"]
    assert (
        "is free, but its NIC" in found.refused["down"]
        and "tainted with lanewise.dev/link-down" in found.refused["down"]
    )


def test_reach_names_the_free_gpu_that_the_claim_pairs_with_no_nic_of_the_node() -> None:
    facts = with_shuffled_nics(relevant_facts("hgx-h100"))
    node = SimulatedNode(site([GPU, NIC]), {"node": facts})
    (gpu, _nics), *_others = node.nearest_nics("PHB").items()
    gpus = [offer for offer in node.offers if offer.driver == "gpu.nvidia.com"]
    reason = pair_reason(node.claim["devices"], node.classes, gpus, node.engine)
    assert f"GPU {gpu} is free, but the node has none of the NICs that the claim allows for it" in reason


def test_reach_by_slices_names_free_devices_whose_partner_is_in_use() -> None:
    facts = with_shuffled_nics(relevant_facts("hgx-h100"))
    values = site([GPU, NIC])
    node = SimulatedNode(values, {"node": facts})
    (gpu, nics), *_others = node.nearest_nics("PHB").items()
    [nic] = nics
    held = next(offer for offer in node.offers if offer.address == nic and offer.driver == "lanewise.dev")
    result = {"driver": held.driver, "pool": held.pool, "device": held.device["name"], "request": "nic"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "ml", "name": "other"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    certain = [offer for offer in node.offers if not offer.possible]
    shown = nodes_from_slices([*slices(certain), claim]).nodes
    [found] = reach_of(node.site.objects, shown, values["dra_claims_drivers"], node.engine)
    assert found.nodes == ["node"] and found.unpaired == {
        "node": [f"GPU {gpu} is free, but its NIC {nic} is in use by ml/other"]
    }


def test_boards_with_different_maps_get_separate_templates_for_dranet() -> None:
    """DRANET publishes neither the map of the board nor the name of the map."""
    drivers = {"gpu.nvidia.com": {"version": "0.4.0"}, **DRANET}
    nodes = {
        "a": with_near_nics(relevant_facts("gb200"), lambda i: [i]),
        "b": with_near_nics(relevant_facts("gb200"), lambda i: [(i + 1) % 4]),
    }
    compiled = compile_site(site([GPU, NIC], drivers), nodes)
    assert len(templates(compiled)) == 2
    assert sorted(board.nodes for board in compiled.boards) == [["a"], ["b"]]


def test_more_nearest_nics_than_there_are_names_are_refused() -> None:
    with pytest.raises(Problems) as caught:
        compile_site(site([GPU, {**NIC, "count": 27}]))
    assert "count: must be at most 26 with align: nearest, not 27" in str(caught.value)


def test_a_gpu_can_get_several_of_its_nearest_nics() -> None:
    facts = with_near_nics(relevant_facts("gb300"), lambda i: [2 * i, 2 * i + 1] if i < 2 else [])
    node = SimulatedNode(site([GPU, {**NIC, "count": 2}]), {"node": facts})
    assert [request["name"] for request in node.claim["devices"]["requests"]] == ["gpu", "nic-a", "nic-b"]
    node.allocate_all()
    assert len(node.allocated) == 2
    check_pairs(node, "PHB")


def test_a_list_of_levels_tries_nearest_first() -> None:
    facts = with_near_nics(relevant_facts("gb300"), lambda i: [3 - i], "PXB")
    node = SimulatedNode(site([GPU, NIC], align=["nearest", "any"]), {"node": facts})
    for number in range(4):
        assert node.allocate(number)
    check_pairs(node, "PHB")
    # the only free NIC is nearest to a GPU that is in use, so another GPU gets it
    blocked = SimulatedNode(site([GPU, NIC], align=["nearest", "any"]), {"node": facts})
    gpu, nics = next(iter(blocked.nearest_nics("PHB").items()))
    held = [
        offer
        for offer in blocked.offers
        if offer.address == gpu or (offer.driver == "lanewise.dev" and offer.address not in nics)
    ]
    blocked.allocated[-1] = [Result(0, "held", offer) for offer in held]
    assert blocked.allocate(0)
    assert "nic/any" in [result.request for result in blocked.allocated[0]]


@settings(max_examples=12, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_exactly_the_free_nearest_pairs_are_allocated(data: st.DataObject) -> None:
    """Claims of one to three pairs and pods with single devices come and go on a board with random levels."""
    name = data.draw(st.sampled_from(["gb300", "hgx-h100", "mi300x", "gb200", "missing-nic", "degraded"]))
    levels = data.draw(
        st.lists(st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", "SYS"]), min_size=400, max_size=400)
    )
    at_least = data.draw(st.sampled_from(["PIX", "PHB", "NODE"]))
    drivers = {"gpu.amd.com": {"version": "1.0.0"}, **LANEWISE} if name == "mi300x" else {**NVIDIA, **LANEWISE}
    facts = with_levels(relevant_facts(name), lambda i, j: levels[20 * i + j])
    pairs = data.draw(st.integers(1, 3))
    values = site([GPU, NIC], drivers, at_least=at_least, count=pairs)
    values["dra_claims_allow_unreachable"] = True
    try:
        node = SimulatedNode(values, {"node": facts})
    except Problems as problems:
        assert all(problem.rule in ("unreachable", "search-cost", "too-many") for problem in problems.problems), (
            problems
        )
        return
    allowed = node.nearest_nics(at_least)
    singles = [offer for offer in node.offers if not offer.possible]
    for step in range(12):
        action = data.draw(st.integers(0, 3))
        if action == 0 and node.allocated:
            node.allocated.pop(data.draw(st.sampled_from(sorted(node.allocated))))
        elif action == 1:
            free = [offer for offer in singles if offer.address not in node.unavailable_devices()]
            if free:
                node.allocated[1000 + step] = [Result(0, "single", data.draw(st.sampled_from(free)))]
        else:
            possible = most_pairs(allowed, node.unavailable_devices()) >= pairs
            assert node.allocate(step) is possible
    check_pairs(node, at_least)


class SchedulerSearch(Search):
    """Searches like the scheduler: it does not count the devices before it tries them."""

    def _short(self) -> bool:
        return False


@settings(max_examples=15, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_search_of_the_scheduler_stays_within_the_bound(data: st.DataObject) -> None:
    gpu_count = 4
    levels = data.draw(st.lists(st.sampled_from(["PIX", "PIX", "SYS"]), min_size=400, max_size=400))
    facts = with_levels(relevant_facts("gb300"), lambda i, j: levels[20 * i + j])
    pairs = data.draw(st.integers(1, gpu_count))
    nics_per_gpu = data.draw(st.integers(1, 2))
    values = site([GPU, {**NIC, "count": nics_per_gpu}], count=pairs)
    values["dra_claims_allow_unreachable"] = True
    try:
        node = SimulatedNode(values, {"node": facts})
    except Problems:
        return
    allowed = node.nearest_nics("PHB")
    graphs = [{gpu: frozenset(nics) for gpu, nics in allowed.items() if nics}] * nics_per_gpu
    alternatives = max(len(request.get("firstAvailable", "1")) for request in node.claim["devices"]["requests"])
    bound = search_cost.worst_case_tries(graphs, pairs, search_cost.Size(alternatives, len(node.offers)))
    for held_offers in itertools.islice(offer_subsets(node.offers, data), 6):
        held = [Result(0, "single", offer) for offer in held_offers]
        question = Question([node.claim], node.classes, NodeCache(node.offers, node.engine), held, 10**6)
        search = SchedulerSearch(question)
        search.run()
        assert search.steps <= bound, (search.steps, bound, pairs, nics_per_gpu)


def offer_subsets(node_offers: list[Offer], data: st.DataObject) -> t.Iterator[list[Offer]]:
    """The empty list first, then random lists of devices that other pods may have."""
    yield []
    whole = [offer for offer in node_offers if not offer.possible]
    while True:
        yield data.draw(st.lists(st.sampled_from(whole), max_size=6, unique_by=id))
