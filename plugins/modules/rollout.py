#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout
short_description: Plan a rollout, check for drift, and report the state of a rollout
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Combines the plans of the roles P(lanewise.dra.fabric#role) and P(lanewise.dra.dra_driver#role), or the states, of
    all hosts of the play.
  - Part of the playbook C(lanewise.dra.site). It reads host variables that this playbook sets.
  - Changes nothing. With O(show=state) it fails if the rollout must stop.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  show:
    description:
      - With V(plan), the changes of each host, the batches, and all blockers.
      - With V(drift), the differences from the inventory, on nodes and in the cluster.
      - With V(state), which nodes are done, failed, lost or waiting. The task fails if more than O(max_fail_percentage)
        percent of them failed or were lost.
    type: str
    choices: [plan, state, drift]
    required: true
    aliases: [tell]
  serial:
    description: The batches, in the form of the playbook keyword C(serial).
    type: list
    elements: raw
    default: [1, "25%"]
  max_fail_percentage:
    description: The maximum percentage of the nodes that may fail or be lost. Above it, the rollout stops.
    type: float
    default: 0
seealso:
  - module: lanewise.dra.site_report
"""

EXAMPLES = r"""
- name: Make the plan
  lanewise.dra.rollout:
    show: plan
    serial: [1, 10, "25%"]
  run_once: true
  register: plan
  failed_when: plan.problems | length > 0

- name: Stop if more than a tenth of the nodes failed
  lanewise.dra.rollout:
    show: state
    max_fail_percentage: 10
  run_once: true
"""

RETURN = r"""
summary:
  description: The plan or the state as readable lines.
  returned: always
  type: list
  elements: str
  sample:
    - "batch 1: 1 node, the canary"
    - "    gpu-01"
    - "        14 changes (sriov 2, vf 8, mtu 4)"
batches:
  description: The hosts to change, in the order and the batches of the rollout.
  returned: with O(show=plan)
  type: list
  elements: list
  sample: [[gpu-01], [gpu-02, gpu-03]]
serial:
  description: The O(serial) of these batches, for the play.
  returned: with O(show=plan)
  type: list
  elements: raw
  sample: [1, "25%"]
problems:
  description: The blockers, or the reasons why a node could not be checked, one line each with the host's name.
  returned: with O(show=plan) and O(show=drift)
  type: list
  elements: str
  sample: ["gpu-07: rails: chooses 7 NICs of this node, not 8"]
unfit:
  description: The hosts with blockers.
  returned: with O(show=plan)
  type: list
  elements: str
stops:
  description: The message for each host with blockers, with how to continue without it.
  returned: with O(show=plan)
  type: dict
drift:
  description:
    - What differs. C(verdict) is V(no drift), V(drifted) or V(unknown).
    - C(nodes) has C(state), C(lines), C(changes), C(driver), C(reboot) and C(problems) by host. C(claims) has C(state)
      and C(lines). Its C(state) may also be V(not compared).
  returned: with O(show=drift)
  type: dict
states:
  description: The state of each host. C(state) is one of V(done), V(failed), V(lost) and V(waiting).
  returned: with O(show=state)
  type: dict
  sample: {gpu-01: {state: done, reason: ""}}
"""
