# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims for VFs are checked with the VFs that the same inventory configures."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.plugins.plugin_utils.planned_vfs import rules_of, with_planned_vfs
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.site.plays import run_playbook


def probed(machine: str, folder: Path) -> dict[str, t.Any]:
    return as_dict(probe(str(build(machine, folder / machine))))


def test_planned_vfs_equal_those_that_the_kernel_creates(tmp_path: Path) -> None:
    facts = probed("sriov", tmp_path)
    pf = "0000:16:00.0"
    kept = [nic for nic in facts["nics"] if nic["physfn"] != pf]
    vf_addresses = {nic["address"] for nic in facts["nics"]} - {nic["address"] for nic in kept}
    without = {
        **facts,
        "nics": kept,
        "functions": {key: function for key, function in facts["functions"].items() if key not in vf_addresses},
    }
    rules = [{"select": {"driver": "mlx5_*"}, "num_vfs": 2}, {"select": {"address": [pf]}, "num_vfs": "8"}]
    planned = with_planned_vfs(without, rules)
    vfs = {nic["address"]: nic for nic in planned["nics"] if nic["physfn"] == pf}
    assert set(vfs) == vf_addresses
    for address in vf_addresses:
        new, old = planned["functions"][address], facts["functions"][address]
        same = ("device_id", "physfn", "vf_number", "kubernetes", "numa_node", "root_complex")
        assert [new[name] for name in same] == [old[name] for name in same]
    assert with_planned_vfs(facts, rules) is facts, "all VFs exist already"
    assert with_planned_vfs(without, [{"select": {"address": pf}, "num_vfs": 8, "externally_managed": True}]) is without
    assert with_planned_vfs(without, [*rules, {"select": {"address": pf}, "num_vfs": None}]) is without
    assert (
        with_planned_vfs(without, [{"select": {"no": 1}, "num_vfs": 4}, {"select": {}, "num_vfs": "many"}]) is without
    )


def test_rules_come_with_their_boards_and_profiles() -> None:
    mine = {"name": "r", "select": {}, "profile": "mine", "mtu": 1500}
    variables = {
        "fabric_board": "hgx-roce",
        "fabric_profiles": {"mine": {"num_vfs": 4}},
        "fabric_nics": [mine, "wrong"],
    }
    first, second = rules_of(variables)
    assert first["name"] == "rails" and first["mtu"] == 9000 and second["num_vfs"] == 4 and second["mtu"] == 1500


@pytest.mark.parametrize("count", [0, 4])
def test_a_claim_for_a_vf_is_refused_only_if_no_vfs_are_planned(tmp_path: Path, count: int) -> None:
    pytest.importorskip("cel_expr_python", reason="needs the engine of CEL")
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "vf", "kind": "vf"}]
    claim = {"name": "slice", "namespace": "default", "align": "pcie_root", "devices": devices}
    host = {
        "topology_root": str(build("hgx-h100", tmp_path / "hgx-h100")),
        "dra_claims_templates": [claim],
        "dra_claims_drivers": {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}},
        "dra_claims_dest": str(tmp_path / "kubernetes"),
        "fabric_nics": [{"name": "rails", "select": {"near_gpu": "PIX"}, "num_vfs": count}],
    }
    (tmp_path / "book.yml").write_text(
        json.dumps([{"ansible.builtin.import_playbook": f"lanewise.dra.{name}"} for name in ("probe", "claims")])
    )
    output = run_playbook(tmp_path, {"one": host}, str(tmp_path / "book"), rc=0 if count else 2)
    assert ("default/slice: 1 of 1 node(s)" in output) is bool(count), output
    assert ("request vf" in output) is (count == 0), output
