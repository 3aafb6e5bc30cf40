# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures for tests of claims, which run in their own namespaces (see claims_world)."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.driver.inside import Inside

if t.TYPE_CHECKING:
    from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox, World


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "namespaces: runs in its own namespaces, as every test with the fixture world does"
    )
    config.pluginmanager.register(Inside(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "world" in fixtures:
            item.add_marker(pytest.mark.control_plane)
        if "consumer" in fixtures:  # it builds a Go program
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[World]:
    """The node with the claims of the world's inventory, or with the test file's own `INVENTORY`."""
    from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
    from ansible_collections.lanewise.dra.tests.driver.claims_world import INVENTORY, World, make_wires
    from environment import Missing

    try:
        plane = ControlPlane()
    except Missing as missing:
        pytest.skip(str(missing))
    with plane:
        peer_pid = make_wires()
        made = World(plane, tmp_path_factory.mktemp("node"), peer_pid)
        made.publish(getattr(request.module, "INVENTORY", INVENTORY))
        yield made


@pytest.fixture
def clean(world: World) -> t.Iterator[World]:
    """The world. The test fails if it leaves anything behind."""
    from ansible_collections.lanewise.dra.tests.driver.claims_world import differences, host_state

    before = host_state()
    assert world.files() == []
    yield world
    assert differences(before, host_state()) == []
    assert world.files() == []


@pytest.fixture
def sandbox() -> t.Iterator[Sandbox]:
    from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox

    made = Sandbox()
    yield made
    made.end()
