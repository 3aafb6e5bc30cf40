# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings that result from rules, boards and profiles, and the messages about invalid ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import NODE, RULE
from ansible_collections.lanewise.dra.plugins.plugin_utils.known_variables import boards
from ansible_collections.lanewise.dra.plugins.plugin_utils.rule_errors import _is_plain, module_arguments, option_errors
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook

#: A machine of each kind that boards are for.
MACHINES = {"hgx-infiniband": "hgx-h100", "dgx": "dgx-a100", "gb200": "gb200", "mi300x-roce": "mi300x"}


@pytest.fixture(name="machine", scope="module")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> t.Callable[[str], str]:
    folder = tmp_path_factory.mktemp("machines")
    return lambda name: str(build(name, folder / name))


def drift(folder: Path, hosts: dict[str, dict[str, t.Any]], rc: int) -> tuple[dict[str, t.Any], str]:
    output = run_playbook(folder, hosts, "drift", rc=rc)
    return json.loads((folder / "report" / "drift.json").read_text()), output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"node": {"hugepages": "4096"}},
            "node.hugepages: '4096' is not a list of mappings with count, numa_nodes, size",
        ),
        ({"node": {"hugepages": [{"size": "2M"}]}}, "node.hugepages[0]: count is missing"),
        (
            {"node": {"hugepages": [{"size": "2M", "count": "many"}]}},
            "node.hugepages[0].count: 'many' is not a whole number",
        ),
        (
            {"node": {"kubelet": {"cpu_manager_policy": "fixed"}}},
            "node.kubelet.cpu_manager_policy: 'fixed' is not one of none, static",
        ),
        ({"node": {"iomu": "off"}}, "node: iomu is not known: did you mean iommu?"),
        (
            {"nics": [{"name": "a", "select": {}}, {"name": "rails", "select": {"model": "x"}, "mtu": "big"}]},
            "nics[1] (rails).mtu: 'big' is not a whole number",
        ),
        ({"nics": [{"mtu": 9000}]}, "nics[0]: select is missing"),
        ({"nics": [None]}, "nics[0]: null is not a mapping"),
        ({"node": {"hugepages": [None]}}, "node.hugepages[0]: null is not a mapping"),
        (
            {"nics": [{"select": {"near_gpu": "PIC"}}]},
            "nics[0].select.near_gpu: 'PIC' is not one of PIX, PXB, PHB, NODE",
        ),
        ({"nics": [{"select": {}, "num_vf": 4}]}, "nics[0]: num_vf is not known: did you mean num_vfs?"),
        ({"nics": {"select": {}}}, "nics: {'select': {}} is not a list of rules"),
        (
            {"profiles": {"our": {"vfs": [{"index": 0, "vlan": []}]}}},
            "profiles.our.vfs[0].vlan: [] is not a whole number",
        ),
        ({"nics": [{"select": {"rail": ["x"]}}]}, "nics[0].select.rail: ['x'] is not a list of whole numbers"),
        (
            {"nics": [{"select": {"link_layer": ["ethernet", "ib"]}}]},
            "nics[0].select.link_layer: ['ethernet', 'ib'] is not a list with values from: ethernet, infiniband",
        ),
        (
            {"nics": [{"select": {}, "unset": "mtu, roce.toss"}]},
            "nics[0].unset: 'roce.toss' is not a setting: did you mean roce.tos?",
        ),
        (
            {"nics": [{"name": "a", "select": {}, "unset": ["mtuu"]}]},
            "nics[0] (a).unset: 'mtuu' is not a setting: did you mean mtu?",
        ),
        ({"nics": [{"select": {}, "unset": {"mtu": 1}}]}, "nics[0].unset: {'mtu': 1} is not a list of strings"),
        ({"node": {"kernel_args": {}}}, "node.kernel_args: {} is not a list of strings"),
        (
            {"node": {"hugepages": [{"size": "2M", "count": 1, "x": 1}]}},
            "node.hugepages[0]: x is not known: use one of count, numa_nodes, size",
        ),
    ],
)
def test_a_message_contains_the_index_and_key_of_the_invalid_value(args: dict[str, t.Any], message: str) -> None:
    assert option_errors(args) == [message]


