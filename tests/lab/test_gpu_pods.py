# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods get a GPU from NVIDIA's driver and a NIC from lanewise.dev, on a node where both are PCI functions.

Both drivers and the test read the topology from the kernel's sysfs. The GPU is an emulated function with NVIDIA's ids,
and the driver uses the NVML stand-in. The NIC is an emulated card, whose interface is moved into the pod.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import typing as t
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster import controlplane
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.cluster.driver import API
from ansible_collections.lanewise.dra.tests.lab.cluster import TIMEOUT, Member, Service, one_member
from ansible_collections.lanewise.dra.tests.lab.node import GPU_IDS, Device, Failed, Node
from ansible_collections.lanewise.dra.tests.nvidia import driver as nvidia
from ansible_collections.lanewise.dra.tests.nvidia.root import MAJOR, Root
from ansible_collections.lanewise.dra.tools.cluster import NVIDIA, programs
from environment import Missing  # tools/lab.py has put its folder on the path

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

SYS = "/sys/bus/pci/devices"
FOLDER = "/opt/nvidia"
PODS = "/api/v1/namespaces/default/pods"
VERSION = "0.5.0"
MODULE_VERSION = "570.133.20"  # of NVIDIA's kernel module, which is not loaded
DEVICES = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "nic"}]
VARIABLES: Object = {
    "dra_claims_site": "lab",
    "dra_claims_drivers": {"gpu.nvidia.com": {"version": VERSION}, "lanewise.dev": {"version": "1.0.0"}},
    "dra_claims_templates": [
        {"name": "root", "namespace": "default", "align": "pcie_root", "devices": DEVICES},
        {"name": "switch", "namespace": "default", "align": "nearest", "at_least": "PXB", "devices": DEVICES},
    ],
}
#: Prints the facts of the driver's probe as JSON.
PROBE = """import json
from lanewise_driver.topology.model import as_dict
from lanewise_driver.topology.probe import probe
print(json.dumps(as_dict(probe("/"))))"""


def tree_of(machine: Node, gpus: list[Device], folder: Path) -> Path:
    """Create the files that NVIDIA's kernel module would have for the GPUs, and the GPUs' ids from the node."""
    for minor, gpu in enumerate(gpus):
        device = folder / "sys/bus/pci/devices" / gpu.address
        device.mkdir(parents=True)
        for name in ("device", "subsystem_device", "subsystem_vendor"):
            (device / name).write_text(machine.ssh(f"cat {SYS}/{gpu.address}/{name}"))
        information = folder / "proc/driver/nvidia/gpus" / gpu.address / "information"
        information.parent.mkdir(parents=True)
        uuid = f"GPU-00000000-0000-4000-8000-{minor:012d}"
        information.write_text(f"Model: NVIDIA H100 80GB HBM3\nGPU UUID: {uuid}\nDevice Minor: {minor}\n")
    version = folder / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(MODULE_VERSION)
    return folder


@dataclass
class Site:
    """The machine, its cluster node, and the PCI addresses of its functions."""

    machine: Node
    node: Member
    gpus: dict[int, str]  # address by minor number
    nics: dict[str, str]  # address by MAC

    @property
    def plane(self) -> ControlPlane:
        return self.node.plane

    def run_nvidia(self, folder: Path) -> None:
        """Start NVIDIA's driver as a service, and wait for its slices."""
        devices = [device for device in self.machine.devices if device.kind == "gpu"]
        root = Root(tree_of(self.machine, devices, folder / "tree"), folder / "nvidia")
        self.plane.write_kubeconfig("nvidia", "system:masters", path=root.folder / "kubeconfig")
        self.machine.copy(root.folder, FOLDER)
        name = NVIDIA[VERSION]
        program = programs(self.plane.minor, name, build=False)[name]
        self.machine.copy(program, FOLDER)
        minors = " ".join(f"mknod -m 666 nvidia{minor} c {MAJOR} {minor};" for minor in self.gpus)
        self.machine.ssh(f"mkdir -p {FOLDER}/root/dev; cd {FOLDER}/root/dev; {minors} mknod nvidiactl c {MAJOR} 255")
        arguments = nvidia.arguments(
            self.node.name,
            Path(FOLDER, "kubeconfig"),
            Path(FOLDER, "root"),
            Path("/var/lib/kubelet"),
            Path("/var/run/cdi"),
        )
        start = ["systemd-run", "--unit=nvidia-dra", "-E", f"LANEWISE_NVML={FOLDER}/nvml", "-E", "GOMAXPROCS=1"]
        self.machine.ssh(shlex.join([*start, f"{FOLDER}/{program.name}", *arguments]))
        self.wait_for_devices(nvidia.NAME, set(self.gpus.values()))

    def wait_for_devices(self, driver: str, addresses: set[str]) -> None:
        def published() -> bool:
            self.machine.check()
            items = self.plane.expect("GET", f"{API}/resourceslices")["items"]
            devices = [
                device for item in items if item["spec"]["driver"] == driver for device in item["spec"]["devices"]
            ]
            found = {device["attributes"]["resource.kubernetes.io/pciBusID"]["string"] for device in devices}
            return addresses <= found and not any(device.get("taints") for device in devices)

        self.plane.wait_for(published, f"the devices of {driver}", TIMEOUT)

    def start(self, name: str, template: str) -> None:
        claims = [{"name": "devices", "resourceClaimTemplateName": template}]
        pod = self.node.pod(name, resourceClaims=claims)
        pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] = False  # NVIDIA's libraries are mounted below it
        self.plane.expect("POST", PODS, pod)

    def wait(self, *names: str) -> None:
        for name in names:
            self.plane.wait_for(lambda name=name: self.node._ready(f"{PODS}/{name}"), f"pod {name}", 2 * TIMEOUT)

    def seen(self, pod: str) -> tuple[str, str]:
        """The GPU and the NIC in a pod, by the minor number of its device node and the MAC address of its link."""
        found = self.node.execute(pod, "find", "/dev", "-name", "nvidia[0-9]*", "-printf", "%p\n").split()
        [device] = [self.node.execute(pod, "stat", "-c", "%t %T", entry) for entry in found]
        major, minor = (int(part, 16) for part in device.split())
        assert major == MAJOR
        links = json.loads(self.node.execute(pod, "ip", "-json", "link"))
        [nic] = [self.nics[link["address"]] for link in links if link["address"] in self.nics]
        return self.gpus[minor], nic

    def pairs(self, pod: str) -> list[tuple[str, str]]:
        """The pairs of GPUs and NICs in the pod's map."""
        found = json.loads(self.node.execute(pod, "cat", "/run/lanewise/map/resourceclaimtemplates/devices.json"))
        return [(pair["gpu"], pair["nic"]) for pair in found["pairs"]]

    def switch(self, address: str) -> PurePosixPath:
        """The switch that a function is below, as the path of its upstream port in sysfs."""
        return PurePosixPath(self.machine.ssh(f"readlink -f {SYS}/{address}")).parent.parent


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    with contextlib.ExitStack() as stack:
        try:
            _lab, node = stack.enter_context(one_member())
            site = _prepared(node, tmp_path_factory.mktemp("nvidia"))
        except Missing as missing:
            pytest.skip(str(missing))
        yield site
        _print_logs(node)


