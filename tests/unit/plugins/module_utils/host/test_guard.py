# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Changes are either confirmed or undone, whichever comes first."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import NODE, Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.persist import boot, guard, program
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.conftest import MakeNode

CHANGE = Change("mtu", "mgmt0", "mtu", "1500", "9000")


class Node:
    """A node with changes that wait for a confirmation. Records the commands for systemd."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "undo-7.json"
        self.begun = folder / "undo-7.json.begun"
        self.timer = 0  # what systemctl answers
        self.asked: list[list[str]] = []

    def change(self) -> None:
        self.file.write_text(json.dumps({"until": 0, "changes": [dataclasses.asdict(CHANGE)]}))

    def confirm(self) -> bool:
        def run(argv: list[str]) -> tuple[int, str, str]:
            self.asked.append(argv)
            return self.timer, "", "Unit not loaded."

        return guard.confirm(System(run=run), "7")


@pytest.fixture(name="node")
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(guard, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(boot, "LOCK", str(tmp_path / "fabric.lock"))
    monkeypatch.setattr(boot.sys, "argv", ["fabric.pyz", "undo", str(tmp_path / "undo-7.json")])
    made = Node(tmp_path)
    made.change()
    return made


def test_a_confirmed_change_is_not_undone(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.confirm()
    assert node.asked == [["systemctl", "stop", "lanewise-fabric-undo-7.timer"]] and not node.file.exists()
    monkeypatch.setattr(boot, "undo", lambda *_given: pytest.fail("it was undone"))
    boot.main()
    assert "were confirmed" in capsys.readouterr().out


def test_a_timer_that_has_just_fired_does_not_matter(node: Node) -> None:
    node.timer = 5
    assert node.confirm()


def test_a_change_that_is_being_undone_cannot_be_confirmed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []

    def undo(_system: System, changes: list[Change]) -> list[str]:
        assert changes == [CHANGE]
        with pytest.raises(HostError) as meanwhile:
            node.confirm()
        errors.append(str(meanwhile.value))
        return []

    monkeypatch.setattr(boot, "undo", undo)
    boot.main()
    assert "the undo is running" in errors[0] and "journalctl -u lanewise-fabric-undo-7" in errors[0]
    with pytest.raises(HostError, match="already undone"):
        node.confirm()
    assert not node.asked and not node.begun.exists()


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_an_unfinished_undo_can_be_seen(node: Node, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def undo(*_given: object) -> list[str]:
        if how == "killed":
            raise KeyboardInterrupt
        return ["mtu of mgmt0: no such device"]

    monkeypatch.setattr(boot, "undo", undo)
    with pytest.raises(KeyboardInterrupt if how == "killed" else SystemExit):
        boot.main()
    assert json.loads(node.begun.read_text())["changes"] == [dataclasses.asdict(CHANGE)]
    with pytest.raises(HostError, match="the undo is running or has failed"):
        node.confirm()


def test_an_undo_of_an_earlier_run_blocks_nothing(node: Node) -> None:
    """Names of undo files are process IDs, which the kernel reuses."""
    node.begun.write_text("[]")
    assert node.confirm()


@pytest.mark.parametrize("name", ["8", "../7", "", "7.json"])
def test_an_unknown_undo_cannot_be_confirmed(node: Node, name: str) -> None:
    with pytest.raises(HostError, match="already undone"):
        guard.confirm(System(), name)
    assert node.file.exists()


def test_a_timer_that_cannot_be_set_leaves_nothing_to_undo(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_PROGRAM", str(node.file.parent / "fabric.pyz"))
    monkeypatch.setattr(System, "exists", lambda *_path: True)  # as on a node with systemd
    node.file.unlink()
    with pytest.raises(HostError, match="set a timer that undoes the changes"):
        guard.arm(System(run=lambda _argv: (1, "", "Failed to start transient timer unit.")), [CHANGE], 10)
    assert not list(node.file.parent.glob("undo-*"))


def test_no_run_starts_while_a_change_is_neither_confirmed_nor_undone(node: Node) -> None:
    for name in ("fabric.lock", "undo-8.json.begun", "undo-.txt"):
        (node.file.parent / name).touch()
    with pytest.raises(
        HostError, match=r"neither confirmed nor undone yet.*lanewise-fabric-undo-7\.timer.*undo-7\.json"
    ):
        guard.check_none_pending(System())
    node.confirm()
    guard.check_none_pending(System())


def test_a_change_of_a_pf_needs_an_undo_if_its_vf_reaches_the_node(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("sriov")
    (pf, *_rest) = [one for one in node.devices.values() if one.vfs and node.devices[one.vfs[0]].interfaces]
    (name,) = node.devices[pf.vfs[0]].interfaces
    monkeypatch.setattr(type(node), "management", {name: "it carries the default route"})
    assert guard.needed(node, [Change("mtu", pf.key, "mtu", 1500, 9000)])
    change = Change("mtu", pf.key, "mtu", 1500, 9000)
    assert node.management_interface(change) == f"{name}: it carries the default route"
    assert not guard.needed(node, [Change("vf", f"{pf.key} vf 1", "trust", False, True)])
    assert not guard.needed(node, [Change("sysctl", NODE, "kernel.pid_max", 1, 2)])


def test_either_a_confirmation_or_a_simultaneous_undo_wins(node: Node) -> None:
    won: list[str] = []
    together = threading.Barrier(2)

    def confirm() -> None:
        together.wait()
        try:
            node.confirm()
            won.append("confirm")
        except HostError:
            pass

    def claim() -> None:
        together.wait()
        if guard.claim(str(node.file)):
            won.append("undo")

    for _turn in range(200):
        node.change()
        won.clear()
        both = [threading.Thread(target=one) for one in (confirm, claim)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert len(won) == 1 and node.begun.exists() is (won == ["undo"])
        node.begun.unlink(missing_ok=True)


def test_the_time_to_confirm_starts_when_the_run_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer fires during the run: the undo waits for the run's lock, and then until the restarted timer ends."""
    undone: list[float] = []
    monkeypatch.setattr(boot, "undo", lambda *_given: undone.append(time.monotonic()) or [])
    boot.main()
    assert len(undone) == 1
    node.change()
    begin = time.monotonic()
    guard.restart_timer(System(), "7", [CHANGE], 1)
    boot.main()
    assert len(undone) == 2 and undone[1] - begin >= 1
    # nothing is undone if the change is confirmed meanwhile
    node.change()
    guard.restart_timer(System(), "7", [CHANGE], 1)
    confirms = threading.Timer(0.2, node.confirm)
    confirms.start()
    boot.main()
    confirms.join()
    assert len(undone) == 2 and not node.file.exists()


def test_a_boot_unit_is_removed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes last in a run and so first in an undo, which continues after a change that it cannot undo."""
    files = {name: tmp_path / name for name in ("PROGRAM", "DESIRED", "UNIT_PATH")}
    for name, path in files.items():
        monkeypatch.setattr(program, name, str(path))
        path.write_text("new")
    given = {"enabled": (None, True), "unit": (None, "new"), "desired": ('{"old": 1}', "new"), "program": (None, "f")}
    changes = [Change("boot", NODE, name, before, after) for name, (before, after) in given.items()]
    changes.insert(0, Change("no-such", NODE, "x", 1, 2))
    asked: list[list[str]] = []

    def run(argv: list[str]) -> tuple[int, str, str]:
        asked.append(argv)
        return 0, "", ""

    failed = boot.undo(System(run=run), [*changes[:1], *changes[:0:-1]])
    assert len(failed) == 1 and "no-such" in failed[0]
    assert files["DESIRED"].read_text() == '{"old": 1}'
    assert not files["PROGRAM"].exists() and not files["UNIT_PATH"].exists()
    assert ["systemctl", "disable", program.UNIT] in asked


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
