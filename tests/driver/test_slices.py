# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Slices within every limit, and plans that always lead to the desired slices."""

from __future__ import annotations

import copy
import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.features import unsupported
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver.big_machine import EIGHT_BY_SIXTEEN
from ansible_collections.lanewise.dra.tests.machines.builder import build
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.api.features import Features, cut, find
from lanewise_driver.dra.kube import versions
from lanewise_driver.publish.slices import Plan, plan, same, slice_name, slices, with_owner
from lanewise_driver.topology.model import as_dict
from lanewise_driver.topology.probe import probe
from lanewise_driver.topology.publish import COUNTER, LINK_DOWN, VERSION_ANNOTATION, Policy, Publication, publication

DRIVER, NODE = "lanewise.dev", "worker-1.example.com"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Object:
    root = build(EIGHT_BY_SIXTEEN, Path(tmp_path_factory.mktemp("machines")) / "big")
    return t.cast("Object", as_dict(probe(str(root))))


@pytest.fixture(scope="module")
def big(facts: Object) -> Publication:
    return publication(facts, policy=Policy())


def all_devices(found: t.Iterable[Object]) -> list[Object]:
    return [device for one in found for device in one["spec"].get("devices", ())]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize(
    ("kubernetes", "features"), [("1.37", Features()), ("1.34", Features(taints=False, counters=False, shares=False))]
)
def test_eight_pfs_of_sixteen_vfs_stay_within_every_limit(
    facts: Object, version: str, kubernetes: str, features: Features
) -> None:
    big = publication(facts, features.counters, Policy())
    assert (len(big.devices), len(big.counter_sets)) == ((8 * 17, 8) if features.counters else (8 * 16, 0))
    found = slices(big, NODE, DRIVER, 1, features)
    for one in found:
        sent = versions.convert(one, f"resource.k8s.io/{version}")
        assert validate(sent, kubernetes) == []
        assert unsupported(sent, kubernetes) == []
    assert [device["name"] for device in all_devices(found)] == [device["name"] for device in big.devices]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in found} == {len(found)}
    if features.counters:
        sets = [entry["name"] for entry in found[0]["spec"]["sharedCounters"]]
        assert len(sets) == 8 and "devices" not in found[0]["spec"]
        # a PF is in the slice of its VFs, and a slice of 64 holds three families of 17
        assert [len(one["spec"].get("devices", ())) for one in found] == [0, 51, 51, 34]
        for one in found[1:]:
            used = {device["consumesCounters"][0]["counterSet"] for device in one["spec"]["devices"]}
            assert used <= {device["name"] for device in one["spec"]["devices"]}
        down = [device for device in all_devices(found) if device.get("taints")]
        assert down and {taint["key"] for device in down for taint in device["taints"]} == {LINK_DOWN}
    else:
        assert [len(one["spec"]["devices"]) for one in found] == [128]
        assert not any({"taints", "consumesCounters"} & set(device) for device in all_devices(found))


def test_counters_exclude_a_pf_while_its_vfs_are_allocated(big: Publication) -> None:
    for device in big.devices:
        ((used,), type_) = device["consumesCounters"], device["attributes"]["type"]["string"]
        assert used["counters"][COUNTER]["value"] == ("16" if type_ == "pf" else "1")


def test_an_empty_pool_has_one_empty_slice() -> None:
    (one,) = slices(Publication(), NODE, DRIVER, 1)
    assert one["spec"]["devices"] == [] and one["spec"]["pool"] == {
        "name": NODE,
        "generation": 1,
        "resourceSliceCount": 1,
    }
    assert validate(one, "1.37") == []


def test_a_card_with_more_devices_than_a_slice_holds_is_divided() -> None:
    used = [{"counterSet": "pf", "counters": {COUNTER: {"value": "1"}}}]
    devices = [{"name": f"d{number}", "consumesCounters": used} for number in range(129)]
    found = slices(Publication(devices=devices, counter_sets=[{"name": "pf"}]), NODE, DRIVER)
    assert [len(one["spec"].get("devices", ())) for one in found] == [0, 64, 64, 1]


