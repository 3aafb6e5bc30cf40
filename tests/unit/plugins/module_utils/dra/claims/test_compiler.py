# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From inventories to objects: what is written, what is refused and why, and on which machines claims can run.

This file has more than 500 lines because it has cases for each key of an inventory.
"""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import class_policy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.reach import reach_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler import allocator
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.refusals import (
    check_only_problem,
    problems_of,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import relevant_facts
from hypothesis import given, settings

cel = pytest.importorskip("cel_expr_python")

Values = dict[str, t.Any]
NVIDIA = {"gpu.nvidia.com": {"version": "0.5.0"}}
LANEWISE = {"lanewise.dev": {"version": "1.0.0"}}
CPU = {"dra.cpu": {"version": "0.2.0"}}
GPU, NIC = {"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}


def site(*templates: Values, drivers: Values | None = None, **more: t.Any) -> Values:
    """The variables of a site with templates t0, t1 ... in namespace ml. `more` are variables without `dra_claims_`."""
    named = [{"name": f"t{index}", "namespace": "ml", **item} for index, item in enumerate(templates)]
    values: Values = {"dra_claims_drivers": drivers or {**NVIDIA, **LANEWISE}, "dra_claims_templates": named}
    return {**values, **{f"dra_claims_{key}": value for key, value in more.items()}}


def objects(compiled: Site, kind: str) -> dict[str, Values]:
    """The objects of a kind, by name."""
    return {item["metadata"]["name"]: item for item in compiled.objects if item["kind"] == kind}


def devices(compiled: Site, name: str = "t0") -> Values:
    """The requests, constraints and configurations of a template."""
    found: Values = objects(compiled, "ResourceClaimTemplate")[name]["spec"]["spec"]["devices"]
    return found


def test_a_claim_cannot_change_what_its_class_sets() -> None:
    """The driver would refuse such a claim only when its pod starts."""
    interface = {"vf": {"vlan": 100, "trust": False}, "mtu": 9000}
    classes = [{"name": "tenant", "kind": "vf", "interface": interface}, {"name": "free", "kind": "vf"}]

    def site_with(class_name: str, **interface: t.Any) -> Values:
        return site({"devices": [{"name": "nic", "class": class_name, "interface": interface}]}, classes=classes)

    path = "dra_claims_templates[0].devices[0].interface"
    check_only_problem(
        site_with("tenant", vf={"vlan": 100, "trust": True}), f"{path}.vf", "tenancy", "'tenant' sets vf", "leave it"
    )
    check_only_problem(site_with("tenant", vf={"vlan": 200}, mtu=9000), f"{path}.vf", "tenancy")
    check_only_problem(site_with("tenant", mtu=1500), f"{path}.mtu", "tenancy")
    assert compile_site(site_with("tenant", name="net1", mtu=9000))
    assert compile_site(site_with("free", mtu=1400))
    check_only_problem(
        site_with("free", vf={"vlan": 200}), f"{path}.vf.vlan", "tenancy", "'free' does not let claims set vf.vlan"
    )
    alternatives = [{"name": "a", "class": "free"}, {"name": "b", "class": "tenant"}]
    either = {"name": "nic", "first_of": alternatives, "interface": {"mtu": 1400}}
    check_only_problem(site({"devices": [either]}, classes=classes), f"{path}.mtu", "tenancy", "tenant")


def test_a_class_limits_its_namespaces_and_what_their_claims_may_set() -> None:
    allow = {"mtu": {"most": 9000}, "vf": {"vlan": {"least": 100, "most": 199}, "trust": True}, "name": True}
    tenants = [{"namespaces": ["training"], "allow": allow}, {"namespaces": ["ml"], "allow": {}}]
    classes = [{"name": "tenant", "kind": "vf", "tenants": tenants}]

    def site_with(namespace: str = "training", **interface: t.Any) -> Values:
        device = {"name": "nic", "class": "tenant", **({"interface": interface} if interface else {})}
        return site({"namespace": namespace, "devices": [device]}, classes=classes)

    compiled = compile_site(site_with(name="net1", mtu=9000, vf={"vlan": 150, "trust": True}))
    (config,) = objects(compiled, "DeviceClass")["tenant"]["spec"]["config"]
    filled = {**allow, "vf": {**allow["vf"], "trust": {}}, "name": {}}
    assert config["opaque"]["parameters"]["tenants"] == [{**tenants[0], "allow": filled}, tenants[1]]
    path = "dra_claims_templates[0].devices[0]"
    check_only_problem(
        site_with(vf={"vlan": 200}), f"{path}.interface.vf.vlan", "tenancy", "limits what claims may set"
    )
    check_only_problem(site_with(dhcp=["ipv4"]), f"{path}.interface.dhcp", "tenancy", "does not let claims set dhcp")
    check_only_problem(site_with("ml", mtu=1500), f"{path}.interface.mtu", "tenancy")
    assert compile_site(site_with("ml"))
    check_only_problem(site_with("monitoring"), f"{path}.class", "tenancy", "not for claims of namespace 'monitoring'")
    for wrong, place, rule in (
        ({"allow": {"vlan": True}}, "tenants[0].allow.vlan", "unknown-key"),
        ({"allow": {"mtu": 9000}}, "tenants[0].allow.mtu", "wrong-type"),
        ({"allow": {"mtu": False}}, "tenants[0].allow.mtu", "wrong-type"),
        ({"allow": {"mtu": {"least": 2, "most": 1}}}, "tenants[0].allow.mtu", "contradiction"),
        ({"namespaces": ["ml"]}, "tenants[0].allow", "missing"),
    ):
        of_site = site({"devices": [{"name": "nic", "kind": "vf"}]}, classes=[{**classes[0], "tenants": [wrong]}])
        check_only_problem(of_site, f"dra_claims_classes[0].{place}", rule)


def test_the_default_of_a_site_limits_what_claims_of_other_classes_may_set() -> None:
    default = [{"namespaces": ["ml"], "allow": {"name": True}}]
    own = [{"allow": {"addresses": {"within": ["10.1.0.0/16"]}}}]
    classes = [
        {"name": "own", "kind": "vf", "tenants": own},
        {"name": "set", "kind": "vf", "interface": {"mtu": 9000}},
        {"name": "any", "cel": ["true"]},
        {"name": "accelerator", "kind": "gpu"},
    ]

    def site_with(device: Values, *tenants: t.Any, **more: t.Any) -> Values:
        [chosen] = tenants or [default]
        return site({"devices": [{"name": "nic", **device}], **more}, classes=classes, tenants=chosen)

    def policies(compiled: Site) -> dict[str, t.Any]:
        found = {}
        for name, device_class in objects(compiled, "DeviceClass").items():
            configs = [config["opaque"]["parameters"] for config in device_class["spec"].get("config", ())]
            found[name] = [config["tenants"] for config in configs if config["kind"] == "InterfacePolicy"]
        return found

    filled = [{"namespaces": ["ml"], "allow": {"name": {}}}]
    # the class that is generated for a kind gets the default, too, but not a class of another driver
    policies_by_class = policies(compile_site(site_with({"kind": "rdma"})))
    assert policies_by_class == {"own": [own], "set": [filled], "any": [filled], "rdma": [filled], "accelerator": []}
    path = "dra_claims_templates[0].devices[0]"
    check_only_problem(
        site_with({"kind": "rdma", "interface": {"addresses": ["10.1.0.2/16"]}}),
        f"{path}.interface.addresses",
        "tenancy",
    )
    check_only_problem(
        site_with({"class": "set", "interface": {"dhcp": ["ipv4"]}}), f"{path}.interface.dhcp", "tenancy"
    )
    assert compile_site(site_with({"class": "set", "interface": {"name": "net1", "mtu": 9000}}))
    assert compile_site(site_with({"class": "own", "interface": {"addresses": ["10.1.0.2/24"]}}))
    check_only_problem(
        site_with({"kind": "rdma"}, namespace="training"), f"{path}.class", "tenancy", "namespace 'training'"
    )
    # an empty list allows nothing; without a list, the default of the driver applies
    check_only_problem(site_with({"class": "set"}, []), f"{path}.class", "tenancy")
    assert "InterfacePolicy" not in str(objects(compile_site(site_with({"class": "set"}, None)), "DeviceClass")["set"])
    check_only_problem(
        site_with({"kind": "rdma"}, [{"allow": {"mtu": 1}}]), "dra_claims_tenants[0].allow.mtu", "wrong-type"
    )
    check_only_problem(site_with({"kind": "rdma"}, {"allow": {}}), "dra_claims_tenants", "wrong-type")


def test_a_class_selects_the_kind_and_a_request_applies_the_filters() -> None:
    compiled = compile_site(site({"devices": [{**GPU, "where": {"model": "H100"}}]}))
    assert [
        selector["cel"]["expression"] for selector in objects(compiled, "DeviceClass")["gpu"]["spec"]["selectors"]
    ] == [
        'device.driver == "gpu.nvidia.com"',
        'has(device.attributes["gpu.nvidia.com"].type) && "gpu" == device.attributes["gpu.nvidia.com"].type',
    ]
    request = devices(compiled)["requests"][0]
    assert request["exactly"]["deviceClassName"] == "gpu"
    assert ['.contains("H100")' in selector["cel"]["expression"] for selector in request["exactly"]["selectors"]] == [
        True
    ]
    assert compiled.objects[0]["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "lanewise.dra",
        "lanewise.dev/site": "default",
    }


def test_class_names_contain_the_driver_if_several_drivers_have_a_kind() -> None:
    drivers = {**NVIDIA, "gpu.amd.com": {"version": "1.0.0"}}
    gpus = [
        {"name": "a", "kind": "gpu", "driver": "gpu.amd.com"},
        {"name": "b", "kind": "gpu", "driver": "gpu.nvidia.com"},
    ]
    compiled = compile_site(site({"devices": gpus}, drivers=drivers))
    assert sorted(objects(compiled, "DeviceClass")) == ["gpu-amd", "gpu-nvidia"]
    check_only_problem(
        site({"devices": [GPU]}, drivers=drivers), "dra_claims_templates[0].devices[0].kind", "ambiguous", "gpu.amd.com"
    )


def test_a_class_of_the_site_replaces_the_generated_class_of_its_kind() -> None:
    own = {"name": "accelerator", "kind": "gpu", "labels": {"team": "x"}}
    compiled = compile_site(site({"devices": [GPU]}, classes=[own]))
    assert sorted(objects(compiled, "DeviceClass")) == ["accelerator"]
    assert devices(compiled)["requests"][0]["exactly"]["deviceClassName"] == "accelerator"
    wrong = {"name": "gpu", "kind": "rdma"}
    check_only_problem(
        site({"devices": [GPU]}, classes=[wrong]), "dra_claims_classes[0].name", "duplicate-name", "kind gpu"
    )


def test_a_partition_has_a_separate_class() -> None:
    compiled = compile_site(site({"devices": [{**GPU, "where": {"partition": "1g.10gb"}}]}))
    assert sorted(objects(compiled, "DeviceClass")) == ["gpu-partition"]
    classes = [{"name": "whole", "kind": "gpu", "where": {"model": "H100"}}]
    wrong = {"name": "gpu", "class": "whole", "where": {"partition": "1g.10gb"}}
    check_only_problem(
        site({"devices": [wrong]}, classes=classes),
        "dra_claims_templates[0].devices[0].where.partition",
        "contradiction",
        "class 'whole' has no devices with a partition",
    )


def test_a_repeated_group_has_one_constraint_per_repetition() -> None:
    compiled = compile_site(site({"groups": [{"count": 2, "align": "pcie_root", "devices": [GPU, NIC]}]}))
    assert [request["name"] for request in devices(compiled)["requests"]] == ["gpu-0", "nic-0", "gpu-1", "nic-1"]
    assert devices(compiled)["constraints"] == [
        {"requests": [f"gpu-{index}", f"nic-{index}"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
        for index in range(2)
    ]


def test_with_a_list_of_levels_partners_come_before_their_anchor() -> None:
    """The anchor is the first device of a group; the others are its partners, with a subrequest for each level."""
    group = {"count": 2, "align": ["pcie_root", "numa_node", "any"], "devices": [GPU, NIC]}
    spec = devices(compile_site(site({"groups": [group]})))
    assert [request["name"] for request in spec["requests"]] == ["nic-0", "gpu-0", "nic-1", "gpu-1"]
    levels = [entry["name"] for entry in spec["requests"][0]["firstAvailable"]]
    assert levels == ["pcie-root", "numa-node", "any"]
    assert [entry["requests"] for entry in spec["constraints"]] == [
        ["gpu-0", "nic-0/pcie-root"],
        ["gpu-0", "nic-0/numa-node"],
        ["gpu-1", "nic-1/pcie-root"],
        ["gpu-1", "nic-1/numa-node"],
    ]


def chosen_levels(compiled: Site, facts: Values, drivers: Values, name: str = "t0", order: t.Any = None) -> list[str]:
    """The subrequests, which are named after their levels, that the allocator chooses on a free node.

    `order` is a key by which the requests are sorted before.
    """
    spec = devices(compiled, name)
    if order:
        spec = {**spec, "requests": sorted(spec["requests"], key=order)}
    answer = allocator.allocate(
        [{"devices": spec}], objects(compiled, "DeviceClass"), offers("n", facts, drivers), Engine()
    )
    assert isinstance(answer, allocator.Allocation), answer
    return sorted(result.request for result in answer.results if "/" in result.request)


def test_a_list_of_levels_gets_the_nearest_level_that_is_available() -> None:
    group = {"count": 1, "align": ["pcie_root", "numa_node", "any"], "devices": [GPU, NIC]}
    compiled = compile_site(site({"groups": [{**group, "count": 8}]}))
    drivers = {**NVIDIA, **LANEWISE}
    assert chosen_levels(compiled, relevant_facts("hgx-h100"), drivers) == [
        f"nic-{index}/pcie-root" for index in range(8)
    ]
    compiled = compile_site(site({"groups": [group]}))
    assert chosen_levels(compiled, relevant_facts("epyc-nps4"), drivers) == ["nic/pcie-root"]
    # no GPU of this board shares a root with a NIC
    assert chosen_levels(compiled, relevant_facts("gb200"), drivers) == ["nic/numa-node"]


def test_anchors_before_their_partners_would_get_a_farther_level() -> None:
    """With GPUs before NICs, the next GPU is used even if only another GPU has a free NIC at its root."""
    group = {"count": 2, "align": ["pcie_root", "numa_node", "any"], "devices": [GPU, NIC]}
    compiled = compile_site(site({"groups": [group]}))
    drivers, facts = {**NVIDIA, **LANEWISE}, relevant_facts("epyc-nps4")
    assert chosen_levels(compiled, facts, drivers) == ["nic-0/pcie-root", "nic-1/pcie-root"]
    swapped = chosen_levels(
        compiled, facts, drivers, order=lambda request: (request["name"][-1], request["name"][:3] != "gpu")
    )
    assert swapped == ["nic-0/pcie-root", "nic-1/any"]


def test_each_level_has_all_alternatives_of_a_device() -> None:
    nic = {
        "name": "nic",
        "first_of": [{**NIC, "name": "fast", "where": {"min_speed": "400G"}}, {**NIC, "name": "any"}],
    }
    spec = devices(compile_site(site({"align": ["pcie_root", "numa_node"], "devices": [GPU, nic]})))
    names = [entry["name"] for entry in spec["requests"][0]["firstAvailable"]]
    assert names == ["pcie-root-fast", "pcie-root-any", "numa-node-fast", "numa-node-any"]
    assert spec["constraints"][0]["requests"] == ["gpu", "nic/pcie-root-fast", "nic/pcie-root-any"]
    many = {"name": "nic", "first_of": [{**NIC, "name": f"a{index}"} for index in range(5)]}
    check_only_problem(
        site({"align": ["pcie_root", "numa_node"], "devices": [GPU, many]}),
        "dra_claims_templates[0].devices[1]",
        "too-many",
        "10 subrequests",
    )


@pytest.mark.parametrize(
    ("drivers", "align", "kinds", "words"),
    [
        (
            {"gpu.nvidia.com": {"version": "0.4.0"}, **LANEWISE},
            "numa_node",
            [GPU, NIC],
            ["0.4.0 publishes no such attribute", "0.5.0"],
        ),
        ({**NVIDIA, **CPU}, "numa_node", [GPU, {"kind": "cpu"}], ["dra.cpu 0.2.0 publishes dra.net/numaNode"]),
        ({**NVIDIA, **CPU}, "pcie_root", [GPU, {"kind": "cpu"}], ["as a list", "align on numa_node"]),
        ({"gaudi.intel.com": {"version": "0.5.0"}, **LANEWISE}, "pcie_root", [GPU, NIC], ["from 0.7.0 on"]),
    ],
)
def test_devices_that_cannot_be_aligned_are_refused_with_a_fix(
    drivers: Values, align: str, kinds: list[Values], words: list[str]
) -> None:
    values = site({"align": align, "devices": kinds}, drivers=drivers)
    check_only_problem(values, "dra_claims_templates[0].align", "no-common-attribute", *words)


def test_devices_without_a_common_attribute_are_aligned_through_a_device_with_both_attributes() -> None:
    values = site({"align": "numa_node", "devices": [GPU, NIC, {"kind": "cpu"}]}, drivers={**NVIDIA, **LANEWISE, **CPU})
    assert devices(compile_site(values))["constraints"] == [
        {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/numaNode"},
        {"requests": ["nic", "cpu"], "matchAttribute": "dra.net/numaNode"},
    ]


@pytest.mark.parametrize(
    ("values", "path", "rule", "words"),
    [
        (site({"devices": [{"kind": "cpu"}]}), "dra_claims_templates[0].devices[0].kind", "unserved-kind", "dra.cpu"),
        (
            site({"devices": [{**GPU, "driver": "gpu.nvidia.co"}]}),
            "dra_claims_templates[0].devices[0].driver",
            "unknown-driver",
            "did you mean 'gpu.nvidia.com'?",
        ),
        (
            site({"devices": [{**GPU, "driver": "lanewise.dev"}]}),
            "dra_claims_templates[0].devices[0].driver",
            "unserved-kind",
            "nic, rdma, vf",
        ),
        (
            site({"devices": [NIC]}, drivers={"dra.net": {"version": "1.4.0"}})
            | {"dra_claims_templates": [{"name": "t", "namespace": "a", "devices": [{**NIC, "where": {"rail": 1}}]}]},
            "dra_claims_templates[0].devices[0].where.rail",
            "unanswered-filter",
            "publishes no rail",
        ),
        (
            site({"devices": [{**GPU, "cel": ["device.drver == 'x'"]}]}),
            "dra_claims_templates[0].devices[0].cel[0]",
            "cel",
            "drver",
        ),
        (
            site({"devices": [{**NIC, "where": {"min_speed": "1"}}]}),
            "dra_claims_templates[0].devices[0].where.min_speed",
            "bad-value",
            "400G",
        ),
        (
            site({"devices": [{**GPU, "admin": True}]}),
            "dra_claims_templates[0].devices[0].admin",
            "no-admin-namespace",
            "dra_claims_admin_namespaces",
        ),
        (
            site({"devices": [GPU]}, quotas=[{"namespace": "ml", "devices": {"gpus": 1}}]),
            "dra_claims_quotas[0].devices.gpus",
            "unknown-class",
            "did you mean 'gpu'?",
        ),
        (
            site({"devices": [{**GPU, "interface": {"mtu": 9000}}]}),
            "dra_claims_templates[0].devices[0].interface",
            "config-driver",
            "gpu.nvidia.com",
        ),
        (
            site({"groups": [{"count": 2, "devices": [{**NIC, "interface": {"name": "net1"}}]}]}),
            "dra_claims_templates[0].groups[0].devices[0].interface.name",
            "contradiction",
            "{index}",
        ),
        (
            site({"align": ["pcie_root", "any"], "devices": [GPU, {**NIC, "all": True}]}),
            "dra_claims_templates[0].devices[1].all",
            "contradiction",
            "never tries the next level",
        ),
        (
            site({"align": ["pcie_root", "any"], "devices": [{**GPU, "all": True}, NIC]}),
            "dra_claims_templates[0].devices[0].all",
            "contradiction",
            "never tries the next level",
        ),
        (
            site(
                {"devices": [{"name": "gpu", "class": "fast", "where": {"min_memory": "80Gi"}}]},
                classes=[{"name": "fast", "driver": "gpu.nvidia.com", "cel": "true"}],
            ),
            "dra_claims_templates[0].devices[0].where",
            "contradiction",
            "set a kind in the class, or use cel",
        ),
        (
            site({"align": "pcie_root", "devices": [GPU]}),
            "dra_claims_templates[0].align",
            "contradiction",
            "nothing to align",
        ),
        (
            site({"devices": [GPU], "distinct": ["rail"]}),
            "dra_claims_templates[0].distinct[0]",
            "no-attribute",
            "rail",
        ),
        (
            site({"devices": [{**GPU, "bandwidth": "1G"}]}),
            "dra_claims_templates[0].devices[0].bandwidth",
            "no-capacity",
            "publishes no bandwidth",
        ),
    ],
)
def test_each_error_is_reported_once(values: Values, path: str, rule: str, words: str) -> None:
    problems = problems_of(values)
    assert [problem.path for problem in problems] == [path], problems
    assert rule == problems[0].rule
    assert words in str(problems[0])


@pytest.mark.parametrize(
    ("device", "more", "path"),
    [
        ({**GPU, "tolerations": [{}]}, {}, "dra_claims_templates[0].devices[0].tolerations"),
        ({**NIC, "bandwidth": "100G"}, {}, "dra_claims_templates[0].devices[0].bandwidth"),
        ({**GPU, "capacity": {"memory": "1Gi"}}, {}, "dra_claims_templates[0].devices[0].capacity"),
        (
            GPU,
            {"classes": [{"name": "x", "kind": "gpu", "extended_resource": "a.b/c"}]},
            "dra_claims_classes[0].extended_resource",
        ),
        (
            GPU,
            {"taints": [{"name": "x", "driver": "a.b", "key": "k", "effect": "NoSchedule"}]},
            "dra_claims_taints[0]",
        ),
        ({**NIC, "count": 2}, {"distinct": True}, "dra_claims_templates[0].distinct[0]"),
    ],
)
def test_fields_that_an_old_server_lacks_are_reported_at_their_path(device: Values, more: Values, path: str) -> None:
    body = {"devices": [device], **({"distinct": ["rail"]} if more.pop("distinct", False) else {})}
    values = site(body, **more)
    problems = problems_of(values, kubernetes="1.34")
    assert {problem.path for problem in problems} == {path}, problems
    assert "1.34" in str(problems[0])
    compile_site(values, None, "1.37")


def test_a_quota_counts_devices_extended_resources_and_claims() -> None:
    classes = [{"name": "big", "kind": "gpu", "extended_resource": "example.com/big"}]
    quotas = [{"namespace": "ml", "devices": {"big": 4}, "claims": 9}]
    compiled = compile_site(site({"devices": [{"class": "big"}]}, classes=classes, quotas=quotas))
    assert objects(compiled, "ResourceQuota")["dra"]["spec"]["hard"] == {
        "big.deviceclass.resource.k8s.io/devices": "4",
        "requests.example.com/big": "4",
        "requests.deviceclass.resource.kubernetes.io/big": "4",
        "count/resourceclaims.resource.k8s.io": "9",
    }


@pytest.mark.parametrize(("version", "warned"), [("0.5.0", True), ("25.12.0", True), ("25.8.0", False)])
def test_an_extended_resource_that_the_chart_of_the_driver_also_creates_gives_a_warning(
    version: str, warned: bool
) -> None:
    classes = [{"name": "old", "kind": "gpu", "extended_resource": "nvidia.com/gpu"}]
    compiled = compile_site(
        site({"devices": [{"class": "old"}]}, classes=classes, drivers={"gpu.nvidia.com": {"version": version}})
    )
    assert any("creates a class with nvidia.com/gpu from 25.12.0 on" in words for words in compiled.warnings) is warned


def test_a_version_that_was_never_released_gives_a_warning() -> None:
    compiled = compile_site(site({"devices": [GPU]}, drivers={"gpu.nvidia.com": {"version": "25.10.0"}}))
    assert any("no release 25.10.0 of NVIDIA GPU DRA driver" in words for words in compiled.warnings)


def test_repetitions_share_a_configuration_unless_it_contains_the_index() -> None:
    shared = {"groups": [{"count": 3, "devices": [{**NIC, "interface": {"mtu": 9000}}]}]}
    numbered = {"groups": [{"count": 2, "devices": [{**NIC, "interface": {"name": "rdma{index}"}}]}]}
    compiled = compile_site(site(shared, numbered))
    assert [entry["requests"] for entry in devices(compiled)["config"]] == [["nic-0", "nic-1", "nic-2"]]
    found = [
        (config["requests"], config["opaque"]["parameters"]["name"]) for config in devices(compiled, "t1")["config"]
    ]
    assert found == [(["nic-0"], "rdma0"), (["nic-1"], "rdma1")]


def test_the_namespace_of_a_claim_with_admin_access_gets_the_label_for_it() -> None:
    compiled = compile_site(site({"devices": [{**GPU, "admin": True, "all": True}]}, admin_namespaces=["ml"]))
    namespace = objects(compiled, "Namespace")["ml"]
    assert namespace["metadata"]["labels"]["resource.kubernetes.io/admin-access"] == "true"


def test_raw_objects_are_kept_and_validated() -> None:
    raw = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {}}
    assert raw in compile_site(site(raw=[raw])).objects
    wrong = {**raw, "spec": {"selectors": [{}]}}
    assert problems_of(site(raw=[wrong]))[0].path.startswith("dra_claims_raw[0].spec.selectors[0]")


def test_reach_names_the_nodes_that_satisfy_claims() -> None:
    nodes = {name: relevant_facts(name) for name in ("hgx-h100", "gb200", "cpu-rdma")}
    group = {"count": 2, "devices": [GPU, NIC]}
    strict = {"groups": [{**group, "align": "pcie_root"}]}
    soft = {"groups": [{**group, "align": ["pcie_root", "numa_node"]}]}
    found = {entry.claim: entry for entry in compile_site(site(strict, soft), nodes).reach}
    assert found["ml/t0"].nodes == ["hgx-h100"]
    assert found["ml/t1"].nodes == ["gb200", "hgx-h100"]
    assert sorted(found["ml/t0"].refused) == ["cpu-rdma", "gb200"]
    assert "pcieRoot" in found["ml/t0"].refused["gb200"]
    assert "gpu.nvidia.com" in found["ml/t0"].refused["cpu-rdma"]


def test_a_claim_that_no_node_satisfies_is_refused() -> None:
    nodes = {f"gb200-{index}": relevant_facts("gb200") for index in range(4)}
    values = site({"align": "pcie_root", "devices": [GPU, NIC]})
    words = ["the PCIe roots of gpu and nic are disjoint on this board", "align on numa_node", "4 node(s)"]
    check_only_problem(values, "dra_claims_templates[0].align", "disjoint-roots", *words, nodes=nodes)
    allowed = compile_site({**values, "dra_claims_allow_unreachable": True}, nodes)
    assert len(allowed.reach[0].refused) == 4
    check_only_problem(
        site({"devices": [{**GPU, "count": 9}]}),
        "dra_claims_templates[0].devices[0]",
        "unreachable",
        "9 devices",
        nodes=nodes,
    )


def test_a_node_whose_nics_are_in_pods_can_satisfy_claims() -> None:
    busy = relevant_facts("hgx-h100")
    for nic in busy["nics"]:
        if nic["rdma_devices"]:
            nic.update(interfaces=[], rdma_devices=[], link_layer=None, speed_mbps=None, up=None)
            nic["elsewhere"] = ["interface", "rdma_device"]
    pairs = {"groups": [{"count": 8, "align": "pcie_root", "devices": [GPU, NIC]}]}
    fast = {"devices": [{**NIC, "where": {"rail": 3, "min_speed": "400G"}}]}
    compiled = compile_site(site(pairs, fast), {"busy": busy})
    assert compiled.reach[0].nodes == ["busy"]
    assert (
        compiled.reach[1].nodes == []
        and "a probe does not report lanewise.dev/linkSpeedMbps" in compiled.reach[1].unknown["busy"]
    )
    for nic in busy["nics"]:
        nic["elsewhere"] = []
    assert problems_of(site(pairs), nodes={"busy": busy})[0].rule == "unreachable"


def test_a_whole_nic_for_a_part_of_its_rate_gives_a_warning() -> None:
    part = {"name": "nic", "kind": "rdma", "bandwidth": "200G"}
    (warning,) = compile_site(site({"devices": [part]})).warnings
    assert warning.startswith("dra_claims_templates[0].devices[0].bandwidth: lanewise.dev allocates whole NICs")
    assert "where: {min_speed: 200G}" in warning
    (warning,) = compile_site(site({"devices": [{**NIC, "capacity": {"bandwidth": "200G"}}]})).warnings
    assert warning.startswith("dra_claims_templates[0].devices[0].capacity: ")
    assert not compile_site(site({"devices": [{**NIC, "where": {"min_speed": "200G"}}]})).warnings


def test_errors_of_all_kinds_are_reported_together() -> None:
    """A wrong type, unknown names, an unknown release, a kind without driver, and a claim that no node can satisfy."""
    broken = {"count": "two", "devices": [{**NIC, "where": {"numa_nod": 1}}, {**GPU, "driver": "gpu.amd.co"}]}
    values = site({"groups": [broken]}, {"devices": [{**GPU, "count": 9}]}, {"devices": [GPU, {"kind": "cpu"}]})
    found = {(problem.path, problem.rule) for problem in problems_of(values, {"n": relevant_facts("hgx-h100")}, "1.4")}
    group = "dra_claims_templates[0].groups[0]"
    assert found == {
        (f"{group}.count", "wrong-type"),
        (f"{group}.devices[0].where.numa_nod", "unknown-key"),
        (f"{group}.devices[1].driver", "unknown-driver"),
        ("dra_claims_kubernetes_version", "version"),
        ("dra_claims_templates[1].devices[0]", "unreachable"),
        ("dra_claims_templates[2].devices[1].kind", "unserved-kind"),
    }


def claim_manifest(**devices: t.Any) -> Values:
    request = {"name": "n", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}
    spec = {"devices": {"requests": [request], **devices}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": spec}


def class_manifest(*selectors: Values) -> Values:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": {"selectors": selectors},
    }


def refusal_reason(objects: t.Sequence[Values], nodes: t.Mapping[str, Values], *server: t.Any) -> str:
    """Why the only node cannot satisfy the only claim. `server` is the release of Kubernetes and its feature gates."""
    (found,) = reach_of(objects, nodes, {"lanewise.dev": {}}, Engine(), *server)
    assert not found.nodes and len(found.refused) == 1, found
    return next(iter(found.refused.values()))


def test_no_node_satisfies_a_class_whose_selector_is_not_cel() -> None:
    nodes = {"n": relevant_facts("hgx-h100")}
    reason = refusal_reason([class_manifest({"rego": {"code": "x"}}), claim_manifest()], nodes)
    assert reason == "class c: the scheduler only supports selectors of kind cel, and this one contains rego"


def test_empty_fields_of_valid_manifests_are_read_like_absent_ones() -> None:
    device_class = {**class_manifest(), "spec": None}
    claim = {**claim_manifest(constraints=None, config=None), "metadata": {"name": "x", "namespace": "ml"}}
    generated = {**device_class, "metadata": {"generateName": "c-"}}
    manifests = [device_class, claim, generated]
    assert [validate.validate(item, "1.37", {}, Engine()) for item in manifests] == [[], [], []]
    assert class_policy.check(manifests) == [[], [], []]
    (found,) = reach_of(manifests, {"n": relevant_facts("hgx-h100")}, {"lanewise.dev": {}}, Engine())
    assert found.nodes == ["n"]


def test_reach_depends_on_the_fields_that_a_release_keeps() -> None:
    nodes = {"n": relevant_facts("hgx-h100")}
    device_class = class_manifest({"cel": {"expression": 'device.driver == "lanewise.dev"'}})
    distinct = claim_manifest(constraints=[{"distinctAttribute": "lanewise.dev/rail"}])
    (found,) = reach_of([device_class, distinct], nodes, {"lanewise.dev": {}}, Engine())
    assert found.nodes == ["n"]
    assert refusal_reason([device_class, distinct], nodes, "1.34", {"DRAResourceClaimDeviceStatus": False}) == (
        "the scheduler only supports constraints with matchAttribute, so scheduling of the pod fails"
    )
    with_capacity = claim_manifest()
    with_capacity["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"none": "1"}}
    assert "the capacity" in refusal_reason([device_class, with_capacity], nodes)
    (found,) = reach_of(
        [device_class, with_capacity], nodes, {"lanewise.dev": {}}, Engine(), "1.34"
    )  # drops the capacity
    assert found.nodes == ["n"]


@pytest.mark.parametrize("facts", [{"a": 1}, {"nics": None}, {"nics": ["x"]}, "x", None])
@pytest.mark.parametrize("device", [GPU, {**NIC, "share": {"bandwidth": "10G"}}], ids=["device", "share"])
def test_facts_of_another_schema_are_reported(device: Values, facts: t.Any) -> None:
    assert problems_of(site({"devices": [device]}), nodes={"n": facts})[0].path == "topology_facts of n"


@pytest.mark.parametrize(("field", "value"), [("model", "\ud800"), ("address", ["x"])])
def test_facts_with_values_that_no_probe_returns_are_reported(field: str, value: t.Any) -> None:
    node_facts = relevant_facts("hgx-h100")
    for nic in node_facts["nics"]:
        nic[field] = value
    assert problems_of(site({"devices": [NIC]}), nodes={"n": node_facts})[0].rule == "bad-facts"


def test_an_invalid_rate_gives_no_capacity() -> None:
    node_facts = relevant_facts("hgx-h100")
    for nic in node_facts["nics"]:
        nic["speed_mbps"] = True
    assert compile_site(site({"devices": [NIC]}), {"n": node_facts}).reach[0].nodes == ["n"]
    with_bandwidth = site({"devices": [{**NIC, "bandwidth": "1G"}]})
    assert problems_of(with_bandwidth, nodes={"n": node_facts})[0].rule == "unreachable"


@settings(max_examples=40, deadline=None)
@given(claims_strategies.sites())
def test_compiled_objects_are_valid_and_reproducible(values: Values) -> None:
    compiled = claims_strategies.compiled(values)
    for obj in compiled.objects:
        if obj["apiVersion"].startswith("resource.k8s.io/"):
            assert validate.validate(obj) == []
    assert claims_strategies.compiled(values).objects == compiled.objects
    keys = [(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]) for obj in compiled.objects]
    assert len(keys) == len(set(keys))


def test_an_error_of_a_driver_is_not_repeated_for_its_claims() -> None:
    check_only_problem(
        site({"devices": [GPU]}, drivers={"gpu.nvidia.com": {}}), "dra_claims_drivers.gpu.nvidia.com", "version"
    )


def test_interface_settings_that_a_class_cannot_have_are_refused() -> None:
    own = {"name": "own", "kind": "rdma", "interface": {"name": "rdma{index}", "mtu": 9000}}
    check_only_problem(site(classes=[own]), "dra_claims_classes[0].interface.name", "contradiction", "{index}")
    of_gpu = {"name": "own", "kind": "gpu", "interface": {"mtu": 9000}}
    check_only_problem(site(classes=[of_gpu]), "dra_claims_classes[0].interface", "config-driver", "gpu.nvidia.com")


@pytest.mark.parametrize("text", ["x" * 11000, "\ud800"])
def test_a_class_with_cel_that_cannot_be_written_is_refused(text: str) -> None:
    assert len(problems_of(site(classes=[{"name": "own", "cel": [f"device.driver == '{text}'"]}]))) == 1


def test_raw_objects_are_checked_against_the_classes() -> None:
    """Against classes of the inventory, for which the default of the site applies, and against raw classes."""
    default = [{"allow": {"name": True}}]
    classes = [{"name": "tenant", "kind": "vf", "interface": {"mtu": 9000}}]
    policy = {"apiVersion": "lanewise.dev/v1alpha1", "kind": "InterfacePolicy", "tenants": []}
    head = {"apiVersion": "resource.k8s.io/v1"}
    closed = {
        **head,
        "kind": "DeviceClass",
        "metadata": {"name": "closed"},
        "spec": {"config": [{"opaque": {"driver": "lanewise.dev", "parameters": policy}}]},
    }

    def claim(class_name: str, **interface: t.Any) -> Values:
        parameters = {"apiVersion": "lanewise.dev/v1alpha1", "kind": "InterfaceConfig", **interface}
        spec = {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": class_name}}],
                "config": [{"opaque": {"driver": "lanewise.dev", "parameters": parameters}}],
            }
        }
        return {**head, "kind": "ResourceClaim", "metadata": {"name": "raw", "namespace": "ml"}, "spec": spec}

    def of_site(*raw: Values) -> Values:
        return site(classes=classes, tenants=default, raw=list(raw))

    assert compile_site(of_site(claim("tenant", name="net1", mtu=9000), closed))
    path = "dra_claims_raw[0].spec.devices.config[0].opaque.parameters"
    check_only_problem(of_site(claim("tenant", mtu=1500)), f"{path}.mtu", "tenancy", "'tenant' sets mtu")
    check_only_problem(
        of_site(claim("tenant", addresses=["10.1.0.2/16"])), f"{path}.addresses", "tenancy", "does not let claims set"
    )
    check_only_problem(
        of_site(claim("closed"), closed), "dra_claims_raw[0].spec.devices.requests[0]", "tenancy", "not for claims"
    )
    assert compile_site(of_site(claim("of-others", addresses=["10.1.0.2/16"])))


def test_a_raw_object_that_is_also_generated_or_repeated_is_refused() -> None:
    raw = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    check_only_problem(
        site({"devices": [GPU]}, raw=[raw]), "dra_claims_raw[0]", "duplicate-name", "templates[0].devices[0].kind"
    )
    two = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": n}} for n in ("a", "b")]
    assert len(compile_site(site(raw=two)).objects) == 2
    check_only_problem(site(raw=[two[0], two[0]]), "dra_claims_raw[1]", "duplicate-name", "dra_claims_raw[0]")


def test_the_value_of_a_feature_gate_must_be_a_boolean() -> None:
    with pytest.raises(Problems, match="DRADeviceTaints must be true or false"):
        compile_site(site(), None, "1.34", {"DRADeviceTaints": t.cast("bool", "false")})


def test_levels_whose_attributes_differ_only_in_the_domain_get_different_names() -> None:
    group = {"align": ["a.example/zone", "b.example/zone", "c.example/Zone"], "devices": [GPU, NIC]}
    nic = devices(compile_site(site({"groups": [group]})))["requests"][0]
    assert [entry["name"] for entry in nic["firstAvailable"]] == ["zone", "zone-2", "zone-3"]


def test_distinct_devices_of_two_drivers_use_a_common_attribute() -> None:
    pair = [{"name": "cpu", "kind": "cpu"}, NIC]
    compiled = compile_site(site({"devices": pair, "distinct": ["numa_node"]}, drivers={**CPU, **LANEWISE}))
    assert devices(compiled)["constraints"] == [{"requests": ["cpu", "nic"], "distinctAttribute": "dra.net/numaNode"}]


def test_devices_are_not_aligned_through_a_device_of_an_unknown_driver() -> None:
    drivers = {"gpu.amd.com": {"version": "1.0.0"}, **CPU}
    trio = [GPU, {"name": "cpu", "kind": "cpu"}, {"name": "other", "class": "theirs"}]
    check_only_problem(
        site({"devices": trio, "align": "numa_node"}, drivers=drivers),
        "dra_claims_templates[0].align",
        "no-common-attribute",
    )


def test_taints_of_the_site_exclude_nodes_and_give_a_warning_if_no_node_is_left() -> None:
    nodes = {"good": relevant_facts("hgx-h100"), "bad": relevant_facts("hgx-h100")}
    taint = {"name": "x", "driver": "gpu.nvidia.com", "pool": "bad", "key": "example.com/cable", "effect": "NoSchedule"}
    compiled = compile_site(site({"devices": [GPU]}, taints=[taint]), nodes)
    assert compiled.reach[0].nodes == ["good"] and "example.com/cable:NoSchedule" in compiled.reach[0].refused["bad"]
    tolerant = {**GPU, "tolerations": [{"operator": "Exists"}]}
    assert compile_site(site({"devices": [tolerant]}, taints=[taint]), nodes).reach[0].nodes == ["bad", "good"]

    del taint["pool"]
    compiled = compile_site(site({"devices": [GPU]}, taints=[taint]), nodes)
    assert compiled.reach[0].nodes == [] and len(compiled.warnings) == 1 and "example.com/cable" in compiled.warnings[0]
    too_many = {**GPU, "count": 9}
    assert "publishes 8" in str(problems_of(site({"devices": [too_many]}, taints=[taint]), nodes=nodes)[0])


def test_reach_depends_on_the_release() -> None:
    nodes = {"n": relevant_facts("sriov")}
    pf = {"name": "nic", "kind": "nic", "where": {"pci_address": "0000:49:00.0"}}
    assert compile_site(site({"devices": [pf]}), nodes).reach[0].nodes == ["n"]
    assert problems_of(site({"devices": [pf]}), nodes, "1.35")[0].rule == "unreachable"
