# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses of rails that the driver of a node hands out: no two claims have the same one, none is lost, and the one
that was released first is reused first."""

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
#: As the site plan gives it for two rails. USABLE is the number of addresses for pods on each.
RANGES = (
    {"rail": 0, "range": "10.100.0.0/27", "pool": "10.100.0.0/24", "gateway": "10.100.0.1"},
    {"rail": 0, "range": "fd00:100::20/123", "pool": "fd00:100::/64"},
    {"rail": 1, "range": "10.101.0.16/28", "pool": "10.101.0.0/24", "prefix": 28, "gateway": "10.101.0.17"},
)
USABLE = (30, 13)


def ranges(given: t.Sequence[dict[str, t.Any]] = RANGES) -> tuple[RailRange, ...]:
    reader = Reader()
    found = read_ranges(reader, list(given), "rail_addresses")
    assert not reader.problems
    return found


def device(name: str, rail: int | None, **config: t.Any) -> DeviceRecord:
    attributes = {} if rail is None else {"rail": {"int": rail}}
    known = Device(name, {"name": name, "attributes": attributes})
    return DeviceRecord(name, "node", "nic", known, {"railAddresses": True, **config}, interface=name)


def record(uid: str, *devices: DeviceRecord) -> Record:
    return Record(uid, "ns", f"claim-{uid}", None, BOOT, list(devices))


class AddressBook:
    """The addresses and records of a node, as the ledger and preparation use them."""

    def __init__(self, folder: Path, boot: str = BOOT) -> None:
        self.path = folder / "rail-addresses.json"
        self.store = Store(folder / "state")
        self.addresses = RailAddresses(self.path, boot, self.store)

    def give(self, one: Record, own: t.Sequence[RailRange] | None = None) -> list[str]:
        self.addresses.assign(one, ranges() if own is None else own, self.store.all()[0])
        self.store.save(one)
        return addresses_of(one)

    def take(self, uid: str) -> None:
        self.store.remove(uid)
        if self.addresses.has_addresses(uid):
            self.addresses.release(uid)

    def start(self) -> None:
        """Do what a starting driver does."""
        self.addresses.sweep()

    def held(self) -> dict[str, str]:
        return dict(json.loads(self.path.read_text())["held"]) if self.path.exists() else {}


def addresses_of(one: Record) -> list[str]:
    return [given["address"] for held in one.held for given in rails.rail_addresses(held.config)]


@pytest.fixture(name="book")
def _book(tmp_path: Path) -> AddressBook:
    return AddressBook(tmp_path)


def test_each_device_gets_addresses_of_its_rail(book: AddressBook) -> None:
    assert book.give(record("a", device("nic0", 0), device("nic1", 1))) == [
        "10.100.0.2/24",
        "fd00:100::20/64",
        "10.101.0.18/28",
    ]
    assert book.give(record("b", device("nic2", 0))) == ["10.100.0.3/24", "fd00:100::21/64"]


def test_a_record_has_what_was_handed_out(book: AddressBook) -> None:
    one = record("a", device("nic1", 1))
    book.give(one)
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
    given = {uid: book.give(record(uid, device("nic1", 1)))[0] for uid in map(str, range(USABLE[1]))}
    for uid in ("7", "3", "5"):
        book.take(uid)
    book = AddressBook(book.path.parent)  # another process
    assert [book.give(record(f"new{uid}", device("nic1", 1)))[0] for uid in ("7", "3", "5")] == [
        given["7"],
        given["3"],
        given["5"],
    ]


def test_addresses_that_were_never_used_are_assigned_first(book: AddressBook) -> None:
    first = book.give(record("a", device("nic1", 1)))
    book.take("a")
    assert book.give(record("b", device("nic1", 1))) != first


def test_an_exhausted_range_is_reported_with_its_claims(book: AddressBook) -> None:
    for number in range(USABLE[1]):
        book.give(record(str(number), device("nic1", 1)))
    with pytest.raises(Busy) as caught:
        book.give(record("more", device("nic0", 0), device("nic1", 1)))
    assert "all 13 addresses of 10.101.0.16/28 on rail 1 of this node are assigned" in caught.value.message
    assert "13 claims" in caught.value.message
    assert "more" not in book.held().values(), "the address of the other device is free too"


@pytest.mark.parametrize(
    ("one", "own", "words"),
    [
        (device("nic0", 0), [], "this node has no addresses for rails"),
        (device("nic0", None), RANGES, "the rail of the device is not known"),
        (device("nic0", 5), RANGES, "this node has no addresses for rail 5"),
        (device("nic0", 0, mtu=1279), RANGES, "IPv6 needs an mtu of 1280 or more"),
    ],
)
def test_refusals_name_the_device_and_the_field(
    book: AddressBook, one: DeviceRecord, own: list[dict[str, t.Any]], words: str
) -> None:
    with pytest.raises(Refused) as caught:
        book.give(record("a", one), ranges(own))
    assert caught.value.message.startswith("configuration of request nic (nic0).railAddresses: ")
    assert words in caught.value.message
    assert book.held() == {}


def test_explicit_addresses_and_dhcp_replace_those_of_the_rail(book: AddressBook) -> None:
    assert book.give(record("a", device("nic0", 0, addresses=["192.0.2.1/24"]))) == ["fd00:100::20/64"]
    assert book.give(record("b", device("nic0", 0, dhcp=["ipv6"]))) == ["10.100.0.2/24"]
    assert book.give(record("c", device("nic1", 1, dhcp=["ipv4"]))) == []


def test_admin_access_and_claims_without_rail_addresses_get_none(book: AddressBook) -> None:
    watching = device("nic0", 0)
    watching.admin = True
    plain = device("nic1", 1)
    plain.config = {"mtu": 1500}
    assert book.give(record("a", watching, plain)) == []
    assert not book.path.exists()


def test_a_changed_range_leaves_running_pods_their_addresses(book: AddressBook) -> None:
    before = book.give(record("a", device("nic1", 1)))
    moved = [{"rail": 1, "range": "10.101.0.16/29", "pool": "10.101.0.0/24"}]
    for number in range(7):
        assert book.give(record(str(number), device("nic1", 1)), ranges(moved)) != before
    with pytest.raises(Busy, match="8 claims"):
        book.give(record("more", device("nic1", 1)), ranges(moved))
    assert addresses_of(t.cast(Record, book.store.load("a"))) == before


def test_no_claim_loses_its_address_because_of_a_damaged_file(
    book: AddressBook, caplog: pytest.LogCaptureFixture
) -> None:
    for content in (b"", b"{", b"[]", b'{"boot": 1, "held": {}, "freed": []}', b'{"boot": "", "held": [], "freed": 7}'):
        book.take("a"), book.take("b")
        book.path.unlink(missing_ok=True)
        first = book.give(record("a", device("nic1", 1)))
        book.path.write_bytes(content)
        assert book.give(record("b", device("nic1", 1))) != first, content
        assert "is damaged" in caplog.text
        caplog.clear()


def test_a_claim_with_a_damaged_record_keeps_its_addresses_until_it_ends(book: AddressBook) -> None:
    first = book.give(record("a", device("nic1", 1)))
    book.store.path("a").write_text("{")
    with pytest.raises(DriverError):
        book.store.load("a")
    book.start()
    others = {book.give(record(str(number), device("nic1", 1)))[0] for number in range(USABLE[1] - 1)}
    assert first[0] not in others
    book.take("a")
    assert book.give(record("b", device("nic1", 1))) == first
    # after a reboot the claim has no pod
    book.take("b")
    first = book.give(record("c", device("nic1", 1)))
    book.store.path("c").write_text("{")
    book.store.all()
    book = AddressBook(book.path.parent, "next boot")
    book.start()
    assert book.give(record("d", device("nic1", 1))) == first


def test_addresses_without_a_record_are_free_after_a_restart(book: AddressBook) -> None:
    one = record("a", device("nic1", 1))
    book.addresses.assign(one, ranges(), [])  # and no record
    assert book.held()
    book.start()
    assert book.held() == {}
    assert book.give(record("b", device("nic1", 1)))


class ClaimChurn:
    """Creates and ends claims, and kills the process in between. A model knows the addresses of each claim."""

    def __init__(self, book: AddressBook, seed: int) -> None:
        self.book = book
        self.generator = random.Random(seed)
        self.claims: dict[str, list[str]] = {}
        self.number = self.given = self.taken = self.kills = 0

    def step(self, kill: bool) -> None:
        one = record(
            f"uid-{self.number}", *(device(f"nic{rail}", rail) for rail in self.generator.choice([(0,), (1,), (0, 1)]))
        )
        full = len(self.claims) > 8
        end = full or (self.claims and self.generator.random() < 0.5)
        uid = self.generator.choice(sorted(self.claims)) if end else ""
        self.number += 1
        act: t.Callable[[], object] = (lambda: self.book.take(uid)) if uid else (lambda: self.book.give(one))
        if kill:
            self.kills += killed_at(self.generator.randrange(12), act)
            self.book = AddressBook(self.book.path.parent)
            self.book.start()
            self.check_after_kill(uid or one.uid)
        act()
        if uid:
            self.ended(uid)
        else:
            self.claims[one.uid] = addresses_of(one)
            self.given += len(addresses_of(one))

    def check_after_kill(self, uid: str) -> None:
        """After a kill in an operation on a claim, it has all of its addresses or none. Other claims keep theirs."""
        left = self.book.store.load(uid)
        if left is not None and uid in self.claims:
            assert addresses_of(left) == self.claims[uid]
        elif left is not None:  # handed out, but not answered: kubelet asks again or ends the claim
            assert addresses_of(left)
            self.book.take(uid)
        self.check(but=uid)

    def ended(self, uid: str) -> None:
        self.taken += len(self.claims.pop(uid))

    def check(self, but: str = "") -> None:
        records = {one.uid: one for one in self.book.store.all()[0]}
        assert {uid: addresses_of(one) for uid, one in records.items() if uid != but} == {
            uid: given for uid, given in self.claims.items() if uid != but
        }
        held = [address.partition("/")[0] for one in records.values() for address in addresses_of(one)]
        assert len(set(held)) == len(held), "two claims have the same address"
        assert set(held) <= set(self.book.held()), "the file lists all addresses of the records"


def check_no_address_is_lost(book: AddressBook) -> None:
    """All addresses can be handed out at once."""
    everyone = [book.give(record(f"last-{number}", device("nic0", 0))) for number in range(USABLE[0])]
    assert len({four for four, _six in everyone}) == USABLE[0]
    with pytest.raises(Busy):
        book.give(record("too-many", device("nic0", 0)))
    for number in range(USABLE[1]):
        book.give(record(f"other-{number}", device("nic1", 1)))
    with pytest.raises(Busy):
        book.give(record("too-many", device("nic1", 1)))


@pytest.mark.parametrize(("number", "kills"), [(500, 40), pytest.param(10_000, 200, marks=pytest.mark.long)])
def test_no_address_is_handed_out_twice_or_lost_if_the_driver_is_killed(
    book: AddressBook, number: int, kills: int
) -> None:
    churn = ClaimChurn(book, int(os.environ.get("LANEWISE_SEED", "7")))
    every = 1 + number // (kills * 4)
    while churn.given < number or churn.kills < kills:
        churn.step(kill=churn.kills < kills and churn.number % every == 0)
        if churn.number % 50 == 0:
            churn.check()
    churn.check()
    print(f"{churn.given} addresses handed out, {churn.taken} back, {churn.kills} kills")
    for uid in list(churn.claims):
        churn.book.take(uid)
        churn.ended(uid)
    assert churn.book.held() == {} and churn.given == churn.taken
    check_no_address_is_lost(churn.book)


def test_addresses_are_reused_first_in_first_out(book: AddressBook) -> None:
    """Compares with a queue."""
    generator = random.Random(3)
    queue = deque(f"10.101.0.{number}/28" for number in range(18, 31))
    has: dict[str, str] = {}
    for number in range(400):
        if queue and (not has or generator.random() < 0.5):
            uid = str(number)
            has[uid] = book.give(record(uid, device("nic1", 1)))[0]
            assert has[uid] == queue.popleft()
        else:
            uid = generator.choice(sorted(has))
            book.take(uid)
            queue.append(has.pop(uid))
