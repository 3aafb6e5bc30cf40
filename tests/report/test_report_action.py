# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugin under a real ansible-playbook."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")

pytestmark = pytest.mark.skipif(
    not ANSIBLE_PLAYBOOK.exists() or COLLECTIONS.joinpath("ansible_collections").resolve() == COLLECTIONS,
    reason="needs ansible-core beside this Python, and the collection in an ansible_collections tree",
)

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Set recorded facts
      ansible.builtin.set_fact:
        topology_facts: "{{ lookup('ansible.builtin.file', facts_file) | from_json }}"
      when: facts_file is defined
    - name: Report
      lanewise.dra.site_report: "{{ options }}"
      run_once: true
      register: report
    - name: Store the result
      ansible.builtin.copy:
        content: "{{ report | to_json }}"
        dest: "{{ result_file }}"
        mode: "0600"
      run_once: true
      delegate_to: localhost
      connection: local
      check_mode: false
      diff: false
"""


class Site:
    def __init__(self, folder: Path, machines: dict[str, t.Any]) -> None:
        self.folder, self.report = folder, folder / "report"
        for name in ("hgx-h100", "degraded", "vmd"):
            (folder / f"{name}.json").write_text(json.dumps(machines[name]))
        (folder / "play.yml").write_text(PLAY)
        self.hosts = {"a1": "hgx-h100", "a2": "hgx-h100", "a3": "degraded", "b<1>": "vmd", "bare": ""}

    def play(self, *arguments: str, fails: bool = False, **options: t.Any) -> tuple[dict[str, t.Any], str]:
        # this address never responds, so a plugin that connected to the host would fail
        hosts: dict[str, dict[str, str]] = {host: {"ansible_host": "192.0.2.1"} for host in self.hosts}
        for host, name in self.hosts.items():
            if name:
                hosts[host]["facts_file"] = str(self.folder / f"{name}.json")
        inventory = self.folder / "inventory.json"
        inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        extra = {"options": {"dest": str(self.report), "title": "Lab", **options}, "result_file": str(result)}
        completed = subprocess.run(
            [
                str(ANSIBLE_PLAYBOOK),
                "-i",
                str(inventory),
                str(self.folder / "play.yml"),
                "-e",
                json.dumps(extra),
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
                "ANSIBLE_HOME": str(self.folder / "home"),
                "ANSIBLE_LOCALHOST_WARNING": "0",
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_INJECT_FACT_VARS": "0",
            },
        )
        assert (completed.returncode != 0) == fails, completed.stdout + completed.stderr
        return json.loads(result.read_text()) if result.exists() else {}, completed.stdout + completed.stderr


@pytest.fixture
def site(tmp_path: Path, machines: dict[str, t.Any]) -> Site:
    return Site(tmp_path, machines)


def test_check_mode_writes_nothing_and_limit_and_prune_change_only_their_pages(site):
    result, output = site.play("--check", "--diff")
    assert result["changed"] and not site.report.exists()
    assert "+ a1: new: 8 GPUs, 12 NICs, 8 NVMe drives" in output and "<html" not in output
    result, output = site.play()
    assert result["changed"] and result["path"] == str(site.report / "index.html")
    assert result["counts"]["probed"] == 4 and result["counts"]["absent"] == 1 and "no facts: bare" in result["summary"]
    before = {path: path.read_bytes() for path in site.report.rglob("*") if path.is_file()}
    result, output = site.play("--diff")
    assert not result["changed"] and "diff" not in result
    site.hosts["a2"] = "degraded"
    result, output = site.play("--limit", "a2", "--diff")
    assert result["changed"] and result["counts"]["probed"] == 4
    assert "~ a2: NIC mlx5_1 0000:29:00.0: link Gen5 x8 instead of Gen5 x16" in output
    kept = [path for path in before if path.read_bytes() == before[path]]
    assert site.report / "nodes/a1.html" in kept and site.report / "nodes/a2.html" not in kept
    del site.hosts["b<1>"]
    result, output = site.play("--diff")
    assert result["changed"] and "- b<1>: no longer in the inventory" in output
    assert len(list(site.report.glob("nodes/*.html"))) == 3


def test_nodes_and_states_can_be_given_as_arguments(site, machines):
    result, _output = site.play(nodes={"x": machines["vmd"]}, unreachable=["a1"], failed=["a2"])
    assert result["counts"]["nodes"] == 3 and result["counts"]["probed"] == 1
    assert {"unreachable: a1", "failed: a2"} <= set(result["summary"])


def test_a_host_outside_of_the_inventory_keeps_its_facts_if_the_new_ones_are_incomplete(site, machines):
    site.play(nodes={"x": machines["vmd"], "y": machines["vmd"]})
    incomplete = {key: value for key, value in machines["vmd"].items() if key != "findings"}
    result, output = site.play(nodes={"x": incomplete, "y": None})
    assert "x: its facts lack findings, so the report keeps earlier facts" in " ".join(output.split())
    assert result["counts"]["probed"] == 2 and {path.stem for path in site.report.glob("nodes/*.json")} == {"x", "y"}


def test_a_relative_folder_is_below_the_playbooks_folder(site):
    result, _output = site.play(dest="out/site")
    assert Path(result["path"]) == site.folder / "out/site/index.html" and Path(result["path"]).exists()


def test_bad_arguments_templates_and_folders_give_an_error(site):
    _result, output = site.play(fails=True, bogus=1)
    assert "Unsupported parameters" in output
    (site.folder / "own").mkdir()
    for text, line in (("{% if %}", 1), ("\n{{ nothing }}", 2)):
        (site.folder / "own/base.html.j2").write_text(text)
        _result, output = site.play(fails=True, template_dir=str(site.folder / "own"))
        assert "A template of the report is faulty" in output and "Traceback" not in output
        assert f"{site.folder}/own/base.html.j2:{line}: " in "".join(output.split("\n")), output
    shutil.rmtree(site.report, ignore_errors=True)
    site.report.write_text("a file in the way")
    _result, output = site.play(fails=True)
    assert "Cannot read or write the files of the report" in output and "Traceback" not in output
