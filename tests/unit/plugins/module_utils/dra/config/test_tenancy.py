# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import class_policy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config, tenancy
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS, allow_everything
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from hypothesis import given, settings


def test_the_policy_has_a_choice_for_every_field() -> None:
    """If the table lacked a field of an InterfaceConfig, every claim could set it."""
    wanted: set[str] = set()
    for name, form in interface_config.FIELDS.items():
        split = name in ("vf", "ethtool")
        wanted |= {f"{name}.{inner}" for inner in form.fields} if split else {name}
    assert {choice.name for choice in tenancy.CHOICES} == wanted


def test_the_default_is_a_valid_policy() -> None:
    assert tenancy.validate(tenancy.parameters([{"allow": tenancy.DEFAULT}]), "p") == []
    assert tenancy.validate(tenancy.parameters([{"allow": allow_everything()}]), "p") == []


@settings(max_examples=100, deadline=None)
@given(claims_strategies.policies(), claims_strategies.interfaces(), claims_strategies.interfaces())
def test_a_class_never_refuses_what_it_sets_and_nothing_refuses_an_empty_claim(
    policy: dict[str, t.Any], of_class: dict[str, t.Any], of_claim: dict[str, t.Any]
) -> None:
    assert tenancy.validate(policy, "p") == []
    for tenant in policy["tenants"]:
        allow = tenant["allow"]
        assert tenancy.refused_fields(allow, of_class, of_class) == []
        assert tenancy.refused_fields(allow, of_class, {}) == []
        # settings of other fields in a class do not change what is refused
        apart = {name: value for name, value in of_claim.items() if name not in of_class}
        assert tenancy.refused_fields(allow, of_class, apart) == tenancy.refused_fields(allow, {}, apart)
    assert tenancy.refused_fields(allow_everything(), {}, of_claim) == []
    for name, _says in tenancy.refused_fields({}, {}, of_claim):
        assert name.split(".")[0] in of_claim


def _class(*configs: dict[str, t.Any]) -> dict[str, t.Any]:
    entries = [{"opaque": {"driver": interface_config.DRIVER, "parameters": one}} for one in configs]
    return {"kind": "DeviceClass", "metadata": {"name": "tenant"}, "spec": {"config": entries}}


def _claim(fields: dict[str, t.Any], namespace: str = "ml", requests: t.Sequence[str] = ()) -> dict[str, t.Any]:
    opaque = {"driver": interface_config.DRIVER, "parameters": interface_config.parameters(fields)}
    devices = {
        "requests": [{"name": "nic", "firstAvailable": [{"name": "a", "deviceClassName": "tenant"}]}],
        "config": [{"requests": list(requests), "opaque": opaque}],
    }
    metadata = {"name": "one", "namespace": namespace}
    return {"kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": {"devices": devices}}}


def test_objects_are_checked_against_their_classes() -> None:
    some = tenancy.parameters([{"namespaces": ["ml"], "allow": {"mtu": {"most": 9000}}}])
    own = interface_config.parameters({"vf": {"vlan": 100}})

    def wrong(claim: dict[str, t.Any], *classes: dict[str, t.Any]) -> list[str]:
        return [problem.path for found in class_policy.check([claim, *classes]) for problem in found]

    path = "spec.spec.devices.config[0].opaque.parameters"
    tenant = _class(own, some)
    assert not wrong(_claim({"mtu": 9000, "vf": {"vlan": 100}}), tenant)
    assert wrong(_claim({"mtu": 9001}), tenant) == [f"{path}.mtu"]
    assert wrong(_claim({"vf": {"vlan": 101}}), tenant) == [f"{path}.vf"]
    assert wrong(_claim({"dad": "none"}, requests=["nic/a"]), tenant) == [f"{path}.dad"]
    assert not wrong(_claim({"dad": "none"}, requests=["other"]), tenant)
    assert wrong(_claim({}, "training"), tenant) == ["spec.spec.devices.requests[0]"]
    assert not wrong(_claim({"mac": "02:00:00:00:00:01"}))  # without its class, the claim cannot be checked
    assert wrong(_claim({"mac": "02:00:00:00:00:01"}), _class()) == [f"{path}.mac"]
    assert not wrong(_claim({"mac": "02:00:00:00:00:01"}), _class(OPEN_CLASS["opaque"]["parameters"]))
    assert wrong(_claim({"mtu": 1})) == [f"{path}.mtu"]
    assert wrong(_claim({}), _class(some, some)) == ["spec.config[1].opaque.parameters"]
