# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The worst-case cost that an API server estimates for a CEL device selector, from the checked expression.

The estimate follows checker/cost.go of cel-go, with the function costs of k8s.io/apiserver/pkg/cel/library/cost.go and
the sizes that k8s.io/dynamic-resource-allocation/cel/compile.go declares for `device`. All three are part of the API's
compatibility promise, as a selector that one release accepts must not be too expensive for the next.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from .cost_functions import ADDITIONS, Argument, CallCost, Entries, cost_in_language, cost_in_library
from .expression import Checked, Node
from .sizes import EMPTY_PATH, ONE, UNKNOWN, UNLIMITED, ZERO, Path, Range, declared_size, exactly

DEVICE_FIELDS = ("driver", "attributes", "capacity", "allowMultipleAllocations")


# cel-go's names for the variable that accumulates a macro's result
ACCUMULATORS = ("__result__", "@result")


# The costs of creating a list, map or message (common/cost.go)
LIST_COST = exactly(10)


MAP_COST = exactly(30)


STRUCT_COST = exactly(40)


SCALAR_KINDS = ("bool", "double", "duration", "int", "timestamp", "uint")


@dataclass
class Local:
    """A local variable of a comprehension."""

    path: Path
    size: Range | None
    entries: Entries | None


class _Estimator:
    """The costs of nodes, with the paths, sizes and entries of their values by node number."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.paths: dict[int, Path] = {}
        self.sizes: dict[int, Range] = {}
        self.entries: dict[int, Entries] = {}
        self.locals: dict[str, list[Local]] = {}

    def local(self, node: Node) -> Local | None:
        """The local variable that a node refers to; None if it is not one."""
        stack = self.locals.get(node.name) if node.kind == "ident" else None
        return stack[-1] if stack else None

    def path(self, node: Node) -> Path:
        local = self.local(node)
        return local.path if local else self.paths.get(node.number, EMPTY_PATH)

    def size(self, node: Node) -> Range | None:
        """The size of a node's value; None if it is unknown."""
        if node.number in self.sizes:
            return self.sizes[node.number]
        if node.kind == "literal":
            return exactly(len(node.value) if node.literal_type in ("string", "bytes") else 1)
        if node.kind == "list":
            return exactly(len(node.parts))
        if node.kind == "map":
            return exactly(len(node.parts) // 2)
        declared = declared_size(self.path(node).steps)
        if declared is not None:
            self.sizes[node.number] = declared
            return declared
        kind = self.checked.type_of(node)
        while kind.kind == "opaque" and kind.name == "optional_type" and kind.parameters:
            kind = kind.parameters[0]
        if kind.kind in SCALAR_KINDS:
            return ONE
        local = self.local(node)
        return local.size if local else None

    def entries_of(self, node: Node) -> Entries | None:
        """The sizes of the entries of a list or map, if they are known."""
        if node.number in self.entries:
            return self.entries[node.number]
        local = self.local(node)
        return local.entries if local else None

    def set_size(self, node: Node, size: Range | None) -> None:
        if size is not None:
            self.sizes[node.number] = size

    def set_entries(self, node: Node, entries: Entries | None) -> None:
        if entries is not None:
            self.entries[node.number] = entries

    def argument(self, node: Node) -> Argument:
        path = self.path(node)
        if path.steps[:1] and path.steps[0] in ACCUMULATORS:
            path = EMPTY_PATH
        return Argument(node, self.checked.type_of(node), path, self.size(node))

    def cost(self, node: Node) -> Range:
        """The cost of a node. Also records the path, size and entries of its value."""
        if node.kind == "literal":
            return ZERO
        if node.kind == "comprehension" and self.is_binding(node):
            return self.cost_of_binding(node)
        return t.cast("Range", getattr(self, f"cost_of_{node.kind}")(node))

    def cost_of_ident(self, node: Node) -> Range:
        root, _dot, name = node.name.partition(".")
        if root == "device" and name in DEVICE_FIELDS:
            # Declared as one variable with a dotted name here, a field of an object on the server
            self.paths[node.number] = EMPTY_PATH.then(root).then(name)
            return ONE + ONE
        local = self.local(node)
        self.paths[node.number] = local.path if local else EMPTY_PATH.then(node.name)
        return ONE

    def cost_of_select(self, node: Node) -> Range:
        if node.target is None:
            raise AssertionError("a select without an operand cannot be parsed")
        cost = self.cost(node.target)
        if node.test_only:
            return cost
        if self.checked.type_of(node.target).kind in ("map", "struct", "param"):
            cost += ONE
        self.paths[node.number] = self.path(node.target).then(node.name)
        return cost

    def cost_of_list(self, node: Node) -> Range:
        cost = LIST_COST
        sizes = Range(0 if not node.parts else UNLIMITED, 0)
        for part in node.parts:
            cost += self.cost(part)
            sizes = sizes.union(self.size(part) or UNKNOWN)
        self.set_entries(node, Entries("list", ONE, sizes))
        return cost

    def cost_of_map(self, node: Node) -> Range:
        cost = MAP_COST
        sizes = [Range(0 if not node.parts else UNLIMITED, 0)] * 2
        for index, part in enumerate(node.parts):
            cost += self.cost(part)
            sizes[index % 2] = sizes[index % 2].union(self.size(part) or UNKNOWN)
        self.set_entries(node, Entries("map", *sizes))
        return cost

    def cost_of_struct(self, node: Node) -> Range:
        cost = STRUCT_COST
        for part in node.parts:
            cost += self.cost(part)
        return cost

    def is_binding(self, node: Node) -> bool:
        """Whether a comprehension is the expansion of `cel.bind`, which never iterates."""
        iter_range, _initial, condition, _step, _result = node.parts
        is_empty = iter_range.kind == "list" and not iter_range.parts
        never_true = condition.kind == "literal" and condition.literal_type == "bool" and not condition.value
        return is_empty and never_true and node.accumulator != ACCUMULATORS[0]

    def push(self, name: str, path: Path, size: Range | None, entries: Entries | None) -> None:
        self.locals.setdefault(name, []).append(Local(path, size, entries))

    def push_value(self, name: str, node: Node) -> None:
        self.push(name, self.path(node), self.size(node), self.entries_of(node))

    def push_entry(self, name: str, iter_range: Node, key: bool) -> None:
        """Declare the local variable for the keys (indices) or values (items) of a range."""
        entries = self.entries_of(iter_range)
        container = entries.container if entries else self.checked.type_of(iter_range).kind
        step = ("@indices" if key else "@items") if container == "list" else ("@keys" if key else "@values")
        size = None if entries is None else entries.key if key else entries.value
        self.push(name, self.path(iter_range).then(step), size, None)

    def cost_of_binding(self, node: Node) -> Range:
        iter_range, initial, _condition, _step, result = node.parts
        cost = self.cost(iter_range) + self.cost(initial)
        self.push_value(node.accumulator, initial)
        cost += self.cost(result)
        self.locals[node.accumulator].pop()
        self.set_size(node, self.size(result))
        self.set_entries(node, self.entries_of(result))
        return cost

    def cost_of_comprehension(self, node: Node) -> Range:
        iter_range, initial, condition, step, result = node.parts
        cost = self.cost(iter_range) + self.cost(initial)
        self.push_value(node.accumulator, initial)
        first, second = node.variables
        if second:
            self.push_entry(first, iter_range, True)
            self.push_entry(second, iter_range, False)
        else:
            entries = self.entries_of(iter_range)
            container = entries.container if entries else self.checked.type_of(iter_range).kind
            self.push_entry(first, iter_range, container != "list")
        iteration_cost = self.cost(condition)
        iteration_cost = self.cost(step) + iteration_cost
        for name in filter(None, node.variables):
            self.locals[name].pop()
        cost += self.cost(result)
        self.locals[node.accumulator].pop()
        iterations = self.size(iter_range) or UNKNOWN
        cost += iterations * iteration_cost
        if initial.kind == "literal":
            self.set_size(node, self.size(initial))
        elif initial.kind in ("list", "map"):
            self.set_size(node, iterations)
            self.set_entries(node, self.entries_of(step))
        return cost

    def cost_of_call(self, node: Node) -> Range:
        if node.name == "dyn":
            cost = self.cost(node.parts[0])
            self.set_size(node, self.size(node.parts[0]))
            self.set_entries(node, self.entries_of(node.parts[0]))
            return cost + ONE
        costs, arguments = [], []
        for part in node.parts:
            costs.append(self.cost(part))
            arguments.append(self.argument(part))
        overloads = self.checked.overloads.get(node.number, [])
        if not overloads:
            return ZERO
        target_cost = ZERO
        target: Argument | None = None
        if node.target is not None:
            target_cost = self.cost(node.target)
            target = self.argument(node.target)
        total = Range(UNLIMITED, 0)
        size: Range | None = None
        for overload in overloads:
            cost, result = self.call_cost(node, overload, target, arguments, costs)
            total = total.union(cost)
            if result is not None:
                size = size.union(result) if size else result
            if overload in ("index_list", "index_map") and arguments:
                entries = self.entries_of(arguments[0].node)
                size = entries.value if entries else None
                self.paths[node.number] = self.path(arguments[0].node).then(
                    "@items" if overload == "index_list" else "@values"
                )
            if size is None:
                size = self.size(node)
        self.set_size(node, size)
        return target_cost + total

    def call_cost(
        self, node: Node, overload: str, target: Argument | None, arguments: list[Argument], costs: list[Range]
    ) -> CallCost:
        argument_cost = ZERO
        for cost in costs:
            argument_cost += cost
        if overload in ("logical_and", "logical_or"):
            return Range(costs[0].low, (costs[0] + costs[1]).high), None
        if overload == "conditional":
            # Only one branch is evaluated
            entries = [self.entries_of(argument.node) for argument in arguments[1:]]
            self.set_entries(node, self.merged_entries(*entries))
            sizes = [argument.computed_or_unknown for argument in arguments]
            return costs[0] + costs[1].union(costs[2]), sizes[1].union(sizes[2])
        if overload in ADDITIONS:
            self.set_entries(node, self.merged_entries(*(self.entries_of(argument.node) for argument in arguments)))
        call = cost_in_library(node, target, arguments) or cost_in_language(node, overload, target, arguments)
        return call[0] + argument_cost, call[1]

    @staticmethod
    def merged_entries(first: Entries | None, second: Entries | None) -> Entries | None:
        if first is None or second is None:
            return None
        return Entries(first.container, first.key.union(second.key), first.value.union(second.value))


def estimate(checked: Checked) -> int:
    """The maximum cost of an evaluation, in the server's units; `UNLIMITED` if there is no bound.

    Raises UnknownCost if the expression calls a function of unknown cost.
    """
    return _Estimator(checked).cost(checked.root).high
