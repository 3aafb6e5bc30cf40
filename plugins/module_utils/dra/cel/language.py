# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""CEL device selectors, checked and evaluated without a server.

The engine is cel-expr-python, the binding of Google's cel-cpp, on the controller only. Kubernetes compiles selectors
with cel-go, in the environment of k8s.io/dynamic-resource-allocation/cel/compile.go on top of
k8s.io/apiserver/pkg/cel/environment/base.go; this module declares the same environment to cel-cpp as far as that goes.
Three things cannot be told: what is right, what is wrong, and, apart from both, what needs a server to know.
"""

from __future__ import annotations

import json
import re
import typing as t
from dataclasses import dataclass, field
from fractions import Fraction

from ..kube import limits, quantity, versions
from . import cost as cel_cost

_Values = dict[str, t.Any]


class EngineMissing(Exception):
    """The Python package cel-expr-python is not installed, or not for this Python."""


class EvaluationError(Exception):
    """The selector fails on this device. The scheduler aborts scheduling of the pod then, on any node."""


class Uncheckable(Exception):
    """The engine lacks something that the server has: no answer without a server."""


@dataclass(frozen=True)
class Verdict:
    """C(errors) are reasons for which a server refuses the selector, C(unchecked) what only a server can tell.

    C(cost) is the server's estimate of the worst case, None where it is not known.
    """

    errors: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    cost: int | None = None


_BARE = Verdict(unchecked=("cannot be checked offline: device as a whole",))

# ---------------------------------------------------------------------------------------------------------------------
# Values that CEL has no type for. To the engine each is a map with one entry, which equals another if the values do.

_QUANTITY = 0
_VERSION = 1
_INT64 = range(-(2**63), 2**63)

_PART = r"(0|[1-9][0-9]*)"
_SEMVER = re.compile(
    rf"{_PART}\.{_PART}\.{_PART}(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def _quantity(value: Fraction) -> _Values:
    return t.cast(_Values, {_QUANTITY: str(value)})


def _read_quantity(text: str) -> Fraction:
    if text != text.strip(" "):
        raise quantity.QuantityError("spaces around a quantity")
    return quantity.parse(text)


def _read_version(text: str, tolerant: bool = False) -> _Values:
    """A version without its build metadata, which no comparison looks at."""
    if tolerant:
        text = _normalized(text)
    match = _SEMVER.fullmatch(text)
    if not match or any(int(number) >= 2**64 for number in match.groups()[:3]):
        raise ValueError(f"{text!r} is not a semantic version")
    before = match[4]
    if before and any(part.isdigit() and (len(part) > 1 and part[0] == "0") for part in before.split(".")):
        raise ValueError(f"{text!r} has a number with a leading zero")
    return t.cast(_Values, {_VERSION: ".".join(match.groups()[:3]) + (f"-{before}" if before else "")})


def _normalized(text: str) -> str:
    """What semver(text, true) reads: without a leading v and leading zeros, and with minor and patch."""
    parts = (text[1:] if text.startswith("v") else text).split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            short = part.lstrip("0")
            parts[index] = short if short[:1] in tuple("0123456789") else f"0{short}"
    if len(parts) < 3 and re.search(r"[+-]", parts[-1]):
        raise ValueError("a short version cannot have a pre-release or build metadata")
    return ".".join([*parts, "0", "0"][:3])


def _precedence(version: str) -> tuple[t.Any, ...]:
    """A key that orders versions as semver 2.0.0 does."""
    numbers, _unused, before = version.partition("-")
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in before.split(".")] if before else []
    return tuple(int(number) for number in numbers.split(".")), not before, parts


def _tag(value: t.Any) -> int | None:
    """Which of the tagged kinds a value of the engine is."""
    if isinstance(value, dict) and len(value) == 1:
        for tag in (_QUANTITY, _VERSION):
            if tag in value and isinstance(next(iter(value)), int):
                return tag
    return None


def _overload() -> ValueError:
    return ValueError("no such overload")


def _number(value: t.Any) -> Fraction:
    if _tag(value) != _QUANTITY:
        raise _overload()
    return Fraction(value[_QUANTITY])


def _order(left: t.Any, right: t.Any) -> int:
    tag = _tag(left)
    if tag is None or tag != _tag(right):
        raise _overload()
    a: t.Any
    b: t.Any
    if tag == _QUANTITY:
        a, b = _number(left), _number(right)
    else:
        a, b = _precedence(left[_VERSION]), _precedence(right[_VERSION])
    return int(a > b) - int(a < b)


def _amount(value: t.Any) -> Fraction:
    return Fraction(value) if isinstance(value, int) and not isinstance(value, bool) else _number(value)


def _whole(value: t.Any) -> int:
    number = _number(value)
    if number.denominator != 1 or number.numerator not in _INT64:
        raise ValueError("cannot convert value to integer")
    return number.numerator


def _is_whole(value: t.Any) -> bool:
    number = _number(value)
    return number.denominator == 1 and number.numerator in _INT64


def _number_of_version(index: int) -> t.Callable[[t.Any], int]:
    def get(value: t.Any) -> int:
        if _tag(value) != _VERSION:
            raise _overload()
        return int(value[_VERSION].partition("-")[0].split(".")[index])

    return get


def _valid(read: t.Callable[..., t.Any]) -> t.Callable[..., bool]:
    def check(*arguments: t.Any) -> bool:
        try:
            read(*arguments)
        except ValueError:
            return False
        return True

    return check


def _same(left: t.Any, right: t.Any) -> bool:
    """Equality as cel-go has it: with a quantity or version on the left and another type on the right, it fails."""
    tag = _tag(left)
    if tag is not None and tag != _tag(right):
        raise _overload()
    return _equal(left, right)


def _one_of(left: t.Any, right: t.Any) -> bool:
    """Membership in a list of constants, of which cel-go makes a set; it has no hash for values of Kubernetes' own."""
    if _tag(left) is not None:
        raise ValueError("hash of unhashable type")
    return any(_equal(left, one) for one in right)


