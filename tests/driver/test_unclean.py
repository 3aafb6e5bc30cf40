# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A device whose original state could not be restored is withheld from pods until it is restored.

The driver keeps a file for the device, called its note here, with the reasons and the original state.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver import folders
from ansible_collections.lanewise.dra.tests.driver.claims_node import WIRES, ClaimsNode, Sandbox, ip
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import FakeCluster
from ansible_collections.lanewise.dra.tests.driver.nodes import HiddenNamespace
from lanewise_driver.base.calls import UNHEALTHY
from lanewise_driver.base.errors import Busy, DriverError
from lanewise_driver.base.settings import Settings
from lanewise_driver.claims import health, unclean
from lanewise_driver.claims.claim_status import HealthProblem, Writer
from lanewise_driver.claims.devices import Devices
from lanewise_driver.claims.ledger import Ledger
from lanewise_driver.claims.records import ATTACHED, DETACHING, PREPARED, DeviceRecord, Record, boot_id
from lanewise_driver.claims.unclean import UncleanDevices
from lanewise_driver.interface.identity import Identity
from lanewise_driver.interface.take_back import Outcome, Reason
from lanewise_driver.publish.device import Device
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.shares.share import ShareRecord
from lanewise_driver.topology import publish
from lanewise_driver.topology.publish import Publication, device_name
from lanewise_driver.topology.publish_shares import MACVLAN, VFS, share_name

DEVICE = "net-wire0"
KNOWN = Device(DEVICE, {"name": DEVICE})


def test_a_note_applies_only_to_its_boot_and_its_device(tmp_path: Path) -> None:
    notes = UncleanDevices(tmp_path, "boot 1")
    unclean_outcome = Outcome(reasons=[Reason("changed", f"reason {number}") for number in range(100)])
    assert notes.record_outcome(DEVICE, KNOWN, {}, unclean_outcome) == "reason 0; reason 1; reason 2 (and 17 more)"
    assert {name: entry.word for name, entry in notes.all().items()} == {DEVICE: "changed"}
    assert UncleanDevices(tmp_path, "boot 2").all() == {} and list(tmp_path.iterdir()) == []
    notes.record_outcome(DEVICE, KNOWN, {}, unclean_outcome)
    assert notes.record_outcome(DEVICE, KNOWN, {}, Outcome(notes=["of the node"])) == "" and notes.all() == {}
    with pytest.raises(DriverError, match="is not a valid device name"):
        notes.record_outcome("../../etc/passwd", KNOWN, {}, unclean_outcome)


def test_claims_with_children_of_one_device_share_its_note(tmp_path: Path) -> None:
    notes, child = UncleanDevices(tmp_path, "boot 1"), {"child": {"type": "macvlan"}}
    with_macvlan = Outcome(reasons=[Reason("stacked", "a macvlan uses it")])
    notes.record_outcome(DEVICE, KNOWN, {"uppers": []}, with_macvlan, child, ["10.1.0.1"])
    # the macvlan existed before the second claim was prepared, so the note must stay when that claim ends
    second: dict[str, list[list[int]]] = {"uppers": [[1]]}
    assert notes.record_outcome(DEVICE, KNOWN, second, Outcome(), child, ["10.1.0.2"]) == ""
    assert notes.addresses() == {"10.1.0.1"}
    assert notes.record_outcome(DEVICE, KNOWN, second, with_macvlan, child, ["10.1.0.2"]).endswith(
        ": 10.1.0.1, 10.1.0.2"
    )
    (entry,) = notes.all().values()
    assert entry.host == {"uppers": []} and entry.config == child
    changed = Outcome(reasons=[Reason("changed", "its MTU")])
    notes.record_outcome(
        "net-wire1", KNOWN, {}, changed, None, ["10.1.0.3"]
    )  # not a child: no other pod uses the address
    assert notes.addresses() == {"10.1.0.1", "10.1.0.2"}
    # a share of the same NIC ends without a change, which does not restore the settings of the NIC
    assert notes.record_outcome("net-wire1", KNOWN, {}, Outcome(), child) == "" and "net-wire1" in notes.all()


