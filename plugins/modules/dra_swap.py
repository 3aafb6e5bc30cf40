#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This is the documentation of the action plugin of the same name, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_swap
short_description: Take devices from pods that give way, and hold them for a tier
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Chooses devices for a tier, holds them for its claims as M(lanewise.dra.dra_hold) does, and ends the pods that have
    them. These are the devices that are named, those that O(count) pods of a workload need, or those for a share of the
    pods that the empty fleet has places for.
  - Free devices are taken first, then those of the fewest pods. No device is taken that was not asked for. A pod that
    gives way may have more, which are then free for all. The devices that the swap has are used first.
  - Each device with such a pod gets a second DeviceTaintRule with the taint C(lanewise.dev/swap=TIER). Its effect
    is first V(None), for which the controller of Kubernetes only counts pods, and then C(NoExecute).
  - Only pods are ended whose claims tolerate a swap for some seconds, their grace. If another pod has one of the
    devices, if Kueue manages it, or if a PodDisruptionBudget would be violated, nothing is changed.
  - Waits until the pods have gone, and removes the second rules. The hold stays until the swap is given back.
  - If it is killed, the next run with the same arguments continues. Two swaps never have the same device. If two runs
    of the same swap overlap, one may fail and has to be run again.
notes:
  - Works with the rights of the kubeconfig. It must allow listing nodes, pods, C(poddisruptionbudgets.policy), and
    C(resourceslices), C(resourceclaims), C(resourceclaimtemplates) and C(deviceclasses) of C(resource.k8s.io); reading
    pods; and listing, creating, updating and deleting C(devicetaintrules.resource.k8s.io).
  - Needs Kubernetes 1.37 or later.
  - To choose devices without a cluster, from objects that were read before, use M(lanewise.dra.swap_plan).
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.pods.workload
  - lanewise.dra.pods.swapped
  - lanewise.dra.attributes
  - lanewise.dra.attributes.dry_run
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  tier:
    description: The tier that gets the devices, which is also the name of the hold. A tier has one swap at a time.
    type: str
    required: true
  state:
    description:
      - V(swapped) takes the devices. V(returned) removes the rules, so that other pods can get the devices again; pods
        of the tier that run keep theirs.
      - V(previewed) lets the controller count the pods that would be ended, and takes nothing.
    type: str
    choices: [swapped, previewed, returned]
    default: swapped
  owner:
    description: Who has the swap. A swap of another owner is never changed.
    type: str
    required: true
  reason:
    description: Why. Required for V(swapped).
    type: str
  hours:
    description: When a new hold expires, in hours from now. A hold that exists keeps its expiry.
    type: int
    default: 24
  expires:
    description:
      - When the hold expires, in place of O(hours).
      - A time in UTC or with its zone, such as C(2026-12-01T08:00:00Z), or the start of a day, such as C(2026-12-01).
    type: str
  timeout:
    description: Seconds for pods to end after their grace.
    type: int
    default: 600
  feature_gates:
    description: Feature gates of the cluster that differ from the defaults of its version.
    type: dict
    default: {}
seealso:
  - module: lanewise.dra.swap_plan
  - module: lanewise.dra.dra_hold
"""

EXAMPLES = r"""
- name: Take eight pairs of a GPU and a NIC
  lanewise.dra.dra_swap:
    tier: gold
    owner: ml-platform
    reason: release training
    workload: {name: pair, namespace: training, templates: [pair-gold]}
    count: 8
  run_once: true

- name: Give it back
  lanewise.dra.dra_swap:
    tier: gold
    state: returned
    owner: ml-platform
  run_once: true
"""

RETURN = r"""
hold:
  description: The hold of the swap, as it is or was. Empty if there was none.
  returned: success
  type: dict
ended:
  description: The pods that were ended, or would be in check mode, each with C(pod), C(node), C(grace) and C(devices).
  returned: success
  type: list
  elements: dict
  sample: [{pod: team/web-x7, node: gpu-01, grace: 30, devices: [gpu.nvidia.com/gpu-01/gpu-0]}]
counted:
  description: How many pods the controller counted beforehand, summed over devices. Null if it was not asked.
  returned: success
  type: int
in_use:
  description: The devices that claims of the tier have.
  returned: success
  type: list
  elements: str
budgets:
  description: The PodDisruptionBudgets that the swap violates.
  returned: success
  type: list
  elements: str
refused:
  description: For V(previewed), what prevents the swap, except budgets. Otherwise the task fails with it.
  returned: success
  type: list
  elements: str
lines:
  description: The choice as readable lines. Empty for V(returned).
  returned: success
  type: list
  elements: str
notes:
  description: Which objects of the cluster were not used, and what is not certain.
  returned: success
  type: list
  elements: str
seconds:
  description: How long the swap took.
  returned: success
  type: float
"""
