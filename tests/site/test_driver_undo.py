# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installations of the driver that fail: before anything has changed, after the start, and with an undo that fails."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the role's files belong to root")


def install(folder: Path, release: str, current: str = "1", ready: bool = True, **variables: t.Any) -> str:
    """Run the role's tasks that start a release, which must fail, on a node that runs release 1. `current` is the
    release to which an earlier run has switched; if it is empty, the node has never run a release. `ready` is the state
    of the driver before the run. Returns the output."""
    service = {"release": "1" if current else "", "reload": False, "installed": bool(current)}
    before = {"release": current, "previous": "", "releases": ["1"], "contents": {}, "service": service, "ready": ready}
    values: dict[str, t.Any] = {
        "__dra_driver_folder": str(folder),
        "__dra_driver_config": str(folder),
        "__dra_driver_config_folder": {"changed": False},
        "__dra_driver_unit_file": str(folder / "unit"),
        "__dra_driver_wheel": {"release": release},
        "__dra_driver_before": before,
        "dra_driver_health_seconds": 1,
        **variables,
    }
    role = {"name": "lanewise.dra.dra_driver", "tasks_from": "service"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": role}]}
    playbook = folder / "play"
    playbook.with_suffix(".yml").write_text(json.dumps([play]))
    options = ("-e", json.dumps(values))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return " ".join(run_playbook(folder, {"node": {}}, str(playbook), *options, rc=2, PATH=path).split())


def add_release(folder: Path, name: str, script: str) -> None:
    add_program(folder / "releases" / name / "bin/lanewise-driver", script)


def add_program(program: Path, script: str) -> None:
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def add_unhealthy_release(folder: Path, name: str) -> None:
    """A release that accepts its settings and starts, but is never ready."""
    add_release(folder, name, "case $* in *check) exit 0;; *) echo 'it does not answer' >&2; exit 1;; esac")


def add_systemctl(folder: Path) -> None:
    """A systemctl that knows every unit, and writes the commands that it gets to the file `systemctl`."""
    commands = folder / "systemctl"
    script = f"echo $* >> {commands}; case $1 in show) echo LoadState=loaded; echo ActiveState=active;; esac"
    add_program(folder / "bin/systemctl", script)


def test_settings_that_cannot_be_written_are_reported_as_the_reason(tmp_path: Path) -> None:
    """The release on the node refuses the settings."""
    add_release(tmp_path, "1", "echo 'no such setting' >&2; exit 1")
    output = install(tmp_path, "1", dra_driver_settings={"no_such_setting": 1})
    assert "The driver was not changed, and still has release 1 (Write the settings): no such setting" in output
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
    output = install(tmp_path, "2", current="2", __dra_driver_unit="lanewise-no-such-driver.service")
    assert "did not become healthy with release 2 (Write the settings): cannot read these settings" in output
    assert "The node is back on release 1 and its settings. The driver is still not ready." in output
    assert (tmp_path / "current").readlink() == Path("releases/1")


def test_settings_that_the_first_release_refuses_are_reported_before_anything_is_started(tmp_path: Path) -> None:
    add_release(tmp_path, "1", "echo 'cannot read these settings' >&2; exit 1")
    output = install(tmp_path, "1", current="")
    assert "The driver was not changed to release 1 (Write the settings): cannot read these settings" in output
    assert "There is no earlier release to restore. Correct the cause, and run the playbook again." in output
    assert not (tmp_path / "current").is_symlink()


def test_an_unhealthy_first_release_stays_installed(tmp_path: Path) -> None:
    """The next run changes no file. It restarts the driver, unless the driver was ready before."""
    add_systemctl(tmp_path)
    add_unhealthy_release(tmp_path, "1")
    reason = "The driver did not become healthy with release 1 (Wait until the driver is ready): it does not answer"
    advice = "Correct the cause, and run the playbook again."
    output = install(tmp_path, "1", current="")
    stays = "There is no earlier release to restore, so release 1 stays installed and is not stopped."
    assert f"{reason} {stays} {advice}" in output
    assert (tmp_path / "current").readlink() == Path("releases/1")
    commands = (tmp_path / "systemctl").read_text()
    assert "restart lanewise-driver.service" in commands and "stop" not in commands

    same = "Its release and its settings are the same as before, so there is nothing to restore."
    for ready, restarted in ((False, " A restart did not help."), (True, "")):
        (tmp_path / "systemctl").unlink()
        assert f"{reason} {same}{restarted} {advice}" in install(tmp_path, "1", ready=ready)
        assert ("restart" in (tmp_path / "systemctl").read_text()) is not ready