def test_a_note_is_removed_only_when_its_own_original_state_is_restored(tmp_path: Path) -> None:
    """A later claim may begin with a state that is not the original one. A note that cannot be read also stays."""
    notes, changed = UncleanDevices(tmp_path, "boot 1"), Outcome(reasons=[Reason("changed", "its MTU")])
    original, later = {"mtu": 1500, "vfs": {0: "trusted"}}, {"mtu": 1300, "vfs": {0: "trusted"}}
    notes.record_outcome(DEVICE, KNOWN, original, changed)
    assert notes.record_outcome(DEVICE, KNOWN, later, Outcome()) == "" and DEVICE in notes.all()
    notes.record_outcome(DEVICE, KNOWN, later, changed)
    assert notes.all()[DEVICE].host == {"mtu": 1500, "vfs": {"0": "trusted"}}
    assert notes.record_outcome(DEVICE, KNOWN, original, Outcome()) == "" and notes.all() == {}
    (tmp_path / f"{DEVICE}.json").write_text("damaged")
    for outcome in (changed, Outcome()):
        notes.record_outcome(DEVICE, KNOWN, later, outcome)
        assert (tmp_path / f"{DEVICE}.json").read_text() == "damaged"


#: The content of a valid note.
NOTE = {"device": DEVICE, "word": "changed", "reasons": ["r"], "known": KNOWN.as_json(), "host": {}, "boot": "boot 1"}


@pytest.mark.parametrize(
    "content",
    [
        "[[[",
        "[" * 100_000,
        "{}",
        "[]",
        json.dumps({**NOTE, "known": []}),
        json.dumps({**NOTE, "known": {"name": DEVICE}}),
        json.dumps({**NOTE, "reasons": [1]}),
        json.dumps({**NOTE, "schema": 2}),
        json.dumps({**NOTE, "config": []}),
        json.dumps({**NOTE, "addresses": [1]}),
    ],
    ids=["truncated", "nested", "empty", "list", "known", "known device", "reasons", "newer", "config", "addresses"],
)
def test_a_note_that_cannot_be_read_withholds_its_device(tmp_path: Path, content: str) -> None:
    notes = UncleanDevices(tmp_path, "boot 1")
    (tmp_path / f"{DEVICE}.json").write_text(content)
    assert "cannot be read" in notes.all()[DEVICE].text and notes.all()[DEVICE].lock == DEVICE
    assert "reboot the node, then remove the file" in notes.all()[DEVICE].text
    assert not notes.retry(notes.all()[DEVICE])
    assert (tmp_path / f"{DEVICE}.json").read_text() == content


def test_a_note_without_a_schema_and_with_unknown_keys_is_read(tmp_path: Path) -> None:
    """Earlier releases wrote no schema, and later ones may add keys."""
    notes = UncleanDevices(tmp_path, "boot 1")
    (tmp_path / f"{DEVICE}.json").write_text(json.dumps({**NOTE, "more": 1}))
    assert notes.all()[DEVICE].text == "r"
    notes.record_outcome(DEVICE, KNOWN, {}, Outcome(reasons=[Reason("changed", "s")]))
    written = json.loads((tmp_path / f"{DEVICE}.json").read_text())
    assert written.pop("schema") == 1 and written == {**NOTE, "reasons": ["s"]}


PF, VF, OTHER_VF = "0000:23:00.0", "0000:23:10.0", "0000:23:10.1"
#: The part of the configuration that makes a claim's interface a child of the device.
CHILD = {"child": {"type": "macvlan"}}


def whole(address: str, pf: str | None = None) -> DeviceRecord:
    """A PCI function that a claim has; for a VF with its PF."""
    known = Device(device_name(address), {"name": device_name(address)}, address, pf=pf)
    return DeviceRecord(known.name, "node", "nic", known, lock=pf or address)


def share(mechanism: str) -> DeviceRecord:
    """A claim's share of the PF: a macvlan interface of it, or its VF."""
    name = device_name(PF)
    function = {"address": VF, "pf": PF} if mechanism == VFS else {"address": PF}
    known = Device(share_name(name), {"name": share_name(name)}, **function)
    amounts = ShareRecord(name, mechanism, 10**9, 10**9, 10**10, 10**10)
    config = CHILD if mechanism == MACVLAN else {}
    return DeviceRecord(known.name, "node", "nic", known, config, lock=PF, share=amounts)


