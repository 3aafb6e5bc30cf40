# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prints what was compared, tree by tree, at the end of the run."""

from __future__ import annotations

import typing as t

import pytest

REPORT = pytest.StashKey[list[t.Any]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> t.Callable[[t.Any], None]:
    """Put a line, or a comparison, into the summary."""
    return request.config.stash[REPORT].append


def pytest_terminal_summary(terminalreporter: t.Any, config: pytest.Config) -> None:
    lines = config.stash[REPORT]
    if not lines:
        return
    from ansible_collections.lanewise.dra.tests.oracle.compare import RULES, Comparison

    terminalreporter.section("oracles")
    for line in lines:
        terminalreporter.write_line(str(line))
    comparisons = [line for line in lines if isinstance(line, Comparison)]
    if comparisons:
        fired = {rule for one in comparisons for rule in one.rules}
        silent = [rule for rule in RULES if rule not in fired]
        terminalreporter.write_line(
            f"hwloc: {len(comparisons)} trees, {sum(one.functions for one in comparisons)} functions, "
            f"{sum(one.facts for one in comparisons)} facts; rules that fired nowhere: {', '.join(silent) or 'none'}"
        )
