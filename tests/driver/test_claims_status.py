# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DHCP leases of claims, and the status of claims in the API server."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import claims_node
from ansible_collections.lanewise.dra.tests.driver.claims_node import ClaimsNode, Sandbox
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import FakeCluster
from lanewise_driver.api.client import NOT_SERVED, ApiError
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import DriverError, KernelError, Refused
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.records import ATTACHED, ATTACHING
from lanewise_driver.claims.service import Service

# leases


@contextlib.contextmanager
def dhcp_server(node: ClaimsNode) -> t.Iterator[Path]:
    """Run a DHCP server at the other end of wire7. Yields its log."""
    if not shutil.which("dnsmasq"):
        pytest.skip("needs dnsmasq")
    claims_node.ip("address", "replace", "10.9.0.1/24", "dev", "far7", netns=node.fabric)
    command = ["nsenter", f"--net=/proc/{node.fabric}/ns/net", "dnsmasq", "--no-daemon", "--port=0", "--no-ping"]
    options = ["--interface=far7", "--bind-dynamic", "--conf-file=/dev/null", "--leasefile-ro", "--user=root"]
    log = Path("/run/dnsmasq.log")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, *options, "--dhcp-range=10.9.0.50,10.9.0.60,2m", "--log-dhcp"], stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        server.terminate()
        server.wait()


def test_a_restarted_driver_renews_and_releases_the_lease(node: ClaimsNode, sandbox: Sandbox) -> None:
    with dhcp_server(node) as log:
        _check_renewal_and_release(node, sandbox, log)


def _check_renewal_and_release(node: ClaimsNode, sandbox: Sandbox, log: Path) -> None:
    service = node.service()
    try:
        service.prepare(node.claims["leased"])
        service.attach(node.request("leased", sandbox.path))
        record = service.store.load(node.claims["leased"].uid)
        assert record and record.held[0].network
        (lease,) = record.held[0].leases
        assert record.held[0].network["ips"] == [lease["address"]] and lease["address"].startswith("10.9.0.")
        service.close()
        lease["boottime"] -= 70  # it was due for renewal while the driver was not running
        service.store.save(record)
        service = node.service()
        assert service.reconcile()
        end = time.monotonic() + 15
        while True:
            renewed = service.store.load(record.uid)
            assert renewed
            if renewed.held[0].leases[0]["boottime"] > lease["boottime"] + 60:
                break
            assert time.monotonic() < end
            time.sleep(0.1)
        assert renewed.phase == ATTACHED and renewed.held[0].network == record.held[0].network
        service.unprepare(node.claims["leased"])
        time.sleep(0.3)
        assert "DHCPRELEASE" in log.read_text()
    finally:
        service.unprepare(node.claims["leased"])
        service.close()


def test_a_lost_lease_is_removed_from_the_status(node: ClaimsNode, sandbox: Sandbox) -> None:
    writer = Writer(node.cluster, settle=0)
    writer.start()
    service = node.service(writer)

    def addresses() -> list[str]:
        assert writer.wait(10)
        (status,) = node.claim("leased")["status"]["devices"]
        return t.cast("list[str]", status.get("networkData", {}).get("ips", []))

    try:
        with dhcp_server(node):
            service.prepare(node.claims["leased"])
            service.attach(node.request("leased", sandbox.path))
            record = service.store.load(node.claims["leased"].uid)
            assert record
            (lease,) = record.held[0].leases
            assert addresses() == [lease["address"]]
        service.close()
        lease["boottime"] -= lease["lifetime"]  # it expired while the driver was not running, and no server answers now
        service.store.save(record)
        service = node.service(writer)
        assert service.reconcile()
        until(lambda: not addresses(), 30)
        record = service.store.load(record.uid)
        assert record and record.held[0].network
        assert record.held[0].network["ips"] == [] and record.held[0].leases[0]["lost"]
    finally:
        service.unprepare(node.claims["leased"])
        service.close()
        writer.stop()


