# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tasks on the controller run as the user who started the playbook, whatever the inventory sets for the nodes."""

from __future__ import annotations

import json
import tarfile
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION, run_playbook

FOLDERS = ("roles/*/tasks", "playbooks", "playbooks/parts", "playbooks/tasks")
FILES = [path for folder in FOLDERS for path in COLLECTION.glob(f"{folder}/*.yml")]
TASK_LISTS = ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")


def _conditions(entry: dict[str, t.Any]) -> list[str]:
    found = entry.get("when", [])
    return [str(item) for item in (found if isinstance(found, list) else [found])]


def on_the_controller(entry: dict[str, t.Any], inherited: dict[str, t.Any]) -> t.Iterator[dict[str, t.Any]]:
    """The keywords that apply to each task on the controller in a play, block or task.

    These are `name`, `vars`, `become`, the conditions `when`, whether it runs `on_controller`, and the `task` itself.
    `inherited` are those of the play or block around it.
    """
    apply = (entry.get("ansible.builtin.include_role") or {}).get("apply") or {}
    known = {**inherited, **{key: value[key] for value in (entry, apply) for key in ("name", "become") if key in value}}
    known["vars"] = {**inherited["vars"], **(entry.get("vars") or {})}
    known["when"] = [*inherited["when"], *_conditions(entry), *_conditions(apply)]
    known["task"] = entry
    known["on_controller"] = (
        inherited["on_controller"]
        or "localhost" in (entry.get("delegate_to"), apply.get("delegate_to"))
        or "local" in (entry.get("connection"), known["vars"].get("ansible_connection"))
    )
    inner = [value for key in TASK_LISTS for value in entry.get(key) or ()]
    for item in inner:
        yield from on_the_controller(item, known)
    if known["on_controller"] and not inner:
        yield known


def tasks_on_the_controller(path: Path) -> list[dict[str, t.Any]]:
    """The keywords that apply to each task on the controller in a file of plays or tasks."""
    inherited = {"name": "", "vars": {}, "on_controller": False, "when": []}
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [item for entry in entries for item in on_the_controller(entry, inherited)]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("roles/fabric/tasks/cluster.yml", "Read the Node"),  # delegate_to
        ("playbooks/drift.yml", "Compare the claims"),  # delegate_to in apply, in a block
        ("playbooks/plan.yml", "Fail without workloads"),  # connection of the play
        ("playbooks/tasks/replace_nic_after.yml", "Write the record"),  # inherited from the block
    ],
)
def test_tasks_on_the_controller_are_found(file: str, name: str) -> None:
    assert name in [task["name"] for task in tasks_on_the_controller(COLLECTION / file)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(COLLECTION)))
def test_no_task_on_the_controller_becomes_root(path: Path) -> None:
    """The keyword overrides --become. The task also needs the variable, because the inventory's variable overrides the
    keyword."""
    for task in tasks_on_the_controller(path):
        assert task.get("become") is False and task["vars"].get("ansible_become") is False, task["name"]


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Path:
    """A folder for an inventory whose hosts all become another user, with a program that always fails."""
    (tmp_path / "group_vars").mkdir()
    # not root, because a play that root runs would not have to become root
    shared = {"ansible_become": True, "ansible_become_user": "nobody", "ansible_become_exe": "/bin/false"}
    (tmp_path / "group_vars" / "all.json").write_text(json.dumps(shared), encoding="utf-8")
    return tmp_path


def test_a_site_that_becomes_root_on_nodes_does_not_become_root_on_the_controller(site: Path) -> None:
    unreachable = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    options = ("--become", "-e", f"support_dest={site}")
    run_playbook(site, {"unreachable": unreachable}, "support_bundle", *options)
    (bundle,) = site.glob("support-*.tar.gz")
    with tarfile.open(bundle) as archive:
        assert "unreachable.topology.json" in {Path(entry.name).name for entry in archive}

    run_playbook(site, {"idle": {"topology_root": "/nowhere"}}, "drift", "--become")
    assert json.loads((site / "report" / "drift.json").read_text(encoding="utf-8"))["verdict"] == "no drift"
