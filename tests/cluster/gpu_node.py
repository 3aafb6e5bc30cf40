# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node that is an example machine: NVIDIA's driver publishes its GPUs and the driver of this collection its NICs.

A pod's GPU is a device node without a GPU behind it, and its NIC is the end of a veth pair with the MAC address of the
machine's NIC. A pod's devices are read inside the pod and identified in the machine's tree, without any driver's
records.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster.driver import Driver
from ansible_collections.lanewise.dra.tests.cluster.machine_tree import MachineTree, Seen
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import load, parts
from ansible_collections.lanewise.dra.tests.nvidia import root as nvidia
from ansible_collections.lanewise.dra.tests.nvidia.driver import NvidiaDriver

TREE_DRIVER = Path(__file__).with_name("tree_driver.py")


def description(machine: str | Path) -> Object:
    """An example machine, by its name or the file of its description, whose fabric is Ethernet without RDMA.

    This kernel has neither InfiniBand nor RDMA devices, and a veth pair has no VFs.
    """
    loaded: Object = _without_rdma(load(machine))
    adapters = {}
    for name, part in {**parts(), **loaded.get("parts", {})}.items():
        net = part.get("net")
        if part["class"].startswith("02") and net:
            if net["type"] == "ib":
                net = {"type": "ether", "speed": net["speed"], "mtu": 9000, "port_name": "p0"}
            adapters[name] = {**part, "class": "020000", "rdma": False, "sriov": False, "net": net}
    return {**loaded, "name": f"{loaded['name']}-ethernet", "parts": {**loaded.get("parts", {}), **adapters}}


def _without_rdma(value: t.Any) -> t.Any:
    """A description in which no function has an RDMA device."""
    if not isinstance(value, dict):
        return value
    return {key: False if key == "rdma" else _without_rdma(inner) for key, inner in value.items()}


Install = t.Callable[["GpuNode"], None]


