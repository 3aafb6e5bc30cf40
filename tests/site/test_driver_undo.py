# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installations of the driver that fail: before anything has changed, and so that the undo fails, too."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.site.plays import run_playbook


def install(folder: Path, release: str, current: str = "1", **variables: t.Any) -> str:
    """Run the role's tasks that start a release, which must fail, on a node that runs release 1. `current` is the
    release to which an earlier run has switched. Returns the output."""
    service = {"release": "1", "reload": False, "installed": True}
    before = {"release": current, "previous": "", "releases": ["1"], "contents": {}, "service": service, "ready": True}
    values: dict[str, t.Any] = {
        "__dra_driver_folder": str(folder),
        "__dra_driver_config": str(folder),
        "__dra_driver_config_folder": {"changed": False},
        "__dra_driver_unit_file": str(folder / "unit"),
        "__dra_driver_wheel": {"release": release},
        "__dra_driver_before": before,
        **variables,
    }
    role = {"name": "lanewise.dra.dra_driver", "tasks_from": "service"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": role}]}
    playbook = folder / "play"
    playbook.with_suffix(".yml").write_text(json.dumps([play]))
    return " ".join(run_playbook(folder, {"node": {}}, str(playbook), "-e", json.dumps(values), rc=2).split())


def add_release(folder: Path, name: str, script: str) -> None:
    program = folder / "releases" / name / "bin/lanewise-driver"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_settings_that_cannot_be_written_are_reported_as_the_reason(tmp_path: Path) -> None:
    """The release on the node refuses the settings."""
    add_release(tmp_path, "1", "echo 'no such setting' >&2; exit 1")
    output = install(tmp_path, "1", dra_driver_settings={"no_such_setting": 1})
    assert "The driver was not changed to release 1 (Write the settings)" in output
    assert "Nothing was changed before it failed, so there is nothing to restore." in output


def test_a_mistake_in_the_settings_does_not_restart_the_driver(tmp_path: Path) -> None:
    """The new release refuses the settings, so it was never started."""
    add_release(tmp_path, "2", "echo 'cannot read these settings' >&2; exit 1")
    output = install(tmp_path, "2")
    assert "The driver was not changed to release 2 (Write the settings): cannot read these settings" in output
    assert "Nothing was changed before it failed" in output and not (tmp_path / "current").is_symlink()


def test_a_driver_that_does_not_start_again_does_not_hide_why_the_new_release_failed(tmp_path: Path) -> None:
    """An earlier run was interrupted after the switch to the new release."""
    add_release(tmp_path, "1", "echo '{}'; exit 1")
    add_release(tmp_path, "2", "echo 'cannot read these settings' >&2; exit 1")
    unit = {"__dra_driver_unit": "lanewise-no-such-driver.service", "dra_driver_health_seconds": 1}
    output = install(tmp_path, "2", current="2", **unit)
    assert "did not become healthy with release 2 (Write the settings): cannot read these settings" in output
    assert "The node is back on release 1 and its settings. The driver is still not ready." in output
    assert (tmp_path / "current").readlink() == Path("releases/1")
