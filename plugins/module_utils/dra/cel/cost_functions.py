# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The worst-case cost of function calls, by the sizes of their arguments.

The costs are those of checker/cost.go of cel-go and of k8s.io/apiserver/pkg/cel/library/cost.go.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass

from .expression import Node, Type
from .sizes import EMPTY_PATH, ONE, UNKNOWN, UNLIMITED, ZERO, Path, Range, declared_size


class UnknownCost(Exception):
    """The expression calls a function whose cost this module does not know."""


# StringTraversalCostFactor and RegexStringLengthCostFactor (common/cost.go)
TRAVERSAL_FACTOR = 0.1


REGEX_FACTOR = 0.25


@dataclass(frozen=True)
class Entries:
    """Sizes of the keys and values of a list or map that the expression builds."""

    container: str
    key: Range
    value: Range


@dataclass(frozen=True)
class Argument:
    """An argument of a function call. Its size is computed from the expression if possible, otherwise as declared."""

    node: Node
    type: Type
    path: Path
    computed: Range | None

    @property
    def computed_or_unknown(self) -> Range:
        return self.computed or UNKNOWN

    @property
    def size(self) -> Range:
        return self.computed or declared_size(self.path.steps) or UNKNOWN


# The cost of a call, and the size of its result if it is known
CallCost = tuple[Range, t.Optional[Range]]


# Functions whose call costs one unit plus the cost of their arguments
_UNIT_COST = frozenset(
    "!_ -_ _-_ _*_ _/_ _%_ _[_] _[?_] _?._ size type int uint double bool string bytes timestamp duration "
    "@not_strictly_false getFullYear getMonth getDayOfMonth getDate getDayOfYear getDayOfWeek getHours getMinutes "
    "getSeconds getMilliseconds optional.of optional.none optional.ofNonZeroValue hasValue value or orValue charAt "
    "cel.@mapInsert".split()
)


_ACCESSORS = frozenset(
    "sign asInteger isInteger asApproximateFloat isGreaterThan isLessThan compareTo add sub major minor patch".split()
)


_COMPARED_BY_CONTENT = tuple(
    f"{name}_{kind}" for name in ("less", "less_equals", "greater", "greater_equals") for kind in ("string", "bytes")
)


def replaced_size(text: Range, old: Range, new: Range) -> Range:
    """The size of a string after `replace`."""

    def bound(size: int, old_size: int, keeps: bool) -> tuple[int, int]:
        """How often `old` is replaced, and how much of the string is kept."""
        if old_size == 0:
            return min(size + 1, UNLIMITED), size
        if keeps:
            return 0, size
        return min(math.ceil(float(size) / float(old_size)), UNLIMITED), 0

    high, high_kept = bound(text.high, old.low, new.high <= old.low)
    low, low_kept = bound(text.low, old.high, old.high <= new.low)
    return Range(low, high) * new + Range(low_kept, high_kept)


def _element(target: Argument) -> Argument | None:
    """The elements of a list as an argument; None if their type is unknown."""
    if not target.type.parameters:
        return None
    path = target.path.steps
    element = EMPTY_PATH
    for step in [*path, "@items"]:
        element = element.then(step)
    return Argument(target.node, target.type.parameters[0], element, None)


def _search_cost(name: str, target: Argument) -> Range:
    element = _element(target)
    if element is None and name != "includes":
        return target.size.scaled(TRAVERSAL_FACTOR)
    cost = ONE
    if element is not None and element.type.kind in ("string", "bytes"):
        cost += element.size.scaled(TRAVERSAL_FACTOR)
    return target.size * cost


def _join_cost(target: Argument, arguments: list[Argument]) -> CallCost:
    element = _element(target)
    size = target.size * element.size if element else ZERO
    if arguments:
        separators = Range(max(target.size.low - 1, 0), max(target.size.high - 1, 0))
        size += arguments[0].size * separators
    return size.scaled(TRAVERSAL_FACTOR), size