def claim_with(device: DeviceRecord, phase: str = PREPARED) -> Record:
    """The record of a claim that has the device."""
    return Record("0000-one", "team-a", "one", None, boot_id(), [device], phase)


@pytest.mark.parametrize(
    "note, withheld",
    [
        (device_name(PF), {"PF", "VF", "other VF", "macvlan share", "VF share"}),
        (share_name(device_name(PF)), {"PF", "VF", "other VF", "macvlan share", "VF share"}),  # of an earlier release
        (device_name(VF), {"VF", "VF share"}),
        ("pci-0000-23-00-1", set()),
    ],
)
def test_a_nic_is_withheld_with_its_shares_and_vfs(tmp_path: Path, note: str, withheld: set[str]) -> None:
    notes = UncleanDevices(tmp_path, "boot 1")
    notes.record_outcome(note, Device(note, {"name": note}), {}, Outcome(reasons=[Reason("stacked", "a macvlan")]))
    devices = {
        "PF": whole(PF),
        "VF": whole(VF, PF),
        "other VF": whole(OTHER_VF, PF),
        "macvlan share": share(MACVLAN),
        "VF share": share(VFS),
    }
    refused = set()
    for name, device in devices.items():
        try:
            notes.check(claim_with(device))
        except Busy as error:
            owner = note.replace("-share", "")
            state = "its original state" if owner == device.device else f"the original state of {owner}"
            assert error.message == f"{device.device} is withheld from pods until {state} is restored: a macvlan"
            refused.add(name)
    assert refused == withheld


