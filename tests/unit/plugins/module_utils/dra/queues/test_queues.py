# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compiling quotas of teams: errors and their paths, guarantees compared with the fleet, loans and variants of
templates."""

from __future__ import annotations

import typing as t
from datetime import date, datetime, timezone

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.compiler import (
    Compiled,
    CompileInput,
    compile_queues,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import PublishedNode
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)
DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {}}
SHARED = "nic.example.com"
_IS_SHARED = f'device.attributes["{SHARED}"].?shared.orValue(false)'
CLAIMS: Object = {
    "dra_claims_site": "lab",
    "dra_claims_drivers": DRIVERS,
    "dra_claims_classes": [
        {"name": "nic-share", "cel": [f'device.driver == "{SHARED}" && {_IS_SHARED}']},
        {"name": "port", "cel": [f'device.driver == "{SHARED}" && !{_IS_SHARED}']},
    ],
    "dra_claims_templates": [
        {"name": "pair", "namespaces": ["red", "blue"], "align": "pcie_root",
         "devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]},
        {"name": "near", "namespace": "red", "align": ["pcie_root", "numa_node", "any"],
         "devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]},
        {"name": "every", "namespace": "red", "devices": [{"name": "gpu", "kind": "gpu", "all": True}]},
        {"name": "share", "namespace": "blue",
         "devices": [{"name": "nic", "class": "nic-share", "capacity": {"bandwidth": "25500M"}}]},
    ],
}  # fmt: skip
SITE = compile_site(CLAIMS).objects
RESOURCES = [{"name": "gpus", "classes": ["gpu"]}, {"name": "nics", "classes": ["rdma"]}]
TEAMS: list[Object] = [
    {"name": "red", "namespaces": ["red"], "guaranteed": {"pairs": 5, "gpus": 1}, "lend": {"gpus": 4}, "weight": 2},
    {"name": "blue", "namespaces": ["blue"], "guaranteed": {"gpus": 2}, "borrow": {"gpus": 4}},
]
QUEUES: Object = {
    "queues_resources": RESOURCES,
    "queues_bundles": {"pairs": {"gpus": 1, "nics": 1}},
    "queues_teams": TEAMS,
}

SHORT_OF_BANDWIDTH = "over-fleet: guarantees of bandwidth add up to 801G (blue 801G), but the fleet has 800G"
SHORT_OF_CARDS = (
    "over-fleet: the guarantees need at least 2 device(s) for bandwidth and 1 device(s) for ports, but these devices "
    "share the counter card, which is too small for all of them"
)


def _share(name: str, bandwidth: str = "400G", shared: bool = True, **policy: t.Any) -> Offer:
    """A NIC of the driver SHARED. If `shared`, several claims can have parts of its bandwidth."""
    capacity = {"value": bandwidth, **({"requestPolicy": policy} if policy else {})}
    device: Object = {"name": name, "attributes": {"shared": {"bool": shared}}, "capacity": {"bandwidth": capacity}}
    device["consumesCounters"] = [{"counterSet": name.partition("-share")[0], "counters": {"card": {"value": "1"}}}]
    if shared:
        device["allowMultipleAllocations"] = True
    sets = ({"name": name.partition("-share")[0], "counters": {"card": {"value": "1"}}},)
    return Offer(SHARED, "node", "node", device, counter_sets=sets)


RANGE = {"default": "10G", "validRange": {"min": "1G", "step": "1G"}}


def _compile(variables: Object, nodes: t.Any = None, objects: t.Any = None, now: datetime = NOW) -> Compiled:
    if nodes is None:
        nodes = {"node": facts("hgx-h100")}
    objects = SITE if objects is None else objects
    compile_input = CompileInput(objects, nodes, DRIVERS, require_engine(), Server(), now, "lab")
    return compile_queues(variables, compile_input)


def _problems(variables: Object, nodes: t.Any = None, objects: t.Any = None) -> dict[str, str]:
    """The rule and the message of each problem, by its path. Each path must have only one problem."""
    with pytest.raises(Problems) as raised:
        _compile(variables, nodes, objects)
    problems = {problem.path: f"{problem.rule}: {problem.message}" for problem in raised.value.problems}
    assert len(problems) == len(raised.value.problems), raised.value
    return problems


def _quotas(compiled: Compiled) -> dict[str, dict[str, dict[str, str]]]:
    """The quotas of each ClusterQueue by resource."""
    return {
        obj["metadata"]["name"]: {
            entry["name"]: {key: value for key, value in entry.items() if key != "name"}
            for entry in obj["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
        }
        for obj in compiled.objects
        if obj["kind"] == "ClusterQueue"
    }


def test_two_teams_get_queues_with_their_quotas() -> None:
    compiled = _compile(QUEUES)
    kinds = [obj["kind"] for obj in compiled.objects]
    assert kinds == ["ResourceFlavor", "Cohort", *["ClusterQueue"] * 2, *["LocalQueue"] * 2, "ResourceClaimTemplate"]
    assert _quotas(compiled) == {
        "red": {
            "lanewise.dev/gpus": {"nominalQuota": "6", "lendingLimit": "4"},
            "lanewise.dev/nics": {"nominalQuota": "5"},
        },
        "blue": {
            "lanewise.dev/gpus": {"nominalQuota": "2", "borrowingLimit": "4"},
            "lanewise.dev/nics": {"nominalQuota": "0"},
        },
    }
    red = next(obj for obj in compiled.objects if obj["metadata"]["name"] == "red" and obj["kind"] == "ClusterQueue")
    assert red["spec"]["fairSharing"] == {"weight": "2"} and red["spec"]["cohortName"] == "lab"
    for obj in compiled.objects:  # pruning of claims deletes only objects managed by lanewise.dra
        labels = {"app.kubernetes.io/managed-by": "lanewise.dra.queues", "lanewise.dev/site": "lab"}
        assert obj["metadata"]["labels"] == labels
    assert compiled.warnings == []
    assert compiled.table[:3] == ["gpus, 8 on the fleet", "  red: 6, lends at most 4", "  blue: 2, borrows at most 4"]
    assert compiled.configuration["resources"]["deviceClassMappings"] == [
        {"name": "lanewise.dev/gpus", "deviceClassNames": ["gpu"]},
        {"name": "lanewise.dev/nics", "deviceClassNames": ["rdma"]},
    ]
    assert compiled.configuration["resources"]["excludeResourcePrefixes"] == ["cpu", "memory", "ephemeral-storage"]
    assert "fairSharing" in compiled.configuration


def test_all_errors_are_reported_together() -> None:
    problems = _problems(
        {
            "queues_resources": [*RESOURCES, {"name": "again", "classes": ["gpu"]}, {"name": "rest"}],
            "queues_teams": [
                {"name": "red", "namespaces": ["red"], "guaranteed": {"gpus": 9}},
                {"name": "blue", "namespaces": ["red"], "guaranteed": {"gpu": 1}, "lend": {"gpus": 1}},
                {"name": "Red", "namespaces": []},
            ],
            "queues_priorities": [{"name": "gold", "value": 2**31}],
            "queues_loans": [
                {"from": "red", "to": "green", "devices": {"gpus": 1}, "until": "2027-01-01"},
                {"from": "red", "to": "red", "devices": {}, "until": "tomorrow", "reason": "a\nb"},
            ],
            "queues_templates": [{"template": "none", "namespace": "red"}],
            "queues_teans": [],
        }
    )
    assert problems.pop("queues_teams[2].name").startswith("bad-name: 'Red' ")
    assert problems == {
        "queues_teans": "unknown-key: is not a variable of queues",
        "queues_resources[2].classes[0]": "counted-twice: the devices of class 'gpu' are already counted as gpus",
        "queues_resources[2].classes": "counted-twice: gpu.nvidia.com/node/gpu-0 is already counted as gpus",
        "queues_resources[3].classes": "missing: is missing",
        "queues_teams[0].guaranteed.gpus": "over-fleet: guarantees of gpus add up to 9 (red 9), but the fleet has 8",
        "queues_teams[1].namespaces[0]": "duplicate-name: namespace 'red' already belongs to red",
        "queues_teams[1].guaranteed.gpu": "unknown-resource: there is no resource 'gpu'",
        "queues_teams[1].lend.gpus": "lends-too-much: lends 1, but the team is guaranteed 0",
        "queues_teams[2].namespaces": "empty: must not be empty",
        "queues_priorities[0].value": "out-of-range: must be from -2147483648 to 2147483647, not 2147483648",
        "queues_loans[0].to": "unknown-team: there is no team 'green'",
        "queues_loans[1].to": "contradiction: is the team that lends",
        "queues_loans[1].reason": "too-long: must be one line of at most 2048 characters",
        "queues_loans[1].until": "wrong-type: 'tomorrow' is not a time",
        "queues_templates[0].template": "unknown-template: there is no template red/none among the claims of the site",
    }


def test_guarantees_above_the_fleet_are_refused() -> None:
    """The path is that of the first guarantee, in the order of the inventory, that the fleet does not have."""
    teams = [TEAMS[0], {**TEAMS[1], "guaranteed": {"gpus": 3}}]
    too_many = "over-fleet: guarantees of gpus add up to 9"
    assert _problems({**QUEUES, "queues_teams": teams}) == {
        "queues_teams[1].guaranteed.gpus": f"{too_many} (red 6, blue 3), but the fleet has 8"
    }
    assert _problems({**QUEUES, "queues_pool": {"gpus": 1}}) == {
        "queues_pool.gpus": f"{too_many} (red 6, blue 2, the pool 1), but the fleet has 8"
    }
    two = {"a": facts("hgx-h100"), "b": facts("hgx-h100")}
    assert _compile({**QUEUES, "queues_teams": teams, "queues_pool": {"gpus": 7}}, two).warnings == []


def test_guarantees_that_cannot_be_compared_with_the_fleet_give_warnings() -> None:
    """There are no nodes, or the number of devices of a driver is unknown."""
    large = {**QUEUES, "queues_teams": [{**TEAMS[0], "guaranteed": {"pairs": 50}, "lend": {}}]}
    (reported,) = _compile(large, {}).warnings
    assert reported.startswith("Guarantees were not compared with the fleet")
    unknown = {
        "node": PublishedNode(
            (), {"gpu.nvidia.com": "its pool is being written", "lanewise.dev": "its slices are incomplete"}
        )
    }
    (gpus, nics) = _compile(large, unknown).warnings
    assert "guarantees of gpus add up to 50, but only 0 is certain" in gpus and "its pool is being written" in gpus
    assert "its slices are incomplete" in nics


def test_loans_change_quotas_until_they_end() -> None:
    def lent(amount: int, until: t.Any, **limits: t.Any) -> Object:
        blue = {**TEAMS[1], **limits}
        loan = {"from": "red", "to": "blue", "devices": {"gpus": amount}, "until": until}
        return {**QUEUES, "queues_teams": [TEAMS[0], blue], "queues_loans": [loan]}

    for until in ("2026-12-01", "2026-12-01T00:00:00Z", date(2026, 12, 1), datetime(2026, 12, 1)):
        compiled = _compile(lent(3, until))
        found = {team: quotas["lanewise.dev/gpus"] for team, quotas in _quotas(compiled).items()}
        # a loan counts against both limits: red lends at most 4 and has lent 3, so its limit is 1
        assert found == {
            "red": {"nominalQuota": "3", "lendingLimit": "1"},
            "blue": {"nominalQuota": "5", "borrowingLimit": "1"},
        }
        assert compiled.loans == ["red lends blue 3 gpus until 2026-12-01T00:00:00Z"] and compiled.overdue == []
    path = "queues_loans[0].devices.gpus"
    assert "red would lend 5 gpus, but may lend at most 4" in _problems(lent(5, "2026-12-01", borrow={}))[path]
    reported = _problems(lent(3, "2026-12-01", borrow={"gpus": 2}))[path]
    assert reported == "borrows-too-much: blue would borrow 3 gpus by loans, but may borrow at most 2"
    ended = _compile(lent(3, "2026-11-23"))
    assert _quotas(ended) == _quotas(_compile(QUEUES))
    assert ended.overdue == ["red lends blue 3 gpus until 2026-11-23T00:00:00Z"] and ended.loans == []


def test_borrowed_devices_cannot_be_lent() -> None:
    teams = [*TEAMS, {"name": "green", "namespaces": ["green"]}]
    loans = [
        {"from": "red", "to": "green", "devices": {"gpus": 2}, "until": "2026-12-01"},
        {"from": "green", "to": "blue", "devices": {"gpus": 1}, "until": "2026-12-01"},
    ]
    problems = _problems({**QUEUES, "queues_teams": teams, "queues_loans": loans})
    assert problems == {"queues_loans[1].devices.gpus": "lends-too-much: green would lend 1 gpus, but is guaranteed 0"}


def test_templates_with_alternatives_get_variants_that_kueue_can_count() -> None:
    compiled = _compile(QUEUES)
    usable = {f"{template.namespace}/{template.name}": template for template in compiled.templates}
    assert usable["red/pair"].name_in_queues == "pair" and usable["red/pair"].left_out == []
    assert usable["red/pair"].charges == {"lanewise.dev/gpus": 1, "lanewise.dev/nics": 1}
    near = usable["red/near"]
    assert near.name_in_queues == "near-queue" and near.left_out == ["nic/numa-node", "nic/any"]
    assert (
        "number Kueue does not know: give a count" in usable["red/every"].reason
        and not usable["red/every"].name_in_queues
    )
    assert usable["blue/share"].reason.startswith("class nic-share is not in queues_resources")
    (variant,) = [obj for obj in compiled.objects if obj["kind"] == "ResourceClaimTemplate"]
    devices = variant["spec"]["spec"]["devices"]
    assert [list(request) for request in devices["requests"]] == [["name", "exactly"]] * 2
    assert [(constraint["matchAttribute"], constraint["requests"]) for constraint in devices["constraints"]] == [
        ("resource.kubernetes.io/pcieRoot", ["gpu", "nic"])
    ]
    assert variant["metadata"]["annotations"]["lanewise.dev/queue-variant-of"] == "near"
    choice = {"template": "near", "namespace": "red", "take": {"nic": "any"}}
    any_nic = _compile({**QUEUES, "queues_templates": [choice]}).objects[-1]["spec"]["spec"]["devices"]
    assert "constraints" not in any_nic
    for take, reported in (
        ({"nic": "best"}, "request nic has no alternative 'best', only pcie-root, numa-node, any"),
        ({"gpu": "any"}, "'gpu' is not one of its requests with alternatives"),
    ):
        problems = _problems({**QUEUES, "queues_templates": [{**choice, "take": take}]})
        assert problems == {"queues_templates[0].template": f"refused-template: near: {reported}"}
    all_gpus = {"template": "every", "namespace": "red"}
    assert "give a count" in _problems({**QUEUES, "queues_templates": [all_gpus]})["queues_templates[0].template"]


def test_only_the_alternative_that_a_variant_requests_must_have_a_count() -> None:
    """An alternative for all devices of a node is left out like any other."""
    site = compile_site(
        {**CLAIMS, "dra_claims_classes": [], "dra_claims_templates": [CLAIMS["dra_claims_templates"][1]]}
    )
    (template,) = (obj for obj in site.objects if obj["kind"] == "ResourceClaimTemplate")
    requests = template["spec"]["spec"]["devices"]["requests"]
    last = next(request["firstAvailable"][-1] for request in requests if "firstAvailable" in request)
    last["allocationMode"] = "All"
    objects = [obj for obj in SITE if obj["kind"] == "DeviceClass"] + [template]
    (near,) = _compile(QUEUES, objects=objects).templates
    assert near.name_in_queues == "near-queue" and near.left_out == ["nic/numa-node", "nic/any"]
    choice = {"template": "near", "namespace": "red", "take": {"nic": "any"}}
    problem = _problems({**QUEUES, "queues_templates": [choice]}, objects=objects)["queues_templates[0].template"]
    assert "request nic is for all devices of a node" in problem


def test_two_choices_for_a_template_are_refused() -> None:
    choice = {"template": "near", "namespace": "red", "take": {"nic": "any"}}
    assert _problems({**QUEUES, "queues_templates": [choice, {**choice, "take": {"nic": "numa-node"}}]}) == {
        "queues_templates[1].template": "duplicate-name: choice for template 'red/near' is already defined by "
        "queues_templates[0]"
    }


def test_a_template_without_devices_is_charged_nothing() -> None:
    template = next(obj for obj in SITE if obj["metadata"]["name"] == "pair" and obj["metadata"]["namespace"] == "red")
    empty = {**template, "spec": {"spec": {}}}
    (usable,) = _compile(QUEUES, objects=[obj for obj in SITE if obj["kind"] == "DeviceClass"] + [empty]).templates
    assert usable.name_in_queues == "pair" and usable.charges == {}


def test_a_bundle_cannot_contain_another_one() -> None:
    bundles = {"pairs": {"gpus": 1, "nics": 1}, "boards": {"pairs": 8}}
    with pytest.raises(Problems) as raised:
        _compile({**QUEUES, "queues_bundles": bundles})
    (problem,) = raised.value.problems
    assert problem.path == "queues_bundles.boards.pairs"
    assert problem.message == "there is no resource 'pairs'" and problem.fix == "known: gpus, nics"


def test_a_variant_with_the_name_of_another_template_is_refused() -> None:
    objects = [*SITE, *(obj for obj in _compile(QUEUES).objects if obj["kind"] == "ResourceClaimTemplate")]
    problem = _problems(QUEUES, objects=objects)["queues_templates"]
    assert "its variant would have the name of another template, near-queue" in problem


def test_variants_have_the_version_that_the_cluster_serves() -> None:
    objects = [versions.convert(obj, "resource.k8s.io/v1beta1") if versions.is_dra(obj) else obj for obj in SITE]
    (variant,) = [obj for obj in _compile(QUEUES, objects=objects).objects if obj["kind"] == "ResourceClaimTemplate"]
    assert variant["apiVersion"] == "resource.k8s.io/v1beta1" and "exactly" not in str(variant)


def _bandwidth(**team: t.Any) -> Object:
    resources = [{"name": "bandwidth", "classes": ["nic-share"], "capacity": "bandwidth", "driver": SHARED}]
    return {"queues_resources": resources, "queues_teams": [{"name": "blue", "namespaces": ["blue"], **team}]}


def test_bandwidth_is_charged_as_the_scheduler_rounds_it() -> None:
    node = PublishedNode((_share("nic-0-share", **RANGE), _share("nic-1-share", **RANGE)))
    compiled = _compile(_bandwidth(guaranteed={"bandwidth": "800G"}), {"node": node})
    (usable,) = [template for template in compiled.templates if template.name == "share"]
    assert usable.name_in_queues == "share" and usable.charges == {
        "lanewise.dev/bandwidth": 26 * 10**9
    }  # 25.5G, rounded up
    assert compiled.configuration["featureGates"]["KueueDRAIntegrationConsumableCapacity"] is True
    (mapping,) = compiled.configuration["resources"]["deviceClassMappings"]
    assert mapping["sources"] == [
        {
            "capacity": {
                "name": "bandwidth",
                "driver": SHARED,
                "deviceSelector": {"cel": {"expression": f'device.driver == "{SHARED}"'}},
            }
        }
    ]
    problems = _problems(_bandwidth(guaranteed={"bandwidth": "801G"}), {"node": node})
    assert problems == {"queues_teams[0].guaranteed.bandwidth": SHORT_OF_BANDWIDTH}


def test_devices_that_kueue_would_count_wrongly_are_refused() -> None:
    different = PublishedNode((_share("nic-0-share", **RANGE), _share("nic-1-share", **{**RANGE, "default": "40G"})))
    problems = _problems(_bandwidth(), {"node": different})
    assert "have different request policies of bandwidth" in problems["queues_resources[0].classes"]
    whole = _share("nic-0-share", **RANGE)
    whole.device.pop("allowMultipleAllocations")
    problems = _problems(_bandwidth(), {"node": PublishedNode((whole,))})
    assert problems["queues_resources[0].classes"].startswith("whole-device: only one claim can have")
    counted = {**_bandwidth(), "queues_resources": [{"name": "shares", "classes": ["nic-share"]}]}
    problems = _problems(counted, {"node": PublishedNode((_share("nic-0-share", **RANGE),))})
    assert problems["queues_resources[0].classes"].startswith("shared-device: several claims can have")


def test_a_selector_says_which_devices_are_counted() -> None:
    """A template that may get other devices is refused, because Kueue would not charge them."""
    small, large = _share("nic-0-share", **RANGE), _share("nic-1-share", "800G", **RANGE)
    for offer, size in ((small, "small"), (large, "large")):
        offer.device["attributes"]["size"] = {"string": size}
    variables, nodes = _bandwidth(guaranteed={"bandwidth": "400G"}), {"node": PublishedNode((small, large))}
    (resource,) = variables["queues_resources"]

    def selected(text: str) -> Compiled:
        return _compile({**variables, "queues_resources": [{**resource, "selector": text}]}, nodes)

    size = f'device.attributes["{SHARED}"].size'
    compiled = selected(f'{size} == "small"')
    assert "bandwidth, 400G on the fleet" in compiled.table
    (refused,) = (template for template in compiled.templates if template.name == "share")
    assert not refused.name_in_queues and refused.reason == (
        f"request nic: the scheduler could take {SHARED}/node/nic-1-share, which the selector of bandwidth excludes, "
        "so Kueue would not charge it: request only the selected devices"
    )
    compiled = selected(f'{size} in ["small", "large"]')
    assert "bandwidth, 1200G on the fleet" in compiled.table
    assert next(template for template in compiled.templates if template.name == "share").name_in_queues == "share"
    with pytest.raises(Problems) as raised:
        selected(f'device.attributes["{SHARED}"].colour == "red"')
    assert ("queues_resources[0].selector", "selector-fails") in {
        (problem.path, problem.rule) for problem in raised.value.problems
    }


def test_a_nic_and_its_shares_are_not_guaranteed_twice() -> None:
    offers = [offer for i in (0, 1) for offer in (_share(f"nic-{i}", shared=False), _share(f"nic-{i}-share", **RANGE))]
    nodes = {"node": PublishedNode(tuple(offers))}

    def guaranteed(ports: int, bandwidth: str) -> Object:
        variables = _bandwidth(guaranteed={"ports": ports, "bandwidth": bandwidth})
        return {
            **variables,
            "queues_resources": [*variables["queues_resources"], {"name": "ports", "classes": ["port"]}],
        }

    assert _compile(guaranteed(1, "400G"), nodes).warnings == []
    problems = _problems(guaranteed(1, "401G"), nodes)
    assert problems == {"queues_resources[1]": SHORT_OF_CARDS}


def test_a_class_with_a_selector_that_kueue_cannot_evaluate_is_refused() -> None:
    claims = {
        **CLAIMS,
        "dra_claims_classes": [{"name": "nic-share", "cel": ["device.allowMultipleAllocations == true"]}],
    }
    claims["dra_claims_templates"] = []
    problems = _problems(_bandwidth(), objects=compile_site(claims).objects)
    assert problems["queues_resources[0].classes[0]"].startswith("unread-selector: Kueue cannot evaluate the selector")


def test_cpu_and_memory_can_be_counted() -> None:
    resources = [*RESOURCES, {"name": "memory", "total": "4Ti"}, {"name": "cpu", "total": 128}]
    teams = [{**TEAMS[0], "guaranteed": {"memory": "1Ti", "cpu": "500m"}, "lend": {}}]
    compiled = _compile({**QUEUES, "queues_resources": resources, "queues_teams": teams})
    red = _quotas(compiled)["red"]
    assert red["memory"] == {"nominalQuota": "1Ti"} and red["cpu"] == {"nominalQuota": "500m"}
    assert compiled.configuration["resources"]["excludeResourcePrefixes"] == ["ephemeral-storage"]
    teams[0]["guaranteed"] = {"memory": "5Ti"}
    problems = _problems({**QUEUES, "queues_resources": resources, "queues_teams": teams, "queues_uncounted": ["cpu"]})
    assert problems["queues_teams[0].guaranteed.memory"].endswith(
        "guarantees of memory add up to 5Ti (red 5Ti), but the fleet has 4Ti"
    )
    assert "also leaves out cpu" in problems["queues_uncounted[0]"]


def test_a_partition_is_not_charged_as_a_whole_gpu() -> None:
    """The MIG profiles of a probed GPU are assumptions. A claim for a small one is charged with its memory."""
    drivers: Object = {"gpu.nvidia.com": {"version": "0.5.0", "engine": "dynamic-mig"}, "lanewise.dev": {}}
    devices = [{"name": "gpu", "kind": "gpu", "share": {"partition": "1g.10gb"}}]
    template = {"name": "part", "namespace": "red", "devices": devices}
    objects = compile_site({"dra_claims_drivers": drivers, "dra_claims_templates": [template]}).objects
    memory = {"name": "gpu-memory", "classes": ["gpu-partition"], "counter": "memory"}
    team = {"name": "red", "namespaces": ["red"], "guaranteed": {"gpu-memory": "80Gi"}}
    nodes: t.Any = {"node": facts("hgx-h100")}
    compile_input = CompileInput(objects, nodes, drivers, require_engine(), Server(), NOW, "lab")
    compiled = compile_queues({"queues_resources": [memory], "queues_teams": [team]}, compile_input)
    assert "red/part: charged 9984Mi gpu-memory" in compiled.table


_SIZE = "gpu.example.com/size"


def _part(node: str, memory: str, size: str = "small", **more: t.Any) -> Offer:
    """A partition with this size that consumes memory of its GPU."""
    consumed = {"counterSet": "card", "counters": {"memory": {"value": memory}}}
    device: Object = {"name": "part", "attributes": {"size": {"string": size}}, "consumesCounters": [consumed]}
    sets = ({"name": "card", "counters": {"memory": {"value": "80Gi"}}},)
    return Offer("gpu.example.com", node, node, device, counter_sets=sets, **more)


@pytest.mark.parametrize(
    ("offers", "charged", "noted"),
    [
        ([_part("a", "10Gi"), _part("b", "40Gi", possible=True)], 40, True),
        ([_part("a", "10Gi"), _part("b", "40Gi", size="", unknown=frozenset([_SIZE]))], 40, True),
        ([_part("a", "40Gi"), _part("b", "10Gi", possible=True)], 40, False),
        ([_part("a", "10Gi"), _part("b", "10Gi", possible=True)], 10, False),
        # by an assumption, the partition of the second node is not a small one
        ([_part("a", "10Gi"), _part("b", "40Gi", "large", assumed=frozenset([_SIZE]))], 10, False),
        ([_part("a", "10Gi", possible=True), _part("b", "40Gi", "large", assumed=frozenset([_SIZE]))], 10, False),
        ([_part("b", "40Gi", "large", assumed=frozenset([_SIZE]))], 40, False),
    ],
)
def test_devices_that_may_match_can_raise_the_charge(offers: list[Offer], charged: int, noted: bool) -> None:
    cel = ['device.driver == "gpu.example.com"', 'device.attributes["gpu.example.com"].size == "small"']
    template = {"name": "part", "namespace": "red", "devices": [{"name": "gpu", "class": "part"}]}
    classes = [{"name": "part", "cel": cel}]
    claims = {**CLAIMS, "dra_claims_classes": classes, "dra_claims_templates": [template]}
    memory = {"name": "gpu-memory", "classes": ["part"], "counter": "memory"}
    variables = {"queues_resources": [memory], "queues_teams": [{"name": "red", "namespaces": ["red"]}]}
    nodes = {offer.node: PublishedNode((offer,)) for offer in offers}
    (entry,) = _compile(variables, nodes, compile_site(claims).objects).templates
    assert entry.charges == {"lanewise.dev/gpu-memory": charged * 2**30}
    uncertain = (
        "request gpu: it is not certain that gpu.example.com/b/part matches; without such devices, Kueue charges"
    )
    assert [note for note in entry.notes if "not certain" in note] == (
        [f"{uncertain} {10 * 2**30} of gpu-memory for each device"] if noted else []
    )
