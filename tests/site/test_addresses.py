# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The addresses of rails: the plan and its export, and the errors that stop a run before it changes a node."""

from __future__ import annotations

import csv
import json
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.lanewise.dra.plugins.filter.rail_ranges import rail_ranges
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook

PLAN: dict[str, t.Any] = {
    "rails": [{"rail": 0, "pool": "10.100.0.0/16"}, {"rail": 1, "pool": "10.101.0.0/16", "per_node": 32}]
}


def host(index: object = None, **more: t.Any) -> dict[str, t.Any]:
    """The variables of a host with the plan, and with this index unless it is None."""
    variables = {"dra_driver_rail_addresses": PLAN, **more}
    return variables if index is None else {**variables, "dra_driver_rail_index": index}


def test_the_plan_is_shown_and_exported(tmp_path: Path) -> None:
    hosts = {"gpu-01": host(0), "gpu-02": host("{{ 1 + 6 }}"), "storage": {}}
    reported = run_playbook(tmp_path, hosts, "addresses", "-e", f"addresses_dest={tmp_path}/out")
    assert "rail 0, 10.100.0.0/16: 64 addresses per node, 2 nodes, room for 1024" in reported
    assert "10.101.0.224/27" in reported and "storage" not in reported
    with (tmp_path / "out/addresses.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["rail"], row["node"], row["range"]) for row in rows] == [
        ("0", "gpu-01", "10.100.0.0/26"),
        ("0", "gpu-02", "10.100.1.192/26"),
        ("1", "gpu-01", "10.101.0.0/27"),
        ("1", "gpu-02", "10.101.0.224/27"),
    ]
    stored = json.loads((tmp_path / "out/addresses.json").read_text())
    assert [row["range"] for row in stored["ranges"]] == [row["range"] for row in rows]
    assert [row["room"] for row in stored["pools"]] == [1024, 2048]
    assert "changed=0" in run_playbook(tmp_path, hosts, "addresses", "-e", f"addresses_dest={tmp_path}/out")


def test_a_site_without_a_plan_is_referred_to_the_docs(tmp_path: Path) -> None:
    assert "docs/addresses.md shows how to plan" in run_playbook(tmp_path, {"a": {}}, "addresses")


@pytest.mark.parametrize("playbook", ["addresses", "driver", "rollout"])
def test_a_conflict_between_nodes_stops_the_run(tmp_path: Path, playbook: str) -> None:
    hosts = {
        "gpu-01": host(3, dra_driver_kubeconfig="/nowhere"),
        "gpu-02": host(3),
        "gpu-03": host(),
        "gpu-04": host(4, ansible_host="10.100.9.9"),
    }
    # errors of other nodes count, although the run is limited to one valid node
    limit = [] if playbook == "addresses" else ["--limit", "gpu-01", "-e", "driver_become=false"]
    reported = run_playbook(tmp_path, hosts, playbook, *limit, rc=2)
    assert "gpu-02: dra_driver_rail_index: 3 is already the index of gpu-01" in reported
    assert "gpu-03: dra_driver_rail_index: is missing" in reported
    assert "overlaps 10.100.9.9, which is in use on the node" in reported
    assert "Build the driver's wheel" not in reported


def test_the_ranges_of_a_node_follow_from_its_index() -> None:
    assert rail_ranges(PLAN, 7) == [
        {"rail": 0, "range": "10.100.1.192/26", "pool": "10.100.0.0/16", "prefix": 16, "reach": "rail"},
        {"rail": 1, "range": "10.101.0.224/27", "pool": "10.101.0.0/16", "prefix": 16, "reach": "rail"},
    ]
    with pytest.raises(AnsibleFilterError, match="dra_driver_rail_index: is missing"):
        rail_ranges(PLAN)


SETTINGS = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_vars: {collection}/roles/dra_driver/defaults/main.yml
      when: dra_driver_rail_addresses is not defined
    - ansible.builtin.include_vars: {collection}/roles/dra_driver/vars/main.yml
    - ansible.builtin.copy:
        content: "{{{{ lookup('ansible.builtin.template', '{collection}/roles/dra_driver/templates/driver.yml.j2') }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.yml"
        mode: "0644"
"""


def test_the_role_writes_the_ranges_into_the_settings_of_the_driver(tmp_path: Path) -> None:
    (tmp_path / "settings.yml").write_text(SETTINGS.format(collection=COLLECTION, folder=tmp_path))
    variables = {
        "dra_driver_kubeconfig": "",
        "dra_driver_settings": {"log_level": "debug"},
        "dra_driver_node_name": "n",
    }
    hosts = {"gpu-01": host(7, **variables), "plain": {}}
    run_playbook(tmp_path, hosts, str(tmp_path / "settings"))
    settings = yaml.safe_load((tmp_path / "gpu-01.yml").read_text())
    assert settings["rail_addresses"] == rail_ranges(PLAN, 7)
    assert settings["log_level"] == "debug"
    assert "rail_addresses" not in yaml.safe_load((tmp_path / "plain.yml").read_text())
