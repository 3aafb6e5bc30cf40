# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims while something else fails: the disk is full, the driver is killed at the worst moment, links go down, or the
server accepts no status."""

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
from ansible_collections.lanewise.dra.tests.driver import claims_world as world_module
from ansible_collections.lanewise.dra.tests.driver.answers import attach
from ansible_collections.lanewise.dra.tests.driver.claims_world import NAMESPACE, WIRES, Sandbox, World
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


def mount(folder: Path, options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=755", "tmpfs", str(folder)]
    subprocess.run(command, check=True)


def fill(folder: Path) -> Path:
    """Write a file into the folder until its file system has no byte left. Returns the file."""
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
def small(clean: World, tmp_path: Path) -> t.Iterator[World]:
    """The world with a driver whose state is on a small separate disk."""
    made = copy.copy(clean)
    made.paths = dataclasses.replace(clean.paths, plugin_dir=tmp_path / "small")
    mount(made.paths.plugin_dir, "size=128k")
    made.paths.make()
    yield made
    assert made.files() == []


# disks


def test_a_full_disk_keeps_no_device_in_its_pod(small: World, sandbox: Sandbox) -> None:
    service = small.service()
    for name in ("one", "two"):
        service.prepare(small.claims[name])
    service.attach(small.request("one", sandbox.path))
    filler = fill(small.paths.plugin_dir)
    # no more devices are attached, because they could not be taken back after a crash
    other = Sandbox()
    with pytest.raises(DriverError, match="could not (read or )?write"):
        service.attach(small.request("two", other.path))
    assert set(other.links()) == {"lo"}
    with pytest.raises(DriverError, match="could not (read or )?write"):
        service.prepare(small.claims["child"])
    other.end()
    # attached devices are taken back, although the record cannot be updated
    service.unprepare(small.claims["one"])
    service.unprepare(small.claims["two"])
    assert set(sandbox.links()) == {"lo"}
    filler.unlink()
    assert service.store.uids() == []


def test_a_new_sandbox_gets_no_device_while_the_disk_is_full(small: World, sandbox: Sandbox) -> None:
    service = small.service()
    service.prepare(small.claims["one"])
    first = Sandbox()
    service.attach(small.request("one", first.path))
    filler = fill(small.paths.plugin_dir)
    with pytest.raises(DriverError, match="could not (read or )?write"):
        service.attach(small.request("one", sandbox.path))
    assert set(sandbox.links()) == {"lo"}
    filler.unlink()
    service.attach(small.request("one", sandbox.path))
    assert "net1" in sandbox.links()
    first.end()
    service.unprepare(small.claims["one"])


def test_a_driver_killed_on_a_full_disk_leaves_no_device_in_a_pod(small: World, sandbox: Sandbox) -> None:
    """Wherever the driver dies while it takes a device back, the next one finds the older record and repeats it."""
    step, killed = 0, True
    while killed:
        service = small.service()
        service.prepare(small.claims["two"])
        service.attach(small.request("two", sandbox.path))
        filler = fill(small.paths.plugin_dir)
        killed = killed_at(step, lambda service=service: service.unprepare(small.claims["two"]))
        step += 400
        again = small.service()
        again.recover()
        again.unprepare(small.claims["two"])
        filler.unlink()
        assert set(sandbox.links()) == {"lo"} and again.store.uids() == []
        for path in map(Path, small.files()):
            path.unlink()
    assert step > 800


@pytest.mark.namespaces
def test_a_lock_that_does_not_fit_on_the_disk_is_not_reported_as_a_bug(tmp_path: Path) -> None:
    mount(tmp_path / "locks", "nr_inodes=2")
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


def test_locks_of_killed_runs_are_removed(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks")
    locks.sweep()
    with locks.hold("held"):
        (tmp_path / "locks" / "of-the-killed").write_text("")
        locks.sweep()
        assert [path.name for path in (tmp_path / "locks").iterdir()] == ["held"]


# the status in the cluster


def device_statuses(world: World, name: str) -> list[t.Any]:
    return list(world.claim(name)["status"].get("devices", ()))


def test_a_status_is_cleared_by_the_next_driver(clean: World, sandbox: Sandbox) -> None:
    writer = Writer(clean.cluster, settle=0)
    writer.start()
    service = clean.service(writer)
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    assert writer.wait(10) and device_statuses(clean, "one")
    dead = clean.service(Writer(clean.cluster))  # its writer never runs, as if the driver was killed before
    dead.unprepare(clean.claims["one"])
    assert set(sandbox.links()) == {"lo"} and device_statuses(clean, "one")
    assert dead.pending_status.uids() == [clean.claims["one"].uid]
    again = clean.service(writer)
    assert again.recover()
    assert writer.wait(10)
    assert device_statuses(clean, "one") == [] and again.pending_status.uids() == []
    # a claim that is prepared again in between has its new status
    service.prepare(clean.claims["one"])
    dead.unprepare(clean.claims["one"])
    assert dead.pending_status.uids()
    again.prepare(clean.claims["one"])
    assert again.pending_status.uids() == [] and again.recover()
    assert writer.wait(10) and len(device_statuses(clean, "one")) == 1
    again.unprepare(clean.claims["one"])
    assert writer.wait(10) and device_statuses(clean, "one") == []
    # and the message of a prepare that failed is removed with the claim
    with pytest.raises(Refused):
        again.prepare(clean.claims["impossible"])
    assert writer.wait(10) and device_statuses(clean, "impossible")
    again.unprepare(clean.claims["impossible"])
    assert writer.wait(10) and device_statuses(clean, "impossible") == []
    writer.stop()


def test_a_status_that_the_server_never_accepts_is_reported_once(
    clean: World, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    config = interface_config.parameters({"name": "net1", "addresses": ["198.51.100.9/24"]})
    selector = {"cel": {"expression": f'device.attributes["lanewise.dev"].ifName == "{WIRES[8]}"'}}
    exactly = {"deviceClassName": "wire", "selectors": [selector]}
    devices = {
        "requests": [{"name": "nic", "exactly": exactly}],
        "config": [{"opaque": {"driver": "lanewise.dev", "parameters": config}}],
    }
    body = {"metadata": {"name": "blanks"}, "spec": {"devices": devices}}
    clean.plane.expect("POST", world_module.CLAIMS, json.dumps(body).encode())  # with blanks, as Python writes them
    clean.start_pod("blanks")
    reporter = events.Reporter(clean.cluster)
    reporter.start()
    writer = Writer(clean.cluster, settle=0, reporter=reporter)
    writer.start()
    service = clean.service(writer)
    service.prepare(clean.claims["blanks"])
    assert writer.wait(10)
    service.attach(clean.request("blanks", sandbox.path))
    assert writer.wait(10) and "net1" in sandbox.links()
    assert service.recover() and writer.wait(10)
    assert device_statuses(clean, "blanks") == []
    reported = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(reported) == 1 and "blanks between the JSON tokens" in reported[0] and "--server-side" in reported[0]
    reporter.stop()
    (event,) = events_about(clean, "ResourceClaim", "blanks")
    assert event["reason"] == "StatusRefused" and "kubectl apply --server-side" in event["note"]
    service.unprepare(clean.claims["blanks"])
    assert writer.wait(10) and service.pending_status.uids() == []
    writer.stop()


def test_addresses_beyond_the_limit_of_the_status_are_left_out_with_a_message(clean: World, sandbox: Sandbox) -> None:
    addresses = [f"198.51.100.{number}/24" for number in range(1, 31)]
    writer = Writer(clean.cluster, settle=0)
    writer.start()
    service = clean.service(writer)
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    record = service.store.load(clean.claims["one"].uid)
    assert record and record.held[0].network
    record.held[0].network["ips"] = addresses
    service.store.save(record)
    assert clean.service(writer).recover() and writer.wait(10)
    (reported,) = device_statuses(clean, "one")
    assert reported["networkData"]["ips"] == addresses[:16]
    assert {one["message"] for one in reported["conditions"]} == {
        "the device is in the pod; 16 of its 30 addresses are listed"
    }
    metadata = next((service.paths.metadata_dir / clean.claims["one"].uid).rglob("metadata.json")).read_text()
    assert addresses[-1] in metadata  # which has no such limit
    service.unprepare(clean.claims["one"])
    assert writer.wait(10)
    writer.stop()


def test_a_status_that_the_server_refuses_is_reported_by_an_event_and_a_metric(clean: World) -> None:
    metrics = Metrics()
    reporter = events.Reporter(clean.cluster)
    reporter.start()
    writer = Writer(clean.cluster, settle=0, reporter=reporter, metrics=metrics)
    writer.start()
    claim = clean.claims["leased"]
    clean.service(writer).prepare(claim)
    assert writer.wait(10)
    (reported,) = clean.claim("leased")["status"]["devices"]
    network = {"interfaceName": "x" * 300, "ips": ["198.51.100.1/24"]}
    for _time in range(2):
        writer.put(claim, [{**reported, "networkData": network}])
        assert writer.wait(10)
    reporter.stop(10)
    (event,) = events_about(clean, "ResourceClaim", "leased")
    assert event["reason"] == "StatusRefused"
    assert "interfaceName" in event["note"] and "The pod still has its devices" in event["note"]
    assert b'lanewise_errors_total{part="status"} 2.0' in metrics.text()
    clean.service(writer).unprepare(claim)
    assert writer.wait(10) and device_statuses(clean, "leased") == []
    writer.stop()


def events_about(world: World, kind: str, name: str) -> list[t.Any]:
    found = world.plane.expect("GET", EVENTS)["items"]
    ours = [one for one in found if one.get("reportingController") == "lanewise.dev"]
    return [one for one in ours if (one["regarding"]["kind"], one["regarding"]["name"]) == (kind, name)]


# RDMA devices in exclusive mode


@pytest.mark.parametrize("act", ["unprepare", "drop_lost_claims", "recover"])
def test_an_rdma_device_that_vanished_blocks_nothing(clean: World, sandbox: Sandbox, act: str) -> None:
    """It fell off the bus, or the pod gave it another name."""
    service = clean.service()
    claim = clean.claims["one"]
    service.prepare(claim)
    service.attach(clean.request("one", sandbox.path))
    record = service.store.load(claim.uid)
    assert record
    record.held[0].rdma = RdmaRecord([], ["no_such_0"])
    if act == "drop_lost_claims":
        record.name = "gone"
        sandbox.end()
    if act == "recover":
        record.phase = DETACHING
    service.store.save(record)
    again = clean.service()
    if act == "unprepare":
        again.unprepare(claim)
    else:
        assert getattr(again, act)()
    if act == "recover":
        left = again.store.load(claim.uid)
        assert left and left.phase == PREPARED
        again.unprepare(claim)
    assert again.store.uids() == []


def test_an_rdma_device_that_cannot_be_moved_back_keeps_the_claim_detaching(
    clean: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(link: str, _netns: Path, back: bool = False) -> None:
        raise KernelError(f"move {link}", errno.EOPNOTSUPP if back else 0)

    service = clean.service()
    claim = clean.claims["one"]
    service.prepare(claim)
    service.attach(clean.request("one", sandbox.path))
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


def test_failures_are_reported_as_events(clean: World, sandbox: Sandbox) -> None:
    reporter = events.Reporter(clean.cluster)
    reporter.start()
    service = clean.service(reporter=reporter)
    for _time in range(5):
        with pytest.raises(Refused):
            service.prepare(clean.claims["impossible"])
    service.prepare(clean.claims["failing"])
    for _time in range(5):
        with pytest.raises(KernelError):
            service.attach(clean.request("failing", sandbox.path))
    service.unprepare(clean.claims["failing"])
    # a device that cannot be taken back: the kernel refuses such a MAC address
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    record = service.store.load(clean.claims["one"].uid)
    assert record and record.held[0].host
    right = record.held[0].host["mac"]
    record.held[0].host["mac"] = "01:00:00:00:00:01"
    service.store.save(record)
    for _time in range(3):
        with pytest.raises(KernelError, match="MAC"):
            service.unprepare(clean.claims["one"])
    health = {one.device: one for one in service.health()}["net-wire0"]
    assert health.health == calls.UNHEALTHY and "could not be returned to the node" in health.message
    record = service.store.load(clean.claims["one"].uid)
    assert record and record.held[0].host
    record.held[0].host["mac"] = right
    service.store.save(record)
    service.unprepare(clean.claims["one"])
    reporter.stop(10)
    (prepare,) = events_about(clean, "ResourceClaim", "impossible")
    assert prepare["reason"] == "DevicesNotPrepared" and prepare["type"] == "Warning"
    assert "no-such-feature" in prepare["note"] and "Correct the claim" in prepare["note"]
    assert prepare["regarding"]["uid"] == clean.claims["impossible"].uid
    (attach,) = events_about(clean, "Pod", "failing")
    assert attach["reason"] == "DevicesNotAttached" and "203.0.113.0/24" in attach["note"]
    assert attach["regarding"]["uid"] == clean.pods["failing"]["metadata"]["uid"]
    (detach,) = events_about(clean, "ResourceClaim", "one")
    assert detach["reason"] == "DevicesNotTakenBack" and "lanewise-driver doctor" in detach["note"]


def test_an_event_is_about_the_claims_pod_whatever_annotations_say(clean: World, sandbox: Sandbox) -> None:
    """CRI-O passes on the annotations of a pod, with which a tenant could name a pod of another tenant."""
    about: list[tuple[str, str, str]] = []

    class RecordingCluster:
        def event(self, regarding: t.Any, reason: str, note: str, warning: bool = False, action: str = "") -> None:
            about.append((regarding["metadata"]["namespace"], regarding["metadata"]["name"], note))

    reporter = events.Reporter(RecordingCluster())
    reporter.start()
    service, claim = clean.service(reporter=reporter), clean.claims["one"]
    service.prepare(claim)
    right = clean.request("one", sandbox.path)
    uid, victim = right.pod_uid, {"sandbox-uid": "0000-victim", "sandbox-namespace": "other", "sandbox-name": "victim"}
    claimed = {f"io.kubernetes.cri.{name}": value for name, value in victim.items()}
    by_cri_o = {"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.namespace": NAMESPACE, "io.kubernetes.pod.name": "one"}
    for given, why in (
        ({**by_cri_o, **claimed}, "io.kubernetes.pod.uid and io.kubernetes.cri.sandbox-uid differ"),
        (claimed, "is not for the pod 0000-victim"),
    ):
        with pytest.raises(Refused, match=why):
            attach(service, dataclasses.replace(right, annotations=given))
    assert set(sandbox.links()) == {"lo"}
    service.attach(dataclasses.replace(right, annotations=by_cri_o))
    assert "net1" in sandbox.links()
    service.unprepare(claim)
    with pytest.raises(Refused, match="not prepared"):
        service.attach(right)
    reporter.stop(10)
    assert [found[:2] for found in about] == [(NAMESPACE, "one")] * 2, about


def test_events_are_few_and_block_no_operation(clean: World) -> None:
    counted: list[str] = []

    class CountingCluster:
        def event(self, regarding: t.Any, reason: str, note: str, warning: bool = False, action: str = "") -> None:
            clean.cluster.event(regarding, reason, note, warning, action)
            counted.append(note)

    reporter = events.Reporter(CountingCluster())
    reporter.start()
    about = events.claim(clean.claims["child"])
    for number in range(500):
        reporter.send(about, events.PREPARE, f"reason {number}", "")
    reporter.stop(20)
    assert events.NAMESPACE_BURST <= len(counted) <= events.NAMESPACE_BURST + 2
    assert len(events_about(clean, "ResourceClaim", "child")) == len(counted)
    # a server that never answers
    with socket.create_server(("127.0.0.1", 0)) as silent:
        access = Access(f"https://127.0.0.1:{silent.getsockname()[1]}")
        reporter = events.Reporter(Cluster(lambda: access, "lanewise.dev", "node-a", 30))
        reporter.start()
        start = time.monotonic()
        for number in range(500):
            reporter.send(about, events.PREPARE, f"reason {number}", "")
        assert time.monotonic() - start < 10
        reporter.stop(1)
        assert time.monotonic() - start < 15


# links


def test_a_link_that_goes_down_in_a_pod_is_reported(clean: World, sandbox: Sandbox) -> None:
    writer = Writer(clean.cluster, settle=0)
    writer.start()
    service = clean.service(writer)
    other = Sandbox()
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    assert not service.check_pods()

    def current() -> tuple[str, str]:
        (one,) = [one for one in service.health() if one.device == "net-wire0"]
        assert writer.wait(10)
        (device,) = device_statuses(clean, "one")
        ready = {entry["type"]: entry for entry in device["conditions"]}["Ready"]
        assert (ready["status"] == "True") == (one.health == calls.HEALTHY)
        assert one.message in ("", ready["message"])
        return one.message, ready["reason"]

    def wait_until(message: str, reason: str) -> None:
        end = time.monotonic() + 10
        while (now := current()) != (message, reason):
            assert time.monotonic() < end, now
            time.sleep(0.02)
            service.check_pods()

    assert current() == ("", "Attached")
    world_module.ip("link", "set", "far0", "down", netns=clean.fabric)
    wait_until("the link of net1 is down", "Unhealthy")
    assert not service.check_pods()
    world_module.ip("link", "set", "net1", "down", netns=sandbox.pid)
    wait_until("net1 was set down in the pod", "Unhealthy")
    world_module.ip("link", "set", "far0", "up", netns=clean.fabric)
    world_module.ip("link", "set", "net1", "up", netns=sandbox.pid)
    wait_until("", "Attached")
    world_module.ip("link", "set", "net1", "netns", str(other.pid), netns=sandbox.pid)
    wait_until("its interface is gone", "Unhealthy")
    world_module.ip("link", "set", "net1", "netns", str(sandbox.pid), netns=other.pid)
    world_module.ip("link", "set", "net1", "up", netns=sandbox.pid)
    wait_until("", "Attached")
    # a claim that another operation works on is skipped
    world_module.ip("link", "set", "far0", "down", netns=clean.fabric)
    with service.locks.hold(f"claim-{clean.claims['one'].uid}"):
        assert not service.check_pods()
    wait_until("the link of net1 is down", "Unhealthy")
    world_module.ip("link", "set", "far0", "up", netns=clean.fabric)
    service.unprepare(clean.claims["one"])
    assert not service.check_pods()
    (one,) = [one for one in service.health() if one.device == "net-wire0"]
    assert one.health == calls.HEALTHY
    writer.stop()
    other.end()
