#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: alignment_check
short_description: Check that the devices of allocated claims are aligned as promised
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Compares the promises of each allocated ResourceClaim (the constraints of its spec, the chosen alternative, its
    selectors) with what the DRA drivers publish now and, with O(topologies) or O(report), with what the node's kernel
    reports for the same PCI functions.
  - A promise is kept, broken, or unknown. It is unknown if a device is missing from its pool or only in a stale slice,
    if an attribute is missing or empty, if slices and kernel disagree, if a selector cannot be evaluated or the
    DeviceClass was deleted, or if the pod was deleted or is on another node. An unknown promise never counts as kept.
  - Returns how near each GPU is to each NIC of its claim, promised or not, and the predicted rate of each pair.
  - Takes Kubernetes objects as data, needs no Kubernetes client, and changes nothing.
requirements:
  - cel-expr-python >= 0.1.3, to check selectors; without it they are unknown, which RV(notes) says too
notes:
  - Run it where the data is, usually with C(delegate_to=localhost). The role P(lanewise.dra.alignment#role) fetches the
    data.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  claims:
    description:
      - All ResourceClaims of the cluster, as M(kubernetes.core.k8s_info) returns them. Claims outside O(namespaces) and
        O(labels) are not reported, but are needed to find free devices.
    type: list
    elements: dict
    required: true
  slices:
    description: All ResourceSlices of the cluster.
    type: list
    elements: dict
    required: true
  classes:
    description:
      - The DeviceClasses, whose selectors apply to the devices too. Without them, selectors of classes are not checked.
    type: list
    elements: dict
  pods:
    description: The pods. Without them, a claim's consumers are not checked.
    type: list
    elements: dict
  namespaces:
    description: Report the claims of these namespaces only.
    type: list
    elements: str
    default: []
  labels:
    description: Report the claims with these labels only.
    type: dict
    default: {}
  topologies:
    description: Facts of nodes, a dictionary from node name to RV(lanewise.dra.topology_info#module:topology).
    type: dict
    default: {}
  report:
    description:
      - Folder of a site report, as M(lanewise.dra.site_report) writes it. Used for nodes that are not in O(topologies).
    type: path
  node_names:
    description: The Kubernetes names of nodes by host, if they differ. Also used for the keys of O(topologies).
    type: dict
    default: {}
  cgroups:
    description:
      - The output of C(grep -rH . --include=cpuset.cpus.effective /sys/fs/cgroup) on each node, by host. With it, the
        CPUs of each container are compared with the NUMA nodes of its devices.
      - Only containers of the node's own pods are used.
    type: dict
    default: {}
  kubernetes_version:
    description: The minor version of Kubernetes, for the functions that selectors may use.
    type: str
    default: "1.37"
  compare:
    description: GPUs for which to return the nearest and the farthest free NIC, with claims for measuring both.
    type: list
    elements: dict
    default: []
    suboptions:
      node:
        description: The node.
        type: str
        required: true
      gpu:
        description: The PCI address of the GPU.
        type: str
        required: true
      namespace:
        description: The namespace of the claims.
        type: str
        default: default
  drivers:
    description: The DRA drivers that the nodes run, by name, as in the variable C(dra_claims_drivers). For O(compare).
    type: dict
    default: {}
  measurements:
    description: Outputs of measurement programs, reported beside the predictions.
    type: list
    elements: dict
    default: []
    suboptions:
      claim:
        description: Namespace and name of the claim whose pod measured.
        type: str
        required: true
      peer:
        description: The pod at the other end.
        type: str
      tool:
        description: The program.
        type: str
        required: true
        choices: [iperf3, ib_write_bw, ib_write_lat, all_gather_perf]
      output:
        description: The program's output; iperf3 needs C(--json).
        type: str
        required: true
      rc:
        description: The program's exit status. The output of a failed run does not count as a measurement.
        type: int
        default: 0
  seconds:
    description: Duration of each measurement of RV(measurable) in seconds.
    type: int
    default: 10
  require_proof:
    description: Whether the task also fails for unknown promises, and for kept ones that are not proven.
    type: bool
    default: false
  fail:
    description: Whether broken promises fail the task. If not, they are only returned.
    type: bool
    default: true
seealso:
  - module: lanewise.dra.alignment_report
  - module: lanewise.dra.topology_info
"""

EXAMPLES = r"""
- name: Get the claims, slices and pods
  kubernetes.core.k8s_info:
    api_version: "{{ item.api }}"
    kind: "{{ item.kind }}"
  loop:
    - {api: resource.k8s.io/v1, kind: ResourceClaim}
    - {api: resource.k8s.io/v1, kind: ResourceSlice}
    - {api: v1, kind: Pod}
  register: listed
  delegate_to: localhost
  run_once: true

- name: Check that their devices are aligned as promised
  lanewise.dra.alignment_check:
    claims: "{{ listed.results[0].resources }}"
    slices: "{{ listed.results[1].resources }}"
    pods: "{{ listed.results[2].resources }}"
    report: ./report
  delegate_to: localhost
  run_once: true

- name: Name the nearest and the farthest NIC for a GPU
  lanewise.dra.alignment_check:
    claims: "{{ listed.results[0].resources }}"
    slices: "{{ listed.results[1].resources }}"
    report: ./report
    compare:
      - {node: h100-01, gpu: "0000:1b:00.0", namespace: benchmarks}
    fail: false
  register: planned
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
ok:
  description: Whether no finding would fail the task with O(fail).
  returned: always
  type: bool
failures:
  description: The findings that would fail the task, one per line.
  returned: always
  type: list
  elements: str
lines:
  description: Each claim with its verdict and findings, as readable lines.
  returned: always
  type: list
  elements: str
  sample: ["training/job-0 on h100-01: aligned as promised"]
summary:
  description:
    - The number of C(claims), and how many of them are C(kept), C(broken), C(unknown), C(none) (nothing promised),
      C(pending), and C(unproven) (kept, but not confirmed by the kernel).
  returned: always
  type: dict
  sample: {kept: 12, broken: 0, unknown: 1, none: 2, claims: 15, pending: 1, unproven: 0}
claims:
  description: The allocated claims.
  returned: always
  type: list
  elements: dict
  contains:
    claim:
      description: Namespace and name.
      type: str
      sample: training/job-0
    uid:
      description: The claim's UID.
      type: str
    node:
      description: The node of its devices; null if they are on several nodes or the node is unknown.
      type: str
    verdict:
      description: V(kept), V(broken), V(unknown), or V(none) if nothing was promised.
      type: str
    proven:
      description: Whether every promise is kept, and the kernel confirms those of locality.
      type: bool
    pods:
      description: The claim's consumers with C(name), C(uid), C(node) and C(phase).
      type: list
      elements: dict
    devices:
      description:
        - The claim's devices with C(request), C(driver), C(pool), C(device), C(node), C(kind) (gpu, nic, cpu, other),
          PCI C(address), C(numa_node), C(admin) and C(state).
        - C(state) is V(current), V(stale), V(gone), V(incomplete) or V(no-pool).
      type: list
      elements: dict
    promises:
      description:
        - The promises. C(rule) is V(match), V(distinct), V(nearest), V(selector), or V(class) if the class was deleted;
          C(subject) is the attribute, the expression or the class.
        - C(requests), C(verdict), C(proven), C(values) as published, C(kernel) as the kernel reports it, C(reason),
          C(fix).
      type: list
      elements: dict
    preferences:
      description:
        - For each C(request) with alternatives, the C(chosen) one, its C(rank) among all (C(of)), and the C(better)
          ones.
      type: list
      elements: dict
    pairs:
      description:
        - Each GPU with each NIC of the claim, by C(gpu), C(gpu_address), C(nic), C(nic_address).
        - C(level) is V(SELF), V(PIX), V(PXB), V(PHB), V(NODE), V(SYS) or V(UNKNOWN). C(via) is a data-direct function,
          and C(promised) has the attributes that constrain the pair.
      type: list
      elements: dict
    cpus:
      description: CPUs of each container with C(pod), C(container), C(cpus), C(numa_nodes), C(device_numa_nodes) and
        C(verdict), which is V(near), V(spread), V(far) or V(unknown).
      type: list
      elements: dict
    findings:
      description: Findings, with C(severity) (V(error), V(warning), V(note)), C(id), C(summary) and C(fix).
      type: list
      elements: dict
    predictions:
      description:
        - The predicted rate of each GPU through its nearest NIC while all reported claims of the node send.
        - C(prediction) is always true, C(gb_per_s) has C(low), C(likely) and C(high) in 10^9 bytes a second or is null,
          C(limits) names the bounds, C(unknown) the missing facts.
        - C(direct) says whether the NIC reads the GPU's memory directly; null if this is unknown.
      type: list
      elements: dict
    measured:
      description: Measurements by the claim's pods, never mixed with predictions.
      type: list
      elements: dict
comparisons:
  description:
    - For each entry of O(compare), C(gpu), C(nearest) and C(farthest) with driver, device, address and level,
      C(objects) (DeviceClasses and two ResourceClaims), C(predictions) for both, and the C(reason) if something is
      missing.
  returned: always
  type: list
  elements: dict
measurable:
  description:
    - Pairs of pods between which rates can be measured. Each pod is the C(client) of one entry, with its C(claim).
      C(server) is the other pod, or null if there is none. Both have C(namespace), C(pod) and the C(container) that has
      the NIC, or null if that is unknown.
    - C(commands) has a C(server) and a C(client) command line for each program that works with the NICs of both, best
      first. If it is empty, you need your own command.
  returned: always
  type: list
  elements: dict
notes:
  description: What was not checked, with the reason.
  returned: always
  type: list
  elements: str
"""

import json
import pathlib

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.dra.alignment.check import Check, cgroup_cpusets
from ..module_utils.dra.alignment.measure import Unreadable, pairs, read
from ..module_utils.dra.alignment.plan import comparison_claims, placements, predict, predict_claims
from ..module_utils.dra.alignment.verdicts import failures, lines
from ..module_utils.dra.cel.engine import Engine, engine_for
from ..module_utils.dra.cel.errors import EngineMissing
from ..module_utils.dra.kube.objects import Object

MEASUREMENT = {
    "claim": {"type": "str", "required": True},
    "peer": {"type": "str"},
    "tool": {"type": "str", "required": True, "choices": ["iperf3", "ib_write_bw", "ib_write_lat", "all_gather_perf"]},
    "output": {"type": "str", "required": True},
    "rc": {"type": "int", "default": 0},
}
COMPARISON = {
    "node": {"type": "str", "required": True},
    "gpu": {"type": "str", "required": True},
    "namespace": {"type": "str", "default": "default"},
}
SPEC = {
    "claims": {"type": "list", "elements": "dict", "required": True},
    "slices": {"type": "list", "elements": "dict", "required": True},
    "classes": {"type": "list", "elements": "dict"},
    "pods": {"type": "list", "elements": "dict"},
    "namespaces": {"type": "list", "elements": "str", "default": []},
    "labels": {"type": "dict", "default": {}},
    "topologies": {"type": "dict", "default": {}},
    "report": {"type": "path"},
    "node_names": {"type": "dict", "default": {}},
    "cgroups": {"type": "dict", "default": {}},
    "kubernetes_version": {"type": "str", "default": "1.37"},
    "compare": {"type": "list", "elements": "dict", "default": [], "options": COMPARISON},
    "drivers": {"type": "dict", "default": {}},
    "measurements": {"type": "list", "elements": "dict", "default": [], "options": MEASUREMENT},
    "seconds": {"type": "int", "default": 10},
    "require_proof": {"type": "bool", "default": False},
    "fail": {"type": "bool", "default": True},
}


def topologies_of(module: AnsibleModule) -> dict[str, Object]:
    """Topology facts by node. The option `topologies` takes precedence over the report."""
    topologies, names = {}, module.params["node_names"]
    if module.params["report"]:
        folder = pathlib.Path(module.params["report"])
        try:
            (folder / "site.json").stat()
            for path in sorted((folder / "nodes").glob("*.json")):
                node = json.loads(path.read_bytes())
                topologies[names.get(node["host"], node["host"])] = node["facts"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            module.fail_json(msg=f"{folder} is not a readable site report: {error!r}. Run lanewise.dra.probe")
    overrides = module.params["topologies"].items()
    topologies.update({names.get(host, host): facts for host, facts in overrides if isinstance(facts, dict)})
    return topologies


def comparison_of(entry: Object, check: Check, params: Object) -> Object:
    """The result for an entry of the option `compare`."""
    node, gpu = entry["node"], entry["gpu"].lower()
    machine = check.machines.get(node)
    if machine is None:
        missing = check.unusable.get(node, "it has not been probed")
        reason = f"the topology of {node} is not known: {missing}"
        return {"node": node, "gpu_address": gpu, "reason": reason, "objects": []}
    plan = placements(node, machine, check.pools.on(node), gpu, check.taken)
    objects, reason = comparison_claims(
        plan, machine, entry["namespace"] or "default", params["drivers"], params["kubernetes_version"]
    )
    parts = [part for part in ("nearest", "farthest") if plan[part]]
    predictions = {part: predict(machine, [(gpu, plan[part]["address"])])[0] for part in parts}
    return {**plan, "objects": objects, "reason": reason or plan["reason"], "predictions": predictions}


def measurement_of(entry: Object) -> Object:
    """The result for an entry of the option `measurements`: a measurement or a problem."""
    common = {"claim": entry["claim"], "peer": entry["peer"], "tool": entry["tool"], "measured": True}
    try:
        return {**common, **read(entry["tool"], entry["output"], entry["rc"]), "problem": ""}
    except Unreadable as error:
        return {**common, "gb_per_s": None, "latency_us": None, "bytes": None, "details": {}, "problem": str(error)}


def cpusets_of(params: Object) -> dict[str, Object]:
    """The CPUs of containers by pod UID and container. Only the pods of the reporting node are used."""
    node_of_pod = {
        pod["metadata"]["uid"]: (pod.get("spec") or {}).get("nodeName")
        for pod in params["pods"] or ()
        if (pod.get("metadata") or {}).get("uid")
    }
    cpusets = {}
    for host, text in params["cgroups"].items():
        node = params["node_names"].get(host, host)
        by_pod = cgroup_cpusets(str(text))
        cpusets.update({uid: containers for uid, containers in by_pod.items() if node and node_of_pod.get(uid) == node})
    return cpusets


def engine_of(module: AnsibleModule, notes: list[str]) -> Engine | None:
    """The CEL engine; None with a note if its package is missing."""
    try:
        return engine_for(module.params["kubernetes_version"])
    except EngineMissing as error:
        notes.append(f"selectors were not checked: {error}")
    except ValueError as error:
        module.fail_json(msg=str(error))
    return None


def run_check(module: AnsibleModule, engine: Engine | None) -> tuple[Check, Object]:
    """The check, and its result for the claims that the options select."""
    params = module.params

    def wanted(claim: Object) -> bool:
        labels = claim["metadata"].get("labels") or {}
        chosen = not params["namespaces"] or claim["metadata"]["namespace"] in params["namespaces"]
        return chosen and all(labels.get(key) == str(value) for key, value in params["labels"].items())

    cpusets, topologies = cpusets_of(params), topologies_of(module)
    try:
        check = Check(params["slices"], params["pods"], params["classes"], topologies, cpusets, engine)
        return check, check.run(params["claims"], wanted)
    except ValueError as error:
        module.fail_json(msg=f"The objects cannot be read: {error}")
    except KeyError as error:
        module.fail_json(msg=f"The objects cannot be read: an object lacks the field {error}")


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params, notes = module.params, []
    check, answer = run_check(module, engine_of(module, notes))
    claims = answer["claims"]
    unprobed = sorted(
        {report["node"] for report in claims if report["node"]} - set(check.machines) - set(check.unusable)
    )
    if unprobed:
        notes.append(f"not probed, so only compared with what drivers publish: {', '.join(unprobed)}")
    notes += [f"{node}: {why}" for node, why in sorted(answer["unusable_facts"].items())]
    predictions = predict_claims(claims, check.machines)
    measurements = [measurement_of(entry) for entry in params["measurements"]]
    for report in claims:
        report["predictions"] = predictions.get(report["claim"], [])
        report["measured"] = [measurement for measurement in measurements if measurement["claim"] == report["claim"]]
    failed = failures(claims, params["require_proof"])
    result = {
        "changed": False,
        "ok": not failed,
        "failures": failed,
        "lines": lines(claims),
        "summary": answer["summary"],
        "claims": claims,
        "comparisons": [comparison_of(entry, check, params) for entry in params["compare"]],
        "measurable": pairs(claims, params["claims"], params["pods"] or (), check.pools, params["seconds"]),
        "notes": notes,
    }
    if failed and params["fail"]:
        listed = "\n".join(failed)
        module.fail_json(msg=f"{len(failed)} claim(s) are not aligned as promised:\n{listed}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
