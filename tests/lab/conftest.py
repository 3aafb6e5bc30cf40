# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Virtual nodes for tests: started by the first test of a file that needs them, stopped after its last."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.lab.node import Lab, Node
from environment import Missing  # tools/lab.py has put its folder on the path

STARTED = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = []


def pytest_terminal_summary(terminalreporter: t.Any, config: pytest.Config) -> None:
    if config.stash[STARTED]:
        terminalreporter.section("lab")
        for line in config.stash[STARTED]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def nodes(request: pytest.FixtureRequest) -> t.Iterator[list[Node]]:
    """Two nodes on the same fabrics. Skips if Debian's packages cannot be downloaded."""
    try:
        lab = Lab()
    except Missing as missing:
        pytest.skip(str(missing))
    with lab:
        for node in lab.start(2):
            request.config.stash[STARTED].append(f"{node.name}: ready in {node.seconds:.1f} s")
        yield lab.nodes


@pytest.fixture(scope="module")
def node(nodes: list[Node]) -> Node:
    """The first of the two nodes."""
    return nodes[0]


@pytest.fixture(scope="module")
def single() -> t.Iterator[Node]:
    """One node. Skips if Debian's packages cannot be downloaded."""
    try:
        lab = Lab()
    except Missing as missing:
        pytest.skip(str(missing))
    with lab:
        [node] = lab.start(1)
        yield node
