# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node with devices for claims: a network namespace with veth interfaces, processes in other network namespaces as
pods, and a control plane whose scheduler allocates the claims that the collection's compiler wrote.

Kubelet and the container runtime are missing: the tests call the driver in their place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.client import APPLY_PATCH
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.driver import folders, ipv6
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import TIMEOUT_SECONDS
from lanewise_driver.api.access import from_kubeconfig
from lanewise_driver.api.cluster import Cluster
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.settings import Settings
from lanewise_driver.claims import service as claims
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.publish.inventory import Inventory

NODE = "node-a"
NAMESPACE = "claims"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
#: The interfaces of the node that claims may use.
WIRES = tuple(f"wire{number}" for number in range(9))


def ip(*words: str, netns: int | None = None) -> str:
    """Run `ip` on the node, or in the network namespace of the process `netns`. Returns its output."""
    enter = ["nsenter", f"--net=/proc/{netns}/ns/net"] if netns else []
    return subprocess.run([*enter, "ip", *words], check=True, text=True, stdout=subprocess.PIPE).stdout


#: Values that change whenever an interface moves to another namespace, so they are not compared.
_VOLATILE = (
    "ifindex",
    "link_index",
    "link_netnsid",
    "valid_life_time",
    "preferred_life_time",
    "tentative",
    "inet6_addr_gen_mode",
)


