# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The worst-case cost that an API server estimates for a CEL device selector, from the checked expression.

The tree is read from C(cel.expr.CheckedExpr) (cel-spec, proto/cel/expr/checked.proto), in the wire format of protocol
buffers; the few message types are small enough to be read here. The estimate follows checker/cost.go of cel-go, with
the function costs of k8s.io/apiserver/pkg/cel/library/cost.go and the sizes that
k8s.io/dynamic-resource-allocation/cel/compile.go declares for C(device). All three are part of the API's
compatibility promise, as a selector that one server takes must not cost too much for the next.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass, field
from functools import lru_cache

UNLIMITED = 2**64 - 1

# resource.k8s.io/v1 types.go
_DOMAIN_LENGTH = 63
_ID_LENGTH = 32
_DRIVER_LENGTH = 63
_VALUE_LENGTH = 64
_ATTRIBUTES = 32

DEVICE_FIELDS = ("driver", "attributes", "capacity", "allowMultipleAllocations")

# What cel-go calls the variable that a macro gathers its result in
_ACCUMULATORS = ("__result__", "@result")


class Unestimated(Exception):
    """A function whose cost this module does not know."""


# ---------------------------------------------------------------------------------------------------------------------
# The checked expression


@dataclass(frozen=True)
class Type:
    """C(kind) is bool, int, uint, double, string, bytes, null, any, timestamp, duration, dyn, list, map, struct,
    opaque, type, param or error; C(name) names a struct, opaque type or parameter."""

    kind: str
    name: str = ""
    parameters: tuple[Type, ...] = ()


@dataclass
class Node:
    """One node of the tree.

    C(kind) is literal, ident, select, call, list, map, struct or comprehension. C(name) is the identifier, field or
    function. C(parts) are a call's arguments, a list's elements, a map's keys and values by turns, a struct's values,
    or a comprehension's range, initial value, condition, step and result. C(name_at) is where the name's bytes begin.
    """

    number: int
    kind: str
    name: str = ""
    name_at: int = -1
    test_only: bool = False
    value: t.Any = None
    literal: str = ""
    target: Node | None = None
    parts: list[Node] = field(default_factory=list)
    optional: frozenset[int] = frozenset()
    variables: tuple[str, str] = ("", "")
    accumulator: str = ""

    def children(self) -> list[Node]:
        return ([self.target] if self.target else []) + self.parts

    def walk(self) -> t.Iterator[Node]:
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children())


@dataclass
class Checked:
    """A parsed or checked expression; of a parsed one only C(root) is known.

    All maps are by a node's number; C(references) has where the bytes begin of the name that the checker resolved an
    identifier to.
    """

    root: Node
    types: dict[int, Type] = field(default_factory=dict)
    overloads: dict[int, list[str]] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)

    def type_of(self, node: Node) -> Type:
        return self.types.get(node.number, Type("dyn"))


_Span = tuple[int, int]
_PRIMITIVES = {1: "bool", 2: "int", 3: "uint", 4: "double", 5: "string", 6: "bytes"}
_WELL_KNOWN = {1: "any", 2: "timestamp", 3: "duration"}
_LITERALS = {
    1: "null",
    2: "bool",
    3: "int",
    4: "uint",
    5: "double",
    6: "string",
    7: "bytes",
    8: "duration",
    9: "timestamp",
}


