# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Holds as DeviceTaintRules, and the changes that create and release them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver import features, validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import changes, serving, tolerations
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as hold_rules
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold, holds
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.times import expiry
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems

NOW = datetime(2026, 11, 24, 8, tzinfo=timezone.utc)
GPU_0, GPU_1 = ("gpu.example.com", "a/b", "gpu-0"), ("gpu.example.com", "a/b", "gpu-1")
HOLD = Hold("demo", "team a", "a demo", NOW + timedelta(hours=2), (GPU_0, GPU_1))
V1 = "resource.k8s.io/v1"
TOO_LONG = "x" * (hold_rules.MAX_TEXT_BYTES + 1)


def _rules(hold: Hold = HOLD) -> list[Object]:
    """The rules of a hold as a server returns them."""
    rules = [hold_rules.rule(hold, device, V1) for device in hold.devices]
    return [{**rule, "metadata": {**rule["metadata"], "uid": "u", "resourceVersion": "7"}} for rule in rules]


@pytest.mark.parametrize("kubernetes", ["1.34", "1.35", "1.36", "1.37"])
def test_a_rule_is_valid_on_each_release(kubernetes: str) -> None:
    gates = {"DRADeviceTaints": True, "DRADeviceTaintRules": True}
    served = serving.require(kubernetes, gates)
    version = {"1.36": "v1beta2", "1.37": "v1"}.get(kubernetes, "v1alpha3")
    assert served == f"resource.k8s.io/{version}"
    rule = hold_rules.rule(HOLD, GPU_0, served)
    assert features.unsupported(rule, kubernetes, gates) == []
    assert validate.validate(rule, kubernetes) == []


def test_a_release_that_ignores_rules_is_refused() -> None:
    assert serving.require("1.37") == V1
    for kubernetes, gate in (("1.34", "DRADeviceTaints"), ("1.35", "DRADeviceTaintRules"), ("1.36", "TaintRules")):
        with pytest.raises(serving.Unsupported, match=gate):
            serving.require(kubernetes)
    with pytest.raises(serving.Unsupported, match="gate DRADeviceTaints is off"):
        serving.require("1.35", {"DRADeviceTaintRules": True})


@pytest.mark.parametrize(
    "written",
    ["2026-12-01T08:00:00Z", "2026-12-01T08:00:00+00:00", "2026-12-01 08:00:00+00:00", "2026-12-01T09:00:00+01:00"],
)
def test_an_expiry_may_have_the_format_of_yaml_or_of_ansible(written: str) -> None:
    """YAML reads an unquoted expiry as a time, which Ansible passes to a module as text in another format."""
    assert expiry(written, 24, HOLD, NOW) == datetime(2026, 12, 1, 8, tzinfo=timezone.utc)
    assert expiry("2026-12-01", 24, HOLD, NOW) == datetime(2026, 12, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "written", ["tomorrow", "2026-12-01T08:00:00", "2026-12-01 08:00:00", "0001-01-01T00:00:00+09:00"]
)
def test_an_expiry_that_is_not_a_time_with_a_time_zone_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time such as 2026-12-01T08:00:00Z"):
        expiry(written, 24, HOLD, NOW)


def test_a_hold_is_read_back_unchanged() -> None:
    (found,) = holds(_rules())
    assert replace(found, rules=(), devices=()) == replace(HOLD, devices=())
    assert set(found.devices) == {GPU_0, GPU_1} and len(found.rules) == 2
    assert not found.overdue(NOW) and found.overdue(NOW + timedelta(hours=2))
    assert hold_rules.parse_device("/".join(GPU_0)) == GPU_0


def test_rules_of_other_programs_are_ignored_or_read_with_limits() -> None:
    other_key = {"metadata": {"name": "x"}, "spec": {"taint": {"key": "other", "effect": "NoSchedule"}}}
    hostile = {
        "metadata": {
            "name": "y",
            "annotations": {hold_rules.OWNER: "a\nb\x1b[31m" + "c" * 9999, hold_rules.EXPIRES: "soon"},
        },
        "spec": {"taint": {"key": hold_rules.KEY, "value": "demo", "effect": "NoExecute"}},
    }
    (found,) = holds([other_key, hostile])
    assert found.owner.startswith("a?b?[31mccc") and len(found.owner) == hold_rules.MAX_TEXT_BYTES
    assert found.expires is None and found.overdue(NOW) and found.devices == (("*", "*", "*"),)


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"name": ""}, "name: must not be empty"),
        ({"name": "a b"}, "name: must be letters"),
        ({"owner": " "}, "owner: must not be empty"),
        ({"reason": "a\nb"}, "reason: must be one line"),
        ({"reason": TOO_LONG}, "at most 256 bytes"),
        ({"expires": None}, "expires: must be given"),
        ({"expires": NOW}, "expires: must be in the future"),
        ({"expires": NOW + timedelta(days=367)}, "at most 366 days from now"),
        ({"devices": (("g_u", "p", "d"),)}, "devices: g_u/p/d"),
        ({"devices": ()}, "devices: must not be empty (to keep no device, release the hold)"),
        ({"devices": (GPU_0,) * 4097}, "devices: must have at most 4096"),
    ],
)
def test_an_invalid_hold_is_refused(changed: Object, reported: str) -> None:
    hold_rules.check(HOLD, NOW)
    with pytest.raises(Problems) as caught:
        hold_rules.check(replace(HOLD, **changed), NOW)
    assert reported in str(caught.value)


