# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare verdict, estimated cost and result of device selectors with Kubernetes' own compiler and evaluator.

RULES has the differences that are allowed. Selectors in `cel_cases.DIFFERENT` are grouped by the rule that they need.
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
from ansible_collections.lanewise.dra.tests.oracle.cel_cases import ATTRS, DIFFERENT, SAME
from ansible_collections.lanewise.dra.tests.oracle.program import Program, needs_engine, needs_go
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims import test_selectors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SOURCE = Path(__file__).resolve().parent / "cel"

pytestmark = [pytest.mark.long, needs_go("Kubernetes' compiler"), needs_engine()]  # it builds a Go program

RULES = {
    "unchecked": "The engine lacks what the expression uses, and reports that instead of a verdict or result",
    "version-as-map": "The engine stores versions and quantities as maps: size() and in accept them, string() differs",
    "sum-on-the-right": "cel-go finds no overload for == if a sum or difference of quantities is on the right",
    "integer-by-notation": "Whether a quantity is an integer depends on its notation for the server, on its value here",
    "in-empty-list": "In cel-go, nothing is in an empty list, even if the left side cannot be evaluated",
    "split-of-empty-text": "Splitting an empty text at an empty text gives one part in the engine, none in cel-go",
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
# A device with the same names but other values and types: the engine reuses results for devices with equal values
OTHER_VALUES = {
    "name": "other-values",
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
CANDIDATES = [
    {"driver": "d.io", "device": DEVICE},
    {"driver": "o.io", "device": DEVICE},
    {"driver": "d.io", "device": {"name": "bare"}},
    {"driver": "d.io", "device": OTHER_VALUES},
]


class Oracle:
    """The Go program with Kubernetes' compiler and evaluator. It judges one expression at a time."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def ask(self, expression: str, candidates: t.Any, consumable: bool = True, lists: bool = False) -> dict[str, t.Any]:
        features = {"consumableCapacity": consumable, "listTypeAttributes": lists}
        return self.program.ask({"expression": expression, "features": features, "devices": candidates})


@pytest.fixture(scope="session")
def oracle() -> t.Iterator[Oracle]:
    with Program(SOURCE) as program:
        yield Oracle(program)


def result_of(engine: Engine, expression: str, candidate: dict[str, t.Any]) -> t.Any:
    """Whether the engine finds that the device matches, or the error."""
    try:
        return engine.matches(expression, candidate["device"], candidate["driver"])
    except (EvaluationError, Uncheckable) as error:
        return error


def compare(
    oracle: Oracle, engine: Engine, expression: str, candidates: t.Any, **features: bool
) -> collections.Counter:
    """Fail on a difference without a rule. Returns counts of what was compared, and of the rules that were needed."""
    answer = oracle.ask(expression, candidates, **features)
    verdict = engine.judge(expression)
    counts: collections.Counter = collections.Counter(expressions=1)
    if "error" in answer:
        counts["refused"] += 1
        assert verdict.cost is None, f"{expression}: {answer['error']}"
        assert verdict.errors or verdict.unchecked
        counts["unchecked"] += bool(verdict.unchecked)
        return counts
    if verdict.cost is not None:
        counts["costs"] += 1
        assert verdict.cost == int(answer["cost"]), expression
        assert bool(verdict.errors) == (verdict.cost > limits.CEL_COST)
    else:
        assert not verdict.errors, f"{expression}: {verdict.errors}, on the server {answer['cost']}"
        assert verdict.unchecked
        counts["unchecked"] += 1
    if verdict.errors:
        counts["too complex"] += 1
        return counts
    for candidate, expected in zip(candidates, answer.get("results", [])):
        result = result_of(engine, expression, candidate)
        counts["results"] += 1
        if isinstance(result, Uncheckable):
            counts["unchecked"] += 1
        elif isinstance(expected, str) != isinstance(result, EvaluationError) or (
            isinstance(expected, bool) and expected is not result
        ):
            counts[rule_for(expression, candidate, expected, result)] += 1
    return counts


def rule_for(expression: str, candidate: dict[str, t.Any], expected: t.Any, result: t.Any) -> str:
    """The rule that explains another result than expected. Fails if there is none."""
    attributes = (candidate["device"].get("attributes") or {}).values()
    has_versions = any("version" in attribute for attribute in attributes)
    creates_values = "semver(" in expression or "quantity(" in expression
    if (has_versions or creates_values) and any(name in expression for name in ("size", "string(", " in ")):
        return "version-as-map"
    if isinstance(expected, str) and "==" in expression and (".add(" in expression or ".sub(" in expression):
        return "sum-on-the-right"
    if "asInteger" in expression or "isInteger" in expression:
        return "integer-by-notation"
    if " in []" in expression:
        return "in-empty-list"
    if ".split(" in expression:
        return "split-of-empty-text"
    raise AssertionError(f"{expression} on {candidate}: {result!r}, on the server {expected!r}")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.mark.parametrize("expression", SAME)
def test_verdict_cost_and_result_are_the_same(expression: str, oracle: Oracle, engine: Engine) -> None:
    counts = compare(oracle, engine, expression, CANDIDATES)
    assert not {rule for rule in RULES if counts[rule]}, "a case in SAME needed a rule"


@pytest.mark.parametrize(
    ("rule", "expression"), [(rule, line) for rule, text in DIFFERENT.items() for line in text.strip().splitlines()]
)
def test_each_rule_is_triggered(rule: str, expression: str, oracle: Oracle, engine: Engine) -> None:
    assert compare(oracle, engine, expression, CANDIDATES)[rule]


@pytest.mark.parametrize("consumable", [True, False])
@pytest.mark.parametrize("lists", [True, False])
def test_feature_gates_declare_the_same_fields_and_types(consumable: bool, lists: bool, oracle: Oracle) -> None:
    engine = Engine(consumable_capacity=consumable, list_attributes=lists)
    values = {"l": {"ints": [1, 2]}, "t": {"strings": ["a"]}, "w": {"versions": ["1.0.0"]}, "s": {"string": "a"}}
    candidates = [{"driver": "d.io", "device": {"name": "x", "attributes": values}}]
    for expression in (
        "device.allowMultipleAllocations",
        "dyn(true)",
        f"{ATTRS}.l.exists(x, x == 1)",
        f"{ATTRS}.l.exists(x, x == 2 && x in {ATTRS}.l)",
        f"1 in {ATTRS}.l",
        f"{ATTRS}.t.all(x, x == 'a')",
        f"{ATTRS}.w.all(x, x.isGreaterThan(semver('0.0.1')))",
        f"{ATTRS}.s.exists(x, x == 1)",
        f"{ATTRS}.l.includes(1)",
        f"{ATTRS}.t",
        f"{ATTRS}.t[0] == 'a'",
        f"{ATTRS}.t.size() == 1",
    ):
        compare(oracle, engine, expression, candidates, consumable=consumable, lists=lists)


# Random expressions: a grammar with one rule per type. #TYPE stands for an expression of that type, OR for ||.

MAPS = "attributes capacity".split()
DOMAINS = '"d.io" "o.io" "none" device.driver'.split()
GRAMMAR: dict[str, str | list[str]] = {
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


def alternatives(kind: str) -> list[str]:
    rule = GRAMMAR[kind]
    return rule if isinstance(rule, list) else [text.strip().replace("OR", "||") for text in rule.split("|")]


ALTERNATIVES = {kind: alternatives(kind) for kind in GRAMMAR}
#: Alternatives without further parts, which end the recursion; all alternatives if there are no such ones.
TERMINALS = {kind: [text for text in texts if "#" not in text] or texts for kind, texts in ALTERNATIVES.items()}


def random_expression(kind: str, random: Random, depth: int = 4) -> str:
    """An expression of a type. Rarely, a part has any type instead of the right one."""
    if kind != "compared" and random.random() < 0.02:
        kind = "any"
    chosen = random.choice((ALTERNATIVES if depth > 0 else TERMINALS)[kind])
    return re.sub(r"#(\w+)", lambda part: random_expression(part[1], random, depth - 1), chosen)


def expressions() -> st.SearchStrategy[str]:
    return st.integers(0, 2**64).map(lambda seed: random_expression("bool", Random(seed)))


@st.composite
def damaged_expressions(draw: t.Any) -> str:
    """Expressions in which one character is left out, doubled or replaced."""
    text = draw(expressions())
    position = draw(st.integers(0, len(text) - 1))
    replacement = draw(st.sampled_from(["", text[position] * 2, ".", "(", ")", '"', "1", "?", " "]))
    return text[:position] + replacement + text[position + 1 :]


def report(name: str, counts: collections.Counter, summarize: t.Callable[[t.Any], None]) -> None:
    summarize(f"cel {name}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


def compare_examples(name: str, strategy: st.SearchStrategy[str], oracle: Oracle, summarize: t.Any) -> None:
    engine = Engine()
    totals: collections.Counter = collections.Counter()
    examples = int(os.environ.get("LANEWISE_CEL_EXAMPLES", "1000"))

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(expression: str) -> None:
        totals.update(compare(oracle, engine, expression, CANDIDATES))

    run()
    report(name, totals, summarize)
    assert totals["costs"] or name == "damaged"


def test_random_expressions_have_only_differences_with_a_rule(
    oracle: Oracle, summarize: t.Callable[[t.Any], None]
) -> None:
    compare_examples("random", expressions(), oracle, summarize)


def test_damaged_expressions_have_only_differences_with_a_rule(
    oracle: Oracle, summarize: t.Callable[[t.Any], None]
) -> None:
    compare_examples("damaged", damaged_expressions(), oracle, summarize)


def test_selectors_of_claims_never_fail_on_the_server(oracle: Oracle, summarize: t.Callable[[t.Any], None]) -> None:
    """Selectors written by selectors.py have the same result on the server as the equivalent test in Python."""
    counts = collections.Counter()

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.recursive(test_selectors.primitives(), test_selectors.joined, max_leaves=8),
        st.lists(test_selectors.devices(), min_size=1, max_size=4),
    )
    def run(pair: t.Any, devices: t.Any) -> None:
        selector, meaning = pair
        candidates = [{"driver": driver, "device": {"name": "x", **device}} for driver, device in devices]
        answer = oracle.ask(selector.text, candidates)
        assert "error" not in answer, f"{selector.text}: {answer}"
        assert int(answer["cost"]) <= limits.CEL_COST
        assert answer["results"] == [meaning(driver, device) for driver, device in devices], selector.text
        counts.update(selectors=1, results=len(devices))

    run()
    report("selectors of claims", counts, summarize)
