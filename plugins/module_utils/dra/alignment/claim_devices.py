# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The devices of an allocated claim, their locations, and the pods that use them."""

from __future__ import annotations

from ..kube.objects import Object
from ..scheduler.published import address_of
from .cluster import Cluster, allocation, results
from .devices import Facts, kind_of
from .verdicts import Device, Finding, Reason

PROBE_AGAIN = "probe the node again (playbook lanewise.dra.probe) and look at the driver's log there"
RESTART = "if this does not change, look at the driver's log on the node: it has not published the devices again"


class ClaimDevices:
    """One allocated claim with its devices."""

    def __init__(self, check: Cluster, claim: Object) -> None:
        self.check = check
        self.claim = claim
        self.spec = claim["spec"]["devices"]
        self.reasons: list[Reason] = []
        self.findings: list[Finding] = []
        self.broken: list[Reason] = []
        self.devices = [self._device(result) for result in results(claim)]
        self.node = self._node()
        self.machine = check.machines.get(self.node or "")
        for device in self.devices:
            device.kind = kind_of(device.driver, device.address, self.machine)
            device.numa_node = self.machine.numa_of(device.address) if self.machine else None
            same_name = [
                other for other in self.devices if (other.driver, other.device) == (device.driver, device.device)
            ]
            device.name_is_ambiguous = any(other.pool != device.pool for other in same_name)

    def _add_finding(self, severity: str, name: str, summary: str, fix: str = "") -> None:
        self.findings.append(Finding(severity, name, summary, fix))

    def _device(self, result: Facts) -> Device:
        """The device of a result, with its state in the published pools."""
        driver, pool_name, name = result["driver"], result["pool"], result["device"]
        device = Device(result["request"], driver, pool_name, name, admin=bool(result.get("adminAccess")))
        device.address = address_of(driver, {"name": name})
        pool = self.check.pools.pool(driver, pool_name)
        if pool is None:
            device.state = "no-pool"
            return device
        published = pool.devices.get(name)
        if published is not None:
            device.published, device.node, device.address = published, published.node, published.address
            return device
        device.node = next(iter(pool.nodes)) if len(pool.nodes) == 1 else None
        device.state = "stale" if name in pool.older else "gone" if pool.complete else "incomplete"
        return device

    def _check_state(self, device: Device) -> None:
        """Add findings and reasons about what the driver and the probe report of a device."""
        pool = self.check.pools.pool(device.driver, device.pool)
        if pool is None:
            fix = "check whether the driver still runs on the node; if it was removed, delete the pods and the claim"
            self.reasons.append(Reason(f"{device.driver} no longer publishes the pool {device.pool}", fix))
        elif device.state == "stale":
            reason = (
                f"{device.shown} is only in generation {pool.older[device.device]} of the pool {device.pool}, which is "
            )
            self.reasons.append(Reason(f"{reason}at {pool.generation}: its slice is stale", RESTART))
        elif device.state == "gone":
            fix = "check the device on the node; if it was removed permanently, delete the pods and the claim"
            self.reasons.append(Reason(f"{device.shown} is no longer in its pool {device.pool}", fix))
        elif device.state == "incomplete":
            reason = f"{device.shown}: {pool.slices} of {pool.expected_slices} slices of the pool {device.pool} exist"
            self.reasons.append(Reason(reason, "wait for the driver to publish the rest; " + RESTART))
        published = device.published
        if published is None:
            return
        for taint in published.device.get("taints") or ():
            summary = f"{device.shown} has the taint {taint['key']}:{taint['effect']}"
            self._add_finding("warning", "tainted", summary, "repair the device, or delete the pod to get another one")
        if self.machine and self.machine.lacks(published):
            reason = f"{device.shown} is published, but the probe of {self.node} has no PCI function {device.address}"
            self.reasons.append(Reason(reason, PROBE_AGAIN))

    def _node(self) -> str | None:
        """The node to which the claim is allocated, according to its devices and the allocation's node selector."""
        nodes = {device.node for device in self.devices if device.node}
        if len(nodes) > 1:
            reason = f"its devices are on several nodes: {', '.join(sorted(nodes))}"
            self.broken.append(Reason(reason, "delete the pod and the claim, so that they are scheduled again"))
            return None
        selected = set()
        for term in (allocation(self.claim).get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
            for entry in [*(term.get("matchFields") or ()), *(term.get("matchExpressions") or ())]:
                if entry.get("key") in ("metadata.name", "kubernetes.io/hostname") and entry.get("operator") == "In":
                    selected |= set(entry.get("values") or ())
        if nodes and len(selected) == 1 and nodes != selected:
            reason = f"it is allocated to node {next(iter(selected))}, but its devices are now published for "
            self.reasons.append(Reason(reason + next(iter(nodes)), RESTART))
        if nodes:
            return next(iter(nodes))
        return next(iter(selected)) if len(selected) == 1 else None

    def _pods(self) -> list[Object]:
        """The pods for which the claim is reserved. Adds findings and reasons about them."""
        pods: list[Object] = []
        namespace = self.claim["metadata"]["namespace"]
        consumers = (self.claim.get("status") or {}).get("reservedFor") or ()
        if not consumers:
            self._add_finding(
                "note", "unused", "it has devices, but is not reserved for any pod", "delete it if it is not needed"
            )
        for consumer in consumers:
            if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
                continue
            name = consumer["name"]
            entry: Object = {"name": name, "uid": consumer.get("uid"), "node": None, "phase": None}
            pods.append(entry)
            if self.check.pods is None:
                continue
            pod = self.check.pods.get((namespace, name))
            if pod is None or (consumer.get("uid") and pod["metadata"].get("uid") not in (None, consumer["uid"])):
                entry["phase"] = "Gone"
                reason = f"its consumer, pod {name}, no longer exists" + (": another pod has its name" if pod else "")
                fix = "the controller manager removes the reservation soon; if it does not, look at its log"
                self.reasons.append(Reason(reason, fix))
                continue
            entry["node"] = (pod.get("spec") or {}).get("nodeName")
            entry["phase"] = (pod.get("status") or {}).get("phase")
            if entry["phase"] in ("Succeeded", "Failed"):
                self._add_finding("note", "ended", f"pod {name} has ended but still has the devices", "delete the pod")
            elif entry["node"] and self.node and entry["node"] != self.node:
                reason = f"it is allocated to node {self.node}, but its pod {name} runs on {entry['node']}"
                fix = (
                    "delete the pod: it cannot have these devices there (was it bound by hand or by another scheduler?)"
                )
                self.reasons.append(Reason(reason, fix))
        return pods
