# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ResourceSlices stay within the limits of the API, and a plan of changes always leads to the desired slices."""

from __future__ import annotations

import copy
import json
import typing as t
from contextlib import nullcontext
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.features import unsupported
from ansible_collections.lanewise.dra.plugins.module_utils.dra.apiserver.validate import validate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver.big_machine import EIGHT_BY_SIXTEEN
from ansible_collections.lanewise.dra.tests.machines.builder import build
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.api.access import Access
from lanewise_driver.api.client import ApiError
from lanewise_driver.api.cluster import Cluster
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


def devices_of(published: t.Iterable[Object]) -> list[Object]:
    return [device for resource_slice in published for device in resource_slice["spec"].get("devices", ())]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize(
    ("kubernetes", "features"), [("1.37", Features()), ("1.34", Features(taints=False, counters=False, shares=False))]
)
def test_slices_of_eight_pfs_with_sixteen_vfs_each_are_valid(
    facts: Object, version: str, kubernetes: str, features: Features
) -> None:
    big = publication(facts, features.counters, Policy())
    assert (len(big.devices), len(big.counter_sets)) == ((8 * 17, 8) if features.counters else (8 * 16, 0))
    found = slices(big, NODE, DRIVER, 1, features)
    for resource_slice in found:
        converted = versions.convert(resource_slice, f"resource.k8s.io/{version}")
        assert validate(converted, kubernetes) == []
        assert unsupported(converted, kubernetes) == []
    assert [device["name"] for device in devices_of(found)] == [device["name"] for device in big.devices]
    assert {resource_slice["spec"]["pool"]["resourceSliceCount"] for resource_slice in found} == {len(found)}
    if features.counters:
        sets = [entry["name"] for entry in found[0]["spec"]["sharedCounters"]]
        assert len(sets) == 8 and "devices" not in found[0]["spec"]
        # a PF is in the slice of its VFs, and a slice of 64 devices has room for three PFs with 16 VFs each
        assert [len(resource_slice["spec"].get("devices", ())) for resource_slice in found] == [0, 51, 51, 34]
        for resource_slice in found[1:]:
            used = {device["consumesCounters"][0]["counterSet"] for device in resource_slice["spec"]["devices"]}
            assert used <= {device["name"] for device in resource_slice["spec"]["devices"]}
        down = [device for device in devices_of(found) if device.get("taints")]
        assert down and {taint["key"] for device in down for taint in device["taints"]} == {LINK_DOWN}
    else:
        assert [len(resource_slice["spec"]["devices"]) for resource_slice in found] == [128]
        assert not any({"taints", "consumesCounters"} & set(device) for device in devices_of(found))


def test_a_pf_consumes_as_many_counters_as_its_vfs(big: Publication) -> None:
    for device in big.devices:
        (consumed,) = device["consumesCounters"]
        is_pf = device["attributes"]["type"]["string"] == "pf"
        assert consumed["counters"][COUNTER]["value"] == ("16" if is_pf else "1")


def test_an_empty_pool_has_one_empty_slice() -> None:
    (only,) = slices(Publication(), NODE, DRIVER, 1)
    assert only["spec"]["devices"] == [] and only["spec"]["pool"] == {
        "name": NODE,
        "generation": 1,
        "resourceSliceCount": 1,
    }
    assert validate(only, "1.37") == []


def test_the_devices_of_a_pf_with_more_vfs_than_a_slice_holds_are_in_several_slices() -> None:
    used = [{"counterSet": "pf", "counters": {COUNTER: {"value": "1"}}}]
    devices = [{"name": f"d{number}", "consumesCounters": used} for number in range(129)]
    found = slices(Publication(devices=devices, counter_sets=[{"name": "pf"}]), NODE, DRIVER)
    assert [len(resource_slice["spec"].get("devices", ())) for resource_slice in found] == [0, 64, 64, 1]


