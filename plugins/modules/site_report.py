#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: site_report
short_description: Write an HTML report of a site's topology
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Takes the topology of every host, as M(lanewise.dra.topology_info) read it, and writes a folder of static pages and
    tables on the controller. They work offline and can be opened as files.
  - The folder also stores the facts. C(nodes/NAME.json) has a node's facts, so that a run with C(--limit) keeps the
    other nodes in the report. The same facts always give the same files, byte for byte.
  - "C(index.html) shows the fleet with outliers first: nodes that differ from more than half of the nodes of the same
    product with the same GPU. C(nodes/NAME.html) shows one node with a drawing of its PCIe tree and its affinity
    matrix. C(nodes.csv), C(devices.csv), C(findings.csv) and C(site.json) have the same data for programs."
notes:
  - Facts that lack a section (O(lanewise.dra.topology_info#module:subset)) are ignored with a warning, because a page
    could not distinguish missing devices from sections that were not read.
  - If the folder has an C(index.html) that this module did not write, the module fails.
  - Runs on the controller only and never connects to a host. Use it with C(run_once), after all hosts were probed.
  - If a host name is not safe as a file name on every file system, for example with capital letters, the file name has
    a part of its SHA-256. C(site.json) maps hosts to files.
  - Text cells of the CSV files that a spreadsheet could treat as a formula start with an apostrophe.
  - Every file is replaced atomically, so an interrupted run leaves a readable report. Do not run it twice at once on
    one folder.
attributes:
  diff_mode:
    support: full
    details:
      - The diff lists changed nodes in a few lines, not the pages.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  dest:
    description:
      - The folder of the report, on the controller. It is created if it does not exist.
      - A relative path is relative to the playbook's folder.
    type: path
    required: true
  nodes:
    description:
      - The facts of each host, a dictionary from host name to RV(lanewise.dra.topology_info#module:topology).
      - By default these are taken from the variable C(topology_facts) of every host of the play whose latest probe,
        registered as C(topology_probe), did not fail.
    type: dict
  title:
    description: The name of the site, shown as the title of the report.
    type: str
    default: GPU and RDMA topology
  prune:
    description:
      - Whether to remove stored nodes that are neither in the inventory nor in O(nodes), if an earlier run with the
        same inventory stored them.
      - Nodes that a run with another inventory stored are always kept.
    type: bool
    default: true
  unreachable:
    description:
      - Hosts to list as unreachable. Facts of an earlier run stay in the report.
      - By default these are the hosts whose probe, registered as C(topology_probe), was unreachable while the play
        continued for them (C(ignore_unreachable)).
    type: list
    elements: str
  failed:
    description:
      - Hosts to list as failed. Facts of an earlier run stay in the report.
      - By default these are the hosts that were removed from the play, or whose probe, registered as C(topology_probe),
        failed while the play continued, and that are not in O(unreachable).
    type: list
    elements: str
  template_dir:
    description:
      - A folder on the controller whose templates replace those of the collection with the same name, which are in
        C(roles/topology/templates/report).
      - A relative path is relative to the playbook's folder.
    type: path
  claims:
    description:
      - Which claims select which pairs of GPU and NIC, a dictionary from the name of the site (C(dra_claims_site)) to
        RV(lanewise.dra.dra_render#module:boards). The pages of the nodes show them.
      - This replaces the claims of these sites in the report. Without it, the report keeps its claims.
    type: dict
seealso:
  - module: lanewise.dra.topology_info
"""

EXAMPLES = r"""
- name: Probe every node, even if one fails
  hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Read the topology
      lanewise.dra.topology_info:
      register: topology_probe

    - name: Keep the topology for the report
      ansible.builtin.set_fact:
        topology_facts: "{{ topology_probe.topology }}"

    - name: Write the report
      lanewise.dra.site_report:
        dest: "{{ inventory_dir }}/report"
        title: Training cluster, hall 2
      run_once: true
      register: report

    - name: Show the summary
      ansible.builtin.debug:
        var: report.summary
      run_once: true

- name: Report on nodes whose facts were read elsewhere
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Write the report
      lanewise.dra.site_report:
        dest: /srv/www/fabric
        nodes:
          gpu01: "{{ lookup('ansible.builtin.file', 'facts/gpu01.json') | from_json }}"
"""

RETURN = r"""
path:
  description: The path of the fleet page.
  type: str
  returned: success
  sample: /srv/site/report/index.html
counts:
  description: The numbers of the report.
  type: dict
  returned: success
  contains:
    nodes:
      description: Nodes in the report.
      type: int
      sample: 128
    probed:
      description: Nodes whose facts are known.
      type: int
      sample: 127
    absent:
      description: Nodes that the latest run could not probe.
      type: int
      sample: 1
    gpus:
      description: GPUs and other accelerators of all nodes.
      type: int
      sample: 1016
    nics:
      description: NICs of all nodes. A VF only counts if its PF is not visible, as in a virtual machine.
      type: int
      sample: 1397
    groups:
      description: Groups of nodes of the same product with the same GPU, which should be identical.
      type: int
      sample: 2
    shapes:
      description: Distinct topologies.
      type: int
      sample: 3
    outliers:
      description: Nodes that differ from more than half of the nodes of their group.
      type: int
      sample: 1
    findings:
      description: Findings by severity.
      type: dict
      sample: {"error": 1, "warning": 4, "info": 127}
summary:
  description: A summary of the report, as a few lines for the terminal.
  type: list
  elements: str
  returned: success
  sample:
    - 128 nodes, 1016 GPUs, 1397 NICs, 3 distinct topologies in 2 peer groups
    - "findings: 1 error, 4 warnings, 127 info"
    - "outlier gpu17: 1 GPU fewer (7 instead of 8) under switch 0000:46:00.0, NUMA node 0: NVIDIA H100 at 0000:48:00.0"
    - "report: /srv/site/report/index.html"
"""
