# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Checks new selectors as an API server does, as far as this is possible offline."""

from __future__ import annotations

import json
import re

from ..kube import limits
from .cost import estimate
from .cost_functions import UnknownCost
from .environment import CelModule, make_environment
from .errors import BARE_DEVICE, Verdict
from .expression import Checked, Node, Type, read
from .functions import SERVER_ONLY_FUNCTIONS

_COMPARISON = re.compile(r"no matching overload for '_(?:<|<=|>|>=)_' applied to '\((?:int|uint|double), ")


# The server evaluates calls of these functions with constant arguments at compile time
_EVALUATED_AT_COMPILE = ("matches", "duration", "timestamp", "int", "uint", "double", "bool")


#: This engine's own limit is 32, the server's 250.
_TOO_DEEP = re.compile(r"recursion (?:depth|limit)")
# The only character class that RE2 has and Go's regexp lacks
_SINGLE_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")


# An expression that may call has() on device itself, or contains a comment that may hide such a call
_MAY_TEST_DEVICE = re.compile(r"//|\bhas\b[\s(]*device\b(?!\.(?:attributes|capacity)\[)")


def uses_bare_device(root: Node) -> bool:
    """Whether `device` is used as a whole, not by its fields, which are declared to the engine as variables."""
    fields = [
        node.target.number
        for node in root.walk()
        if node.kind == "select" and not node.test_only and node.target is not None
    ]
    indexed = [node.parts[0].number for node in root.walk() if node.kind == "call" and node.name == "_[_]"]
    for node in root.walk():
        if node.kind == "ident" and node.name == "device" and node.number not in fields and node.number not in indexed:
            return True
        if node.kind == "comprehension" and "device" in (*node.variables, node.accumulator):
            return True
    return False


def first_line(error: Exception) -> str:
    """The engine's message without the excerpt of the expression."""
    lines = str(error).splitlines()
    text = lines[0] if lines else type(error).__name__
    return re.sub(r"^INVALID_ARGUMENT: (?:ERROR: )?(?:<input>:)?", "", text).removesuffix(" [INVALID_ARGUMENT]")


