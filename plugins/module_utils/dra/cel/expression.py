# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The tree of a parsed or checked expression.

It is read from `cel.expr.CheckedExpr` (cel-spec, proto/cel/expr/checked.proto), in the wire format of protocol
buffers; the few message types are small enough to be read here.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True)
class Type:
    """`kind` is bool, int, uint, double, string, bytes, null, any, timestamp, duration, dyn, list, map, struct,
    opaque, type, param or error; `name` names a struct, opaque type or parameter."""

    kind: str
    name: str = ""
    parameters: tuple[Type, ...] = ()


@dataclass
class Node:
    """One node of the tree.

    `kind` is literal, ident, select, call, list, map, struct or comprehension. `name` is the identifier, field or
    function. `parts` are a call's arguments, a list's elements, a map's alternating keys and values, a struct's values,
    or a comprehension's range, initial value, condition, step and result. `name_offset` is the offset of the name's
    bytes. `value` is the value of a literal (of a double, its eight bytes), and `literal_type` its type.
    """

    number: int
    kind: str
    name: str = ""
    name_offset: int = -1
    test_only: bool = False
    value: t.Any = None
    literal_type: str = ""
    target: Node | None = None
    parts: list[Node] = field(default_factory=list)
    optional: frozenset[int] = frozenset()
    variables: tuple[str, str] = ("", "")
    accumulator: str = ""

    def children(self) -> list[Node]:
        """The direct children: the target, then the parts."""
        return ([self.target] if self.target else []) + self.parts

    def walk(self) -> t.Iterator[Node]:
        """This node and all nodes below it, in no particular order."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children())


@dataclass
class Checked:
    """A parsed or checked expression; a parsed one only has `root`.

    All maps are by node number. `references` contains the offsets of the names to which the checker resolved
    identifiers.
    """

    root: Node
    types: dict[int, Type] = field(default_factory=dict)
    overloads: dict[int, list[str]] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)

    def type_of(self, node: Node) -> Type:
        """The checked type of a node; `dyn` if it has none."""
        return self.types.get(node.number, Type("dyn"))


_Span = tuple[int, int]
#: An integer, eight bytes, or the span of a length-delimited value, by the wire type of the field.
_Value = t.Any
_Fields = list[tuple[int, _Value]]


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
    """Reads the messages in a buffer; each message is a span of its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def varint(self, offset: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self.data[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value, offset
            shift += 7

    def fields(self, span: _Span) -> t.Iterator[tuple[int, _Value]]:
        """Field number and value: an integer, eight bytes, or the span of a length-delimited value."""
        data = self.data
        offset, end = span
        while offset < end:
            key = data[offset]
            if key < 0x80:  # almost always a single byte
                offset += 1
            else:
                key, offset = self.varint(offset)
            number, wire = key >> 3, key & 7
            if wire in (0, 2):
                value = data[offset]
                if value < 0x80:
                    offset += 1
                else:
                    value, offset = self.varint(offset)
                if wire == 0:
                    yield number, value
                else:
                    yield number, (offset, offset + value)
                    offset += value
            elif wire == 1:
                yield number, data[offset : offset + 8]
                offset += 8
            else:
                raise ValueError(f"wire type {wire} does not occur in checked expressions")

    def message(self, span: _Span) -> dict[int, _Value]:
        """The fields of a message by number; of a repeated field, the last value."""
        return dict(self.fields(span))

    def text(self, span: _Span | None) -> str:
        return self.data[span[0] : span[1]].decode() if span else ""

    def checked(self) -> Checked:
        message = self.message((0, len(self.data)))
        kind = self.text(message.get(1)).rpartition("/")[2]
        if kind == "cel.expr.ParsedExpr":
            return Checked(self.node(self.message(message[2])[2]))
        if kind != "cel.expr.CheckedExpr":
            raise ValueError(f"{kind or 'this'} is not an expression")
        types: dict[int, Type] = {}
        overloads: dict[int, list[str]] = {}
        references: dict[int, int] = {}
        root: Node | None = None
        for number, value in self.fields(message[2]):
            if number == 2:
                entry = self.message(value)
                reference = list(self.fields(entry.get(2, (0, 0))))
                overloads[entry.get(1, 0)] = [self.text(span) for field_number, span in reference if field_number == 3]
                references.update((entry.get(1, 0), span[0]) for field_number, span in reference if field_number == 1)
            elif number == 3:
                entry = self.message(value)
                types[entry.get(1, 0)] = _type(self.data[slice(*entry[2])])
            elif number == 4:
                root = self.node(value)
        if root is None:
            raise ValueError("the checked expression has no root")
        return Checked(root, types, overloads, references)

    def type_from(self, span: _Span) -> Type:  # noqa: C901, PLR0911  # a branch per kind of type in the message
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
                return Type(
                    "list",
                    "",
                    tuple(self.type_from(inner) for field_number, inner in self.fields(value) if field_number == 1),
                )
            if number == 7:
                return Type("map", "", tuple(self.type_from(inner) for field_number, inner in self.fields(value)))
            if number == 9:
                return Type("struct", self.text(value))
            if number == 10:
                return Type("param", self.text(value))
            if number == 11:
                return Type("type", "", (self.type_from(value),) if value[1] > value[0] else ())
            if number == 14:
                fields = list(self.fields(value))
                name = "".join(self.text(inner) for field_number, inner in fields if field_number == 1)
                parameters = tuple(self.type_from(inner) for field_number, inner in fields if field_number == 2)
                # Kubernetes declares its own types as object types
                return Type(
                    "struct" if name in ("kubernetes.Quantity", "kubernetes.Semver") else "opaque", name, parameters
                )
        return Type("error")

    def node(self, span: _Span) -> Node:
        number, node = 0, None
        for field_number, value in self.fields(span):
            if field_number == 2:
                number = value
            elif field_number == 3:
                node = self.literal(value)
            elif field_number in (4, 5, 6, 7, 8, 9):
                read = (self.ident, self.select, self.call, self.items, self.struct, self.comprehension)[
                    field_number - 4
                ]
                node = read(list(self.fields(value)))
        if node is None:
            raise ValueError("an expression node has no kind")
        node.number = number
        return node

    def literal(self, span: _Span) -> Node:
        for field_number, value in self.fields(span):
            kind = _LITERALS.get(field_number, "")
            if kind == "int" and value >= 2**63:
                value -= 2**64
            elif kind == "string":
                value = self.text(value)
            elif kind == "bytes":
                value = self.data[value[0] : value[1]]
            elif kind == "bool":
                value = bool(value)
            return Node(0, "literal", value=value, literal_type=kind)
        return Node(0, "literal", literal_type="null")

    def ident(self, fields: _Fields) -> Node:
        span = dict(fields).get(1, (0, 0))
        return Node(0, "ident", self.text(span), span[0])

    def select(self, fields: _Fields) -> Node:
        message = dict(fields)
        name = self.text(message.get(2))
        return Node(0, "select", name, test_only=bool(message.get(3)), target=self.node(message[1]))

    def call(self, fields: _Fields) -> Node:
        node = Node(0, "call")
        for field_number, value in fields:
            if field_number == 1:
                node.target = self.node(value)
            elif field_number == 2:
                node.name, node.name_offset = self.text(value), value[0]
            elif field_number == 3:
                node.parts.append(self.node(value))
        return node

    def items(self, fields: _Fields) -> Node:
        optional: set[int] = set()
        for field_number, value in fields:
            if field_number == 2:  # a packed list of indices
                offset, end = value
                while offset < end:
                    index, offset = self.varint(offset)
                    optional.add(index)
        return Node(
            0,
            "list",
            parts=[self.node(value) for field_number, value in fields if field_number == 1],
            optional=frozenset(optional),
        )

    def struct(self, fields: _Fields) -> Node:
        node = Node(0, "map")
        optional: set[int] = set()
        for field_number, value in fields:
            if field_number == 1 and value[1] > value[0]:
                node.kind, node.name = "struct", self.text(value)
        for index, value in enumerate(value for field_number, value in fields if field_number == 2):
            entry = self.message(value)
            if node.kind == "map":
                node.parts.append(self.node(entry[3]))
            node.parts.append(self.node(entry[4]))
            if entry.get(5):
                optional.add(index)
        node.optional = frozenset(optional)
        return node

    def comprehension(self, fields: _Fields) -> Node:
        message = dict(fields)
        return Node(
            0,
            "comprehension",
            parts=[self.node(message[field_number]) for field_number in (2, 4, 5, 6, 7)],
            variables=(self.text(message.get(1)), self.text(message.get(8))),
            accumulator=self.text(message.get(3)),
        )


@lru_cache(maxsize=1024)
def _type(message: bytes) -> Type:
    """The type in a message; cached, as expressions contain few different types."""
    return _Reader(message).type_from((0, len(message)))


def read(data: bytes) -> Checked:
    """The tree of a serialized `google.protobuf.Any` of a `CheckedExpr` or `ParsedExpr`.

    Raises ValueError for anything else.
    """
    return _Reader(data).checked()