class _Reader:
    """Reads the messages of one buffer; a message is a span of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value, at
            shift += 7

    def fields(self, span: _Span) -> t.Iterator[tuple[int, t.Any]]:
        """Field number and value: an integer, eight bytes, or the span of what has a length."""
        data = self.data
        at, end = span
        while at < end:
            key = data[at]
            if key < 0x80:  # almost always one byte is all
                at += 1
            else:
                key, at = self.varint(at)
            number, wire = key >> 3, key & 7
            if wire in (0, 2):
                value = data[at]
                if value < 0x80:
                    at += 1
                else:
                    value, at = self.varint(at)
                if wire == 0:
                    yield number, value
                else:
                    yield number, (at, at + value)
                    at += value
            elif wire == 1:
                yield number, data[at : at + 8]
                at += 8
            else:
                raise ValueError(f"wire type {wire} has no place in a checked expression")

    def one(self, span: _Span) -> dict[int, t.Any]:
        return dict(self.fields(span))

    def text(self, span: t.Any) -> str:
        return self.data[span[0] : span[1]].decode() if span else ""

    def checked(self) -> Checked:
        whole = self.one((0, len(self.data)))
        kind = self.text(whole.get(1)).rpartition("/")[2]
        if kind == "cel.expr.ParsedExpr":
            return Checked(self.node(self.one(whole[2])[2]))
        if kind != "cel.expr.CheckedExpr":
            raise ValueError(f"{kind or 'this'} is no expression")
        types: dict[int, Type] = {}
        overloads: dict[int, list[str]] = {}
        references: dict[int, int] = {}
        root: Node | None = None
        for number, value in self.fields(whole[2]):
            if number == 2:
                entry = self.one(value)
                reference = list(self.fields(entry.get(2, (0, 0))))
                overloads[entry.get(1, 0)] = [self.text(span) for at, span in reference if at == 3]
                references.update((entry.get(1, 0), span[0]) for at, span in reference if at == 1)
            elif number == 3:
                entry = self.one(value)
                types[entry.get(1, 0)] = _type(self.data[slice(*entry[2])])
            elif number == 4:
                root = self.node(value)
        if root is None:
            raise ValueError("a checked expression without an expression")
        return Checked(root, types, overloads, references)

    def type_from(self, span: _Span) -> Type:  # noqa: C901, PLR0911
        for number, value in self.fields(span):
            if number == 1:
                return Type("dyn")
            if number == 2:
                return Type("null")
            if number == 3:
                return Type(_PRIMITIVES.get(value, "error"))
            if number == 4:
                return Type("opaque", "wrapper", (Type(_PRIMITIVES.get(value, "error")),))
            if number == 5:
                return Type(_WELL_KNOWN.get(value, "error"))
            if number == 6:
                return Type("list", "", tuple(self.type_from(inner) for at, inner in self.fields(value) if at == 1))
            if number == 7:
                return Type("map", "", tuple(self.type_from(inner) for at, inner in self.fields(value)))
            if number == 9:
                return Type("struct", self.text(value))
            if number == 10:
                return Type("param", self.text(value))
            if number == 11:
                return Type("type", "", (self.type_from(value),) if value[1] > value[0] else ())
            if number == 14:
                fields = list(self.fields(value))
                name = "".join(self.text(inner) for at, inner in fields if at == 1)
                parameters = tuple(self.type_from(inner) for at, inner in fields if at == 2)
                # Kubernetes declares its own as object types
                return Type(
                    "struct" if name in ("kubernetes.Quantity", "kubernetes.Semver") else "opaque", name, parameters
                )
        return Type("error")

    def node(self, span: _Span) -> Node:
        number, node = 0, None
        for at, value in self.fields(span):
            if at == 2:
                number = value
            elif at == 3:
                node = self.literal(value)
            elif at in (4, 5, 6, 7, 8, 9):
                read = (self.ident, self.select, self.call, self.items, self.struct, self.comprehension)[at - 4]
                node = read(list(self.fields(value)))
        if node is None:
            raise ValueError("an expression of no kind")
        node.number = number
        return node

    def literal(self, span: _Span) -> Node:
        for at, value in self.fields(span):
            kind = _LITERALS.get(at, "")
            if kind == "int" and value >= 2**63:
                value -= 2**64
            elif kind == "string":
                value = self.text(value)
            elif kind == "bytes":
                value = self.data[value[0] : value[1]]
            elif kind == "bool":
                value = bool(value)
            return Node(0, "literal", value=value, literal=kind)
        return Node(0, "literal", literal="null")

    def ident(self, fields: list[tuple[int, t.Any]]) -> Node:
        span = dict(fields).get(1, (0, 0))
        return Node(0, "ident", self.text(span), span[0])

    def select(self, fields: list[tuple[int, t.Any]]) -> Node:
        one = dict(fields)
        name = self.text(one.get(2))
        return Node(0, "select", name, test_only=bool(one.get(3)), target=self.node(one[1]))

    def call(self, fields: list[tuple[int, t.Any]]) -> Node:
        node = Node(0, "call")
        for at, value in fields:
            if at == 1:
                node.target = self.node(value)
            elif at == 2:
                node.name, node.name_at = self.text(value), value[0]
            elif at == 3:
                node.parts.append(self.node(value))
        return node

    def items(self, fields: list[tuple[int, t.Any]]) -> Node:
        optional: set[int] = set()
        for at, value in fields:
            if at == 2:  # a packed list of indices
                place, end = value
                while place < end:
                    index, place = self.varint(place)
                    optional.add(index)
        return Node(
            0, "list", parts=[self.node(value) for at, value in fields if at == 1], optional=frozenset(optional)
        )

    def struct(self, fields: list[tuple[int, t.Any]]) -> Node:
        node = Node(0, "map")
        optional: set[int] = set()
        for at, value in fields:
            if at == 1 and value[1] > value[0]:
                node.kind, node.name = "struct", self.text(value)
        for index, value in enumerate(value for at, value in fields if at == 2):
            entry = self.one(value)
            if node.kind == "map":
                node.parts.append(self.node(entry[3]))
            node.parts.append(self.node(entry[4]))
            if entry.get(5):
                optional.add(index)
        node.optional = frozenset(optional)
        return node

    def comprehension(self, fields: list[tuple[int, t.Any]]) -> Node:
        one = dict(fields)
        return Node(
            0,
            "comprehension",
            parts=[self.node(one[at]) for at in (2, 4, 5, 6, 7)],
            variables=(self.text(one.get(1)), self.text(one.get(8))),
            accumulator=self.text(one.get(3)),
        )


@lru_cache(maxsize=1024)
def _type(message: bytes) -> Type:
    """The type in a message; expressions have few different ones."""
    return _Reader(message).type_from((0, len(message)))


def read(data: bytes) -> Checked:
    """The tree of a serialized C(google.protobuf.Any) of a C(CheckedExpr) or C(ParsedExpr).

    Raises ValueError for anything else.
    """
    return _Reader(data).checked()


# ---------------------------------------------------------------------------------------------------------------------
# Ranges


@dataclass(frozen=True)
class _Range:
    """Least and greatest number, of units of size or of cost; sums and products stay within 64 bits."""

    low: int
    high: int

    def __add__(self, other: _Range) -> _Range:
        return _Range(min(self.low + other.low, UNLIMITED), min(self.high + other.high, UNLIMITED))

    def __mul__(self, other: _Range) -> _Range:
        return _Range(min(self.low * other.low, UNLIMITED), min(self.high * other.high, UNLIMITED))

    def scaled(self, factor: float) -> _Range:
        return _Range(*(min(math.ceil(float(number) * factor), UNLIMITED) for number in (self.low, self.high)))

    def union(self, other: _Range) -> _Range:
        return _Range(min(self.low, other.low), max(self.high, other.high))


def _exactly(number: int) -> _Range:
    return _Range(number, number)


_NOTHING = _exactly(0)
_ONE = _exactly(1)
_UNKNOWN = _Range(0, UNLIMITED)

# common/cost.go
_LIST = _exactly(10)
_MAP = _exactly(30)
_STRUCT = _exactly(40)
_TRAVERSAL = 0.1
_REGEX = 0.25


class _Path:
    """The way from C(device) to a value.

    cel-go keeps paths in slices and appends to them, so that two ways which part at a bound variable can share memory,
    where the later one overwrites the last step of the earlier. That decides sizes, and is kept here.
    """

    def __init__(self, steps: list[str], length: int) -> None:
        self._steps = steps
        self._length = length

    @property
    def steps(self) -> list[str]:
        return self._steps[: self._length]

    def then(self, step: str) -> _Path:
        if self._length < len(self._steps):
            self._steps[self._length] = step
            return _Path(self._steps, self._length + 1)
        room = max(1, 2 * len(self._steps))
        steps = self.steps + [step]
        return _Path(steps + [""] * (room - len(steps)), len(steps))


_NOWHERE = _Path([], 0)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes of what is reached through device


@dataclass(frozen=True)
class _Declared:
    """A declared type: the greatest size, and what is inside."""

    size: int
    fields: t.Mapping[str, _Declared] = field(default_factory=dict)
    key: _Declared | None = None
    element: _Declared | None = None
    values_by_name: bool = False


def _declare() -> _Declared:
    identifier = _Declared(_ID_LENGTH)
    domain = _Declared(_DOMAIN_LENGTH)
    attributes = _Declared(_ATTRIBUTES, key=identifier, element=_Declared(_VALUE_LENGTH), values_by_name=True)
    capacity = _Declared(_ATTRIBUTES, key=identifier, element=_Declared(0))
    return _Declared(
        0,
        fields={
            "driver": _Declared(_DRIVER_LENGTH),
            "allowMultipleAllocations": _Declared(1),
            "attributes": _Declared(_ATTRIBUTES, key=domain, element=attributes),
            "capacity": _Declared(_ATTRIBUTES, key=domain, element=capacity),
        },
    )


_DEVICE = _declare()


def _declared_size(steps: list[str]) -> _Range | None:
    if not steps or steps[0] != "device":
        return None
    here = _DEVICE
    for step in steps[1:]:
        if step in ("@items", "@values"):
            inner = here.element
        elif step == "@keys":
            inner = here.key
        else:
            # Only attributes are known to have the same greatest size under any name
            inner = here.fields.get(step) or (here.element if here.values_by_name else None)
        if inner is None:
            return None
        here = inner
    return _Range(0, here.size)


# ---------------------------------------------------------------------------------------------------------------------
# The estimate


@dataclass(frozen=True)
class _Entries:
    """Sizes of the keys and values of a list or map that the expression builds."""

    container: str
    key: _Range
    value: _Range


@dataclass
class _Local:
    path: _Path
    size: _Range | None
    entries: _Entries | None


@dataclass(frozen=True)
class _Argument:
    """A value as the library's cost functions see it: its size is what the expression says, else what is declared."""

    node: Node
    type: Type
    path: _Path
    computed: _Range | None

    @property
    def or_unknown(self) -> _Range:
        return self.computed or _UNKNOWN

    @property
    def size(self) -> _Range:
        return self.computed or _declared_size(self.path.steps) or _UNKNOWN


