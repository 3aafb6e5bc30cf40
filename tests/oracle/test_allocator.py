# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The offline search against the allocator of kube-scheduler itself, on generated nodes and claims.

Devices lack attributes and capacities, quantities are huge or tiny, pools share counters: whatever an API server
stores. Both must find the same devices in the same order, or none. If the allocator returns an error, which ends the
scheduling of the pod, our refusal must be of kind error, limit or class. LANEWISE_ALLOCATOR_EXAMPLES sets the number of
cases.
"""

from __future__ import annotations

import functools
import os
import random
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler import search
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import (
    Allocation,
    Refusal,
    Result,
    allocate,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.oracle.program import Program, needs_engine, needs_go
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("LANEWISE_ALLOCATOR_EXAMPLES", "200"))
SOURCE = Path(__file__).resolve().parent / "allocator"

pytestmark = [pytest.mark.long, needs_go("the scheduler's allocator"), needs_engine()]  # it builds a Go program

ROOT = "resource.kubernetes.io/pcieRoot"
DRIVERS = ("a.example.com", "b.example.com")
FATAL = ("error", "limit", "class")


@functools.lru_cache(None)
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session")
def oracle() -> t.Iterator[Program]:
    with Program(SOURCE) as running:
        yield running


# --- nodes and claims

QUANTITIES = st.sampled_from(
    ["0", "1", "2", "3", "10", "1500m", "500u", "1Gi", "10G", "9223372036854775807", "9223372036854775806"]
    + ["9223372036854775", "9223372036854776", "8Ei", "9999999999999999999999", "1e30", "1n"]
)
SMALL = st.sampled_from(["0", "1", "2", "3", "10", "1500m"])
SELECTORS = [
    'device.attributes["a.example.com"].kind == "x"',
    'device.attributes["a.example.com"].rail == 1',
    'has(device.attributes["b.example.com"].kind) && device.attributes["b.example.com"].kind == "y"',
    'device.attributes["gpu.example.com"].model == "x"',
    'device.capacity["a.example.com"].m.compareTo(quantity("2")) >= 0',
    "device.allowMultipleAllocations",
    "true",
]


@st.composite
def policies(draw: st.DrawFn) -> Object:
    if draw(st.booleans()):
        values = draw(st.lists(SMALL, min_size=1, max_size=3, unique=True))
        values.sort(key=quantity.parse)
        return {"default": values[0], "validValues": values}
    low = draw(st.sampled_from(["0", "1", "2", "500m"]))
    step = draw(st.sampled_from([None, "1", "2", "500m", "1Gi"]))
    found: Object = {"min": low}
    if step:
        found["step"] = step
    if draw(st.booleans()):
        found["max"] = draw(st.sampled_from(["8", "10", "9223372036854775807"]))
    return {"default": low, "validRange": found}


@st.composite
def devices(draw: st.DrawFn, number: int, plain: bool) -> Object:
    attributes: Object = {}
    for name, values in ((ROOT, ("r0", "r1")), ("kind", ("x", "y")), ("rail", (1, 2)), ("odd", (1, "1", True))):
        value = draw(st.sampled_from([*values] if plain else [None, *values]))
        if value is not None:
            kind = {str: "string", int: "int", bool: "bool"}[type(value)]
            attributes[name] = {kind: value}
    body: Object = {"name": f"d{number}", "attributes": attributes}
    if plain:
        return body
    if draw(st.booleans()):
        body["allowMultipleAllocations"] = draw(st.booleans())
    capacity: Object = {}
    for name in ("m", "n"):
        if draw(st.integers(0, 2)) == 0:
            capacity[name] = {"value": draw(QUANTITIES)}
            if body.get("allowMultipleAllocations") and draw(st.booleans()):
                capacity[name]["requestPolicy"] = draw(policies())
    if capacity:
        body["capacity"] = capacity
    if draw(st.integers(0, 4)) == 0:
        body["taints"] = [{"key": "t", "effect": draw(st.sampled_from(["NoSchedule", "NoExecute", "None"]))}]
    if draw(st.integers(0, 3)) == 0:
        amount = draw(st.sampled_from(["1", "2", "9223372036854775807"]))
        body["consumesCounters"] = [{"counterSet": "s", "counters": {"c": {"value": amount}}}]
    return body


@st.composite
def nodes(draw: st.DrawFn) -> list[Offer]:
    sets = ({"name": "s", "counters": {"c": {"value": draw(st.sampled_from(["2", "3", "9223372036854775807"]))}}},)
    found = []
    plain = draw(st.booleans())
    for number in range(draw(st.integers(0, 7))):
        body = draw(devices(number, plain or draw(st.booleans())))
        driver = draw(st.sampled_from(DRIVERS))
        found.append(Offer(driver, "p", "node", body, counter_sets=sets if body.get("consumesCounters") else ()))
    return found


@st.composite
def bodies(draw: st.DrawFn, plain: bool) -> Object:
    body: Object = {"deviceClassName": draw(st.sampled_from(["a", "b", "any", "any"]))}
    if not plain and draw(st.integers(0, 3)) == 0:
        body["allocationMode"] = "All"
    else:
        counts = [1, 1, 1, 2] if plain else [1, 1, 2, 3, 17, 33, 2**62]
        body.update(allocationMode="ExactCount", count=draw(st.sampled_from(counts)))
    if plain:
        return body
    if draw(st.integers(0, 2)) == 0:
        expressions = draw(st.lists(st.sampled_from(SELECTORS), min_size=1, max_size=2))
        body["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    if draw(st.integers(0, 3)) == 0:
        body["tolerations"] = [{"operator": "Exists"}]
    if draw(st.integers(0, 2)) == 0:
        wanted = draw(st.lists(st.sampled_from(["m", "n", "a.example.com/m"]), min_size=1, max_size=2, unique=True))
        body["capacity"] = {"requests": {name: draw(QUANTITIES) for name in wanted}}
    return body


CLASSES: dict[str, Object] = {
    **{d[0]: {"selectors": [{"cel": {"expression": f'device.driver == "{d}"'}}]} for d in DRIVERS},
    "any": {},
}


@st.composite
def claims(draw: st.DrawFn) -> Object:
    requests = []
    plain = draw(st.booleans())
    for number in range(draw(st.integers(1, 4 if plain else 3))):
        if draw(st.integers(0, 2)) == 0:
            subs = [{"name": f"s{i}", **draw(bodies(plain))} for i in range(draw(st.integers(1, 3)))]
            requests.append({"name": f"q{number}", "firstAvailable": subs})
        else:
            admin = {"adminAccess": True} if draw(st.integers(0, 5)) == 0 else {}
            requests.append({"name": f"q{number}", "exactly": {**draw(bodies(plain)), **admin}})
    known = [request["name"] for request in requests]
    known += [f"{r['name']}/{s['name']}" for r in requests for s in r.get("firstAvailable", ())]
    rules = []
    for _rule in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        covered = draw(st.lists(st.sampled_from(known), unique=True, max_size=3))
        name = draw(st.sampled_from([ROOT, "a.example.com/rail", "a.example.com/odd", "gpu.example.com/none"]))
        rules.append({kind: name, "requests": covered})
    return {"devices": {"requests": requests, "constraints": rules}}


# --- the comparison


def question(specs: t.Sequence[Object], classes: t.Mapping[str, Object], node: t.Sequence[Offer]) -> Object:
    published = [one["spec"] for one in slices(node)]
    return {"claims": list(specs), "classes": dict(classes), "slices": published, "milliseconds": 10_000}


def held_results(held: t.Sequence[Result]) -> list[Object]:
    return [
        {
            "request": one.request,
            "driver": one.offer.driver,
            "pool": one.offer.pool,
            "device": one.offer.device["name"],
            **({"consumedCapacity": dict(one.consumed)} if one.consumed else {}),
        }
        for one in held
        if not one.admin
    ]


def picked(answer: Object) -> list[tuple[t.Any, ...]]:
    return [
        (claim, one["request"], one["driver"], one["device"], bool(one.get("adminAccess")), amounts(one))
        for claim, results in enumerate(answer["results"])
        for one in results or ()
    ]


def amounts(one: Object) -> dict[str, t.Any]:
    return {name: quantity.parse(value) for name, value in (one.get("consumedCapacity") or {}).items()}


def allocated(answer: Allocation) -> list[tuple[t.Any, ...]]:
    return [
        (
            one.claim,
            one.request,
            one.offer.driver,
            one.offer.device["name"],
            one.admin,
            {name: quantity.parse(value) for name, value in one.consumed.items()},
        )
        for one in answer.results
    ]


def difference(ours: Allocation | Refusal, theirs: Object) -> str:
    """The difference between the two results; empty if they agree."""
    if theirs.get("late"):
        return ""
    if isinstance(ours, Allocation):
        same = bool(theirs.get("results")) and allocated(ours) == picked(theirs)
        return "" if same else f"predicted {allocated(ours)}, allocated {theirs}"
    if ours.kind == "budget":
        return ""
    if theirs.get("error"):
        return "" if ours.kind in FATAL else f"predicted {ours}, ended with {theirs['error']}"
    return "" if not theirs.get("results") and ours.kind not in FATAL else f"predicted {ours}, got {theirs}"


@pytest.mark.parametrize("remember", ["always", "when long"])
def test_the_allocator_agrees_with_the_scheduler(
    oracle: Program, remember: str, monkeypatch: pytest.MonkeyPatch, summarize: t.Callable[[str], None]
) -> None:
    """With failed states remembered from the first one on, and by default."""
    kinds: dict[str, int] = {}
    if remember == "always":
        monkeypatch.setattr(search, "_REMEMBER_AFTER", 0)

    def compare(asked: Object, answer: Allocation | Refusal) -> None:
        theirs = oracle.ask(asked)
        assert not difference(answer, theirs), difference(answer, theirs)
        kind = "allocated" if isinstance(answer, Allocation) else answer.kind
        kinds[kind] = kinds.get(kind, 0) + 1

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(node=nodes(), first=claims(), second=st.none() | claims())
    def check(node: list[Offer], first: Object, second: Object | None) -> None:
        specs = [first, second] if second else [first]
        classes = {name: {"spec": body} for name, body in CLASSES.items()}
        ours = allocate(specs, classes, node, engine())
        compare(question(specs, CLASSES, node), ours)
        if isinstance(ours, Allocation):  # and the next pod, with the remaining devices
            held = ours.results
            ours = allocate(specs, classes, node, engine(), held=held)
            compare({**question(specs, CLASSES, node), "held": held_results(held)}, ours)

    check()
    summarize(f"allocator, failed states remembered {remember}: {kinds}")
    assert {"allocated", "count", "error", "constraint"} <= set(kinds)


# --- claims that keep the scheduler busy

MACHINES = ("hgx-h100", "dgx-a100", "missing-nic", "degraded", "epyc-nps4", "hgx-b200", "gb200")
NUMA = "resource.kubernetes.io/numaNode"
HARD: dict[str, Object] = {
    "gpu": {
        "selectors": [
            {"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}},
            {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].type == "gpu"'}},
        ]
    },
    "rdma": {
        "selectors": [
            {"cel": {"expression": 'device.driver == "lanewise.dev"'}},
            {"cel": {"expression": 'has(device.attributes["lanewise.dev"].rdma)'}},
        ]
    },
}


def hard(chance: random.Random) -> Object:
    """Pairs of GPU and NIC with preference lists of levels, and constraints over several pairs."""
    requests, rules = [], []
    pairs = chance.randint(2, 8)
    for pair in range(pairs):
        levels = chance.choice([[ROOT], [ROOT, NUMA], [ROOT, NUMA, None], [NUMA], [NUMA, None]])
        bodies = [{"name": f"l{i}", "deviceClassName": "rdma", **ONE} for i in range(len(levels))]
        both = [{"name": f"n{pair}", "firstAvailable": bodies}, exactly(f"g{pair}", "gpu", 1)]
        requests += chance.sample(both, 2)
        rules += [
            {"matchAttribute": name, "requests": [f"n{pair}/l{i}", f"g{pair}"]} for i, name in enumerate(levels) if name
        ]
    if chance.random() < 0.3:
        chance.shuffle(requests)
    if chance.random() < 0.4:
        requests.append(exactly("more", chance.choice(["gpu", "rdma"]), chance.randint(1, 3)))
    nics = [f"n{pair}" for pair in range(pairs)]
    if chance.random() < 0.3:
        rules.append({"distinctAttribute": chance.choice(["lanewise.dev/rail", ROOT]), "requests": nics})
    if chance.random() < 0.3:
        some = chance.sample([request["name"] for request in requests], chance.randint(2, len(requests)))
        rules.append({"matchAttribute": NUMA, "requests": some})
    return {"devices": {"requests": requests, "constraints": rules}}


ONE = {"allocationMode": "ExactCount", "count": 1}


def exactly(name: str, device_class: str, count: int) -> Object:
    return {"name": name, "exactly": {**ONE, "deviceClassName": device_class, "count": count}}


def test_what_the_scheduler_finds_in_time_is_found(oracle: Program, summarize: t.Callable[[str], None]) -> None:
    """On example machines with some devices in use, if the scheduler takes at most 2.5 s."""
    chance = random.Random(20261123)
    drivers: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {}}
    machines = {name: offers("node", facts(name), drivers) for name in MACHINES}
    classes = {name: {"spec": body} for name, body in HARD.items()}
    kinds: dict[str, int] = {}
    for _try in range(int(os.environ.get("LANEWISE_ALLOCATOR_HARD", "40"))):
        node = chance.choice(list(machines.values()))
        there = [offer for offer in node if not offer.possible]
        held = [Result(0, "x", offer) for offer in chance.sample(there, chance.choice([0, 0, 1, 2, 4]))]
        claim = hard(chance)
        ours = allocate([claim], classes, node, engine(), held=held)
        asked = {**question([claim], HARD, node), "held": held_results(held), "milliseconds": 2500}
        theirs = oracle.ask(asked)
        assert not difference(ours, theirs), difference(ours, theirs)
        kind = "allocated" if isinstance(ours, Allocation) else ours.kind
        assert kind != "budget" or not theirs.get("results"), (claim, held)
        kind += " late" if theirs.get("late") else ""
        kinds[kind] = kinds.get(kind, 0) + 1
    summarize(f"allocator, hard claims: {kinds}")
    assert {"allocated", "count", "constraint"} <= {kind.split()[0] for kind in kinds}  # late or not
