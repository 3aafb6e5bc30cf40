# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A report's folder across releases: each release reads the files of the other, and keeps files that it cannot read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import stored_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_facts import read_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_formats import (
    FORMATS,
    REPLACED,
    Unusable,
    check_facts_version,
)

from .conftest import Report
from .releases import report_1_0_0
from .test_report_action import ANSIBLE_PLAYBOOK, COLLECTIONS
from .test_report_action import pytestmark as ansible_playbook

OLD = Path(__file__).parent / "releases" / "1.0.0"
HOSTS = {"cpu-rdma-1", "vmd-1"}
#: A plan of an empty fleet.
PLAN: dict[str, t.Any] = {
    **{name: [] for name in ("fit", "after", "steps", "stranded", "notes")},
    "worth": {"devices": 0, "gbps": 0, "money": None, "unit": "", "unpriced": 0},
    "fleet": {"states": {}, "shapes": [], "nodes": []},
}


@pytest.fixture
def old(tmp_path: Path) -> Report:
    shutil.copytree(OLD, tmp_path / "report")
    return Report(tmp_path / "report")


def data(report: Report) -> dict[str, bytes]:
    return {name: content for name, content in report.files().items() if name.endswith(".json")}


def test_files_of_1_0_0_are_used_and_kept(old: Report) -> None:
    """A run that reaches no node draws all nodes from the stored facts, and shows which one was unreachable."""
    assert dict(stored_facts(str(old.folder))) == report_1_0_0.stored_facts(str(OLD))
    site = old.run({}, play=set(), inventory={*HOSTS, "lost-1"})
    assert not site.store.warnings and old.result["counts"]["probed"] == 2 and old.result["counts"]["absent"] == 1
    for name in HOSTS:
        assert (old.folder / f"nodes/{name}.json").read_bytes() == (OLD / f"nodes/{name}.json").read_bytes()
    assert "lost-1" in (old.folder / "index.html").read_text()
    assert json.loads((old.folder / "site.json").read_text())["absent"] == {"lost-1": "unreachable"}


def test_1_0_0_reads_the_current_files(old: Report) -> None:
    facts = dict(stored_facts(str(old.folder)))
    shutil.rmtree(old.folder)
    old.run(facts, play={*HOSTS, "lost-1"}, unreachable={"lost-1"})
    assert report_1_0_0.stored_facts(str(old.folder)) == facts
    for name in HOSTS:
        now, before = (report_1_0_0.read_store(top / f"nodes/{name}.json") for top in (old.folder, OLD))
        assert now == before, "byte for byte: a rollback changes no file"
    theirs = report_1_0_0.site_file(OLD)
    ours = report_1_0_0.site_file(old.folder)
    assert ours["absent"] == theirs["absent"] and ours["format"] == theirs["format"] == 1
    assert ours.keys() >= theirs.keys()


def newer(report: Report, name: str) -> None:
    path = report.folder / name
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2', 1))


@pytest.mark.parametrize("name", ["site.json", "nodes/vmd-1.json"])
def test_a_report_of_a_newer_release_is_not_changed(old: Report, name: str) -> None:
    facts = dict(stored_facts(str(old.folder)))
    newer(old, name)
    before = old.files()
    with pytest.raises(Unusable, match=rf"{name}: a newer release .*its format is 2.*Use that release"):
        old.run(facts)
    assert old.files() == before
    if name != "site.json":
        with pytest.raises(ValueError, match="a newer release"):
            dict(stored_facts(str(old.folder)))


def later_facts(report: Report, host: str) -> None:
    path = report.folder / f"nodes/{host}.json"
    path.write_text(path.read_text().replace('"schema_version": "1.0"', '"schema_version": "2.0"'))


def test_facts_of_a_newer_release_are_not_misread(old: Report) -> None:
    facts = dict(stored_facts(str(old.folder)))
    later_facts(old, "vmd-1")
    before = old.files()
    with pytest.raises(
        Unusable, match=r"vmd-1 \(.*\): a newer release of lanewise.dra probed this node.*probe the node again"
    ):
        old.run({"cpu-rdma-1": facts["cpu-rdma-1"]}, play=HOSTS, inventory=HOSTS)
    with pytest.raises(ValueError, match="vmd-1 .* a newer release"):
        dict(stored_facts(str(old.folder)))
    with pytest.raises(Unusable, match="vmd-1: a newer release"):
        old.run({"vmd-1": {**facts["vmd-1"], "schema_version": "2.1"}}, inventory=HOSTS)
    assert old.files() == before
    # the fix in the message
    old.run({"vmd-1": facts["vmd-1"]}, inventory=HOSTS)
    assert dict(stored_facts(str(old.folder))) == facts


@pytest.mark.parametrize("version", [None, "1.0", "1.7", "0.9", 2, "x", "2", "9" * 5000 + ".0", {}])
def test_other_versions_of_facts_are_read(version: t.Any) -> None:
    """A higher minor version means more facts. A node may also return invalid values."""
    check_facts_version(version, "node")
    assert read_facts({"schema_version": version}) is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"nodes": []}', b"\xff", b"[" * 100000])
def test_a_damaged_site_file_drops_no_nodes_of_other_inventories(old: Report, content: bytes) -> None:
    facts = dict(stored_facts(str(old.folder)))
    (old.folder / "site.json").write_bytes(content)
    before = old.files()
    with pytest.raises(Unusable, match=r"site.json is damaged: .*remove it and index.html"):
        old.run({"vmd-1": facts["vmd-1"]}, source="a")
    assert old.files() == before
    # the fix in the message
    (old.folder / "site.json").unlink()
    old.run({"vmd-1": facts["vmd-1"]}, inventory=HOSTS)
    assert set(dict(stored_facts(str(old.folder)))) == HOSTS


def test_each_format_has_a_conversion_from_the_previous_one() -> None:
    for formats in (FORMATS, REPLACED):
        assert sorted(formats.conversions) == list(range(2, formats.newest + 1))
        assert formats.newest - 1 <= formats.written <= formats.newest


@ansible_playbook
def test_modules_refuse_reports_of_a_newer_release(old: Report, tmp_path: Path) -> None:
    """Under a real ansible-playbook: folders of this release are used, and a report of a newer release is refused."""
    summary = dict.fromkeys(("claims", "kept", "broken", "unknown", "none", "pending", "unproven"), 0)
    checked = {"claims": [], "summary": summary, "comparisons": [], "notes": []}
    tasks = [
        {"lanewise.dra.site_report": {"dest": str(old.folder), "nodes": {}}},
        {"lanewise.dra.alignment_report": {"dest": str(tmp_path / "alignment"), "checked": checked}},
        {"lanewise.dra.plan_report": {"dest": str(tmp_path / "plan"), "plan": PLAN}},
    ]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))

    def play() -> tuple[int, str]:
        done = subprocess.run(
            [str(ANSIBLE_PLAYBOOK), "-i", ",".join([*HOSTS, "lost-1", ""]), str(tmp_path / "play.yml")],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_HOME": str(tmp_path / "home")},
        )
        return done.returncode, done.stdout + done.stderr

    code, output = play()
    assert code == 0, output
    written = json.loads((tmp_path / "alignment" / "alignment.json").read_text())
    assert written == {**checked, "format": 1}
    assert json.loads((tmp_path / "plan" / "plan.json").read_text()) == {**PLAN, "format": 1}
    assert "There are no nodes." in (tmp_path / "plan" / "plan.html").read_text()
    newer(old, "site.json")
    code, output = play()
    assert code == 2 and "a newer release of lanewise.dra wrote this report" in output
    assert "Traceback" not in output
