# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.modules import allocation_plan
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.test_fit import (
    CLASSES,
    DRIVERS,
    SPECS,
    claim,
    cluster,
    node,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

RETURN = yaml.safe_load(allocation_plan.RETURN)
NODES = [node("a-0", labels={"rack": "1"}), node("b-0", labels={"rack": "2"})]
#: A workload of pods with an aligned pair of a GPU and a NIC each.
ONE_PAIR = {"name": "pair", "namespace": "team", "templates": ["one-pair"]}


def own_claim(**fields: t.Any) -> dict[str, t.Any]:
    """A workload with a claim of its own, whose request has these fields."""
    request = {"name": "a", "exactly": {"deviceClassName": "any", **fields}}
    return {"name": "x", "claims": [{"devices": {"requests": [request]}}]}


def _objects() -> dict[str, t.Any]:
    """Two nodes with eight GPUs each, of which the claim team/c has one with its NIC."""
    fleet = reader.probed({item["metadata"]["name"]: facts("hgx-h100") for item in NODES}, DRIVERS, CLASSES)
    templates = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"spec": spec},
        }
        for name, spec in SPECS.items()
    ]
    return {
        "Node": NODES,
        "Pod": [],
        "ResourceSlice": [
            resource_slice for offered in fleet.nodes.values() for resource_slice in slices(offered.offers)
        ],
        "ResourceClaim": [claim("c", cluster(NODES), "a-0", 0)],
        "ResourceClaimTemplate": templates,
        "DeviceClass": list(CLASSES.values()),
    }


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> t.Callable[..., dict[str, t.Any]]:
    """A function that runs the module on the two nodes and returns its answer."""
    require_engine()

    def call(**arguments: t.Any) -> dict[str, t.Any]:
        given = {"objects": _objects(), "workloads": [ONE_PAIR]}
        with patch_module_args({**given, **arguments}), pytest.raises(SystemExit) as stop:
            allocation_plan.main()
        answer: dict[str, t.Any] = json.loads(capsys.readouterr().out)
        assert bool(stop.value.code) == bool(answer.get("failed"))
        return answer

    return call


def test_pods_that_fit_are_counted_and_stranded_devices_are_listed(run: t.Any) -> None:
    answer = run(by=["rack"])
    assert set(answer) - {"invocation", "changed"} == set(RETURN)
    (count,) = answer["fit"]
    assert set(count) == set(RETURN["fit"]["contains"])
    assert count["total"] == 15 and count["by"] == {"rack": {"1": 7, "2": 8}}
    assert answer["lines"][0] == "pair: 15 more"
    (stranded,) = [device for device in answer["stranded"] if device["holders"]]
    assert stranded["holders"] == ["team/c"] and stranded["node"] == "a-0"
    assert any(line.endswith("; usable once claim team/c ends") for line in answer["lines"])
    assert run(stranded=False)["stranded"] == []


def test_counts_are_given_before_and_after_a_change(run: t.Any) -> None:
    answer = run(what_if=[{"cordon": {"labels": {"rack": "2"}}}, {"release": {"claims": ["team/c"]}}])
    assert (answer["fit"][0]["total"], answer["after"][0]["total"]) == (15, 8)
    assert answer["lines"][0] == "pair: 15 more, 8 after the change"
    assert answer["after"][0]["nodes"]["b-0"]["reason"] == "the node is cordoned"


def test_the_module_fails_with_all_results_if_too_few_pods_fit(run: t.Any) -> None:
    assert not run(require={"pair": 15}).get("failed")
    answer = run(require={"pair": 16})
    assert answer["failed"] and "pair: 15 fit, 16 are required" in answer["msg"] and answer["fit"]
    answer = run(require={"pair": 15}, what_if=[{"remove": {"nodes": ["b-0"]}}])
    assert answer["failed"] and "pair: 7 fit" in answer["msg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workloads": [{"name": "x", "namespace": "team", "templates": ["no"]}]}, "there is no ResourceClaimTemplate"),
        ({"workloads": [{"name": "x"}]}, "workload x has no claims"),
        ({"workloads": [{"name": "x", "claims": [{"requests": []}]}]}, "claims[0] has no devices"),
        (
            {
                "workloads": [
                    {"name": "x", "claims": [{"devices": {"requests": [{"name": "a", "firstAvailable": []}]}}]}
                ]
            },
            "workload x: claims[0].devices.requests[0]: must have exactly one of exactly and firstAvailable",
        ),
        (
            {"workloads": [own_claim(count=-1)]},
            "workload x: claims[0].devices.requests[0].exactly.count: must be more than zero",
        ),
        (
            {"workloads": [own_claim(selecters=[])]},
            "workload x: claims[0].devices.requests[0].exactly.selecters: is not a field of ExactDeviceRequest",
        ),
        ({"what_if": [{"workload": {"name": "pair", "claims": ["rdma"]}}]}, "workload pair: claims[0] has no devices"),
        ({"what_if": [{"workload": {"name": "pair", "claims": "rdma"}}]}, "templates and claims must be lists"),
        ({"what_if": [{"workload": {"name": "pair", "templates": "no"}}]}, "no ResourceClaimTemplate team/no among"),
        ({"workloads": [{**ONE_PAIR, "labels": {"critical": True}}]}, "labels.critical: True is not a string"),
        ({"require": {"other": 1}}, "require.other: no workload has this name; the names are pair"),
        ({"require": {"pair": "many"}}, "require.pair: 'many' is not a whole number"),
        ({"what_if": [{"cordon": {"nodes": ["z"]}}]}, "what_if[0].cordon.nodes: names nodes that do not exist: z"),
        ({"objects": {"Node": "x"}}, "objects.Node is not a list of objects"),
        ({"objects": {"ResourceSlice": [{"kind": "Pod", "metadata": {"name": "p"}}]}}, ".metadata.namespace"),
        (
            {"workloads": [{**ONE_PAIR, "pod": {"containers": "x"}}]},
            "workload pair: pod.containers: must be a list, not",
        ),
        ({"workloads": [ONE_PAIR, ONE_PAIR]}, "several workloads have the name pair"),
        ({"kubernetes_version": "1.20"}, "1.20"),
    ],
)
def test_invalid_arguments_of_a_plan_are_refused(run: t.Any, arguments: dict[str, t.Any], message: str) -> None:
    answer = run(**arguments)
    assert answer["failed"] and message in answer["msg"]
