# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Netlink attributes with values to try, from the kernel's netlink specifications (Documentation/netlink/specs in its
source). The values follow from the type of each attribute."""

from __future__ import annotations

import struct
import typing as t
from pathlib import Path

import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from lanewise_driver.kernel import netlink

#: The sizes of number types in bytes.
_WIDTH = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "s8": 1, "s16": 2, "s32": 4, "s64": 8, "uint": 4, "sint": 4}
#: Numbers to try.
_NUMBERS = (1, 2, 0, 3, 5, 1000, 4000, 60000, 2**31 - 1)
#: Lengths of binary values to try: addresses and structures.
_LENGTHS = (6, 4, 16, 20, 28, 32)
#: How deep attributes may be nested.
_DEPTH = 3


class Attribute(t.NamedTuple):
    """An attribute: its path, such as link-attrs.af-spec.inet6.token, and a function that returns encoded attributes
    with values other than the present one."""

    path: str
    values: t.Callable[[bytes], t.Iterator[bytes]]


def load(folder: Path, name: str) -> Object:
    """Read a specification, such as rt_link."""
    loaded: Object = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def sets(spec: Object) -> dict[str, list[Object]]:
    """The attribute sets by name, with the number of each attribute."""
    found: dict[str, list[Object]] = {}
    for attribute_set in spec["attribute-sets"]:
        number = 0
        entries = []
        for entry in attribute_set.get("attributes", ()):
            number = entry.get("value", number + 1)
            entries.append({**entry, "number": number})
        found[attribute_set["name"]] = entries
    for subset in spec["attribute-sets"]:
        if "subset-of" in subset:
            whole = {entry["name"]: entry for entry in found[subset["subset-of"]]}
            found[subset["name"]] = [whole[entry["name"]] for entry in subset["attributes"]]
    return found


def attributes(spec: Object, set_name: str, only: t.Collection[str] | None = None) -> t.Iterator[Attribute]:
    """All attributes of a set, including nested ones, whose values are encoded with the attributes around them. `only`
    names the attributes of the outermost set that a message accepts."""
    yield from _attributes(sets(spec), _enums(spec), set_name, only, set_name, 0)


def _attributes(
    known: dict[str, list[Object]],
    enums: dict[str, list[int]],
    set_name: str,
    only: t.Collection[str] | None,
    path: str,
    depth: int,
) -> t.Iterator[Attribute]:
    for entry in known.get(set_name, ()):
        if only is not None and entry["name"] not in only:
            continue
        entry_path, number = f"{path}.{entry['name']}", entry["number"]
        if entry["type"] in ("nest", "array-nest", "indexed-array"):
            inner = entry.get("nested-attributes", "")
            for attribute in _attributes(known, enums, inner, None, entry_path, depth + 1) if depth < _DEPTH else ():
                yield Attribute(attribute.path, _nested(number, attribute.values))
        else:
            yield Attribute(entry_path, _plain(entry, number, enums.get(entry.get("enum", ""), [])))


def _nested(number: int, inner: t.Callable[[bytes], t.Iterator[bytes]]) -> t.Callable[[bytes], t.Iterator[bytes]]:
    return lambda now: (netlink.nest(number, value) for value in inner(b""))


def _plain(entry: Object, number: int, enum: list[int]) -> t.Callable[[bytes], t.Iterator[bytes]]:
    def values(now: bytes) -> t.Iterator[bytes]:
        for value in _values(entry, now, enum):
            if value != now:
                yield netlink.attribute(number, value)

    return values


def _values(entry: Object, now: bytes, enum: list[int]) -> t.Iterator[bytes]:
    kind = entry["type"]
    if kind in _WIDTH:
        width = _WIDTH[kind]
        if now:
            yield ((int.from_bytes(now, "little") + 1) % 2 ** (8 * width)).to_bytes(width, "little")
        for number in [*enum, *_NUMBERS]:
            if 0 <= number < 2 ** (8 * width - 1) or (number < 2 ** (8 * width) and kind[0] == "u"):
                yield number.to_bytes(width, "big" if entry.get("byte-order") == "big-endian" else "little")
    elif kind == "string":
        yield b"x1\0"
    elif kind == "flag":
        yield b""
    elif kind == "bitfield32":
        for bit in range(8):
            yield struct.pack("=II", 1 << bit, 1 << bit)
            yield struct.pack("=II", 0, 1 << bit)
    elif kind == "binary":
        if now:
            yield now[:-1] + bytes([now[-1] ^ 1])
        for length in _LENGTHS:
            yield b"\x02" + bytes(length - 2) + b"\x09"


def _enums(spec: Object) -> dict[str, list[int]]:
    found = {}
    for definition in spec.get("definitions", ()):
        if definition["type"] in ("enum", "flags"):
            start = definition.get("value-start", 0)
            numbers = range(start, start + len(definition["entries"]))
            found[definition["name"]] = [1 << number if definition["type"] == "flags" else number for number in numbers]
    return found


def kinds(spec: Object, message: str) -> list[str]:
    """The values for which a sub-message has formats, such as the kinds of qdiscs."""
    for sub_message in spec.get("sub-messages", ()):
        if sub_message["name"] == message:
            return [form["value"] for form in sub_message["formats"]]
    return []