def _equal(left: t.Any, right: t.Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)


@dataclass(frozen=True)
class _Function:
    """C(overloads) are identifier, parameters and result: Q(uantity), V(ersion), s(tring), b(ool), i(nt), d(ouble)."""

    name: str
    member: bool
    overloads: tuple[tuple[str, str, str], ...]
    call: t.Callable[..., t.Any]


# k8s.io/apiserver/pkg/cel/library/quantity.go and semverlib.go; sign is a function there, not a member
_FUNCTIONS = (
    _Function("quantity", False, (("string_to_quantity", "s", "Q"),), lambda text: _quantity(_read_quantity(text))),
    _Function("isQuantity", False, (("is_quantity_string", "s", "b"),), _valid(_read_quantity)),
    _Function("sign", False, (("quantity_sign", "Q", "i"),), lambda one: _order(one, _quantity(Fraction(0)))),
    _Function("asApproximateFloat", True, (("quantity_get_float", "Q", "d"),), lambda one: float(_number(one))),
    _Function("asInteger", True, (("quantity_get_int", "Q", "i"),), _whole),
    _Function("isInteger", True, (("quantity_is_integer", "Q", "b"),), _is_whole),
    _Function(
        "add",
        True,
        (("quantity_add", "QQ", "Q"), ("quantity_add_int", "Qi", "Q")),
        lambda one, other: _quantity(_number(one) + _amount(other)),
    ),
    _Function(
        "sub",
        True,
        (("quantity_sub", "QQ", "Q"), ("quantity_sub_int", "Qi", "Q")),
        lambda one, other: _quantity(_number(one) - _amount(other)),
    ),
    _Function("semver", False, (("string_to_semver", "s", "V"), ("string_bool_to_semver", "sb", "V")), _read_version),
    _Function(
        "isSemver", False, (("is_semver_string", "s", "b"), ("is_semver_string_bool", "sb", "b")), _valid(_read_version)
    ),
    _Function("major", True, (("semver_major", "V", "i"),), _number_of_version(0)),
    _Function("minor", True, (("semver_minor", "V", "i"),), _number_of_version(1)),
    _Function("patch", True, (("semver_patch", "V", "i"),), _number_of_version(2)),
    _Function(
        "isGreaterThan",
        True,
        (("quantity_is_greater_than", "QQ", "b"), ("semver_is_greater_than", "VV", "b")),
        lambda one, other: _order(one, other) > 0,
    ),
    _Function(
        "isLessThan",
        True,
        (("quantity_is_less_than", "QQ", "b"), ("semver_is_less_than", "VV", "b")),
        lambda one, other: _order(one, other) < 0,
    ),
    _Function("compareTo", True, (("quantity_compare_to", "QQ", "i"), ("semver_compare_to", "VV", "i")), _order),
)

