#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This is the documentation of the action plugin of the same name, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: queue_replay_report
short_description: Report the results of replayed jobs as HTML and JSON
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Adds the result of M(lanewise.dra.queue_replay) under a name to C(replay.json) in a folder on the controller, and
    writes C(replay.html), one page that works offline, with all results there side by side.
extends_documentation_fragment:
  - lanewise.dra.report_page
  - lanewise.dra.attributes.files
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  name:
    description:
      - The name of the result, such as that of the replayed quotas. An earlier result with this name is replaced.
    type: str
    required: true
  result:
    description: The RV(lanewise.dra.queue_replay#module:result) of a replay.
    type: dict
    required: true
  source:
    description: The RV(lanewise.dra.queue_replay#module:source) of the jobs.
    type: str
    default: ""
  title:
    description: The title of the page. It should name the site.
    type: str
    default: Replayed jobs
seealso:
  - module: lanewise.dra.queue_replay
"""

EXAMPLES = r"""
- name: Write the page
  lanewise.dra.queue_replay_report:
    dest: "{{ inventory_dir }}/replay"
    name: fixed quotas
    result: "{{ replayed.result }}" # of lanewise.dra.queue_replay
"""

RETURN = r"""
path:
  description: The page.
  type: str
  returned: success
  sample: /srv/site/replay/replay.html
json:
  description: The same data as JSON.
  type: str
  returned: success
  sample: /srv/site/replay/replay.json
lines:
  description: A line for each result.
  type: list
  elements: str
  returned: success
"""
