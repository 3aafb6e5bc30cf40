# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DRANET in place of the lanewise driver: its published devices equal the prediction, and pods get them with the claims
of an inventory."""

from __future__ import annotations

import shutil
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster import dranet_node
from ansible_collections.lanewise.dra.tests.cluster.dranet_node import Dranet, MachineNode
from ansible_collections.lanewise.dra.tests.cluster.gpu_node import GpuNode
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from ansible_collections.lanewise.dra.tests.cluster.test_node_alignment import verify
from ansible_collections.lanewise.dra.tests.machines.builder import move_to_container
from ansible_collections.lanewise.dra.tests.machines.description import names
from environment import Missing  # tools/cluster.py has put its folder on the path

DRIVERS = {"dra.net": {"version": dranet_node.VERSION}}
#: Attributes that an interface has only if it has addresses or BPF programs.
SOMETIMES = {f"dra.net/{name}" for name in ("ipv4", "ipv6", "tcFilterNames", "tcxProgramNames")}


@pytest.fixture(name="publish")
def _publish(node: Node, tmp_path: Path) -> t.Iterator[t.Callable[..., tuple[MachineNode, Dranet]]]:
    """A function that starts DRANET on a machine and returns machine and DRANET. Both are removed after the test."""
    machines: list[MachineNode] = []
    running: list[Dranet] = []

    def publish(name: str, filter_: str = dranet_node.FILTER) -> tuple[MachineNode, Dranet]:
        machine = MachineNode(node, name, tmp_path)
        machines.append(machine)
        try:
            driver = Dranet(node, machine.tree / "sys", filter_)
        except Missing as missing:
            pytest.skip(str(missing))
        driver.start()
        running.append(driver)
        return machine, driver

    yield publish
    for entry in running:
        entry.stop()
    for machine in machines:
        machine.close()
    for resource_slice in running[0].slices() if running else ():
        node.plane.expect("DELETE", f"{dranet_node.SLICES}/{resource_slice['metadata']['name']}")


def differences(predicted: t.Iterable[Offer], published: t.Mapping[str, Object]) -> list[str]:
    """The differences between the predicted devices and those that DRANET publishes: in devices, and in the names,
    types and values of attributes.

    The value of an assumed attribute may differ. The values of unknown attributes are not predicted.
    """
    certain = {device.device["name"]: device for device in predicted if not device.possible}
    found = [f"{name}: not predicted" for name in sorted(published.keys() - certain.keys())]
    found += [f"{name}: not published" for name in sorted(certain.keys() - published.keys())]
    for name in sorted(published.keys() & certain.keys()):
        actual, offer = published[name]["attributes"], certain[name]
        for key, value in offer.device["attributes"].items():
            same = actual.get(key, {}).keys() == value.keys() if key in offer.assumed else actual.get(key) == value
            found += [] if same else [f"{name}: {key} is {actual.get(key)}, not {value}"]
        found += [
            f"{name}: {key} not predicted" for key in sorted(actual.keys() - offer.device["attributes"] - offer.unknown)
        ]
        found += [f"{name}: {key} not published" for key in sorted(offer.unknown - actual.keys() - SOMETIMES)]
        other_fields = sorted(set(published[name]) - {"name", "attributes"})
        found += [f"{name}: has also {other_fields}"] if other_fields else []
    return found


#: A machine with more devices than a slice can hold, and the prefix of one NIC's 128 VFs, which a filter excludes.
LARGE, EXCLUDED = "sriov", "0000:c9"


@pytest.mark.parametrize("machine", [name for name in names() if name != LARGE])
def test_dranet_publishes_the_predicted_devices(publish: t.Callable[..., t.Any], machine: str) -> None:
    machine_node, driver = publish(machine)
    published = machine_node.node.plane.wait_for(driver.devices, "the devices of DRANET")
    assert not differences(offers(machine_node.node.name, machine_node.facts, DRIVERS), published)


def test_dranet_publishes_the_predicted_vfs_and_nics_below_a_vlan(publish: t.Callable[..., t.Any]) -> None:
    """The machine has more devices than a slice can hold, so a filter excludes some of them."""
    included = f'!attributes["dra.net/pciAddress"].StringValue.startsWith("{EXCLUDED}")'
    machine_node, driver = publish(
        LARGE, f'({dranet_node.FILTER}) && (!("dra.net/pciAddress" in attributes) || {included})'
    )
    published = machine_node.node.plane.wait_for(driver.devices, "the devices of DRANET")
    for name in ("functions", "nics", "interfaces", "rdma_devices"):
        items = machine_node.facts[name]
        if isinstance(items, dict):
            machine_node.facts[name] = {key: item for key, item in items.items() if not key.startswith(EXCLUDED)}
        else:
            machine_node.facts[name] = [item for item in items if not (item["address"] or "").startswith(EXCLUDED)]
    predicted = offers(machine_node.node.name, machine_node.facts, DRIVERS)
    assert any("dra.net/isSriovVf" in device.device["attributes"] for device in predicted)
    assert not differences(predicted, published)


def test_nothing_is_published_if_a_slice_cannot_hold_all_devices(publish: t.Callable[..., t.Any]) -> None:
    machine_node, driver = publish(LARGE)
    machine_node.node.plane.wait_for(lambda: "spec.devices: Too many" in driver.log(), "the API server's error")
    assert not driver.slices() and not offers(machine_node.node.name, machine_node.facts, DRIVERS)


def test_a_wrong_prediction_is_found(publish: t.Callable[..., t.Any]) -> None:
    machine_node, driver = publish("hgx-h100")
    published = machine_node.node.plane.wait_for(driver.devices, "the devices of DRANET")
    first = sorted(published)[0]
    for wrong in (
        {**DRIVERS, "dra.net": {"version": "main"}},  # has an additional attribute
        {"lanewise.dev": {}},
    ):
        assert differences(offers(machine_node.node.name, machine_node.facts, wrong), published)
    del published[first]["attributes"]["dra.net/ifName"]
    assert differences(offers(machine_node.node.name, machine_node.facts, DRIVERS), published)


# pods

PODS = "/api/v1/namespaces/default/pods"
API = "/apis/resource.k8s.io/v1"
VERSION = "0.5.0"  # of NVIDIA's driver
BOTH = {"gpu.nvidia.com": {"version": VERSION}, **DRIVERS}


class DranetGpuNode(GpuNode):
    """A machine on which NVIDIA's driver publishes the GPUs, and DRANET, with these feature gates, the NICs."""

    def __init__(self, node: Node, folder: Path, gates: t.Mapping[str, bool]) -> None:
        self.gates = gates
        super().__init__(node, "hgx-h100", folder, VERSION, install=DranetGpuNode._dranet)

    def _dranet(self) -> None:
        self.dranet = Dranet(self.node, self.tree / "sys", gates=self.gates)
        self.dranet.start()
        self._closing.callback(self.dranet.stop)
        self.plane.wait_for(self.dranet.devices, "the devices of DRANET")


