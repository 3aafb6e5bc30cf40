# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the offline search for devices with kube-scheduler's own allocator, on generated nodes and claims.

Devices lack attributes and capacities, quantities are huge or tiny, and devices of a pool share counters, as an API
server allows. Both must find the same devices in the same order, or none. If kube-scheduler's allocator returns an
error, which ends the scheduling of the pod, the refusal of the offline search must be of a kind in FATAL_KINDS.
LANEWISE_ALLOCATOR_EXAMPLES sets the number of cases.
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

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
DRIVERS = ("a.example.com", "b.example.com")
#: Kinds of refusals that predict an error of the scheduler's allocator.
FATAL_KINDS = ("error", "limit", "class")


@functools.lru_cache(None)
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session")
def oracle() -> t.Iterator[Program]:
    with Program(SOURCE) as program:
        yield program


# --- nodes and claims

QUANTITIES = st.sampled_from(
    ["0", "1", "2", "3", "10", "1500m", "500u", "1Gi", "10G", "9223372036854775807", "9223372036854775806"]
    + ["9223372036854775", "9223372036854776", "8Ei", "9999999999999999999999", "1e30", "1n"]
)
SMALL_QUANTITIES = st.sampled_from(["0", "1", "2", "3", "10", "1500m"])
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
def request_policies(draw: st.DrawFn) -> Object:
    """Which amounts of a capacity requests may consume: some values, or a range."""
    if draw(st.booleans()):
        values = draw(st.lists(SMALL_QUANTITIES, min_size=1, max_size=3, unique=True))
        values.sort(key=quantity.parse)
        return {"default": values[0], "validValues": values}
    low = draw(st.sampled_from(["0", "1", "2", "500m"]))
    step = draw(st.sampled_from([None, "1", "2", "500m", "1Gi"]))
    valid_range: Object = {"min": low}
    if step:
        valid_range["step"] = step
    if draw(st.booleans()):
        valid_range["max"] = draw(st.sampled_from(["8", "10", "9223372036854775807"]))
    return {"default": low, "validRange": valid_range}


@st.composite
def devices(draw: st.DrawFn, number: int, plain: bool) -> Object:
    """A device. A plain one has all attributes, and nothing else."""
    attributes: Object = {}
    for name, values in (
        (PCIE_ROOT, ("r0", "r1")),
        ("kind", ("x", "y")),
        ("rail", (1, 2)),
        ("mixed", (1, "1", True)),
    ):
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
                capacity[name]["requestPolicy"] = draw(request_policies())
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
    """The devices that two drivers publish on a node."""
    total = draw(st.sampled_from(["2", "3", "9223372036854775807"]))
    counter_sets = ({"name": "s", "counters": {"c": {"value": total}}},)
    published = []
    plain = draw(st.booleans())
    for number in range(draw(st.integers(0, 7))):
        body = draw(devices(number, plain or draw(st.booleans())))
        driver = draw(st.sampled_from(DRIVERS))
        used_sets = counter_sets if body.get("consumesCounters") else ()
        published.append(Offer(driver, "p", "node", body, counter_sets=used_sets))
    return published


@st.composite
def request_bodies(draw: st.DrawFn, plain: bool) -> Object:
    """What a request says about its devices. A plain one has a class and a count only."""
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
    **{driver[0]: {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]} for driver in DRIVERS},
    "any": {},
}


@st.composite
def claims(draw: st.DrawFn) -> Object:
    requests = []
    plain = draw(st.booleans())
    for number in range(draw(st.integers(1, 4 if plain else 3))):
        if draw(st.integers(0, 2)) == 0:
            alternatives = [{"name": f"s{i}", **draw(request_bodies(plain))} for i in range(draw(st.integers(1, 3)))]
            requests.append({"name": f"q{number}", "firstAvailable": alternatives})
        else:
            admin = {"adminAccess": True} if draw(st.integers(0, 5)) == 0 else {}
            requests.append({"name": f"q{number}", "exactly": {**draw(request_bodies(plain)), **admin}})
    names = [request["name"] for request in requests]
    names += [f"{r['name']}/{s['name']}" for r in requests for s in r.get("firstAvailable", ())]
    constraints = []
    for _constraint in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        covered = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
        attribute = draw(
            st.sampled_from([PCIE_ROOT, "a.example.com/rail", "a.example.com/mixed", "gpu.example.com/none"])
        )
        constraints.append({kind: attribute, "requests": covered})
    return {"devices": {"requests": requests, "constraints": constraints}}


