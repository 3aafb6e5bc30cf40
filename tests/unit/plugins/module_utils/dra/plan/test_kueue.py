# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a queue of Kueue admits: guarantees, what may be borrowed and what is kept, and queues that admit nothing."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import kueue, reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import (
    CLASS,
    DRIVER,
    claim_spec,
    node,
)

GPUS = "lanewise.dev/gpus"
CONFIGURATION = {
    "resources": {
        "deviceClassMappings": [{"name": GPUS, "deviceClassNames": [DRIVER]}],
        "excludeResourcePrefixes": ["cpu", "memory"],
    }
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


def _object(kind: str, name: str, spec: Object, **more: t.Any) -> Object:
    return {"kind": kind, "apiVersion": kueue.API_VERSION, "metadata": {"name": name}, "spec": spec, **more}


def queue(
    name: str, guaranteed: int, used: int = 0, lend: int | None = None, borrow: int | None = None, **more: t.Any
) -> Object:
    quota: Object = {"name": GPUS, "nominalQuota": str(guaranteed)}
    limits = {"lendingLimit": lend, "borrowingLimit": borrow}
    quota.update({key: str(value) for key, value in limits.items() if value is not None})
    spec: Object = {
        "cohortName": "all",
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": [GPUS], "flavors": [{"name": "any", "resources": [quota]}]}],
    }
    status = {"flavorsReservation": [{"name": "any", "resources": [{"name": GPUS, "total": str(used)}]}]}
    return _object("ClusterQueue", name, {**spec, **more}, status=status)


def _local(cluster: str = "red", **more: t.Any) -> Object:
    made = _object("LocalQueue", "jobs", {"clusterQueue": cluster, **more})
    made["metadata"]["namespace"] = "team"
    return made


def flavor(name: str = "any", **spec: t.Any) -> Object:
    return _object("ResourceFlavor", name, spec)


def work(gpus: int = 1, spec: Object | None = None) -> Workload:
    labels = {kueue.QUEUE_LABEL: "jobs"}
    pod = {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    return Workload("w", (spec or claim_spec(gpus),), pod, "team", labels)


def counted(engine: Engine, *queues: Object, gpus: int = 1, spec: Object | None = None, known: bool = True) -> fits.Fit:
    """On two nodes with eight GPUs each."""
    objects = [CLASS, *node("a", 8), *node("b", 8), flavor(), *queues]
    fleet = reader.read(objects, kueue_configuration=CONFIGURATION if known else None)
    (found,) = fits.fit(fleet, [work(gpus, spec)], engine)
    return found


@pytest.mark.parametrize(
    ("red", "blue", "count"),
    [
        (queue("red", 4), queue("blue", 4), 8),  # all of blue's quota is idle
        (queue("red", 4, used=3), queue("blue", 4, used=4), 1),
        (queue("red", 4, used=6), queue("blue", 4), 2),  # red borrows already
        (queue("red", 4), queue("blue", 4, used=6), 2),  # blue has borrowed; preemption is not counted
        (queue("red", 4), queue("blue", 4, lend=1), 5),
        (queue("red", 4), queue("blue", 4, used=2, lend=1), 5),  # blue uses the part that it does not lend
        (queue("red", 4), queue("blue", 4, used=4, lend=1), 4),
        (queue("red", 4, borrow=1), queue("blue", 4), 5),
        (queue("red", 4, used=5, borrow=1), queue("blue", 4), 0),
        (queue("red", 12), queue("blue", 12), 16),  # more than the nodes have
    ],
)
def test_guarantees_loans_and_limits_decide_the_count(engine: Engine, red: Object, blue: Object, count: int) -> None:
    found = counted(engine, _local(), red, blue)
    assert found.total == count and not found.at_most and not found.at_least
    assert found.over_quota == 16 - count
    assert found.quota == ("" if count == 16 else f"ClusterQueue red leaves {GPUS} for {count} more")


def test_the_quota_of_a_cohort_counts_for_all_queues(engine: Engine) -> None:
    quota = {"name": GPUS, "nominalQuota": "3"}
    group = {"coveredResources": [GPUS], "flavors": [{"name": "any", "resources": [quota]}]}
    pool = _object("Cohort", "all", {"resourceGroups": [group]})
    assert counted(engine, _local(), queue("red", 4), pool).total == 7
    assert counted(engine, _local(), queue("red", 4), pool, gpus=2).total == 3
    above = _object("Cohort", "all", {"parentName": "site", "resourceGroups": [group]})
    assert counted(engine, _local(), queue("red", 4), above, queue("green", 2, cohortName="site")).total == 9


@pytest.mark.parametrize(
    ("queues", "reported"),
    [
        ((), "there is no LocalQueue team/jobs"),
        ((_local(),), "ClusterQueue red, which does not exist"),
        ((_local(stopPolicy="Hold"), queue("red", 4)), "LocalQueue jobs is stopped"),
        ((_local(), queue("red", 4, namespaceSelector={"matchLabels": {"x": "y"}})), "does not select namespace team"),
        (
            (_local(), queue("red", 4), _object("Cohort", "all", {"parentName": "all"})),
            "cohort all is its own ancestor",
        ),
    ],
)
def test_missing_stopped_and_circular_queues_admit_nothing(
    engine: Engine, queues: tuple[Object, ...], reported: str
) -> None:
    found = counted(engine, *queues)
    assert found.total == 0 and reported in found.quota and found.over_quota == 16


def test_claims_with_alternatives_are_not_admitted(engine: Engine) -> None:
    request = claim_spec(1)["devices"]["requests"][0]
    either = {"name": "gpu", "firstAvailable": [{"name": "x", **request["exactly"]}]}
    found = counted(engine, _local(), queue("red", 4), spec={"devices": {"requests": [either]}})
    assert found.total == 0 and "use the variant of its template" in found.quota


def test_an_unknown_configuration_is_a_bound(engine: Engine) -> None:
    found = counted(engine, _local(), queue("red", 4), known=False)
    assert found.total == 16 and found.at_most and "configuration is unknown" in found.notes[0]


def test_waiting_jobs_are_noted(engine: Engine) -> None:
    red = queue("red", 4)
    red["status"]["pendingWorkloads"] = 2
    found = counted(engine, _local(), red)
    assert found.total == 4 and not found.at_most
    assert "2 job(s) wait in ClusterQueue red for the same quota" in found.notes


@pytest.mark.parametrize(("asked", "charged"), [("15G", 20), ("20G", 20), (None, 10)])
def test_a_capacity_is_charged_as_kueue_rounds_it(engine: Engine, asked: str | None, charged: int) -> None:
    """Two NICs of 100G, in steps of 10G: the quota of 60G counts amounts as they are rounded."""
    policy = {"default": "10G", "validRange": {"min": "10G", "step": "10G"}}
    nic = {
        "name": "nic",
        "allowMultipleAllocations": True,
        "capacity": {"bandwidth": {"value": "100G", "requestPolicy": policy}},
    }
    objects = [CLASS, *node("a", 0)]
    objects[2]["spec"]["devices"] = [nic, {**nic, "name": "nic-2"}]
    body: Object = {"deviceClassName": DRIVER}
    if asked:
        body["capacity"] = {"requests": {"bandwidth": asked}}
    source = {"capacity": {"name": "bandwidth", "driver": DRIVER}}
    mapping = {"name": GPUS, "deviceClassNames": [DRIVER], "sources": [source]}
    configuration = {"resources": {**CONFIGURATION["resources"], "deviceClassMappings": [mapping]}}
    given = [*objects, _local(), flavor(), queue("red", 60 * 10**9)]
    fleet = reader.read(given, kueue_configuration=configuration)
    spec = {"devices": {"requests": [{"name": "nic", "exactly": body}]}}
    (found,) = fits.fit(fleet, [work(spec=spec)], engine)
    assert found.total == 60 // charged


# --- flavors with their own nodes


def two_flavors(near: int, far: int, **more: t.Any) -> Object:
    """A queue with the nodes of rack 1, and then those of rack 2."""
    groups = [
        {
            "coveredResources": [GPUS],
            "flavors": [
                {"name": name, "resources": [{"name": GPUS, "nominalQuota": str(amount)}]}
                for name, amount in (("near", near), ("far", far))
            ],
        }
    ]
    return _object("ClusterQueue", "red", {"namespaceSelector": {}, "resourceGroups": groups, **more})


NEAR, FAR = flavor("near", nodeLabels={"rack": "1"}), flavor("far", nodeLabels={"rack": "2"})


def racks(engine: Engine, *queues: Object, pod: Object | None = None, taints: t.Sequence[Object] = ()) -> fits.Fit:
    """On a node with eight GPUs in each of two racks."""
    objects = [CLASS, *node("a", 8), *node("b", 8), _local(), *queues]
    for rack, name in (("1", "a"), ("2", "b")):
        (one,) = [one for one in objects if one["kind"] == "Node" and one["metadata"]["name"] == name]
        one["metadata"]["labels"] = {"rack": rack}
        one.setdefault("spec", {})["taints"] = list(taints)
    job = work()
    job = replace(job, pod={**job.pod, **(pod or {})})
    (found,) = fits.fit(reader.read(objects, kueue_configuration=CONFIGURATION), [job], engine)
    return found


@pytest.mark.parametrize(
    ("near", "far", "count", "reported"),
    [
        (3, 20, 11, "admits 20 to flavor far first, and its nodes have room for 8"),
        (3, 2, 5, "leaves lanewise.dev/gpus for 5 more"),
        (8, 8, 16, "leaves lanewise.dev/gpus for 16 more"),
        (20, 5, 8, "admits 20 to flavor near first, and its nodes have room for 8"),
        (0, 5, 5, "leaves lanewise.dev/gpus for 5 more"),
    ],
)
def test_jobs_run_on_the_nodes_of_their_flavor(engine: Engine, near: int, far: int, count: int, reported: str) -> None:
    """A job that is admitted to a flavor whose nodes are full waits and still uses its quota."""
    found = racks(engine, NEAR, FAR, two_flavors(near, far))
    assert found.total == count and reported in found.quota
    assert not found.at_most and not found.at_least and found.notes == ()


def test_flavors_that_do_not_suit_a_pod_are_skipped(engine: Engine) -> None:
    far = racks(engine, NEAR, FAR, two_flavors(3, 5), pod={"nodeSelector": {"rack": "2"}})
    assert far.total == 5 and far.nodes["a"].kind == fits.REFUSED
    other = {"nodeSelector": {"rack": "3"}}
    none = racks(engine, NEAR, FAR, two_flavors(3, 5), pod=other)
    assert none.total == 0 and "no flavor whose node labels and taints suit the pod" in none.quota
    terms = [{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["1"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert racks(engine, NEAR, FAR, two_flavors(3, 5), pod={"affinity": affinity}).total == 5
    terms.append({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]})
    assert racks(engine, NEAR, FAR, two_flavors(3, 5), pod={"affinity": affinity}).total == 8


def test_jobs_get_the_tolerations_of_their_flavor(engine: Engine) -> None:
    taint = {"key": "gpus", "value": "x", "effect": "NoSchedule"}
    tolerant = flavor("near", nodeLabels={"rack": "1"}, tolerations=[{"key": "gpus", "operator": "Exists"}])
    assert racks(engine, tolerant, FAR, two_flavors(20, 0), taints=[taint]).total == 8
    assert racks(engine, NEAR, FAR, two_flavors(20, 0), taints=[taint]).total == 0
    tainted = flavor("near", nodeTaints=[taint])
    assert racks(engine, tainted, FAR, two_flavors(3, 5)).total == 5
    # Kueue checks only the labels that the flavor states
    pod = {"tolerations": [{"operator": "Exists"}]}
    assert racks(engine, tainted, FAR, two_flavors(3, 5), pod=pod).total == 8


def test_unknown_facts_about_flavors_make_the_count_a_bound(engine: Engine) -> None:
    queue_of_both = two_flavors(3, 5)
    unread = racks(engine, NEAR, queue_of_both)
    assert unread.at_most and any("flavor far is not among the objects" in one for one in unread.notes)
    shared = racks(engine, NEAR, flavor("far"), queue_of_both)
    assert (
        shared.total == 8 and shared.at_most and any("some nodes are of several flavors" in one for one in shared.notes)
    )
    borrowing = two_flavors(20, 5, flavorFungibility={"whenCanBorrow": "TryNextFlavor"})
    either = racks(engine, NEAR, FAR, borrowing)
    assert either.total == 13 and either.at_most
    rule = {"topologyKey": "rack", "maxSkew": 1, "labelSelector": {"matchLabels": {kueue.QUEUE_LABEL: "jobs"}}}
    spread = racks(engine, NEAR, FAR, queue_of_both, pod={"topologySpreadConstraints": [rule]})
    assert spread.at_most and any("spread constraints apply to several flavors" in one for one in spread.notes)
    tas = racks(engine, NEAR, flavor("far", nodeLabels={"rack": "2"}, topologyName="racks"), queue_of_both)
    assert tas.total == 8 and tas.at_most and any("flavor far has a topology" in one for one in tas.notes)
    groups = two_flavors(3, 5)
    cpu = {"name": "cpus", "resources": [{"name": "cpu", "nominalQuota": "100"}]}
    groups["spec"]["resourceGroups"].append({"coveredResources": ["cpu"], "flavors": [cpu]})
    several = racks(engine, NEAR, FAR, flavor("cpus"), groups)
    assert several.at_most and any("2 resource groups" in one for one in several.notes)
