#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: swap_plan
short_description: Find the devices to swap for a tier, and the pods to evict for it
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Finds the devices that M(lanewise.dra.dra_swap) takes for a tier. These are the named ones, those that O(count)
    pods of a workload need, or those for O(share) percent of the pods that fit on the empty fleet.
  - Devices that the swap already has are used first, then free devices, then those of the fewest pods. Only requested
    devices are taken. If an evicted pod has other devices, too, these become free for everyone.
  - Lists what prevents the swap, such as pods whose claims do not tolerate it, pods that Kueue manages, and
    PodDisruptionBudgets that would be violated.
extends_documentation_fragment:
  - lanewise.dra.pods.workload
  - lanewise.dra.pods.server
  - lanewise.dra.pods.swapped
  - lanewise.dra.pods.moved
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  tier:
    description: The tier that gets the devices.
    type: str
    required: true
seealso:
  - module: lanewise.dra.dra_swap
  - module: lanewise.dra.reservation_plan
"""

EXAMPLES = r"""
- name: Which pods would be evicted for eight pairs of a GPU and a NIC?
  lanewise.dra.swap_plan:
    objects: "{{ cluster.objects }}"
    tier: gold
    workload: {name: pair, namespace: training, templates: [pair-gold]}
    count: 8
  delegate_to: localhost
  register: plan

- name: Show the answer
  ansible.builtin.debug:
    msg: "{{ plan.lines }}"
"""

RETURN = r"""
found:
  description: Whether enough devices were found.
  returned: success
  type: bool
devices:
  description: The devices to hold.
  returned: success
  type: list
  elements: str
evict:
  description: Those of RV(devices) whose pods are evicted, if other pods have them; with O(devices), all of them.
  returned: success
  type: list
  elements: str
leaving:
  description: >-
    The pods that have devices of RV(evict), also those that are already being deleted, and those that must not be
    evicted according to RV(refused). Each with C(pod), C(node), C(grace) in seconds and C(devices).
  returned: success
  type: list
  elements: dict
  sample: [{pod: team/web-x7, node: gpu-01, grace: 30, devices: [gpu.nvidia.com/gpu-01/gpu-0]}]
refused:
  description: Why devices that were found must not be taken, except budgets.
  returned: success
  type: list
  elements: str
budgets:
  description: The PodDisruptionBudgets that would be violated.
  returned: success
  type: list
  elements: str
lines:
  description: How many devices are taken and which pods are evicted, or why none can be taken, as readable lines.
  returned: success
  type: list
  elements: str
notes:
  description: Which of O(objects) were not used, and what is not certain.
  returned: success
  type: list
  elements: str
"""

from ..module_utils import compiled_once

compiled_once.begin()

from ..module_utils.dra.cel.engine import engine_for
from ..module_utils.dra.kube.objects import Object
from ..module_utils.dra.plan.inputs import WORKLOAD, objects_of
from ..module_utils.dra.plan.swapping import choose, device_names, evicted_as_dict, lines, request_of
from ..module_utils.plan_module import run


def make_plan(params: Object) -> Object:
    """What the module returns. Raises ValueError, KeyError and EngineMissing."""
    objects = objects_of(params["objects"])
    request = request_of(params, objects)
    version = params["kubernetes_version"]
    choice = choose(objects, request, engine_for(version), version, params["feature_gates"])
    leaving = sorted(choice.effects.evicted, key=lambda evicted: evicted.pod)
    return {
        "found": not choice.reason,
        "devices": device_names(choice.hold),
        "evict": device_names(choice.evict),
        "leaving": [evicted_as_dict(evicted) for evicted in leaving],
        "refused": list(choice.effects.refused),
        "budgets": list(choice.effects.budgets),
        "lines": lines(choice, request),
        "notes": list(choice.notes),
    }


def main() -> None:
    run(
        {
            "tier": {"type": "str", "required": True},
            "devices": {"type": "list", "elements": "str", "default": []},
            "workload": {"type": "dict", "options": WORKLOAD},
            "count": {"type": "int", "default": 1},
            "share": {"type": "int"},
            "ignore_budgets": {"type": "bool", "default": False},
        },
        make_plan,
    )


if __name__ == "__main__":
    main()
