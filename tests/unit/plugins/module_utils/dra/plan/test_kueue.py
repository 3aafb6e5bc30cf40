# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many pods a queue of Kueue admits: guarantees, loans, limits, flavors, and queues that admit nothing."""

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
    """A ClusterQueue with a quota of GPUs in the cohort `all`. `more` are fields of its spec."""
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


def local_queue(cluster_queue: str = "red", **more: t.Any) -> Object:
    obj = _object("LocalQueue", "jobs", {"clusterQueue": cluster_queue, **more})
    obj["metadata"]["namespace"] = "team"
    return obj


def flavor(name: str = "any", **spec: t.Any) -> Object:
    return _object("ResourceFlavor", name, spec)


def workload(gpus: int = 1, spec: Object | None = None) -> Workload:
    """A workload whose pods are submitted to the LocalQueue team/jobs."""
    labels = {kueue.QUEUE_LABEL: "jobs"}
    pod = {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    return Workload("w", (spec or claim_spec(gpus),), pod, "team", labels)


def fit_on_two_nodes(
    engine: Engine, *queues: Object, gpus: int = 1, spec: Object | None = None, known: bool = True
) -> fits.Fit:
    """How many pods the queues admit on two nodes with eight GPUs each."""
    objects = [CLASS, *node("a", 8), *node("b", 8), flavor(), *queues]
    fleet = reader.read(objects, kueue_configuration=CONFIGURATION if known else None)
    (found,) = fits.fit(fleet, [workload(gpus, spec)], engine)
    return found


@pytest.mark.parametrize(
    ("red", "blue", "count"),
    [
        (queue("red", 4), queue("blue", 4), 8),  # all of blue's quota can be borrowed
        (queue("red", 4, used=3), queue("blue", 4, used=4), 1),
        (queue("red", 4, used=6), queue("blue", 4), 2),  # red already borrows 2
        (queue("red", 4), queue("blue", 4, used=6), 2),  # blue borrows 2; preemption is not counted
        (queue("red", 4), queue("blue", 4, lend=1), 5),
        (queue("red", 4), queue("blue", 4, used=2, lend=1), 5),  # blue uses only the part that it does not lend
        (queue("red", 4), queue("blue", 4, used=4, lend=1), 4),
        (queue("red", 4, borrow=1), queue("blue", 4), 5),
        (queue("red", 4, used=5, borrow=1), queue("blue", 4), 0),
        (queue("red", 12), queue("blue", 12), 16),  # more quota than GPUs
    ],
)
def test_guarantees_loans_and_limits_decide_the_count(engine: Engine, red: Object, blue: Object, count: int) -> None:
    found = fit_on_two_nodes(engine, local_queue(), red, blue)
    assert found.total == count and not found.at_most and not found.at_least
    assert found.over_quota == 16 - count
    assert found.quota == ("" if count == 16 else f"ClusterQueue red leaves {GPUS} for {count} more")


def test_a_queue_may_use_the_quota_of_its_cohort_and_of_parent_cohorts(engine: Engine) -> None:
    quota = {"name": GPUS, "nominalQuota": "3"}
    group = {"coveredResources": [GPUS], "flavors": [{"name": "any", "resources": [quota]}]}
    pool = _object("Cohort", "all", {"resourceGroups": [group]})
    assert fit_on_two_nodes(engine, local_queue(), queue("red", 4), pool).total == 7
    assert fit_on_two_nodes(engine, local_queue(), queue("red", 4), pool, gpus=2).total == 3
    child = _object("Cohort", "all", {"parentName": "site", "resourceGroups": [group]})
    assert (
        fit_on_two_nodes(engine, local_queue(), queue("red", 4), child, queue("green", 2, cohortName="site")).total == 9
    )


@pytest.mark.parametrize(
    ("queues", "reported"),
    [
        ((), "there is no LocalQueue team/jobs"),
        ((local_queue(),), "ClusterQueue red, which does not exist"),
        ((local_queue(stopPolicy="Hold"), queue("red", 4)), "LocalQueue jobs is stopped"),
        (
            (local_queue(), queue("red", 4, namespaceSelector={"matchLabels": {"x": "y"}})),
            "does not select namespace team",
        ),
        (
            (local_queue(), queue("red", 4), _object("Cohort", "all", {"parentName": "all"})),
            "cohort all is its own ancestor",
        ),
    ],
)
def test_missing_stopped_and_circular_queues_admit_nothing(
    engine: Engine, queues: tuple[Object, ...], reported: str
) -> None:
    found = fit_on_two_nodes(engine, *queues)
    assert found.total == 0 and reported in found.quota and found.over_quota == 16


def test_claims_with_alternatives_are_not_admitted(engine: Engine) -> None:
    request = claim_spec(1)["devices"]["requests"][0]
    alternatives = {"name": "gpu", "firstAvailable": [{"name": "x", **request["exactly"]}]}
    found = fit_on_two_nodes(engine, local_queue(), queue("red", 4), spec={"devices": {"requests": [alternatives]}})
    assert found.total == 0 and "use the variant of its template" in found.quota


def test_without_the_configuration_of_kueue_the_count_is_an_upper_bound(engine: Engine) -> None:
    found = fit_on_two_nodes(engine, local_queue(), queue("red", 4), known=False)
    assert found.total == 16 and found.at_most and "configuration is unknown" in found.notes[0]


def test_waiting_jobs_are_noted(engine: Engine) -> None:
    red = queue("red", 4)
    red["status"]["pendingWorkloads"] = 2
    found = fit_on_two_nodes(engine, local_queue(), red)
    assert found.total == 4 and not found.at_most
    assert "2 job(s) wait in ClusterQueue red for the same quota" in found.notes


@pytest.mark.parametrize(("requested", "charged"), [("15G", 20), ("20G", 20), (None, 10)])
def test_a_capacity_is_charged_as_kueue_rounds_it(engine: Engine, requested: str | None, charged: int) -> None:
    """Two NICs of 100G are shared in steps of 10G. Rounded requests are charged to the quota of 60G."""
    policy = {"default": "10G", "validRange": {"min": "10G", "step": "10G"}}
    nic = {
        "name": "nic",
        "allowMultipleAllocations": True,
        "capacity": {"bandwidth": {"value": "100G", "requestPolicy": policy}},
    }
    objects = [CLASS, *node("a", 0)]
    objects[2]["spec"]["devices"] = [nic, {**nic, "name": "nic-2"}]
    request: Object = {"deviceClassName": DRIVER}
    if requested:
        request["capacity"] = {"requests": {"bandwidth": requested}}
    source = {"capacity": {"name": "bandwidth", "driver": DRIVER}}
    mapping = {"name": GPUS, "deviceClassNames": [DRIVER], "sources": [source]}
    configuration = {"resources": {**CONFIGURATION["resources"], "deviceClassMappings": [mapping]}}
    objects = [*objects, local_queue(), flavor(), queue("red", 60 * 10**9)]
    fleet = reader.read(objects, kueue_configuration=configuration)
    spec = {"devices": {"requests": [{"name": "nic", "exactly": request}]}}
    (found,) = fits.fit(fleet, [workload(spec=spec)], engine)
    assert found.total == 60 // charged


def test_a_charge_is_the_sum_of_its_sources_over_the_devices_that_these_select(engine: Engine) -> None:
    """A GPU takes 10 units of memory, another one 40, and each a half of another counter, which Kueue rounds up."""
    gpus: list[Object] = []
    for name, size, memory in (("small", "s", 10), ("large", "l", 40)):
        counters = {"memory": {"value": str(memory)}, "slots": {"value": "500m"}}
        consumed = [{"counterSet": name, "counters": counters}]
        gpus.append({"name": name, "attributes": {"size": {"string": size}}, "consumesCounters": consumed})
    objects = [CLASS, *node("a", 0)]
    objects[2]["spec"]["devices"] = gpus

    def room(quota: int, size: str, *counters: str) -> tuple[int, str]:
        selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].size in {size}'}}
        sources = [{"counter": {"name": name, "driver": DRIVER, "deviceSelector": selector}} for name in counters]
        mapping = {"name": GPUS, "deviceClassNames": [DRIVER], "sources": sources}
        configuration = {"resources": {**CONFIGURATION["resources"], "deviceClassMappings": [mapping]}}
        fleet = reader.read([*objects, local_queue(), flavor(), queue("red", quota)], kueue_configuration=configuration)
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
        (found,) = fits.fit(fleet, [workload(spec=spec)], engine)
        return found.total, " ".join(str(found).split())

    assert room(40, '["s", "l"]', "memory")[0] == 1 and room(39, '["s", "l"]', "memory")[0] == 0
    assert room(10, '["s"]', "memory")[0] == 1 and room(9, '["s"]', "memory")[0] == 0
    assert room(11, '["s"]', "memory", "slots")[0] == 1 and room(10, '["s"]', "memory", "slots")[0] == 0
    for size, counter in (('["none"]', "memory"), ('["s"]', "cores")):
        total, text = room(100, size, counter)
        assert total == 0 and f"no device of the fleet can provide the counter {counter}" in text