def test_only_the_differences_from_existing_rules_are_changed() -> None:
    assert len(changes.changes_to_make(HOLD, [], V1).create) == 2
    assert not changes.changes_to_make(HOLD, _rules(), V1)
    partial = changes.changes_to_make(HOLD, _rules()[:1], V1)
    assert [rule["spec"]["deviceSelector"]["device"] for rule in partial.create] == ["gpu-1"] and not partial.delete
    fewer = changes.changes_to_make(replace(HOLD, devices=(GPU_1,)), _rules(), V1)
    assert [rule["spec"]["deviceSelector"]["device"] for rule in fewer.delete] == ["gpu-0"] and not fewer.create
    later = changes.changes_to_make(replace(HOLD, expires=NOW + timedelta(hours=9)), _rules(), V1)
    assert [rule["metadata"]["resourceVersion"] for rule in later.replace] == ["7", "7"]


def test_a_device_cannot_have_two_holds() -> None:
    other = replace(HOLD, name="other", devices=(GPU_1,))
    with pytest.raises(changes.Refused, match="gpu-1 belongs to hold demo of team a, until 2026-11-24T10:00:00Z"):
        changes.changes_to_make(other, _rules(), V1)
    assert hold_rules.rule_name(GPU_0) != hold_rules.rule_name(GPU_1)


def test_a_rule_with_the_name_of_a_hold_but_another_taint_is_refused() -> None:
    (edited, _other) = _rules()
    edited["spec"]["taint"]["key"] = "example.com/broken"
    with pytest.raises(changes.Refused) as caught:
        changes.changes_to_make(HOLD, [edited], V1)
    name = edited["metadata"]["name"]
    assert str(caught.value).startswith(
        f"DeviceTaintRule {name} of {'/'.join(GPU_0)} has the taint example.com/broken, so it holds nothing: delete it"
    )
    assert not changes.changes_to_release(HOLD.name, "", [edited])


def test_the_hold_of_another_owner_or_purpose_is_refused() -> None:
    with pytest.raises(changes.Refused, match=r"hold demo of team a.*does not belong to team b"):
        changes.changes_to_make(replace(HOLD, owner="team b"), _rules(), V1)
    with pytest.raises(changes.Refused, match="does not belong to team b"):
        changes.changes_to_release("demo", "team b", _rules())
    with pytest.raises(changes.Refused, match="has the purpose reserve"):
        changes.changes_to_make(replace(HOLD, purpose=hold_rules.DEFRAGMENT), _rules(), V1)
    assert len(changes.changes_to_release("demo", "", _rules()).delete) == 2
    assert not changes.changes_to_release("none", "", _rules())


def test_a_claim_gets_the_toleration_of_a_single_hold() -> None:
    exact = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "x"}}]}}
    alternatives = {"devices": {"requests": [{"name": "b", "firstAvailable": [{"name": "c"}, {"name": "d"}]}]}}
    for claim, names in ((exact, ["a"]), (alternatives, ["b/c", "b/d"])):
        assert tolerations.not_tolerating(claim, "demo") == names
        tolerant = tolerations.with_toleration(claim, "demo")
        assert tolerations.not_tolerating(tolerant, "demo") == []
        assert tolerations.tolerating_others(tolerant, "demo") == []
        assert tolerations.not_tolerating(claim, "demo") == names  # the original was not changed
        assert tolerations.with_toleration(tolerant, "demo") == tolerant
        assert tolerations.not_tolerating(tolerant, "other") == names
        assert tolerations.tolerating_others(tolerant, "other") == names


@pytest.mark.parametrize(
    "toleration",
    [{"operator": "Exists"}, {"key": hold_rules.KEY, "operator": "Exists"}, {"key": hold_rules.KEY, "value": "b"}],
)
def test_a_claim_that_tolerates_other_holds_is_found(toleration: Object) -> None:
    claim = {"devices": {"requests": [{"name": "a", "exactly": {"tolerations": [toleration]}}]}}
    assert tolerations.tolerating_others(claim, "demo") == ["a"]


@pytest.mark.parametrize("first", [0, 1])
def test_a_hold_with_rules_of_two_owners_belongs_to_neither(first: int) -> None:
    """Two runs have created rules of the same hold at the same time."""
    other = replace(HOLD, owner="team b", devices=(GPU_1,))
    rules = [*_rules(replace(HOLD, devices=(GPU_0,))), *_rules(other)]
    for owner in ("team a", "team b"):
        with pytest.raises(changes.Refused, match=f"does not belong to {owner}"):
            changes.changes_to_make(replace(HOLD, owner=owner), rules[:: 1 if first else -1], V1)
        with pytest.raises(changes.Refused, match=f"does not belong to {owner}"):
            changes.changes_to_release("demo", owner, rules[:: 1 if first else -1])


def test_the_hold_of_a_swap_is_only_released_with_the_swap() -> None:
    rules = _rules(replace(HOLD, purpose=hold_rules.SWAP))
    with pytest.raises(changes.Refused, match="belongs to a swap: return the swap"):
        changes.changes_to_release("demo", "", rules)
    assert len(changes.changes_to_release("demo", "team a", rules, may_be_swap=True).delete) == 2
