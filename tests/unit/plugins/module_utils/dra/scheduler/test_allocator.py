# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The offline allocator searches as the scheduler does: the devices that it finds, or why it finds none.

This file has more than 500 lines because each field of a request needs its own cases.
"""

from __future__ import annotations

import itertools
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.selector_text import conjuncts, mentions
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import (
    Allocation,
    Refusal,
    Result,
    allocate,
    attribute,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search_requests import alike_groups
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = "resource.kubernetes.io/pcieRoot"
NUMA = "resource.kubernetes.io/numaNode"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


def selectors(*expressions: str) -> list[Object]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def exact(name: str, device_class: str, *expressions: str, **more: t.Any) -> Object:
    """A request without alternatives. `more` are other fields of its `exactly`."""
    body = {"deviceClassName": device_class, "selectors": selectors(*expressions), **more}
    return {"name": name, "exactly": body}


def spec(*requests: Object, constraints: t.Sequence[Object] = ()) -> Object:
    return {"devices": {"requests": list(requests), "constraints": list(constraints)}}


def match_attribute(name: str, *requests: str) -> Object:
    """A constraint of these requests, or of all requests if none is given."""
    return {"matchAttribute": name, "requests": list(requests)}


def device(name: str, driver: str = "a.example.com", **attributes_by_name: t.Any) -> Offer:
    """A device with these attributes. ROOT and NUMA stand for the names of the standard attributes."""
    standard = {"ROOT": ROOT, "NUMA": NUMA}
    attributes = {
        standard.get(key, key): {"string" if isinstance(value, str) else "int": value}
        for key, value in attributes_by_name.items()
    }
    return Offer(driver, "node", "node", {"name": name, "attributes": attributes})


def with_fields(offer: Offer, **fields: t.Any) -> Offer:
    """The same device with other fields, such as taints."""
    return Offer(offer.driver, offer.pool, offer.node, {**offer.device, **fields})


#: The classes a and b select the devices of a.example.com and b.example.com.
CLASSES = {
    driver[0]: {"spec": {"selectors": selectors(f'device.driver == "{driver}"')}}
    for driver in ("a.example.com", "b.example.com")
}


def allocated(answer: Allocation | Refusal) -> list[tuple[str, str]]:
    """The request and the device of each result of an allocation. Fails for a refusal."""
    assert isinstance(answer, Allocation), answer
    return [(result.request, result.offer.device["name"]) for result in answer.results]


def refusal(answer: Allocation | Refusal) -> Refusal:
    """The answer, which must be a refusal."""
    assert isinstance(answer, Refusal), answer
    return answer


def test_the_first_devices_that_fit_are_allocated_in_the_order_of_the_node(engine: Engine) -> None:
    node = [device("z", "b.example.com"), device("y"), device("x")]
    claim = spec(exact("first", "b"), exact("second", "a", count=2))
    assert allocated(allocate([claim], CLASSES, node, engine)) == [("first", "z"), ("second", "y"), ("second", "x")]


def test_other_devices_are_tried_before_the_next_alternative(engine: Engine) -> None:
    """An alternative is kept as long as other devices, for this request or for later requests, can satisfy it."""
    node = [device("n0", "b.example.com", ROOT="r9"), device("n1", "b.example.com", ROOT="r1"), device("g", ROOT="r1")]
    nic_alternatives = [{"name": name, "deviceClassName": "b"} for name in ("aligned", "any")]
    claim = spec(
        {"name": "nic", "firstAvailable": nic_alternatives},
        exact("gpu", "a"),
        constraints=[match_attribute(ROOT, "nic/aligned", "gpu")],
    )
    assert allocated(allocate([claim], CLASSES, node, engine)) == [("nic/aligned", "n1"), ("gpu", "g")]
    assert allocated(allocate([claim], CLASSES, [node[0], node[2]], engine)) == [("nic/any", "n0"), ("gpu", "g")]


def test_a_missing_attribute_never_matches(engine: Engine) -> None:
    claim = spec(exact("x", "a", count=2), constraints=[match_attribute(ROOT)])
    answer = refusal(allocate([claim], CLASSES, [device("d0"), device("d1")], engine))
    assert (answer.kind, answer.path) == ("constraint", "claims[0].spec.devices.constraints[0]")
    assert answer.reason == f"request x: no free device of a.example.com that it selects has the attribute {ROOT}"


def test_values_of_different_types_do_not_match(engine: Engine) -> None:
    node = [device("d0", ROOT=1), device("d1", ROOT="1")]
    claim = spec(exact("x", "a", count=2), constraints=[match_attribute(ROOT)])
    assert refusal(allocate([claim], CLASSES, node, engine)).kind == "constraint"


def test_a_name_without_a_domain_belongs_to_the_driver(engine: Engine) -> None:
    node = [device("d0", rail=1), device("d1", **{"a.example.com/rail": 1}), device("d2", "b.example.com", rail=1)]
    assert [attribute(offer, "a.example.com/rail") for offer in node] == [{"int": 1}, {"int": 1}, None]
    claim = spec(exact("x", "a", count=2), constraints=[match_attribute("a.example.com/rail")])
    assert allocated(allocate([claim], CLASSES, node, engine)) == [("x", "d0"), ("x", "d1")]


def test_distinct_attributes_need_different_values(engine: Engine) -> None:
    node = [device("d0", rail=1), device("d1", rail=1), device("d2", rail=2)]
    rule = {"distinctAttribute": "a.example.com/rail"}
    claim = spec(exact("x", "a", count=2), constraints=[rule])
    assert allocated(allocate([claim], CLASSES, node, engine)) == [("x", "d0"), ("x", "d2")]
    answer = refusal(allocate([spec(exact("x", "a", count=3), constraints=[rule])], CLASSES, node, engine))
    assert answer.kind == "constraint" and "not enough different values" in answer.reason


def test_mode_all_takes_every_matching_device(engine: Engine) -> None:
    node = [device("d0"), device("d1")]
    claim = spec(exact("x", "a", allocationMode="All"))
    answer = allocate([claim], CLASSES, node, engine)
    assert allocated(answer) == [("x", "d0"), ("x", "d1")]
    assert isinstance(answer, Allocation)
    assert refusal(allocate([claim], CLASSES, node, engine, held=answer.results[:1])).kind == "used"
    assert refusal(allocate([claim], CLASSES, [], engine)).kind == "absent"


def test_a_count_of_zero_means_one(engine: Engine) -> None:
    """The server also treats 0 as an omitted count, whose default is 1."""
    classes = {"c": {"spec": {"selectors": selectors("true")}}}
    claim = spec(exact("a", "c", count=0))
    assert isinstance(allocate([claim], classes, [], engine), Refusal)
    assert allocated(allocate([claim], classes, [device("d0"), device("d1")], engine)) == [("a", "d0")]


def test_admin_access_may_use_devices_in_use_and_leaves_devices_free(engine: Engine) -> None:
    node = [device("d0")]
    held = [Result(0, "other", node[0])]
    assert refusal(allocate([spec(exact("x", "a"))], CLASSES, node, engine, held=held)).kind == "used"
    admin = allocate([spec(exact("x", "a", adminAccess=True))], CLASSES, node, engine, held=held)
    assert allocated(admin) == [("x", "d0")] and isinstance(admin, Allocation) and admin.results[0].admin
    # the device stays free for other claims
    assert allocated(allocate([spec(exact("y", "a"))], CLASSES, node, engine, held=admin.results)) == [("y", "d0")]


def test_tainted_devices_need_a_toleration(engine: Engine) -> None:
    taint = {"key": "down", "value": "link", "effect": "NoSchedule"}
    node = [with_fields(device("d0"), taints=[taint, {"key": "note", "effect": "None"}])]
    refused = refusal(allocate([spec(exact("x", "a"))], CLASSES, node, engine))
    assert refused.kind == "taint" and "down:NoSchedule" in refused.reason
    for toleration, fits in [
        ({"operator": "Exists"}, True),
        ({"key": "down", "operator": "Exists"}, True),
        ({"key": "down", "value": "link"}, True),
        ({"key": "down", "value": "else"}, False),
        ({"key": "up", "operator": "Exists"}, False),
        ({"key": "down", "operator": "Exists", "effect": "NoExecute"}, False),
    ]:
        answer = allocate([spec(exact("x", "a", tolerations=[toleration]))], CLASSES, node, engine)
        assert isinstance(answer, Allocation) == fits, toleration


def test_a_pf_excludes_its_vfs(engine: Engine) -> None:
    total = {"name": "pf", "counters": {"functions": {"value": "2"}}}

    def function(name: str, amount: str) -> Offer:
        consumed = [{"counterSet": "pf", "counters": {"functions": {"value": amount}}}]
        body = {"name": name, "consumesCounters": consumed}
        return Offer("a.example.com", "node", "node", body, counter_sets=(total,))

    node = [function("pf", "2"), function("vf0", "1"), function("vf1", "1")]
    assert allocated(allocate([spec(exact("x", "a", count=2))], CLASSES, node, engine)) == [("x", "vf0"), ("x", "vf1")]
    assert refusal(allocate([spec(exact("x", "a", count=3))], CLASSES, node, engine)).kind == "count"
    held = [Result(0, "other", node[1])]
    assert allocated(allocate([spec(exact("x", "a"))], CLASSES, node, engine, held=held)) == [("x", "vf1")]
    held = [Result(0, "other", node[0])]
    assert refusal(allocate([spec(exact("x", "a"))], CLASSES, node, engine, held=held)).kind == "used"


POLICY = {"default": "2", "validRange": {"min": "2", "max": "8", "step": "2"}}


@pytest.mark.parametrize(
    ("requested", "policy", "consumed"),
    [
        (None, None, "10"),
        ("3", None, "3"),
        ("11", None, None),
        (None, POLICY, "2"),
        ("1", POLICY, "2"),
        ("3", POLICY, "4"),
        ("9", POLICY, None),
        ("2", {"default": "1", "validValues": ["1", "4"]}, "4"),
        ("5", {"default": "1", "validValues": ["1", "4"]}, None),
    ],
)
def test_requested_capacity_is_rounded_and_shared_until_it_is_used_up(
    requested: str | None, policy: Object | None, consumed: str | None, engine: Engine
) -> None:
    entry = {"value": "10", **({"requestPolicy": policy} if policy else {})}
    node = [with_fields(device("d0"), capacity={"bandwidth": entry}, allowMultipleAllocations=True)]
    more = {"capacity": {"requests": {"bandwidth": requested}}} if requested else {}
    held: list[Result] = []
    for _share in range(20):
        answer = allocate([spec(exact("x", "a", **more))], CLASSES, node, engine, held=held)
        if isinstance(answer, Refusal):
            assert answer.kind in ("capacity", "used")
            break
        assert answer.results[0].consumed == {"bandwidth": consumed}
        held += answer.results
    used = sum(quantity.parse(result.consumed["bandwidth"]) for result in held)
    assert len(held) == (0 if consumed is None else 10 // int(consumed)) and used <= 10


def test_capacity_of_a_device_that_is_not_shared_is_a_filter(engine: Engine) -> None:
    node = [with_fields(device(f"d{rate}"), capacity={"bandwidth": {"value": f"{rate}G"}}) for rate in (100, 400)]
    claim = spec(exact("x", "a", capacity={"requests": {"bandwidth": "200G"}}))
    assert allocated(allocate([claim], CLASSES, node, engine)) == [("x", "d400")]
    claim = spec(exact("x", "a", capacity={"requests": {"bandwidth": "800G"}}))
    answer = refusal(allocate([claim], CLASSES, node, engine))
    assert answer.kind == "capacity" and "the maximum is 400G" in answer.reason
    # the capacity is published without the domain
    claim = spec(exact("x", "a", capacity={"requests": {"a.example.com/bandwidth": "1G"}}))
    assert refusal(allocate([claim], CLASSES, node, engine)).kind == "capacity"


def test_the_claims_of_a_pod_are_allocated_together(engine: Engine) -> None:
    node = [device("d0"), device("d1")]
    answer = allocate([spec(exact("x", "a")), spec(exact("y", "a"))], CLASSES, node, engine)
    assert allocated(answer) == [("x", "d0"), ("y", "d1")]
    answer = allocate([spec(exact("x", "a")), spec(exact("y", "a", count=2))], CLASSES, node, engine)
    assert refusal(answer).reason == "requests x, y together need 3 devices, and 2 on this node fit"


def test_a_claim_cannot_get_more_than_32_devices(engine: Engine) -> None:
    node = [device(f"d{number}") for number in range(40)]
    assert refusal(allocate([spec(exact("x", "a", count=33))], CLASSES, node, engine)).kind == "limit"
    many = {"name": "many", "deviceClassName": "a", "count": 20}
    few = {"name": "few", "deviceClassName": "a", "count": 2}
    claim = spec({"name": "x", "firstAvailable": [many, few]}, exact("y", "a", count=15))
    names = [request for request, _device in allocated(allocate([claim], CLASSES, node, engine))]
    assert names == ["x/few"] * 2 + ["y"] * 15


def test_claims_for_more_devices_than_the_search_can_try_are_undecided(engine: Engine) -> None:
    shared = with_fields(device("d0"), allowMultipleAllocations=True)
    answer = refusal(allocate([spec(exact("x", "a"))] * 2000, CLASSES, [shared], engine))
    assert answer.unknown and answer.reason.startswith("not decided: the 2000 claims of the pod request more devices")


@pytest.mark.parametrize("count, text", [(4, "v0, v1, v2, v3"), (5, "v0, v1, v2, v3 ...")])
def test_the_values_of_an_attribute_are_listed_up_to_the_fourth(count: int, text: str, engine: Engine) -> None:
    node = [device(f"d{number}", ROOT=f"v{number}") for number in range(count)] + [
        device("n", "b.example.com", ROOT="w")
    ]
    claim = spec(exact("x", "a"), exact("y", "b"), constraints=[match_attribute(ROOT)])
    reason = refusal(allocate([claim], CLASSES, node, engine)).reason
    assert reason == f"no value of {ROOT} is common to requests x, y: x has {text}; y has w"


def test_a_selector_that_fails_ends_the_search(engine: Engine) -> None:
    claim = spec(exact("x", "a", 'device.attributes["a.example.com"].rail == 1'))
    answer = refusal(allocate([claim], CLASSES, [device("d0")], engine))
    assert (answer.kind, answer.path) == ("error", "claims[0].spec.devices.requests[0].exactly.selectors[0]")
    # the scheduler does not evaluate devices after the one that it allocates
    node = [device("d0", rail=1), device("d1")]
    assert allocated(allocate([claim], CLASSES, node, engine)) == [("x", "d0")]


def test_each_refusal_has_the_path_of_the_field_that_caused_it(engine: Engine) -> None:
    node = [device("d0", rail=0), device("d1", rail=1)]
    rail_7 = 'has(device.attributes["a.example.com"].rail) && device.attributes["a.example.com"].rail == 7'
    for claim, kind, path, reason in [
        (spec(exact("x", "none")), "class", "requests[0].exactly.deviceClassName", "no DeviceClass 'none'"),
        (spec(exact("x", "b")), "absent", "requests[0].exactly", "b.example.com publishes none on this node"),
        (spec(exact("x", "a", count=3)), "count", "requests[0].exactly", "needs 3 devices: a.example.com publishes 2"),
        (spec(exact("x", "a", rail_7)), "selector", "requests[0].exactly.selectors[0]", "its selector matches 0 of 2"),
    ]:
        answer = refusal(allocate([claim], CLASSES, node, engine))
        assert (answer.kind, answer.path) == (kind, f"claims[0].spec.devices.{path}")
        assert reason in answer.reason and not answer.unknown


def alternatives(name: str, *bodies: Object) -> Object:
    """A request with these alternatives, which are named s0, s1 and so on."""
    return {"name": name, "firstAvailable": [{"name": f"s{i}", **body} for i, body in enumerate(bodies)]}


def test_a_reason_that_is_the_same_for_all_alternatives_is_reported_once(engine: Engine) -> None:
    claim = spec(alternatives("x", {"deviceClassName": "b"}, {"deviceClassName": "b"}))
    answer = refusal(allocate([claim], CLASSES, [device("d0")], engine))
    assert (answer.kind, answer.path) == ("absent", "claims[0].spec.devices.requests[0]")
    assert answer.reason == "request x needs 1 device: b.example.com publishes none on this node"
    claim = spec(alternatives("x", {"deviceClassName": "b"}, {"deviceClassName": "a", "count": 2}))
    answer = refusal(allocate([claim], CLASSES, [device("d0")], engine))
    assert answer.reason == (
        "no alternative can be satisfied: "
        "request x/s0 needs 1 device: b.example.com publishes none on this node; "
        "request x/s1 needs 2 devices: a.example.com publishes 1 on this node"
    )


def test_the_request_that_lacks_an_attribute_is_named(engine: Engine) -> None:
    """Neither device has the attribute. The request nic has an alternative without the constraint, gpu has none."""
    node = [device("g"), device("n", "b.example.com")]
    claim = spec(
        alternatives("nic", {"deviceClassName": "b"}, {"deviceClassName": "b"}),
        exact("gpu", "a"),
        constraints=[match_attribute(ROOT, "nic/s0", "gpu")],
    )
    answer = refusal(allocate([claim], CLASSES, node, engine))
    assert (answer.kind, answer.path) == ("constraint", "claims[0].spec.devices.constraints[0]")
    assert answer.reason == f"request gpu: no free device of a.example.com that it selects has the attribute {ROOT}"
    node = [device("g", ROOT="r0"), device("n", "b.example.com")]
    assert allocated(allocate([claim], CLASSES, node, engine)) == [("nic/s1", "n"), ("gpu", "g")]


# --- facts that the probe cannot read


UNKNOWN = frozenset({"a.example.com/memory"})
MEMORY = (
    'has(device.capacity["a.example.com"].memory) && '
    'device.capacity["a.example.com"].memory.compareTo(quantity("80Gi")) >= 0'
)


def test_an_unknown_attribute_is_reported_as_unknown(engine: Engine) -> None:
    node = [
        Offer("a.example.com", "n", "n", {"name": "d0", "attributes": {"type": {"string": "gpu"}}}, unknown=UNKNOWN)
    ]
    answer = refusal(allocate([spec(exact("x", "a", MEMORY))], CLASSES, node, engine))
    assert answer.unknown and answer.kind == "unknown" and "a.example.com/memory" in answer.reason
    assert answer.path == "claims[0].spec.devices.requests[0].exactly.selectors[0]"
    # conditions on known attributes are decided, in another selector or in the same selector
    is_mig = '"mig" == device.attributes["a.example.com"].type'
    assert refusal(allocate([spec(exact("x", "a", MEMORY, is_mig))], CLASSES, node, engine)).kind == "selector"
    assert refusal(allocate([spec(exact("x", "a", f"{MEMORY} && {is_mig}"))], CLASSES, node, engine)).kind == "selector"
    assert refusal(allocate([spec(exact("x", "a", MEMORY, count=2))], CLASSES, node, engine)).kind == "count"
    # a device whose value is known is preferred
    known = with_fields(device("d1"), capacity={"memory": {"value": "96Gi"}})
    assert allocated(allocate([spec(exact("x", "a", MEMORY))], CLASSES, [*node, known], engine)) == [("x", "d1")]


def test_an_assumed_value_may_satisfy_a_selector_but_not_refute_it(engine: Engine) -> None:
    body = {"name": "d0", "attributes": {"model": {"string": "NVIDIA H100"}}}
    node = [Offer("a.example.com", "n", "n", body, assumed=frozenset({"a.example.com/model"}))]
    model = 'device.attributes["a.example.com"].model.contains("{}")'
    answer = allocate([spec(exact("x", "a", model.format("H100")))], CLASSES, node, engine)
    assert isinstance(answer, Allocation) and answer.assumed == ("a.example.com/model",)
    assert refusal(allocate([spec(exact("x", "a", model.format("HBM3")))], CLASSES, node, engine)).kind == "unknown"


def test_claims_for_partitions_that_may_exist_are_unknown(engine: Engine) -> None:
    node = offers("n", facts("hgx-h100"), {"gpu.nvidia.com": {"version": "0.5.0"}})
    gpu = 'device.attributes["gpu.nvidia.com"]'
    classes = {"mig": {"spec": {"selectors": selectors('device.driver == "gpu.nvidia.com"', f'{gpu}.type == "mig"')}}}
    profile = f'has({gpu}.profile) && {gpu}.profile == "1g.10gb"'
    assert refusal(allocate([spec(exact("x", "mig", profile, count=3))], classes, node, engine)).kind == "unknown"
    assert refusal(allocate([spec(exact("x", "mig"))], classes, node, engine)).kind == "unknown"


def test_a_certain_reason_is_reported_instead_of_an_unknown_one(engine: Engine) -> None:
    """A GPU may be partitioned, but the node certainly has no VF."""
    node = offers("n", facts("hgx-h100"), {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {}})
    gpu, nic = 'device.attributes["gpu.nvidia.com"]', 'device.attributes["lanewise.dev"]'
    classes = {
        "mig": {"spec": {"selectors": selectors('device.driver == "gpu.nvidia.com"', f'{gpu}.type == "mig"')}},
        "vf": {"spec": {"selectors": selectors('device.driver == "lanewise.dev"', f'{nic}.type == "vf"')}},
    }
    answer = refusal(allocate([spec(exact("part", "mig"), exact("net", "vf"))], classes, node, engine))
    assert (answer.kind, answer.path) == ("selector", "claims[0].spec.devices.requests[1].exactly")
    assert answer.reason.startswith("request net needs 1 device: lanewise.dev publishes")


def test_requests_for_devices_of_uncertain_drivers_are_unknown(engine: Engine) -> None:
    answer = refusal(allocate([spec(exact("x", "b"))], CLASSES, [device("d0")], engine, uncertain=["b.example.com"]))
    assert answer.kind == "unknown" and "b.example.com" in answer.reason


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a && b", ["a", "b"]),
        ('x == "a && b" && (c || d)', ['x == "a && b"', "(c || d)"]),
        ("a || b && c", ["a || b && c"]),
        ("a ? b : c && d", ["a ? b : c && d"]),
        ("f(a && b) && [x && y][0]", ["f(a && b)", "[x && y][0]"]),
        ("(a && b) && c", ["a", "b", "c"]),
        ("(a) && (b && c) == d", ["(a)", "(b && c) == d"]),
        (r"""'it\'s && so' == a && b""", [r"""'it\'s && so' == a""", "b"]),
        ("(" * 3000 + "a && b" + ")" * 3000, ["a", "b"]),  # as nested as a claim of any user can make it
        ("a // not b && false", ["a // not b && false"]),
        ("'https://a' == a && b", ["'https://a' == a", "b"]),
        ("a && b)", ["a && b)"]),
    ],
)
def test_selectors_are_split_at_conjunctions(expression: str, parts: list[str]) -> None:
    assert conjuncts(expression) == parts


@pytest.mark.parametrize(
    ("expression", "uses"),
    [
        ('device.attributes["dra.net"].rdma', True),
        ("device.attributes[ device.driver ].rdma", True),
        (r'device.attributes["dra\u002enet"].rdma', True),
        ('device.attributes["dra."+"net"].rdma', True),
        ("cel.bind(d, device.driver, device.attributes[d].rdma)", True),
        ("device.attributes['dra.net'].exists(k, k.startsWith('rd'))", True),
        ('device.driver == "dra.net" && device.attributes["other.example.com"].rdma', True),
        ('device.attributes["dra.net"].rdmaDevice', False),
        (r'device.attributes["dra.net"].name.matches("^mlx5_\\d+$")', False),
        ('device.attributes["other.example.com"].rdma', False),
        ('device.attributes["dra.net"].names.exists(n, n == "x")', False),
    ],
)
def test_whether_a_selector_may_use_an_attribute_is_read_from_its_text(expression: str, uses: bool) -> None:
    assert mentions(expression, "dra.net/rdma") is uses


# --- long searches


def test_a_search_too_long_for_the_scheduler_is_decided(engine: Engine) -> None:
    """A claim for eight pairs of GPU and NIC, on a node where one of eight GPUs has no NIC. The scheduler would try too
    many combinations. This search remembers failed states."""
    node = offers("n", facts("missing-nic"), {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {}})
    nic = 'device.attributes["lanewise.dev"]'
    classes = {
        "gpu": {"spec": {"selectors": selectors('device.driver == "gpu.nvidia.com"')}},
        "rdma": {"spec": {"selectors": selectors('device.driver == "lanewise.dev"', f"has({nic}.rdma) && {nic}.rdma")}},
    }
    classes["gpu"]["spec"]["selectors"] += selectors('device.attributes["gpu.nvidia.com"].type == "gpu"')

    def pairs(count: int) -> Object:
        requests = [request for i in range(count) for request in (exact(f"nic{i}", "rdma"), exact(f"gpu{i}", "gpu"))]
        return spec(*requests, constraints=[match_attribute(ROOT, f"nic{i}", f"gpu{i}") for i in range(count)])

    assert len(allocated(allocate([pairs(7)], classes, node, engine))) == 14
    answer = refusal(allocate([pairs(8)], classes, node, engine))
    assert answer.kind == "constraint" and not answer.unknown
    assert answer.reason.startswith("7 of 8 groups like nic0 + gpu0 can be satisfied at the same time; ")
    assert "pci0000:c5 has 0 for nic0 and 1 for gpu0" in answer.reason


def three_rails(number: int) -> Object:
    """A claim with this number of requests, all with different selectors. The last three must be on different rails,
    which a node with two rails cannot satisfy."""
    requests = [exact(f"x{i}", "a", f'device.driver != "{i}"') for i in range(number)]
    last = [f"x{i}" for i in range(number - 3, number)]
    return spec(*requests, constraints=[{"distinctAttribute": "a.example.com/rail", "requests": last}])


def test_failed_states_are_not_searched_again(engine: Engine) -> None:
    """For the first nine of 12 requests, the scheduler tries all orders of devices. This search tries each set once."""
    node = [device(f"d{i}", ROOT=f"r{i}", rail=i % 2) for i in range(12)]
    # `budget` limits the devices that this search examines; `steps` counts those that the scheduler would examine
    answer = refusal(allocate([three_rails(12)], CLASSES, node, engine, budget=20_000))
    assert answer.kind == "constraint" and not answer.unknown and answer.steps > 10**7


def test_an_allocation_that_takes_the_scheduler_too_long_is_unknown(engine: Engine) -> None:
    node = [device("d0", rail=7)] + [device(f"d{i}", rail=i % 2) for i in range(1, 12)]
    answer = refusal(allocate([three_rails(12)], CLASSES, node, engine))
    assert answer.kind == "budget" and answer.unknown and "the devices exist" in answer.reason
    assert isinstance(allocate([three_rails(4)], CLASSES, [*node[1:4], node[0]], engine), Allocation)


def test_a_budget_ends_the_search(engine: Engine) -> None:
    node = [device(f"d{i}", ROOT=f"r{i}", rail=i % 2) for i in range(12)]
    answer = refusal(allocate([three_rails(12)], CLASSES, node, engine, budget=300))
    assert answer.kind == "budget" and answer.unknown and "not decided after 300 steps" in answer.reason


# --- errors that end the scheduling of a pod


def test_a_device_that_is_never_evaluated_may_lack_an_attribute(engine: Engine) -> None:
    """The first request takes every device, so the second one's selector is never evaluated."""
    claim = spec(exact("r0", "a"), exact("r1", "a", 'device.attributes["gpu.example.com"].model == "x"'))
    answer = refusal(allocate([claim], CLASSES, [device("d0")], engine))
    assert (answer.kind, answer.path) == ("selector", "claims[0].spec.devices.requests[1].exactly.selectors[0]")
    assert "its selector matches 0 of 1" in answer.reason and answer.reason.endswith(" and fails on 1")


