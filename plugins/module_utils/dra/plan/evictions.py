# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which pods a swap of devices for a tier would evict, and what prevents it.

A pod gives way to the tier if its claims were created with a toleration that has a grace. The controller that evicts
pods ignores PodDisruptionBudgets, so they are checked here.
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
from .movable import Movable, claim_names
from .pods import selected

#: The prefix of labels and annotations of pods that Kueue manages.
KUEUE = "kueue.x-k8s.io/"
#: The phases of pods that have ended, whose devices are free.
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class EvictedPod:
    """A pod, `namespace/name`, that a swap evicts: its UID, node and claims, the devices that are taken from it, and
    its grace period in seconds. `ending` says that it is being deleted already."""

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
        some = "1 device" if len(self.devices) == 1 else f"{len(self.devices)} devices"
        how = "is ending" if self.ending else f"has {self.grace} s to end"
        return f"{self.pod} on {self.node} {how}, and gives {some}"


@dataclass(frozen=True)
class TakeEffects:
    """The effects of taking devices: the evicted pods, the reasons against it, and the budgets that it violates.

    `held_by_tier` are the devices that claims of the tier already have. `unused` are the claims that have one of the
    devices and no pod. `refused` names them too. They may go soon: a claim is deleted after its pod has ended.
    """

    evicted: tuple[EvictedPod, ...] = ()
    refused: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    held_by_tier: tuple[DeviceId, ...] = ()
    unused: tuple[str, ...] = ()


@dataclass
class _ClaimUse:
    """A claim, the results of its allocation by device, and the pods that use it."""

    claim: Object
    devices: t.Mapping[DeviceId, ObjectView]
    pods: list[ObjectView] = field(default_factory=list)


class DeviceUsers:
    """The claims and pods that use each device, from the Pods, ResourceClaims and PodDisruptionBudgets of a cluster.

    Raises ValueError for a claim of an unknown version.
    """

    def __init__(self, objects: t.Iterable[ObjectView], tier: str) -> None:
        self.tier = tier
        self._uses: dict[str, _ClaimUse] = {}
        self._budgets: list[ObjectView] = []
        self._pods: list[ObjectView] = []
        for one in objects:
            kind = one.get("kind")
            if kind == "ResourceClaim":
                claim = v1(one, "ResourceClaim")
                devices = {
                    (str(result["driver"]), str(result["pool"]), str(result["device"])): result
                    for result in results(claim)
                    if not result.get("adminAccess")
                }
                self._uses[title(one)] = _ClaimUse(claim, devices)
            elif kind == "PodDisruptionBudget":
                self._budgets.append(one)
            elif kind == "Pod" and (one.get("status") or {}).get("phase") not in ENDED:
                self._pods.append(one)
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
                if swap.belongs_to_tier(use.devices[device], self.tier):
                    held_by_tier.append(device)
                elif use.pods:
                    for pod in use.pods:
                        taken.setdefault(title(pod), {})[device] = None
                else:
                    unused[title(use.claim)] = None
                    refused.append(
                        f"{'/'.join(device)}: claim {title(use.claim)} has it, but no pod that uses the claim is known"
                    )
        evicted = []
        for pod in self._pods:
            if title(pod) in taken:
                evicted.append(self._evicted(pod, tuple(taken[title(pod)])))
                refused += self._refusals(pod, taken[title(pod)])
        budgets = self._violated_budgets(evicted)
        return TakeEffects(tuple(evicted), tuple(refused), tuple(budgets), tuple(held_by_tier), tuple(unused))

    def movable(self, budgets: bool) -> tuple[list[Movable], list[str]]:
        """The pods that may be evicted, and the claims of those that are ending already.

        With `budgets`, pods whose PodDisruptionBudget allows no disruption are left out.
        """
        found: list[Movable] = []
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
            elif not budgets or not self._violated_budgets([evicted]):
                specs = tuple(self._uses[name].claim["spec"] for name in names)
                fresh = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
                work = Workload(evicted.pod, specs, fresh, str(pod["metadata"]["namespace"]), evicted.labels)
                found.append(Movable(evicted.pod, evicted.uid, evicted.node, evicted.claims, work))
        return found, ending

    def _evicted(self, pod: ObjectView, devices: tuple[DeviceId, ...]) -> EvictedPod:
        metadata = pod["metadata"]
        names = tuple(name for name in claim_names(pod) if name in self._uses)
        graces = [
            swap.grace_of(got, self.tier) or 0
            for name in names
            for device, got in self._uses[name].devices.items()
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
        marks = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
        mark = next((name for name in sorted(marks) if name.startswith(KUEUE)), "")
        if mark:
            return [f"{title(pod)}: Kueue manages it ({mark}): let a job of higher priority preempt it in its queue"]
        for name in claim_names(pod):
            use = self._uses.get(name)
            if use and any(
                swap.grace_of(got, self.tier) is None for device, got in use.devices.items() if device in devices
            ):
                return [f"{title(pod)}: its claim {name} does not give way: its template has no tier with a grace"]
        return []

    def _violated_budgets(self, evicted: t.Sequence[EvictedPod]) -> list[str]:
        found = []
        for budget in self._budgets:
            namespace, selector = str(budget["metadata"]["namespace"]), (budget.get("spec") or {}).get("selector")
            covered = [
                pod.pod
                for pod in evicted
                if not pod.ending and pod.pod.split("/")[0] == namespace and selected(selector, pod.labels)
            ]
            allowed = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
            if len(covered) > allowed:
                found.append(
                    f"PodDisruptionBudget {title(budget)} allows {allowed} disruption(s) now, but the swap would end "
                    f"{len(covered)}: {', '.join(sorted(covered)[:8])}{', ...' if len(covered) > 8 else ''}"
                )
        return found
