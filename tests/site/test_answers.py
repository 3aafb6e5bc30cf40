# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The schema of nodes' results: it matches the documentation, accepts real results and rejects all others."""

from __future__ import annotations

import copy
import importlib
import json
import typing as t

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.topology.diagnosis.diagnose import diagnose
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Topology, as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.plugins.plugin_utils import answers
from ansible_collections.lanewise.dra.plugins.plugin_utils.node_action import NodeAction, checked_result
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION
from hypothesis import given
from hypothesis import strategies as st

PACKAGE = "ansible_collections.lanewise.dra.plugins"
CHECKED = sorted(
    path.stem for path in (COLLECTION / "plugins/action").glob("*.py") if "NodeAction" in path.read_text("utf-8")
)
#: Modules that run on the controller.
CONTROLLER_MODULES = {
    "address_plan",
    "alignment_check",
    "alignment_report",
    "allocation_plan",
    "dra_apply",
    "dra_driver_access",
    "dra_driver_wheel",
    "dra_hold",
    "dra_holds_info",
    "dra_manifests",
    "dra_objects_info",
    "dra_render",
    "dra_swap",
    "nic_replacement",
    "plan_report",
    "known_variables",
    "pod_eviction",
    "queue_render",
    "queue_replay",
    "queue_replay_report",
    "queue_usage",
    "reservation_plan",
    "rollout",
    "site_report",
    "swap_plan",
}


def schema_of(module: str) -> t.Any:
    return importlib.import_module(f"{PACKAGE}.action.{module}").ActionModule.ANSWER


def test_every_module_that_runs_on_a_node_is_checked():
    modules = {path.stem for path in (COLLECTION / "plugins/modules").glob("[!_]*.py")}
    assert set(CHECKED) == modules - CONTROLLER_MODULES


@pytest.mark.parametrize("module", CHECKED)
def test_the_schema_has_every_documented_key(module):
    returned = yaml.safe_load(importlib.import_module(f"{PACKAGE}.modules.{module}").RETURN)
    added = importlib.import_module(f"{PACKAGE}.action.{module}").ActionModule.ADDED
    assert set(returned) <= set(t.get_type_hints(schema_of(module))) | added


def test_a_key_that_the_plugin_adds_cannot_be_taken_from_a_node():
    with pytest.raises(TypeError, match="test_answers: topology would be taken from a node's answer"):

        class _Overlapping(NodeAction):
            ANSWER = schema_of("topology_info")
            ADDED = frozenset(("topology", "packed"))


@pytest.fixture(name="facts", scope="module", params=["sriov", "gb300", "degraded"])
def _facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    folder = tmp_path_factory.mktemp("machines") / request.param
    build(request.param, folder)
    return t.cast(dict[str, t.Any], json.loads(json.dumps(as_dict(probe(str(folder), diagnose=diagnose)))))


def test_the_probes_result_matches_the_schema(facts):
    assert answers.fault({"topology": facts}, answers.Probe) == ""
    assert answers.fault({"topology": {"system": facts["system"]}}, answers.Probe) == ""  # a subset


def containers(value: t.Any) -> t.Iterator[tuple[t.Any, t.Any]]:
    """Each container in a value, with each of its keys."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from containers(value[key])


deep: list[t.Any] = []
for _unused in range(2000):
    deep = [deep]
BAD: dict[str, t.Any] = {
    "large": 10**320,
    "small": -(2**63),
    "infinite": float("inf"),
    "nan": float("nan"),
    "fraction": 1e300,
    "long": "x" * 70000,
    "deep": deep,
    "below": {"a": deep},
    "many": [[0]] * 20001,
}


@given(number=st.integers(0, 10**6), bad=st.sampled_from(sorted(BAD)))
def test_values_that_exceed_the_bounds_are_rejected(facts, number, bad):
    hostile = copy.deepcopy(facts)
    keys = list(containers(hostile))
    container, key = keys[number % len(keys)]
    container[key] = BAD[bad]
    reported = answers.fault({"topology": hostile}, answers.Probe)
    assert reported.startswith("topology") and len(reported) < 1000


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"numa_nodes": [{"id": 0}]}, "topology.numa_nodes[0] lacks "),
        ({"surprise": 1}, "topology has 'surprise', which this release does not know"),
        ({"functions": []}, "topology.functions is not a dictionary"),
        ({"fingerprint": True}, "topology.fingerprint is not text: True"),
        ({"packages": "x"}, "topology.packages is not a list: x"),
        ({"functions": {"0" * 70000: {}}}, "is a text of 70000 characters"),
        ({"affinity": {"devices": [], "levels": [["PIX"] * 5000] * 5000}}, "entries and characters in total"),
    ],
)
def test_the_path_of_a_bad_value_is_reported(facts, change, reported):
    assert reported in answers.fault({"topology": {**facts, **change}}, answers.Probe)


def test_undocumented_keys_are_removed():
    done = {
        "changed": False,
        "python": "/usr/bin/python3",
        "problems": [],
        "ansible_facts": {"dra_driver_kubeconfig": "/evil", "discovered_interpreter_python": "/usr/bin/python3"},
        "add_host": {"host_name": "evil"},
        "skipped": True,
        "unreachable": True,
        "warnings": ["w" * 9000] * 99,
        "diff": {"before": "a", "after": 1, "other": "b"},
        "msg": ["no", "text"],
    }
    result = checked_result(done, answers.Preflight, "gpu-01")
    assert set(result) == {"changed", "python", "problems", "ansible_facts", "warnings", "diff", "msg"}
    assert result["ansible_facts"] == {"discovered_interpreter_python": "/usr/bin/python3"}
    assert len(result["warnings"]) == 20 and len(result["warnings"][0]) == 2000
    assert result["diff"] == {"before": "a"} and result["msg"] == "a value"


def test_texts_of_a_node_cannot_control_the_terminal():
    text = "one\x1b]0;evil\x07\n\ttwo\u202e"
    done = {"msg": text, "warnings": [text], "module_stderr": text, "exception": text, "diff": {"after": text}}
    result = checked_result({"changed": False, "problems": [], **done}, answers.Preflight, "gpu-01")
    clean = "one\ufffd]0;evil\ufffd\n\ttwo\ufffd"
    assert result["msg"] == result["module_stderr"] == result["exception"] == clean
    assert result["warnings"] == [clean] and result["diff"] == {"after": clean}


@pytest.mark.parametrize("done", [{"changed": "yes"}, {"problems": [1]}, {"problems": ["x"] * 20001}, {"python": None}])
def test_a_result_that_does_not_match_the_schema_is_a_failure(done):
    result = checked_result({"failed": False, "changed": False, **done}, answers.Preflight, "gpu-01")
    assert result["failed"] is True and result["changed"] is False and set(result) == {"failed", "changed", "msg"}
    assert result["msg"].startswith("gpu-01 returned an invalid result")


def test_the_result_of_a_large_machine_is_far_below_the_bounds(facts):
    budget = answers._Budget()
    answers._checker(Topology)(facts, budget)
    assert answers.MAX_TOTAL - budget.remaining < answers.MAX_TOTAL / 100
