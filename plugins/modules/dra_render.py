#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_render
short_description: Compile what workloads need into Kubernetes DRA manifests
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Takes what a site's inventory says about claims and gives DeviceClasses, ResourceClaimTemplates, ResourceClaims,
    quotas and what belongs to them. The language is described in
    U(https://github.com/lanewise/dra/blob/main/docs/claims-reference.md).
  - Refuses what cannot work, all mistakes at once, each with the path of the variable. Among these are claims that the
    drivers of the site cannot answer, and claims that no probed node of the site can satisfy.
  - Renders every object through a Jinja2 template, which a site can replace, checks what came out as the Kubernetes API
    would, and writes the manifests to a folder on the controller. Nothing is written where anything is wrong.
notes:
  - Runs on the controller. Use it with C(run_once), after all hosts were probed, and with C(delegate_to=localhost)
    where O(kubeconfig) is given.
  - The role P(lanewise.dra.dra_claims#role) is the usual way to call it.
requirements:
  - cel-expr-python >= 0.1.3 on the controller
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  variables:
    description: The variables C(dra_claims_*) of the site, by name.
    type: dict
    required: true
  dest:
    description:
      - The folder to write to, on the controller. Manifests go to C(manifests/) below it, workload examples to
        C(workloads/). Without it nothing is written.
      - A file there without the mark of this site in its first line is never touched. One with a Secret is for its
        owner alone.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  nodes:
    description:
      - The facts of each node, a dictionary from host name to RV(lanewise.dra.topology_info#module:topology). Claims
        are checked against them.
      - By default these are taken from the variable C(topology_facts) of every host of the play whose latest probe did
        not fail, and from O(report).
      - Where there are none, claims are not checked against hardware, and a warning says so.
    type: dict
  report:
    description:
      - The folder of a report of M(lanewise.dra.site_report), on the controller. Nodes that are not part of this run
        are taken from it, so that a run with C(--limit) knows the whole site.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  kubernetes_version:
    description:
      - The minor version of Kubernetes to write for. Fields that it would drop are mistakes.
      - Not used with O(kubeconfig).
    type: str
    default: "1.37"
  feature_gates:
    description: Feature gates of the cluster that differ from the default of its version, by name.
    type: dict
    default: {}
  template_dir:
    description:
      - A folder on the controller whose templates stand before those of the collection, which are in
        C(roles/dra_claims/templates).
      - C(manifests/KIND.yaml.j2) renders the objects of one kind, C(manifests/object.yaml.j2) all others; the object is
        in the variable C(object). C(workloads/NAME.yaml.j2) renders workloads; C(workload) holds what the inventory
        says.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  kubeconfig:
    description:
      - A kubeconfig file. The cluster is asked for its version, and for the versions of C(resource.k8s.io) that it
        serves; the newest of them is written. Needs the collection C(kubernetes.core) and its requirements.
      - Without it no cluster is asked, and C(resource.k8s.io/v1) is written.
    type: path
  context:
    description: The context of the kubeconfig file to use, where it is not the current one.
    type: str
  prune:
    description: Whether to remove files that an earlier run rendered for the same site and that are rendered no longer.
    type: bool
    default: true
seealso:
  - module: lanewise.dra.dra_manifests
  - module: lanewise.dra.topology_info
"""

EXAMPLES = r"""
- name: Render a claim template for a GPU and a NIC below the same root complex
  lanewise.dra.dra_render:
    dest: "{{ inventory_dir }}/kubernetes"
    variables:
      dra_claims_drivers:
        gpu.nvidia.com: {version: 0.5.0}
        lanewise.dev: {version: 1.0.0}
      dra_claims_templates:
        - name: gpu-with-nic
          namespace: training
          align: pcie_root
          devices:
            - {name: gpu, kind: gpu}
            - {name: nic, kind: rdma, where: {min_speed: 400G}}
  run_once: true
"""

RETURN = r"""
objects:
  description: The objects, as they stand in the files.
  returned: success
  type: list
  elements: dict
kubernetes_version:
  description: The minor version of Kubernetes that was written for.
  returned: success
  type: str
  sample: "1.37"
reach:
  description: Which nodes can satisfy each claim. Empty where no topology was at hand.
  returned: success
  type: list
  elements: dict
  contains:
    claim:
      description: Namespace and name of the claim or template.
      type: str
      sample: training/gpu-with-nic
    nodes:
      description: The nodes that can satisfy it.
      type: list
      elements: str
      sample: [h100-01, h100-02]
    refused:
      description: For each node that cannot, the reason.
      type: dict
      sample: {rdma-01: "gpu: driver gpu.nvidia.com has no device here"}
summary:
  description: What was rendered and where it can run, in lines for a person.
  returned: success
  type: list
  elements: str
problems:
  description: The mistakes.
  returned: failure
  type: list
  elements: dict
  contains:
    path:
      description: The variable, or the file and field, that is wrong.
      type: str
      sample: dra_claims_templates[0].devices[1].where.min_speed
    message:
      description: What is wrong.
      type: str
    rule:
      description: A constant name of the rule, for programs.
      type: str
    fix:
      description: The way out, or empty.
      type: str
dest:
  description: The folder that was written to.
  returned: success and O(dest) is given
  type: str
files:
  description: All files of the site below O(dest).
  returned: success and O(dest) is given
  type: list
  elements: str
  sample: [manifests/cluster/deviceclasses.yaml]
written:
  description: The files that changed.
  returned: success and O(dest) is given
  type: list
  elements: str
removed:
  description: The files that were removed.
  returned: success and O(dest) is given
  type: list
  elements: str
stale:
  description: The files of earlier runs that are rendered no longer and stay, since O(prune=false).
  returned: success and O(dest) is given
  type: list
  elements: str
"""
