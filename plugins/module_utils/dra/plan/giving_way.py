# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which pods would be ended if devices were swapped for a tier, and what prevents it.

A pod gives way if its claims have agreed to it from the start, by a toleration with a grace. The controller that ends
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

#: Labels and annotations with this prefix are those of pods that Kueue admits.
KUEUE = "kueue.x-k8s.io/"
#: The phases of pods that have ended, whose devices are free.
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Leaving:
    """A pod, `namespace/name`, that a swap ends: its UID, node and claims, the devices that are taken from it, and its
    grace period in seconds. `ending`: it is being deleted already."""

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
class Taking:
    """The effects of taking devices: the pods that are ended, what prevents it, and budgets that it violates.

    `there` are the devices that claims of the tier already have. `unused` are the claims that have one of the devices
    and no pod: `refused` names them, too, as a claim whose pod has just ended is about to be deleted.
    """

    leaving: tuple[Leaving, ...] = ()
    refused: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    there: tuple[DeviceId, ...] = ()
    unused: tuple[str, ...] = ()


@dataclass
class _Use:
    """A claim, the results of its allocation by device, and the pods that use it."""

    claim: Object
    devices: t.Mapping[DeviceId, ObjectView]
    pods: list[ObjectView] = field(default_factory=list)


class Users:
    """Who has which device, from the Pods, ResourceClaims and PodDisruptionBudgets of a cluster.

    Raises ValueError for a claim of an unknown version.
    """

    def __init__(self, objects: t.Iterable[ObjectView], tier: str) -> None:
        self.tier = tier
        self._uses: dict[str, _Use] = {}
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
                self._uses[title(one)] = _Use(claim, devices)
            elif kind == "PodDisruptionBudget":
                self._budgets.append(one)
            elif kind == "Pod" and (one.get("status") or {}).get("phase") not in ENDED:
                self._pods.append(one)
        self._of_device: dict[DeviceId, list[_Use]] = {}
        for use in self._uses.values():
            for device in use.devices:
                self._of_device.setdefault(device, []).append(use)
        for pod in self._pods:
            for name in claim_names(pod):
                if name in self._uses:
                    self._uses[name].pods.append(pod)

    def taking(self, devices: t.Iterable[DeviceId]) -> Taking:
        """The effects of taking these devices."""
        taken: dict[str, dict[DeviceId, None]] = {}
        refused: list[str] = []
        there: list[DeviceId] = []
        unused: dict[str, None] = {}
        for device in devices:
            for use in self._of_device.get(device, ()):
                if swap.of_tier(use.devices[device], self.tier):
                    there.append(device)
                elif use.pods:
                    for pod in use.pods:
                        taken.setdefault(title(pod), {})[device] = None
                else:
                    unused[title(use.claim)] = None
                    refused.append(
                        f"{'/'.join(device)}: claim {title(use.claim)} has it, and no pod that uses the claim is known"
                    )
        leaving = []
        for pod in self._pods:
            if title(pod) in taken:
                leaving.append(self._leaving(pod, tuple(taken[title(pod)])))
                refused += self._against(pod, taken[title(pod)])
        budgets = self._violated(leaving)
        return Taking(tuple(leaving), tuple(refused), tuple(budgets), tuple(there), tuple(unused))

    def movable(self, budgets: bool) -> tuple[list[Movable], list[str]]:
        """The pods that may be ended, and the claims of those that are ending already.

        With `budgets`, pods whose PodDisruptionBudget allows no disruption are not among them.
        """
        found: list[Movable] = []
        ending: list[str] = []
        for pod in self._pods:
            names = [name for name in claim_names(pod) if name in self._uses]
            devices = {device: None for name in names for device in self._uses[name].devices}
            alone = all(self._uses[name].pods == [pod] for name in names)
            if not devices or not alone or not pod["spec"].get("nodeName") or self._against(pod, devices):
                continue
            one = self._leaving(pod, tuple(devices))
            if one.ending:
                ending += names
            elif not budgets or not self._violated([one]):
                specs = tuple(self._uses[name].claim["spec"] for name in names)
                fresh = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
                work = Workload(one.pod, specs, fresh, str(pod["metadata"]["namespace"]), one.labels)
                found.append(Movable(one.pod, one.uid, one.node, one.claims, work))
        return found, ending

    def _leaving(self, pod: ObjectView, devices: tuple[DeviceId, ...]) -> Leaving:
        metadata = pod["metadata"]
        names = tuple(name for name in claim_names(pod) if name in self._uses)
        graces = [
            swap.grace_of(got, self.tier) or 0
            for name in names
            for device, got in self._uses[name].devices.items()
            if device in devices
        ]
        return Leaving(
            title(pod),
            str(metadata.get("uid") or ""),
            str(pod["spec"].get("nodeName") or ""),
            names,
            devices,
            min(graces, default=0),
            bool(metadata.get("deletionTimestamp")),
            metadata.get("labels") or {},
        )

    def _against(self, pod: ObjectView, devices: t.Collection[DeviceId]) -> list[str]:
        """Why the pod must not be ended by a swap."""
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

    def _violated(self, leaving: t.Sequence[Leaving]) -> list[str]:
        found = []
        for one in self._budgets:
            space, budget = str(one["metadata"]["namespace"]), (one.get("spec") or {}).get("selector")
            hit = [
                pod.pod
                for pod in leaving
                if not pod.ending and pod.pod.split("/")[0] == space and selected(budget, pod.labels)
            ]
            allowed = int((one.get("status") or {}).get("disruptionsAllowed") or 0)
            if len(hit) > allowed:
                found.append(
                    f"PodDisruptionBudget {title(one)} allows {allowed} disruption(s) now, and the swap would end "
                    f"{len(hit)}: {', '.join(sorted(hit)[:8])}{', ...' if len(hit) > 8 else ''}"
                )
        return found
