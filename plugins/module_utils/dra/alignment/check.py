# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Are the devices of allocated claims aligned as the claims promise?

A scheduler looks once, when it allocates. What it saw can be old by now, and can have been wrong: so every promise is
compared with what the drivers publish today, and with what the kernel of the node says of the same PCI functions. Where
the two disagree, or one of them is silent on what it should know, the answer is C(unknown), with the reason and what to
do. Nothing that is unknown counts as kept.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import asdict, dataclass, field

from ..cel.errors import EvaluationError, Uncheckable
from ..cel.selector_text import conjuncts, mentioned
from ..kube import quantity
from ..scheduler.search_devices import LIST, DeviceId, attribute, comparable
from ..scheduler.search_requests import class_selectors, expressions
from ..scheduler.search_selection import Engine
from ..vendors.drivers import DRIVERS
from .devices import (
    CPU,
    GPU,
    KERNEL,
    LOCALITY,
    NIC,
    Facts,
    Machine,
    Object,
    Pools,
    Published,
    address_of,
    hidden,
    kind_of,
    nearer,
    v1,
    value_of,
)

KEPT, BROKEN, UNKNOWN, NONE = "kept", "broken", "unknown", "none"
#: Of several verdicts the first of these that occurs is the verdict of all.
_WORST = (BROKEN, UNKNOWN, KEPT, NONE)

SEVERITIES = ("error", "warning", "note")

_PROBE_AGAIN = "probe the node again (playbook lanewise.dra.probe) and look at the driver's log there"
_RESTART = "if it stays so, look at the driver's log on the node: it has not published the devices anew"
_POD_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_FREE = "which is free"
_CONTAINER = re.compile(r"([0-9a-f]{64})")


@dataclass
class Reason:
    """Why something cannot be told, and the way out."""

    reason: str
    fix: str = ""


@dataclass
class Device:
    """A device that a claim has. C(state) is current, stale (only an older generation of its pool has it), gone,
    incomplete (slices of its pool are missing, and it is in none that is there) or no-pool. C(namesake) tells that the
    claim has one of the same driver and name of another pool too."""

    request: str
    driver: str
    pool: str
    device: str
    node: str | None = None
    kind: str = "other"
    address: str | None = None
    numa_node: int | None = None
    state: str = "current"
    admin: bool = False
    published: Published | None = None
    namesake: bool = False

    @property
    def shown(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}" if self.namesake else f"{self.driver}/{self.device}"

    def as_dict(self) -> Object:
        names = ("request", "driver", "pool", "device", "node", "kind", "address", "numa_node", "state", "admin")
        return {name: getattr(self, name) for name in names}


@dataclass
class Promise:
    """What a claim was promised of its devices: a constraint (C(match) or C(distinct) of an attribute), a selector, or
    a class that is gone, of which nobody knows what it asks for.

    C(values) are what the drivers publish, C(kernel) what the kernel says, by device. C(proven) tells that the kernel
    confirms a promise of locality; promises of which the kernel knows nothing rest on the driver's word alone.
    """

    rule: str
    subject: str
    requests: list[str]
    verdict: str
    values: dict[str, t.Any] = field(default_factory=dict)
    kernel: dict[str, t.Any] = field(default_factory=dict)
    proven: bool = False
    reason: str = ""
    fix: str = ""


@dataclass
class Finding:
    severity: str
    id: str
    summary: str
    fix: str = ""


def worst(verdicts: t.Iterable[str]) -> str:
    """The verdict of several: broken before unknown before kept."""
    found = set(verdicts)
    return next((one for one in _WORST if one in found), NONE)


def cgroup_cpusets(text: str) -> dict[str, dict[str, str]]:
    """By pod UID and container id, the CPUs that a container may run on.

    C(text) are lines C(PATH:CPUS) as C(grep -H . cpuset.cpus.effective) writes them in a cgroup v2 tree. Lines of
    anything but a container of a pod are passed over.
    """
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        path, _colon, cpus = line.rpartition(":")
        pod, containers = _POD_UID.search(path), _CONTAINER.findall(path)
        if pod and containers and cpus.strip():
            found.setdefault(pod.group(1).replace("_", "-"), {})[containers[-1]] = cpus.strip()
    return found


