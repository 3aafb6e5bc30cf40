# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads a fleet from the objects of a cluster, or from the facts of probed nodes."""

from __future__ import annotations

import typing as t

from ..alignment.cluster import results, title
from ..apiserver import features
from ..holds import serving
from ..kube import quantity, versions
from ..kube.objects import Object, ObjectView
from ..scheduler.answers import Result
from ..scheduler.published import PublishedNode, PublishedNodes, v1
from ..scheduler.search_devices import DeviceId, identify
from ..vendors.drivers import knowledge
from ..vendors.offers import offers
from ..vendors.server import Server
from . import kueue, quotas
from .fleet import Fleet, HeldDevice, Node, PlacedPod, Quota
from .pods import SCHEDULER, claim_names, requests, units

#: The kinds that a fleet is read from; others are ignored.
KINDS = (
    *("Node", "Pod", "ResourceSlice", "ResourceClaim", "DeviceClass", "DeviceTaintRule", "ResourceQuota"),
    *kueue.KINDS,
)
_ENDED = ("Succeeded", "Failed")
_PROBED_NOTE = "nothing is in use there, nodes have no labels and taints, and there is room for every pod"
#: The maximum number of names in a message; further names are only counted.
_MAX_NAMES = 4


def read(
    objects: t.Iterable[ObjectView],
    kubernetes: str = f"1.{versions.NEWEST}",
    gates: features.Gates = None,
    kueue_configuration: ObjectView | None = None,
) -> Fleet:
    """The fleet that these objects describe, in the API versions that the server serves.

    Without Nodes, the nodes are those that slices name, with room for any number of pods. Unusable objects are left out
    and noted. Raises ValueError for an object that does not have the form of its kind, an unknown release, and a
    feature gate that is not true or false.
    """
    by_kind: dict[str, list[ObjectView]] = {kind: [] for kind in KINDS}
    for item in objects:
        if item.get("kind") in by_kind:
            by_kind[str(item["kind"])].append(item)
    rules = [v1_rule(rule) for rule in by_kind["DeviceTaintRule"]]
    active = serving.active(kubernetes, gates)
    server = Server(kubernetes, gates, rules if active else ())
    builder = _FleetBuilder(PublishedNodes(by_kind["ResourceSlice"], server))
    if rules and not active:
        builder.notes.append(f"{len(rules)} DeviceTaintRule(s) have no effect: their feature gates are off")
    builder.add_claims([v1(claim, "ResourceClaim") for claim in by_kind["ResourceClaim"]])
    builder.add_pods(by_kind["Pod"])
    classes = {
        device_class["metadata"]["name"]: v1(device_class, "DeviceClass") for device_class in by_kind["DeviceClass"]
    }
    nodes = {node["metadata"]["name"]: builder.node(node) for node in by_kind["Node"]}
    if not by_kind["Node"]:
        nodes = {name: builder.node({"metadata": {"name": name}}) for name in builder.published}
    builder.note_unknown_nodes(nodes)
    quotas_read = tuple(builder.quotas(by_kind["ResourceQuota"]))
    queues = kueue.read([item for kind in kueue.KINDS for item in by_kind[kind]], kueue_configuration)
    upper_bound_notes, lower_bound_notes = tuple(builder.upper_bound_notes), tuple(builder.lower_bound_notes)
    return Fleet(
        nodes, classes, server, tuple(builder.notes), quotas_read, queues, upper_bound_notes, lower_bound_notes
    )


def v1_rule(rule: ObjectView) -> ObjectView:
    """A DeviceTaintRule of any served version; all have the same spec. Raises ValueError for other kinds."""
    if rule.get("kind") != "DeviceTaintRule" or not isinstance(rule.get("spec"), dict):
        raise ValueError(f"this is not a DeviceTaintRule: {str(rule)[:80]}")
    return rule


def probed(
    facts: ObjectView,
    drivers: ObjectView,
    classes: t.Mapping[str, Object],
    kubernetes: str = f"1.{versions.NEWEST}",
    gates: features.Gates = None,
) -> Fleet:
    """A fleet without a cluster, from topology facts by node and `dra_claims_drivers`.

    No device is allocated, and there is room for every pod. Raises kube.problems.Problems for an unknown driver,
    ValueError for an unknown release and a feature gate that is not true or false, KeyError and TypeError for facts
    that topology_info does not return.
    """
    server = Server(kubernetes, gates)
    known = {name: knowledge(name, options) for name, options in drivers.items()}
    nodes = {
        name: Node(name, offers=tuple(offers(name, facts[name], drivers, known, server))) for name in sorted(facts)
    }
    return Fleet(nodes, classes, server, (f"the fleet is {len(nodes)} probed machine(s): {_PROBED_NOTE}",))


