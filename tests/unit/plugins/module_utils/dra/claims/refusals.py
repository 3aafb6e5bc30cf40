# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks that the compiler refuses a site."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problem, Problems

Values = dict[str, t.Any]


def problems_of(values: Values, nodes: Values | None = None, kubernetes: str = "1.37") -> list[Problem]:
    """The problems of a site that must not compile."""
    with pytest.raises(Problems) as caught:
        compile_site(values, nodes, kubernetes)
    return caught.value.problems


def check_only_problem(values: Values, path: str, rule: str, *words: str, **more: t.Any) -> None:
    """Check that a site has exactly one problem, at this path and by this rule, and that its text has these words."""
    problems = problems_of(values, **more)
    assert [(problem.path, problem.rule) for problem in problems] == [(path, rule)], problems
    for word in words:
        assert word in str(problems[0])
