# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses of rails that the driver of a node assigns: no two claims have the same address, no address is lost, and
the address that was released first is reused first."""

from __future__ import annotations

import json
import os
import random
import typing as t
from collections import deque
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at
from lanewise_driver.base.errors import Busy, DriverError, Refused
from lanewise_driver.claims.rail_addresses import RailAddresses
from lanewise_driver.claims.records import DeviceRecord, Record, Store
from lanewise_driver.dra.config.rail_range import RailRange, read_ranges
from lanewise_driver.dra.kube.reader import Reader
from lanewise_driver.interface import rails
from lanewise_driver.publish.device import Device

BOOT = "boot"
#: Ranges of a node with two rails. USABLE_ADDRESSES is the number of addresses for pods in the IPv4 range of each rail.
RANGES = (
    {"rail": 0, "range": "10.100.0.0/27", "pool": "10.100.0.0/24", "gateway": "10.100.0.1"},
    {"rail": 0, "range": "fd00:100::20/123", "pool": "fd00:100::/64"},
    {"rail": 1, "range": "10.101.0.16/28", "pool": "10.101.0.0/24", "prefix": 28, "gateway": "10.101.0.17"},
)
USABLE_ADDRESSES = (30, 13)


def ranges(settings: t.Sequence[dict[str, t.Any]] = RANGES) -> tuple[RailRange, ...]:
    reader = Reader()
    result = read_ranges(reader, list(settings), "rail_addresses")
    assert not reader.problems
    return result


def device(name: str, rail: int | None, **config: t.Any) -> DeviceRecord:
    attributes = {} if rail is None else {"rail": {"int": rail}}
    known = Device(name, {"name": name, "attributes": attributes})
    return DeviceRecord(name, "node", "nic", known, {"railAddresses": True, **config}, interface=name)


def record(uid: str, *devices: DeviceRecord) -> Record:
    return Record(uid, "ns", f"claim-{uid}", None, BOOT, list(devices))


class AddressBook:
    """The assigned addresses and the records of a node. Both are changed in the same order as by the driver."""

    def __init__(self, folder: Path, boot: str = BOOT) -> None:
        self.path = folder / "rail-addresses.json"
        self.store = Store(folder / "state")
        self.addresses = RailAddresses(self.path, boot, self.store)

    def assign(self, new_record: Record, node_ranges: t.Sequence[RailRange] | None = None) -> list[str]:
        self.addresses.assign(new_record, ranges() if node_ranges is None else node_ranges, self.store.all()[0])
        self.store.save(new_record)
        return addresses_of(new_record)

    def release(self, uid: str) -> None:
        self.store.remove(uid)
        if self.addresses.has_addresses(uid):
            self.addresses.release(uid)

    def sweep(self) -> None:
        """Release the addresses of claims without a record, as a driver does when it starts."""
        self.addresses.sweep()

    def held(self) -> dict[str, str]:
        """The claim's UID by each assigned address, from the file."""
        return dict(json.loads(self.path.read_text())["held"]) if self.path.exists() else {}


def addresses_of(claim_record: Record) -> list[str]:
    return [entry["address"] for held in claim_record.held for entry in rails.rail_addresses(held.config)]


@pytest.fixture(name="book")
def _book(tmp_path: Path) -> AddressBook:
    return AddressBook(tmp_path)


def test_each_device_gets_addresses_of_its_rail(book: AddressBook) -> None:
    assert book.assign(record("a", device("nic0", 0), device("nic1", 1))) == [
        "10.100.0.2/24",
        "fd00:100::20/64",
        "10.101.0.18/28",
    ]
    assert book.assign(record("b", device("nic2", 0))) == ["10.100.0.3/24", "fd00:100::21/64"]


def test_the_record_of_a_claim_has_its_addresses(book: AddressBook) -> None:
    new_record = record("a", device("nic1", 1))
    book.assign(new_record)
    loaded = book.store.load("a")
    assert loaded is not None and loaded.devices[0].config["railAddresses"] == [
        {
            "address": "10.101.0.18/28",
            "pool": "10.101.0.0/24",
            "gateway": "10.101.0.17",
            "reach": "rail",
            "table": 2_000_000 + 4096 + 2,
        }
    ]
    assert loaded.same_allocation(record("a", device("nic1", 1)))
    assert not loaded.same_allocation(record("a", device("nic1", 1, mtu=1500)))


def test_the_address_that_was_released_first_is_reused_first(book: AddressBook) -> None:
    assigned = {uid: book.assign(record(uid, device("nic1", 1)))[0] for uid in map(str, range(USABLE_ADDRESSES[1]))}
    for uid in ("7", "3", "5"):
        book.release(uid)
    book = AddressBook(book.path.parent)  # as after a restart of the driver
    assert [book.assign(record(f"new{uid}", device("nic1", 1)))[0] for uid in ("7", "3", "5")] == [
        assigned["7"],
        assigned["3"],
        assigned["5"],
    ]


