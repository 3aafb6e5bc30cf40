# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The CEL engine, on hand-picked expressions. tests/oracle/test_cel.py checks that a server gives the same results."""

from __future__ import annotations

import builtins
import re

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import (
    EngineMissing,
    EvaluationError,
    Uncheckable,
)
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.expression import read

try:
    ENGINE = Engine()
except EngineMissing:
    ENGINE = None
needs_engine = pytest.mark.skipif(ENGINE is None, reason="cel-expr-python is not installed for this Python")

ATTRIBUTES = 'device.attributes["d.io"]'
DEVICE = {
    "attributes": {"s": {"string": "a"}, "d.io/i": {"int": 3}, "v": {"version": "1.2.3"}, "o.io/b": {"bool": True}},
    "capacity": {"memory": {"value": "80Gi"}},
}


def test_a_missing_package_is_reported(monkeypatch):
    real_import = builtins.__import__

    def import_without_cel(name, *rest, **more):
        if name.startswith("cel_expr_python"):
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", import_without_cel)
    with pytest.raises(EngineMissing, match="cel-expr-python"):
        Engine()


@needs_engine
@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("true", 0),
        ('device.driver == "d.io"', 3),
        (f"{ATTRIBUTES}.b", 4),
        (f"has({ATTRIBUTES}.i) && {ATTRIBUTES}.i >= 3", 8),
        (f"type({ATTRIBUTES}.i) in [int]", 17),
        ('device.capacity["d.io"].memory.compareTo(quantity("80Gi")) >= 0', 7),
        (f'{ATTRIBUTES}.exists_one(k, k == "i")', 133),
    ],
)
def test_expressions_have_the_cost_that_the_server_estimates(expression, cost):
    assert ENGINE.check(expression) == []
    assert ENGINE.cost(expression) == cost


@needs_engine
def test_a_pattern_may_have_any_character():
    assert ENGINE.check('device.driver.matches("\U0001f600")') == []


@needs_engine
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("true &&", "Syntax error|mismatched"),
        ("device.driver == 1", "no matching overload"),
        ("device.nothing", "undeclared reference"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("dyn(true)", "not dyn"),
        ("[1, dyn('a')].size() == 2", "elements of different types"),
        ("device.driver.matches('[')", "invalid matches argument"),
        ("duration('1 day') > duration('1s')", "invalid duration argument"),
        (f"type({ATTRIBUTES}.i) == int", "too complex"),
        ("'" + "é" * 5120 + "' == ''", "bytes, at most 10240"),
        ("'\ud800' == ''", "not valid Unicode"),
    ],
)
def test_invalid_expressions_are_reported_with_a_reason(expression, message):
    (error,) = ENGINE.check(expression)
    assert re.search(message, error)
    if "too complex" not in error:
        with pytest.raises(ValueError):
            ENGINE.cost(expression)


@needs_engine
@pytest.mark.parametrize(
    "expression",
    ["has(device.driver)", "1 < 1.5", '"a".find("a") == "a"', "sets.contains([1], [1])", "(" * 40 + "true" + ")" * 40],
)
def test_expressions_that_only_a_server_can_check_are_not_errors(expression):
    verdict = ENGINE.judge(expression)
    assert not verdict.errors and verdict.unchecked and verdict.cost is None
    assert ENGINE.check(expression) == []
    with pytest.raises(Uncheckable, match="cannot be checked offline"):
        ENGINE.cost(expression)


@needs_engine
@pytest.mark.parametrize(
    ("expression", "result"),
    [
        (f'{ATTRIBUTES}.s == "a" && {ATTRIBUTES}.i == 3', True),
        ('device.attributes["o.io"].b', True),
        ('"none" in device.attributes', False),
        ('has(device.attributes["none"].x)', False),
        (f'{ATTRIBUTES}.v.isGreaterThan(semver("1.2.3-rc.1"))', True),
        ('device.capacity["d.io"].memory == quantity("85899345920")', True),
        ("device.allowMultipleAllocations", False),
        ('isSemver("1.0.0-18446744073709551615")', True),
        ('isSemver("1.0.0-18446744073709551616") || isSemver("18446744073709551616.0.0")', False),
        (f'isSemver("1.0.0-{"9" * 5000}") || isSemver("{"9" * 5000}.0.0")', False),
        ('quantity("1e400").asApproximateFloat() > 1e308', True),
        ('quantity("-1e400").asApproximateFloat() < -1e308', True),
    ],
)
def test_expressions_are_evaluated_on_a_device(expression, result):
    assert ENGINE.matches(expression, DEVICE, "d.io") is result


