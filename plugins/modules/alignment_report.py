#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This is the documentation of the action plugin of the same name, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: alignment_report
short_description: Write the alignment of claims as HTML and JSON
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Writes C(alignment.html), one page with plots that works offline, and C(alignment.json) to a folder on the
    controller. Run it once for all hosts.
  - It shows predictions and measurements side by side, never mixed.
extends_documentation_fragment:
  - lanewise.dra.report_page
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  checked:
    description: The result of M(lanewise.dra.alignment_check).
    type: dict
    required: true
  title:
    description: The title of the page. It should name the site.
    type: str
    default: Alignment of claims
seealso:
  - module: lanewise.dra.alignment_check
  - module: lanewise.dra.site_report
"""

EXAMPLES = r"""
- name: Write the page
  lanewise.dra.alignment_report:
    dest: "{{ inventory_dir }}/report"
    checked: "{{ checked }}" # the registered result of lanewise.dra.alignment_check
    title: Training cluster, hall 2
  run_once: true
"""

RETURN = r"""
path:
  description: The page.
  type: str
  returned: success
  sample: /srv/site/report/alignment.html
json:
  description: The same data as JSON.
  type: str
  returned: success
  sample: /srv/site/report/alignment.json
"""
