# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warnings, deprecations and errors that a node sends as objects of Ansible, and the start of an asynchronous job."""

from __future__ import annotations

import dataclasses
import json
import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.common.json import Direction, get_module_decoder
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.lanewise.dra.plugins.plugin_utils import answers, node_messages
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_action import NodeAction, checked_result, started_job
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_messages import DeferredWarningContext
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook
from ansible_collections.lanewise.dra.tests.site.test_hostile_node import hostile

TEXT = "one\x1b]0;evil\x07\n\ttwo\u202e"
CLEAN = "one\ufffd]0;evil\ufffd\n\ttwo\ufffd"


def part(kind: str, **fields: t.Any) -> dict[str, t.Any]:
    """An object of Ansible, as a module prints it."""
    return {"__ansible_type": kind, **fields}


def event(text: str, **fields: t.Any) -> dict[str, t.Any]:
    return part("Event", msg=text, **fields)


def caused(text: str, cause: dict[str, t.Any]) -> dict[str, t.Any]:
    return event(text, chain=part("EventChain", msg_reason=text, traceback_reason=text, event=cause))


PLUGIN = part("PluginInfo", resolved_name=TEXT, type=part("PluginType", value="module"))
FULL = caused(TEXT, event(TEXT, formatted_source_context=TEXT, formatted_traceback=TEXT, help_text=TEXT))


def decoded(answer: t.Any) -> t.Any:
    """What a module prints, decoded as Ansible does it."""
    return json.loads(json.dumps(answer), cls=get_module_decoder("legacy", Direction.MODULE_TO_CONTROLLER))


def checked(**answer: t.Any) -> dict[str, t.Any]:
    return checked_result(decoded({"changed": False, **answer}), answers.Preflight, "gpu-01")


def test_objects_keep_their_type_and_get_clean_texts():
    result = checked(
        warnings=[part("WarningSummary", event=FULL), 7],
        deprecations=[part("DeprecationSummary", event=FULL, deprecator=PLUGIN, version=TEXT)],
        exception=part("ErrorSummary", event=FULL),
    )
    items = [result["warnings"][0], result["deprecations"][0], result["exception"]]
    assert [type(item).__name__ for item in items] == ["WarningSummary", "DeprecationSummary", "ErrorSummary"]
    for item in items:
        cause = item.event.chain.event
        assert item.event.msg == item.event.chain.msg_reason == CLEAN
        assert cause.formatted_source_context == cause.formatted_traceback == cause.help_text == CLEAN
    assert items[1].version == items[1].deprecator.resolved_name == CLEAN
    assert result["warnings"][1] == "7"


def test_deprecations_as_dictionaries_keep_only_what_ansible_uses():
    entry = {"msg": TEXT, "version": "w" * 9000, "date": 1, "removed": True}
    unnamed = part("DeprecationSummary", event=event("a"), deprecator={**PLUGIN, "resolved_name": None})
    result = checked(deprecations=[entry, {"version": "2"}, 3, PLUGIN, unnamed])
    assert result["deprecations"][0] == {"msg": CLEAN, "version": "w" * 2000}
    assert [item.deprecator for item in result["deprecations"][1:]] == [None]


def test_messages_that_are_no_messages_become_short_texts():
    result = checked(warnings=[[TEXT] * 9000, PLUGIN, 10**400], exception={TEXT: TEXT})
    assert result["warnings"] == ["a value", "a value", "a number of about 1329 bits"]
    assert result["exception"] == "a value"


def nested(depth: int) -> dict[str, t.Any]:
    return caused("cause", nested(depth - 1)) if depth else event("end")


@pytest.mark.parametrize("shown", [event("w" * 90000), nested(100)], ids=["long", "deep"])
def test_objects_are_cut(shown):
    warnings = checked(warnings=[part("WarningSummary", event=shown)] * 30)["warnings"]
    assert len(warnings) == 20
    assert 0 < len(repr(warnings[0])) < 8000  # with the names of all fields
    assert len(repr(checked(exception=part("ErrorSummary", event=shown))["exception"])) < 70000


