# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What to apply, what a cluster made of it, and which objects are ours and stale (KEP-3659, ApplySet)."""

from __future__ import annotations

import base64
import hashlib
import json
import typing as t
from collections.abc import Sequence

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.versions import dropped

Object = dict[str, t.Any]
TOOLING = "applyset.kubernetes.io/tooling"
_ID = "applyset.kubernetes.io/id"
_PART_OF = "applyset.kubernetes.io/part-of"
_KINDS = "applyset.kubernetes.io/contains-group-kinds"
_NAMESPACES = "applyset.kubernetes.io/additional-namespaces"
_SITE = "lanewise.dev/site"
_ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
_NOTED = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
# what others stand on comes first
_ORDER = ("Namespace", "DeviceClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ResourceQuota")
# pruning a namespace would take along what others have put there
_NEVER_PRUNED = frozenset({"Namespace"})
#: What the compiler writes, in the words of an ApplySet's parent.
WRITTEN = (
    "DeviceClass.resource.k8s.io",
    "DeviceTaintRule.resource.k8s.io",
    "ResourceClaim.resource.k8s.io",
    "ResourceClaimTemplate.resource.k8s.io",
    "ResourceQuota",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io",
)


def unusable(item: Object) -> str:
    """Why an object cannot be applied at all; empty where it can be tried."""
    metadata = item.get("metadata")
    for key, value in (
        ("apiVersion", item.get("apiVersion")),
        ("kind", item.get("kind")),
        ("metadata.name", metadata.get("name") if isinstance(metadata, dict) else None),
    ):
        if not isinstance(value, str) or not value:
            return f"it has no {key}"
    return ""


def title(item: Object) -> str:
    """An object's name for people: C(ResourceClaimTemplate training/pair)."""
    metadata = item.get("metadata") or {}
    return f"{item['kind']} " + "/".join(str(part) for part in (metadata.get("namespace"), metadata["name"]) if part)


def group_kind(item: Object) -> str:
    """KIND.GROUP, or KIND for the core group, as the annotation of an ApplySet has it."""
    group, slash, _version = str(item["apiVersion"]).partition("/")
    return f"{item['kind']}.{group}" if slash else str(item["kind"])


def set_id(name: str, namespace: str) -> str:
    """The ID of the ApplySet whose parent is the ConfigMap of this name (KEP-3659, version 1)."""
    digest = hashlib.sha256(f"{name}.{namespace}.ConfigMap.".encode()).digest()
    return f"applyset-{base64.urlsafe_b64encode(digest).decode().rstrip('=')}-v1"


def plan(
    objects: Sequence[Object],
    existing_namespaces: Sequence[str],
    create_namespaces: bool = False,
    applyset: dict[str, str] | None = None,
) -> dict[str, t.Any]:
    """Order the objects and split off those that a dry run cannot try, since their namespace is yet to be made.

    Returns C(objects) (all, in order), C(trial), C(untried) (titles) and C(missing_namespaces) (names of namespaces
    that neither exist nor are to be made; empty if anything may be applied).
    """
    existing = set(existing_namespaces)
    made = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
    wanted = {item["metadata"]["namespace"] for item in objects if item["metadata"].get("namespace")}
    if applyset:
        wanted.add(applyset["namespace"])
    missing = sorted(wanted - existing - made)
    every = list(objects)
    if create_namespaces:
        every += [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in missing]
        missing = []
    if applyset:
        label = {_PART_OF: set_id(**applyset)}
        every = [item if item["kind"] in _NEVER_PRUNED else _labelled(item, label) for item in every]
    ranks = {kind: rank for rank, kind in enumerate(_ORDER)}
    every.sort(key=lambda item: ranks.get(item["kind"], len(_ORDER)))
    untried = [item for item in every if (item["metadata"].get("namespace") or "") not in existing | {""}]
    skipped = {id(item) for item in untried}
    return {
        "objects": every,
        "trial": [item for item in every if id(item) not in skipped],
        "untried": [title(item) for item in untried],
        "missing_namespaces": missing,
    }


