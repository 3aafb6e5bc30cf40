#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_swap
short_description: Take devices from pods that give way, and hold them for a tier
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Holds devices for the claims of a tier as M(lanewise.dra.dra_hold) does, and ends the pods that have them. For
    that, each device with such a pod gets a second DeviceTaintRule with the taint C(lanewise.dev/swap=TIER). Its effect
    is first V(None), for which the controller of Kubernetes only counts pods, and then C(NoExecute).
  - Only pods are ended whose claims tolerate a swap for some seconds, their grace. If another pod has one of the
    devices, if Kueue manages it, or if a PodDisruptionBudget would be violated, nothing is changed.
  - Waits until the pods have gone, and removes the second rules. The hold stays until the swap is given back.
  - If it is killed, the next run with the same arguments goes on. Two swaps never have the same device. Of two runs of
    the same swap at once, one may fail and has to be run again.
notes:
  - Runs on the controller, with the rights of the kubeconfig. It must allow listing pods,
    C(poddisruptionbudgets.policy) and C(resourceclaims.resource.k8s.io), and listing, creating, updating and deleting
    C(devicetaintrules.resource.k8s.io).
  - Needs Kubernetes 1.37 or later.
extends_documentation_fragment:
  - lanewise.dra.cluster
  - lanewise.dra.attributes
  - lanewise.dra.attributes.dry_run
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  tier:
    description: The tier that gets the devices, which is also the name of the hold. A tier has one swap at a time.
    type: str
    required: true
  state:
    description:
      - V(swapped) takes the devices. V(returned) removes the rules, so that other pods can get the devices again; pods
        of the tier that run keep theirs.
      - V(previewed) lets the controller count the pods that would be ended, and takes nothing.
    type: str
    choices: [swapped, previewed, returned]
    default: swapped
  owner:
    description: Who has the swap. A swap of another owner is never changed.
    type: str
    required: true
  reason:
    description: Why. Required for V(swapped).
    type: str
  hours:
    description: When a new hold expires, in hours from now. A hold that exists keeps its expiry.
    type: int
    default: 24
  expires:
    description: When the hold expires, in UTC, such as C(2026-12-01T08:00:00Z), in place of O(hours).
    type: str
  devices:
    description: The devices to hold, as C(driver/pool/device). The swap has these and no others.
    type: list
    elements: str
    default: []
  evict:
    description: Those of O(devices) whose pods are ended. By default all.
    type: list
    elements: str
  ignore_budgets:
    description: Whether to end pods although their PodDisruptionBudget does not allow it.
    type: bool
    default: false
  timeout:
    description: Seconds for pods to end after their grace.
    type: int
    default: 600
seealso:
  - module: lanewise.dra.swap_plan
  - module: lanewise.dra.dra_hold
"""

EXAMPLES = r"""
- name: Take what the plan has found
  lanewise.dra.dra_swap:
    tier: gold
    owner: ml-platform
    reason: release training
    devices: "{{ plan.devices }}"
    evict: "{{ plan.evict }}"
  delegate_to: localhost

- name: Give it back
  lanewise.dra.dra_swap:
    tier: gold
    state: returned
    owner: ml-platform
  delegate_to: localhost
"""

RETURN = r"""
hold:
  description: The hold of the swap, as it is or was. Empty if there was none.
  returned: success
  type: dict
ended:
  description: The pods that were ended, or would be in check mode, each with C(pod), C(node), C(grace) and C(devices).
  returned: success
  type: list
  elements: dict
  sample: [{pod: team/web-x7, node: gpu-01, grace: 30, devices: [gpu.nvidia.com/gpu-01/gpu-0]}]
counted:
  description: How many pods the controller counted beforehand, summed over devices. Null if it was not asked.
  returned: success
  type: int
in_use:
  description: The devices that claims of the tier have.
  returned: success
  type: list
  elements: str
budgets:
  description: The PodDisruptionBudgets that the swap violates.
  returned: success
  type: list
  elements: str
seconds:
  description: How long the swap took.
  returned: success
  type: float
