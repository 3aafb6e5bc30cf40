# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the lanewise driver and DRANET handle the same faults: the table in docs/comparison.md.

The results are read from the kernel: the interfaces in the pod, and the changes to the node's interfaces. A run appends
its results to .cache/faults.jsonl.
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
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster import driver as ours
from ansible_collections.lanewise.dra.tests.cluster import faults
from ansible_collections.lanewise.dra.tests.cluster.faults import (
    HAS_INTERFACE,
    INTERFACE_LOST,
    LATE_INTERFACE,
    NO_INTERFACE,
    NOT_STARTED,
    RESTORED,
    Forwarder,
    Testbed,
    cni_held,
)
from ansible_collections.lanewise.dra.tests.cluster.node import Node, ip
from ansible_collections.lanewise.dra.tests.cluster.sandbox import hierarchies
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from environment import Missing  # tools/cluster.py has put its folder on the path

pytest.importorskip("lanewise_driver", reason="the driver's package is not installed: 'make test ONLY=node' does it")

LOG = COLLECTION / ".cache" / "faults.jsonl"
NET1: Object = {"name": "net1", "addresses": ["203.0.113.2/28"]}


def no_fault(testbed: Testbed) -> str:
    """The claim sets no addresses, so the pod gets the node's addresses."""
    for command in (
        "link set rail0 mtu 1480 alias of-the-node",
        "address add 203.0.113.3/28 dev rail0",
        "route add 198.18.0.0/24 via 203.0.113.1 dev rail0 metric 77",
        "route add 10.200.0.0/16 via 203.0.113.1 dev rail0 table 100",
        "neighbour add 203.0.113.9 lladdr 02:00:00:00:00:99 dev rail0 nud permanent",
    ):
        ip(command)
    Path("/proc/sys/net/ipv4/conf/rail0/arp_announce").write_text("2")
    testbed.record_state()
    testbed.post("plain", {"name": "net1"})
    return testbed.start_result("plain")


def killed_in_prepare(testbed: Testbed) -> str:
    testbed.forwarder.hold()
    testbed.post("killed")
    testbed.plane.wait_for(
        testbed.forwarder.request_waiting.is_set, "the driver's request in prepare", faults.TIMEOUT_SECONDS
    )
    testbed.kill()
    failed = "FailedPrepareDynamicResources"
    testbed.plane.wait_for(lambda: any(failed in line for line in testbed.node.events("killed")), failed, 20)
    testbed.forwarder.release()
    testbed.start()
    return testbed.start_result("killed")


def killed_before_attach(testbed: Testbed) -> str:
    with cni_held(testbed.plane, "ADD") as wait:
        testbed.post("early")
        wait()
        testbed.kill()
    time.sleep(5)
    testbed.start()
    return testbed.start_result("early")


def hangs_in_attach(testbed: Testbed) -> str:
    with cni_held(testbed.plane, "ADD") as wait:
        testbed.post("hangs")
        wait()
        testbed.signal(signal.SIGSTOP)
    time.sleep(5)
    testbed.signal(signal.SIGCONT)
    return testbed.start_result("hangs")


def restarted(testbed: Testbed) -> str:
    testbed.run("lasting")
    testbed.kill()
    testbed.start()
    return testbed.start_result("lasting")


def kubelet_restarted(testbed: Testbed) -> str:
    testbed.run("kubelet")
    testbed.node.stop("kubelet")
    testbed.node.start("kubelet")
    time.sleep(5)
    return testbed.start_result("kubelet")


def down_while_the_pod_ends(testbed: Testbed) -> str:
    testbed.run("ends")
    testbed.kill()
    testbed.delete("ends")
    time.sleep(5)
    testbed.start()
    return ""


def killed_before_unprepare(testbed: Testbed) -> str:
    testbed.run("late")
    with cni_held(testbed.plane, "DEL") as wait:
        testbed.delete("late")
        wait()
        testbed.kill()
    time.sleep(3)
    testbed.start()
    return ""


CHANGES = (
    "ip link set net1 down",
    "ip link set net1 address 02:00:00:00:00:77 mtu 1300 alias of-the-pod txqueuelen 7",
    "ip link set net1 up",
    "ip address add 203.0.113.77/28 dev net1",
    "ip link add link net1 name stacked type macvlan",
    "tc qdisc replace dev net1 root tbf rate 1gbit burst 32k latency 10ms",
)


def changed_by_the_pod(testbed: Testbed) -> str:
    testbed.run("changes", privileged=True)
    testbed.node.execute("changes", "sh", "-ec", "; ".join(CHANGES))
    return ""


def renamed_by_the_pod(testbed: Testbed) -> str:
    testbed.run("renames", privileged=True)
    testbed.node.execute("renames", "sh", "-ec", "ip link set net1 down; ip link set net1 name other")
    return ""


