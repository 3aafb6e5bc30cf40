# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a snapshot contains: all that a plan uses, and no other data of tenants."""

from __future__ import annotations

import json

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import fit as fits
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan import reader
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.snapshot import snapshot_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.stranded import stranded
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.plan.test_fit import (
    CLASSES,
    DRIVERS,
    claim,
    cluster,
    node,
    workload,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

SECRET = "s3cret"


def _objects() -> list[Object]:
    """A cluster with a secret in every place that no plan uses."""
    names = ("a-0", "b-0")
    bare = reader.probed({name: facts("hgx-h100") for name in names}, DRIVERS, CLASSES)
    held = claim("c", cluster([node(name) for name in names]), "a-0", 0)
    held["spec"]["devices"]["config"] = [{"opaque": {"driver": "x", "parameters": {"password": SECRET}}}]
    held["status"]["allocation"]["devices"]["config"] = held["spec"]["devices"]["config"]
    held["status"]["devices"] = [{"networkData": {"ips": [SECRET]}}]
    held["metadata"].update(annotations={"a": SECRET}, ownerReferences=[{"name": SECRET}])
    container = {
        "name": SECRET,
        "image": SECRET,
        "env": [{"name": "X", "value": SECRET}],
        "args": [SECRET],
        "resources": {"requests": {"cpu": "100"}, "claims": [{"name": SECRET}]},
    }
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "annotations": {"a": SECRET}, "uid": SECRET},
        "spec": {"nodeName": "b-0", "containers": [container], "serviceAccountName": SECRET, "volumes": [SECRET]},
        "status": {"phase": "Running", "podIP": SECRET, "message": SECRET},
    }
    nodes = [node(name) for name in names]
    nodes[0]["status"].update(addresses=[{"address": SECRET}], nodeInfo={"machineID": SECRET})
    classes = [
        {**one, "spec": {**one["spec"], "config": [{"opaque": {"parameters": SECRET}}]}} for one in CLASSES.values()
    ]
    published = [one for each in bare.nodes.values() for one in slices(each.offers)]
    return [*nodes, *published, *classes, held, pod, {"kind": "Secret", "metadata": {"name": "s"}, "data": SECRET}]


def test_a_snapshot_stores_nothing_that_no_plan_uses() -> None:
    objects = _objects()
    assert json.dumps(objects).count(SECRET) > 15
    stored = [snapshot_of(one) for one in objects]
    assert SECRET not in json.dumps(stored)


def test_the_plan_of_a_snapshot_is_that_of_the_cluster() -> None:
    engine = require_engine()
    pod = {"containers": [{"resources": {"requests": {"cpu": "7"}}}]}
    works = [workload("one-pair", **pod), workload("one-nic", **pod)]
    objects = _objects()
    stored = json.loads(json.dumps([snapshot_of(one) for one in objects]))
    answers = []
    for given in (objects, stored):
        fleet = reader.read(given)
        found = fits.fit(fleet, works, engine)
        answers.append(([(one.total, one.nodes) for one in found], stranded(fleet, works, engine)))
    assert answers[0] == answers[1]
    assert answers[0][0][0][0] == 7 + 4  # one GPU is in use, and 28 CPUs are left for pods with seven


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": "x"}, "status": []},
        {"kind": "Node", "metadata": {"name": "n"}, "spec": None, "status": {"allocatable": None}},
        {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "n"}, "status": {"allocation": "x"}},
    ],
)
def test_parts_of_the_wrong_type_are_left_out(broken: Object) -> None:
    assert snapshot_of(broken)["metadata"]["name"] == broken["metadata"]["name"]
