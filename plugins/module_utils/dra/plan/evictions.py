# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which pods a swap of devices for a tier would evict, and what prevents it.

A swap evicts a pod only if its claims tolerate a swap with a grace period, which is decided when they are created. The
controller that evicts pods ignores PodDisruptionBudgets, so this module checks them.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..alignment.cluster import results, title
from ..holds import swap
from ..kube.objects import Object, ObjectView
from ..scheduler.published import v1
from ..scheduler.search_devices import DeviceId
from .fleet import Workload
from .movable import Movable
from .pods import claim_names, selected

#: The prefix of labels and annotations of pods that Kueue manages.
KUEUE_PREFIX = "kueue.x-k8s.io/"
#: The phases of pods that have ended, whose devices are free.
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class EvictedPod:
    """A pod that a swap evicts.

    `pod` is `namespace/name`; `claims` are `namespace/name` of its claims. `devices` are those that the swap takes from
    it, `grace` is its grace period in seconds. `ending` is True if the pod is already being deleted.
    """

    pod: str
    uid: str
    node: str
    claims: tuple[str, ...]
    devices: tuple[DeviceId, ...]
    grace: int
    ending: bool = False
    labels: t.Mapping[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """The pod in one line."""
        devices = "1 device" if len(self.devices) == 1 else f"{len(self.devices)} devices"
        where = f" on {self.node}" if self.node else ""  # a pod that is just being bound has no node yet
        state = "is being deleted" if self.ending else f"has a grace period of {self.grace} s"
        return f"{self.pod}{where} {state}, and frees {devices}"


@dataclass(frozen=True)
class TakeEffects:
    """The effects of taking devices for a tier.

    `evicted` are the pods that have the devices, `refused` the reasons why they must not be taken, and `budgets` the
    PodDisruptionBudgets that would be violated. `held_by_tier` are the devices that claims of the tier already have.
    `unused` are the claims that have one of the devices but no pod; each has an entry in `refused` too. Such a claim
    may soon be deleted, because a claim is deleted after its pod has ended.
    """

    evicted: tuple[EvictedPod, ...] = ()
    refused: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    held_by_tier: tuple[DeviceId, ...] = ()
    unused: tuple[str, ...] = ()


@dataclass
class _ClaimUse:
    """A claim, the results of its allocation by device, and the pods that refer to the claim."""

    claim: Object
    devices: t.Mapping[DeviceId, ObjectView]
    pods: list[ObjectView] = field(default_factory=list)

    def users(self) -> list[ObjectView]:
        """The pods that have the devices: those on a node, and those for which the claim is reserved.

        A pod that waits for a node has no device, even if it refers to the claim of another pod.
        """
        consumers = (self.claim.get("status") or {}).get("reservedFor") or ()
        reserved = {consumer.get("uid") for consumer in consumers} - {None}
        return [pod for pod in self.pods if pod["spec"].get("nodeName") or pod["metadata"].get("uid") in reserved]


class DeviceUsers:
    """The claims and pods that use each device, from the Pods, ResourceClaims and PodDisruptionBudgets of a cluster.

    Raises ValueError for a claim of an unknown version.
    """

    def __init__(self, objects: t.Iterable[ObjectView], tier: str) -> None:
        self.tier = tier
        self._uses: dict[str, _ClaimUse] = {}
        self._budgets: list[ObjectView] = []
        self._pods: list[ObjectView] = []
        for item in objects:
            kind = item.get("kind")
            if kind == "ResourceClaim":
                claim = v1(item, "ResourceClaim")
                devices = {
                    (str(result["driver"]), str(result["pool"]), str(result["device"])): result
                    for result in results(claim)
                    if not result.get("adminAccess")
                }
                self._uses[title(item)] = _ClaimUse(claim, devices)
            elif kind == "PodDisruptionBudget":
                self._budgets.append(item)
            elif kind == "Pod" and (item.get("status") or {}).get("phase") not in ENDED:
                self._pods.append(item)
        self._of_device: dict[DeviceId, list[_ClaimUse]] = {}
        for use in self._uses.values():
            for device in use.devices:
                self._of_device.setdefault(device, []).append(use)
        for pod in self._pods:
            for name in claim_names(pod):
                if name in self._uses:
                    self._uses[name].pods.append(pod)

    def effects_of_taking(self, devices: t.Iterable[DeviceId]) -> TakeEffects:
        """The effects of taking these devices."""
        taken: dict[str, dict[DeviceId, None]] = {}
        refused: list[str] = []
        held_by_tier: list[DeviceId] = []
        unused: dict[str, None] = {}
        for device in devices:
            for use in self._of_device.get(device, ()):
                users = use.users()
                if swap.belongs_to_tier(use.devices[device], self.tier):
                    held_by_tier.append(device)
                elif users:
                    for pod in users:
                        taken.setdefault(title(pod), {})[device] = None
                else:
                    claim = title(use.claim)
                    unused[claim] = None
                    refused.append(
                        f"{'/'.join(device)}: claim {claim} has it, but no known pod on a node uses the claim"
                    )
        evicted = []
        for pod in self._pods:
            if title(pod) in taken:
                evicted.append(self._evicted(pod, tuple(taken[title(pod)])))
                refused += self._refusals(pod, taken[title(pod)])
        budgets = self._violated_budgets(evicted)
        return TakeEffects(tuple(evicted), tuple(refused), tuple(budgets), tuple(held_by_tier), tuple(unused))

    def movable(self, respect_budgets: bool) -> tuple[list[Movable], list[str]]:
        """The pods that may be evicted, and the claims of pods that are already being deleted.

        With `respect_budgets`, pods whose PodDisruptionBudget allows no disruption are left out.
        """
        movable: list[Movable] = []
        ending: list[str] = []
        for pod in self._pods:
            names = [name for name in claim_names(pod) if name in self._uses]
            devices = {device: None for name in names for device in self._uses[name].devices}
            alone = all(self._uses[name].pods == [pod] for name in names)
            if not devices or not alone or not pod["spec"].get("nodeName") or self._refusals(pod, devices):
                continue
            evicted = self._evicted(pod, tuple(devices))
            if evicted.ending:
                ending += names
            elif not respect_budgets or not self._violated_budgets([evicted]):
                specs = tuple(self._uses[name].claim["spec"] for name in names)
                unbound_spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
                namespace = str(pod["metadata"]["namespace"])
                replacement = Workload(evicted.pod, specs, unbound_spec, namespace, evicted.labels)
                movable.append(Movable(evicted.pod, evicted.uid, evicted.node, evicted.claims, replacement))
        return movable, ending

    def _evicted(self, pod: ObjectView, devices: tuple[DeviceId, ...]) -> EvictedPod:
        metadata = pod["metadata"]
        names = tuple(name for name in claim_names(pod) if name in self._uses)
        graces = [
            swap.grace_of(result, self.tier) or 0
            for name in names
            for device, result in self._uses[name].devices.items()
            if device in devices
        ]
        return EvictedPod(
            title(pod),
            str(metadata.get("uid") or ""),
            str(pod["spec"].get("nodeName") or ""),
            names,
            devices,
            min(graces, default=0),
            bool(metadata.get("deletionTimestamp")),
            metadata.get("labels") or {},
        )

    def _refusals(self, pod: ObjectView, devices: t.Collection[DeviceId]) -> list[str]:
        """Why a swap must not evict the pod."""
        metadata = pod["metadata"]
        keys = {*(metadata.get("labels") or {}), *(metadata.get("annotations") or {})}
        kueue_key = next((key for key in sorted(keys) if key.startswith(KUEUE_PREFIX)), "")
        if kueue_key:
            advice = "let a job of higher priority preempt it in its queue"
            return [f"{title(pod)}: Kueue manages it ({kueue_key}): {advice}"]
        for name in claim_names(pod):
            use = self._uses.get(name)
            if use and any(
                swap.grace_of(result, self.tier) is None for device, result in use.devices.items() if device in devices
            ):
                reason = "only claims of a tier with grace do"
                return [f"{title(pod)}: its claim {name} does not tolerate a swap with a grace period: {reason}"]
        return []

    def _violated_budgets(self, evicted: t.Sequence[EvictedPod]) -> list[str]:
        violations = []
        for budget in self._budgets:
            namespace, selector = str(budget["metadata"]["namespace"]), (budget.get("spec") or {}).get("selector")
            covered = [
                pod.pod
                for pod in evicted
                if not pod.ending and pod.pod.split("/")[0] == namespace and selected(selector, pod.labels)
            ]
            allowed = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
            if len(covered) > allowed:
                violations.append(
                    f"PodDisruptionBudget {title(budget)} allows {allowed} disruption(s) now, but the swap would evict "
                    f"{len(covered)}: {', '.join(sorted(covered)[:8])}{', ...' if len(covered) > 8 else ''}"
                )
        return violations
