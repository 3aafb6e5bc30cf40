# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generated claims and configurations: each becomes a record, or an error that names a field."""

from __future__ import annotations

import copy
import os
import typing as t

from ansible_collections.lanewise.dra.tests.driver.plan_claims import (
    INFINIBAND,
    KNOWN,
    NODE,
    OPEN,
    OTHER,
    PF,
    RDMA_ONLY,
    UID,
    VF,
    claim,
    config,
    names_a_field,
    planned,
    pod,
    refused,
    result,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lanewise_driver.base.errors import DriverError, Refused
from lanewise_driver.base.objects import Object
from lanewise_driver.claims.plan import check_pod, plan
from lanewise_driver.claims.records import decode, encode
from lanewise_driver.dra.config import interface_config
from lanewise_driver.dra.config.fields import Field
from lanewise_driver.dra.config.interface_config import FIELDS

#: How many generated claims and configurations each test tries.
TRIES = int(os.environ.get("LANEWISE_PLAN_TRIES", "300"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


IPS = st.ip_addresses().map(str).filter(lambda ip: "::ffff:" not in ip)


def values(form: Field) -> st.SearchStrategy[t.Any]:
    """The values that the definition of a field allows. Rules between fields are not considered."""
    if form.choices:
        return st.sampled_from(form.choices)
    return _TYPES[form.type](form) if form.type in _TYPES else _mapping(form)


def _item(form: Field) -> st.SearchStrategy[t.Any]:
    assert form.item
    return values(form.item)


def _mapping(form: Field) -> st.SearchStrategy[t.Any]:
    required = {name: values(inner) for name, inner in form.fields.items() if inner.required}
    optional = {name: values(inner) for name, inner in form.fields.items() if not inner.required}
    return st.fixed_dictionaries(required, optional=optional)


_TYPES: dict[str, t.Callable[[Field], st.SearchStrategy[t.Any]]] = {
    "string": lambda form: st.from_regex(form.pattern, fullmatch=True).filter(lambda text: text not in form.forbidden),
    "bool": lambda _form: st.booleans(),
    "int": lambda form: st.integers(form.minimum, form.maximum),
    "setting": lambda form: st.integers(form.minimum, form.maximum) | st.from_regex(form.pattern, fullmatch=True),
    "ip": lambda _form: IPS,
    "address": lambda _form: IPS.flatmap(
        lambda ip: st.integers(0, 128 if ":" in ip else 32).map(lambda bits: f"{ip}/{bits}")
    ),
    "network": lambda _form: st.sampled_from(["0.0.0.0/0", "10.0.0.0/8", "192.0.2.128/25", "::/0", "2001:db8::/32"]),
    "list": lambda form: st.lists(_item(form), max_size=3, unique_by=repr),
    "map": lambda form: st.dictionaries(st.from_regex(form.key, fullmatch=True), _item(form), max_size=3),
}


CONFIGS = st.lists(st.sampled_from(list(FIELDS)), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values(FIELDS[name]) for name in names})
)


def paths(value: t.Any, path: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """The paths of a JSON value and of all values in it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replace(value: t.Any, path: tuple[t.Any, ...], new: t.Any, remove: bool = False) -> t.Any:
    """A copy of a value in which the value at `path` is replaced or removed."""
    if not path:
        return new
    changed = copy.deepcopy(value)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if remove:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return changed


BASE = claim(
    [result("a", PF), result("b/sub", VF, shareID="s"), result("c", OTHER), result("d", RDMA_ONLY, adminAccess=True)],
    [
        OPEN,
        config({"mtu": 1400, "ethtool": {"features": {"tso": True}}}, source="FromClass"),
        config({"name": "net1", "addresses": ["192.0.2.1/24"], "rules": [{"table": 5, "family": "ipv4"}]}, "a"),
        config({"vf": {"vlan": 5, "qos": 3}}, "b"),
        config({"x": 1}, driver="other.example.com"),
    ],
)


CLAIM_AND_POD = {"claim": BASE, "pod": pod(hostNetwork=False)}


PATHS = list(paths(CLAIM_AND_POD))


def test_the_claim_that_other_tests_change_is_valid() -> None:
    assert len(planned(BASE).devices) == 4


@settings(max_examples=TRIES, deadline=None)
@given(st.data())
def test_any_claim_becomes_a_record_or_an_error_that_names_a_field(data: st.DataObject) -> None:
    """Up to three fields of a claim or its pod have arbitrary values, or are missing."""
    changed: t.Any = CLAIM_AND_POD
    for _change in range(data.draw(st.integers(1, 3))):
        candidates = PATHS if changed is CLAIM_AND_POD else list(paths(changed))
        path = data.draw(st.sampled_from(candidates[1:] or [()]))
        remove = data.draw(st.booleans()) if path else False
        changed = replace(changed, path, None if remove else data.draw(JSON), remove)
        assume(isinstance(changed, dict))
    other = planned(claim([result("nic", INFINIBAND)], uid="other"), uid="other")
    try:
        record = plan(changed.get("claim"), uid=UID, node=NODE, known=KNOWN, records=[other], boot="boot")
        if record.pod:
            check_pod(changed.get("pod"), record.pod, NODE)
    except DriverError as error:
        assert names_a_field(error.message), error.message
    else:
        assert decode(encode(record)) == record
        assert record.devices


@settings(max_examples=TRIES, deadline=None)
@given(st.data(), CONFIGS)
def test_a_configuration_is_accepted_or_the_error_names_its_field(data: st.DataObject, fields: Object) -> None:
    """Generated configurations, often with one wrong value: a valid one is recorded unchanged, others are refused."""
    parameters: t.Any = interface_config.parameters(fields)
    if data.draw(st.booleans()):
        path = data.draw(st.sampled_from(list(paths(parameters))))
        parameters = replace(parameters, path, data.draw(JSON))
    name = data.draw(st.sampled_from([PF, VF, INFINIBAND, RDMA_ONLY]))
    entry = config(None)
    entry["opaque"]["parameters"] = parameters
    try:
        record = planned(claim([result("nic", name)], [OPEN, entry]))
    except Refused as error:
        prefix = "spec.devices.config[0].opaque.parameters"
        problems = interface_config.validate(parameters, prefix)
        assert error.message.startswith(prefix) or "two interfaces" in error.message, error.message
        for problem in problems:
            assert str(problem) in error.message
        if not problems:  # the device cannot have this field of the configuration
            assert any(error.message.startswith(f"{prefix}.{key}") for key in parameters), error.message
    else:
        assert interface_config.validate(parameters, "") == []
        if "table" not in parameters.get("vrf", {"table": 0}):
            parameters["vrf"]["table"] = interface_config.vrf_table(parameters["vrf"]["name"])
        if parameters.get("railAddresses") is False:
            del parameters["railAddresses"]  # the default, which is not recorded
        assert record.devices[0].config == {
            key: value for key, value in parameters.items() if key not in ("apiVersion", "kind")
        }


@settings(max_examples=TRIES // 5, deadline=None)
@given(st.data())
def test_the_last_value_of_a_field_applies_and_values_of_a_class_cannot_be_changed(data: st.DataObject) -> None:
    """Compares the plan with a simple model, which lists the values of each field in order."""
    field_values = st.fixed_dictionaries(
        {}, optional={"mtu": st.integers(1280, 9000), "gsoMaxSize": st.integers(1, 9), "routes": st.just([])}
    )
    names = st.sampled_from(["a", "b", "a/x", "b/y", "other"])
    entries = data.draw(
        st.lists(
            st.builds(
                lambda fields, requests, source, is_ours: config(
                    fields, *requests, source=source, driver="lanewise.dev" if is_ours else "other.example.com"
                ),
                field_values,
                st.lists(names, max_size=3),
                st.sampled_from(["FromClass", "FromClaim"]),
                st.integers(0, 4).map(bool),
            ),
            max_size=6,
        )
    )
    requests = data.draw(st.sampled_from([("a", "b"), ("a/x", "b/y"), ("a", "b/y")]))
    allocated = claim([result(requests[0], PF), result(requests[1], OTHER)], entries)
    wanted: dict[str, Object] = {}
    changes_class = False
    for request in requests:
        found: dict[str, list[tuple[str, t.Any]]] = {"mtu": [], "gsoMaxSize": [], "routes": []}
        for source in ("FromClass", "FromClaim"):
            for entry in entries:
                covers = entry.get("requests") or [request]
                applies = request in covers or request.partition("/")[0] in covers
                if entry["source"] == source and applies and entry["opaque"]["driver"] == "lanewise.dev":
                    for field, value in entry["opaque"]["parameters"].items():
                        if field in found:
                            found[field].append((source, value))
        wanted[request] = {field: values[-1][1] for field, values in found.items() if values}
        for values in found.values():
            of_class = [value for source, value in values if source == "FromClass"][-1:]
            changes_class |= any(source == "FromClaim" and of_class not in ([], [value]) for source, value in values)
    if changes_class:
        refused(allocated, "cannot change")
    else:
        for device in planned(allocated).devices:
            assert device.config == wanted[device.request]
