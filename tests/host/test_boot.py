# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that applies settings at boot, its systemd units, and the Python that runs it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import desired
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE, Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import boot, guard, program
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist.program import NETWORK_UNIT, Boot, start
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.sriov import Sriov
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, pair, run
from ansible_collections.lanewise.dra.tests.host.emulated_node import MLX5, EmulatedNode, FailingEmulatedSystem
from ansible_collections.lanewise.dra.tests.host.node import node

RAIL_ROUTES = {"table": 100, "gateway": "10.0.0.254"}


@pytest.fixture(name="run_boot_program")
def _run_boot_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., str]:
    """A function that runs the program with settings by interface, and returns the failures that it reports."""
    monkeypatch.setattr(program, "DESIRED", str(tmp_path / "fabric.json"))
    monkeypatch.setattr(boot, "LOCK", str(tmp_path / "fabric.lock"))

    def run_boot_program(settings: dict[str, dict[str, t.Any]], phase: str = "boot") -> str:
        system = System()
        target = node(system, settings)
        (tmp_path / "fabric.json").write_text(json.dumps(desired(target, target.rules, {})))
        system.close()
        monkeypatch.setattr(boot.sys, "argv", ["fabric.pyz", phase])
        try:
            boot.main()
        except SystemExit as ended:
            return str(ended.code)
        return ""

    return run_boot_program


@on_a_node
def test_a_nic_that_fails_does_not_stop_the_other_nics(run_boot_program: t.Callable[..., str]) -> None:
    for name in ("rail0", "rail1", "rail2"):
        pair(name)
    result = run_boot_program({"rail0": {"mtu": 9000}, "rail1": {"mtu": 70000}, "rail2": {"mtu": 9000}})
    assert result.count("rail1: mtu: the driver of rail1 does not accept 70000") == 1 and "rail0" not in result
    mtus = [run(f"cat /sys/class/net/{name}/mtu").strip() for name in ("rail0", "rail1", "rail2")]
    assert mtus == ["9000", "1500", "9000"]


@on_a_node
def test_settings_that_need_an_address_wait_for_the_network_unit(run_boot_program: t.Callable[..., str]) -> None:
    pair("rail0")
    settings: dict[str, dict[str, t.Any]] = {"rail0": {"rail_routes": RAIL_ROUTES}}
    assert not run_boot_program(settings)  # rail0 has no address yet, which is no failure at boot
    assert "rail0 has no IP address" in run_boot_program(settings, "network")
    run("ip addr add 10.0.0.1/24 dev rail0")
    assert not run_boot_program(settings, "network")
    assert "default via 10.0.0.254" in run("ip route show table 100")
    # the network unit also applies other settings to virtual interfaces, which the network's configuration creates
    assert not run_boot_program({"rail0": {"mtu": 4000}}, "network")
    assert run("cat /sys/class/net/rail0/mtu").strip() == "4000"


@on_a_node
def test_the_network_unit_is_installed_only_if_a_setting_needs_it() -> None:
    pair("rail0")
    system = System()
    target = node(system, {"rail0": {"mtu": 9000}})
    contents = (desired(target, target.rules, {}), {"nics": [], "node": {}}, {})
    wanted = [Boot(system, content).wanted(target)[NODE] for content in contents]
    assert "After=lanewise-fabric.service network-online.target" in wanted[0]["network_unit"]
    assert wanted[0]["network_enabled"] is True and NETWORK_UNIT.startswith("lanewise-fabric-")
    assert wanted[1]["unit"] and not wanted[1]["network_unit"] and not wanted[1]["network_enabled"]
    assert set(wanted[2].values()) == {None} and wanted[2].keys() == wanted[0].keys()


def test_the_packed_program_runs_and_omits_modules_that_boot_does_not_need(tmp_path: Path) -> None:
    packed = tmp_path / "fabric.pyz"
    packed.write_bytes(program.archive())
    names = zipfile.ZipFile(packed).namelist()
    assert not [name for name in names if "/xml_import/" in name or "/diagnosis/" in name]
    assert "lanewise_fabric/topology/reader.py" in names
    done = subprocess.run([sys.executable, "-I", str(packed)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "usage: fabric.pyz boot | network | undo FILE\n"
    modules = [name[:-3].replace("/", ".") for name in names if name.count("/") and not name.endswith("__init__.py")]
    script = f"import sys, importlib; sys.path[:0] = [{str(packed)!r}]; list(map(importlib.import_module, {modules}))"
    subprocess.run([sys.executable, "-I", "-c", script], check=True)


def run_unit(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run the unit's command as systemd does, with a program that prints its arguments."""
    printing_program = folder / "program.py"
    printing_program.write_text("import sys; print(sys.version_info[:2] >= (3, 9), sys.flags.isolated, sys.argv[1:])\n")
    argv = shlex.split(start(python, str(printing_program)) + " boot")
    assert argv[0] == "/bin/sh" and "%" not in " ".join(argv)  # systemd would expand it
    return subprocess.run([word.replace("$$", "$") for word in argv], capture_output=True, text=True, check=False)


def test_the_unit_runs_the_python_that_installed_it(tmp_path: Path) -> None:
    python = tmp_path / "python3.11 with a space"
    python.write_text(f'#!/bin/sh\necho installed; exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = run_unit(tmp_path, str(python))
    assert (done.returncode, done.stderr) == (0, "")
    # the unit runs it twice: to check its version, and to run the program
    assert done.stdout == "installed\ninstalled\nTrue 1 ['boot']\n"


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the system has no Python")
@pytest.mark.parametrize("python", ["/usr/bin/python3.4711", "/bin/false", ""])
def test_the_unit_runs_another_python_if_its_own_is_missing_or_fails(tmp_path: Path, python: str) -> None:
    done = run_unit(tmp_path, python)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 1 ['boot']\n", "")


def test_without_any_python_the_unit_fails_with_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_OTHER_PYTHONS", "/nowhere/python3 /nowhere/python3.[1-9][0-9]")
    done = run_unit(tmp_path, "/usr/bin/python3.4711")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "The RDMA and SR-IOV state of this node is not restored: /usr/bin/python3.4711 no longer exists"
    )
    assert "run lanewise.dra.fabric" in done.stderr


def test_the_unit_fails_if_its_program_fails(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import sys; sys.exit('no room')\n")
    argv = shlex.split(start(sys.executable, str(tmp_path / "fails.py")))
    done = subprocess.run([word.replace("$$", "$") for word in argv], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "no room\n")


def test_the_timer_restores_what_a_change_of_the_number_of_vfs_has_removed(tmp_path: Path) -> None:
    """All VFs are removed for that. The new ones have the default drivers, and none of the settings."""
    emulated = EmulatedNode(tmp_path / "node")
    system = FailingEmulatedSystem(emulated)
    before = emulated.snapshot()
    target = Node(system, [Rule("pf", selector({"address": MLX5}), {"num_vfs": 2}, count=1)], allow_management=True)
    chosen, path = [Sriov(system)], str(tmp_path / "undo-7.json")

    def record(changes: list[Change]) -> None:
        guard._write(System(), path, changes, 60, "write", guard.side_effects(target, chosen, changes))

    converge(target, chosen, before_changes=record)
    assert emulated.snapshot()["vfs"] != before["vfs"]
    changes = guard.claimed_changes(path)
    assert boot.undo(system, changes, guard.claimed_side_effects(path)) == []
    assert emulated.snapshot() == before
