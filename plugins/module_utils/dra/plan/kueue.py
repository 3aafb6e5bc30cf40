# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""How many more pods of a workload a Kueue queue admits, each as a separate job.

A workload is in a queue if it has the queue label. Preemption and fair sharing are not modelled: used quota stays used.
Source: pkg/cache/scheduler/resource_node.go and pkg/dra of Kueue 0.19.2.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import replace
from fractions import Fraction

from ..cel.errors import EvaluationError, Uncheckable
from ..claims.selector_cache import SelectorCache
from ..kube import quantity
from ..kube.objects import ObjectView
from ..queues.objects import API_VERSION
from ..queues.variants import kueue_charge
from ..scheduler.search_requests import class_selectors, expressions
from . import pods
from .flavors import Flavors, flavors_of
from .fleet import Admission, Fleet, Queues, Workload
from .pods import selected, units

__all__ = ("API_VERSION", "KINDS", "QUEUE_LABEL", "Flavors", "admitted", "flavors_for", "read")

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KINDS = ("ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor")
_NAMESPACE = "kubernetes.io/metadata.name"
_STOPPED = ("Hold", "HoldAndDrain")

#: The names of a flavor and a resource. Kueue keeps one quota for each such pair.
FlavorResource = tuple[str, str]


class _Refused(ValueError):
    """The queue admits no pod of the workload; the message is the reason."""


def read(objects: t.Iterable[ObjectView], configuration: ObjectView | None = None) -> Queues:
    """The queues that these objects of KINDS describe."""
    by_kind: dict[str, dict[str, ObjectView]] = {kind: {} for kind in KINDS}
    for item in objects:
        metadata = item["metadata"]
        name = f"{metadata['namespace']}/{metadata['name']}" if item["kind"] == "LocalQueue" else str(metadata["name"])
        by_kind[str(item["kind"])][name] = item
    return Queues(
        by_kind["ClusterQueue"], by_kind["Cohort"], by_kind["LocalQueue"], by_kind["ResourceFlavor"], configuration
    )


def flavors_for(fleet: Fleet, workload: Workload) -> Flavors:
    """The flavors of a workload's queue; empty if the workload has no queue, or the queue admits nothing."""
    name = workload.labels.get(QUEUE_LABEL)
    if not name:
        return Flavors()
    try:
        return flavors_of(fleet.queues, _queue_of(fleet.queues, workload, name), workload)
    except _Refused:
        return Flavors()


def admitted(
    fleet: Fleet, workload: Workload, cache: SelectorCache, flavors: Flavors, fitting: t.Mapping[str, int]
) -> Admission:
    """How many more pods of a workload its queue admits.

    `flavors` is the result of `flavors_for`. If the flavors have workloads, `fitting` is how many pods fit on the nodes
    of each flavor. Raises QuantityError for quantities that cannot be read.
    """
    name = workload.labels.get(QUEUE_LABEL)
    if not name:
        return Admission(None)
    try:
        queue = _queue_of(fleet.queues, workload, name)
        if fleet.queues.configuration is None:
            note = f"{_title(queue)}: Kueue's configuration is unknown, so it may admit fewer"
            return Admission(None, notes=(note, *flavors.notes), certain=False)
        if flavors.workloads is not None and not flavors.workloads:
            raise _Refused(f"{_title(queue)} has no flavor whose node labels and taints suit the pod")
        charges = _charges(fleet, workload, fleet.queues.configuration, cache)
        admission = _admitted_by_quota(fleet.queues, queue, charges, flavors, fitting)
    except _Refused as refused:
        return Admission(0, str(refused))
    notes = (*admission.notes, *flavors.notes)
    return replace(admission, notes=notes, certain=admission.certain and not flavors.notes)


def _title(queue: ObjectView) -> str:
    return f"ClusterQueue {queue['metadata']['name']}"


def _queue_of(queues: Queues, workload: Workload, name: str) -> ObjectView:
    """The ClusterQueue of a workload. Raises _Refused."""
    local = queues.local.get(f"{workload.namespace}/{name}")
    if local is None:
        raise _Refused(f"there is no LocalQueue {workload.namespace}/{name}")
    cluster = str((local.get("spec") or {}).get("clusterQueue"))
    queue = queues.cluster.get(cluster)
    if queue is None:
        raise _Refused(f"LocalQueue {workload.namespace}/{name} refers to ClusterQueue {cluster}, which does not exist")
    for kind, item in (("LocalQueue", local), ("ClusterQueue", queue)):
        if (item.get("spec") or {}).get("stopPolicy") in _STOPPED:
            raise _Refused(f"{kind} {item['metadata']['name']} is stopped")
    for item in (queue.get("status") or {}).get("conditions") or ():
        if item.get("type") == "Active" and item.get("status") == "False":
            raise _Refused(f"{_title(queue)} is not active: {item.get('message')}")
    selector = queue["spec"].get("namespaceSelector")
    if not selected(selector, {_NAMESPACE: workload.namespace}):
        raise _Refused(f"{_title(queue)} does not select namespace {workload.namespace}")
    return queue


