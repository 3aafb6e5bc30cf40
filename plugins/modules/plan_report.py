#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This is the documentation of the action plugin of the same name, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_report
short_description: Write a report of what still fits on a fleet, as HTML and JSON
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Writes C(plan.html), one page that works offline, and C(plan.json) to a folder on the controller. Run it once for
    all hosts.
  - It has a map of the fleet with a square for each device, the number of pods of each workload that still fit before
    and after the changes, the reasons why no more fit, and the stranded devices. The map shows at most 2000 nodes, and
    the table 400 stranded devices.
extends_documentation_fragment:
  - lanewise.dra.report_page
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  plan:
    description: The result of M(lanewise.dra.allocation_plan).
    type: dict
    required: true
  title:
    description: The title of the page. It should name the site.
    type: str
    default: What still fits
seealso:
  - module: lanewise.dra.allocation_plan
  - module: lanewise.dra.site_report
"""

EXAMPLES = r"""
- name: Write the page
  lanewise.dra.plan_report:
    dest: "{{ inventory_dir }}/report"
    plan: "{{ plan }}" # the registered result of lanewise.dra.allocation_plan
    title: Training cluster, hall 2
  run_once: true
"""

RETURN = r"""
path:
  description: The path of the page.
  type: str
  returned: success
  sample: /srv/site/report/plan.html
json:
  description: The path of the same data as JSON.
  type: str
  returned: success
  sample: /srv/site/report/plan.json
"""