def namespace_removed(testbed: Testbed) -> str:
    """As with a runtime that removes the pod's namespace before it reports that the pod has stopped."""
    testbed.run("removed")
    for path in Path("/run/netns").glob("cni-*"):
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        path.unlink()
    pods = [top / testbed.node.folder.name / "kubepods" for top in hierarchies()]
    process_files = [path for top in pods for path in top.rglob("cgroup.procs")]
    for pid in {int(pid) for path in process_files for pid in path.read_text().split()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return ""


def no_server_at_prepare(testbed: Testbed) -> str:
    testbed.forwarder.cut()
    testbed.post("prepares")
    failed = "FailedPrepareDynamicResources"
    testbed.plane.wait_for(lambda: any(failed in line for line in testbed.node.events("prepares")), failed, 60)
    testbed.forwarder.open()
    return testbed.start_result("prepares")


def no_server_at_unprepare(testbed: Testbed) -> str:
    testbed.run("unprepares")
    testbed.forwarder.cut()
    testbed.delete("unprepares")
    try:
        testbed.plane.wait_for(lambda: not testbed.remaining(), "the pod's deletion without an API server", 40)
        return "pod ends"
    except faults.Failed:
        return "pod waits for the API server"
    finally:
        testbed.forwarder.open()


def unknown_field(testbed: Testbed) -> str:
    testbed.post("unknown", {"name": "net1", "adresses": ["203.0.113.2/28"]})
    return testbed.refusal_result("unknown", "adresses")


def refused_by_the_kernel(testbed: Testbed) -> str:
    """The gateway is not reachable on the interface."""
    testbed.post("kernel", {**NET1, "routes": [{"destination": "192.0.2.128/25", "gateway": "198.18.0.1"}]})
    return testbed.refusal_result("kernel", "unreachable", "invalid gateway")


def same_name_twice(testbed: Testbed) -> str:
    testbed.post("twice", NET1, {**NET1, "addresses": ["203.0.113.18/28"]})
    return testbed.refusal_result("twice", "net1", "file exists")


class Row(t.NamedTuple):
    """A row of the table: a fault, and its results with the lanewise driver and with DRANET. If the result differs from
    run to run, the results are separated by ` or `. `make` causes the fault."""

    fault: str
    make: t.Callable[[Testbed], str]
    ours: str
    dranet: str


STARTS = f"{HAS_INTERFACE}; {RESTORED}"
ENDS = f"pod ends; {RESTORED}"
REFUSED = f"{NOT_STARTED}; an event names the cause; {RESTORED}"
CHANGED = "node: MAC, MTU, addresses, alias, routes, sysctls, txqlen"
NOT_RESTORED = "node: addresses, neighbors, routes, sysctls"
ROWS = [
    Row(
        "none; the node's interface has addresses, routes, sysctls",
        no_fault,
        STARTS,
        f"{HAS_INTERFACE}; {NOT_RESTORED}",
    ),
    Row("driver killed (-9) in prepare", killed_in_prepare, STARTS, STARTS),
    Row("driver killed after prepare, back 5 s later", killed_before_attach, STARTS, f"{NO_INTERFACE}; {RESTORED}"),
    Row("driver stopped for 5 s while a pod starts", hangs_in_attach, STARTS, f"{LATE_INTERFACE}; {RESTORED}"),
    Row("driver killed while a pod runs", restarted, STARTS, STARTS),
    Row("kubelet killed while a pod runs", kubelet_restarted, STARTS, STARTS),
    Row("driver killed, and a pod ends before it is back", down_while_the_pod_ends, RESTORED, INTERFACE_LOST),
    Row("driver killed after a pod has stopped, before unprepare", killed_before_unprepare, RESTORED, RESTORED),
    Row("privileged pod changes MAC, MTU, alias, queue, addresses", changed_by_the_pod, RESTORED, CHANGED),
    Row("privileged pod renames the interface", renamed_by_the_pod, RESTORED, INTERFACE_LOST),
    Row("pod's namespace is removed before the driver learns of its end", namespace_removed, RESTORED, INTERFACE_LOST),
    Row("driver cannot reach the API server at prepare", no_server_at_prepare, STARTS, STARTS),
    Row("driver cannot reach the API server when a pod ends", no_server_at_unprepare, ENDS, ENDS),
    Row("claim with a misspelled field", unknown_field, REFUSED, REFUSED),
    Row("claim with a route that the kernel refuses", refused_by_the_kernel, REFUSED, REFUSED),
    Row(
        "two claims of a pod request the same interface name",
        same_name_twice,
        REFUSED,
        f"{REFUSED} or {NOT_STARTED}; an event names the cause; {INTERFACE_LOST}",
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


@pytest.fixture(
    name="subject", scope="module", params=[faults.LanewiseSubject, faults.DranetSubject], ids=["lanewise", "dranet"]
)
def _subject(node: Node, forwarder: Forwarder, request: pytest.FixtureRequest) -> faults.Subject:
    try:
        subject: faults.Subject = request.param(node, f"https://127.0.0.1:{forwarder.port}")
    except Missing as missing:
        pytest.skip(str(missing))
    return subject


@pytest.fixture(name="testbed")
def _testbed(node: Node, forwarder: Forwarder, subject: faults.Subject) -> t.Iterator[Testbed]:
    testbed = Testbed(node, forwarder, subject)
    yield testbed
    print(testbed.log())  # shown if the test failed
    testbed.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.make.__name__)
def test_a_fault_has_the_documented_result(testbed: Testbed, row: Row) -> None:
    result = "; ".join(filter(None, [row.make(testbed), testbed.end_pods()]))
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        log.write(json.dumps({"driver": testbed.subject.name, "fault": row.fault, "found": result}) + "\n")
    expected = row.ours if testbed.subject.name == ours.NAME else row.dranet
    assert result in expected.split(" or ")
