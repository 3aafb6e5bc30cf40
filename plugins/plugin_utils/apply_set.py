# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans what to apply, evaluates the cluster's results, and finds stale objects of the site (KEP-3659, ApplySet)."""

from __future__ import annotations

import base64
import hashlib
import json
import typing as t
from collections.abc import Sequence

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.inventory import NEAREST_ANNOTATION
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.comparison import dropped
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result

TOOLING = "applyset.kubernetes.io/tooling"
_ID = "applyset.kubernetes.io/id"
_PART_OF = "applyset.kubernetes.io/part-of"
_KINDS = "applyset.kubernetes.io/contains-group-kinds"
_NAMESPACES = "applyset.kubernetes.io/additional-namespaces"
_SITE = "lanewise.dev/site"
_ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
_SERVER_METADATA = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
# objects that others depend on come first
_ORDER = ("Namespace", "DeviceClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ResourceQuota")
# pruning a namespace would also delete objects that others created in it
_NEVER_PRUNED = frozenset({"Namespace"})
#: The kinds that the compiler writes, in the notation of an ApplySet's annotation.
WRITTEN = (
    "DeviceClass.resource.k8s.io",
    "DeviceTaintRule.resource.k8s.io",
    "ResourceClaim.resource.k8s.io",
    "ResourceClaimTemplate.resource.k8s.io",
    "ResourceQuota",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io",
)


class Plan(t.TypedDict):
    """All objects in the order in which they are applied, and those that a dry run can apply."""

    objects: list[Object]
    trial: list[Object]
    untried: list[str]  #: titles
    missing_namespaces: list[str]  #: neither existing nor applied; if there are any, nothing may be applied


class Verdict(t.TypedDict):
    """What the server did with the objects of one request."""

    problems: list[str]  #: one line for each refused object and for each field that the server dropped
    accepted: list[str]  #: titles of the objects that the server accepted


class Stale(t.TypedDict):
    """Objects that the site no longer renders."""

    delete: list[Object]  #: the fields that `state=absent` needs
    in_use: list[str]  #: titles of claims that pods use


def why_unusable(item: Object) -> str:
    """Why an object cannot be applied; empty if it has all required fields."""
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
    """An object's name in messages: `ResourceClaimTemplate training/pair`."""
    metadata = item.get("metadata") or {}
    return f"{item['kind']} " + "/".join(str(part) for part in (metadata.get("namespace"), metadata["name"]) if part)


def group_kind(item: Object) -> str:
    """KIND.GROUP, or KIND for the core group, as in the annotation of an ApplySet."""
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
) -> Plan:
    """Order the objects, and separate those that a dry run cannot apply because their namespace does not exist yet."""
    existing = set(existing_namespaces)
    applied = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
    needed = {item["metadata"]["namespace"] for item in objects if item["metadata"].get("namespace")}
    if applyset:
        needed.add(applyset["namespace"])
    missing = sorted(needed - existing - applied)
    ordered = list(objects)
    if create_namespaces:
        ordered += [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in missing]
        missing = []
    if applyset:
        label = {_PART_OF: set_id(**applyset)}
        ordered = [item if item["kind"] in _NEVER_PRUNED else _labelled(item, label) for item in ordered]
    ranks = {kind: rank for rank, kind in enumerate(_ORDER)}
    ordered.sort(key=lambda item: ranks.get(item["kind"], len(_ORDER)))
    untried = [item for item in ordered if (item["metadata"].get("namespace") or "") not in existing | {""}]
    skipped = {id(item) for item in untried}
    return {
        "objects": ordered,
        "trial": [item for item in ordered if id(item) not in skipped],
        "untried": [title(item) for item in untried],
        "missing_namespaces": missing,
    }


def object_results(objects: Sequence[Object], result: Result) -> list[Result]:
    """The module's result for each object; an empty dictionary for an object without a result.

    For a single object, kubernetes.core.k8s returns the object's result, for several a list of results.
    """
    if len(objects) == 1:
        return [result]
    answer = result.get("result")
    replies = list(answer.get("results") or []) if isinstance(answer, dict) else []
    return (replies + [{}] * len(objects))[: len(objects)]


def waiting_for_changes(objects: Sequence[Object], result: Result) -> list[Object]:
    """Objects that were refused because of the old state of a namespace or quota that this run changes.

    A dry run does not change namespaces and quotas. It refuses claims with admin access in a namespace that this run
    labels, and claims under a quota that this run raises. After an apply, the quota admission needs a moment to see the
    new quota.
    """
    changed: set[tuple[str, str | None]] = set()
    waiting: list[Object] = []
    for item, reply in zip(objects, object_results(objects, result)):
        metadata = item["metadata"]
        if item["kind"] in ("Namespace", "ResourceQuota") and reply.get("changed"):
            namespace = metadata["name"] if item["kind"] == "Namespace" else metadata.get("namespace")
            changed.add((item["kind"], namespace))
    for item, reply in zip(objects, object_results(objects, result)):
        reported = str((reply.get("error") or {}).get("msg"))
        cause = "Namespace" if _ADMIN_ACCESS in reported else "ResourceQuota" if " quota: " in reported else ""
        if (cause, item["metadata"].get("namespace")) in changed:
            waiting.append(item)
    return waiting


