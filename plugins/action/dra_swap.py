# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Swap devices for a tier, from the controller. The documentation is in plugins/modules/dra_swap.py.

It runs in Ansible's process, because a module would be transferred, and would load and compile the planner each time.
"""

from __future__ import annotations

import time
import typing as t
from datetime import datetime, timezone

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import Failed, call_on_cluster
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_swaps import Done, Swaps, Unfinished
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import engine_for
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EngineMissing
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as forms
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import serving, swap
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.changes import Refused
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import DeviceId, Hold
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.times import expiry
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import versions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import forms as dumps
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.inputs import WORKLOAD
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.swapping import (
    Chosen,
    SwapRequest,
    choose,
    device_names,
    evicted_as_dict,
    lines,
    request_of,
)
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ControllerAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Result, Spec, Variables

_SPEC: Spec = {
    "tier": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["swapped", "previewed", "returned"], "default": "swapped"},
    "owner": {"type": "str", "required": True},
    "reason": {"type": "str"},
    "hours": {"type": "int", "default": 24},
    "expires": {"type": "str"},
    "devices": {"type": "list", "elements": "str", "default": []},
    "workload": {"type": "dict", "options": WORKLOAD},
    "count": {"type": "int", "default": 1},
    "share": {"type": "int"},
    "ignore_budgets": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 600},
    "feature_gates": {"type": "dict", "default": {}},
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
}
_VERBS = {"swapped": "made", "previewed": "previewed", "returned": "given back"}


class ActionModule(ControllerAction):
    """Chooses devices, holds them, ends the pods that have them, and waits; or gives the devices back."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        required = [("state", "swapped", ("reason",))]
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC, required_if=required)
        begin = time.monotonic()
        kubeconfig = options["kubeconfig"]
        if kubeconfig:
            kubeconfig = self._loader.path_dwim(self._from_current_folder(kubeconfig, task_vars or {}))
        check = bool(self._task.check_mode)

        def work(api: t.Any, kubernetes: str) -> Object:
            swaps = Swaps(api, required_version(kubernetes), kubernetes, self._show_progress)
            return SwapRun(options, check, swaps).result()

        failure = f"the swap for {options['tier']} cannot be {_VERBS[options['state']]}"
        try:
            found = call_on_cluster(kubeconfig, options["context"], failure, work)
        except Failed as error:
            raise AnsibleActionFail(str(error)) from None
        except (Unfinished, EngineMissing) as error:
            raise AnsibleActionFail(f"{failure}: {error}") from None
        result.update(found, seconds=round(time.monotonic() - begin, 3))
        if not self._task.diff:
            del result["diff"]
        return result

    def _show_progress(self, line: str) -> None:
        """Show what the task waits for, because Ansible shows a result only at the end of the task."""
        self._display.display(line, stderr=True)


def required_version(kubernetes: str) -> str:
    """The API version of the rules. Raises serving.Unsupported for a Kubernetes release that cannot swap."""
    if versions.minor_of(kubernetes) < swap.MINOR:
        raise serving.Unsupported(
            f"Kubernetes {kubernetes} cannot swap devices: taint rules that only count pods are "
            f"available by default from 1.{swap.MINOR} on. Upgrade it, or move pods with lanewise.dra.defragment"
        )
    return serving.require(kubernetes)


