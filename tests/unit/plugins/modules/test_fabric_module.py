# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The answers of modules that configure a node: they report its state after a failure, even after a bug."""

from __future__ import annotations

import contextlib
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils import fabric_module
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import nulls, split_nulls
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change, SideEffects
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed, Remaining
from ansible_collections.lanewise.dra.plugins.modules import fabric
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import Fabric, fault

CHANGE = Change("sysctl", "node", "vm.swappiness", "60", "1")


class Ended(Exception):
    """The end of the module, with its answer."""

    def __init__(self, answer: dict[str, t.Any]) -> None:
        self.answer = answer
        super().__init__(answer)


class Module:
    """The parts of AnsibleModule that fabric_module uses."""

    check_mode = False

    def __init__(self) -> None:
        self.params: dict[str, t.Any] = {"allow_management": False, "rollback_after": 60}

    def run_command(self, argv: list[str], handle_exceptions: bool = True) -> tuple[int, str, str]:
        assert not handle_exceptions, "Ansible would end the module if the program is missing"
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    def fail_json(self, **answer: t.Any) -> t.NoReturn:
        raise Ended(answer)

    exit_json = fail_json


@pytest.fixture(name="run_module")
def _run_module(monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., dict[str, t.Any]]:
    """A function that runs the module with another `converge`, and returns the answer."""
    monkeypatch.setattr(fabric_module, "node_lock", contextlib.nullcontext)
    monkeypatch.setattr(fabric_module.guard, "check_none_pending", lambda _system: None)

    def run_module(
        converge: t.Callable[..., Outcome], params: t.Mapping[str, t.Any] | None = None, **options: t.Any
    ) -> dict[str, t.Any]:
        monkeypatch.setattr(fabric_module, "converge", converge)
        module = Module()
        module.params.update(params or {})
        with pytest.raises(Ended) as caught:
            fabric_module.run(module, [], {}, **options)  # type: ignore[arg-type]
        answer = caught.value.answer
        if sys.version_info >= (3, 11):  # with this version and later, the controller checks answers
            typed = {name: answer[name] for name in t.get_type_hints(Fabric) if name in answer}
            assert fault(typed, Fabric) == ""
        return answer

    return run_module


def test_a_bug_is_reported_with_the_state_of_the_node(run_module: t.Callable[..., dict[str, t.Any]]) -> None:
    def fail_unexpectedly(*_unused: t.Any) -> Outcome:
        raise KeyError("speed")

    answer = run_module(fail_unexpectedly)
    assert answer["msg"] == "KeyError: 'speed'. Nothing was changed." and "Traceback" in answer["exception"]
    assert answer["remaining"] == []


def test_a_failure_after_the_changes_is_reported_with_the_changes(
    run_module: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(_system: t.Any) -> None:
        raise HostError("remove the record", "no room")

    monkeypatch.setattr(fabric_module.origin, "wanted", lambda _system, _node: {})
    monkeypatch.setattr(fabric_module.origin, "forget", forget)
    answer = run_module(lambda *_unused: Outcome(changes=[CHANGE]), restore=True)
    assert "All changes were made and are in place." in answer["msg"] and answer["remaining"]


class Record:
    """The record of the original settings, and runs that change it. Each run sets a timer with the same name."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, run_module: t.Callable[..., dict[str, t.Any]]
    ) -> None:
        self.path = folder / "fabric-origin.json"
        self.path.write_text('{"sysctl": {"node": {"vm.swappiness": "60"}}}')
        self.undo_file = folder / "undo-7.json"
        self._run_module = run_module
        monkeypatch.setattr(fabric_module.origin, "PATH", str(self.path))
        monkeypatch.setattr(fabric_module.origin, "_RESTORED_BY", str(folder / "restored-by"))
        monkeypatch.setattr(fabric_module.guard, "_FOLDER", str(folder))
        monkeypatch.setattr(fabric_module.guard, "needed", lambda _node, _changes: True)
        monkeypatch.setattr(fabric_module.guard, "side_effects", lambda _node, _resources, changes: [{}] * len(changes))
        monkeypatch.setattr(fabric_module.guard, "arm", self._arm)

    def _arm(self, system: t.Any, changes: t.Sequence[Change], seconds: int, effects: t.Sequence[SideEffects]) -> str:
        """Write the changes as `guard.arm` does, but set no timer of systemd."""
        fabric_module.guard._write(system, str(self.undo_file), changes, seconds, "set a timer", effects)
        return "7"

    def run(self, restore: bool, allow_management: bool = True) -> dict[str, t.Any]:
        def converge(*arguments: t.Any) -> Outcome:
            arguments[-1]([CHANGE])
            return Outcome(changes=[CHANGE])

        return self._run_module(converge, {"allow_management": allow_management}, restore=restore)

    def confirm(self) -> dict[str, t.Any]:
        with pytest.raises(Ended) as caught:
            fabric_module.confirm(Module(), "7")  # type: ignore[arg-type]
        return caught.value.answer

    def roll_back(self) -> None:
        """Claim the changes, as the timer's program does before it undoes them."""
        claimed = fabric_module.guard.claim(str(self.undo_file))
        assert claimed
        Path(claimed).unlink()


@pytest.fixture(name="record")
def _record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: t.Callable[..., dict[str, t.Any]]) -> Record:
    return Record(tmp_path, monkeypatch, run_module)


