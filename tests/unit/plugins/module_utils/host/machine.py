# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans for recorded machines."""

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


def planned(
    resource: type[Resource],
    machine: Path,
    settings: dict[str, dict[str, t.Any]],
    general: dict[str, t.Any] | None = None,
) -> Plan:
    """The plan for a machine's tree, of settings by PCI address."""
    system = System(str(machine))
    rules = [Rule(key, selector({"address": key}), one, count=1) for key, one in settings.items()]
    return resource(system).plan(Node(system, rules, general, allow_management=True))


class Machine:
    """A machine of tests/machines in its own folder, whose files a test may change."""

    def __init__(self, name: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.root = build(name, Path(self._folder.name) / "machine")

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._folder.cleanup()

    def write(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n", encoding="utf-8")

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    def remove(self, path: str) -> None:
        place = self.root / path.lstrip("/")
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()

    def planned(self, resource: type[Resource], settings: dict[str, dict[str, t.Any]], **general: t.Any) -> Plan:
        return planned(resource, self.root, settings, general)