def answers(objects: Sequence[Object], result: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """What the module returned for each object; an empty dictionary where it said nothing.

    For a single object kubernetes.core.k8s returns the answer itself, for more a list of them.
    """
    if len(objects) == 1:
        return [result]
    found = result.get("result")
    every = list(found.get("results") or []) if isinstance(found, dict) else []
    return (every + [{}] * len(objects))[: len(objects)]


def awaited(objects: Sequence[Object], result: dict[str, t.Any]) -> list[Object]:
    """Refused objects that the server judged by a namespace or quota which the same objects are about to change.

    A dry run changes no namespace and no quota, so that it refuses claims with admin access in a namespace that only
    gets its label, and claims under a quota that only gets larger. After an apply, the admission of quotas takes a
    moment to see their new numbers.
    """
    changed: set[tuple[str, t.Any]] = set()
    found: list[Object] = []
    for item, reply in zip(objects, answers(objects, result)):
        metadata = item["metadata"]
        if item["kind"] in ("Namespace", "ResourceQuota") and reply.get("changed"):
            where = metadata["name"] if item["kind"] == "Namespace" else metadata.get("namespace")
            changed.add((item["kind"], where))
    for item, reply in zip(objects, answers(objects, result)):
        said = str((reply.get("error") or {}).get("msg"))
        cause = "Namespace" if _ADMIN_ACCESS in said else "ResourceQuota" if " quota: " in said else ""
        if (cause, item["metadata"].get("namespace")) in changed:
            found.append(item)
    return found


def completed(
    objects: Sequence[Object], result: dict[str, t.Any], again: Sequence[Object], later: dict[str, t.Any]
) -> dict[str, t.Any]:
    """C(result) with the answers that the objects of C(again) got later."""
    newer = {id(item): reply for item, reply in zip(again, answers(again, later))}
    every = [newer.get(id(item), reply) for item, reply in zip(objects, answers(objects, result))]
    return {**result, "result": {"results": every}} if len(objects) > 1 else every[0]


def answer(objects: Sequence[Object], result: dict[str, t.Any], waiting: Sequence[Object] = ()) -> dict[str, list[str]]:
    """Read what kubernetes.core.k8s with C(continue_on_error) returned for the objects, in their order.

    Returns C(problems), one line each (a refusal, or a field that the server did not keep), and C(landed), the titles
    of what was taken. Objects without an answer count as a problem, those in C(waiting) (see M(awaited)) as neither.
    """
    problems: list[str] = []
    landed: list[str] = []
    passed = set(map(id, waiting))
    for item, reply in zip(objects, answers(objects, result)):
        if id(item) in passed:
            continue
        kept = reply.get("result") or {}
        if reply.get("error") or not kept:
            error = reply.get("error") or result
            problems.append(f"{title(item)}: {_refusal(str(error.get('msg') or 'the cluster gave no answer'))}")
            continue
        landed.append(title(item))
        for path in dropped(_kept_form(item), kept):
            problems.append(f"{title(item)}: {path}: the server does not keep this field; is its feature gate off?")
    return {"problems": problems, "landed": landed}


def _refusal(message: str) -> str:
    """What a person needs of the module's message, which holds the server's Status as JSON (meta/v1 Status).

    Objects can be quoted in it in full, more than once. A value longer than a line is left out.
    """
    _words_before, brace, rest = message.partition("{")
    try:
        status = json.loads(brace + rest)
        causes = (status.get("details") or {}).get("causes") or []
        said = [f"{cause.get('field') or 'it'}: {_shortened(str(cause.get('message')))}" for cause in causes]
        text = "; ".join(said) or _shortened(str(status["message"]))
    except (ValueError, KeyError, AttributeError):
        return message
    if "field is immutable" in text:
        field = causes[0].get("field") if causes else "that"
        return (
            f"{field} cannot change in Kubernetes once the object is made (give it another name in the inventory, or "
            "delete it on the cluster before this run)"
        )
    if status.get("reason") == "Conflict":
        text += " (dra_claims_force_conflicts in the role takes the fields over)"
    return text


def _shortened(text: str) -> str:
    head, colon, rest = text.partition(": ")
    _value, last, reason = rest.rpartition(": ")
    return f"{head}{last}{reason}" if len(text) > 300 and colon and last else text


def _kept_form(item: Object) -> Object:
    """A Secret without C(stringData), which the server takes over into C(data) and never gives back."""
    if (item.get("apiVersion"), item["kind"]) == ("v1", "Secret"):
        return {key: value for key, value in item.items() if key != "stringData"}
    return item


def shown(item: Object, before: t.Any, after: t.Any) -> tuple[t.Any, t.Any]:
    """Both sides of a difference for people: without what the server notes down for itself and changes at every turn,
    and with no values of a Secret."""
    sides = _own_part(before), _own_part(after)
    if item["kind"] == "Secret":
        for key in ("data", "stringData"):
            old, new = (side.get(key) or {} for side in sides)
            for side, own, other, mark in ((sides[0], old, new, "before"), (sides[1], new, old, "after")):
                if own:
                    side[key] = {k: "***" if other.get(k) == value else f"*** ({mark})" for k, value in own.items()}
    return sides


def _own_part(side: t.Any) -> Object:
    side = dict(side or {})
    if isinstance(side.get("metadata"), dict):
        side["metadata"] = {key: value for key, value in side["metadata"].items() if key not in _NOTED}
    return side


def site_of(objects: Sequence[Object]) -> str:
    """The one site whose label the objects bear; empty where there is none, or several."""
    sites = {str((item["metadata"].get("labels") or {}).get(_SITE) or "") for item in objects} - {""}
    return sites.pop() if len(sites) == 1 else ""


def other_site(before: Sequence[Object], objects: Sequence[Object], site: str = "") -> str:
    """The site whose set it is, where that is another than C(site), or that of the objects; empty where it is ours.

    C(before) is the set's parent as it is on the cluster, none or one.
    """
    theirs, ours = site_of(before), site or site_of(objects)
    return theirs if ours and theirs != ours else ""


def parent(
    name: str, namespace: str, objects: Sequence[Object], before: Sequence[Object] = (), site: str = ""
) -> dict[str, t.Any]:
    """The ConfigMap that stands for the set. It names the kinds and namespaces of the objects, and C(site) or theirs.

    With C(before) (the parent as it is on the cluster, none or one), those that it names already stay, so that an
    interrupted run cannot forget what it has to prune.
    """
    kinds = {group_kind(item) for item in objects if item["kind"] not in _NEVER_PRUNED}
    namespaces = {item["metadata"].get("namespace") or namespace for item in objects} - {namespace}
    for known in before:
        annotations = known["metadata"].get("annotations") or {}
        kinds.update(_words(annotations.get(_KINDS)))
        namespaces.update(_words(annotations.get(_NAMESPACES)))
    site = site or site_of(objects) or site_of(before)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {_ID: set_id(name, namespace), **({_SITE: site} if site else {})},
            "annotations": {
                TOOLING: "lanewise.dra/v1",
                _KINDS: ",".join(sorted(kinds)),
                _NAMESPACES: ",".join(sorted(namespaces)),
            },
        },
    }


