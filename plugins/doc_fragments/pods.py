# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

_POD = r"""
requirements:
  - cel-expr-python >= 0.1.3
options:
  {option}:
    suboptions:
      name:
        description: The name of the workload in results and messages.
        type: str
        required: true
      templates:
        description:
          - Names of ResourceClaimTemplates in O({prefix}namespace), one for each claim of the pod.
          - Set this or O({prefix}claims).
        type: list
        elements: str
      claims:
        description: The specs of the pod's ResourceClaims, in C(resource.k8s.io/v1).
        type: list
        elements: dict
      namespace:
        description: The namespace of the pod and its templates.
        type: str
        default: default
      pod:
        description:
          - The pod's C(spec). Its resources, tolerations, node selector, node affinity and spread constraints count.
        type: dict
        default: {{}}
      labels:
        description: The pod's labels, which spread constraints select.
        type: dict
        default: {{}}
"""


class ModuleDocFragment:
    # With type annotations, because ansible-test's yamllint reads the value of a plain assignment as literal YAML.
    # The pods of one workload, for modules that place them on data of a cluster.
    WORKLOAD: str = _POD.format(option="workload", prefix="workload.")
    # For modules that work on data of a cluster, which does not include its version.
    SERVER = r"""
notes:
  - Run it where the data is, usually with C(delegate_to=localhost).
options:
  kubernetes_version:
    description: The minor version of Kubernetes.
    type: str
    default: "1.37"
  feature_gates:
    description: Feature gates of the cluster that differ from the defaults of its version.
    type: dict
    default: {}
"""
    # Options that choose what is swapped for a tier.
    SWAPPED = r"""
options:
  devices:
    description: The devices, as C(driver/pool/device). Set these or O(workload).
    type: list
    elements: str
    default: []
  workload:
    description: A pod of the tier. Its claims must tolerate the hold and the swap of the tier.
    type: dict
  count:
    description: The number of pods that get devices, including those that already run with devices of the swap.
    type: int
    default: 1
  share:
    description:
      - Instead of O(count), a percentage of the pods that fit on the empty fleet, rounded down.
    type: int
  ignore_budgets:
    description: Whether to evict pods even if their PodDisruptionBudget does not allow it.
    type: bool
    default: false
"""
    # For modules that find pods to be moved or evicted.
    MOVED = r"""
notes:
  - Takes Kubernetes objects as data, needs no Kubernetes client, and changes nothing. What is not modelled is the same
    as for M(lanewise.dra.allocation_plan).
options:
  objects:
    description:
      - The objects of the cluster by kind, as in RV(lanewise.dra.dra_objects_info#module:objects).
      - The module uses the kinds that M(lanewise.dra.allocation_plan) uses, and C(PodDisruptionBudget).
    type: dict
    required: true
"""
    # The same for a list of workloads.
    WORKLOADS: str = _POD.format(option="workloads", prefix="workloads[].")
