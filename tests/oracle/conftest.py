# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print a summary of the comparisons, tree by tree, at the end of the run."""

from __future__ import annotations

import typing as t

import pytest

REPORT = pytest.StashKey[list[dict[str, t.Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


@pytest.fixture
def summarize(request: pytest.FixtureRequest) -> t.Callable[[t.Any], None]:
    """Add a line, or a comparison, to the summary."""
    from ansible_collections.lanewise.dra.tests.oracle.compare import Comparison

    def add(entry: t.Any) -> None:
        line = {"text": str(entry)}
        if isinstance(entry, Comparison):
            line |= {"functions": entry.functions, "facts": entry.facts, "rules": sorted(entry.rules)}
        request.config.stash[REPORT].append(line)

    return add


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a worker process: the main process writes the summary
        session.config.workeroutput["oracle"] = session.config.stash[REPORT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: t.Any) -> None:
    node.config.stash[REPORT] += getattr(node, "workeroutput", {}).get("oracle", [])


def pytest_terminal_summary(terminalreporter: t.Any, config: pytest.Config) -> None:
    lines = config.stash[REPORT]
    if not lines:
        return
    from ansible_collections.lanewise.dra.tests.oracle.compare import RULES

    terminalreporter.section("oracles")
    for line in lines:
        terminalreporter.write_line(line["text"])
    comparisons = [line for line in lines if "rules" in line]
    if comparisons:
        used = {rule for comparison in comparisons for rule in comparison["rules"]}
        unused = [rule for rule in RULES if rule not in used]
        functions = sum(comparison["functions"] for comparison in comparisons)
        facts = sum(comparison["facts"] for comparison in comparisons)
        terminalreporter.write_line(
            f"hwloc: {len(comparisons)} trees, {functions} functions, {facts} facts; "
            f"unused rules: {', '.join(unused) or 'none'}"
        )