"""

import time
import typing as t
from dataclasses import replace
from datetime import datetime, timezone

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import run
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_swaps import Done, Swaps, Unfinished
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as forms
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import serving, swap
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.changes import Refused
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.times import expiry
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.giving_way import Leaving
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.swapping import device_ids, device_names

SPEC = {
    "tier": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["swapped", "previewed", "returned"], "default": "swapped"},
    "owner": {"type": "str", "required": True},
    "reason": {"type": "str"},
    "hours": {"type": "int", "default": 24},
    "expires": {"type": "str"},
    "devices": {"type": "list", "elements": "str", "default": []},
    "evict": {"type": "list", "elements": "str"},
    "ignore_budgets": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 600},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
}


def required(kubernetes: str) -> str:
    """The version of the API. Raises serving.Unsupported for a release that cannot swap."""
    if versions.minor_of(kubernetes) < swap.MINOR:
        raise serving.Unsupported(
            f"Kubernetes {kubernetes} cannot swap devices: rules that only count pods, and are on by default, are "
            f"there from 1.{swap.MINOR} on. Upgrade it, or move pods with lanewise.dra.defragment"
        )
    return serving.require(kubernetes)


class Work:
    """One call of the module on a cluster. Its methods raise ValueError, ApiException and HTTPError."""

    def __init__(self, module: AnsibleModule, swaps: Swaps) -> None:
        self.params: Object = module.params
        self.check = bool(module.check_mode)
        self.swaps = swaps
        self.tier = str(self.params["tier"])
        self.now = datetime.now(timezone.utc)
        self.old = swaps.holds()[0].get(self.tier)

    def wanted(self) -> tuple[Hold, tuple[forms.DeviceId, ...]]:
        """The hold, and the devices whose pods are ended."""
        params = self.params
        devices = device_ids(params["devices"])
        evict = devices if params["evict"] is None else device_ids(params["evict"])
        strange = device_names(one for one in evict if one not in devices)
        if strange:
            raise ValueError(f"evict: {', '.join(strange)} are not among devices")
        expires = expiry(params["expires"], params["hours"], self.old, self.now)
        hold = Hold(self.tier, params["owner"], params["reason"] or "", expires, devices, forms.SWAP)
        return hold, evict

    def result(self) -> Object:
        """What the module returns."""
        if self.params["state"] == "returned":
            return self._returned()
        hold, evict = self.wanted()
        if self.params["state"] == "previewed":
            hold = replace(hold, reason=hold.reason or "preview")
            forms.check(hold, self.now)
            found = self.swaps.taking(self.tier, evict)
            users = [device for one in found.leaving for device in one.devices]
            counted = None if self.check else self.swaps.preview(hold, list(dict.fromkeys(users)))
            return self._shown(Done(False, found.leaving, counted), hold, found.there, found.budgets)
        if not hold.devices:
            raise ValueError("devices: name at least one")
        forms.check(hold, self.now)
        return self._swapped(hold, evict)

    def _swapped(self, hold: Hold, evict: tuple[forms.DeviceId, ...]) -> Object:
        found = self.swaps.taking(self.tier, evict)
        begun = self.swaps.holds()[1].get(self.tier)
        against = [*found.refused, *([] if self.params["ignore_budgets"] or begun else found.budgets)]
        if against:
            more = ". With ignore_budgets they are ended all the same" if found.budgets and not found.refused else ""
            raise Refused(f"{'; '.join(against)}{more}. No pod was ended")
        if self.check:
            changed = bool(self.swaps.rules.make(hold, check=True)) or bool(found.leaving)
            done = Done(changed, found.leaving)
        else:
            done = self.swaps.make(hold, evict, self.params["ignore_budgets"], self.params["timeout"])
        return self._shown(done, hold, found.there, found.budgets)

    def _returned(self) -> Object:
        old = self.old
        there = self.swaps.taking(self.tier, old.devices).there if old else ()
        changed = self.swaps.give_back(self.tier, self.params["owner"], self.check)
        before = _held(old, self.now)
        return {
            "changed": changed,
            "hold": before,
            "ended": [],
            "counted": None,
            "in_use": device_names(there),
            "budgets": [],
            "diff": {"before": before, "after": {}},
        }

    def _shown(self, done: Done, hold: Hold, there: t.Iterable[forms.DeviceId], budgets: t.Iterable[str]) -> Object:
        after = _held(hold, self.now)
        ended = [_pod(one) for one in done.ended]
        return {
            "changed": done.changed,
            "hold": after,
            "ended": ended,
            "counted": done.counted,
            "in_use": device_names(there),
            "budgets": list(budgets),
            "diff": {
                "before": {**_held(self.old, self.now), "pods": sorted(one["pod"] for one in ended)},
                "after": {**after, "pods": []},
            },
        }


def _held(one: Hold | None, now: datetime) -> Object:
    if one is None:
        return {}
    found = one.as_dict(now)
    return {**found, "devices": sorted(found["devices"])}


def _pod(one: Leaving) -> Object:
    return {"pod": one.pod, "node": one.node, "grace": one.grace, "devices": device_names(one.devices)}


def main() -> None:
    module = AnsibleModule(
        argument_spec=SPEC, required_if=[("state", "swapped", ("reason",))], supports_check_mode=True
    )
    begin = time.monotonic()

    def work(api: t.Any, kubernetes: str) -> Object:
        try:
            found = Work(module, Swaps(api, required(kubernetes))).result()
        except Unfinished as error:
            raise ValueError(str(error)) from error
        return {**found, "seconds": round(time.monotonic() - begin, 3)}

    verb = {"swapped": "made", "previewed": "previewed", "returned": "given back"}[module.params["state"]]
    run(module, f"the swap for {module.params['tier']} cannot be {verb}", work)


if __name__ == "__main__":
    main()