@pytest.mark.parametrize("amount", ["9999999999999999999999", "1e30", "9223372036854775807"])
def test_an_amount_too_large_for_the_scheduler_is_an_error(amount: str, engine: Engine) -> None:
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    capacity = {"m": {"value": "10", "requestPolicy": policy}}
    node = [with_fields(device("d0"), allowMultipleAllocations=True, capacity=capacity)]
    fields = {"capacity": {"requests": {"m": amount}}}
    answer = refusal(allocate([spec(exact("r0", "a", **fields))], CLASSES, node, engine))
    assert (answer.kind, answer.path) == ("error", "claims[0].spec.devices.requests[0].exactly.capacity.requests.m")
    # the scheduler does not evaluate the amount if an earlier request has too few devices
    claim = spec(exact("r0", "a", count=2), exact("r1", "a", **fields))
    answer = refusal(allocate([claim], CLASSES, node, engine))
    assert answer.kind == "count"
    # the policy is not applied to a device that is not shared, and the amount only exceeds its capacity
    node = [with_fields(device("d0"), capacity={"m": {"value": "10"}})]
    assert refusal(allocate([spec(exact("r0", "a", **fields))], CLASSES, node, engine)).kind == "capacity"


def test_a_constraint_that_mode_all_cannot_satisfy_is_reported_before_a_lack_of_devices(engine: Engine) -> None:
    rule = {"distinctAttribute": "a.example.com/rail"}
    claim = spec(exact("r0", "a", allocationMode="All"), exact("r1", "a", count=2), constraints=[rule])
    answer = refusal(allocate([claim], CLASSES, [device("d0")], engine))
    assert (answer.kind, answer.path) == ("error", "claims[0].spec.devices.constraints[0]")
    assert "request r0 requests all devices, and device d0" in answer.reason


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"selectors": [{"rego": {}}]}, "requests[0].exactly"),
        ({"selectors": [{}]}, "requests[0].exactly"),
        ({"allocationMode": "Most"}, "requests[0].exactly"),
        ({"derivedAttributes": [{"name": "x", "expression": "1"}]}, "requests[0].exactly"),
    ],
)
def test_unsupported_fields_and_values_end_the_search(body: Object, path: str, engine: Engine) -> None:
    claim = spec({"name": "r", "exactly": {"deviceClassName": "a", **body}})
    answer = refusal(allocate([claim], CLASSES, [device("d0")], engine))
    assert (answer.kind, answer.path) == ("error", f"claims[0].spec.devices.{path}")
    claim = spec(exact("r", "a"), constraints=[{"requests": ["r"], "sameAttribute": "x/y"}])
    answer = refusal(allocate([claim], CLASSES, [device("d0")], engine))
    assert (answer.kind, answer.path) == ("error", "claims[0].spec.devices.constraints[0]")
    classes = {"c": {"spec": {"selectors": [{"rego": {}}]}}}
    assert refusal(allocate([spec(exact("r", "c"))], classes, [device("d0")], engine)).kind == "error"


