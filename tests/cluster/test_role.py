# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role dra_claims with the real ansible-playbook against a real API server."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.versions import convert
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
EXAMPLE = COLLECTION / "inventories/example/group_vars/all/claims.yml"

pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
pytest.importorskip("cel_expr_python", reason="needs the CEL engine")
pytestmark = pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Claims
      ansible.builtin.import_role:
        name: lanewise.dra.dra_claims
    - name: Write the results to a file
      ansible.builtin.copy:
        content: "{{ {'rendered': dra_claims_rendered, 'applied': dra_claims_applied} | to_json }}"
        dest: "{{ result_file }}"
        mode: "0600"
      check_mode: false
      diff: false
      changed_when: false
"""
APPLY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Apply
      lanewise.dra.dra_apply: "{{ options }}"
"""
SITE: dict[str, t.Any] = {
    "dra_claims_drivers": {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}},
    "dra_claims_templates": [
        {
            "name": name,
            "namespace": "training",
            "align": ["pcie_root", "any"],
            "devices": [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}],
        }
        for name in ("one", "two")
    ],
    "dra_claims_create_namespaces": True,
}


class Controller:
    """Runs the role and the module dra_apply against a cluster. Its manifests and ANSIBLE_HOME are in its folder."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.dest = folder / "kubernetes"
        (folder / "role.yml").write_text(PLAY)
        (folder / "apply.yml").write_text(APPLY)

    def play(
        self, name: str, variables: dict[str, t.Any], *arguments: str, rc: int = 0
    ) -> tuple[dict[str, t.Any], str]:
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        extra_vars = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "result_file": str(result),
            **variables,
        }
        (self.folder / "variables.json").write_text(json.dumps(extra_vars))
        command = [str(ANSIBLE_PLAYBOOK), "-i", "localhost,", f"{name}.yml", "-e", "@variables.json", *arguments]
        hidden = ("ANSIBLE_", "KUBE", "K8S_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        paths = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
        environment["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, [str(COLLECTIONS), paths]))
        environment["ANSIBLE_HOME"] = str(self.folder / "home")
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, env=environment)
        output = done.stdout + done.stderr
        assert done.returncode == rc, output
        return (json.loads(result.read_text()) if result.exists() else {}), output

    def role(self, variables: dict[str, t.Any], *arguments: str, rc: int = 0) -> tuple[dict[str, t.Any], str]:
        cluster = {"dra_claims_kubeconfig": str(self.plane.kubeconfig), "dra_claims_dest": str(self.dest)}
        return self.play("role", {**cluster, **variables}, *arguments, rc=rc)

    def apply(self, objects: list[dict[str, t.Any]], rc: int = 0, **options: t.Any) -> str:
        options = {"objects": objects, "kubeconfig": str(self.plane.kubeconfig), **options}
        return self.play("apply", {"options": options}, rc=rc)[1]

    def names(self, resource: str, namespace: str = "") -> list[str]:
        """The names of the objects of a resource, such as `deviceclasses`."""
        scope = f"/namespaces/{namespace}" if namespace else ""
        listed = self.plane.expect("GET", f"/apis/resource.k8s.io/v1{scope}/{resource}")
        return sorted(item["metadata"]["name"] for item in listed["items"])


@pytest.fixture
def controller(request: pytest.FixtureRequest, tmp_path: Path) -> t.Iterator[Controller]:
    """A controller for the newest server, or for the test's parameter."""
    result = Controller(request.getfixturevalue(getattr(request, "param", "newest")), tmp_path)
    yield result
    for namespace in ("training", "alone"):
        result.plane.request("DELETE", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates")
        result.plane.request("DELETE", f"/api/v1/namespaces/{namespace}/resourcequotas")
    result.plane.request("DELETE", "/apis/resource.k8s.io/v1/deviceclasses")
    result.plane.request("DELETE", "/api/v1/namespaces/default/configmaps/lanewise-dra")


def template(name: str, namespace: str = "alone") -> dict[str, t.Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


@pytest.mark.parametrize("controller", ["newest", "oldest"], indirect=True)
def test_check_mode_writes_nothing_and_a_second_run_changes_nothing(controller: Controller) -> None:
    result, output = controller.role(SITE, "--check", "--diff")
    assert result["applied"]["changed"] and "matchAttribute" in output
    assert not controller.dest.exists() and controller.names("deviceclasses") == []

    result, _output = controller.role(SITE)
    assert controller.names("resourceclaimtemplates", "training") == ["one", "two"]
    assert "ResourceClaimTemplate training/one" in result["applied"]["applied"]
    result, output = controller.role(SITE)
    assert "changed=0" in output and not result["applied"]["applied"], output
    assert "changed=0" in controller.role(SITE, "--check", "--diff")[1]


def test_templates_in_the_files_equal_those_in_the_cluster(controller: Controller) -> None:
    controller.role(SITE)
    for path in controller.dest.rglob("*.yaml"):
        for item in yaml.safe_load_all(path.read_text()):
            if item["kind"] == "ResourceClaimTemplate":
                where = (
                    f"/apis/resource.k8s.io/v1/namespaces/training/resourceclaimtemplates/{item['metadata']['name']}"
                )
                assert controller.plane.expect("GET", where)["spec"] == item["spec"]


def test_prune_removes_only_objects_that_the_site_applied(controller: Controller) -> None:
    pruned = {**SITE, "dra_claims_prune": True}
    controller.role(pruned)
    controller.plane.expect(
        "POST",
        "/apis/resource.k8s.io/v1/namespaces/training/resourceclaimtemplates",
        template("theirs", "training"),
    )
    fewer = {**pruned, "dra_claims_templates": pruned["dra_claims_templates"][:1]}
    result, output = controller.role(fewer, "--check", "--diff")
    assert result["applied"]["pruned"] == ["ResourceClaimTemplate training/two"] and "- ResourceClaim" in output
    assert controller.names("resourceclaimtemplates", "training") == ["one", "theirs", "two"]
    controller.role(fewer)
    assert controller.names("resourceclaimtemplates", "training") == ["one", "theirs"]
    result, output = controller.role(fewer)
    assert "changed=0" in output
    # kubectl recognizes the ApplySet, and refuses to prune it because another program manages it
    kubectl = [str(controller.plane.programs["kubectl"]), "--kubeconfig", str(controller.plane.kubeconfig)]
    (controller.folder / "one.json").write_text(json.dumps(template("kubectls", "training")))
    kubectl_apply = ["apply", "--prune", "--applyset=configmap/lanewise-dra", "--namespace=default", "-f", "one.json"]
    done = subprocess.run(
        [*kubectl, *kubectl_apply],
        capture_output=True,
        text=True,
        check=False,
        cwd=controller.folder,
        env={**os.environ, "KUBECTL_APPLYSET": "true", "HOME": str(controller.folder)},
    )
    assert done.returncode and "managed by tooling" in done.stderr, done.stderr


def test_a_kind_that_is_not_served_stays_in_the_set(controller: Controller) -> None:
    """Its objects may still exist, and are removed once the kind is served again."""
    pruned = {**SITE, "dra_claims_prune": True}
    controller.role(pruned)
    where = "/api/v1/namespaces/default/configmaps/lanewise-dra"
    key = "applyset.kubernetes.io/contains-group-kinds"
    kinds = controller.plane.expect("GET", where)["metadata"]["annotations"][key]
    more = f"{kinds},Widget.example.com"
    controller.plane.expect("PATCH", where, {"metadata": {"annotations": {key: more}}})
    assert "changed=0" in controller.role(pruned)[1]
    assert controller.plane.expect("GET", where)["metadata"]["annotations"][key] == more


def test_a_site_can_be_removed_whether_it_was_pruned_or_not(controller: Controller) -> None:
    where = "/apis/resource.k8s.io/v1/namespaces/training/resourceclaimtemplates"
    for pruned in (False, True):
        controller.role({**SITE, "dra_claims_site": "a", "dra_claims_prune": pruned})
        controller.plane.expect("POST", where, template("theirs", "training"))
        assert "changed=0" in controller.apply([], prune=True, applyset="another", site="b")
        assert controller.names("resourceclaimtemplates", "training") == ["one", "theirs", "two"]
        controller.apply([], prune=True, site="a")
        assert controller.names("resourceclaimtemplates", "training") == ["theirs"]
        assert controller.names("deviceclasses") == []
        # the ApplySet is emptied but kept, so that its owner is still known; without pruning there is none
        status, _answer = controller.plane.request("GET", "/api/v1/namespaces/default/configmaps/lanewise-dra")
        assert status == (200 if pruned else 404)
        assert "changed=0" in controller.apply([], prune=True, site="a")
        controller.plane.expect("DELETE", f"{where}/theirs")


def test_nothing_is_applied_if_a_namespace_is_missing(controller: Controller) -> None:
    _result, output = controller.role(
        {
            **SITE,
            "dra_claims_create_namespaces": False,
            "dra_claims_templates": [{**SITE["dra_claims_templates"][0], "namespace": "nowhere"}],
        },
        rc=2,
    )
    assert "Nothing was applied" in output and "nowhere" in output
    assert controller.names("deviceclasses") == []


def test_nothing_is_applied_if_the_server_refuses_one_object(controller: Controller) -> None:
    wrong = copy.deepcopy(template("wrong"))
    wrong["spec"]["spec"]["devices"]["requests"][0]["name"] = "not_a_label"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alone"}}
    controller.plane.request("POST", "/api/v1/namespaces", namespace)
    output = controller.apply([template("right"), wrong], rc=2)
    assert "Nothing was applied" in output and "requests[0].name" in output
    assert controller.names("resourceclaimtemplates", "alone") == []


def test_a_changed_spec_of_a_template_is_refused_in_one_line(controller: Controller) -> None:
    controller.role(SITE)
    changed = copy.deepcopy(SITE)
    changed["dra_claims_templates"][0]["devices"][1]["count"] = 2
    output = controller.role(changed, rc=2)[1]
    assert "ResourceClaimTemplate training/one: spec of an existing object cannot change" in output
    assert "FirstAvailable" not in output  # the server quotes the whole object


def test_a_template_for_boards_is_replaced_when_the_boards_change(controller: Controller) -> None:
    """Claims that were created from the template are kept. A template without the annotation is not replaced."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alone"}}
    controller.plane.request("POST", "/api/v1/namespaces", namespace)
    original = template("pair")
    original["metadata"]["annotations"] = {"lanewise.dev/nearest": "published map, PHB or nearer"}
    controller.apply([original])
    claims_path = "/apis/resource.k8s.io/v1/namespaces/alone/resourceclaims"
    claim = {**copy.deepcopy(original), "kind": "ResourceClaim", "spec": original["spec"]["spec"]}
    claim["metadata"]["name"] = "in-use"
    status, _answer = controller.plane.request("POST", claims_path, claim)
    assert status == 201
    changed = copy.deepcopy(original)
    changed["spec"]["spec"]["devices"]["requests"][0]["name"] = "other"
    controller.apply([changed])
    stored = controller.plane.expect("GET", "/apis/resource.k8s.io/v1/namespaces/alone/resourceclaimtemplates/pair")
    assert stored["spec"]["spec"]["devices"]["requests"][0]["name"] == "other"
    in_use = controller.plane.expect("GET", f"{claims_path}/in-use")
    assert in_use["spec"]["devices"]["requests"][0]["name"] == "gpu"
    controller.plane.request("DELETE", f"{claims_path}/in-use")
    # a template without the annotation was not rendered for boards, so it is not replaced
    controller.plane.request("DELETE", "/apis/resource.k8s.io/v1/namespaces/alone/resourceclaimtemplates/pair")
    controller.apply([template("pair")])
    assert "cannot change" in controller.apply([changed], rc=2)


@pytest.mark.parametrize("controller", ["newest", "oldest"], indirect=True)
def test_nothing_is_applied_if_the_server_would_drop_a_field(controller: Controller) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alone"}}
    controller.plane.request("POST", "/api/v1/namespaces", namespace)
    gated = template("gated")
    gated["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": "1Gi"}}
    if controller.plane.minor == "1.34":  # DRAConsumableCapacity is off there
        output = controller.apply([gated], rc=2)
        assert "Nothing was applied" in output and "capacity" in output and "the server drops this field" in output
        assert controller.names("resourceclaimtemplates", "alone") == []
    else:
        controller.apply([gated])
        assert controller.names("resourceclaimtemplates", "alone") == ["gated"]


def test_applied_objects_are_listed_if_a_later_one_is_refused(controller: Controller) -> None:
    """A dry run uses no quota. So the second template passes the dry run, but is refused when it is applied."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alone"}}
    controller.plane.request("POST", "/api/v1/namespaces", namespace)
    hard = {"count/resourceclaimtemplates.resource.k8s.io": "1"}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "one", "namespace": "alone"},
        "spec": {"hard": hard},
    }
    controller.plane.expect("POST", "/api/v1/namespaces/alone/resourcequotas", quota)
    where = "/api/v1/namespaces/alone/resourcequotas/one/status"
    controller.plane.expect("PATCH", where, {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}})
    output = controller.apply([template("first"), template("second")], rc=2)
    assert "Not everything was applied" in output and "exceeded quota" in output
    assert "Applied: ResourceClaimTemplate alone/first" in output
    assert controller.names("resourceclaimtemplates", "alone") == ["first"]


