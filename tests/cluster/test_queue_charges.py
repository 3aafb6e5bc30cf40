# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The compiler and the real Kueue charge a claim with the amounts that the real scheduler allocates."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from fractions import Fraction

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.queue_site import DIVIDED, QueueSite, machine
from ansible_collections.lanewise.dra.tests.cluster.queueing import Queueing

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

TIMEOUT_SECONDS = 120.0  # on a busy machine


@dataclass(frozen=True)
class SharedDevices:
    """A kind of shared devices: the options of NVIDIA's driver, the resource that counts them, and claims for them."""

    nvidia: Object
    resource: Object
    guaranteed: str
    devices: dict[str, list[Object]]


def _gpu(**share: t.Any) -> Object:
    return {"name": "gpu", "kind": "gpu", "share": share}


def _nic(**share: t.Any) -> Object:
    return {"name": "nic", "kind": "nic", "share": share}


SHARED_DEVICES = {
    "memory of GPUs": SharedDevices(
        {"engine": "consumable-shares", "consumable_shares": "memory"},
        {"name": "amount", "classes": ["gpu"], "capacity": "memory"},
        "500Gi",
        {
            "some": [_gpu(memory="30Gi")],
            "odd": [_gpu(memory="12345Mi")],
            "with-nic": [_gpu(memory="20Gi"), {"name": "nic", "kind": "rdma"}],
        },
    ),
    "partitions of GPUs": SharedDevices(
        {"engine": "dynamic-mig"},
        {"name": "amount", "classes": ["gpu-partition"], "counter": "memory"},
        "600Gi",
        {
            "small": [_gpu(partition="1g.10gb")],
            "large": [_gpu(partition="3g.40gb")],
            "with-nic": [_gpu(partition="2g.20gb"), {"name": "nic", "kind": "rdma"}],
        },
    ),
    "bandwidth of NICs": SharedDevices(
        {},
        {"name": "amount", "classes": ["nic-share"], "capacity": "bandwidth"},
        "500G",
        {"some": [_nic(bandwidth="25G")], "odd": [_nic(bandwidth="25500M")], "default": [_nic(bandwidth="default")]},
    ),
}


@pytest.mark.parametrize("name", sorted(SHARED_DEVICES))
def test_kueue_charges_the_allocated_amounts(queueing: Queueing, name: str) -> None:
    shared, owner = SHARED_DEVICES[name], name.partition(" ")[0]
    drivers = {"gpu.nvidia.com": {"version": "0.5.0", **shared.nvidia}, "lanewise.dev": {"version": "1.0.0"}}
    facts = machine("sriov", DIVIDED) if name.endswith("NICs") else machine("hgx-h100")
    site = QueueSite(queueing, {owner: facts}, drivers)
    nics = {"name": "nics", "classes": ["rdma"]}
    claims = {
        "dra_claims_classes": [{"name": "rdma", "kind": "rdma"}],
        "dra_claims_templates": [
            {"name": template, "namespace": owner, "devices": devices} for template, devices in shared.devices.items()
        ],
    }
    team = {"name": owner, "namespaces": [owner], "guaranteed": {"amount": shared.guaranteed, "nics": 4}}
    compiled = site.compile({"queues_resources": [shared.resource, nics], "queues_teams": [team]}, claims)
    charges = {entry.name_in_queues: entry.charges["lanewise.dev/amount"] for entry in compiled.templates}
    assert set(charges) == set(shared.devices), compiled.table
    queueing.configure(compiled.configuration)
    site.apply_queues(compiled)
    jobs = []
    try:
        for template in shared.devices:
            job = queueing.submit(owner, queueing.job(f"of-{template}", owner, template))
            jobs.append(job)
            site.plane.wait_for(lambda: queueing.running(owner, jobs[-1]), f"a pod with {template}", TIMEOUT_SECONDS)
            (pods,) = queueing.workload(owner, job)["status"]["admission"]["podSetAssignments"]
            assert quantity.parse(pods["resourceUsage"]["lanewise.dev/amount"]) == charges[template], template
        counter, capacity = (str(shared.resource.get(key) or "") for key in ("counter", "capacity"))
        charged = sum(charges.values(), Fraction())
        site.plane.wait_for(
            lambda: site.charged(owner, "amount") == charged, f"{charged} in the queue", TIMEOUT_SECONDS
        )
        assert charged == (site.counter_used(owner, counter) if counter else site.consumed(owner, capacity))
    finally:
        queueing.remove(owner, *jobs)
        site.plane.wait_for(lambda: not site.allocated(owner), "devices to be released", TIMEOUT_SECONDS)
        site.close()
