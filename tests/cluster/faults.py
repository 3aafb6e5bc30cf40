# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node on which the lanewise driver and DRANET get the same faults, and the effects that are visible from outside.

Only one of the two drivers runs at a time. Both have the same interfaces and pods, and the same configuration in their
own syntax. Both reach the API server through a forwarder that a test can stop, and pods get their network from a CNI
plugin that a test can block. So a fault hits both drivers at the same moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster import driver as ours
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane, Failed, free_ports
from ansible_collections.lanewise.dra.tests.cluster.dranet_node import Dranet
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = f"{ours.API}/namespaces/default/resourceclaims"
RAILS = ("rail0", "rail1")
#: With this filter, DRANET publishes only the rails. Its default filter drops veth interfaces.
FILTER = '"dra.net/ifName" in attributes && attributes["dra.net/ifName"].StringValue.matches("^rail[0-9]+$")'
TIMEOUT_SECONDS = 60  # kubelet retries every 10 to 15 seconds
#: The file that makes the node's CNI plugin wait, and the file that the plugin writes while it waits.
HOLD, WAITING = Path("/run/hold-cni"), Path("/run/held-cni")

HAS_INTERFACE = "pod has its interface"
LATE_INTERFACE = "pod starts before it has its interface"
NO_INTERFACE = "pod runs without its interface"
NOT_STARTED = "pod does not start"
RESTORED = "node as before"
INTERFACE_LOST = "node: interface lost"


class Forwarder:
    """A local port that forwards to the API server until a test stops it."""

    def __init__(self, target: int) -> None:
        self._target = target
        (self.port,) = free_ports(1)
        self._ends: set[socket.socket] = set()
        self._flows = threading.Event()
        self.request_waiting = threading.Event()
        self._flows.set()
        self.open()

    def open(self) -> None:
        """Accept connections."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """End all connections, and refuse new ones until `open`."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Hold back what is sent to the API server until `release`. The first such data sets `request_waiting`."""
        self.request_waiting.clear()
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _address = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends |= {near, far}
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if up and not self._flows.is_set():
                    self.request_waiting.set()
                    self._flows.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Subject(t.Protocol):
    """A driver under test."""

    name: str
    process: str  # the name of its process in the control plane

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def published(self) -> set[str]: ...

    def opaque(self, config: Object) -> Object: ...


class LanewiseSubject:
    """The lanewise driver, with the permissions of its manifests."""

    name = ours.NAME
    process = "driver"

    def __init__(self, node: Node, url: str) -> None:
        self._driver = ours.Driver(node)
        self.stop()
        kubeconfig = ours.FOLDER / "kubeconfig"
        kubeconfig.write_text(kubeconfig.read_text().replace(node.plane.url, url))

    def start(self) -> None:
        self._driver.start()
        self._driver.wait_ready(TIMEOUT_SECONDS)

    def stop(self) -> None:
        self._driver.stop()

    def published(self) -> set[str]:
        """The interfaces of the published devices."""
        return _interfaces(self._driver.devices(), "ifName")

    def opaque(self, config: Object) -> Object:
        return dict(parameters(config))


class DranetSubject:
    """DRANET 1.4.0, with the permissions of an administrator."""

    name = "dra.net"
    process = "dranet"

    def __init__(self, node: Node, url: str) -> None:
        kubeconfig = node.folder / "dranet.kubeconfig"
        kubeconfig.write_text(node.plane.kubeconfig.read_text().replace(node.plane.url, url))
        self._driver = Dranet(node, filter_=FILTER, kubeconfig=kubeconfig)

    def start(self) -> None:
        self._driver.start()

    def stop(self) -> None:
        self._driver.stop()

    def published(self) -> set[str]:
        """The interfaces of the published devices."""
        return _interfaces(self._driver.devices(), "dra.net/ifName")

    def opaque(self, config: Object) -> Object:
        """DRANET's syntax: `routes` beside `interface`, which has all other fields."""
        config = dict(config)
        return {**{key: config.pop(key) for key in ("routes",) if key in config}, "interface": config}


def _interfaces(devices: t.Mapping[str, Object], attribute: str) -> set[str]:
    return {device["attributes"].get(attribute, {}).get("string", "") for device in devices.values()}


