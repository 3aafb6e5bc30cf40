# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verdict, estimated cost and result of device selectors against Kubernetes' own compiler and evaluator.

RULES has the differences that are allowed; each hand-written case that needs a rule names it.
"""

from __future__ import annotations

import collections
import os
import re
import typing as t
from pathlib import Path
from random import Random

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import (
    EvaluationError,
    Uncheckable,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from ansible_collections.lanewise.dra.tests.oracle.cel_cases import DIFFERENT, SAME, D
from ansible_collections.lanewise.dra.tests.oracle.program import Program, needs_engine, needs_go
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import test_selectors as written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SOURCE = Path(__file__).resolve().parent / "cel"

pytestmark = [pytest.mark.long, needs_go("Kubernetes' compiler"), needs_engine()]  # it builds a Go program

RULES = {
    "unchecked": "The engine lacks what the expression uses, and reports that: no verdict, or no result",
    "version-as-map": "Versions and quantities are maps to the engine: with a size, searched with in, never a key",
    "sum-on-the-right": "cel-go finds no overload for == where a sum or difference of quantities is on the right",
    "whole-by-form": "Whether a quantity is an integer depends on how it is written for the server, on its value here",
    "in-nothing": "For cel-go membership in an empty list is false, whatever the left side is",
    "split-of-nothing": "Empty text split at empty text is one part to the engine, none to cel-go",
}

DEVICE = {
    "name": "x",
    "attributes": {
        "s": {"string": "a"},
        "i": {"int": 1},
        "b": {"bool": True},
        "v": {"version": "1.2.3-rc.1+b"},
        "d.io/q": {"string": "1.2.3"},
        "o.io/z": {"string": "zz"},
    },
    "capacity": {"m": {"value": "5Gi"}, "o.io/n": {"value": "5000m"}},
    "allowMultipleAllocations": True,
}
# The same names with other values and types, because a result for one device may be reused for similar devices
TWIN = {
    "name": "twin",
    "attributes": {
        "s": {"string": "zz"},
        "i": {"bool": True},
        "b": {"int": 1},
        "v": {"version": "0.0.0"},
        "none": {"string": "a"},
        "o.io/z": {"bool": False},
        "none/s": {"string": "b"},
    },
    "capacity": {"m": {"value": "5000m"}, "none/m": {"value": "1"}},
}
SUBJECTS = [
    {"driver": "d.io", "device": DEVICE},
    {"driver": "o.io", "device": DEVICE},
    {"driver": "d.io", "device": {"name": "bare"}},
    {"driver": "d.io", "device": TWIN},
]


class Oracle:
    """The Go program, with a method for one expression."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def ask(self, expression: str, subjects: t.Any, consumable: bool = True, lists: bool = False) -> dict[str, t.Any]:
        features = {"consumableCapacity": consumable, "listTypeAttributes": lists}
        return self.program.ask({"expression": expression, "features": features, "devices": subjects})


@pytest.fixture(scope="session")
def oracle() -> t.Iterator[Oracle]:
    with Program(SOURCE) as running:
        yield Oracle(running)


def result_of(engine: Engine, expression: str, subject: dict[str, t.Any]) -> t.Any:
    try:
        return engine.matches(expression, subject["device"], subject["driver"])
    except (EvaluationError, Uncheckable) as error:
        return error


def compare(oracle: Oracle, engine: Engine, expression: str, subjects: t.Any, **features: bool) -> collections.Counter:
    """Fail on a difference without a rule. Returns counts of what was compared, and of the rules that were needed."""
    theirs = oracle.ask(expression, subjects, **features)
    ours = engine.judge(expression)
    seen: collections.Counter = collections.Counter(expressions=1)
    if "error" in theirs:
        seen["refused"] += 1
        assert ours.cost is None, f"{expression}: {theirs['error']}"
        assert ours.errors or ours.unchecked
        seen["unchecked"] += bool(ours.unchecked)
        return seen
    if ours.cost is not None:
        seen["costs"] += 1
        assert ours.cost == int(theirs["cost"]), expression
        assert bool(ours.errors) == (ours.cost > limits.CEL_COST)
    else:
        assert not ours.errors, f"{expression}: {ours.errors}, on the server {theirs['cost']}"
        assert ours.unchecked
        seen["unchecked"] += 1
    if ours.errors:
        seen["too complex"] += 1
        return seen
    for subject, expected in zip(subjects, theirs.get("results", [])):
        result = result_of(engine, expression, subject)
        seen["results"] += 1
        if isinstance(result, Uncheckable):
            seen["unchecked"] += 1
        elif isinstance(expected, str) != isinstance(result, EvaluationError) or (
            isinstance(expected, bool) and expected is not result
        ):
            seen[rule_for(expression, subject, expected, result)] += 1
    return seen