@pytest.mark.parametrize("node", ["a", NODE, "x" * 63, ".".join(["n" * 60] * 4), ("n" * 60 + ".") * 3 + "m" * 60])
def test_names_of_slices_are_valid_unique_and_sorted(node: str) -> None:
    names = [slice_name(place, DRIVER, node) for place in (0, 9, 10, 255)]
    assert names == sorted(set(names)) and all(len(name) <= 253 for name in names)
    one = slices(Publication(), node, DRIVER, 1)[0]
    assert validate(one, "1.37") == []


def test_features_whose_fields_the_server_drops_are_switched_off() -> None:
    assert cut(Features(), ["devices[0].taints"]) == Features(taints=False)
    assert cut(Features(), ["devices[0].basic.consumesCounters"]) == Features(counters=False)
    assert cut(Features(), ["sharedCounters"]) == Features(counters=False)
    assert cut(Features(), ["devices[0].allowMultipleAllocations"]) == Features(shares=False)
    assert cut(Features(), ["devices[0].capacity.bandwidth.requestPolicy"]) == Features(shares=False)
    assert cut(Features(), []) == Features()


def test_several_roots_are_a_list_if_the_server_keeps_lists(tmp_path: Path) -> None:
    facts = as_dict(probe(str(build("gb300", tmp_path / "gb300"))))
    published = publication(facts, policy=Policy())
    for features in (Features(), Features(lists=True), Features(taints=False, counters=False, lists=True)):
        found = slices(published, NODE, DRIVER, 1, features)
        for one in found:
            gates = {"DRAListTypeAttributes": features.lists}
            assert validate(one, "1.37", gates) == [] == unsupported(one, "1.37", gates)
        roots = {}
        for device in all_devices(found):
            attributes = device["attributes"]
            own, direct = attributes["resource.kubernetes.io/pcieRoot"], attributes.get("dataDirectPcieRoot")
            roots[device["name"]] = own
            if features.lists and direct:
                assert len(own["strings"]) == 2 and own["strings"][1] == direct["string"] != own["strings"][0]
            else:
                assert set(own) == {"string"}
        assert any("strings" in own for own in roots.values()) == features.lists
    before = copy.deepcopy(published.devices)
    slices(published, NODE, DRIVER, 1, Features(lists=True))
    assert published.devices == before


@pytest.mark.parametrize(
    ("server", "keeps", "expected"),
    [
        ("v1.37.1", True, True),
        ("v1.36.2", True, False),  # its scheduler ignores the values
        ("v1.38.0-alpha.1+abc", True, True),
        ("v1.37.1", False, False),
        ("", True, False),
        ("v2", True, False),
    ],
)
def test_lists_are_published_if_the_scheduler_reads_them(server: str, keeps: bool, expected: bool) -> None:
    """A server without the gate drops the values, and then finds the attribute invalid."""

    def create(body: Object) -> Object | None:
        several = any(
            "strings" in one["attributes"]["probe"] for one in body["spec"].get("devices", ()) if "attributes" in one
        )
        return body if keeps or not several else None

    assert find(DRIVER, NODE, create, lambda: server) == Features(lists=expected, shares=server.startswith("v1."))


@pytest.mark.parametrize(
    ("server", "keeps", "expected"),
    [("v1.37.1", True, True), ("v1.36.0", True, True), ("v1.35.9", True, False), ("v1.37.1", False, False)],
)
def test_shares_are_published_if_the_scheduler_divides_devices(server: str, keeps: bool, expected: bool) -> None:
    def create(body: Object) -> Object | None:
        stored = copy.deepcopy(body)
        for device in stored["spec"].get("devices", ()) if not keeps else ():
            device.pop("allowMultipleAllocations", None)
            for capacity in device.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)
        return stored

    assert find(DRIVER, NODE, create, lambda: server).shares == expected


def test_slices_that_differ_only_in_notation_are_the_same() -> None:
    desired = {"capacity": {"bandwidth": {"value": "1000M"}}, "taints": [{"key": "a", "effect": "NoSchedule"}]}
    actual = {"capacity": {"bandwidth": {"value": "1G"}}, "taints": [{**desired["taints"][0], "timeAdded": "2026"}]}
    assert same(actual, desired)
    assert not same({**actual, "taints": []}, desired)
    assert same({"a": [], "b": None}, {}) and not same({"a": False}, {}) and not same({"a": 1}, {"a": True})
    assert not same({"a": "1G"}, {"a": "1000M"})  # only if it is a quantity