_Call = tuple[_Range, t.Optional[_Range]]

# Functions whose call costs one unit besides their arguments, whatever is passed
_CHEAP = frozenset(
    "!_ -_ _-_ _*_ _/_ _%_ _[_] _[?_] _?._ size type int uint double bool string bytes timestamp duration "
    "@not_strictly_false getFullYear getMonth getDayOfMonth getDate getDayOfYear getDayOfWeek getHours getMinutes "
    "getSeconds getMilliseconds optional.of optional.none optional.ofNonZeroValue hasValue value or orValue charAt "
    "cel.@mapInsert".split()
)
_ACCESSORS = frozenset(
    "sign asInteger isInteger asApproximateFloat isGreaterThan isLessThan compareTo add sub major minor patch".split()
)
_SCALARS = ("bool", "double", "duration", "int", "timestamp", "uint")
_COMPARED_BY_CONTENT = tuple(
    f"{name}_{kind}" for name in ("less", "less_equals", "greater", "greater_equals") for kind in ("string", "bytes")
)


def _replaced(text: _Range, old: _Range, new: _Range) -> _Range:
    """The size of a string after C(replace)."""

    def bound(size: int, old_size: int, new_size: int, grows: bool, kept: bool) -> tuple[int, int]:
        if old_size == 0:
            return min(size + 1, UNLIMITED), size
        if kept:
            return 0, size
        return min(math.ceil(float(size) / float(old_size)), UNLIMITED), 0

    most, most_kept = bound(text.high, old.low, new.high, True, new.high <= old.low)
    least, least_kept = bound(text.low, old.high, new.low, False, old.high <= new.low)
    return _Range(least, most) * new + _Range(least_kept, most_kept)