def rule_for(expression: str, subject: dict[str, t.Any], expected: t.Any, result: t.Any) -> str:
    versions = [one for one in (subject["device"].get("attributes") or {}).values() if "version" in one]
    written_there = "semver(" in expression or "quantity(" in expression
    if (versions or written_there) and any(name in expression for name in ("size", "string(", " in ")):
        return "version-as-map"
    if isinstance(expected, str) and "==" in expression and (".add(" in expression or ".sub(" in expression):
        return "sum-on-the-right"
    if "asInteger" in expression or "isInteger" in expression:
        return "whole-by-form"
    if " in []" in expression:
        return "in-nothing"
    if ".split(" in expression:
        return "split-of-nothing"
    raise AssertionError(f"{expression} on {subject}: {result!r}, on the server {expected!r}")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.mark.parametrize("expression", SAME)
def test_same(expression: str, oracle: Oracle, engine: Engine) -> None:
    seen = compare(oracle, engine, expression, SUBJECTS)
    assert not {rule for rule in RULES if seen[rule]}, "a case in SAME needed a rule"


@pytest.mark.parametrize(
    ("rule", "expression"), [(rule, line) for rule, text in DIFFERENT.items() for line in text.strip().splitlines()]
)
def test_each_rule_is_triggered(rule: str, expression: str, oracle: Oracle, engine: Engine) -> None:
    assert compare(oracle, engine, expression, SUBJECTS)[rule]


@pytest.mark.parametrize("consumable", [True, False])
@pytest.mark.parametrize("lists", [True, False])
def test_gates(consumable: bool, lists: bool, oracle: Oracle) -> None:
    """The types that the server declares under each gate."""
    engine = Engine(consumable_capacity=consumable, list_attributes=lists)
    values = {"l": {"ints": [1, 2]}, "t": {"strings": ["a"]}, "w": {"versions": ["1.0.0"]}, "s": {"string": "a"}}
    subjects = [{"driver": "d.io", "device": {"name": "x", "attributes": values}}]
    for expression in (
        "device.allowMultipleAllocations",
        "dyn(true)",
        f"{D}.l.exists(x, x == 1)",
        f"{D}.l.exists(x, x == 2 && x in {D}.l)",
        f"1 in {D}.l",
        f"{D}.t.all(x, x == 'a')",
        f"{D}.w.all(x, x.isGreaterThan(semver('0.0.1')))",
        f"{D}.s.exists(x, x == 1)",
        f"{D}.l.includes(1)",
        f"{D}.t",
        f"{D}.t[0] == 'a'",
        f"{D}.t.size() == 1",
    ):
        compare(oracle, engine, expression, subjects, consumable=consumable, lists=lists)


# Expressions by a grammar of the language's types, with a part of a wrong type now and then


MAPS = "attributes capacity".split()
DOMAINS = '"d.io" "o.io" "none" device.driver'.split()
GRAMMAR = {
    "attribute": [f"device.attributes[{domain}].{name}" for domain in DOMAINS for name in "s i b v q z m none".split()],
    "map": [f"device.{kind}[{domain}]" for kind in MAPS for domain in DOMAINS],
    "compared": "== != < <= > >=".split(),
    "text": """
        "a" | "" | "zz" | "d.io" | "abcdefghijkl" | '1.2.3' | device.driver | k | x | #attribute | #text + #text
        | #text.lowerAscii() | #text.trim() | #text.substring(1) | #text.replace(#text, #text) | #text.split(#text)[0]
        | (#bool ? #text : #text) | #list.join(#text) | optional.of(#text).orValue(#text) | #map.?s.orValue(#text)
        | strings.quote(#text) | string(#number)
    """,
    "number": """
        0 | 1 | 2 | -1 | 9223372036854775807 | #attribute | (#number + #number) | (#number - #number)
        | (#number * #number) | (#number / #number) | (#number % #number) | #text.size() | size(#map)
        | #text.indexOf(#text) | #quantity.compareTo(#quantity) | #version.compareTo(#version) | #version.major()
        | int(#text) | -#number
    """,
    "quantity": """
        quantity("0") | quantity("5Gi") | quantity("5000m") | quantity("x") | quantity("1e3") | quantity(#text)
        | device.capacity["d.io"].m | device.capacity["o.io"].n | #quantity.add(#quantity) | #quantity.sub(#number)
    """,
    "version": """
        semver("1.2.3") | semver("1.2.3-rc.1") | semver("0.0.0") | semver("x") | semver(#text, true) | #attribute
    """,
    "list": """
        [] | [#text] | [#text, #text, #text] | [#number, #number] | #text.split(#text) | #list.map(x, #text)
        | #list.filter(x, #bool) | #map.map(k, #text)
    """,
    "any": "#attribute | #text | #number | #bool | #quantity | #version | #list",
    "bool": """
        true | false | device.allowMultipleAllocations | #attribute | has(#attribute) | #text #compared #text
        | #number #compared #number | #attribute == #any | #version == #version | (#bool && #bool) | (#bool OR #bool)
        | !(#bool) | (#bool ? #bool : #bool) | #text in #list | #text in #map | #text.startsWith(#text)
        | #text.contains(#text) | #text.matches(#text) | #quantity.isGreaterThan(#quantity)
        | #version.isLessThan(#version) | #map.exists(k, #bool) | #map.all(k, #bool) | #list.exists(x, #bool)
        | #list.all(x, #bool) | #list.exists_one(x, #bool) | #map.exists(k, x, #bool) | cel.bind(x, #any, #bool)
        | cel.bind(x, #map, x.all(k, #text == x.s OR k == x[#text])) | type(#any) in [int] | #any
    """,
}