# ---------------------------------------------------------------------------------------------------------------------
# Names of the server's environment

# What the server's libraries have and the engine's do not, or not with the same types
_SERVER_ONLY = frozenset(
    # apiserver: url, regex, ip, cidr, format, lists, jsonpatch, authorizer
    "url isURL getScheme getHost getHostname getPort getEscapedPath getQuery find findAll ip isIP ip.isCanonical "
    "isCanonical family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast cidr isCIDR "
    "containsIP containsCIDR prefixLength masked validate named format.named isSorted sum min max includes "
    "jsonpatch.escapeKey escapeKey indexOf lastIndexOf format sortBy sort distinct flatten slice range reverse "
    "lists.range sets.contains sets.equivalent sets.intersects contains equivalent intersects first last "
    "unwrap unwrapOpt optMap optFlatMap transformList transformMap transformMapEntry existsOne".split()
)

_COMPARISON = re.compile(r"no matching overload for '_(?:<|<=|>|>=)_' applied to '\((?:int|uint|double), ")

# Called with a constant, these are evaluated by the server as it compiles
_CONSTANTS_EVALUATED = ("matches", "duration", "timestamp", "int", "uint", "double", "bool")

# The one class that RE2 has and Go's regexp has not
_SINGLE_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")

# Names of the same length, so that one can stand for the other in a serialized expression
_DEFAULTED = {"device.attributes": "device_attributes", "device.capacity": "device_capacity"}
_EXACT = {"_==_": "same", "@in": "one"}
_SCALAR_FIELDS = ("device.driver", "device.allowMultipleAllocations")


# What has() may be asked of device itself in, or a comment that may hide it
_TESTED = re.compile(r"//|\bhas\b[\s(]*device\b(?!\.(?:attributes|capacity)\[)")


def _bare_device(root: cel_cost.Node) -> bool:
    """Whether C(device) is used other than by one of its fields, which the engine is told of as variables."""
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


def _strings(root: cel_cost.Node) -> set[str]:
    """Every text that could name a domain."""
    found = {node.value for node in root.walk() if node.kind == "literal" and node.literal == "string"}
    return found | {node.name for node in root.walk() if node.kind == "select"}


def _first_line(error: Exception) -> str:
    """The engine's message without the excerpt of the expression."""
    lines = str(error).splitlines()
    text = lines[0] if lines else type(error).__name__
    return re.sub(r"^INVALID_ARGUMENT: (?:ERROR: )?(?:<input>:)?", "", text).removesuffix(" [INVALID_ARGUMENT]")


#: What an expression looks up: the map, the domain, and the name in it, None where only the domain is asked for.
_Reads = tuple[tuple[str, str, t.Optional[str]], ...]


def _reads(root: cel_cost.Node) -> _Reads | None:
    """The attributes and capacities that an expression looks up by constant names; None where it may see others."""
    parents = {id(part): node for node in root.walk() for part in node.children()}
    found = set()
    for node in root.walk():
        if node.kind != "ident" or "device" not in node.name or node.name in _SCALAR_FIELDS:
            continue
        if node.name not in _DEFAULTED:
            return None
        domain, above = _constant_key(node, parents)
        if domain is None or above is None:
            return None
        name: str | None = None
        if above.name != "@in":
            looked_up = parents.get(id(above))
            if looked_up is not None and looked_up.kind == "select":
                name = looked_up.name
            else:
                name = _constant_key(above, parents)[0]
            if name is None:
                return None
        found.add((node.name, domain, name))
    return tuple(sorted(found, key=str))


def _constant_key(
    node: cel_cost.Node, parents: t.Mapping[int, cel_cost.Node]
) -> tuple[str | None, cel_cost.Node | None]:
    """The constant text that a map is indexed by or searched for, and the call that does so; None for another use."""
    call = parents.get(id(node))
    if call is None or call.kind != "call" or call.name not in ("_[_]", "@in") or call.target or len(call.parts) != 2:
        return None, None
    of, key = call.parts if call.name == "_[_]" else reversed(call.parts)
    if of is not node or key.kind != "literal" or key.literal != "string":
        return None, None
    return str(key.value), call


@dataclass
class _Program:
    plain: t.Any
    exact: t.Any
    domains: frozenset[str]
    versions: bool
    reads: _Reads | None
    # answers by what the expression sees of a device
    known: dict[tuple[t.Any, ...], bool | EvaluationError | Uncheckable] = field(default_factory=dict)


