# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The site playbook probes a node and plans its configuration in one call, and still reports errors."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import needs_no_change, packed, unpacked
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook

NO_CHANGE = [{"name": "rails", "select": {"near_gpu": "PIX"}, "count": 8, "num_vfs": 0}]
MORE_VFS = [{"name": "rails", "select": {"near_gpu": "PIX"}, "num_vfs": 4}]


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build("hgx-h100", tmp_path_factory.mktemp("machine") / "tree"))


def node(tree: str, rules: object, **more: object) -> dict[str, t.Any]:
    return {"topology_root": tree, "fabric_nics": rules, "fabric_persist": False, **more}


def test_a_node_is_called_once_whether_it_needs_changes_or_not(tmp_path: Path, tree: str) -> None:
    hosts = {"same": node(tree, NO_CHANGE), "other": node(tree, MORE_VFS), "plain": {"topology_root": tree}}
    output = run_playbook(tmp_path, hosts, "site", "--diff", "-vvv", ANSIBLE_PIPELINING="1")
    for host in hosts:
        assert len(re.findall(rf"^<{host}> EXEC ", output, re.MULTILINE)) == 1, host
    assert "no changes needed: 1 node" in output
    assert "8 changes (sriov 8)" in output
    assert "num_vfs: 4" in output  # the diff
    for host in hosts:
        facts = json.loads((tmp_path / "report" / "nodes" / f"{host}.json").read_text())["facts"]
        assert len(facts["gpus"]) == 8


def test_tags_and_verbs_decide_whether_the_probe_plans(tmp_path: Path, tree: str) -> None:
    hosts = {"other": node(tree, MORE_VFS)}
    assert "8 changes" not in run_playbook(tmp_path, hosts, "site", "--check", "--tags", "probe,report")
    assert "8 changes" in run_playbook(tmp_path, hosts, "site", "--tags", "plan")
    assert "8 changes" not in run_playbook(tmp_path, {"other": {**hosts["other"], "site_verbs": ["driver"]}}, "site")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"fabric_reboot_timeout": "soon"}, "argument 'fabric_reboot_timeout' is of type str"),
        ({"fabric_nics": [{"name": "rails", "select": {"near_gpu": "PIX"}, "count": 9, "num_vfs": 0}]}, "rails: "),
        ({"fabric_nics": [{"name": "rails", "slect": {}}]}, "slect is not known"),
    ],
)
def test_an_error_on_one_node_stops_the_run(
    tmp_path: Path, tree: str, variables: dict[str, object], reason: str
) -> None:
    hosts = {"good": node(tree, NO_CHANGE), "bad": {**node(tree, NO_CHANGE), **variables}}
    output = run_playbook(tmp_path, hosts, "site", rc=2)
    assert reason in output
    assert (tmp_path / "report" / "nodes" / "bad.json").exists()  # its probe succeeded


def test_a_node_that_cannot_be_probed_does_not_hide_the_others(tmp_path: Path, tree: str) -> None:
    hosts = {"good": node(tree, NO_CHANGE), "bad": node(str(tmp_path / "nothing"), NO_CHANGE)}
    output = run_playbook(tmp_path, hosts, "site", rc=2)
    assert "has no folder 'sys'" in output
    assert "no changes needed" in output or "bad: " in output
    assert (tmp_path / "report" / "nodes" / "good.json").exists()


def test_packed_facts_are_unpacked_and_any_other_value_gives_none() -> None:
    facts = {"gpus": [{"address": "0000:1b:00.0", "numa": None}] * 300}
    assert unpacked(packed(facts)) == facts
    assert len(packed(facts)) < len(json.dumps(facts)) / 10
    for text in (None, 1, "", "x", packed(facts)[:-9], "é", packed(t.cast("t.Any", [1]))):
        assert unpacked(text) is None


def test_a_plan_without_changes_counts_only_if_it_is_complete() -> None:
    assert needs_no_change({"plan": {"changes": []}, "plan_complete": True})
    assert not needs_no_change({"plan": {"changes": []}, "plan_complete": False})
    assert not needs_no_change({"plan": {"changes": [{"resource": "mtu"}]}, "plan_complete": True})
    assert not needs_no_change({"plan": {}, "plan_complete": True})
    assert not needs_no_change({})
