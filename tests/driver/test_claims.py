# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prepare, attach and unprepare of claims on a node with veth interfaces. The fixture `node` checks that each test
restores the node."""

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
from ansible_collections.lanewise.dra.tests.driver import claims_node
from ansible_collections.lanewise.dra.tests.driver.claims_node import WIRES, ClaimsNode, Sandbox, host_state
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import TIMEOUT_SECONDS, attach_with_retries
from lanewise_driver import cli
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Busy, DriverError, KernelError, Refused
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.claims.records import ATTACHED, PREPARED
from lanewise_driver.hook.early import EarlyAttacher
from lanewise_driver.interface import interfaces
from lanewise_driver.kernel import netns, rdma

UNKNOWN = ClaimRef("claims", "unknown", "00000000-0000-4000-8000-000000000000")


def global_addresses(link: t.Mapping[str, t.Any]) -> list[str]:
    return [
        f"{address['local']}/{address['prefixlen']}" for address in link["addr_info"] if address["scope"] == "global"
    ]


# claims of one pod


def test_a_device_is_prepared_attached_and_returned(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    (prepared,) = service.prepare(node.claims["one"])
    assert (prepared.pool, prepared.device, prepared.requests) == (claims_node.NODE, "net-wire0", ("nic",))
    spec = json.loads(node.paths.cdi_spec(node.claims["one"].uid).read_text())
    assert prepared.cdi_ids == (f"{spec['kind']}={spec['devices'][0]['name']}",)
    assert spec["containerEdits"]["hooks"]
    assert service.prepare(node.claims["one"]) == [prepared]
    service.attach(node.request("one", sandbox.path))
    link = sandbox.links()["net1"]
    assert link["mtu"] == 1400  # from the class
    assert global_addresses(link) == ["198.51.100.7/24"]
    assert link["address"] == "02:00:00:00:01:00" and "UP" in link["flags"]
    assert WIRES[0] not in host_state()["links"]
    assert "203.0.113.0/24" in claims_node.ip("route", "show", netns=sandbox.pid)
    assert "198.51.100.7 lookup 55" in claims_node.ip("rule", netns=sandbox.pid)
    record = service.store.load(node.claims["one"].uid)
    assert record and record.phase == ATTACHED and record.held[0].network
    assert record.held[0].network["ips"] == ["198.51.100.7/24"]
    metadata = next(node.paths.metadata_dir.rglob("metadata.json")).read_text()
    assert "198.51.100.7/24" in metadata and "net1" in metadata
    service.unprepare(node.claims["one"])
    assert set(sandbox.links()) == {"lo"}


def test_a_device_with_a_default_route_is_not_moved_until_the_route_is_removed(
    node: ClaimsNode, sandbox: Sandbox
) -> None:
    """Routes may change between prepare and the start of a container, while its image is pulled."""
    service, claim = node.service(), node.claims["one"]
    service.prepare(claim)
    before = host_state()
    claims_node.ip("link", "set", WIRES[0], "up")
    claims_node.ip("route", "add", "default", "dev", WIRES[0])
    try:
        with pytest.raises(Busy, match="net-wire0 is withheld from pods now: .*default route"):
            service.attach(node.request("one", sandbox.path))
        assert set(sandbox.links()) == {"lo"} and WIRES[0] in host_state()["links"]
        record = service.store.load(claim.uid)
        assert record and record.phase == PREPARED
    finally:
        claims_node.ip("route", "del", "default", "dev", WIRES[0])
    service.attach(node.request("one", sandbox.path))
    assert "net1" in sandbox.links()
    service.unprepare(claim)
    assert host_state()["links"].keys() == before["links"].keys()


def test_devices_are_attached_when_containerd_records_the_sandbox(  # noqa: PLR0915
    node: ClaimsNode, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other pods, containers and unreadable files in containerd's folder are ignored. The hook of a container still
    works after that."""
    service = node.service()
    claim, path = node.claims["one"], str(sandbox.path)
    pod = dict(node.request("one", sandbox.path).annotations)
    attached = node.paths.attached_marker(claim.uid)
    monkeypatch.setattr(cli, "START_TIMEOUT_SECONDS", -1)

    def write_bundle(name: str, content: t.Any, *, slowly: bool = False) -> None:
        folder = tmp_path / name
        folder.mkdir()
        text = content if isinstance(content, str) else json.dumps(content)
        if slowly:  # a reader may see the first half only
            (folder / "config.json").write_text(text[: len(text) // 2])
            time.sleep(0.05)
        (folder / "config.json").write_text(text)

    def spec(kind: str, **annotations: str) -> dict[str, t.Any]:
        spaces = [{"type": "pid"}, {"type": "network", "path": path}]
        sandbox_annotations = {**pod, "io.kubernetes.cri.container-type": kind, **annotations}
        return {"annotations": sandbox_annotations, "linux": {"namespaces": spaces}}

    def wait(condition: t.Callable[[], bool]) -> None:
        until(condition, TIMEOUT_SECONDS)

    metrics = Metrics()
    early = EarlyAttacher(service, metrics, tmp_path)
    early.start()
    try:
        write_bundle("before-prepare", spec("sandbox"))
        service.prepare(claim)
        assert service.waiting() == [claim.uid] == service.waiting(pod["io.kubernetes.cri.sandbox-uid"])
        wait(lambda: "early" in [thread.name for thread in threading.enumerate()])
        time.sleep(0.2)  # until the thread watches the folder
        write_bundle("container", spec("container"))
        write_bundle("other-pod", spec("sandbox", **{"io.kubernetes.cri.sandbox-uid": "another"}))
        write_bundle("host-network", {**spec("sandbox"), "linux": {"namespaces": [{"type": "network"}]}})
        write_bundle("deep", "[" * 100_000)
        write_bundle("list", [])
        write_bundle(
            "ended-pod", {**spec("sandbox"), "linux": {"namespaces": [{"type": "network", "path": "/nowhere"}]}}
        )
        wait(lambda: b'operation="attach",outcome="kernel"' in metrics.text())
        assert not attached.exists() and WIRES[0] in host_state()["links"]
        wait(lambda: service.waiting() == [claim.uid])
        write_bundle("sandbox", spec("sandbox"), slowly=True)
        wait(attached.exists)
        assert global_addresses(sandbox.links()["net1"]) == ["198.51.100.7/24"]
        assert service.waiting() == []
        assert not service.attach_early(node.request("one", sandbox.path)), "there is nothing left to attach"
        assert len(cli._not_started(service.paths, service.store.all()[0])) == 1
        service.attach(node.request("one", sandbox.path))  # by the hook of a container
        assert cli._not_started(service.paths, service.store.all()[0]) == []
        assert global_addresses(sandbox.links()["net1"]) == ["198.51.100.7/24"]
    finally:
        early.stop()
    service.unprepare(claim)
    assert service.waiting() == [] and not attached.exists()
    assert set(sandbox.links()) == {"lo"}


def test_a_pod_gets_two_devices_of_one_claim_and_another_a_macvlan(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    other = Sandbox()
    for name, pod in (("two", sandbox), ("child", other)):
        service.prepare(node.claims[name])
        service.attach(node.request(name, pod.path))
    found = sandbox.links()
    assert set(found) == {"lo", WIRES[1], "rail1"}
    assert found["rail1"]["mtu"] == 1400 and found[WIRES[1]]["mtu"] == 1400
    # a device without configuration keeps the addresses and routes of the node
    assert global_addresses(found[WIRES[1]]) == ["10.0.1.2/24", "2001:db8:1::2/64"]
    assert "192.0.2.16/28" in claims_node.ip("route", "show", netns=sandbox.pid)
    child = other.links()
    assert set(child) == {"lo", "mac0"} and child["mac0"]["linkinfo"]["info_kind"] == "macvlan"
    assert WIRES[3] in host_state()["links"]
    service.unprepare(node.claims["two"])
    assert set(other.links()) == {"lo", "mac0"}
    service.unprepare(node.claims["child"])
    other.end()


def test_a_failed_prepare_leaves_no_file_and_a_failed_attach_no_device_in_the_pod(
    node: ClaimsNode, sandbox: Sandbox
) -> None:
    service = node.service()
    with pytest.raises(Refused, match=r"request nic .*ethtool\.features.*no-such-feature"):
        service.prepare(node.claims["impossible"])
    assert node.files() == []
    service.prepare(node.claims["failing"])
    for _attempt in range(2):
        with pytest.raises(KernelError, match="203.0.113.0/24"):
            service.attach(node.request("failing", sandbox.path))
        assert set(sandbox.links()) == {"lo"}
        record = service.store.load(node.claims["failing"].uid)
        assert record and record.phase == PREPARED and record.netns is None
    service.unprepare(node.claims["failing"])


def test_only_the_pod_of_a_claim_gets_its_device(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    request = node.request("one", sandbox.path)
    with pytest.raises(Refused, match="not prepared"):
        service.attach(request)
    service.prepare(node.claims["one"])
    for wrong_request in (
        dataclasses.replace(request, annotations={}),
        node.request("one", sandbox.path, pod="two"),
        node.request("one", Path("/proc/self/ns/net")),
    ):
        with pytest.raises(Refused):
            attach_with_retries(service, wrong_request)
    with pytest.raises(DriverError):
        service.attach(node.request("one", Path("/proc/0/ns/net")))
    record = service.store.load(request.uid)
    assert record and record.phase == PREPARED
    assert set(sandbox.links()) == {"lo"}
    service.unprepare(node.claims["one"])


def test_the_device_moves_to_a_new_sandbox_of_the_pod(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    service.prepare(node.claims["one"])
    first = Sandbox()
    service.attach(node.request("one", first.path))
    service.attach(node.request("one", first.path))
    service.attach(node.request("one", sandbox.path))
    assert set(first.links()) == {"lo"} and set(sandbox.links()) == {"lo", "net1"}
    first.end()
    # also if the old sandbox has ended, and only the pin keeps its namespace
    second = Sandbox()
    sandbox.end()
    service.attach(node.request("one", second.path))
    assert set(second.links()) == {"lo", "net1"}
    second.end()
    service.unprepare(node.claims["one"])


def test_unknown_claims_and_wrong_uids_are_refused(node: ClaimsNode) -> None:
    service = node.service()
    with pytest.raises(Refused, match="metadata.uid"):
        service.prepare(dataclasses.replace(node.claims["one"], uid=UNKNOWN.uid))
    with pytest.raises(Refused, match="does not exist"):
        service.prepare(UNKNOWN)
    with pytest.raises(Refused):
        service.prepare(dataclasses.replace(UNKNOWN, uid="../x"))
    service.unprepare(UNKNOWN)


def test_a_damaged_record_is_replaced_and_a_newer_one_is_kept(node: ClaimsNode) -> None:
    service = node.service()
    service.prepare(node.claims["one"])
    path = service.store.path(node.claims["one"].uid)
    path.write_bytes(b"{")
    service.prepare(node.claims["one"])
    (renamed,) = path.parent.glob("*.corrupt-*")
    renamed.unlink()
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    for operation in (service.prepare, service.unprepare):
        with pytest.raises(DriverError, match="schema"):
            operation(node.claims["one"])
    assert not service.reconcile()
    assert node.paths.cdi_spec(node.claims["one"].uid).exists()
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 1}))
    service.unprepare(node.claims["one"])


# after a restart


def test_files_without_a_record_are_removed(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    service.prepare(node.claims["one"])
    service.prepare(node.claims["two"])
    service.attach(node.request("two", sandbox.path))
    kept = node.files()
    service.unprepare(node.claims["one"])
    uid = node.claims["one"].uid
    node.paths.cdi_spec(uid).write_text("{}")
    (node.paths.metadata_dir / uid).mkdir()
    netns.pin(sandbox.path, node.paths.pin(uid))
    assert node.service().reconcile()
    assert [path for path in kept if uid not in path] == node.files()
    assert set(sandbox.links()) == {"lo", WIRES[1], "rail1"}
    service.unprepare(node.claims["two"])


def test_devices_of_a_deleted_claim_return_once_its_pod_has_no_process(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    service.prepare(node.claims["one"])
    service.attach(node.request("one", sandbox.path))
    store = service.store
    record = store.load(node.claims["one"].uid)
    assert record
    record.name = "gone"  # as if the claim had been deleted
    store.save(record)
    assert node.service().reconcile()
    assert set(sandbox.links()) == {"lo", "net1"}  # the pod may still use it
    sandbox.end()
    assert node.service().reconcile()
    assert store.uids() == []


def test_devices_of_a_changed_allocation_return_once_the_pod_has_no_process(node: ClaimsNode, sandbox: Sandbox) -> None:
    """A claim with the same UID is no longer allocated, or has other devices."""
    service = node.service()
    service.prepare(node.claims["one"])
    service.attach(node.request("one", sandbox.path))
    unchanged = node.cluster.claim(claims_node.NAMESPACE, "one")
    assert unchanged
    reallocated = copy.deepcopy(unchanged)
    reallocated["status"]["allocation"]["devices"]["results"][0]["device"] = "net-wire8"
    deallocated = {**unchanged, "status": {}}

    def reconcile(claim: t.Any) -> bool:
        restarted = node.service()
        restarted.cluster.claim = lambda _namespace, _name: claim  # type: ignore[method-assign, assignment]
        return restarted.reconcile()

    for claim in (unchanged, reallocated, deallocated):
        assert reconcile(claim)
        assert set(sandbox.links()) == {"lo", "net1"}  # the pod may still use it
    sandbox.end()
    assert reconcile(unchanged) and service.store.uids() != []
    assert reconcile(reallocated) and service.store.uids() == []
    service.prepare(node.claims["one"])
    assert reconcile(unchanged) and service.store.uids() != []
    assert reconcile(deallocated) and service.store.uids() == [] and node.files() == []


def test_a_claim_that_was_not_attached_is_unprepared_while_its_device_is_locked(node: ClaimsNode) -> None:
    """Another claim of the same port may have the lock for a while."""
    service, other = node.service(), node.service()
    service.prepare(node.claims["one"])
    record = service.store.load(node.claims["one"].uid)
    assert record
    with other.ledger.lock_devices(record):
        service.unprepare(node.claims["one"])
    assert service.store.uids() == [] and node.files() == []


def test_metadata_keeps_its_file_when_a_claim_is_prepared_again(node: ClaimsNode) -> None:
    """Containers of the next pod may have mounted the file."""
    service = node.service()
    service.prepare(node.claims["one"])
    (file,) = node.paths.metadata_dir.rglob("metadata.json")
    inode, uid = file.stat().st_ino, node.claims["one"].uid
    record = service.store.load(uid)
    assert record
    record.held[0].request = "earlier"  # as if the claim was allocated anew
    service.store.save(record)
    node.service().prepare(node.claims["one"])
    renewed = service.store.load(uid)
    assert renewed and renewed.held[0].request == "nic" and file.stat().st_ino == inode
    service.unprepare(node.claims["one"])
    assert node.files() == []


def test_after_a_reboot_the_claim_is_prepared_and_can_be_attached_again(node: ClaimsNode, sandbox: Sandbox) -> None:
    service = node.service()
    service.prepare(node.claims["one"])
    spec = node.paths.cdi_spec(node.claims["one"].uid)
    content = spec.read_text()
    service.attach(node.request("one", sandbox.path))
    # as after a reboot: the device is on the node, and /run is empty
    record = service.store.load(node.claims["one"].uid)
    assert record
    pin = node.paths.pin(record.uid)
    (device,) = record.held
    assert device.host
    interfaces.detach(device.known.identity, device.host, pin, device.config)
    netns.unpin(pin)
    spec.unlink()
    next_service = node.service(boot="another boot")
    assert next_service.reconcile()
    assert spec.read_text() == content
    record = next_service.store.load(record.uid)
    assert record and (record.phase, record.boot, record.held[0].host) == (PREPARED, "another boot", None)
    next_service.attach(node.request("one", sandbox.path))
    assert set(sandbox.links()) == {"lo", "net1"}
    next_service.unprepare(node.claims["one"])


def test_after_a_reboot_records_have_the_published_devices(node: ClaimsNode) -> None:
    service = node.service()
    service.prepare(node.claims["one"])
    record = service.store.load(node.claims["one"].uid)
    assert record
    (device,) = record.held
    published_device, name = device.known, device.device
    stale = {"name": name, "attributes": {"rdma": {"bool": False}, "rdmaDevice": {"string": "mlx5_0"}}}
    device.known = dataclasses.replace(published_device, device=stale, interface="old0")
    service.store.save(record)
    # in the same boot the device may be in a pod, where the driver cannot read it, so its record stays
    assert node.service().recover()
    record = service.store.load(record.uid)
    assert record and record.held[0].known.device == stale
    next_service = node.service(boot="another boot")
    published = {device["name"]: device for device in next_service.inventory.publication.devices}
    assert published[name] == published_device.device
    assert next_service.recover()
    record = next_service.store.load(record.uid)
    assert record and record.held[0].known == published_device
    assert next_service.held() == [published_device]
    # the record also stays if the device or its RDMA device is missing after a reboot
    missing = dataclasses.replace(
        published_device, name="net-none", device={**published_device.device, "name": "net-none"}
    )
    for known in (missing, dataclasses.replace(published_device, rdma_devices=("mlx5_0",))):
        record.held[0].known, record.held[0].device = known, known.name
        next_service.store.save(record)
        assert node.service(boot="a third boot").recover()
        left = next_service.store.load(record.uid)
        assert left and left.held[0].known == known
    next_service.unprepare(node.claims["one"])


def test_prepare_updates_the_names_of_rdma_devices(
    node: ClaimsNode, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[str] = []
    monkeypatch.setattr(rdma, "devices", lambda _address: list(current))
    monkeypatch.setattr(
        rdma, "char_devices", lambda link, **_asked: [rdma.CharDevice(f"/dev/infiniband/{link}", 231, 192)]
    )

    def device_nodes() -> list[str]:
        edits = json.loads(node.paths.cdi_spec(uid).read_text())["devices"][0]["containerEdits"]
        return [device_node["path"] for device_node in edits["deviceNodes"]]

    uid = node.claims["one"].uid
    service = node.service()
    service.prepare(node.claims["one"])
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
        service.prepare(node.claims["one"])
    current.append("mlx5_3")
    service.prepare(node.claims["one"])
    assert device_nodes() == ["/dev/infiniband/mlx5_3"]
    record = service.store.load(uid)
    assert record and record.held[0].known.rdma_devices == ("mlx5_3",)
    metadata = next(node.paths.metadata_dir.rglob("metadata.json")).read_text()
    assert "mlx5_3" in metadata and "mlx5_0" not in metadata
    # the names of a device in a pod are not changed
    service.attach(node.request("one", sandbox.path))
    current[:] = ["mlx5_4"]
    service.prepare(node.claims["one"])
    assert device_nodes() == ["/dev/infiniband/mlx5_3"]
    service.unprepare(node.claims["one"])
