# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""CEL selectors never fail, and match the same devices as the same condition written in Python."""

from __future__ import annotations

import re

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EngineMissing
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import selectors
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits, quantity
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

try:
    ENGINE = Engine()
except EngineMissing:
    ENGINE = None
needs_engine = pytest.mark.skipif(ENGINE is None, reason="cel-expr-python is not installed for this Python")

DRIVERS = ["gpu.example.com", "nic.example.com"]
NAMES = ["model", "in", "speed", "_x"]
QUALIFIED = [f"{domain}/{name}" for domain in [*DRIVERS, "resource.kubernetes.io"] for name in NAMES]
CHARACTERS = st.characters(
    exclude_characters="\0", exclude_categories=["Cs"]
)  # the engine's Python binding truncates at NUL
TEXTS = st.one_of(
    st.sampled_from(["", "a", "H100", "1.2.3", "v2", "28.043.1014", "true", "{0}"]), st.text(CHARACTERS, max_size=8)
)
INTS = st.one_of(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1))
VERSIONS = st.sampled_from(
    ["0.0.0", "1.2.3", "1.2.3-alpha.1", "1.2.3-alpha.beta", "1.2.3+build", "570.86.15", "10.0.0", "9.0.0", "1.2.4-0"]
)
QUANTITIES = st.sampled_from(["0", "1", "5000m", "80Gi", "80G", "1e3", "1.5Gi", "400G", "1n"])
ATTRIBUTE = st.one_of(
    TEXTS.map(lambda value: {"string": value}),
    INTS.map(lambda value: {"int": value}),
    st.booleans().map(lambda value: {"bool": value}),
    VERSIONS.map(lambda value: {"version": value}),
)


@st.composite
def devices(draw):
    """A driver and one of its devices. The driver's own attributes are named with or without its domain."""
    driver = draw(st.sampled_from(DRIVERS))
    device = {}
    for kind, values in (("attributes", ATTRIBUTE), ("capacity", QUANTITIES.map(lambda value: {"value": value}))):
        full = draw(st.dictionaries(st.sampled_from(QUALIFIED), values, max_size=6))
        short = draw(st.booleans())
        device[kind] = {
            name[len(driver) + 1 :] if short and name.startswith(f"{driver}/") else name: value
            for name, value in full.items()
        }
    return driver, device


def find(driver, device, kind, name):
    """The device's attribute or capacity of this qualified name, or None."""
    found = device[kind].get(name)
    if found is None and name.startswith(f"{driver}/"):
        found = device[kind].get(name[len(driver) + 1 :])
    return found


def value_of(driver, device, name):
    """The type and value of an attribute, or (None, None)."""
    attribute = find(driver, device, "attributes", name)
    return next(iter(attribute.items())) if attribute else (None, None)


def version_key(version):
    """The sort key of a version by section 11 of semver.org, independent of the code under test."""
    numbers, _unused, pre = version.partition("+")[0].partition("-")
    rank = [("0", f"{int(part):020}") if part.isdigit() else ("1", part) for part in pre.split(".")] if pre else []
    return [int(number) for number in numbers.split(".")], not pre, rank


def type_of(value):
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"


def text_version_key(text):
    """The sort key of a version that is published as a string; None for any other string."""
    match = re.fullmatch(r"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", text)
    if not match:
        return None
    return [int(number or 0) for number in match.groups()], True, []


def padded(version):
    """The version with three numbers."""
    return version if "-" in version or "+" in version else ".".join([*version.split("."), "0", "0"][:3])


ANY_VALUE = st.one_of(TEXTS, INTS, st.booleans())
NAME = st.sampled_from(QUALIFIED)


def draw_version_selector(draw, name, kind, typed):
    """A selector that compares versions, and its condition; see `primitives`."""
    if kind == "version":
        version = draw(st.one_of(VERSIONS, st.sampled_from(["570", "1.2"])))
        if draw(st.booleans()):
            return selectors.version_is(name, version), typed(
                "version", lambda value: version_key(value) == version_key(padded(version))
            )
        return selectors.version_at_least(name, version), typed(
            "version", lambda value: version_key(value) >= version_key(padded(version))
        )
    version = draw(st.sampled_from(["0.0.0", "1.2.3", "28.43.1014", "2", "1.3"]))

    def at_least(value):
        found = text_version_key(value)
        return found is not None and found >= version_key(padded(version))

    return selectors.text_version_at_least(name, version), typed("string", at_least)


