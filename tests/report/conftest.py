# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures for the report's tests: the facts of example machines, reports and a browser."""

from __future__ import annotations

import copy
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.plugins.plugin_utils import report_site
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_pages import Pages
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_site import Request, Site
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import names

from .chromium import CHROMIUM, Browser

TEMPLATES = Path(report_site.__file__).parents[2] / "roles" / "topology" / "templates" / "report"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    started = Browser(str(CHROMIUM), tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, t.Any]]:
    """The facts of every machine that tests/machines describes, by name."""
    top = tmp_path_factory.mktemp("machines")
    facts = {}
    for name in names():
        facts[name] = as_dict(probe(root=str(build(name, top / name)), diagnose=diagnose))
        facts[name]["source"]["path"] = "/"
    return facts


def without_gpu(facts: dict[str, t.Any], number: int) -> dict[str, t.Any]:
    """The facts of the same machine after a GPU fell off the bus."""
    facts = copy.deepcopy(facts)
    address = facts["gpus"].pop(number)["address"]
    del facts["functions"][address]
    at = facts["affinity"]["devices"].index(address)
    for row in [facts["affinity"]["devices"], facts["affinity"]["levels"], *facts["affinity"]["levels"]]:
        del row[at]
    facts["groups"] = [group for group in facts["groups"] if address not in group["gpus"]]
    facts["fingerprint"] = "0000000000000001"
    return facts


@pytest.fixture(scope="session")
def fleet(machines: dict[str, dict[str, t.Any]]) -> dict[str, dict[str, t.Any]]:
    """A small site: a rack of identical nodes with one outlier and one broken node, and a node of every other kind."""
    facts = {f"h100-{number:02}": machines["hgx-h100"] for number in range(1, 11)}
    facts["h100-04"] = machines["degraded"]
    facts["h100-09"] = without_gpu(machines["hgx-h100"], 3)
    rack = ("hgx-h100", "degraded", "missing-nic")
    others = {f"{name}-1": found for name, found in machines.items() if name not in rack}
    return {**facts, **others}


class Report:
    """A report's folder, and the result of the last run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site: Site | None = None
        self.result: dict[str, t.Any] = {}

    def run(
        self,
        facts: dict[str, t.Any],
        *,
        dry: bool = False,
        title: str = "Test site",
        templates: list[str] | None = None,
        **request: t.Any,
    ) -> Site:
        request.setdefault("play", set(facts))
        request.setdefault("inventory", set(facts) | request["play"])
        request.setdefault("now", "2026-01-02T03:04:05Z")
        pages = Pages([*(templates or []), str(TEMPLATES)], title)
        self.site = Site(str(self.folder), pages, title, dry=dry)
        self.result = self.site.update(Request(facts=facts, **request))
        return self.site

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }

    def text(self, name: str = "index.html") -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "report")


@pytest.fixture(scope="session")
def built(fleet: dict[str, t.Any], tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of the small site, with one unreachable node. Tests only read it."""
    result = Report(tmp_path_factory.mktemp("site"))
    result.run(fleet, play={*fleet, "h100-11"}, unreachable={"h100-11"})
    return result
