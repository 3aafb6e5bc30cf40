# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What our driver and DRANET do in the same faults: the table of docs/comparison.md.

The kernel judges: what is in the pod, and whether the node's interfaces are as before. A run appends what it saw to
.cache/faults.jsonl.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.cluster import driver as ours
from ansible_collections.lanewise.dra.tests.cluster import faults
from ansible_collections.lanewise.dra.tests.cluster.faults import Forwarder, Scene, held
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.cluster.sandbox import hierarchies
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")

Object = dict[str, t.Any]
LOG = COLLECTION / ".cache" / "faults.jsonl"
NET1: Object = {"name": "net1", "addresses": ["203.0.113.2/28"]}


def no_fault(scene: Scene) -> str:
    """The claim asks for no address, so that the node's go along."""
    for command in (
        "link set rail0 mtu 1480 alias of-the-node",
        "address add 203.0.113.3/28 dev rail0",
        "route add 198.18.0.0/24 via 203.0.113.1 dev rail0 metric 77",
        "route add 10.200.0.0/16 via 203.0.113.1 dev rail0 table 100",
        "neighbour add 203.0.113.9 lladdr 02:00:00:00:00:99 dev rail0 nud permanent",
    ):
        ip(command)
    Path("/proc/sys/net/ipv4/conf/rail0/arp_announce").write_text("2")
    scene.note()
    scene.post("plain", {"name": "net1"})
    return scene.seen("plain")


def killed_in_prepare(scene: Scene) -> str:
    scene.forwarder.hold()
    scene.post("killed")
    scene.plane.wait_for(scene.forwarder.asked.is_set, "the driver's request in prepare", faults.SLOW)
    scene.kill()
    failed = "FailedPrepareDynamicResources"
    scene.plane.wait_for(lambda: any(failed in line for line in scene.node.events("killed")), failed, 20)
    scene.forwarder.release()
    scene.start()
    return scene.seen("killed")


def killed_before_attach(scene: Scene) -> str:
    with held(scene.plane, "ADD") as wait:
        scene.post("early")
        wait()
        scene.kill()
    time.sleep(5)
    scene.start()
    return scene.seen("early")


def hangs_in_attach(scene: Scene) -> str:
    with held(scene.plane, "ADD") as wait:
        scene.post("hangs")
        wait()
        scene.signal(signal.SIGSTOP)
    time.sleep(5)
    scene.signal(signal.SIGCONT)
    return scene.seen("hangs")


def restarted(scene: Scene) -> str:
    scene.run("lasting")
    scene.kill()
    scene.start()
    return scene.seen("lasting")


def kubelet_restarted(scene: Scene) -> str:
    scene.run("kubelet")
    scene.node.stop("kubelet")
    scene.node.start("kubelet")
    time.sleep(5)
    return scene.seen("kubelet")


def away_while_it_ends(scene: Scene) -> str:
    scene.run("away")
    scene.kill()
    scene.delete("away")
    time.sleep(5)
    scene.start()
    return ""


def killed_before_unprepare(scene: Scene) -> str:
    scene.run("late")
    with held(scene.plane, "DEL") as wait:
        scene.delete("late")
        wait()
        scene.kill()
    time.sleep(3)
    scene.start()
    return ""


CHANGES = (
    "ip link set net1 down",
    "ip link set net1 address 02:00:00:00:00:77 mtu 1300 alias of-the-pod txqueuelen 7",
    "ip link set net1 up",
    "ip address add 203.0.113.77/28 dev net1",
    "ip link add link net1 name stacked type macvlan",
    "tc qdisc replace dev net1 root tbf rate 1gbit burst 32k latency 10ms",
)


def changed_by_the_pod(scene: Scene) -> str:
    scene.run("changes", privileged=True)
    scene.node.execute("changes", "sh", "-ec", "; ".join(CHANGES))
    return ""


def renamed_by_the_pod(scene: Scene) -> str:
    scene.run("renames", privileged=True)
    scene.node.execute("renames", "sh", "-ec", "ip link set net1 down; ip link set net1 name other")
    return ""


