# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Swaps devices on a cluster: holds them for a tier, has the controller count the pods to evict, has it evict them, and
waits. The rules contain the name and owner of the swap, so a later run can continue an interrupted one."""

from __future__ import annotations

import itertools
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus

from .cluster_holds import Rules
from .cluster_lists import REQUEST_TIMEOUT_SECONDS
from .cluster_objects import listed, reduced, version_of
from .dra.holds import swap
from .dra.holds.changes import Overtaken, Refused, changes_to_make, check_owner
from .dra.holds.hold import SWAP, DeviceId, Hold, holds
from .dra.kube.bounded_json import loads_pruned
from .dra.kube.objects import Object, ObjectView
from .dra.plan.evictions import ENDED, DeviceUsers, EvictedPod, TakeEffects

if t.TYPE_CHECKING:
    import kubernetes

#: The first and the longest pause between polls. Pauses grow from the first to the longest.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 0.25
#: How long to wait until the controller has counted pods.
COUNT_TIMEOUT_SECONDS = 60.0
#: How long to wait until the claims of evicted pods are deleted.
CLAIM_TIMEOUT_SECONDS = 60.0
#: How often a run that waits for pods to end checks that its hold still exists.
HOLD_CHECK_SECONDS = 5.0
#: The maximum number of concurrent requests.
MAX_CONCURRENT_REQUESTS = 4
#: The maximum number of rounds of evictions in one run. After each round, the users of the devices are read again, as a
#: pod may have been bound just before the hold.
MAX_ROUNDS = 5
#: How often a change is tried while the controller or other runs change the same rules.
_ATTEMPTS = 5
_REMOVED = "another run has removed rules of swap {0}. Look at that run, and run this again if needed"
#: The kinds that are read to choose devices, besides rules and `_USER_KINDS`.
_FLEET_KINDS = ("Node", "ResourceSlice", "ResourceClaimTemplate", "DeviceClass")
#: The kinds that show which pods use which devices, and whether these pods may be evicted.
_USER_KINDS = ("Pod", "ResourceClaim", "PodDisruptionBudget")


class Unfinished(Exception):
    """A swap is not complete, and has begun to evict pods or was changed by another run.

    Its hold and rules stay unless the other run has removed them, so a later run can continue it.
    """


@dataclass(frozen=True)
class SwapResult:
    """Whether a swap changed anything, the pods that it evicts, and how many pods the controller counted before.

    `counted` is None if the controller has not counted.
    """

    changed: bool = False
    evicted: tuple[EvictedPod, ...] = ()
    counted: int | None = None


class Swaps:
    """The swaps of a cluster; `kubernetes` is its minor release. `report` is called with a message when pods are being
    evicted.

    The methods raise ApiException of the package kubernetes and urllib3's HTTPError.
    """

    def __init__(
        self, api: kubernetes.client.ApiClient, api_version: str, kubernetes: str, report: t.Callable[[str], None]
    ) -> None:
        client = kubernetes_client()
        self.rules = Rules(api, api_version)
        self.api_version, self.kubernetes, self._report = api_version, kubernetes, report
        self._api = api
        self._core, self._custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._error = client.ApiException

    # the current state

    def effects_of_taking(self, tier: str, devices: t.Iterable[DeviceId]) -> TakeEffects:
        """The effects of taking devices for a tier now."""
        return DeviceUsers(self._read(_USER_KINDS), tier).effects_of_taking(devices)

    def in_use(self, tier: str, devices: t.Iterable[DeviceId]) -> tuple[DeviceId, ...]:
        """Those of the devices that are allocated to claims of a tier."""
        return DeviceUsers(self._read(["ResourceClaim"]), tier).effects_of_taking(devices).held_by_tier

    def read_fleet(self) -> list[Object]:
        """The objects from which devices are chosen, such as nodes, slices, claims and pods, but not the rules."""
        return self._read([*_FLEET_KINDS, *_USER_KINDS])

    def _read(self, kinds: t.Iterable[str]) -> list[Object]:
        """The objects of some kinds, reduced to the fields that are used."""
        versions = {kind: version_of(kind, "resource.k8s.io/v1", self.kubernetes) for kind in kinds}
        return [reduced(obj) for kind, version in versions.items() for obj in listed(self._api, kind, version)]

    def holds_and_swap_rules(
        self, rules: t.Sequence[Object] | None = None
    ) -> tuple[dict[str, Hold], dict[str, list[Object]]]:
        """The holds by name, and the rules that count or evict pods by swap.

        Both are read from `rules`, by default the current rules of the cluster.
        """
        rules = self.rules.list() if rules is None else rules
        swap_rules: dict[str, list[Object]] = {}
        for rule in rules:
            name = swap.swap_of(rule)
            if name is not None:
                swap_rules.setdefault(name, []).append(rule)
        return {hold.name: hold for hold in holds(rules)}, swap_rules

    # the steps

    def check_no_conflict(self, hold: Hold, devices: t.Iterable[DeviceId], rules: t.Sequence[Object]) -> None:
        """Raises Refused if the hold cannot be made, or if one of `devices` has a rule of another swap."""
        changes_to_make(hold, rules, self.api_version)
        swap.check_no_other_swap(hold, devices, rules)

    def preview(self, hold: Hold, devices: t.Sequence[DeviceId]) -> int:
        """The number of pods that the controller would evict, summed over the devices.

        The rules that count them are removed again. Raises Refused.
        """
        rules = self.rules.list()
        self.check_no_conflict(hold, devices, rules)
        existing_holds, swap_rules = self.holds_and_swap_rules(rules)
        existing = swap_rules.get(hold.name, ())
        if any(swap.evicts(rule) for rule in existing):
            raise Refused(f"swap {hold.name} has begun to evict pods: run it again to continue, or return its devices")
        if existing and hold.name in existing_holds:  # rules without a hold are of an interrupted preview: repeat it
            raise Refused(
                f"a run of swap {hold.name} is counting pods, or was interrupted while counting: run it again, or "
                "return its devices"
            )
        try:
            self._set_rules(hold, devices, swap.COUNT)
            return sum(self._wait_for_counts(hold, devices).values())
        finally:
            self._remove_swap_rules(hold.name)

    def make(self, hold: Hold, evict: t.Sequence[DeviceId], ignore_budgets: bool, seconds: int) -> SwapResult:
        """Hold devices, evict the pods that use the devices in `evict`, and wait until these pods have ended.

        `seconds` is how long to wait after the longest grace period of the pods. If an error occurs before the swap
        has begun to evict pods, this run's changes are undone; the error is Refused if the swap is not possible. Raises
        Unfinished if the swap has begun to evict pods, in this run or an earlier one, and cannot be completed, or if
        another run has returned the devices.
        """
        holds_before, swap_rules = self.holds_and_swap_rules()
        existing = swap_rules.get(hold.name, ())  # of an interrupted run
        begun = any(swap.evicts(rule) for rule in existing)
        changed = bool(self.rules.make(hold))
        evicted: dict[str, EvictedPod] = {}
        counted = None
        try:
            for _round in range(MAX_ROUNDS):
                claims = {claim for pod in evicted.values() for claim in pod.claims}
                effects = self._effects_after_cleanup(hold.name, evict, claims)
                if not effects.evicted and not effects.refused:
                    self._remove_swap_rules(hold.name)
                    if evicted:
                        self.rules.confirm(hold)
                    return SwapResult(changed or bool(existing) or bool(evicted), tuple(evicted.values()), counted)
                blockers = [*effects.refused, *([] if ignore_budgets or begun else effects.budgets)]
                if blockers:
                    raise Refused("; ".join(blockers))
                devices = list(dict.fromkeys(device for pod in effects.evicted for device in pod.devices))
                self._set_rules(hold, devices, swap.COUNT)
                counted = self._checked_count(hold, devices, effects) if counted is None else counted
                # after the rules exist: a run that has returned the devices meanwhile may not have seen them
                self.rules.confirm(hold)
                begun = True
                evicted.update({pod.uid: pod for pod in effects.evicted})
                self._set_rules(hold, devices, swap.EVICT)
                longest_grace = max((pod.grace for pod in effects.evicted), default=0)
                self._wait_for_pods(hold, effects.evicted, longest_grace + seconds)
            raise Unfinished(f"new pods keep getting devices of swap {hold.name}: their claims tolerate its hold")
        except Overtaken as error:
            if hold.name not in self.holds_and_swap_rules()[0]:  # otherwise the other run removes the rules
                self._remove_swap_rules(hold.name)
            raise Unfinished(f"{error}. At most {len(evicted)} pod(s) were evicted in this run") from error
        except Refused as error:
            if begun:
                raise Unfinished(
                    f"{error}. Swap {hold.name} is not complete, and its hold and rules stay. At most {len(evicted)} "
                    "pod(s) were evicted in this run"
                ) from error
            self._undo(hold, holds_before)
            raise
        except BaseException:
            if not begun:
                self._undo(hold, holds_before)
            raise

    def return_devices(self, name: str, owner: str, check: bool) -> bool:
        """Remove the rules that evict pods, then the hold of a swap. Returns whether there was anything to remove.

        With `check`, all requests are dry runs. Raises Refused if the hold belongs to another owner or is not of a
        swap. A run that makes this swap at the same time evicts no pod afterwards.
        """
        existing_holds, swap_rules = self.holds_and_swap_rules()
        old = existing_holds.get(name)
        if old:
            check_owner(old, owner)
            if old.purpose != SWAP:
                raise Refused(f"{old.title()} has the purpose {old.purpose}: it is not a swap")
        for rule in swap_rules.get(name, ()):  # a preview has rules, but no hold
            swap.check_owner_of_rule(rule, owner)
        _for_each(lambda rule: self.rules.delete(rule, check), swap_rules.get(name, ()))
        released = bool(self.rules.release(name, owner, check, may_be_swap=True))
        if not check:
            self._remove_swap_rules(name)  # those that another run has created before the hold was released
        return released or bool(swap_rules.get(name))

    # parts of the steps

    def _undo(self, hold: Hold, holds_before: t.Mapping[str, Hold]) -> None:
        """Remove the rules of a swap, and restore its earlier hold, or release the hold if there was none."""
        self._remove_swap_rules(hold.name)
        old = holds_before.get(hold.name)
        if old:
            self.rules.make(old)
        else:
            self.rules.release(hold.name, may_be_swap=True)

    def _remove_swap_rules(self, name: str) -> None:
        _for_each(self.rules.delete, [rule for rule in self.rules.list() if swap.swap_of(rule) == name])

    def _set_rules(self, hold: Hold, devices: t.Sequence[DeviceId], effect: str) -> None:
        """Give each device its rule with this effect, and remove the swap's rules of other devices.

        A rule that already evicts pods is not changed. A rule that evicts pods replaces one that counts them: if that
        one no longer exists, another run has removed it. Raises Overtaken then, and Refused if a device has a rule of
        another swap.
        """
        desired = {swap.rule_name(device): swap.rule(hold, device, effect, self.api_version) for device in devices}
        for _attempt in range(_ATTEMPTS):
            current = {
                str(rule["metadata"]["name"]): rule for rule in self.rules.list() if swap.swap_of(rule) is not None
            }
            swap.check_no_other_swap(hold, devices, current.values())
            if effect == swap.EVICT and not desired.keys() <= current.keys():
                raise Overtaken(_REMOVED.format(hold.name))
            obsolete = [
                rule for name, rule in current.items() if name not in desired and swap.swap_of(rule) == hold.name
            ]
            try:
                _for_each(self._put, [(new, current.get(name)) for name, new in desired.items()])
                _for_each(self.rules.delete, obsolete)
            except self._error as error:
                if error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                    raise
                continue  # the controller has written a status, or another run of this swap has changed a rule
            return
        raise Refused(f"other runs keep changing the rules of swap {hold.name}: run this again later")

    def _put(self, change: tuple[Object, ObjectView | None]) -> None:
        """Create a rule, or change the existing rule of the same swap."""
        new, old = change
        name, taint = new["metadata"]["name"], new["spec"]["taint"]
        resource = (*self.api_version.split("/"), "devicetaintrules")
        if old is None:
            self._custom.create_cluster_custom_object(*resource, new)
            return
        if old["spec"]["taint"].get("effect") in (taint["effect"], swap.EVICT):
            return
        body = {**new, "metadata": {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}}
        self._custom.replace_cluster_custom_object(*resource, name, body)

    def _wait_for_counts(self, hold: Hold, devices: t.Sequence[DeviceId]) -> dict[str, int]:
        """The number of pods that the controller would evict, by the name of each rule that only counts.

        Raises Refused if the controller does not count them in time, and Overtaken if another run has removed a rule.
        """
        names = {swap.rule_name(device) for device in devices}
        deadline = time.monotonic() + COUNT_TIMEOUT_SECONDS
        pauses = _pauses()
        while True:
            counts, missing, removed = {}, set(names), set(names)
            for rule in self.rules.list():
                name = str(rule["metadata"]["name"])
                if name in names and swap.swap_of(rule) == hold.name:
                    removed.discard(name)
                    count = swap.counted_pods(rule)
                    if count is not None:
                        counts[name] = count
                    if count is not None or rule["spec"]["taint"].get("effect") == swap.EVICT:
                        missing.discard(name)
            if removed:
                raise Overtaken(_REMOVED.format(hold.name))
            if not missing:
                return counts
            if time.monotonic() > deadline:
                raise Refused(
                    f"the controller of DeviceTaintRules has not counted pods for {len(missing)} of {len(names)} "
                    f"rule(s) in {COUNT_TIMEOUT_SECONDS:.0f} s: is kube-controller-manager running? No pod was evicted "
                    "in this run"
                )
            time.sleep(next(pauses))

    def _checked_count(self, hold: Hold, devices: t.Sequence[DeviceId], effects: TakeEffects) -> int:
        """The sum of the controller's counts. Raises Refused if it would evict more pods than are known."""
        known: dict[str, int] = {}
        for pod in effects.evicted:
            for device in pod.devices:
                known[swap.rule_name(device)] = known.get(swap.rule_name(device), 0) + 1
        counts = self._wait_for_counts(hold, devices)
        too_high = {name: count for name, count in counts.items() if count > known.get(name, 0)}
        if too_high:
            raise Refused(
                f"the controller would evict {sum(too_high.values())} pod(s) for {len(too_high)} rule(s), but only "
                f"{sum(known.get(name, 0) for name in too_high)} are known: run this again. No pod was evicted in this "
                "run"
            )
        return sum(counts.values())

    def _wait_for_pods(self, hold: Hold, evicted: t.Iterable[EvictedPod], seconds: int) -> None:
        """Wait until no evicted pod is active.

        Raises Unfinished after so many seconds, and Overtaken if another run has returned the devices.
        """
        active = list(evicted)
        self._report(f"{hold.name}: {len(active)} pod(s) are being evicted; waiting for up to {seconds} s")
        deadline = time.monotonic() + seconds
        next_check = time.monotonic() + HOLD_CHECK_SECONDS
        pauses = _pauses()
        while active:
            if not self._is_active(active[0]):
                active.pop(0)
                continue
            expired = time.monotonic() > deadline
            if expired or time.monotonic() > next_check:
                self.rules.confirm(hold)
                next_check = time.monotonic() + HOLD_CHECK_SECONDS
            if expired:
                active = [pod for pod in active if self._is_active(pod)]
                names = ", ".join(f"{pod.pod} on {pod.node}" for pod in active[:8])
                raise Unfinished(
                    f"after {seconds} s, {len(active)} pod(s) still have devices: {names}. If a node is lost, remove "
                    f"its pods or its Node. The hold and the rules of swap {hold.name} stay: run it again to continue, "
                    "or return its devices"
                )
            time.sleep(next(pauses))

    def _is_active(self, pod: EvictedPod) -> bool:
        """Whether a pod still exists and has neither succeeded nor failed."""
        namespace, _slash, name = pod.pod.partition("/")
        try:
            answer = self._core.read_namespaced_pod(
                name, namespace, _request_timeout=REQUEST_TIMEOUT_SECONDS, _preload_content=False
            )
        except self._error as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        current = loads_pruned(answer.data)
        return current["metadata"]["uid"] == pod.uid and (current.get("status") or {}).get("phase") not in ENDED

    def _effects_after_cleanup(
        self, tier: str, devices: t.Sequence[DeviceId], claims: t.AbstractSet[str]
    ) -> TakeEffects:
        """The effects of taking devices, after the claims of evicted pods have been deleted or a timeout has passed."""
        deadline = time.monotonic() + CLAIM_TIMEOUT_SECONDS
        pauses = _pauses()
        while True:
            effects = self.effects_of_taking(tier, devices)
            if not claims & set(effects.unused) or time.monotonic() > deadline:
                return effects
            time.sleep(next(pauses))


def _pauses() -> t.Iterator[float]:
    """The seconds to sleep between polls."""
    return (min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 1.5 ** min(number, 9)) for number in itertools.count())


def _for_each(work: t.Callable[[t.Any], object], items: t.Iterable[t.Any]) -> None:
    """Call `work` for all items, several at a time.

    After an error, no further call is started. The error is raised after the running calls have ended.
    """
    with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
        list(pool.map(work, items))


def kubernetes_client() -> t.Any:
    """The package kubernetes.client. The caller must have checked that it is installed."""
    import kubernetes.client

    return kubernetes.client