@needs_engine
@pytest.mark.parametrize(
    "expression",
    [
        f"{ATTRIBUTES}.nothing == 1",
        'device.attributes["none"].x',
        f"{ATTRIBUTES}.s",
        f'{ATTRIBUTES}.v == "1.2.3"',
        f"{ATTRIBUTES}.s >= 1",
        "device.nothing",
    ],
)
def test_expressions_that_abort_the_scheduler_raise_an_error(expression):
    with pytest.raises(EvaluationError):
        ENGINE.matches(expression, DEVICE, "d.io")


@needs_engine
def test_a_capacity_without_a_valid_amount_is_zero_or_an_error():
    expression = 'device.capacity["d.io"].memory.compareTo(quantity("0")) == 0'
    assert ENGINE.matches(expression, {"capacity": {"memory": {}}}, "d.io")
    with pytest.raises(EvaluationError, match="capacity memory"):
        ENGINE.matches(expression, {"capacity": {"memory": {"value": "x"}}}, "d.io")


@needs_engine
def test_a_device_is_read_in_the_format_of_the_api():
    with pytest.raises(EvaluationError, match="attribute v"):
        ENGINE.matches("true", {"attributes": {"v": {"version": "1.2"}}}, "d.io")
    with pytest.raises(Uncheckable, match="NUL"):
        ENGINE.matches("true", {"attributes": {"s": {"string": "a\0"}}}, "d.io")
    assert ENGINE.matches("device.attributes.size() == 0", {"attributes": None}, "d.io")


#: Values of the attribute i. Some are equal in Python: 1 and True, 0 and False.
VALUES = [None, {"int": 1}, {"int": 0}, {"bool": True}, {"bool": False}, {"string": "1"}, {"version": "1.0.0"}]


@needs_engine
@pytest.mark.parametrize(
    ("expression", "results"),
    [
        (f"has({ATTRIBUTES}.i)", [False, True, True, True, True, True, True]),
        (f'"i" in {ATTRIBUTES}', [False, True, True, True, True, True, True]),
        (
            f"has({ATTRIBUTES}.i) && type({ATTRIBUTES}.i) in [int] && {ATTRIBUTES}.i >= 1",
            [False, True, False, False, False, False, False],
        ),
        (f"{ATTRIBUTES}.i == true", [None, False, False, True, False, False, None]),
        (f'{ATTRIBUTES}["i"] == "1"', [None, False, False, False, False, True, None]),
        ('"d.io" in device.attributes', [False, True, True, True, True, True, True]),
        ("device.attributes.size() == 0", [True, False, False, False, False, False, False]),
        (f"{ATTRIBUTES}.size() == 1", [False, True, True, True, True, True, True]),
        ("device.attributes[device.driver].?i.hasValue()", [False, True, True, True, True, True, True]),
        ("device.attributes.exists(d, device.attributes[d].i == 1)", [False, True, False, False, False, False, None]),
        (f"cel.bind(m, {ATTRIBUTES}, has(m.i))", [False, True, True, True, True, True, True]),
    ],
)
def test_a_cached_answer_is_not_used_for_another_value_of_the_attribute(expression, results):
    engine = Engine()
    for _again in range(2):
        found = []
        for value in VALUES:
            try:
                found.append(engine.matches(expression, {"attributes": {"i": value} if value else {}}, "d.io"))
            except EvaluationError:
                found.append(None)
        assert found == results


@needs_engine
def test_a_cached_answer_is_not_used_for_another_driver_or_another_field_of_the_device():
    shared = {**DEVICE, "allowMultipleAllocations": True}
    for _again in range(2):
        assert ENGINE.matches('device.driver == "d.io"', DEVICE, "d.io")
        assert not ENGINE.matches('device.driver == "d.io"', DEVICE, "o.io")
        assert ENGINE.matches("device.allowMultipleAllocations", shared, "d.io")
        assert not ENGINE.matches("device.allowMultipleAllocations", DEVICE, "d.io")


@pytest.mark.parametrize("data", [b"", b"\x0a\x01x"])
def test_bytes_that_are_not_a_parsed_expression_are_refused(data):
    with pytest.raises(ValueError, match="not an expression"):
        read(data)
