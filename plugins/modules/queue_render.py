#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: queue_render
short_description: Compile quotas that teams can lend to each other into objects of Kueue
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Compiles the variables C(queues_*) of a site into ResourceFlavor, Cohort, ClusterQueue, LocalQueue and
    WorkloadPriorityClass objects of Kueue 0.19. The variables are described in
    U(https://github.com/lanewise/dra/blob/main/docs/queues.md).
  - Creates variants of claim templates that Kueue accepts, and reports which templates cannot be used in a queue and
    why.
  - Returns the configuration that Kueue needs, and compares it with the one on the cluster. It neither changes that
    configuration nor restarts Kueue; the role does so on request.
  - Lists all errors together, each with the path of its variable. Errors include guarantees that the fleet does not
    have. If there is an error, nothing is written.
notes:
  - The role P(lanewise.dra.queues#role) is the usual way to call it.
extends_documentation_fragment:
  - lanewise.dra.rendering
  - lanewise.dra.attributes
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  objects:
    description: The rendered objects of the site's claims, RV(lanewise.dra.dra_render#module:objects).
    type: list
    elements: dict
    required: true
  drivers:
    description: The DRA drivers of the site, as in C(dra_claims_drivers).
    type: dict
    default: {}
  site:
    description: The name of the site. It marks objects and files as this site's.
    type: str
    default: default
  dest:
    description:
      - The folder to write to, on the controller. Manifests go to C(manifests/) below it, required settings of Kueue's
        configuration to C(kueue/configuration.yaml). Without this option nothing is written.
      - A file without the mark of this site's queues in its first line is never changed.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  configuration:
    description:
      - The rest of Kueue's configuration. With it, C(kueue/values.yaml) is written, too. It has the values for Kueue's
        Helm chart with the whole configuration. The task fails if Kueue would not start with it.
      - Feature gates in the configuration cannot be combined with feature gates on Kueue's command line, which the
        chart writes for C(controllerManager.featureGates).
    type: dict
  kueue_namespace:
    description: The namespace of Kueue on the cluster of O(kubeconfig).
    type: str
    default: kueue-system
  configure:
    description:
      - Whether the caller will write RV(configuration_text). Then the task fails if Kueue could not start with it, or
        if the configuration on the cluster cannot be read. Missing settings cause no warning.
    type: bool
    default: false
  nodes:
    description:
      - The facts of each node, a dictionary from host name to RV(lanewise.dra.topology_info#module:topology).
        Guarantees are compared with their devices.
      - By default these are taken from the variable C(topology_facts) of every host of the play whose latest probe did
        not fail, and from O(report).
    type: dict
  report:
    description:
      - The folder of a report of M(lanewise.dra.site_report), on the controller. Nodes outside this run are read from
        it.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  nodes_from:
    description:
      - Where the nodes come from that guarantees are compared with.
      - V(facts) are probed nodes, of O(nodes) or of this run and O(report).
      - V(slices) are the nodes whose devices drivers publish, in O(slices) or on the cluster of O(kubeconfig).
    type: str
    choices: [facts, slices]
    default: facts
  slices:
    description:
      - For O(nodes_from=slices), a file with the ResourceSlices of a cluster in YAML or JSON. Without it they are read
        from the cluster.
      - A relative path is relative to the playbook's folder, or for a playbook of this collection to the current one.
    type: path
  kubernetes_version:
    description: The minor version of Kubernetes to write for. Not used with O(kubeconfig).
    type: str
    default: "1.37"
  kubeconfig:
    description:
      - A kubeconfig file. The version of its cluster is used, and Kueue's configuration there is compared. Needs the
        collection C(kubernetes.core) and its requirements.
    type: path
seealso:
  - module: lanewise.dra.dra_render
  - module: lanewise.dra.dra_apply
"""

EXAMPLES = r"""
- name: Two teams share eight GPUs
  lanewise.dra.queue_render:
    objects: "{{ dra_claims_rendered.objects }}"
    drivers: "{{ dra_claims_drivers }}"
    variables:
      queues_resources:
        - {name: gpus, classes: [gpu]}
      queues_teams:
        - {name: red, namespaces: [red], guaranteed: {gpus: 6}, lend: {gpus: 4}}
        - {name: blue, namespaces: [blue], guaranteed: {gpus: 2}}
"""

RETURN = r"""
objects:
  description: The objects of Kueue, and the variants of claim templates.
  returned: success
  type: list
  elements: dict
configuration:
  description: The fields of Kueue's configuration that the queues need.
  returned: success
  type: dict
configuration_differences:
  description: What the configuration on the cluster lacks, or null without O(kubeconfig).
  returned: success
  type: list
  elements: str
  sample: ["resources.deviceClassMappings[lanewise.dev/gpus] is missing"]
configuration_text:
  description:
    - The configuration on the cluster with what the queues need, or null if it lacks nothing.
    - Missing without O(kubeconfig), or if Kueue would not start with it.
  returned: success and O(kubeconfig) is set
  type: str
templates:
  description: The claim templates in the namespaces of teams.
  returned: success
  type: list
  elements: dict
  contains:
    namespace:
      description: The namespace.
      type: str
    template:
      description: The name of the template.
      type: str
    use:
      description: The template that jobs in a queue must use. Empty if there is none.
      type: str
      sample: pair-queue
    reason:
      description: Why the template cannot be used in a queue, or empty.
      type: str
    charges:
      description: What Kueue charges for each claim from the template, by resource.
      type: dict
      sample: {"lanewise.dev/gpus": "1"}
    left_out:
      description: The alternatives that the variant does not have.
      type: list
      elements: str
      sample: [nic/numa-node, nic/any]
    notes:
      description: What is not certain about the charges.
      type: list
      elements: str
loans:
  description: The loans that are in effect.
  returned: success
  type: list
  elements: str
  sample: ["red lends blue 2 gpus until 2026-12-01T00:00:00Z"]
overdue:
  description: The loans that have ended and are still in the inventory. They have no effect.
  returned: success
  type: list
  elements: str
summary:
  description: Quotas, templates and loans, as readable lines.
  returned: success
  type: list
  elements: str
problems:
  description: The errors, each with the fields of RV(lanewise.dra.dra_render#module:problems).
  returned: failure
  type: list
  elements: dict
  sample: [{path: "queues_teams[1].guaranteed.gpus", message: must be a number, rule: wrong-type, fix: ""}]
dest:
  description: The folder that was written to.
  returned: success and O(dest) is set
  type: str
files:
  description: All files of the site's queues below O(dest).
  returned: success and O(dest) is set
  type: list
  elements: str
  sample: [kueue/configuration.yaml, manifests/cluster/clusterqueues.yaml]
written:
  description: Those of RV(files) that changed.
  returned: success and O(dest) is set
  type: list
  elements: str
removed:
  description: Files of earlier runs that were removed.
  returned: success and O(dest) is set
  type: list
  elements: str
stale:
  description: Files of earlier runs that no team, tier or loan needs any more, kept because of O(prune=false).
  returned: success and O(dest) is set
  type: list
  elements: str
"""