class SwapRun:
    """One run of the action. Its methods raise ValueError, Unfinished, EngineMissing, ApiException and HTTPError."""

    def __init__(self, options: Variables, check: bool, swaps: Swaps) -> None:
        self.options, self.check, self.swaps = options, check, swaps
        self.tier = str(options["tier"])
        self.now = datetime.now(timezone.utc)
        self.rules = swaps.rules.list()
        there, _working = swaps.holds(self.rules)
        self.old, self.evicting = there.get(self.tier), bool(swap.evicting_rules(self.rules).get(self.tier))

    def result(self) -> Result:
        """What the task returns."""
        if self.options["state"] == "returned":
            return self._returned()
        request, chosen = self._choice()
        summary = lines(chosen, request)
        if chosen.reason:
            raise Refused(f"{'; '.join(summary)}. Nothing was changed")
        hold = self._hold(chosen)
        self.swaps.refuse_others(hold, _used_devices(chosen), self.rules)
        done = self._previewed(hold, chosen) if self.options["state"] == "previewed" else self._swapped(hold, chosen)
        return self._shown(done, hold, chosen, summary)

    def _choice(self) -> tuple[SwapRequest, Chosen]:
        """The request, and the devices chosen for it, both from one read of the cluster."""
        objects = [*self.swaps.choice(), *self.rules]
        dumps.check(objects)
        version = self.swaps.kubernetes
        try:
            request = request_of(self.options, objects)
            return request, choose(objects, request, engine_for(version), version, self.options["feature_gates"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the objects of the cluster cannot be read: {error!r}") from error

    def _hold(self, chosen: Chosen) -> Hold:
        options = self.options
        expires = expiry(options["expires"], options["hours"], self.old, self.now)
        reason = options["reason"] or ("preview" if options["state"] == "previewed" else "")
        hold = Hold(self.tier, options["owner"], reason, expires, chosen.hold, forms.SWAP)
        forms.check(hold, self.now)
        return hold

    def _previewed(self, hold: Hold, chosen: Chosen) -> Done:
        counted = None if self.check else self.swaps.preview(hold, _used_devices(chosen))
        return Done(False, chosen.effects.evicted, counted)

    def _swapped(self, hold: Hold, chosen: Chosen) -> Done:
        found, ignore = chosen.effects, bool(self.options["ignore_budgets"])
        blockers = [*found.refused, *([] if ignore or self.evicting else found.budgets)]
        if blockers:
            more = ". To end these pods anyway, set ignore_budgets" if found.budgets and not found.refused else ""
            raise Refused(f"{'; '.join(blockers)}{more}. No pod was ended")
        if self.check:
            changed = bool(self.swaps.rules.make(hold, check=True)) or bool(found.evicted)
            return Done(changed, found.evicted)
        return self.swaps.make(hold, chosen.evict, ignore, self.options["timeout"])

    def _returned(self) -> Result:
        old = self.old
        there = self.swaps.in_use(self.tier, old.devices) if old else ()
        changed = self.swaps.give_back(self.tier, self.options["owner"], self.check)
        before = _hold_result(old, self.now)
        return {
            "changed": changed,
            "hold": before,
            "ended": [],
            "counted": None,
            "in_use": device_names(there),
            "budgets": [],
            "refused": [],
            "lines": [],
            "notes": [],
            "diff": {"before": before, "after": {}},
        }

    def _shown(self, done: Done, hold: Hold, chosen: Chosen, summary: list[str]) -> Result:
        after = _hold_result(hold, self.now)
        ended = [evicted_as_dict(one) for one in done.ended]
        return {
            "changed": done.changed,
            "hold": after,
            "ended": ended,
            "counted": done.counted,
            "in_use": device_names(chosen.effects.held_by_tier),
            "budgets": list(chosen.effects.budgets),
            "refused": list(chosen.effects.refused),
            "lines": summary,
            "notes": list(chosen.notes),
            "diff": {
                "before": {**_hold_result(self.old, self.now), "pods": sorted(one["pod"] for one in ended)},
                "after": {**after, "pods": []},
            },
        }


def _used_devices(chosen: Chosen) -> list[DeviceId]:
    """The chosen devices that are in use by pods."""
    return list(dict.fromkeys(device for one in chosen.effects.evicted for device in one.devices))


def _hold_result(one: Hold | None, now: datetime) -> Result:
    if one is None:
        return {}
    found = one.as_dict(now)
    return {**found, "devices": sorted(found["devices"])}