@st.composite
def primitives(draw):  # noqa: C901  # a branch per operator
    """A selector, and the same condition as a Python function of a driver and a device."""
    name = draw(NAME)

    def typed(attribute_type, test):
        def condition(driver, device):
            found_type, value = value_of(driver, device, name)
            return found_type == attribute_type and test(value)

        return condition

    kind = draw(st.sampled_from("driver has equals one_of at_least at_most text version text_version capacity".split()))
    if kind == "driver":
        selected = draw(st.sampled_from([*DRIVERS, 'quote".example.com']))
        return selectors.driver_is(selected), lambda driver, device: driver == selected
    if kind == "has":
        return selectors.has_attribute(name), lambda driver, device: value_of(driver, device, name)[0] is not None
    if kind in ("equals", "one_of"):
        values = draw(st.lists(ANY_VALUE, min_size=1 if kind == "equals" else 0, max_size=3))
        if kind == "equals":
            values = values[:1]
            selector = selectors.equals(name, values[0])
        else:
            selector = selectors.one_of(name, values)
        return (
            selector,
            lambda driver, device: value_of(driver, device, name) in [(type_of(value), value) for value in values],
        )
    if kind == "at_least":
        number = draw(INTS)
        return selectors.at_least(name, number), typed("int", lambda value: value >= number)
    if kind == "at_most":
        number = draw(INTS)
        return selectors.at_most(name, number), typed("int", lambda value: value <= number)
    if kind == "text":
        text = draw(TEXTS)
        write, test = draw(
            st.sampled_from(
                [
                    (selectors.contains, lambda value: text in value),
                    (selectors.starts_with, lambda value: value.startswith(text)),
                    (lambda name, text: selectors.matches(name, re.escape(text[:3].strip() or "x")), None),
                ]
            )
        )
        if test is None:
            assume(text.isascii())
            return write(name, text), typed("string", lambda value: (text[:3].strip() or "x") in value)
        return write(name, text), typed("string", test)
    if kind in ("version", "text_version"):
        return draw_version_selector(draw, name, kind, typed)
    minimum = draw(QUANTITIES)

    def has_capacity(driver, device):
        found = find(driver, device, "capacity", name)
        return found is not None and quantity.parse(found["value"]) >= quantity.parse(minimum)

    return selectors.capacity_at_least(name, minimum), has_capacity


def joined(inner):
    """The conjunctions, disjunctions and negations of selectors, each with its condition."""

    def combine(pairs, write, quantifier):
        return write(*(pair[0] for pair in pairs)), lambda *subject: quantifier(pair[1](*subject) for pair in pairs)

    parts = st.lists(inner, max_size=4)
    return st.one_of(
        parts.map(lambda pairs: combine(pairs, selectors.all_of, all)),
        parts.map(lambda pairs: combine(pairs, selectors.any_of, any)),
        inner.map(lambda pair: (selectors.negate(pair[0]), lambda *subject: not pair[1](*subject))),
    )


@needs_engine
@settings(max_examples=600, deadline=None)
@given(pair=st.recursive(primitives(), joined, max_leaves=8), subjects=st.lists(devices(), min_size=1, max_size=4))
def test_selectors_are_valid_and_match_the_same_devices_as_python_conditions(pair, subjects):
    selector, condition = pair
    verdict = ENGINE.judge(selector.text)
    assert verdict.errors == verdict.unchecked == ()
    for driver, device in subjects:
        assert ENGINE.matches(selector.text, device, driver) == condition(driver, device)


@needs_engine
@settings(max_examples=300, deadline=None)
@given(st.text(CHARACTERS))
@example("\x7f\x85\u2028\ufeff\U0001f600\"'\\{}\n\r\t${{}}")
def test_any_text_is_compared_unchanged(text):
    name = "gpu.example.com/model"
    device = {"attributes": {name: {"string": text}}}
    for selector in (selectors.equals(name, text), selectors.contains(name, text), selectors.starts_with(name, text)):
        assert ENGINE.matches(selector.text, device, "other.example.com")
    other = {"attributes": {name: {"string": f"{text}x"}}}
    assert not ENGINE.matches(selectors.equals(name, text).text, other, "other.example.com")
    # a NUL does not end the constant
    assert not ENGINE.matches(selectors.equals(name, f"{text}\0").text, device, "other.example.com")


