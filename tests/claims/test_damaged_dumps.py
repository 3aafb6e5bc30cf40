# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Dumps of clusters that are damaged, incomplete or hostile: a plan reports the errors, and never guesses.

LANEWISE_DUMPS sets the number of randomly damaged dumps.
"""

from __future__ import annotations

import copy
import os
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import kueue, reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.inputs import (
    WORKLOAD,
    objects_of,
    templates_of,
    workload,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.snapshot import snapshot_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.what_if import after
from ansible_collections.lanewise.dra.plugins.modules.allocation_plan import missing_kinds
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FieldPath = tuple[t.Union[str, int], ...]
DUMPS = int(os.environ.get("LANEWISE_DUMPS", "200"))
DRIVER, NODES = "vendor.example.com", ("a", "b")
V1 = "resource.k8s.io/v1"
POLICY = {"default": "10G", "validRange": {"min": "10G", "step": "10G"}}


def _meta(name: str, namespace: str = "") -> Object:
    return {"name": name, "labels": {"of": name}, **({"namespace": namespace} if namespace else {})}


def _slice(node: str) -> Object:
    devices: list[Object] = [
        {
            "name": f"gpu-{number}",
            "attributes": {"switch": {"int": number // 2}, "model": {"string": "x"}, "whole": {"bool": True}},
            "capacity": {"memory": {"value": "80Gi"}},
            "consumesCounters": [{"counterSet": "power", "counters": {"watts": {"value": "300"}}}],
        }
        for number in range(4)
    ]
    devices[3]["taints"] = [{"key": "broken", "value": "x", "effect": "NoSchedule"}]
    devices.append(
        {
            "name": "nic",
            "attributes": {"switch": {"int": 0}, "release": {"version": "1.2.3"}},
            "capacity": {"bandwidth": {"value": "100G", "requestPolicy": POLICY}},
            "allowMultipleAllocations": True,
        }
    )
    spec = {
        "driver": DRIVER,
        "pool": {"name": node, "generation": 3, "resourceSliceCount": 1},
        "nodeName": node,
        "sharedCounters": [{"name": "power", "counters": {"watts": {"value": "1100"}}}],
        "devices": devices,
    }
    return {"apiVersion": V1, "kind": "ResourceSlice", "metadata": _meta(f"slice-{node}"), "spec": spec}


def _claim_spec() -> Object:
    exactly = {
        "deviceClassName": "any",
        "selectors": [{"cel": {"expression": 'device.attributes["vendor.example.com"].model == "x"'}}],
        "tolerations": [{"key": "other", "operator": "Exists", "effect": "NoSchedule"}],
    }
    nic = {"deviceClassName": "any", "capacity": {"requests": {"bandwidth": "30G"}}}
    constraint = {"requests": ["gpu", "nic"], "matchAttribute": f"{DRIVER}/switch"}
    requests = [{"name": "gpu", "exactly": {**exactly, "count": 1}}, {"name": "nic", "exactly": nic}]
    return {"devices": {"requests": requests, "constraints": [constraint]}}


def _claim(name: str, node: str, device: str, **more: t.Any) -> Object:
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": device, **more}
    return {
        "apiVersion": V1,
        "kind": "ResourceClaim",
        "metadata": _meta(name, "team"),
        "spec": _claim_spec(),
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def _pod(name: str, node: str, claim: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _meta(name, "team"),
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"resources": {"requests": {"cpu": "4", "memory": "1Gi"}}}],
            "initContainers": [{"resources": {"limits": {"cpu": "6"}}, "restartPolicy": "Always"}],
            "resourceClaims": [{"name": "d", "resourceClaimName": claim}],
            "overhead": {"cpu": "100m"},
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def _queue() -> list[Object]:
    quota = {"name": "gpus", "nominalQuota": "2", "borrowingLimit": "1", "lendingLimit": "1"}
    group = {"coveredResources": ["gpus"], "flavors": [{"name": "any", "resources": [quota]}]}
    status = {
        "flavorsReservation": [{"name": "any", "resources": [{"name": "gpus", "total": "1"}]}],
        "pendingWorkloads": 0,
        "conditions": [{"type": "Active", "status": "True", "message": "ready"}],
    }
    spec = {"cohortName": "all", "namespaceSelector": {"matchLabels": {}}, "resourceGroups": [group]}
    spec["flavorFungibility"] = {"whenCanBorrow": "MayStopSearch"}
    flavor = {
        "nodeLabels": {"site": "one"},
        "nodeTaints": [{"key": "gpus", "value": "x", "effect": "NoSchedule"}],
        "tolerations": [{"key": "gpus", "operator": "Equal", "value": "x", "effect": "NoSchedule"}],
    }
    objects = [
        {"kind": "ClusterQueue", "metadata": _meta("red"), "spec": spec, "status": status},
        {"kind": "Cohort", "metadata": _meta("all"), "spec": {"resourceGroups": [group]}},
        {"kind": "LocalQueue", "metadata": _meta("jobs", "team"), "spec": {"clusterQueue": "red"}},
        {"kind": "ResourceFlavor", "metadata": _meta("any"), "spec": flavor},
    ]
    return [{"apiVersion": kueue.API_VERSION, **manifest} for manifest in objects]


def _dump() -> dict[str, list[Object]]:
    """A cluster with at least one object of each kind, and nearly all fields that a plan uses."""
    expression = f'device.driver == "{DRIVER}"'
    rule = {
        "deviceSelector": {"driver": DRIVER, "pool": "b", "device": "gpu-2"},
        "taint": {"key": "r", "effect": "NoSchedule"},
    }
    objects: list[Object] = [
        *(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {**_meta(name), "labels": {"of": name, "site": "one"}},
                "spec": {"taints": [{"key": "quiet", "effect": "PreferNoSchedule"}], "unschedulable": False},
                "status": {"allocatable": {"cpu": "64", "memory": "1Ti", "pods": "110"}},
            }
            for name in NODES
        ),
        *(_slice(name) for name in NODES),
        _claim("c", "a", "gpu-0"),
        _claim("s", "a", "nic", shareID="x", consumedCapacity={"bandwidth": "50G"}),
        _pod("p", "a", "c"),
        _pod("w", "", "later"),
        {
            "apiVersion": V1,
            "kind": "DeviceClass",
            "metadata": _meta("any"),
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        },
        {
            "apiVersion": V1,
            "kind": "ResourceClaimTemplate",
            "metadata": _meta("t", "team"),
            "spec": {"spec": _claim_spec()},
        },
        {"apiVersion": V1, "kind": "DeviceTaintRule", "metadata": _meta("r"), "spec": rule},
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": _meta("q", "team"),
            "spec": {"hard": {"pods": "9", "requests.cpu": "100"}},
            "status": {"used": {"pods": "1", "requests.cpu": "4"}},
        },
        *_queue(),
    ]
    found: dict[str, list[Object]] = {}
    for manifest in objects:
        found.setdefault(manifest["kind"], []).append({key: value for key, value in manifest.items() if key != "kind"})
    return found


POD = {"containers": [{"resources": {"requests": {"cpu": "8"}}}]}
ENTRY = {
    **{name: option.get("default") for name, option in WORKLOAD.items()},
    "name": "w",
    "namespace": "team",
    "templates": ["t"],
    "pod": POD,
    "labels": {kueue.QUEUE_LABEL: "jobs"},
}
CONFIGURATION = {
    "resources": {
        "deviceClassMappings": [{"name": "gpus", "deviceClassNames": ["any"]}],
        "excludeResourcePrefixes": ["cpu", "memory"],
    }
}


def _plan(engine: Engine, dump: t.Any, kubernetes: str = "1.37") -> tuple[Fleet, fits.Fit]:
    """Do everything that a plan does with a dump."""
    objects = objects_of(dump)
    work = workload(ENTRY, templates_of(objects))
    fleet = reader.read(objects, kubernetes, kueue_configuration=CONFIGURATION)
    (found,) = fits.fit(fleet, [work], engine)
    stranded(fleet, [work], engine)
    if fleet.nodes:
        fits.fit(after(fleet, [{"drain": {"nodes": [next(iter(fleet.nodes))]}}]), [work], engine)
    return fleet, found


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


def _paths(value: t.Any, here: FieldPath = ()) -> t.Iterator[FieldPath]:
    """The paths of all values in objects, and of the objects themselves."""
    items: t.Iterable[tuple[t.Any, t.Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        if len(here) >= 1:  # damage no list of a kind as a whole
            yield (*here, key)
        yield from _paths(inner, (*here, key))


PATHS = sorted(_paths(_dump()), key=str)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))
ANY_VALUE = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
REMOVED = object()
DAMAGE = st.tuples(st.sampled_from(PATHS), st.one_of(st.just(REMOVED), ANY_VALUE))


def _damaged(damages: t.Sequence[tuple[FieldPath, t.Any]]) -> Object:
    dump = copy.deepcopy(_dump())
    for path, value in damages:
        container: t.Any = dump
        try:
            for key in path[:-1]:
                container = container[key]
            if value is REMOVED:
                del container[path[-1]]
            else:
                container[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier damage has removed this path
    return dump


def test_the_undamaged_dump_gives_a_complete_answer(engine: Engine) -> None:
    """The tests below compare with this answer."""
    fleet, found = _plan(engine, _dump())
    assert (found.total, fleet.upper_bound_notes) == (1, ()) and found.quota.startswith("ClusterQueue red leaves gpus")
    assert sum(node.count for node in found.nodes.values()) == 3
    stored = {kind: [snapshot_of({"kind": kind, **item}) for item in items] for kind, items in _dump().items()}
    assert _plan(engine, stored)[1] == found


@settings(max_examples=DUMPS, deadline=None, suppress_health_check=list(HealthCheck))
@given(damages=st.lists(DAMAGE, min_size=1, max_size=3))
def test_a_damaged_dump_is_refused_or_counted(engine: Engine, damages: list[tuple[FieldPath, t.Any]]) -> None:
    """A refusal names each object and field. Nothing else is raised."""
    try:
        _fleet, found = _plan(engine, _damaged(damages))
    except Problems as refused:
        for problem in refused.problems:
            assert problem.path.partition("[")[0] in _dump() or problem.path.startswith("workload w"), problem
            assert "." in problem.path or problem.path.endswith("]") and problem.message, problem
    except ValueError as error:
        assert _named(str(error)), error
    else:
        assert 0 <= found.total <= 8


def _named(reported: str) -> bool:
    """Whether a refusal that is not a list of problems names the object."""
    return "ResourceClaimTemplate team/t" in reported or "objects." in reported or "workload w" in reported


def test_each_invalid_or_missing_field_is_refused_unused_or_makes_a_bound(engine: Engine) -> None:
    """If a field has a value of a wrong type or null, either the plan is refused and the message names the field, or
    the answer is unchanged or marked as a bound."""
    whole = _plan(engine, _dump())[1]
    faults = []
    for path in PATHS:
        for wrong in _wrong(path):
            try:
                found = _plan(engine, _damaged([(path, wrong)]))[1]
            except Problems as refused:
                if str(path[0]) not in str(refused) or _last(path) not in str(refused):
                    faults.append((path, wrong, str(refused)))
            except ValueError as error:
                if not _named(str(error)):
                    faults.append((path, wrong, str(error)))
            else:
                if found != whole and not found.at_most and not found.at_least:
                    faults.append((path, wrong, found))
    assert not faults, faults[:5]


def _wrong(path: FieldPath) -> list[t.Any]:
    """Values that no API server would return at this path."""
    value: t.Any = _dump()
    for key in path:
        value = value[key]
    if isinstance(value, dict):
        return [["wrong"], "wrong", -7, None]
    if isinstance(value, list):
        return [{"wrong": "form"}, "wrong", -7, None]
    return [{"wrong": "form"}, ["wrong"], None, 1.5 if isinstance(value, (bool, int)) else True]


INCOMPLETE = [
    (lambda dump: dump.pop("ResourceClaim"), "objects have no ResourceClaim", False, True),
    (lambda dump: dump.pop("Pod"), "objects have no Pod", False, True),
    (lambda dump: dump["ResourceClaim"].pop(0), "team/c of pod team/p: no device is allocated", False, True),
    (lambda dump: dump["ResourceClaim"][0].pop("status"), "team/c of pod team/p: no device is allocated", False, True),
    (lambda dump: dump["Node"][0].pop("status"), "node(s) a report no resources", False, True),
    (lambda dump: dump["ResourceSlice"][1]["spec"]["pool"].update(resourceSliceCount=2), "1 of 2 slices", True, False),
    (lambda dump: dump["ResourceSlice"].pop(0), "claim team/c has vendor.example.com/a/gpu-0", True, False),
    (lambda dump: dump["Node"].pop(0), "node(s) a have pods and devices", True, False),
]


@pytest.mark.parametrize(
    ("damage", "reported", "at_least", "at_most"), INCOMPLETE, ids=[entry[1] for entry in INCOMPLETE]
)
def test_missing_parts_of_a_cluster_are_reported_and_make_counts_bounds(
    engine: Engine, damage: t.Any, reported: str, at_least: bool, at_most: bool
) -> None:
    """The missing part is reported, and a count that depends on it is a bound."""
    dump = _dump()
    for kind in ("ClusterQueue", "LocalQueue", "Cohort"):
        dump.pop(kind)
    damage(dump)
    objects = objects_of(dump)
    fleet = reader.read(objects)
    fleet = replace(fleet, upper_bound_notes=(*fleet.upper_bound_notes, *missing_kinds(dump)))
    work = workload({**ENTRY, "labels": {}}, templates_of(objects))
    (found,) = fits.fit(fleet, [work], engine)
    assert any(reported in note for note in found.notes), found.notes
    assert (found.at_least, found.at_most) == (at_least, at_most)


def test_devices_allocated_by_other_schedulers_are_in_use(engine: Engine) -> None:
    """The nodes on which another scheduler would place a pod are unknown."""
    dump = _dump()
    for kind in ("ClusterQueue", "LocalQueue", "Cohort"):
        dump.pop(kind)
    dump["Pod"][1]["spec"]["schedulerName"] = "volcano"
    twice = copy.deepcopy(dump["ResourceClaim"][0])
    twice["metadata"]["name"] = "theirs"
    dump["ResourceClaim"].append(twice)
    objects = objects_of(dump)
    entry = {**ENTRY, "labels": {}}
    fleet = reader.read(objects)
    (found,) = fits.fit(fleet, [workload(entry, templates_of(objects))], engine)
    assert found.total == 3 and not found.at_most
    assert any("other schedulers place team/w (volcano)" in note for note in found.notes)
    assert any("gpu-0 is allocated to two claims, team/c and team/theirs" in note for note in found.notes)
    other = workload({**entry, "pod": {**POD, "schedulerName": "volcano"}}, templates_of(objects))
    (found,) = fits.fit(fleet, [other], engine)
    assert found.at_least and found.at_most and any("placed by scheduler volcano" in item for item in found.notes)


def _last(path: FieldPath) -> str:
    return [entry for entry in path if isinstance(entry, str)][-1]
