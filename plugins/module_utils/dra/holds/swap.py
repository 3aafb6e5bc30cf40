# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Swaps: devices that are held for a tier, and whose pods are evicted by a second DeviceTaintRule for each device.

The rule of the hold (NoSchedule) prevents other pods from getting the device when it becomes free. The second rule
evicts the pods that have the device. Its effect is first None, with which the controller only counts the pods, and then
NoExecute. The second rule is removed after the pods have ended. One rule could not do both, because a toleration of
NoExecute with a grace period also lets new pods use the device.

The tolerations of a claim cannot be changed after its creation. Claims of the tier tolerate the tier's hold and swap.
Claims of pods that may be evicted tolerate every swap for some seconds. For evictions, Kubernetes 1.37 considers only
tolerations whose effect is NoExecute.
"""

from __future__ import annotations

import hashlib
import re
import typing as t
from collections import Counter

from ..kube.objects import Object, ObjectView
from .changes import Refused
from .hold import OWNER, DeviceId, Hold, printable, taint_rule
from .tolerations import toleration as hold_toleration

#: The key of the taint that evicts pods. Its value is the name of the hold, which is the name of the tier.
KEY = "lanewise.dev/swap"
#: The effects of a rule with which the controller counts pods, or evicts them.
COUNT, EVICT = "None", "NoExecute"
#: The oldest release in which rules support the effect None and are enabled by default.
OLDEST_MINOR = 37
_PODS = re.compile(r"([0-9]{1,9}) pods? would be evicted")


def tier_tolerations(tier: str) -> list[Object]:
    """The tolerations that each request of a tier's claims needs, of the hold and the swap of the tier."""
    return [hold_toleration(tier), {"key": KEY, "operator": "Equal", "value": tier, "effect": EVICT}]


def grace_toleration(seconds: int) -> Object:
    """The toleration of claims whose pods a swap may evict after this many seconds."""
    return {"key": KEY, "operator": "Exists", "effect": EVICT, "tolerationSeconds": seconds}


def grace_of(allocated: ObjectView, tier: str) -> int | None:
    """After how many seconds a swap for a tier evicts the pod that has a device.

    None if the claim has no toleration of the swap with a number of seconds. `allocated` has the claim's tolerations:
    it is a result of an allocation, or a request.
    """
    grace: int | None = None
    for toleration in allocated.get("tolerations") or ():
        if (
            toleration.get("key") == KEY
            and toleration.get("effect") == EVICT
            and toleration.get("tolerationSeconds") is not None
        ):
            if toleration.get("operator") == "Exists" or (toleration.get("value") or "") == tier:
                seconds = max(0, int(toleration["tolerationSeconds"]))
                grace = seconds if grace is None else min(grace, seconds)
    return grace


def belongs_to_tier(allocated: ObjectView, tier: str) -> bool:
    """Whether the claim that has a device belongs to the tier: it tolerates the swap of this tier, by its name."""
    return any(
        toleration.get("key") == KEY
        and toleration.get("effect") == EVICT
        and toleration.get("operator") != "Exists"
        and toleration.get("value") == tier
        and toleration.get("tolerationSeconds") is None
        for toleration in allocated.get("tolerations") or ()
    )


def rule_name(device: DeviceId) -> str:
    """The name of the rule that counts or evicts the pods of a device; the same for every swap."""
    return f"lanewise-swap-{hashlib.sha256('/'.join(device).encode()).hexdigest()[:40]}"


def rule(hold: Hold, device: DeviceId, effect: str, api_version: str) -> Object:
    """The rule that counts or evicts the pods of one device of a hold."""
    return taint_rule(hold, device, rule_name(device), (KEY, effect), api_version)


def swap_of(device_rule: ObjectView) -> str | None:
    """The name of the swap that a DeviceTaintRule belongs to; None for other rules."""
    taint = (device_rule.get("spec") or {}).get("taint") or {}
    return printable(taint.get("value") or "") if taint.get("key") == KEY else None


def check_owner_of_rule(device_rule: ObjectView, owner: str) -> None:
    """Raises Refused for a rule of a swap of another owner."""
    found = printable((device_rule["metadata"].get("annotations") or {}).get(OWNER) or "")
    if found != owner:
        raise Refused(f"swap {swap_of(device_rule)} belongs to {found or 'an unknown owner'}, not to {owner}")


def evicts(device_rule: ObjectView) -> bool:
    """Whether a rule of a swap evicts pods; otherwise it only counts them."""
    return bool(device_rule["spec"]["taint"].get("effect") == EVICT)


def check_no_other_swap(hold: Hold, devices: t.Iterable[DeviceId], rules: t.Iterable[ObjectView]) -> None:
    """Raises Refused for devices that have a rule of another swap."""
    names = {rule_name(device): "/".join(device) for device in devices}
    conflicts = []
    for device_rule in rules:
        device, name = names.get(str(device_rule["metadata"]["name"])), swap_of(device_rule)
        if device and name is not None and name != hold.name:
            conflicts.append(
                f"the pods of {device} are being {'evicted' if evicts(device_rule) else 'counted'} for swap {name}"
            )
    if conflicts:
        raise Refused(
            f"{'; '.join(conflicts[:8])}. Run this again when that swap is complete. If the other run was interrupted, "
            "run that swap again, or return its devices with lanewise.dra.swap"
        )


def evicting_rules(rules: t.Iterable[ObjectView]) -> dict[str, int]:
    """The number of rules of each swap that evict pods. The pods may not have ended yet."""
    return _rules_by_swap(
        device_rule for device_rule in rules if swap_of(device_rule) is not None and evicts(device_rule)
    )


def counting_rules(rules: t.Iterable[ObjectView]) -> dict[str, int]:
    """The number of rules of each swap that only count pods. A run is in progress, or was interrupted."""
    return _rules_by_swap(
        device_rule for device_rule in rules if swap_of(device_rule) is not None and not evicts(device_rule)
    )


def _rules_by_swap(rules: t.Iterable[ObjectView]) -> dict[str, int]:
    return dict(Counter(swap_of(device_rule) or "" for device_rule in rules))


def counted_pods(device_rule: ObjectView) -> int | None:
    """How many pods the controller would evict for a rule with the effect None; None if it has not counted yet."""
    for condition in (device_rule.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "EvictionInProgress" and condition.get("reason") == "NoEffect":
            if condition.get("observedGeneration") not in (None, (device_rule["metadata"].get("generation"))):
                continue
            match = _PODS.search(str(condition.get("message") or "")[:512])
            return int(match.group(1)) if match else None
    return None