def _regex_cost(text: Range, pattern: Range) -> Range:
    return (text + ONE).scaled(TRAVERSAL_FACTOR) * pattern.scaled(REGEX_FACTOR)


def cost_in_library(node: Node, target: Argument | None, arguments: list[Argument]) -> CallCost | None:
    """The cost of a function that Kubernetes adds to the language; None for other functions."""
    name = node.name
    if name in _ACCESSORS:
        return ONE, None
    if name in ("quantity", "isQuantity", "semver", "isSemver"):
        return arguments[0].size.scaled(TRAVERSAL_FACTOR), None
    if name == "_==_":
        kinds = [argument.type for argument in arguments]
        return (ONE, None) if kinds[0] == kinds[1] and kinds[0].kind == "struct" else None
    if name in ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes") and target is not None:
        return _search_cost(name, target), None
    if name in ("lowerAscii", "upperAscii", "substring", "trim") and target is not None:
        return target.size.scaled(TRAVERSAL_FACTOR), target.size
    if name == "replace" and target is not None and len(arguments) >= 2:
        size = replaced_size(target.size, arguments[0].size, arguments[1].size)
        return target.size.scaled(2 * TRAVERSAL_FACTOR), size
    if name == "split" and target is not None:
        max_parts = target.size.high
        if len(arguments) > 1 and arguments[1].node.literal_type == "int":
            max_parts = arguments[1].node.value % 2**64
        return target.size.scaled(2 * TRAVERSAL_FACTOR), Range(0, max_parts)
    if name == "join" and target is not None:
        return _join_cost(target, arguments)
    if name in ("find", "findAll") and target is not None:
        return _regex_cost(target.size, arguments[0].size), Range(0, target.size.high)
    return None


def cost_in_language(node: Node, overload: str, target: Argument | None, arguments: list[Argument]) -> CallCost:  # noqa: PLR0911  # a return per overload
    """The cost of a function or operator of CEL itself. Raises UnknownCost for other functions."""
    sizes = [argument.computed_or_unknown for argument in arguments]
    if overload == "string_to_bytes":
        return sizes[0].scaled(TRAVERSAL_FACTOR), Range(sizes[0].low, sizes[0].high * 4 % 2**64)
    if overload == "bytes_to_string":
        return sizes[0].scaled(TRAVERSAL_FACTOR), Range(sizes[0].low // 4, sizes[0].high)
    if overload == "strings_quote":
        return sizes[0].scaled(TRAVERSAL_FACTOR), Range(sizes[0].low + 2, (sizes[0].high * 2 + 2) % 2**64)
    if overload in ("starts_with_string", "ends_with_string"):
        return sizes[0].scaled(TRAVERSAL_FACTOR), None
    if overload == "in_list":
        return sizes[1], None
    if overload == "matches_string" and target is not None:
        return _regex_cost(target.computed_or_unknown, sizes[0]), None
    if overload in ("matches", "matches_string") and target is None:
        return _regex_cost(sizes[0], sizes[1]), None
    if overload == "contains_string" and target is not None:
        return target.computed_or_unknown.scaled(TRAVERSAL_FACTOR) * sizes[0].scaled(TRAVERSAL_FACTOR), None
    if overload in ADDITIONS:
        size = sizes[0] + sizes[1]
        return (ONE if overload == "add_list" else size.scaled(TRAVERSAL_FACTOR)), size
    if overload in _COMPARED_BY_CONTENT or overload in ("equals", "not_equals"):
        max_compared = min(sizes[0].high, sizes[1].high)
        return Range(min(max_compared, 1), max_compared).scaled(TRAVERSAL_FACTOR), None
    if overload == "in_map" or node.name in _UNIT_COST or node.name in ("_+_", "_<_", "_<=_", "_>_", "_>=_"):
        return ONE, None
    raise UnknownCost(node.name)


#: Overloads that concatenate two values of the same kind. The result contains the entries of both.
ADDITIONS = ("add_string", "add_bytes", "add_list")
