#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reservation_plan
short_description: Find the devices to hold for a job, and the fewest pods to move for it
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Finds devices for O(count) pods of a workload, which M(lanewise.dra.dra_hold) can then keep for them.
  - If these pods do not fit, finds the fewest other pods to move so that they fit. RV(at_least) is a proven lower bound
    on that number. If RV(optimal) is true, no plan has fewer moves.
  - Only pods with their own claims are moved, whose controllers create a new pod elsewhere. These pods are never moved
    - pods without a controller, of DaemonSets, of gangs and of other schedulers; pods with claims that were not created
    for them alone or that other pods use; pods with the annotation
    C(cluster-autoscaler.kubernetes.io/safe-to-evict=false); pods whose PodDisruptionBudget allows no disruption; and
    pods that O(protect) or O(never) selects.
  - If a ResourceQuota of the workload's namespace does not admit its pods, a note says so, and no pod is moved for it.
    Quotas of Kueue are not checked.
  - Each pod to be moved needs a node with room, see O(may_wait). The node that the scheduler chooses depends on scores,
    which are not modelled.
extends_documentation_fragment:
  - lanewise.dra.pods.workload
  - lanewise.dra.pods.server
  - lanewise.dra.pods.moved
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  workload:
    description: The pod of the job. The job has O(count) of them.
    type: dict
    required: true
  count:
    description: The number of pods of the job.
    type: int
    default: 1
  hold:
    description:
      - The name of the hold. Its devices are used first.
      - Pods whose claims tolerate the hold and have its devices count as pods of the job that already run.
    type: str
    required: true
  require_toleration:
    description:
      - Whether to fail if a request of the workload's claims does not tolerate the hold. Such a job cannot use the held
        devices.
    type: bool
    default: false
  max_moves:
    description: The maximum number of pods to move. By default none.
    type: int
    default: 0
  may_wait:
    description: Whether to move pods for which no other node has room. These pods then wait.
    type: bool
    default: false
  never:
    description: Pods that are not moved, as C(namespace/name).
    type: list
    elements: str
    default: []
  protect:
    description: Pods that are never moved.
    type: dict
    default: {}
    suboptions:
      namespaces:
        description: Pods in these namespaces.
        type: list
        elements: str
        default: [kube-system]
      labels:
        description: Pods with one of these labels. An empty value stands for any.
        type: dict
        default: {}
      priority:
        description: Pods of this priority and above.
        type: int
      controllers:
        description: Pods of all controllers except these. A V(Job) loses the work of its pod, and may fail.
        type: list
        elements: str
        default: [ReplicaSet, ReplicationController, StatefulSet]
  searches:
    description:
      - The maximum number of sets of pods to search. If the search ends there, RV(at_least) may be lower than the
        fewest moves.
    type: int
    default: 20000
seealso:
  - module: lanewise.dra.allocation_plan
  - module: lanewise.dra.dra_hold
  - module: lanewise.dra.pod_eviction
"""

EXAMPLES = r"""
- name: Read the cluster
  lanewise.dra.dra_objects_info:
    kinds:
      - Node
      - Pod
      - ResourceSlice
      - ResourceClaim
      - ResourceClaimTemplate
      - DeviceClass
      - DeviceTaintRule
      - PodDisruptionBudget
      - ResourceQuota
  delegate_to: localhost
  register: cluster

- name: Which pods must move for eight nodes with eight GPUs each?
  lanewise.dra.reservation_plan:
    objects: "{{ cluster.objects }}"
    kubernetes_version: "{{ cluster.kubernetes_version }}"
    workload: {name: big, namespace: training, templates: [eight-pairs]}
    count: 8
    hold: big
    max_moves: 20
  delegate_to: localhost
  register: plan

- name: Show the answer
  ansible.builtin.debug:
    msg: "{{ plan.lines }}"
"""

RETURN = r"""
fits:
  description: Whether the job fits, after the moves.
  returned: success
  type: bool
moves:
  description:
    - The pods to move in this order, each with C(pod), C(uid), C(node), and in C(to) a node that has room for it.
  returned: success
  type: list
  elements: dict
  sample: [{pod: team/web-x7, uid: 6f..., node: gpu-01, to: gpu-04}]
