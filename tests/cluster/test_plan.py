# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Counts of what fits on a fleet, against the real scheduler: so many pods are bound, and one more is not.

Random fleets of example machines, on which pods already have some devices. LANEWISE_FLEETS says how many.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.what_if import after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.engine import made_engine
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.test_fit import CLASSES, DRIVERS, SPECS
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

FLEETS = int(os.environ.get("LANEWISE_FLEETS", "6"))
SEED = 20261123
#: Seconds in which the pod that is one too many would be bound, if it could be.
PATIENCE = 1.0

Object = dict[str, t.Any]
RESOURCE = "/apis/resource.k8s.io/v1"
NAMESPACE = "plan"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
PROGRAM = Path(sys.executable).with_name("ansible-playbook")
MACHINES = ("hgx-h100", "dgx-a100", "missing-nic", "hgx-b200")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return made_engine()


@pytest.fixture(scope="module")
def plane(newest: ControlPlane) -> ControlPlane:
    newest.add_namespace(NAMESPACE)
    for one in CLASSES.values():
        newest.request("POST", f"{RESOURCE}/deviceclasses", one)
    return newest


class Site:
    """A fleet in the cluster: random machines with some of their devices in use."""

    def __init__(self, plane: ControlPlane, number: int) -> None:
        self.plane, self.name = plane, f"fleet-{number}"
        self.chance = random.Random(SEED + number)
        self.started = 0
        self.nodes = [f"{self.name}-{place}" for place in range(self.chance.randint(1, 5))]
        for node in self.nodes:
            self._add(node)
        for _turn in range(self.chance.randint(0, 3 * len(self.nodes))):
            self.start(self.chance.choice(["one-gpu", "one-nic", "one-pair"]))
        self.settled()

    def _add(self, node: str) -> None:
        machine = self.chance.choice(MACHINES)
        self.plane.add_node(node)
        labels = {"fleet": self.name, "zone": self.chance.choice("ab")}
        spec = {"unschedulable": True} if self.chance.random() < 0.15 else {}
        change = {"metadata": {"labels": labels}, "spec": spec}
        self.plane.expect("PATCH", f"/api/v1/nodes/{node}", change, "application/merge-patch+json")
        if self.chance.random() < 0.3:
            little = {"status": {"allocatable": {"cpu": str(self.chance.randint(1, 12))}}}
            little["status"]["capacity"] = dict(little["status"]["allocatable"])
            self.plane.expect("PATCH", f"/api/v1/nodes/{node}/status", little, "application/merge-patch+json")
        for one in slices(offers(node, facts(machine), DRIVERS)):
            self.plane.expect("POST", f"{RESOURCE}/resourceslices", one)

    def pod(self, template: str) -> Object:
        """The spec of a pod for this fleet's nodes."""
        asked = {"requests": {"cpu": "500m"}, "claims": [{"name": "d"}]}
        return {
            "nodeSelector": {"fleet": self.name},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none.example.com/none", "resources": asked}],
            "topologySpreadConstraints": self.spread(template),
        }

    def spread(self, template: str) -> list[Object]:
        if not self.name.endswith(("2", "5")):
            return []
        selector = {"matchLabels": {"of": f"{self.name}-{template}"}}
        rule = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
        return [rule]

    def workload(self, template: str) -> Workload:
        labels = {"of": f"{self.name}-{template}"}
        return Workload(template, (SPECS[template],), self.pod(template), NAMESPACE, labels)

    def start(self, template: str) -> str:
        self.started += 1
        name = f"{self.name}-{self.started}"
        self.plane.expect("POST", CLAIMS, {"metadata": {"name": name}, "spec": SPECS[template]})
        spec = {**self.pod(template), "resourceClaims": [{"name": "d", "resourceClaimName": name}]}
        labels = {"fleet": self.name, "of": f"{self.name}-{template}"}
        self.plane.expect("POST", PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        return name

    def pods(self) -> list[Object]:
        items = self.plane.expect("GET", f"{PODS}?labelSelector=fleet%3D{self.name}")["items"]
        return t.cast("list[Object]", items)

    def settled(self) -> tuple[set[str], dict[str, str]]:
        """When the scheduler has decided about every pod: those that are bound, and the others with its reason."""

        def decided() -> t.Any:
            bound, waiting = set(), {}
            for pod in self.pods():
                name = pod["metadata"]["name"]
                conditions = pod.get("status", {}).get("conditions", ())
                refused = [c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
                if pod["spec"].get("nodeName"):
                    bound.add(name)
                elif refused:
                    waiting[name] = refused[0]
                else:
                    return None
            return bound, waiting

        return t.cast("tuple[set[str], dict[str, str]]", self.plane.wait_for(decided, f"pods of {self.name}", 120))

    def objects(self) -> list[Object]:
        """What a plan reads, of this fleet."""
        kinds = (
            ("Node", "v1", f"/api/v1/nodes?labelSelector=fleet%3D{self.name}"),
            ("Pod", "v1", PODS),
            ("ResourceSlice", "resource.k8s.io/v1", f"{RESOURCE}/resourceslices"),
            ("ResourceClaim", "resource.k8s.io/v1", CLAIMS),
            ("DeviceClass", "resource.k8s.io/v1", f"{RESOURCE}/deviceclasses"),
        )
        found = []
        for kind, version, path in kinds:
            found += [{"apiVersion": version, "kind": kind, **one} for one in self.plane.expect("GET", path)["items"]]
        return found

    def clear(self, names: t.Iterable[str]) -> None:
        """Pods that wait go, with their claims."""
        for name in names:
            self.plane.expect("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
            self.plane.expect("DELETE", f"{CLAIMS}/{name}")


@pytest.mark.parametrize("number", range(FLEETS))
def test_so_many_are_bound_and_no_more(plane: ControlPlane, engine: Engine, number: int) -> None:
    site = Site(plane, number)
    site.clear(site.settled()[1])
    template = site.chance.choice(["one-pair", "two-pairs", "three-pairs", "one-gpu", "one-nic"])
    fleet = reader.read(site.objects())
    assert set(fleet.nodes) == set(site.nodes)
    (predicted,) = fits.fit(fleet, [site.workload(template)], engine)
    assert not predicted.at_least and not predicted.at_most
    before, _waiting = site.settled()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _turn: site.start(template), range(predicted.total + 1)))
    bound, waiting = site.settled()
    time.sleep(PATIENCE)
    assert site.settled()[0] == bound
    assert len(bound - before) == predicted.total, (template, predicted.total, predicted.reasons(), waiting)
    (words,) = waiting.values()
    kinds = {kind for kind, _reason, _nodes in predicted.reasons()}
    expected = {
        fits.DEVICES: "cannot allocate all claims",
        fits.ROOM: "Insufficient cpu",
        fits.SPREAD: "topology spread constraints",
    }
    # where the spread constraint ends it, the scheduler does not look at the devices of nodes that it excludes
    kinds = {fits.SPREAD} if predicted.held_back else kinds
    assert all(said in words for kind, said in expected.items() if kind in kinds), (predicted.reasons(), words)


def test_a_change_does_what_was_said(plane: ControlPlane, engine: Engine) -> None:
    """Cordon a node, and drain another one: the counts of the changed cluster are those that were said before."""
    site = Site(plane, 1000)
    site.clear(site.settled()[1])
    work = site.workload("one-pair")
    fleet = reader.read(site.objects())
    first = site.nodes[0]
    predicted = fits.fit(after(fleet, [{"cordon": {"nodes": [first]}}]), [work], engine)[0]
    change = {"spec": {"unschedulable": True}}
    plane.expect("PATCH", f"/api/v1/nodes/{first}", change, "application/merge-patch+json")
    now = fits.fit(reader.read(site.objects()), [work], engine)[0]
    assert now.total == predicted.total and {n: o.count for n, o in now.nodes.items()} == {
        n: o.count for n, o in predicted.nodes.items()
    }


@pytest.mark.skipif(not PROGRAM.exists(), reason="needs ansible-core beside this Python")
def test_the_playbooks_of_the_guide(plane: ControlPlane, tmp_path: Path) -> None:
    """As docs/planning.md has it: the counts that it shows, of two nodes of which a claim has a GPU."""
    pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
    variables = (COLLECTION / "docs/planning.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    plane.add_namespace("team")
    for place, name in enumerate(("a-0", "b-0")):
        plane.add_node(name, {"rack": str(place + 1)})
        for one in slices(offers(name, facts("hgx-h100"), DRIVERS)):
            plane.expect("POST", f"{RESOURCE}/resourceslices", one)
    template = {"metadata": {"name": "one-pair"}, "spec": {"spec": SPECS["one-pair"]}}
    plane.expect("POST", f"{RESOURCE}/namespaces/team/resourceclaimtemplates", template)
    plane.expect(
        "POST", f"{RESOURCE}/namespaces/team/resourceclaims", {"metadata": {"name": "c"}, "spec": SPECS["one-gpu"]}
    )
    pod = {
        "nodeName": "",
        "nodeSelector": {"rack": "1"},
        "containers": [{"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}],
        "resourceClaims": [{"name": "d", "resourceClaimName": "c"}],
    }
    pods = "/api/v1/namespaces/team/pods"
    plane.expect("POST", pods, {"metadata": {"name": "p"}, "spec": pod})
    plane.wait_for(lambda: plane.expect("GET", f"{pods}/p")["spec"].get("nodeName"), "the pod to be bound")
    # other fleets of this file are not part of the guide's
    for one in plane.expect("GET", "/api/v1/nodes?labelSelector=fleet")["items"]:
        plane.expect("DELETE", f"/api/v1/nodes/{one['metadata']['name']}")
    (tmp_path / "workloads.yml").write_text(variables)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "KUBE", "K8S_"))}
    paths = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
    kept["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, [str(COLLECTIONS), paths]))
    kept["KUBECONFIG"] = str(plane.write_kubeconfig("system:admin", "system:masters"))
    kept["ANSIBLE_HOME"], kept["PWD"] = str(tmp_path / "home"), str(tmp_path)

    def play(name: str, *arguments: str, rc: int = 0) -> str:
        command = [str(PROGRAM), "-i", "localhost,", f"lanewise.dra.{name}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=kept)
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    stored = ("-e", "plan_snapshot=./snapshot.json")
    play("snapshot", *stored)
    assert (tmp_path / "snapshot.json").stat().st_mode & 0o777 == 0o600
    for source in ((), stored):
        said = play("plan", "-e", "@workloads.yml", *source)
        assert "pair: 15 more, 7 after the change" in said, said
        assert "b-0: the node is cordoned" in said and "free it with team/c" in said, said
    assert "pair: 7 fit, 20 are required" in play(
        "plan", "-e", "@workloads.yml", *stored, "-e", '{"plan_require": {"pair": 20}}', rc=2
    )
    assert "Set plan_workloads" in play("plan", rc=2)
    assert "did you mean plan_workloads?" in play("plan", "-e", "plan_workload=x", rc=2)
    (tmp_path / "snapshot.json").write_text('{"format": 9}')
    assert "has the format 9, and this release reads 1" in play("plan", "-e", "@workloads.yml", *stored, rc=2)
