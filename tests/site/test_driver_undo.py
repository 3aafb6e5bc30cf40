# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An installation of the driver that fails before it has changed anything."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.site.plays import run_playbook


def test_settings_that_cannot_be_written_are_reported_as_the_reason(tmp_path: Path) -> None:
    """The release on the node refuses the settings."""
    program = tmp_path / "releases/1/bin/lanewise-driver"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'no such setting' >&2\nexit 1\n")
    program.chmod(0o755)
    service = {"release": "1", "reload": False, "installed": True}
    before = {"release": "1", "previous": "", "releases": ["1"], "contents": {}, "service": service, "ready": True}
    variables: dict[str, t.Any] = {
        "dra_driver_settings": {"no_such_setting": 1},
        "__dra_driver_folder": str(tmp_path),
        "__dra_driver_config": str(tmp_path),
        "__dra_driver_config_folder": {"changed": False},
        "__dra_driver_unit_file": str(tmp_path / "unit"),
        "__dra_driver_wheel": {"release": "1"},
        "__dra_driver_before": before,
    }
    role = {"name": "lanewise.dra.dra_driver", "tasks_from": "service"}
    tasks = [{"ansible.builtin.include_role": role}]
    playbook = tmp_path / "play"
    playbook.with_suffix(".yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    output = " ".join(run_playbook(tmp_path, {"node": {}}, str(playbook), "-e", json.dumps(variables), rc=2).split())
    assert "The driver did not become healthy with release 1 (Write the settings)" in output
    assert "Nothing was changed before it failed, so there is nothing to restore." in output
