# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Writes CEL device selectors whose evaluation never fails, whatever a device publishes.

A selector that fails on one device aborts the scheduling of the pod on every node. So each look-up is preceded by a
test that the device has the attribute, and by a test of its type if the operator needs one. Two properties of the API
server's evaluator determine the text: a constant on the left of `==` can be compared with a value of any type, except
that a version fails with anything but a version; and `type(x) in [int]` has a bounded cost, unlike `type(x) == int`.

Attributes and capacities are named as in a ResourceSlice, always with their domain: `gpu.nvidia.com/architecture`.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ..kube import limits
from ..kube.objects import Object

Value = t.Union[bool, int, str]

# Reserved words of CEL that cannot follow a dot (cel-spec, langdef.md)
_RESERVED = frozenset(
    "true false null in as break const continue else for function if import let loop package namespace return var void "
    "while".split()
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Selector:
    """An expression of type bool. `joined` is its outermost operator, `&&` or `||`; empty if it has another or none."""

    text: str
    joined: str = ""

    def __str__(self) -> str:
        return self.text


def literal(value: Value) -> str:
    """A CEL constant. Raises ValueError for integers beyond 64 bits and invalid Unicode (lone surrogates)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if value not in _INT64:
            raise ValueError(f"{value} does not fit in 64 bits")
        return str(value)
    escaped = []
    for character in value:
        code = ord(character)
        if 0xD800 <= code <= 0xDFFF:
            raise ValueError("a lone surrogate is not Unicode text")
        if character in '"\\':
            escaped.append(f"\\{character}")
        elif character.isprintable():
            escaped.append(character)
        else:
            escaped.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(escaped)}"'


def _path(kind: str, name: str) -> tuple[str, str]:
    """The expression that looks up a qualified name, and the test that the device has it. Raises ValueError."""
    domain, slash, identifier = name.partition("/")
    if not slash or not domain or not _IDENTIFIER.fullmatch(identifier):
        raise ValueError(f"{name!r} is not DOMAIN/NAME")
    map_of_domain = f"device.{kind}[{literal(domain)}]"
    if identifier in _RESERVED:
        return f"{map_of_domain}[{literal(identifier)}]", f"{literal(identifier)} in {map_of_domain}"
    return f"{map_of_domain}.{identifier}", f"has({map_of_domain}.{identifier})"


def _and(*parts: str) -> Selector:
    return Selector(" && ".join(parts), "&&" if len(parts) > 1 else "")


def driver_is(driver: str) -> Selector:
    """Devices of one driver."""
    return Selector(f"device.driver == {literal(driver)}")


def has_attribute(name: str) -> Selector:
    """Devices that publish an attribute of this name, of any type. Raises ValueError for a name without a domain, as
    all of the following do."""
    return Selector(_path("attributes", name)[1])


def equals(name: str, value: Value) -> Selector:
    """The attribute has the type and value of `value`; a version never equals a string."""
    value_of, present = _path("attributes", name)
    return _and(present, f"{literal(value)} == {value_of}")


def absent_or_equals(name: str, value: Value) -> Selector:
    """The device does not have the attribute, or `equals` holds."""
    value_of, present = _path("attributes", name)
    return Selector(f"!{present} || {literal(value)} == {value_of}", "||")


def one_of(name: str, values: t.Sequence[Value]) -> Selector:
    """The attribute equals one of the values. Never true if there are none."""
    if len(values) < 2:
        return equals(name, values[0]) if values else Selector("false")
    value_of, present = _path("attributes", name)
    tests = " || ".join(f"{literal(value)} == {value_of}" for value in values)
    return _and(present, f"({tests})")


def _typed(name: str, kind: str, test: str) -> Selector:
    value_of, present = _path("attributes", name)
    return _and(present, f"type({value_of}) in [{kind}]", test.format(value_of))


def at_least(name: str, number: int) -> Selector:
    """The attribute is an integer of at least `number`."""
    return _typed(name, "int", f"{{}} >= {literal(int(number))}")


def at_most(name: str, number: int) -> Selector:
    """The attribute is an integer of at most `number`."""
    return _typed(name, "int", f"{{}} <= {literal(int(number))}")


def _format_literal(text: str) -> str:
    """A string literal for a template of `str.format`."""
    return literal(text).replace("{", "{{").replace("}", "}}")


def contains(name: str, text: str) -> Selector:
    """The attribute is a string with `text` in it; case matters."""
    return _typed(name, "string", f"{{}}.contains({_format_literal(text)})")


def lists(name: str, entry: str) -> Selector:
    """The attribute is a string of entries joined by commas, and `entry` is one of them."""
    return _typed(name, "string", f'("," + {{}} + ",").contains({_format_literal(f",{entry},")})')


def starts_with(name: str, text: str) -> Selector:
    """The attribute is a string that begins with `text`."""
    return _typed(name, "string", f"{{}}.startsWith({_format_literal(text)})")


def matches(name: str, pattern: str) -> Selector:
    """The attribute is a string in which `pattern`, in RE2's syntax, is found. The pattern is not checked here."""
    return _typed(name, "string", f"{{}}.matches({_format_literal(pattern)})")


def _version(text: str) -> str:
    """A version with all three numbers, from one that may lack the last ones."""
    full = text if "-" in text or "+" in text else ".".join([*text.split("."), "0", "0"][: max(3, text.count(".") + 1)])
    error = limits.semver(full)
    if error:
        raise ValueError(f"{text!r}: {error}")
    return f"semver({literal(full)})"


def version_is(name: str, version: str) -> Selector:
    """The attribute is a version equal to `version`, without regard to build metadata.

    `570` and `570.1` are read as `570.0.0` and `570.1.0`. Raises ValueError if `version` is not a version.
    """
    value_of, present = _path("attributes", name)
    return _and(present, f"{value_of} == {_version(version)}")


def version_at_least(name: str, version: str) -> Selector:
    """The attribute is a version of at least `version` (see `version_is`), in the order of semver 2.0.0."""
    minimum = _version(version)
    return _typed(name, f"type({minimum})", f"{{}}.compareTo({minimum}) >= 0")


def text_version_at_least(name: str, version: str) -> Selector:
    """The same as `version_at_least`, for an attribute that is a version as a string, such as `28.43.1014`.

    The string has one to three numbers, which may have leading zeros, and may begin with `v`. The selector is false for
    any other string.
    """
    value_of, present = _path("attributes", name)
    minimum = _version(version)
    return _and(
        present,
        f"type({value_of}) in [string]",
        f"isSemver({value_of}, true)",
        f"semver({value_of}, true).compareTo({minimum}) >= 0",
    )


def capacity_at_least(name: str, quantity: str) -> Selector:
    """The device has at least `quantity` of a capacity, which must be a valid quantity."""
    value_of, present = _path("capacity", name)
    return _and(present, f"{value_of}.compareTo(quantity({literal(quantity)})) >= 0")


def _join(operator: str, parts: t.Sequence[Selector], empty: str) -> Selector:
    if len(parts) < 2:
        return parts[0] if parts else Selector(empty)
    other = "||" if operator == "&&" else "&&"
    texts = [f"({part.text})" if part.joined == other else part.text for part in parts]
    return Selector(f" {operator} ".join(texts), operator)


def all_of(*parts: Selector) -> Selector:
    """True if every part is true; always true if there are no parts."""
    return _join("&&", parts, "true")


def any_of(*parts: Selector) -> Selector:
    """True if some part is true; never true if there are no parts."""
    return _join("||", parts, "false")


def negate(part: Selector) -> Selector:
    """True if the part is false, and therefore also for devices without the attribute."""
    return Selector(f"!({part.text})")


def raw(expression: str) -> Selector:
    """An expression of a user in parentheses, for use in larger expressions. Unlike generated ones, it may fail."""
    return Selector(f"({expression}\n)" if "//" in expression else f"({expression})")


def device_selectors(parts: t.Sequence[Selector]) -> list[Object]:
    """The `selectors` field of a DeviceClass or request, whose entries must all be true.

    It has one entry for each part. Parts are joined only if there are more than the API allows. Raises ValueError if a
    part is longer than the API allows, or if the parts do not fit even when joined.
    """
    texts: list[str] = []
    for part in parts:
        text = part.text
        if limits.size(text) > limits.CEL_BYTES:
            raise ValueError(f"a selector has {limits.size(text)} bytes; the limit is {limits.CEL_BYTES}")
        texts.append(text)
    # joined parts may be any expression, such as a || b, or one that ends in a comment
    terms = [part.text if part.joined == "&&" else raw(part.text).text for part in parts]
    while len(texts) > limits.SELECTORS:
        # join the two neighbors whose joined text is the shortest
        sizes = [limits.size(f"{first} && {second}") for first, second in zip(terms, terms[1:])]
        at = sizes.index(min(sizes))
        if sizes[at] > limits.CEL_BYTES:
            raise ValueError(f"more than {limits.SELECTORS} selectors of {limits.CEL_BYTES} bytes are needed")
        terms[at : at + 2] = texts[at : at + 2] = [f"{terms[at]} && {terms[at + 1]}"]
    return [{"cel": {"expression": text}} for text in texts]
