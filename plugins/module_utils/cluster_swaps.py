# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Swaps devices on a cluster: it holds them, lets the controller count the pods that would be ended, lets it end them,
and waits. The rules of a killed run name its swap and owner, so that the next run can continue it."""

from __future__ import annotations

import itertools
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .cluster_holds import Rules
from .cluster_lists import SECONDS
from .cluster_objects import listed, reduced, version_of
from .dra.holds import changes as steps
from .dra.holds import hold as forms
from .dra.holds import swap
from .dra.holds.changes import Refused, check_owner
from .dra.holds.hold import DeviceId, Hold
from .dra.kube.bounded_json import loads_pruned
from .dra.kube.objects import Object, ObjectView
from .dra.plan.evictions import ENDED, DeviceUsers, EvictedPod, TakeEffects

if t.TYPE_CHECKING:
    import kubernetes

#: The first and the longest pause between polls, in seconds. Each pause is longer than the one before.
FIRST, PAUSE = 0.02, 0.25
#: The maximum seconds until the controller has counted pods, and until the claims of ended pods are deleted.
COUNTING, CLAIMS = 60.0, 60.0
#: The maximum number of concurrent requests.
THREADS = 4
#: How often devices are read again after their pods have ended, as a pod may have been bound just before the hold.
ROUNDS = 5
_GONE, _CONFLICT = 404, 409
_TRIES = 5
#: The kinds that are read to choose devices, besides rules, and to find the effects of taking them.
_CHOICE = ("Node", "ResourceSlice", "ResourceClaimTemplate", "DeviceClass")
_USERS = ("Pod", "ResourceClaim", "PodDisruptionBudget")


class Unfinished(Exception):
    """A swap has ended pods and is not complete. Its hold and rules stay, and the next run continues it."""


@dataclass(frozen=True)
class Done:
    """The result of a swap: whether it changed anything, the pods that it ended, and what the controller counted
    before."""

    changed: bool = False
    ended: tuple[EvictedPod, ...] = ()
    counted: int | None = None


class Swaps:
    """The swaps of a cluster; `kubernetes` is its minor release. `report` is called with a message before pods are
    ended.

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

    def taking(self, tier: str, devices: t.Iterable[DeviceId]) -> TakeEffects:
        """The effects of taking devices for a tier now."""
        return DeviceUsers(self._read(_USERS), tier).effects_of_taking(devices)

    def in_use(self, tier: str, devices: t.Iterable[DeviceId]) -> tuple[DeviceId, ...]:
        """Which of these devices the claims of a tier have."""
        return DeviceUsers(self._read(["ResourceClaim"]), tier).effects_of_taking(devices).held_by_tier

    def choice(self) -> list[Object]:
        """The objects from which devices are chosen: nodes, slices, claims and pods, but not the rules."""
        return self._read([*_CHOICE, *_USERS])

    def _read(self, kinds: t.Iterable[str]) -> list[Object]:
        """The objects of some kinds, reduced to the fields that are used."""
        versions = {kind: version_of(kind, "resource.k8s.io/v1", self.kubernetes) for kind in kinds}
        return [reduced(one) for kind, version in versions.items() for one in listed(self._api, kind, version)]

    def holds(self, rules: t.Sequence[Object] | None = None) -> tuple[dict[str, Hold], dict[str, list[Object]]]:
        """The holds by name, and the rules that count or end pods by swap; by default from the current rules."""
        rules = self.rules.list() if rules is None else rules
        working: dict[str, list[Object]] = {}
        for one in rules:
            name = swap.swap_of(one)
            if name is not None:
                working.setdefault(name, []).append(one)
        return {one.name: one for one in forms.holds(rules)}, working

    # the steps

    def refuse_others(self, hold: Hold, devices: t.Iterable[DeviceId], rules: t.Sequence[Object]) -> None:
        """Raises Refused if the hold cannot be made, or if one of `devices` has a rule of another swap."""
        steps.changes_to_make(hold, rules, self.api_version)
        swap.check_no_other_swap(hold, devices, rules)

    def preview(self, hold: Hold, devices: t.Sequence[DeviceId]) -> int:
        """How many pods the controller would end, summed over devices. Its rules are removed again. Raises Refused."""
        rules = self.rules.list()
        self.refuse_others(hold, devices, rules)
        known, working = self.holds(rules)
        left = working.get(hold.name, ())
        if any(swap.evicts(one) for one in left):
            raise Refused(f"swap {hold.name} has begun: run it again to continue, or give it back")
        if left and hold.name in known:  # without a hold, the rules are of an interrupted preview, which is repeated
            raise Refused(
                f"a run of swap {hold.name} is counting pods, or was interrupted while counting: run it again, or give "
                "it back"
            )
        try:
            self._set(hold, devices, swap.COUNT)
            return sum(self._counts(hold, devices).values())
        finally:
            self._remove(hold.name)

    def make(self, hold: Hold, evict: t.Sequence[DeviceId], ignore_budgets: bool, seconds: int) -> Done:
        """Hold devices, end the pods that use the devices in `evict`, and wait until the pods are gone.

        Raises Refused if no pod was ended; what this run created is then removed. Raises Unfinished after that.
        """
        before, working = self.holds()
        left = working.get(hold.name, ())  # of an interrupted run
        begun = any(swap.evicts(one) for one in left)
        changed = bool(self.rules.make(hold))
        ended: dict[str, EvictedPod] = {}
        counted = None
        try:
            for _round in range(ROUNDS):
                found = self._settled(hold.name, evict, {claim for one in ended.values() for claim in one.claims})
                if not found.evicted and not found.refused:
                    self._remove(hold.name)
                    return Done(changed or bool(left) or bool(ended), tuple(ended.values()), counted)
                against = [*found.refused, *([] if ignore_budgets or begun else found.budgets)]
                if against:
                    raise Refused("; ".join(against))
                devices = list(dict.fromkeys(device for one in found.evicted for device in one.devices))
                self._set(hold, devices, swap.COUNT)
                counted = self._counted(hold, devices, found) if counted is None else counted
                begun = True
                self._set(hold, devices, swap.EVICT)
                ended.update({one.uid: one for one in found.evicted})
                self._wait(hold, found.evicted, max((one.grace for one in found.evicted), default=0) + seconds)
            raise Unfinished(f"new pods keep getting devices of swap {hold.name}: their claims tolerate its hold")
        except Refused as error:
            if begun:
                raise Unfinished(
                    f"{error}. Swap {hold.name} has ended {len(ended)} pod(s) and is still there"
                ) from error
            self._undo(hold, before)
            raise
        except BaseException:
            if not begun:
                self._undo(hold, before)
            raise

    def give_back(self, name: str, owner: str, check: bool) -> bool:
        """Remove a swap: the rules that end pods first, then the hold. Raises Refused for one of another owner."""
        known, working = self.holds()
        old = known.get(name)
        if old:
            check_owner(old, owner)
            if old.purpose != forms.SWAP:
                raise Refused(f"{old.title()} was made to {old.purpose}: it is not a swap")
        _each(lambda one: self.rules.delete(one, check), working.get(name, ()))
        return bool(self.rules.release(name, owner, check)) or bool(working.get(name))

    # parts of the steps

    def _undo(self, hold: Hold, before: t.Mapping[str, Hold]) -> None:
        self._remove(hold.name)
        old = before.get(hold.name)
        if old:
            self.rules.make(old)
        else:
            self.rules.release(hold.name)

    def _remove(self, name: str) -> None:
        _each(self.rules.delete, [one for one in self.rules.list() if swap.swap_of(one) == name])

    def _set(self, hold: Hold, devices: t.Sequence[DeviceId], effect: str) -> None:
        """Give each device its rule with this effect, and remove the swap's rules of other devices.

        A rule that ends pods already stays as it is. Raises Refused for a device that has a rule of another swap.
        """
        wanted = {swap.rule_name(one): swap.rule(hold, one, effect, self.api_version) for one in devices}
        for _turn in range(_TRIES):
            present = {str(one["metadata"]["name"]): one for one in self.rules.list() if swap.swap_of(one) is not None}
            swap.check_no_other_swap(hold, devices, present.values())
            other = [one for name, one in present.items() if name not in wanted and swap.swap_of(one) == hold.name]
            try:
                _each(self._put, [(new, present.get(name)) for name, new in wanted.items()])
                _each(self.rules.delete, other)
            except self._error as error:
                if error.status not in (_CONFLICT, _GONE):
                    raise
                continue  # the controller wrote a status, or another run of this swap is at work
            return
        raise Refused(f"other runs keep changing the rules of swap {hold.name}: run this again later")

    def _put(self, change: tuple[Object, ObjectView | None]) -> None:
        """Create a rule, or change the rule of the same swap that was read."""
        new, old = change
        name, taint = new["metadata"]["name"], new["spec"]["taint"]
        where = (*self.api_version.split("/"), "devicetaintrules")
        if old is None:
            self._custom.create_cluster_custom_object(*where, new)
            return
        if old["spec"]["taint"].get("effect") in (taint["effect"], swap.EVICT):
            return
        body = {**new, "metadata": {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}}
        self._custom.replace_cluster_custom_object(*where, name, body)

    def _counts(self, hold: Hold, devices: t.Sequence[DeviceId]) -> dict[str, int]:
        """The number of pods that the controller would end for each rule that only counts. Raises Refused if the
        controller does not count them in time."""
        names = {swap.rule_name(one) for one in devices}
        end = time.monotonic() + COUNTING
        pauses = _pauses()
        while True:
            found, missing = {}, set(names)
            for one in self.rules.list():
                name = str(one["metadata"]["name"])
                if name in names and swap.swap_of(one) == hold.name:
                    number = swap.counted_pods(one)
                    if number is not None:
                        found[name] = number
                    if number is not None or one["spec"]["taint"].get("effect") == swap.EVICT:
                        missing.discard(name)
            if not missing:
                return found
            if time.monotonic() > end:
                raise Refused(
                    f"the controller of DeviceTaintRules has not counted pods for {len(missing)} of {len(names)} "
                    f"rule(s) in {COUNTING:.0f} s: is kube-controller-manager running? No pod was ended"
                )
            time.sleep(next(pauses))

    def _counted(self, hold: Hold, devices: t.Sequence[DeviceId], found: TakeEffects) -> int:
        """The sum of the controller's counts. Raises Refused if it would end more pods than are known."""
        known: dict[str, int] = {}
        for one in found.evicted:
            for device in one.devices:
                known[swap.rule_name(device)] = known.get(swap.rule_name(device), 0) + 1
        counts = self._counts(hold, devices)
        more = {name: number for name, number in counts.items() if number > known.get(name, 0)}
        if more:
            raise Refused(
                f"the controller would end {sum(more.values())} pod(s) by {len(more)} rule(s), but only "
                f"{sum(known.get(name, 0) for name in more)} are known: run this again. No pod was ended"
            )
        return sum(counts.values())

    def _wait(self, hold: Hold, leaving: t.Iterable[EvictedPod], seconds: int) -> None:
        """Wait until pods are gone. Raises Unfinished after some seconds."""
        left = list(leaving)
        self._report(f"{hold.name}: {len(left)} pod(s) are ended; waiting for them for up to {seconds} s")
        end = time.monotonic() + seconds
        pauses = _pauses()
        while left:
            if not self._exists(left[0]):
                left.pop(0)
                continue
            if time.monotonic() > end:
                left = [one for one in left if self._exists(one)]
                names = ", ".join(f"{one.pod} on {one.node}" for one in left[:8])
                raise Unfinished(
                    f"after {seconds} s, {len(left)} pod(s) still have devices: {names}. If a node is lost, remove its "
                    f"pods or its Node. The hold and the rules of swap {hold.name} stay: run it again to continue, or "
                    "give it back"
                )
            time.sleep(next(pauses))

    def _exists(self, pod: EvictedPod) -> bool:
        """Whether a pod still exists and has not ended on its own."""
        space, _slash, name = pod.pod.partition("/")
        try:
            answer = self._core.read_namespaced_pod(name, space, _request_timeout=SECONDS, _preload_content=False)
        except self._error as error:
            if error.status != _GONE:
                raise
            return False
        found = loads_pruned(answer.data)
        return found["metadata"]["uid"] == pod.uid and (found.get("status") or {}).get("phase") not in ENDED

    def _settled(self, tier: str, devices: t.Sequence[DeviceId], ended: t.AbstractSet[str]) -> TakeEffects:
        """The effects of taking devices after the claims of ended pods have been deleted, which takes a moment."""
        end = time.monotonic() + CLAIMS
        pauses = _pauses()
        while True:
            found = self.taking(tier, devices)
            if not ended & set(found.unused) or time.monotonic() > end:
                return found
            time.sleep(next(pauses))


def _pauses() -> t.Iterator[float]:
    """The seconds to sleep between polls."""
    return (min(PAUSE, FIRST * 1.5 ** min(turn, 9)) for turn in itertools.count())


def _each(work: t.Callable[[t.Any], object], items: t.Iterable[t.Any]) -> None:
    """Call `work` for all items, several at a time. Raises the first error, after all started calls have ended."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, items))


def kubernetes_client() -> t.Any:
    """The package kubernetes.client; the module has checked that it is installed."""
    import kubernetes.client

    return kubernetes.client
