# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node whose driver is killed while it serves claims. The driver is the complete program, on a node with veth
interfaces; the test calls it by gRPC as kubelet does, and runs its hook as a container runtime does."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver import claims_node
from ansible_collections.lanewise.dra.tests.driver.api_server import RESOURCE, ApiServer
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox, differences, host_state, ip
from ansible_collections.lanewise.dra.tests.driver.driver_process import Launcher, wait_for
from ansible_collections.lanewise.dra.tests.driver.kubelet import Kubelet
from ansible_collections.lanewise.dra.tests.driver.plan_claims import OPEN, config
from lanewise_driver.base import files
from lanewise_driver.base.paths import Paths
from lanewise_driver.claims import cdi
from lanewise_driver.claims.records import ATTACHED, PREPARED, Record, Store
from lanewise_driver.kernel import netns
from lanewise_driver.kubelet import protocol

NODE, NAMESPACE, POD = "node-a", "claims", "worker-0"
WIRES = ("wire0", "wire1", "wire2")
UIDS = {"cards": "5f0c1b9e-0000-4000-8000-000000000001", "child": "5f0c1b9e-0000-4000-8000-000000000002"}
#: By claim: the interfaces of the pod, and the interfaces of the node that they come from.
INTERFACES = {"cards": {"net1": "wire0", "rail1": "wire1"}, "child": {"mac0": "wire2"}}
CONFIGURATION: dict[str, Object] = {
    "wire0": {
        "name": "net1",
        "mac": "02:00:00:00:02:01",
        "mtu": 1400,
        "addresses": ["198.51.100.7/24", "2001:db8:77::2/64"],
        "routes": [{"destination": "203.0.113.0/24", "gateway": "198.51.100.1", "table": 200, "metric": 7}],
        "rules": [{"source": "198.51.100.7/32", "table": 200, "priority": 900}],
        "neighbors": [{"destination": "198.51.100.9", "mac": "02:00:00:00:00:09"}],
        "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2, "net.ipv6.conf.IFNAME.accept_dad": 0},
        "ethtool": {"features": {"tx-checksumming": False}},
    },
    "wire1": {"name": "rail1"},
    "wire2": {
        "name": "mac0",
        "mac": "02:00:00:00:02:03",
        "child": {"type": "macvlan"},
        "railAddresses": True,
        "sysctls": {"net.ipv6.conf.IFNAME.accept_dad": 0},
    },
}
#: The rail of the macvlan has a single address on this node: if it were not released, the next pod would get none.
RAIL_ADDRESS = "198.51.100.8"
RAILS: Object = {
    "rails": {"wire2": 5},
    "rail_addresses": [{"rail": 5, "range": f"{RAIL_ADDRESS}/32", "pool": "198.51.100.0/24"}],
}
#: The age at which the driver removes unfinished files of killed drivers (files.sweep).
UNFINISHED_SECONDS = 120.0
#: The kernel finishes changes within this time, which is shorter than the retry interval of a started driver.
KERNEL_SECONDS = 3.0

#: The address whose rules belong to net1.
_RULES_SOURCE = CONFIGURATION["wire0"]["rules"][0]["source"].partition("/")[0]


class DriverKilled(Exception):
    """The driver was killed before it answered."""