# --- flavors with their own nodes


def two_flavors(near: int, far: int, **more: t.Any) -> Object:
    """A ClusterQueue with a quota on the nodes of rack 1 and, if that is used up, one on those of rack 2."""
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


def fit_on_two_racks(
    engine: Engine, *queues: Object, pod: Object | None = None, taints: t.Sequence[Object] = ()
) -> fits.Fit:
    """How many pods the queues admit in two racks, each with one node that has eight GPUs."""
    objects = [CLASS, *node("a", 8), *node("b", 8), local_queue(), *queues]
    for rack, name in (("1", "a"), ("2", "b")):
        (rack_node,) = [obj for obj in objects if obj["kind"] == "Node" and obj["metadata"]["name"] == name]
        rack_node["metadata"]["labels"] = {"rack": rack}
        rack_node.setdefault("spec", {})["taints"] = list(taints)
    plain = workload()
    with_pod = replace(plain, pod={**plain.pod, **(pod or {})})
    (found,) = fits.fit(reader.read(objects, kueue_configuration=CONFIGURATION), [with_pod], engine)
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
def test_pods_run_only_on_the_nodes_of_their_flavor(
    engine: Engine, near: int, far: int, count: int, reported: str
) -> None:
    """A pod that is admitted to a flavor whose nodes are full waits, and its quota is in use."""
    found = fit_on_two_racks(engine, NEAR, FAR, two_flavors(near, far))
    assert found.total == count and reported in found.quota
    assert not found.at_most and not found.at_least and found.notes == ()