at_least:
  description: A lower bound on the number of moves. Null if no moves make the job fit.
  returned: success
  type: int
optimal:
  description: Whether no plan has fewer moves than this one.
  returned: success
  type: bool
devices:
  description: The devices to hold, as C(driver/pool/device).
  returned: success
  type: list
  elements: str
placements:
  description: The C(node) and the C(devices) of each pod of the job that does not run yet.
  returned: success
  type: list
  elements: dict
arrived:
  description: The number of pods of the job that already run.
  returned: success
  type: int
reason:
  description: Why the job does not fit.
  returned: success
  type: str
toleration:
  description: The toleration that each request of the job's claims needs in C(tolerations).
  returned: success
  type: dict
  sample: {key: lanewise.dev/hold, operator: Equal, value: big, effect: NoSchedule}
lacking:
  description: The requests of the workload's claims that do not tolerate the hold.
  returned: success
  type: list
  elements: str
kept:
  description: The pods with claims that are never moved, with the reason.
  returned: success
  type: dict
  sample: {team/db-0: its claim team/db was not created for this pod alone}
lines:
  description: The answer as readable lines.
  returned: success
  type: list
  elements: str
notes:
  description: Objects that were not used, and what is not certain.
  returned: success
  type: list
  elements: str
"""

import typing as t

from ..module_utils.dra.cel.engine import engine_for
from ..module_utils.dra.holds.tolerations import not_tolerating, tolerating_others, toleration
from ..module_utils.dra.kube.objects import Object
from ..module_utils.dra.kube.versions import V1, convert
from ..module_utils.dra.plan import quotas
from ..module_utils.dra.plan.fit import not_modelled
from ..module_utils.dra.plan.fleet import Fleet, Workload
from ..module_utils.dra.plan.inputs import WORKLOAD, objects_of, templates_of, workload
from ..module_utils.dra.plan.movable import CONTROLLERS, Protection, movable
from ..module_utils.dra.plan.reader import read
from ..module_utils.dra.plan.room import SEARCHES, Job, Room, room
from ..module_utils.plan_module import run

#: The maximum number of pods of a job, and of pods to move.
MAX_PODS = 1024
PROTECT: dict[str, dict[str, t.Any]] = {
    "namespaces": {"type": "list", "elements": "str", "default": ["kube-system"]},
    "labels": {"type": "dict", "default": {}},
    "priority": {"type": "int"},
    "controllers": {"type": "list", "elements": "str", "default": list(CONTROLLERS)},
}


def untolerated_requests(wanted: Workload, hold: str, required: bool) -> list[str]:
    """The requests that do not tolerate the hold.

    Raises ValueError for claims that tolerate other holds, and with `required` for those that do not tolerate this one.
    """
    required_toleration = toleration(hold)
    broad = [request for claim in wanted.claims for request in tolerating_others(claim, hold)]
    if broad:
        raise ValueError(
            f"workload {wanted.name}: {', '.join(broad)} tolerates other holds than {hold}, and could take what is "
            f"held for others: use only the toleration {required_toleration}"
        )
    untolerated = [request for claim in wanted.claims for request in not_tolerating(claim, hold)]
    if untolerated and required:
        raise ValueError(
            f"workload {wanted.name}: {', '.join(untolerated)} does not tolerate hold {hold}, so the job could "
            f"not use the held devices. Add {required_toleration} to the tolerations of each request of its claims or "
            "templates"
        )
    return untolerated


def protect_of(option: Object | None) -> Protection:
    """The option `protect` with its defaults."""
    values = {name: spec.get("default") for name, spec in PROTECT.items()}
    values.update({name: value for name, value in (option or {}).items() if value is not None})
    labels = {str(key): str(value) for key, value in (values["labels"] or {}).items()}
    return Protection(tuple(values["namespaces"]), labels, values["priority"], tuple(values["controllers"]))


def make_plan(params: Object) -> Object:
    """What the module returns. Raises ValueError, KeyError and EngineMissing."""
    for name, minimum in (("count", 1), ("max_moves", 0)):
        if not minimum <= params[name] <= MAX_PODS:
            raise ValueError(f"{name}: {params[name]} is not from {minimum} to {MAX_PODS}")
    engine = engine_for(params["kubernetes_version"])
    objects = objects_of(params["objects"])
    wanted = workload(params["workload"], templates_of(objects))
    untolerated = untolerated_requests(wanted, params["hold"], params["require_toleration"])
    fleet = read(objects, params["kubernetes_version"], params["feature_gates"])
    movable_pods, kept = movable(objects, protect_of(params["protect"]), params["never"])
    tolerant = set()  # claims that tolerate the hold
    for item in objects:
        if item["kind"] == "ResourceClaim" and not not_tolerating(convert(item, V1)["spec"], params["hold"]):
            tolerant.add(f"{item['metadata']['namespace']}/{item['metadata']['name']}")
    job = Job(
        wanted, params["count"], params["hold"], params["max_moves"], params["may_wait"], max(1, params["searches"])
    )
    answer = room(fleet, job, movable_pods, engine, tolerant)
    quota_reason = not_admitted(fleet, job, answer)
    if quota_reason and answer.moves:  # no pod is moved for a job that would have to wait anyway
        answer = Room(False, at_least=answer.at_least, arrived=answer.arrived, reason=quota_reason)
        quota_reason = ""
    notes = [*fleet.notes, *fleet.upper_bound_notes, *fleet.lower_bound_notes]
    notes += [note for group in not_modelled(wanted) for note in group]
    notes += [f"workload {wanted.name}: {quota_reason}"] if quota_reason else []
    parts = {"lines": lines(answer, job), "notes": notes}
    return {**plan_result(answer), "toleration": toleration(job.hold), "lacking": untolerated, "kept": kept, **parts}


def not_admitted(fleet: Fleet, job: Job, answer: Room) -> str:
    """Why a quota of the namespace does not admit all remaining pods of the job; empty if all are admitted."""
    admission = quotas.admitted(fleet, job.workload)
    remaining = job.count - answer.arrived
    if not admission.reason or (admission.count or 0) >= remaining:
        return ""
    return f"{admission.reason}, and {remaining} are to come"


def plan_result(answer: Room) -> Object:
    """The answer as data."""
    return {
        "fits": answer.fits,
        "moves": [{"pod": move.pod, "uid": move.uid, "node": move.node, "to": move.to} for move in answer.moves],
        "at_least": answer.at_least,
        "optimal": answer.optimal,
        "devices": ["/".join(device) for device in answer.devices],
        "placements": [
            {"node": name, "devices": ["/".join(device) for device in devices]} for name, devices in answer.placements
        ],
        "arrived": answer.arrived,
        "reason": answer.reason,
    }


def lines(answer: Room, job: Job) -> list[str]:
    """The answer as readable lines."""
    if not answer.fits:
        return [f"{job.workload.name}: does not fit: {answer.reason}"]
    parts = [f"{answer.arrived} pod(s) run already"] if answer.arrived else []
    if answer.moves:
        bound = "no plan has fewer" if answer.optimal else f"at least {answer.at_least} are needed"
        parts.append(f"fits after {len(answer.moves)} move(s) ({bound})")
    else:
        parts.append("fits without moves")
    result = [f"{job.workload.name}: {', '.join(parts)}; {len(answer.devices)} device(s) will be held"]
    result += [f"  move {move.pod} from {move.node}, {_destination(move.to)}" for move in answer.moves]
    nodes: dict[str, int] = {}
    for name, _devices in answer.placements:
        nodes[name] = nodes.get(name, 0) + 1
    return result + [f"  {count} pod(s) on {name}" for name, count in nodes.items()]


def _destination(to: str) -> str:
    """Which node has room for a moved pod, as a clause; `to` is empty if none has."""
    return f"{to} has room for it" if to else "no node has room for it: it waits"


def main() -> None:
    run(
        {
            "workload": {"type": "dict", "required": True, "options": WORKLOAD},
            "count": {"type": "int", "default": 1},
            "hold": {"type": "str", "required": True},
            "require_toleration": {"type": "bool", "default": False},
            "max_moves": {"type": "int", "default": 0},
            "may_wait": {"type": "bool", "default": False},
            "never": {"type": "list", "elements": "str", "default": []},
            "protect": {"type": "dict", "default": {}, "options": PROTECT},
            "searches": {"type": "int", "default": SEARCHES},
        },
        make_plan,
    )


if __name__ == "__main__":
    main()
