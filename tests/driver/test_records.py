# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Records on a real disk are read back complete and unchanged, whenever their writer is killed. Damaged records are set
aside."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
import tracemalloc
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access import usage
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.tests.driver import folders
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import NODE, FakeCluster, start_service
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at_each_step
from hypothesis import given, settings
from hypothesis import strategies as st
from lanewise_driver.base import files
from lanewise_driver.base.errors import DriverError
from lanewise_driver.base.settings import Settings
from lanewise_driver.claims import records
from lanewise_driver.claims.cdi import DeviceNode
from lanewise_driver.claims.claim_files import ClaimFiles
from lanewise_driver.claims.record_formats import FORMATS
from lanewise_driver.claims.records import DeviceRecord, Pod, RdmaRecord, Record, Store, Unreadable
from lanewise_driver.publish.inventory import Device
from lanewise_driver.shares.share import ShareRecord

UID = "5f0c1b9e-0000-4000-8000-000000000001"
# Hypothesis strategies of random records and their parts.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=4)
TEXT = st.text(max_size=20)
ATTRIBUTES = st.dictionaries(TEXT, st.dictionaries(TEXT, JSON, max_size=1), max_size=2)
KNOWN = st.builds(
    lambda name, attributes, **more: Device(name, {"name": name, "attributes": attributes}, **more),
    TEXT.filter(bool),
    ATTRIBUTES,
    address=st.none() | TEXT,
    interface=st.none() | TEXT,
    rdma_devices=st.lists(TEXT, max_size=2).map(tuple),
    vf=st.none() | st.integers(),
)
DEVICE_NODES = st.builds(DeviceNode, TEXT, st.integers(), st.integers(), TEXT)
TIMES = st.integers(0) | st.floats(0, allow_infinity=False)
RDMA = st.builds(
    RdmaRecord, st.lists(DEVICE_NODES, max_size=1), st.lists(TEXT), st.dictionaries(TEXT, OBJECTS, max_size=1)
)
LEASES = st.fixed_dictionaries(
    {
        **dict.fromkeys(("family", "interface", "address"), TEXT),
        **dict.fromkeys(("obtained", "lifetime", "renew", "rebind"), TIMES),
        "more": JSON,
    }
)
DEVICES = st.builds(
    DeviceRecord,
    device=TEXT,
    pool=TEXT,
    request=TEXT,
    known=KNOWN,
    config=OBJECTS,
    interface=TEXT,
    admin=st.booleans(),
    share_id=TEXT,
    lock=TEXT,
    host=st.none() | OBJECTS,
    rdma=st.none() | RDMA,
    network=st.none() | st.fixed_dictionaries({"interfaceName": TEXT, "ips": st.lists(TEXT, max_size=2)}),
    leases=st.lists(LEASES, max_size=2),
)
RECORDS = st.builds(
    Record,
    uid=st.just(UID),
    namespace=TEXT,
    name=TEXT,
    pod=st.none() | st.builds(Pod, namespace=TEXT, name=TEXT, uid=TEXT),
    boot=TEXT,
    devices=st.lists(DEVICES, max_size=3),
    phase=st.sampled_from(records.PHASES),
    netns=st.none() | st.lists(st.integers(0, 2**64), min_size=2, max_size=2),
    since=TEXT,
    pod_claim_name=TEXT,
)


#: A valid DHCP lease of a device.
LEASE = {
    **{"family": "ipv4", "interface": "net1", "address": "10.0.0.2/24"},
    **dict.fromkeys(("obtained", "lifetime", "renew", "rebind"), 1),
}


def record(number: int, size: int = 10) -> Record:
    """A record with the same number in each part, so that a mixture of two records is detected."""
    attributes = {f"a{index}": {"int": number} for index in range(size)}
    known = Device(f"d{number}", {"name": f"d{number}", "attributes": attributes})
    device = DeviceRecord(f"d{number}", "node", "nic", known)
    return Record(UID, "ns", f"claim-{number}", Pod("ns", "pod", str(number)), str(number), [device])


def number_of(loaded: Record | None) -> int:
    """The number of a record. Raises AssertionError if the record is missing or not complete."""
    assert loaded is not None
    number = int(loaded.boot)
    assert loaded == record(number, len(loaded.devices[0].known.device["attributes"]))
    return number


@settings(max_examples=300, deadline=None)
@given(RECORDS)
def test_a_record_is_read_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, wanted: Record) -> None:
    store = Store(tmp_path_factory.getbasetemp() / "round")
    store.save(wanted)
    assert store.load(UID) == wanted
    assert store.all() == ([wanted], [])
    store.remove(UID)
    store.remove(UID)
    assert store.load(UID) is None and os.listdir(store.folder) == []


