# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""After an upgrade or a rollback, the driver can read the records of the other release, so it finds the devices of
running pods.

Each sample is a record that a release wrote. RELEASES has a copy of each release's code for reading records. A release
that adds a field or a format is added here; the samples and readers of earlier releases stay unchanged. Samples with
the name of a claim after the phase are records of real claims (test_claims_releases.py). The others have made-up values
for RDMA and VFs, in the format of the release.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver.releases import old_driver, records_1_0_0
from lanewise_driver import cli
from lanewise_driver.base.settings import load
from lanewise_driver.claims import records
from lanewise_driver.claims.record_formats import FORMATS
from lanewise_driver.claims.records import DeviceRecord, Record, Store
from lanewise_driver.dra.config.rail_range import RailRange
from lanewise_driver.dra.kube.problems import Problems
from lanewise_driver.interface import rails
from lanewise_driver.publish.inventory import Device
from lanewise_driver.shares.share import ShareRecord
from lanewise_driver.topology.stored import Conversion, NewerFormat

FOLDER = Path(__file__).parent / "releases"
RELEASES = {"1.0.0": records_1_0_0}
SAMPLES = sorted(FOLDER.glob("*.json"))


def values(record: t.Any) -> Object:
    """The values of a record as JSON, without the version of its format, which is not a field in every release, and
    without empty fields of RDMA devices and shares, which 1.0.0 does not have."""
    found = json.loads(json.dumps(dataclasses.asdict(record)))
    found.pop("schema", None)
    for device in found["devices"]:
        if device["rdma"] and not device["rdma"].get("known"):
            device["rdma"].pop("known", None)
        if not device.get("share"):
            device.pop("share", None)
    return t.cast(Object, found)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_a_record_of_another_release_has_the_same_values_in_this_release(sample: Path) -> None:
    content = sample.read_bytes()
    release = RELEASES[sample.name.partition("-")[0]]
    expected = release.decode(content)
    assert release.encode(expected) == content, "the release would not write this sample"
    found = records.decode(content)
    assert {key: value for key, value in values(found).items() if key in values(expected)} == values(expected)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("release", RELEASES)
def test_an_older_release_reads_current_records_after_a_rollback(sample: Path, release: str) -> None:
    """1.0.0 treats a record with an unknown field as damaged, and then does not return the devices of the claim."""
    current = records.encode(records.decode(sample.read_bytes()))
    assert values(RELEASES[release].decode(current)) == values(RELEASES[release].decode(sample.read_bytes()))
    assert records.decode(current) == records.decode(sample.read_bytes())


def test_the_driver_of_1_0_0_reads_current_records(tmp_path: Path) -> None:
    """Runs the original code of 1.0.0, not only the copied reader."""
    folders = []
    for sample in SAMPLES:
        store = Store(tmp_path / sample.stem)
        store.save(records.decode(sample.read_bytes()))
        folders.append(store.folder)
    phases = set()
    for sample, (found, unreadable) in zip(SAMPLES, old_driver.read(folders), strict=True):
        assert unreadable == [] and len(found) == 1
        assert found[0] == json.loads(sample.read_bytes())
        phases.add(found[0]["phase"])
    assert phases == set(records.PHASES)


@pytest.mark.parametrize("schema", [FORMATS.newest, FORMATS.newest + 1])
def test_fields_of_a_later_release_are_ignored(schema: int) -> None:
    """As after a rollback. The format may be newer too, if the record says that it is readable as this release's."""
    for sample in SAMPLES:
        value = json.loads(sample.read_bytes())
        later = {**value, "schema": schema, "readable_by": FORMATS.newest, "witness": {"new": [1]}}
        later["devices"] = [
            {**device, "shaping": {"rate": 1}, "known": {**device["known"], "firmware": "1.2"}}
            for device in value["devices"]
        ]
        if later.get("pod"):
            later["pod"] = {**later["pod"], "node": "n"}
        found, wanted = records.decode(json.dumps(later).encode()), records.decode(sample.read_bytes())
        assert values(found).keys() == values(wanted).keys()
        assert found == wanted


def test_a_field_that_holds_its_default_is_not_written() -> None:
    """So a release can add a field: an earlier release, which refuses unknown fields, finds it only if it is used."""
    known = Device("d", {"name": "d"})
    minimal = Record("uid", "ns", "name", None, "boot", [records.DeviceRecord("d", "node", "nic", known)])
    assert json.loads(records.encode(minimal)) == {
        "schema": 1,
        "uid": "uid",
        "namespace": "ns",
        "name": "name",
        "pod": None,
        "boot": "boot",
        "devices": [{"device": "d", "pool": "node", "request": "nic", "known": known.as_json()}],
    }


def record_with_share_and_rail_address() -> Record:
    """The record of a claim with a share of a NIC and an address of the NIC's rail."""
    network, pool = ipaddress.ip_network("10.100.4.64/26"), ipaddress.ip_network("10.100.0.0/16")
    gateway = ipaddress.ip_address("10.100.255.254")
    rail_address = rails.make_rail_address(RailRange(0, network, pool, 16, gateway), "10.100.4.65")
    known = Device("net-nic0", {"name": "net-nic0"}, "0000:23:10.0", pf="0000:23:00.0", vf=0)
    share = ShareRecord("net-nic0", "vfs", 10**9, 2 * 10**9, 10**10, 10**10, burst=5 * 10**9, factor="3/2", minor=4)
    device = DeviceRecord(
        "net-nic0-share", "node", "nic", known, {"name": "net1", rails.FIELD: [rail_address]}, share=share
    )
    return Record("uid", "ns", "name", None, "boot", [device])


