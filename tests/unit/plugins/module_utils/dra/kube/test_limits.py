# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The limits and rules of names, versions and sizes in the DRA API."""

from __future__ import annotations

import datetime

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import limits
from hypothesis import given
from hypothesis import strategies as st

VALID = {
    limits.dns_label: ["a", "0", "gpu-0", "x" * 63],
    limits.dns_subdomain: ["a", "gpu.nvidia.com", "0.1", "x" * 253],
    limits.driver_name: ["gpu.nvidia.com", "Upper.Example.com", "x" * 63],
    limits.pool_name: ["node-1", "a/b.c/d", "x" * 253],
    limits.identifier: ["a", "_", "A9_", "x" * 32],
    limits.qualified_name: ["model", "lanewise.dev/rail", "Upper.Example.com/x", "a/b/c", "//"],
    limits.fully_qualified_name: ["lanewise.dev/rail", "a/b/c"],
    limits.label_key: ["a", "A", "9", "example.com/app", "a.b_c-d", "a/" + "x" * 63],
    limits.label_value: ["", "a", "A.b_c-9", "x" * 63],
    limits.semver: ["0.0.0", "1.2.3", "1.2.3-alpha.1+build.5", "1.0.0--", "1.0.0+001"],
    limits.extended_resource_name: ["example.com/gpu", "a/b", "kubernetes.io.example.com/x"],
}
INVALID = {
    limits.dns_label: ["", "A", "-a", "a-", "a.b", "a_b", "x" * 64, "a\n", "é"],
    limits.dns_subdomain: ["", ".", "a..b", "a.", "-a.b", "A", "a_b", "x" * 254, "a\n"],
    limits.driver_name: ["", "a_b", "x" * 64, "a/b", "é" * 32],
    limits.pool_name: ["", "/", "a//b", "A", "a/", "x" * 254],
    limits.identifier: ["", "9a", "a-b", "x" * 33, "a\n", "é"],
    limits.qualified_name: ["", "/x", "x/", "9a", "a b/c", "x" * 64 + "/a"],
    limits.fully_qualified_name: ["", "rail", "/x", "x/", "Upper.Example.com/x"],
    limits.label_key: ["", "/a", "a/", "a/b/c", "-a", "A.com/x", "x" * 64, "x" * 254 + "/a"],
    limits.label_value: ["-", "a b", "a-", "x" * 64, "é", "a\n"],
    limits.semver: ["", "1", "1.2", "01.2.3", "v1.2.3", "1.2.3-01", "1.2.3-", "1.2.3+", "1.2.3 ", "1.2.3\n"],
    limits.extended_resource_name: ["", "gpu", "kubernetes.io/x", "x.kubernetes.io/y", "requests.a/b", "a/b/c", "A/b"],
}
CHECKS = list(VALID)


@pytest.mark.parametrize("check, name", [(check, name) for check in CHECKS for name in VALID[check]])
def test_valid_names_are_accepted(check, name):
    assert check(name) == ""


@pytest.mark.parametrize("check, name", [(check, name) for check in CHECKS for name in INVALID[check]])
def test_invalid_names_are_refused(check, name):
    assert check(name)


def test_domains_in_constraints_may_have_capital_letters_before_1_37():
    assert limits.fully_qualified_name("Upper.Example.com/x", 36) == ""
    assert limits.fully_qualified_name("Upper.Example.com/x", 37)


@pytest.mark.parametrize("limit, expected", [(limits.TAINTS, [4, 16, 16, 16]), (limits.COUNTER_SETS, [None, 8, 8, 8])])
def test_limits_depend_on_the_release(limit, expected):
    assert [limits.at(limit, minor) for minor in (34, 35, 36, 37)] == expected


def test_sizes_are_counted_in_bytes():
    assert limits.size("ü" * 3 + "a") == 7
    assert limits.opaque_size({"a": "ü", "b": [1, None]}) == len('{"a":"ü","b":[1,null]}'.encode())
    assert limits.opaque_size({"a": float("inf")}) == len('{"a":Infinity}')


def test_values_that_json_does_not_have_are_named():
    assert limits.json_error({"a": [1.5, "2026-01-01", None]}) == ""
    for value in (datetime.date(2026, 1, 1), float("nan"), b"a", {(1, 2): 1}):
        assert "in quotes" in limits.json_error({"a": value})


@given(st.text(max_size=80))
def test_every_label_is_a_subdomain_every_driver_a_pool_and_every_identifier_a_qualified_name(name):
    if not limits.dns_label(name):
        assert not limits.dns_subdomain(name) and not limits.label_value(name)
    if not limits.driver_name(name):
        assert not limits.pool_name(name.lower())
    if not limits.identifier(name):
        assert not limits.qualified_name(name) and not limits.fully_qualified_name(f"a.b/{name}")
