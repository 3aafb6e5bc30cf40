# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the modules end that configure a node: what they say of it, whatever happened."""

from __future__ import annotations

import contextlib
import sys
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils import fabric_module
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import nulls, without_nulls
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.change import Change
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Outcome
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.undo import Failed, Remaining
from ansible_collections.lanewise.dra.plugins.plugin_utils.answers import Fabric, fault

CHANGE = Change("sysctl", "node", "vm.swappiness", "60", "1")


class Ended(Exception):
    def __init__(self, answer: dict[str, t.Any]) -> None:
        self.answer = answer
        super().__init__(answer)


class Module:
    """What the package needs of AnsibleModule."""

    check_mode = False

    def __init__(self) -> None:
        self.params: dict[str, t.Any] = {"allow_management": False, "rollback_after": 60}

    def run_command(self, argv: list[str], handle_exceptions: bool = True) -> tuple[int, str, str]:
        assert not handle_exceptions, "Ansible would end the module here"
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    def fail_json(self, **answer: t.Any) -> t.NoReturn:
        raise Ended(answer)

    exit_json = fail_json


@pytest.fixture(name="ended")
def _ended(monkeypatch: pytest.MonkeyPatch) -> t.Callable[..., dict[str, t.Any]]:
    monkeypatch.setattr(fabric_module, "node_lock", contextlib.nullcontext)
    monkeypatch.setattr(fabric_module.guard, "check_none_pending", lambda _system: None)

    def ended(converge: t.Callable[..., Outcome], **options: t.Any) -> dict[str, t.Any]:
        monkeypatch.setattr(fabric_module, "converge", converge)
        with pytest.raises(Ended) as caught:
            fabric_module.run(Module(), [], {}, **options)  # type: ignore[arg-type]
        answer = caught.value.answer
        if sys.version_info >= (3, 11):  # the controller's, which checks the answer
            form = {name: answer[name] for name in t.get_type_hints(Fabric) if name in answer}
            assert fault(form, Fabric) == ""
        return answer

    return ended


def test_a_bug_is_reported_with_the_state_of_the_node(ended: t.Callable[..., dict[str, t.Any]]) -> None:
    def breaks(*_unused: t.Any) -> Outcome:
        raise KeyError("speed")

    answer = ended(breaks)
    assert answer["msg"] == "KeyError: 'speed'. Nothing was changed." and "Traceback" in answer["exception"]
    assert answer["remaining"] == []


def test_a_failure_after_the_changes_reports_that_they_remain(
    ended: t.Callable[..., dict[str, t.Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(_system: t.Any) -> None:
        raise HostError("remove the record", "no room")

    monkeypatch.setattr(fabric_module.origin, "wanted", lambda _system, _node: {})
    monkeypatch.setattr(fabric_module.origin, "forget", forget)
    answer = ended(lambda *_unused: Outcome(changes=[CHANGE]), restore=True)
    assert "All changes were made and are in place." in answer["msg"] and answer["remaining"]


def test_remaining_changes_are_in_the_answer(ended: t.Callable[..., dict[str, t.Any]]) -> None:
    left = Remaining("sysctl", "node", "vm.swappiness", "60", "1", "no room")

    def fails(*_unused: t.Any) -> Outcome:
        raise Failed(HostError("set it", "no room"), CHANGE, [], [left]) from ValueError("x")

    answer = ended(fails)
    assert "node: vm.swappiness is 1 and was 60: no room" in answer["msg"]
    assert answer["remaining"][0]["now"] == "1" and answer["failed_change"]["setting"] == "vm.swappiness"


def test_a_missing_program_does_not_end_the_module() -> None:
    with pytest.raises(FileNotFoundError):
        fabric_module._run(Module(), ["no-such-program"])  # type: ignore[arg-type]
    system = fabric_module.System(run=lambda argv: fabric_module._run(Module(), argv))  # type: ignore[arg-type]
    with pytest.raises(HostError, match="cannot set it: cannot run no-such-program: No such file.*is it there"):
        system.command(["no-such-program"], "set it", "is it there?")


def test_nulls_are_taken_out_and_put_back_by_name() -> None:
    settings = {"mtu": None, "vf": {"vlan": 5, "trust": None}, "ethtool": {"pause": None}, "vfs": [{"index": 1}]}
    plain, unset = without_nulls(settings)
    assert plain == {"vf": {"vlan": 5}, "ethtool": {}, "vfs": [{"index": 1}]}
    assert unset == ["mtu", "vf.trust", "ethtool.pause"]
    assert nulls(unset) == {"mtu": None, "vf": {"trust": None}, "ethtool": {"pause": None}}
    assert nulls(["ethtool", "ethtool.pause"]) == {"ethtool": None}
