# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/claims.yml under a real ansible-playbook: the files that it reads and writes, and the errors it reports."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_pages import Pages
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_site import Request, Site
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.simulated_node import with_near_nics
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
NODE = "h100-01"
TEMPLATES = COLLECTION / "roles" / "topology" / "templates" / "report"
SITE_VARIABLES: dict[str, t.Any] = {
    "dra_claims_drivers": {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}},
    "dra_claims_templates": [
        {
            "name": "pair",
            "namespace": "training",
            "align": "pcie_root",
            "devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}],
        }
    ],
}

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")


class Folder:
    """A user's working folder with an inventory, and with a report after `report`."""

    def __init__(self, path: Path, hosts: Object | None = None) -> None:
        self.path = path
        self.hosts = hosts or {NODE: {}}

    def report(self, name: str, probed: Object | None = None) -> None:
        """Write a site report with the facts of the probed nodes, by default of one node."""
        title = "GPU and RDMA topology"  # the role's default
        site = Site(str(self.path / name), Pages([str(TEMPLATES)], title), title)
        known = probed or {NODE: facts("hgx-h100")}
        site.update(Request(facts=known, play=set(known), inventory=set(known), now="2026-01-02T03:04:05Z"))

    def run(self, *arguments: str, rc: int = 0, playbook: str = "claims", **variables: t.Any) -> str:
        running = self.start(*arguments, playbook=playbook, **variables)
        output = running.communicate()[0]
        assert running.returncode == rc, output
        assert "Traceback" not in output
        return output

    def start(self, *arguments: str, playbook: str = "claims", **variables: t.Any) -> subprocess.Popen[str]:
        """Start a run in a separate process group."""
        shared = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            **SITE_VARIABLES,
            **variables,
        }
        inventory = {"all": {"hosts": self.hosts, "vars": shared}}
        (self.path / "inventory.json").write_text(json.dumps(inventory))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        paths = {"ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_HOME": str(self.path / "home")}
        return subprocess.Popen(
            [str(ANSIBLE_PLAYBOOK), "-i", "inventory.json", f"lanewise.dra.{playbook}", *arguments],
            cwd=self.path,
            env={**kept, **paths, "ANSIBLE_NOCOLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def has_manifests(self, name: str) -> bool:
        return (self.path / name / "manifests/namespaces/training/resourceclaimtemplates.yaml").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_the_report_and_the_manifests_are_in_the_current_folder(folder: Folder) -> None:
    folder.report("report")
    assert "training/pair: 1 of 1 node(s)" in folder.run() and folder.has_manifests("kubernetes")
    assert "changed=0" in folder.run()


def test_a_plan_needs_probed_machines_and_no_cluster(tmp_path: Path) -> None:
    """A plan with nothing but the probe and the rendered manifests counts every device as free."""
    machine = {"topology_root": str(build("hgx-h100", tmp_path / "machine"))}
    folder = Folder(tmp_path, {NODE: machine, "h100-02": machine})
    folder.run()
    work = {"plan_workloads": [{"name": "pair", "namespace": "training", "templates": ["pair"]}]}
    steps = [{"add": {"like": NODE, "count": 3}}, {"driver": {"name": "gpu.nvidia.com", "version": "0.4.1"}}]
    given = json.dumps({**work, "plan_manifests": "./kubernetes", "plan_what_if": steps})
    output = " ".join(folder.run("lanewise.dra.plan", "-e", given, playbook="probe").split())
    assert "pair: 16 more, " in output and "the fleet is 2 probed machine(s): nothing is in use there" in output
    output = folder.run("-e", given, playbook="plan", rc=2)
    assert "Name lanewise.dra.probe before lanewise.dra.plan" in " ".join(output.split())
    wrong = json.dumps({**work, "plan_manifests": "./home"})
    output = folder.run("lanewise.dra.plan", "-e", wrong, playbook="probe", rc=2)
    assert "has no YAML file: write the manifests" in " ".join(output.split())


def test_paths_of_the_command_line_are_relative_to_the_current_folder(folder: Folder) -> None:
    folder.report("elsewhere")
    output = folder.run("-e", "dra_claims_report=./elsewhere", "-e", "dra_claims_dest=./out")
    assert "training/pair: 1 of 1 node(s)" in output
    assert folder.has_manifests("out") and not folder.has_manifests("kubernetes")
    assert "1 of 1 node(s)" in folder.run("-e", "site_report_dest=elsewhere", "-e", "site_claims_dest=more")
    assert folder.has_manifests("more")


def test_the_inventory_may_set_the_folders_of_report_and_manifests(folder: Folder) -> None:
    folder.report("elsewhere")
    where = {"dra_claims_dest": str(folder.path / "gitops"), "dra_claims_report": "elsewhere"}
    assert "1 of 1 node(s)" in folder.run(**where)
    assert folder.has_manifests("gitops") and not folder.has_manifests("kubernetes")


SLICES = COLLECTION / "tests" / "claims" / "slices"
FROM_SLICES = {"dra_claims_nodes_from": "slices", "dra_claims_slices": "published.json"}
THEIRS = {"gpu.nvidia.com": {"version": "25.12.0"}, "dra.net": {"version": "1.4.0"}}


def test_slices_in_a_file_replace_probed_nodes(folder: Folder) -> None:
    """The file has the format of kubectl. The report in the same folder is ignored."""
    folder.report("report")
    items = [entry for name in ("eks-p4d", "oke-gb200") for entry in json.loads((SLICES / f"{name}.json").read_text())]
    (folder.path / "published.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    pair = {"name": "pair", "namespace": "training", "align": "pcie_root", "devices": devices}
    output = folder.run(**FROM_SLICES, dra_claims_drivers=THEIRS, dra_claims_templates=[pair])
    assert "training/pair: 0 of 2 node(s)" in output and "not oke-gb200: " in output
    assert "unknown eks-p4d: " in output and folder.has_manifests("kubernetes")


@pytest.mark.parametrize(
    ("variables", "text", "message"),
    [
        (FROM_SLICES, None, "Cannot read the slices (dra_claims_slices): "),
        (FROM_SLICES, "a: 2026-13-45", "Cannot read the slices (dra_claims_slices): "),
        (FROM_SLICES, "[]", "there is no ResourceSlice among the objects"),
        (FROM_SLICES, "[3]", "has something that is not a Kubernetes object: 3"),
        (FROM_SLICES, '[{"kind": "ResourceSlice"}]', "cannot be read from the slices of published.json"),
        ({"dra_claims_nodes_from": "slices"}, None, "name a file with them (dra_claims_slices) or the cluster"),
        ({"dra_claims_slices": "published.json"}, "[]", "Set dra_claims_nodes_from: slices"),
    ],
)
def test_unreadable_slices_are_an_error(folder: Folder, variables: Object, text: str | None, message: str) -> None:
    if text is not None:
        (folder.path / "published.json").write_text(text)
    assert message in folder.run(rc=2, **variables)


def test_claims_that_were_checked_against_no_node_are_reported(folder: Folder) -> None:
    assert "No claim was checked against a node" in folder.run()


def test_an_allowed_unreachable_claim_gives_a_warning(folder: Folder) -> None:
    folder.report("report")
    many = {"name": "many", "namespace": "training", "devices": [{"kind": "gpu", "count": 16}]}
    assert "dra_claims_templates[0]" in folder.run(rc=2, dra_claims_templates=[many])
    output = folder.run("-e", "dra_claims_allow_unreachable=true", dra_claims_templates=[many])
    assert "No probed node can satisfy training/many" in output and folder.has_manifests("kubernetes")


def test_booleans_of_the_command_line_are_accepted(folder: Folder) -> None:
    assert "ValidatingAdmissionPolicy" in folder.run("-e", "dra_claims_policy=true", "-e", "dra_claims_apply=false")
    folder.run("-e", "dra_claims_kubeconfig=")  # as with a shell variable that is not set


def test_strings_stay_strings_for_kubectl(folder: Folder) -> None:
    """Without quotes, Ansible reads these values as strings, but Go's YAML reader as numbers and booleans."""
    pair = {
        **SITE_VARIABLES["dra_claims_templates"][0],
        "name": "7e2",
        "labels": {"rack": "08", "spare": "n", "room": "a8"},
    }
    workload = {"namespace": "training", "image": "example.com/app", "env": {"Y": "1"}, "storage_class": "0o17"}
    claims = [{"name": "0x1f", "template": "7e2"}]
    names = ("pod", "job", "nccl-jobset", "nccl-mpijob", "inference", "database")
    workloads = [{**workload, "name": f"{i}e2", "template": name, "claims": claims} for i, name in enumerate(names)]
    folder.run(dra_claims_templates=[pair], dra_claims_workloads=workloads)
    files = {path: path.read_text() for path in (folder.path / "kubernetes").rglob("*.yaml")}
    template = files[folder.path / "kubernetes/manifests/namespaces/training/resourceclaimtemplates.yaml"]
    for line in ("name: '7e2'", "rack: '08'", "spare: 'n'", "room: a8"):
        assert line in template
    assert len([path for path in files if "workloads" in path.parts]) == len(names)
    for path, text in files.items():
        assert not re.search(r"[:-] (?:\de2|0x1f|0o17|Y|n|08)$", text, re.MULTILINE), f"{path}:\n{text}"


def test_a_workload_may_set_the_other_kind_of_a_claim_to_null(folder: Folder) -> None:
    """As with a default in the inventory that a workload replaces."""
    pair = {**SITE_VARIABLES["dra_claims_templates"][0], "name": "shared"}
    claims = [{"name": "devices", "template": None, "claim": "shared"}]
    workload = {"name": "app", "namespace": "training", "template": "pod", "image": "example.com/app", "claims": claims}
    folder.run(dra_claims_templates=[], dra_claims_claims=[pair], dra_claims_workloads=[workload])
    (pod,) = yaml.safe_load_all((folder.path / "kubernetes/workloads/training/app.yaml").read_text())
    assert pod["spec"]["resourceClaims"] == [{"name": "devices", "resourceClaimName": "shared"}]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"dra_claims_report": "nowhere"}, "There is no site report in "),
        ({"dra_claims_apply": True}, "dra_claims_apply is true, but dra_claims_kubeconfig is not set"),
        ({"dra_claims_templates": "pair"}, "dra_claims_templates: must be a list, not the string 'pair'"),
        ({"dra_claims_workloads": "pod"}, "dra_claims_workloads: must be a list, not 'pod'"),
        ({"dra_claims_kubernetes_version": 1.40}, "if you mean 1.40, quote it"),
        (
            {"dra_claims_feature_gates": {"DRAPrioritisedList": False, "DRAAdminAccess": "off"}},
            "(did you mean 'DRAPrioritizedList'?)\n"
            "dra_claims_feature_gates.DRAAdminAccess: must be true or false, not 'off'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_of_the_inventory_are_reported(folder: Folder, variables: dict[str, t.Any], message: str) -> None:
    output = folder.run(rc=2, **variables)
    assert message in output and not (folder.path / "kubernetes").exists()
    assert "argument_spec_data" not in output


def test_errors_of_claims_and_workloads_are_reported_together(folder: Folder) -> None:
    workload = {"name": "x", "namespace": "training", "template": "infrence", "image": "i", "claims": [{"name": "A"}]}
    broken = [{**SITE_VARIABLES["dra_claims_templates"][0], "align": "pcie"}]
    gates = {"DRAPrioritisedList": False}
    wrong = {"dra_claims_templates": broken, "dra_claims_workloads": [workload], "dra_claims_feature_gates": gates}
    output = folder.run(rc=2, **wrong)
    for expected in (
        "dra_claims_templates[0].align: 'pcie' is not one of",
        "dra_claims_feature_gates.DRAPrioritisedList: is not a feature gate",
        "dra_claims_workloads[0].template: there is no template 'infrence'; available: database, ",
        "dra_claims_workloads[0].claims[0].name: ",
    ):
        assert expected in output, (expected, output)
    assert "did you mean 'inference'?" in output


_WITH = "{{{{ {{'kind': 'DeviceClass', 'apiVersion': '{}', 'metadata': object.metadata}} | to_yaml }}}}spec: {}"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("manifests/DeviceClass.yaml.j2", "a: 1\n{{ object | combin({}) }}", "DeviceClass.yaml.j2, line 2, failed: "),
        ("manifests/DeviceClass.yaml.j2", "kind: [", "renders invalid YAML for DeviceClass/gpu"),
        ("manifests/DeviceClass.yaml.j2", "a: 2026-13-45", "renders invalid YAML for DeviceClass/gpu"),
        ("manifests/DeviceClass.yaml.j2", _WITH.format("v9", "{}"), "apiVersion: 'v9' has no DeviceClass"),
        (
            "manifests/DeviceClass.yaml.j2",
            _WITH.format("resource.k8s.io/v1", "{selector: []}"),
            "spec.selector: is not a field",
        ),
        ("DeviceClass.yaml.j2", "kind: DeviceClass", "has no template"),
    ],
)
def test_errors_in_templates_are_reported(folder: Folder, name: str, text: str, message: str) -> None:
    template = folder.path / "own" / name
    template.parent.mkdir(parents=True)
    template.write_text(text)
    output = folder.run("-e", "dra_claims_template_dir=own", rc=2)
    assert message in output and not (folder.path / "kubernetes").exists()


