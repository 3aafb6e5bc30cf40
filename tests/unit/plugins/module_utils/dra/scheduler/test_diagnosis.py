# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The reason for a refusal names the cause, and says no more than was checked."""

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Refusal, Result, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.scheduler.test_allocator import (
    CLASSES,
    device,
    engine,
    exact,
    match_attribute,
    refusal,
    selectors,
    spec,
    with_fields,
)

__all__ = ("engine",)

P, Q = "x.example.com/p", "x.example.com/q"


def device_class(expression: str) -> Object:
    return {"spec": {"selectors": selectors(expression)}}


def reason(
    claims: list[Object], node: list[Offer], engine: Engine, held: list[Offer] | None = None, **classes: Object
) -> Refusal:
    results = [Result(0, "held", offer) for offer in held or ()]
    return refusal(allocate(claims, {**CLASSES, **classes}, node, engine, held=results))


def conflicting() -> Object:
    """A claim whose two constraints can be met, but not with the same devices of `THREE`."""
    rules = [match_attribute(P, "c", "d"), match_attribute(Q, "c", "d")]
    return spec(exact("c", "a"), exact("d", "a"), constraints=rules)


THREE = [device("d0", **{P: 1, Q: 1}), device("d1", **{P: 1, Q: 2}), device("d2", **{P: 2, Q: 1})]


def test_identical_requests_with_enough_devices_are_not_the_reason(engine: Engine) -> None:
    nics = [device(f"n{number}", "b.example.com") for number in range(8)]
    claim = conflicting()
    expected = "each constraint can be met, but not all of them with the same devices"
    assert reason([claim], THREE, engine).reason == expected
    claim["devices"]["requests"] = [exact("nic0", "b"), exact("nic1", "b"), *claim["devices"]["requests"]]
    answer = reason([claim], [*THREE, *nics], engine)
    assert (answer.reason, answer.path) == (expected, "claims[0].spec.devices.constraints")


def test_a_conflict_of_one_of_several_claims_has_no_wrong_path(engine: Engine) -> None:
    nic = device("n", "b.example.com")
    answer = reason([spec(exact("nic", "b")), conflicting()], [nic, *THREE], engine)
    assert answer.kind == "constraint" and answer.path == "claims"


@pytest.mark.parametrize(
    ("expression", "count", "expected"),
    [
        ('device.driver == "a.example.com" || device.driver == "b.example.com"', 5, "the node has 3"),
        ('!(device.driver == "a.example.com")', 2, "the node has 3, class both selects 1 of 3"),
        ('(device.driver == "b.example.com") && true', 2, "b.example.com publishes 1 on this node"),
        ("true && 'b.example.com' == device.driver", 2, "b.example.com publishes 1 on this node"),
        (
            "device.driver == 'a.example.com' && device.driver == 'b.example.com'",
            1,
            "no device is of both a.example.com and b.example.com",
        ),
    ],
)
def test_a_driver_is_named_only_if_the_selector_requires_it(
    engine: Engine, expression: str, count: int, expected: str
) -> None:
    node = [device("d0"), device("d1"), device("d2", "b.example.com")]
    answer = reason([spec(exact("x", "both", count=count))], node, engine, both=device_class(expression))
    demand, _colon, found = answer.reason.partition(": ")
    assert demand.startswith(f"request x needs {count} device") and found.startswith(expected)


def test_a_request_policy_that_forbids_the_amount_is_named(engine: Engine) -> None:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "10Gi"}}
    capacity = {"memory": {"value": "40Gi", "requestPolicy": policy}}
    gpus = [with_fields(device(name), allowMultipleAllocations=True, capacity=capacity) for name in ("g0", "g1")]
    request = exact("gpu", "a")
    request["exactly"]["capacity"] = {"requests": {"memory": "20Gi"}}
    assert reason([spec(request)], gpus, engine).reason == (
        "request gpu needs 1 device: 2 match, and 0 of them can provide the capacity (memory 20Gi; the maximum is "
        "40Gi, and a request may be for at least 1Gi, at most 10Gi)"
    )


def test_the_limit_of_devices_is_not_a_lack_of_devices(engine: Engine) -> None:
    """Of the alternatives for 20 and 1 devices only the first is possible, and 40 are more than a claim can have."""
    devices = [device(f"d{number:02}") for number in range(48)]
    alternatives = [{"name": "many", "deviceClassName": "a", "count": 20}, {"name": "one", "deviceClassName": "b"}]
    answer = reason([spec({"name": "x", "firstAvailable": alternatives}, exact("y", "a", count=20))], devices, engine)
    assert answer.path == "claims[0].spec.devices.requests" and answer.kind == "count"
    assert answer.reason.endswith("counters or capacity, or more than the 32 devices that a claim can have")


def test_only_taints_that_keep_the_request_away_are_named(engine: Engine) -> None:
    effects = {"tolerated": "NoSchedule", "bad": "NoExecute", "info": "None"}
    taints = [{"key": key, "effect": effect} for key, effect in effects.items()]
    node = [with_fields(device("d0"), taints=taints), with_fields(device("d1"), taints=taints[:1])]
    claim = spec(exact("x", "a", count=2, tolerations=[{"key": "tolerated", "operator": "Exists"}]))
    answer = reason([claim], node, engine)
    assert answer.reason.endswith("2 match, 1 of them tainted (bad:NoExecute)")


def test_different_values_are_listed_for_each_request(engine: Engine) -> None:
    """There are three values, but two requests only have the same one."""
    node = [device("d0", **{P: 1}), device("d1", **{P: 1})]
    node += [device(f"n{value}", "b.example.com", **{P: value}) for value in (2, 3)]
    rule = {"distinctAttribute": P, "requests": ["x", "y", "z"]}
    answer = reason([spec(exact("x", "a"), exact("y", "a"), exact("z", "b"), constraints=[rule])], node, engine)
    assert answer.reason == f"there are not enough different values of {P}: x has 1; y has 1; z has 2, 3"


def test_a_missing_attribute_is_reported_for_free_devices(engine: Engine) -> None:
    """Another device has the attribute, but is in use."""
    node = [device("d0", **{P: 1}), device("d1"), device("n", "b.example.com", **{P: 1})]
    claim = spec(exact("x", "a"), exact("y", "b"), constraints=[match_attribute(P, "x", "y")])
    answer = reason([claim], node, engine, held=node[:1])
    assert answer.reason == f"request x: no free device of a.example.com that it selects has the attribute {P}"


def test_devices_without_counters_are_not_in_use(engine: Engine) -> None:
    def partition(name: str, needs: str) -> Offer:
        consumed = [{"counterSet": "gpu", "counters": {"memory": {"value": needs}}}]
        counter_sets = ({"name": "gpu", "counters": {"memory": {"value": "2"}}},)
        return Offer(
            "a.example.com", "node", "node", {"name": name, "consumesCounters": consumed}, counter_sets=counter_sets
        )

    node = [partition("d0", "1"), partition("d1", "2")]
    claim = spec(exact("x", "a"))
    answer = reason([claim], node, engine, held=node[:1])
    expected = "2 match, 1 of them is in use, 1 of them is without enough of the counters that they share"
    assert answer.reason == f"request x needs 1 device: {expected}"
    answer = reason([claim], [partition("d2", "3")], engine)
    assert answer.reason.endswith("1 match, 1 of them is without enough of the counters that they share")