def test_restored_settings_are_recorded_until_they_are_confirmed(record: Record) -> None:
    assert record.run(restore=True)["rollback"]["id"] == "7" and record.path.exists()
    assert record.confirm() == {"changed": True} and not record.path.exists()
    assert "already undone" in record.confirm()["msg"]


def test_without_a_rollback_restored_settings_are_no_longer_recorded(record: Record) -> None:
    record.run(restore=True, allow_management=False)
    assert not record.path.exists()


def test_settings_stay_recorded_if_their_restoration_is_rolled_back(record: Record) -> None:
    record.run(restore=True)
    record.roll_back()
    assert "already undone" in record.confirm()["msg"] and record.path.exists()
    # another run, whose process has the same ID
    record.run(restore=False)
    assert record.confirm() == {"changed": True} and record.path.exists()


def test_a_record_that_cannot_be_removed_is_reported_after_the_confirmation(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_unused: t.Any) -> None:
        raise HostError("remove the record", "it is read-only")

    record.run(restore=True)
    monkeypatch.setattr(fabric_module.origin, "forget", fail)
    assert record.confirm()["msg"].startswith("cannot remove the record: it is read-only. The changes are confirmed.")
    assert not record.undo_file.exists()


def test_remaining_changes_are_in_the_answer(run_module: t.Callable[..., dict[str, t.Any]]) -> None:
    remaining = Remaining("sysctl", "node", "vm.swappiness", "60", "1", "no room")

    def fail(*_unused: t.Any) -> Outcome:
        raise Failed(HostError("set it", "no room"), CHANGE, [], [remaining]) from ValueError("x")

    answer = run_module(fail)
    assert "node: vm.swappiness is 1 and was 60: no room" in answer["msg"]
    assert answer["remaining"][0]["now"] == "1" and answer["failed_change"]["setting"] == "vm.swappiness"


def test_a_missing_program_does_not_end_the_module() -> None:
    with pytest.raises(FileNotFoundError):
        fabric_module._run(Module(), ["no-such-program"])  # type: ignore[arg-type]
    system = fabric_module.System(run=lambda argv: fabric_module._run(Module(), argv))  # type: ignore[arg-type]
    with pytest.raises(HostError, match="cannot set it: cannot run no-such-program: No such file.*is it there"):
        system.command(["no-such-program"], "set it", "is it there?")


def test_nulls_are_removed_from_settings_and_restored_from_their_names() -> None:
    settings = {"mtu": None, "vf": {"vlan": 5, "trust": None}, "ethtool": {"pause": None}, "vfs": [{"index": 1}]}
    without_null_values, unset = split_nulls(settings)
    assert without_null_values == {"vf": {"vlan": 5}, "ethtool": {}, "vfs": [{"index": 1}]}
    assert unset == ["mtu", "vf.trust", "ethtool.pause"]
    assert nulls(unset) == {"mtu": None, "vf": {"trust": None}, "ethtool": {"pause": None}}
    assert nulls(["ethtool", "ethtool.pause"]) == {"ethtool": None}


def test_a_profile_that_is_not_a_mapping_is_refused() -> None:
    module = Module()
    module.params["profiles"] = {"rails": ["mtu"], "empty": None, "storage": {"mtu": "x"}}
    with pytest.raises(Ended) as caught:
        fabric.profiles(module)  # type: ignore[arg-type]
    first, second = caught.value.answer["problems"]
    assert first == "profiles.rails: must be a mapping of settings, not ['mtu']"
    assert second.startswith("profiles.storage: ")
