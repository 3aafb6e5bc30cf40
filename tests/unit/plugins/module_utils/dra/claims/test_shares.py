# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares of a GPU, compiled for the sharing engine of the site, and configurations that NVIDIA's driver refuses."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.sharing import ENGINES, SHARE_PARTS
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import relevant_facts

pytest.importorskip("cel_expr_python")

Values = dict[str, t.Any]
NVIDIA = "gpu.nvidia.com"
HAMI = "hami-core-gpu.project-hami.io"


def site(options: Values, share: Values | None, template: bool = True, driver: str = NVIDIA, **device: t.Any) -> Values:
    """The variables of a site with one driver, with these options, and one template or claim for a share of a GPU."""
    gpu = {"name": "gpu", "kind": "gpu", **({"share": share} if share is not None else {}), **device}
    body = {"name": "a", "namespace": "ml", "devices": [gpu]}
    drivers = {driver: {"version": "0.5.0" if driver == NVIDIA else "main", **options}}
    return {"dra_claims_drivers": drivers, f"dra_claims_{'templates' if template else 'claims'}": [body]}


def devices_of(compiled: Site, kind: str = "ResourceClaimTemplate") -> Values:
    spec = next(obj["spec"] for obj in compiled.objects if obj["kind"] == kind)
    return t.cast(Values, (spec["spec"] if "spec" in spec else spec)["devices"])


def refusal(values: Values) -> tuple[str, str]:
    """The path and the text of the only problem of a site."""
    with pytest.raises(Problems) as caught:
        compile_site(values)
    [problem] = caught.value.problems
    return problem.path, str(problem)


@pytest.mark.parametrize(
    ("driver", "options", "share", "requests"),
    [
        (
            NVIDIA,
            {"engine": "consumable-shares", "consumable_shares": "memory"},
            {"memory": "20Gi"},
            {"memory": "20Gi"},
        ),
        (
            NVIDIA,
            {"engine": "consumable-shares", "consumable_shares": 4},
            {"shares": 2, "memory": "20Gi"},
            {"shares": "2", "memory": "20Gi"},
        ),
        (HAMI, {}, {"memory": "10Gi", "cores": 50}, {"memory": "10Gi", "cores": "50"}),
    ],
)
def test_a_share_requests_capacity(driver: str, options: Values, share: Values, requests: Values) -> None:
    [request] = devices_of(compile_site(site(options, share, driver=driver)))["requests"]
    assert request["exactly"]["capacity"]["requests"] == requests


@pytest.mark.parametrize("options", [{"engine": "mig"}, {"engine": "dynamic-mig"}])
def test_a_partition_is_requested_by_its_class_and_a_selector(options: Values) -> None:
    compiled = compile_site(site(options, {"partition": "3g.40gb"}))
    [request] = devices_of(compiled)["requests"]
    assert "3g.40gb" in request["exactly"]["selectors"][0]["cel"]["expression"]
    assert request["exactly"]["deviceClassName"] == "gpu-partition"


@pytest.mark.parametrize(
    ("options", "share", "sharing"),
    [
        (
            {"engine": "time-slicing"},
            {"interval": "Long"},
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
        ),
        (
            {"engine": "mps"},
            {"cores": 30, "memory": "8Gi"},
            {
                "strategy": "MPS",
                "mpsConfig": {"defaultActiveThreadPercentage": 30, "defaultPinnedDeviceMemoryLimit": "8Gi"},
            },
        ),
    ],
)
def test_a_share_configures_the_sharing_engine(options: Values, share: Values, sharing: Values) -> None:
    compiled = compile_site(site(options, share, template=False))
    [config] = devices_of(compiled, "ResourceClaim")["config"]
    assert config["requests"] == ["gpu"] and config["opaque"]["parameters"]["sharing"] == sharing
    assert not compiled.warnings
    assert any("gets its own claim" in warning for warning in compile_site(site(options, share)).warnings)


def test_a_share_that_is_not_enforced_gives_a_warning() -> None:
    options = {"engine": "consumable-shares", "consumable_shares": "memory"}
    compiled = compile_site(site(options, {"memory": "20Gi"}))
    assert any("only counts memory" in warning for warning in compiled.warnings)
    template = next(obj for obj in compiled.objects if obj["kind"] == "ResourceClaimTemplate")
    assert template["metadata"]["annotations"]["share.lanewise.dev/gpu"].startswith(
        "consumable-shares: memory only counted; idle capacity: any process can use all of it"
    )
    warnings = compile_site(site({}, {"memory": "1Gi"}, driver=HAMI)).warnings
    assert any("without cores takes all" in warning for warning in warnings)


@pytest.mark.parametrize(("consumable_shares", "warned"), [("memory", False), ("unlimited", True), (4, True)])
def test_a_gpu_without_a_share_that_others_can_get_gives_a_warning(consumable_shares: t.Any, warned: bool) -> None:
    compiled = compile_site(site({"consumable_shares": consumable_shares}, None))
    assert any("other claims can get the same GPU" in warning for warning in compiled.warnings) is warned