def namespace_gone(scene: Scene) -> str:
    """As with a runtime that removes the pod's namespace before it says that the pod has stopped."""
    scene.run("gone")
    for path in Path("/run/netns").glob("cni-*"):
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        path.unlink()
    pods = [top / scene.node.folder.name / "kubepods" for top in hierarchies()]
    groups = [path for top in pods for path in top.rglob("cgroup.procs")]
    for pid in {int(pid) for group in groups for pid in group.read_text().split()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return ""


def no_server_at_prepare(scene: Scene) -> str:
    scene.forwarder.cut()
    scene.post("prepares")
    failed = "FailedPrepareDynamicResources"
    scene.plane.wait_for(lambda: any(failed in line for line in scene.node.events("prepares")), failed, 60)
    scene.forwarder.open()
    return scene.seen("prepares")


def no_server_at_unprepare(scene: Scene) -> str:
    scene.run("unprepares")
    scene.forwarder.cut()
    scene.delete("unprepares")
    try:
        scene.plane.wait_for(lambda: not scene.stuck(), "the pod's end without an API server", 40)
        return "pod ends"
    except faults.Failed:
        return "pod waits for the API server"
    finally:
        scene.forwarder.open()


def unknown_field(scene: Scene) -> str:
    scene.post("unknown", {"name": "net1", "adresses": ["203.0.113.2/28"]})
    return scene.refused("unknown", "adresses")


def refused_by_the_kernel(scene: Scene) -> str:
    """The gateway is none of the interface's neighbors."""
    scene.post("kernel", {**NET1, "routes": [{"destination": "192.0.2.128/25", "gateway": "198.18.0.1"}]})
    return scene.refused("kernel", "unreachable", "invalid gateway")


def one_name_twice(scene: Scene) -> str:
    scene.post("twice", NET1, {**NET1, "addresses": ["203.0.113.18/28"]})
    return scene.refused("twice", "net1", "file exists")


class Row(t.NamedTuple):
    """A line of the table: a fault, and what is seen with our driver and with DRANET. What differs from run to run is
    separated by ` or `."""

    fault: str
    make: t.Callable[[Scene], str]
    ours: str
    dranet: str


HAS, LATE, BARE, NONE, SAME, LOST = faults.HAS, faults.LATE, faults.BARE, faults.NONE, faults.SAME, faults.LOST
STARTS, ENDS, REFUSED = f"{HAS}; {SAME}", f"pod ends; {SAME}", f"{NONE}; an event names the cause; {SAME}"
CHANGED = "node: MAC, MTU, addresses, alias, routes, sysctls, txqlen"
NOT_RESTORED = "node: addresses, neighbors, routes, sysctls"
ROWS = [
    Row("none; the node's interface has addresses, routes, sysctls", no_fault, STARTS, f"{HAS}; {NOT_RESTORED}"),
    Row("driver killed (-9) in prepare", killed_in_prepare, STARTS, STARTS),
    Row("driver killed after prepare, back 5 s later", killed_before_attach, STARTS, f"{BARE}; {SAME}"),
    Row("driver stopped for 5 s while a pod starts", hangs_in_attach, STARTS, f"{LATE}; {SAME}"),
    Row("driver killed while a pod runs", restarted, STARTS, STARTS),
    Row("kubelet killed while a pod runs", kubelet_restarted, STARTS, STARTS),
    Row("driver killed, and a pod ends before it is back", away_while_it_ends, SAME, LOST),
    Row("driver killed after a pod has stopped, before unprepare", killed_before_unprepare, SAME, SAME),
    Row("privileged pod changes MAC, MTU, alias, queue, addresses", changed_by_the_pod, SAME, CHANGED),
    Row("privileged pod renames the interface", renamed_by_the_pod, SAME, LOST),
    Row("pod's namespace is gone before the driver hears of its end", namespace_gone, SAME, LOST),
    Row("driver cannot reach the API server at prepare", no_server_at_prepare, STARTS, STARTS),
    Row("driver cannot reach the API server when a pod ends", no_server_at_unprepare, ENDS, ENDS),
    Row("claim with a misspelled field", unknown_field, REFUSED, REFUSED),
    Row("claim with a route that the kernel refuses", refused_by_the_kernel, REFUSED, REFUSED),
    Row(
        "two claims of a pod ask for one interface name",
        one_name_twice,
        REFUSED,
        f"{REFUSED} or {NONE}; an event names the cause; {LOST}",
    ),
]


def test_the_documentation_has_this_table() -> None:
    page = (COLLECTION / "docs" / "comparison.md").read_text()
    assert "\n".join(f"| {row.fault} | {row.ours} | {row.dranet} |" for row in ROWS) in page


@pytest.fixture(name="forwarder", scope="module")
def _forwarder(node: Node) -> Forwarder:
    node.plane.expect("POST", f"{ours.API}/deviceclasses", {"metadata": {"name": "any"}, "spec": {}})
    faults.make_cni_wait(node)
    return Forwarder(node.plane.ports["kube-apiserver"])


@pytest.fixture(name="subject", scope="module", params=[faults.Lanewise, faults.Peer], ids=["lanewise", "dranet"])
def _subject(node: Node, forwarder: Forwarder, request: pytest.FixtureRequest) -> faults.Subject:
    try:
        subject: faults.Subject = request.param(node, f"https://127.0.0.1:{forwarder.port}")
    except Missing as missing:
        pytest.skip(str(missing))
    return subject


@pytest.fixture(name="scene")
def _scene(node: Node, forwarder: Forwarder, subject: faults.Subject) -> t.Iterator[Scene]:
    scene = Scene(node, forwarder, subject)
    yield scene
    print(scene.log())  # shown where the test failed
    scene.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.make.__name__)
def test_a_fault_has_the_result_that_the_table_gives(scene: Scene, row: Row) -> None:
    found = "; ".join(filter(None, [row.make(scene), scene.end()]))
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        log.write(json.dumps({"driver": scene.subject.name, "fault": row.fault, "found": found}) + "\n")
    expected = row.ours if scene.subject.name == ours.NAME else row.dranet
    assert found in expected.split(" or ")