def test_repeated_groups_of_requests_are_found() -> None:
    requests = [exact(f"{name}{i}", name) for i in range(3) for name in ("n", "g")]
    rules = [match_attribute(ROOT, f"n{i}", f"g{i}") for i in range(3)]
    claim = spec(*requests, constraints=[*rules, match_attribute(NUMA)])
    assert alike_groups(claim) == [[[0, 1], [2, 3], [4, 5]]]
    rules[1] = match_attribute(NUMA, "n1", "g1")
    assert alike_groups(spec(*requests, constraints=rules)) == [[[0, 1], [4, 5]]]


# --- random claims on random nodes


@st.composite
def nodes(draw: st.DrawFn) -> list[Offer]:
    found = []
    for number in range(draw(st.integers(1, 6))):
        driver = draw(st.sampled_from(["a.example.com", "b.example.com"]))
        attributes: Object = {}
        for name, values in ((ROOT, ("r0", "r1")), (NUMA, (0, 1)), ("kind", ("x", "y"))):
            value = draw(st.sampled_from([None, *values]))
            if value is not None:
                attributes[name] = {"int" if isinstance(value, int) else "string": value}
        body: Object = {"name": f"d{number}", "attributes": attributes}
        if draw(st.integers(0, 4)) == 0:
            body["taints"] = [{"key": "t", "effect": "NoSchedule"}]
        sets: tuple[Object, ...] = ()
        if draw(st.integers(0, 3)) == 0:
            amount = str(draw(st.integers(1, 2)))
            body["consumesCounters"] = [{"counterSet": "s", "counters": {"c": {"value": amount}}}]
            sets = ({"name": "s", "counters": {"c": {"value": "2"}}},)
        found.append(Offer(driver, "p", "n", body, counter_sets=sets))
    return found


