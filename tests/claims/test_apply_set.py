# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The order in which objects are applied, and the objects that are pruned."""

from __future__ import annotations

import json

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.plugin_utils import apply_set
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import claims_strategies
from hypothesis import given, settings


def item(kind: str, name: str, namespace: str | None = None, api: str = "resource.k8s.io/v1", **rest):
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


TEMPLATE = item("ResourceClaimTemplate", "pair", "ml")
CLASS = item("DeviceClass", "gpu")
NAMESPACE = item("Namespace", "ml", api="v1")


def test_prerequisites_come_first_and_untried_objects_are_listed():
    plan = apply_set.plan([TEMPLATE, CLASS, NAMESPACE], ["default"])
    assert [entry["kind"] for entry in plan["objects"]] == ["Namespace", "DeviceClass", "ResourceClaimTemplate"]
    assert [entry["kind"] for entry in plan["trial"]] == ["Namespace", "DeviceClass"]
    assert plan["untried"] == ["ResourceClaimTemplate ml/pair"] and plan["missing_namespaces"] == []


def test_missing_namespaces_are_reported_or_created():
    assert apply_set.plan([TEMPLATE], ["default"])["missing_namespaces"] == ["ml"]
    plan = apply_set.plan([TEMPLATE], ["default"], create_namespaces=True)
    assert plan["missing_namespaces"] == [] and plan["objects"][0] == NAMESPACE


def test_members_of_a_set_have_its_label_and_namespaces_do_not():
    applyset = {"name": "lanewise-dra", "namespace": "default"}
    plan = apply_set.plan([NAMESPACE, CLASS], ["default"], applyset=applyset)
    labels = [entry["metadata"].get("labels") for entry in plan["objects"]]
    assert labels == [None, {"applyset.kubernetes.io/part-of": apply_set.set_id(**applyset)}]
    assert "labels" not in CLASS["metadata"]


def test_an_interrupted_run_keeps_the_kinds_that_it_has_to_prune():
    before = apply_set.parent("s", "default", [TEMPLATE])
    after = apply_set.parent("s", "default", [CLASS], [before])
    annotations = after["metadata"]["annotations"]
    kinds = "applyset.kubernetes.io/contains-group-kinds"
    assert annotations[kinds] == "DeviceClass.resource.k8s.io,ResourceClaimTemplate.resource.k8s.io"
    assert annotations["applyset.kubernetes.io/additional-namespaces"] == "ml"
    apis = {
        "resource.k8s.io/v1beta1": {"DeviceClass": {}},
        "resource.k8s.io/v1": {"DeviceClass": {}},
        "v1": {"Pod": {}},
    }
    assert apply_set.served_kinds(after, apis) == [{"api_version": "resource.k8s.io/v1", "kind": "DeviceClass"}]
    assert apply_set.unserved_kinds(after, apis) == ["ResourceClaimTemplate.resource.k8s.io"]
    apis["v1"]["ResourceQuota"] = {}
    every = apply_set.served_kinds(after, apis, apply_set.WRITTEN)
    assert [entry["kind"] for entry in every] == ["DeviceClass", "ResourceQuota"]


@settings(max_examples=30, deadline=None)
@given(claims_strategies.sites())
def test_removal_looks_for_every_kind_of_a_site(values):
    kinds = {apply_set.group_kind(manifest) for manifest in claims_strategies.compiled(values).objects}
    assert kinds <= {*apply_set.WRITTEN, "Namespace"}  # namespaces are never removed


def test_removal_looks_for_no_other_kind():
    claim = {"namespace": "ml", "devices": [{"name": "nic", "kind": "rdma"}]}
    taint = {"name": "broken", "driver": "lanewise.dev", "key": "example.com/broken", "effect": "NoSchedule"}
    whole = {
        "drivers": {"lanewise.dev": {"version": "1.0.0"}},
        "templates": [{"name": "each", **claim}],
        "claims": [{"name": "shared", **claim}],
        "quotas": [{"namespace": "ml", "claims": 9}],
        "taints": [taint],
        "policy": True,
    }
    compiled = compile_site({f"dra_claims_{name}": value for name, value in whole.items()})
    assert {apply_set.group_kind(item) for item in compiled.objects} == set(apply_set.WRITTEN)