def _prepared(node: Member, folder: Path) -> Site:
    """Start both drivers on the node, and apply the inventory's objects to the cluster."""
    machine = node.machine
    machine.ssh(f"modprobe -a veth igb; modprobe lab_pci_ids ids={GPU_IDS}")
    macs = {}
    for nic in (device for device in machine.devices if device.kind == "nic"):
        name = machine.interface(nic)
        macs[machine.ssh(f"ip link set {name} up; cat /sys/class/net/{name}/address")] = nic.address
    gpus = dict(enumerate(device.address for device in machine.devices if device.kind == "gpu"))
    site = Site(machine, node, gpus, macs)
    try:
        site.run_nvidia(folder)
        Service(node).wait_ready()
        site.wait_for_devices("lanewise.dev", set(macs.values()))
    except (Failed, controlplane.Failed):
        _print_logs(node)
        raise
    facts = json.loads(machine.ssh(f"PYTHONPATH=/opt/lanewise/site python3 -c {shlex.quote(PROBE)}"))
    places = {"DeviceClass": f"{API}/deviceclasses"}
    places["ResourceClaimTemplate"] = f"{API}/namespaces/default/resourceclaimtemplates"
    made = compile_site(VARIABLES, {node.name: facts})
    assert [entry.nodes for entry in made.reach] == [[node.name]] * 2
    for manifest in made.objects:
        if manifest["kind"] in places:
            site.plane.expect("POST", places[manifest["kind"]], manifest)
    return site


def _print_logs(node: Member) -> None:
    """Print the services' logs. pytest shows them if a test fails."""
    print(node.journal(200), node.machine.ssh("journalctl --no-pager -u nvidia-dra -n 100", check=False))


def test_each_pod_has_the_nic_behind_the_switch_of_its_gpu(site: Site) -> None:
    """Two pods run at once, one with a pair by PCIe root and one by the board's map. A third waits until one ends."""
    assert len(site.gpus) == len(site.nics) == 2
    # each GPU has another nearest NIC, so the test would detect a wrong pair
    near = {
        gpu: [nic for nic in site.nics.values() if site.switch(nic) == site.switch(gpu)] for gpu in site.gpus.values()
    }
    assert all(len(nics) == 1 for nics in near.values()) and len({nics[0] for nics in near.values()}) == 2
    site.start("one", "root")
    site.start("two", "switch")
    site.wait("one", "two")
    found = {name: site.seen(name) for name in ("one", "two")}
    assert {gpu for gpu, _nic in found.values()} == set(site.gpus.values())
    assert all(near[gpu] == [nic] for gpu, nic in found.values()), found
    assert {name: site.pairs(name) for name in found} == {name: [entry] for name, entry in found.items()}
    for gpu, nic in found.values():  # the functions are in place, but the NIC's interface is not on the node
        assert site.machine.ssh(f"ls {SYS}/{nic}/net 2>/dev/null; true") == ""
        assert site.machine.ssh(f"cat {SYS}/{gpu}/vendor") == "0x10de"
    site.start("three", "root")
    site.plane.wait_for(lambda: refused(site.plane.expect("GET", f"{PODS}/three")), "the scheduler's refusal", TIMEOUT)
    site.node.delete_pod("one")
    site.wait("three")
    assert site.seen("three") == found["one"] and site.pairs("three") == [found["one"]]
    for name in ("two", "three"):
        site.node.delete_pod(name)


def refused(pod: Object) -> bool:
    reported = {condition["type"]: condition for condition in pod["status"].get("conditions", ())}
    return "cannot allocate all claims" in reported.get("PodScheduled", {}).get("message", "")
