# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.tests.machines import description
from ansible_collections.lanewise.dra.tests.machines.builder import build

#: Creates a node from an example machine, with at most one rule. Each test has its own copy of the machine.
MakeNode = t.Callable[..., Node]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    def make(
        machine: str,
        selected: dict[str, t.Any] | None = None,
        settings: dict[str, t.Any] | None = None,
        general: dict[str, t.Any] | None = None,
        **options: t.Any,
    ) -> Node:
        rules = [Rule("test", selector(selected or {}), settings)] if settings is not None else []
        root = build(description.HERE / "descriptions" / f"{machine}.yml", tmp_path / machine)
        return Node(System(str(root)), rules, general, **options)

    return make
