# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The publisher without an API server, access to the server, and the kernel events after which the driver publishes.

tests/cluster/test_driver_cluster.py tests the publisher with an API server.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.machines.builder import build
from lanewise_driver.api.access import Access, AccessError, in_cluster
from lanewise_driver.api.cluster import Cluster
from lanewise_driver.api.features import Features
from lanewise_driver.api.token import TokenRenewer
from lanewise_driver.base.errors import Unreachable
from lanewise_driver.base.objects import Object
from lanewise_driver.base.settings import SettingsFile
from lanewise_driver.kernel.monitor import _uevent
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.publish.publisher import STOP_SECONDS, Publisher

needs_namespaces = pytest.mark.skipif(
    bool(os.geteuid()) or not shutil.which("unshare") or not shutil.which("ip"),
    reason="needs root, unshare and ip for network namespaces",
)
UNREACHABLE = Access("https://127.0.0.1:1")  # nothing listens on this port, so connections are refused at once


def test_the_publisher_keeps_trying_without_an_api_server(tmp_path: Path) -> None:
    settings = SettingsFile(tmp_path / "driver.yml")
    inventory = Inventory(lambda: settings.current, lambda: (), str(build("azure-vm", tmp_path / "machine")))
    publisher = Publisher(Cluster(lambda: UNREACHABLE, "lanewise.dev", "worker-1", 0), inventory, settings)
    publisher.start()
    until(lambda: publisher.failures >= 3, 30)
    assert "does not answer" in publisher.problem
    assert publisher.last_published is None
    assert {thread.name for thread in threading.enumerate()} >= {"publisher", "slices", "settings", "monitor"}
    began = time.monotonic()
    publisher.stop()
    assert time.monotonic() - began < STOP_SECONDS
    assert not {thread.name for thread in threading.enumerate()} & {"publisher", "settings", "monitor"}


def test_a_server_that_never_answers_does_not_delay_a_stop(tmp_path: Path) -> None:
    settings = SettingsFile(tmp_path / "driver.yml")
    inventory = Inventory(lambda: settings.current, lambda: (), str(build("azure-vm", tmp_path / "machine")))
    claims = {"namespace": "n", "serviceaccount": {"name": "a"}, "node": {"name": "worker-1", "uid": "u"}}
    body = json.dumps({"kubernetes.io": claims, "iat": 0, "exp": 1}).encode()
    (tmp_path / "token").write_text(f"x.{base64.urlsafe_b64encode(body).decode()}.x")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        access = Access(f"https://127.0.0.1:{silent.getsockname()[1]}")
        cluster = Cluster(lambda: access, "lanewise.dev", "worker-1", 60)
        publisher = Publisher(cluster, inventory, settings)
        renewal = TokenRenewer(cluster, tmp_path / "token")
        publisher.start()
        renewal.start()
        silent.accept()
        silent.accept()
        began = time.monotonic()
        publisher.stop()
        renewal.stop()
        assert time.monotonic() - began < 12  # each waits 3 s for its thread; the rest is for a busy machine


def test_the_node_is_read_again_until_it_has_an_address(tmp_path: Path) -> None:
    """With an external cloud provider, a Node gets its addresses some time after kubelet has created it."""
    node: Object = {"metadata": {"name": "worker-1", "uid": "1"}, "status": {}}
    reads = []

    class NewNode(Cluster):
        def node_object(self) -> Object:
            reads.append(dict(node["status"]))
            return node

        def features(self) -> Features:
            return Features()

        def slices(self) -> tuple[list[Object], str]:
            return [], "1"

        def create_slice(self, desired: Object, dry_run: bool = False) -> Object:
            return {**desired, "metadata": {**desired["metadata"], "resourceVersion": "1"}}

    settings = SettingsFile(tmp_path / "driver.yml")
    inventory = Inventory(lambda: settings.current, lambda: (), str(build("azure-vm", tmp_path / "machine")))
    publisher = Publisher(NewNode(lambda: UNREACHABLE, "lanewise.dev", "worker-1", 0), inventory, settings)
    publisher.publish("start")
    assert inventory.node_addresses == ()
    node["status"] = {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]}
    publisher.publish("resync")
    assert [str(address) for address in inventory.node_addresses] == ["192.0.2.7"]
    publisher.publish("resync")
    assert len(reads) == 2


