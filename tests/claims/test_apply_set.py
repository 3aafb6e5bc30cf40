# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is applied in which order, and what is pruned."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.plugin_utils import apply_set


def item(kind: str, name: str, namespace: str | None = None, api: str = "resource.k8s.io/v1", **rest):
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


TEMPLATE = item("ResourceClaimTemplate", "pair", "ml")
CLASS = item("DeviceClass", "gpu")
NAMESPACE = item("Namespace", "ml", api="v1")


def test_what_others_stand_on_comes_first_and_what_cannot_be_tried_is_named():
    plan = apply_set.plan([TEMPLATE, CLASS, NAMESPACE], ["default"])
    assert [entry["kind"] for entry in plan["objects"]] == ["Namespace", "DeviceClass", "ResourceClaimTemplate"]
    assert [entry["kind"] for entry in plan["trial"]] == ["Namespace", "DeviceClass"]
    assert plan["untried"] == ["ResourceClaimTemplate ml/pair"] and plan["missing_namespaces"] == []


def test_missing_namespaces_are_told_or_made():
    assert apply_set.plan([TEMPLATE], ["default"])["missing_namespaces"] == ["ml"]
    plan = apply_set.plan([TEMPLATE], ["default"], create_namespaces=True)
    assert plan["missing_namespaces"] == [] and plan["objects"][0] == NAMESPACE


def test_members_of_a_set_carry_its_label_and_namespaces_do_not():
    applyset = {"name": "lanewise-dra", "namespace": "default"}
    plan = apply_set.plan([NAMESPACE, CLASS], ["default"], applyset=applyset)
    labels = [entry["metadata"].get("labels") for entry in plan["objects"]]
    assert labels == [None, {"applyset.kubernetes.io/part-of": apply_set.set_id(**applyset)}]
    assert "labels" not in CLASS["metadata"]


def test_an_interrupted_run_does_not_forget_what_it_has_to_prune():
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
    assert apply_set.kinds(after, apis) == [{"api_version": "resource.k8s.io/v1", "kind": "DeviceClass"}]


def test_claims_in_use_and_namespaces_are_never_pruned():
    held = item("ResourceClaim", "held", "ml", status={"reservedFor": [{"name": "pod"}]})
    free = item("ResourceClaim", "free", "ml", status={})
    found = apply_set.stale([held, free, NAMESPACE, CLASS], [CLASS])
    assert [entry["metadata"]["name"] for entry in found["delete"]] == ["free"]
    assert found["in_use"] == ["ResourceClaim ml/held"]


def test_the_answers_of_one_object_of_many_and_of_none():
    kept = {"changed": True, "result": TEMPLATE}
    assert apply_set.answer([TEMPLATE], kept) == {"problems": [], "landed": ["ResourceClaimTemplate ml/pair"]}
    refused = {"changed": False, "error": {"msg": "no such class"}, "result": {}}
    answer = apply_set.answer([TEMPLATE, CLASS], {"result": {"results": [kept, refused]}})
    assert answer == {"problems": ["DeviceClass gpu: no such class"], "landed": ["ResourceClaimTemplate ml/pair"]}
    assert len(apply_set.answer([TEMPLATE, CLASS], {"msg": "connection refused"})["problems"]) == 2


def test_a_field_that_the_server_dropped_is_a_problem():
    sent = item("ResourceClaim", "x", "ml", spec={"devices": {"requests": [{"name": "a", "exactly": {"count": 2}}]}})
    kept = item("ResourceClaim", "x", "ml", spec={"devices": {"requests": [{"name": "a"}]}})
    problems = apply_set.answer([sent], {"changed": True, "result": kept})["problems"]
    assert len(problems) == 1 and "spec.devices.requests[0].exactly" in problems[0]
