# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A plan of an example fleet, as the module allocation_plan returns it."""

from __future__ import annotations

import contextlib
import io
import json
import random
import typing as t

from ansible.module_utils.testing import patch_module_args
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds.hold import KEY
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.plugins.modules import allocation_plan
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

DRIVERS: Object = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {}}
V1 = "resource.k8s.io/v1"
#: The taint key of one device, by number of the node. These nodes have no pods.
_TAINTED = {7: "example.com/errors", 14: KEY, 15: KEY}


def _pairs(count: int) -> Object:
    devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}]
    return {"count": count, "align": ["pcie_root"], "devices": devices}


TEMPLATES = compile_site(
    {
        "dra_claims_drivers": DRIVERS,
        "dra_claims_templates": [
            {"name": name, "namespace": "training", "groups": [_pairs(count)]}
            for name, count in (("pair", 1), ("four-pairs", 4), ("eight-pairs", 8))
        ],
    }
).objects
WORKLOADS = [
    {"name": name, "namespace": "training", "templates": [name]} for name in ("pair", "four-pairs", "eight-pairs")
]


def example_objects(racks: int = 4, per_rack: int = 6, seed: int = 2) -> dict[str, list[Object]]:
    """Racks of nodes with eight GPUs and about eight NICs each. Some devices are in use, tainted or held, and one node
    is cordoned."""
    chance = random.Random(seed)
    objects: dict[str, list[Object]] = {
        kind: [] for kind in ("Node", "ResourceSlice", "ResourceClaim", "DeviceTaintRule")
    }
    for number in range(racks * per_rack):
        name = f"gpu-{number + 1:02d}"
        labels = {"rack": str(1 + number // per_rack)}
        spec = {"unschedulable": True} if number == 3 else {}
        objects["Node"].append({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {}})
        machine = facts("hgx-h100" if number % 6 else "hgx-b200")
        offered = [offer for offer in offers(name, machine, DRIVERS) if not offer.possible]
        objects["ResourceSlice"] += [
            {"apiVersion": V1, "kind": "ResourceSlice", **resource_slice} for resource_slice in slices(offered)
        ]
        gpus = [offer for offer in offered if offer.driver == "gpu.nvidia.com"]
        nics = [offer for offer in offered if offer.driver != "gpu.nvidia.com"]
        # some jobs have pairs, and others only GPUs or NICs
        kinds = [[], gpus + nics, gpus[:4] + nics[:4], chance.sample(gpus, 3), chance.sample(nics, 2)]
        used = chance.choice(kinds) if number not in _TAINTED else []
        results = [{"request": "r", "driver": o.driver, "pool": o.pool, "device": o.device["name"]} for o in used]
        if results:
            claim = {
                "apiVersion": V1,
                "kind": "ResourceClaim",
                "metadata": {"name": f"job-{number}", "namespace": "team"},
            }
            claim.update(spec={"devices": {}}, status={"allocation": {"devices": {"results": results}}})
            objects["ResourceClaim"].append(claim)
        if number in _TAINTED:
            free = gpus[2] if _TAINTED[number] == KEY else nics[-1]
            rule = _rule(f"r-{number}", free.driver, name, free.device["name"], _TAINTED[number])
            objects["DeviceTaintRule"].append(rule)
    objects["DeviceClass"] = [template for template in TEMPLATES if template["kind"] == "DeviceClass"]
    objects["ResourceClaimTemplate"] = [
        template for template in TEMPLATES if template["kind"] == "ResourceClaimTemplate"
    ]
    return objects


def _rule(name: str, driver: str, pool: str, device: str, key: str) -> Object:
    spec = {
        "deviceSelector": {"driver": driver, "pool": pool, "device": device},
        "taint": {"key": key, "value": "next-job", "effect": "NoSchedule"},
    }
    return {"apiVersion": V1, "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}


def example_plan(**more: t.Any) -> Object:
    """The module's result for the example, with two changes and prices. Skips the test without the CEL engine."""
    require_engine()
    options = {
        "objects": example_objects(),
        "workloads": WORKLOADS,
        "what_if": [{"cordon": {"labels": {"rack": "4"}}}, {"add": {"like": "gpu-02", "count": 4}}],
        "by": ["rack"],
        "prices": [{"driver": "gpu.nvidia.com", "price": 2.5}, {"driver": "lanewise.dev", "price": 0.25}],
        "price_unit": "EUR an hour",
    }
    output = io.StringIO()
    with patch_module_args({**options, **more}), contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        allocation_plan.main()
    answer: Object = json.loads(output.getvalue())
    assert not answer.get("failed"), answer["msg"]
    return answer
