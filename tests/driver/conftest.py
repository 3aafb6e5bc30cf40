# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures for tests of claims, which run in their own namespaces (see claims_node.py)."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver.own_namespaces import OwnNamespaces

if t.TYPE_CHECKING:
    from ansible_collections.lanewise.dra.tests.driver.claims_node import ClaimsNode, Sandbox


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "namespaces: runs in its own namespaces, as every test with the fixture node of conftest.py does"
    )
    config.pluginmanager.register(OwnNamespaces(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "claims_node" in fixtures:
            item.add_marker(pytest.mark.control_plane)
        if "consumer" in fixtures:  # it builds a Go program
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module")
def claims_node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[ClaimsNode]:
    """A node with the claims of the test file's `INVENTORY`, or else of claims_node.INVENTORY."""
    from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
    from ansible_collections.lanewise.dra.tests.driver.claims_node import INVENTORY, ClaimsNode, make_wires
    from environment import Missing

    try:
        plane = ControlPlane()
    except Missing as missing:
        pytest.skip(str(missing))
    with plane:
        peer_pid = make_wires()
        created = ClaimsNode(plane, tmp_path_factory.mktemp("node"), peer_pid)
        created.publish(getattr(request.module, "INVENTORY", INVENTORY))
        yield created


@pytest.fixture
def node(claims_node: ClaimsNode) -> t.Iterator[ClaimsNode]:
    """The node with its claims. A test that leaves files or changes the node's network fails."""
    from ansible_collections.lanewise.dra.tests.driver.claims_node import differences, host_state

    before = host_state()
    assert claims_node.files() == []
    yield claims_node
    assert differences(before, host_state()) == []
    assert claims_node.files() == []


@pytest.fixture
def sandbox() -> t.Iterator[Sandbox]:
    from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox

    created = Sandbox()
    yield created
    created.end()