class _FleetBuilder:
    """Collects the contents of objects by node.

    `notes` name unusable objects. `upper_bound_notes` name missing information that may reduce the counts,
    `lower_bound_notes` missing information that may raise them.
    """

    def __init__(self, published: PublishedNodes) -> None:
        self.published = published.nodes
        self.notes = list(published.notes)
        self.upper_bound_notes: list[str] = []
        self.lower_bound_notes: list[str] = []
        self._pools = published.pools
        self._unlisted: dict[str, list[DeviceId]] = {}  # by claim, its devices in pools that have no slice
        self._unclear: dict[str, dict[str, str]] = {}  # the reason by node and driver
        self._allocated: set[str] = set()  # claims that have devices
        self._holder: dict[DeviceId, str] = {}  # the claim of each device that is not shared
        self.held: dict[str, list[HeldDevice]] = {}
        self.placed: dict[str, list[PlacedPod]] = {}
        self._offer_by_id = {identify(offer): offer for node in self.published.values() for offer in node.offers}

    def add_claims(self, claims: t.Iterable[Object]) -> None:
        """Collect the allocated devices of claims by node."""
        for claim in claims:
            for index, result in enumerate(results(claim)):
                self._allocated.add(title(claim))
                key: DeviceId = (result["driver"], result["pool"], result["device"])
                offer = self._offer_by_id.get(key)
                if offer is None:
                    self.notes.append(f"claim {title(claim)} has {'/'.join(key)}, which no complete pool lists")
                    if self._pools.pool(*key[:2]) is None:
                        self._unlisted.setdefault(title(claim), []).append(key)
                        self._mark_unclear(key[1], title(claim))
                    continue
                consumed = {name: str(value) for name, value in (result.get("consumedCapacity") or {}).items()}
                admin = bool(result.get("adminAccess"))
                allocated = Result(index, str(result["request"]), offer, admin, consumed)
                self.held.setdefault(offer.node, []).append(HeldDevice(allocated, title(claim)))
                if not admin and not offer.device.get("allowMultipleAllocations"):
                    first = self._holder.setdefault(key, title(claim))
                    if first != title(claim):
                        self.notes.append(f"{'/'.join(key)} is allocated to two claims, {first} and {title(claim)}")

    def _mark_unclear(self, node: str, claim: str) -> None:
        """Mark the drivers of a claim's devices as unclear on a node, if the pools of these devices have no slice."""
        for driver, pool, device in self._unlisted.get(claim, ()):
            reason = f"claim {claim} has {device} of pool {pool} of {driver}, which has no slice"
            self._unclear.setdefault(node, {}).setdefault(driver, reason)

    def add_pods(self, pods: t.Iterable[ObjectView]) -> None:
        """Collect the pods of each node, and note pods with claims that have no node yet."""
        waiting, other_schedulers, without_device = 0, [], []
        for pod in pods:
            spec, status = pod.get("spec") or {}, pod.get("status") or {}
            if status.get("phase") in _ENDED:
                continue
            if not spec.get("nodeName"):
                waiting += bool(spec.get("resourceClaims"))
                if spec.get("resourceClaims") and (spec.get("schedulerName") or SCHEDULER) != SCHEDULER:
                    other_schedulers.append(f"{title(pod)} ({spec['schedulerName']})")
                continue
            metadata = pod["metadata"]
            try:
                amounts = requests(spec)
            except quantity.QuantityError as error:
                self.notes.append(f"pod {title(pod)}: its requests cannot be read: {error}")
                amounts = {}
            labels = metadata.get("labels") or {}
            claims = tuple(claim_names(pod))
            ending = bool(metadata.get("deletionTimestamp"))
            placed = PlacedPod(str(metadata["namespace"]), str(metadata["name"]), labels, amounts, claims, ending)
            self.placed.setdefault(spec["nodeName"], []).append(placed)
            for claim in placed.claims:
                self._mark_unclear(spec["nodeName"], claim)
            without_device += [
                f"{claim} of pod {title(pod)}" for claim in placed.claims if claim not in self._allocated
            ]
        if waiting:
            self.notes.append(f"{waiting} pod(s) with claims wait for a node, and need devices too")
        if other_schedulers:
            self.notes.append(f"other schedulers place {shortened(other_schedulers)} of these, possibly on any node")
        if without_device:
            self.upper_bound_notes.append(
                f"{shortened(without_device)}: no device is allocated, although the pod has a node: its devices count "
                "as free"
            )

    def quotas(self, objects: t.Iterable[ObjectView]) -> t.Iterator[Quota]:
        """The ResourceQuotas that can be read; the others are noted."""
        for quota in objects:
            try:
                yield quotas.read(quota)
            except quantity.QuantityError as error:
                self.notes.append(f"quota {title(quota)} cannot be read and is ignored: {error}")

    def node(self, node: ObjectView) -> Node:
        """A v1 Node with its collected devices, pods and claims."""
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        name = str(metadata["name"])
        published = self.published.get(name, PublishedNode())
        allocatable: dict[str, int] | None = None
        if status.get("allocatable"):
            try:
                allocatable = units(status["allocatable"])
            except quantity.QuantityError as error:
                self.notes.append(f"node {name}: its allocatable resources cannot be read: {error}")
        return Node(
            name,
            labels=metadata.get("labels") or {},
            taints=tuple(spec.get("taints") or ()),
            cordoned=bool(spec.get("unschedulable")),
            allocatable=allocatable,
            pods=tuple(self.placed.get(name, ())),
            offers=published.offers,
            held=tuple(self.held.get(name, ())),
            unclear={**published.unclear, **self._unclear.get(name, {})},
        )

    def note_unknown_nodes(self, nodes: t.Mapping[str, Node]) -> None:
        """Note nodes that report no resources, and nodes of pods and devices that are not among the objects."""
        without_resources = [name for name, node in nodes.items() if node.allocatable is None]
        if without_resources and len(without_resources) < len(nodes):
            names = shortened(without_resources)
            self.upper_bound_notes.append(f"node(s) {names} report no resources, so any number of pods has room there")
        missing = sorted(set(self.placed) - set(nodes))
        if missing:
            self.notes.append(f"pods run on node(s) {shortened(missing)}, which are not among the objects")
        with_devices = [name for name in missing if name in self.published and self.published[name].offers]
        if with_devices:
            self.lower_bound_notes.append(
                f"node(s) {shortened(with_devices)} have pods and devices, but are not among the objects: more may fit"
            )
        for name, published in self.published.items():
            if name not in nodes and published.offers:
                self.notes.append(f"{len(published.offers)} device(s) belong to node {name}, which does not exist")


def shortened(names: t.Sequence[str]) -> str:
    """The first names, and the number of further names, as text."""
    return ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