def test_watches_that_end_at_once_are_repeated_with_pauses(tmp_path: Path) -> None:
    watches: list[float] = []

    class ClosingCluster(Cluster):
        def slices(self) -> tuple[list[Object], str]:
            return [], "1"

        def watch_slices(self, since: str) -> t.Iterator[tuple[str, Object]]:
            watches.append(time.monotonic())
            return iter(())

    settings = SettingsFile(tmp_path / "driver.yml")
    inventory = Inventory(lambda: settings.current, lambda: (), str(build("azure-vm", tmp_path / "machine")))
    publisher = Publisher(ClosingCluster(lambda: UNREACHABLE, "lanewise.dev", "worker-1", 0), inventory, settings)
    publisher.start()
    until(lambda: len(watches) >= 3, 30)
    publisher.stop()
    assert watches[2] - watches[0] >= 0.4  # the pauses are 0.2 s and 0.4 s, both at least 0.8 times as long


def test_requests_to_an_unreachable_server_are_retried_for_a_limited_time() -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer GET /api/v1/nodes/worker-1"):
        Cluster(lambda: UNREACHABLE, "lanewise.dev", "worker-1", 1.5).node_object()
    # the first three pauses last at least 0.35 s; the usual retries would last 15 s
    assert 0.35 <= time.monotonic() - began < 10