@st.composite
def claims(draw: st.DrawFn) -> Object:
    requests = []
    for number in range(draw(st.integers(1, 3))):

        def body() -> Object:
            more: Object = {"deviceClassName": draw(st.sampled_from("ab")), "count": draw(st.integers(1, 2))}
            if draw(st.booleans()):
                domain = more["deviceClassName"] + ".example.com"
                name = f'device.attributes["{domain}"].kind'
                more["selectors"] = selectors(f'has({name}) && {name} == "x"')
            if draw(st.integers(0, 3)) == 0:
                more["tolerations"] = [{"operator": "Exists"}]
            return more

        if draw(st.integers(0, 2)) == 0:
            bodies = [{"name": f"s{i}", **body()} for i in range(draw(st.integers(1, 2)))]
            requests.append({"name": f"q{number}", "firstAvailable": bodies})
        else:
            requests.append({"name": f"q{number}", "exactly": body()})
    names = [request["name"] for request in requests]
    for request in requests:
        names += [f"{request['name']}/{alternative['name']}" for alternative in request.get("firstAvailable", ())]
    rules = []
    for _rule in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        covered = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
        rules.append({kind: draw(st.sampled_from([ROOT, NUMA])), "requests": covered})
    return spec(*requests, constraints=rules)


def matches_request(body: Object, offer: Offer) -> bool:
    """Whether a device matches a request of these random claims, independent of the allocator."""
    kind = offer.device["attributes"].get("kind")
    return (
        offer.driver == body["deviceClassName"] + ".example.com"
        and (not body.get("selectors") or kind == {"string": "x"})
        and (not offer.device.get("taints") or bool(body.get("tolerations")))
    )


