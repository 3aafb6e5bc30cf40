# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure what the driver does for a claim: prepare, attach, and publish again. Runs in separate namespaces."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.driver import claims_world
from ansible_collections.lanewise.dra.tests.driver.claims_world import NODE, WIRES, Sandbox, World, ip, make_wires
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
        world = World(plane, folder / "node", make_wires())
        world.publish(claims_world.INVENTORY)
        writer = Writer(world.cluster)
        writer.start()
        service = world.service(writer)
        plugin = Plugin(world.paths, service, Metrics())
        plugin.start()
        yield from _prepare(world, plugin)
        yield from _attach(world, service)
        plugin.stop(1)
        writer.stop()
        yield from _republish(world, plane, folder / "driver.yml")


def _prepare(world: World, plugin: Plugin) -> Figures:
    claim = world.claims["one"]
    kubelet = Kubelet(plugin.service_socket, protocol.pool)
    registration = Kubelet(plugin.registration_socket, protocol.pool)
    asked = [{"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}]

    def prepare() -> float:
        start = time.perf_counter()
        answer = kubelet.call(protocol.DRA["v1"], "NodePrepareResources", claims=asked)
        taken = time.perf_counter() - start
        assert not answer.claims[claim.uid].error, answer
        kubelet.call(protocol.DRA["v1"], "NodeUnprepareResources", claims=asked)
        return taken

    taken = interleaved(
        100,
        prepare=prepare,
        empty=lambda: registration.call(protocol.REGISTRATION, "GetInfo"),
        read=lambda: (world.cluster.claim(claim.namespace, claim.name), world.cluster.pod(claim.namespace, "one")),
    )
    kubelet.close()
    registration.close()
    yield from median_and_p99(
        "driver_prepare",
        taken["prepare"],
        lambda share: (
            f"an empty gRPC call on a socket of the same kind, {percentile(taken['empty'], share) * 1000:.2f} ms, "
            f"and the two reads of claim and pod that it makes, {percentile(taken['read'], share) * 1000:.2f} ms"
        ),
        "NodePrepareResources by gRPC, with records and CDI specs on disk (fsync) and a real API server; "
        "100 interleaved rounds",
    )


def _attach(world: World, service: Service) -> Figures:
    claim = world.claims["one"]
    sandbox = Sandbox()
    service.prepare(claim)
    request = world.request("one", sandbox.path)

    def attach() -> float:
        start = time.perf_counter()
        service.attach(request)
        taken = time.perf_counter() - start
        service.unprepare(claim)
        service.prepare(claim)
        return taken

    def program() -> float:
        start = time.perf_counter()
        ip("link", "set", WIRES[4], "netns", str(sandbox.pid))
        taken = time.perf_counter() - start
        ip("link", "set", WIRES[4], "netns", "1", netns=sandbox.pid)
        return taken

    def alone() -> float:
        with Netlink() as connection, open(sandbox.path, "rb") as target:
            link = links.get(connection, name=WIRES[4])
            assert link
            start = time.perf_counter()
            links.change(connection, link.index, netlink.u32(links.IFLA_NET_NS_FD, target.fileno()))
            taken = time.perf_counter() - start
        ip("link", "set", WIRES[4], "netns", "1", netns=sandbox.pid)
        return taken

    taken = interleaved(60, attach=attach, program=program, alone=alone)
    service.unprepare(claim)
    sandbox.end()
    yield from median_and_p99(
        "driver_attach",
        taken["attach"],
        lambda share: (
            f"ip link set X netns Y as a program, {percentile(taken['program'], share) * 1000:.1f} ms, and "
            f"its one request alone, {percentile(taken['alone'], share) * 1000:.1f} ms"
        ),
        "a veth with address, route, rule, neighbour, sysctl and MTU, its host state read first, records on disk "
        "(fsync); 60 interleaved rounds (so the 99th percentile is the slowest)",
    )


def _republish(world: World, plane: ControlPlane, file: Path) -> Figures:
    file.write_text(json.dumps({"node_name": NODE, "virtual_interfaces": ["wire*"]}))
    settings = SettingsFile(file)
    publisher = Publisher(world.cluster, Inventory(lambda: settings.current, lambda: []), settings)
    slices = f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName={NODE}"

    def mtu() -> int:
        for item in plane.expect("GET", slices)["items"]:
            for device in item["spec"].get("devices") or ():
                if device["name"] == f"net-{WIRES[4]}":
                    return int(device["attributes"]["mtu"]["int"])
        return 0

    publisher.start()
    plane.wait_for(lambda: publisher.last_published, "the slices", 60)
    wanted = [1400]

    def republish() -> float:
        time.sleep(1.0)  # it probes at most twice a second
        wanted[0] = 1450 if wanted[0] == 1400 else 1400
        start = time.perf_counter()
        ip("link", "set", WIRES[4], "mtu", str(wanted[0]))
        while mtu() != wanted[0]:
            assert time.perf_counter() - start < 60
        return time.perf_counter() - start

    def write() -> float:
        (item,) = [one for one in plane.expect("GET", slices)["items"] if one["spec"].get("devices")]
        item["metadata"].setdefault("annotations", {})["round"] = str(time.time())
        start = time.perf_counter()
        plane.expect("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{item['metadata']['name']}", item)
        return time.perf_counter() - start

    taken = interleaved(10, republish=republish, write=write)
    publisher.stop()
    yield figure(
        "driver_republish_s",
        statistics.median(taken["republish"]),
        "s",
        f"the server's write of the same slice, {statistics.median(taken['write']) * 1000:.1f} ms, after "
        f"{SETTLE_SECONDS} s in which it waits for further changes",
        "from a change of an interface's MTU to the slice that says so at the API server; 10 rounds, median",
    )
