# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.modules import dra_driver_info

RETURN = yaml.safe_load(dra_driver_info.RETURN)
#: The properties of the driver's running unit.
RUNNING_UNIT = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "UnitFileState": "enabled",
    "MainPID": "0",
    "NeedDaemonReload": "no",
}


class Node:
    """A node whose files are in a folder. systemctl prints `properties`, and an installed driver is ready."""

    def __init__(self, folder):
        self.folder = folder
        self.properties = dict(RUNNING_UNIT)
        self.reported_readiness = True

    def run_command(self, _module, program, *_arguments):
        if program == "systemctl":
            return 0, "".join(f"{name}={value}\n" for name, value in self.properties.items()), ""
        if not os.path.exists(program):
            return 127, "", f"timeout: failed to run command '{program}'"
        return 0, json.dumps({"ready": self.reported_readiness, "reasons": [], "claims": []}), ""

    def write(self, path, text=""):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return str(file)

    def install_release(self, name, installed):
        """Create the files of a release that was installed at this time."""
        path = self.write(f"releases/{name}/.complete")
        os.utime(path, (installed, installed))
        self.write(f"releases/{name}/bin/lanewise-driver")
        (self.folder / f"releases/{name}/bin/python").symlink_to(sys.executable)
        version = os.path.basename(os.path.realpath(sys.executable))
        (self.folder / f"releases/{name}/lib" / version).mkdir(parents=True)

    def link(self, name, release):
        (self.folder / name).symlink_to(f"releases/{release}")


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The node from which the module reads files and runs commands."""
    monkeypatch.setattr(dra_driver_info, "FOLDER", str(tmp_path))
    monkeypatch.setattr(dra_driver_info, "PROGRAM", f"{tmp_path}/current/bin/lanewise-driver")
    monkeypatch.setattr(dra_driver_info, "STATE", f"{tmp_path}/state")
    monkeypatch.setattr(dra_driver_info, "TOKEN", f"{tmp_path}/token")
    monkeypatch.setattr(dra_driver_info, "FILES", (f"{tmp_path}/driver.yml", f"{tmp_path}/unit"))
    monkeypatch.setattr(dra_driver_info, "KUBECONFIG", f"{tmp_path}/kubeconfig")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    created = Node(tmp_path)
    monkeypatch.setattr(dra_driver_info, "run", created.run_command)
    return created


@pytest.fixture
def run(node, capsys):
    """A function that runs the module on the node and returns its answer."""

    def call(**options):
        with patch_module_args({"devices": False, **options}), pytest.raises(SystemExit) as stop:
            dra_driver_info.main()
        answer = json.loads(capsys.readouterr().out)
        assert not stop.value.code, answer
        return answer

    return call


def test_a_node_without_the_driver_is_not_ready(node, run):
    node.properties = {**RUNNING_UNIT, "LoadState": "not-found", "UnitFileState": ""}
    answer = run(contents=True)
    assert (answer["release"], answer["previous"], answer["releases"], answer["files"]) == ("", "", [], {})
    assert not answer["ready"] and not answer["service"]["installed"] and not answer["service"]["enabled"]
    returned = set(answer) - {"changed", "invocation"}
    assert returned == set(RETURN) - {"devices", "withheld"}


def test_releases_their_links_and_partial_ones_are_listed(node, run):
    node.install_release("1.0.0-b", 2_000)
    node.install_release("1.0.0-a", 3_000)
    node.write("releases/1.0.0-c/bin/python")
    node.link("current", "1.0.0-b")
    node.link("previous", "1.0.0-a")
    answer = run()
    assert (answer["release"], answer["previous"]) == ("1.0.0-b", "1.0.0-a")
    assert answer["releases"] == ["1.0.0-a", "1.0.0-b"] and answer["partial"] == ["1.0.0-c"]
    assert answer["ready"] is True


@pytest.mark.parametrize(("reported", "ready"), [(True, True), (None, True), (False, False)])
def test_a_driver_whose_readiness_is_not_checked_counts_as_ready(node, run, reported, ready):
    node.install_release("1.0.0-a", 2_000)
    node.link("current", "1.0.0-a")
    node.reported_readiness = reported
    assert run()["ready"] is ready


def test_the_states_of_the_unit_are_read_from_systemd(node, run):
    assert run()["service"] == {
        "installed": True,
        "enabled": True,
        "state": "active",
        "pid": 0,
        "release": "",
        "reload": False,
    }
    node.properties.update(UnitFileState="disabled", NeedDaemonReload="yes")
    service = run()["service"]
    assert not service["enabled"] and service["reload"]
    assert set(service) == set(RETURN["service"]["sample"])


def test_files_have_checksums_and_the_contents_of_the_kubeconfig_are_left_out(node, run):
    texts = {node.write("driver.yml", "a: 1\n"): "a: 1\n", node.write("kubeconfig", "{}\n"): "{}\n"}
    answer = run(contents=True)
    assert answer["files"] == {path: hashlib.sha256(text.encode()).hexdigest() for path, text in texts.items()}
    settings = f"{node.folder}/driver.yml"
    assert answer["contents"] == {settings: base64.b64encode(b"a: 1\n").decode()}
    assert "contents" not in run()


def test_a_release_whose_python_an_update_removed_is_partial(node, run):
    for number, name in enumerate(("1.0.0-a", "1.0.0-b", "1.0.0-c")):
        node.install_release(name, number)
    removed = node.folder / "releases/1.0.0-b/bin/python"
    removed.unlink()
    removed.symlink_to("/usr/bin/python3.4711")
    replaced = node.folder / "releases/1.0.0-c/bin/python"
    replaced.unlink()
    replaced.symlink_to(node.write("python3.98"))
    os.chmod(node.folder / "python3.98", 0o755)
    answer = run()
    assert answer["releases"] == ["1.0.0-a"] and answer["partial"] == ["1.0.0-b", "1.0.0-c"]
