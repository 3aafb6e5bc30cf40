# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Changes are either confirmed or undone, whichever comes first."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE, Change, SideEffects
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import node_lock
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import boot, guard, program
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.conftest import MakeNode

CHANGE = Change("mtu", "mgmt0", "mtu", "1500", "9000")


class PendingChanges:
    """Changes that wait for a confirmation. Records the commands for systemd."""

    def __init__(self, folder: Path) -> None:
        self.undo_file = folder / "undo-7.json"
        self.claimed_file = folder / "undo-7.json.begun"
        self.systemctl_status = 0
        self.commands: list[list[str]] = []

    def write(self) -> None:
        self.undo_file.write_text(json.dumps({"until": 0, "changes": [dataclasses.asdict(CHANGE)]}))

    def confirm(self) -> bool:
        def run(argv: list[str]) -> tuple[int, str, str]:
            self.commands.append(argv)
            return self.systemctl_status, "", "Unit not loaded."

        return guard.confirm(System(run=run), "7")


@pytest.fixture(name="pending")
def _pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PendingChanges:
    monkeypatch.setattr(guard, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(boot, "LOCK", str(tmp_path / "fabric.lock"))
    monkeypatch.setattr(boot.sys, "argv", ["fabric.pyz", "undo", str(tmp_path / "undo-7.json")])
    pending = PendingChanges(tmp_path)
    pending.write()
    return pending


def test_a_confirmed_change_is_not_undone(
    pending: PendingChanges, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pending.confirm()
    assert pending.commands == [["systemctl", "stop", "lanewise-fabric-undo-7.timer"]]
    assert not pending.undo_file.exists()
    monkeypatch.setattr(boot, "undo", lambda *_arguments: pytest.fail("it was undone"))
    boot.main()
    assert "were confirmed" in capsys.readouterr().out


def test_changes_can_be_confirmed_if_the_timer_has_just_expired(pending: PendingChanges) -> None:
    pending.systemctl_status = 5
    assert pending.confirm()


def test_a_change_that_is_being_undone_cannot_be_confirmed(
    pending: PendingChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[str] = []

    def undo(_system: System, changes: list[Change], side_effects: list[SideEffects]) -> list[str]:
        assert changes == [CHANGE] and side_effects == [{}]
        with pytest.raises(HostError) as meanwhile:
            pending.confirm()
        errors.append(str(meanwhile.value))
        return []

    monkeypatch.setattr(boot, "undo", undo)
    boot.main()
    assert "the undo is running" in errors[0] and "journalctl -u lanewise-fabric-undo-7" in errors[0]
    with pytest.raises(HostError, match="already undone"):
        pending.confirm()
    assert not pending.commands and not pending.claimed_file.exists()


@pytest.mark.parametrize("ending", ["killed", "failed"])
def test_the_claimed_file_of_an_unfinished_undo_remains(
    pending: PendingChanges, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    def undo(*_arguments: object) -> list[str]:
        if ending == "killed":
            raise KeyboardInterrupt
        return ["mtu of mgmt0: no such device"]

    monkeypatch.setattr(boot, "undo", undo)
    with pytest.raises(KeyboardInterrupt if ending == "killed" else SystemExit):
        boot.main()
    assert json.loads(pending.claimed_file.read_text())["changes"] == [dataclasses.asdict(CHANGE)]
    with pytest.raises(HostError, match="the undo is running or has failed"):
        pending.confirm()


def test_the_claimed_file_of_an_earlier_run_does_not_prevent_a_confirmation(pending: PendingChanges) -> None:
    """The files are named after process IDs, which the kernel reuses."""
    pending.claimed_file.write_text("[]")
    assert pending.confirm()


@pytest.mark.parametrize("name", ["8", "../7", "", "7.json"])
def test_an_unknown_undo_cannot_be_confirmed(pending: PendingChanges, name: str) -> None:
    with pytest.raises(HostError, match="already undone"):
        guard.confirm(System(), name)
    assert pending.undo_file.exists()


def test_no_undo_file_remains_if_the_timer_cannot_be_set(
    pending: PendingChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_PROGRAM", str(pending.undo_file.parent / "fabric.pyz"))
    monkeypatch.setattr(System, "exists", lambda *_path: True)  # as on a node with systemd
    pending.undo_file.unlink()
    with pytest.raises(HostError, match="set a timer that undoes the changes"):
        guard.arm(System(run=lambda _argv: (1, "", "Failed to start transient timer unit.")), [CHANGE], 10)
    assert not list(pending.undo_file.parent.glob("undo-*"))


def test_another_run_is_refused_while_changes_are_neither_confirmed_nor_undone(pending: PendingChanges) -> None:
    for name in ("fabric.lock", "undo-8.json.begun", "undo-.txt"):
        (pending.undo_file.parent / name).touch()
    with pytest.raises(
        HostError, match=r"neither confirmed nor undone yet.*lanewise-fabric-undo-7\.timer.*undo-7\.json"
    ):
        guard.check_none_pending(System())
    pending.confirm()
    guard.check_none_pending(System())


def test_a_change_of_a_pf_needs_a_confirmation_if_its_vf_carries_the_default_route(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("sriov")
    (pf, *_rest) = [device for device in node.devices.values() if device.vfs and node.devices[device.vfs[0]].interfaces]
    (name,) = node.devices[pf.vfs[0]].interfaces
    monkeypatch.setattr(type(node), "management", {name: "it carries the default route"})
    assert guard.needed(node, [Change("mtu", pf.key, "mtu", 1500, 9000)])
    change = Change("mtu", pf.key, "mtu", 1500, 9000)
    assert node.management_interface(change) == f"{name}: it carries the default route"
    assert not guard.needed(node, [Change("vf", f"{pf.key} vf 1", "trust", False, True)])
    assert not guard.needed(node, [Change("sysctl", NODE, "kernel.pid_max", 1, 2)])


def test_either_a_confirmation_or_a_simultaneous_undo_wins(pending: PendingChanges) -> None:
    winners: list[str] = []
    barrier = threading.Barrier(2)

    def confirm() -> None:
        barrier.wait()
        try:
            pending.confirm()
            winners.append("confirm")
        except HostError:
            pass

    def claim() -> None:
        barrier.wait()
        if guard.claim(str(pending.undo_file)):
            winners.append("undo")

    for _attempt in range(200):
        pending.write()
        winners.clear()
        threads = [threading.Thread(target=function) for function in (confirm, claim)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1 and pending.claimed_file.exists() is (winners == ["undo"])
        pending.claimed_file.unlink(missing_ok=True)


def test_the_time_to_confirm_starts_when_the_run_ends(pending: PendingChanges, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the timer expires during the run, the undo waits until the restarted time is over."""
    undone: list[float] = []
    monkeypatch.setattr(boot, "undo", lambda *_arguments: undone.append(time.monotonic()) or [])
    boot.main()
    assert len(undone) == 1
    pending.write()
    restarted = time.monotonic()
    guard.restart_timer(System(), "7", 1)
    boot.main()
    assert len(undone) == 2 and undone[1] - restarted >= 1
    # nothing is undone if the change is confirmed meanwhile
    pending.write()
    guard.restart_timer(System(), "7", 1)
    delayed_confirmation = threading.Timer(0.2, pending.confirm)
    delayed_confirmation.start()
    boot.main()
    delayed_confirmation.join()
    assert len(undone) == 2 and not pending.undo_file.exists()


def test_an_undo_restores_the_boot_unit_even_if_another_change_cannot_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: tmp_path / name for name in ("PROGRAM", "DESIRED", "UNIT_PATH")}
    for name, path in files.items():
        monkeypatch.setattr(program, name, str(path))
        path.write_text("new")
    values = {"program": (None, "f"), "desired": ('{"old": 1}', "new"), "unit": (None, "new"), "enabled": (None, True)}
    changes = [Change("boot", NODE, name, before, after) for name, (before, after) in values.items()]
    changes.append(Change("no-such", NODE, "x", 1, 2))  # the last change is undone first
    commands: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        commands.append(argv)
        return 0, "", ""

    failed = boot.undo(System(run=run), changes)
    assert len(failed) == 1 and "no-such" in failed[0]
    assert files["DESIRED"].read_text() == '{"old": 1}'
    assert not files["PROGRAM"].exists() and not files["UNIT_PATH"].exists()
    assert ["systemctl", "disable", program.UNIT] in commands


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("x"), KeyboardInterrupt()])
def test_no_undo_file_remains_if_setting_the_timer_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def run(_argv: list[str]) -> tuple[int, str, str]:
        raise error

    monkeypatch.setattr(guard, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(guard, "_PROGRAM", str(tmp_path / "fabric.pyz"))
    monkeypatch.setattr(System, "exists", lambda _self, _path: True)
    with pytest.raises((HostError, ValueError, KeyboardInterrupt)):
        guard.arm(System(run=run), [CHANGE], 60)
    assert not list(tmp_path.glob("undo-*"))


def test_only_root_can_open_the_lock_of_the_node(tmp_path: Path) -> None:
    """A user who can read the file could hold its lock, so that no rollback gets it."""
    path = tmp_path / "run/fabric.lock"
    path.parent.mkdir()
    path.write_text("7")
    path.chmod(0o644)
    with node_lock(str(path)):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(HostError, match=f"another run .process {os.getpid()}. has held the lock"):
            with node_lock(str(path), timeout=0):
                pass