@pytest.mark.parametrize(
    "note, config, blocking",
    [
        (device_name(PF), None, {"PF", "VF", "VF share", "macvlan share"}),
        (device_name(PF), CHILD, {"PF", "VF", "VF share"}),
        (share_name(device_name(PF)), CHILD, {"PF", "VF", "VF share"}),  # of an earlier release
        (device_name(VF), None, {"VF", "VF share"}),
    ],
    ids=["PF", "child", "earlier release", "VF"],
)
def test_a_nic_is_not_restored_while_a_pod_has_it_or_its_vf_or_share(
    tmp_path: Path,
    note: str,
    config: dict[str, dict[str, str]] | None,
    blocking: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Restoring a PF sets the VLANs, addresses and rates of all its VFs, and removes its children. But removing a child
    does not affect the children of other claims."""
    restored: list[Identity] = []

    def take_back(identity: Identity, *_arguments: object, **_more: object) -> Outcome:
        restored.append(identity)
        return Outcome()

    monkeypatch.setattr(unclean.take_back, "take_back", take_back)
    inventory = Inventory(lambda: Settings(node_name="node"), lambda: [])
    devices = {"PF": whole(PF), "VF": whole(VF, PF), "macvlan share": share(MACVLAN), "VF share": share(VFS)}
    known = Device(note, {"name": note}, VF if note == device_name(VF) else PF)
    blocked = set()
    for name, device in devices.items():
        ledger = Ledger(folders.flat(tmp_path / name), "node", inventory, Writer(FakeCluster()))
        changed = Outcome(reasons=[Reason("changed", "its MTU")])
        ledger.unclean.record_outcome(note, known, {}, changed, config)
        ledger.store.save(claim_with(device, ATTACHED))
        if not Devices(ledger, inventory, None).retry_unclean():
            assert restored == []
            blocked.add(name)
            ledger.store.remove(claim_with(device).uid)
            assert Devices(ledger, inventory, None).retry_unclean()
        assert restored == [known.identity] and ledger.unclean.all() == {}
        restored.clear()
    assert blocked == blocking


def test_a_full_disk_does_not_keep_other_devices_from_being_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inventory = Inventory(lambda: Settings(node_name="node"), lambda: [])
    ledger = Ledger(folders.flat(tmp_path), "node", inventory, Writer(FakeCluster()))
    still_changed = Outcome(reasons=[Reason("changed", "its MTU")])
    names = [f"net-wire{number}" for number in range(4)]
    for name in names:
        ledger.unclean.record_outcome(name, Device(name, {"name": name}, interface=name), {}, still_changed)

    def take_back(identity: Identity, *_arguments: object, **_more: object) -> Outcome:
        return still_changed if identity.name in names[1:3] else Outcome()

    def replace(path: Path, *_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(unclean.take_back, "take_back", take_back)
    monkeypatch.setattr(unclean.files, "replace", replace)
    assert Devices(ledger, inventory, None).retry_unclean()
    assert sorted(ledger.unclean.all()) == names[1:3]
    assert "net-wire1 is still withheld from pods: " in caplog.text and "No space left on device" in caplog.text


def test_the_health_of_a_device_says_where_it_is_missing() -> None:
    """`devices` is given the publication, the records and the problems in pods."""

    def published(*taints: str) -> Publication:
        return Publication([{"name": DEVICE, "taints": [{"key": key} for key in taints]}] if taints != ("no",) else [])

    def reported(publication: Publication, *records: Record, **problems: HealthProblem) -> str:
        by_claim = {record.uid: {("d", share): problem for share, problem in problems.items()} for record in records}
        (entry,) = health.devices("node", publication, records, by_claim)
        assert (entry.health == UNHEALTHY) is bool(entry.message)
        return entry.message

    def record(phase: str, *shares: str) -> Record:
        name = "d" if shares else DEVICE
        devices = [
            DeviceRecord(name, "node", "r", Device(name, {"name": name}), share_id=share) for share in shares or [""]
        ]
        return Record("u", "team", "c", None, "boot", devices, phase=phase)

    gone = "the device is no longer on the node"
    assert reported(published(publish.MISSING)) == gone
    assert reported(published(publish.LINK_DOWN)) == "the link is down"
    assert reported(published(publish.MISSING), record(PREPARED)) == gone
    assert reported(published(publish.MISSING), record(ATTACHED)) == gone
    assert reported(published(publish.LINK_DOWN), record(ATTACHED)) == ""  # its link in the pod counts
    assert "has not returned to the node yet" in reported(published(), record(DETACHING))
    problem = HealthProblem("the VF is gone", "now")
    assert reported(published("no"), record(ATTACHED, "a", "b"), b=problem) == "the VF is gone"
    assert reported(published("no"), record(ATTACHED, "a", "b"), a=problem) == "the VF is gone"


def test_a_tapped_device_is_withheld_from_all_pods(
    node: ClaimsNode, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unclean, "_INTERVAL", 0.0)
    service, claim = node.service(), node.claims["one"]
    service.prepare(claim)
    service.attach(node.request("one", sandbox.path))
    hidden = HiddenNamespace(passed=True)
    ip("link", "add", "link", "net1", "name", "tap0", "type", "macvlan", netns=sandbox.pid)
    ip("link", "set", "tap0", "netns", hidden.path(), netns=sandbox.pid)
    hidden.hide()
    service.unprepare(claim)
    assert Path(f"/sys/class/net/{WIRES[0]}").exists()
    (entry,) = service.unclean.all().values()
    assert entry.device == DEVICE and entry.word == "stacked" and "it is not a PCI function" in entry.text
    publication = Inventory(lambda: node.settings, lambda: [], "/", lambda: {DEVICE: entry.word}).refresh()
    (device,) = [published for published in publication.devices if published["name"] == DEVICE]
    assert device["taints"] == [{"key": "lanewise.dev/unclean", "value": "stacked", "effect": "NoSchedule"}]
    (reported,) = [status for status in health.devices("node", publication, [], {}) if status.device == DEVICE]
    assert reported.health == UNHEALTHY and "withheld from pods" in reported.message
    with pytest.raises(Busy, match=f"{DEVICE} is withheld from pods until its original state is restored: .*macvlan"):
        service.prepare(claim)
    assert not service.retry_unclean()
    hidden.show()
    assert service.retry_unclean()
    assert "tap0" not in hidden.run("ip -o link")
    assert service.unclean.all() == {}
    service.prepare(claim)
    service.unprepare(claim)
    os.close(hidden.descriptor)
