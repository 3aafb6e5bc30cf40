#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_render
short_description: Compile a description of workloads into Kubernetes DRA manifests
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Compiles the variables C(dra_claims_*) of a site into DeviceClasses, ResourceClaimTemplates, ResourceClaims,
    quotas and related objects. The language is described in
    U(https://github.com/lanewise/dra/blob/main/docs/claims-reference.md).
  - Lists all errors together, each with the path of its variable. Errors include claims that the site's drivers cannot
    serve, and claims that no probed node can satisfy.
  - Renders every object through a Jinja2 template, which a site can replace, checks the result as the Kubernetes API
    would, and writes the manifests to a folder on the controller. If there is an error, nothing is written.
notes:
  - The role P(lanewise.dra.dra_claims#role) is the usual way to call it.
extends_documentation_fragment:
  - lanewise.dra.rendering
  - lanewise.dra.attributes
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  dest:
    description:
      - The folder to write to, on the controller. Manifests go to C(manifests/) below it, workload examples to
        C(workloads/). Without it nothing is written.
      - A file without the mark of this site in its first line is never changed. Files with a Secret are readable only
        by their owner.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  nodes:
    description:
      - The facts of each node, a dictionary from host name to RV(lanewise.dra.topology_info#module:topology). Claims
        are checked against them.
      - By default these are taken from the variable C(topology_facts) of every host of the play whose latest probe did
        not fail, and from O(report).
      - VFs that C(fabric_nics) of a host configures count as existing, and NICs that C(shares) in its
        C(dra_driver_settings) divides count as divided.
      - Without facts, claims are not checked against hardware, and a warning says so.
    type: dict
  report:
    description:
      - The folder of a report of M(lanewise.dra.site_report), on the controller. Nodes outside this run are read from
        it, so that a run with C(--limit) includes the whole site.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  nodes_from:
    description:
      - Where the nodes come from that claims are checked against.
      - V(facts) are probed nodes, of O(nodes) or of this run and O(report).
      - V(slices) are the nodes whose devices drivers publish, in O(slices) or on the cluster of O(kubeconfig). Claims
        that ask for V(nearest) devices need the probe.
    type: str
    choices: [facts, slices]
    default: facts
  slices:
    description:
      - For O(nodes_from=slices), a file with the ResourceSlices of a cluster in YAML or JSON, as C(kubectl get
        resourceslices -o json) writes it. Without it they are read from the cluster.
      - If it has the allocated ResourceClaims, too, they show which devices are in use. Without them, attributes that a
        driver may omit while a device is in use are unknown.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  kubernetes_version:
    description:
      - The minor version of Kubernetes to write for. Fields that it would drop are errors.
      - Not used with O(kubeconfig).
    type: str
    default: "1.37"
  template_dir:
    description:
      - A folder on the controller whose templates take precedence over those of the collection in
        C(roles/dra_claims/templates).
      - C(manifests/KIND.yaml.j2) renders the objects of one kind, C(manifests/object.yaml.j2) all others; the object is
        in the variable C(object). C(workloads/NAME.yaml.j2) renders workloads; C(workload) is the entry of the
        inventory.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  kubeconfig:
    description:
      - A kubeconfig file. The manifests are written for the cluster's version, and for the newest version of
        C(resource.k8s.io) that it serves. Needs the collection C(kubernetes.core) and its requirements.
      - Without it C(resource.k8s.io/v1) is written.
    type: path
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
  description: The objects, as in RV(files).
  returned: success
  type: list
  elements: dict
kubernetes_version:
  description: The minor version of Kubernetes that the manifests are written for.
  returned: success
  type: str
  sample: "1.37"
boards:
  description: The objects of each claim with C(align=nearest), with their boards. Empty without such claims.
  returned: success
  type: list
  elements: dict
  contains:
    claim:
      description: Namespace and name of the claim or template in the inventory.
      type: str
    name:
      description: Name of the object. If one object cannot hold all boards, the name of a board's map is added.
      type: str
      sample: pair-3f1c09aa
    form:
      description:
        - How NICs are selected. C(pcie_root) or C(numa_node) if the common attribute selects exactly the nearest
          pairs, else C(published map), C(board and address) or C(address).
      type: str
    at_least:
      description: The minimum level of the pairs.
      type: str
    boards:
      description: The probed nodes by the name of their board's map, as the attribute C(board) of lanewise.dev has it.
      type: dict
    nodes:
      description: The probed nodes with any of these boards.
      type: list
      elements: str
    gpus:
      description: The GPUs that have a nearest NIC.
      type: list
      elements: str
    without:
      description: The GPUs without a NIC at this level. The claim never selects them.
      type: list
      elements: str
    pairs:
      description: Board, level, GPU and NIC of each nearest pair.
      type: list
      elements: list
reach:
  description: Which nodes can satisfy each claim. Empty without topology facts.
  returned: success
  type: list
  elements: dict
  contains:
    claim:
      description: Namespace and name of the claim or template.
      type: str
      sample: training/gpu-with-nic
    nodes:
      description: The nodes that can satisfy the claim.
      type: list
      elements: str
      sample: [h100-01, h100-02]
    refused:
      description: Why each other node cannot satisfy the claim.
      type: dict
      sample: {rdma-01: "gpu: driver gpu.nvidia.com has no device here"}
    unknown:
      description: What is unknown about each node that could not be checked.
      type: dict
    unpaired:
      description:
        - With nodes from ResourceSlices and ResourceClaims, the free devices of each node whose possible partners in a
          pair are all in use. Such a node is still among C(nodes), although it may not be able to satisfy the claim
          now.
      type: dict
      sample: {h100-01: ["gpu 0000:1b:00.0 is free, but its nic 0000:18:00.0 is in use by training/job-0"]}
summary:
  description: What was rendered and which nodes can satisfy it, as readable lines.
  returned: success
  type: list
  elements: str
problems:
  description: The errors.
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
      description: The name of the violated rule, for programs. It does not change between releases.
      type: str
    fix:
      description: How to fix it, or empty.
      type: str
dest:
  description: The folder that was written to.
  returned: success and O(dest) is set
  type: str
files:
  description: All files of the site below O(dest).
  returned: success and O(dest) is set
  type: list
  elements: str
  sample: [manifests/cluster/deviceclasses.yaml]
written:
  description: The files that changed.
  returned: success and O(dest) is set
  type: list
  elements: str
removed:
  description: The files that were removed.
  returned: success and O(dest) is set
  type: list
  elements: str
stale:
  description: The files of earlier runs that are no longer rendered, but stay because of O(prune=false).
  returned: success and O(dest) is set
  type: list
  elements: str
"""