def satisfies_claim(claim: Object, picked: list[tuple[str, Offer]]) -> bool:
    """Whether the picked devices are all different, stay within their counters and satisfy the constraints."""
    if len({id(offer) for _request, offer in picked}) < len(picked):
        return False
    totals: dict[str, int] = {}
    for _request, offer in picked:
        for consumed in offer.device.get("consumesCounters", ()):
            totals[offer.driver] = totals.get(offer.driver, 0) + int(consumed["counters"]["c"]["value"])
    if any(total > 2 for total in totals.values()):
        return False
    for rule in claim["devices"]["constraints"]:
        name = rule.get("matchAttribute") or rule["distinctAttribute"]
        covered = [
            offer
            for request, offer in picked
            if not rule["requests"] or {request, request.partition("/")[0]} & set(rule["requests"])
        ]
        values = [str(offer.device["attributes"].get(name)) for offer in covered]
        if "None" in values or len(set(values)) not in ({0, 1} if "matchAttribute" in rule else {len(values)}):
            return False
    return True


def possible_allocations(claim: Object, node: list[Offer]) -> t.Iterator[list[tuple[str, Offer]]]:
    """Every choice of alternatives and devices that satisfies the claim, by brute force."""
    rows = []
    for request in claim["devices"]["requests"]:
        named = [
            (f"{request['name']}/{alternative['name']}", alternative)
            for alternative in request.get("firstAvailable", ())
        ]
        named = named or [(request["name"], request["exactly"])]
        rows.append(
            [
                [(name, offer) for offer in chosen]
                for name, body in named
                for chosen in itertools.combinations(
                    [offer for offer in node if matches_request(body, offer)], body["count"]
                )
            ]
        )
    for combination in itertools.product(*rows):
        picked = [pair for row in combination for pair in row]
        if satisfies_claim(claim, picked):
            yield picked


