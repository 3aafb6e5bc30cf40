# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A misspelled variable is an error, whichever playbook reads it."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims import language
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.inventory import PREFIX
from ansible_collections.lanewise.dra.plugins.plugin_utils.known_variables import (
    NEAR_PREFIXES,
    PLAY_VARIABLES,
    PLAYBOOK_VARIABLES,
    PREFIXES,
    boards,
    role_options,
    unknown_names,
)
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION, run_playbook


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build("cpu-rdma", tmp_path_factory.mktemp("machines") / "cpu-rdma"))


def test_similar_names_are_suggested() -> None:
    assert unknown_names(["fabric_nic", "dra_driver_kubeconfg", "site_confrim", "fabric_qqqqqqqqqqqq"]) == {
        "fabric_nic": "did you mean fabric_nics?",
        "dra_driver_kubeconfg": "did you mean dra_driver_kubeconfig?",
        "site_confrim": "did you mean site_confirm?",
        "fabric_qqqqqqqqqqqq": "",
    }
    assert not unknown_names(["site_name", "driver_version_of_mine", "fabric", "kubeconfig", "ansible_host"])
    assert not unknown_names(["fabric_switch_a", "topology_rack"], ["fabric_switch_*", "topology_rack"])


def test_every_variable_of_roles_playbooks_and_pages_is_known() -> None:
    known = role_options() | {*PLAYBOOK_VARIABLES, *PLAY_VARIABLES}
    assert not unknown_names(known)
    for role in COLLECTION.glob("roles/*/defaults/main.yml"):
        assert set(yaml.safe_load(role.read_text()) or {}) <= role_options(), role
    text = "\n".join(path.read_text() for path in sorted((COLLECTION / "playbooks").rglob("*.yml")))
    for name in PLAYBOOK_VARIABLES:
        assert re.search(rf"\b{name}\b", text) or name == "site_own_variables", f"{name} is read by no playbook"
    page = (COLLECTION / "docs/rollout.md").read_text()
    rows = re.findall(r"^\|((?: `[a-z_*]+`,?)+) \|", page, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert listed and not {name for name in listed if name.startswith((*PREFIXES, *NEAR_PREFIXES))} - known


def test_the_claims_language_and_the_role_have_the_same_variables() -> None:
    variables = {PREFIX + name for name in (*language._VARIABLES, *language._ROLE_VARIABLES)}
    results = {PREFIX + name for name in ("applied", "rendered")}
    assert variables - results == {name for name in role_options() if name.startswith(PREFIX)}


def test_the_number_0_is_not_replaced_by_a_default() -> None:
    """`default(..., true)` also replaces 0: a seed of 0 would be 1, and no moves would be ten."""
    options = "hours|count|share|timeout|budget_timeout|settle_timeout|max_moves|gap|load|swing|seed|speed"
    lines = [
        line
        for path in sorted((COLLECTION / "playbooks").rglob("*.yml"))
        for line in path.read_text().splitlines()
        if re.match(rf" +({options}): ", line)
    ]
    assert len(lines) > 15
    assert not [line for line in lines if re.search(r"default\(\S+, true\)", line)]


def test_an_empty_context_is_the_current_one() -> None:
    files = [path for folder in ("playbooks", "roles") for path in (COLLECTION / folder).rglob("*.yml")]
    lines = [line for path in files for line in path.read_text().splitlines() if re.match(r" +context: .*omit", line)]
    assert len(lines) > 40
    assert not [line for line in lines if "default(omit, true)" not in line]


def test_a_misspelled_state_of_a_hold_is_an_error(tmp_path: Path) -> None:
    output = run_playbook(tmp_path, {}, "reserve", "-e", "reserve_name=a", "-e", "reserve_state=abesnt", rc=2)
    assert "reserve_state is abesnt: it must be 'present' or 'absent'" in output


@pytest.mark.parametrize("playbook", ["rollout", "drift", "fabric", "driver", "probe", "verify", "rollback", "upgrade"])
def test_every_playbook_stops_before_it_does_anything(tmp_path: Path, tree: str, playbook: str) -> None:
    hosts: dict[str, dict[str, t.Any]] = {
        "one": {"topology_root": tree},
        "two": {"topology_root": tree, "fabric_nic": [], "fabric_mine": 1, "site_own_variables": ["fabric_mi*"]},
    }
    output = run_playbook(tmp_path, hosts, playbook, rc=2)
    assert "two: fabric_nic is not known: did you mean fabric_nics?" in output
    assert "fabric_mine is" not in output and "one: " not in output
    assert not (tmp_path / "report").exists()


def test_an_unknown_board_is_reported(tmp_path: Path, tree: str) -> None:
    assert "hgx-roce" in boards()
    hosts = {"one": {"topology_root": tree, "fabric_board": "{{ 'hgx' ~ '-rocee' }}"}}
    output = run_playbook(tmp_path, hosts, "drift", rc=2)
    assert "one: fabric_board: there is no board 'hgx-rocee': did you mean hgx-roce?" in output