def test_a_new_namespace_label_and_a_larger_quota_count_for_claims_of_the_same_run(
    controller: Controller,
) -> None:
    """The server checks a dry run against the namespace and the quota before this run changes them."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "watched"}}
    controller.plane.request("POST", "/api/v1/namespaces", namespace)
    watch = {"kind": "rdma", "all": True, "admin": True}
    claims = [
        {"name": name, "namespace": "watched", "devices": [{"kind": "rdma"}]} for name in ("first", "second", "third")
    ]
    site = {
        "dra_claims_drivers": SITE["dra_claims_drivers"],
        "dra_claims_admin_namespaces": ["watched"],
        "dra_claims_claims": [{"name": "all", "namespace": "watched", "devices": [watch]}, claims[0]],
        "dra_claims_quotas": [{"namespace": "watched", "claims": 2}],
    }
    controller.role(site, "--check")
    controller.role(site)
    more = {**site, "dra_claims_claims": [site["dra_claims_claims"][0], *claims]}
    output = controller.role(more, rc=2)[1]
    assert "Nothing was applied" in output and "exceeded quota" in output  # the quota is not changed
    more["dra_claims_quotas"] = [{"namespace": "watched", "claims": 4}]
    controller.role(more)
    assert controller.names("resourceclaims", "watched") == ["all", "first", "second", "third"]
    assert "changed=0" in controller.role(more)[1]


def test_one_site_does_not_prune_another(controller: Controller) -> None:
    pruned = {**SITE, "dra_claims_prune": True}
    controller.role({**pruned, "dra_claims_site": "a"})
    three = {**pruned["dra_claims_templates"][0], "name": "three"}
    other = {**pruned, "dra_claims_site": "b", "dra_claims_templates": [three]}
    # each folder belongs to one site, so this site uses another one; the ApplySet's name is the same for both
    output = controller.role({**other, "dra_claims_dest": str(controller.folder / "b")}, rc=2)[1]
    assert "belongs to site 'a'" in output
    assert controller.names("resourceclaimtemplates", "training") == ["one", "two"]

    # a site that does not prune needs no ApplySet, and its removal does not change the ApplySet of the other site
    unpruned = template("four", "training")
    unpruned["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "lanewise.dra", "lanewise.dev/site": "b"}
    controller.apply([unpruned])
    assert controller.names("resourceclaimtemplates", "training") == ["four", "one", "two"]
    where = "/api/v1/namespaces/default/configmaps/lanewise-dra"
    before = controller.plane.expect("GET", where)["metadata"]
    assert before["labels"]["lanewise.dev/site"] == "a"
    controller.apply([], prune=True, site="b")
    assert controller.names("resourceclaimtemplates", "training") == ["one", "two"]
    after = controller.plane.expect("GET", where)["metadata"]
    assert (after["labels"], after["annotations"]) == (before["labels"], before["annotations"])
    assert "changed=0" in controller.apply([], prune=True, site="b")
    assert "changed=0" in controller.role({**pruned, "dra_claims_site": "a"})[1]


def test_an_unreachable_cluster_is_an_error_without_a_traceback(controller: Controller) -> None:
    kubeconfig = json.loads(controller.plane.kubeconfig.read_text())
    kubeconfig["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    unreachable = controller.folder / "unreachable.json"
    unreachable.write_text(json.dumps(kubeconfig))
    _result, output = controller.role({**SITE, "dra_claims_kubeconfig": str(unreachable)}, rc=2)
    assert "Connection refused" in output and "Traceback" not in output
    assert not controller.dest.exists()


@pytest.mark.parametrize("controller", ["oldest"], indirect=True)
@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_objects_in_older_api_versions_are_stored_unchanged(controller: Controller, version: str) -> None:
    """Objects are applied as rendered for a cluster without resource.k8s.io/v1. They are read as v1, because no tested
    server can switch v1 off."""
    objects = compile_site({key: value for key, value in SITE.items() if key != "dra_claims_create_namespaces"}).objects
    older = [convert(item, f"resource.k8s.io/{version}") for item in objects]
    controller.apply(older, create_namespaces=True)
    assert "changed=0" in controller.apply(older)
    for item in objects:
        if item["kind"] == "ResourceClaimTemplate":
            where = f"/apis/resource.k8s.io/v1/namespaces/training/resourceclaimtemplates/{item['metadata']['name']}"
            assert controller.plane.expect("GET", where)["spec"] == item["spec"]


def test_the_example_site_is_applied_and_its_workloads_are_valid(controller: Controller) -> None:
    """All objects of the example inventory are applied. All workloads of kinds that the server knows are valid."""
    example = yaml.safe_load(EXAMPLE.read_text())
    controller.role({**example, "dra_claims_create_namespaces": True})
    kinds = {}
    for path in sorted((controller.dest / "workloads").rglob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            kinds[item["kind"]] = item
            group = item["apiVersion"]
            if group.partition("/")[0] in ("jobset.x-k8s.io", "kubeflow.org"):
                continue  # custom resources, which a plain server does not have; their pods are tested below
            base = f"/apis/{group}" if "/" in group else f"/api/{group}"
            where = f"{base}/namespaces/{item['metadata']['namespace']}/{item['kind'].lower()}s"
            controller.plane.expect("POST", f"{where}?dryRun=All&fieldValidation=Strict", item)
    assert set(kinds) >= {"Pod", "Job", "JobSet", "MPIJob", "Deployment", "StatefulSet", "Service"}
    pods = [
        kinds["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"],
        *(replica["template"] for replica in kinds["MPIJob"]["spec"]["mpiReplicaSpecs"].values()),
    ]
    for index, pod in enumerate(pods):
        item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{index}"}, "spec": pod["spec"]}
        controller.plane.expect("POST", "/api/v1/namespaces/training/pods?dryRun=All&fieldValidation=Strict", item)