class Subject:
    """A device as selectors see it, converted once for any number of them.

    C(device) is an entry of C(spec.devices) of a v1 ResourceSlice: C(attributes) and C(capacity) by name, where a name
    without a domain belongs to C(driver). It must not change afterwards.
    """

    def __init__(self, device: t.Mapping[str, t.Any], driver: str) -> None:
        self.device = device
        self.driver = driver
        self.shared = bool(device.get("allowMultipleAllocations"))
        self.versions = False
        self.maps: dict[str, dict[str, _Values]] = {}
        self._seen: dict[_Reads, tuple[t.Any, ...]] = {}

    def convert(self) -> None:
        """Raises EvaluationError or Uncheckable for values that the server or the engine refuses."""
        if self.maps:
            return
        attributes: dict[str, _Values] = {}
        for name, attribute in (self.device.get("attributes") or {}).items():
            domain, _unused, identifier = name.rpartition("/")
            value = _value(name, attribute)
            self.versions = self.versions or _tag(value) == _VERSION
            attributes.setdefault(domain or self.driver, {})[identifier] = value
        capacity: dict[str, _Values] = {}
        for name, one in (self.device.get("capacity") or {}).items():
            domain, _unused, identifier = name.rpartition("/")
            capacity.setdefault(domain or self.driver, {})[identifier] = _quantity(quantity.parse(one["value"]))
        self.maps = {"device.attributes": attributes, "device.capacity": capacity}

    def part(self, reads: _Reads) -> dict[str, dict[str, _Values]]:
        """What expressions with such look-ups see of the maps."""
        part: dict[str, dict[str, _Values]] = {which: {} for which in self.maps}
        for which, domain, name in reads:
            found = self.maps[which].get(domain)
            if found is not None:
                kept = part[which].setdefault(domain, {})
                if name in found:
                    kept[name] = found[name]
        return part

    def seen(self, reads: _Reads) -> tuple[t.Any, ...]:
        """A key that is the same for devices that expressions with such look-ups cannot tell apart."""
        key = self._seen.get(reads)
        if key is None:
            values: list[t.Any] = [self.driver, self.shared, self.versions]
            for which, domain, name in reads:
                found = self.maps[which].get(domain)
                if name is None:
                    values.append(found is not None)
                else:  # written out, as to Python 1 is true
                    values.append(repr(found[name]) if found and name in found else None)
            key = self._seen[reads] = tuple(values)
        return key


