# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What to apply, what a cluster made of it, and which objects are ours and stale (KEP-3659, ApplySet)."""

from __future__ import annotations

import base64
import hashlib
import typing as t
from collections.abc import Sequence

from ansible_collections.lanewise.dra.plugins.module_utils.dra.versions import dropped

Object = dict[str, t.Any]
TOOLING = "applyset.kubernetes.io/tooling"
_ID = "applyset.kubernetes.io/id"
_PART_OF = "applyset.kubernetes.io/part-of"
_KINDS = "applyset.kubernetes.io/contains-group-kinds"
_NAMESPACES = "applyset.kubernetes.io/additional-namespaces"
# what others stand on comes first
_ORDER = ("Namespace", "DeviceClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ResourceQuota")
# pruning a namespace would take along what others have put there
_NEVER_PRUNED = frozenset({"Namespace"})


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


def answer(objects: Sequence[Object], result: dict[str, t.Any]) -> dict[str, list[str]]:
    """Read what kubernetes.core.k8s with C(continue_on_error) returned for the objects, in their order.

    Returns C(problems), one line each (a refusal, or a field that the server did not keep), and C(landed), the titles
    of what was taken. Objects without an answer count as a problem.
    """
    problems: list[str] = []
    landed: list[str] = []
    for item, reply in zip(objects, answers(objects, result)):
        kept = reply.get("result") or {}
        if reply.get("error") or not kept:
            error = reply.get("error") or result
            problems.append(f"{title(item)}: {error.get('msg') or 'the cluster gave no answer'}")
            continue
        landed.append(title(item))
        for path in dropped(item, kept):
            problems.append(f"{title(item)}: {path}: the server does not keep this field; is its feature gate off?")
    return {"problems": problems, "landed": landed}


def parent(name: str, namespace: str, objects: Sequence[Object], before: Sequence[Object] = ()) -> dict[str, t.Any]:
    """The ConfigMap that stands for the set. It names the kinds and namespaces of the objects.

    With C(before) (the parent as it is on the cluster, none or one), those that it names already stay, so that an
    interrupted run cannot forget what it has to prune.
    """
    kinds = {group_kind(item) for item in objects if item["kind"] not in _NEVER_PRUNED}
    namespaces = {item["metadata"].get("namespace") or namespace for item in objects} - {namespace}
    for known in before:
        annotations = known["metadata"].get("annotations") or {}
        kinds.update(_words(annotations.get(_KINDS)))
        namespaces.update(_words(annotations.get(_NAMESPACES)))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {_ID: set_id(name, namespace)},
            "annotations": {
                TOOLING: "lanewise.dra/v1",
                _KINDS: ",".join(sorted(kinds)),
                _NAMESPACES: ",".join(sorted(namespaces)),
            },
        },
    }


def kinds(set_parent: Object, apis: dict[str, t.Any]) -> list[dict[str, str]]:
    """C(api_version) and C(kind) of all that the parent names and the cluster serves.

    C(apis) is what kubernetes.core.k8s_cluster_info returns under that name: kinds by group and version.
    """
    found = []
    for name in _words(set_parent["metadata"]["annotations"][_KINDS]):
        kind, _dot, group = name.partition(".")
        served = [
            api for api in sorted(apis) if kind in apis[api] and (api.partition("/")[0] if "/" in api else "") == group
        ]
        if served:
            found.append({"api_version": served[0], "kind": kind})
    return found


def stale(found: Sequence[Object], objects: Sequence[Object]) -> dict[str, t.Any]:
    """Of the set's objects on the cluster, those that are not among the rendered ones.

    C(found) are all that carry the set's label. Returns C(delete), what state=absent takes, and C(in_use), titles
    of claims that pods hold; these stay until the pods are gone.
    """
    wanted = {(group_kind(item), item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects}
    delete: list[Object] = []
    in_use: list[str] = []
    for item in found:
        metadata = item["metadata"]
        if (group_kind(item), metadata.get("namespace"), metadata["name"]) in wanted:
            continue
        if item["kind"] in _NEVER_PRUNED or metadata.get("deletionTimestamp"):
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
