# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node that is an example machine: NVIDIA's driver publishes its GPUs and the driver of this collection its NICs.

A pod's GPU is a device node without a GPU behind it, and its NIC is the end of a veth pair with the MAC address of the
machine's NIC. What a pod has is read inside it and traced through the machine's tree, with no record of a driver.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster.driver import Driver
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import parts
from ansible_collections.lanewise.dra.tests.nvidia import root as nvidia
from ansible_collections.lanewise.dra.tests.nvidia.driver import NvidiaDriver

PROGRAM = Path(__file__).with_name("tree_driver.py")
#: The machines, each with the part that is its fabric NIC and what else differs from its description.
MACHINES: dict[str, tuple[str, dict[str, t.Any]]] = {
    "hgx-h100": ("cx7-ib", {}),
    "dgx-a100": ("cx6-ib", {}),
    # functions of the NVSwitches, which have the same part
    "hgx-b200": ("cx7-ib", {"roots": {"0000:00": {"0d.0 spr-root-port": {"00.0-3 cx7-ib": {"rdma": False}}}}}),
}

Object = dict[str, t.Any]


def description(machine: str) -> Object:
    """An example machine whose fabric is Ethernet without RDMA: this kernel has neither InfiniBand nor RDMA devices."""
    part, more = MACHINES[machine]
    net = {"type": "ether", "speed": 400000, "mtu": 9000, "port_name": "p0"}
    ethernet = {**parts()[part], "class": "020000", "rdma": False, "sriov": False, "net": net}
    return {"like": machine, "name": f"{machine}-ethernet", "parts": {part: ethernet}, **more}


class Seen(t.NamedTuple):
    """What a pod has, by PCI address."""

    gpus: list[str]
    nics: list[str]


