# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The report of one allocated claim."""

from __future__ import annotations

import typing as t
from dataclasses import asdict

from ..kube import quantity
from ..kube.objects import Object
from ..scheduler.published import Published
from .claim_promises import ClaimPromises
from .cluster import title
from .devices import CPU, GPU, LOCALITY, NIC, Facts, nearer
from .verdicts import BROKEN, KEPT, SEVERITIES, UNKNOWN, Device, Promise, worst

_FREE = "which is free"


class ClaimReport(ClaimPromises):
    """The report of a claim: its promises, the affinity of its devices, and the NUMA nodes of its pods' CPUs."""

    def report(self) -> Object:
        """The report, as RETURN of the module lanewise.dra.alignment_check describes it."""
        for device in self.devices:
            self._check_state(device)
        pods = self._pods()
        promises = self._constraints() + self._nearest() + self._selectors()
        for promise in promises:
            if promise.verdict != KEPT:
                severity = "error" if promise.verdict == BROKEN else "warning"
                what = f"{promise.rule} {promise.subject} of {', '.join(promise.requests)}"
                self._add_finding(severity, f"promise-{promise.verdict}", f"{what}: {promise.reason}", promise.fix)
        for reason in self.broken:
            self._add_finding("error", "claim-broken", reason.reason, reason.fix)
        for reason in self.reasons:
            self._add_finding("warning", "cannot-tell", reason.reason, reason.fix)
        pairs = self._pairs(promises)
        self._check_conditions()
        preferences = self._preferences()
        cpus = self._check_cpus(pods)
        verdicts = [promise.verdict for promise in promises]
        verdicts += [BROKEN] * bool(self.broken) + [UNKNOWN] * bool(self.reasons)
        self.findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        return {
            "claim": title(self.claim),
            "uid": self.claim["metadata"].get("uid"),
            "node": self.node,
            "verdict": worst(verdicts),
            "proven": bool(promises) and all(promise.proven for promise in promises) and not self.reasons,
            "pods": pods,
            "devices": [device.as_dict() for device in self.devices],
            "promises": [asdict(promise) for promise in promises],
            "preferences": preferences,
            "pairs": pairs,
            "cpus": cpus,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def _pairs(self, promises: list[Promise]) -> list[Object]:
        """The affinity of each GPU with each NIC of the claim. Adds findings about nearer NICs."""
        # devices with admin access are only monitored and carry no traffic of the pod
        in_use = [device for device in self.devices if device.published and not device.admin]
        gpus = [device for device in in_use if device.kind == GPU]
        nics = [device for device in in_use if device.kind == NIC]
        kept_promises = [
            promise
            for promise in promises
            if promise.verdict == KEPT and (promise.rule == "nearest" or _is_locality(promise))
        ]
        pairs: list[Object] = []
        for gpu in gpus:
            best: tuple[str, Device | None, list[str]] = ("UNKNOWN", None, [])
            for nic in nics:
                level, via = self.machine.level(gpu.address, nic.address) if self.machine else ("UNKNOWN", None)
                promised = [
                    promise.subject for promise in kept_promises if {gpu.request, nic.request} <= set(promise.requests)
                ]
                entry: Object = {"gpu": gpu.shown, "gpu_address": gpu.address, "nic": nic.shown}
                pairs.append({**entry, "nic_address": nic.address, "level": level, "via": via, "promised": promised})
                if best[1] is None or nearer(level, best[0]):
                    best = (level, nic, promised)
            if nics and best[1]:
                self._could_be_nearer(gpu, best[0], best[1], best[2])
        return pairs

    def _could_be_nearer(self, gpu: Device, level: str, nic: Device, promised: list[str]) -> None:
        """Add a finding if a similar NIC of the node is nearer to a GPU than its NIC."""
        machine = self.machine
        if machine is None or self.node is None or level == "UNKNOWN":
            return
        taken = {device.address for device in self.devices}
        best: tuple[str, list[Published]] = (level, [])
        for other in self.check.pools.on(self.node):
            # a nearer NIC is not better if it has a different rate, or a taint
            if other.address in taken or not machine.alike(nic.address, other.address) or other.device.get("taints"):
                continue
            other_level = machine.level(gpu.address, other.address)[0]
            if nearer(other_level, best[0]):
                best = (other_level, [other])
            elif other_level == best[0] and best[1]:
                best[1].append(other)
        if not best[1]:
            return
        states = [self._availability(nearer_nic) for nearer_nic in best[1]]
        state = _FREE if _FREE in states else states[0]
        other = best[1][states.index(state)]
        summary = f"{gpu.shown} has {nic.shown} at {level}; {other.driver}/{other.name}, {state}, would be at {best[0]}"
        if promised:
            summary = f"aligned as promised by {' and '.join(promised)}, but could be nearer: {summary}"
            fix = "an equal attribute does not mean the same switch; request the NIC by its near GPU or its rail"
        else:
            summary = f"could be aligned: {summary}"
            fix = "request it: align: [pcie_root, numa_node, any] in dra_claims_templates"
        self._add_finding("note", "could-be-aligned", summary, fix)

    def _availability(self, device: Published) -> str:
        """Whether a device can be allocated, as a clause for a message."""
        holder = self.check.taken.get(device.id)
        if holder is None:
            return _FREE
        held_directly = device.id in self.check.holders
        shared = held_directly and device.device.get("allowMultipleAllocations")
        has_capacity = _has_capacity_left(device.device, self.check.consumed[device.id]) if shared else False
        if has_capacity is not False:
            return _FREE if has_capacity else "which is shared"
        return f"which {holder} has" if held_directly and not shared else f"which {holder} has in part"

    def _check_conditions(self) -> None:
        """Add findings for conditions of devices that are false."""
        for entry in (self.claim.get("status") or {}).get("devices") or ():
            for condition in entry.get("conditions") or ():
                if condition.get("status") == "False" and condition.get("reason") != "Prepared":
                    summary = (
                        f"{entry['driver']}/{entry['device']} is not {condition['type']}: {condition.get('message')}"
                    )
                    self._add_finding("warning", "not-ready", summary, "see the events of the pod and the driver's log")

    def _check_cpus(self, pods: list[Object]) -> list[Object]:
        """Compare the NUMA nodes of each container's CPUs with those of the claim's devices."""
        comparisons: list[Object] = []
        nodes = sorted(
            {device.numa_node for device in self.devices if device.numa_node is not None and device.kind != CPU}
        )
        for pod in pods:
            cpusets = self.check.cpusets.get(str(pod["uid"])) or {}
            for container, cpus in sorted(self._cpus_by_container(pod, cpusets).items()):
                numa = self.machine.nodes_of_cpus(cpus) if self.machine else None
                verdict = "unknown"
                if numa is not None and nodes:
                    verdict = "near" if set(numa) <= set(nodes) else "spread" if set(numa) & set(nodes) else "far"
                comparisons.append(
                    {
                        "pod": pod["name"],
                        "container": container,
                        "cpus": cpus,
                        "numa_nodes": numa,
                        "device_numa_nodes": nodes,
                        "verdict": verdict,
                    }
                )
                if verdict in ("far", "spread"):
                    summary = f"container {container} of pod {pod['name']} may run on CPUs {cpus} of NUMA nodes "
                    summary += f"{', '.join(map(str, numa or ()))}; its devices are on {', '.join(map(str, nodes))}"
                    fix = "claim CPUs with them (kind: cpu, align: numa_node), or let kubelet align CPUs"
                    self._add_finding("note", f"cpus-{verdict}", summary, fix)
        return comparisons

    def _cpus_by_container(self, entry: Object, cpusets: t.Mapping[str, str]) -> dict[str, str]:
        """CPU sets by container name, without those of containers that the pod no longer has."""
        pod = (self.check.pods or {}).get((self.claim["metadata"]["namespace"], entry["name"])) or {}
        status = pod.get("status") or {}
        names = {}
        for container_status in [
            *(status.get("containerStatuses") or ()),
            *(status.get("initContainerStatuses") or ()),
        ]:
            names[str(container_status.get("containerID", "")).rpartition("/")[2]] = container_status["name"]
            names[container_status["name"]] = container_status["name"]
        return {names[key]: cpus for key, cpus in cpusets.items() if key in names}


def _is_locality(promise: Promise) -> bool:
    """Whether a promise says that devices have the same location."""
    return promise.rule == "match" and promise.subject in LOCALITY


def _has_capacity_left(device: Facts, shares: t.Sequence[Facts]) -> bool | None:
    """Whether a device has some of each capacity left; None if the amounts of its shares are unknown."""
    complete = True
    for name, entry in (device.get("capacity") or {}).items():
        used = [quantity.parse(share[name]) for share in shares if name in share]
        if sum(used) >= quantity.parse(entry["value"]):
            return False
        complete = complete and len(used) == len(shares)
    return True if complete else None