def test_waiting_for_a_lease_blocks_no_other_function_of_the_card(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    try:
        service.prepare(node.claims["leased"])
        ended = threading.Event()

        def attach_without_server() -> None:
            with contextlib.suppress(DriverError):
                service.attach(node.request("leased", sandbox.path))
            ended.set()

        waiting = threading.Thread(target=attach_without_server)
        waiting.start()
        record = service.store.load(node.claims["leased"].uid)
        assert record
        end = time.monotonic() + 10
        while (found := service.store.load(record.uid)) and found.phase != ATTACHING and time.monotonic() < end:
            time.sleep(0.01)
        # other VFs of the card have the same lock
        with service.locks.hold(*(f"device-{device.lock}" for device in record.held)):
            assert not ended.is_set()
        waiting.join(60)
        assert ended.is_set()
    finally:
        service.unprepare(node.claims["leased"])
        service.close()


# the status in the API server


def conditions(node: ClaimsNode, name: str) -> dict[str, dict[str, str]]:
    """The status of each condition by device, from the status of a claim."""
    return {
        device["device"]: {condition["type"]: condition["status"] for condition in device["conditions"]}
        for device in node.claim(name)["status"].get("devices", ())
    }


def test_conditions_are_true_only_while_the_device_is_in_the_pod(node: ClaimsNode, sandbox: Sandbox) -> None:
    writer = Writer(node.cluster, settle=0)
    writer.start()
    service = node.service(writer)
    both = {"Ready": "True", "NetworkReady": "True"}
    neither = {"Ready": "False", "NetworkReady": "False"}

    def reported(name: str) -> dict[str, dict[str, str]]:
        assert writer.wait(10)
        return conditions(node, name)

    service.prepare(node.claims["one"])
    assert reported("one") == {"net-wire0": neither}
    service.attach(node.request("one", sandbox.path))
    assert reported("one") == {"net-wire0": both}
    (status,) = node.claim("one")["status"]["devices"]
    assert status["networkData"] == {
        "interfaceName": "net1",
        "hardwareAddress": "02:00:00:00:01:00",
        "ips": ["198.51.100.7/24"],
    }
    with pytest.raises(Refused):
        service.prepare(node.claims["impossible"])
    assert reported("impossible") == {"net-wire4": neither}
    (status,) = node.claim("impossible")["status"]["devices"]
    assert "no-such-feature" in status["conditions"][0]["message"]
    service.prepare(node.claims["failing"])
    with pytest.raises(KernelError):
        service.attach(node.request("failing", sandbox.path))
    assert reported("failing") == {"net-wire5": neither, "net-wire6": neither}
    for name in ("one", "failing", "impossible"):
        service.unprepare(node.claims[name])
    service.status.put(node.claims["impossible"], [])
    assert reported("one") == reported("failing") == reported("impossible") == {}
    writer.stop()


def test_the_status_is_written_when_the_server_is_back(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    service.prepare(node.claims["one"])
    service.attach(node.request("one", sandbox.path))
    cluster = node.connect(retry_seconds=1)
    writer = Writer(cluster, settle=0)
    writer.start()
    node.plane.stop("kube-apiserver")
    try:
        next_service = Service(node.paths, cluster, service.inventory, writer)
        # without the server it is unknown whether the claim still exists, so the device stays in the pod
        assert not next_service.reconcile()
        assert not writer.wait(1.5)
    finally:
        node.plane.start("kube-apiserver")
        node.plane.wait_ready("kube-apiserver")
    assert writer.wait(30)
    assert conditions(node, "one")["net-wire0"]["Ready"] == "True"
    assert next_service.reconcile()
    next_service.unprepare(node.claims["one"])
    assert writer.wait(10)
    assert conditions(node, "one") == {}
    writer.stop()


def test_a_status_is_kept_while_the_server_does_not_serve_claims(caplog: pytest.LogCaptureFixture) -> None:
    """An API server that is replaced may not serve the version of resource.k8s.io for a while. The claim still exists
    then, unlike after a 404 for the claim itself."""

    class ChangingCluster(FakeCluster):
        served = False

        def set_claim_devices(self, namespace: str, name: str, uid: str, devices: t.Sequence[t.Any]) -> bool:
            if not self.served:
                raise ApiError(404, NOT_SERVED, "GET /apis/resource.k8s.io/v1: 404 page not found")
            return super().set_claim_devices(namespace, name, uid, devices)

    cluster = ChangingCluster()
    writer = Writer(cluster, settle=0)
    writer.start()
    ended = threading.Event()
    writer.put(ClaimRef("default", "one", "0000-one"), [{"device": "nic0"}], ended.set)
    until(lambda: "404 page not found" in caplog.text, 10)
    assert not ended.is_set()
    cluster.served = True
    assert ended.wait(10) and cluster.statuses == {"one": [{"device": "nic0"}]}
    writer.stop()