def test_valid_values_and_nulls_are_accepted() -> None:
    rules = [
        {
            "name": "rails",
            "select": {"model": "*"},
            "mtu": "9000",
            "dcb": {"pfc": [3]},
            "vf": None,
            "roce": {"tos": None},
        }
    ]
    assert (
        option_errors({"nics": rules, "node": {"kernel_args": None, "acs": "gpudirect"}, "profiles": {"x": None}}) == []
    )


@pytest.mark.parametrize("unset", ["mtu,ethtool.pause", "mtu, ethtool.pause", ["mtu", "ethtool.pause"]])
def test_settings_to_unset_are_a_list_or_separated_by_commas(unset: str | list[str]) -> None:
    args = {"nics": [{"name": "rails", "select": {}, "unset": unset, "firmware": {"ADVANCED": None}}]}
    assert option_errors(args) == []
    assert module_arguments(args)["nics"][0]["unset"] == ["mtu", "ethtool.pause", "firmware.ADVANCED"]


def test_names_in_mappings_without_options_can_be_unset() -> None:
    names = ["firmware.SRIOV_EN", "ethtool.features.rx-gro", "sysctls.ipv4.conf.rp_filter", "vf", "vfs"]
    assert option_errors({"nics": [{"select": {}, "unset": names}]}) == []
    wrong = option_errors({"nics": [{"select": {}, "unset": ["vfs.trust", "mtu.x", "ethtool.rx", "firmware."]}]})
    assert len(wrong) == 4 and all("is not a setting" in error for error in wrong)


def test_errors_are_reported_by_the_playbook(tmp_path: Path, machine: t.Callable[[str], str]) -> None:
    hosts = {"one": {"topology_root": machine("cpu-rdma"), "fabric_node": {"hugepages": "4096"}}}
    assert "one: node.hugepages: '4096' is not a list of mappings" in run_playbook(tmp_path, hosts, "rollout", rc=2)


def test_a_partial_model_name_does_not_match(tmp_path: Path, machine: t.Callable[[str], str]) -> None:
    tree = {"topology_root": machine("hgx-h100")}
    nics = [{"name": "rails", "select": {"model": "ConnectX-7"}, "mtu": 9000}]
    output = run_playbook(tmp_path, {"one": {**tree, "fabric_nics": nics}}, "rollout", rc=2)
    assert "one: rails: chooses no NIC of this node: model 'ConnectX-7' must match the whole name" in output
    assert "write '*ConnectX-7*'" in output


def test_a_rule_that_matches_no_nic_is_reported(tmp_path: Path, machine: t.Callable[[str], str]) -> None:
    tree = {"topology_root": machine("sriov")}
    idle = [
        {"name": "rails", "select": {"model": "*ConnectX-9*"}, "mtu": 9000},
        {"name": "bonds", "select": {"interface": ["bond0"]}, "mtu": 9000},
    ]
    hosts = {"one": {**tree, "fabric_nics": idle, "fabric_persist": False}, "two": tree}
    output = re.sub(r"\s+", " ", run_playbook(tmp_path, hosts, "rollout"))
    assert "a rule matches no NIC: rails" in output and "no changes needed: " not in output
    assert "bonds (without type it chooses PFs only, but it matches others: set type: [virtual])" in output
    report, shown = drift(tmp_path, hosts, 0)
    assert report["nodes"]["one"]["idle_rules"][0] == "rails"
    assert "one: no drift, but some rules match no NIC" in shown and "0 nodes without drift" in shown


@pytest.mark.parametrize("board", MACHINES)
def test_a_board_is_planned_for_a_recorded_machine(tmp_path: Path, machine: t.Callable[[str], str], board: str) -> None:
    assert set(MACHINES) == {*boards()} - {"hgx-roce"}
    hosts = {"one": {"topology_root": machine(MACHINES[board]), "fabric_board": board}}
    output = re.sub(r"\s+", " ", run_playbook(tmp_path, hosts, "rollout"))
    assert "planned only (recorded machines): 1 node" in output
    assert "not recorded, so not planned: " in output and "memlock (no /etc/systemd)" in output


