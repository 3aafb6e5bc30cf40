# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The devices to swap for a tier: named devices, or those that a number of the tier's pods need.

Only requested devices are held. If an evicted pod has other devices too, these become free for everyone.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace

from ..apiserver import features
from ..cel.engine import Engine
from ..holds import swap
from ..holds.hold import parse_device
from ..holds.tolerations import not_tolerating, request_bodies, tolerating_others
from ..kube.objects import Object, ObjectView
from ..scheduler.published import v1
from ..scheduler.search_devices import DeviceId, identify
from .evictions import DeviceUsers, EvictedPod, TakeEffects
from .fit import fit
from .fleet import Fleet, Workload
from .inputs import templates_of, workload
from .reader import read
from .room import SEARCHES, Job, room

#: The maximum number of a tier's pods, and of pods that may be evicted for them.
MAX_PODS = 1024


@dataclass(frozen=True)
class SwapRequest:
    """What a tier requests: `devices`, or devices for pods of a `workload`.

    The number of pods is `count`, or `share` percent of the pods that fit on the empty fleet. `searches` is the maximum
    number of sets of pods that are searched.
    """

    tier: str
    devices: tuple[DeviceId, ...] = ()
    workload: Workload | None = None
    count: int = 1
    share: int | None = None
    ignore_budgets: bool = False
    searches: int = SEARCHES


@dataclass(frozen=True)
class Chosen:
    """The devices to hold, those among them whose pods are evicted, and the effects.

    `fitting` is how many pods of the workload then fit. `total` is how many fit on the empty fleet; None if this was
    not computed. `reason` says why no devices were found; empty if devices were found.
    """

    hold: tuple[DeviceId, ...] = ()
    evict: tuple[DeviceId, ...] = ()
    effects: TakeEffects = TakeEffects()
    fitting: int = 0
    total: int | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()


def request_of(params: ObjectView, objects: t.Sequence[Object]) -> SwapRequest:
    """The request that the options of a module describe. Raises ValueError."""
    for name, value, maximum in (("count", params["count"], MAX_PODS), ("share", params["share"], 100)):
        if value is not None and not 1 <= value <= maximum:
            raise ValueError(f"{name}: {value} is not from 1 to {maximum}")
    entry = params["workload"]
    request = SwapRequest(
        params["tier"],
        device_ids(params["devices"]),
        workload(entry, templates_of(objects)) if entry else None,
        params["count"],
        params["share"],
        params["ignore_budgets"],
    )
    if bool(request.devices) == bool(request.workload):
        raise ValueError("give either devices or workload")
    return request


def choose(
    objects: t.Sequence[ObjectView], request: SwapRequest, engine: Engine, kubernetes: str, gates: features.Gates = None
) -> Chosen:
    """The devices to swap. Raises ValueError for a workload that could not use them, or that cannot be read."""
    fleet = read(objects, kubernetes, gates)
    users = DeviceUsers(objects, request.tier)
    if request.workload is None:
        return _choose_devices(fleet, users, request)
    _check_tolerations(request.workload, request.tier)
    return _choose_for_pods(fleet, users, objects, request, engine)


def _choose_devices(fleet: Fleet, users: DeviceUsers, request: SwapRequest) -> Chosen:
    """The choice for a request for devices by name."""
    published = {identify(offer) for node in fleet.nodes.values() for offer in node.offers}
    requested = tuple(dict.fromkeys(request.devices))
    missing = ["/".join(device) for device in requested if device not in published]
    if missing:
        return Chosen(
            reason=f"no complete pool of a node publishes {', '.join(missing[:8])}: the node may no longer exist. Name "
            "other devices, or return the devices of the swap",
            notes=fleet.notes,
        )
    return Chosen(requested, requested, users.effects_of_taking(requested), notes=fleet.notes)


def _check_tolerations(workload: Workload, tier: str) -> None:
    """Raises ValueError if the claims could not use the devices of the tier, or could take devices held for others."""
    broad = [path for claim in workload.claims for path in tolerating_others(claim, tier)]
    if broad:
        raise ValueError(
            f"workload {workload.name}: {', '.join(broad)} tolerates other holds than {tier}, so it could take devices "
            "that are kept for others: let each request tolerate only the hold of its tier"
        )
    without = [path for claim in workload.claims for path in not_tolerating(claim, tier)]
    without += [
        path
        for claim in workload.claims
        for path, body in request_bodies(claim)
        if not swap.belongs_to_tier(body, tier)
    ]
    if without:
        raise ValueError(
            f"workload {workload.name}: {', '.join(dict.fromkeys(without))} does not tolerate the hold and the swap of "
            f"{tier}, so its pods could not use the devices. Give its template the tier {tier} (dra_claims_tiers), or "
            f"add {swap.tier_tolerations(tier)} to the tolerations of each request"
        )


