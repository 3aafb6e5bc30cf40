# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Checks and evaluates CEL device selectors without a server.

The engine is cel-expr-python, the binding of Google's cel-cpp, on the controller only. Kubernetes compiles selectors
with cel-go; its environment is declared to cel-cpp as far as possible. A selector is valid, invalid, or can only be
checked by a server.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..apiserver import features
from ..kube import versions
from ..kube.objects import ObjectView
from .checker import Checker, first_line
from .environment import CelProgram
from .errors import BARE_DEVICE, EngineMissing, EvaluationError, Uncheckable, Verdict
from .expression import Checked, Node, read
from .functions import EXACT_OPERATORS, MAPS_WITH_DEFAULTS
from .subject import Lookups, Subject, ValueKey, lookups
from .values import Values


@dataclass
class Program:
    """A compiled selector. `exact` is used instead of `plain` if a value may be a version."""

    plain: CelProgram
    exact: CelProgram
    domains: frozenset[str]
    versions: bool
    reads: Lookups | None
    # results by the values of a device that the expression reads
    results: dict[ValueKey, bool | EvaluationError | Uncheckable] = field(default_factory=dict)


def possible_domains(root: Node) -> set[str]:
    """Every string that could be the domain of an attribute or capacity."""
    literals = {node.value for node in root.walk() if node.kind == "literal" and node.literal_type == "string"}
    return literals | {node.name for node in root.walk() if node.kind == "select"}


