# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a queue of Kueue admits: guarantees, what may be borrowed and what is kept, and queues that admit nothing."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import kueue, reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.tests.common.engine import made_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.small_fleet import (
    CLASS,
    DRIVER,
    claim_spec,
    node,
)

Object = dict[str, t.Any]
GPUS = "lanewise.dev/gpus"
CONFIGURATION = {
    "resources": {
        "deviceClassMappings": [{"name": GPUS, "deviceClassNames": [DRIVER]}],
        "excludeResourcePrefixes": ["cpu", "memory"],
    }
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return made_engine()


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


def work(gpus: int = 1, spec: Object | None = None) -> Workload:
    labels = {kueue.QUEUE_LABEL: "jobs"}
    pod = {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    return Workload("w", (spec or claim_spec(gpus),), pod, "team", labels)


def counted(engine: Engine, *queues: Object, gpus: int = 1, spec: Object | None = None, known: bool = True) -> fits.Fit:
    """On two nodes with eight GPUs each."""
    objects = [CLASS, *node("a", 8), *node("b", 8), *queues]
    fleet = reader.read(objects, kueue_configuration=CONFIGURATION if known else None)
    (found,) = fits.fit(fleet, [work(gpus, spec)], engine)
    return found


@pytest.mark.parametrize(
    ("red", "blue", "count"),
    [
        (queue("red", 4), queue("blue", 4), 8),  # all of blue's is idle
        (queue("red", 4, used=3), queue("blue", 4, used=4), 1),
        (queue("red", 4, used=6), queue("blue", 4), 2),  # red borrows already
        (queue("red", 4), queue("blue", 4, used=6), 2),  # blue has borrowed; preemption is not counted
        (queue("red", 4), queue("blue", 4, lend=1), 5),
        (queue("red", 4), queue("blue", 4, used=2, lend=1), 5),  # blue's use is of what it keeps
        (queue("red", 4), queue("blue", 4, used=4, lend=1), 4),
        (queue("red", 4, borrow=1), queue("blue", 4), 5),
        (queue("red", 4, used=5, borrow=1), queue("blue", 4), 0),
        (queue("red", 12), queue("blue", 12), 16),  # more than the nodes have
    ],
)
def test_guarantees_loans_and_limits(engine: Engine, red: Object, blue: Object, count: int) -> None:
    found = counted(engine, _local(), red, blue)
    assert found.total == count and not found.at_most and not found.at_least
    assert found.over_quota == 16 - count
    assert found.quota == ("" if count == 16 else f"ClusterQueue red leaves {GPUS} for {count} more")


def test_a_pool_that_belongs_to_nobody(engine: Engine) -> None:
    quota = {"name": GPUS, "nominalQuota": "3"}
    group = {"coveredResources": [GPUS], "flavors": [{"name": "any", "resources": [quota]}]}
    pool = _object("Cohort", "all", {"resourceGroups": [group]})
    assert counted(engine, _local(), queue("red", 4), pool).total == 7
    assert counted(engine, _local(), queue("red", 4), pool, gpus=2).total == 3
    above = _object("Cohort", "all", {"parentName": "site", "resourceGroups": [group]})
    assert counted(engine, _local(), queue("red", 4), above, queue("green", 2, cohortName="site")).total == 9


@pytest.mark.parametrize(
    ("queues", "said"),
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
def test_queues_that_admit_nothing(engine: Engine, queues: tuple[Object, ...], said: str) -> None:
    found = counted(engine, *queues)
    assert found.total == 0 and said in found.quota and found.over_quota == 16


def test_claims_that_kueue_does_not_accept(engine: Engine) -> None:
    request = claim_spec(1)["devices"]["requests"][0]
    either = {"name": "gpu", "firstAvailable": [{"name": "x", **request["exactly"]}]}
    found = counted(engine, _local(), queue("red", 4), spec={"devices": {"requests": [either]}})
    assert found.total == 0 and "use the template's variant" in found.quota


def test_an_unknown_configuration_is_a_bound(engine: Engine) -> None:
    found = counted(engine, _local(), queue("red", 4), known=False)
    assert found.total == 16 and found.at_most and "configuration is not known" in found.notes[0]


def test_jobs_that_wait_are_named(engine: Engine) -> None:
    red = queue("red", 4)
    red["status"]["pendingWorkloads"] = 2
    found = counted(engine, _local(), red)
    assert found.total == 4 and not found.at_most
    assert "2 job(s) wait in ClusterQueue red for the same quota" in found.notes


@pytest.mark.parametrize(("asked", "charged"), [("15G", 20), ("20G", 20), (None, 10)])
def test_a_capacity_is_charged_as_kueue_rounds_it(engine: Engine, asked: str | None, charged: int) -> None:
    """Two NICs of 100G, in steps of 10G: the quota of 60G admits what is charged of it."""
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
    given = [*objects, _local(), queue("red", 60 * 10**9)]
    fleet = reader.read(given, kueue_configuration=configuration)
    spec = {"devices": {"requests": [{"name": "nic", "exactly": body}]}}
    (found,) = fits.fit(fleet, [work(spec=spec)], engine)
    assert found.total == 60 // charged
