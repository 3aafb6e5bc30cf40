# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Management interfaces are changed on one node at a time: in larger batches, a confirmation could come too late."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.machines import description
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook


def play(folder: Path, tasks: list[dict[str, t.Any]], hosts: list[str], rc: int = 0) -> str:
    """Run tasks in check mode on hosts of one batch, and return the output."""
    book = folder / "book.yml"
    book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    return run_playbook(folder, {host: {} for host in hosts}, str(book.with_suffix("")), "--check", rc=rc)


@pytest.mark.parametrize(
    ("hosts", "plan", "refused"),
    [
        (["one", "two"], {"rollback": {"seconds": 60}}, True),
        (["one"], {"rollback": {"seconds": 60}}, False),
        (["one", "two"], {}, False),
    ],
)
def test_a_management_change_is_refused_in_a_batch_of_several_nodes(
    tmp_path: Path, hosts: list[str], plan: dict[str, t.Any], refused: bool
) -> None:
    full_plan = {"drain_reasons": [], "reboot_required": False, **plan}
    change = {"name": "lanewise.dra.fabric", "tasks_from": "change"}
    tasks = [{"ansible.builtin.include_role": change, "vars": {"fabric_plan": full_plan, "fabric_drain": False}}]
    output = play(tmp_path, tasks, hosts, rc=2 if refused else 0)
    assert ("This node was not changed" in output and "set fabric_serial" in output) is refused
    assert ("fabric : Apply the changes" in output) is not refused


def test_the_plan_shows_a_management_change(tmp_path: Path) -> None:
    root = build(description.HERE / "descriptions" / "cpu-rdma.yml", tmp_path / "machine")
    uplink = (root / "proc/net/route").read_text().splitlines()[1].split()[0]
    rails = sorted(path.name for path in (root / "sys/class/net").iterdir() if path.name.startswith("enp"))
    other = next(name for name in rails if name != uplink)
    tasks: list[dict[str, t.Any]] = []
    for name, seconds in ((uplink, 60), (uplink, 0), (other, 60)):
        nics = [{"select": {"interface": [name]}, "mtu": 1400, "count": 1}]
        options = {"root": str(root), "allow_management": True, "rollback_after": seconds, "nics": nics}
        tasks.append({"lanewise.dra.fabric": options, "register": f"plan{len(tasks)}"})
    tasks.append({"ansible.builtin.copy": {"content": "{{ [plan0, plan1, plan2] }}", "dest": f"{tmp_path}/plans"}})
    tasks[-1]["check_mode"] = False
    play(tmp_path, tasks, ["node"])
    plans = json.loads((tmp_path / "plans").read_text())
    assert all("mtu" in [change["setting"] for change in plan["changes"]] for plan in plans)
    assert [plan.get("rollback") for plan in plans] == [{"seconds": 60}, None, None]
