# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A plan's counts of pods that fit, against the real scheduler: it binds as many pods as predicted, and not one more.

The fleets are random, and pods already have some of their devices. LANEWISE_FLEETS is the number of fleets, and
LANEWISE_FLEETS_SEED the random seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.scenario import Scenario, after
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.cluster import changes, fleets
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.fleets import NAMESPACE, OPTIONS, RESOURCE, TAINT, Site
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION, COLLECTIONS
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.test_fit import CLASSES, DRIVERS, SPECS
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

FLEETS = int(os.environ.get("LANEWISE_FLEETS", "40"))
SEED = int(os.environ.get("LANEWISE_FLEETS_SEED", "20261123"))
#: Seconds to wait for the extra pod, which must not be bound.
SETTLE_SECONDS = 1.0
#: The maximum number of nodes of a fleet: 25 nodes have 200 pairs. Fewer nodes if there are few fleets.
NODES = 25 if FLEETS > 100 else 8

ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
SCHEDULER_MESSAGES = {
    fits.DEVICES: "cannot allocate all claims",
    fits.ROOM: "Insufficient cpu",
    fits.SPREAD: "topology spread constraints",
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return require_engine()


@pytest.fixture(scope="module")
def plane(newest: ControlPlane) -> ControlPlane:
    return _prepared(newest)


@pytest.fixture(scope="module")
def old_plane(oldest: ControlPlane) -> ControlPlane:
    return _prepared(oldest)


def _prepared(plane: ControlPlane) -> ControlPlane:
    plane.add_namespace(NAMESPACE)
    for entry in {**CLASSES, **fleets.CLASSES}.values():
        plane.request("POST", f"{RESOURCE}/deviceclasses", entry)
    return plane


def _predicted(site: Site, template: str, engine: Engine, steps: t.Sequence[Object] = ()) -> fits.Fit:
    """The predicted number of pods of a workload that fit after some changes."""
    fleet = reader.read(site.objects(), site.plane.minor)
    assert set(fleet.nodes) == set(site.nodes)
    known = {node: site.facts(node) for node in site.nodes}
    start = Scenario(fleet, (site.workload(template),), known, lambda value: _workload(site, value))
    last = [start, *after(start, steps)][-1]
    (found,) = fits.fit(last.fleet, last.workloads, engine)
    assert not found.at_least and not found.at_most, found.notes
    return found


def _workload(site: Site, value: Object) -> Workload:
    """The workload of a change `workload`, with the name in the change and the fleet's pod of its template."""
    return replace(site.workload(value["templates"][0]), name=value["name"])


def _check_bound(site: Site, template: str, predicted: fits.Fit) -> None:
    """Start one pod more than should fit. All but one must be bound, and one must wait for the predicted reason."""
    before, _waiting = site.wait_decided()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _index: site.start(template), range(predicted.total + 1)))
    bound, waiting = site.wait_decided()
    time.sleep(SETTLE_SECONDS)
    assert site.wait_decided()[0] == bound
    about = (site.kind, template, predicted.total, predicted.reasons(), waiting)
    assert len(bound - before) == predicted.total, about
    (message,) = waiting.values()
    kinds = {kind for kind, _reason, _nodes in predicted.reasons()}
    # the scheduler does not check devices of nodes that the spread constraint excludes
    if predicted.held_back or (site.spreads and SCHEDULER_MESSAGES[fits.SPREAD] in message):
        kinds = {fits.SPREAD}
    assert all(reported in message for kind, reported in SCHEDULER_MESSAGES.items() if kind in kinds), about


@pytest.mark.parametrize("number", range(FLEETS))
def test_exactly_the_predicted_number_of_pods_is_bound(plane: ControlPlane, engine: Engine, number: int) -> None:
    _check_prediction(plane, engine, SEED + number)