def members(name: str, namespace: str) -> list[str]:
    """Selectors of the labels that the set's objects bear."""
    return [f"{_PART_OF}={set_id(name, namespace)}"]


def without_set(site: str) -> list[str]:
    """Selectors of the labels that a site's objects bear where they were applied without a set."""
    return ["app.kubernetes.io/managed-by=lanewise.dra", f"{_SITE}={site}", f"!{_PART_OF}"]


def searches(
    set_parent: Object, apis: dict[str, t.Any], applyset: dict[str, str], site: str = "", theirs: str = ""
) -> list[tuple[list[dict[str, str]], list[str]]]:
    """Where to look for what may be stale: kinds, each as C(kinds) returns them, and the labels to look for.

    These are the set's objects, unless it is C(theirs), and with C(site) those of this site that are in no set.
    """
    found = []
    if not theirs:
        found.append((kinds(set_parent, apis), members(**applyset)))
    if site:
        found.append((kinds(set_parent, apis, WRITTEN), without_set(site)))
    return found


def kinds(set_parent: Object, apis: dict[str, t.Any], more: Sequence[str] = ()) -> list[dict[str, str]]:
    """C(api_version) and C(kind) of all that the parent or C(more) names, in the same words, and the cluster serves.

    C(apis) is what kubernetes.core.k8s_cluster_info returns under that name: kinds by group and version.
    """
    found = []
    for name in sorted({*_words(set_parent["metadata"]["annotations"][_KINDS]), *more}):
        kind, _dot, group = name.partition(".")
        served = [
            api for api in sorted(apis) if kind in apis[api] and (api.partition("/")[0] if "/" in api else "") == group
        ]
        if served:
            found.append({"api_version": served[0], "kind": kind})
    return found


def stale(found: Sequence[Object], objects: Sequence[Object], site: str = "") -> dict[str, t.Any]:
    """Of the set's objects on the cluster, those that are not among the rendered ones.

    C(found) are all that carry the set's label, or their site's. With C(site) those of another site are none of ours,
    as in a set whose parent is lost. Returns C(delete), what state=absent takes, and C(in_use), titles of claims that
    pods hold; these stay until the pods are gone. What has an owner goes with it, as a claim that was made from a
    template for a pod.
    """
    wanted = {(group_kind(item), item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects}
    delete: list[Object] = []
    in_use: list[str] = []
    for item in found:
        metadata = item["metadata"]
        if (group_kind(item), metadata.get("namespace"), metadata["name"]) in wanted:
            continue
        if site and (site_of([item]) or site) != site:
            continue
        if item["kind"] in _NEVER_PRUNED or metadata.get("deletionTimestamp") or metadata.get("ownerReferences"):
            continue
        if (item.get("status") or {}).get("reservedFor"):
            in_use.append(title(item))
            continue
        key = {name: metadata[name] for name in ("name", "namespace") if metadata.get(name)}
        delete.append({"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": key})
    return {"delete": delete, "in_use": in_use}


def _labelled(item: Object, labels: dict[str, str]) -> Object:
    metadata = item["metadata"]
    return {**item, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}


def _words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]
