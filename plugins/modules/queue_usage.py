#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This is the documentation of the action plugin of the same name, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: queue_usage
short_description: Report the usage of quotas by team, as HTML and JSON
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Adds a sample of the queues and claims of a cluster to C(usage-samples.jsonl) in a folder on the controller, and
    writes C(usage.html), one page that works offline, and C(usage.json) over all samples there. Run it once for all
    hosts.
  - For each team, it reports guaranteed hours, and hours that were charged by Kueue, borrowed and lent. Hours that a
    team is charged above its quota are owed to the teams whose quota was free then, in proportion to their free quota.
  - If two samples are farther apart than O(gap), nothing between them counts, and the report says so.
extends_documentation_fragment:
  - lanewise.dra.report_page
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  objects:
    description:
      - ClusterQueues, Cohorts and ResourceClaims by their kind, as M(lanewise.dra.dra_objects_info) returns them.
      - Without them no sample is added.
    type: dict
  metrics:
    description:
      - The text of Kueue's metrics, with the current charges. It needs C(metrics.enableClusterQueueResources) in
        Kueue's configuration.
      - The text is parsed by the Python package prometheus-client, version 0.26.0 or later, on the controller.
      - Without it the charges are those in the status of the ClusterQueues.
    type: str
    default: ""
  gap:
    description: The maximum number of seconds between two samples. A longer interval is a gap.
    type: int
    default: 900
  title:
    description: The title of the page. It should name the site.
    type: str
    default: Usage of queues
seealso:
  - module: lanewise.dra.queue_render
  - module: lanewise.dra.dra_objects_info
"""

EXAMPLES = r"""
- name: Read the queues and claims
  lanewise.dra.dra_objects_info:
    kubeconfig: /etc/site/kubeconfig
    kinds: [ClusterQueue, Cohort, ResourceClaim]
  register: cluster

- name: Add a sample, and write the report
  lanewise.dra.queue_usage:
    dest: "{{ inventory_dir }}/usage"
    objects: "{{ cluster.objects }}"
  run_once: true
"""

RETURN = r"""
path:
  description: The page.
  type: str
  returned: success
  sample: /srv/site/usage/usage.html
json:
  description: The same data as JSON.
  type: str
  returned: success
  sample: /srv/site/usage/usage.json
usage:
  description: The report as data. C(hours) by resource and team, C(debts) by resource, lender and borrower, C(gaps).
  type: dict
  returned: success
lines:
  description: The report as lines of text.
  type: list
  elements: str
  returned: success
  sample: ["lanewise.dev/gpus, in hours", "  blue owes red 3.50"]
"""
