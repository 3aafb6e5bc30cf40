#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: allocation_plan
short_description: Count how many more pods with claims fit on a fleet
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Counts how many more pods of each workload the scheduler can place, on each node and in all, with the reason why no
    more fit.
  - Lists stranded devices, which are free devices that none of the workloads can use, with the claims that prevent it.
  - Returns the same counts for the fleet after changes (O(what_if)).
  - Takes Kubernetes objects as data, needs no Kubernetes client, and changes nothing.
  - Respects the ResourceQuotas of a namespace, except quotas with scopes. For workloads with the label of a Kueue
    queue, also respects what the queue admits, but ignores what it could preempt.
  - Models the default scheduler's search for devices, its filters for node resources, taints, node selectors and
    affinity, and its spread constraints. It does not model scores, pod affinity, priorities and preemption,
    host ports, volumes, third-party plugins and other schedulers. Of pods that use one of these, fewer may fit.
  - Devices that are shared by several nodes are not counted.
extends_documentation_fragment:
  - lanewise.dra.pods.workloads
  - lanewise.dra.pods.server
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  objects:
    description:
      - The objects of the cluster by kind, as in RV(lanewise.dra.dra_objects_info#module:objects).
      - The module uses C(Node), C(Pod), C(ResourceSlice), C(ResourceClaim), C(ResourceClaimTemplate), C(DeviceClass),
        C(DeviceTaintRule), C(ResourceQuota), C(LocalQueue), C(ClusterQueue), C(Cohort) and C(ResourceFlavor).
      - Without any C(Node), each node that a slice names has room for every pod.
    type: dict
    required: true
  workloads:
    description: The pods to place.
    type: list
    elements: dict
    required: true
  what_if:
    description:
      - Changes, applied one after the other. Each is a dictionary with one key.
      - C(cordon), C(uncordon), C(drain), C(remove) take C(nodes), a list of names, or C(labels).
      - C(add) takes C(like), a node, and C(count), and may have C(labels). The new nodes are empty, and have the
        devices and labels of that node, except that C(labels) overrides labels. C(like) may also be a machine among
        O(facts) that is not a node. The devices are then those that O(drivers) would publish there, and C(allocatable)
        has the CPU, memory and other resources of such a node.
      - C(lose) takes C(node) and C(devices), names or PCI addresses.
      - C(release) takes C(claims), a list of C(namespace/name). The claims and their pods are removed.
      - C(replace) takes C(node) and C(devices), and may have C(attributes) and C(capacity) of the new devices. The
        claims that have the old devices are removed with their pods, and so are the devices' taints.
      - C(degrade) takes C(node) and C(devices), and one or more of C(attributes), C(capacity) and C(taint), which are
        then set on the devices.
      - C(server) takes C(version), such as V(1.34), and C(feature_gates).
      - C(driver) takes C(name) and the options of this driver in C(dra_claims_drivers), such as C(version). It needs
        O(facts); nodes without facts are unknown afterwards.
      - C(workload) takes the C(name) of one of O(workloads), and the keys of it that change.
    type: list
    elements: dict
    default: []
  stranded:
    description: Whether to look for stranded devices.
    type: bool
    default: true
  require:
    description: The minimum number of each workload that must fit, by name. If fewer fit, the task fails.
    type: dict
    default: {}
  by:
    description: Node labels by whose values to add up the counts, such as that of the rack.
    type: list
    elements: str
    default: []
  facts:
    description:
      - The topology facts of nodes by name, as M(lanewise.dra.topology_info) returns them.
      - Without C(Node) and C(ResourceSlice) in O(objects), these machines are the fleet, with the devices that
        O(drivers) would publish. No device is in use then, and every node has room for every pod.
    type: dict
    default: {}
  drivers:
    description: The drivers of the site with their options, as C(dra_claims_drivers). Needed for a fleet of O(facts).
    type: dict
    default: {}
  prices:
    description:
      - Prices of devices. Each is a dictionary with C(driver), C(price) and optionally C(attributes), which limits it
        to devices with these values. The first that matches applies.
    type: list
    elements: dict
    default: []
  price_unit:
    description: The unit of O(prices), such as V(EUR an hour). It is only shown.
    type: str
    default: ""
  kueue_configuration:
    description:
      - Kueue's configuration, or the part of it that M(lanewise.dra.queue_render) writes. It says what Kueue charges
        for devices.
      - Without it, the count of a workload in a queue is an upper bound.
    type: dict
seealso:
  - module: lanewise.dra.dra_objects_info
  - module: lanewise.dra.alignment_check
"""

EXAMPLES = r"""
- name: Read the cluster
  lanewise.dra.dra_objects_info:
    kinds: [Node, Pod, ResourceSlice, ResourceClaim, ResourceClaimTemplate, DeviceClass]
  delegate_to: localhost
  run_once: true
  register: cluster

- name: How many more jobs with eight aligned pairs fit, and how many without rack 4?
  lanewise.dra.allocation_plan:
    objects: "{{ cluster.objects }}"
    workloads:
      - name: eight-pairs
        namespace: training
        templates: [eight-pairs]
        pod:
          containers:
            - resources: {requests: {cpu: "64", memory: 512Gi}}
    what_if:
      - cordon: {labels: {rack: "4"}}
    by: [rack]
    require: {eight-pairs: 20}
  delegate_to: localhost
  run_once: true
  register: plan

- name: Show the answer
  ansible.builtin.debug:
    msg: "{{ plan.lines }}"
"""

RETURN = r"""
fit:
  description: The count for each workload on the current fleet.
  returned: always
  type: list
  elements: dict
  contains:
    workload:
      description: The workload's name.
      type: str
      sample: eight-pairs
    total:
      description: How many more pods fit.
      type: int
      sample: 24
    at_least:
      description: Whether more may fit, because something is unknown.
      type: bool
    at_most:
      description: Whether fewer may fit, because the pod uses something that is not modelled.
      type: bool
    held_back:
      description: How many more would fit on the nodes without the pod's spread constraints.
      type: int
    over_quota:
      description: How many more would fit, but are not admitted by the ResourceQuotas of the namespace.
      type: int
    quota:
      description: The quota and the resource that admit no more; empty if none does.
      type: str
      sample: quota team/gpus leaves gpu.deviceclass.resource.k8s.io/devices for 3 more
    nodes:
      description:
        - For each node the C(count), the C(reason) why no more fit there, and its C(kind), which is V(refused),
          V(room), V(devices), V(spread) or V(unknown).
        - C(placements) has the devices of each pod, as C(driver/pool/device).
        - C(unpaired) has a line for each free device of an aligned pair whose possible partners are all unavailable.
      type: dict
    spread:
      description:
        - How many more pods fit for each value of the labels in the pod's spread constraints.
      type: dict
      sample: {rack: {"1": 5, "2": 4}}
    by:
      description: The counts by the values of each label of O(by), without regard to quotas.
      type: dict
      sample: {rack: {"1": 8, "2": 16}}
after:
  description: The same after O(what_if); empty without it.
  returned: always
  type: list
  elements: dict
steps:
  description: The C(totals) by workload after each C(step) of O(what_if).
  returned: always
  type: list
  elements: dict
  sample: [{step: cordon, totals: {eight-pairs: 21}}]
worth:
  description:
    - The value of the devices that are certainly stranded. C(devices) is their number, C(gbps) their bandwidth (10⁹
      bits per second; each link counts once), C(money) their cost in C(unit) (null without O(prices)), and
      C(unpriced) the number of devices without a price.
  returned: always
  type: dict
fleet:
  description:
    - Every device with its state. C(shapes) are the distinct lists of devices. Each of C(nodes) has the index of its
      C(shape), and in C(states) a letter for each device of it. C(states) beside C(nodes) has the meaning of each
      letter. C(closed) is why a node takes no pods without tolerations, C(unclear) maps drivers whose devices are
      unknown to the reason.
    - M(lanewise.dra.plan_report) draws it.
  returned: always
  type: dict
table:
  description: The counts side by side, on the current fleet and after each step of O(what_if); empty without it.
  returned: always
  type: list
  elements: str
stranded:
  description:
    - Free devices of the current fleet that no workload can use, with C(node), C(device) and C(reason).
    - C(holders) are claims, each of which makes the device usable if it is deleted. If no single claim does,
      C(together) are claims that must all be deleted. If C(certain) is false, the device may be usable.
    - C(gbps) is its bandwidth and C(money) its price. Both are null if unknown, or if C(certain) is false.
  returned: always
  type: list
  elements: dict
lines:
  description: The answer as readable lines.
  returned: always
  type: list
  elements: str
  sample: ["eight-pairs: 24 more"]
notes:
  description: Objects that were not used, and what is not certain.
  returned: always
  type: list
  elements: str
"""

import dataclasses
import typing as t

from ..module_utils.dra.cel.engine import engine_for
from ..module_utils.dra.kube.objects import Object
from ..module_utils.dra.kube.versions import V1, convert
from ..module_utils.dra.plan import report_lines
from ..module_utils.dra.plan.fit import Fit, fit
from ..module_utils.dra.plan.fleet import Fleet, Workload
from ..module_utils.dra.plan.fleet_map import fleet_map
from ..module_utils.dra.plan.inputs import WORKLOAD, Templates, objects_of, templates_of, workload
from ..module_utils.dra.plan.reader import probed, read
from ..module_utils.dra.plan.scenario import Scenario, after
from ..module_utils.dra.plan.states import States
from ..module_utils.dra.plan.stranded import Stranded, stranded
from ..module_utils.dra.plan.stranded_value import StrandedValue, prices, stranded_value
from ..module_utils.plan_module import run


def fit_result(count: Fit, fleet: Fleet, labels: t.Sequence[str]) -> Object:
    """A count as the module returns it."""
    result = {key: value for key, value in dataclasses.asdict(count).items() if key != "notes"}
    return {**result, "by": {label: count.counts_by_label(fleet, label) for label in labels}}


def read_fleet(params: Object, objects: list[Object]) -> Fleet:
    """The fleet of the objects, or of the facts if the objects have no nodes and no slices. Raises ValueError."""
    release, gates = params["kubernetes_version"], params["feature_gates"]
    if params["facts"] and not any(item["kind"] in ("Node", "ResourceSlice") for item in objects):
        classes = {
            device_class["metadata"]["name"]: convert(device_class, V1)
            for device_class in objects
            if device_class["kind"] == "DeviceClass"
        }
        return probed(params["facts"], params["drivers"], classes, release, gates)
    fleet = read(objects, release, gates, params["kueue_configuration"])
    return dataclasses.replace(fleet, upper_bound_notes=(*fleet.upper_bound_notes, *missing_kinds(params["objects"])))


def missing_kinds(objects: dict[str, t.Any]) -> t.Iterator[str]:
    """What is unknown because kinds are missing from the objects; an empty list means that the kind was read."""
    if "ResourceClaim" not in objects:
        yield "objects have no ResourceClaim: no device counts as in use"
    if "Node" in objects and "Pod" not in objects:
        yield "objects have no Pod: nodes count as empty"


class FitCounter:
    """Counts for a scenario, and for the scenarios after its changes. Searches for the same workloads are reused."""

    def __init__(self, start: Scenario, labels: t.Sequence[str], gates: dict[str, bool]) -> None:
        self.start, self.labels, self.gates = start, labels, gates
        self.states: States | None = None

    def fit(self, scenario: Scenario) -> list[Fit]:
        """The counts for a scenario, one for each of its workloads."""
        server = scenario.fleet.server
        if (
            self.states is None
            or scenario.workloads is not self.start.workloads
            or not self.states.serves(scenario.fleet)
        ):
            self.states = States(scenario.fleet, scenario.workloads, engine_for(f"1.{server.minor}", server.gates))
            self.start = scenario
        return fit(scenario.fleet, scenario.workloads, self.states.cache.engine, self.states)

    def results(self, counts: t.Sequence[Fit], scenario: Scenario) -> list[Object]:
        """Counts as the module returns them."""
        return [fit_result(count, scenario.fleet, self.labels) for count in counts]


def make_plan(params: Object) -> Object:
    """What the module returns. Raises ValueError, KeyError and EngineMissing."""
    objects = objects_of(params["objects"])
    device_prices = prices(params["prices"])
    templates = templates_of(objects)
    workloads = tuple(workload(entry, templates) for entry in params["workloads"])
    fleet = read_fleet(params, objects)
    start = Scenario(
        fleet,
        workloads,
        params["facts"],
        lambda value: changed_workload(value, params, templates),
        params["drivers"],
    )
    counter = FitCounter(start, params["by"], params["feature_gates"])
    counts = counter.fit(start)
    stranded_devices: list[Stranded] = []
    if params["stranded"]:
        states = t.cast(States, counter.states)
        stranded_devices = stranded(fleet, workloads, states.cache.engine, states)
    later = after(start, params["what_if"])
    columns = [
        ("now", counts),
        *((next(iter(step)), counter.fit(scenario)) for step, scenario in zip(params["what_if"], later)),
    ]
    last = columns[-1][1] if later else []
    value = stranded_value(fleet, stranded_devices, device_prices)
    unit = params["price_unit"]
    return {
        "fit": counter.results(counts, start),
        "after": counter.results(last, later[-1]) if later else [],
        "steps": [
            {"step": step, "totals": {count.workload: count.total for count in fits}} for step, fits in columns[1:]
        ],
        "stranded": [_stranded(stranded_device, value) for stranded_device in stranded_devices],
        "worth": {
            "devices": value.devices,
            "gbps": value.gbps,
            "money": value.cost,
            "unpriced": value.unpriced,
            "unit": unit,
        },
        "fleet": fleet_map(fleet, stranded_devices, params["by"]),
        "lines": report_lines.lines(counts, last, stranded_devices, value, unit),
        "table": report_lines.table([planned.name for planned in workloads], columns) if later else [],
        "notes": sorted({note for _step, fits in columns for count in fits for note in count.notes}),
    }


def _stranded(stranded_device: Stranded, value: StrandedValue) -> Object:
    """A stranded device as the module returns it, with its value."""
    device_value = value.by_device.get((stranded_device.node, stranded_device.device))
    gbps, cost = (device_value.gbps, device_value.cost) if device_value else (None, None)
    return {**dataclasses.asdict(stranded_device), "gbps": gbps, "money": cost}


def changed_workload(value: Object, params: Object, templates: Templates) -> Workload:
    """A workload with the values that the step `workload` of `what_if` changes. Raises ValueError."""
    unknown_keys = sorted(set(value) - set(WORKLOAD))
    if unknown_keys:
        raise ValueError(f"a workload has no key {', '.join(unknown_keys)}; known are {', '.join(WORKLOAD)}")
    entry = next(entry for entry in params["workloads"] if entry["name"] == value["name"])
    # new templates or claims replace both
    without = {"templates": None, "claims": None} if {"templates", "claims"} & set(value) else {}
    return workload({**entry, **without, **value}, templates)


def unmet_requirements(result: Object, require: Object) -> list[str]:
    """The workloads of which fewer fit than required, after the changes if there are any. Raises ValueError."""
    counts = {count["workload"]: count["total"] for count in result["after"] or result["fit"]}
    unmet = []
    for name, minimum in require.items():
        if name not in counts:
            raise ValueError(f"require.{name}: no workload has this name; the names are {', '.join(counts)}")
        if not isinstance(minimum, int) or isinstance(minimum, bool):
            raise ValueError(f"require.{name}: {minimum!r} is not a whole number")
        if counts[name] < minimum:
            unmet.append(f"{name}: {counts[name]} fit, {minimum} are required")
    return unmet


def answer(params: Object) -> Object:
    """What the module returns, with the reason in `failed` if too few fit."""
    result = make_plan(params)
    unmet = unmet_requirements(result, params["require"])
    return {**result, "failed": "Too few fit. " + "; ".join(unmet)} if unmet else result


def main() -> None:
    run(
        {
            "workloads": {"type": "list", "elements": "dict", "required": True, "options": WORKLOAD},
            "what_if": {"type": "list", "elements": "dict", "default": []},
            "stranded": {"type": "bool", "default": True},
            "require": {"type": "dict", "default": {}},
            "by": {"type": "list", "elements": "str", "default": []},
            "facts": {"type": "dict", "default": {}},
            "drivers": {"type": "dict", "default": {}},
            "prices": {"type": "list", "elements": "dict", "default": []},
            "price_unit": {"type": "str", "default": ""},
            "kueue_configuration": {"type": "dict"},
        },
        answer,
    )


if __name__ == "__main__":
    main()