def test_addresses_that_were_never_used_are_assigned_first(book: AddressBook) -> None:
    first = book.assign(record("a", device("nic1", 1)))
    book.release("a")
    assert book.assign(record("b", device("nic1", 1))) != first


def test_an_exhausted_range_is_reported_with_the_number_of_its_claims(book: AddressBook) -> None:
    for number in range(USABLE_ADDRESSES[1]):
        book.assign(record(str(number), device("nic1", 1)))
    with pytest.raises(Busy) as caught:
        book.assign(record("more", device("nic0", 0), device("nic1", 1)))
    assert "all 13 addresses of 10.101.0.16/28 on rail 1 of this node are assigned" in caught.value.message
    assert "13 claims" in caught.value.message
    assert "more" not in book.held().values(), "the other device of the refused claim has kept its address"


@pytest.mark.parametrize(
    ("requesting", "node_ranges", "message"),
    [
        (device("nic0", 0), [], "this node has no addresses for rails"),
        (device("nic0", None), RANGES, "the rail of the device is not known"),
        (device("nic0", 5), RANGES, "this node has no addresses for rail 5"),
        (device("nic0", 0, mtu=1279), RANGES, "IPv6 needs an mtu of 1280 or more"),
    ],
)
def test_refusals_name_the_device_and_the_field(
    book: AddressBook, requesting: DeviceRecord, node_ranges: list[dict[str, t.Any]], message: str
) -> None:
    with pytest.raises(Refused) as caught:
        book.assign(record("a", requesting), ranges(node_ranges))
    assert caught.value.message.startswith("configuration of request nic (nic0).railAddresses: ")
    assert message in caught.value.message
    assert book.held() == {}


def test_explicit_addresses_and_dhcp_replace_those_of_the_rail(book: AddressBook) -> None:
    assert book.assign(record("a", device("nic0", 0, addresses=["192.0.2.1/24"]))) == ["fd00:100::20/64"]
    assert book.assign(record("b", device("nic0", 0, dhcp=["ipv6"]))) == ["10.100.0.2/24"]
    assert book.assign(record("c", device("nic1", 1, dhcp=["ipv4"]))) == []


def test_devices_with_admin_access_or_without_rail_addresses_get_no_address(book: AddressBook) -> None:
    with_admin_access = device("nic0", 0)
    with_admin_access.admin = True
    without_rail_addresses = device("nic1", 1)
    without_rail_addresses.config = {"mtu": 1500}
    assert book.assign(record("a", with_admin_access, without_rail_addresses)) == []
    assert not book.path.exists()


def test_running_pods_keep_their_addresses_when_the_range_changes(book: AddressBook) -> None:
    before = book.assign(record("a", device("nic1", 1)))
    changed_ranges = [{"rail": 1, "range": "10.101.0.16/29", "pool": "10.101.0.0/24"}]
    for number in range(7):
        assert book.assign(record(str(number), device("nic1", 1)), ranges(changed_ranges)) != before
    with pytest.raises(Busy, match="8 claims"):
        book.assign(record("more", device("nic1", 1)), ranges(changed_ranges))
    assert addresses_of(t.cast(Record, book.store.load("a"))) == before


def test_no_claim_loses_its_address_because_of_a_damaged_file(
    book: AddressBook, caplog: pytest.LogCaptureFixture
) -> None:
    for content in (b"", b"{", b"[]", b'{"boot": 1, "held": {}, "freed": []}', b'{"boot": "", "held": [], "freed": 7}'):
        book.release("a")
        book.release("b")
        book.path.unlink(missing_ok=True)
        first = book.assign(record("a", device("nic1", 1)))
        book.path.write_bytes(content)
        assert book.assign(record("b", device("nic1", 1))) != first, content
        assert "is damaged" in caplog.text
        caplog.clear()


def test_a_claim_with_a_damaged_record_keeps_its_addresses_until_it_ends(book: AddressBook) -> None:
    first = book.assign(record("a", device("nic1", 1)))
    book.store.path("a").write_text("{")
    with pytest.raises(DriverError):
        book.store.load("a")
    book.sweep()
    others = {book.assign(record(str(number), device("nic1", 1)))[0] for number in range(USABLE_ADDRESSES[1] - 1)}
    assert first[0] not in others
    book.release("a")
    assert book.assign(record("b", device("nic1", 1))) == first
    # after a reboot the claim has no pod
    book.release("b")
    first = book.assign(record("c", device("nic1", 1)))
    book.store.path("c").write_text("{")
    book.store.all()
    book = AddressBook(book.path.parent, "next boot")
    book.sweep()
    assert book.assign(record("d", device("nic1", 1))) == first


def test_addresses_without_a_record_are_free_after_a_restart(book: AddressBook) -> None:
    new_record = record("a", device("nic1", 1))
    book.addresses.assign(new_record, ranges(), [])  # the record is not saved
    assert book.held()
    book.sweep()
    assert book.held() == {}
    assert book.assign(record("b", device("nic1", 1)))