def inventory() -> Object:
    """A site that uses DRANET: a GPU with a NIC below its PCIe root, and a configuration in DRANET's syntax."""
    interface = {"name": "net1", "addresses": ["203.0.113.2/28"]}
    config = {"driver": "dra.net", "parameters": {"interface": interface}}
    pair = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "nic", "config": [config]}]
    template = {"name": "pair", "namespace": "default", "align": "pcie_root", "devices": pair}
    return {"dra_claims_site": "keeps", "dra_claims_drivers": BOTH, "dra_claims_templates": [template]}


@pytest.fixture(name="machine", params=[False, True], ids=["default", "persistent"])
def _machine(node: Node, request: pytest.FixtureRequest, tmp_path: Path) -> t.Iterator[DranetGpuNode]:
    """The node as an example machine, with the site's objects applied. `persistent` switches on DRANET's gate that
    keeps attributes published while a pod has the device."""
    gates = {"PersistentResourceSliceAttributes": request.param}
    try:
        machine = DranetGpuNode(node, tmp_path, gates)
    except Missing as missing:
        pytest.skip(str(missing))
    site = compile_site(inventory(), {node.name: machine.facts})
    assert [entry.nodes for entry in site.reach] == [[node.name]]
    created = []
    for manifest in site.objects:
        collection = (
            "deviceclasses" if manifest["kind"] == "DeviceClass" else "namespaces/default/resourceclaimtemplates"
        )
        created.append(f"{API}/{collection}/{manifest['metadata']['name']}")
        node.plane.expect("POST", f"{API}/{collection}", manifest)
    yield machine
    for item in node.plane.expect("GET", PODS)["items"]:
        node.delete_pod(item["metadata"]["name"], wait=False)
    claims = f"{API}/namespaces/default/resourceclaims"
    node.plane.wait_for(lambda: not node.plane.expect("GET", claims)["items"], "the deletion of pods and claims", 120)
    for path in created:
        node.plane.expect("DELETE", path)
    machine.close()