def choices(kind: str) -> list[str]:
    rule = GRAMMAR[kind]
    return rule if isinstance(rule, list) else [one.strip().replace("OR", "||") for one in rule.split("|")]


CHOICES = {kind: choices(kind) for kind in GRAMMAR}
SHORT = {kind: [one for one in of if "#" not in one] or of for kind, of in CHOICES.items()}


def write(kind: str, random: Random, depth: int = 4) -> str:
    """An expression of a kind, with a part of another kind now and then."""
    if kind != "compared" and random.random() < 0.02:
        kind = "any"
    chosen = random.choice((CHOICES if depth > 0 else SHORT)[kind])
    return re.sub(r"#(\w+)", lambda part: write(part[1], random, depth - 1), chosen)


def whole() -> st.SearchStrategy[str]:
    return st.integers(0, 2**64).map(lambda seed: write("bool", Random(seed)))


@st.composite
def broken(draw: t.Any) -> str:
    """One character left out, doubled or replaced."""
    text = draw(whole())
    at = draw(st.integers(0, len(text) - 1))
    return text[:at] + draw(st.sampled_from(["", text[at] * 2, ".", "(", ")", '"', "1", "?", " "])) + text[at + 1 :]


def report(name: str, seen: collections.Counter, summarize: t.Callable[[t.Any], None]) -> None:
    summarize(f"cel {name}: " + ", ".join(f"{count} {what}" for what, count in sorted(seen.items())))


def generated(name: str, expressions: st.SearchStrategy[str], count: int, oracle: Oracle, summarize: t.Any) -> None:
    engine = Engine()
    totals: collections.Counter = collections.Counter()

    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(expressions)
    def run(expression: str) -> None:
        totals.update(compare(oracle, engine, expression, SUBJECTS))

    run()
    report(name, totals, summarize)
    assert totals["costs"] or name == "broken"


def test_generated(oracle: Oracle, summarize: t.Callable[[t.Any], None]) -> None:
    generated("generated", whole(), int(os.environ.get("LANEWISE_CEL_EXAMPLES", "1000")), oracle, summarize)


def test_broken(oracle: Oracle, summarize: t.Callable[[t.Any], None]) -> None:
    generated("broken", broken(), int(os.environ.get("LANEWISE_CEL_EXAMPLES", "1000")), oracle, summarize)


def test_written_selectors(oracle: Oracle, summarize: t.Callable[[t.Any], None]) -> None:
    """Selectors from selectors.py never fail on the server, and give the same result there as in Python."""
    counted = collections.Counter()

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.recursive(written.primitives(), written.joined, max_leaves=8),
        st.lists(written.devices(), min_size=1, max_size=4),
    )
    def run(pair: t.Any, subjects: t.Any) -> None:
        selector, meaning = pair
        asked = [{"driver": driver, "device": {"name": "x", **device}} for driver, device in subjects]
        theirs = oracle.ask(selector.text, asked)
        assert "error" not in theirs, f"{selector.text}: {theirs}"
        assert int(theirs["cost"]) <= limits.CEL_COST
        assert theirs["results"] == [meaning(*subject) for subject in subjects], selector.text
        counted.update(selectors=1, results=len(subjects))

    run()
    report("written", counted, summarize)
