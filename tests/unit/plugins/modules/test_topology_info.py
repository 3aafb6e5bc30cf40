# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import sys

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.module_utils.topology_module import SECTIONS
from ansible_collections.lanewise.dra.plugins.modules import fabric, topology_info
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import healthy_machine

RETURN = yaml.safe_load(topology_info.RETURN)["topology"]
NIC0 = "0000:1b:00.0"


@pytest.fixture
def machine(tmp_path):
    return healthy_machine(tmp_path / "machine")


@pytest.fixture
def run(machine, capsys):
    """A function that runs the module on the machine and returns its answer."""

    def call(**arguments):
        with patch_module_args({"root": str(machine.root), **arguments}), pytest.raises(SystemExit) as stop:
            topology_info.main()
        answer = json.loads(capsys.readouterr().out)
        assert bool(stop.value.code) == bool(answer.get("failed"))
        return answer

    return call


def test_the_answer_has_the_topology_and_changes_nothing(run, machine):
    answer = run()
    assert answer["changed"] is False
    assert answer["topology"]["source"]["path"] == str(machine.root)
    assert [gpu["nearest_nics"]["devices"] for gpu in answer["topology"]["gpus"]] == [[NIC0], ["0000:9b:00.0"]]


def test_check_mode_reads_like_a_normal_run(run):
    assert run(_ansible_check_mode=True)["topology"] == run()["topology"]


def test_every_section_of_the_answer_is_documented(run):
    assert set(run()["topology"]) == set(RETURN["contains"])


def documented(name):
    return RETURN["contains"][name]


@pytest.mark.parametrize("name", sorted(name for name, entry in RETURN["contains"].items() if "contains" in entry))
def test_a_section_has_exactly_the_keys_that_are_documented_one_by_one(run, name):
    value = run()["topology"][name]
    sample = value[NIC0] if name == "functions" else value
    assert set(sample) == set(documented(name)["contains"])


@pytest.mark.parametrize(
    "name",
    [
        "affinity",
        "findings",
        "gpus",
        "groups",
        "interfaces",
        "nics",
        "numa_nodes",
        "nvme",
        "packages",
        "rdma_devices",
        "system",
    ],
)
def test_a_section_has_the_keys_that_its_description_mentions(run, machine, name):
    machine.write(f"{machine.folder(NIC0)}/numa_node", "5")  # so that there is a finding
    value = run()["topology"][name]
    keys = set(value if isinstance(value, dict) else value[0])
    text = documented(name)["description"]
    words = (text if isinstance(text, str) else " ".join(text)).split("C(")[1:]
    mentioned = {word.partition(")")[0] for word in words}
    keys_of_parts = {"affinity": set(), "rdma_devices": {"link_layer", "state", "rate_gbps", "gids"}}.get(name, set())
    assert mentioned and mentioned - keys_of_parts <= keys


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_a_subset_has_only_its_sections(run, section):
    keys = set(run(subset=[section])["topology"])
    assert keys == {"schema_version", "fingerprint", "source", *SECTIONS[section]}


def test_relevant_functions_are_the_default(run, machine):
    machine.pci("pci0000:17/0000:17:1f.0", {"class": "0x0c0500", "vendor": "0x8086", "device": "0x1bc9"}, 0)
    assert "0000:17:1f.0" not in run()["topology"]["functions"]
    assert {NIC0, "0000:17:01.0"} < set(run()["topology"]["functions"])
    assert "0000:17:1f.0" in run(pci_functions="all")["topology"]["functions"]


def test_overrides_are_applied_and_reported(run):
    answer = run(locality_overrides=[{"address": NIC0, "rail": "7", "numa_node": "0"}])
    assert {nic["address"]: nic["rail"] for nic in answer["topology"]["nics"]}[NIC0] == 7
    assert "override-applied" in [finding["id"] for finding in answer["topology"]["findings"]]


def test_a_malformed_override_fails(run):
    answer = run(locality_overrides=[{"numa_node": 0}])
    assert answer["failed"] and "locality_overrides[0]: give either 'address' or 'slot'" in answer["msg"]


@pytest.mark.parametrize("folder", ["", "none"])
def test_a_root_without_sys_fails(run, tmp_path, folder):
    answer = run(root=str(tmp_path / folder))
    assert answer["failed"] and "has no folder 'sys'" in answer["msg"]


def test_an_unknown_section_fails(run):
    assert "subset" in run(subset=["gpus"])["msg"]


def test_a_missing_import_file_fails(run, tmp_path):
    answer = run(import_file=str(tmp_path / "none.xml"))
    assert answer["failed"] and "none.xml" in answer["msg"]


@pytest.mark.parametrize("text", ["", "<system", "<what/>", "not xml"])
def test_an_import_file_of_an_unknown_format_fails(run, tmp_path, text):
    path = tmp_path / "topology.xml"
    path.write_text(text, encoding="utf-8")
    answer = run(import_file=str(path))
    assert answer["failed"] and str(path) in answer["msg"]


def test_an_unreadable_file_does_not_fail_the_module(run, machine):
    machine.write(f"{machine.folder(NIC0)}/numa_node", b"\xff")
    answer = run()
    assert not answer.get("failed")
    assert answer["topology"]["source"]["unreadable_count"] == 1


def test_the_importer_of_xml_files_is_not_loaded_for_a_node(run):
    name = "ansible_collections.lanewise.dra.plugins.module_utils.topology.xml_import.read"
    loaded = sys.modules.pop(name, None)
    try:
        run()
        assert name not in sys.modules
    finally:
        if loaded:
            sys.modules[name] = loaded


def test_the_module_fabric_returns_the_same_topology_with_its_plan(run, machine, capsys):
    options = {"root": str(machine.root), "topology": {"vpd": False}, "_ansible_check_mode": True}
    with patch_module_args(options), pytest.raises(SystemExit):
        fabric.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["changes"] == []
    assert answer["topology"] == run(vpd=False)["topology"]


def test_the_module_fabric_returns_the_topology_even_if_its_plan_fails(machine, capsys):
    rule = {"name": "rails", "select": {"address": ["0000:ff:00.0"]}, "count": 1}
    options = {"root": str(machine.root), "topology": {}, "nics": [rule], "_ansible_check_mode": True}
    with patch_module_args(options), pytest.raises(SystemExit) as stop:
        fabric.main()
    answer = json.loads(capsys.readouterr().out)
    assert stop.value.code
    assert answer["problems"]
    assert answer["topology"]["gpus"]