@pytest.mark.parametrize("node", ["a", NODE, "x" * 63, ".".join(["n" * 60] * 4), ("n" * 60 + ".") * 3 + "m" * 60])
def test_names_of_slices_are_valid_unique_and_sorted(node: str) -> None:
    names = [slice_name(position, DRIVER, node) for position in (0, 9, 10, 255)]
    assert names == sorted(set(names)) and all(len(name) <= 253 for name in names)
    (only,) = slices(Publication(), node, DRIVER, 1)
    assert validate(only, "1.37") == []


def test_features_whose_fields_the_server_drops_are_switched_off() -> None:
    assert cut(Features(), ["devices[0].taints"]) == Features(taints=False)
    assert cut(Features(), ["devices[0].basic.consumesCounters"]) == Features(counters=False)
    assert cut(Features(), ["sharedCounters"]) == Features(counters=False)
    assert cut(Features(), ["devices[0].allowMultipleAllocations"]) == Features(shares=False)
    assert cut(Features(), ["devices[0].capacity.bandwidth.requestPolicy"]) == Features(shares=False)
    assert cut(Features(), []) == Features()


def test_an_unknown_version_is_not_the_answer_of_a_server_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a version, no shares are published, so the driver asks again."""
    cluster = Cluster(lambda: Access("https://127.0.0.1:1"), DRIVER, NODE)
    for status, unknown in ((403, True), (404, True), (429, False), (500, False), (503, False)):

        def refuse(*_arguments: object, status: int = status, **_options: object) -> t.NoReturn:
            raise ApiError(status, "", "refused")

        monkeypatch.setattr(cluster, "request", refuse)
        with nullcontext() if unknown else pytest.raises(ApiError):
            assert cluster.server_version() == ""


def test_several_pcie_roots_are_published_as_a_list_if_the_server_stores_lists(tmp_path: Path) -> None:
    facts = as_dict(probe(str(build("gb300", tmp_path / "gb300"))))
    published = publication(facts, policy=Policy())
    for features in (Features(), Features(lists=True), Features(taints=False, counters=False, lists=True)):
        found = slices(published, NODE, DRIVER, 1, features)
        for resource_slice in found:
            gates = {"DRAListTypeAttributes": features.lists}
            assert validate(resource_slice, "1.37", gates) == [] == unsupported(resource_slice, "1.37", gates)
        roots = {}
        for device in devices_of(found):
            attributes = device["attributes"]
            root, data_direct_root = attributes["resource.kubernetes.io/pcieRoot"], attributes.get("dataDirectPcieRoot")
            roots[device["name"]] = root
            if features.lists and data_direct_root:
                assert (
                    len(root["strings"]) == 2 and root["strings"][1] == data_direct_root["string"] != root["strings"][0]
                )
            else:
                assert set(root) == {"string"}
        assert any("strings" in root for root in roots.values()) == features.lists
    before = copy.deepcopy(published.devices)
    slices(published, NODE, DRIVER, 1, Features(lists=True))
    assert published.devices == before


@pytest.mark.parametrize(
    ("server", "stores_lists", "expected"),
    [
        ("v1.37.1", True, True),
        ("v1.36.2", True, False),  # its scheduler ignores lists
        ("v1.38.0-alpha.1+abc", True, True),
        ("v1.37.1", False, False),
        ("", True, False),
        ("v2", True, False),
    ],
)
def test_lists_are_published_if_server_and_scheduler_support_them(
    server: str, stores_lists: bool, expected: bool
) -> None:
    """A server without the feature gate drops the list, and then refuses the attribute because it has no value."""

    def create(body: Object) -> Object | None:
        has_list = any(
            "strings" in device["attributes"]["probe"]
            for device in body["spec"].get("devices", ())
            if "attributes" in device
        )
        return body if stores_lists or not has_list else None

    assert find(DRIVER, NODE, create, lambda: server) == Features(lists=expected, shares=server.startswith("v1."))


@pytest.mark.parametrize(
    ("server", "stores_shares", "expected"),
    [("v1.37.1", True, True), ("v1.36.0", True, True), ("v1.35.9", True, False), ("v1.37.1", False, False)],
)
def test_shares_are_published_if_server_and_scheduler_support_them(
    server: str, stores_shares: bool, expected: bool
) -> None:
    def create(body: Object) -> Object | None:
        stored = copy.deepcopy(body)
        for device in stored["spec"].get("devices", ()) if not stores_shares else ():
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
    assert not same({"a": "1G"}, {"a": "1000M"})  # field a is not a quantity


def names_of(objects: t.Iterable[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in objects]


def perform(existing: list[Object], todo: Plan, steps: int | None = None) -> list[Object]:
    """The slices of a server after the first `steps` requests of a plan, or after all.

    Like an API server, it fails if a new name exists, or if an update or deletion does not have the current
    resourceVersion.
    """
    store = {item["metadata"]["name"]: copy.deepcopy(item) for item in existing}
    requests = [("delete", item) for item in todo.delete]
    requests += [("update", item) for item in todo.update] + [("create", item) for item in todo.create]
    for number, (verb, item) in enumerate(requests[:steps]):
        name = item["metadata"]["name"]
        assert (verb == "create") == (name not in store), (verb, name)
        if verb != "create":
            assert item["metadata"]["resourceVersion"] == store[name]["metadata"]["resourceVersion"]
        if verb == "delete":
            del store[name]
        else:
            stored = copy.deepcopy(item)
            stored["metadata"]["resourceVersion"] = (
                f"{store.get(name, stored)['metadata'].get('resourceVersion')}.{number}"
            )
            for device in stored["spec"].get("devices", ()):
                for taint in device.get("taints", ()):
                    taint.setdefault("timeAdded", f"time {number}")
            store[name] = stored
    return list(store.values())


def as_stored(objects: t.Iterable[Object]) -> list[Object]:
    """The objects with the metadata that a server adds."""
    return [
        {**copy.deepcopy(item), "metadata": {**item["metadata"], "resourceVersion": str(number), "uid": str(number)}}
        for number, item in enumerate(objects)
    ]


@st.composite
def pools(draw: st.DrawFn, node: str = NODE) -> list[Object]:
    """Desired slices of a pool with a few random devices, after none, 64 or 128 others, so that there may be several
    slices."""
    others = draw(st.integers(0, 2)) * 64
    numbers = draw(st.lists(st.integers(0, 7), unique=True, max_size=5))
    devices: list[Object] = [{"name": f"other-{number}"} for number in range(others)]
    for number in numbers:
        device: Object = {"name": f"d{number}", "attributes": {"rail": {"int": draw(st.integers(0, 2))}}}
        if draw(st.booleans()):
            device["taints"] = [{"key": "down", "effect": "NoSchedule"}]
        devices.append(device)
    sets = [{"name": f"set-{number}", "counters": {"n": {"value": "1"}}} for number in range(draw(st.integers(0, 9)))]
    return slices(Publication(devices=devices, counter_sets=sets), node, DRIVER, draw(st.sampled_from([0, 0, 0, 5])))


@st.composite
def leftovers(draw: st.DrawFn) -> list[Object]:
    """Existing slices that differ from the desired ones: some are missing, or have another generation, name or pool."""
    found = [item for item in draw(pools()) if draw(st.booleans())]
    for number, item in enumerate(found):
        item["spec"]["pool"]["generation"] = draw(st.integers(0, 3))
        if draw(st.integers(0, 4)) == 0:
            item["metadata"]["name"] = f"00000-{DRIVER}-{NODE}-{number}zz"
        if draw(st.integers(0, 4)) == 0:
            item["spec"]["pool"]["name"] = "other"
    return as_stored(found)


@settings(max_examples=400, deadline=None)
@given(leftovers(), pools(), st.lists(st.integers(0, 6), max_size=3))
def test_plans_lead_to_the_desired_slices(existing: list[Object], desired: list[Object], stops: list[int]) -> None:
    for steps in stops:  # the API server becomes unreachable after this many requests
        existing = perform(existing, plan(existing, desired), steps)
    todo = plan(existing, desired)
    after = perform(existing, todo)
    assert sorted(names_of(after)) == sorted(names_of(desired))
    found = {item["metadata"]["name"]: item["spec"] for item in after}
    generations = {spec["pool"]["generation"] for spec in found.values()}
    assert generations == {todo.generation}
    assert todo.generation >= desired[0]["spec"]["pool"]["generation"]
    older = [item["spec"]["pool"]["generation"] for item in existing if item["spec"]["pool"]["name"] == NODE]
    assert todo.generation >= max(older, default=0)
    for item in desired:
        spec = {**item["spec"], "pool": {**item["spec"]["pool"], "generation": todo.generation}}
        assert same(found[item["metadata"]["name"]], spec)
    assert not plan(after, desired)


@settings(max_examples=200, deadline=None)
@given(pools(), pools())
def test_the_generation_grows_unless_a_single_update_is_enough(before: list[Object], desired: list[Object]) -> None:
    """This is also the rule of the ResourceSlice controller of Kubernetes. It keeps schedulers from using a mixture.

    After each request, the slices of the highest generation are either incomplete, or exactly the old or the new ones.
    """
    generation = before[0]["spec"]["pool"]["generation"]
    existing = perform([], plan([], before))
    for item in desired:
        item["spec"]["pool"]["generation"] = 0
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
        kept = [{**item["spec"], "pool": None} for item in sorted(objects, key=lambda item: item["metadata"]["name"])]
        for spec in kept:
            spec["devices"] = [
                {**device, "taints": [{**taint, "timeAdded": None} for taint in device.get("taints", ())]}
                for device in spec.get("devices", ())
            ]
        return json.dumps(kept, sort_keys=True)

    complete_states = {contents(existing), contents(perform(existing, todo))}
    for steps in range(requests + 1):
        seen = perform(existing, todo, steps)
        highest = max((item["spec"]["pool"]["generation"] for item in seen), default=0)
        newest = [item for item in seen if item["spec"]["pool"]["generation"] == highest]
        if newest and len(newest) == newest[0]["spec"]["pool"]["resourceSliceCount"]:
            assert contents(newest) in complete_states


def test_a_taint_keeps_the_time_when_it_was_added() -> None:
    device: Object = {"name": "d", "taints": [{"key": LINK_DOWN, "effect": "NoSchedule"}]}
    existing = perform([], plan([], slices(Publication(devices=[device]), NODE, DRIVER)))
    changed = slices(Publication(devices=[{**device, "attributes": {"rail": {"int": 1}}}]), NODE, DRIVER)
    todo = plan(existing, changed)
    (update,) = todo.update
    assert update["spec"]["devices"][0]["taints"][0]["timeAdded"] == "time 0"
    assert (todo.generation, todo.create, todo.delete) == (1, (), ())


def test_a_slice_that_the_server_has_changed_is_not_updated_if_it_is_settled() -> None:
    desired = slices(
        Publication(devices=[{"name": "d", "taints": [{"key": "k", "effect": "NoSchedule"}]}]), NODE, DRIVER
    )
    existing = perform([], plan([], desired))
    del existing[0]["spec"]["devices"][0]["taints"]  # as by a server without device taints
    assert plan(existing, desired).update
    assert not plan(existing, desired, lambda _existing, _desired: True)


def test_slices_have_the_node_as_owner_and_the_release_as_annotation(big: Publication) -> None:
    node = {"metadata": {"name": NODE, "uid": "u"}}
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u", "controller": True}
    desired = slices(big, NODE, DRIVER, 1)
    assert len(desired) > 1
    first = perform([], plan([], with_owner(desired, node, "1.0.0")))
    for resource_slice in first:
        assert resource_slice["metadata"]["ownerReferences"] == [owner]
        resource_slice["metadata"]["annotations"]["example.com/added-by-others"] = "kept"
    assert not plan(first, with_owner(desired, node, "1.0.0"))
    found = plan(first, with_owner(desired, node, "1.0.1"))  # an upgrade does not start a new generation
    assert (len(found.delete), len(found.update), len(found.create)) == (0, len(desired), 0)
    for resource_slice in found.update:
        assert resource_slice["metadata"]["annotations"] == {
            VERSION_ANNOTATION: "1.0.1",
            "example.com/added-by-others": "kept",
        }
        assert resource_slice["spec"]["pool"]["generation"] == 1
