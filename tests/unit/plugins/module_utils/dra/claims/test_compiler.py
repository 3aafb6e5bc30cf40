# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From inventories to objects: what is written, what is refused and why, and on which machines claims can run.

This file has more than 500 lines because each key of the language has its cases.
"""

from __future__ import annotations

import copy
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.reach import reach_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler import allocator
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.refusals import one_problem, refused
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import relevant_facts
from hypothesis import given, settings

cel = pytest.importorskip("cel_expr_python")

Values = dict[str, t.Any]
NVIDIA = {"gpu.nvidia.com": {"version": "0.5.0"}}
OURS = {"lanewise.dev": {"version": "1.0.0"}}
CPU = {"dra.cpu": {"version": "0.2.0"}}
GPU, NIC = {"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}


def site(*templates: Values, drivers: Values | None = None, **more: t.Any) -> Values:
    named = [{"name": f"t{index}", "namespace": "ml", **item} for index, item in enumerate(templates)]
    values: Values = {"dra_claims_drivers": drivers or {**NVIDIA, **OURS}, "dra_claims_templates": named}
    return {**values, **{f"dra_claims_{key}": value for key, value in more.items()}}


def objects(made: Site, kind: str) -> dict[str, Values]:
    return {item["metadata"]["name"]: item for item in made.objects if item["kind"] == kind}


def devices(made: Site, name: str = "t0") -> Values:
    found: Values = objects(made, "ResourceClaimTemplate")[name]["spec"]["spec"]["devices"]
    return found


@pytest.fixture(scope="module")
def machines() -> t.Callable[[str], Values]:
    return relevant_facts


def test_a_claim_cannot_change_what_its_class_sets() -> None:
    """The driver refuses it when the pod starts; here it is an error of the inventory."""
    interface = {"vf": {"vlan": 100, "trust": False}, "mtu": 9000}
    classes = [{"name": "tenant", "kind": "vf", "interface": interface}, {"name": "free", "kind": "vf"}]

    def asked(of: str, **interface: t.Any) -> Values:
        return site({"devices": [{"name": "nic", "class": of, "interface": interface}]}, classes=classes)

    path = "dra_claims_templates[0].devices[0].interface"
    one_problem(
        asked("tenant", vf={"vlan": 100, "trust": True}), f"{path}.vf", "tenancy", "'tenant' sets vf", "leave it"
    )
    one_problem(asked("tenant", vf={"vlan": 200}, mtu=9000), f"{path}.vf", "tenancy")
    one_problem(asked("tenant", mtu=1500), f"{path}.mtu", "tenancy")
    assert compile_site(asked("tenant", name="net1", mtu=9000))
    assert compile_site(asked("free", mtu=1400))
    one_problem(asked("free", vf={"vlan": 200}), f"{path}.vf.vlan", "tenancy", "'free' does not let claims set vf.vlan")
    alternatives = [{"name": "a", "class": "free"}, {"name": "b", "class": "tenant"}]
    either = {"name": "nic", "first_of": alternatives, "interface": {"mtu": 1400}}
    one_problem(site({"devices": [either]}, classes=classes), f"{path}.mtu", "tenancy", "tenant")


def test_a_class_says_who_may_use_it_and_what_they_may_set() -> None:
    allow = {"mtu": {"most": 9000}, "vf": {"vlan": {"least": 100, "most": 199}, "trust": True}, "name": True}
    tenants = [{"namespaces": ["training"], "allow": allow}, {"namespaces": ["ml"], "allow": {}}]
    classes = [{"name": "tenant", "kind": "vf", "tenants": tenants}]

    def asked(namespace: str = "training", **interface: t.Any) -> Values:
        device = {"name": "nic", "class": "tenant", **({"interface": interface} if interface else {})}
        return site({"namespace": namespace, "devices": [device]}, classes=classes)

    made = compile_site(asked(name="net1", mtu=9000, vf={"vlan": 150, "trust": True}))
    (config,) = objects(made, "DeviceClass")["tenant"]["spec"]["config"]
    filled = {**allow, "vf": {**allow["vf"], "trust": {}}, "name": {}}
    assert config["opaque"]["parameters"]["tenants"] == [{**tenants[0], "allow": filled}, tenants[1]]
    path = "dra_claims_templates[0].devices[0]"
    one_problem(asked(vf={"vlan": 200}), f"{path}.interface.vf.vlan", "tenancy", "limits what claims may set")
    one_problem(asked(dhcp=["ipv4"]), f"{path}.interface.dhcp", "tenancy", "does not let claims set dhcp")
    one_problem(asked("ml", mtu=1500), f"{path}.interface.mtu", "tenancy")
    assert compile_site(asked("ml"))
    one_problem(asked("monitoring"), f"{path}.class", "tenancy", "not for claims of namespace 'monitoring'")
    for wrong, place, rule in (
        ({"allow": {"vlan": True}}, "tenants[0].allow.vlan", "unknown-key"),
        ({"allow": {"mtu": 9000}}, "tenants[0].allow.mtu", "wrong-type"),
        ({"allow": {"mtu": False}}, "tenants[0].allow.mtu", "wrong-type"),
        ({"allow": {"mtu": {"least": 2, "most": 1}}}, "tenants[0].allow.mtu", "contradiction"),
        ({"namespaces": ["ml"]}, "tenants[0].allow", "missing"),
    ):
        of_site = site({"devices": [{"name": "nic", "kind": "vf"}]}, classes=[{**classes[0], "tenants": [wrong]}])
        one_problem(of_site, f"dra_claims_classes[0].{place}", rule)


def test_a_site_says_what_claims_may_set_if_a_class_does_not() -> None:
    default = [{"namespaces": ["ml"], "allow": {"name": True}}]
    own = [{"allow": {"addresses": {"within": ["10.1.0.0/16"]}}}]
    classes = [
        {"name": "own", "kind": "vf", "tenants": own},
        {"name": "set", "kind": "vf", "interface": {"mtu": 9000}},
        {"name": "any", "cel": ["true"]},
        {"name": "accelerator", "kind": "gpu"},
    ]

    def asked(device: Values, *tenants: t.Any, **more: t.Any) -> Values:
        [chosen] = tenants or [default]
        return site({"devices": [{"name": "nic", **device}], **more}, classes=classes, tenants=chosen)

    def policies(made: Site) -> dict[str, t.Any]:
        found = {}
        for name, item in objects(made, "DeviceClass").items():
            given = [one["opaque"]["parameters"] for one in item["spec"].get("config", ())]
            found[name] = [one["tenants"] for one in given if one["kind"] == "InterfacePolicy"]
        return found

    filled = [{"namespaces": ["ml"], "allow": {"name": {}}}]
    # also for a class that is generated for a kind, but not for devices of other drivers
    made = policies(compile_site(asked({"kind": "rdma"})))
    assert made == {"own": [own], "set": [filled], "any": [filled], "rdma": [filled], "accelerator": []}
    path = "dra_claims_templates[0].devices[0]"
    one_problem(
        asked({"kind": "rdma", "interface": {"addresses": ["10.1.0.2/16"]}}), f"{path}.interface.addresses", "tenancy"
    )
    one_problem(asked({"class": "set", "interface": {"dhcp": ["ipv4"]}}), f"{path}.interface.dhcp", "tenancy")
    assert compile_site(asked({"class": "set", "interface": {"name": "net1", "mtu": 9000}}))
    assert compile_site(asked({"class": "own", "interface": {"addresses": ["10.1.0.2/24"]}}))
    one_problem(asked({"kind": "rdma"}, namespace="training"), f"{path}.class", "tenancy", "namespace 'training'")
    # an empty list allows nothing, and without a list the default of the driver applies
    one_problem(asked({"class": "set"}, []), f"{path}.class", "tenancy")
    assert "InterfacePolicy" not in str(objects(compile_site(asked({"class": "set"}, None)), "DeviceClass")["set"])
    one_problem(asked({"kind": "rdma"}, [{"allow": {"mtu": 1}}]), "dra_claims_tenants[0].allow.mtu", "wrong-type")
    one_problem(asked({"kind": "rdma"}, {"allow": {}}), "dra_claims_tenants", "wrong-type")


def test_class_holds_the_kind_and_request_the_filters() -> None:
    made = compile_site(site({"devices": [{**GPU, "where": {"model": "H100"}}]}))
    assert [s["cel"]["expression"] for s in objects(made, "DeviceClass")["gpu"]["spec"]["selectors"]] == [
        'device.driver == "gpu.nvidia.com"',
        'has(device.attributes["gpu.nvidia.com"].type) && "gpu" == device.attributes["gpu.nvidia.com"].type',
    ]
    request = devices(made)["requests"][0]
    assert request["exactly"]["deviceClassName"] == "gpu"
    assert ['.contains("H100")' in s["cel"]["expression"] for s in request["exactly"]["selectors"]] == [True]
    assert made.objects[0]["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "lanewise.dra",
        "lanewise.dev/site": "default",
    }


def test_class_names_have_the_driver_if_several_serve_a_kind() -> None:
    both = {**NVIDIA, "gpu.amd.com": {"version": "1.0.0"}}
    wanted = [
        {"name": "a", "kind": "gpu", "driver": "gpu.amd.com"},
        {"name": "b", "kind": "gpu", "driver": "gpu.nvidia.com"},
    ]
    made = compile_site(site({"devices": wanted}, drivers=both))
    assert sorted(objects(made, "DeviceClass")) == ["gpu-amd", "gpu-nvidia"]
    one_problem(
        site({"devices": [GPU]}, drivers=both), "dra_claims_templates[0].devices[0].kind", "ambiguous", "gpu.amd.com"
    )


def test_site_names_its_own_class() -> None:
    own = {"name": "accelerator", "kind": "gpu", "labels": {"team": "x"}}
    made = compile_site(site({"devices": [GPU]}, classes=[own]))
    assert sorted(objects(made, "DeviceClass")) == ["accelerator"]
    assert devices(made)["requests"][0]["exactly"]["deviceClassName"] == "accelerator"
    wrong = {"name": "gpu", "kind": "rdma"}
    one_problem(site({"devices": [GPU]}, classes=[wrong]), "dra_claims_classes[0].name", "duplicate-name", "kind gpu")


def test_a_partition_has_a_separate_class() -> None:
    made = compile_site(site({"devices": [{**GPU, "where": {"partition": "1g.10gb"}}]}))
    assert sorted(objects(made, "DeviceClass")) == ["gpu-partition"]
    classes = [{"name": "whole", "kind": "gpu", "where": {"model": "H100"}}]
    wrong = {"name": "gpu", "class": "whole", "where": {"partition": "1g.10gb"}}
    one_problem(
        site({"devices": [wrong]}, classes=classes),
        "dra_claims_templates[0].devices[0].where.partition",
        "contradiction",
        "class 'whole' has no devices with a partition",
    )


def test_a_repeated_group_has_one_constraint_per_repetition() -> None:
    made = compile_site(site({"groups": [{"count": 2, "align": "pcie_root", "devices": [GPU, NIC]}]}))
    assert [request["name"] for request in devices(made)["requests"]] == ["gpu-0", "nic-0", "gpu-1", "nic-1"]
    assert devices(made)["constraints"] == [
        {"requests": [f"gpu-{index}", f"nic-{index}"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
        for index in range(2)
    ]


def test_preference_list_puts_carriers_before_their_anchor() -> None:
    group = {"count": 2, "align": ["pcie_root", "numa_node", "any"], "devices": [GPU, NIC]}
    made = devices(compile_site(site({"groups": [group]})))
    assert [request["name"] for request in made["requests"]] == ["nic-0", "gpu-0", "nic-1", "gpu-1"]
    levels = [entry["name"] for entry in made["requests"][0]["firstAvailable"]]
    assert levels == ["pcie-root", "numa-node", "any"]
    assert [entry["requests"] for entry in made["constraints"]] == [
        ["gpu-0", "nic-0/pcie-root"],
        ["gpu-0", "nic-0/numa-node"],
        ["gpu-1", "nic-1/pcie-root"],
        ["gpu-1", "nic-1/numa-node"],
    ]


def _chosen(made: Site, facts: Values, drivers: Values, name: str = "t0", order: t.Any = None) -> list[str]:
    """The requests, with their levels, that the allocator chooses on a free node."""
    from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine

    spec = devices(made, name)
    if order:
        spec = {**spec, "requests": sorted(spec["requests"], key=order)}
    answer = allocator.allocate(
        [{"devices": spec}], objects(made, "DeviceClass"), offers("n", facts, drivers), Engine()
    )
    assert isinstance(answer, allocator.Allocation), answer
    return sorted(result.request for result in answer.results if "/" in result.request)


def test_a_preference_list_gets_the_nearest_available_level(machines: t.Callable[[str], Values]) -> None:
    """On the HGX board each GPU has its own NIC on its root. On NPS4, half of them only have one on their NUMA node."""
    group = {"count": 1, "align": ["pcie_root", "numa_node", "any"], "devices": [GPU, NIC]}
    made = compile_site(site({"groups": [{**group, "count": 8}]}))
    drivers = {**NVIDIA, **OURS}
    assert _chosen(made, machines("hgx-h100"), drivers) == [f"nic-{index}/pcie-root" for index in range(8)]
    made = compile_site(site({"groups": [group]}))
    assert _chosen(made, machines("epyc-nps4"), drivers) == ["nic/pcie-root"]
    # no GPU of this board shares a root with a NIC
    assert _chosen(made, machines("gb200"), drivers) == ["nic/numa-node"]


def test_listing_anchors_first_would_lose_the_nearest_level(machines: t.Callable[[str], Values]) -> None:
    """Why carriers come first: with GPUs before NICs, the next GPU is used although another has a NIC on its root."""
    group = {"count": 2, "align": ["pcie_root", "numa_node", "any"], "devices": [GPU, NIC]}
    made = compile_site(site({"groups": [group]}))
    drivers, facts = {**NVIDIA, **OURS}, machines("epyc-nps4")
    assert _chosen(made, facts, drivers) == ["nic-0/pcie-root", "nic-1/pcie-root"]
    swapped = _chosen(made, facts, drivers, order=lambda request: (request["name"][-1], request["name"][:3] != "gpu"))
    assert swapped == ["nic-0/pcie-root", "nic-1/any"]


def test_alternatives_are_multiplied_by_levels() -> None:
    both = {
        "name": "nic",
        "first_of": [{**NIC, "name": "fast", "where": {"min_speed": "400G"}}, {**NIC, "name": "any"}],
    }
    made = devices(compile_site(site({"align": ["pcie_root", "numa_node"], "devices": [GPU, both]})))
    names = [entry["name"] for entry in made["requests"][0]["firstAvailable"]]
    assert names == ["pcie-root-fast", "pcie-root-any", "numa-node-fast", "numa-node-any"]
    assert made["constraints"][0]["requests"] == ["gpu", "nic/pcie-root-fast", "nic/pcie-root-any"]
    many = {"name": "nic", "first_of": [{**NIC, "name": f"a{index}"} for index in range(5)]}
    one_problem(
        site({"align": ["pcie_root", "numa_node"], "devices": [GPU, many]}),
        "dra_claims_templates[0].devices[1]",
        "too-many",
        "10 subrequests",
    )


@pytest.mark.parametrize(
    ("drivers", "align", "kinds", "words"),
    [
        (
            {"gpu.nvidia.com": {"version": "0.4.0"}, **OURS},
            "numa_node",
            [GPU, NIC],
            ["0.4.0 publishes no such attribute", "0.5.0"],
        ),
        ({**NVIDIA, **CPU}, "numa_node", [GPU, {"kind": "cpu"}], ["dra.cpu 0.2.0 publishes dra.net/numaNode"]),
        ({**NVIDIA, **CPU}, "pcie_root", [GPU, {"kind": "cpu"}], ["as a list", "align on numa_node"]),
        ({"gaudi.intel.com": {"version": "0.5.0"}, **OURS}, "pcie_root", [GPU, NIC], ["from 0.7.0 on"]),
    ],
)
def test_devices_that_cannot_be_aligned_are_refused_with_a_fix(
    drivers: Values, align: str, kinds: list[Values], words: list[str]
) -> None:
    values = site({"align": align, "devices": kinds}, drivers=drivers)
    one_problem(values, "dra_claims_templates[0].align", "no-common-attribute", *words)


def test_two_attributes_tie_devices_through_one_that_has_both() -> None:
    values = site({"align": "numa_node", "devices": [GPU, NIC, {"kind": "cpu"}]}, drivers={**NVIDIA, **OURS, **CPU})
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
def test_one_error_is_reported_once(values: Values, path: str, rule: str, words: str) -> None:
    problems = refused(values)
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
    problems = refused(values, kubernetes="1.34")
    assert {problem.path for problem in problems} == {path}, problems
    assert "1.34" in str(problems[0])
    compile_site(values, None, "1.37")


def test_quota_counts_devices_and_extended_resources() -> None:
    classes = [{"name": "big", "kind": "gpu", "extended_resource": "example.com/big"}]
    quotas = [{"namespace": "ml", "devices": {"big": 4}, "claims": 9}]
    made = compile_site(site({"devices": [{"class": "big"}]}, classes=classes, quotas=quotas))
    assert objects(made, "ResourceQuota")["dra"]["spec"]["hard"] == {
        "big.deviceclass.resource.k8s.io/devices": "4",
        "requests.example.com/big": "4",
        "requests.deviceclass.resource.kubernetes.io/big": "4",
        "count/resourceclaims.resource.k8s.io": "9",
    }


@pytest.mark.parametrize(("version", "warned"), [("0.5.0", True), ("25.12.0", True), ("25.8.0", False)])
def test_an_extended_resource_that_the_chart_of_the_driver_has_gives_a_warning(version: str, warned: bool) -> None:
    classes = [{"name": "old", "kind": "gpu", "extended_resource": "nvidia.com/gpu"}]
    made = compile_site(
        site({"devices": [{"class": "old"}]}, classes=classes, drivers={"gpu.nvidia.com": {"version": version}})
    )
    assert any("creates a class with nvidia.com/gpu from 25.12.0 on" in words for words in made.warnings) is warned


def test_an_unpublished_version_is_a_warning() -> None:
    made = compile_site(site({"devices": [GPU]}, drivers={"gpu.nvidia.com": {"version": "25.10.0"}}))
    assert any("no release 25.10.0 of NVIDIA GPU DRA driver" in words for words in made.warnings)


def test_configuration_is_shared_by_repetitions_and_numbered_on_request() -> None:
    shared = {"groups": [{"count": 3, "devices": [{**NIC, "interface": {"mtu": 9000}}]}]}
    numbered = {"groups": [{"count": 2, "devices": [{**NIC, "interface": {"name": "rdma{index}"}}]}]}
    made = compile_site(site(shared, numbered))
    assert [entry["requests"] for entry in devices(made)["config"]] == [["nic-0", "nic-1", "nic-2"]]
    found = [(c["requests"], c["opaque"]["parameters"]["name"]) for c in devices(made, "t1")["config"]]
    assert found == [(["nic-0"], "rdma0"), (["nic-1"], "rdma1")]


def test_admin_access_needs_a_namespace_for_it() -> None:
    made = compile_site(site({"devices": [{**GPU, "admin": True, "all": True}]}, admin_namespaces=["ml"]))
    namespace = objects(made, "Namespace")["ml"]
    assert namespace["metadata"]["labels"]["resource.kubernetes.io/admin-access"] == "true"


def test_raw_objects_pass_through_and_are_checked() -> None:
    raw = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {}}
    assert raw in compile_site(site(raw=[raw])).objects
    wrong = {**raw, "spec": {"selectors": [{}]}}
    assert refused(site(raw=[wrong]))[0].path.startswith("dra_claims_raw[0].spec.selectors[0]")


def test_reach_names_the_nodes_that_satisfy_claims(machines: t.Callable[[str], Values]) -> None:
    nodes = {name: machines(name) for name in ("hgx-h100", "gb200", "cpu-rdma")}
    group = {"count": 2, "devices": [GPU, NIC]}
    strict = {"groups": [{**group, "align": "pcie_root"}]}
    soft = {"groups": [{**group, "align": ["pcie_root", "numa_node"]}]}
    found = {entry.claim: entry for entry in compile_site(site(strict, soft), nodes).reach}
    assert found["ml/t0"].nodes == ["hgx-h100"]
    assert found["ml/t1"].nodes == ["gb200", "hgx-h100"]
    assert sorted(found["ml/t0"].refused) == ["cpu-rdma", "gb200"]
    assert "pcieRoot" in found["ml/t0"].refused["gb200"]
    assert "gpu.nvidia.com" in found["ml/t0"].refused["cpu-rdma"]


def test_claim_that_no_node_satisfies_is_refused(machines: t.Callable[[str], Values]) -> None:
    nodes = {f"gb200-{index}": machines("gb200") for index in range(4)}
    values = site({"align": "pcie_root", "devices": [GPU, NIC]})
    words = ["the PCIe roots of gpu and nic are disjoint on this board", "align on numa_node", "4 node(s)"]
    one_problem(values, "dra_claims_templates[0].align", "disjoint-roots", *words, nodes=nodes)
    allowed = compile_site({**values, "dra_claims_allow_unreachable": True}, nodes)
    assert len(allowed.reach[0].refused) == 4
    one_problem(
        site({"devices": [{**GPU, "count": 9}]}),
        "dra_claims_templates[0].devices[0]",
        "unreachable",
        "9 devices",
        nodes=nodes,
    )


def test_a_node_whose_cards_are_in_pods_can_satisfy_claims(machines: t.Callable[[str], Values]) -> None:
    busy = copy.deepcopy(machines("hgx-h100"))
    for nic in busy["nics"]:
        if nic["rdma_devices"]:
            nic.update(interfaces=[], rdma_devices=[], link_layer=None, speed_mbps=None, up=None)
            nic["elsewhere"] = ["interface", "rdma_device"]
    pairs = {"groups": [{"count": 8, "align": "pcie_root", "devices": [GPU, NIC]}]}
    fast = {"devices": [{**NIC, "where": {"rail": 3, "min_speed": "400G"}}]}
    made = compile_site(site(pairs, fast), {"busy": busy})
    assert made.reach[0].nodes == ["busy"]
    assert (
        made.reach[1].nodes == []
        and "a probe does not report lanewise.dev/linkSpeedMbps" in made.reach[1].unknown["busy"]
    )
    for nic in busy["nics"]:
        nic["elsewhere"] = []
    assert refused(site(pairs), nodes={"busy": busy})[0].rule == "unreachable"


def test_a_whole_nic_for_a_part_of_its_rate_gives_a_warning() -> None:
    part = {"name": "nic", "kind": "rdma", "bandwidth": "200G"}
    (warning,) = compile_site(site({"devices": [part]})).warnings
    assert warning.startswith("dra_claims_templates[0].devices[0].bandwidth: lanewise.dev allocates whole NICs")
    assert "where: {min_speed: 200G}" in warning
    (warning,) = compile_site(site({"devices": [{**NIC, "capacity": {"bandwidth": "200G"}}]})).warnings
    assert warning.startswith("dra_claims_templates[0].devices[0].capacity: ")
    assert not compile_site(site({"devices": [{**NIC, "where": {"min_speed": "200G"}}]})).warnings


def test_errors_of_all_kinds_are_reported_together(machines: t.Callable[[str], Values]) -> None:
    """A wrong type, an unknown filter and driver, a missing release, and a claim that no node can satisfy."""
    broken = {"count": "two", "devices": [{**NIC, "where": {"numa_nod": 1}}, {**GPU, "driver": "gpu.amd.co"}]}
    values = site({"groups": [broken]}, {"devices": [{**GPU, "count": 9}]}, {"devices": [GPU, {"kind": "cpu"}]})
    found = {(problem.path, problem.rule) for problem in refused(values, {"n": machines("hgx-h100")}, "1.4")}
    group = "dra_claims_templates[0].groups[0]"
    assert found == {
        (f"{group}.count", "wrong-type"),
        (f"{group}.devices[0].where.numa_nod", "unknown-key"),
        (f"{group}.devices[1].driver", "unknown-driver"),
        ("dra_claims_kubernetes_version", "version"),
        ("dra_claims_templates[1].devices[0]", "unreachable"),
        ("dra_claims_templates[2].devices[1].kind", "unserved-kind"),
    }


def manifest(**devices: t.Any) -> Values:
    claim = {"name": "n", "exactly": {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}}
    spec = {"devices": {"requests": [claim], **devices}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": spec}


def manifest_class(*selectors: Values) -> Values:
    meta = {"name": "c"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": meta,
        "spec": {"selectors": selectors},
    }


def reason(objects: t.Sequence[Values], nodes: t.Mapping[str, Values], *server: t.Any) -> str:
    (found,) = reach_of(objects, nodes, {"lanewise.dev": {}}, Engine(), *server)
    assert not found.nodes and len(found.refused) == 1, found
    return next(iter(found.refused.values()))


def test_a_selector_of_another_kind_ends_the_scheduling(machines: t.Callable[[str], Values]) -> None:
    nodes = {"n": machines("hgx-h100")}
    unreachable = reason([manifest_class({"rego": {"code": "x"}}), manifest()], nodes)
    assert unreachable == "class c: the scheduler only supports selectors of kind cel, and this one contains rego"


def test_reach_depends_on_the_fields_that_a_release_keeps(machines: t.Callable[[str], Values]) -> None:
    nodes = {"n": machines("hgx-h100")}
    own = manifest_class({"cel": {"expression": 'device.driver == "lanewise.dev"'}})
    distinct = manifest(constraints=[{"distinctAttribute": "lanewise.dev/rail"}])
    (found,) = reach_of([own, distinct], nodes, {"lanewise.dev": {}}, Engine())
    assert found.nodes == ["n"]
    assert reason([own, distinct], nodes, "1.34", {"DRAResourceClaimDeviceStatus": False}) == (
        "the scheduler only supports constraints with matchAttribute, so scheduling of the pod fails"
    )
    wide = manifest()
    wide["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"none": "1"}}
    assert "the capacity" in reason([own, wide], nodes)
    (found,) = reach_of([own, wide], nodes, {"lanewise.dev": {}}, Engine(), "1.34")  # drops the capacity
    assert found.nodes == ["n"]


def test_facts_of_another_schema_are_reported() -> None:
    assert refused(site({"devices": [GPU]}), nodes={"n": {"a": 1}})[0].path == "topology_facts of n"


@pytest.mark.parametrize(("field", "value"), [("model", "\ud800"), ("address", ["x"])])
def test_facts_with_values_that_no_probe_returns_are_reported(
    field: str, value: t.Any, machines: t.Callable[[str], Values]
) -> None:
    odd = copy.deepcopy(machines("hgx-h100"))
    for nic in odd["nics"]:
        nic[field] = value
    assert refused(site({"devices": [NIC]}), nodes={"n": odd})[0].rule == "bad-facts"


def test_an_invalid_rate_gives_no_capacity(machines: t.Callable[[str], Values]) -> None:
    odd = copy.deepcopy(machines("hgx-h100"))
    for nic in odd["nics"]:
        nic["speed_mbps"] = True
    assert compile_site(site({"devices": [NIC]}), {"n": odd}).reach[0].nodes == ["n"]
    wide = site({"devices": [{**NIC, "bandwidth": "1G"}]})
    assert refused(wide, nodes={"n": odd})[0].rule == "unreachable"


@settings(max_examples=40, deadline=None)
@given(claims_strategies.sites())
def test_compiled_objects_are_valid_and_reproducible(values: Values) -> None:
    made = claims_strategies.compiled(values)
    for item in made.objects:
        if item["apiVersion"].startswith("resource.k8s.io/"):
            assert validate.validate(item) == []
    assert claims_strategies.compiled(values).objects == made.objects
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in made.objects]
    assert len(keys) == len(set(keys))


def test_an_error_of_a_driver_is_the_only_problem_of_claims_that_use_it() -> None:
    one_problem(
        site({"devices": [GPU]}, drivers={"gpu.nvidia.com": {}}), "dra_claims_drivers.gpu.nvidia.com", "version"
    )


def test_interface_settings_that_a_class_cannot_have_are_refused() -> None:
    own = {"name": "own", "kind": "rdma", "interface": {"name": "rdma{index}", "mtu": 9000}}
    one_problem(site(classes=[own]), "dra_claims_classes[0].interface.name", "contradiction", "{index}")
    of_gpu = {"name": "own", "kind": "gpu", "interface": {"mtu": 9000}}
    one_problem(site(classes=[of_gpu]), "dra_claims_classes[0].interface", "config-driver", "gpu.nvidia.com")


@pytest.mark.parametrize("text", ["x" * 11000, "\ud800"])
def test_a_class_with_cel_that_cannot_be_written_is_refused(text: str) -> None:
    assert len(refused(site(classes=[{"name": "own", "cel": [f"device.driver == '{text}'"]}]))) == 1


def test_raw_objects_are_checked_against_the_classes() -> None:
    """Both classes of the inventory, with the default of the site, and raw ones."""
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

    def claim(of: str, **interface: t.Any) -> Values:
        parameters = {"apiVersion": "lanewise.dev/v1alpha1", "kind": "InterfaceConfig", **interface}
        spec = {
            "devices": {
                "requests": [{"name": "nic", "exactly": {"deviceClassName": of}}],
                "config": [{"opaque": {"driver": "lanewise.dev", "parameters": parameters}}],
            }
        }
        return {**head, "kind": "ResourceClaim", "metadata": {"name": "raw", "namespace": "ml"}, "spec": spec}

    def of_site(*raw: Values) -> Values:
        return site(classes=classes, tenants=default, raw=list(raw))

    assert compile_site(of_site(claim("tenant", name="net1", mtu=9000), closed))
    path = "dra_claims_raw[0].spec.devices.config[0].opaque.parameters"
    one_problem(of_site(claim("tenant", mtu=1500)), f"{path}.mtu", "tenancy", "'tenant' sets mtu")
    one_problem(
        of_site(claim("tenant", addresses=["10.1.0.2/16"])), f"{path}.addresses", "tenancy", "does not let claims set"
    )
    one_problem(
        of_site(claim("closed"), closed), "dra_claims_raw[0].spec.devices.requests[0]", "tenancy", "not for claims"
    )
    assert compile_site(of_site(claim("of-others", addresses=["10.1.0.2/16"])))


def test_a_raw_object_that_is_also_generated_or_repeated_is_refused() -> None:
    raw = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    one_problem(
        site({"devices": [GPU]}, raw=[raw]), "dra_claims_raw[0]", "duplicate-name", "templates[0].devices[0].kind"
    )
    two = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": n}} for n in ("a", "b")]
    assert len(compile_site(site(raw=two)).objects) == 2
    one_problem(site(raw=[two[0], two[0]]), "dra_claims_raw[1]", "duplicate-name", "dra_claims_raw[0]")


def test_a_gate_is_on_or_off() -> None:
    with pytest.raises(Problems, match="DRADeviceTaints must be true or false"):
        compile_site(site(), None, "1.34", {"DRADeviceTaints": t.cast("bool", "false")})


def test_levels_of_one_name_in_several_domains_get_different_names() -> None:
    group = {"align": ["a.example/zone", "b.example/zone", "c.example/Zone"], "devices": [GPU, NIC]}
    nic = devices(compile_site(site({"groups": [group]})))["requests"][0]
    assert [entry["name"] for entry in nic["firstAvailable"]] == ["zone", "zone-2", "zone-3"]


def test_distinct_devices_of_two_drivers_use_a_common_attribute() -> None:
    pair = [{"name": "cpu", "kind": "cpu"}, NIC]
    made = compile_site(site({"devices": pair, "distinct": ["numa_node"]}, drivers={**CPU, **OURS}))
    assert devices(made)["constraints"] == [{"requests": ["cpu", "nic"], "distinctAttribute": "dra.net/numaNode"}]


def test_a_device_of_an_unknown_driver_does_not_tie_two_others() -> None:
    both = {"gpu.amd.com": {"version": "1.0.0"}, **CPU}
    trio = [GPU, {"name": "cpu", "kind": "cpu"}, {"name": "other", "class": "theirs"}]
    one_problem(
        site({"devices": trio, "align": "numa_node"}, drivers=both),
        "dra_claims_templates[0].align",
        "no-common-attribute",
    )


def test_taints_of_the_site_keep_claims_away_and_do_not_stop_the_site(machines: t.Callable[[str], Values]) -> None:
    nodes = {"good": machines("hgx-h100"), "bad": machines("hgx-h100")}
    taint = {"name": "x", "driver": "gpu.nvidia.com", "pool": "bad", "key": "example.com/cable", "effect": "NoSchedule"}
    made = compile_site(site({"devices": [GPU]}, taints=[taint]), nodes)
    assert made.reach[0].nodes == ["good"] and "example.com/cable:NoSchedule" in made.reach[0].refused["bad"]
    tolerant = {**GPU, "tolerations": [{"operator": "Exists"}]}
    assert compile_site(site({"devices": [tolerant]}, taints=[taint]), nodes).reach[0].nodes == ["bad", "good"]

    del taint["pool"]
    made = compile_site(site({"devices": [GPU]}, taints=[taint]), nodes)
    assert made.reach[0].nodes == [] and len(made.warnings) == 1 and "example.com/cable" in made.warnings[0]
    too_many = {**GPU, "count": 9}
    assert "publishes 8" in str(refused(site({"devices": [too_many]}, taints=[taint]), nodes=nodes)[0])


def test_reach_depends_on_the_release(machines: t.Callable[[str], Values]) -> None:
    nodes = {"n": machines("sriov")}
    pf = {"name": "nic", "kind": "nic", "where": {"pci_address": "0000:49:00.0"}}
    assert compile_site(site({"devices": [pf]}), nodes).reach[0].nodes == ["n"]
    assert refused(site({"devices": [pf]}), nodes, "1.35")[0].rule == "unreachable"