@settings(max_examples=300, deadline=None)
@given(nodes(), claims())
def test_an_allocation_is_found_if_and_only_if_one_exists(node: list[Offer], claim: Object) -> None:
    answer = allocate([claim], CLASSES, node, require_engine())
    possible = next(possible_allocations(claim, node), None)
    if isinstance(answer, Refusal):
        assert possible is None, (answer, possible)
        assert answer.reason and answer.path.startswith("claims") and not answer.unknown
        return
    picked = [(result.request, result.offer) for result in answer.results]
    assert possible is not None and satisfies_claim(claim, picked)
    for request in claim["devices"]["requests"]:
        chosen = {name for name, _offer in picked if name.partition("/")[0] == request["name"]}
        assert len(chosen) == 1
        bodies = {
            f"{request['name']}/{alternative['name']}": alternative for alternative in request.get("firstAvailable", ())
        }
        body = (bodies or {request["name"]: request.get("exactly")})[chosen.pop()]
        devices = [offer for name, offer in picked if name.partition("/")[0] == request["name"]]
        assert len(devices) == body["count"] and all(matches_request(body, offer) for offer in devices)


@settings(max_examples=100, deadline=None)
@given(nodes(), claims())
def test_a_search_with_a_small_budget_gives_the_same_answer_or_is_undecided(node: list[Offer], claim: Object) -> None:
    answer = allocate([claim], CLASSES, node, require_engine(), budget=100_000)
    small_budget = allocate([claim], CLASSES, node, require_engine(), budget=3)
    if isinstance(small_budget, Allocation):
        assert answer == small_budget
    elif not small_budget.unknown:
        assert isinstance(answer, Refusal)
