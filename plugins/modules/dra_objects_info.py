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
    and invalid UTF-8 as U+FFFD, so that such a claim does not prevent reading others.
  - Fields that are not about devices are left out, such as most annotations, volumes, commands and environment
    variables.
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
    description: The kinds to list.
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
      - ResourceFlavor
    default: [ResourceClaim, ResourceSlice, DeviceClass, Pod]
  for_plan:
    description:
      - Whether to return only what M(lanewise.dra.allocation_plan) uses.
      - Opaque configurations of claims, owners, images and network data are then left out, too. Names, labels and the
        attributes of devices are kept.
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
    msg: "{{ allocated | map(attribute='metadata.name') }}"
  vars:
    allocated: "{{ cluster.objects.ResourceClaim | selectattr('status.allocation', 'defined') }}"
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
from http import HTTPStatus

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.cluster_lists import api_client, minor
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_objects import (
    KINDS,
    OPTIONAL_KINDS,
    listed,
    reduced,
    version_of,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.snapshot import snapshot_of

try:
    import kubernetes
    import urllib3

    LIBRARY_ERROR = None
except ImportError:
    LIBRARY_ERROR = traceback.format_exc()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path"},
            "context": {"type": "str"},
            "api_version": {"type": "str", "default": "resource.k8s.io/v1"},
            "for_plan": {"type": "bool", "default": False},
            "kinds": {"type": "list", "elements": "str", "choices": [*KINDS, *OPTIONAL_KINDS], "default": list(KINDS)},
        },
        supports_check_mode=True,
    )
    if LIBRARY_ERROR:
        module.fail_json(msg=missing_required_lib("kubernetes"), exception=LIBRARY_ERROR)
    params = module.params
    reduce = snapshot_of if params["for_plan"] else reduced
    objects: dict[str, list[Object]] = {}
    missing = []
    version = ""
    failure = f"the kubeconfig {params['kubeconfig'] or 'of kubectl'} cannot be used"
    try:
        api = api_client(params["kubeconfig"], params["context"])
        failure = "the version of the API server cannot be read"
        version = minor(kubernetes.client.VersionApi(api).get_code())
        for kind in params["kinds"]:
            served = version_of(kind, params["api_version"], version)
            failure = f"{kind}s of {served} cannot be listed"
            try:
                objects[kind] = [reduce(item) for item in listed(api, kind, served)]
            except kubernetes.client.ApiException as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                missing.append(kind)
    except kubernetes.client.ApiException as error:
        module.fail_json(msg=f"{failure}: the API server returned {error.status} {error.reason}")
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        module.fail_json(msg=f"{failure}: {error}")
    module.exit_json(changed=False, objects=objects, kubernetes_version=version, missing=missing)


if __name__ == "__main__":
    main()
