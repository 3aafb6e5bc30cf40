#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_objects_info
short_description: List the objects of a cluster's dynamic resource allocation
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Lists ResourceClaims, ResourceClaimTemplates, ResourceSlices, DeviceClasses, DeviceTaintRules, ResourceQuotas, Pods
    and PodDisruptionBudgets of all namespaces, Nodes, and the queues of Kueue.
  - The creator of a claim controls its opaque configuration. Parts nested deeper than 64 levels are returned as null,
    and invalid UTF-8 as U+FFFD, so that such a claim cannot hide others.
  - Fields that are not about devices are left out, such as most annotations, volumes, commands and environments.
notes:
  - Runs on the controller, with the rights of the kubeconfig. It must allow listing the O(kinds).
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  api_version:
    description:
      - The group and version of C(ResourceClaim), C(ResourceClaimTemplate), C(ResourceSlice) and C(DeviceClass).
      - DeviceTaintRules are listed in the newest version that the server's release has, and queues in
        C(kueue.x-k8s.io/v1beta2).
    type: str
    default: resource.k8s.io/v1
  kinds:
    description: What to list.
    type: list
    elements: str
    choices:
      - ResourceClaim
      - ResourceClaimTemplate
      - ResourceSlice
      - DeviceClass
      - DeviceTaintRule
      - Pod
      - Node
      - PodDisruptionBudget
      - ResourceQuota
      - LocalQueue
      - ClusterQueue
      - Cohort
    default: [ResourceClaim, ResourceSlice, DeviceClass, Pod]
  for_plan:
    description:
      - Whether to return only what M(lanewise.dra.allocation_plan) uses.
      - Opaque configurations of claims, owners, images and network data are then left out, too. Names, labels, and
        attributes of devices are not.
    type: bool
    default: false
seealso:
  - module: lanewise.dra.alignment_check
  - plugin: lanewise.dra.slices
    plugin_type: inventory
"""

EXAMPLES = r"""
- name: List claims and slices
  lanewise.dra.dra_objects_info:
    kubeconfig: ~/.kube/config
    kinds: [ResourceClaim, ResourceSlice]
  delegate_to: localhost
  register: cluster

- name: Show the claims that have devices
  ansible.builtin.debug:
    msg: "{{ have | map(attribute='metadata.name') }}"
  vars:
    have: "{{ cluster.objects.ResourceClaim | selectattr('status.allocation', 'defined') }}"
"""

RETURN = r"""
objects:
  description: The objects by kind, as lists.
  returned: success
  type: dict
  sample: {ResourceClaim: [{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: nics}}]}
kubernetes_version:
  description: The minor version of the API server.
  returned: success
  type: str
  sample: "1.37"
missing:
  description: The kinds that the cluster does not serve in O(api_version). They have no entry in RV(objects).
  returned: success
  type: list
  elements: str
  sample: []
"""

import traceback

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.cluster_lists import minor, read_all
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import serving
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import kueue
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.snapshot import kept
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues.objects import LOANS

try:
    import kubernetes
    import kubernetes.config
    import urllib3

    LIBRARY_ERROR = None
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()

KINDS = ("ResourceClaim", "ResourceSlice", "DeviceClass", "Pod")
#: Those that are listed only if they are asked for.
MORE = ("ResourceClaimTemplate", "DeviceTaintRule", "Node", "PodDisruptionBudget", "ResourceQuota", *kueue.KINDS)
_CORE = ("Pod", "Node", "ResourceQuota")
#: Parts that are left out: whole pods are large, and arguments and variables of containers may be secret.
HIDDEN = {
    "metadata": ("managedFields",),
    "spec": ("volumes",),
    "status": ("conditions", "images"),
}
#: Parts of pods that decide where they run, which only those with claims keep.
PLACING = ("affinity", "tolerations")
#: Annotations that are kept: whether a pod may be evicted, with which others it has to run, and loans of queues.
ANNOTATIONS = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "scheduling.k8s.io/group-name", LOANS)
#: The prefix of annotations of pods that Kueue admits.
QUEUED = "kueue.x-k8s.io/"
HIDDEN_OF_CONTAINERS = ("args", "command", "env", "envFrom", "lifecycle", "volumeMounts")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def reduced(found: Object) -> Object:
    """An object without the parts that the collection does not use."""
    for part, names in HIDDEN.items():
        for name in names:
            (found.get(part) or {}).pop(name, None)
    spec, metadata = found.get("spec") or {}, found.get("metadata") or {}
    notes = metadata.pop("annotations", None) or {}
    used = {name: value for name, value in notes.items() if name in ANNOTATIONS or name.startswith(QUEUED)}
    if used:
        metadata["annotations"] = used
    for name in PLACING if not spec.get("resourceClaims") else ():
        spec.pop(name, None)
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        for name in (*HIDDEN_OF_CONTAINERS, *PROBES):
            container.pop(name, None)
    return found


def version_of(kind: str, api_version: str, kubernetes: str) -> str:
    """The group and version in which a kind is listed. Raises ValueError for a release that is not known."""
    if kind in _CORE:
        return "v1"
    if kind == "PodDisruptionBudget":
        return "policy/v1"
    if kind in kueue.KINDS:
        return kueue.API_VERSION
    return serving.api_version(kubernetes) if kind == serving.KIND else api_version


def listed(api: kubernetes.client.ApiClient, kind: str, api_version: str) -> list[Object]:
    """All objects of a kind. Raises as cluster_lists.read_all."""
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


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "api_version": {"type": "str", "default": "resource.k8s.io/v1"},
            "for_plan": {"type": "bool", "default": False},
            "kinds": {"type": "list", "elements": "str", "choices": [*KINDS, *MORE], "default": list(KINDS)},
        },
        supports_check_mode=True,
    )
    if LIBRARY_ERROR:
        module.fail_json(msg=missing_required_lib("kubernetes"), exception=LIBRARY_ERROR)
    params = module.params
    reduce = kept if params["for_plan"] else reduced
    objects: dict[str, list[Object]] = {}
    missing = []
    version = ""
    doing = f"the kubeconfig {params['kubeconfig'] or 'of kubectl'} cannot be used"
    try:
        api = kubernetes.config.new_client_from_config(params["kubeconfig"], context=params["context"])
        doing = "the version of the API server cannot be read"
        version = minor(kubernetes.client.VersionApi(api).get_code())
        for kind in params["kinds"]:
            served = version_of(kind, params["api_version"], version)
            doing = f"{kind}s of {served} cannot be listed"
            try:
                objects[kind] = [reduce(one) for one in listed(api, kind, served)]
            except kubernetes.client.ApiException as error:
                if error.status != 404:
                    raise
                missing.append(kind)
    except kubernetes.client.ApiException as error:
        module.fail_json(msg=f"{doing}: the API server answers {error.status} {error.reason}")
    except (kubernetes.config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        module.fail_json(msg=f"{doing}: {error}")
    module.exit_json(changed=False, objects=objects, kubernetes_version=version, missing=missing)


if __name__ == "__main__":
    main()
