# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims on a node of veth interfaces: whatever happens in whatever order, the node gets back what it had."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import shutil
import subprocess
import threading
import time
import typing as t
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import claims_world as world_module
from ansible_collections.lanewise.dra.tests.driver.claims_world import WIRES, Sandbox, World, differences, host_state
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from lanewise_driver import cli
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.errors import Busy, DriverError, KernelError, Refused
from lanewise_driver.base.lock import Locks
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.records import ATTACHED, PREPARED
from lanewise_driver.claims.service import Service
from lanewise_driver.hook.early import Early
from lanewise_driver.kernel import rdma

EXAMPLES = int(os.environ.get("LANEWISE_CLAIM_EXAMPLES", "3"))
STEPS = 14
UNKNOWN = ClaimRef("claims", "unknown", "00000000-0000-4000-8000-000000000000")


def address_of(link: t.Mapping[str, t.Any]) -> list[str]:
    return [f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] == "global"]


# one claim after the other


def test_prepared_attached_and_given_back(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    (prepared,) = service.prepare(clean.claims["one"])
    assert (prepared.pool, prepared.device, prepared.requests) == (world_module.NODE, "net-wire0", ("nic",))
    spec = json.loads(clean.paths.cdi_spec(clean.claims["one"].uid).read_text())
    assert prepared.cdi_ids == (f"{spec['kind']}={spec['devices'][0]['name']}",)
    assert spec["containerEdits"]["hooks"]
    assert service.prepare(clean.claims["one"]) == [prepared]
    service.attach(clean.request("one", sandbox.path))
    link = sandbox.links()["net1"]
    assert link["mtu"] == 1400  # the class's
    assert address_of(link) == ["198.51.100.7/24"]
    assert link["address"] == "02:00:00:00:01:00" and "UP" in link["flags"]
    assert WIRES[0] not in host_state()["links"]
    assert "203.0.113.0/24" in world_module.ip("route", "show", netns=sandbox.pid)
    assert "198.51.100.7 lookup 55" in world_module.ip("rule", netns=sandbox.pid)
    record = service.store.load(clean.claims["one"].uid)
    assert record and record.phase == ATTACHED and record.held[0].network
    assert record.held[0].network["ips"] == ["198.51.100.7/24"]
    told = next(clean.paths.metadata_dir.rglob("metadata.json")).read_text()
    assert "198.51.100.7/24" in told and "net1" in told
    service.unprepare(clean.claims["one"])
    assert set(sandbox.links()) == {"lo"}


def test_devices_are_in_the_pod_before_its_containers_start(  # noqa: PLR0915
    clean: World, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as containerd notes the pod's sandbox. Other pods, containers, and what cannot be read are left, and
    what fails here is for the hook to tell."""
    service = clean.service()
    claim, path = clean.claims["one"], str(sandbox.path)
    pod = dict(clean.request("one", sandbox.path).annotations)
    marker = clean.paths.attached(claim.uid)
    monkeypatch.setattr(cli, "PATIENCE", -1)

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
        until(true, world_module.PATIENCE)

    measured = Metrics()
    early = Early(service, measured, tmp_path)
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
        assert len(cli._unfetched(service.paths, service.store.all()[0])) == 1
        service.attach(clean.request("one", sandbox.path))  # the hook of a container, where it asks
        assert cli._unfetched(service.paths, service.store.all()[0]) == []
        assert address_of(sandbox.links()["net1"]) == ["198.51.100.7/24"]
    finally:
        early.stop()
    service.unprepare(claim)
    assert service.waiting() == [] and not marker.exists()
    assert set(sandbox.links()) == {"lo"}


def test_two_devices_and_a_child(clean: World, sandbox: Sandbox) -> None:
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


def test_what_cannot_be_had_leaves_nothing(clean: World, sandbox: Sandbox) -> None:
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


def test_only_the_pod_of_the_claim(clean: World, sandbox: Sandbox) -> None:
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
            world_module.attach(service, wrong)
    with pytest.raises(DriverError):
        service.attach(clean.request("one", Path("/proc/0/ns/net")))
    record = service.store.load(request.uid)
    assert record and record.phase == PREPARED
    assert set(sandbox.links()) == {"lo"}
    service.unprepare(clean.claims["one"])


def test_a_new_sandbox_takes_over(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    first = Sandbox()
    service.attach(clean.request("one", first.path))
    service.attach(clean.request("one", first.path))
    service.attach(clean.request("one", sandbox.path))
    assert set(first.links()) == {"lo"} and set(sandbox.links()) == {"lo", "net1"}
    first.end()
    # and where the old one died, which only the pin keeps
    second = Sandbox()
    sandbox.end()
    service.attach(clean.request("one", second.path))
    assert set(second.links()) == {"lo", "net1"}
    second.end()
    service.unprepare(clean.claims["one"])


def test_kubelet_names_a_claim_that_was_made_anew(clean: World) -> None:
    service = clean.service()
    with pytest.raises(Refused, match="metadata.uid"):
        service.prepare(dataclasses.replace(clean.claims["one"], uid=UNKNOWN.uid))
    with pytest.raises(Refused, match="does not exist"):
        service.prepare(UNKNOWN)
    with pytest.raises(Refused):
        service.prepare(dataclasses.replace(UNKNOWN, uid="../x"))
    service.unprepare(UNKNOWN)


def test_a_record_that_cannot_be_read(clean: World) -> None:
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


# a start anew


def test_traces_without_a_record_are_removed(clean: World, sandbox: Sandbox) -> None:
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


def test_a_claim_that_is_gone_and_has_no_process(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    store = service.store
    record = store.load(clean.claims["one"].uid)
    assert record
    record.name = "gone"  # as if the claim had been deleted
    store.save(record)
    assert clean.service().reconcile()
    assert set(sandbox.links()) == {"lo", "net1"}  # somebody may still use it
    sandbox.end()
    assert clean.service().reconcile()
    assert store.uids() == []


def test_a_claim_that_has_lost_its_devices_and_has_no_process(clean: World, sandbox: Sandbox) -> None:
    """The same claim, with its UID, that is allocated no more or has got other devices."""
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
        assert set(sandbox.links()) == {"lo", "net1"}  # somebody may still use it
    sandbox.end()
    assert reconcile(now) and service.store.uids() != []
    assert reconcile(other) and service.store.uids() == []
    service.prepare(clean.claims["one"])
    assert reconcile(now) and service.store.uids() != []
    assert reconcile(free) and service.store.uids() == [] and clean.files() == []


def test_after_a_boot_only_files_are_made_anew(clean: World, sandbox: Sandbox) -> None:
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


def test_after_a_boot_devices_are_what_they_are_now(clean: World) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    record = service.store.load(clean.claims["one"].uid)
    assert record
    (device,) = record.held
    fresh, name = device.known, device.device
    stale = {"name": name, "attributes": {"rdma": {"bool": False}, "rdmaDevice": {"string": "mlx5_0"}}}
    device.known = dataclasses.replace(fresh, device=stale, interface="old0")
    service.store.save(record)
    # in the same boot it may be in a pod, and nothing else is known of it
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
    # one that the next boot does not find, or not with its RDMA device yet, stays what it was
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
    monkeypatch.setattr(rdma, "links", lambda _address: list(now))
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
    told = {"rdmaDevice": {"string": "mlx5_0"}, "rdma": {"bool": True}}
    device.known = dataclasses.replace(
        device.known,
        address="0000:ff:00.0",
        rdma_devices=("mlx5_0",),
        device={"name": device.device, "attributes": told},
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
    # what a pod has is not touched
    service.attach(clean.request("one", sandbox.path))
    now[:] = ["mlx5_4"]
    service.prepare(clean.claims["one"])
    assert nodes() == ["/dev/infiniband/mlx5_3"]
    service.unprepare(clean.claims["one"])


# claims that live on


def test_a_claim_goes_to_the_next_pod_without_a_prepare(
    clean: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet asks once for a claim that pods share, one after the other."""
    service = clean.service()
    service.prepare(clean.claims["two"])
    service.attach(clean.request("two", sandbox.path))
    plane = clean.plane
    clean.start("two", "next")
    second = Sandbox()
    with pytest.raises(Refused, match="status.reservedFor"):
        world_module.attach(service, clean.request("two", second.path, pod="next"))
    assert set(second.links()) == {"lo"}
    plane.expect("DELETE", f"{world_module.PODS}/two?gracePeriodSeconds=0")
    plane.wait_for(lambda: len(clean.claim("two")["status"]["reservedFor"]) == 1, "the claim to be for one pod")
    asked: list[str] = []
    for name in ("claim", "pod"):
        monkeypatch.setattr(service.cluster, name, _noting(asked, getattr(service.cluster, name)))
    world_module.attach(service, clean.request("two", second.path, pod="next"))
    # another thread asks the API server, not that of attach
    assert "next-pod" in asked and threading.current_thread().name not in asked
    assert set(second.links()) == {"lo", WIRES[1], "rail1"} and set(sandbox.links()) == {"lo"}
    with pytest.raises(Refused):
        world_module.attach(service, clean.request("two", sandbox.path))
    assert set(second.links()) == {"lo", WIRES[1], "rail1"}
    service.unprepare(clean.claims["two"])
    second.end()
    clean.pods["two"] = clean.pods.pop("next")


def _noting(threads: list[str], function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    def noted(*args: t.Any) -> t.Any:
        threads.append(threading.current_thread().name)
        return function(*args)

    return noted


# leases


def test_a_lease_is_kept_over_a_restart(clean: World, sandbox: Sandbox) -> None:
    if not shutil.which("dnsmasq"):
        pytest.skip("needs dnsmasq")
    world_module.ip("address", "replace", "10.9.0.1/24", "dev", "far7", netns=clean.fabric)
    command = ["nsenter", f"--net=/proc/{clean.fabric}/ns/net", "dnsmasq", "--no-daemon", "--port=0", "--no-ping"]
    more = ["--interface=far7", "--bind-dynamic", "--conf-file=/dev/null", "--leasefile-ro", "--user=root"]
    log = Path("/run/dnsmasq.log")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, *more, "--dhcp-range=10.9.0.50,10.9.0.60,2m", "--log-dhcp"], stdout=output, stderr=output
        )
    service = clean.service()
    try:
        service.prepare(clean.claims["leased"])
        service.attach(clean.request("leased", sandbox.path))
        record = service.store.load(clean.claims["leased"].uid)
        assert record and record.held[0].network
        (lease,) = record.held[0].leases
        assert record.held[0].network["ips"] == [lease["address"]] and lease["address"].startswith("10.9.0.")
        service.close()
        lease["boottime"] -= 70  # the time to renew it went by while the driver was away
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
        server.terminate()
        server.wait()


def test_who_waits_for_a_lease_holds_up_no_function_of_the_same_card(clean: World, sandbox: Sandbox) -> None:
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


def test_the_status_tells_true_and_false(clean: World, sandbox: Sandbox) -> None:
    writer = Writer(clean.cluster, settle=0)
    writer.start()
    service = clean.service(writer)
    both = {"Ready": "True", "NetworkReady": "True"}
    neither = {"Ready": "False", "NetworkReady": "False"}

    def told(name: str) -> dict[str, dict[str, str]]:
        assert writer.wait(10)
        return conditions(clean, name)

    service.prepare(clean.claims["one"])
    assert told("one") == {"net-wire0": neither}
    service.attach(clean.request("one", sandbox.path))
    assert told("one") == {"net-wire0": both}
    (status,) = clean.claim("one")["status"]["devices"]
    assert status["networkData"] == {
        "interfaceName": "net1",
        "hardwareAddress": "02:00:00:00:01:00",
        "ips": ["198.51.100.7/24"],
    }
    with pytest.raises(Refused):
        service.prepare(clean.claims["impossible"])
    assert told("impossible") == {"net-wire4": neither}
    (status,) = clean.claim("impossible")["status"]["devices"]
    assert "no-such-feature" in status["conditions"][0]["message"]
    service.prepare(clean.claims["failing"])
    with pytest.raises(KernelError):
        service.attach(clean.request("failing", sandbox.path))
    assert told("failing") == {"net-wire5": neither, "net-wire6": neither}
    for name in ("one", "failing", "impossible"):
        service.unprepare(clean.claims[name])
    service.status.put(clean.claims["impossible"], [])
    assert told("one") == told("failing") == told("impossible") == {}
    writer.stop()


def test_the_status_is_written_when_the_server_is_back(clean: World, sandbox: Sandbox) -> None:
    service = clean.service()
    service.prepare(clean.claims["one"])
    service.attach(clean.request("one", sandbox.path))
    cluster = clean.connect(patience=1)
    writer = Writer(cluster, settle=0)
    writer.start()
    clean.plane.stop("kube-apiserver")
    try:
        again = Service(clean.paths, cluster, service.inventory, writer)
        # without the server nobody knows whether the claim still is, so the device stays where it is
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


# at the same time


def test_many_at_a_time(clean: World) -> None:
    """Threads of two drivers over one folder do everything with all claims; each call may only fail with words."""
    services = [clean.service(), clean.service()]
    sandboxes = {name: Sandbox() for name in ("one", "two", "child")}
    failures: list[BaseException] = []
    end = time.monotonic() + 8

    def churn(number: int) -> None:
        service = services[number % 2]
        name = ("one", "two", "child")[number % 3]
        try:
            while time.monotonic() < end:
                try:
                    service.prepare(clean.claims[name])
                    service.attach(clean.request(name, sandboxes[name].path))
                    service.reconcile()
                except Refused as error:
                    assert "not prepared" in error.message
                service.unprepare(clean.claims[name])
        except BaseException as error:  # noqa: BLE001  # shown by the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for sandbox in sandboxes.values():
        sandbox.end()


# any order, and kill -9 at any step


class Life(RuleBasedStateMachine):
    """Claims, pods and the driver do what they like; a model says what is to be seen."""

    world: t.ClassVar[World]
    before: t.ClassVar[dict[str, t.Any]]
    NAMES = ("one", "two", "child", "impossible", "failing")
    DEVICES: t.ClassVar[dict[str, dict[str, str]]] = {
        "one": {WIRES[0]: "net1"},
        "two": {WIRES[1]: WIRES[1], WIRES[2]: "rail1"},
        "child": {WIRES[3]: "mac0"},
        "impossible": {},
        "failing": {},
    }

    def __init__(self) -> None:
        super().__init__()
        self.service = self.world.service()
        self.prepared: set[str] = set()
        self.attached: set[str] = set()
        self.sandboxes: dict[str, Sandbox] = {}

    @initialize()
    def start(self) -> None:
        self.sandboxes = {name: Sandbox() for name in self.NAMES}

    names = st.sampled_from(NAMES)

    def request(self, name: str) -> AttachRequest:
        return self.world.request(name, self.sandboxes[name].path)

    @rule(name=names)
    def prepare(self, name: str) -> None:
        if name == "impossible":
            with pytest.raises(Refused, match="no-such-feature"):
                self.service.prepare(self.world.claims[name])
        else:
            assert self.service.prepare(self.world.claims[name])
            self.prepared.add(name)

    @rule(name=names)
    def attach(self, name: str) -> None:
        if name not in self.prepared:
            with pytest.raises(Refused, match="not prepared"):
                self.service.attach(self.request(name))
        elif name == "failing":
            with pytest.raises(KernelError):
                self.service.attach(self.request(name))
        else:
            self.service.attach(self.request(name))
            self.attached.add(name)

    @rule(name=names, other=names)
    def attach_of_another_pod(self, name: str, other: str) -> None:
        if name != other:
            with pytest.raises(Refused):
                world_module.attach(self.service, self.world.request(name, self.sandboxes[other].path, pod=other))

    @rule(name=names)
    def new_sandbox(self, name: str) -> None:
        """The old one ends, and only a pin keeps what is in it; no hook has run for the new one."""
        self.sandboxes[name].end()
        self.sandboxes[name] = Sandbox()

    @rule(name=names)
    def unprepare(self, name: str) -> None:
        self.service.unprepare(self.world.claims[name])
        self.prepared.discard(name)
        self.attached.discard(name)

    @rule()
    def unprepare_unknown(self) -> None:
        self.service.unprepare(UNKNOWN)

    @rule()
    def restart(self) -> None:
        self.service = self.world.service()
        assert self.service.reconcile()

    @rule(name=names, act=st.sampled_from(["prepare", "attach", "unprepare", "reconcile"]), step=st.integers(0, 150))
    def killed(self, name: str, act: str, step: int) -> None:
        """The driver dies somewhere in an operation and starts again; then kubelet or the hook asks again."""
        claim = self.world.claims[name]

        def operate() -> None:
            try:
                if act == "prepare":
                    self.service.prepare(claim)
                elif act == "attach":
                    self.service.attach(self.request(name))
                elif act == "unprepare":
                    self.service.unprepare(claim)
                else:
                    self.service.reconcile()
            except DriverError:
                pass

        killed_at(step, operate)
        self.restart()
        record = self.service.store.load(claim.uid)
        self.prepared.discard(name)
        self.attached.discard(name)
        if record:
            # whatever the call was and how far it came: prepared, or in the pod as a whole
            assert record.phase in (PREPARED, ATTACHED)
            self.prepared.add(name)
            if record.phase == ATTACHED:
                self.attached.add(name)
        if act == "unprepare":
            self.unprepare(name)

    @invariant()
    def the_node_has_what_it_had(self) -> None:
        now, before = host_state(), copy.deepcopy(self.before)
        if "child" in self.attached:
            before["links"][WIRES[3]]["promiscuity"] = 1  # the kernel's, as the macvlan has an address of its own
        away = {wire for name in self.attached if name != "child" for wire in self.DEVICES[name]}
        for wire in WIRES:
            if wire in away:
                assert wire not in now["links"], wire
            else:
                assert now["links"].get(wire) == before["links"][wire], wire
        if not away:
            assert differences(before, now) == []

    @invariant()
    def pods_have_what_they_shall(self) -> None:
        for name, sandbox in self.sandboxes.items():
            record = self.service.store.load(self.world.claims[name].uid)
            assert (record is not None) == (name in self.prepared), name
            if record:
                assert record.phase == (ATTACHED if name in self.attached else PREPARED), name
            wanted = {"lo"}
            if name in self.attached and record and record.netns and record.netns[1] == sandbox.inodes():
                wanted |= set(self.DEVICES[name].values())
            assert set(sandbox.links()) == wanted, name

    @invariant()
    def files_are_those_of_claims(self) -> None:
        paths = self.world.paths
        files = self.world.files()
        uids = {name: self.world.claims[name].uid for name in self.NAMES}
        for name, uid in uids.items():
            assert paths.cdi_spec(uid).exists() == (name in self.prepared)
            assert (paths.metadata_dir / uid).exists() == (name in self.prepared)
            assert paths.pin(uid).exists() == (name in self.attached)
        known = {uids[name] for name in self.prepared}
        for file in files:
            if "/locks/" not in file and not file.endswith(".unfinished"):
                assert any(uid in file for uid in known), file

    def teardown(self) -> None:
        for name in self.NAMES:
            self.service.unprepare(self.world.claims[name])
        for sandbox in self.sandboxes.values():
            sandbox.end()
        for path in map(Path, self.world.files()):
            if "/locks/" in str(path) or path.name.endswith(".unfinished"):  # of drivers that were killed
                path.unlink()
        assert self.world.files() == []
        assert differences(self.before, host_state()) == []


def test_any_order_of_everything(clean: World) -> None:
    Life.world = clean
    Life.before = host_state()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Life,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("act", ["prepare", "attach", "sandbox", "unprepare"])
def test_killed_at_each_step(clean: World, act: str) -> None:
    """Changes all along an operation are the driver's last; the next driver finishes or takes back."""
    stride = int(os.environ.get("LANEWISE_KILL_STRIDE", "250"))
    before = host_state()
    claim = clean.claims["two"]
    ends = set()
    step = 0
    killed = True
    while killed:
        service = clean.service()
        sandbox, old = Sandbox(), Sandbox()
        if act != "prepare":
            service.prepare(claim)
        if act == "sandbox":
            service.attach(clean.request("two", old.path))
            old.end()
        elif act == "unprepare":
            service.attach(clean.request("two", sandbox.path))
        operate = partial(service.attach, clean.request("two", sandbox.path))
        if act in ("prepare", "unprepare"):
            operate = partial(getattr(service, act), claim)
        killed = killed_at(step, operate)
        step += stride
        again = clean.service()
        assert again.reconcile()
        record = again.store.load(claim.uid)
        ends.add(record.phase if record else "")
        if act in ("attach", "sandbox"):
            again.attach(clean.request("two", sandbox.path))
            assert set(sandbox.links()) == {"lo", WIRES[1], "rail1"}
        elif act == "prepare":
            assert again.prepare(claim)
        again.unprepare(claim)
        assert differences(before, host_state()) == [], step
        left = [file for file in clean.files() if "/locks/" not in file and not file.endswith(".unfinished")]
        assert left == [], step
        sandbox.end()
        old.end()
        for path in map(Path, clean.files()):
            path.unlink()
    print(act, "killed at", step // stride, "steps of", step, "; found afterwards:", sorted(ends))
    assert len(ends) > 1


# locks


def test_a_lock_has_one_holder_and_leaves_no_file(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks", patience=30)
    inside = [0]
    most = [0]
    guard = threading.Lock()

    def work(number: int) -> None:
        for _time in range(50):
            with locks.hold("b", f"c{number % 2}", "a/../a"):
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                with guard:
                    inside[0] -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and list((tmp_path / "locks").iterdir()) == []


def test_a_lock_that_is_held_is_told(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks", patience=0.05)
    with locks.hold("claim-x"), pytest.raises(Busy, match="claim-x"):
        with locks.hold("claim-x"):
            pass
    with locks.hold("claim-x"):
        pass