@dataclass
class Node:
    """The node, its driver, and the state of both before the first claim. `pod_view` is what a pod with both claims
    sees."""

    folder: Path
    driver: Launcher = field(init=False)
    before: Object = field(init=False)
    files_before: list[str] = field(init=False)
    pod_view: Object = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fabric = claims_node.make_wires(WIRES)
        self.paths = Paths(
            plugin_dir=self.folder / "plugin",
            registry_dir=self.folder / "registry",
            run_dir=self.folder / "run",
            cdi_dir=self.folder / "cdi",
            settings=self.folder / "driver.yml",
            hook_python=Path(sys.executable),
        )
        self.server = ApiServer(self.folder / "server")
        self._publish()
        values = {"node_name": NODE, "kubeconfig": str(self.server.kubeconfig), "virtual_interfaces": ["wire*"]}
        values |= RAILS
        self.paths.settings.write_text(json.dumps({**values, "metrics_address": ""}))
        options = ["settings", "plugin_dir", "registry_dir", "run_dir", "cdi_dir"]
        arguments = [f"--{name.replace('_', '-')}={getattr(self.paths, name)}" for name in options]
        self.driver = Launcher(self.folder, [*arguments, "run", f"--hook-python={sys.executable}"])
        self.start()
        self.before = host_state()
        self.files_before = self.files()

    def close(self) -> None:
        self.driver.close()
        self.server.close()

    def _publish(self) -> None:
        self.server.put(f"/api/v1/nodes/{NODE}", {"kind": "Node", "metadata": {"name": NODE}})
        metadata = {"name": POD, "namespace": NAMESPACE, "uid": "pod-uid"}
        self.server.put(
            f"/api/v1/namespaces/{NAMESPACE}/pods/{POD}", {"metadata": metadata, "spec": {"nodeName": NODE}}
        )
        for name, uid in UIDS.items():
            wires = list(INTERFACES[name].values())
            results = [
                {"request": wire, "driver": "lanewise.dev", "pool": NODE, "device": f"net-{wire}"} for wire in wires
            ]
            configs = [OPEN, *(config(CONFIGURATION[wire], wire) for wire in wires)]
            devices = {"results": results, "config": configs}
            claim: Object = {
                "apiVersion": f"{RESOURCE[6:]}/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": NAMESPACE, "uid": uid},
                "spec": {"devices": {}},
                "status": {
                    "allocation": {"devices": devices},
                    "reservedFor": [{"resource": "pods", "name": POD, "uid": "pod-uid"}],
                },
            }
            self.server.put(self._claim(name), claim)

    @staticmethod
    def _claim(name: str) -> str:
        return f"{RESOURCE}/v1/namespaces/{NAMESPACE}/resourceclaims/{name}"

    # the driver

    def start(self, kill: str = "", after: float = -1) -> bool:
        """Start the driver and wait until it serves. It is killed as described for Launcher.start, or after ``after``
        seconds unless that is negative. Returns False if it was killed before it served."""
        for socket in (self.paths.service_socket(), self.paths.hook_socket):
            socket.unlink(missing_ok=True)
        self.driver.start(kill)

        def serves() -> bool:
            return not self.driver.running() or self.paths.service_socket().exists()

        with killed_after(self.driver, after):
            wait_for(serves, f"the driver to serve:\n{self.driver.log()[-3000:]}")
        if not self.driver.running():
            return False
        try:
            self._call("NodePrepareResources", [])
        except DriverKilled:
            return False
        return True

    def _call(self, method: str, names: t.Iterable[str]) -> None:
        claims = [{"namespace": NAMESPACE, "name": name, "uid": UIDS[name]} for name in names]
        with Kubelet(self.paths.service_socket(), protocol.pool) as kubelet:
            self.driver.at_end = kubelet.close  # otherwise gRPC would wait for a driver that has ended
            try:
                response = kubelet.call(protocol.DRA["v1"], method, claims=claims)
            except (grpc.RpcError, ValueError):
                self.driver.status(5)  # there is no answer only if the driver has ended
                raise DriverKilled from None
        assert not any(result.error for result in response.claims.values()), response

    def prepare(self) -> None:
        """Prepare all claims, as kubelet does. Raises DriverKilled."""
        self._call("NodePrepareResources", UIDS)

    def unprepare(self) -> None:
        """Unprepare all claims, as kubelet does. Raises DriverKilled."""
        self._call("NodeUnprepareResources", UIDS)

    def start_hook(self, name: str, sandbox: Sandbox) -> subprocess.Popen[str]:
        """Start the hook of a claim, as a container runtime does. The hook waits for a driver that restarts."""
        pod = {"uid": "pod-uid", "name": POD, "namespace": NAMESPACE}
        annotations = {f"io.kubernetes.cri.sandbox-{key}": value for key, value in pod.items()}
        state = {"ociVersion": "1.2.0", "id": "c", "pid": sandbox.pid, "annotations": annotations}
        command = cdi.hook_command(self.paths, UIDS[name])
        pipe, environment = subprocess.PIPE, {"LC_ALL": "C.UTF-8"}
        started = subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)
        assert started.stdin
        started.stdin.write(json.dumps(state))
        started.stdin.close()
        started.stdin = None
        return started

    # state of the node

    def files(self) -> list[str]:
        """All files below the driver's folders and all pinned namespaces, except unfinished files of killed drivers,
        which are removed later."""
        roots = (self.paths.plugin_dir, self.paths.run_dir, self.paths.cdi_dir)
        found = [path for root in roots for path in root.rglob("*") if path.is_file()]
        # the file of rail addresses keeps the order of free addresses, also without claims
        found = [path for path in found if path != self.paths.rail_addresses]
        pinned = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if " nsfs " in line]
        return sorted([*(str(path) for path in found if not path.name.endswith(files.UNFINISHED)), *pinned])

    def records(self) -> dict[str, Record]:
        found, unreadable = Store(self.paths.state_dir).all()
        assert not unreadable
        return {record.name: record for record in found}

    def differences_from_records(self, sandbox: Sandbox, ended: bool = False) -> list[str]:
        """The differences between the records and the devices: where each device is, and its settings. If the sandbox
        has ended, only the driver's pin is checked, because no process can enter the namespace.

        Waits at most KERNEL_SECONDS, because the kernel makes the routes of an IPv6 address after the address.
        """
        end = time.monotonic() + KERNEL_SECONDS
        while (problems := self._differences_now(sandbox, ended)) and time.monotonic() < end:
            time.sleep(0.01)
        return problems

    def _differences_now(self, sandbox: Sandbox, ended: bool) -> list[str]:
        records, problems = self.records(), []
        inside: Object = {} if ended else pod_view(sandbox)
        now = host_state()
        away: set[str] = set()
        for claim, interfaces in INTERFACES.items():
            phase = records[claim].phase if claim in records else ""
            if phase not in ("", PREPARED, ATTACHED):
                problems.append(f"{claim} is {phase} after a start")
            for name, wire in interfaces.items():
                if phase != ATTACHED:
                    problems += (
                        [f"{name} is in the pod, and {claim} {phase or 'not prepared'}"] if name in inside else []
                    )
                    continue
                away.add(wire)
                if ended:
                    pin = self.paths.pin(UIDS[claim])
                    problems += [] if netns.alive(pin) else [f"{name} is in the pod, and its namespace has no pin"]
                elif inside.get(name) != self.pod_view[name]:
                    problems += differences({name: self.pod_view[name]}, {name: inside.get(name)})
        if not away:
            return problems + differences(self.before, now)
        for wire in WIRES:
            if wire in away and not CONFIGURATION[wire].get("child"):
                problems += [f"{wire} is on the node and in the pod"] if wire in now["links"] else []
                continue
            link_before, link_now = self.before["links"][wire], now["links"].get(wire, {})
            if wire in away:  # its macvlan child has another address
                link_now = {**link_now, "promiscuity": link_before["promiscuity"]}
            problems += differences({wire: link_before}, {wire: link_now})
        return problems

    def leftovers(self, sandbox: Sandbox, ended: bool = False) -> list[str]:
        """The differences from the state before the first claim."""
        problems = differences(self.before, host_state())
        problems += [] if ended else [f"in the pod: {name}" for name in pod_view(sandbox) if name != "lo"]
        problems += [f"left: {path}" for path in self.files() if path not in self.files_before]
        problems += [f"{uid} still has {address}" for address, uid in self.held_addresses().items()]
        problems += [f"lost: {path}" for path in self.files_before if path not in self.files()]
        return problems + [f"the cluster still has a status of {name}" for name in self.statuses()]

    def statuses(self) -> list[str]:
        """The claims whose status in the cluster has devices of the driver."""
        return [name for name in UIDS if self.server.objects[self._claim(name)]["status"].get("devices")]

    def held_addresses(self) -> dict[str, str]:
        """The addresses of rails that claims have, with the UIDs of the claims."""
        path = self.paths.rail_addresses
        return dict(json.loads(path.read_text())["held"]) if path.exists() else {}

    def unfinished(self) -> list[Path]:
        """The unfinished files of killed drivers."""
        return list(self.folder.rglob(f"*{files.UNFINISHED}"))

    def age_unfinished(self) -> None:
        """Make the unfinished files of killed drivers so old that the driver removes them."""
        then = time.time() - UNFINISHED_SECONDS
        for path in self.unfinished():
            os.utime(path, (then, then))


