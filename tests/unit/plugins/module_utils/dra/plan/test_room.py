# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Making room for a job: which devices are held, which pods are moved, and that plans have the fewest moves."""

from __future__ import annotations

import itertools
import random
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import Hold, rule
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.tolerations import with_toleration
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.cheapest_choice import cheapest_choice
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.movable import Movable, Protection, movable
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.room import Job, Room, room
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.simulation import PlacementSimulation
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import (
    CLASS,
    DRIVER,
    Object,
    claim_spec,
    node,
    pod,
)

#: The number of random fleets that are also searched exhaustively.
FLEETS = 60


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


def job(count: int, gpus: int, paired: bool = False, **more: t.Any) -> Job:
    """A job of `count` pods with this number of GPUs each, whose hold is named demo. `more` are other fields of Job."""
    pod_spec = {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    return Job(Workload("job", (claim_spec(gpus, paired),), pod_spec), count, "demo", **{"moves": 10, **more})


def find_room(objects: t.Sequence[Object], requested_job: Job, engine: Engine, **more: t.Any) -> Room:
    return room(reader.read([CLASS, *objects]), requested_job, movable(objects)[0], engine, **more)


def hold_rules(*devices: tuple[str, str, str], name: str = "demo") -> list[Object]:
    """The DeviceTaintRules of a hold."""
    hold = Hold(name, "team", "test", None, devices)
    return [rule(hold, device, "resource.k8s.io/v1") for device in devices]


#: Node a has three free GPUs, node b two.
PARTLY_USED = [*node("a", 4), *node("b", 4), *pod("p", "a", [0]), *pod("q", "b", [0]), *pod("r", "b", [1])]


def test_room_is_found_without_moves(engine: Engine) -> None:
    found = find_room(PARTLY_USED, job(1, 3, moves=0), engine)
    assert found.fits and found.moves == () and found.optimal
    assert found.devices == tuple((DRIVER, "a", f"gpu-{number}") for number in (1, 2, 3))
    assert found.placements == (("a", found.devices),)
    refused = find_room(PARTLY_USED, job(1, 4, moves=0), engine)
    assert (
        not refused.fits and refused.at_least is None and "1 pod(s) do not fit, without moving pods" in refused.reason
    )


def test_the_fewest_pods_are_moved(engine: Engine) -> None:
    found = find_room(PARTLY_USED, job(1, 4), engine)
    assert [(move.pod, move.node, move.to) for move in found.moves] == [("team/p", "a", "b")]
    assert found.optimal and found.at_least == 1
    assert {pool for _driver, pool, _device in found.devices} == {"a"} and len(found.devices) == 4
    too_many = find_room(PARTLY_USED, job(1, 4, moves=0), engine)
    assert not too_many.fits
    impossible = find_room(PARTLY_USED, job(3, 4), engine)
    assert impossible.at_least is None and "whatever pods are moved: at most 2 fit" in impossible.reason


def test_many_pods_can_be_moved_from_a_node_with_many_pods(engine: Engine) -> None:
    """There are more than 500 million sets of seven of these pods."""
    objects = node("a", 64)
    for number in range(63):
        objects += pod(f"p{number}", "a", [number])
    found = find_room(objects, job(1, 8, moves=8, may_wait=True), engine)
    assert found.fits and found.optimal and len(found.moves) == found.at_least == 7


@pytest.mark.parametrize("searches, fits", [(1, False), (1000, True)])
def test_the_number_of_examined_sets_of_pods_is_limited(searches: int, fits: bool, engine: Engine) -> None:
    """Each pod has much CPU time or many GPUs, and the job needs both, so most sets of pods have too little of one."""
    objects = node("a", 40, cpu="50")
    for number in range(10):
        requests = {"resources": {"requests": {"cpu": "5"}}}
        objects += pod(f"p{number}", "a", [number], containers=[requests])
        objects += pod(f"q{number}", "a", range(10 + 3 * number, 13 + 3 * number), containers=[{}])
    requested = job(1, 8, may_wait=True, searches=searches)
    spec = {"containers": [{"resources": {"requests": {"cpu": "20"}}}]}
    found = find_room(objects, replace(requested, workload=replace(requested.workload, pod=spec)), engine)
    assert found.fits == fits and found.at_least == (6 if fits else 4)
    assert fits or found.reason == "no plan was found within the budget of the search"


def test_a_moved_pod_needs_free_devices_unless_it_may_wait(engine: Engine) -> None:
    """Node b is full, so the pod of node a has no other node to go to."""
    objects = [*node("a", 4), *node("b", 2), *pod("p", "a", [0]), *pod("q", "b", [0]), *pod("r", "b", [1])]
    found = find_room(objects, job(1, 4), engine)
    assert not found.fits and found.at_least == 1 and "each moved pod fit" in found.reason
    waiting = find_room(objects, job(1, 4, may_wait=True), engine)
    assert waiting.fits and [(move.pod, move.to) for move in waiting.moves] == [("team/p", "")]


def test_devices_of_the_jobs_own_hold_come_first(engine: Engine) -> None:
    held = ((DRIVER, "b", "gpu-2"), (DRIVER, "b", "gpu-3"))
    found = find_room([*PARTLY_USED, *hold_rules(*held)], job(1, 2, moves=0), engine)
    assert set(found.devices) == set(held)
    # devices of another hold are not taken
    other = find_room([*PARTLY_USED, *hold_rules(*held, name="other")], job(2, 2, moves=0), engine)
    assert not other.fits


def test_a_running_job_keeps_the_devices_of_its_hold(engine: Engine) -> None:
    held = ((DRIVER, "b", "gpu-2"), (DRIVER, "b", "gpu-3"))
    running = [*PARTLY_USED, *hold_rules(*held), *pod("mine", "b", [2, 3])]
    found = find_room(running, job(1, 2, moves=0), engine, tolerant={"team/mine-d"})
    assert found.fits and found.arrived == 1 and set(found.devices) == set(held)
    more = find_room(running, job(2, 2, moves=0), engine, tolerant={"team/mine-d"})
    assert more.arrived == 1 and set(more.devices) > set(held) and len(more.devices) == 4


def test_devices_that_share_counters_are_held_together(engine: Engine) -> None:
    """A GPU can be allocated as a whole only while none of its partitions is."""
    objects = node("a", 0)
    whole = {"memory": {"value": "80Gi"}}
    half = {"memory": {"value": "40Gi"}}
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    devices = [
        {"name": name, "consumesCounters": [{"counterSet": "card", "counters": amount}]}
        for name, amount in (("gpu-0", whole), ("part-0", half), ("part-1", half))
    ]
    spec = {"driver": DRIVER, "pool": pool, "nodeName": "a"}
    shared = {"sharedCounters": [{"name": "card", "counters": whole}]}
    slice_type = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    objects[1:] = [
        {**slice_type, "metadata": {"name": "s0"}, "spec": {**spec, **shared}},
        {**slice_type, "metadata": {"name": "s1"}, "spec": {**spec, "devices": devices}},
    ]
    found = find_room(objects, job(1, 1, moves=0), engine)
    assert {device for _driver, _pool, device in found.devices} == {"gpu-0", "part-0", "part-1"}


@pytest.mark.parametrize(
    ("kind", "more", "reported"),
    [
        ("", {}, "no controller"),
        ("DaemonSet", {}, "its controller is a DaemonSet"),
        ("Job", {}, "its controller is a Job"),
        ("ReplicaSet", {"labels": {"jobset.sigs.k8s.io/jobset-name": "x"}}, "belongs to a gang"),
        ("ReplicaSet", {"workloadRef": {"name": "x"}}, "belongs to a gang"),
        ("ReplicaSet", {"schedulerName": "volcano"}, "scheduler volcano places it"),
        ("ReplicaSet", {"resourceClaims": [{"name": "d", "resourceClaimName": "p-d"}]}, "not created for this pod"),
        ("ReplicaSet", {"deletionTimestamp": "2026-11-24T00:00:00Z"}, "it is being deleted"),
        ("ReplicaSet", {"labels": {"tier": "gold"}}, "its label tier is protected"),
        ("ReplicaSet", {"priority": 1000}, "its priority is 1000"),
        (
            "ReplicaSet",
            {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
            "safe-to-evict is false",
        ),
    ],
)
def test_protected_pods_are_not_movable(kind: str, more: Object, reported: str) -> None:
    objects = [*node("a", 1), *node("b", 1), *pod("p", "a", [0], kind, **more)]
    found, protected = movable(objects, Protection(labels={"tier": "gold"}, priority=1000))
    assert found == [] and reported in protected["team/p"]
    assert movable([*node("a", 1), *pod("p", "a", [0])])[1] == {}
    allowed = Protection(controllers=["DaemonSet", "Job"])
    assert movable(pod("p", "a", [0], "DaemonSet"), allowed)[0] == []
    assert len(movable(pod("p", "a", [0], "Job"), allowed)[0]) == 1


def test_shared_claims_disruption_budgets_and_options_protect_pods() -> None:
    shared = pod("p", "a", [0])
    shared[1]["status"]["reservedFor"].append({"resource": "pods", "name": "other", "uid": "other"})
    assert "is shared" in movable(shared)[1]["team/p"]
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": 0},
    }
    protected = movable([*pod("p", "a", [0], labels={"app": "x"}), *pod("q", "a", [1]), budget])[1]
    assert protected == {"team/p": "PodDisruptionBudget team/b allows no disruption now"}
    late = {**budget, "metadata": {**budget["metadata"], "generation": 2}, "status": {"disruptionsAllowed": 1}}
    protected = movable([*pod("p", "a", [0], labels={"app": "x"}), late])[1]
    assert "team/b was changed, and its controller has not processed it yet" in protected["team/p"]
    allowing = {**late, "status": {"disruptionsAllowed": 1, "observedGeneration": 2}}
    second = {**allowing, "metadata": {**budget["metadata"], "name": "c"}}
    assert len(movable([*pod("p", "a", [0], labels={"app": "x"}), allowing])[0]) == 1
    protected = movable([*pod("p", "a", [0], labels={"app": "x"}), allowing, second])[1]
    assert protected["team/p"].endswith("so it cannot be evicted: team/b, team/c")
    assert movable([*pod("p", "a", [0])], Protection(namespaces=["team"]))[0] == []
    assert movable([*pod("p", "a", [0])], never=["team/p"])[0] == []


def test_a_pod_is_not_movable_while_another_pod_names_its_claim() -> None:
    """The other pod waits, so the claim is not reserved for it. Without the claim it could not start."""
    objects = pod("p", "a", [0])
    claim = objects[0]["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    waiting = {
        "kind": "Pod",
        "metadata": {"name": "q", "namespace": "team", "uid": "q"},
        "spec": {"resourceClaims": [{"name": "d", "resourceClaimName": claim}]},
        "status": {"phase": "Pending"},
    }
    assert movable([*objects, waiting])[1]["team/p"] == f"pod team/q also uses its claim team/{claim}"
    waiting["status"] = {"phase": "Failed"}
    assert len(movable([*objects, waiting])[0]) == 1


@pytest.mark.parametrize("only", [True, False])
def test_pods_with_a_claim_for_extended_resources_are_not_movable(only: bool) -> None:
    objects = pod("p", "a", [0])
    objects[0]["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "p-x"}
    if only:
        del objects[0]["spec"]["resourceClaims"]
    assert movable(objects) == ([], {"team/p": "its claim p-x was created for extended resources"})


def test_a_pod_without_its_claims_is_not_movable() -> None:
    """A pod can be bound to a node by hand before its claims are created."""
    objects = pod("p", "a", [0])
    objects[0]["status"] = {"phase": "Pending"}
    assert movable(objects) == ([], {"team/p": "not all of its claims have been created"})


def test_the_cheapest_sufficient_choice_is_found() -> None:
    rows = [("a", [(1, 1), (3, 4)]), ("b", [(2, 3)]), ("c", [(1, 0)])]
    best = cheapest_choice(rows, 4)
    assert best is not None and best.cost == 3 and best.entries in ({"a": 1}, {"a": 0, "b": 0})
    assert cheapest_choice(rows, 8) is None
    empty = cheapest_choice(rows, 0)
    assert empty is not None and empty.cost == 0 and empty.entries == {}


class Case:
    """A random small fleet and a random job."""

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        self.objects: list[Object] = []
        for name in "abcd"[: generator.randint(2, 4)]:
            gpus = generator.choice([2, 4, 4])
            self.objects += node(name, gpus, cpu=generator.choice(["64", "64", "3"]))
            free = list(range(gpus))
            while free and generator.random() < 0.6:
                used = [
                    free.pop(generator.randrange(len(free)))
                    for _i in range(min(len(free), generator.choice([1, 1, 2])))
                ]
                kind = "ReplicaSet" if generator.random() < 0.9 else ""
                self.objects += pod(f"{name}{len(free)}", name, sorted(used), kind)
        gpus = generator.choice([2, 2, 3, 4])
        self.job = job(generator.randint(1, 3), gpus, gpus == 2 and generator.random() < 0.7, moves=9)
        self.fleet = reader.read([CLASS, *self.objects])
        self.movable = movable(self.objects)[0]
        claims = tuple(with_toleration(claim, "demo") for claim in self.job.workload.claims)
        self.work = replace(self.job.workload, claims=claims)

    def without(self, moved: t.Sequence[Movable]) -> Fleet:
        """The fleet after these pods have left their devices."""
        owners = [claim for movable_pod in moved for claim in movable_pod.claims]
        return replace(
            self.fleet, nodes={name: fleet_node.without(owners) for name, fleet_node in self.fleet.nodes.items()}
        )

    def fits_without(self, moved: t.Sequence[Movable], engine: Engine) -> bool:
        return fits.fit(self.without(moved), [self.work], engine)[0].total >= self.job.count

    def subsets_by_size(self) -> t.Iterator[tuple[Movable, ...]]:
        for size in range(len(self.movable) + 1):
            yield from itertools.combinations(self.movable, size)


@pytest.mark.parametrize("seed", range(FLEETS))
def test_plans_have_the_fewest_moves(engine: Engine, seed: int) -> None:
    """Compares plans with an exhaustive search: if moved pods may wait, and if each needs free devices elsewhere."""
    case = Case(seed)
    best = next((moved for moved in case.subsets_by_size() if case.fits_without(moved, engine)), None)
    may_wait = room(case.fleet, replace(case.job, may_wait=True), case.movable, engine)
    placed = room(case.fleet, case.job, case.movable, engine)
    if best is None:
        assert not may_wait.fits and may_wait.at_least is None and not placed.fits and placed.at_least is None
        return
    assert may_wait.fits and may_wait.optimal and len(may_wait.moves) == may_wait.at_least == len(best)
    assert placed.at_least == len(best)
    if not placed.fits:
        return
    assert len(placed.moves) >= len(best) and placed.optimal == (len(placed.moves) == len(best))
    check_feasible(case, placed, engine)


def check_feasible(case: Case, found: Room, engine: Engine) -> None:
    """Check that the job gets exactly the held devices, and that each moved pod has a node to go to."""
    moved = [movable_pod for movable_pod in case.movable if movable_pod.pod in {move.pod for move in found.moves}]
    assert len(moved) == len(found.moves) and case.fits_without(moved, engine)
    simulation = PlacementSimulation(
        case.without(moved), [case.work, *(movable_pod.workload for movable_pod in moved)], engine
    )
    taken: list[tuple[str, str, str]] = []
    for name, devices in found.placements:
        results = simulation.place(case.work, name, "job")
        assert results is not None and tuple(result.id for result in results) == devices
        taken += devices
    assert set(taken) == set(found.devices) and len(taken) == len(set(taken))
    assert all(move.to and move.to in case.fleet.nodes for move in found.moves)


def test_a_search_that_ends_early_reports_a_lower_bound(engine: Engine) -> None:
    seeds = [seed for seed in range(40) if len(Case(seed).movable) >= 4]
    assert len(seeds) > 5
    ended_early = 0
    for seed in seeds:
        case = Case(seed)
        best = next((moved for moved in case.subsets_by_size() if case.fits_without(moved, engine)), None)
        found = room(case.fleet, replace(case.job, may_wait=True, searches=2), case.movable, engine)
        if best is None:
            assert not found.fits
            continue
        assert found.at_least is not None and found.at_least <= len(best)
        assert not found.optimal or len(found.moves) == len(best)
        ended_early += found.at_least < len(best)
    assert ended_early


def test_200_nodes_in_four_states_need_few_searches(engine: Engine) -> None:
    objects = [obj for i in range(200) for obj in (*node(f"n{i}", 4), *pod(f"p{i}", f"n{i}", [i % 4]))]
    found = find_room(objects, job(1, 4, searches=40), engine)
    assert found.fits and found.optimal and len(found.moves) == 1