class _Estimator:
    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.paths: dict[int, _Path] = {}
        self.sizes: dict[int, _Range] = {}
        self.entries: dict[int, _Entries] = {}
        self.locals: dict[str, list[_Local]] = {}

    # What is known of a node

    def local(self, node: Node) -> _Local | None:
        stack = self.locals.get(node.name) if node.kind == "ident" else None
        return stack[-1] if stack else None

    def path(self, node: Node) -> _Path:
        local = self.local(node)
        return local.path if local else self.paths.get(node.number, _NOWHERE)

    def size(self, node: Node) -> _Range | None:
        if node.number in self.sizes:
            return self.sizes[node.number]
        if node.kind == "literal":
            return _exactly(len(node.value) if node.literal in ("string", "bytes") else 1)
        if node.kind == "list":
            return _exactly(len(node.parts))
        if node.kind == "map":
            return _exactly(len(node.parts) // 2)
        declared = _declared_size(self.path(node).steps)
        if declared is not None:
            self.sizes[node.number] = declared
            return declared
        kind = self.checked.type_of(node)
        while kind.kind == "opaque" and kind.name == "optional_type" and kind.parameters:
            kind = kind.parameters[0]
        if kind.kind in _SCALARS:
            return _ONE
        local = self.local(node)
        return local.size if local else None

    def entries_of(self, node: Node) -> _Entries | None:
        if node.number in self.entries:
            return self.entries[node.number]
        local = self.local(node)
        return local.entries if local else None

    def set_size(self, node: Node, size: _Range | None) -> None:
        if size is not None:
            self.sizes[node.number] = size

    def set_entries(self, node: Node, entries: _Entries | None) -> None:
        if entries is not None:
            self.entries[node.number] = entries

    def argument(self, node: Node) -> _Argument:
        path = self.path(node)
        if path.steps[:1] and path.steps[0] in _ACCUMULATORS:
            path = _NOWHERE
        return _Argument(node, self.checked.type_of(node), path, self.size(node))

    # Costs by kind of node

    def cost(self, node: Node) -> _Range:
        if node.kind == "literal":
            return _NOTHING
        if node.kind == "comprehension" and self.is_binding(node):
            return self.binding(node)
        return t.cast("_Range", getattr(self, f"cost_of_{node.kind}")(node))

    def cost_of_ident(self, node: Node) -> _Range:
        root, _unused, name = node.name.partition(".")
        if root == "device" and name in DEVICE_FIELDS:
            # Declared as one variable with a dotted name here, a field of an object on the server
            self.paths[node.number] = _NOWHERE.then(root).then(name)
            return _ONE + _ONE
        local = self.local(node)
        self.paths[node.number] = local.path if local else _NOWHERE.then(node.name)
        return _ONE

    def cost_of_select(self, node: Node) -> _Range:
        if node.target is None:
            raise AssertionError("a select without an operand cannot be parsed")
        cost = self.cost(node.target)
        if node.test_only:
            return cost
        if self.checked.type_of(node.target).kind in ("map", "struct", "param"):
            cost += _ONE
        self.paths[node.number] = self.path(node.target).then(node.name)
        return cost

    def cost_of_list(self, node: Node) -> _Range:
        cost = _LIST
        sizes = _Range(0 if not node.parts else UNLIMITED, 0)
        for part in node.parts:
            cost += self.cost(part)
            sizes = sizes.union(self.size(part) or _UNKNOWN)
        self.set_entries(node, _Entries("list", _ONE, sizes))
        return cost

    def cost_of_map(self, node: Node) -> _Range:
        cost = _MAP
        sizes = [_Range(0 if not node.parts else UNLIMITED, 0)] * 2
        for index, part in enumerate(node.parts):
            cost += self.cost(part)
            sizes[index % 2] = sizes[index % 2].union(self.size(part) or _UNKNOWN)
        self.set_entries(node, _Entries("map", *sizes))
        return cost

    def cost_of_struct(self, node: Node) -> _Range:
        cost = _STRUCT
        for part in node.parts:
            cost += self.cost(part)
        return cost

    def is_binding(self, node: Node) -> bool:
        over, _initial, condition, _step, _result = node.parts
        nothing = over.kind == "list" and not over.parts
        never = condition.kind == "literal" and condition.literal == "bool" and not condition.value
        return nothing and never and node.accumulator != _ACCUMULATORS[0]

    def push(self, name: str, path: _Path, size: _Range | None, entries: _Entries | None) -> None:
        self.locals.setdefault(name, []).append(_Local(path, size, entries))

    def push_value(self, name: str, node: Node) -> None:
        self.push(name, self.path(node), self.size(node), self.entries_of(node))

    def push_entry(self, name: str, over: Node, key: bool) -> None:
        entries = self.entries_of(over)
        container = entries.container if entries else self.checked.type_of(over).kind
        step = ("@indices" if key else "@items") if container == "list" else ("@keys" if key else "@values")
        size = None if entries is None else entries.key if key else entries.value
        self.push(name, self.path(over).then(step), size, None)

    def binding(self, node: Node) -> _Range:
        over, initial, _condition, _step, result = node.parts
        cost = self.cost(over) + self.cost(initial)
        self.push_value(node.accumulator, initial)
        cost += self.cost(result)
        self.locals[node.accumulator].pop()
        self.set_size(node, self.size(result))
        self.set_entries(node, self.entries_of(result))
        return cost

    def cost_of_comprehension(self, node: Node) -> _Range:
        over, initial, condition, step, result = node.parts
        cost = self.cost(over) + self.cost(initial)
        self.push_value(node.accumulator, initial)
        first, second = node.variables
        if second:
            self.push_entry(first, over, True)
            self.push_entry(second, over, False)
        else:
            entries = self.entries_of(over)
            container = entries.container if entries else self.checked.type_of(over).kind
            self.push_entry(first, over, container != "list")
        one_round = self.cost(condition)
        one_round = self.cost(step) + one_round
        for name in filter(None, node.variables):
            self.locals[name].pop()
        cost += self.cost(result)
        self.locals[node.accumulator].pop()
        rounds = self.size(over) or _UNKNOWN
        cost += rounds * one_round
        if initial.kind == "literal":
            self.set_size(node, self.size(initial))
        elif initial.kind in ("list", "map"):
            self.set_size(node, rounds)
            self.set_entries(node, self.entries_of(step))
        return cost

    def cost_of_call(self, node: Node) -> _Range:
        if node.name == "dyn":
            cost = self.cost(node.parts[0])
            self.set_size(node, self.size(node.parts[0]))
            self.set_entries(node, self.entries_of(node.parts[0]))
            return cost + _ONE
        costs, arguments = [], []
        for part in node.parts:
            costs.append(self.cost(part))
            arguments.append(self.argument(part))
        overloads = self.checked.overloads.get(node.number, [])
        if not overloads:
            return _NOTHING
        before = _NOTHING
        target: _Argument | None = None
        if node.target is not None:
            before = self.cost(node.target)
            target = self.argument(node.target)
        total = _Range(UNLIMITED, 0)
        size: _Range | None = None
        for overload in overloads:
            cost, result = self.function(node, overload, target, arguments, costs)
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
        return before + total

    # Costs by function

    def function(
        self, node: Node, overload: str, target: _Argument | None, arguments: list[_Argument], costs: list[_Range]
    ) -> _Call:
        given = _NOTHING
        for cost in costs:
            given += cost
        if overload in ("logical_and", "logical_or"):
            return _Range(costs[0].low, (costs[0] + costs[1]).high), None
        if overload == "conditional":
            # Only what is chosen is paid for
            entries = [self.entries_of(argument.node) for argument in arguments[1:]]
            self.set_entries(node, self.either(*entries))
            return costs[0] + costs[1].union(costs[2]), arguments[1].or_unknown.union(arguments[2].or_unknown)
        own = self.of_library(node, target, arguments) or self.of_language(node, overload, target, arguments)
        return own[0] + given, own[1]

    @staticmethod
    def either(one: _Entries | None, other: _Entries | None) -> _Entries | None:
        if one is None or other is None:
            return None
        return _Entries(one.container, one.key.union(other.key), one.value.union(other.value))

    def of_library(self, node: Node, target: _Argument | None, arguments: list[_Argument]) -> _Call | None:
        """What Kubernetes adds to the language. None for what it leaves to the language."""
        name = node.name
        if name in _ACCESSORS:
            return _ONE, None
        if name in ("quantity", "isQuantity", "semver", "isSemver"):
            return arguments[0].size.scaled(_TRAVERSAL), None
        if name == "_==_":
            kinds = [argument.type for argument in arguments]
            return (_ONE, None) if kinds[0] == kinds[1] and kinds[0].kind == "struct" else None
        if name in ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes") and target is not None:
            return self.search(name, target), None
        if name in ("lowerAscii", "upperAscii", "substring", "trim") and target is not None:
            return target.size.scaled(_TRAVERSAL), target.size
        if name == "replace" and target is not None and len(arguments) >= 2:
            size = _replaced(target.size, arguments[0].size, arguments[1].size)
            return target.size.scaled(2 * _TRAVERSAL), size
        if name == "split" and target is not None:
            most = target.size.high
            if len(arguments) > 1 and arguments[1].node.literal == "int":
                most = arguments[1].node.value % 2**64
            return target.size.scaled(2 * _TRAVERSAL), _Range(0, most)
        if name == "join" and target is not None:
            return self.join(target, arguments)
        if name in ("find", "findAll") and target is not None:
            return self.regex(target.size, arguments[0].size), _Range(0, target.size.high)
        return None

    def element(self, target: _Argument) -> _Argument | None:
        if not target.type.parameters:
            return None
        path = target.path.steps
        way = _NOWHERE
        for step in [*path, "@items"]:
            way = way.then(step)
        return _Argument(target.node, target.type.parameters[0], way, None)

    def search(self, name: str, target: _Argument) -> _Range:
        element = self.element(target)
        if element is None and name != "includes":
            return target.size.scaled(_TRAVERSAL)
        cost = _ONE
        if element is not None and element.type.kind in ("string", "bytes"):
            cost += element.size.scaled(_TRAVERSAL)
        return target.size * cost

    def join(self, target: _Argument, arguments: list[_Argument]) -> _Call:
        element = self.element(target)
        size = target.size * element.size if element else _NOTHING
        if arguments:
            between = _Range(max(target.size.low - 1, 0), max(target.size.high - 1, 0))
            size += arguments[0].size * between
        return size.scaled(_TRAVERSAL), size

    @staticmethod
    def regex(text: _Range, pattern: _Range) -> _Range:
        return (text + _ONE).scaled(_TRAVERSAL) * pattern.scaled(_REGEX)

    def of_language(self, node: Node, overload: str, target: _Argument | None, arguments: list[_Argument]) -> _Call:  # noqa: PLR0911
        sizes = [argument.or_unknown for argument in arguments]
        if overload == "string_to_bytes":
            return sizes[0].scaled(_TRAVERSAL), _Range(sizes[0].low, sizes[0].high * 4 % 2**64)
        if overload == "bytes_to_string":
            return sizes[0].scaled(_TRAVERSAL), _Range(sizes[0].low // 4, sizes[0].high)
        if overload == "strings_quote":
            return sizes[0].scaled(_TRAVERSAL), _Range(sizes[0].low + 2, (sizes[0].high * 2 + 2) % 2**64)
        if overload in ("starts_with_string", "ends_with_string"):
            return sizes[0].scaled(_TRAVERSAL), None
        if overload == "in_list":
            return sizes[1], None
        if overload == "matches_string" and target is not None:
            return self.regex(target.or_unknown, sizes[0]), None
        if overload in ("matches", "matches_string") and target is None:
            return self.regex(sizes[0], sizes[1]), None
        if overload == "contains_string" and target is not None:
            return target.or_unknown.scaled(_TRAVERSAL) * sizes[0].scaled(_TRAVERSAL), None
        if overload in ("add_string", "add_bytes", "add_list"):
            size = sizes[0] + sizes[1]
            self.set_entries(node, self.either(*(self.entries_of(argument.node) for argument in arguments)))
            return (_ONE if overload == "add_list" else size.scaled(_TRAVERSAL)), size
        if overload in _COMPARED_BY_CONTENT or overload in ("equals", "not_equals"):
            most = min(sizes[0].high, sizes[1].high)
            return _Range(min(most, 1), most).scaled(_TRAVERSAL), None
        if overload == "in_map" or node.name in _CHEAP or node.name in ("_+_", "_<_", "_<=_", "_>_", "_>=_"):
            return _ONE, None
        raise Unestimated(node.name)


def estimate(checked: Checked) -> int:
    """The most that evaluating costs, in the server's units; C(UNLIMITED) where there is no bound.

    Raises Unestimated where the expression calls a function whose cost is not known here.
    """
    return _Estimator(checked).cost(checked.root).high