def pod_view(sandbox: Sandbox) -> Object:
    """What a pod sees of its interfaces, by name, with routes, rules and neighbors."""
    found: Object = {}
    links = json.loads(ip("-j", "-d", "address", netns=sandbox.pid))
    for link in links:
        for address in link["addr_info"]:
            address.pop("optimistic", None)  # the kernel removes this flag later
        found[link["ifname"]] = claims_node._without_volatile(link)
    for family in ("-4", "-6"):
        routes = json.loads(ip("-j", family, "route", "show", "table", "all", netns=sandbox.pid))
        for route in routes:
            found.get(route.get("dev"), {}).setdefault("routes", []).append(repr(claims_node._without_volatile(route)))
        rules = ip(family, "rule", netns=sandbox.pid).splitlines()
        for name, source in (("net1", _RULES_SOURCE), ("mac0", RAIL_ADDRESS)):
            if name in found:
                found[name][f"rules {family}"] = [line for line in rules if source in line]
    for neighbor in json.loads(ip("-j", "neighbour", "show", "nud", "permanent", netns=sandbox.pid)):
        found[neighbor["dev"]].setdefault("neighbors", []).append(repr(neighbor))
    for entry in found.values():
        entry.get("routes", []).sort()
    return found


def _is_local(address: str, routes: t.Iterable[str]) -> bool:
    """Whether one of the routes, as pod_view shows them, is the local route of the address."""
    return any("'type': 'local'" in route and repr(address) in route for route in routes)