def outdated(objects: Sequence[Object], result: Result) -> list[Object]:
    """Templates for the boards of the site that were refused because their spec cannot change.

    They are replaced when the boards change. A template only affects claims that are created later; existing claims do
    not change.
    """
    return [
        item
        for item, reply in zip(objects, object_results(objects, result))
        if is_for_boards(item) and "field is immutable" in str((reply.get("error") or {}).get("msg"))
    ]


def is_for_boards(item: Object) -> bool:
    """Whether an object's annotation says that it is a template for the boards of a site."""
    annotations = item["metadata"].get("annotations") or {}
    return item["kind"] == "ResourceClaimTemplate" and NEAREST_ANNOTATION in annotations


def completed(objects: Sequence[Object], result: Result, retried: Sequence[Object], later: Result) -> Result:
    """`result`, with the results of a later request for the `retried` objects."""
    newer = {id(item): reply for item, reply in zip(retried, object_results(retried, later))}
    replies = [newer.get(id(item), reply) for item, reply in zip(objects, object_results(objects, result))]
    return {**result, "result": {"results": replies}} if len(objects) > 1 else replies[0]


def verdict_of(objects: Sequence[Object], result: Result, waiting: Sequence[Object] = ()) -> Verdict:
    """The verdict from the result of kubernetes.core.k8s with `continue_on_error`, in the order of the objects.

    An object without a result is a problem. Objects in `waiting` (see `waiting_for_changes`) are ignored.
    """
    problems: list[str] = []
    accepted: list[str] = []
    ignored = set(map(id, waiting))
    for item, reply in zip(objects, object_results(objects, result)):
        if id(item) in ignored:
            continue
        stored = reply.get("result") or {}
        if reply.get("error") or not stored:
            error = reply.get("error") or result
            problems.append(f"{title(item)}: {_refusal(str(error.get('msg') or 'the cluster returned no result'))}")
            continue
        accepted.append(title(item))
        for path in dropped(_as_stored(item), stored):
            problems.append(f"{title(item)}: {path}: the server drops this field; is its feature gate off?")
    return {"problems": problems, "accepted": accepted}


def _refusal(message: str) -> str:
    """The reason in the module's message, which contains the server's Status as JSON (meta/v1 Status).

    The message can quote whole objects more than once. A long value is omitted.
    """
    _prefix, brace, rest = message.partition("{")
    try:
        status = json.loads(brace + rest)
        causes = (status.get("details") or {}).get("causes") or []
        reasons = [f"{cause.get('field') or 'it'}: {_shortened(str(cause.get('message')))}" for cause in causes]
        text = "; ".join(reasons) or _shortened(str(status["message"]))
    except (ValueError, KeyError, AttributeError):
        return message
    if "field is immutable" in text:
        field = causes[0].get("field") if causes else "that"
        return (
            f"{field} of an existing object cannot change (give it another name in the inventory, or delete it in the "
            "cluster before this run)"
        )
    if status.get("reason") == "Conflict":
        text += " (to take the fields over, set dra_claims_force_conflicts in the role)"
    return text


def _shortened(text: str) -> str:
    """A long message without the value that it quotes."""
    head, colon, rest = text.partition(": ")
    _value, last, reason = rest.rpartition(": ")
    return f"{head}{last}{reason}" if len(text) > 300 and colon and last else text


def _as_stored(item: Object) -> Object:
    """A Secret without `stringData`, which the server stores in `data` and never returns."""
    if (item.get("apiVersion"), item["kind"]) == ("v1", "Secret"):
        return {key: value for key, value in item.items() if key != "stringData"}
    return item


def diff_sides(item: Object, before: Object | None, after: Object | None) -> tuple[Object, Object]:
    """Both sides of a diff without the metadata that the server sets, and without values of Secrets."""
    sides = _without_server_metadata(before), _without_server_metadata(after)
    if item["kind"] == "Secret":
        for key in ("data", "stringData"):
            old, new = (side.get(key) or {} for side in sides)
            for side, values, others, mark in ((sides[0], old, new, "before"), (sides[1], new, old, "after")):
                if values:
                    side[key] = {
                        name: "***" if others.get(name) == value else f"*** ({mark})" for name, value in values.items()
                    }
    return sides