def test_a_missing_folder_has_no_records(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    store.sweep()
    assert store.all() == ([], []) and store.load(UID) is None
    store.remove(UID)
    assert not store.folder.exists()


def test_files_that_cannot_be_those_of_a_claim_are_ignored(tmp_path: Path) -> None:
    """Such as an editor's, or the folder lost+found of a file system. Otherwise each recovery would fail again."""
    paths = folders.flat(tmp_path)
    (paths.metadata_dir / UID).mkdir()
    (paths.metadata_dir / "lost+found").mkdir()
    for path in (paths.metadata_dir / "notes.txt", paths.netns_dir / ".swp", paths.cdi_spec(""), paths.cdi_spec(".x")):
        path.write_text("")
    assert ClaimFiles(paths, None).claims() == {UID}


@pytest.mark.parametrize("uid", ["", ".", "..", "../x", "a/b", "x" * 129, "a\0b", "-x"])
def test_a_uid_that_is_not_a_valid_name_is_refused(tmp_path: Path, uid: str) -> None:
    store = Store(tmp_path / "state")
    for method in (store.load, store.remove, store.path):
        with pytest.raises(DriverError):
            method(uid)
    invalid = record(1)
    invalid.uid = uid
    with pytest.raises(DriverError):
        store.save(invalid)


def test_the_role_fabric_finds_the_devices_of_pods_in_the_records(tmp_path: Path) -> None:
    """The role does not change devices that belong to pods."""
    attributes = {"linkLayer": {"string": "ethernet"}, "linkSpeedMbps": {"int": 400000}, "ifName": {"string": "eth7"}}
    known = Device("pci", {"name": "pci", "attributes": attributes}, address="0000:19:00.0")
    attached = Record(UID, "ns", "claim", Pod("ns", "pod", "1"), "boot", [DeviceRecord("pci", "node", "nic", known)])
    Store(tmp_path / usage._CLAIMS.lstrip("/")).save(attached)
    system = System(str(tmp_path))
    assert usage.users(system, "0000:19:00.0").endswith(UID)
    assert usage.as_published(system, "0000:19:00.0") == {
        "interface": ["eth7"],
        "link_layer": "ethernet",
        "speed_mbps": 400000,
    }
    assert usage.as_published(system, "0000:1a:00.0") == {}


def test_a_share_by_a_vf_is_in_the_record_as_the_vf_and_not_as_its_pf(tmp_path: Path) -> None:
    """The device for shares is published with the attributes of the NIC, and the record also contains the PF."""
    pf, vf = "0000:19:00.0", "0000:19:00.2"
    attributes = {"linkSpeedMbps": {"int": 400000}, "ifName": {"string": "eth7"}}
    published = {"name": "pci-share", "attributes": attributes}
    known = Device("pci-share", published, address=vf, interface="eth7v0", pf=pf, vf=0)
    share = ShareRecord("pci", "vfs", asked=10**9, consumed=10**9, physical=10**11, ceiling=10**11)
    device = DeviceRecord("pci-share", "node", "nic", known, share_id="1", lock=pf, share=share)
    folder = tmp_path / usage._CLAIMS.lstrip("/")
    Store(folder).save(Record(UID, "ns", "claim", Pod("ns", "pod", "1"), "boot", [device]))
    system = System(str(tmp_path))
    assert usage.users(system, vf).endswith(UID) and usage.users(system, pf) == ""
    assert usage.as_published(system, vf) == {"interface": ["eth7v0"], "speed_mbps": 400000}
    assert usage.as_published(system, pf) == {}
    path = folder / f"{UID}.json"
    path.write_bytes(path.read_bytes()[:-10])
    # a damaged record does not show which of its addresses the pod has
    assert usage.users(system, vf).endswith(UID) and usage.users(system, pf).endswith(UID)


def test_only_root_can_read_the_records(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.save(record(1))
    assert store.path(UID).stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700


def _damaged_records() -> dict[str, bytes]:
    """Contents that are not a valid record of this release, by what is wrong with them."""
    good = records.encode(record(1))
    value = json.loads(good)

    def changed(**keys: t.Any) -> bytes:
        return json.dumps({**value, **keys}).encode()

    device = value["devices"][0]
    known = device["known"]
    return {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "zeros": b"\0" * len(good),
        "not utf-8": b"\xff\xfe" + good,
        "a list": b"[]",
        "nested list": b"[" * 100_000,
        "no schema": json.dumps({key: item for key, item in value.items() if key != "schema"}).encode(),
        "schema true": changed(schema=True),
        "old schema": changed(schema=0),
        "no uid": json.dumps({key: item for key, item in value.items() if key != "uid"}).encode(),
        "other uid": changed(uid="other"),
        "phase": changed(phase="gone"),
        "boot": changed(boot=None),
        "devices": changed(devices={}),
        "device": changed(devices=[{**device, "admin": 1}]),
        "known": changed(devices=[{**device, "known": {}}]),
        "known without device": changed(devices=[{**device, "known": {"name": "d1", "rdma_devices": []}}]),
        "known attributes": changed(
            devices=[{**device, "known": {**known, "device": {"name": "d1", "attributes": [1]}}}]
        ),
        "known by another name": changed(devices=[{**device, "known": {**known, "device": {"name": "d2"}}}]),
        "known rdma": changed(devices=[{**device, "known": {**known, "rdma_devices": "mlx5_0"}}]),
        "known vf": changed(devices=[{**device, "known": {**known, "vf": "0"}}]),
        "rdma": changed(devices=[{**device, "rdma": {}}]),
        "network": changed(devices=[{**device, "network": {"ips": []}}]),
        "rdma nodes": changed(devices=[{**device, "rdma": {"moves": [], "nodes": [{"path": "/dev/x"}]}}]),
        "lease": changed(devices=[{**device, "leases": [{}]}]),
        "lease times": changed(devices=[{**device, "leases": [{**LEASE, "renew": "soon"}]}]),
        "vrf": changed(devices=[{**device, "config": {"vrf": {}}}]),
        "vf": changed(devices=[{**device, "config": {"vf": 1}}]),
        "nested field": changed(more=json.loads("[" * 80 + "]" * 80)),
        "pod": changed(pod=[]),
        "netns": changed(netns=[1]),
        "netns of strings": changed(netns=["1", "2"]),
        "netns of booleans": changed(netns=[True, False]),
        "large": b" " * (records.MAX_RECORD_BYTES + 1),
    }


@pytest.mark.parametrize("damage", _damaged_records())
def test_a_damaged_record_is_set_aside_and_reported_once(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path / "state")
    store.save(record(1))
    for number in range(2):
        content = _damaged_records()[damage]
        store.path(UID).write_bytes(content)
        found, unreadable = store.all()
        assert found == [] and len(unreadable) == 1
        aside = store.folder / f"{UID}.json.corrupt-{number}"
        assert str(aside) in unreadable[0].message
        assert aside.read_bytes() == content
        assert store.all() == ([], [])
    store.save(record(2))
    assert store.load(UID) == record(2)


def test_records_of_a_newer_driver_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.save(record(1))
    value = json.loads(store.path(UID).read_bytes())
    newer = {**value, "schema": FORMATS.newest + 1, "new": {}}
    for content in (newer, {**newer, "readable_by": FORMATS.newest, "phase": "moving"}):
        store.path(UID).write_text(json.dumps(content))
        for _attempt in range(2):
            with pytest.raises(Unreadable, match="schema|phase"):
                store.load(UID)
        assert json.loads(store.path(UID).read_bytes()) == content


def test_entries_that_are_not_regular_files_are_reported_and_do_not_block(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.save(record(1))
    os.mkfifo(store.path(f"{UID[:-1]}2"))
    store.path(f"{UID[:-1]}3").mkdir()
    store.path(f"{UID[:-1]}4").symlink_to("/dev/zero")
    found, unreadable = store.all()
    assert found == [record(1)] and len(unreadable) == 3


def test_a_disk_error_is_reported_with_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = Store(tmp_path / "state"), Store(tmp_path / "other")
    store.save(record(1))

    def fail(*_arguments: object, **_more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(Path, "unlink", fail)
    for remove in (lambda: store.remove(UID), lambda: store.move_to(other, UID)):
        with pytest.raises(DriverError, match=f"could not remove the record of claim {UID}: .*Read-only file system"):
            remove()
    store.path(UID).write_bytes(b"{")
    with pytest.raises(Unreadable, match="is corrupt and could not be renamed .*Read-only file system"):
        store.load(UID)
    assert [error.message for error in store.all()[1]] != []


def test_a_disk_error_during_recovery_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = start_service(folders.flat(tmp_path), lambda: Settings(node_name=NODE), FakeCluster())
    try:

        def fail(*_arguments: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as broken:
            broken.setattr(files, "sweep", fail)
            assert not service.recover()
            messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
            caplog.clear()
            assert not service.recover()
        assert len(messages) == 3  # for the records, the records of unprepared claims, and the CDI specs
        assert "ERROR" not in {record.levelname for record in caplog.records}
        assert all("could not read or write the driver's files: [Errno 5]" in message for message in messages), messages
        assert service.recover()
    finally:
        service.close()


def test_a_folder_that_cannot_be_listed_is_reported_and_claims_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = start_service(folders.flat(tmp_path), lambda: Settings(node_name=NODE), FakeCluster())
    folder = service.ledger.store.folder
    try:
        service.ledger.store.save(record(1))
        moved = folder.rename(tmp_path / "moved")
        folder.touch()
        expected = f"the records in {folder} cannot be listed: Not a directory"
        with pytest.raises(Unreadable, match=expected):
            service.ledger.records()
        assert not service.recover() and not service.drop_lost_claims() and not service.shares.refresh()
        assert service.shares.problems == (f"shares could not be set: {expected}",)
        assert expected in caplog.text and "bug in the driver" not in caplog.text
        folder.unlink()
        moved.rename(folder)
        assert service.ledger.store.uids() == [UID] and service.shares.refresh()
    finally:
        service.close()


def test_a_record_that_is_too_large_to_be_read_back_is_not_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.save(record(1))
    large = record(2)
    large.devices[0].host = {"routes": ["x" * 1000] * 20_000}
    with pytest.raises(DriverError, match="routes or addresses"):
        store.save(large)
    assert store.load(UID) == record(1)


def test_a_large_file_is_not_read_into_memory(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.save(record(1))
    with store.path(f"{UID[:-1]}2").open("wb") as file:
        file.truncate(200 << 20)
    tracemalloc.start()
    found, unreadable = store.all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [record(1)] and "209715200 bytes" in unreadable[0].message and peak < 4 << 20


@settings(max_examples=500, deadline=None)
@given(JSON, st.binary(max_size=30))
def test_any_content_is_decoded_or_raises_value_error(value: t.Any, noise: bytes) -> None:
    valid = json.loads(records.encode(record(1)))
    contents = [noise, json.dumps(value).encode()]
    contents += [json.dumps({**valid, key: value}).encode() for key in valid]
    device = valid["devices"][0]
    contents += [
        json.dumps({**valid, "devices": [{**device, key: value}]}).encode()
        for key in ("device", "host", "known", "rdma", "network", "leases", "config")
    ]
    contents += [
        json.dumps({**valid, "devices": [{**device, "known": {**device["known"], key: value}}]}).encode()
        for key in device["known"]
    ]
    for content in contents:
        try:
            records.decode(content)
        except ValueError:
            pass


def test_a_write_killed_at_any_step_leaves_a_complete_record(tmp_path: Path) -> None:
    """The record is then the old one or the new one."""
    store = Store(tmp_path / "state")
    store.save(record(1))
    seen = set()
    for _step in killed_at_each_step(lambda: store.save(record(2))):
        found = number_of(store.load(UID))
        seen.add(found)
        assert store.all()[1] == []
        assert store.uids() == [UID]
        for path in store.folder.glob(f"*{files.UNFINISHED}"):
            os.utime(path, (0, 0))  # sweep removes only unfinished files that are old
        store.sweep()
        assert os.listdir(store.folder) == [f"{UID}.json"]
        store.save(record(1))
    assert seen == {1, 2}


def test_a_removal_killed_at_any_step_leaves_a_complete_record_or_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.save(record(1))
    seen = set()
    for _step in killed_at_each_step(lambda: store.remove(UID)):
        found = store.load(UID)
        seen.add(found is None)
        assert found in (None, record(1))
        store.save(record(1))
    assert seen == {True, False}


def _start_writer(store: Store, number: int) -> tuple[int, t.BinaryIO]:
    """Start a process that saves records with increasing numbers and prints the number of each saved record. Returns
    its ID and its output."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            store.save(record(number, 2000))
            os.write(writing, b"%d\n" % number)
            number += 1
    os.close(writing)
    return child, os.fdopen(reading, "rb")


def test_a_writer_killed_at_any_time_leaves_a_complete_record(tmp_path: Path) -> None:
    """With kill -9 at random times. No record is lost that the writer has reported as saved."""
    store = Store(tmp_path / "state")
    generator = random.Random(20261121)
    number = 0
    for _round in range(100):
        child, output = _start_writer(store, number)
        with output:
            acknowledged = int(output.readline())
            time.sleep(generator.random() / 20)
            os.kill(child, signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, output.read().split())])
        os.waitpid(child, 0)
        found = number_of(store.load(UID))
        assert found in (acknowledged, acknowledged + 1)
        number = found + 1


def test_readers_never_see_a_partly_written_record(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.save(record(0, 2000))
    child, output = _start_writer(store, 1)
    with output:
        try:
            output.readline()
            seen = set()
            end = time.monotonic() + 1
            while time.monotonic() < end:
                seen.add(number_of(store.load(UID)))
            assert len(seen) > 3
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
