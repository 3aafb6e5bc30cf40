# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares of NICs: what is rendered, what is predicted from the nodes' settings, and what is refused at which path."""

from __future__ import annotations

import functools
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Allocation, Refusal, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import nodes_from_slices
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.divided_nics import SETTING, with_setting
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.refusals import (
    check_only_problem,
    problems_of,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import relevant_facts
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cel_expr_python")

Values = dict[str, t.Any]
DRIVERS = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
DRIVERS_WITH_MIG = {
    "gpu.nvidia.com": {"version": "0.5.0", "engine": "dynamic-mig"},
    "lanewise.dev": {"version": "1.0.0"},
}
RULE = {"select": {"type": "pf", "link_layer": "ethernet"}, "mechanism": "macvlan", "namespace": "ml"}
PLACE = "dra_claims_templates[0].devices[0]"
GPU = {"name": "gpu", "kind": "gpu"}


def nic(**share: t.Any) -> Values:
    """A device of a claim: a share of a NIC."""
    return {"name": "nic", "kind": "nic", "share": share}


def site(*devices: Values, drivers: Values | None = None, **more: t.Any) -> Values:
    """The variables of a site with one template. `more` are variables `dra_claims_*` and keys of the template."""
    claim = {"name": "a", "namespace": "ml", "devices": list(devices)}
    variables = {key: more.pop(key) for key in list(more) if key.startswith("dra_claims_")}
    return {"dra_claims_drivers": drivers or DRIVERS, "dra_claims_templates": [{**claim, **more}], **variables}


@functools.cache
def _facts(machine: str) -> Values:
    """The facts of a machine, with Ethernet in place of InfiniBand."""
    machine_facts = relevant_facts(machine)
    return {**machine_facts, "nics": [{**nic_facts, "link_layer": "ethernet"} for nic_facts in machine_facts["nics"]]}


def node(*rules: Values, machine: str = "hgx-h100") -> Values:
    """The facts of a node whose driver divides NICs by these rules. RULE has their default keys."""
    return with_setting(_facts(machine), [{**RULE, **rule} for rule in rules] or None)


def devices(compiled: Site, namespace: str = "ml") -> Values:
    """The requests, constraints and configurations of the template in a namespace."""
    templates = [item for item in compiled.objects if item["kind"] == "ResourceClaimTemplate"]
    spec = next(item["spec"] for item in templates if item["metadata"]["namespace"] == namespace)
    return t.cast(Values, spec["spec"]["devices"])


def allocate_claim(compiled: Site, facts: Values, namespace: str = "ml") -> Allocation | Refusal:
    """The allocator's answer for a claim of the template on a free node."""
    classes = {item["metadata"]["name"]: item for item in compiled.objects if item["kind"] == "DeviceClass"}
    node_offers = offers("n", t.cast(t.Any, facts), DRIVERS)
    return allocate([{"devices": devices(compiled, namespace)}], classes, node_offers, Engine())


def test_a_share_requests_its_bandwidth_as_capacity() -> None:
    compiled = compile_site(site(nic(bandwidth="25G", burst="0.1T")), {"n": node({})})
    spec = devices(compiled)
    [request] = spec["requests"]
    assert request["exactly"]["deviceClassName"] == "nic-share"
    assert request["exactly"]["capacity"] == {"requests": {"bandwidth": "25G"}}
    [config] = spec["config"]
    assert config["opaque"]["parameters"]["share"] == {"burst": "100G"} and config["requests"] == ["nic"]
    assert "constraints" not in spec
    [result] = t.cast(Allocation, allocate_claim(compiled, node({}))).results
    assert result.consumed == {"bandwidth": "25G"} and result.offer.device["name"].endswith("-share")
    [template] = [item for item in compiled.objects if item["kind"] == "ResourceClaimTemplate"]
    assert "lent up to 100Gbit/s" in template["metadata"]["annotations"]["share.lanewise.dev/nic"]
    assert [entry.nodes for entry in compiled.reach] == [["n"]] and compiled.warnings == []


def test_a_share_is_part_of_the_configuration_of_its_interface() -> None:
    compiled = compile_site(site({**nic(bandwidth="1G", burst="2G"), "interface": {"name": "net1"}}))
    [config] = devices(compiled)["config"]
    assert config["opaque"]["parameters"].items() >= {"name": "net1", "share": {"burst": "2G"}}.items()


def test_a_share_with_the_default_bandwidth_requests_no_capacity() -> None:
    compiled = compile_site(site(nic(bandwidth="default")), {"n": node({"min": "2G", "step": "2G", "default": "6G"})})
    [request] = devices(compiled)["requests"]
    assert "capacity" not in request["exactly"] and "config" not in devices(compiled)
    [result] = t.cast(Allocation, allocate_claim(compiled, node({"min": "2G", "step": "2G", "default": "6G"}))).results
    assert result.consumed == {"bandwidth": "6G"}


@pytest.mark.parametrize(("factor", "taken"), [(1, "10G"), (1.5, "15G"), (1.33, "13300M")])
def test_a_hard_share_requests_its_bandwidth_times_the_factor(factor: float, taken: str) -> None:
    facts = node({"factor": factor, "step": "100M"})
    compiled = compile_site(site(nic(bandwidth="10G", hard=True)), {"n": facts})
    [request] = devices(compiled)["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"bandwidth": taken}}
    assert f'"{factor}"' in str(request["exactly"]["selectors"])
    [config] = devices(compiled)["config"]
    assert config["opaque"]["parameters"]["share"] == {"hard": True, "guarantee": "10G"}
    assert isinstance(allocate_claim(compiled, facts), Allocation)
    other_factor = node({"factor": 2.5})
    assert isinstance(allocate_claim(compiled, other_factor), Refusal)


def test_the_factor_of_a_hard_share_must_be_set_unless_all_nodes_have_the_same() -> None:
    nodes = {"a": node({"factor": 2}), "b": node({"factor": 1})}
    path = f"{PLACE}.share.hard"
    check_only_problem(site(nic(bandwidth="10G", hard=True)), path, "contradiction", "factors 1, 2", nodes=nodes)
    check_only_problem(site(nic(bandwidth="10G", hard=True)), path, "missing", "share.factor")
    compiled = compile_site(site(nic(bandwidth="10G", hard=True, factor=2)), nodes)
    assert compiled.reach[0].nodes == ["a"]
    check_only_problem(
        site(nic(bandwidth="10G", factor=3)), f"{PLACE}.share.factor", "unreachable", "1, 2", nodes=nodes
    )
    assert compile_site(site(nic(bandwidth="10G", hard=True, factor=1.5)))


def test_shares_of_a_claim_come_from_different_nics() -> None:
    compiled = compile_site(site({**nic(bandwidth="10G"), "count": 3}, {**nic(burst="50G"), "name": "more"}))
    assert devices(compiled)["constraints"] == [
        {"requests": ["nic", "more"], "distinctAttribute": "resource.kubernetes.io/pciBusID"}
    ]
    allocation = t.cast(Allocation, allocate_claim(compiled, node({})))
    assert len({result.offer.device["name"] for result in allocation.results}) == 4
    whole = {"name": "whole", "kind": "nic"}
    nic_or_whole = {"name": "nic", "first_of": [{**nic(bandwidth="10G"), "name": "part"}, whole]}
    compiled = compile_site(site(nic_or_whole, {**nic(bandwidth="1G"), "name": "other"}))
    assert devices(compiled)["constraints"][0]["requests"] == ["nic/part", "other"]


def test_shares_aligned_by_pci_address_come_from_one_nic() -> None:
    parts = [{**nic(bandwidth="10G"), "name": name} for name in ("a", "b")]
    compiled = compile_site(site(*parts, align="resource.kubernetes.io/pciBusID"))
    assert [list(entry)[1] for entry in devices(compiled)["constraints"]] == ["matchAttribute"]
    allocation = t.cast(Allocation, allocate_claim(compiled, node({})))
    assert len({result.offer.device["name"] for result in allocation.results}) == 1


@pytest.mark.parametrize("align", ["pcie_root", "nearest", ["pcie_root", "numa_node"]])
@pytest.mark.parametrize("gpu_share", [{}, {"share": {"partition": "1g.10gb"}}])
def test_shares_are_aligned_with_whole_gpus_and_with_partitions(align: t.Any, gpu_share: Values) -> None:
    facts = node({})
    body = {"groups": [{"align": align, "count": 2, "devices": [{**GPU, **gpu_share}, nic(bandwidth="10G")]}]}
    claim = {"name": "a", "namespace": "ml", **body}
    compiled = compile_site({"dra_claims_drivers": DRIVERS_WITH_MIG, "dra_claims_templates": [claim]}, {"n": facts})
    assert [entry.nodes for entry in compiled.reach] == [["n"]] or compiled.reach[0].unknown
    spec = devices(compiled)
    assert [entry["requests"] for entry in spec["constraints"] if "distinctAttribute" in entry] == [["nic-0", "nic-1"]]


def test_distinct_rails_give_shares_of_different_rails() -> None:
    claim = site({**nic(bandwidth="10G"), "count": 2}, distinct=["rail"])
    kinds = [next(key for key in entry if key != "requests") for entry in devices(compile_site(claim))["constraints"]]
    assert kinds == ["distinctAttribute", "distinctAttribute"]
    allocation = t.cast(Allocation, allocate_claim(compile_site(claim), node({})))
    assert len({str(result.offer.device["attributes"]["rail"]) for result in allocation.results}) == 2


def test_shares_are_only_for_claims_of_their_namespace() -> None:
    values = site(nic(bandwidth="10G"), namespaces=["ml", "other"])
    del values["dra_claims_templates"][0]["namespace"]
    compiled = compile_site({**values, "dra_claims_allow_unreachable": True}, {"n": node({})})
    by_claim = {entry.claim: entry for entry in compiled.reach}
    assert by_claim["ml/a"].nodes == ["n"] and by_claim["other/a"].nodes == []
    assert "shares that namespace other may use" in by_claim["other/a"].refused["n"]
    assert isinstance(allocate_claim(compiled, node({}), "other"), Refusal)
    check_only_problem(values, f"{PLACE}.share", "unreachable", "namespace other", nodes={"n": node({})})


def test_a_bandwidth_that_is_rounded_up_gives_a_warning() -> None:
    compiled = compile_site(site(nic(bandwidth="25500M")), {"n": node({"step": "2G", "min": "1G"})})
    [warning] = compiled.warnings
    assert warning.startswith(f"{PLACE}.share.bandwidth: 25500M consumes 27G of ") and "steps of 2G" in warning
    [result] = t.cast(Allocation, allocate_claim(compiled, node({"step": "2G", "min": "1G"}))).results
    assert result.consumed == {"bandwidth": "27G"}


def test_a_class_may_select_shares() -> None:
    classes = [{"name": "part", "kind": "rdma", "share": True, "extended_resource": "example.com/part"}]
    device = {"name": "nic", "class": "part"}
    compiled = compile_site(site({**device, "share": {"bandwidth": "5G"}}, dra_claims_classes=classes))
    assert '"share" == device.attributes["lanewise.dev"].type' in str(compiled.objects)
    assert "capacity" in devices(compiled)["requests"][0]["exactly"]
    compiled = compile_site(site({**device, "count": 2}, dra_claims_classes=classes))
    assert "capacity" not in devices(compiled)["requests"][0]["exactly"] and devices(compiled)["constraints"]
    without_share = [{"name": "part", "kind": "rdma"}]
    check_only_problem(
        site({**device, "share": {"bandwidth": "5G"}}, dra_claims_classes=without_share),
        f"{PLACE}.share",
        "contradiction",
    )
    wrong = [{"name": "part", "kind": "vf", "share": True}]
    check_only_problem(site(GPU, dra_claims_classes=wrong), "dra_claims_classes[0].share", "contradiction")


def test_a_class_caps_the_burst() -> None:
    classes = [{"name": "capped", "kind": "nic", "share": True, "interface": {"share": {"burst": "30G"}}}]

    def site_with(**share: t.Any) -> Values:
        return site({"name": "nic", "class": "capped", "share": share}, dra_claims_classes=classes)

    compiled = compile_site(site_with(bandwidth="5G"))
    assert "config" not in devices(compiled) and "lent up to 30Gbit/s" in str(compiled.objects)
    shares: list[Values] = [{"burst": "20G"}, {"bandwidth": "5G", "burst": "30G"}]
    for share in (*shares, {"bandwidth": "5G", "hard": True, "factor": 2}):
        [config] = devices(compile_site(site_with(**share)))["config"]
        assert set(config["opaque"]["parameters"]["share"]) <= {"burst", "hard", "guarantee"}
    words = "more than class 'capped' allows for one share: 30G"
    check_only_problem(site_with(bandwidth="5G", burst="31G"), f"{PLACE}.share.burst", "out-of-range", words)
    check_only_problem(site_with(bandwidth="31G"), f"{PLACE}.share.bandwidth", "out-of-range", words)
    check_only_problem(
        site_with(bandwidth="31G", hard=True, factor=1), f"{PLACE}.share.bandwidth", "out-of-range", words
    )
    without_share = [{"name": "capped", "kind": "nic", "interface": {"share": {"burst": "30G"}}}]
    check_only_problem(
        site(GPU, dra_claims_classes=without_share),
        "dra_claims_classes[0].interface.share",
        "contradiction",
        "share: true",
    )


def test_whole_nics_and_shares_exclude_each_other() -> None:
    facts = node({"select": {"rail": 0}})
    node_offers = offers("n", t.cast(t.Any, facts), DRIVERS)
    [share] = [offer for offer in node_offers if offer.device["name"].endswith("-share")]
    whole = next(offer for offer in node_offers if offer.address == share.address and offer is not share)
    where = {"pci_address": share.address}
    compiled = compile_site(
        {
            **site({**nic(bandwidth="10G"), "where": where}),
            "dra_claims_claims": [
                {"name": "w", "namespace": "ml", "devices": [{"name": "w", "kind": "nic", "where": where}]}
            ],
        }
    )
    classes = {item["metadata"]["name"]: item for item in compiled.objects if item["kind"] == "DeviceClass"}
    requests = {
        "share": devices(compiled),
        "whole": next(item["spec"]["devices"] for item in compiled.objects if item["kind"][-5:] == "Claim"),
    }
    engine = Engine()
    for first, then, device in (("share", "whole", share), ("whole", "share", whole)):
        held = t.cast(Allocation, allocate([{"devices": requests[first]}], classes, node_offers, engine))
        assert [result.offer for result in held.results] == [device]
        after = allocate([{"devices": requests[then]}], classes, node_offers, engine, held=held.results)
        assert isinstance(after, Refusal) and after.kind in ("used", "count"), after


def test_claims_are_the_same_by_published_slices_as_by_settings() -> None:
    facts = node({"factor": 1.5})
    published = nodes_from_slices(slices(offers("n", t.cast(t.Any, facts), DRIVERS))).nodes
    values = site(nic(bandwidth="25500M", hard=True))
    assert devices(compile_site(values, published)) == devices(compile_site(values, {"n": facts}))
    assert compile_site(values, published).reach[0].nodes == ["n"]


def test_servers_without_the_fields_have_no_shares() -> None:
    facts = node({})
    for kubernetes in ("1.34", "1.35"):
        node_offers = offers("n", t.cast(t.Any, facts), DRIVERS, server=Server(kubernetes))
        assert not [offer for offer in node_offers if offer.device["name"].endswith("-share")]
        words = f"with Kubernetes {kubernetes} the driver publishes no shares of NICs"
        check_only_problem(site(nic(bandwidth="1G")), f"{PLACE}.share", "dropped", words, kubernetes=kubernetes)
    with pytest.raises(Problems, match="feature gate DRAConsumableCapacity is off"):
        compile_site(site(nic(bandwidth="1G")), None, "1.37", {"DRAConsumableCapacity": False})


def test_it_is_unknown_whether_a_nic_in_a_pod_can_be_divided() -> None:
    """The speed of its link is unknown, so it is also unknown whether the node can satisfy the claim."""
    facts = node({})
    nics = [
        {**nic_facts, "elsewhere": ["interface"], "interfaces": [], "speed_mbps": None} for nic_facts in facts["nics"]
    ]
    compiled = compile_site(site(nic(bandwidth="10G")), {"n": {**facts, "nics": nics}})
    assert list(compiled.reach[0].unknown) == ["n"]


@pytest.mark.parametrize(
    ("device", "key", "rule"),
    [
        (nic(), "share", "missing"),
        (nic(bandwidth="1500k"), "share.bandwidth", "out-of-range"),
        (nic(bandwidth="1k"), "share.bandwidth", "out-of-range"),
        (nic(bandwidth="10T"), "share.bandwidth", "out-of-range"),
        (nic(bandwidth="much"), "share.bandwidth", "bad-quantity"),
        (nic(bandwidth=True), "share.bandwidth", "wrong-type"),
        (nic(bandwidth="10G", burst="9G"), "share.burst", "out-of-range"),
        (nic(hard=True), "share.hard", "missing"),
        (nic(bandwidth="1G", factor=0.5), "share.factor", "out-of-range"),
        (nic(bandwidth="1G", factor="1.5"), "share.factor", "wrong-type"),
        (nic(bandwidth="1G", memory="1Gi"), "share", "contradiction"),
        (nic(memory="1Gi"), "share", "contradiction"),
        (nic(bandwith="1G"), "share.bandwith", "unknown-key"),
        ({**nic(bandwidth="1G"), "kind": "vf"}, "share", "contradiction"),
        ({**GPU, "share": {"bandwidth": "1G"}}, "share", "no-capacity"),
        ({**nic(bandwidth="1G"), "bandwidth": "1G"}, "bandwidth", "contradiction"),
        ({**nic(bandwidth="1G"), "capacity": {"vfs": 2}}, "capacity", "contradiction"),
    ],
)
def test_impossible_shares_are_refused(device: Values, key: str, rule: str) -> None:
    check_only_problem(site(device), f"{PLACE}.{key}", rule)


def test_a_share_may_set_the_type_of_its_interface() -> None:
    assert compile_site(site({**nic(bandwidth="1G"), "interface": {"child": {"type": "macvlan"}}}))


def test_shares_of_a_driver_that_does_not_divide_nics_are_refused() -> None:
    check_only_problem(
        site(nic(bandwidth="1G"), drivers={"dra.net": {"version": "1.4.0"}}), f"{PLACE}.share", "no-capacity"
    )


@pytest.mark.parametrize(
    ("rules", "device", "path", "words"),
    [
        ([], nic(bandwidth="1G"), f"{PLACE}.share", "no NIC of 1 node(s) is divided"),
        (
            [{"mechanism": "vfs", "select": {"type": "pf"}, "namespace": None}],
            nic(bandwidth="1G"),
            f"{PLACE}.share",
            "no VF",
        ),
        (
            [{"ceiling": "50G"}],
            nic(bandwidth="1G", burst="60G"),
            f"{PLACE}.share.burst",
            "more than one share may use",
        ),
        ([{}], nic(bandwidth="9999G"), f"{PLACE}.share", "the maximum is"),
        ([{"factor": 2}], nic(bandwidth="500G", hard=True), f"{PLACE}.share.bandwidth", "any NIC, 400Gbit/s"),
        ([{"step": "300G", "min": "10G"}], nic(bandwidth="320G"), f"{PLACE}.share", "the maximum is"),
        ([{"step": "300G", "min": "200G"}], nic(bandwidth="200G"), f"{PLACE}.share", "less than min and step"),
        ([{"namespace": "other"}], nic(bandwidth="1G"), f"{PLACE}.share", "namespace ml"),
        ([{"ceiling": "9999G"}], nic(bandwidth="1G"), "dra_driver_settings.shares[0].ceiling", "the fastest link"),
        ([{"bandwidth": "9999G"}], nic(bandwidth="1G"), "dra_driver_settings.shares[0].bandwidth", "the fastest link"),
        (
            [{"default": "9999G"}],
            nic(bandwidth="1G"),
            "dra_driver_settings.shares[0].default",
            "the capacity of its NIC",
        ),
        (
            [{"min": "9999G", "default": "9999G"}],
            nic(bandwidth="1G"),
            "dra_driver_settings.shares[0].min",
            "minus one step",
        ),
        ([{"factor": 2}], nic(bandwidth="500G"), f"{PLACE}.share.bandwidth", "is more than the rate of any NIC, 400G"),
        ([{"factor": 0}], nic(bandwidth="1G", factor=1), "dra_driver_settings.shares[0].factor", "(node n)"),
        (
            [{}, {"select": {"rail": 1}}],
            nic(bandwidth="1G"),
            "dra_driver_settings.shares[1].select",
            "shares[0] matches first",
        ),
    ],
)
def test_shares_beyond_the_settings_of_the_nodes_are_refused(
    rules: list[Values], device: Values, path: str, words: str
) -> None:
    problems = problems_of(site(device), {"n": node(*rules)})
    assert [problem.path for problem in problems if words in str(problem)] == [path], problems


def test_infiniband_is_not_divided() -> None:
    facts = node({"select": {"type": "pf"}})
    ib = {**facts, "nics": [{**nic_facts, "link_layer": "infiniband"} for nic_facts in facts["nics"]]}
    check_only_problem(site(nic(bandwidth="1G")), f"{PLACE}.share", "unreachable", "it is InfiniBand", nodes={"n": ib})


def test_all_problems_are_reported_together() -> None:
    values = site(nic(bandwidth="10G", burst="1G"), {**nic(bandwidth="1k"), "name": "b"})
    problems = problems_of(values, {"n": node({"factor": 0, "step": "1k"})})
    assert [problem.path for problem in problems] == [
        f"{PLACE}.share.burst",
        "dra_claims_templates[0].devices[1].share.bandwidth",
        "dra_driver_settings.shares[0].factor",
        "dra_driver_settings.shares[0].step",
    ]


_RATES = st.sampled_from(["1G", "25G", "400G", "900G", "1500M", "1M", "10P", "x", 5, None])
_FACTORS = st.sampled_from([1, 1.5, 2, 0, 1.333, "2", 100, True])
_SHARES = st.fixed_dictionaries(
    {}, optional={"bandwidth": _RATES | st.just("default"), "burst": _RATES, "hard": st.booleans(), "factor": _FACTORS}
)
_SELECTS = st.sampled_from(
    [{"type": "pf"}, {"rail": 0}, {"rail": [1, 2]}, {"model": "*"}, {"near_gpu": "PIX"}, {}, {"rial": 1}, 3]
)
_RULES = st.fixed_dictionaries(
    {"select": _SELECTS},
    optional={
        "mechanism": st.sampled_from(["vfs", "macvlan", "ipvlan"]),
        "namespace": st.sampled_from(["ml", "other", "A"]),
        "factor": _FACTORS,
        **{key: _RATES for key in ("step", "min", "default", "ceiling", "bandwidth")},
    },
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_SHARES, min_size=1, max_size=2),
    st.lists(st.lists(_RULES, max_size=3) | st.none() | st.text(max_size=3), min_size=1, max_size=2),
    st.sampled_from(["1.34", "1.36", "1.37"]),
    st.booleans(),
)
def test_any_share_is_rendered_or_refused_with_a_path(
    shares: list[Values], rules: list[t.Any], kubernetes: str, unreachable: bool
) -> None:
    """A rendered claim can be allocated on every node that its reach lists."""
    facts = {f"n{number}": with_setting(_facts("sriov"), setting) for number, setting in enumerate(rules)}
    parts = [{**nic(), "share": share, "name": f"nic{number}"} for number, share in enumerate(shares)]
    values = {**site(*parts), "dra_claims_allow_unreachable": unreachable}
    try:
        compiled = compile_site(values, t.cast(t.Any, facts), kubernetes)
    except Problems as problems:
        places = ("dra_claims_templates[0]", "dra_driver_settings.shares")
        assert problems.problems and all(problem.path.startswith(places) for problem in problems.problems)
        return
    assert kubernetes != "1.34", "its driver publishes no shares"
    for name in compiled.reach[0].nodes:
        allocation = allocate_claim(compiled, facts[name])
        assert isinstance(allocation, Allocation), allocation
        for result, share in zip(allocation.results, shares):
            if share.get("bandwidth") not in (None, "default"):
                assert quantity.parse(result.consumed["bandwidth"]) >= quantity.parse(share["bandwidth"])


def test_the_setting_in_the_facts_of_a_node_is_ignored() -> None:
    assert with_setting({"nics": [], SETTING: [RULE]}, None) == {"nics": []}