def _without_volatile(value: t.Any) -> t.Any:
    if isinstance(value, dict):
        return {key: _without_volatile(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_without_volatile(item) for item in value]
    return value


SYSCTLS = ("ipv4/conf/{}/rp_filter", "ipv4/conf/{}/arp_announce", "ipv6/conf/{}/accept_ra", "ipv6/conf/{}/disable_ipv6")


def host_state() -> Object:
    """The links, routes, rules, permanent neighbors and some sysctls of the node."""
    links = {link["ifname"]: _without_volatile(link) for link in json.loads(ip("-j", "-d", "address"))}
    state: Object = {"links": links}
    for family in ("-4", "-6"):
        state[f"routes {family}"] = sorted(
            map(repr, _without_volatile(json.loads(ip("-j", family, "route", "show", "table", "all"))))
        )
        state[f"rules {family}"] = ip(family, "rule")
    neighbors = json.loads(ip("-j", "neighbour", "show", "nud", "permanent"))
    state["neighbors"] = sorted(map(repr, neighbors))
    for name in links:
        for path in SYSCTLS:
            file = Path("/proc/sys/net", path.format(name))
            state[str(file)] = file.read_text() if file.exists() else None
    return state


def differences(old: Object, new: Object) -> list[str]:
    """The differences between two host states, one line each."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            lines += [f"{key}: {line}" for line in differences(before, now)]
        elif isinstance(before, list) and isinstance(now, list):
            lines += [f"{key}: lost {item}" for item in before if item not in now]
            lines += [f"{key}: new {item}" for item in now if item not in before]
        elif before != now:
            lines.append(f"{key}: {before} is now {now}")
    return lines


def make_wires(names: t.Sequence[str] = WIRES) -> int:
    """Create the node's interfaces, with addresses, routes, rules and neighbors. Their peers, `far0` and so on, are in
    the network namespace of a process that stands for the fabric. Returns the process ID."""
    fabric = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    _wait_for_namespace(fabric.pid)
    for number, name in enumerate(names):
        ip(
            "link",
            "add",
            name,
            "mtu",
            "1450",
            "address",
            f"02:00:00:00:01:0{number}",
            "type",
            "veth",
            "peer",
            f"far{number}",
        )
        ip("link", "set", f"far{number}", "netns", str(fabric.pid))
        ip("link", "set", f"far{number}", "mtu", "9000", "up", netns=fabric.pid)
        ip("address", "add", f"10.0.{number}.2/24", "dev", name)
        ip("address", "add", f"2001:db8:{number}::2/64", "dev", name, "nodad")
        Path(f"/proc/sys/net/ipv4/conf/{name}/arp_announce").write_text("2")
        ip("link", "set", name, "alias", f"wire number {number}", "up")
        ip("route", "add", f"192.0.2.{16 * number}/28", "via", f"10.0.{number}.1", "metric", str(50 + number))
        ip("route", "add", "10.200.0.0/16", "via", f"10.0.{number}.1", "table", str(100 + number))
        ip("rule", "add", "from", f"10.0.{number}.2", "table", str(100 + number), "priority", str(1000 + number))
        ip("neighbour", "add", f"10.0.{number}.77", "lladdr", "02:00:00:00:00:77", "dev", name, "nud", "permanent")

    ipv6.wait(lambda words: ip(*words.split()))
    return fabric.pid


def _wait_for_namespace(pid: int) -> None:
    own = os.stat("/proc/self/ns/net").st_ino
    while os.stat(f"/proc/{pid}/ns/net").st_ino == own:
        pass


def _wire(request: str, wire: str, /, **interface: t.Any) -> Object:
    device: Object = {
        "name": request,
        "class": "wire",
        "cel": [f'device.attributes["lanewise.dev"].ifName == "{wire}"'],
    }
    return {**device, "interface": interface} if interface else device


#: The claims, as inventory variables of the collection: `one` is for one device, `two` for two devices, and `child` for
#: a macvlan on a device. Prepare refuses `impossible`, and attach fails for `failing`.
INVENTORY: Object = {
    "dra_claims_drivers": {"lanewise.dev": {"version": "1.0.0"}},
    "dra_claims_policy": True,
    "dra_claims_classes": [
        {
            "name": "wire",
            "driver": "lanewise.dev",
            "cel": ['device.driver == "lanewise.dev" && has(device.attributes["lanewise.dev"].ifName)'],
            "interface": {"mtu": 1400},
        }
    ],
    "dra_claims_claims": [
        {
            "name": "one",
            "namespace": NAMESPACE,
            "devices": [
                _wire(
                    "nic",
                    WIRES[0],
                    name="net1",
                    addresses=["198.51.100.7/24"],
                    routes=[{"destination": "203.0.113.0/24", "gateway": "198.51.100.1", "metric": 7}],
                    rules=[{"source": "198.51.100.7/32", "table": 55, "priority": 900}],
                    neighbors=[{"destination": "198.51.100.9", "mac": "02:00:00:00:00:09"}],
                    sysctls={"net.ipv4.conf.IFNAME.rp_filter": 2},
                )
            ],
        },
        {
            "name": "two",
            "namespace": NAMESPACE,
            "devices": [_wire("left", WIRES[1]), _wire("right", WIRES[2], name="rail1", mtu=1400)],
        },
        {
            "name": "child",
            "namespace": NAMESPACE,
            "devices": [_wire("nic", WIRES[3], name="mac0", child={"type": "macvlan"}, addresses=["198.51.100.8/24"])],
        },
        {
            "name": "impossible",
            "namespace": NAMESPACE,
            "devices": [_wire("nic", WIRES[4], name="net1", ethtool={"features": {"no-such-feature": True}})],
        },
        {
            "name": "leased",
            "namespace": NAMESPACE,
            "devices": [_wire("nic", WIRES[7], name="net1", dhcp=["ipv4"])],
        },
        {
            "name": "failing",
            "namespace": NAMESPACE,
            "devices": [
                _wire("good", WIRES[5], name="net1"),
                # the source might be an address of another interface of the pod, so only attach can check it
                _wire(
                    "bad",
                    WIRES[6],
                    routes=[{"destination": "203.0.113.0/24", "gateway": "10.0.6.1", "source": "198.51.100.77"}],
                ),
            ],
        },
    ],
}  # fmt: skip


class Sandbox:
    """The network namespace of a pod, which a process keeps."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        _wait_for_namespace(self.process.pid)
        self.pid = self.process.pid

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def links(self) -> dict[str, Object]:
        return {link["ifname"]: link for link in json.loads(ip("-j", "-d", "address", netns=self.pid))}

    def inode(self) -> int:
        return os.stat(self.path).st_ino


class ClaimsNode:
    """A control plane with allocated claims, and the folders of a driver on the node."""

    def __init__(self, plane: ControlPlane, folder: Path, fabric: int) -> None:
        self.plane = plane
        self.fabric = fabric
        self.paths = folders.flat(folder, run_dir=Path("/run/lanewise") / folder.name)
        self.settings = Settings(node_name=NODE, virtual_interfaces=("wire*",))
        self.cluster = self.connect()
        self.claims: dict[str, ClaimRef] = {}
        self.pods: dict[str, Object] = {}

    def connect(self, **more: t.Any) -> Cluster:
        return Cluster(lambda: from_kubeconfig(self.plane.kubeconfig), "lanewise.dev", NODE, **more)

    def service(self, status: Writer | None = None, **more: t.Any) -> claims.Service:
        """The service of a driver that has just started on this node's folders."""
        held: list[t.Callable[[], t.Any]] = []
        inventory = Inventory(lambda: self.settings, lambda: held[0]() if held else [])
        cluster = self.connect()  # a child that is killed must not share the connection of its parent
        service = claims.Service(self.paths, cluster, inventory, status or Writer(cluster), **more)
        held.append(service.held)
        return service

    def publish(self, inventory: Object) -> None:
        """Publish the interfaces, and apply the objects of the inventory."""
        plane = self.plane
        plane.add_node(NODE)
        plane.add_namespace(NAMESPACE)
        publication = Inventory(lambda: self.settings, lambda: []).refresh()
        wires = [device for device in publication.devices if device["name"].startswith("net-wire")]
        assert len(wires) == len(WIRES), publication
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "lanewise.dev", "nodeName": NODE, "pool": pool, "devices": wires}
        plane.expect("POST", f"{RESOURCE}/resourceslices", {"metadata": {"name": "wires"}, "spec": spec})
        for manifest in compile_site(inventory).objects:
            self.apply(manifest)

    def apply(self, manifest: Object) -> None:
        """Apply an object as the collection does. If an object made by POST has whitespace in opaque parameters, the
        server changes them when it writes the object again, takes that for a change of the claim's spec, and so refuses
        every update of the claim's status."""
        plurals = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies", "DeviceClass": "deviceclasses"}
        plural = plurals.get(manifest["kind"], f"{manifest['kind'].lower()}s")
        metadata = manifest["metadata"]
        if "namespace" in metadata:
            plural = f"namespaces/{metadata['namespace']}/{plural}"
        path = f"/apis/{manifest['apiVersion']}/{plural}/{metadata['name']}?fieldManager=lanewise"
        self.plane.expect("PATCH", path, manifest, APPLY_PATCH)
        if manifest["kind"] == "ResourceClaim":
            self.start_pod(metadata["name"])

    def start_pod(self, claim: str, pod: str = "", **spec: t.Any) -> None:
        """Create a pod for a claim; returns when the scheduler has bound it."""
        name = pod or claim
        body = {
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
                ],
                "resourceClaims": [{"name": "d", "resourceClaimName": claim}],
                **spec,
            },
        }
        self.plane.expect("POST", PODS, body)

        def bound() -> t.Any:
            found = self.plane.expect("GET", f"{PODS}/{name}")
            return found if found["spec"].get("nodeName") else None

        self.pods[name] = self.plane.wait_for(bound, f"the scheduler to bind {name}", TIMEOUT_SECONDS)
        metadata = self.claim(claim)["metadata"]
        self.claims[claim] = ClaimRef(NAMESPACE, claim, metadata["uid"])

    def claim(self, name: str) -> Object:
        return t.cast(Object, self.plane.expect("GET", f"{CLAIMS}/{name}"))

    def request(self, claim: str, sandbox: Path, pod: str = "") -> AttachRequest:
        """The attach request of the hook of a container in the claim's pod."""
        metadata = self.pods[pod or claim]["metadata"]
        annotations = {
            "io.kubernetes.cri.sandbox-uid": metadata["uid"],
            "io.kubernetes.cri.sandbox-name": metadata["name"],
            "io.kubernetes.cri.sandbox-namespace": metadata["namespace"],
        }
        return AttachRequest(self.claims[claim].uid, sandbox, 0, "c", annotations)

    def files(self) -> list[str]:
        """All files below the driver's folders, except pending statuses."""
        roots = (self.paths.plugin_dir, self.paths.run_dir, self.paths.cdi_dir)
        found = [path for root in roots for path in root.rglob("*") if not path.is_dir()]
        return sorted(str(path) for path in found if path.parent != self.paths.pending_status_dir)