class ClaimChurn:
    """Creates and ends random claims, and kills the process during some operations. `claims` has the expected addresses
    by claim, `step_number` the number of steps so far."""

    def __init__(self, book: AddressBook, seed: int) -> None:
        self.book = book
        self.generator = random.Random(seed)
        self.claims: dict[str, list[str]] = {}
        self.step_number = self.assigned = self.released = self.kills = 0

    def step(self, kill: bool) -> None:
        new_record = record(
            f"uid-{self.step_number}",
            *(device(f"nic{rail}", rail) for rail in self.generator.choice([(0,), (1,), (0, 1)])),
        )
        full = len(self.claims) > 8
        end = full or (self.claims and self.generator.random() < 0.5)
        uid = self.generator.choice(sorted(self.claims)) if end else ""
        self.step_number += 1
        operation: t.Callable[[], object] = (
            (lambda: self.book.release(uid)) if uid else (lambda: self.book.assign(new_record))
        )
        if kill:
            self.kills += killed_at(self.generator.randrange(12), operation)
            self.book = AddressBook(self.book.path.parent)
            self.book.sweep()
            self.check_killed_operation(uid or new_record.uid)
        operation()
        if uid:
            self.remove_claim(uid)
        else:
            self.claims[new_record.uid] = addresses_of(new_record)
            self.assigned += len(addresses_of(new_record))

    def check_killed_operation(self, uid: str) -> None:
        """After a kill in an operation on a claim, the claim has all of its addresses or none. Other claims keep their
        addresses."""
        stored = self.book.store.load(uid)
        if stored is not None and uid in self.claims:
            assert addresses_of(stored) == self.claims[uid]
        elif stored is not None:  # killed before the driver could answer: kubelet repeats the request or ends the claim
            assert addresses_of(stored)
            self.book.release(uid)
        self.check(except_uid=uid)

    def remove_claim(self, uid: str) -> None:
        self.released += len(self.claims.pop(uid))

    def check(self, except_uid: str = "") -> None:
        """Compare the records with the expected addresses. The claim `except_uid` may have any."""
        records = {stored.uid: stored for stored in self.book.store.all()[0]}
        assert {uid: addresses_of(stored) for uid, stored in records.items() if uid != except_uid} == {
            uid: expected for uid, expected in self.claims.items() if uid != except_uid
        }
        addresses = [address.partition("/")[0] for stored in records.values() for address in addresses_of(stored)]
        assert len(set(addresses)) == len(addresses), "two claims have the same address"
        assert set(addresses) <= set(self.book.held()), "the file lacks an address of a record"


def check_no_address_is_lost(book: AddressBook) -> None:
    """Check that all addresses can be assigned at once."""
    assigned = [book.assign(record(f"last-{number}", device("nic0", 0))) for number in range(USABLE_ADDRESSES[0])]
    assert len({ipv4 for ipv4, _ipv6 in assigned}) == USABLE_ADDRESSES[0]
    with pytest.raises(Busy):
        book.assign(record("too-many", device("nic0", 0)))
    for number in range(USABLE_ADDRESSES[1]):
        book.assign(record(f"other-{number}", device("nic1", 1)))
    with pytest.raises(Busy):
        book.assign(record("too-many", device("nic1", 1)))


@pytest.mark.parametrize(("assignments", "kills"), [(500, 40), pytest.param(10_000, 200, marks=pytest.mark.long)])
def test_no_address_is_assigned_twice_or_lost_if_the_driver_is_killed(
    book: AddressBook, assignments: int, kills: int
) -> None:
    churn = ClaimChurn(book, int(os.environ.get("LANEWISE_SEED", "7")))
    steps_per_kill = 1 + assignments // (kills * 4)
    while churn.assigned < assignments or churn.kills < kills:
        churn.step(kill=churn.kills < kills and churn.step_number % steps_per_kill == 0)
        if churn.step_number % 50 == 0:
            churn.check()
    churn.check()
    print(f"{churn.assigned} addresses assigned, {churn.released} released, {churn.kills} kills")
    for uid in list(churn.claims):
        churn.book.release(uid)
        churn.remove_claim(uid)
    assert churn.book.held() == {} and churn.assigned == churn.released
    check_no_address_is_lost(churn.book)


def test_addresses_are_reused_first_in_first_out(book: AddressBook) -> None:
    """A queue predicts each address."""
    generator = random.Random(3)
    queue = deque(f"10.101.0.{number}/28" for number in range(18, 31))
    address_of_claim: dict[str, str] = {}
    for number in range(400):
        if queue and (not address_of_claim or generator.random() < 0.5):
            uid = str(number)
            address_of_claim[uid] = book.assign(record(uid, device("nic1", 1)))[0]
            assert address_of_claim[uid] == queue.popleft()
        else:
            uid = generator.choice(sorted(address_of_claim))
            book.release(uid)
            queue.append(address_of_claim.pop(uid))