def _charges(fleet: Fleet, workload: Workload, configuration: ObjectView, cache: SelectorCache) -> t.Mapping[str, int]:
    """The quota that one pod with its claims is charged, by resource. Raises _Refused."""
    resources = configuration.get("resources") or {}
    excluded = tuple(resources.get("excludeResourcePrefixes") or ())
    charges = {
        name: amount
        for name, amount in pods.requests(workload.pod).items()
        if amount and not (excluded and name.startswith(excluded))
    }
    charges["pods"] = 1
    mappings: dict[str, list[ObjectView]] = {}
    for mapping in resources.get("deviceClassMappings") or ():
        for device_class in mapping["deviceClassNames"]:
            mappings.setdefault(str(device_class), []).append(mapping)
    for claim in workload.claims:
        for request in claim["devices"].get("requests") or ():
            body = request.get("exactly") or {}
            if request.get("firstAvailable") or body.get("adminAccess") or body.get("allocationMode") == "All":
                raise _Refused(
                    f"Kueue does not support request {request['name']}: use the variant of its template for queues"
                )
            device_class = str(body.get("deviceClassName"))
            if device_class not in mappings:
                raise _Refused(
                    f"class {device_class} is not in Kueue's configuration, so claims of it are not admitted"
                )
            for mapping in mappings[device_class]:
                amount = int(body.get("count") or 1) * _charge_of_device(fleet, mapping, body, cache)
                charges[str(mapping["name"])] = charges.get(str(mapping["name"]), 0) + amount
    return charges


def _charge_of_device(fleet: Fleet, mapping: ObjectView, body: ObjectView, cache: SelectorCache) -> int:
    """The charge of one device of a request: one, or for each source the largest amount of its capacity or counter that
    any of the devices would take."""
    sources = mapping.get("sources") or ()
    if not sources:
        return 1
    total = 0
    for source in sources:
        kind = "counter" if "counter" in source else "capacity"
        name, driver = source[kind]["name"], source[kind].get("driver")
        selectors = [source[kind].get("deviceSelector") or {}, *class_selectors(fleet.classes, body)]
        texts = expressions([*selectors, *(body.get("selectors") or ())])
        charges: list[Fraction] = []
        requested = ((body.get("capacity") or {}).get("requests") or {}).get(name)
        devices = {
            id(offer.device): offer for node in fleet.nodes.values() for offer in node.offers if offer.driver == driver
        }
        for offer in devices.values():
            if not all(_matches(cache, text, offer.device, offer.driver) for text in texts):
                continue
            entry = (offer.device.get("capacity") or {}).get(name)
            charge = kueue_charge(requested, entry) if kind == "capacity" and entry is not None else None
            if charge is not None:
                charges.append(charge)
            for used in offer.device.get("consumesCounters") or () if kind == "counter" else ():
                if name in used["counters"]:
                    charges.append(quantity.parse(used["counters"][name]["value"]))
        if not charges:
            charged = f"the {kind} {name}, which Kueue charges as {mapping['name']}"
            raise _Refused(f"no device of the fleet can provide {charged}")
        total += math.ceil(max(charges))
    return total


def _matches(cache: SelectorCache, text: str, device: ObjectView, driver: str) -> bool:
    try:
        return bool(cache.matches(text, device, driver))
    except (EvaluationError, Uncheckable):
        return False


