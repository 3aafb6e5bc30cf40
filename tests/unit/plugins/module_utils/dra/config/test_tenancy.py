# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""InterfacePolicies: which fields of an InterfaceConfig the claims of a namespace may set."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import class_policy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config, tenancy
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS_CONFIG, allow_everything
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from hypothesis import given, settings


def test_the_policy_has_a_choice_for_every_field() -> None:
    """If the table lacked a field of an InterfaceConfig, every claim could set it."""
    expected: set[str] = set()
    for name, form in interface_config.FIELDS.items():
        has_choices_for_inner_fields = name in ("vf", "ethtool")
        expected |= {f"{name}.{inner}" for inner in form.fields} if has_choices_for_inner_fields else {name}
    assert {choice.name for choice in tenancy.CHOICES} == expected


def test_the_default_and_the_open_policy_are_valid() -> None:
    assert tenancy.validate(tenancy.parameters([{"allow": tenancy.DEFAULT}]), "p") == []
    assert tenancy.validate(tenancy.parameters([{"allow": allow_everything()}]), "p") == []


def test_true_is_refused_for_a_field_whose_inner_fields_have_limits_of_their_own() -> None:
    assert tenancy.validate(tenancy.parameters([{"allow": {"vf": {"vlan": True}, "mtu": True}}]), "p") == []
    (problem,) = tenancy.validate(tenancy.parameters([{"allow": {"vf": True}}]), "p")
    assert str(problem).startswith("p.tenants[0].allow.vf: must be a mapping with any of vlan, ")


@settings(max_examples=100, deadline=None)
@given(claims_strategies.policies(), claims_strategies.interfaces(), claims_strategies.interfaces())
def test_a_policy_allows_empty_claims_and_the_values_that_the_class_sets(
    policy: dict[str, t.Any], of_class: dict[str, t.Any], of_claim: dict[str, t.Any]
) -> None:
    assert tenancy.validate(policy, "p") == []
    for tenant in policy["tenants"]:
        allow = tenant["allow"]
        assert tenancy.refused_fields(allow, of_class, of_class) == []
        assert tenancy.refused_fields(allow, of_class, {}) == []
        # what the class sets does not matter for other fields
        other_fields = {name: value for name, value in of_claim.items() if name not in of_class}
        without_class = tenancy.refused_fields(allow, {}, other_fields)
        assert tenancy.refused_fields(allow, of_class, other_fields) == without_class
    assert tenancy.refused_fields(allow_everything(), {}, of_claim) == []
    for name, _reason in tenancy.refused_fields({}, {}, of_claim):
        assert name.split(".")[0] in of_claim


def _class(*configs: dict[str, t.Any]) -> dict[str, t.Any]:
    entries = [{"opaque": {"driver": interface_config.DRIVER, "parameters": config}} for config in configs]
    return {"kind": "DeviceClass", "metadata": {"name": "tenant"}, "spec": {"config": entries}}


def _claim(fields: dict[str, t.Any], namespace: str = "ml", requests: t.Sequence[str] = ()) -> dict[str, t.Any]:
    opaque = {"driver": interface_config.DRIVER, "parameters": interface_config.parameters(fields)}
    devices = {
        "requests": [{"name": "nic", "firstAvailable": [{"name": "a", "deviceClassName": "tenant"}]}],
        "config": [{"requests": list(requests), "opaque": opaque}],
    }
    metadata = {"name": "one", "namespace": namespace}
    return {"kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": {"devices": devices}}}


def test_claim_templates_are_checked_against_the_policy_of_their_class() -> None:
    policy = tenancy.parameters([{"namespaces": ["ml"], "allow": {"mtu": {"most": 9000}}}])
    class_config = interface_config.parameters({"vf": {"vlan": 100}})

    def problem_paths(claim: dict[str, t.Any], *classes: dict[str, t.Any]) -> list[str]:
        return [problem.path for problems in class_policy.check([claim, *classes]) for problem in problems]

    path = "spec.spec.devices.config[0].opaque.parameters"
    tenant = _class(class_config, policy)
    assert not problem_paths(_claim({"mtu": 9000, "vf": {"vlan": 100}}), tenant)
    assert problem_paths(_claim({"mtu": 9001}), tenant) == [f"{path}.mtu"]
    assert problem_paths(_claim({"vf": {"vlan": 101}}), tenant) == [f"{path}.vf"]
    assert problem_paths(_claim({"dad": "none"}, requests=["nic/a"]), tenant) == [f"{path}.dad"]
    assert not problem_paths(_claim({"dad": "none"}, requests=["other"]), tenant)
    assert problem_paths(_claim({}, "training"), tenant) == ["spec.spec.devices.requests[0]"]
    assert not problem_paths(_claim({"mac": "02:00:00:00:00:01"}))  # without its class, the claim cannot be checked
    assert problem_paths(_claim({"mac": "02:00:00:00:00:01"}), _class()) == [f"{path}.mac"]
    assert not problem_paths(_claim({"mac": "02:00:00:00:00:01"}), _class(OPEN_CLASS_CONFIG["opaque"]["parameters"]))
    assert problem_paths(_claim({"mtu": 1})) == [f"{path}.mtu"]
    assert problem_paths(_claim({}), _class(policy, policy)) == ["spec.config[1].opaque.parameters"]
