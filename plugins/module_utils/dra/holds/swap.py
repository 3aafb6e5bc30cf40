# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Swaps: held devices whose pods give way to those of a tier, by a second rule for each device.

The hold keeps others from a device when it becomes free (NoSchedule). The second rule ends the pods that have it: its
effect is first None, for which the controller only counts pods, and then NoExecute. It is removed when the pods have
gone. One rule could not do both: a toleration of NoExecute with a grace also lets new pods onto the device.

A claim's tolerations cannot change, so both sides have theirs from the start: the tier tolerates its own hold and
swap, and pods that give way tolerate every swap for some seconds. When Kubernetes 1.37 ends pods, it acts only on
tolerations that name NoExecute.
"""

from __future__ import annotations

import hashlib
import re
import typing as t
from collections import Counter

from ..kube.objects import Object, ObjectView
from . import hold as forms
from .changes import Refused
from .hold import DeviceId, Hold
from .tolerations import toleration as hold_toleration

#: The key of the taint that ends pods; its value is the name of the hold, which is that of the tier.
KEY = "lanewise.dev/swap"
#: The effects of a rule: the controller counts pods, or ends them.
COUNT, EVICT = "None", "NoExecute"
#: The oldest release whose rules have the effect None and are on by default.
MINOR = 37
_PODS = re.compile(r"([0-9]{1,9}) pods? would be evicted")


def tier_tolerations(tier: str) -> list[Object]:
    """What each request of a tier's claims needs: its hold and its swap."""
    return [hold_toleration(tier), {"key": KEY, "operator": "Equal", "value": tier, "effect": EVICT}]


def grace_toleration(seconds: int) -> Object:
    """The toleration of claims whose pods a swap may end, after this many seconds."""
    return {"key": KEY, "operator": "Exists", "effect": EVICT, "tolerationSeconds": seconds}


def grace_of(allocated: ObjectView, tier: str) -> int | None:
    """After how many seconds a device's pod gives way to a tier; None if it does not tolerate swaps.

    `allocated` is a result of an allocation, or a request: something with tolerations.
    """
    found: int | None = None
    for one in allocated.get("tolerations") or ():
        if one.get("key") == KEY and one.get("effect") == EVICT and one.get("tolerationSeconds") is not None:
            if one.get("operator") == "Exists" or (one.get("value") or "") == tier:
                seconds = max(0, int(one["tolerationSeconds"]))
                found = seconds if found is None else min(found, seconds)
    return found


def stays(allocated: ObjectView, tier: str) -> bool:
    """Whether a swap for a tier does not end a device's pod, as it tolerates the swap without a time limit."""
    return any(
        one.get("effect") == EVICT
        and one.get("tolerationSeconds") is None
        and one.get("key") in (None, "", KEY)
        and (one.get("operator") == "Exists" or (one.get("value") or "") == tier)
        for one in allocated.get("tolerations") or ()
    )


def of_tier(allocated: ObjectView, tier: str) -> bool:
    """Whether a device's claim is one of the tier: it names the tier's swap, and no other."""
    return any(
        one.get("key") == KEY
        and one.get("effect") == EVICT
        and one.get("operator") != "Exists"
        and one.get("value") == tier
        and one.get("tolerationSeconds") is None
        for one in allocated.get("tolerations") or ()
    )


def rule_name(one: DeviceId) -> str:
    """The name of the rule that ends the pods of a device, the same in every swap."""
    return f"lanewise-swap-{hashlib.sha256('/'.join(one).encode()).hexdigest()[:40]}"


def rule(hold: Hold, one: DeviceId, effect: str, api_version: str) -> Object:
    """The rule that counts or ends the pods of one device of a hold."""
    return forms.taint_rule(hold, one, rule_name(one), (KEY, effect), api_version)


def swap_of(one: ObjectView) -> str | None:
    """The name of the swap that a DeviceTaintRule belongs to; None for other rules."""
    taint = (one.get("spec") or {}).get("taint") or {}
    return forms.printable(taint.get("value") or "") if taint.get("key") == KEY else None


def ends(one: ObjectView) -> bool:
    """Whether a rule of a swap ends pods; others only count them."""
    return bool(one["spec"]["taint"].get("effect") == EVICT)


def apart(hold: Hold, devices: t.Iterable[DeviceId], rules: t.Iterable[ObjectView]) -> None:
    """Raises Refused for devices that have a rule of another swap."""
    names = {rule_name(one): "/".join(one) for one in devices}
    found = []
    for one in rules:
        device, name = names.get(str(one["metadata"]["name"])), swap_of(one)
        if device and name is not None and name != hold.name:
            found.append(f"the pods of {device} are {'ended' if ends(one) else 'counted'} for swap {name}")
    if found:
        raise Refused(
            f"{'; '.join(found[:8])}. Run this again when that swap is done. If its run was interrupted, run it again "
            "to continue, or give it back with lanewise.dra.swap"
        )


def evicting(rules: t.Iterable[ObjectView]) -> dict[str, int]:
    """The number of rules of each swap that end pods: its eviction has begun and is not known to have ended."""
    return _numbers(one for one in rules if swap_of(one) is not None and ends(one))


def counting(rules: t.Iterable[ObjectView]) -> dict[str, int]:
    """The number of rules of each swap that only count pods: a run is at work, or one was interrupted."""
    return _numbers(one for one in rules if swap_of(one) is not None and not ends(one))


def _numbers(rules: t.Iterable[ObjectView]) -> dict[str, int]:
    return dict(Counter(swap_of(one) or "" for one in rules))


def counted(one: ObjectView) -> int | None:
    """How many pods the controller would end for a rule with the effect None; None if it has not counted yet."""
    for condition in (one.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "EvictionInProgress" and condition.get("reason") == "NoEffect":
            if condition.get("observedGeneration") not in (None, (one["metadata"].get("generation"))):
                continue
            found = _PODS.search(str(condition.get("message") or "")[:512])
            return int(found.group(1)) if found else None
    return None