@pytest.mark.parametrize(
    ("options", "share", "reported"),
    [
        ({}, {"memory": "20Gi"}, "the site sets no engine for gpu.nvidia.com"),
        ({"engine": "mig"}, {"memory": "20Gi"}, "mig of gpu.nvidia.com does not support memory"),
        ({"engine": "mps"}, {"partition": "1g.10gb"}, "engines for such a share: mig of gpu.nvidia.com, dynamic-mig"),
        ({"engine": "consumable-shares", "consumable_shares": 2}, {"cores": 5}, "engines for such a share: mps of"),
        ({"engine": "consumable-shares", "consumable_shares": "memory"}, {"shares": 5}, "the driver counts no shares"),
        ({"engine": "mps"}, {"interval": "Long", "memory": "1Gi"}, "no engine supports all of these"),
        ({"engine": "time-slicing"}, {"memory": "1Gi"}, "does not support memory"),
    ],
)
def test_a_share_that_the_engine_does_not_support_is_refused(options: Values, share: Values, reported: str) -> None:
    path, text = refusal(site(options, share))
    assert path.startswith("dra_claims_templates[0].devices[0].share") and reported in text


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"engine": "mips"}, "must be one of"),
        ({"engine": "hami-core"}, "hami-core is an engine of hami-core-gpu.project-hami.io"),
        ({"engine": "consumable-shares"}, "consumable-shares needs consumable_shares"),
        ({"engine": "consumable-shares", "version": "0.4.1"}, "from 0.5.0 on, but version is 0.4.1"),
        ({"engine": "mig", "feature_gates": {"DynamicMIG": True}}, "cannot be used with the feature gate DynamicMIG"),
        ({"engine": "mps", "feature_gates": {"MPSSupport": False}}, "mps needs the feature gate MPSSupport"),
        ({"engine": "mps", "feature_gates": {"DynamicMIG": True}}, "DynamicMIG and MPSSupport together"),
        ({"engine": "mps", "consumable_shares": 2}, "prepares no claim with MPS while consumable_shares is set"),
    ],
)
def test_an_engine_that_the_driver_does_not_support_is_refused(options: Values, reported: str) -> None:
    path, text = refusal(site(options, None))
    assert path.startswith("dra_claims_drivers.gpu.nvidia.com.") and reported in text


def test_each_part_of_a_share_is_supported_by_some_engine() -> None:
    assert {part for engine in ENGINES for part in engine.supported_parts} == set(SHARE_PARTS)
    for engine in ENGINES:
        assert {*engine.required_parts, *engine.enforced} <= set(engine.supported_parts)


def test_a_share_of_a_gpu_can_be_aligned_with_a_nic_by_pcie_root() -> None:
    """The node can satisfy a claim for 20 GiB. A claim for 200 GiB is refused, because no node can satisfy it."""
    values = site({"engine": "consumable-shares", "consumable_shares": "memory"}, {"memory": "20Gi"})
    values["dra_claims_drivers"]["lanewise.dev"] = {"version": "1.0.0"}
    values["dra_claims_templates"][0]["align"] = "pcie_root"
    values["dra_claims_templates"][0]["devices"].append({"kind": "nic", "name": "nic"})
    compiled = compile_site(values, {"one": relevant_facts("hgx-h100")})
    assert [reach.nodes for reach in compiled.reach] == [["one"]]
    values["dra_claims_templates"][0]["devices"][0]["share"]["memory"] = "200Gi"
    with pytest.raises(Problems):
        compile_site(values, {"one": relevant_facts("hgx-h100")})


@pytest.mark.parametrize(
    ("gates", "parameters", "field"),
    [
        (
            {"MPSSupport": True},
            {"kind": "GpuConfig", "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}},
            "defaultActiveThreadPercentage",
        ),
        ({}, {"kind": "GpuConfig", "sharing": {"strategy": "MPS"}}, "strategy"),
        (
            {"MPSSupport": True},
            {
                "kind": "GpuConfig",
                "sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1k"}},
            },
            "defaultPinnedDeviceMemoryLimit",
        ),
        (
            {"MPSSupport": True},
            {"kind": "GpuConfig", "sharing": {"strategy": "MPS", "timeSlicingConfig": {"interval": "Long"}}},
            "timeSlicingConfig",
        ),
        (
            {"TimeSlicingSettings": True},
            {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}}},
            "interval",
        ),
        ({}, {"kind": "VfioDeviceConfig"}, "kind"),
        (
            {"PassthroughSupport": True},
            {"kind": "VfioDeviceConfig", "iommu": {"backendPolicy": "IommuFD"}},
            "backendPolicy",
        ),
        ({}, {"kind": "GpuConfig", "sharring": {}}, "sharring"),
    ],
)
def test_configurations_that_the_nvidia_driver_refuses_are_reported(
    gates: Values, parameters: Values, field: str
) -> None:
    config = {"driver": NVIDIA, "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", **parameters}}
    path, _text = refusal(site({"feature_gates": gates}, None, config=[config]))
    assert path.startswith("dra_claims_templates[0].devices[0].config[0].parameters.") and path.endswith(field)
