# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of an inventory are read, and each error in them is reported once, with its path in the inventory."""

from __future__ import annotations

import copy
import datetime
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.inventory import Inventory
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.language import parse
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.reader import Reader
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from hypothesis import given, settings
from hypothesis import strategies as st

Values = dict[str, t.Any]


def read(values: Values) -> tuple[Inventory, list[t.Any]]:
    reader = Reader()
    return parse(values, reader), reader.problems


def template(*devices: Values, **more: t.Any) -> Values:
    return {"dra_claims_templates": [{"name": "t", "namespace": "ml", "devices": list(devices), **more}]}


def groups(*given_groups: Values, **more: t.Any) -> Values:
    return {"dra_claims_templates": [{"name": "t", "namespace": "ml", "groups": list(given_groups), **more}]}


DEVICE = "dra_claims_templates[0].devices[0]"
GPU = {"kind": "gpu"}
RAW = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "ml"}}


def test_a_template_with_two_devices_is_read() -> None:
    inventory, problems = read(
        template({"kind": "gpu", "where": {"min_memory": "80Gi"}}, {"kind": "rdma"}, align="numa_node")
    )
    assert problems == []
    claim = inventory.claims[0]
    assert (claim.name, claim.namespaces, claim.template, claim.align) == ("t", ["ml"], True, "")
    assert [(d.name, d.kind, d.count) for d in claim.groups[0].devices] == [("gpu", "gpu", 1), ("rdma", "rdma", 1)]
    assert claim.groups[0].align == ("numa_node",)


def test_a_claim_that_may_get_more_than_32_devices_is_refused() -> None:
    half = {"kind": "gpu", "count": 16}
    gpus_or_nics = {"name": "b", "first_of": [{"kind": "gpu", "count": 32}, {"kind": "nic", "count": 16}]}
    assert read(template({"name": "a", **half}, gpus_or_nics, {"name": "b2", "kind": "cpu"}))[1]
    assert not read(template({"name": "a", **half}, gpus_or_nics))[1]
    assert not read(groups({"count": 32, "devices": [GPU]}))[1]


def test_blanks_around_an_amount_are_ignored() -> None:
    """The server also ignores blanks around quantities of fields, but quantity() of a CEL selector fails on them."""
    inventory, problems = read(template({"kind": "gpu", "where": {"min_memory": " 80Gi "}}))
    assert problems == []
    assert inventory.claims[0].groups[0].devices[0].where == {"min_memory": "80Gi"}