class Check:
    """What all claims are compared with.

    C(slices), C(classes) and C(pods) are objects as the API serves them, C(machines) topology facts by node. C(pods)
    or C(classes) None means that nobody looked for them. C(cpusets) are CPU lists by pod UID and container name or id,
    read on the node. C(engine) evaluates selectors; without one they are unknown. Raises ValueError for objects of
    other kinds.
    """

    def __init__(
        self,
        slices: t.Iterable[Facts],
        pods: t.Iterable[Facts] | None = None,
        classes: t.Iterable[Facts] | None = None,
        machines: t.Mapping[str, Facts] | None = None,
        cpusets: t.Mapping[str, t.Mapping[str, str]] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.pools = Pools(slices)
        self.pods: dict[tuple[str, str], Facts] | None = None
        if pods is not None:
            self.pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in pods}
        self.classes: dict[str, Facts] | None = None
        if classes is not None:
            self.classes = {one["metadata"]["name"]: v1(one, "DeviceClass") for one in classes}
        self.machines: dict[str, Machine] = {}
        self.unusable: dict[str, str] = {}
        for node, facts in (machines or {}).items():
            try:
                self.machines[node] = Machine(facts, self.pools.on(node))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.unusable[node] = str(error)
        self.cpusets = cpusets or {}
        self.engine = engine
        self.holders: dict[DeviceId, str] = {}
        self.consumed: dict[DeviceId, list[Facts]] = {}  # consumedCapacity of each share
        self.taken: dict[DeviceId, str] = {}

    def run(self, claims: t.Iterable[Facts], wanted: t.Callable[[Facts], bool] = lambda claim: True) -> Object:
        """One report of each claim that is allocated and C(wanted), and a summary; see the module's documentation.

        C(claims) are all of the cluster: they tell which devices are free.
        """
        known = [v1(one, "ResourceClaim") for one in claims]
        for claim in known:
            for one in _results(claim):
                if not one.get("adminAccess"):
                    identity = (one["driver"], one["pool"], one["device"])
                    self.holders[identity] = title(claim)
                    self.consumed.setdefault(identity, []).append(one.get("consumedCapacity") or {})
        self.taken = self.pools.taken(self.holders)
        known = [claim for claim in known if wanted(claim)]
        reports = [_Claim(self, claim).report() for claim in known if _results(claim)]
        counts = {name: sum(one["verdict"] == name for one in reports) for name in _WORST}
        unproven = sum(one["verdict"] == KEPT and not one["proven"] for one in reports)
        summary = {**counts, "claims": len(reports), "pending": len(known) - len(reports), "unproven": unproven}
        return {"claims": reports, "summary": summary, "unusable_facts": self.unusable}


def failures(reports: t.Iterable[Object], require_proof: bool = False) -> list[str]:
    """What a run has to fail for, a line each: broken promises and, where proof is required, all that lacks it."""
    found = []
    for report in reports:
        lacking = report["verdict"] == UNKNOWN or (report["verdict"] == KEPT and not report["proven"])
        if report["verdict"] == BROKEN or (require_proof and lacking):
            told = [one for one in report["findings"] if one["severity"] != "note"]
            why = "; ".join(one["summary"] for one in told) or "no probe of its node confirms it"
            word = "not proven" if report["verdict"] == KEPT else report["verdict"]
            found.append(f"{report['claim']} is {word}: {why}")
    return found


