# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import PCIE_ROOT
from ansible_collections.lanewise.dra.plugins.modules import alignment_check
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.alignment.node_with_claims import (
    NODE,
    NodeWithClaims,
    match_attribute,
)

RETURN = yaml.safe_load(alignment_check.RETURN)


@pytest.fixture
def node():
    created = NodeWithClaims("hgx-h100")
    gpu, nic = created.pair("PIX")
    created.add_claim({"gpu": gpu, "nic": nic}, match_attribute("gpu", "nic"))
    return created


@pytest.fixture
def run(node, capsys):
    """A function that runs the module on the node and its claims, and returns its answer."""

    def call(**arguments):
        given = {"claims": node.claims, "slices": node.slices, "pods": node.pods, "topologies": {NODE: node.facts}}
        with patch_module_args({**given, **arguments}), pytest.raises(SystemExit) as stop:
            alignment_check.main()
        answer = json.loads(capsys.readouterr().out)
        assert bool(stop.value.code) == bool(answer.get("failed"))
        return answer

    return call


def test_an_aligned_claim_is_reported_with_a_predicted_bandwidth(run):
    answer = run()
    assert (answer["changed"], answer["ok"], answer["failures"]) == (False, True, [])
    assert answer["summary"]["kept"] == 1 and answer["summary"]["unproven"] == 0
    assert answer["lines"] == ["ml/claim on node-1: aligned as promised"]
    [prediction] = answer["claims"][0]["predictions"]
    assert prediction["prediction"] is True and prediction["gb_per_s"]["low"] > 40
    assert run(_ansible_check_mode=True)["claims"] == answer["claims"]


def test_cpus_of_a_container_count_only_from_the_node_of_its_pod(run, node):
    """Other hosts may report a cgroup of the same name, but only the host that is the pod's node counts."""
    uid, container = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "c" * 64
    [pod] = node.pods
    pod["metadata"]["uid"] = uid
    pod["status"]["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{container}"}]
    for consumer in node.claims[0]["status"]["reservedFor"]:
        consumer["uid"] = uid
    near, far = (numa_node["cpus"] for numa_node in node.facts["numa_nodes"][:2])
    path = f"/sys/fs/cgroup/kubepods/burstable/pod{uid}/{container}/cpuset.cpus.effective"

    def cpus_of(**cgroups):
        names = {"host": NODE}
        [report] = run(cgroups={host: f"{path}:{cpus}" for host, cpus in cgroups.items()}, node_names=names)["claims"]
        return [container_cpus["cpus"] for container_cpus in report["cpus"]]

    assert cpus_of(host=near) == [near] and cpus_of(host=far) == [far]
    assert cpus_of(host=near, other=far) == [near] and cpus_of(aaa=far, host=near) == [near]
    assert cpus_of(other=far) in ([], [None], [""])


def test_the_answer_has_the_documented_keys(run):
    answer = run(compare=[{"node": NODE, "gpu": "0000:18:00.0"}])
    assert set(answer) - {"invocation", "warnings", "deprecations"} == {*RETURN, "changed"}
    assert set(answer["claims"][0]) == set(RETURN["claims"]["contains"])


def test_a_broken_claim_fails_unless_fail_is_false(run, node):
    _gpu, nic = node.pair("PIX")
    for attributes in (node.published_device(nic)["attributes"], node.facts["functions"][nic]["kubernetes"]):
        attributes.update({PCIE_ROOT: {"string": "pci0000:ff"}, "pcieRoot": "pci0000:ff"})
    answer = run()
    assert answer["failed"] and "ml/claim is broken" in answer["msg"] and "pci0000:ff" in answer["msg"]
    allowed = run(fail=False)
    assert not allowed.get("failed") and not allowed["ok"] and allowed["claims"] == answer["claims"]