# A server in memory: names are unique, an update needs the version that it is based on.


def names_of(objects: t.Iterable[Object]) -> list[str]:
    return [one["metadata"]["name"] for one in objects]


def perform(existing: list[Object], todo: Plan, steps: int | None = None) -> list[Object]:
    """What a server has after the first `steps` requests of a plan; it refuses what a real one refuses."""
    store = {one["metadata"]["name"]: copy.deepcopy(one) for one in existing}
    requests = [("delete", one) for one in todo.delete]
    requests += [("update", one) for one in todo.update] + [("create", one) for one in todo.create]
    for number, (kind, one) in enumerate(requests[:steps]):
        name = one["metadata"]["name"]
        assert (kind == "create") == (name not in store), (kind, name)
        if kind != "create":
            assert one["metadata"]["resourceVersion"] == store[name]["metadata"]["resourceVersion"]
        if kind == "delete":
            del store[name]
        else:
            stored = copy.deepcopy(one)
            stored["metadata"]["resourceVersion"] = (
                f"{store.get(name, stored)['metadata'].get('resourceVersion')}.{number}"
            )
            for device in stored["spec"].get("devices", ()):
                for taint in device.get("taints", ()):
                    taint.setdefault("timeAdded", f"time {number}")
            store[name] = stored
    return list(store.values())


def stored(objects: t.Iterable[Object]) -> list[Object]:
    return [
        {**copy.deepcopy(one), "metadata": {**one["metadata"], "resourceVersion": str(at), "uid": str(at)}}
        for at, one in enumerate(objects)
    ]


@st.composite
def pools(draw: st.DrawFn, node: str = NODE) -> list[Object]:
    """Desired slices of a small pool, filled up with whole pages of 64 devices so that there are several slices."""
    fill = draw(st.integers(0, 2)) * 64
    picked = draw(st.lists(st.integers(0, 7), unique=True, max_size=5))
    devices: list[Object] = [{"name": f"fill-{number}"} for number in range(fill)]
    for number in picked:
        device: Object = {"name": f"d{number}", "attributes": {"rail": {"int": draw(st.integers(0, 2))}}}
        if draw(st.booleans()):
            device["taints"] = [{"key": "down", "effect": "NoSchedule"}]
        devices.append(device)
    sets = [{"name": f"set-{number}", "counters": {"n": {"value": "1"}}} for number in range(draw(st.integers(0, 9)))]
    return slices(Publication(devices=devices, counter_sets=sets), node, DRIVER, draw(st.sampled_from([0, 0, 0, 5])))


@st.composite
def leftovers(draw: st.DrawFn) -> list[Object]:
    """Older slices from any writer: other generations, other names, another pool, some of them lost."""
    found = [one for one in draw(pools()) if draw(st.booleans())]
    for number, one in enumerate(found):
        one["spec"]["pool"]["generation"] = draw(st.integers(0, 3))
        if draw(st.integers(0, 4)) == 0:
            one["metadata"]["name"] = f"00000-{DRIVER}-{NODE}-{number}zz"
        if draw(st.integers(0, 4)) == 0:
            one["spec"]["pool"]["name"] = "other"
    return stored(found)


@settings(max_examples=400, deadline=None)
@given(leftovers(), pools(), st.lists(st.integers(0, 6), max_size=3))
def test_plans_lead_to_the_desired_slices(existing: list[Object], desired: list[Object], cuts: list[int]) -> None:
    for steps in cuts:  # the API server fails in the middle, several times
        existing = perform(existing, plan(existing, desired), steps)
    todo = plan(existing, desired)
    after = perform(existing, todo)
    assert sorted(names_of(after)) == sorted(names_of(desired))
    found = {one["metadata"]["name"]: one["spec"] for one in after}
    generations = {spec["pool"]["generation"] for spec in found.values()}
    assert generations == {todo.generation}
    assert todo.generation >= desired[0]["spec"]["pool"]["generation"]
    own = [one for one in existing if one["spec"]["pool"]["name"] == NODE]
    assert todo.generation >= max((one["spec"]["pool"]["generation"] for one in own), default=0)
    for one in desired:
        spec = {**one["spec"], "pool": {**one["spec"]["pool"], "generation": todo.generation}}
        assert same(found[one["metadata"]["name"]], spec)
    assert not plan(after, desired)