class GpuNode:
    """`node` as `machine`, with both drivers running. `gates` are those of NVIDIA's driver. Ends with `close`."""

    def __init__(
        self, node: Node, machine: str, folder: Path, version: str, gates: t.Mapping[str, bool] | None = None
    ) -> None:
        self.node, self.plane = node, node.plane
        self.tree = build(description(machine), folder / "machine")
        self.facts = as_dict(probe(str(self.tree)))
        self.root = nvidia.Root(self.tree, folder / "nvidia", devices=True)
        self._closing = contextlib.ExitStack()
        try:
            self._procfs()
            self._programs(folder)
            self._interfaces()
            self.nvidia = NvidiaDriver(self.plane, node.name, self.root, version, gates=gates)
            self._closing.callback(self.nvidia.stop)
            self.lanewise = Driver(node, {}, ("--root", str(self.tree)), (str(PROGRAM),))
            self._closing.callback(self.lanewise.stop)
            self.nvidia.wait()
            self.lanewise.wait_ready(60)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the drivers and remove what they have published, and the interfaces."""
        self._closing.close()
        for one in self.plane.expect("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]:
            self.plane.request("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{one['metadata']['name']}")

    def _mount(self, *arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True)
        self._closing.callback(subprocess.run, ["umount", "--lazy", arguments[-1]], check=True)

    def _procfs(self) -> None:
        """What the kernel module has in /proc: a folder for capability files, and its major number."""
        self._mount("-t", "tmpfs", "tmpfs", "/proc/driver")
        Path("/proc/driver/nvidia").mkdir()
        self.root.variables["LANEWISE_NVML_PROC"] = "/proc/driver/nvidia"
        devices = self.root.folder / "devices"
        first, colon, rest = Path("/proc/devices").read_text().partition("Character devices:\n")
        lines = f"{nvidia.MAJOR:3} nvidia\n{nvidia.CAPABILITIES_MAJOR:3} nvidia-caps\n"
        devices.write_text(f"{first}{colon}{lines}{rest}")
        self._mount("--bind", str(devices), "/proc/devices")

    def _programs(self, folder: Path) -> None:
        """The machine's /usr with a layer above it: NVIDIA's libraries are mounted into it for a container."""
        for name in ("upper", "work", "usr"):
            (folder / name).mkdir()
        options = f"lowerdir=/usr,upperdir={folder / 'upper'},workdir={folder / 'work'}"
        self._usr = folder / "usr"
        self._mount("-t", "overlay", "overlay", "-o", options, str(self._usr))

    def _interfaces(self) -> None:
        """A veth pair for each NIC that the driver may publish, with the name and the MAC address in the tree."""
        ip("netns add switch")
        self._closing.callback(ip, "netns delete switch")
        found = {entry["name"]: entry for entry in self.facts["interfaces"]}
        for number, nic in enumerate(one for one in self.facts["nics"] if not one["default_route"]):
            for name in nic["interfaces"]:
                mac = found[name]["permanent_mac"]
                ip(f"link add {name} address {mac} type veth peer name wire{number} netns switch")
                ip(f"-n switch link set wire{number} up")
                ip(f"link set {name} up")

    # pods

    def pod(self, name: str, template: str) -> Object:
        """A pod that has a claim of a template."""
        claims = [{"name": "devices", "resourceClaimTemplateName": template}]
        volumes = [{"name": "usr", "hostPath": {"path": str(self._usr)}}]
        pod = self.node.pod(name, resourceClaims=claims, volumes=volumes)
        pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] = False
        return pod

    def start(self, pods: t.Mapping[str, str]) -> None:
        """Make pods (name to template) at once, and wait until each is ready. Raises Failed with its events."""
        path = "/api/v1/namespaces/default/pods"
        for name, template in pods.items():
            self.plane.expect("POST", path, self.pod(name, template))
        for name in pods:
            try:
                self.plane.wait_for(lambda name=name: self.node._ready(f"{path}/{name}"), f"pod {name}", 60)
            except Exception as error:
                error.add_note("\n".join([*self.node.events(name), self.nvidia.log()[-3000:], self.lanewise.log()]))
                raise

    def seen(self, pod: str) -> Seen:
        """What a pod has: GPUs by the minor numbers of its device nodes, NICs by the MAC addresses of its links."""
        found = self.node.execute(pod, "find", "/dev", "-name", "nvidia[0-9]*", "-printf", "%p\n").split()
        nodes = self.node.execute(pod, "stat", "-c", "%t %T", *found).splitlines() if found else []
        numbers = [[int(part, 16) for part in line.split()] for line in nodes]
        assert all(major == nvidia.MAJOR for major, _minor in numbers), nodes
        by_minor = {}
        for folder in (self.tree / "proc/driver/nvidia/gpus").iterdir():
            text = (folder / "information").read_text()
            by_minor[int(text.partition("Device Minor:")[2].split()[0])] = folder.name
        by_mac = {}
        for link in (self.tree / "sys/class/net").iterdir():
            if (link / "device").exists():
                by_mac[(link / "address").read_text().strip()] = (link / "device").resolve().name
        links = json.loads(self.node.execute(pod, "ip", "-json", "link"))
        return Seen(
            sorted(by_minor[minor] for _major, minor in numbers),
            sorted(by_mac[link["address"]] for link in links if link["address"] in by_mac),
        )

    def pcie_root(self, address: str) -> str:
        """The host bridge of a PCI function, by the tree."""
        path = (self.tree / "sys/bus/pci/devices" / address).resolve()
        return path.relative_to(self.tree.resolve() / "sys/devices").parts[0]

    def numa_node(self, address: str) -> str:
        return (self.tree / "sys/bus/pci/devices" / address / "numa_node").read_text().strip()

    def aligned(self, seen: Seen) -> bool:
        """Whether the GPUs and the NICs of a pod lie below the same PCIe roots, one NIC for each GPU."""
        roots = [sorted(self.pcie_root(address) for address in addresses) for addresses in seen]
        return bool(seen.gpus) and roots[0] == roots[1]