class Engine:
    """A compiler and evaluator of selectors. Making one takes some milliseconds; what it compiled is kept.

    C(consumable_capacity) and C(list_attributes) are the gates DRAConsumableCapacity (on by default since 1.36, for
    device.allowMultipleAllocations) and DRAListTypeAttributes (off by default). Raises EngineMissing.
    """

    def __init__(self, consumable_capacity: bool = True, list_attributes: bool = False) -> None:
        try:
            from cel_expr_python import cel  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise EngineMissing(f"cel-expr-python is needed to check CEL selectors: {error}") from error
        self._cel = cel
        self._attribute = "dyn" if list_attributes else "any"
        self._consumable_capacity = consumable_capacity
        self._checking = self._environment(True)
        self._evaluating = self._environment(False)
        self._verdicts: dict[str, Verdict] = {}
        self._programs: dict[str, _Program] = {}

    def _environment(self, strict: bool) -> t.Any:
        cel = self._cel
        any_type = cel.Type("google.protobuf.Any")
        types = {
            "s": cel.Type.STRING,
            "b": cel.Type.BOOL,
            "i": cel.Type.INT,
            "d": cel.Type.DOUBLE,
            "Q": cel.Type.AbstractType("kubernetes.Quantity"),
            "V": cel.Type.AbstractType("kubernetes.Semver"),
        }
        attribute = any_type if self._attribute == "any" else cel.Type.DYN

        def by_name(value: t.Any) -> t.Any:
            return cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, value))

        variables = {
            "device.driver": cel.Type.STRING,
            "device.attributes": by_name(attribute if strict else cel.Type.DYN),
            "device.capacity": by_name(types["Q"] if strict else cel.Type.DYN),
        }
        if self._consumable_capacity:
            variables["device.allowMultipleAllocations"] = cel.Type.BOOL
        functions = []
        if strict:
            for one in _FUNCTIONS:
                overloads = [
                    cel.Overload(
                        name,
                        return_type=types[result],
                        parameters=[types[letter] for letter in letters],
                        is_member=one.member,
                        impl=one.call,
                    )
                    for name, letters, result in one.overloads
                ]
                functions.append(cel.FunctionDecl(one.name, overloads))
        else:
            # At run time the engine tells overloads apart by kinds of its own only, so the calls do it themselves
            for one in _FUNCTIONS:
                arities = {len(letters): (name, result) for name, letters, result in one.overloads}
                overloads = [
                    cel.Overload(
                        name,
                        return_type=types[result] if result in "sbid" else cel.Type.DYN,
                        parameters=[any_type] * arity,
                        is_member=one.member,
                        impl=one.call,
                    )
                    for arity, (name, result) in arities.items()
                ]
                functions.append(cel.FunctionDecl(one.name, overloads))
            variables.update({shadow: by_name(cel.Type.DYN) for shadow in _DEFAULTED.values()})
            for name, call in zip(_EXACT.values(), (_same, _one_of)):
                overload = cel.Overload(name, return_type=cel.Type.BOOL, parameters=[any_type] * 2, impl=call)
                functions.append(cel.FunctionDecl(name, [overload]))
        extensions = {
            "strings": 2,
            "sets": 0,
            "lists": "latest",
            "two-var-comprehensions": 0,
            "optional": "latest",
            "bindings": 0,
        }
        lines = [f"- name: {name}\n  version: {version}" for name, version in extensions.items()]
        config = cel.NewEnvConfigFromYaml("\n".join(["name: selectors", "extensions:", *lines, ""]))
        return cel.NewEnv(config=config, variables=variables, functions=functions)

    # Checking

    def judge(self, expression: str) -> Verdict:
        """What the server would say of a new selector, as far as that can be told (validation.go,
        validateCELExpression)."""
        verdict = self._verdicts.get(expression)
        if verdict is None:
            verdict = self._verdicts[expression] = self._judge(expression)
        return verdict

    def check(self, expression: str) -> list[str]:
        """Why the server would refuse the selector: length, syntax, types, result, worst-case cost. Empty if nothing is
        known to be wrong; what cannot be told is in M(judge) only."""
        return list(self.judge(expression).errors)

    def cost(self, expression: str) -> int:
        """The server's estimate of the worst case. Raises ValueError for a wrong selector, Uncheckable where the
        estimate is not known."""
        verdict = self.judge(expression)
        if verdict.cost is not None:
            return verdict.cost
        if verdict.errors:
            raise ValueError("; ".join(verdict.errors))
        raise Uncheckable("; ".join(verdict.unchecked))

    def _judge(self, expression: str) -> Verdict:  # noqa: PLR0911
        try:
            length = len(expression.encode())
        except UnicodeEncodeError:
            return Verdict(errors=("not valid Unicode",))
        if length > limits.CEL_BYTES:
            return Verdict(errors=(f"{length} bytes, at most {limits.CEL_BYTES} are allowed",))
        try:
            compiled = self._checking.compile(expression)
        except RuntimeError as error:
            return self._refused(expression, error)
        checked = cel_cost.read(compiled.serialize())
        # has(device.driver) passes for device.driver here
        tested = _TESTED.search(expression) is not None
        if _bare_device(checked.root) or (tested and _bare_device(self._parsed(expression))):
            return _BARE
        wrong = self._wrong_result(checked)
        if wrong:
            return Verdict(errors=(wrong,))
        nodes = list(checked.root.walk())
        if any(node.kind == "call" and node.name == "format" for node in nodes):  # the server looks into the template
            return Verdict(unchecked=("cannot be checked offline: format",))
        if any(node.kind == "struct" for node in nodes):
            return Verdict(unchecked=("cannot be checked offline: messages",))
        errors = self._wrong_literals(checked)
        if errors:
            return Verdict(errors=tuple(errors))
        try:
            cost = cel_cost.estimate(checked)
        except cel_cost.Unestimated as error:
            return Verdict(unchecked=(f"cannot be checked offline: the cost of {error}",))
        if cost > limits.CEL_COST:
            return Verdict(
                errors=(f"too complex: the worst case costs {cost}, at most {limits.CEL_COST} is allowed",), cost=cost
            )
        return Verdict(cost=cost)

    def _parsed(self, expression: str) -> cel_cost.Node:
        return cel_cost.read(self._checking.compile(expression, disable_check=True).serialize()).root

    def _refused(self, expression: str, error: RuntimeError) -> Verdict:
        """What to make of the engine's refusal."""
        try:
            parsed = self._parsed(expression)
        except RuntimeError as syntax:
            return Verdict(errors=(_first_line(syntax),))
        if _bare_device(parsed):
            return _BARE
        server = sorted({node.name for node in parsed.walk() if node.kind == "call"} & _SERVER_ONLY)
        if server:
            return Verdict(unchecked=(f"cannot be checked offline: {', '.join(server)}",))
        if _COMPARISON.search(str(error)):
            return Verdict(unchecked=("cannot be checked offline: a comparison of different number types",))
        return Verdict(errors=(_first_line(error),))

    def _wrong_result(self, checked: cel_cost.Checked) -> str:
        result = checked.type_of(checked.root)
        if result.kind in ("bool", self._attribute):
            return ""
        return f"must evaluate to bool or the unknown type, not {result.name or result.kind}"

    def _wrong_literals(self, checked: cel_cost.Checked) -> list[str]:
        errors = []
        for node in checked.root.walk():
            if node.kind in ("list", "map"):
                stride = 1 if node.kind == "list" else 2
                for start in range(stride):
                    types = []
                    for index, part in enumerate(node.parts[start::stride]):
                        one = checked.type_of(part)
                        if index in node.optional and start == stride - 1 and one.parameters:
                            one = one.parameters[0]
                        types.append(one)
                    if any(not _alike(types[0], other) for other in types[1:]):
                        errors.append(f"a {node.kind} has elements of different types")
            elif node.kind == "call" and node.name in _CONSTANTS_EVALUATED:
                literal = node.parts[-1]
                if literal.literal == "string" and not self._evaluates(node.name, literal.value):
                    errors.append(f"invalid {node.name} argument {literal.value!r}")
        return errors

    def _evaluates(self, function: str, text: str) -> bool:
        if function == "matches" and _SINGLE_BYTE.search(text):
            return False
        written = json.dumps(text)
        compiled = self._evaluating.compile(
            f'"".matches({written})' if function == "matches" else f"{function}({written})"
        )
        return bool(compiled.eval(data={}).type() != self._cel.Type.ERROR)

    # Evaluation

    def matches(self, expression: str, device: t.Mapping[str, t.Any], driver: str) -> bool:
        """Whether a device of a driver matches; see L(Subject,) for both.

        Raises EvaluationError where the server refuses the selector or evaluation fails, and Uncheckable where the
        engine cannot evaluate it.
        """
        return self.selects(expression, Subject(device, driver))

    def selects(self, expression: str, subject: Subject) -> bool:
        """The same for a device that is asked about more than once."""
        program = self._programs.get(expression)
        if program is None:
            program = self._programs[expression] = self._program(expression)
        subject.convert()
        if program.reads is None:
            return self._evaluate(program, subject)
        key = subject.seen(program.reads)
        answer = program.known.get(key)
        if answer is None:
            try:
                answer = self._evaluate(program, subject)
            except (EvaluationError, Uncheckable) as error:
                program.known[key] = error
                raise
            program.known[key] = answer
        if isinstance(answer, bool):
            return answer
        raise type(answer)(str(answer))

    def _evaluate(self, program: _Program, subject: Subject) -> bool:
        if program.reads is None:
            maps, domains = subject.maps, program.domains | {subject.driver}
        else:
            maps = subject.part(program.reads)
            domains = frozenset(domain for _map, domain, _name in program.reads)
        data: _Values = {"device.driver": subject.driver, **maps}
        for name, shadow in _DEFAULTED.items():
            data[shadow] = {**dict.fromkeys(domains, {}), **maps[name]}
        if self._consumable_capacity:
            data["device.allowMultipleAllocations"] = subject.shared
        exact = program.versions or subject.versions
        try:
            result = (program.exact if exact else program.plain).eval(data=data)
        except RuntimeError as error:
            raise Uncheckable(f"cannot be evaluated offline: {_first_line(error)}") from error
        value = result.value()
        if result.type() == self._cel.Type.ERROR:
            raise EvaluationError(str(value))
        if not isinstance(value, bool):
            raise EvaluationError(f"CEL result of type {result.type()} could not be converted to bool")
        return value

    def _program(self, expression: str) -> _Program:
        verdict = self.judge(expression)
        if verdict.errors and verdict.cost is None:
            raise EvaluationError("; ".join(verdict.errors))
        if verdict is _BARE:
            raise Uncheckable("cannot be evaluated offline: device as a whole")
        try:
            data = self._evaluating.compile(expression).serialize()
            checked = cel_cost.read(data)
        except RuntimeError as error:
            raise Uncheckable(f"cannot be evaluated offline: {_first_line(error)}") from error
        plain = bytearray(data)
        self._with_defaults(checked, plain)
        exact = bytearray(plain)
        for node in checked.root.walk():
            if node.kind == "call" and node.name in _EXACT and checked.type_of(node.parts[0]).kind == "dyn":
                over = node.parts[1]
                if node.name == "_==_" or (over.parts and all(part.kind == "literal" for part in over.parts)):
                    exact[node.name_at : node.name_at + len(node.name)] = _EXACT[node.name].encode()
        calls = {node.name for node in checked.root.walk() if node.kind == "call"}
        try:
            program = self._evaluating.deserialize(bytes(plain))
            return _Program(
                program,
                program if exact == plain else self._evaluating.deserialize(bytes(exact)),
                frozenset(_strings(checked.root)),
                "semver" in calls,
                _reads(checked.root),
            )
        except RuntimeError as error:
            raise Uncheckable(f"cannot be evaluated offline: {_first_line(error)}") from error

    @staticmethod
    def _with_defaults(checked: cel_cost.Checked, data: bytearray) -> None:
        """Let look-ups by domain find an empty map where the device has nothing of that domain.

        On the server looking up a domain never fails, while C(in), size and iteration see the domains that are there.
        """
        looked_up = set()
        for node in checked.root.walk():
            if node.kind == "select" and node.target is not None:
                looked_up.add(node.target.number)
            elif node.kind == "call" and node.name in ("_[_]", "_[?_]", "_?._"):
                looked_up.add(node.parts[0].number)
        for node in checked.root.walk():
            if node.kind == "comprehension" and node.parts[1].kind == "ident" and node.parts[1].name in _DEFAULTED:
                # The server's answer then depends on whether the device has any domain
                raise Uncheckable(f"cannot be evaluated offline: {node.parts[1].name} bound to a variable")
        for node in checked.root.walk():
            if node.kind == "ident" and node.name in _DEFAULTED and node.number in looked_up:
                shadow = _DEFAULTED[node.name].encode()
                for at in (node.name_at, checked.references.get(node.number)):
                    if at is not None:
                        data[at : at + len(shadow)] = shadow


