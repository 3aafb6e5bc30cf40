# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A device whose original state could not be restored is withheld with the reason, and is available again once it is
restored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver import claims_world as world_module
from ansible_collections.lanewise.dra.tests.driver.claims_world import WIRES, Sandbox, World
from ansible_collections.lanewise.dra.tests.driver.nodes import HiddenNamespace
from lanewise_driver.base.calls import UNHEALTHY
from lanewise_driver.base.errors import Busy, DriverError
from lanewise_driver.claims import health, unclean
from lanewise_driver.claims.unclean import UncleanDevices
from lanewise_driver.interface.take_back import Outcome, Reason
from lanewise_driver.publish.device import Device
from lanewise_driver.publish.inventory import Inventory

DEVICE = "net-wire0"
KNOWN = Device(DEVICE, {"name": DEVICE})


def test_a_note_applies_only_to_its_boot_and_its_device(tmp_path: Path) -> None:
    notes = UncleanDevices(tmp_path, "boot 1")
    wrong = Outcome(reasons=[Reason("changed", f"reason {number}") for number in range(100)])
    assert notes.record_outcome(DEVICE, KNOWN, {}, wrong) == "reason 0; reason 1; reason 2 (and 17 more)"
    assert {name: entry.word for name, entry in notes.all().items()} == {DEVICE: "changed"}
    assert UncleanDevices(tmp_path, "boot 2").all() == {} and list(tmp_path.iterdir()) == []
    notes.record_outcome(DEVICE, KNOWN, {}, wrong)
    assert notes.record_outcome(DEVICE, KNOWN, {}, Outcome(notes=["of the node"])) == "" and notes.all() == {}
    with pytest.raises(DriverError, match="is not a valid device name"):
        notes.record_outcome("../../etc/passwd", KNOWN, {}, wrong)


def test_claims_with_children_of_one_device_share_its_note(tmp_path: Path) -> None:
    notes, child = UncleanDevices(tmp_path, "boot 1"), {"child": {"type": "macvlan"}}
    stray = Outcome(reasons=[Reason("stacked", "a macvlan uses it")])
    notes.record_outcome(DEVICE, KNOWN, {"uppers": []}, stray, child, ["10.1.0.1"])
    # the stray existed before the second claim began, so it must not be forgotten when that claim ends
    second: dict[str, list[list[int]]] = {"uppers": [[1]]}
    assert notes.record_outcome(DEVICE, KNOWN, second, Outcome(), child, ["10.1.0.2"]) == ""
    assert notes.addresses() == {"10.1.0.1"}
    assert notes.record_outcome(DEVICE, KNOWN, second, stray, child, ["10.1.0.2"]).endswith(": 10.1.0.1, 10.1.0.2")
    (entry,) = notes.all().values()
    assert entry.host == {"uppers": []} and entry.config == child
    changed = Outcome(reasons=[Reason("changed", "its MTU")])
    notes.record_outcome("net-wire1", KNOWN, {}, changed, None, ["10.1.0.3"])  # no other pod can use this address
    assert notes.addresses() == {"10.1.0.1", "10.1.0.2"}


def test_a_note_outlives_a_clean_result_against_a_newer_state(tmp_path: Path) -> None:
    notes, wrong = UncleanDevices(tmp_path, "boot 1"), Outcome(reasons=[Reason("changed", "its MTU")])
    older, newer = {"mtu": 1500, "vfs": {0: "trusted"}}, {"mtu": 1300, "vfs": {0: "trusted"}}
    notes.record_outcome(DEVICE, KNOWN, older, wrong)
    assert notes.record_outcome(DEVICE, KNOWN, newer, Outcome()) == "" and DEVICE in notes.all()
    notes.record_outcome(DEVICE, KNOWN, newer, wrong)
    assert notes.all()[DEVICE].host == {"mtu": 1500, "vfs": {"0": "trusted"}}
    assert notes.record_outcome(DEVICE, KNOWN, older, Outcome()) == "" and notes.all() == {}
    (tmp_path / f"{DEVICE}.json").write_text("cut")
    for outcome in (wrong, Outcome()):
        notes.record_outcome(DEVICE, KNOWN, newer, outcome)
        assert (tmp_path / f"{DEVICE}.json").read_text() == "cut"


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
    ids=["cut", "nested", "empty", "list", "known", "known device", "reasons", "newer", "config", "addresses"],
)
def test_a_note_that_cannot_be_read_withholds_its_device(tmp_path: Path, content: str) -> None:
    notes = UncleanDevices(tmp_path, "boot 1")
    (tmp_path / f"{DEVICE}.json").write_text(content)
    assert "cannot be read" in notes.all()[DEVICE].text and notes.all()[DEVICE].lock == DEVICE
    assert "reboot the node, then remove the file" in notes.all()[DEVICE].text
    assert not notes.retry(notes.all()[DEVICE])
    assert (tmp_path / f"{DEVICE}.json").read_text() == content


def test_a_note_of_another_release_is_read(tmp_path: Path) -> None:
    notes = UncleanDevices(tmp_path, "boot 1")
    (tmp_path / f"{DEVICE}.json").write_text(json.dumps({**NOTE, "more": 1}))
    assert notes.all()[DEVICE].text == "r"
    notes.record_outcome(DEVICE, KNOWN, {}, Outcome(reasons=[Reason("changed", "s")]))
    written = json.loads((tmp_path / f"{DEVICE}.json").read_text())
    assert written.pop("schema") == 1 and written == {**NOTE, "reasons": ["s"]}


def test_a_tapped_device_is_withheld_from_all_pods(
    clean: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unclean, "_INTERVAL", 0.0)
    service, claim = clean.service(), clean.claims["one"]
    service.prepare(claim)
    service.attach(clean.request("one", sandbox.path))
    hidden = HiddenNamespace(passed=True)
    world_module.ip("link", "add", "link", "net1", "name", "tap0", "type", "macvlan", netns=sandbox.pid)
    world_module.ip("link", "set", "tap0", "netns", hidden.path(), netns=sandbox.pid)
    hidden.hide()
    service.unprepare(claim)
    assert Path(f"/sys/class/net/{WIRES[0]}").exists()
    (entry,) = service.unclean.all().values()
    assert entry.device == DEVICE and entry.word == "stacked" and "it is not a PCI function" in entry.text
    words = {name: one.word for name, one in service.unclean.all().items()}
    publication = Inventory(lambda: clean.settings, lambda: [], "/", lambda: words).refresh()
    (device,) = [one for one in publication.devices if one["name"] == DEVICE]
    assert device["taints"] == [{"key": "lanewise.dev/unclean", "value": "stacked", "effect": "NoSchedule"}]
    reported = {one.device: one for one in health.devices("node", publication, [], {})}
    assert reported[DEVICE].health == UNHEALTHY and "withheld from pods" in reported[DEVICE].message
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
