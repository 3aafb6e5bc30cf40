# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses of rails that a node's driver hands out: no two claims have one, none is lost, and the one that came back
first is used again first."""

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
#: As the plan has it for two rails; 29 addresses can be handed out on rail 0, and 14 on rail 1.
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


class Book:
    """The addresses and records of a node, as the ledger and preparation use them."""

    def __init__(self, folder: Path, boot: str = BOOT) -> None:
        self.path = folder / "rail-addresses.json"
        self.store = Store(folder / "state")
        self.addresses = RailAddresses(self.path, boot, self.store)

    def give(self, one: Record, own: t.Sequence[RailRange] | None = None) -> list[str]:
        self.addresses.hand_out(one, ranges() if own is None else own, self.store.all()[0])
        self.store.save(one)
        return addresses_of(one)

    def take(self, uid: str) -> None:
        self.store.remove(uid)
        if self.addresses.holds(uid):
            self.addresses.release(uid)

    def start(self) -> None:
        """What a driver that starts does."""
        self.addresses.sweep()

    def held(self) -> dict[str, str]:
        return dict(json.loads(self.path.read_text())["held"]) if self.path.exists() else {}


def addresses_of(one: Record) -> list[str]:
    return [given["address"] for held in one.held for given in rails.of(held.config)]


@pytest.fixture(name="book")
def _book(tmp_path: Path) -> Book:
    return Book(tmp_path)


def test_each_device_gets_addresses_of_its_rail(book: Book) -> None:
    assert book.give(record("a", device("nic0", 0), device("nic1", 1))) == [
        "10.100.0.2/24",
        "fd00:100::20/64",
        "10.101.0.18/28",
    ]
    assert book.give(record("b", device("nic2", 0))) == ["10.100.0.3/24", "fd00:100::21/64"]


def test_a_record_has_what_was_handed_out(book: Book) -> None:
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


def test_the_address_that_came_back_first_is_used_again_first(book: Book) -> None:
    given = {uid: book.give(record(uid, device("nic1", 1)))[0] for uid in map(str, range(USABLE[1]))}
    for uid in ("7", "3", "5"):
        book.take(uid)
    book = Book(book.path.parent)  # another process
    assert [book.give(record(f"new{uid}", device("nic1", 1)))[0] for uid in ("7", "3", "5")] == [
        given["7"],
        given["3"],
        given["5"],
    ]


def test_addresses_that_were_never_used_are_handed_out_first(book: Book) -> None:
    first = book.give(record("a", device("nic1", 1)))
    book.take("a")
    assert book.give(record("b", device("nic1", 1))) != first


def test_an_exhausted_range_is_named_with_its_claims(book: Book) -> None:
    for number in range(USABLE[1]):
        book.give(record(str(number), device("nic1", 1)))
    with pytest.raises(Busy) as caught:
        book.give(record("more", device("nic0", 0), device("nic1", 1)))
    assert "all 13 addresses of 10.101.0.16/28, this node's on rail 1, are handed out" in caught.value.message
    assert "13 claims" in caught.value.message
    assert "more" not in book.held().values(), "the other device's address is free, too"


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
    book: Book, one: DeviceRecord, own: list[dict[str, t.Any]], words: str
) -> None:
    with pytest.raises(Refused) as caught:
        book.give(record("a", one), ranges(own))
    assert caught.value.message.startswith("configuration of request nic (nic0).railAddresses: ")
    assert words in caught.value.message
    assert book.held() == {}


def test_explicit_addresses_and_dhcp_replace_those_of_the_rail(book: Book) -> None:
    assert book.give(record("a", device("nic0", 0, addresses=["192.0.2.1/24"]))) == ["fd00:100::20/64"]
    assert book.give(record("b", device("nic0", 0, dhcp=["ipv6"]))) == ["10.100.0.2/24"]
    assert book.give(record("c", device("nic1", 1, dhcp=["ipv4"]))) == []


def test_admin_access_and_other_claims_get_none(book: Book) -> None:
    watching = device("nic0", 0)
    watching.admin = True
    plain = device("nic1", 1)
    plain.config = {"mtu": 1500}
    assert book.give(record("a", watching, plain)) == []
    assert not book.path.exists()


def test_a_changed_range_leaves_running_pods_their_addresses(book: Book) -> None:
    before = book.give(record("a", device("nic1", 1)))
    moved = [{"rail": 1, "range": "10.101.0.16/29", "pool": "10.101.0.0/24"}]
    for number in range(7):
        assert book.give(record(str(number), device("nic1", 1)), ranges(moved)) != before
    with pytest.raises(Busy, match="8 claims"):
        book.give(record("more", device("nic1", 1)), ranges(moved))
    assert addresses_of(t.cast(Record, book.store.load("a"))) == before


def test_a_damaged_file_costs_no_claim_its_address(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    for content in (b"", b"{", b"[]", b'{"boot": 1, "held": {}, "freed": []}', b'{"boot": "", "held": [], "freed": 7}'):
        book.take("a"), book.take("b")
        book.path.unlink(missing_ok=True)
        first = book.give(record("a", device("nic1", 1)))
        book.path.write_bytes(content)
        assert book.give(record("b", device("nic1", 1))) != first, content
        assert "is damaged" in caplog.text
        caplog.clear()


def test_a_claim_with_a_damaged_record_keeps_its_addresses_until_it_ends(book: Book) -> None:
    first = book.give(record("a", device("nic1", 1)))
    book.store.path("a").write_text("{")
    with pytest.raises(DriverError):
        book.store.load("a")
    book.start()
    others = {book.give(record(str(number), device("nic1", 1)))[0] for number in range(USABLE[1] - 1)}
    assert first[0] not in others
    book.take("a")
    assert book.give(record("b", device("nic1", 1))) == first
    # after a reboot there is no pod of it
    book.take("b")
    first = book.give(record("c", device("nic1", 1)))
    book.store.path("c").write_text("{")
    book.store.all()
    book = Book(book.path.parent, "next boot")
    book.start()
    assert book.give(record("d", device("nic1", 1))) == first


def test_addresses_without_a_record_are_free_after_a_restart(book: Book) -> None:
    one = record("a", device("nic1", 1))
    book.addresses.hand_out(one, ranges(), [])  # and no record
    assert book.held()
    book.start()
    assert book.held() == {}
    assert book.give(record("b", device("nic1", 1)))


class Churn:
    """Claims come and go, and the process is killed in between. The model says who has what."""

    def __init__(self, book: Book, seed: int) -> None:
        self.book = book
        self.dice = random.Random(seed)
        self.claims: dict[str, list[str]] = {}
        self.number = self.given = self.taken = self.kills = 0
        #: By address, the number of the step at which it came back last.
        self.back: dict[str, int] = {}

    def step(self, kill: bool) -> None:
        one = record(
            f"uid-{self.number}", *(device(f"nic{rail}", rail) for rail in self.dice.choice([(0,), (1,), (0, 1)]))
        )
        full = len(self.claims) > 8
        uid = self.dice.choice(sorted(self.claims)) if full or (self.claims and self.dice.random() < 0.5) else ""
        self.number += 1
        act: t.Callable[[], object] = (lambda: self.book.take(uid)) if uid else (lambda: self.book.give(one))
        if kill:
            self.kills += killed_at(self.dice.randrange(12), act)
            self.book = Book(self.book.path.parent)
            self.book.start()
            self.found(uid or one.uid)
        act()
        if uid:
            self.ended(uid)
        else:
            self.claims[one.uid] = addresses_of(one)
            self.given += len(addresses_of(one))

    def found(self, uid: str) -> None:
        """After a kill in an operation on a claim: it has all of its addresses or none, and others have theirs."""
        left = self.book.store.load(uid)
        if left is not None and uid in self.claims:
            assert addresses_of(left) == self.claims[uid]
        elif left is not None:  # handed out, and not answered: kubelet asks again, or ends the claim
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
        assert len(set(held)) == len(held), "one address, two claims"
        assert set(held) <= set(self.book.held()), "the file has what the records have"


def nobody_lost(book: Book) -> None:
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
def test_no_address_is_given_twice_or_lost_though_the_driver_is_killed(book: Book, number: int, kills: int) -> None:
    churn = Churn(book, int(os.environ.get("LANEWISE_SEED", "7")))
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
    nobody_lost(churn.book)


def test_the_order_is_first_in_first_out(book: Book) -> None:
    """Against a queue, the simplest thing that is right."""
    dice = random.Random(3)
    queue = deque(f"10.101.0.{number}/28" for number in range(18, 31))
    has: dict[str, str] = {}
    for number in range(400):
        if queue and (not has or dice.random() < 0.5):
            uid = str(number)
            has[uid] = book.give(record(uid, device("nic1", 1)))[0]
            assert has[uid] == queue.popleft()
        else:
            uid = dice.choice(sorted(has))
            book.take(uid)
            queue.append(has.pop(uid))