def test_claims_in_use_and_namespaces_are_never_pruned():
    held = item("ResourceClaim", "held", "ml", status={"reservedFor": [{"name": "pod"}]})
    free = item("ResourceClaim", "free", "ml", status={})
    generated = item("ResourceClaim", "from-a-template", "ml", status={})
    generated["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "pod"}]
    found = apply_set.stale([held, free, generated, NAMESPACE, CLASS], [CLASS])
    assert [entry["metadata"]["name"] for entry in found["delete"]] == ["free"]
    assert found["in_use"] == ["ResourceClaim ml/held"]


def test_answers_are_sorted_into_problems_and_applied_objects():
    kept = {"changed": True, "result": TEMPLATE}
    assert apply_set.verdict_of([TEMPLATE], kept) == {"problems": [], "accepted": ["ResourceClaimTemplate ml/pair"]}
    refused = {"changed": False, "error": {"msg": "no such class"}, "result": {}}
    answer = apply_set.verdict_of([TEMPLATE, CLASS], {"result": {"results": [kept, refused]}})
    assert answer == {"problems": ["DeviceClass gpu: no such class"], "accepted": ["ResourceClaimTemplate ml/pair"]}
    assert len(apply_set.verdict_of([TEMPLATE, CLASS], {"msg": "connection refused"})["problems"]) == 2


def test_a_field_that_the_server_dropped_is_a_problem():
    sent = item("ResourceClaim", "x", "ml", spec={"devices": {"requests": [{"name": "a", "exactly": {"count": 2}}]}})
    kept = item("ResourceClaim", "x", "ml", spec={"devices": {"requests": [{"name": "a"}]}})
    problems = apply_set.verdict_of([sent], {"changed": True, "result": kept})["problems"]
    assert len(problems) == 1 and "spec.devices.requests[0].exactly" in problems[0]


def refusal(message: str) -> dict:
    return {"changed": False, "error": {"msg": message}, "result": {}}


def test_refusals_because_of_a_namespace_or_quota_of_the_same_run_are_not_final():
    admin = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label"
    over = "resourceclaims is forbidden: exceeded quota: dra, requested: count/resourceclaims.resource.k8s.io=1"
    quota = item("ResourceQuota", "dra", "lab", api="v1")
    held = item("ResourceClaim", "held", "lab")
    objects = [NAMESPACE, quota, TEMPLATE, held]

    def replies(namespace: bool, quotas: bool, *others: dict) -> dict:
        return {"result": {"results": [{"changed": namespace}, {"changed": quotas}, *others]}}

    both = replies(True, True, refusal(admin), refusal(over))
    assert apply_set.waiting_for_changes(objects, both) == [TEMPLATE, held]
    assert apply_set.verdict_of(objects[2:], {"result": {"results": [refusal(admin), refusal(over)]}}, [held])[
        "problems"
    ] == [f"ResourceClaimTemplate ml/pair: {admin}"]
    # if the namespace or quota does not change, or belongs to another namespace, the refusal is final
    assert apply_set.waiting_for_changes(objects, replies(False, False, refusal(admin), refusal(over))) == []
    assert apply_set.waiting_for_changes(objects, replies(True, True, refusal(over), refusal(admin))) == []
    assert apply_set.waiting_for_changes(objects, replies(True, True, refusal("not a label"), {})) == []

    later = apply_set.completed(objects, both, [TEMPLATE, held], {"result": {"results": [{"changed": True}, {}]}})
    assert apply_set.object_results(objects, later) == [{"changed": True}, {"changed": True}, {"changed": True}, {}]


def test_the_values_of_secrets_are_not_shown_and_not_counted_as_dropped():
    secret = item("Secret", "s", "ml", api="v1", stringData={"key": "hidden"})
    kept = item("Secret", "s", "ml", api="v1", data={"key": "aGlkZGVu"})
    assert apply_set.verdict_of([secret], {"changed": True, "result": kept})["problems"] == []
    before, after = apply_set.diff_sides(secret, {"data": {"a": "x", "b": "y"}}, {"data": {"a": "z", "b": "y"}})
    assert before == {"data": {"a": "*** (before)", "b": "***"}} and after == {"data": {"a": "*** (after)", "b": "***"}}
    assert "hidden" not in str(apply_set.diff_sides(secret, None, secret))


def test_a_set_stores_its_site():
    ours = item("DeviceClass", "gpu")
    ours["metadata"]["labels"] = {"lanewise.dev/site": "a"}
    set_parent = apply_set.parent("s", "default", [ours, TEMPLATE])
    assert apply_set.site_of([set_parent]) == apply_set.site_of([ours, TEMPLATE]) == "a"
    assert apply_set.site_of([TEMPLATE]) == ""


def test_the_set_of_another_site_is_kept_when_a_site_is_removed():
    applyset = {"name": "s", "namespace": "default"}
    of_a = item("DeviceClass", "gpu")
    of_a["metadata"]["labels"] = {"lanewise.dev/site": "a"}
    before = [apply_set.parent(**applyset, objects=[of_a])]
    apis = {"resource.k8s.io/v1": {"DeviceClass": {}, "ResourceClaim": {}}}

    def searched(site: str, found: list[dict]) -> list[list[str]]:
        theirs = apply_set.other_site(found, [], site)
        whole = apply_set.parent(**applyset, objects=[], before=found)
        return [labels for _kinds, labels in apply_set.searches(whole, apis, applyset, site, theirs)]

    assert apply_set.other_site(before, [], "b") == "a"
    assert searched("b", before) == [apply_set.selectors_without_set("b")]
    # its own set, a set without a site, and no set
    without_site = [apply_set.parent(**applyset, objects=[TEMPLATE])]
    for site, found in (("a", before), ("b", without_site), ("b", [])):
        assert apply_set.other_site(found, [], site) == ""
        assert searched(site, found) == [apply_set.set_selectors(**applyset), apply_set.selectors_without_set(site)]
    assert searched("", before) == [apply_set.set_selectors(**applyset)]
    # a site given by name overrides the label of the objects
    assert apply_set.other_site(before, [of_a], "b") == "a" and apply_set.other_site(before, [of_a]) == ""


def test_objects_of_another_site_are_not_stale():
    of_a, of_b, raw = (item("ResourceClaim", name, "ml") for name in ("a", "b", "raw"))
    of_a["metadata"]["labels"], of_b["metadata"]["labels"] = {"lanewise.dev/site": "a"}, {"lanewise.dev/site": "b"}
    found = apply_set.stale([of_a, of_b, raw], [], "b")
    assert [entry["metadata"]["name"] for entry in found["delete"]] == ["b", "raw"]
    assert len(apply_set.stale([of_a, of_b, raw], [])["delete"]) == 3


def test_an_emptied_set_keeps_its_site():
    emptied = apply_set.parent("s", "default", [], site="a")
    assert apply_set.site_of([emptied]) == "a" and apply_set.other_site([emptied], [], "b") == "a"


def test_objects_that_cannot_be_applied_are_reported():
    assert apply_set.why_unusable(TEMPLATE) == ""
    assert apply_set.why_unusable({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x"}})
    assert apply_set.why_unusable({"apiVersion": "v1", "kind": "Pod", "metadata": "x"}) and apply_set.why_unusable({})


def test_only_templates_for_boards_are_replaced():
    boards = item("ResourceClaimTemplate", "boards", "ml")
    boards["metadata"]["annotations"] = {"lanewise.dev/nearest": "published map, PHB or nearer"}
    immutable = {"error": {"msg": 'Failed: {"message": "spec: Invalid value: {}: field is immutable"}'}}
    other = {"error": {"msg": "Failed: no"}}
    result = {"result": {"results": [immutable, immutable, immutable]}}
    assert apply_set.outdated([TEMPLATE, boards, CLASS], result) == [boards]
    assert apply_set.outdated([boards], other) == []
    assert apply_set.verdict_of([boards], immutable, [boards])["problems"] == []


def test_a_refusal_is_reported_in_one_line():
    quoted = "Invalid value: " + json.dumps({"Devices": {"Requests": [{"Name": "gpu"}] * 50}})
    cause = {"field": "spec", "message": f"{quoted}: field is immutable"}
    status = {"kind": "Status", "message": f"is invalid: spec: {quoted}: field is immutable", "reason": "Invalid"}
    immutable = f"Failed to apply object: {json.dumps({**status, 'details': {'causes': [cause]}})}"
    problems = apply_set.verdict_of([TEMPLATE], refusal(immutable))["problems"]
    assert len(problems) == 1 and problems[0].startswith(
        "ResourceClaimTemplate ml/pair: spec of an existing object cannot change"
    )
    assert "give it another name" in problems[0] and len(problems[0]) < 240

    causes = [
        {"field": "spec.a", "message": "Required value"},
        {"field": "spec.b", "message": f"{quoted}: must be short"},
    ]
    both = f"Failed to apply object: {json.dumps({**status, 'details': {'causes': causes}})}"
    assert apply_set.verdict_of([CLASS], refusal(both))["problems"] == [
        "DeviceClass gpu: spec.a: Required value; spec.b: Invalid value: must be short"
    ]
    taken = {"message": 'conflict with "kubectl": .metadata.labels.a', "reason": "Conflict"}
    assert "dra_claims_force_conflicts" in apply_set.verdict_of([CLASS], refusal(json.dumps(taken)))["problems"][0]
    for other in ("{not JSON", "no brace", "{}", "{[]}"):
        assert apply_set.verdict_of([CLASS], refusal(other))["problems"] == [f"DeviceClass gpu: {other}"]