class Testbed:
    """The node with one of the drivers and new rails, and the operations of the tests on them."""

    def __init__(self, node: Node, forwarder: Forwarder, subject: Subject) -> None:
        self.node, self.plane, self.forwarder, self.subject = node, node.plane, forwarder, subject
        for number, rail in enumerate(RAILS):
            with contextlib.suppress(Failed):
                ip(f"link delete {rail}")
            ours.add_rail(number)
        self.start()
        self.record_state()

    def record_state(self) -> None:
        """Record the state of the rails, which `differences` compares with."""
        self.before = {rail: kernel_state(rail) for rail in RAILS}

    # the driver

    def start(self) -> None:
        """Start the driver, and wait until its free devices can be allocated."""
        self.subject.start()
        free = {rail for rail in RAILS if rail in links()}
        self.plane.wait_for(lambda: free <= self.subject.published(), f"the devices of {self.subject.name}", 90)

    def kill(self) -> None:
        """Kill the driver with SIGKILL."""
        self.subject.stop()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.plane.pids[self.subject.process], number)

    # pods

    def post(self, name: str, *claims: Object, privileged: bool = False) -> None:
        """Create a pod with a claim for each configuration: the first for rail0, the second for rail1."""
        entries = []
        for number, config in enumerate(claims or [{"name": "net1", "addresses": ["203.0.113.2/28"]}]):
            template = f"{name}-{number}"
            self._template(template, RAILS[number], config)
            entries.append({"name": f"net{number}", "resourceClaimTemplateName": template})
        pod = self.node.pod(name, resourceClaims=entries)
        container = pod["spec"]["containers"][0]
        container["command"] = ["/bin/sh", "-c", "ip -brief link >/tmp/first; trap exit TERM; sleep infinity & wait"]
        if privileged:
            container["securityContext"] = {"privileged": True}
        self.plane.expect("POST", PODS, pod)

    def _template(self, name: str, rail: str, config: Object) -> None:
        domain = self.subject.name
        expression = f'device.driver == "{domain}" && device.attributes["{domain}"].ifName == "{rail}"'
        exactly = {"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]}
        devices = {
            "requests": [{"name": "nic", "exactly": exactly}],
            "config": [{"opaque": {"driver": domain, "parameters": self.subject.opaque(config)}}],
        }
        body = {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
        self.plane.expect("POST", f"{ours.API}/namespaces/default/resourceclaimtemplates", body)

    def ready(self, name: str) -> bool:
        """Whether the pod is ready. Changes the pod, so that kubelet retries now and not seconds after a failure."""
        self.plane.request("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": {"poked": str(time.monotonic())}}})
        time.sleep(0.5)
        found = self.plane.expect("GET", f"{PODS}/{name}")["status"]
        return any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in found.get("conditions", ())
        )

    def run(self, name: str, *claims: Object, privileged: bool = False) -> None:
        """Create a pod, and wait until it runs with its interface."""
        self.post(name, *claims, privileged=privileged)
        self.plane.wait_for(lambda: self.ready(name), f"pod {name}", TIMEOUT_SECONDS)
        assert self.has_interface(name), self.log()

    def has_interface(self, name: str) -> bool:
        """Whether the pod has net1 now or gets it within seconds."""
        with contextlib.suppress(Failed):
            self.plane.wait_for(lambda: "net1" in self.node.execute(name, "ip", "-brief", "link"), "net1", 8)
            return True
        return False

    def start_result(self, name: str) -> str:
        """Wait for a pod that should start. Returns whether it started, and with its interface."""
        try:
            self.plane.wait_for(lambda: self.ready(name), f"pod {name}", TIMEOUT_SECONDS)
        except Failed:
            print(*self.node.events(name), sep="\n")
            return NOT_STARTED
        if not self.has_interface(name):
            return NO_INTERFACE
        return HAS_INTERFACE if "net1" in self.node.execute(name, "cat", "/tmp/first") else LATE_INTERFACE

    def refusal_result(self, name: str, *causes: str) -> str:
        """Wait for a pod that cannot start. Returns whether an event of the pod contains one of these texts."""

        def cause_named() -> bool:
            return any(cause in line for line in self.node.events(name) for cause in causes)

        try:
            self.plane.wait_for(cause_named, "an event", 20)
        except Failed:
            print(*self.node.events(name), sep="\n")
            return self.start_result(name) if self.ready(name) else f"{NOT_STARTED}; no event names the cause"
        return f"{NOT_STARTED}; an event names the cause"

    def delete(self, name: str, grace: int | None = None) -> None:
        body = None if grace is None else {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        self.plane.request("DELETE", f"{PODS}/{name}", body)

    def remaining(self) -> list[str]:
        """The names of the pods and claims that still exist."""
        return [item["metadata"]["name"] for path in (PODS, CLAIMS) for item in self.plane.expect("GET", path)["items"]]

    def end_pods(self) -> str:
        """Delete all pods. Returns how the node then differs from its recorded state."""
        for item in self.plane.expect("GET", PODS)["items"]:
            self.delete(item["metadata"]["name"])
        try:
            self.plane.wait_for(lambda: not self.remaining(), "the deletion of pods and claims", 2 * TIMEOUT_SECONDS)
        except Failed:
            return "pod does not end"
        found: list[str] = []
        deadline = time.monotonic() + 20
        while (found := self.differences()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return f"node: {', '.join(found)}" if found else RESTORED

    def differences(self) -> list[str]:
        """The properties of the rails that differ from their recorded state."""
        found: set[str] = set()
        for rail, before in self.before.items():
            if rail not in links():
                found.add(INTERFACE_LOST.removeprefix("node: "))
                continue
            after = kernel_state(rail)
            found |= {name for name in {*before, *after} if before.get(name) != after.get(name)}
        return sorted(found)

    def close(self) -> None:
        """Remove all pods and templates, and stop the driver, so that the next test starts from an empty node."""
        HOLD.unlink(missing_ok=True)
        self.forwarder.release()
        for item in self.plane.expect("GET", PODS)["items"]:
            self.delete(item["metadata"]["name"], grace=0)
        with contextlib.suppress(Failed):
            self.plane.wait_for(lambda: not self.remaining(), "the deletion of pods and claims", 2 * TIMEOUT_SECONDS)
        templates = f"{ours.API}/namespaces/default/resourceclaimtemplates"
        for item in self.plane.expect("GET", templates)["items"]:
            self.plane.expect("DELETE", f"{templates}/{item['metadata']['name']}")
        self.subject.stop()

    def log(self) -> str:
        return self.plane.log(self.subject.process).read_text(errors="replace")[-6000:]


def links() -> set[str]:
    return {entry["ifname"] for entry in json.loads(ip("-json link"))}


#: The names that the tables in the documentation use for fields of ip(8).
_FIELD_NAMES = {"address": "MAC", "mtu": "MTU", "ifalias": "alias"}


def kernel_state(rail: str) -> dict[str, str]:
    """The kernel's state of an interface, by field or kind of object."""
    found: dict[str, list[t.Any]] = {}
    for entry in json.loads(ours.host_state(rail)):
        if isinstance(entry, list):
            found.setdefault("sysctls", []).append(entry)
        elif "addr_info" in entry:
            found["addresses"] = entry["addr_info"]
        elif "linkinfo" in entry:
            found.update({_FIELD_NAMES.get(key, key): [value] for key, value in entry.items()})
        else:
            kind = "neighbors" if "lladdr" in entry else "rules" if "priority" in entry else "routes"
            found.setdefault(kind, []).append(entry)
    return {name: json.dumps(value, sort_keys=True) for name, value in found.items()}


def make_cni_wait(node: Node) -> None:
    """Replace the node's CNI plugin by a script that waits while the file HOLD exists, and then runs the plugin."""
    plugin = node.folder / "cni-bin" / "ptp"
    program = plugin.resolve()
    plugin.unlink()
    plugin.write_text(
        f'#!/bin/sh\nwhile [ -e {HOLD} ]; do echo "$CNI_COMMAND" >{WAITING}; sleep 0.05; done\nexec {program}\n'
    )
    plugin.chmod(0o755)


@contextlib.contextmanager
def cni_held(plane: ControlPlane, command: str) -> t.Iterator[t.Callable[[], None]]:
    """Block the CNI plugin. The yielded function waits until the plugin was called with this command (ADD or DEL)."""
    WAITING.unlink(missing_ok=True)
    HOLD.touch()

    def wait() -> None:
        plane.wait_for(
            lambda: WAITING.exists() and WAITING.read_text().strip() == command, f"CNI {command}", TIMEOUT_SECONDS
        )

    try:
        yield wait
    finally:
        HOLD.unlink(missing_ok=True)