def test_access_is_read_from_the_service_account_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(AccessError, match="does not run in a pod"):
        in_cluster(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(AccessError, match=r"ca\.crt"):
        in_cluster(tmp_path)
    (tmp_path / "ca.crt").write_text("-----BEGIN")
    with pytest.raises(AccessError, match=r"ca\.crt contains no certificate"):
        in_cluster(tmp_path)
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n")
    access = in_cluster(tmp_path)
    assert access.server == "https://[fd00::1]:443" and access.token_file == tmp_path / "token"
    with pytest.raises(AccessError, match="certificates cannot be used"):
        Cluster(lambda: access, "lanewise.dev", "worker-1").node_object()


def test_the_repr_of_access_contains_no_secrets() -> None:
    assert "hunter2" not in repr(Access("https://x", authority="hunter2", certificate="hunter2", token="hunter2"))


def test_only_uevents_of_physical_devices_and_their_interfaces_are_reported() -> None:
    def reason(path: str, subsystem: str) -> str:
        content = f"add@{path}\0ACTION=add\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0SEQNUM=1\0".encode()
        return _uevent(content, lambda name: name == "eth7")

    assert reason("/devices/pci0000:00/0000:00:03.0", "pci") == "device 0000:00:03.0 has changed"
    assert reason("/devices/pci0000:00/0000:00:03.0/infiniband/mlx5_0", "infiniband")
    assert reason("/devices/pci0000:00/0000:00:03.0/net/eth0", "net")
    assert not reason("/devices/virtual/net/cali12345", "net")  # rtnetlink reports virtual interfaces
    assert not reason("/devices/pci0000:00/0000:00:03.0/net/eth0/queues/rx-0", "queues")
    assert not reason("/devices/pci0000:00/0000:00:03.0/block/sda", "block")
    assert not reason("/devices/pci0000:00/0000:00:03.0/net/eth7", "net")  # a claim holds it
    assert reason("/devices/pci0000:00/0000:00:03.0/eth7", "pci")  # not an interface
    assert _uevent(b"libudev\0\xfe\xed", lambda name: False) == ""


#: Prints the events that the monitor reports after each of several changes, and after a flood of messages.
PROGRAM = """
import json, socket, struct, subprocess, threading, time
from lanewise_driver.kernel.monitor import Monitor

seen = []
monitor = Monitor(seen.append, lambda: ["nic*"], lambda name: name == "nicheld")
monitor.start()
found = {}

def events():
    # rtnetlink keeps the order of events, so all earlier ones have arrived with that of nicmark
    time.sleep(0.2)  # the kernel reports changes of the carrier later
    for attempt in range(400):
        if "interface nicmark has changed" in seen:
            break
        if attempt % 100 == 0:  # an event may be lost in the flood
            subprocess.run(f"ip link set nicmark mtu {1000 + time.monotonic_ns() % 499}".split(), check=True)
        time.sleep(0.05)
    return sorted({*seen} - {"interface nicmark has changed"})

for name, commands in {
    "a pod's interface": ["link add veth1 type veth peer name veth2", "link set veth1 up"],
    "a NIC": ["link set nic0 up"],
    "a NIC of a claim": ["link add nicheld type veth peer name far2", "link set nicheld up"],
    "a bridge": ["link add br0 type bridge"],
    "a bridge port": ["link set veth1 master br0"],
    "a NIC as bridge port": ["link set nic0 master br0"],
    "a route": ["route add 198.51.100.0/24 dev nic0"],
    "a default route": ["route add default dev nic0 table 7"],
    "an IPv6 default route": ["-6 route add default dev nic0"],
    "half of all addresses": ["route add 128.0.0.0/1 dev nic0"],
    "a nexthop": ["nexthop add id 7 dev nic0"],
    "a removed NIC": ["link del nic0"],
}.items():
    seen.clear()
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
    found[name] = events()
# events that the buffer cannot hold must not be lost silently, nor end the thread
seen.clear()
lines = "".join(f"route add default dev veth1 table {n}\\n" for n in range(1000, 9000))
subprocess.run(["ip", "link", "set", "veth1", "up"], check=True)
subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
found["flood"] = events()[:1]
seen.clear()
subprocess.run(["ip", "link", "add", "nic1", "type", "veth"], check=True)
found["after the flood"] = "interface nic1 has changed" in events()
# malformed messages of other processes must not end the thread either
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sender:
    for kind in (16, 24):
        for size in (16, 17, 20):
            target = monitor._sockets[0].getsockname()[0]
            sender.sendto(struct.pack("=IHHII", size, kind, 0, 0, 0).ljust(size, b"x"), (target, 0))
seen.clear()
events()
seen.clear()
subprocess.run(["ip", "link", "del", "nic1"], check=True)
found["after malformed messages"] = "interface nic1 has changed" in events()
monitor.stop()
found["stopped"] = not monitor._thread.is_alive()
print(json.dumps(found))
"""


@needs_namespaces
def test_the_monitor_reports_changes_of_nics_bridges_and_default_routes() -> None:
    links = "ip link add nic0 type veth peer name far0 && ip link add nicmark type veth peer name far1"
    shell = f'ip link set lo up && {links} && ip link set far0 up && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", shell, sys.executable, PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("a pod's interface", "a route", "a NIC of a claim"):
        assert found.pop(name) == [], name
    assert found.pop("a NIC") == ["interface nic0 has changed"]
    assert found.pop("a bridge") == ["interface br0 has changed"]
    # the kernel's messages about ports, which do not say that veth1 is one of a pod, are ignored
    assert found.pop("a bridge port") == ["interface br0 has changed"]
    assert "interface nic0 has changed" in found.pop("a NIC as bridge port")
    for name in ("a default route", "an IPv6 default route", "half of all addresses", "a nexthop"):
        assert found.pop(name) == ["a default route has changed"], name
    assert "interface nic0 has changed" in found.pop("a removed NIC")
    assert found == {
        "flood": ["a default route has changed"],
        "after the flood": True,
        "after malformed messages": True,
        "stopped": True,
    }
