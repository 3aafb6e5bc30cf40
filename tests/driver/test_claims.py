# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims on a node with veth interfaces, one after the other: the node gets its devices and settings back."""

from __future__ import annotations

import copy
import dataclasses
import json
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import claims_world as world_module
from ansible_collections.lanewise.dra.tests.driver.answers import PATIENCE, attach
from ansible_collections.lanewise.dra.tests.driver.claims_world import WIRES, Sandbox, World, host_state
from lanewise_driver import cli
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Busy, DriverError, KernelError, Refused
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.claims.records import ATTACHED, PREPARED
from lanewise_driver.hook.early import EarlyAttacher
from lanewise_driver.kernel import rdma

UNKNOWN = ClaimRef("claims", "unknown", "00000000-0000-4000-8000-000000000000")


def address_of(link: t.Mapping[str, t.Any]) -> list[str]:
    return [f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] == "global"]


# one claim after the other


def test_a_device_is_prepared_attached_and_returned(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    (prepared,) = service.prepare(clean.claims["one"])
    assert (prepared.pool, prepared.device, prepared.requests) == (world_module.NODE, "net-wire0", ("nic",))
    spec = json.loads(clean.paths.cdi_spec(clean.claims["one"].uid).read_text())
    assert prepared.cdi_ids == (f"{spec['kind']}={spec['devices'][0]['name']}",)
    assert spec["containerEdits"]["hooks"]
    assert service.prepare(clean.claims["one"]) == [prepared]
    service.attach(clean.request("one", sandbox.path))
    link = sandbox.links()["net1"]
    assert link["mtu"] == 1400  # from the class
    assert address_of(link) == ["198.51.100.7/24"]
    assert link["address"] == "02:00:00:00:01:00" and "UP" in link["flags"]
    assert WIRES[0] not in host_state()["links"]
    assert "203.0.113.0/24" in world_module.ip("route", "show", netns=sandbox.pid)
    assert "198.51.100.7 lookup 55" in world_module.ip("rule", netns=sandbox.pid)
    record = service.store.load(clean.claims["one"].uid)
    assert record and record.phase == ATTACHED and record.held[0].network
    assert record.held[0].network["ips"] == ["198.51.100.7/24"]
    metadata = next(clean.paths.metadata_dir.rglob("metadata.json")).read_text()
    assert "198.51.100.7/24" in metadata and "net1" in metadata
    service.unprepare(clean.claims["one"])
    assert set(sandbox.links()) == {"lo"}


def test_a_device_that_the_node_needs_since_prepare_is_not_moved(clean: World, sandbox: Sandbox) -> None:
    """Between prepare and a container's start an image is pulled, and routes may change."""
    service, claim = clean.service(), clean.claims["one"]
    service.prepare(claim)
    before = host_state()
    world_module.ip("link", "set", WIRES[0], "up")
    world_module.ip("route", "add", "default", "dev", WIRES[0])
    try:
        with pytest.raises(Busy, match="net-wire0 is withheld from pods now: .*default route"):
            service.attach(clean.request("one", sandbox.path))
        assert set(sandbox.links()) == {"lo"} and WIRES[0] in host_state()["links"]
        record = service.store.load(claim.uid)
        assert record and record.phase == PREPARED
    finally:
        world_module.ip("route", "del", "default", "dev", WIRES[0])
    service.attach(clean.request("one", sandbox.path))
    assert "net1" in sandbox.links()
    service.unprepare(claim)
    assert host_state()["links"].keys() == before["links"].keys()


def test_devices_are_in_the_pod_before_its_containers_start(  # noqa: PLR0915
    clean: World, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices are attached as soon as containerd records the sandbox of the pod. Other pods, containers and unreadable
    files are ignored, and the hook reports what fails here."""
    service = clean.service()
    claim, path = clean.claims["one"], str(sandbox.path)
    pod = dict(clean.request("one", sandbox.path).annotations)
    marker = clean.paths.attached(claim.uid)
    monkeypatch.setattr(cli, "START_TIMEOUT_SECONDS", -1)

    def bundle(name: str, content: t.Any, *, late: bool = False) -> None:
        folder = tmp_path / name
        folder.mkdir()
        text = content if isinstance(content, str) else json.dumps(content)
        if late:  # a reader sees a part of it first
            (folder / "config.json").write_text(text[: len(text) // 2])
            time.sleep(0.05)
        (folder / "config.json").write_text(text)

    def spec(kind: str, **annotations: str) -> dict[str, t.Any]:
        spaces = [{"type": "pid"}, {"type": "network", "path": path}]
        noted = {**pod, "io.kubernetes.cri.container-type": kind, **annotations}
        return {"annotations": noted, "linux": {"namespaces": spaces}}

    def wait(true: t.Callable[[], bool]) -> None:
        until(true, PATIENCE)

    measured = Metrics()
    early = EarlyAttacher(service, measured, tmp_path)
    early.start()
    try:
        bundle("nobody-waits", spec("sandbox"))
        service.prepare(claim)
        assert service.waiting() == [claim.uid] == service.waiting(pod["io.kubernetes.cri.sandbox-uid"])
        wait(lambda: "early" in [one.name for one in threading.enumerate()])
        time.sleep(0.2)  # until it watches
        bundle("container", spec("container"))
        bundle("other", spec("sandbox", **{"io.kubernetes.cri.sandbox-uid": "another"}))
        bundle("host", {**spec("sandbox"), "linux": {"namespaces": [{"type": "network"}]}})
        bundle("odd", "[" * 100_000)
        bundle("list", [])
        bundle("gone", {**spec("sandbox"), "linux": {"namespaces": [{"type": "network", "path": "/nowhere"}]}})
        wait(lambda: b'operation="attach",outcome="kernel"' in measured.text())
        assert not marker.exists() and WIRES[0] in host_state()["links"]
        wait(lambda: service.waiting() == [claim.uid])
        bundle("sandbox", spec("sandbox"), late=True)
        wait(marker.exists)
        assert address_of(sandbox.links()["net1"]) == ["198.51.100.7/24"]
        assert service.waiting() == []
        assert not service.attach_early(clean.request("one", sandbox.path)), "there is nothing left to attach"
        assert len(cli._not_started(service.paths, service.store.all()[0])) == 1
        service.attach(clean.request("one", sandbox.path))  # the hook of a container, where it asks
        assert cli._not_started(service.paths, service.store.all()[0]) == []
        assert address_of(sandbox.links()["net1"]) == ["198.51.100.7/24"]
    finally:
        early.stop()
    service.unprepare(claim)
    assert service.waiting() == [] and not marker.exists()
    assert set(sandbox.links()) == {"lo"}


def test_pods_get_two_devices_of_one_claim_or_a_child_of_a_device(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    other = Sandbox()
    for name, pod in (("two", sandbox), ("child", other)):
        service.prepare(clean.claims[name])
        service.attach(clean.request(name, pod.path))
    found = sandbox.links()
    assert set(found) == {"lo", WIRES[1], "rail1"}
    assert found["rail1"]["mtu"] == 1400 and found[WIRES[1]]["mtu"] == 1400
    # without configuration the pod has what the node had
    assert address_of(found[WIRES[1]]) == ["10.0.1.2/24", "2001:db8:1::2/64"]
    assert "192.0.2.16/28" in world_module.ip("route", "show", netns=sandbox.pid)
    child = other.links()
    assert set(child) == {"lo", "mac0"} and child["mac0"]["linkinfo"]["info_kind"] == "macvlan"
    assert WIRES[3] in host_state()["links"]
    service.unprepare(clean.claims["two"])
    assert set(other.links()) == {"lo", "mac0"}
    service.unprepare(clean.claims["child"])
    other.end()


def test_a_failed_prepare_or_attach_leaves_nothing(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    with pytest.raises(Refused, match=r"request nic .*ethtool\.features.*no-such-feature"):
        service.prepare(clean.claims["impossible"])
    assert clean.files() == []
    service.prepare(clean.claims["failing"])
    for _again in range(2):
        with pytest.raises(KernelError, match="203.0.113.0/24"):
            service.attach(clean.request("failing", sandbox.path))
        assert set(sandbox.links()) == {"lo"}
        record = service.store.load(clean.claims["failing"].uid)
        assert record and record.phase == PREPARED and record.netns is None
    service.unprepare(clean.claims["failing"])


def test_only_the_pod_of_a_claim_gets_its_device(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    request = clean.request("one", sandbox.path)
    with pytest.raises(Refused, match="not prepared"):
        service.attach(request)
    service.prepare(clean.claims["one"])
    for wrong in (
        dataclasses.replace(request, annotations={}),
        clean.request("one", sandbox.path, pod="two"),
        clean.request("one", Path("/proc/self/ns/net")),
    ):
        with pytest.raises(Refused):
            attach(service, wrong)
    with pytest.raises(DriverError):
        service.attach(clean.request("one", Path("/proc/0/ns/net")))
    record = service.store.load(request.uid)
    assert record and record.phase == PREPARED
    assert set(sandbox.links()) == {"lo"}
    service.unprepare(clean.claims["one"])


def test_a_new_sandbox_of_the_pod_takes_over_the_device(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    first = Sandbox()
    service.attach(clean.request("one", first.path))
    service.attach(clean.request("one", first.path))
    service.attach(clean.request("one", sandbox.path))
    assert set(first.links()) == {"lo"} and set(sandbox.links()) == {"lo", "net1"}
    first.end()
    # also if the old sandbox died, whose namespace only the pin keeps
    second = Sandbox()
    sandbox.end()
    service.attach(clean.request("one", second.path))
    assert set(second.links()) == {"lo", "net1"}
    second.end()
    service.unprepare(clean.claims["one"])


def test_a_claim_with_another_uid_than_the_servers_is_refused(clean: World) -> None:
    service = clean.service()
    with pytest.raises(Refused, match="metadata.uid"):
        service.prepare(dataclasses.replace(clean.claims["one"], uid=UNKNOWN.uid))
    with pytest.raises(Refused, match="does not exist"):
        service.prepare(UNKNOWN)
    with pytest.raises(Refused):
        service.prepare(dataclasses.replace(UNKNOWN, uid="../x"))
    service.unprepare(UNKNOWN)


def test_a_damaged_record_is_replaced_and_a_newer_one_is_kept(clean: World) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    path = service.store.path(clean.claims["one"].uid)
    path.write_bytes(b"{")
    service.prepare(clean.claims["one"])
    (aside,) = path.parent.glob("*.corrupt-*")
    aside.unlink()
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    for act in (lambda: service.prepare(clean.claims["one"]), lambda: service.unprepare(clean.claims["one"])):
        with pytest.raises(DriverError, match="schema"):
            act()
    assert not service.reconcile()
    assert clean.paths.cdi_spec(clean.claims["one"].uid).exists()
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 1}))
    service.unprepare(clean.claims["one"])


# after a restart


def test_files_without_a_record_are_removed(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    service.prepare(clean.claims["two"])
    service.attach(clean.request("two", sandbox.path))
    kept = clean.files()
    service.unprepare(clean.claims["one"])
    uid = clean.claims["one"].uid
    clean.paths.cdi_spec(uid).write_text("{}")
    (clean.paths.metadata_dir / uid).mkdir()
    from lanewise_driver.kernel import netns

    netns.pin(sandbox.path, clean.paths.pin(uid))
    assert clean.service().reconcile()
    assert [path for path in kept if uid not in path] == clean.files()
    assert set(sandbox.links()) == {"lo", WIRES[1], "rail1"}
    service.unprepare(clean.claims["two"])


def test_devices_of_a_deleted_claim_return_once_its_pod_has_no_process(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    store = service.store
    record = store.load(clean.claims["one"].uid)
    assert record
    record.name = "gone"  # as if the claim had been deleted
    store.save(record)
    assert clean.service().reconcile()
    assert set(sandbox.links()) == {"lo", "net1"}  # it may still be in use
    sandbox.end()
    assert clean.service().reconcile()
    assert store.uids() == []


def test_devices_that_a_claim_lost_return_once_its_pod_has_no_process(clean: World, sandbox: Sandbox) -> None:
    """The same claim, with the same UID, is no longer allocated or has other devices."""
    service = clean.service()
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    allocated = clean.cluster.claim
    now = allocated(world_module.NAMESPACE, "one")
    assert now
    other = copy.deepcopy(now)
    other["status"]["allocation"]["devices"]["results"][0]["device"] = "net-wire8"
    free = {**now, "status": {}}

    def reconcile(claim: t.Any) -> bool:
        again = clean.service()
        again.cluster.claim = lambda _namespace, _name: claim  # type: ignore[method-assign, assignment]
        return again.reconcile()

    for claim in (now, other, free):
        assert reconcile(claim)
        assert set(sandbox.links()) == {"lo", "net1"}  # it may still be in use
    sandbox.end()
    assert reconcile(now) and service.store.uids() != []
    assert reconcile(other) and service.store.uids() == []
    service.prepare(clean.claims["one"])
    assert reconcile(now) and service.store.uids() != []
    assert reconcile(free) and service.store.uids() == [] and clean.files() == []


def test_after_a_reboot_the_files_are_written_again(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    spec = clean.paths.cdi_spec(clean.claims["one"].uid)
    content = spec.read_text()
    service.attach(clean.request("one", sandbox.path))
    # what a boot does, as far as a running kernel can do it: the device is on the node, /run is empty
    record = service.store.load(clean.claims["one"].uid)
    assert record
    from lanewise_driver.interface import interfaces
    from lanewise_driver.kernel import netns

    pin = clean.paths.pin(record.uid)
    (device,) = record.held
    assert device.host
    interfaces.detach(device.known.identity, device.host, pin, device.config)
    netns.unpin(pin)
    spec.unlink()
    again = clean.service(boot="another boot")
    assert again.reconcile()
    assert spec.read_text() == content
    record = again.store.load(record.uid)
    assert record and (record.phase, record.boot, record.held[0].host) == (PREPARED, "another boot", None)
    again.attach(clean.request("one", sandbox.path))
    assert set(sandbox.links()) == {"lo", "net1"}
    again.unprepare(clean.claims["one"])


def test_after_a_reboot_records_have_the_current_devices(clean: World) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    record = service.store.load(clean.claims["one"].uid)
    assert record
    (device,) = record.held
    fresh, name = device.known, device.device
    stale = {"name": name, "attributes": {"rdma": {"bool": False}, "rdmaDevice": {"string": "mlx5_0"}}}
    device.known = dataclasses.replace(fresh, device=stale, interface="old0")
    service.store.save(record)
    # in the same boot the device may be in a pod, where the driver cannot read it
    assert clean.service().recover()
    record = service.store.load(record.uid)
    assert record and record.held[0].known.device == stale
    again = clean.service(boot="another boot")
    published = {one["name"]: one for one in again.inventory.publication.devices}
    assert published[name] == fresh.device
    assert again.recover()
    record = again.store.load(record.uid)
    assert record and record.held[0].known == fresh
    assert again.held() == [fresh]
    # a device that is missing after the next boot, or whose RDMA device is, keeps its recorded values
    gone = dataclasses.replace(fresh, name="net-none", device={**fresh.device, "name": "net-none"})
    for known in (gone, dataclasses.replace(fresh, rdma_devices=("mlx5_0",))):
        record.held[0].known, record.held[0].device = known, known.name
        again.store.save(record)
        assert clean.service(boot="a third boot").recover()
        left = again.store.load(record.uid)
        assert left and left.held[0].known == known
    again.unprepare(clean.claims["one"])


def test_rdma_devices_have_the_names_of_this_boot(
    clean: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    now: list[str] = []
    monkeypatch.setattr(rdma, "devices", lambda _address: list(now))
    monkeypatch.setattr(
        rdma, "char_devices", lambda link, **_asked: [rdma.CharDevice(f"/dev/infiniband/{link}", 231, 192)]
    )

    def nodes() -> list[str]:
        edits = json.loads(clean.paths.cdi_spec(uid).read_text())["devices"][0]["containerEdits"]
        return [node["path"] for node in edits["deviceNodes"]]

    uid = clean.claims["one"].uid
    service = clean.service()
    service.prepare(clean.claims["one"])
    record = service.store.load(uid)
    assert record
    (device,) = record.held
    attributes = {"rdmaDevice": {"string": "mlx5_0"}, "rdma": {"bool": True}}
    device.known = dataclasses.replace(
        device.known,
        address="0000:ff:00.0",
        rdma_devices=("mlx5_0",),
        device={"name": device.device, "attributes": attributes},
    )
    device.interface = ""
    service.store.save(record)
    with pytest.raises(Busy, match=f"{device.device}: its RDMA device is not on the node"):
        service.prepare(clean.claims["one"])
    now.append("mlx5_3")
    service.prepare(clean.claims["one"])
    assert nodes() == ["/dev/infiniband/mlx5_3"]
    record = service.store.load(uid)
    assert record and record.held[0].known.rdma_devices == ("mlx5_3",)
    file = next(clean.paths.metadata_dir.rglob("metadata.json")).read_text()
    assert "mlx5_3" in file and "mlx5_0" not in file
    # a device in a pod is not changed
    service.attach(clean.request("one", sandbox.path))
    now[:] = ["mlx5_4"]
    service.prepare(clean.claims["one"])
    assert nodes() == ["/dev/infiniband/mlx5_3"]
    service.unprepare(clean.claims["one"])


# claims that several pods use


def test_a_claim_goes_to_the_next_pod_without_a_prepare(
    clean: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet prepares a claim only once if several pods use it, one after the other."""
    service = clean.service()
    service.prepare(clean.claims["two"])
    service.attach(clean.request("two", sandbox.path))
    plane = clean.plane
    clean.start_pod("two", "next")
    second = Sandbox()
    with pytest.raises(Refused, match="status.reservedFor"):
        attach(service, clean.request("two", second.path, pod="next"))
    assert set(second.links()) == {"lo"}
    plane.expect("DELETE", f"{world_module.PODS}/two?gracePeriodSeconds=0")
    plane.wait_for(lambda: len(clean.claim("two")["status"]["reservedFor"]) == 1, "the claim to be for one pod")
    asked: list[str] = []
    for name in ("claim", "pod"):
        monkeypatch.setattr(service.cluster, name, _recording_threads(asked, getattr(service.cluster, name)))
    attach(service, clean.request("two", second.path, pod="next"))
    # the API server is asked by another thread than that of attach
    assert "next-pod" in asked and threading.current_thread().name not in asked
    assert set(second.links()) == {"lo", WIRES[1], "rail1"} and set(sandbox.links()) == {"lo"}
    with pytest.raises(Refused):
        attach(service, clean.request("two", sandbox.path))
    assert set(second.links()) == {"lo", WIRES[1], "rail1"}
    service.unprepare(clean.claims["two"])
    second.end()
    clean.pods["two"] = clean.pods.pop("next")


def _recording_threads(threads: list[str], function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    def noted(*args: t.Any) -> t.Any:
        threads.append(threading.current_thread().name)
        return function(*args)

    return noted
