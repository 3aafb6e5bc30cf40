# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The output of a run: a few plain lines if nothing fails."""

from __future__ import annotations

import configparser
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import COLLECTION, run_playbook

QUIET = {"ANSIBLE_STDOUT_CALLBACK": "lanewise.dra.quiet"}


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    folder = tmp_path_factory.mktemp("machines") / "cpu-rdma"
    build("cpu-rdma", folder)
    return {"topology_root": str(folder)}


def test_a_checkout_is_quiet_and_stops_if_an_inventory_source_cannot_be_read():
    settings = configparser.ConfigParser()
    settings.read(COLLECTION / "ansible.cfg")
    assert settings["defaults"]["stdout_callback"] == "lanewise.dra.quiet"
    assert settings["inventory"]["any_unparsed_is_failed"] == "true"


def test_a_healthy_site_prints_a_few_lines(tree, tmp_path):
    hosts = {f"node-{number}": tree for number in range(6)}
    options = ("-e", f"site_claims_dest={tmp_path}/kubernetes")
    first = run_playbook(tmp_path, hosts, "site", *options, **QUIET)
    lines = [line for line in first.splitlines() if line]
    assert len(lines) < 40 and "ok: [" not in first and "skipping: " not in first and "included: " not in first
    assert "TASK [Show the summary]" in first and "\n6 nodes, " in first  # a list is printed as plain lines
    assert "Nothing to configure on these nodes: the inventory sets neither fabric_board" in first
    assert "nothing applied: dra_claims_kubeconfig is not set" in first
    assert "changed: [node-0]" in first and "5 hosts: nothing changed, nothing failed" in first
    assert "PLAY [Roll out]" not in first
    again = run_playbook(tmp_path, hosts, "site", *options, **QUIET)
    assert "\n6 hosts: nothing changed, nothing failed" in again and "changed: [" not in again


def test_failures_and_warnings_are_shown(tree, tmp_path):
    hosts = {"good": tree, "bad": {"topology_root": "/nonexistent"}}
    reported = run_playbook(tmp_path, hosts, "probe", "-e", '{"topology_subset": ["system"]}', rc=2, **QUIET)
    assert "fatal: [bad]: FAILED!" in reported and "has no folder 'sys'" in reported
    assert "good: its facts lack" in " ".join(reported.split())  # a warning of a task that succeeds
    recap = reported[reported.index("PLAY RECAP") :]
    assert "bad" in recap and "failed=1" in recap


def test_all_tasks_are_shown_with_option_v(tree, tmp_path):
    reported = run_playbook(tmp_path, {"one": tree}, "probe", "-v", **QUIET)
    assert "ok: [one]" in reported and "skipping: " in reported and "TASK [lanewise.dra.topology : Read" in reported


OUTPUT_PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Print each item
      ansible.builtin.debug: {msg: "{{ item }} of {{ inventory_hostname }}"}
      loop: [first, second]
    - name: Print a list once
      ansible.builtin.debug: {msg: [one line, another]}
      run_once: true
    - name: Print text that a node has sent
      ansible.builtin.debug: {msg: ["\\e[31mred\\u202e", "two\\nlines"]}
      run_once: true
    - name: Show a variable
      ansible.builtin.debug: {var: site_become}
    - name: Show variables
      ansible.builtin.debug: {var: item}
      loop: [x1, x2]
    - name: Print a number
      ansible.builtin.debug: {msg: "{{ 4711 }}"}
    - name: Print nothing
      ansible.builtin.assert: {that: true}
    - name: Skip this task
      ansible.builtin.debug: {msg: never}
      when: false
"""


def test_output_of_the_sites_own_plays_is_shown(tmp_path):
    (tmp_path / "play.yml").write_text(OUTPUT_PLAY, encoding="utf-8")
    reported = run_playbook(tmp_path, {"a": {}, "b": {}}, str(tmp_path / "play"), **QUIET)
    for line in ("a: first of a", "b: second of b", "one line", "another", "a: 4711", "b: 4711"):
        assert f"\n{line}\n" in reported
    assert "\n\ufffd[31mred\ufffd\ntwo\nlines\n" in reported  # a node cannot control the terminal
    assert reported.count("one line") == 1 and "site_become: false" in reported and "x2" in reported
    assert "never" not in reported and "Print nothing" not in reported and "All items" not in reported
    assert "2 hosts: nothing changed, nothing failed" in reported


def test_a_rollback_without_nodes_gives_a_message(tree, tmp_path):
    reported = run_playbook(tmp_path, {"one": tree}, "rollback", **QUIET)
    assert "No node was changed: none of the selected hosts has dra_driver_kubeconfig" in reported


def test_an_upgrade_without_nodes_gives_a_message(tree, tmp_path):
    rails = [{"name": "rails", "select": {"rdma": True}, "mtu": 9000}]
    for more in ({}, {"fabric_nics": rails}):  # an upgrade of the driver configures no NICs
        reported = run_playbook(tmp_path, {"one": {**tree, **more}}, "upgrade", **QUIET)
        assert "Nothing to configure on these nodes" in reported and "dra_driver_kubeconfig" in reported, reported


def test_an_inventory_without_hosts_fails(tmp_path):
    reported = run_playbook(tmp_path, {}, "probe", rc=2, **QUIET)
    assert "The inventory has no host" in " ".join(reported.split())


def test_a_missing_collection_is_reported_with_the_fix(tree, tmp_path):
    """If only this collection is installed, kubernetes.core is missing."""
    alone = tmp_path / "alone" / "ansible_collections" / "lanewise"
    alone.mkdir(parents=True)
    (alone / "dra").symlink_to(COLLECTION)
    environment = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "alone"), "PYTHONPATH": str(tmp_path / "alone")}
    (tmp_path / "kubeconfig").write_text("{}", encoding="utf-8")
    options = ("-e", f"alignment_kubeconfig={tmp_path}/kubeconfig")
    reported = " ".join(run_playbook(tmp_path, {"one": tree}, "verify", *options, rc=2, **QUIET, **environment).split())
    assert "Not installed on the controller: kubernetes.core. Run: ansible-galaxy" in reported
    assert "misspelling" not in reported


def test_an_inventory_of_slices_names_the_missing_package(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "urllib3.py").write_text("raise ModuleNotFoundError(\"No module named 'urllib3'\")\n", encoding="utf-8")
    source = tmp_path / "slices.yml"
    source.write_text("plugin: lanewise.dra.slices\n", encoding="utf-8")
    path = f"{hidden}:{COLLECTIONS}"
    reported = run_playbook(tmp_path, {}, "probe", "-i", str(source), rc=1, **QUIET, PYTHONPATH=path)
    text = " ".join(reported.split())
    assert "the controller's Python lacks the package kubernetes or a part of it" in text
    assert "-m pip install kubernetes" in text