def _without_server_metadata(side: Object | None) -> Object:
    side = dict(side or {})
    if isinstance(side.get("metadata"), dict):
        side["metadata"] = {key: value for key, value in side["metadata"].items() if key not in _SERVER_METADATA}
    return side


def site_of(objects: Sequence[Object]) -> str:
    """The site in the labels of the objects; empty if there is none, or if there are several."""
    sites = {str((item["metadata"].get("labels") or {}).get(_SITE) or "") for item in objects} - {""}
    return sites.pop() if len(sites) == 1 else ""


def other_site(before: Sequence[Object], objects: Sequence[Object], site: str = "") -> str:
    """The site that the set belongs to, if it differs from `site` or else the site of the objects; otherwise empty.

    `before` is the set's parent in the cluster, if there is one.
    """
    set_site, own_site = site_of(before), site or site_of(objects)
    return set_site if own_site and set_site != own_site else ""


def parent(
    name: str, namespace: str, objects: Sequence[Object], before: Sequence[Object] = (), site: str = ""
) -> Object:
    """The ConfigMap that is the set's parent. It has the kinds, namespaces and site of the objects.

    Kinds and namespaces in `before` (the parent in the cluster, if there is one) are kept, so that the run after an
    interrupted one knows what to prune.
    """
    kinds = {group_kind(item) for item in objects if item["kind"] not in _NEVER_PRUNED}
    namespaces = {item["metadata"].get("namespace") or namespace for item in objects} - {namespace}
    for earlier in before:
        annotations = earlier["metadata"].get("annotations") or {}
        kinds.update(_items(annotations.get(_KINDS)))
        namespaces.update(_items(annotations.get(_NAMESPACES)))
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


def set_selectors(name: str, namespace: str) -> list[str]:
    """Label selectors of the set's objects."""
    return [f"{_PART_OF}={set_id(name, namespace)}"]


def selectors_without_set(site: str) -> list[str]:
    """Label selectors of a site's objects that were applied without a set."""
    return ["app.kubernetes.io/managed-by=lanewise.dra", f"{_SITE}={site}", f"!{_PART_OF}"]


def searches(
    set_parent: Object, apis: Object, applyset: dict[str, str], site: str = "", other: str = ""
) -> list[tuple[list[dict[str, str]], list[str]]]:
    """The searches for stale objects, each with kinds as `served_kinds` returns them, and label selectors.

    They find the set's objects, unless the set belongs to the `other` site, and with `site` the objects of this site
    that are in no set.
    """
    kinds_and_labels = []
    if not other:
        kinds_and_labels.append((served_kinds(set_parent, apis), set_selectors(**applyset)))
    if site:
        kinds_and_labels.append((served_kinds(set_parent, apis, WRITTEN), selectors_without_set(site)))
    return kinds_and_labels


def served_kinds(set_parent: Object, apis: Object, extra: Sequence[str] = ()) -> list[dict[str, str]]:
    """`api_version` and `kind` of all kinds that are in the parent or in `extra` and that the cluster serves.

    `apis` are the kinds by group and version, as kubernetes.core.k8s_cluster_info returns them.
    """
    kinds = []
    for name in sorted({*_items(set_parent["metadata"]["annotations"][_KINDS]), *extra}):
        kind, _dot, group = name.partition(".")
        served = [
            api for api in sorted(apis) if kind in apis[api] and (api.partition("/")[0] if "/" in api else "") == group
        ]
        if served:
            kinds.append({"api_version": served[0], "kind": kind})
    return kinds


def unserved_kinds(set_parent: Object, apis: Object) -> list[str]:
    """The kinds in the parent that the cluster does not serve now, as KIND.GROUP. Their objects may still exist."""
    served = {group_kind({**entry, "apiVersion": entry["api_version"]}) for entry in served_kinds(set_parent, apis)}
    return sorted(set(_items(set_parent["metadata"]["annotations"][_KINDS])) - served)


def stale(existing: Sequence[Object], objects: Sequence[Object], site: str = "") -> Stale:
    """The set's objects in the cluster that are no longer rendered.

    `existing` are all objects with the label of the set or of the site. With `site`, objects of other sites, which a
    set without a parent may contain, are ignored. Claims that pods use are kept until the pods have ended. Objects with
    an owner, such as a pod's claim from a template, are ignored, as they are deleted with the owner.
    """
    rendered = {(group_kind(item), item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects}
    delete: list[Object] = []
    in_use: list[str] = []
    for item in existing:
        metadata = item["metadata"]
        if (group_kind(item), metadata.get("namespace"), metadata["name"]) in rendered:
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


def _items(text: str | None) -> list[str]:
    """The items of a comma-separated list."""
    return [item for item in (text or "").split(",") if item]