def test_null_unsets_what_a_board_a_profile_or_an_earlier_rule_sets(
    tmp_path: Path, machine: t.Callable[[str], str]
) -> None:
    tree = {"topology_root": machine("hgx-h100"), "fabric_board": "hgx-infiniband", "fabric_persist": False}
    ours = {"name": "ours", "select": {"near_gpu": "PXB"}, "max_read_request_bytes": None, "irq_affinity": None}
    by_profile = {"name": "first", "select": {"near_gpu": "PXB"}, "profile": "mine", "ethtool": {"pause": None}}
    mine = {"mine": {"ethtool": {"pause": {"rx": True}, "rings": {"rx": 512}}, "mtu": 4092}}
    hosts = {
        "board": tree,
        "none": {**tree, "fabric_nics": [ours]},
        "later": {
            **tree,
            "fabric_board": "",
            "fabric_profiles": mine,
            "fabric_nics": [by_profile, {**ours, "mtu": None}],
        },
    }
    book = tmp_path / "book.yml"
    tasks = [
        {"ansible.builtin.include_role": {"name": "lanewise.dra.fabric"}},
        {
            "ansible.builtin.copy": {
                "content": "{{ fabric_plan }}",
                "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}",
            },
            "check_mode": False,
        },
    ]
    book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    run_playbook(tmp_path, hosts, str(book.with_suffix("")), "--check")
    settings = {name: next(iter(json.loads((tmp_path / name).read_text())["settings"].values())) for name in hosts}
    assert set(settings["board"]) == {"max_read_request_bytes", "relaxed_ordering", "irq_affinity"}
    assert set(settings["none"]) == {"relaxed_ordering"}
    assert settings["later"] == {"ethtool": {"rings": {"rx": 512}}}


VALUES = (
    None,
    True,
    False,
    0,
    1,
    128,
    "1",
    "legacy",
    "ethernet",
    1.5,
    [],
    ["ethernet"],
    ["x"],
    [1],
    [True],
    {},
    {"a": 1},
)


def leaves(spec: t.Mapping[str, t.Any]) -> t.Iterator[dict[str, t.Any]]:
    for option in spec.values():
        if "options" in option:
            yield from leaves(option["options"])
        else:
            yield {key: entry for key, entry in option.items() if key in ("type", "elements", "choices")}


def test_only_values_that_the_validator_accepts_unchanged_skip_it() -> None:
    skipped = 0
    for option in leaves({**RULE, **NODE}):
        for value in VALUES:
            if _is_plain(value, option):
                skipped += 1
                result = ArgumentSpecValidator({"x": option}).validate({"x": value})
                assert not result.error_messages, (option, value)
                assert result.validated_parameters == {"x": value}
    assert skipped > len(VALUES)


def test_task_processes_do_not_have_to_load_the_filters() -> None:
    """Ansible forks from a main process that has imported an action plugin."""
    code = (
        "import ansible_collections.lanewise.dra.plugins.action.fabric, sys; before = set(sys.modules); "
        "from ansible.parsing.dataloader import DataLoader; from ansible.template import Templar, trust_as_template; "
        "print(Templar(DataLoader()).template(trust_as_template('{{ 1 | bool and [2] is contains(2) }}'))); "
        "print(*(name for name in set(sys.modules) - before if 'ansible.plugins' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_a_node_gets_only_the_profiles_that_its_rules_use() -> None:
    profiles = {"a": {"mtu": 9000}, "b": {"mtu": 1500}}
    sent = module_arguments({"nics": [{"profile": "b"}, {"profile": None}, {}], "profiles": profiles})
    assert sent["profiles"] == {"b": {"mtu": 1500}}
    assert module_arguments({"nics": [{"profile": "c"}], "profiles": profiles})["profiles"] == profiles
    assert module_arguments({"nics": [], "profiles": profiles})["profiles"] == {}
