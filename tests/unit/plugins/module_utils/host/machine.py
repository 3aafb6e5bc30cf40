# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Example machines whose files a test may change, and plans for them."""

from __future__ import annotations

import shutil
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Plan
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.resource import Resource
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.tests.machines.builder import build


def plan_for(
    resource: type[Resource],
    machine: Path,
    settings: dict[str, dict[str, t.Any]],
    general: dict[str, t.Any] | None = None,
) -> Plan:
    """The plan of a resource for a machine, with NIC settings by PCI address and settings of the node."""
    system = System(str(machine))
    rules = [Rule(key, selector({"address": key}), wanted, count=1) for key, wanted in settings.items()]
    return resource(system).plan(Node(system, rules, general, allow_management=True))


class Machine:
    """An example machine of tests/machines, built in a folder of its own."""

    def __init__(self, name: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.root = build(name, Path(self._folder.name) / "machine")

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._folder.cleanup()

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")

    def link(self, path: str, target: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(target)

    def remove(self, path: str) -> None:
        file = self.root / path.lstrip("/")
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()

    def plan(self, resource: type[Resource], settings: dict[str, dict[str, t.Any]], **general: t.Any) -> Plan:
        return plan_for(resource, self.root, settings, general)