@pytest.mark.parametrize("number", range(max(2, FLEETS // 10)))
def test_the_predicted_number_is_also_bound_on_the_oldest_kubernetes(
    old_plane: ControlPlane, engine: Engine, number: int
) -> None:
    """The oldest version has no shares, counters and device taints by default."""
    _check_prediction(old_plane, engine, SEED + number)


def _check_prediction(plane: ControlPlane, engine: Engine, seed: int) -> None:
    """Create a random fleet, and check the predicted number of pods of one of its templates."""
    site = Site(plane, seed, NODES)
    try:
        site.delete_pods(site.wait_decided()[1])
        template = site.rng.choice(fleets.COUNTED[site.kind])
        _check_bound(site, template, _predicted(site, template, engine))
    finally:
        site.close()


@pytest.mark.parametrize("number", range(max(4, FLEETS // 10)))
def test_changes_have_the_predicted_effect(plane: ControlPlane, engine: Engine, number: int) -> None:
    """The effect of changes is predicted before the changes are made in the cluster."""
    site = Site(plane, SEED + 100_000 + number, 6)
    try:
        site.delete_pods(site.wait_decided()[1])
        template = site.rng.choice(fleets.COUNTED[site.kind])
        steps = list(changes.steps(site, number))
        predicted = _predicted(site, template, engine, steps)
        for step in steps:
            changes.make(site, step)
        current = _predicted(site, template, engine)
        assert {n: o.count for n, o in current.nodes.items()} == {n: o.count for n, o in predicted.nodes.items()}, steps
        _check_bound(site, template, predicted)
    finally:
        site.close()


@pytest.mark.parametrize("number", range(max(1, FLEETS // 40)))
def test_the_effect_of_another_template_is_predicted(plane: ControlPlane, engine: Engine, number: int) -> None:
    site = Site(plane, SEED + 200_000 + number, 4)
    try:
        site.delete_pods(site.wait_decided()[1])
        old, new = site.rng.sample(fleets.COUNTED[site.kind], 2)
        predicted = _predicted(site, old, engine, [{"workload": {"name": old, "templates": [new]}}])
        _check_bound(site, new, predicted)
    finally:
        site.close()


@pytest.mark.parametrize("number", range(max(1, FLEETS // 40)))
def test_the_effect_of_another_driver_is_predicted(plane: ControlPlane, engine: Engine, number: int) -> None:
    """The new driver publishes whole GPUs instead of parts of their memory. Pods already have some NICs."""
    site = Site(plane, SEED + 250_000 + number, 3, "shares", used=False)
    try:
        for _index in range(site.rng.randint(1, 6)):
            site.start("one-nic")
        site.delete_pods(site.wait_decided()[1])
        whole, template = OPTIONS["plain"], "one-gpu"
        predicted = _predicted(site, template, engine, [{"driver": {"name": "gpu.nvidia.com", **whole}}])
        for node in site.nodes:
            site.unpublish(node)
            site.publish(node, {**site.drivers(), "gpu.nvidia.com": whole})
        _check_bound(site, template, predicted)
    finally:
        site.close()


@pytest.mark.parametrize("number", range(max(4, FLEETS // 20)))
def test_the_effect_of_an_older_server_is_predicted(
    plane: ControlPlane, old_plane: ControlPlane, engine: Engine, number: int
) -> None:
    """The count on the oldest Kubernetes is predicted from the same nodes on the newest one.

    The oldest version drops taints, shares and counters. Each test has devices with one of these."""
    kind = ("plain", "nics", "mig", "shares")[number % 4]
    new, old = (Site(entry, SEED + 300_000 + number, 3, kind, used=False) for entry in (plane, old_plane))
    try:
        for site in (new, old):
            for node in site.nodes if kind == "plain" else ():
                devices = [offer.device["name"] for offer in site.offers(node, {"lanewise.dev": {}})]
                changes.make(site, {"degrade": {"node": node, "devices": devices[:2], "taint": TAINT}})
        template = {"plain": "one-nic", "nics": "nic-95g", "mig": "large-part", "shares": "memory-30gi"}[kind]
        new_count, old_count = (_predicted(site, template, engine) for site in (new, old))
        predicted = _predicted(new, template, engine, [{"server": {"version": old_plane.minor}}])
        assert predicted.total == old_count.total != new_count.total
        _check_bound(old, template, predicted)
    finally:
        for site in (new, old):
            site.close()


@pytest.mark.skipif(not ANSIBLE_PLAYBOOK.exists(), reason="needs ansible-core beside this Python")
def test_the_playbooks_report_the_counts_of_the_guide(plane: ControlPlane, tmp_path: Path) -> None:
    """The playbooks report the counts in docs/planning.md for two nodes, one of which has a GPU in use."""
    pytest.importorskip("kubernetes", reason="needs the Python client of Kubernetes")
    variables = (COLLECTION / "docs/planning.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    plane.add_namespace("team")
    for rack, name in enumerate(("a-0", "b-0"), 1):
        plane.add_node(name, {"rack": str(rack)})
        for resource_slice in slices(offers(name, facts("hgx-h100"), DRIVERS)):
            plane.expect("POST", f"{RESOURCE}/resourceslices", resource_slice)
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
    # the guide's cluster does not have the other fleets of this file
    for item in plane.expect("GET", "/api/v1/nodes?labelSelector=fleet")["items"]:
        plane.expect("DELETE", f"/api/v1/nodes/{item['metadata']['name']}")
    (tmp_path / "workloads.yml").write_text(variables)
    hidden = ("ANSIBLE_", "KUBE", "K8S_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    paths = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "")
    environment["ANSIBLE_COLLECTIONS_PATH"] = os.pathsep.join(filter(None, [str(COLLECTIONS), paths]))
    environment["KUBECONFIG"] = str(plane.write_kubeconfig("system:admin", "system:masters"))
    environment["ANSIBLE_HOME"] = str(tmp_path / "home")

    def play(name: str, *arguments: str, rc: int = 0) -> str:
        command = [str(ANSIBLE_PLAYBOOK), "-i", "localhost,", f"lanewise.dra.{name}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    stored = ("-e", "plan_snapshot=./snapshot.json")
    play("snapshot", *stored)
    assert (tmp_path / "snapshot.json").stat().st_mode & 0o777 == 0o600
    for source in ((), stored):
        reported = play("plan", "-e", "@workloads.yml", *source)
        assert "pair: 15 more, 7 after the change" in reported, reported
        assert "b-0: the node is cordoned" in reported and "usable once claim team/c ends" in reported, reported
    page = tmp_path / "page" / "plan.html"
    more = ("-e", '{"plan_require": {"pair": 20}}', "-e", "plan_dest=./page")
    assert "pair: 7 fit, 20 are required" in play("plan", "-e", "@workloads.yml", *stored, *more, rc=2)
    assert "team/c" in page.read_text() and '"team/c"' in page.with_suffix(".json").read_text()
    assert "Set plan_workloads" in play("plan", rc=2)
    assert "did you mean plan_workloads?" in play("plan", "-e", "plan_workload=x", rc=2)
    (tmp_path / "snapshot.json").write_text('{"format": 9}')
    assert "has format 9, but this release reads format 1" in play("plan", "-e", "@workloads.yml", *stored, rc=2)
