# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Parsing XML documents of limited size. The line of each element is kept for error messages."""

from __future__ import annotations

import re
from xml.parsers import expat

_MAX_ELEMENTS = 200_000
_MAX_DEPTH = 200
_BUSID = re.compile(r"^([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$")
_NUMBER = re.compile(r"^[0-9]{1,9}$")


class Element:
    """An element with its line number, which xml.etree does not keep."""

    __slots__ = ("tag", "attributes", "line", "children", "texts")

    def __init__(self, tag: str, attributes: dict[str, str], line: int) -> None:
        self.tag = tag
        self.attributes = attributes
        self.line = line
        self.children: list[Element] = []
        self.texts: list[str] = []

    def get(self, name: str) -> str | None:
        """The attribute without blanks at both ends; None if it is absent or empty."""
        return self.attributes.get(name, "").strip() or None

    def wrong(self, name: str, expected: str) -> ValueError:
        """The error for an attribute with an invalid value."""
        value = self.attributes.get(name, "")[:60]
        return ValueError(f"line {self.line}: <{self.tag}> has {name}={value!r}; expected {expected}")

    def number(self, name: str) -> int | None:
        """A decimal number; None if the attribute is absent, empty or -1 (unknown). Raises ValueError."""
        text = self.get(name)
        if text is None or text == "-1":
            return None
        if not _NUMBER.match(text):
            raise self.wrong(name, "a number")
        return int(text)

    def address(self, name: str) -> str:
        """A PCI address as the kernel writes it: in lower case, and the domain has four or more digits. Raises
        ValueError."""
        match = _BUSID.match((self.get(name) or "").lower())
        if not match:
            raise self.wrong(name, "a PCI address with its domain, such as 0000:1b:00.0")
        domain, bus, device, function = match.groups()
        return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


def parse(data: bytes) -> Element:
    """Parse a document. A document type with an internal subset is refused; an external DTD is not loaded.

    This uses expat, the parser below xml.etree, directly: only expat can refuse declarations and report line numbers.
    """
    parser = expat.ParserCreate("UTF-8")  # as NCCL and lstopo write; no other encoding is accepted
    parser.buffer_text = True
    stack: list[Element] = []
    roots: list[Element] = []
    count = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > _MAX_ELEMENTS or len(stack) >= _MAX_DEPTH:
            raise ValueError(
                f"line {parser.CurrentLineNumber}: more than {_MAX_ELEMENTS} elements or {_MAX_DEPTH} levels, so this "
                "is not a topology file; give the file of one node"
            )
        element = Element(tag, attributes, parser.CurrentLineNumber)
        (stack[-1].children if stack else roots).append(element)
        stack.append(element)

    def end(tag: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        stack[-1].texts.append(data)

    def doctype(_name: str, _system: str | None, _public: str | None, has_subset: int) -> None:
        if has_subset:  # before any of it is read: default attributes and entities can expand a file to gigabytes
            raise ValueError(
                f"line {parser.CurrentLineNumber}: the document type contains declarations in brackets, which no "
                "topology file needs; remove them, or write the file again with the tool that wrote it"
            )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"not well-formed XML: {error}; give the file as NCCL or lstopo wrote it") from None
    return roots[0]