class Engine:
    """Compiles and evaluates selectors. Creating an engine takes some milliseconds; compiled selectors are cached.

    `consumable_capacity` and `list_attributes` say whether two feature gates are on: DRAConsumableCapacity
    (on by default since 1.36, for device.allowMultipleAllocations) and DRAListTypeAttributes (off by default).

    Raises EngineMissing.
    """

    def __init__(self, consumable_capacity: bool = True, list_attributes: bool = False) -> None:
        try:
            from cel_expr_python import cel  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise EngineMissing(f"cel-expr-python is needed to check CEL selectors: {error}") from error
        self._cel = cel
        self._consumable_capacity = consumable_capacity
        self._checker = Checker(cel, consumable_capacity, list_attributes)
        self._evaluating = self._checker.evaluating
        self._programs: dict[str, Program] = {}

    def judge(self, expression: str) -> Verdict:
        """The server's verdict on a new selector; see `Checker.judge`."""
        return self._checker.judge(expression)

    def check(self, expression: str) -> list[str]:
        """Why the server would refuse the selector: length, syntax, types, result, worst-case cost. Empty if nothing is
        known to be wrong; what only a server can check is in `judge` only."""
        return list(self.judge(expression).errors)

    def cost(self, expression: str) -> int:
        """The server's estimate of the worst-case cost.

        Raises ValueError for an invalid selector, and Uncheckable if the estimate is unknown.
        """
        verdict = self.judge(expression)
        if verdict.cost is not None:
            return verdict.cost
        if verdict.errors:
            raise ValueError("; ".join(verdict.errors))
        raise Uncheckable("; ".join(verdict.unchecked))

    def matches(self, expression: str, device: ObjectView, driver: str) -> bool:
        """Whether a device of a driver matches; see `Subject` for both.

        Raises EvaluationError if the server refuses the selector or evaluation fails, and Uncheckable if the engine
        cannot evaluate it.
        """
        return self.selects(expression, Subject(device, driver))

    def looks_up_names_only(self, expression: str) -> bool:
        """Whether the result of a selector depends only on attributes and capacities that it looks up by constant
        names. Also true for a selector that cannot be evaluated."""
        try:
            return self._compiled(expression).reads is not None
        except (EvaluationError, Uncheckable):
            return True

    def selects(self, expression: str, subject: Subject) -> bool:
        """Like `matches`, for a subject that several selectors use."""
        program = self._compiled(expression)
        subject.convert()
        if program.reads is None:
            return self._evaluate(program, subject)
        key = subject.value_key(program.reads)
        answer = program.results.get(key)
        if answer is None:
            try:
                answer = self._evaluate(program, subject)
            except (EvaluationError, Uncheckable) as error:
                program.results[key] = error
                raise
            program.results[key] = answer
        if isinstance(answer, bool):
            return answer
        raise type(answer)(str(answer))

    def _compiled(self, expression: str) -> Program:
        """The selector, compiled once. Raises EvaluationError or Uncheckable."""
        program = self._programs.get(expression)
        if program is None:
            program = self._programs[expression] = self._program(expression)
        return program

    def _evaluate(self, program: Program, subject: Subject) -> bool:
        """The result of a selector on a device. Raises EvaluationError or Uncheckable."""
        if program.reads is None:
            maps, domains = subject.maps, program.domains | {subject.driver}
        else:
            maps = subject.looked_up(program.reads)
            domains = frozenset(domain for _map, domain, _name in program.reads)
        data: dict[str, str | bool | dict[str, Values]] = {"device.driver": subject.driver, **maps}
        empty: dict[str, Values] = {domain: {} for domain in domains}
        for name, shadow in MAPS_WITH_DEFAULTS.items():
            data[shadow] = {**empty, **maps[name]}
        if self._consumable_capacity:
            data["device.allowMultipleAllocations"] = subject.shared
        exact = program.versions or subject.has_versions
        try:
            result = (program.exact if exact else program.plain).eval(data=data)
        except RuntimeError as error:
            raise Uncheckable(f"cannot be evaluated offline: {first_line(error)}") from error
        value = result.value()
        if result.type() == self._cel.Type.ERROR:
            raise EvaluationError(str(value))
        if not isinstance(value, bool):
            raise EvaluationError(f"CEL result of type {result.type()} could not be converted to bool")
        return value

    def _program(self, expression: str) -> Program:
        """The compiled selector. Raises EvaluationError or Uncheckable."""
        verdict = self.judge(expression)
        if verdict.errors and verdict.cost is None:
            raise EvaluationError("; ".join(verdict.errors))
        if verdict is BARE_DEVICE:
            raise Uncheckable("cannot be evaluated offline: device as a whole")
        try:
            data = self._evaluating.compile(expression).serialize()
            checked = read(data)
        except RuntimeError as error:
            raise Uncheckable(f"cannot be evaluated offline: {first_line(error)}") from error
        plain = bytearray(data)
        self._with_defaults(checked, plain)
        exact = bytearray(plain)
        for node in checked.root.walk():
            if node.kind == "call" and node.name in EXACT_OPERATORS and checked.type_of(node.parts[0]).kind == "dyn":
                right_operand = node.parts[1]
                if node.name == "_==_" or (
                    right_operand.parts and all(part.kind == "literal" for part in right_operand.parts)
                ):
                    exact[node.name_offset : node.name_offset + len(node.name)] = EXACT_OPERATORS[node.name].encode()
        calls = {node.name for node in checked.root.walk() if node.kind == "call"}
        try:
            program = self._evaluating.deserialize(bytes(plain))
            return Program(
                program,
                program if exact == plain else self._evaluating.deserialize(bytes(exact)),
                frozenset(possible_domains(checked.root)),
                "semver" in calls,
                lookups(checked.root),
            )
        except RuntimeError as error:
            raise Uncheckable(f"cannot be evaluated offline: {first_line(error)}") from error

    @staticmethod
    def _with_defaults(checked: Checked, data: bytearray) -> None:
        """Make look-ups by domain return an empty map if the device has no value of that domain.

        On the server looking up a domain never fails, but `in`, `size` and iteration only see the device's domains.
        """
        looked_up = set()
        for node in checked.root.walk():
            if node.kind == "select" and node.target is not None:
                looked_up.add(node.target.number)
            elif node.kind == "call" and node.name in ("_[_]", "_[?_]", "_?._"):
                looked_up.add(node.parts[0].number)
        for node in checked.root.walk():
            if (
                node.kind == "comprehension"
                and node.parts[1].kind == "ident"
                and node.parts[1].name in MAPS_WITH_DEFAULTS
            ):
                # The server's result then depends on whether the device has any domain
                raise Uncheckable(f"cannot be evaluated offline: {node.parts[1].name} bound to a variable")
        for node in checked.root.walk():
            if node.kind == "ident" and node.name in MAPS_WITH_DEFAULTS and node.number in looked_up:
                shadow = MAPS_WITH_DEFAULTS[node.name].encode()
                for offset in (node.name_offset, checked.references.get(node.number)):
                    if offset is not None:
                        data[offset : offset + len(shadow)] = shadow


def engine_for(kubernetes: str, gates: features.Gates = None) -> Engine:
    """An engine that behaves like a release of Kubernetes (`1.34`) with these feature gates.

    Raises EngineMissing, and ValueError for an unknown release.
    """
    minor = versions.minor_of(kubernetes)
    return Engine(
        consumable_capacity=features.enabled("DRAConsumableCapacity", minor, gates),
        list_attributes=features.enabled("DRAListTypeAttributes", minor, gates),
    )