# --- the comparison


def question(specs: t.Sequence[Object], classes: t.Mapping[str, Object], node: t.Sequence[Offer]) -> Object:
    """The question to the scheduler's allocator: which devices of the node do claims with these specs get?"""
    published = [published_slice["spec"] for published_slice in slices(node)]
    return {"claims": list(specs), "classes": dict(classes), "slices": published, "milliseconds": 10_000}


def held_results(held: t.Sequence[Result]) -> list[Object]:
    """Devices in use, as the scheduler's allocator reads them."""
    return [
        {
            "request": result.request,
            "driver": result.offer.driver,
            "pool": result.offer.pool,
            "device": result.offer.device["name"],
            **({"consumedCapacity": dict(result.consumed)} if result.consumed else {}),
        }
        for result in held
        if not result.admin
    ]


def quantities(consumed: t.Mapping[str, str] | None) -> dict[str, t.Any]:
    return {name: quantity.parse(value) for name, value in (consumed or {}).items()}


def allocated_devices(answer: Object) -> list[tuple[t.Any, ...]]:
    """What the scheduler's allocator allocated, in the form of `predicted_devices`."""
    return [
        (
            claim,
            result["request"],
            result["driver"],
            result["device"],
            bool(result.get("adminAccess")),
            quantities(result.get("consumedCapacity")),
        )
        for claim, results in enumerate(answer["results"])
        for result in results or ()
    ]


def predicted_devices(prediction: Allocation) -> list[tuple[t.Any, ...]]:
    return [
        (
            result.claim,
            result.request,
            result.offer.driver,
            result.offer.device["name"],
            result.admin,
            quantities(result.consumed),
        )
        for result in prediction.results
    ]


def difference(prediction: Allocation | Refusal, answer: Object) -> str:
    """The difference between the two results. Empty if they agree, or if one of them ran out of time."""
    if answer.get("late"):
        return ""
    if isinstance(prediction, Allocation):
        predicted = predicted_devices(prediction)
        same = bool(answer.get("results")) and predicted == allocated_devices(answer)
        return "" if same else f"predicted {predicted}, allocated {answer}"
    if prediction.kind == "budget":
        return ""
    if answer.get("error"):
        return "" if prediction.kind in FATAL_KINDS else f"predicted {prediction}, ended with {answer['error']}"
    refused = not answer.get("results") and prediction.kind not in FATAL_KINDS
    return "" if refused else f"predicted {prediction}, got {answer}"


@pytest.mark.parametrize("remember", ["from the first state", "by default"])
def test_the_search_agrees_with_the_scheduler(
    oracle: Program, remember: str, monkeypatch: pytest.MonkeyPatch, summarize: t.Callable[[str], None]
) -> None:
    """By default, the search remembers failed states only after it has examined many devices."""
    kinds: dict[str, int] = {}
    if remember == "from the first state":
        monkeypatch.setattr(search, "_REMEMBER_AFTER", 0)

    def compare(asked: Object, prediction: Allocation | Refusal) -> None:
        answer = oracle.ask(asked)
        assert not difference(prediction, answer), difference(prediction, answer)
        kind = "allocated" if isinstance(prediction, Allocation) else prediction.kind
        kinds[kind] = kinds.get(kind, 0) + 1

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(node=nodes(), first=claims(), second=st.none() | claims())
    def check(node: list[Offer], first: Object, second: Object | None) -> None:
        specs = [first, second] if second else [first]
        classes = {name: {"spec": body} for name, body in CLASSES.items()}
        prediction = allocate(specs, classes, node, engine())
        compare(question(specs, CLASSES, node), prediction)
        if isinstance(prediction, Allocation):  # the next pod gets some of the remaining devices
            held = prediction.results
            prediction = allocate(specs, classes, node, engine(), held=held)
            compare({**question(specs, CLASSES, node), "held": held_results(held)}, prediction)

    check()
    summarize(f"allocator, failed states remembered {remember}: {kinds}")
    assert {"allocated", "count", "error", "constraint"} <= set(kinds)


