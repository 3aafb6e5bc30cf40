# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The kinds of objects that are read from a cluster, their API versions, and the fields that are left out."""

from __future__ import annotations

import typing as t

from .cluster_lists import read_all
from .dra.holds import serving
from .dra.kube.objects import Object
from .dra.plan import kueue
from .dra.plan.movable import GANGS, SAFE_TO_EVICT
from .dra.queues.objects import LOANS

if t.TYPE_CHECKING:
    import kubernetes

KINDS = ("ResourceClaim", "ResourceSlice", "DeviceClass", "Pod")
#: Further kinds, which are listed only on request.
OPTIONAL_KINDS = (
    "ResourceClaimTemplate",
    "DeviceTaintRule",
    "Node",
    "PodDisruptionBudget",
    "ResourceQuota",
    *kueue.KINDS,
)
_CORE = ("Pod", "Node", "ResourceQuota")
#: Fields that are left out, because objects are large.
HIDDEN = {
    "metadata": ("managedFields",),
    "spec": ("volumes",),
    "status": ("conditions", "images"),
}
#: The kind whose conditions are kept: they say whether a queue admits jobs.
WITH_CONDITIONS = "ClusterQueue"
#: Large fields about placement, which only pods with spec.resourceClaims keep.
PLACEMENT_FIELDS = ("affinity", "tolerations")
#: Annotations that are kept: whether a pod may be evicted, to which gang a pod belongs, and the loans of a queue.
ANNOTATIONS = (SAFE_TO_EVICT, *GANGS, LOANS)
#: The prefix of annotations of pods that Kueue admits.
KUEUE_PREFIX = "kueue.x-k8s.io/"
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
#: Fields of containers that are left out: arguments and variables may be secret.
HIDDEN_CONTAINER_FIELDS = ("args", "command", "env", "envFrom", "lifecycle", "volumeMounts")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def reduced(found: Object) -> Object:
    """Remove the fields that the collection does not use from an object, and return it. The object must have `kind`."""
    for part, names in HIDDEN.items():
        for name in names:
            if name != "conditions" or found["kind"] != WITH_CONDITIONS:
                (found.get(part) or {}).pop(name, None)
    spec, metadata = found.get("spec") or {}, found.get("metadata") or {}
    annotations = metadata.pop("annotations", None) or {}
    kept = {name: value for name, value in annotations.items() if name in ANNOTATIONS or name.startswith(KUEUE_PREFIX)}
    if kept:
        metadata["annotations"] = kept
    for name in PLACEMENT_FIELDS if found["kind"] == "Pod" and not spec.get("resourceClaims") else ():
        spec.pop(name, None)
    for container in [container for field in CONTAINERS for container in spec.get(field) or ()]:
        for name in (*HIDDEN_CONTAINER_FIELDS, *PROBES):
            container.pop(name, None)
    return found


def version_of(kind: str, api_version: str, kubernetes: str) -> str:
    """The group and version in which a kind is listed. Raises ValueError for an unknown release."""
    if kind in _CORE:
        return "v1"
    if kind == "PodDisruptionBudget":
        return "policy/v1"
    if kind in kueue.KINDS:
        return kueue.API_VERSION
    return serving.api_version(kubernetes) if kind == serving.KIND else api_version


def listed(api: kubernetes.client.ApiClient, kind: str, api_version: str) -> list[Object]:
    """All objects of a kind. Raises the errors of cluster_lists.read_all."""
    import kubernetes.client

    if kind == "Pod":
        return read_all(kubernetes.client.CoreV1Api(api).list_pod_for_all_namespaces, "v1", kind)
    if kind == "Node":
        return read_all(kubernetes.client.CoreV1Api(api).list_node, "v1", kind)
    if kind == "ResourceQuota":
        return read_all(kubernetes.client.CoreV1Api(api).list_resource_quota_for_all_namespaces, "v1", kind)
    group, _slash, version = api_version.partition("/")
    plural = "deviceclasses" if kind == "DeviceClass" else f"{kind.lower()}s"
    custom = kubernetes.client.CustomObjectsApi(api)
    return read_all(
        lambda **query: custom.list_cluster_custom_object(group, version, plural, **query), api_version, kind
    )