def test_shares_and_rail_addresses_are_read_back() -> None:
    """Also if a later release has added fields to them."""
    record = record_with_share_and_rail_address()
    stored = json.loads(records.encode(record))
    assert records.decode(json.dumps(stored).encode()) == record
    stored["devices"][0]["share"]["weight"] = 7
    stored["devices"][0]["config"][rails.FIELD][0]["lease"] = "later"
    found = records.decode(json.dumps(stored).encode())
    assert found.devices[0].share == record.devices[0].share
    assert [entry["address"] for entry in rails.rail_addresses(found.devices[0].config)] == ["10.100.4.65/16"]


@pytest.mark.parametrize("setting", ["shares: []", "rail_addresses: []"])
def test_1_0_0_refuses_settings_with_shares_or_rail_addresses(tmp_path: Path, setting: str) -> None:
    """So it is not started after a rollback: it could not return shares and addresses."""
    known = "node_name: a\nkubeconfig: /etc/lanewise/kubeconfig\ntoken_file: /etc/lanewise/token\n"
    (tmp_path / "driver.yml").write_text(f"{known}{setting}\n")
    load(tmp_path / "driver.yml")
    assert setting.partition(":")[0] in old_driver.check(tmp_path / "driver.yml")


@pytest.fixture
def next_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hypothetical next format, in which two fields are written differently."""

    def up(value: Object) -> Object:
        value["since"] = value.get("since", "").replace("Z", "+00:00")
        value["devices"] = [{**device, "request": device["request"].upper()} for device in value["devices"]]
        return value

    def down(value: Object) -> Object:
        value["since"] = value.get("since", "").replace("+00:00", "Z")
        value["devices"] = [{**device, "request": device["request"].lower()} for device in value["devices"]]
        return value

    monkeypatch.setitem(FORMATS.conversions, FORMATS.newest + 1, Conversion(up, down))


def test_a_format_is_converted_to_the_next_and_back(next_format: None, tmp_path: Path) -> None:
    """The release that introduces a format works with it, but still writes the previous one."""
    store = Store(tmp_path)
    for sample in SAMPLES:
        content = sample.read_bytes()
        old = records_1_0_0.decode(content)
        store.path(old.uid).write_bytes(content)
        record = store.load(old.uid)
        assert record and record.devices[0].request == old.devices[0].request.upper()
        assert record.since == old.since.replace("Z", "+00:00")
        before = values(record)
        store.save(record)
        assert values(record) == before, "saving has changed the record in memory"
        assert values(records_1_0_0.decode(store.path(old.uid).read_bytes())) == values(old)
        assert store.load(old.uid) == record


def test_records_in_a_format_that_this_release_does_not_have_are_refused(
    next_format: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = records.decode(SAMPLES[0].read_bytes())
    monkeypatch.setattr(FORMATS, "written", FORMATS.newest)
    written = records.encode(record)
    assert json.loads(written)["schema"] == FORMATS.newest == 2
    assert records.decode(written) == record
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match="schema is 2, and this release knows up to 1"):
        records.decode(written)


def test_the_status_says_which_record_needs_a_newer_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The role shows these reasons if the driver is not ready in time after a rollback."""
    (tmp_path / "driver.yml").write_text('metrics_address: ""')
    store = Store(tmp_path / "state")
    store.save(records.decode(SAMPLES[0].read_bytes()))
    command = [f"--settings={tmp_path}/driver.yml", f"--plugin-dir={tmp_path}", "status", "--json"]
    assert cli.main(command) == 0 and json.loads(capsys.readouterr().out)["reasons"] == []
    (path,) = store.folder.iterdir()
    content = json.dumps({**json.loads(path.read_text()), "schema": FORMATS.newest + 1})
    path.write_text(content)
    assert cli.main(command) == 1
    status = json.loads(capsys.readouterr().out)
    (reason,) = status["reasons"]
    assert status["claims"] == []
    assert "its schema is 2" in reason and "reinstall the release that wrote the record" in reason
    assert path.read_text() == content


def test_1_0_0_refuses_a_setting_that_it_does_not_know(tmp_path: Path) -> None:
    """The role runs this check before it starts a release, so an impossible rollback changes nothing."""
    known = "node_name: a\nkubeconfig: /etc/lanewise/kubeconfig\ntoken_file: /etc/lanewise/token\n"
    (tmp_path / "driver.yml").write_text(known)
    assert old_driver.check(tmp_path / "driver.yml") == ""
    assert load(tmp_path / "driver.yml").node == "a"
    (tmp_path / "driver.yml").write_text(f"{known}reset: never\n")
    assert "reset" in old_driver.check(tmp_path / "driver.yml")


def test_settings_of_a_later_release_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "driver.yml").write_text("node_name: a\nshaping: true\n")
    with pytest.raises(Problems, match="shaping"):
        load(tmp_path / "driver.yml")