# --- claims that need a long search

MACHINES = ("hgx-h100", "dgx-a100", "missing-nic", "degraded", "epyc-nps4", "hgx-b200", "gb200")
NUMA_NODE = "resource.kubernetes.io/numaNode"
HARD_CLASSES: dict[str, Object] = {
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


ONE_DEVICE = {"allocationMode": "ExactCount", "count": 1}


def exactly(name: str, device_class: str, count: int) -> Object:
    return {"name": name, "exactly": {**ONE_DEVICE, "deviceClassName": device_class, "count": count}}


def hard_claim(rng: random.Random) -> Object:
    """Pairs of GPU and NIC, each near by one of several attributes in order of preference, and more constraints."""
    requests, constraints = [], []
    pairs = rng.randint(2, 8)
    for pair in range(pairs):
        levels = rng.choice(
            [[PCIE_ROOT], [PCIE_ROOT, NUMA_NODE], [PCIE_ROOT, NUMA_NODE, None], [NUMA_NODE], [NUMA_NODE, None]]
        )
        alternatives = [{"name": f"l{i}", "deviceClassName": "rdma", **ONE_DEVICE} for i in range(len(levels))]
        nic_and_gpu = [{"name": f"n{pair}", "firstAvailable": alternatives}, exactly(f"g{pair}", "gpu", 1)]
        requests += rng.sample(nic_and_gpu, 2)
        constraints += [
            {"matchAttribute": name, "requests": [f"n{pair}/l{i}", f"g{pair}"]} for i, name in enumerate(levels) if name
        ]
    if rng.random() < 0.3:
        rng.shuffle(requests)
    if rng.random() < 0.4:
        requests.append(exactly("more", rng.choice(["gpu", "rdma"]), rng.randint(1, 3)))
    nics = [f"n{pair}" for pair in range(pairs)]
    if rng.random() < 0.3:
        constraints.append({"distinctAttribute": rng.choice(["lanewise.dev/rail", PCIE_ROOT]), "requests": nics})
    if rng.random() < 0.3:
        some = rng.sample([request["name"] for request in requests], rng.randint(2, len(requests)))
        constraints.append({"matchAttribute": NUMA_NODE, "requests": some})
    return {"devices": {"requests": requests, "constraints": constraints}}


def test_the_search_finds_what_the_scheduler_finds_in_time(oracle: Program, summarize: t.Callable[[str], None]) -> None:
    """On example machines with some devices in use, if the scheduler takes at most 2.5 s."""
    rng = random.Random(20261123)
    drivers: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {}}
    machines = {name: offers("node", facts(name), drivers) for name in MACHINES}
    classes = {name: {"spec": body} for name, body in HARD_CLASSES.items()}
    kinds: dict[str, int] = {}
    for _claim in range(int(os.environ.get("LANEWISE_ALLOCATOR_HARD", "40"))):
        node = rng.choice(list(machines.values()))
        certain = [offer for offer in node if not offer.possible]
        held = [Result(0, "x", offer) for offer in rng.sample(certain, rng.choice([0, 0, 1, 2, 4]))]
        claim = hard_claim(rng)
        prediction = allocate([claim], classes, node, engine(), held=held)
        asked = {**question([claim], HARD_CLASSES, node), "held": held_results(held), "milliseconds": 2500}
        answer = oracle.ask(asked)
        assert not difference(prediction, answer), difference(prediction, answer)
        kind = "allocated" if isinstance(prediction, Allocation) else prediction.kind
        assert kind != "budget" or not answer.get("results"), (claim, held)
        kind += " late" if answer.get("late") else ""
        kinds[kind] = kinds.get(kind, 0) + 1
    summarize(f"allocator, hard claims: {kinds}")
    assert {"allocated", "count", "constraint"} <= {kind.split()[0] for kind in kinds}
