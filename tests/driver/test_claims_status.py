# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The leases of claims, and their status in the API server."""

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
from ansible_collections.lanewise.dra.tests.driver import claims_world as world_module
from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox, World
from lanewise_driver.base.errors import DriverError, KernelError, Refused
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.records import ATTACHED
from lanewise_driver.claims.service import Service

# leases


@contextlib.contextmanager
def dhcp_server(world: World) -> t.Iterator[Path]:
    """Run a DHCP server on the fabric. Yields its log."""
    if not shutil.which("dnsmasq"):
        pytest.skip("needs dnsmasq")
    world_module.ip("address", "replace", "10.9.0.1/24", "dev", "far7", netns=world.fabric)
    command = ["nsenter", f"--net=/proc/{world.fabric}/ns/net", "dnsmasq", "--no-daemon", "--port=0", "--no-ping"]
    more = ["--interface=far7", "--bind-dynamic", "--conf-file=/dev/null", "--leasefile-ro", "--user=root"]
    log = Path("/run/dnsmasq.log")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, *more, "--dhcp-range=10.9.0.50,10.9.0.60,2m", "--log-dhcp"], stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        server.terminate()
        server.wait()


def test_a_lease_is_kept_over_a_restart(clean: World, sandbox: Sandbox) -> None:
    with dhcp_server(clean) as log:
        _check_lease_is_renewed(clean, sandbox, log)


def _check_lease_is_renewed(clean: World, sandbox: Sandbox, log: Path) -> None:
    service = clean.service()
    try:
        service.prepare(clean.claims["leased"])
        service.attach(clean.request("leased", sandbox.path))
        record = service.store.load(clean.claims["leased"].uid)
        assert record and record.held[0].network
        (lease,) = record.held[0].leases
        assert record.held[0].network["ips"] == [lease["address"]] and lease["address"].startswith("10.9.0.")
        service.close()
        lease["boottime"] -= 70  # it was due for renewal while the driver was not running
        service.store.save(record)
        service = clean.service()
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
        service.unprepare(clean.claims["leased"])
        time.sleep(0.3)
        assert "DHCPRELEASE" in log.read_text()
    finally:
        service.unprepare(clean.claims["leased"])
        service.close()


def test_a_lost_lease_is_removed_from_the_status(clean: World, sandbox: Sandbox) -> None:
    writer = Writer(clean.cluster, settle=0)
    writer.start()
    service = clean.service(writer)

    def addresses() -> list[str]:
        assert writer.wait(10)
        (status,) = clean.claim("leased")["status"]["devices"]
        return t.cast("list[str]", status.get("networkData", {}).get("ips", []))

    try:
        with dhcp_server(clean):
            service.prepare(clean.claims["leased"])
            service.attach(clean.request("leased", sandbox.path))
            record = service.store.load(clean.claims["leased"].uid)
            assert record
            (lease,) = record.held[0].leases
            assert addresses() == [lease["address"]]
        service.close()
        lease["boottime"] -= lease["lifetime"]  # it expired while the driver was not running, and no server answers now
        service.store.save(record)
        service = clean.service(writer)
        assert service.reconcile()
        until(lambda: not addresses(), 30)
        record = service.store.load(record.uid)
        assert record and record.held[0].network
        assert record.held[0].network["ips"] == [] and record.held[0].leases[0]["lost"]
    finally:
        service.unprepare(clean.claims["leased"])
        service.close()
        writer.stop()


def test_waiting_for_a_lease_blocks_no_other_function_of_the_card(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    try:
        service.prepare(clean.claims["leased"])
        ended = threading.Event()

        def wait_in_vain() -> None:
            with contextlib.suppress(DriverError):
                service.attach(clean.request("leased", sandbox.path))
            ended.set()

        waiting = threading.Thread(target=wait_in_vain)
        waiting.start()
        record = service.store.load(clean.claims["leased"].uid)
        assert record
        end = time.monotonic() + 10
        while (now := service.store.load(record.uid)) and now.phase != "attaching" and time.monotonic() < end:
            time.sleep(0.01)
        # other VFs of a card have the same lock
        with service.locks.hold(*(f"device-{device.lock}" for device in record.held)):
            assert not ended.is_set()
        waiting.join(60)
        assert ended.is_set()
    finally:
        service.unprepare(clean.claims["leased"])
        service.close()


# the claim's status


def conditions(world: World, name: str) -> dict[str, dict[str, str]]:
    return {
        one["device"]: {condition["type"]: condition["status"] for condition in one["conditions"]}
        for one in world.claim(name)["status"].get("devices", ())
    }


def test_conditions_follow_whether_the_device_is_in_the_pod(clean: World, sandbox: Sandbox) -> None:
    writer = Writer(clean.cluster, settle=0)
    writer.start()
    service = clean.service(writer)
    both = {"Ready": "True", "NetworkReady": "True"}
    neither = {"Ready": "False", "NetworkReady": "False"}

    def reported(name: str) -> dict[str, dict[str, str]]:
        assert writer.wait(10)
        return conditions(clean, name)

    service.prepare(clean.claims["one"])
    assert reported("one") == {"net-wire0": neither}
    service.attach(clean.request("one", sandbox.path))
    assert reported("one") == {"net-wire0": both}
    (status,) = clean.claim("one")["status"]["devices"]
    assert status["networkData"] == {
        "interfaceName": "net1",
        "hardwareAddress": "02:00:00:00:01:00",
        "ips": ["198.51.100.7/24"],
    }
    with pytest.raises(Refused):
        service.prepare(clean.claims["impossible"])
    assert reported("impossible") == {"net-wire4": neither}
    (status,) = clean.claim("impossible")["status"]["devices"]
    assert "no-such-feature" in status["conditions"][0]["message"]
    service.prepare(clean.claims["failing"])
    with pytest.raises(KernelError):
        service.attach(clean.request("failing", sandbox.path))
    assert reported("failing") == {"net-wire5": neither, "net-wire6": neither}
    for name in ("one", "failing", "impossible"):
        service.unprepare(clean.claims[name])
    service.status.put(clean.claims["impossible"], [])
    assert reported("one") == reported("failing") == reported("impossible") == {}
    writer.stop()


def test_the_status_is_written_when_the_server_is_back(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    cluster = clean.connect(retry_seconds=1)
    writer = Writer(cluster, settle=0)
    writer.start()
    clean.plane.stop("kube-apiserver")
    try:
        again = Service(clean.paths, cluster, service.inventory, writer)
        # without the server it is unknown whether the claim still exists, so the device stays where it is
        assert not again.reconcile()
        assert not writer.wait(1.5)
    finally:
        clean.plane.start("kube-apiserver")
        clean.plane.wait_ready("kube-apiserver")
    assert writer.wait(30)
    assert conditions(clean, "one")["net-wire0"]["Ready"] == "True"
    assert again.reconcile()
    again.unprepare(clean.claims["one"])
    assert writer.wait(10)
    assert conditions(clean, "one") == {}
    writer.stop()
