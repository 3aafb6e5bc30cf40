#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_apply
short_description: Apply a site's DRA objects to a cluster, all or nothing if possible
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Tries all objects in a server-side dry run first. If the API server rejects an object, or would drop one of its
    fields because a feature gate is off, nothing is applied.
  - "Then applies all of them by server-side apply, in one call of M(kubernetes.core.k8s). Kubernetes has no
    transactions: if a part fails, the message lists the applied objects."
  - With O(prune) the objects form an ApplySet (KEP-3659), and objects that an earlier run applied but this run does
    not apply are removed. Objects that are not part of the set are never changed.
notes:
  - Objects in a namespace that is created in the same run cannot be tried in the dry run.
  - Claims that a pod uses, and namespaces, are never pruned.
requirements:
  - kubernetes >= 24.2.0 (Python client), where the task runs
  - the collection kubernetes.core >= 5.0.0
attributes:
  action:
    description: Has a corresponding action plugin, which calls modules of C(kubernetes.core) on the target.
    support: full
  async:
    description: Supports being used with the C(async) keyword.
    support: none
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.dry_run
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  objects:
    description: The objects, as in RV(lanewise.dra.dra_render#module:objects).
    type: list
    elements: dict
    required: true
  kubeconfig:
    description:
      - The kubeconfig file to use.
      - By default C(kubernetes.core) looks for one as C(kubectl) does.
    type: path
  context:
    description: The context of the kubeconfig, by default the current one.
    type: str
  create_namespaces:
    description:
      - Whether to create namespaces that do not exist.
      - By default nothing is applied if a namespace is missing.
    type: bool
    default: false
  force_conflicts:
    description: Whether to take over fields that another field manager has set.
    type: bool
    default: false
  prune:
    description: Whether to remove objects of the set O(applyset) that are not among O(objects).
    type: bool
    default: false
  applyset:
    description: The name of the set and of its ConfigMap. Use one per site and cluster.
    type: str
    default: lanewise-dra
  applyset_namespace:
    description: The namespace of the ConfigMap of O(applyset).
    type: str
    default: default
  site:
    description:
      - With O(prune), objects with the labels of this site that are in no set are stale, too. They come from runs
        without O(prune).
      - Kinds that were only in raw O(objects) of the site, and in no set, are not searched.
      - If the set O(applyset) belongs to another site, the task fails if there are O(objects). Without O(objects), only
        this site's objects outside the set are stale, and the set is not changed.
    type: str
seealso:
  - module: lanewise.dra.dra_render
  - module: kubernetes.core.k8s
"""

EXAMPLES = r"""
- name: Show what would change on the cluster
  lanewise.dra.dra_apply:
    objects: "{{ rendered.objects }}"
    kubeconfig: ~/.kube/config
  check_mode: true
  diff: true
  delegate_to: localhost
  run_once: true

- name: Apply, and remove objects that are no longer in the inventory
  lanewise.dra.dra_apply:
    objects: "{{ rendered.objects }}"
    kubeconfig: ~/.kube/config
    prune: true
  delegate_to: localhost
  run_once: true

- name: Remove all objects of a site, regardless of the options of earlier runs
  lanewise.dra.dra_apply:
    objects: []
    kubeconfig: ~/.kube/config
    prune: true
    site: lab
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
differing:
  description: The objects that differed on the cluster or were missing. In check mode, those that would be applied.
  returned: always
  type: list
  elements: str
  sample: [DeviceClass gpu]
replaced:
  description:
    - Templates with C(align=nearest) whose spec differs because the boards of the site changed. They are deleted and
      created again, or would be in check mode. Claims that were created from them do not change.
  returned: always
  type: list
  elements: str
applied:
  description: The objects that were applied. Empty if nothing differed, and in check mode.
  returned: always
  type: list
  elements: str
  sample: [DeviceClass gpu, ResourceClaimTemplate training/gpu-with-nic]
pruned:
  description: The objects that were removed, or would be in check mode.
  returned: always
  type: list
  elements: str
kept_in_use:
  description: Stale claims that a pod still uses. A later run removes them.
  returned: always
  type: list
  elements: str
"""
