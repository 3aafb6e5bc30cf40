# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The state of a fleet: its nodes, their devices, the claims that hold them, and the resources left for pods."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ..kube.objects import Object, ObjectView
from ..scheduler import search_devices
from ..scheduler.answers import Result
from ..scheduler.search_devices import Amount, CounterId, DeviceId, amount, identify
from ..vendors.offer import Offer
from ..vendors.server import Server

#: The name of the resource that counts pods in a node's `allocatable`.
PODS = "pods"


@dataclass(frozen=True)
class HeldDevice:
    """A device that is allocated to a claim. `owner` is `namespace/name` of the claim."""

    result: Result
    owner: str


@dataclass(frozen=True)
class PlacedPod:
    """A pod that is bound to a node, running or not.

    `requests` are units of each resource, CPU in thousandths. `claims` are `namespace/name` of the claims it uses.
    `ending` is True if the pod is being deleted.
    """

    namespace: str
    name: str
    labels: t.Mapping[str, str]
    requests: t.Mapping[str, int]
    claims: tuple[str, ...] = ()
    ending: bool = False


@dataclass(frozen=True)
class Node:
    """A node as the scheduler sees it.

    `allocatable` are units of each resource, CPU in thousandths (v1 NodeStatus). They are None if unknown, as for a
    node that was only probed: any number of pods then has room. `unclear` maps drivers whose devices on this node are
    uncertain to the reason.
    """

    name: str
    labels: t.Mapping[str, str] = field(default_factory=dict)
    taints: tuple[ObjectView, ...] = ()
    cordoned: bool = False
    allocatable: t.Mapping[str, int] | None = None
    pods: tuple[PlacedPod, ...] = ()
    offers: tuple[Offer, ...] = ()
    held: tuple[HeldDevice, ...] = ()
    unclear: t.Mapping[str, str] = field(default_factory=dict)

    def free_resources(self) -> dict[str, int] | None:
        """The units of each resource that no pod has requested, CPU in thousandths; None if unknown."""
        if self.allocatable is None:
            return None
        left = dict(self.allocatable)
        for pod in self.pods:
            for name, requested in {**pod.requests, PODS: 1}.items():
                left[name] = left.get(name, 0) - requested
        return left

    def owners(self) -> dict[DeviceId, str]:
        """The claim that has each allocated device. Allocations with admin access are left out."""
        return {device.result.id: device.owner for device in self.held if not device.result.admin}

    def taken(self) -> dict[DeviceId, str]:
        """The devices that no other claim can get, each with the claim that prevents it (`search_devices.taken`).

        Shared devices are left out: other claims may get what is left of them.
        """
        counters: dict[CounterId, Amount] = {
            (offer.driver, offer.pool, str(entry["name"]), name): amount(counter["value"])
            for offer in self.offers
            for entry in offer.counter_sets
            for name, counter in entry["counters"].items()
        }
        shared = {identify(offer) for offer in self.offers if offer.device.get("allowMultipleAllocations")}
        taken = search_devices.taken(self.offers, counters, self.owners())
        return {device: owner for device, owner in taken.items() if device not in shared}

    def without(self, owners: t.Collection[str]) -> Node:
        """The node after these claims and the pods that use them are deleted."""
        return replace(
            self,
            held=tuple(device for device in self.held if device.owner not in owners),
            pods=tuple(pod for pod in self.pods if not set(pod.claims) & set(owners)),
        )


@dataclass(frozen=True)
class Quota:
    """A ResourceQuota. `left` is the unused amount of each resource, CPU in thousandths; `name` is `namespace/name`.

    `scoped` says whether the quota has scopes. Such a quota counts only some pods.
    """

    namespace: str
    name: str
    left: t.Mapping[str, int]
    scoped: bool = False


@dataclass(frozen=True)
class Queues:
    """The queues of Kueue: ClusterQueues, cohorts and ResourceFlavors by name, LocalQueues by `namespace/name`.

    `configuration` has the fields of Kueue's Configuration that lanewise.dra.queues writes; None if unknown.
    """

    cluster: t.Mapping[str, ObjectView] = field(default_factory=dict)
    cohorts: t.Mapping[str, ObjectView] = field(default_factory=dict)
    local: t.Mapping[str, ObjectView] = field(default_factory=dict)
    flavors: t.Mapping[str, ObjectView] = field(default_factory=dict)
    configuration: ObjectView | None = None


@dataclass(frozen=True)
class Fleet:
    """All nodes by name, the DeviceClasses by name, and the server that stores the objects.

    `notes` name objects that are left out or uncertain, with the reason. `quotas` are those of all namespaces.
    `upper_bound_notes` name missing information that could reduce the counts, `lower_bound_notes` missing information
    that could raise them.
    """

    nodes: t.Mapping[str, Node]
    classes: t.Mapping[str, Object]
    server: Server
    notes: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    queues: Queues = field(default_factory=Queues)
    upper_bound_notes: tuple[str, ...] = ()
    lower_bound_notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """A pod to place any number of times.

    `pod` is a v1 PodSpec. If it is empty, every node has room for the pod. `claims` are the specs of its v1
    ResourceClaims. `labels` and `namespace` are those of the pod, for spread constraints.
    """

    name: str
    claims: tuple[ObjectView, ...]
    pod: ObjectView = field(default_factory=dict)
    namespace: str = "default"
    labels: t.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission:
    """How many more pods the quotas or a queue admit, and why no more. `count` is None if there is no limit.

    `certain` is False if fewer may be admitted; `notes` have the reason and other remarks.
    """

    count: int | None
    reason: str = ""
    notes: tuple[str, ...] = ()
    certain: bool = True