def test_a_template_for_a_misspelled_kind_is_reported(folder: Folder) -> None:
    template = folder.path / "own/manifests/DeviceClasses.yaml.j2"
    template.parent.mkdir(parents=True)
    template.write_text("kind: DeviceClass")
    assert "did you mean DeviceClass.yaml.j2?" in " ".join(folder.run("-e", "dra_claims_template_dir=own").split())


def test_claims_for_boards_come_with_a_table_of_their_pairs(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.report("report")
    pair = {**SITE_VARIABLES["dra_claims_templates"][0], "align": "nearest", "at_least": "PIX"}
    output = folder.run(dra_claims_templates=[pair])
    assert re.search(r"training/pair: pair is for board [0-9a-f]{16} \(h100-01\): 8 GPUs have a NIC at PIX", output)
    [table] = tmp_path.rglob("boards/pairs.csv")
    mark, head, *rows = table.read_text().splitlines()
    assert mark.startswith("# Rendered by lanewise.dra") and head == "board,gpu,nic,level,claim,object,form,nodes"
    assert len(rows) == 8 and all(row.endswith(",PIX,training/pair,pair,published map,h100-01") for row in rows)
    page = tmp_path / "report" / "nodes" / f"{NODE}.html"
    assert page.read_text().count(" •</td>") == 2 * 8, "each pair is in the matrix twice"
    stored = tmp_path / "report" / "claims.json"
    assert list(json.loads(stored.read_text())["sites"]) == ["default"]
    assert "changed=0" in folder.run(dra_claims_templates=[pair])
    folder.run()
    assert not table.exists() and "•" not in page.read_text()
    assert json.loads(stored.read_text())["sites"] == {}


def test_pods_with_claims_by_address_get_the_affinity_to_their_nodes(tmp_path: Path) -> None:
    """DRANET publishes no map. So each kind of board has a template, and the scheduler cannot distinguish the nodes."""
    folder = Folder(tmp_path, {"a": {}, "b": {"dra_driver_node_name": "node-b"}, "c": {}})
    boards = {"a": lambda gpu: [gpu], "b": lambda gpu: [(gpu + 1) % 4], "c": lambda gpu: [gpu]}
    folder.report("report", {name: with_near_nics(copy.deepcopy(facts("gb200")), own) for name, own in boards.items()})
    theirs = {"gpu.nvidia.com": {"version": "0.4.0"}, "dra.net": {"version": "1.4.0"}}
    pair = {**SITE_VARIABLES["dra_claims_templates"][0], "align": "nearest"}
    folder.run(dra_claims_drivers=theirs, dra_claims_templates=[pair])
    [table] = tmp_path.rglob("boards/pairs.csv")
    [path] = tmp_path.rglob("boards/node-affinity.yaml")
    _mark, head, *rows = table.read_text().splitlines()
    column = {name: head.split(",").index(name) for name in ("object", "form", "nodes")}
    on = {row.split(",")[column["object"]]: row.split(",")[column["nodes"]].split() for row in rows}
    assert {row.split(",")[column["form"]] for row in rows} == {"address"} and sorted(on.values()) == [
        ["a", "c"],
        ["b"],
    ]
    found = yaml.safe_load(path.read_text())
    assert found.keys() == {f"training/{name}" for name in on}
    for name, nodes in on.items():
        [term] = found[f"training/{name}"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        expected = ["node-b" if node == "b" else node for node in nodes]
        assert term == {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": expected}]}
    folder.run(dra_claims_drivers=theirs, dra_claims_templates=[{**pair, "align": "any"}])
    assert not path.exists()