def _choose_for_pods(
    fleet: Fleet, users: DeviceUsers, objects: t.Sequence[ObjectView], request: SwapRequest, engine: Engine
) -> Chosen:
    """The choice for a request for devices for pods of a workload."""
    workload = t.cast("Workload", request.workload)
    total: int | None = None
    count = request.count
    if request.share is not None:
        total = _fitting_on_empty_fleet(fleet, workload, engine)
        count = total * request.share // 100
        if not count:
            reason = f"{request.share} % of {total} pod(s) of {workload.name} on the empty fleet is less than one"
            return Chosen(total=total, reason=reason, notes=fleet.notes)
    movable, ending = users.movable(not request.ignore_budgets)
    being_evicted = users.effects_of_taking(_devices_being_swapped(objects, request.tier)).evicted
    ending_claims = {*ending, *(claim for pod in being_evicted for claim in pod.claims)}
    after = replace(fleet, nodes={name: node.without(ending_claims) for name, node in fleet.nodes.items()})
    tolerant = {
        f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        for claim in objects
        if claim.get("kind") == "ResourceClaim" and not not_tolerating(v1(claim, "ResourceClaim")["spec"], request.tier)
    }
    still_movable = [pod for pod in movable if not ending_claims & set(pod.claims)]
    job = Job(workload, count, request.tier, MAX_PODS, True, request.searches)
    plan = room(after, job, still_movable, engine, tolerant)
    if not plan.fits:
        return Chosen(total=total, reason=plan.reason, notes=fleet.notes)
    moved = {move.pod for move in plan.moves} | {pod.pod for pod in being_evicted}
    placed = {device for _node, devices in plan.placements for device in devices}
    held = users.effects_of_taking(plan.devices)
    devices_of_moved = {device for pod in held.evicted if pod.pod in moved or pod.ending for device in pod.devices}
    evict = tuple(device for device in plan.devices if device in placed or device in devices_of_moved)
    effects = replace(users.effects_of_taking(evict), held_by_tier=held.held_by_tier)
    return Chosen(plan.devices, evict, effects, count, total, notes=fleet.notes)


def _devices_being_swapped(objects: t.Iterable[ObjectView], tier: str) -> list[DeviceId]:
    """The devices whose pods an earlier run has begun to evict."""
    devices = []
    for rule in objects:
        if rule.get("kind") == "DeviceTaintRule" and swap.swap_of(rule) == tier and swap.evicts(rule):
            selector = rule["spec"].get("deviceSelector") or {}
            devices.append((str(selector.get("driver")), str(selector.get("pool")), str(selector.get("device"))))
    return devices


def _fitting_on_empty_fleet(fleet: Fleet, workload: Workload, engine: Engine) -> int:
    """How many pods of a workload would fit if no claim had a device, without regard to ResourceQuotas."""

    def emptied(name: str) -> t.Any:
        node = fleet.nodes[name]
        return node.without([device.owner for device in node.held])

    empty = replace(fleet, nodes={name: emptied(name) for name in fleet.nodes}, quotas=())
    return fit(empty, [workload], engine)[0].total


def lines(chosen: Chosen, request: SwapRequest) -> list[str]:
    """The choice as lines of text."""
    if chosen.reason:
        return [f"{request.tier}: {chosen.reason}"]
    devices = f"{len(chosen.hold)} device(s)"
    if request.workload:
        share = f", {request.share} % of {chosen.total} on the empty fleet" if chosen.total is not None else ""
        devices += f" for {chosen.fitting} pod(s) of {request.workload.name}{share}"
    to_evict = sum(not pod.ending for pod in chosen.effects.evicted)
    report = [f"{request.tier}: {devices}; {to_evict} pod(s) to evict"]
    report += [f"  {pod.line()}" for pod in sorted(chosen.effects.evicted, key=lambda pod: pod.pod)]
    if chosen.effects.held_by_tier:
        report.append(f"  {len(chosen.effects.held_by_tier)} device(s) are in use by the tier already")
    return report


def evicted_as_dict(pod: EvictedPod) -> Object:
    """An evicted pod, as modules return it."""
    return {"pod": pod.pod, "node": pod.node, "grace": pod.grace, "devices": device_names(pod.devices)}


def device_names(devices: t.Iterable[DeviceId]) -> list[str]:
    """Devices as `driver/pool/device`."""
    return ["/".join(device) for device in devices]


def device_ids(names: t.Iterable[str]) -> tuple[DeviceId, ...]:
    """The devices with these names, `driver/pool/device`. Raises ValueError."""
    return tuple(dict.fromkeys(parse_device(name) for name in names))
