# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real DRANET on a test node, and a node that has the interfaces of an example machine.

DRANET reads /sys, so it runs in a mount namespace that has the machine's /sys. Each interface is one end of a veth pair
with the name, MAC address, MTU and state of the machine's NIC. InfiniBand becomes Ethernet, because this kernel has no
InfiniBand.
"""

from __future__ import annotations

import contextlib
import operator
import typing as t
import urllib.request
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tools.cluster import programs

NAME = "dra.net"
VERSION = "1.4.0"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
HEALTH = "http://127.0.0.1:9177/healthz"
#: DRANET's default filter, which drops veth interfaces, except for those that represent a machine's NICs.
FILTER = (
    '!("dra.net/type" in attributes) || attributes["dra.net/type"].StringValue != "veth" '
    '|| "dra.net/pciAddress" in attributes'
)


class Dranet:
    """DRANET on a node, with an administrator's permissions. `sys` is mounted as /sys, `gates` are feature gates.
    `kubeconfig` replaces the control plane's kubeconfig.

    Raises Missing if the program is missing.
    """

    def __init__(
        self,
        node: Node,
        sys: Path | None = None,
        filter_: str = FILTER,
        gates: t.Mapping[str, bool] | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        self.node, self.plane = node, node.plane
        program = programs(self.plane.minor, "dranet", build=False)["dranet"]
        arguments = [
            f"--kubeconfig={kubeconfig or self.plane.kubeconfig}",
            f"--hostname-override={node.name}",
            "--v=4",
            f"--filter={filter_}",
            "--cloud-provider-hint=NONE",
            "--feature-gates=" + ",".join(f"{name}={str(on).lower()}" for name, on in (gates or {}).items()),
        ]
        self._command = [str(program), *arguments]
        if sys:
            # DRANET must see the node's mounts, such as those of network namespaces
            shell = f'mount --bind "{sys}" /sys && exec "$@"'
            unshare = ["unshare", "--mount", "--propagation", "slave"]
            self._command = [*unshare, "sh", "-c", shell, "sh", *self._command]

    def start(self) -> None:
        """Start DRANET, and wait until it is healthy."""
        self.plane.run("dranet", self._command)
        self.plane.wait_for(self.ready, "DRANET to be ready", 60)

    def stop(self) -> None:
        """Kill DRANET with SIGKILL."""
        self.plane.stop("dranet")

    def ready(self) -> bool:
        self.plane.check()
        try:
            with urllib.request.urlopen(HEALTH, timeout=5):
                return True
        except OSError:
            return False

    def log(self) -> str:
        return self.plane.log("dranet").read_text(errors="replace")

    def slices(self) -> list[Object]:
        return [item for item in self.plane.expect("GET", SLICES)["items"] if item["spec"]["driver"] == NAME]

    def devices(self) -> dict[str, Object]:
        """The published devices by name."""
        return {device["name"]: device for item in self.slices() for device in item["spec"].get("devices") or ()}


class MachineNode:
    """The interfaces of an example machine on a node, until `close`. `tree` and `facts` are the machine's.

    The node's uplink keeps its default route. The machine's default route is added as an IPv6 route, which DRANET also
    respects.
    """

    def __init__(self, node: Node, machine: str | Object, folder: Path) -> None:
        self.node = node
        self.tree = _as_ethernet(build(machine, folder / "machine"))
        self.facts: Object = as_dict(probe(str(self.tree)))
        self._closing = contextlib.ExitStack()
        try:
            self._interfaces()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._closing.close()

    def _interfaces(self) -> None:
        ip("netns add machine")
        self._closing.callback(ip, "netns delete machine")
        interfaces = sorted(self.facts["interfaces"], key=operator.itemgetter("ifindex"))
        for interface in interfaces:
            if interface["kind"] != "loopback":
                self._add(interface)
        for interface in interfaces:
            if interface["master"]:
                ip(f"link set {interface['name']} master {interface['master']}")
            if interface["kind"] != "loopback" and interface["operstate"] == "up":
                ip(f"link set {interface['name']} up")
        for interface in interfaces:
            if interface["default_route"]:
                ip(f"-6 route append default via fe80::1 dev {interface['name']} metric 1024")

    def _add(self, interface: Object) -> None:
        """Create an interface that is down. An interface without a PCI function becomes a bridge."""
        name = interface["name"]
        if interface["address"]:
            wire = f"w{interface['ifindex']}"
            ip(f"link add {name} type veth peer name {wire} netns machine")
            ip(f"-n machine link set {wire} up")
        else:
            ip(f"link add {name} type bridge")
        self._closing.callback(ip, f"link delete {name}")
        ip(f"link set {name} address {interface['mac']} mtu {interface['mtu']}")


def _as_ethernet(tree: Path) -> Path:
    """Change InfiniBand interfaces of the tree to Ethernet: the type, and a MAC address derived from the old one."""
    for folder in (tree / "sys/class/net").iterdir():
        if (folder / "type").is_file() and (folder / "type").read_text().strip() == "32":
            (folder / "type").write_text("1\n")
            (folder / "address").write_text("02:" + (folder / "address").read_text().strip()[-14:] + "\n")
    return tree