def _admitted_by_quota(
    queues: Queues, queue: ObjectView, charges: t.Mapping[str, int], flavors: Flavors, fitting: t.Mapping[str, int]
) -> Admission:
    """How many times the charges fit into the remaining quota, over all flavors of the queue. Raises _Refused."""
    tree = _QuotaTree(queues)
    name = str(queue["metadata"]["name"])
    notes: list[str] = []
    certain = True
    covered = {
        str(resource) for group in queue["spec"].get("resourceGroups") or () for resource in group["coveredResources"]
    }
    missing = sorted(set(charges) - covered - {"pods"})
    if missing:
        raise _Refused(f"{_title(queue)} has no quota of {missing[0]}, so it admits no pod that requests it")
    lowest: tuple[int, str] | None = None
    for group in queue["spec"].get("resourceGroups") or ():
        charged = {str(resource): charges[resource] for resource in group["coveredResources"] if charges.get(resource)}
        if not charged:
            continue
        counts: dict[str, tuple[int, str]] = {}
        for flavor in group["flavors"]:
            flavor_name = str(flavor["name"])
            available = {
                resource: max(0, tree.available(("queue", name), (flavor_name, resource))) for resource in charged
            }
            if flavors.workloads is None or flavor_name in flavors.workloads:
                counts[flavor_name] = min(
                    (available[resource] // amount, resource) for resource, amount in charged.items()
                )
        if not counts:
            raise _Refused(f"{_title(queue)} has no flavor of {min(charged)}")
        total, full = _fill_flavors(counts, fitting, flavors.ordered)
        reason = f"leaves {min(counts.values())[1]} for {total} more"
        if full:
            reason = f"admits {counts[full][0]} to flavor {full} first, and its nodes have room for {fitting[full]}"
        certain = certain and (flavors.ordered or not full)
        if lowest is None or total < lowest[0]:
            lowest = (total, f"{_title(queue)} {reason}")
    waiting = int((queue.get("status") or {}).get("pendingWorkloads") or 0)
    if waiting:
        notes.append(f"{waiting} job(s) wait in {_title(queue)} for the same quota")
    if lowest is None:
        return Admission(None, notes=tuple(notes))
    return Admission(lowest[0], lowest[1], tuple(notes), certain)


def _fill_flavors(
    counts: t.Mapping[str, tuple[int, str]], fitting: t.Mapping[str, int], ordered: bool
) -> tuple[int, str]:
    """How many pods of a queue run, and the first flavor whose nodes are full before its quota is used up.

    `counts` has how many pods the quota of each flavor admits, and the limiting resource. If the nodes of a flavor are
    full, the next pod is admitted to the flavor, takes its quota and waits for a node. If `ordered` is False, the
    number is an upper bound.
    """
    total, full = 0, ""
    for flavor, (count, _resource) in counts.items():
        total += min(count, fitting.get(flavor, count))
        if count > fitting.get(flavor, count):
            full = full or flavor
            if ordered:
                break
    return total, full


class _QuotaTree:
    """The quotas of ClusterQueues and cohorts, and their usage.

    The key of a tree node is its kind, `queue` or `cohort`, and its name. Raises _Refused for a cycle of cohorts.
    """

    def __init__(self, queues: Queues) -> None:
        self.objects: dict[tuple[str, str], ObjectView] = {}
        self.parents: dict[tuple[str, str], tuple[str, str] | None] = {}
        for name, item in queues.cohorts.items():
            self._add(("cohort", name), item, (item.get("spec") or {}).get("parentName"))
        for name, item in queues.cluster.items():
            self._add(("queue", name), item, item["spec"].get("cohortName") or item["spec"].get("cohort"))
        for parent_key in [key for key in self.parents.values() if key is not None]:
            self.parents.setdefault(parent_key, None)  # a cohort that has no object
        self.children: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for key, parent in self.parents.items():
            if parent is not None:
                self.children.setdefault(parent, []).append(key)
        for key in self.parents:
            self._check_no_cycle(key)

    def _add(self, key: tuple[str, str], item: ObjectView, parent: object) -> None:
        self.objects[key] = item
        self.parents[key] = ("cohort", str(parent)) if parent else None

    def _check_no_cycle(self, key: tuple[str, str]) -> None:
        """Raises _Refused for a cohort that is its own ancestor, in which Kueue admits nothing."""
        seen = [key]
        while (parent := self.parents[seen[-1]]) is not None:
            if parent in seen:
                raise _Refused(f"cohort {parent[1]} is its own ancestor")
            seen.append(parent)

    def _quota(self, key: tuple[str, str], pair: FlavorResource, part: str) -> int | None:
        for group in (self.objects.get(key, {}).get("spec") or {}).get("resourceGroups") or ():
            for flavor in group["flavors"]:
                for resource in flavor["resources"] if flavor["name"] == pair[0] else ():
                    if resource["name"] == pair[1] and resource.get(part) is not None:
                        return units({pair[1]: resource[part]})[pair[1]]
        return None

    def _total(self, key: tuple[str, str], pair: FlavorResource) -> int:
        """The quota of a tree node, including what its children lend."""
        lent = sum(self._total(child, pair) - self._not_lent(child, pair) for child in self.children.get(key, ()))
        return (self._quota(key, pair, "nominalQuota") or 0) + lent

    def _not_lent(self, key: tuple[str, str], pair: FlavorResource) -> int:
        """The quota that a tree node does not lend."""
        lending_limit = self._quota(key, pair, "lendingLimit")
        return 0 if lending_limit is None else max(0, self._total(key, pair) - lending_limit)

    def _used(self, key: tuple[str, str], pair: FlavorResource) -> int:
        """The quota of a tree node that jobs have reserved."""
        if key[0] == "cohort":
            children = self.children.get(key, ())
            return sum(max(0, self._used(child, pair) - self._not_lent(child, pair)) for child in children)
        for flavor in (self.objects[key].get("status") or {}).get("flavorsReservation") or ():
            for resource in flavor.get("resources") or () if flavor["name"] == pair[0] else ():
                if resource["name"] == pair[1]:
                    return units({pair[1]: resource.get("total", "0")})[pair[1]]
        return 0

    def available(self, key: tuple[str, str], pair: FlavorResource) -> int:
        """The remaining quota of a tree node: the unused part of its quota, and what it may borrow."""
        parent = self.parents[key]
        total, used = self._total(key, pair), self._used(key, pair)
        if parent is None:
            return total - used
        not_lent, from_parent = self._not_lent(key, pair), self.available(parent, pair)
        borrowing_limit = self._quota(key, pair, "borrowingLimit")
        if borrowing_limit is not None:
            from_parent = min(total - not_lent - max(0, used - not_lent) + borrowing_limit, from_parent)
        return max(0, not_lent - used) + from_parent
