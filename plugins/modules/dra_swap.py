#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This is the documentation of the action plugin of the same name, which runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_swap
short_description: Take devices from pods that tolerate a swap, and hold them for a tier
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Chooses devices for a tier, holds them for the tier's claims as M(lanewise.dra.dra_hold) does, and evicts the pods
    that have them. These are the named devices, those that O(count) pods of a workload need, or those for a percentage
    of the pods that fit on the empty fleet.
  - Devices that the swap already has are used first, then free devices, then those of the fewest pods. Only requested
    devices are taken. If an evicted pod has other devices, too, these become free for everyone.
  - Each device with such a pod gets a second DeviceTaintRule with the taint C(lanewise.dev/swap=TIER). Its effect
    is first V(None), for which Kubernetes' controller only counts pods, then C(NoExecute).
  - It only evicts pods whose claims tolerate a swap for some seconds (their grace). If another pod has one of the
    devices, if Kueue manages a pod, or if a PodDisruptionBudget would be violated, nothing is changed.
  - It waits until the pods have ended, and removes the second rules. The hold stays until the swap is returned.
  - If the module is killed, the next run with the same arguments continues. Two swaps never have the same device. If
    two runs of the same swap overlap, one may fail and has to be run again.
notes:
  - Works with the rights of the kubeconfig. It must allow listing nodes, pods, C(poddisruptionbudgets.policy), and
    C(resourceslices), C(resourceclaims), C(resourceclaimtemplates) and C(deviceclasses) of C(resource.k8s.io); reading
    pods; and listing, creating, updating and deleting C(devicetaintrules.resource.k8s.io).
  - Needs Kubernetes 1.37 or later.
  - To choose devices from stored objects instead of a cluster, use M(lanewise.dra.swap_plan).
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.hold_expiry
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
      - V(previewed) lets the controller count the pods that would be evicted, and takes nothing.
    type: str
    choices: [swapped, previewed, returned]
    default: swapped
  owner:
    description: The owner of the swap. A swap of another owner is never changed.
    type: str
    required: true
  reason:
    description: The reason for the swap. Required for V(swapped).
    type: str
  timeout:
    description: How long to wait for pods to end after their grace, in seconds.
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

- name: Return the devices
  lanewise.dra.dra_swap:
    tier: gold
    state: returned
    owner: ml-platform
  run_once: true
"""

RETURN = r"""
hold:
  description: The hold of the swap after the task, or before it was returned. Empty if there was none.
  returned: success
  type: dict
ended:
  description:
    - The pods that were evicted, or would be in check mode, each with C(pod), C(node), C(grace) and C(devices).
  returned: success
  type: list
  elements: dict
  sample: [{pod: team/web-x7, node: gpu-01, grace: 30, devices: [gpu.nvidia.com/gpu-01/gpu-0]}]
counted:
  description: How many pods the controller counted before the swap, summed over devices. Null if it did not count.
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
  description: For V(previewed), what prevents the swap, except budgets. With other states, the task fails instead.
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