def test_the_number_of_objects_is_limited():
    """Ansible itself adds lists of events to an error; a node cannot send them."""
    error: t.Any = decoded(part("ErrorSummary", event=event(TEXT)))
    few: t.Any = error.event
    many: t.Any = error.event
    for _unused in range(5):
        many = dataclasses.replace(many, events=(many,) * 9)
    few = dataclasses.replace(few, events=(few,) * 9)
    cleaned: list[t.Any] = [
        node_messages.clean_exception(dataclasses.replace(error, event=shown)) for shown in (few, many)
    ]
    assert [item.msg for item in cleaned[0].event.events] == [CLEAN] * 9
    assert 100 < repr(cleaned[1]).count("Event(") < 1100


def test_the_warnings_of_a_task_are_cleaned_even_if_the_node_is_lost(monkeypatch):
    class Action(NodeAction):
        ANSWER = answers.Preflight

        def __init__(self) -> None:  # without a task and a connection
            pass

    def execute(*_args: object, **_options: object) -> t.NoReturn:
        Display().warning(TEXT)
        Display().warning(TEXT, help_text="w" * 9000)
        Display().deprecated(TEXT, version="9.0.0")
        raise AnsibleConnectionFailure("lost")

    monkeypatch.setattr(ActionBase, "_execute_module", execute)
    with DeferredWarningContext(variables={}) as collected:
        with pytest.raises(AnsibleConnectionFailure):
            Action()._execute_module(task_vars={})
    first, second = collected.get_warnings()
    assert first.event.msg == second.event.msg == CLEAN and len(second.event.help_text) < 2000
    assert [item.event.msg for item in collected.get_deprecation_warnings()] == [CLEAN]


def test_without_the_collected_warnings_of_ansible_the_module_runs(monkeypatch):
    monkeypatch.setattr(node_messages, "DeferredWarningContext", None)
    with node_messages.cleaned_warnings({}):
        pass


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("machines") / "cpu-rdma"
    build("cpu-rdma", folder)
    return str(folder)


PROBE = """
- hosts: all
  gather_facts: false
  tasks:
    - lanewise.dra.topology_info: {root: TREE}
      ignore_errors: true
    - lanewise.dra.topology_info: {root: TREE}
      async: 60
      poll: 0
      register: job
    - ansible.builtin.debug: {msg: "{{ job.keys() | sort | join(' ') }}, {{ surprise is defined }}"}
"""


def probe(folder: Path, tree: str, rc: int = 0, **answer: t.Any) -> str:
    """The output of a play with a node that adds `answer` to its results."""
    (folder / "play.yml").write_text(PROBE.replace("TREE", tree), encoding="utf-8")
    return run_playbook(folder, {"bad": hostile(folder, **answer)}, str(folder / "play"), rc=rc)


def test_ansible_prints_clean_messages(tmp_path, tree):
    long = event(TEXT, help_text="w" * 9000)
    output = probe(
        tmp_path,
        tree,
        failed=True,
        warnings=[TEXT, part("WarningSummary", event=long)],
        deprecations=[part("DeprecationSummary", event=long, deprecator=PLUGIN, version=TEXT)],
        exception=part("ErrorSummary", event=long),
        rc=2,
    )
    assert "[WARNING]: one\ufffd]0;evil\ufffd" in output and "[DEPRECATION WARNING]: one\ufffd]0;evil" in output
    assert "[ERROR]: Task failed: Module failed: one\ufffd" in output
    assert not set(output) & set("\x1b\x07\u202e") and "w" * 70000 not in output


def test_the_start_of_a_job_returns_only_the_keys_of_a_job(tmp_path, tree):
    output = " ".join(probe(tmp_path, tree, surprise=1, ansible_facts={"surprise": 1}).split())
    assert "ansible_job_id changed failed finished results_file started, False" in output


def test_the_number_of_a_job_is_clean():
    answer = {"ansible_job_id": TEXT + "w" * 9000, "started": True, "finished": False, "topology": {}}
    result = started_job({**answer, "ansible_facts": {"a": 1}, "warnings": [TEXT]}, "gpu-01")
    assert set(result) == {"ansible_job_id", "started", "finished", "warnings"} and result["warnings"] == [CLEAN]
    assert result["ansible_job_id"].isprintable() and len(result["ansible_job_id"]) <= 400
    assert started_job({"started": "yes"}, "gpu-01")["failed"] is True
