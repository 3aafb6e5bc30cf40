# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node of an example machine with its published devices, and claims and pods that use them."""

from __future__ import annotations

import copy
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.check import Check
from ansible_collections.lanewise.dra.plugins.module_utils.dra.alignment.devices import Machine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.published import address_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.knowledge import PCI_BUS_ID, PCIE_ROOT
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.slices import slices
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

NODE = "node-1"
DRIVERS: dict[str, dict[str, t.Any]] = {
    "gpu.nvidia.com": {"version": "0.5.0"},
    "gpu.amd.com": {"version": "1.0.0"},
    "dra.cpu": {"version": "main"},
    "lanewise.dev": {},
}


class NodeWithClaims:
    """One node with its facts and published slices, and claims for its devices."""

    def __init__(self, machine: str, name: str = NODE, drivers: Object | None = None) -> None:
        self.name = name
        self.drivers = DRIVERS if drivers is None else drivers
        self.facts = facts(machine)
        self.machine = Machine(self.facts)
        self.publish()
        self.pods: list[Object] = []
        self.claims: list[Object] = []

    def publish(self) -> None:
        """Publish slices for the node's current facts, in generation 3 of each pool."""
        self.slices = slices(offers(self.name, self.facts, self.drivers), generation=3)

    def devices(self) -> dict[str, Object]:
        """Published devices by PCI address, each as the driver, pool and device of an allocation result."""
        found = {}
        for resource_slice in self.slices:
            for device in resource_slice["spec"].get("devices", ()):
                address = address_of(resource_slice["spec"]["driver"], device)
                if address:
                    found[address] = {
                        "driver": resource_slice["spec"]["driver"],
                        "pool": self.name,
                        "device": device["name"],
                    }
        return found

    def published_device(self, address: str) -> Object:
        """The device in its slice, so that a test can change it."""
        wanted = self.devices()[address]
        for resource_slice in self.slices:
            for device in resource_slice["spec"].get("devices", ()):
                if resource_slice["spec"]["driver"] == wanted["driver"] and device["name"] == wanted["device"]:
                    return t.cast(Object, device)
        raise KeyError(address)

    def pair(self, *levels: str) -> tuple[str, str]:
        """A GPU and a NIC, both published, at one of these levels."""
        published = self.devices()
        for gpu in self.machine.gpus:
            for nic in self.machine.nics:
                if gpu in published and nic in published and self.machine.level(gpu, nic)[0] in levels:
                    return gpu, nic
        raise KeyError(levels)

    def add_claim(
        self,
        addresses: dict[str, str],
        *constraints: Object,
        name: str = "claim",
        requests: list[Object] | None = None,
    ) -> Object:
        """Add and return a claim that has the device at an address for each request, and add a pod that uses it."""
        published = self.devices()
        results = [{"request": request, **published[address]} for request, address in addresses.items()]
        fields = [{"key": "metadata.name", "operator": "In", "values": [self.name]}]
        allocation = {
            "devices": {"results": results, "config": []},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        }
        if requests is None:
            requests = [{"name": request, "exactly": {"deviceClassName": "any"}} for request in addresses]
        claim: Object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": "ml", "name": name, "uid": f"uid-{name}"},
            "spec": {"devices": {"requests": requests, "constraints": list(constraints)}},
            "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": name, "uid": name}]},
        }
        self.pods.append(
            {
                "metadata": {"namespace": "ml", "name": name, "uid": name},
                "spec": {"nodeName": self.name},
                "status": {"phase": "Running"},
            }
        )
        self.claims.append(claim)
        return claim

    def move_into_pod(self, address: str) -> None:
        """Show the NIC as a probe does while a pod has it: its interface and RDMA device are in another namespace."""
        nic = t.cast("dict[str, t.Any]", self.machine.nics[address])
        nic["elsewhere"] = ["interface"] + ["rdma_device"] * bool(nic["rdma_devices"])
        nic.update(interfaces=[], rdma_devices=[], link_layer=None, speed_mbps=None, up=None)
        self.facts["interfaces"] = [
            interface for interface in self.facts["interfaces"] if interface["address"] != address
        ]

    def check(self, probed: bool = True, **more: t.Any) -> Object:
        """The reports of all claims, and their summary. Without `probed`, the facts of the node are unknown."""
        machines = {self.name: self.facts} if probed else {}
        return Check(self.slices, self.pods, machines=machines, **more).run(self.claims)

    def report(self, **more: t.Any) -> Object:
        """The report of the only claim."""
        [report] = self.check(**more)["claims"]
        return t.cast(Object, report)


def match_attribute(*requests: str, attribute: str = PCIE_ROOT) -> Object:
    return {"matchAttribute": attribute, "requests": list(requests)}


def finding_ids(report: Object, severity: str | None = None) -> list[str]:
    return [finding["id"] for finding in report["findings"] if severity in (None, finding["severity"])]


def nearest_nic(node: NodeWithClaims, gpu: str) -> str:
    """The first published NIC behind the same PCIe switch as the GPU."""
    published = node.devices()
    return next(nic for nic in node.machine.nics if nic in published and node.machine.level(gpu, nic)[0] == "PIX")


def add_vf_with_shared_counters(node: NodeWithClaims, pf: str) -> str:
    """Publish a VF of a PF and the counters that both use. Returns the address of the VF."""
    vf = f"{pf[:-1]}7"
    node.facts["functions"][vf] = {**node.facts["functions"][pf], "physfn": pf}
    node.facts["nics"].append({**node.machine.nics[pf], "address": vf, "physfn": pf, "speed_mbps": 1})
    device = copy.deepcopy(node.published_device(pf))
    device["name"] = f"pci-{vf.replace(':', '-').replace('.', '-')}"
    device["attributes"][PCI_BUS_ID] = {"string": vf}
    [nic_slice] = [nic_slice for nic_slice in node.slices if nic_slice["spec"]["driver"] == "lanewise.dev"]
    for consumer in (node.published_device(pf), device):
        consumer["consumesCounters"] = [{"counterSet": "pf", "counters": {"functions": {"value": "1"}}}]
    counters = copy.deepcopy(nic_slice)
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "pf", "counters": {"functions": {"value": "1"}}}]
    nic_slice["spec"]["devices"].append(device)
    node.slices.append(counters)
    for resource_slice in (nic_slice, counters):
        resource_slice["spec"]["pool"]["resourceSliceCount"] = 2
    return vf