def _alike(one: cel_cost.Type, other: cel_cost.Type) -> bool:
    """Whether elements of these types may stand in one literal; an empty literal's parameter is open."""
    if "param" in (one.kind, other.kind):
        return True
    if (one.kind, one.name, len(one.parameters)) != (other.kind, other.name, len(other.parameters)):
        return False
    return all(map(_alike, one.parameters, other.parameters))


def _value(name: str, attribute: t.Mapping[str, t.Any]) -> t.Any:
    """The value of a v1 DeviceAttribute. Raises EvaluationError for a version that is none, as the scheduler does."""
    for kind in ("ints", "bools", "strings"):
        if attribute.get(kind) is not None:
            return [_whole_text(name, one) for one in attribute[kind]]
    try:
        if attribute.get("versions") is not None:
            return [_read_version(text) for text in attribute["versions"]]
        for kind in ("int", "bool", "string"):
            if attribute.get(kind) is not None:
                return _whole_text(name, attribute[kind])
        if attribute.get("version") is not None:
            return _read_version(attribute["version"])
    except ValueError as error:
        raise EvaluationError(f"attribute {name}: {error}") from error
    raise EvaluationError(f"attribute {name}: unsupported attribute value")


def _whole_text(name: str, value: t.Any) -> t.Any:
    """The value, unless the engine's binding would cut it."""
    if isinstance(value, str) and "\0" in value:
        raise Uncheckable(f"cannot be evaluated offline: attribute {name} with a NUL character")
    return value


def engine_for(kubernetes: str, gates: versions.Gates = None) -> Engine:
    """The CEL of a release of Kubernetes (C(1.34)) with these feature gates.

    Raises EngineMissing, and ValueError for a release that is not known.
    """
    minor = versions.minor_of(kubernetes)
    return Engine(
        consumable_capacity=versions.enabled("DRAConsumableCapacity", minor, gates),
        list_attributes=versions.enabled("DRAListTypeAttributes", minor, gates),
    )