def test_pods_get_aligned_pairs_and_verify_proves_the_alignment(
    node: Node, machine: DranetGpuNode, tmp_path: Path
) -> None:
    """Each of eight pods has a GPU and a NIC below its PCIe root. The playbook verify proves it from the kernel's tree.

    Attributes that DRANET no longer publishes for a NIC in use are unknown, unless the gate keeps them.
    """
    pytest.importorskip("kubernetes")
    names = [f"pair-{number}" for number in range(8)]
    machine.start(dict.fromkeys(names, "pair"))
    seen = [machine.seen(name) for name in names]
    assert all(machine.judge.aligned(item) for item in seen), seen
    assert len({item.nics[0] for item in seen}) == 8
    assert "203.0.113.2/28" in node.execute("pair-0", "ip", "-4", "-brief", "address", "show", "net1")

    tree = tmp_path / "in-use"  # the tree that a probe of the node reads while pods have the NICs
    shutil.copytree(machine.tree, tree, symlinks=True)
    for entry in seen:
        move_to_container(tree, entry.nics[0])
    facts = as_dict(probe(str(tree)))
    # DRANET publishes the change some seconds after the last pod has its NIC
    used = {f"pci-{item.nics[0].replace(':', '-').replace('.', '-')}" for item in seen}
    persistent = machine.gates["PersistentResourceSliceAttributes"]

    def settled() -> bool:
        devices = machine.dranet.devices()
        return all(("dra.net/virtual" in devices[name]["attributes"]) == persistent for name in used)

    node.plane.wait_for(settled, "the slices while pods have the NICs")
    claims = verify(node, tmp_path, alignment_topologies={node.name: facts})["claims"]
    assert len(claims) == 8
    for claim in claims:
        roots = [promise for promise in claim["promises"] if promise["rule"] == "match"]
        assert [(promise["verdict"], promise["proven"]) for promise in roots] == [("kept", True)], claim
        unknown = [promise["reason"] for promise in claim["promises"] if promise["verdict"] != "kept"]
        silent = ["dra.net does not publish dra.net/virtual while a pod has the device"]
        assert (claim["verdict"], unknown) == (("kept", []) if persistent else ("unknown", silent))

    # a machine on which a NIC is below another PCIe root than DRANET publishes
    [wrong] = machine.seen("pair-3").nics
    facts["functions"][wrong]["kubernetes"]["pcieRoot"] = "pci0000:ff"
    swapped = verify(node, tmp_path, alignment_topologies={node.name: facts}, alignment_strict=False)["claims"]
    unproven = [
        item for item in swapped for promise in item["promises"] if promise["rule"] == "match" and not promise["proven"]
    ]
    assert [[pod["name"] for pod in item["pods"]] for item in unproven] == [["pair-3"]]
