# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""playbooks/queues.yml under a real ansible-playbook, with the example of docs/queues.md."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.claims.test_claims_playbook import ANSIBLE_PLAYBOOK, Folder
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION

PAGE = (COLLECTION / "docs" / "queues.md").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
EXAMPLE: Object = {**BLOCKS[0], **BLOCKS[1]}
(SHOWN,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.report("report")
    return folder


def _run(folder: Folder, *arguments: str, rc: int = 0, **variables: t.Any) -> str:
    return folder.run(*arguments, rc=rc, playbook="queues", **{**EXAMPLE, **variables})


def test_the_example_of_the_guide_has_the_documented_output(folder: Folder) -> None:
    output = _run(folder)
    print(output)
    for line in SHOWN.splitlines():
        assert line in output, line
    assert "nothing applied: dra_claims_kubeconfig is not set" in output
    dest = folder.path / "queues"
    files = sorted(str(path.relative_to(dest)) for path in dest.rglob("*.yaml"))
    assert files == [
        "kueue/configuration.yaml",
        *(f"manifests/cluster/{kind}.yaml" for kind in ("clusterqueues", "cohorts", "resourceflavors")),
        "manifests/cluster/workloadpriorityclasses.yaml",
        "manifests/namespaces/blue/localqueues.yaml",
        "manifests/namespaces/red/localqueues.yaml",
        "manifests/namespaces/red/resourceclaimtemplates.yaml",
    ]
    assert not (folder.path / "kubernetes").exists()  # the claims are compiled, not written
    assert "changed=0" in _run(folder)
    queues = list(yaml.safe_load_all((dest / "manifests/cluster/clusterqueues.yaml").read_text()))
    assert [queue["metadata"]["name"] for queue in queues] == ["red", "blue"]


def test_files_are_not_changed_if_there_are_errors(folder: Folder) -> None:
    _run(folder)
    before = (folder.path / "queues/manifests/cluster/clusterqueues.yaml").read_text()
    teams = [{**EXAMPLE["queues_teams"][0], "guaranteed": {"pairs": 9}}, EXAMPLE["queues_teams"][1]]
    output = _run(folder, rc=2, queues_teams=teams)
    reported = "guarantees of gpus add up to 12 (red 9, blue 2, the pool 1), but the fleet has 8"
    assert f"queues_teams[0].guaranteed.pairs: {reported}" in output
    assert (folder.path / "queues/manifests/cluster/clusterqueues.yaml").read_text() == before


def test_the_values_for_the_chart_have_the_whole_configuration(folder: Folder) -> None:
    _run(folder, queues_configuration={"webhook": {"port": 9443}, "featureGates": {"Other": True}})
    values = yaml.safe_load((folder.path / "queues/kueue/values.yaml").read_text())
    whole = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    assert whole["kind"] == "Configuration" and whole["webhook"] == {"port": 9443} and whole["featureGates"]["Other"]
    part = yaml.safe_load((folder.path / "queues/kueue/configuration.yaml").read_text())
    assert whole["resources"] == part["resources"]
    assert "removed" not in _run(folder)  # only objects of the cluster are reported as removed, not files
    assert not (folder.path / "queues/kueue/values.yaml").exists()


def test_values_with_which_kueue_would_not_start_are_refused(folder: Folder) -> None:
    mapping = {"name": "example.com/gpus", "deviceClassNames": ["gpu"]}
    output = _run(folder, rc=2, queues_configuration={"resources": {"deviceClassMappings": [mapping]}})
    assert "Nothing was written, as Kueue would not start with kueue/values.yaml:" in output
    problem = "has class gpu, which queues_resources maps too: Kueue does not start with both mappings"
    assert f"resources.deviceClassMappings[example.com/gpus] {problem}" in output
    assert not (folder.path / "queues").exists()


def test_an_overdue_loan_is_shown(folder: Folder) -> None:
    loan = {**EXAMPLE["queues_loans"][0], "until": "2026-01-01"}
    output = _run(folder, queues_loans=[loan])
    assert "overdue: red lends blue 1 gpus until 2026-01-01T00:00:00Z" in output
    assert "The loan is overdue and has no effect any more" in output and "red: 5, lends at most 3" in output


def test_a_misspelled_variable_is_refused(folder: Folder) -> None:
    assert "did you mean queues_teams?" in _run(folder, rc=2, queues_team=[])


def test_the_output_folder_of_the_claims_playbook_is_refused(folder: Folder) -> None:
    """Both playbooks would write the templates of a namespace to the same file."""
    dests = {"dra_claims_dest": str(folder.path / "gitops"), "queues_dest": str(folder.path / "gitops")}
    folder.run(**{**EXAMPLE, **dests})
    assert "resourceclaimtemplates.yaml is not a file rendered for site" in _run(folder, rc=2, **dests)
    assert "changed=0" in folder.run(**{**EXAMPLE, **dests})