class Checker:
    """Checks selectors and caches the verdicts. For the arguments see `Engine`."""

    def __init__(self, cel: CelModule, consumable_capacity: bool, list_attributes: bool) -> None:
        self._cel = cel
        self._attribute_type = "dyn" if list_attributes else "any"
        self._checking = make_environment(cel, self._attribute_type, consumable_capacity, True)
        self.evaluating = make_environment(cel, self._attribute_type, consumable_capacity, False)
        self._verdicts: dict[str, Verdict] = {}

    def judge(self, expression: str) -> Verdict:
        """The server's verdict on a new selector, as far as it is known (validateCELExpression in validation.go)."""
        verdict = self._verdicts.get(expression)
        if verdict is None:
            verdict = self._verdicts[expression] = self._judge(expression)
        return verdict

    def _judge(self, expression: str) -> Verdict:  # noqa: PLR0911  # each check ends with its verdict
        try:
            length = len(expression.encode())
        except UnicodeEncodeError:
            return Verdict(errors=("not valid Unicode",))
        if length > limits.CEL_BYTES:
            return Verdict(errors=(f"{length} bytes, at most {limits.CEL_BYTES} are allowed",))
        try:
            compiled = self._checking.compile(expression)
        except RuntimeError as error:
            return self._compile_failure(expression, error)
        checked = read(compiled.serialize())
        # in the checked tree, has(device.driver) is the same as device.driver
        may_test_device = _MAY_TEST_DEVICE.search(expression) is not None
        if uses_bare_device(checked.root) or (may_test_device and uses_bare_device(self._parsed(expression))):
            return BARE_DEVICE
        wrong_result = self._wrong_result(checked)
        if wrong_result:
            return Verdict(errors=(wrong_result,))
        nodes = list(checked.root.walk())
        if any(node.kind == "call" and node.name == "format" for node in nodes):  # the server parses the template
            return Verdict(unchecked=("cannot be checked offline: format",))
        if any(node.kind == "struct" for node in nodes):
            return Verdict(unchecked=("cannot be checked offline: messages",))
        errors = self._wrong_literals(checked)
        if errors:
            return Verdict(errors=tuple(errors))
        try:
            cost = estimate(checked)
        except UnknownCost as error:
            return Verdict(unchecked=(f"cannot be checked offline: the cost of {error}",))
        if cost > limits.CEL_COST:
            return Verdict(
                errors=(f"too complex: the worst case costs {cost}, at most {limits.CEL_COST} is allowed",), cost=cost
            )
        return Verdict(cost=cost)

    def _parsed(self, expression: str) -> Node:
        return read(self._checking.compile(expression, disable_check=True).serialize()).root

    def _compile_failure(self, expression: str, error: RuntimeError) -> Verdict:
        """The verdict on an expression that the engine cannot compile."""
        try:
            parsed = self._parsed(expression)
        except RuntimeError as syntax:
            if _TOO_DEEP.search(str(syntax)):
                return Verdict(unchecked=("cannot be checked offline: it is nested too deeply",))
            return Verdict(errors=(first_line(syntax),))
        if uses_bare_device(parsed):
            return BARE_DEVICE
        server_only = sorted({node.name for node in parsed.walk() if node.kind == "call"} & SERVER_ONLY_FUNCTIONS)
        if server_only:
            return Verdict(unchecked=(f"cannot be checked offline: {', '.join(server_only)}",))
        if _COMPARISON.search(str(error)):
            return Verdict(unchecked=("cannot be checked offline: a comparison of different number types",))
        return Verdict(errors=(first_line(error),))

    def _wrong_result(self, checked: Checked) -> str:
        """Why the type of the result is wrong; empty if it is not."""
        result = checked.type_of(checked.root)
        if result.kind in ("bool", self._attribute_type):
            return ""
        return f"must evaluate to bool or the unknown type, not {result.name or result.kind}"

    def _wrong_literals(self, checked: Checked) -> list[str]:
        """The errors of lists and maps with mixed types, and of constant arguments that cannot be evaluated."""
        errors = []
        for node in checked.root.walk():
            if node.kind in ("list", "map"):
                stride = 1 if node.kind == "list" else 2
                for start in range(stride):
                    element_types = []
                    for index, part in enumerate(node.parts[start::stride]):
                        element_type = checked.type_of(part)
                        if index in node.optional and start == stride - 1 and element_type.parameters:
                            element_type = element_type.parameters[0]
                        element_types.append(element_type)
                    if any(not same_type(element_types[0], other_type) for other_type in element_types[1:]):
                        errors.append(f"a {node.kind} has elements of different types")
            elif node.kind == "call" and node.name in _EVALUATED_AT_COMPILE:
                literal = node.parts[-1]
                if literal.literal_type == "string" and not self._evaluates(node.name, literal.value):
                    errors.append(f"invalid {node.name} argument {literal.value!r}")
        return errors

    def _evaluates(self, function: str, text: str) -> bool:
        """Whether a function can be evaluated with a constant string as its argument."""
        if function == "matches" and _SINGLE_BYTE.search(text):
            return False
        quoted = json.dumps(text, ensure_ascii=False)  # CEL has no surrogate pairs
        compiled = self.evaluating.compile(
            f'"".matches({quoted})' if function == "matches" else f"{function}({quoted})"
        )
        return bool(compiled.eval(data={}).type() != self._cel.Type.ERROR)


def same_type(first: Type, second: Type) -> bool:
    """Whether elements of these types may be in one literal; an empty literal has no element type."""
    if "param" in (first.kind, second.kind):
        return True
    if (first.kind, first.name, len(first.parameters)) != (second.kind, second.name, len(second.parameters)):
        return False
    return all(map(same_type, first.parameters, second.parameters))
