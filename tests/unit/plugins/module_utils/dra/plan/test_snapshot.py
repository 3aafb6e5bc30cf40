# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A snapshot contains everything that a plan uses, and no other data of tenants."""

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
    """A cluster with a secret in many fields that no plan uses."""
    names = ("a-0", "b-0")
    probed = reader.probed({name: facts("hgx-h100") for name in names}, DRIVERS, CLASSES)
    allocated = claim("c", cluster([node(name) for name in names]), "a-0", 0)
    allocated["spec"]["devices"]["config"] = [{"opaque": {"driver": "x", "parameters": {"password": SECRET}}}]
    allocated["status"]["allocation"]["devices"]["config"] = allocated["spec"]["devices"]["config"]
    allocated["status"]["devices"] = [{"networkData": {"ips": [SECRET]}}]
    allocated["metadata"].update(annotations={"a": SECRET}, ownerReferences=[{"name": SECRET}])
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
        {**device_class, "spec": {**device_class["spec"], "config": [{"opaque": {"parameters": SECRET}}]}}
        for device_class in CLASSES.values()
    ]
    published = [
        resource_slice for probed_node in probed.nodes.values() for resource_slice in slices(probed_node.offers)
    ]
    return [*nodes, *published, *classes, allocated, pod, {"kind": "Secret", "metadata": {"name": "s"}, "data": SECRET}]


def test_a_snapshot_has_no_fields_that_plans_do_not_use() -> None:
    objects = _objects()
    assert json.dumps(objects).count(SECRET) > 15
    stored = [snapshot_of(obj) for obj in objects]
    assert SECRET not in json.dumps(stored)


def test_the_plan_of_a_snapshot_is_that_of_the_cluster() -> None:
    engine = require_engine()
    pod_spec = {"containers": [{"resources": {"requests": {"cpu": "7"}}}]}
    workloads = [workload("one-pair", **pod_spec), workload("one-nic", **pod_spec)]
    objects = _objects()
    stored = json.loads(json.dumps([snapshot_of(obj) for obj in objects]))
    plans = []
    for source in (objects, stored):
        fleet = reader.read(source)
        found = fits.fit(fleet, workloads, engine)
        plans.append(
            ([(workload_fit.total, workload_fit.nodes) for workload_fit in found], stranded(fleet, workloads, engine))
        )
    assert plans[0] == plans[1]
    # node a-0 has one GPU in use; node b-0 has 28 CPUs left, and each pod needs seven
    assert plans[0][0][0][0] == 7 + 4


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