def test_flavors_that_do_not_suit_a_pod_are_skipped(engine: Engine) -> None:
    far = fit_on_two_racks(engine, NEAR, FAR, two_flavors(3, 5), pod={"nodeSelector": {"rack": "2"}})
    assert far.total == 5 and far.nodes["a"].kind == fits.REFUSED
    other_rack = {"nodeSelector": {"rack": "3"}}
    none = fit_on_two_racks(engine, NEAR, FAR, two_flavors(3, 5), pod=other_rack)
    assert none.total == 0 and "no flavor whose node labels and taints suit the pod" in none.quota
    terms = [{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["1"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert fit_on_two_racks(engine, NEAR, FAR, two_flavors(3, 5), pod={"affinity": affinity}).total == 5
    terms.append({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]})
    assert fit_on_two_racks(engine, NEAR, FAR, two_flavors(3, 5), pod={"affinity": affinity}).total == 8


def test_pods_get_the_tolerations_of_their_flavor(engine: Engine) -> None:
    taint = {"key": "gpus", "value": "x", "effect": "NoSchedule"}
    tolerant = flavor("near", nodeLabels={"rack": "1"}, tolerations=[{"key": "gpus", "operator": "Exists"}])
    assert fit_on_two_racks(engine, tolerant, FAR, two_flavors(20, 0), taints=[taint]).total == 8
    assert fit_on_two_racks(engine, NEAR, FAR, two_flavors(20, 0), taints=[taint]).total == 0
    tainted = flavor("near", nodeTaints=[taint])
    assert fit_on_two_racks(engine, tainted, FAR, two_flavors(3, 5)).total == 5
    # a pod that tolerates the taint may use both flavors
    pod = {"tolerations": [{"operator": "Exists"}]}
    assert fit_on_two_racks(engine, tainted, FAR, two_flavors(3, 5), pod=pod).total == 8


def test_the_count_is_an_upper_bound_if_the_nodes_or_rules_of_flavors_are_unclear(engine: Engine) -> None:
    queue_of_both = two_flavors(3, 5)
    unread = fit_on_two_racks(engine, NEAR, queue_of_both)
    assert unread.at_most and any("flavor far is not among the objects" in note for note in unread.notes)
    shared = fit_on_two_racks(engine, NEAR, flavor("far"), queue_of_both)
    assert shared.total == 8 and shared.at_most
    assert any("some nodes are of several flavors" in note for note in shared.notes)
    borrowing = two_flavors(20, 5, flavorFungibility={"whenCanBorrow": "TryNextFlavor"})
    next_flavor = fit_on_two_racks(engine, NEAR, FAR, borrowing)
    assert next_flavor.total == 13 and next_flavor.at_most
    rule = {"topologyKey": "rack", "maxSkew": 1, "labelSelector": {"matchLabels": {kueue.QUEUE_LABEL: "jobs"}}}
    spread = fit_on_two_racks(engine, NEAR, FAR, queue_of_both, pod={"topologySpreadConstraints": [rule]})
    assert spread.at_most and any("spread constraints apply to several flavors" in note for note in spread.notes)
    topology = fit_on_two_racks(
        engine, NEAR, flavor("far", nodeLabels={"rack": "2"}, topologyName="racks"), queue_of_both
    )
    assert topology.total == 8 and topology.at_most
    assert any("flavor far has a topology" in note for note in topology.notes)
    groups = two_flavors(3, 5)
    cpu = {"name": "cpus", "resources": [{"name": "cpu", "nominalQuota": "100"}]}
    groups["spec"]["resourceGroups"].append({"coveredResources": ["cpu"], "flavors": [cpu]})
    several = fit_on_two_racks(engine, NEAR, FAR, flavor("cpus"), groups)
    assert several.at_most and any("2 resource groups" in note for note in several.notes)
