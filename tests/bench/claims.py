# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure how long the driver takes to prepare and attach a claim and to publish a change, in separate namespaces."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.driver import claims_node
from ansible_collections.lanewise.dra.tests.driver.claims_node import NODE, WIRES, ClaimsNode, Sandbox, ip, make_wires
from ansible_collections.lanewise.dra.tests.driver.kubelet import Kubelet
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.base.settings import SettingsFile
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.service import Service
from lanewise_driver.kernel import links, netlink
from lanewise_driver.kernel.netlink import Netlink
from lanewise_driver.kubelet import protocol
from lanewise_driver.kubelet.plugin import Plugin
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.publish.publisher import SETTLE_SECONDS, Publisher

from tests.bench.driver import Figures, figure, interleaved, median_and_p99, percentile


def claims_inside(folder: Path) -> Figures:
    with ControlPlane() as plane:
        node = ClaimsNode(plane, folder / "node", make_wires())
        node.publish(claims_node.INVENTORY)
        writer = Writer(node.cluster)
        writer.start()
        service = node.service(writer)
        plugin = Plugin(node.paths, service, Metrics())
        plugin.start()
        yield from _measure_prepare(node, plugin)
        yield from _measure_attach(node, service)
        plugin.stop(1)
        writer.stop()
        yield from _measure_republish(node, plane, folder / "driver.yml")


def _measure_prepare(node: ClaimsNode, plugin: Plugin) -> Figures:
    claim = node.claims["one"]
    kubelet = Kubelet(plugin.service_socket, protocol.pool)
    registration = Kubelet(plugin.registration_socket, protocol.pool)
    claims = [{"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}]

    def prepare() -> float:
        start = time.perf_counter()
        answer = kubelet.call(protocol.DRA["v1"], "NodePrepareResources", claims=claims)
        seconds = time.perf_counter() - start
        assert not answer.claims[claim.uid].error, answer
        kubelet.call(protocol.DRA["v1"], "NodeUnprepareResources", claims=claims)
        return seconds

    seconds = interleaved(
        100,
        prepare=prepare,
        empty=lambda: registration.call(protocol.REGISTRATION, "GetInfo"),
        reads=lambda: (node.cluster.claim(claim.namespace, claim.name), node.cluster.pod(claim.namespace, "one")),
    )
    kubelet.close()
    registration.close()
    yield from median_and_p99(
        "driver_prepare",
        seconds["prepare"],
        lambda share: (
            f"an empty gRPC call on a socket of the same kind, {percentile(seconds['empty'], share) * 1000:.2f} ms, "
            f"and the two reads of claim and pod that it makes, {percentile(seconds['reads'], share) * 1000:.2f} ms"
        ),
        "NodePrepareResources by gRPC, with records and CDI specs on disk (fsync) and a real API server; "
        "100 interleaved rounds",
    )


def _measure_attach(node: ClaimsNode, service: Service) -> Figures:
    claim = node.claims["one"]
    sandbox = Sandbox()
    service.prepare(claim)
    request = node.request("one", sandbox.path)

    def attach() -> float:
        start = time.perf_counter()
        service.attach(request)
        seconds = time.perf_counter() - start
        service.unprepare(claim)
        service.prepare(claim)
        return seconds

    def move_by_program() -> float:
        start = time.perf_counter()
        ip("link", "set", WIRES[4], "netns", str(sandbox.pid))
        seconds = time.perf_counter() - start
        ip("link", "set", WIRES[4], "netns", "1", netns=sandbox.pid)
        return seconds

    def move_by_request() -> float:
        with Netlink() as connection, open(sandbox.path, "rb") as target:
            link = links.get(connection, name=WIRES[4])
            assert link
            start = time.perf_counter()
            links.change(connection, link.index, netlink.u32(links.IFLA_NET_NS_FD, target.fileno()))
            seconds = time.perf_counter() - start
        ip("link", "set", WIRES[4], "netns", "1", netns=sandbox.pid)
        return seconds

    seconds = interleaved(60, attach=attach, program=move_by_program, request=move_by_request)
    service.unprepare(claim)
    sandbox.end()
    yield from median_and_p99(
        "driver_attach",
        seconds["attach"],
        lambda share: (
            f"ip link set X netns Y as a program, {percentile(seconds['program'], share) * 1000:.1f} ms, and "
            f"its one request alone, {percentile(seconds['request'], share) * 1000:.1f} ms"
        ),
        "a veth with address, route, rule, neighbour, sysctl and MTU, its host state read first, records on disk "
        "(fsync); 60 interleaved rounds (so the 99th percentile is the slowest)",
    )


def _measure_republish(node: ClaimsNode, plane: ControlPlane, file: Path) -> Figures:
    file.write_text(json.dumps({"node_name": NODE, "virtual_interfaces": ["wire*"]}))
    settings = SettingsFile(file)
    publisher = Publisher(node.cluster, Inventory(lambda: settings.current, lambda: []), settings)
    slices = f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName={NODE}"

    def published_mtu() -> int:
        for item in plane.expect("GET", slices)["items"]:
            for device in item["spec"].get("devices") or ():
                if device["name"] == f"net-{WIRES[4]}":
                    return int(device["attributes"]["mtu"]["int"])
        return 0

    publisher.start()
    plane.wait_for(lambda: publisher.last_published, "the slices", 60)
    mtu = 1400

    def republish() -> float:
        nonlocal mtu
        time.sleep(1.0)  # the driver probes at most twice a second
        mtu = 1450 if mtu == 1400 else 1400
        start = time.perf_counter()
        ip("link", "set", WIRES[4], "mtu", str(mtu))
        while published_mtu() != mtu:
            assert time.perf_counter() - start < 60
        return time.perf_counter() - start

    def write_slice() -> float:
        (published,) = [item for item in plane.expect("GET", slices)["items"] if item["spec"].get("devices")]
        published["metadata"].setdefault("annotations", {})["round"] = str(time.time())
        start = time.perf_counter()
        plane.expect("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{published['metadata']['name']}", published)
        return time.perf_counter() - start

    seconds = interleaved(10, republish=republish, write=write_slice)
    publisher.stop()
    yield figure(
        "driver_republish_s",
        statistics.median(seconds["republish"]),
        "s",
        f"the server's write of the same slice, {statistics.median(seconds['write']) * 1000:.1f} ms, after "
        f"{SETTLE_SECONDS} s in which it waits for further changes",
        "from a change of an interface's MTU to the slice that says so at the API server; 10 rounds, median",
    )
