# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Functions of the server's environment that the engine lacks, and names that are replaced in expressions."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from fractions import Fraction

from .values import (
    as_amount,
    as_float,
    as_fraction,
    as_integer,
    compare,
    is_integer,
    quantity_value,
    read_quantity,
    reads_without_error,
    version_part,
    version_value,
)


@dataclass(frozen=True)
class Function:
    """A function of the server. `member` says whether it is called on its first argument.

    `overloads` are identifier, parameters and result: Q(uantity), V(ersion), s(tring), b(ool), i(nt), d(ouble).
    """

    name: str
    member: bool
    overloads: tuple[tuple[str, str, str], ...]
    call: t.Callable[..., object]


# k8s.io/apiserver/pkg/cel/library/quantity.go and semverlib.go; sign is a function there, not a member
FUNCTIONS = (
    Function("quantity", False, (("string_to_quantity", "s", "Q"),), lambda text: quantity_value(read_quantity(text))),
    Function("isQuantity", False, (("is_quantity_string", "s", "b"),), reads_without_error(read_quantity)),
    Function("sign", False, (("quantity_sign", "Q", "i"),), lambda value: compare(value, quantity_value(Fraction(0)))),
    Function("asApproximateFloat", True, (("quantity_get_float", "Q", "d"),), as_float),
    Function("asInteger", True, (("quantity_get_int", "Q", "i"),), as_integer),
    Function("isInteger", True, (("quantity_is_integer", "Q", "b"),), is_integer),
    Function(
        "add",
        True,
        (("quantity_add", "QQ", "Q"), ("quantity_add_int", "Qi", "Q")),
        lambda left, right: quantity_value(as_fraction(left) + as_amount(right)),
    ),
    Function(
        "sub",
        True,
        (("quantity_sub", "QQ", "Q"), ("quantity_sub_int", "Qi", "Q")),
        lambda left, right: quantity_value(as_fraction(left) - as_amount(right)),
    ),
    Function("semver", False, (("string_to_semver", "s", "V"), ("string_bool_to_semver", "sb", "V")), version_value),
    Function(
        "isSemver",
        False,
        (("is_semver_string", "s", "b"), ("is_semver_string_bool", "sb", "b")),
        reads_without_error(version_value),
    ),
    Function("major", True, (("semver_major", "V", "i"),), version_part(0)),
    Function("minor", True, (("semver_minor", "V", "i"),), version_part(1)),
    Function("patch", True, (("semver_patch", "V", "i"),), version_part(2)),
    Function(
        "isGreaterThan",
        True,
        (("quantity_is_greater_than", "QQ", "b"), ("semver_is_greater_than", "VV", "b")),
        lambda left, right: compare(left, right) > 0,
    ),
    Function(
        "isLessThan",
        True,
        (("quantity_is_less_than", "QQ", "b"), ("semver_is_less_than", "VV", "b")),
        lambda left, right: compare(left, right) < 0,
    ),
    Function("compareTo", True, (("quantity_compare_to", "QQ", "i"), ("semver_compare_to", "VV", "i")), compare),
)


# Functions of the server that are not implemented here. The engine lacks them, or has them with other types, so only a
# server can check a selector that calls them.
SERVER_ONLY_FUNCTIONS = frozenset(
    # apiserver: url, regex, ip, cidr, format, lists, jsonpatch, authorizer
    "url isURL getScheme getHost getHostname getPort getEscapedPath getQuery find findAll ip isIP ip.isCanonical "
    "isCanonical family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast isGlobalUnicast cidr isCIDR "
    "containsIP containsCIDR prefixLength masked validate named format.named isSorted sum min max includes "
    "jsonpatch.escapeKey escapeKey indexOf lastIndexOf format sortBy sort distinct flatten slice range reverse "
    "lists.range sets.contains sets.equivalent sets.intersects contains equivalent intersects first last "
    "unwrap unwrapOpt optMap optFlatMap transformList transformMap transformMapEntry existsOne".split()
)


# The maps of a device, and the variables that replace them where an expression looks up a domain. The variables contain
# an empty map for each domain that the device lacks, as on the server. Both names have the same length, so that one can
# replace the other in a serialized expression.
MAPS_WITH_DEFAULTS = {"device.attributes": "device_attributes", "device.capacity": "device_capacity"}


# Operators, and the functions that replace them if an operand may be a version, as they then fail for some types as on
# the server (`cel_equal`, `cel_in_list`). Both names have the same length, too.
EXACT_OPERATORS = {"_==_": "same", "@in": "one"}


# The fields of `device` that are not maps
SCALAR_FIELDS = ("device.driver", "device.allowMultipleAllocations")