def test_only_characters_that_are_not_printable_are_escaped():
    assert selectors.equals("a.io/b", "NVIDIA H100 80GB HBM3").text == (
        'has(device.attributes["a.io"].b) && "NVIDIA H100 80GB HBM3" == device.attributes["a.io"].b'
    )
    assert selectors.literal("é\x00") == '"é\\u0000"'


@pytest.mark.parametrize("value", ["\ud800", 2**63, -(2**63) - 1])
def test_values_that_cel_cannot_represent_are_refused(value):
    with pytest.raises(ValueError, match="64 bits|Unicode"):
        selectors.literal(value)


@pytest.mark.parametrize("name", ["model", "/model", "a.io/", "a.io/x-y", "a.io/x/y", "a.io/1x"])
def test_names_without_a_domain_or_a_valid_identifier_are_refused(name):
    with pytest.raises(ValueError, match="DOMAIN/NAME"):
        selectors.equals(name, 1)


@pytest.mark.parametrize("version", ["", "x", "1.2.3.4", "01.2.3", "1.2-rc1", "v1.2.3"])
def test_invalid_versions_are_refused(version):
    with pytest.raises(ValueError, match="semantic version"):
        selectors.version_at_least("a.io/b", version)


def test_parentheses_preserve_precedence():
    a, b, c = (selectors.driver_is(name) for name in "abc")
    both = selectors.all_of(a, selectors.any_of(b, c))
    assert both.text == 'device.driver == "a" && (device.driver == "b" || device.driver == "c")'
    assert selectors.any_of(both, a).text.startswith(f"({both.text}) || ")
    assert selectors.negate(both).text == f"!({both.text})"
    assert selectors.all_of(a, selectors.raw("x || y // why")).text.endswith("(x || y // why\n)")


def test_each_part_is_a_separate_selector():
    parts = [selectors.driver_is(f"d{number}") for number in range(3)]
    assert selectors.device_selectors(parts) == [{"cel": {"expression": part.text}} for part in parts]
    assert selectors.device_selectors([]) == []


def test_parts_are_joined_if_there_are_more_than_the_api_allows():
    parts = [
        selectors.any_of(selectors.driver_is(f"d{number}"), selectors.driver_is("x" * number)) for number in range(70)
    ]
    texts = [entry["cel"]["expression"] for entry in selectors.device_selectors(parts)]
    assert len(texts) == limits.SELECTORS
    assert " && ".join(texts) == " && ".join(f"({part.text})" for part in parts)


@needs_engine
def test_expressions_of_any_form_keep_their_meaning_when_joined():
    parts = [selectors.Selector(text) for text in ("true || false", "false // never", "true")]
    parts += [selectors.driver_is("d")] * (2 * limits.SELECTORS)
    texts = [entry["cel"]["expression"] for entry in selectors.device_selectors(parts)]
    assert len(texts) == limits.SELECTORS
    assert not all(ENGINE.matches(text, {}, "d") for text in texts)
    parts[1] = selectors.Selector("true // always")
    texts = [entry["cel"]["expression"] for entry in selectors.device_selectors(parts)]
    assert all(ENGINE.matches(text, {}, "d") for text in texts)
    assert not any(ENGINE.matches(text, {}, "e") for text in texts[-5:])


def test_parts_that_do_not_fit_are_refused():
    long = selectors.driver_is("x" * (limits.CEL_BYTES - 19))
    assert len(long.text) == limits.CEL_BYTES
    assert len(selectors.device_selectors([long] * limits.SELECTORS)) == limits.SELECTORS
    with pytest.raises(ValueError, match="more than 32"):
        selectors.device_selectors([long] * (limits.SELECTORS + 1))
    with pytest.raises(ValueError, match="10241 bytes"):
        selectors.device_selectors([selectors.driver_is("x" * (limits.CEL_BYTES - 18))])
