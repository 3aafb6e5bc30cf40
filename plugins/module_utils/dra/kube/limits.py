# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The limits of the `resource.k8s.io` API, and checks of the names in its objects.

Sources: k8s.io/api/resource/v1/types.go, pkg/apis/resource/validation/validation.go and
k8s.io/apimachinery/pkg/api/validate/content of Kubernetes 1.34 to 1.37. Where releases differ, the constant maps the
first minor release with a value to that value; read it with `at`.

Each name check returns what is wrong with the name, or `""` if it is valid. Lengths are in bytes of UTF-8, as the API
counts them.
"""

from __future__ import annotations

import json
import re
import typing as t

# Claims.
REQUESTS = 32
CONSTRAINTS = 32
CONFIGS = 32
SELECTORS = 32
FIRST_AVAILABLE = 8
DERIVED_ATTRIBUTES = 32
ALLOCATION_RESULTS = 32
# Declared in types.go, but not enforced by any released server; rendered tolerations respect it.
TOLERATIONS = 16
OPAQUE_BYTES = 10 * 1024
CEL_BYTES = 10 * 1024
CEL_COST = 1_000_000

# Slices.
DEVICES = 128
DEVICES_ADVANCED = {34: 128, 35: 64}  # with taints or consumed counters, since 1.36 also list attributes
ATTRIBUTES_AND_CAPACITIES = 32
ATTRIBUTE_VALUES = 48
ATTRIBUTE_VALUE_BYTES = 64
TAINTS = {34: 4, 35: 16}
BINDING_CONDITIONS = 4
BINDING_FAILURE_CONDITIONS = 4
VALID_VALUES = 10
COUNTER_SETS = {34: None, 35: 8}
COUNTERS_PER_SET = {34: None, 35: 32}
CONSUMED_SETS = {34: None, 35: 2}
COUNTERS_PER_CONSUMPTION = {34: None, 35: 32}
COMPATIBILITY_GROUPS = 2
# 1.34 counted counters per device and per slice instead.
COUNTERS_PER_DEVICE_134 = 32
DEVICE_COUNTERS_PER_SLICE_134 = 1024
SHARED_COUNTERS_134 = 32

# Names.
DNS_LABEL_BYTES = 63
DNS_SUBDOMAIN_BYTES = 253
DRIVER_BYTES = 63
POOL_BYTES = 253
IDENTIFIER_BYTES = 32
LABEL_VALUE_BYTES = 63
ANNOTATIONS_BYTES = 256 * 1024

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_NAME = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRERELEASE = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)

T = t.TypeVar("T")


def at(limit: t.Mapping[int, T], minor: int) -> T:
    """The value of a limit that changed between releases, in Kubernetes 1.`minor`."""
    return limit[max(since for since in limit if since <= max(minor, min(limit)))]


def size(text: str) -> int:
    """Bytes of `text` in UTF-8, which is what the API's `len` counts."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def dns_label(name: str) -> str:
    """RFC 1123 label: names of devices, requests, counters and counter sets."""
    if not _DNS_LABEL.fullmatch(name):
        return "must be lower-case letters, digits and '-', with a letter or digit at both ends"
    return f"must be no more than {DNS_LABEL_BYTES} bytes" if len(name) > DNS_LABEL_BYTES else ""


def dns_subdomain(name: str) -> str:
    """RFC 1123 subdomain: names of objects, classes and nodes."""
    if not _DNS_SUBDOMAIN.fullmatch(name):
        return "must be lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"
    return f"must be no more than {DNS_SUBDOMAIN_BYTES} bytes" if len(name) > DNS_SUBDOMAIN_BYTES else ""


def driver_name(name: str) -> str:
    """The name of a driver: a subdomain of at most 63 bytes; the API accepts upper case."""
    if not name:
        return "must not be empty"
    if size(name) > DRIVER_BYTES:
        return f"must be no more than {DRIVER_BYTES} bytes"
    return dns_subdomain(name.lower())


def pool_name(name: str) -> str:
    """The name of a pool: subdomains joined with '/', at most 253 bytes in total."""
    if not name:
        return "must not be empty"
    if size(name) > POOL_BYTES:
        return f"must be no more than {POOL_BYTES} bytes"
    return next((wrong for wrong in map(dns_subdomain, name.split("/")) if wrong), "")


def identifier(name: str) -> str:
    """A C identifier of at most 32 bytes: the last part of attribute and capacity names."""
    if not _IDENTIFIER.fullmatch(name):
        return "must be letters, digits and '_', and must not start with a digit"
    return f"must be no more than {IDENTIFIER_BYTES} bytes" if len(name) > IDENTIFIER_BYTES else ""


def qualified_name(name: str) -> str:
    """The name of an attribute or a capacity: `identifier` or `domain/identifier`.

    Servers up to 1.37 accept names with two or more slashes unchecked; so does this check.
    """
    parts = name.split("/")
    if len(parts) == 1:
        return identifier(name)
    if len(parts) == 2:
        return (driver_name(parts[0]) and f"domain {driver_name(parts[0])}") or identifier(parts[1])
    return ""


def fully_qualified_name(name: str, minor: int = 37) -> str:
    """The name of an attribute in a constraint: `domain/identifier`; since 1.37 the domain must be lower case."""
    if "/" not in name:
        return "must be a domain and a name with a slash between them"
    wrong = qualified_name(name)
    parts = name.split("/")
    if not wrong and minor >= 37 and len(parts) == 2 and dns_subdomain(parts[0]):
        wrong = f"domain {dns_subdomain(parts[0])}"
    return wrong


def label_key(name: str) -> str:
    """The key of a label, annotation, taint or condition: `name` or `prefix/name`."""
    parts = name.split("/")
    if len(parts) > 2:
        return "must have at most one '/'"
    if len(parts) == 2:
        wrong = dns_subdomain(parts[0])
        if wrong:
            return f"prefix {wrong}"
    if not _LABEL_NAME.fullmatch(parts[-1]):
        return "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return f"must be no more than {LABEL_VALUE_BYTES} bytes" if len(parts[-1]) > LABEL_VALUE_BYTES else ""


def label_value(value: str) -> str:
    """The value of a label, taint or toleration; it may be empty."""
    if value and not _LABEL_NAME.fullmatch(value):
        return "must be letters, digits, '-', '_' and '.', with a letter or digit at both ends"
    return f"must be no more than {LABEL_VALUE_BYTES} bytes" if len(value) > LABEL_VALUE_BYTES else ""


def semver(version: str) -> str:
    """A version attribute: strict semver 2.0.0."""
    return "" if _SEMVER.fullmatch(version) else "must be a semantic version such as 1.2.3"


def extended_resource_name(name: str) -> str:
    """`DeviceClass.spec.extendedResourceName`: a prefixed name outside kubernetes.io that quotas can use."""
    if "/" not in name:
        return "must be a domain and a name with a slash between them"
    if "kubernetes.io/" in name:
        return "must not be in the domain kubernetes.io"
    if name.startswith("requests."):
        return "must not start with 'requests.'"
    return label_key(f"requests.{name}")


def json_error(value: object) -> str:
    """Why a value of a YAML file cannot be written as JSON; empty if it can be."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return "contains a value that JSON does not have; write a date as a string, in quotes"
    return ""


def opaque_size(parameters: object) -> int:
    """Bytes of opaque parameters as compact UTF-8 JSON.

    The server counts the bytes that it receives, so whitespace and escapes in a request count, too. The parameters
    have no `json_error`, or were read from JSON: a number such as 1e400 is then infinite, and counts as `Infinity`.
    """
    return len(json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