def settled_pod_view(sandbox: Sandbox) -> Object:
    """What a pod sees of its interfaces once the kernel has made the local route of each of their IPv6 addresses.

    Raises AssertionError if one is missing after KERNEL_SECONDS.
    """
    end = time.monotonic() + KERNEL_SECONDS
    while True:
        found = pod_view(sandbox)
        missing = [
            f"{name}: {address['local']}"
            for name, entry in found.items()
            for address in entry["addr_info"]
            if address["family"] == "inet6" and not _is_local(address["local"], entry.get("routes", []))
        ]
        if not missing:
            return found
        assert time.monotonic() < end, f"addresses without a local route: {missing}"
        time.sleep(0.01)


@contextlib.contextmanager
def killed_after(driver: Launcher, seconds: float) -> t.Iterator[None]:
    """Kill the driver after this many seconds; do nothing if ``seconds`` is negative."""
    if seconds < 0:
        yield
        return
    timer = threading.Timer(seconds, driver.kill)
    timer.start()
    yield
    timer.join()


def moments(number: int, changes: t.Mapping[str, int], generator: random.Random) -> list[tuple[str, int]]:
    """``number`` moments at which to kill the driver, each an operation and a step. ``changes`` has the number of
    steps of each operation. Half of the moments are evenly selected steps, with at least one of each operation. Step
    -1, of the other half, is a random moment of an operation."""
    middle = [(operation, count // 2) for operation, count in changes.items()]
    others = [(operation, step) for operation, count in changes.items() for step in range(count + 1)]
    others = [moment for moment in others if moment not in middle]
    room = min(len(others), max(number // 2 - len(middle), 0))
    chosen = middle + [others[index * len(others) // room] for index in range(room)]
    return chosen + [(generator.choice(list(changes)), -1) for _each in range(number - len(chosen))]