def lines(reports: t.Iterable[Object]) -> list[str]:
    """For a person: each claim with its verdict, and what was found of it."""
    words = {KEPT: "aligned as promised", BROKEN: "BROKEN", UNKNOWN: "cannot tell", NONE: "nothing was promised"}
    found = []
    for report in reports:
        proof = "" if report["verdict"] != KEPT or report["proven"] else ", by the drivers' word alone"
        found.append(f"{report['claim']} on {report['node'] or 'no one node'}: {words[report['verdict']]}{proof}")
        for one in report["findings"]:
            found.append(f"  {one['severity']}: {one['summary']}" + (f" -> {one['fix']}" if one["fix"] else ""))
    return found


def title(claim: Facts) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"


def _allocation(claim: Facts) -> Facts:
    return (claim.get("status") or {}).get("allocation") or {}


def _results(claim: Facts) -> list[Facts]:
    return list((_allocation(claim).get("devices") or {}).get("results") or ())


class _Claim:
    """One allocated claim."""

    def __init__(self, check: Check, claim: Object) -> None:
        self.check = check
        self.claim = claim
        self.spec = claim["spec"]["devices"]
        self.reasons: list[Reason] = []
        self.findings: list[Finding] = []
        self.broken: list[Reason] = []
        self.devices = [self._device(result) for result in _results(claim)]
        self.node = self._node()
        self.machine = check.machines.get(self.node or "")
        for device in self.devices:
            device.kind = kind_of(device.driver, device.address, self.machine)
            device.numa_node = self.machine.numa_of(device.address) if self.machine else None
            alike = [one for one in self.devices if (one.driver, one.device) == (device.driver, device.device)]
            device.namesake = any(one.pool != device.pool for one in alike)

    def report(self) -> Object:
        for device in self.devices:
            self._state(device)
        pods = self._pods()
        promises = self._constraints() + self._selectors()
        for promise in promises:
            if promise.verdict != KEPT:
                severity = "error" if promise.verdict == BROKEN else "warning"
                what = f"{promise.rule} {promise.subject} of {', '.join(promise.requests)}"
                self._find(severity, f"promise-{promise.verdict}", f"{what}: {promise.reason}", promise.fix)
        for reason in self.broken:
            self._find("error", "claim-broken", reason.reason, reason.fix)
        for reason in self.reasons:
            self._find("warning", "cannot-tell", reason.reason, reason.fix)
        pairs = self._pairs(promises)
        self._conditions()
        preferences = self._preferences()
        cpus = self._cpus(pods)
        verdicts = [promise.verdict for promise in promises]
        verdicts += [BROKEN] * bool(self.broken) + [UNKNOWN] * bool(self.reasons)
        self.findings.sort(key=lambda one: SEVERITIES.index(one.severity))
        return {
            "claim": title(self.claim),
            "uid": self.claim["metadata"].get("uid"),
            "node": self.node,
            "verdict": worst(verdicts),
            "proven": bool(promises) and all(one.proven for one in promises) and not self.reasons,
            "pods": pods,
            "devices": [device.as_dict() for device in self.devices],
            "promises": [asdict(promise) for promise in promises],
            "preferences": preferences,
            "pairs": pairs,
            "cpus": cpus,
            "findings": [asdict(one) for one in self.findings],
        }

    def _find(self, severity: str, name: str, summary: str, fix: str = "") -> None:
        self.findings.append(Finding(severity, name, summary, fix))

    # devices

    def _device(self, result: Facts) -> Device:
        driver, pool_name, name = result["driver"], result["pool"], result["device"]
        found = Device(result["request"], driver, pool_name, name, admin=bool(result.get("adminAccess")))
        found.address = address_of(driver, {"name": name})
        pool = self.check.pools.pool(driver, pool_name)
        if pool is None:
            found.state = "no-pool"
            return found
        published = pool.devices.get(name)
        if published is not None:
            found.published, found.node, found.address = published, published.node, published.address
            return found
        found.node = next(iter(pool.nodes)) if len(pool.nodes) == 1 else None
        found.state = "stale" if name in pool.older else "gone" if pool.whole else "incomplete"
        return found

    def _state(self, device: Device) -> None:
        pool = self.check.pools.pool(device.driver, device.pool)
        if pool is None:
            fix = "does the driver still run on the node? If it was removed, delete the pods and the claim"
            self.reasons.append(Reason(f"{device.driver} no longer publishes the pool {device.pool}", fix))
        elif device.state == "stale":
            told = (
                f"{device.shown} is only in generation {pool.older[device.device]} of the pool {device.pool}, which is "
            )
            self.reasons.append(Reason(f"{told}at {pool.generation}: its slice is stale", _RESTART))
        elif device.state == "gone":
            fix = "look for the device on the node; if it is gone for good, delete the pods and the claim"
            self.reasons.append(Reason(f"{device.shown} is gone from its pool {device.pool}", fix))
        elif device.state == "incomplete":
            told = f"{device.shown}: {pool.slices} of {pool.wanted} slices of the pool {device.pool} are there"
            self.reasons.append(Reason(told, "wait for the driver to publish the rest; " + _RESTART))
        published = device.published
        if published is None:
            return
        for taint in published.device.get("taints") or ():
            what = f"{device.shown} has the taint {taint['key']}:{taint['effect']}"
            self._find("warning", "tainted", what, "mend the device, or delete the pod to get another one")
        if self.machine and self.machine.lacks(published):
            told = f"{device.shown} is published, but the probe of {self.node} has no PCI function {device.address}"
            self.reasons.append(Reason(told, _PROBE_AGAIN))

    def _node(self) -> str | None:
        """The node that the claim is allocated to, by its devices and by the allocation's own word."""
        nodes = {device.node for device in self.devices if device.node}
        if len(nodes) > 1:
            told = f"its devices are on several nodes: {', '.join(sorted(nodes))}"
            self.broken.append(Reason(told, "delete the pod and the claim, so that they are scheduled anew"))
            return None
        stated = set()
        for term in (_allocation(self.claim).get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
            for entry in [*(term.get("matchFields") or ()), *(term.get("matchExpressions") or ())]:
                if entry.get("key") in ("metadata.name", "kubernetes.io/hostname") and entry.get("operator") == "In":
                    stated |= set(entry.get("values") or ())
        if nodes and len(stated) == 1 and nodes != stated:
            told = f"it is allocated to node {next(iter(stated))}, and its devices are now published for "
            self.reasons.append(Reason(told + next(iter(nodes)), _RESTART))
        if nodes:
            return next(iter(nodes))
        return next(iter(stated)) if len(stated) == 1 else None

    # who uses it

    def _pods(self) -> list[Object]:
        found: list[Object] = []
        namespace = self.claim["metadata"]["namespace"]
        consumers = (self.claim.get("status") or {}).get("reservedFor") or ()
        if not consumers:
            self._find(
                "note", "unused", "it has devices, and no pod is reserved for it", "delete it if nobody needs it"
            )
        for consumer in consumers:
            if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
                continue
            name = consumer["name"]
            entry: Object = {"name": name, "uid": consumer.get("uid"), "node": None, "phase": None}
            found.append(entry)
            if self.check.pods is None:
                continue
            pod = self.check.pods.get((namespace, name))
            if pod is None or (consumer.get("uid") and pod["metadata"].get("uid") not in (None, consumer["uid"])):
                entry["phase"] = "Gone"
                told = f"its consumer, pod {name}, is gone" + (": another pod has its name" if pod else "")
                fix = "the controller manager lifts the reservation in a moment; if not, look at its log"
                self.reasons.append(Reason(told, fix))
                continue
            entry["node"] = (pod.get("spec") or {}).get("nodeName")
            entry["phase"] = (pod.get("status") or {}).get("phase")
            if entry["phase"] in ("Succeeded", "Failed"):
                self._find("note", "ended", f"pod {name} has ended, and still has the devices", "delete the pod")
            elif entry["node"] and self.node and entry["node"] != self.node:
                told = f"it is allocated to node {self.node}, and its pod {name} runs on {entry['node']}"
                fix = (
                    "delete the pod: it cannot have these devices there (was it bound by hand or by another scheduler?)"
                )
                self.reasons.append(Reason(told, fix))
        return found

    # what was promised

    def _constraints(self) -> list[Promise]:
        found = []
        for entry in self.spec.get("constraints") or ():
            distinct = "matchAttribute" not in entry
            name = entry.get("distinctAttribute" if distinct else "matchAttribute")
            if name is None:
                continue
            covered = [one for one in self.devices if _covers(entry.get("requests"), one.request)]
            # a constraint on the alternative that was not taken ties nothing
            if len(covered) > 1:
                found.append(self._constraint(name, distinct, covered))
        return found

    def _constraint(self, name: str, distinct: bool, covered: list[Device]) -> Promise:
        requests = list(dict.fromkeys(one.request for one in covered))
        promise = Promise("distinct" if distinct else "match", name, requests, UNKNOWN)
        lost = [one for one in covered if one.published is None]
        if lost:
            promise.reason = f"nothing tells where {' and '.join(one.shown for one in lost)} is now"
            promise.fix = "see the findings of the claim's devices"
            return promise
        known = [(one, one.published) for one in covered if one.published is not None]
        for one, published in known:
            promise.values[one.shown] = value_of(attribute(published.offer, name))
        missing = [shown for shown, value in promise.values.items() if value is None]
        if missing:
            promise.reason = f"{' and '.join(missing)} no longer has the attribute {name}"
            promise.fix = "was the driver downgraded, or a setting changed? Look at its slices and its version"
            return promise
        hollow = [shown for shown, value in promise.values.items() if value in ("", -1) and not isinstance(value, bool)]
        if hollow:
            value = promise.values[hollow[0]]
            promise.reason = f"{' and '.join(hollow)} says {value!r}, which means that its driver does not know"
            promise.fix = f"align on another attribute than {name}, or mend what keeps the driver from reading it"
            return promise
        said = _holds([_compared(published, name) for _one, published in known], distinct)
        promise.verdict = KEPT if said else BROKEN
        told = ", ".join(f"{shown} has {value}" for shown, value in promise.values.items())
        if not said:
            promise.reason = f"the devices {'have the same' if distinct else 'differ in'} {name}: {told}"
            promise.fix = "delete the pod and the claim, so that they are scheduled anew with what is published now"
        nodes = {published.node for _one, published in known if published.node}
        if name in LOCALITY and not distinct and len(nodes) > 1:
            promise.verdict, promise.reason = BROKEN, f"equal values of {name} on several nodes are no common place"
            return promise
        self._ask_kernel(promise, name, distinct, known)
        return promise

    def _ask_kernel(self, promise: Promise, name: str, distinct: bool, known: list[tuple[Device, Published]]) -> None:
        """Compare what was published with what the kernel of the node says."""
        machine = self.machine
        if name not in KERNEL:
            promise.proven = name not in LOCALITY and promise.verdict == KEPT
            return
        if machine is None or not machine.probed:
            return
        readings = [
            (one.shown, value_of(attribute(published.offer, name)), machine.kernel_value(published, name))
            for one, published in known
            if one.address
        ]
        promise.kernel = {shown: kernel for shown, _value, kernel in readings}
        lists = any(isinstance(value, list) for _shown, value, _kernel in readings)
        complete = len(readings) == len(known) and None not in promise.kernel.values()
        truth = _holds([kernel for _shown, _value, kernel in readings], distinct) if complete else None
        differ = [reading for reading in readings if _own(reading[1]) != reading[2]]
        if not differ:
            # the kernel confirms the first of a list: where those are equal one is shared, else it says nothing
            promise.proven = complete and promise.verdict == KEPT and (not lists or (bool(truth) and not distinct))
            return
        told = "; ".join(
            dict.fromkeys(
                f"{shown}: the driver publishes {value}, the kernel says {'nothing' if kernel is None else kernel}"
                for shown, value, kernel in differ
            )
        )
        if truth is not None and not lists and truth == (promise.verdict == KEPT):
            # both readings come to the same answer, by different values
            self._find("warning", "driver-and-kernel-differ", f"{name}: {told}", _PROBE_AGAIN)
            promise.proven = truth
            return
        promise.verdict = UNKNOWN
        promise.reason = f"the slices and the probed topology of {self.node} disagree on {name}: {told}"
        promise.fix = _PROBE_AGAIN

    def _selectors(self) -> list[Promise]:
        """Do the devices still match what the requests and classes ask for? What nobody can check is unknown."""
        found: list[Promise] = []
        bodies = dict(_bodies(self.spec))
        for device in self.devices:
            body = bodies.get(device.request)
            if body is None or device.published is None:
                continue
            asked = []
            name = str(body.get("deviceClassName"))
            if self.check.classes is not None and name not in self.check.classes:
                told = "the DeviceClass is gone, and with it what it asked for"
                fix = "apply the class again: without it, new pods cannot have this claim either"
                asked.append(Promise("class", name, [device.request], UNKNOWN, reason=told, fix=fix))
            entries = [*class_selectors(self.check.classes or {}, body), *(body.get("selectors") or ())]
            asked += [self._selector(text, device, device.published) for text in expressions(entries)]
            if len(expressions(entries)) < len(entries):
                told = "a selector is of another kind than cel, and nothing here can evaluate it"
                fix = "see for yourself whether the device still matches"
                asked.append(Promise("selector", name, [device.request], UNKNOWN, reason=told, fix=fix))
            # what nobody can check is told once for all devices of a request
            found += [one for one in asked if one.verdict != UNKNOWN or one not in found]
        return found

    def _selector(self, text: str, device: Device, published: Published) -> Promise:
        promise = Promise("selector", text, [device.request], UNKNOWN)
        if self.check.engine is None:
            promise.reason, promise.fix = "nothing here can evaluate it", "install cel-expr-python on the controller"
            return promise
        try:
            promise.proven = self.check.engine.matches(text, published.device, device.driver)
            if promise.proven:
                promise.verdict = KEPT
                return promise
            silent = _by_silence(self.check.engine, text, published)
            if silent:
                told = f"{device.driver} does not tell {', '.join(silent)} while a pod has the device"
                hint = DRIVERS[device.driver].hint("in_use")
                promise.reason, promise.fix = told, "look again when no pod has it" + (f"; {hint}" if hint else "")
                return promise
            promise.verdict, promise.reason = BROKEN, f"{device.shown} no longer matches"
            promise.fix = "delete the pod and the claim for another device, or change what is asked for"
        except Uncheckable as error:
            promise.reason, promise.fix = str(error), "see for yourself whether the device still matches"
        except EvaluationError as error:
            promise.reason, promise.fix = f"{device.shown}: {error}", "guard the selector with has()"
        return promise

    def _preferences(self) -> list[Object]:
        """Which alternative of each firstAvailable request was taken."""
        found: list[Object] = []
        taken = {one.request for one in self.devices}
        for request in self.spec.get("requests") or ():
            names = [sub["name"] for sub in request.get("firstAvailable") or ()]
            chosen = next((name for name in names if f"{request['name']}/{name}" in taken), None)
            if chosen is None:
                continue
            better = names[: names.index(chosen)]
            entry = {"request": request["name"], "chosen": chosen, "rank": len(better) + 1, "of": len(names)}
            found.append({**entry, "better": better})
            if better:
                told = f"request {request['name']} got {chosen}, its choice {len(better) + 1} of {len(names)}"
                fix = f"{', '.join(better)} was not to be had when it was scheduled; a pod made anew may get it"
                self._find("note", "fallback", told, fix)
        return found

    # how near they are

    def _pairs(self, promises: list[Promise]) -> list[Object]:
        """The affinity of each GPU with each NIC of the claim, and what could be nearer."""
        # who has admin access watches devices, and sends nothing
        own = [one for one in self.devices if one.published and not one.admin]
        gpus = [one for one in own if one.kind == GPU]
        nics = [one for one in own if one.kind == NIC]
        tied = [one for one in promises if one.rule == "match" and one.verdict == KEPT and one.subject in LOCALITY]
        found: list[Object] = []
        for gpu in gpus:
            best: tuple[str, Device | None, list[str]] = ("UNKNOWN", None, [])
            for nic in nics:
                level, via = self.machine.level(gpu.address, nic.address) if self.machine else ("UNKNOWN", None)
                promised = [one.subject for one in tied if {gpu.request, nic.request} <= set(one.requests)]
                entry: Object = {"gpu": gpu.shown, "gpu_address": gpu.address, "nic": nic.shown}
                found.append({**entry, "nic_address": nic.address, "level": level, "via": via, "promised": promised})
                if best[1] is None or nearer(level, best[0]):
                    best = (level, nic, promised)
            if nics and best[1]:
                self._could_be_nearer(gpu, best[0], best[1], best[2])
        return found

    def _could_be_nearer(self, gpu: Device, level: str, nic: Device, promised: list[str]) -> None:
        machine = self.machine
        if machine is None or self.node is None or level == "UNKNOWN":
            return
        own = {one.address for one in self.devices}
        best: tuple[str, list[Published]] = (level, [])
        for other in self.check.pools.on(self.node):
            # a nearer NIC of another rate is no better one, nor is one that nobody shall get
            if other.address in own or not machine.alike(nic.address, other.address) or other.device.get("taints"):
                continue
            near = machine.level(gpu.address, other.address)[0]
            if nearer(near, best[0]):
                best = (near, [other])
            elif near == best[0] and best[1]:
                best[1].append(other)
        if not best[1]:
            return
        states = [self._state_of(one) for one in best[1]]
        state = _FREE if _FREE in states else states[0]
        other = best[1][states.index(state)]
        told = f"{gpu.shown} has {nic.shown} at {level}; {other.driver}/{other.name}, {state}, would be at {best[0]}"
        if promised:
            told = f"aligned as promised by {' and '.join(promised)}, but could be nearer: {told}"
            fix = "a promise on an attribute is not one of the same switch; ask for the NIC by its near GPU or its rail"
        else:
            told = f"could be aligned: {told}"
            fix = "ask for it: align: [pcie_root, numa_node, any] in dra_claims_templates"
        self._find("note", "could-be-aligned", told, fix)

    def _state_of(self, other: Published) -> str:
        """Who keeps a device from being given away, in words."""
        holder = self.check.taken.get(other.id)
        if holder is None:
            return _FREE
        direct = other.id in self.check.holders
        shared = direct and other.device.get("allowMultipleAllocations")
        left = _is_left(other.device, self.check.consumed[other.id]) if shared else False
        if left is not False:
            return _FREE if left else "which is shared"
        return f"which {holder} has" if direct and not shared else f"of which {holder} has a part"

    def _conditions(self) -> None:
        for entry in (self.claim.get("status") or {}).get("devices") or ():
            for condition in entry.get("conditions") or ():
                if condition.get("status") == "False" and condition.get("reason") != "Prepared":
                    told = f"{entry['driver']}/{entry['device']} is not {condition['type']}: {condition.get('message')}"
                    self._find("warning", "not-ready", told, "see the events of the pod and the driver's log")

    def _cpus(self, pods: list[Object]) -> list[Object]:
        """Where each container's CPUs are, against where the claim's devices are."""
        found: list[Object] = []
        nodes = sorted({one.numa_node for one in self.devices if one.numa_node is not None and one.kind != CPU})
        for pod in pods:
            known = self.check.cpusets.get(str(pod["uid"])) or {}
            for container, cpus in sorted(self._named(pod, known).items()):
                lie = self.machine.nodes_of_cpus(cpus) if self.machine else None
                verdict = "unknown"
                if lie is not None and nodes:
                    verdict = "near" if set(lie) <= set(nodes) else "spread" if set(lie) & set(nodes) else "far"
                found.append(
                    {
                        "pod": pod["name"],
                        "container": container,
                        "cpus": cpus,
                        "numa_nodes": lie,
                        "device_numa_nodes": nodes,
                        "verdict": verdict,
                    }
                )
                if verdict in ("far", "spread"):
                    told = f"container {container} of pod {pod['name']} may run on CPUs {cpus} of NUMA nodes "
                    told += f"{', '.join(map(str, lie or ()))}; its devices are on {', '.join(map(str, nodes))}"
                    fix = "claim CPUs with them (kind: cpu, align: numa_node), or let kubelet align CPUs"
                    self._find("note", f"cpus-{verdict}", told, fix)
        return found

    def _named(self, entry: Object, cpusets: t.Mapping[str, str]) -> dict[str, str]:
        """CPU sets by the name of the container; those of containers that the pod does not have are left out."""
        pod = (self.check.pods or {}).get((self.claim["metadata"]["namespace"], entry["name"])) or {}
        status = pod.get("status") or {}
        names = {}
        for one in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
            names[str(one.get("containerID", "")).rpartition("/")[2]] = one["name"]
            names[one["name"]] = one["name"]
        return {names[key]: cpus for key, cpus in cpusets.items() if key in names}


def _is_left(device: Facts, shares: t.Sequence[Facts]) -> bool | None:
    """Whether shares leave something of each capacity of a device; None where they do not tell what they have."""
    told = True
    for name, entry in (device.get("capacity") or {}).items():
        used = [quantity.parse(share[name]) for share in shares if name in share]
        if sum(used) >= quantity.parse(entry["value"]):
            return False
        told = told and len(used) == len(shares)
    return True if told else None


def _covers(requests: t.Sequence[str] | None, request: str) -> bool:
    """Whether a constraint covers a result; of a request with alternatives its name covers them all."""
    return not requests or request in requests or request.partition("/")[0] in requests


def _compared(published: Published, name: str) -> t.Any:
    value = comparable(published.offer, name)
    return frozenset(value_of(attribute(published.offer, name)) or ()) if value is LIST else value


def _own(value: t.Any) -> t.Any:
    """What a device has for itself: of a list the first, which others as good follow."""
    return value[0] if isinstance(value, list) and value else value


def _holds(values: t.Sequence[t.Any], distinct: bool) -> bool:
    """Whether values are all the same, or all different; lists (gate DRAListTypeAttributes) by what they share."""
    if any(isinstance(value, frozenset) for value in values):
        sets = [value if isinstance(value, frozenset) else frozenset([value[1]]) for value in values]
        if distinct:
            return all(not one & other for at, one in enumerate(sets) for other in sets[at + 1 :])
        return bool(frozenset.intersection(*sets))
    return len(set(values)) == (len(values) if distinct else 1)


def _by_silence(engine: Engine, text: str, published: Published) -> list[str]:
    """The attributes by which alone a selector does not match, because the driver does not tell them of a device that a
    pod has; empty where anything that it does tell decides."""
    silent = hidden(published)
    found: set[str] = set()
    for part in conjuncts(text) if mentioned(text, silent) else ():
        try:
            if engine.matches(part, published.device, published.driver):
                continue
        except (EvaluationError, Uncheckable):
            continue  # another part decides
        names = mentioned(part, silent)
        if not names:
            return []
        found |= names
    return sorted(found)


def _bodies(devices: Facts) -> t.Iterator[tuple[str, Facts]]:
    """What is asked for, by the request name that results have."""
    for request in devices.get("requests") or ():
        if request.get("firstAvailable"):
            for sub in request["firstAvailable"]:
                yield f"{request['name']}/{sub['name']}", sub
        else:
            yield request["name"], request.get("exactly") or {}
