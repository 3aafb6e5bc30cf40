# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims while something fails: the disk is full, the driver is killed, RDMA devices are missing, links go down, or the
API server refuses a status."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import socket
import subprocess
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import interface_config
from ansible_collections.lanewise.dra.tests.driver import claims_node
from ansible_collections.lanewise.dra.tests.driver.claims_node import NAMESPACE, WIRES, ClaimsNode, Sandbox
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import attach_with_retries
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at
from lanewise_driver.api import events
from lanewise_driver.api.access import Access
from lanewise_driver.api.cluster import Cluster
from lanewise_driver.base import calls
from lanewise_driver.base.errors import DriverError, KernelError, Refused
from lanewise_driver.base.lock import Locks
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.records import DETACHING, PREPARED, RdmaRecord
from lanewise_driver.kernel import rdma

EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"


def mount_tmpfs(folder: Path, options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=755", "tmpfs", str(folder)]
    subprocess.run(command, check=True)


def fill(folder: Path) -> Path:
    """Write a file into the folder until the file system is full. Returns the file."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    return path


@pytest.fixture
def small_disk_node(node: ClaimsNode, tmp_path: Path) -> t.Iterator[ClaimsNode]:
    """The node, with the driver's state on a separate file system of 128 KiB."""
    made = copy.copy(node)
    made.paths = dataclasses.replace(node.paths, plugin_dir=tmp_path / "small")
    mount_tmpfs(made.paths.plugin_dir, "size=128k")
    made.paths.make()
    yield made
    assert made.files() == []


# full disks


def test_on_a_full_disk_devices_are_taken_back_but_not_attached(small_disk_node: ClaimsNode, sandbox: Sandbox) -> None:
    service = small_disk_node.service()
    for name in ("one", "two"):
        service.prepare(small_disk_node.claims[name])
    service.attach(small_disk_node.request("one", sandbox.path))
    filler = fill(small_disk_node.paths.plugin_dir)
    # no more devices are attached, because they could not be taken back after a crash
    other = Sandbox()
    with pytest.raises(DriverError, match="could not (read or )?write"):
        service.attach(small_disk_node.request("two", other.path))
    assert set(other.links()) == {"lo"}
    with pytest.raises(DriverError, match="could not (read or )?write"):
        service.prepare(small_disk_node.claims["child"])
    other.end()
    # attached devices are taken back, although their record cannot be updated
    service.unprepare(small_disk_node.claims["one"])
    service.unprepare(small_disk_node.claims["two"])
    assert set(sandbox.links()) == {"lo"}
    filler.unlink()
    assert service.store.uids() == []


def test_a_new_sandbox_gets_no_device_while_the_disk_is_full(small_disk_node: ClaimsNode, sandbox: Sandbox) -> None:
    service = small_disk_node.service()
    service.prepare(small_disk_node.claims["one"])
    first = Sandbox()
    service.attach(small_disk_node.request("one", first.path))
    filler = fill(small_disk_node.paths.plugin_dir)
    with pytest.raises(DriverError, match="could not (read or )?write"):
        service.attach(small_disk_node.request("one", sandbox.path))
    assert set(sandbox.links()) == {"lo"}
    filler.unlink()
    service.attach(small_disk_node.request("one", sandbox.path))
    assert "net1" in sandbox.links()
    first.end()
    service.unprepare(small_disk_node.claims["one"])


def test_a_driver_killed_on_a_full_disk_leaves_no_device_in_a_pod(
    small_disk_node: ClaimsNode, sandbox: Sandbox
) -> None:
    """Wherever the driver is killed while it takes devices back, the next driver finds the older record and repeats
    that."""
    step, killed = 0, True
    while killed:
        service = small_disk_node.service()
        service.prepare(small_disk_node.claims["two"])
        service.attach(small_disk_node.request("two", sandbox.path))
        filler = fill(small_disk_node.paths.plugin_dir)
        killed = killed_at(step, lambda service=service: service.unprepare(small_disk_node.claims["two"]))
        step += 400
        next_service = small_disk_node.service()
        next_service.recover()
        next_service.unprepare(small_disk_node.claims["two"])
        filler.unlink()
        assert set(sandbox.links()) == {"lo"} and next_service.store.uids() == []
        for path in map(Path, small_disk_node.files()):
            path.unlink()
    assert step > 800


@pytest.mark.namespaces
def test_a_lock_file_that_cannot_be_created_is_a_driver_error(tmp_path: Path) -> None:
    mount_tmpfs(tmp_path / "locks", "nr_inodes=2")
    locks = Locks(tmp_path / "locks")
    with locks.hold("one"), pytest.raises(DriverError, match="No space left"):
        with locks.hold("two"):
            pass
    with locks.hold("two"):
        pass
    (tmp_path / "plain").write_text("")
    with (
        pytest.raises(DriverError, match="could not create the lock folder"),
        Locks(tmp_path / "plain" / "locks").hold("one"),
    ):
        pass


def test_lock_files_of_killed_drivers_are_removed(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks")
    locks.sweep()
    with locks.hold("held"):
        (tmp_path / "locks" / "of-a-killed-driver").write_text("")
        locks.sweep()
        assert [path.name for path in (tmp_path / "locks").iterdir()] == ["held"]


# the status in the cluster


def device_statuses(node: ClaimsNode, name: str) -> list[t.Any]:
    return list(node.claim(name)["status"].get("devices", ()))


def test_a_status_is_cleared_by_the_next_driver(node: ClaimsNode, sandbox: Sandbox) -> None:
    writer = Writer(node.cluster, settle=0)
    writer.start()
    service = node.service(writer)
    service.prepare(node.claims["one"])
    service.attach(node.request("one", sandbox.path))
    assert writer.wait(10) and device_statuses(node, "one")
    # a driver whose writer is never started, as if it was killed before it wrote the status
    killed = node.service(Writer(node.cluster))
    killed.unprepare(node.claims["one"])
    assert set(sandbox.links()) == {"lo"} and device_statuses(node, "one")
    assert killed.pending_status.uids() == [node.claims["one"].uid]
    next_service = node.service(writer)
    assert next_service.recover()
    assert writer.wait(10)
    assert device_statuses(node, "one") == [] and next_service.pending_status.uids() == []
    # if the claim is prepared again before that, its new status stays
    service.prepare(node.claims["one"])
    killed.unprepare(node.claims["one"])
    assert killed.pending_status.uids()
    next_service.prepare(node.claims["one"])
    assert next_service.pending_status.uids() == [] and next_service.recover()
    assert writer.wait(10) and len(device_statuses(node, "one")) == 1
    next_service.unprepare(node.claims["one"])
    assert writer.wait(10) and device_statuses(node, "one") == []
    # the message of a failed prepare is removed when the claim is unprepared
    with pytest.raises(Refused):
        next_service.prepare(node.claims["impossible"])
    assert writer.wait(10) and device_statuses(node, "impossible")
    next_service.unprepare(node.claims["impossible"])
    assert writer.wait(10) and device_statuses(node, "impossible") == []
    writer.stop()


def test_a_claim_with_whitespace_in_its_parameters_has_no_status_and_one_error(
    node: ClaimsNode, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server refuses each status of such a claim, see ClaimsNode.apply."""
    config = interface_config.parameters({"name": "net1", "addresses": ["198.51.100.9/24"]})
    selector = {"cel": {"expression": f'device.attributes["lanewise.dev"].ifName == "{WIRES[8]}"'}}
    exactly = {"deviceClassName": "wire", "selectors": [selector]}
    devices = {
        "requests": [{"name": "nic", "exactly": exactly}],
        "config": [{"opaque": {"driver": "lanewise.dev", "parameters": config}}],
    }
    body = {"metadata": {"name": "spaced"}, "spec": {"devices": devices}}
    node.plane.expect("POST", claims_node.CLAIMS, json.dumps(body).encode())  # json.dumps writes spaces
    node.start_pod("spaced")
    reporter = events.Reporter(node.cluster)
    reporter.start()
    writer = Writer(node.cluster, settle=0, reporter=reporter)
    writer.start()
    service = node.service(writer)
    service.prepare(node.claims["spaced"])
    assert writer.wait(10)
    service.attach(node.request("spaced", sandbox.path))
    assert writer.wait(10) and "net1" in sandbox.links()
    assert service.recover() and writer.wait(10)
    assert device_statuses(node, "spaced") == []
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "whitespace between the JSON tokens" in error and "--server-side" in error
    reporter.stop()
    (event,) = events_about(node, "ResourceClaim", "spaced")
    assert event["reason"] == "StatusRefused" and "kubectl apply --server-side" in event["note"]
    service.unprepare(node.claims["spaced"])
    assert writer.wait(10) and service.pending_status.uids() == []
    writer.stop()


def test_addresses_beyond_the_limit_of_the_status_are_left_out_with_a_message(
    node: ClaimsNode, sandbox: Sandbox
) -> None:
    addresses = [f"198.51.100.{number}/24" for number in range(1, 31)]
    writer = Writer(node.cluster, settle=0)
    writer.start()
    service = node.service(writer)
    service.prepare(node.claims["one"])
    service.attach(node.request("one", sandbox.path))
    record = service.store.load(node.claims["one"].uid)
    assert record and record.held[0].network
    record.held[0].network["ips"] = addresses
    service.store.save(record)
    assert node.service(writer).recover() and writer.wait(10)
    (reported,) = device_statuses(node, "one")
    assert reported["networkData"]["ips"] == addresses[:16]
    assert {condition["message"] for condition in reported["conditions"]} == {
        "the device is in the pod; 16 of its 30 addresses are listed"
    }
    metadata = next((service.paths.metadata_dir / node.claims["one"].uid).rglob("metadata.json")).read_text()
    assert addresses[-1] in metadata  # the metadata has no such limit
    service.unprepare(node.claims["one"])
    assert writer.wait(10)
    writer.stop()


def test_a_status_that_the_server_refuses_is_reported_by_an_event_and_a_metric(node: ClaimsNode) -> None:
    metrics = Metrics()
    reporter = events.Reporter(node.cluster)
    reporter.start()
    writer = Writer(node.cluster, settle=0, reporter=reporter, metrics=metrics)
    writer.start()
    claim = node.claims["leased"]
    node.service(writer).prepare(claim)
    assert writer.wait(10)
    (reported,) = node.claim("leased")["status"]["devices"]
    network = {"interfaceName": "x" * 300, "ips": ["198.51.100.1/24"]}
    for _attempt in range(2):
        writer.put(claim, [{**reported, "networkData": network}])
        assert writer.wait(10)
    reporter.stop(10)
    (event,) = events_about(node, "ResourceClaim", "leased")
    assert event["reason"] == "StatusRefused"
    assert "interfaceName" in event["note"] and "This does not affect the pod's devices" in event["note"]
    assert b'lanewise_errors_total{part="status"} 2.0' in metrics.text()
    node.service(writer).unprepare(claim)
    assert writer.wait(10) and device_statuses(node, "leased") == []
    writer.stop()


def events_about(node: ClaimsNode, kind: str, name: str) -> list[t.Any]:
    """The driver's events about an object."""
    return [
        event
        for event in node.plane.expect("GET", EVENTS)["items"]
        if event.get("reportingController") == "lanewise.dev"
        and (event["regarding"]["kind"], event["regarding"]["name"]) == (kind, name)
    ]


# RDMA devices in exclusive mode


@pytest.mark.parametrize("operation", ["unprepare", "drop_lost_claims", "recover"])
def test_a_claim_ends_although_its_rdma_device_is_missing(node: ClaimsNode, sandbox: Sandbox, operation: str) -> None:
    """The device failed, or the pod has renamed it."""
    service = node.service()
    claim = node.claims["one"]
    service.prepare(claim)
    service.attach(node.request("one", sandbox.path))
    record = service.store.load(claim.uid)
    assert record
    record.held[0].rdma = RdmaRecord([], ["no_such_0"])
    if operation == "drop_lost_claims":
        record.name = "gone"
        sandbox.end()
    if operation == "recover":
        record.phase = DETACHING
    service.store.save(record)
    next_service = node.service()
    if operation == "unprepare":
        next_service.unprepare(claim)
    else:
        assert getattr(next_service, operation)()
    if operation == "recover":
        left = next_service.store.load(claim.uid)
        assert left and left.phase == PREPARED
        next_service.unprepare(claim)
    assert next_service.store.uids() == []


def test_a_claim_stays_in_detaching_while_its_rdma_device_cannot_be_moved_back(
    node: ClaimsNode, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(link: str, _netns: Path, back: bool = False) -> None:
        raise KernelError(f"move {link}", errno.EOPNOTSUPP if back else 0)

    service = node.service()
    claim = node.claims["one"]
    service.prepare(claim)
    service.attach(node.request("one", sandbox.path))
    record = service.store.load(claim.uid)
    assert record
    record.held[0].rdma = RdmaRecord([], ["soft0"])
    service.store.save(record)
    with monkeypatch.context() as patched:
        patched.setattr(rdma, "move", refuse)
        for side in ("pod", "host"):
            patched.setattr(rdma, "side", lambda _link, _netns, side=side: side)
            with pytest.raises(KernelError, match="move soft0"):
                service.unprepare(claim)
    left = service.store.load(claim.uid)
    assert left and left.phase == DETACHING
    service.unprepare(claim)


def test_repeated_failures_are_reported_by_one_event_for_each_claim(node: ClaimsNode, sandbox: Sandbox) -> None:
    reporter = events.Reporter(node.cluster)
    reporter.start()
    service = node.service(reporter=reporter)
    for _attempt in range(5):
        with pytest.raises(Refused):
            service.prepare(node.claims["impossible"])
    service.prepare(node.claims["failing"])
    for _attempt in range(5):
        with pytest.raises(KernelError):
            service.attach(node.request("failing", sandbox.path))
    service.unprepare(node.claims["failing"])
    # the device cannot be taken back, because the kernel refuses a multicast MAC address
    service.prepare(node.claims["one"])
    service.attach(node.request("one", sandbox.path))
    record = service.store.load(node.claims["one"].uid)
    assert record and record.held[0].host
    original_mac = record.held[0].host["mac"]
    record.held[0].host["mac"] = "01:00:00:00:00:01"
    service.store.save(record)
    for _attempt in range(3):
        with pytest.raises(KernelError, match="MAC"):
            service.unprepare(node.claims["one"])
    health = {entry.device: entry for entry in service.health()}["net-wire0"]
    assert health.health == calls.UNHEALTHY and "has not returned to the node yet" in health.message
    record = service.store.load(node.claims["one"].uid)
    assert record and record.held[0].host
    record.held[0].host["mac"] = original_mac
    service.store.save(record)
    service.unprepare(node.claims["one"])
    reporter.stop(10)
    (prepare,) = events_about(node, "ResourceClaim", "impossible")
    assert prepare["reason"] == "DevicesNotPrepared" and prepare["type"] == "Warning"
    assert "no-such-feature" in prepare["note"] and "Correct the claim" in prepare["note"]
    assert prepare["regarding"]["uid"] == node.claims["impossible"].uid
    (attach,) = events_about(node, "Pod", "failing")
    assert attach["reason"] == "DevicesNotAttached" and "203.0.113.0/24" in attach["note"]
    assert attach["regarding"]["uid"] == node.pods["failing"]["metadata"]["uid"]
    (detach,) = events_about(node, "ResourceClaim", "one")
    assert detach["reason"] == "DevicesNotTakenBack" and "lanewise-driver doctor" in detach["note"]


def test_an_event_is_about_the_claims_pod_even_if_annotations_name_another_pod(
    node: ClaimsNode, sandbox: Sandbox
) -> None:
    """CRI-O passes the annotations of a pod on to the hook, so a tenant can set those that name a pod in containerd."""
    reported: list[tuple[str, str, str]] = []

    class RecordingCluster:
        def event(self, regarding: t.Any, reason: str, note: str, warning: bool = False, action: str = "") -> None:
            reported.append((regarding["metadata"]["namespace"], regarding["metadata"]["name"], note))

    reporter = events.Reporter(RecordingCluster())
    reporter.start()
    service, claim = node.service(reporter=reporter), node.claims["one"]
    service.prepare(claim)
    request = node.request("one", sandbox.path)
    uid, victim = (
        request.pod_uid,
        {"sandbox-uid": "0000-victim", "sandbox-namespace": "other", "sandbox-name": "victim"},
    )
    forged = {f"io.kubernetes.cri.{name}": value for name, value in victim.items()}
    by_cri_o = {"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.namespace": NAMESPACE, "io.kubernetes.pod.name": "one"}
    for hook_annotations, reason in (
        ({**by_cri_o, **forged}, "io.kubernetes.pod.uid and io.kubernetes.cri.sandbox-uid differ"),
        (forged, "is not for the pod 0000-victim"),
    ):
        with pytest.raises(Refused, match=reason):
            attach_with_retries(service, dataclasses.replace(request, annotations=hook_annotations))
    assert set(sandbox.links()) == {"lo"}
    service.attach(dataclasses.replace(request, annotations=by_cri_o))
    assert "net1" in sandbox.links()
    service.unprepare(claim)
    with pytest.raises(Refused, match="not prepared"):
        service.attach(request)
    reporter.stop(10)
    assert [event[:2] for event in reported] == [(NAMESPACE, "one")] * 2, reported


def test_events_are_limited_and_a_silent_server_delays_no_operation(node: ClaimsNode) -> None:
    sent: list[str] = []

    class CountingCluster:
        def event(self, regarding: t.Any, reason: str, note: str, warning: bool = False, action: str = "") -> None:
            node.cluster.event(regarding, reason, note, warning, action)
            sent.append(note)

    reporter = events.Reporter(CountingCluster())
    reporter.start()
    regarding = events.claim(node.claims["child"])
    for number in range(500):
        reporter.send(regarding, events.PREPARE, f"reason {number}", "")
    reporter.stop(20)
    assert events.NAMESPACE_BURST <= len(sent) <= events.NAMESPACE_BURST + 2
    assert len(events_about(node, "ResourceClaim", "child")) == len(sent)
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        access = Access(f"https://127.0.0.1:{silent_server.getsockname()[1]}")
        reporter = events.Reporter(Cluster(lambda: access, "lanewise.dev", "node-a", 30))
        reporter.start()
        start = time.monotonic()
        for number in range(500):
            reporter.send(regarding, events.PREPARE, f"reason {number}", "")
        assert time.monotonic() - start < 10
        reporter.stop(1)
        assert time.monotonic() - start < 15


# links


def test_a_link_that_goes_down_in_a_pod_is_reported(node: ClaimsNode, sandbox: Sandbox) -> None:
    writer = Writer(node.cluster, settle=0)
    writer.start()
    service = node.service(writer)
    other = Sandbox()
    service.prepare(node.claims["one"])
    service.attach(node.request("one", sandbox.path))
    assert not service.check_pods()

    def current() -> tuple[str, str]:
        """The message of the device's health, and the reason of its condition Ready."""
        (health,) = [entry for entry in service.health() if entry.device == "net-wire0"]
        assert writer.wait(10)
        (device,) = device_statuses(node, "one")
        ready = {entry["type"]: entry for entry in device["conditions"]}["Ready"]
        assert (ready["status"] == "True") == (health.health == calls.HEALTHY)
        assert health.message in ("", ready["message"])
        return health.message, ready["reason"]

    def wait_until(message: str, reason: str) -> None:
        end = time.monotonic() + 10
        while (now := current()) != (message, reason):
            assert time.monotonic() < end, now
            time.sleep(0.02)
            service.check_pods()

    assert current() == ("", "Attached")
    claims_node.ip("link", "set", "far0", "down", netns=node.fabric)
    wait_until("the link of net1 is down", "Unhealthy")
    assert not service.check_pods()
    claims_node.ip("link", "set", "net1", "down", netns=sandbox.pid)
    wait_until("net1 was set down in the pod", "Unhealthy")
    claims_node.ip("link", "set", "far0", "up", netns=node.fabric)
    claims_node.ip("link", "set", "net1", "up", netns=sandbox.pid)
    wait_until("", "Attached")
    claims_node.ip("link", "set", "net1", "netns", str(other.pid), netns=sandbox.pid)
    wait_until("its interface is no longer in the pod's network namespace", "Unhealthy")
    claims_node.ip("link", "set", "net1", "netns", str(sandbox.pid), netns=other.pid)
    claims_node.ip("link", "set", "net1", "up", netns=sandbox.pid)
    wait_until("", "Attached")
    # a claim that another operation has locked is skipped
    claims_node.ip("link", "set", "far0", "down", netns=node.fabric)
    with service.locks.hold(f"claim-{node.claims['one'].uid}"):
        assert not service.check_pods()
    wait_until("the link of net1 is down", "Unhealthy")
    claims_node.ip("link", "set", "far0", "up", netns=node.fabric)
    service.unprepare(node.claims["one"])
    assert not service.check_pods()
    (health,) = [entry for entry in service.health() if entry.device == "net-wire0"]
    assert health.health == calls.HEALTHY
    writer.stop()
    other.end()
