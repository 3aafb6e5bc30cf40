# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Swap devices for a tier, from the controller. The documentation is in plugins/modules/dra_swap.py.

It is not a module, because a module would be transferred, and would load and compile the planner, at each run.
"""

from __future__ import annotations

import time
import typing as t
from datetime import datetime, timezone

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_holds import Failed, call_on_cluster
from ansible_collections.lanewise.dra.plugins.module_utils.cluster_swaps import SwapResult, Swaps, Unfinished
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import engine_for
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EngineMissing
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold as hold_rules
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
_VERBS = {"swapped": "completed", "previewed": "previewed", "returned": "returned"}


class ActionModule(ControllerAction):
    """Chooses devices, holds them, evicts the pods that have them, and waits for their end; or returns the devices."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        required = [("state", "swapped", ("reason",))]
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC, required_if=required)
        start = time.monotonic()
        kubeconfig = options["kubeconfig"]
        if kubeconfig:
            kubeconfig = self._loader.path_dwim(self._from_current_folder(kubeconfig, task_vars or {}))
        check = bool(self._task.check_mode)

        def work(api: t.Any, kubernetes: str) -> Object:
            swaps = Swaps(api, required_version(kubernetes), kubernetes, self._show_progress)
            return SwapRun(options, check, swaps).result()

        failure = f"the swap for {options['tier']} cannot be {_VERBS[options['state']]}"
        try:
            answer = call_on_cluster(kubeconfig, options["context"], failure, work)
        except Failed as error:
            raise AnsibleActionFail(str(error)) from None
        except (Unfinished, EngineMissing) as error:
            raise AnsibleActionFail(f"{failure}: {error}") from None
        result.update(answer, seconds=round(time.monotonic() - start, 3))
        if not self._task.diff:
            del result["diff"]
        return result

    def _show_progress(self, line: str) -> None:
        """Show what the task waits for, because Ansible shows a result only at the end of the task."""
        self._display.display(line, stderr=True)


def required_version(kubernetes: str) -> str:
    """The API version of DeviceTaintRules. Raises serving.Unsupported for a Kubernetes release that cannot swap."""
    if versions.minor_of(kubernetes) < swap.OLDEST_MINOR:
        raise serving.Unsupported(
            f"Kubernetes {kubernetes} cannot swap devices: taint rules that only count pods are "
            f"available by default from 1.{swap.OLDEST_MINOR} on. Upgrade the cluster, or move pods with "
            "lanewise.dra.defragment"
        )
    return serving.require(kubernetes)


class SwapRun:
    """One run of the action. Its methods raise ValueError, Unfinished, EngineMissing, ApiException and HTTPError."""

    def __init__(self, options: Variables, check: bool, swaps: Swaps) -> None:
        self.options, self.check, self.swaps = options, check, swaps
        self.tier = str(options["tier"])
        self.now = datetime.now(timezone.utc)
        self.rules = swaps.rules.list()
        holds, _swap_rules = swaps.holds_and_swap_rules(self.rules)
        self.old, self.evicting = holds.get(self.tier), bool(swap.evicting_rules(self.rules).get(self.tier))

    def result(self) -> Result:
        """What the task returns."""
        if self.options["state"] == "returned":
            return self._returned()
        request, chosen = self._choice()
        summary = lines(chosen, request)
        if chosen.reason:
            raise Refused(f"{'; '.join(summary)}. Nothing was changed")
        hold = self._hold(chosen)
        self.swaps.check_no_conflict(hold, _used_devices(chosen), self.rules)
        outcome = self._previewed(hold, chosen) if self.options["state"] == "previewed" else self._swapped(hold, chosen)
        return self._shown(outcome, hold, chosen, summary)

    def _choice(self) -> tuple[SwapRequest, Chosen]:
        """The request and the devices chosen for it, from a single read of the cluster."""
        objects = [*self.swaps.read_fleet(), *self.rules]
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
        hold = Hold(self.tier, options["owner"], reason, expires, chosen.hold, hold_rules.SWAP)
        hold_rules.check(hold, self.now)
        return hold

    def _previewed(self, hold: Hold, chosen: Chosen) -> SwapResult:
        counted = None if self.check else self.swaps.preview(hold, _used_devices(chosen))
        return SwapResult(False, chosen.effects.evicted, counted)

    def _swapped(self, hold: Hold, chosen: Chosen) -> SwapResult:
        effects, ignore = chosen.effects, bool(self.options["ignore_budgets"])
        blockers = [*effects.refused, *([] if ignore or self.evicting else effects.budgets)]
        if blockers:
            only_budgets = effects.budgets and not effects.refused
            advice = ". To evict these pods anyway, set ignore_budgets" if only_budgets else ""
            raise Refused(f"{'; '.join(blockers)}{advice}. No pod was evicted in this run")
        if self.check:
            left = self.swaps.holds_and_swap_rules()[1].get(self.tier)  # rules of an interrupted run
            changed = bool(self.swaps.rules.make(hold, check=True)) or bool(left) or bool(effects.evicted)
            return SwapResult(changed, effects.evicted)
        return self.swaps.make(hold, chosen.evict, ignore, self.options["timeout"])

    def _returned(self) -> Result:
        old = self.old
        in_use = self.swaps.in_use(self.tier, old.devices) if old else ()
        changed = self.swaps.return_devices(self.tier, self.options["owner"], self.check)
        before = _hold_result(old, self.now)
        return {
            "changed": changed,
            "hold": before,
            "ended": [],
            "counted": None,
            "in_use": device_names(in_use),
            "budgets": [],
            "refused": [],
            "lines": [],
            "notes": [],
            "diff": {"before": before, "after": {}},
        }

    def _shown(self, outcome: SwapResult, hold: Hold, chosen: Chosen, summary: list[str]) -> Result:
        after = _hold_result(hold, self.now)
        evicted = [evicted_as_dict(pod) for pod in outcome.evicted]
        return {
            "changed": outcome.changed,
            "hold": after,
            "ended": evicted,
            "counted": outcome.counted,
            "in_use": device_names(chosen.effects.held_by_tier),
            "budgets": list(chosen.effects.budgets),
            "refused": list(chosen.effects.refused),
            "lines": summary,
            "notes": list(chosen.notes),
            "diff": {
                "before": {**_hold_result(self.old, self.now), "pods": sorted(pod["pod"] for pod in evicted)},
                "after": {**after, "pods": []},
            },
        }


def _used_devices(chosen: Chosen) -> list[DeviceId]:
    """The chosen devices that are in use by pods."""
    return list(dict.fromkeys(device for pod in chosen.effects.evicted for device in pod.devices))


def _hold_result(hold: Hold | None, now: datetime) -> Result:
    """A hold as the module returns it; empty for None."""
    if hold is None:
        return {}
    fields = hold.as_dict(now)
    return {**fields, "devices": sorted(fields["devices"])}
