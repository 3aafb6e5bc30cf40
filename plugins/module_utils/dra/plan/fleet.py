# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The state of a fleet: its nodes with their devices, what holds these, and the room for pods."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ..kube.objects import Object, ObjectView
from ..scheduler.answers import Result
from ..scheduler.search_devices import DeviceId
from ..vendors.offer import Offer
from ..vendors.server import Server

#: The resource that counts pods, as a node's `allocatable` names it.
PODS = "pods"


@dataclass(frozen=True)
class Held:
    """A device that a claim has. `owner` is `namespace/name` of the claim."""

    result: Result
    owner: str


@dataclass(frozen=True)
class Placed:
    """A pod that runs on a node, or is bound to it.

    `requests` are units of each resource, CPU in thousandths. `claims` are `namespace/name` of the claims it uses.
    """

    namespace: str
    name: str
    labels: t.Mapping[str, str]
    requests: t.Mapping[str, int]
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """A node as the scheduler sees it.

    `allocatable` are units of each resource, CPU in thousandths (v1 NodeStatus); None if they are unknown, as for a
    node that was only probed: then there is room for every pod. `unclear` are drivers whose devices on this node are
    uncertain, with the reason.
    """

    name: str
    labels: t.Mapping[str, str] = field(default_factory=dict)
    taints: tuple[ObjectView, ...] = ()
    cordoned: bool = False
    allocatable: t.Mapping[str, int] | None = None
    pods: tuple[Placed, ...] = ()
    offers: tuple[Offer, ...] = ()
    held: tuple[Held, ...] = ()
    unclear: t.Mapping[str, str] = field(default_factory=dict)

    def free(self) -> dict[str, int] | None:
        """The units of each resource that no pod has asked for, CPU in thousandths; None where that is not known."""
        if self.allocatable is None:
            return None
        left = dict(self.allocatable)
        for pod in self.pods:
            for name, amount in {**pod.requests, PODS: 1}.items():
                left[name] = left.get(name, 0) - amount
        return left

    def owners(self) -> dict[DeviceId, str]:
        """The claim of each device that is held, admin access aside."""
        return {one.result.id: one.owner for one in self.held if not one.result.admin}

    def without(self, owners: t.Collection[str]) -> Node:
        """The node after these claims have gone, with the pods that use them."""
        return replace(
            self,
            held=tuple(one for one in self.held if one.owner not in owners),
            pods=tuple(pod for pod in self.pods if not set(pod.claims) & set(owners)),
        )


@dataclass(frozen=True)
class Quota:
    """What a ResourceQuota leaves of each resource, CPU in thousandths; `name` is `namespace/name`.

    `scoped` is whether it has scopes: it then counts only some pods.
    """

    namespace: str
    name: str
    left: t.Mapping[str, int]
    scoped: bool = False


@dataclass(frozen=True)
class Queues:
    """The queues of Kueue: ClusterQueues, cohorts and ResourceFlavors by name, LocalQueues by `namespace/name`.

    `configuration` are fields of Kueue's Configuration, those that lanewise.dra.queues writes; None if not known.
    """

    cluster: t.Mapping[str, ObjectView] = field(default_factory=dict)
    cohorts: t.Mapping[str, ObjectView] = field(default_factory=dict)
    local: t.Mapping[str, ObjectView] = field(default_factory=dict)
    flavors: t.Mapping[str, ObjectView] = field(default_factory=dict)
    configuration: ObjectView | None = None


@dataclass(frozen=True)
class Fleet:
    """All nodes by name, the DeviceClasses by name, and what the server makes of objects.

    `notes` say what was read and is left out, or is not certain; each names its object. `quotas` are those
    of all namespaces. `doubts` name what was not read and could reduce every count, `gaps` what could raise it.
    """

    nodes: t.Mapping[str, Node]
    classes: t.Mapping[str, Object]
    server: Server
    notes: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    queues: Queues = field(default_factory=Queues)
    doubts: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """A pod to place, any number of times.

    `pod` is a v1 PodSpec, or empty: then every node has room for it. `claims` are the specs of its v1 ResourceClaims.
    `labels` and `namespace` are the pod's, which spread constraints select.
    """

    name: str
    claims: tuple[ObjectView, ...]
    pod: ObjectView = field(default_factory=dict)
    namespace: str = "default"
    labels: t.Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission:
    """How many more pods quotas or a queue admit, and why no more; `count` is None without a limit.

    `certain` is False if fewer may be admitted; `notes` give the reason, and other remarks.
    """

    count: int | None
    reason: str = ""
    notes: tuple[str, ...] = ()
    certain: bool = True