def test_a_claim_of_a_tier_gets_the_tolerations_of_the_tier_except_for_admin_access() -> None:
    tiers = [{"name": "gold"}, {"name": "batch", "grace": 30}]
    own_toleration = {"key": "x", "operator": "Exists"}
    either_nic = {"name": "nic", "first_of": [{"kind": "nic"}, {"kind": "rdma"}]}
    values = template(
        {**GPU, "tolerations": [own_toleration]}, {**GPU, "name": "all", "admin": True}, either_nic, tier="batch"
    )
    inventory, problems = read({**values, "dra_claims_tiers": tiers})
    assert not problems
    gpu, with_admin_access, nic = inventory.claims[0].groups[0].devices
    batch = [
        {"key": "lanewise.dev/hold", "operator": "Equal", "value": "batch", "effect": "NoSchedule"},
        {"key": "lanewise.dev/swap", "operator": "Equal", "value": "batch", "effect": "NoExecute"},
        {"key": "lanewise.dev/swap", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
    ]
    assert gpu.tolerations == [own_toleration, *batch] and with_admin_access.tolerations == []
    assert [alternative.tolerations for alternative in nic.alternatives] == [batch, batch]
    inventory, problems = read({**template(GPU, tier="gold"), "dra_claims_tiers": tiers})
    assert inventory.claims[0].groups[0].devices[0].tolerations == [
        {**toleration, "value": "gold"} for toleration in batch[:2]
    ]


def test_variables_that_only_the_role_reads_are_ignored() -> None:
    assert read({"dra_claims_kubeconfig": "x", "dra_claims_workloads": [{"any": 1}]})[1] == []


@pytest.mark.parametrize(
    ("values", "path", "rule", "words"),
    [
        ({"dra_claims_template": []}, "dra_claims_template", "unknown-key", "did you mean 'dra_claims_templates'?"),
        ({"dra_claims_templates": {}}, "dra_claims_templates", "wrong-type", "a list, not a mapping"),
        ({"dra_claims_policy": "yes"}, "dra_claims_policy", "wrong-type", "without quotes"),
        ({"dra_claims_site": 5}, "dra_claims_site", "wrong-type", "quotes"),
        ({"dra_claims_site": "a b"}, "dra_claims_site", "bad-name", ""),
        ({"dra_claims_drivers": {"A B": {}}}, "dra_claims_drivers.A B", "bad-name", ""),
        ({"dra_claims_drivers": {"a.b": "1.0"}}, "dra_claims_drivers.a.b", "wrong-type", "version"),
        ({"dra_claims_admin_namespaces": ["a", "a"]}, "dra_claims_admin_namespaces[1]", "duplicate-name", ""),
        (template({"kind": "gpu", "wher": {}}), f"{DEVICE}.wher", "unknown-key", "did you mean 'where'?"),
        (template({"kind": "gp"}), f"{DEVICE}.kind", "unknown-value", "did you mean 'gpu'?"),
        (template(GPU, tier="gold"), "dra_claims_templates[0].tier", "unknown-tier", "tiers in dra_claims_tiers: none"),
        (
            {**template(GPU, tier="glod"), "dra_claims_tiers": [{"name": "gold"}]},
            "dra_claims_templates[0].tier",
            "unknown-tier",
            "did you mean 'gold'?",
        ),
        (
            {"dra_claims_tiers": [{"name": "a"}, {"name": "a"}]},
            "dra_claims_tiers[1].name",
            "duplicate-name",
            "tier 'a'",
        ),
        ({"dra_claims_tiers": [{"name": "a", "grace": -1}]}, "dra_claims_tiers[0].grace", "out-of-range", ""),
        ({"dra_claims_tiers": [{"grace": 1}]}, "dra_claims_tiers[0].name", "missing", ""),
        (
            {
                **template({**GPU, "tolerations": [{"operator": "Exists"}] * 15}, tier="a"),
                "dra_claims_tiers": [{"name": "a"}],
            },
            f"{DEVICE}.tolerations",
            "too-many",
            "17 entries",
        ),
        (template({"name": "x"}), f"{DEVICE}.kind", "missing", "or a class"),
        (template({"kind": "gpu", "class": "x"}), DEVICE, "contradiction", "kind and class"),
        (template({"kind": "gpu", "count": 2, "all": True}), DEVICE, "contradiction", "count and all"),
        (template({"kind": "gpu", "count": "2"}), f"{DEVICE}.count", "wrong-type", "without quotes"),
        (template({"kind": "gpu", "count": True}), f"{DEVICE}.count", "wrong-type", "not true"),
        (template({"kind": "gpu", "count": 0}), f"{DEVICE}.count", "out-of-range", ""),
        (template({"kind": "gpu", "count": 33}), f"{DEVICE}.count", "out-of-range", "1 to 32"),
        (template({"kind": "gpu", "all": "true"}), f"{DEVICE}.all", "wrong-type", "without quotes"),
        (template({"kind": "gpu", "name": "A"}), f"{DEVICE}.name", "bad-name", "lower-case"),
        (template({"kind": "gpu", "name": "x" * 64}), f"{DEVICE}.name", "bad-name", "63"),
        (
            template({"kind": "gpu", "where": {"min_speed": "1G"}}),
            f"{DEVICE}.where.min_speed",
            "unknown-key",
            "filters of kind gpu",
        ),
        (template({"kind": "rdma", "where": {"speed": "1G"}}), f"{DEVICE}.where.speed", "unknown-key", "min_speed"),
        (template({"kind": "rdma", "where": {"rail": "0"}}), f"{DEVICE}.where.rail", "wrong-type", "without quotes"),
        (template({"kind": "rdma", "where": {"rdma": "yes"}}), f"{DEVICE}.where.rdma", "wrong-type", ""),
        (
            template({"kind": "rdma", "where": {"min_speed": "fast"}}),
            f"{DEVICE}.where.min_speed",
            "bad-quantity",
            "not a quantity",
        ),
        (template({"kind": "rdma", "where": {"min_speed": 1.5}}), f"{DEVICE}.where.min_speed", "wrong-type", ""),
        (template({"kind": "rdma", "where": {"link_layer": "ib"}}), f"{DEVICE}.where.link_layer", "unknown-value", ""),
        (template({"kind": "gpu", "where": {"model": "x" * 65}}), f"{DEVICE}.where.model", "too-long", "64"),
        (
            template({"kind": "gpu", "where": {"min_driver_version": 570}}),
            f"{DEVICE}.where.min_driver_version",
            "wrong-type",
            "quotes",
        ),
        (
            template({"kind": "gpu", "tolerations": [{"value": "x"}]}),
            f"{DEVICE}.tolerations[0].key",
            "missing",
            "Exists",
        ),
        (
            template({"kind": "gpu", "tolerations": [{"operator": "Exists", "value": "x"}]}),
            f"{DEVICE}.tolerations[0].value",
            "contradiction",
            "",
        ),
        (template({"kind": "gpu", "tolerations": [{}] * 17}), f"{DEVICE}.tolerations", "too-many", "16"),
        (template({"kind": "gpu", "capacity": {"a-b": "1"}}), f"{DEVICE}.capacity['a-b']", "bad-name", ""),
        (template({"kind": "rdma", "interface": {"mtuu": 1}}), f"{DEVICE}.interface.mtuu", "unknown-key", "mtu"),
        (template({"kind": "gpu", "config": [{"parameters": {}}]}), f"{DEVICE}.config[0].driver", "missing", ""),
        (
            template({"kind": "gpu", "config": [{"driver": "a.b", "parameters": {"a": datetime.date(2026, 1, 1)}}]}),
            f"{DEVICE}.config[0].parameters",
            "wrong-type",
            "",
        ),
        (template({"kind": "gpu", "first_of": [GPU]}), f"{DEVICE}.kind", "contradiction", "each alternative"),
        (template({"admin": True, "first_of": [GPU]}), f"{DEVICE}.admin", "contradiction", "admin access"),
        (template({"name": "g", "first_of": []}), f"{DEVICE}.first_of", "missing", "empty"),
        (template({"name": "g", "first_of": [GPU, GPU]}), f"{DEVICE}.first_of[1].name", "duplicate-name", "name"),
        (
            template({"name": "g", "first_of": [{**GPU, "name": f"a{i}"} for i in range(9)]}),
            f"{DEVICE}.first_of",
            "too-many",
            "the limit is 8",
        ),
        (template(GPU, GPU), "dra_claims_templates[0].devices[1].name", "duplicate-name", "different names"),
        (template(), "dra_claims_templates[0].devices", "missing", "empty"),
        (template(GPU, align="pcie"), "dra_claims_templates[0].align", "unknown-value", "did you mean 'pcie_root'?"),
        (template(GPU, align=["any", "numa_node"]), "dra_claims_templates[0].align[1]", "contradiction", "never tried"),
        (template(GPU, distinct=["host"]), "dra_claims_templates[0].distinct[0].by", "unknown-value", "rail"),
        (
            template(GPU, distinct=[{"by": "rail", "devices": ["gpus"]}]),
            "dra_claims_templates[0].distinct[0].devices",
            "unknown-value",
            "did you mean 'gpu'?",
        ),
        (template(GPU, namespaces=["a"]), "dra_claims_templates[0]", "contradiction", "namespace and namespaces"),
        (template(GPU, groups=[]), "dra_claims_templates[0]", "contradiction", "groups and devices"),
        (
            template(GPU, labels={"lanewise.dev/site": "x"}),
            "dra_claims_templates[0].labels['lanewise.dev/site']",
            "reserved",
            "",
        ),
        (template(GPU, labels={"team": 1}), "dra_claims_templates[0].labels.team", "wrong-type", "quotes"),
        (
            {"dra_claims_templates": [{"name": "t", "devices": [GPU]}]},
            "dra_claims_templates[0].namespace",
            "missing",
            "",
        ),
        (groups({"count": 2}), "dra_claims_templates[0].groups[0].devices", "missing", ""),
        (
            groups({"devices": [GPU]}, {"devices": [{**GPU, "name": "b"}]}, align=["pcie_root", "any"]),
            "dra_claims_templates[0].align",
            "contradiction",
            "one level",
        ),
        (
            groups({"count": 17, "devices": [GPU, {"kind": "rdma"}]}),
            "dra_claims_templates[0]",
            "too-many",
            "34 requests; the limit of a claim is 32",
        ),
        (
            groups({"count": 11, "devices": [{**GPU, "name": "x" * 61}]}),
            "dra_claims_templates[0].groups[0].devices[0].name",
            "bad-name",
            "shorten",
        ),
        (
            groups({"count": 2, "devices": [GPU]}, {"devices": [{**GPU, "name": "gpu-1"}]}),
            "dra_claims_templates[0].groups[1].devices[0].name",
            "duplicate-name",
            "'gpu-1'",
        ),
        (
            {"dra_claims_templates": [{"name": "t", "namespace": "a", "devices": [GPU]}] * 2},
            "dra_claims_templates[1].name",
            "duplicate-name",
            "a/t",
        ),
        (
            {"dra_claims_classes": [{"name": "c", "kind": "gpu"}, {"name": "c", "kind": "rdma"}]},
            "dra_claims_classes[1].name",
            "duplicate-name",
            "",
        ),
        ({"dra_claims_classes": [{"name": "c"}]}, "dra_claims_classes[0].kind", "missing", "cel"),
        (
            {"dra_claims_classes": [{"name": "c", "kind": "gpu", "extended_resource": "gpu"}]},
            "dra_claims_classes[0].extended_resource",
            "bad-name",
            "slash",
        ),
        ({"dra_claims_quotas": [{"namespace": "a"}]}, "dra_claims_quotas[0]", "missing", "limits nothing"),
        (
            {"dra_claims_quotas": [{"namespace": "a", "devices": {"gpu": "4"}}]},
            "dra_claims_quotas[0].devices.gpu",
            "wrong-type",
            "without quotes",
        ),
        (
            {"dra_claims_taints": [{"name": "x", "key": "k", "effect": "NoSchedule"}]},
            "dra_claims_taints[0]",
            "missing",
            "every device",
        ),
        (
            {"dra_claims_taints": [{"name": "x", "driver": "a.b", "key": "k", "effect": "NoShedule"}]},
            "dra_claims_taints[0].effect",
            "unknown-value",
            "did you mean 'NoSchedule'?",
        ),
        (
            {"dra_claims_raw": [{"kind": "X", "metadata": {"name": "x"}}]},
            "dra_claims_raw[0].apiVersion",
            "missing",
            "",
        ),
        ({"dra_claims_raw": [{**RAW, "metadata": "x"}]}, "dra_claims_raw[0].metadata", "wrong-type", "a mapping"),
        ({"dra_claims_raw": [{**RAW, "metadata": {}}]}, "dra_claims_raw[0].metadata.name", "missing", ""),
        ({"dra_claims_raw": [{**RAW, "kind": "../x"}]}, "dra_claims_raw[0].kind", "bad-name", ""),
        (
            {"dra_claims_raw": [{**RAW, "metadata": {"name": "x", "namespace": "../../x"}}]},
            "dra_claims_raw[0].metadata.namespace",
            "bad-name",
            "",
        ),
        (
            {
                "dra_claims_classes": [
                    {"name": name, "kind": "gpu", "extended_resource": "example.com/gpu"} for name in ("a", "b")
                ]
            },
            "dra_claims_classes[1].extended_resource",
            "duplicate-name",
            "dra_claims_classes[0]",
        ),
        (
            template({"name": "a", "kind": "gpu", "count": 17}, {"name": "b", "kind": "nic", "count": 16}),
            "dra_claims_templates[0]",
            "too-many",
            "33 devices",
        ),
    ],
)
def test_each_error_is_reported_once(values: Values, path: str, rule: str, words: str) -> None:
    problems = read(values)[1]
    assert [(problem.path, problem.rule) for problem in problems] == [(path, rule)], problems
    assert words in str(problems[0])


def test_all_errors_are_reported_together() -> None:
    values = {
        **template({"kind": "gpu", "count": "1"}, {"kind": "nic", "where": {"rial": 1}}),
        "dra_claims_policy": 1,
        "dra_claims_quotas": [{}],
    }
    assert {problem.path for problem in read(values)[1]} == {
        "dra_claims_templates[0].devices[0].count",
        "dra_claims_templates[0].devices[1].where.rial",
        "dra_claims_policy",
        "dra_claims_quotas[0]",
        "dra_claims_quotas[0].namespace",
    }


@settings(max_examples=40, deadline=None)
@given(claims_strategies.sites())
def test_random_sites_are_read_without_problems(values: Values) -> None:
    assert read(values)[1] == []


_ANY_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), st.integers(), max_size=2),
)


def _positions(value: t.Any) -> list[tuple[t.Any, t.Any]]:
    """Each mapping or list inside a value with each of its keys or indexes."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [position for key in keys for position in [(value, key), *_positions(value[key])]]


@settings(max_examples=60, deadline=None)
@given(claims_strategies.sites(), st.data())
def test_any_value_in_any_place_is_read_or_reported_with_its_path(values: Values, data: st.DataObject) -> None:
    values = copy.deepcopy(values)
    for _change in range(data.draw(st.integers(1, 4))):
        holder, key = data.draw(st.sampled_from(_positions(values)))
        holder[key] = data.draw(_ANY_VALUES)
    for problem in read(values)[1]:
        assert problem.path.startswith("dra_claims_"), problem
        assert problem.message