@settings(max_examples=200, deadline=None)
@given(pools(), pools())
def test_the_generation_grows_unless_one_update_does_it(before: list[Object], desired: list[Object]) -> None:
    """This is the rule of the controller of Kubernetes, checked by what a scheduler sees in between.

    At each point between two requests, the slices of the highest generation are either incomplete, or exactly the old
    or the new ones.
    """
    generation = before[0]["spec"]["pool"]["generation"]
    existing = perform([], plan([], before))
    for one in desired:
        one["spec"]["pool"]["generation"] = 0
    todo = plan(existing, desired)
    requests = len(todo.delete) + len(todo.update) + len(todo.create)
    first = max(1, generation)
    if not todo:
        assert todo.generation == first
    elif requests == 1 and todo.update:
        assert todo.generation == first
    elif todo.create or len(todo.update) > 1:
        assert todo.generation == first + 1

    def contents(objects: list[Object]) -> str:
        kept = [{**one["spec"], "pool": None} for one in sorted(objects, key=lambda one: one["metadata"]["name"])]
        for spec in kept:
            spec["devices"] = [
                {**d, "taints": [{**x, "timeAdded": None} for x in d.get("taints", ())]}
                for d in spec.get("devices", ())
            ]
        return json.dumps(kept, sort_keys=True)

    whole = {contents(existing), contents(perform(existing, todo))}
    for steps in range(requests + 1):
        seen = perform(existing, todo, steps)
        highest = max((one["spec"]["pool"]["generation"] for one in seen), default=0)
        pool = [one for one in seen if one["spec"]["pool"]["generation"] == highest]
        if pool and len(pool) == pool[0]["spec"]["pool"]["resourceSliceCount"]:
            assert contents(pool) in whole


def test_a_taint_keeps_its_time() -> None:
    device: Object = {"name": "d", "taints": [{"key": LINK_DOWN, "effect": "NoSchedule"}]}
    existing = perform([], plan([], slices(Publication(devices=[device]), NODE, DRIVER)))
    changed = slices(Publication(devices=[{**device, "attributes": {"rail": {"int": 1}}}]), NODE, DRIVER)
    todo = plan(existing, changed)
    (update,) = todo.update
    assert update["spec"]["devices"][0]["taints"][0]["timeAdded"] == "time 0"
    assert (todo.generation, todo.create, todo.delete) == (1, (), ())


def test_a_slice_that_the_server_changed_counts_as_published() -> None:
    desired = slices(
        Publication(devices=[{"name": "d", "taints": [{"key": "k", "effect": "NoSchedule"}]}]), NODE, DRIVER
    )
    existing = perform([], plan([], desired))
    del existing[0]["spec"]["devices"][0]["taints"]  # dropped
    assert plan(existing, desired).update
    assert not plan(existing, desired, lambda one, wanted: True)


def test_slices_name_their_owner_and_their_writer(big: Publication) -> None:
    node = {"metadata": {"name": NODE, "uid": "u"}}
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u", "controller": True}
    desired = slices(big, NODE, DRIVER, 1)
    assert len(desired) > 1
    first = perform([], plan([], with_owner(desired, node, "1.0.0")))
    for one in first:
        assert one["metadata"]["ownerReferences"] == [owner]
        one["metadata"]["annotations"]["example.com/of-somebody-else"] = "stays"
    assert not plan(first, with_owner(desired, node, "1.0.0"))
    found = plan(first, with_owner(desired, node, "1.0.1"))  # an upgrade makes no new generation of the pool
    assert (len(found.delete), len(found.update), len(found.create)) == (0, len(desired), 0)
    for one in found.update:
        assert one["metadata"]["annotations"] == {VERSION_ANNOTATION: "1.0.1", "example.com/of-somebody-else": "stays"}
        assert one["spec"]["pool"]["generation"] == 1