class GpuNode:
    """`node` as `machine`, with both drivers running, until `close`.

    `gates` are those of NVIDIA's driver, `shares` its --consumable-shares. `install` makes the driver of this
    collection run and waits until it is ready. By default, the driver is started as a process without an installation.
    """

    def __init__(
        self,
        node: Node,
        machine: str | Path,
        folder: Path,
        version: str,
        gates: t.Mapping[str, bool] | None = None,
        install: Install | None = None,
        shares: str = "",
    ) -> None:
        self.node, self.plane = node, node.plane
        self.lanewise: Driver | None = None
        self.tree = build(description(machine), folder / "machine")
        self.judge = MachineTree(self.tree)
        self.facts = as_dict(probe(str(self.tree)))
        self.root = nvidia.Root(self.tree, folder / "nvidia", devices=True)
        self._closing = contextlib.ExitStack()
        try:
            self._procfs()
            self._plugins()
            self._programs(folder)
            self._interfaces()
            self.nvidia = NvidiaDriver(self.plane, node.name, self.root, version, gates=gates, shares=shares)
            self._closing.callback(self.nvidia.stop)
            (install or GpuNode._run)(self)
            self.nvidia.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the drivers and remove what they have published, and the interfaces."""
        self._closing.close()
        for item in self.plane.expect("GET", "/apis/resource.k8s.io/v1/resourceslices")["items"]:
            self.plane.request("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")

    def _run(self) -> None:
        """Run the driver of this collection as a process, on the machine's tree."""
        self.lanewise = Driver(self.node, {}, ("--root", str(self.tree)), (str(TREE_DRIVER),))
        self._closing.callback(self.lanewise.stop)
        self.lanewise.wait_ready(60)

    def _mount(self, *arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True)
        self._closing.callback(subprocess.run, ["umount", "--lazy", arguments[-1]], check=True)

    def _procfs(self) -> None:
        """Imitate NVIDIA's kernel module in /proc: a folder for capability files, and its major numbers."""
        self._mount("-t", "tmpfs", "tmpfs", "/proc/driver")
        Path("/proc/driver/nvidia").mkdir()
        self.root.variables["LANEWISE_NVML_PROC"] = "/proc/driver/nvidia"
        devices = self.root.folder / "devices"
        first, colon, rest = Path("/proc/devices").read_text().partition("Character devices:\n")
        lines = f"{nvidia.MAJOR:3} nvidia\n{nvidia.CAPABILITIES_MAJOR:3} nvidia-caps\n"
        devices.write_text(f"{first}{colon}{lines}{rest}")
        self._mount("--bind", str(devices), "/proc/devices")

    def _plugins(self) -> None:
        """Share mounts below the plugins folder with the node, like the mount propagation of NVIDIA's DaemonSet."""
        self.root.shared = "/var/lib/kubelet/plugins"
        self._mount("--bind", self.root.shared, self.root.shared)
        subprocess.run(["mount", "--make-shared", self.root.shared], check=True)

    def _programs(self, folder: Path) -> None:
        """An overlay of the machine's /usr, in which NVIDIA's libraries are mounted for a container."""
        for name in ("upper", "work", "usr"):
            (folder / name).mkdir()
        options = f"lowerdir=/usr,upperdir={folder / 'upper'},workdir={folder / 'work'}"
        self._usr = folder / "usr"
        self._mount("-t", "overlay", "overlay", "-o", options, str(self._usr))

    def _interfaces(self) -> None:
        """Create a veth pair for each NIC that the driver may publish, with the name and MAC address in the tree."""
        ip("netns add switch")
        self._closing.callback(ip, "netns delete switch")
        interfaces = {entry["name"]: entry for entry in self.facts["interfaces"]}
        for number, nic in enumerate(item for item in self.facts["nics"] if not item["default_route"]):
            for name in nic["interfaces"]:
                mac = interfaces[name]["permanent_mac"]
                ip(f"link add {name} address {mac} type veth peer name wire{number} netns switch")
                ip(f"-n switch link set wire{number} up")
                ip(f"link set {name} up")

    def divide(self, instances: nvidia.Instances) -> None:
        """Create these MIG instances, as an administrator does before NVIDIA's driver starts."""
        self.nvidia.stop()
        self.root.set(instances)
        self.nvidia.start()

    # pods

    def pod(self, name: str, template: str, claim_field: str = "resourceClaimTemplateName") -> Object:
        """A pod with a claim of a template, or with the claim of that name if `claim_field` is resourceClaimName."""
        claims = [{"name": "devices", claim_field: template}]
        volumes = [{"name": "usr", "hostPath": {"path": str(self._usr)}}]
        pod = self.node.pod(name, resourceClaims=claims, volumes=volumes)
        pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] = False
        return pod

    def start(self, pods: t.Mapping[str, str], claim_field: str = "resourceClaimTemplateName") -> None:
        """Create pods (name to template) at once, and wait until all are ready. Raises Failed, with pod events."""
        path = "/api/v1/namespaces/default/pods"
        for name, template in pods.items():
            self.plane.expect("POST", path, self.pod(name, template, claim_field))
        for name in pods:
            try:
                self.plane.wait_for(lambda name=name: self.node._ready(f"{path}/{name}"), f"pod {name}", 60)
            except Exception as error:
                logs = [self.nvidia.log()[-3000:], *([self.lanewise.log()] if self.lanewise else [])]
                error.add_note("\n".join([*self.node.events(name), *logs]))
                raise

    def seen(self, pod: str) -> Seen:
        """What a pod has: GPUs by the minor numbers of its device nodes, NICs by the MAC addresses of its links."""
        found = self.node.execute(pod, "find", "/dev", "-name", "nvidia[0-9]*", "-printf", "%p\n").split()
        nodes = self.node.execute(pod, "stat", "-c", "%t %T", *found).splitlines() if found else []
        numbers = [[int(part, 16) for part in line.split()] for line in nodes]
        assert all(major == nvidia.MAJOR for major, _minor in numbers), nodes
        by_mac = self.judge.nic_by_mac
        links = json.loads(self.node.execute(pod, "ip", "-json", "link"))
        return Seen(
            sorted(self.judge.gpu_by_minor[minor] for _major, minor in numbers),
            sorted(by_mac[link["address"]] for link in links if link["address"] in by_mac),
        )