def test_an_unknown_verdict_fails_only_if_proof_is_required(run, node):
    answer = run(topologies={})
    assert answer["ok"] and "only compared with what drivers publish: node-1" in " ".join(answer["notes"])
    answer = run(topologies={}, require_proof=True)
    assert answer["failed"] and "not proven" in answer["msg"]
    node.pods.clear()
    assert run()["ok"] and run()["summary"]["unknown"] == 1
    assert "no longer exists" in run(require_proof=True)["msg"]


def test_a_claim_is_unknown_if_its_class_is_not_among_the_given_ones(run):
    assert run()["claims"][0]["proven"]
    answer = run(classes=[])
    assert answer["ok"] and answer["summary"]["unknown"] == 1
    assert "the DeviceClass no longer exists" in " ".join(answer["lines"])
    assert "is unknown: class any" in run(classes=[], require_proof=True)["msg"]


def test_a_selection_counts_devices_of_other_claims_as_in_use(run, node):
    gpu, nic = node.pair("SYS")
    far = node.add_claim({"gpu": gpu, "nic": nic}, name="far")
    far["metadata"]["labels"] = {"app": "far"}
    assert [claim["claim"] for claim in run(labels={"app": "far"})["claims"]] == ["ml/far"]
    assert run(namespaces=["other"])["claims"] == []
    lines = " ".join(run(namespaces=["ml"], labels={"app": "far"})["lines"])
    assert "which ml/claim has" in lines and "which is free" not in lines


def test_topologies_are_read_from_a_stored_report_by_the_node_names_of_its_hosts(run, node, tmp_path):
    (tmp_path / "nodes").mkdir()
    (tmp_path / "site.json").write_text("{}")
    (tmp_path / "nodes" / "a.json").write_text(json.dumps({"host": "inventory-name", "facts": node.facts}))
    assert run(topologies={}, report=str(tmp_path))["summary"]["unproven"] == 1
    named = run(topologies={}, report=str(tmp_path), node_names={"inventory-name": NODE})
    assert named["summary"]["unproven"] == 0 and named["claims"][0]["proven"]
    assert "not a readable site report" in run(report=str(tmp_path / "nothing"))["msg"]


def test_comparisons_are_planned_for_free_gpus_of_probed_nodes(run, node):
    gpu = next(iter(node.machine.gpus))
    free = next(address for address in node.machine.gpus if address not in json.dumps(run()["claims"]))
    used, planned, not_probed = run(
        compare=[
            {"node": NODE, "gpu": gpu},
            {"node": NODE, "gpu": free, "namespace": "bench"},
            {"node": "node-2", "gpu": gpu},
        ]
    )["comparisons"]
    assert "in use" in used["reason"] and used["objects"] == []
    assert planned["nearest"]["level"] == "PIX" and planned["farthest"]["level"] == "SYS"
    assert [item["kind"] for item in planned["objects"]].count("ResourceClaim") == 2
    near, far = (planned["predictions"][part]["gb_per_s"]["likely"] for part in ("nearest", "farthest"))
    assert near > far
    assert "it has not been probed" in not_probed["reason"]


def test_measurements_are_returned_as_measured_and_not_as_predicted(run):
    output = "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n1048576 100 0.00 368.0 0.1\n"
    measured = [
        {"claim": "ml/claim", "peer": "other", "tool": "ib_write_bw", "output": output},
        {"claim": "ml/claim", "tool": "iperf3", "output": "iperf3: command not found"},
        {"claim": "ml/claim", "tool": "ib_write_bw", "output": output, "rc": 1},
    ]
    [claim] = run(measurements=measured)["claims"]
    assert [measurement["gb_per_s"] for measurement in claim["measured"]] == [46.0, None, None]
    assert claim["measured"][1]["problem"] == "iperf3: command not found"
    assert claim["measured"][2]["problem"].startswith("it exited with status 1: 1048576")
    assert all(entry["measured"] is True and "prediction" not in entry for entry in claim["measured"])


def test_invalid_slices_are_refused(run):
    assert "cannot be read" in run(slices=[{"kind": "Pod"}])["msg"]
    assert "lacks the field" in run(slices=[{"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1"}])["msg"]
