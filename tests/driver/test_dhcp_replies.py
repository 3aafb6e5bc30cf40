# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the DHCP client handles replies, including malformed ones. The server is at the other end of a veth pair, and
sends the replies that a test gives it."""

from __future__ import annotations

import itertools
import select
import socket
import struct
import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver.nodes import ONE, Pod, on_a_node, run, without_dad
from ansible_collections.lanewise.dra.tests.driver.test_dhcp import attach, node, older, recording_renewer
from lanewise_driver.base.errors import KernelError
from lanewise_driver.dhcp import client as dhcp
from lanewise_driver.dhcp import dhcpv6
from lanewise_driver.dhcp.exchange import NoLease, Refusal, new_lease
from lanewise_driver.interface import interfaces

NODE_NETNS = Path("/proc/self/ns/net")
#: Malformed or extreme DHCPv4 options.
HOSTILE_IPV4 = (
    b"\x01\x05\xff\xff\xff\xff\xff",
    b"\x33\x04\0\0\0\x0a\x3a\x04\0\0\0\0\x3b\x04\0\0\0\0",
    b"\x79\x03\x40\1\2",
)
#: IA_NA options of DHCPv6 that are cut off, or contain a malformed IA Address option.
HOSTILE_IPV6 = tuple(
    dhcpv6.option(3, start + dhcpv6.option(5, address))
    for start in (b"", b"\0\0\0\1" + bytes(8))
    for address in (b"", bytes(15), bytes(16), bytes(23), b"\xff" * 16)
)


#: What the server sends after one request: the options of one reply or of several, or nothing.
Replies = t.Union[bytes, list[bytes], None]


class ReplyServer(threading.Thread):
    """A server for DHCPv4 and DHCPv6. Each reply has the transaction ID of its request and the server's identifier; its
    other options are the next item of `ipv4` or `ipv6`, or of several replies if that item is a list. It sends no reply
    if the item is None, or no item is left."""

    def __init__(self, ipv4: t.Iterable[Replies], ipv6: t.Iterable[Replies]) -> None:
        super().__init__(daemon=True)
        self.requests = 0
        #: The address that DHCPv4 replies assign.
        self.assigned_ipv4 = "10.1.0.50"
        #: Type, elapsed time, IA_NA and server's DUID of the DHCPv6 requests.
        self.ipv6_requests: list[tuple[int, int, bytes, bytes]] = []
        self.ipv4_options, self.ipv6_options = iter(ipv4), iter(ipv6)
        self.ipv4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.ipv4.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.ipv4.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"one-far")
        self.ipv4.bind(("", 67))
        self.ipv6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.ipv6.bind(("::", 547))
        index = socket.if_nametoindex("one-far")
        group = socket.inet_pton(socket.AF_INET6, "ff02::1:2") + struct.pack("=I", index)
        self.ipv6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)

    def run(self) -> None:
        while True:
            for readable in select.select([self.ipv4, self.ipv6], [], [])[0]:
                request, client = readable.recvfrom(4096)
                self.requests += 1
                if readable is self.ipv4:
                    options, make_reply = next(self.ipv4_options, None), self.dhcpv4_reply
                    client = client if client[0] != "0.0.0.0" else ("255.255.255.255", 68)
                else:
                    options, make_reply = next(self.ipv6_options, None), self.dhcpv6_reply
                    requested = dict(dhcpv6.parse_options(request[4:]))
                    elapsed = int.from_bytes(requested[8], "big")
                    self.ipv6_requests.append((request[0], elapsed, requested[3], requested.get(2, b"")))
                for reply_options in options if isinstance(options, list) else [options]:
                    if reply_options is not None:
                        readable.sendto(make_reply(request, reply_options), client)

    def dhcpv4_reply(self, request: bytes, options: bytes) -> bytes:
        """The DHCPv4 reply to a request."""
        # option 53 is the first after the magic cookie: OFFER replies to DISCOVER, ACK to REQUEST
        kind = 2 if request[242] == 1 else 5
        head = b"\2" + request[1:16] + socket.inet_aton(self.assigned_ipv4) + request[20:240]
        return head + bytes((53, 1, kind, 54, 4, 10, 1, 0, 1)) + options + b"\xff"

    def dhcpv6_reply(self, request: bytes, options: bytes) -> bytes:
        """The DHCPv6 reply to a request. The server's DUID is `x`, unless `options` start with another one."""
        requested = dict(dhcpv6.parse_options(request[4:]))
        kind = 2 if request[0] == 1 else 7  # ADVERTISE replies to SOLICIT, REPLY to the others
        server = b"" if options[:2] == b"\0\2" else dhcpv6.option(2, b"x")
        return bytes((kind,)) + request[1:4] + dhcpv6.option(1, requested[1]) + server + options


@on_a_node
def test_malformed_replies_give_no_wrong_lease_and_stop_no_other_renewal() -> None:
    host = node()
    without_dad()
    hostile_server = ReplyServer(itertools.cycle(HOSTILE_IPV4), itertools.cycle(HOSTILE_IPV6))
    hostile_server.start()
    renewer, changes = recording_renewer()
    config = {"name": "net1", "dhcp": ["ipv4"]}
    with Pod() as pod:
        attach(host, config, pod.pin)
        for _attempt in range(3):
            lease = dhcp.acquire(pod.pin, "net1", "ipv4", 3)
            assert lease["address"] == "10.1.0.50/32" and lease["routes"] == []
            assert lease["renew"] >= 5 and lease["rebind"] >= 5  # never immediately
            with pytest.raises(KernelError):
                dhcp.acquire(pod.pin, "net1", "ipv6", 1.5)
        assert hostile_server.requests >= 9
        # an error with one lease does not end the thread that renews the others
        due = older({**lease, "lifetime": 120, "renew": 60, "rebind": 96}, 60)
        renewer.start("wrong", pod.pin, {**due, "family": "ipv6", "serverDuid": "not hexadecimal"}, config)
        renewer.start("right", pod.pin, due, config)
        until(lambda: changes)
        renewer.close()
        interfaces.detach(ONE, host, pod.pin, config)


def assigned(last: int, preferred: int, valid: int) -> bytes:
    """The IA Address option (RFC 8415) of fd00::`last`."""
    return dhcpv6.option(5, socket.inet_pton(socket.AF_INET6, f"fd00::{last}") + struct.pack("!II", preferred, valid))


def association(*options: bytes, iaid: int = 1, renew: int = 0, rebind: int = 0) -> bytes:
    """An IA_NA option (RFC 8415)."""
    return dhcpv6.option(3, struct.pack("!III", iaid, renew, rebind) + b"".join(options))


#: DHCPv4 options: lease times of 0 and 120 seconds.
LEASE_TIME_0, LEASE_TIME_120 = b"\x33\x04\0\0\0\0", b"\x33\x04\0\0\0\x78"
#: The DHCPv6 status code NoAddrsAvail.
NO_ADDRESSES = dhcpv6.option(13, b"\0\2all in use")


def start_server(*replies: Replies) -> ReplyServer:
    """Bring up the interface `one`, and start a server at its peer.

    The server sends these replies to the requests of each family, and then up to 20 times the last one.
    """
    without_dad()
    node()
    run("ip link set one up; ip link set one-far up")
    running = ReplyServer(*([*replies[:-1], *itertools.repeat(replies[-1], 20)] for _family in range(2)))
    running.start()
    return running


@on_a_node
def test_dhcpv6_renewal_times_follow_from_the_preferred_lifetime() -> None:
    start_server(association(assigned(1, 100, 1000)))
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    assert (lease["lifetime"], lease["preferred"], lease["renew"], lease["rebind"]) == (1000, 100, 50, 80)


@on_a_node
def test_a_deprecated_dhcpv6_address_is_renewed_by_its_valid_lifetime() -> None:
    start_server(association(assigned(1, 0, 1000)))
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    assert (lease["preferred"], lease["renew"], lease["rebind"]) == (0, 500, 800)


@on_a_node
def test_the_renewal_times_of_a_dhcpv6_server_are_used() -> None:
    start_server(association(assigned(1, 100, 1000), renew=300, rebind=300))
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    assert (lease["renew"], lease["rebind"]) == (300, 300)


@on_a_node
@pytest.mark.parametrize(
    "first",
    [
        association(NO_ADDRESSES),
        association() + NO_ADDRESSES,
        association(),
        association(assigned(2, 100, 0)),
        association(assigned(2, 2000, 1000)),
        association(dhcpv6.option(5, socket.inet_pton(socket.AF_INET6, "ff02::1") + struct.pack("!II", 100, 1000))),
        association(assigned(2, 100, 1000), renew=200, rebind=100),
        association(assigned(2, 100, 1000), iaid=2),
    ],
    ids=[
        "status in IA",
        "status",
        "no address",
        "valid for 0 s",
        "preferred too long",
        "multicast",
        "T1 after T2",
        "other IA",
    ],
)
def test_an_advertise_without_a_usable_address_is_ignored(first: bytes) -> None:
    running = start_server(first, association(assigned(1, 100, 1000)))
    assert dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)["address"] == "fd00::1/128"
    assert [kind for kind, *_rest in running.ipv6_requests] == [1, 1, 3]


@on_a_node
@pytest.mark.parametrize(
    ("family", "protocol", "reply", "reason"),
    [
        ("ipv4", "DHCP", LEASE_TIME_0, "the server 10.1.0.1 grants a lease of 0 seconds"),
        ("ipv6", "DHCPv6", association(NO_ADDRESSES), "the server refused it: NoAddrsAvail (all in use)"),
    ],
    ids=["DHCPv4", "DHCPv6"],
)
def test_the_error_says_why_the_last_reply_was_not_used(family: str, protocol: str, reply: bytes, reason: str) -> None:
    start_server(reply)
    with pytest.raises(KernelError) as caught:
        dhcp.acquire(NODE_NETNS, "one", family, 1.2)
    start = f"request an {family} lease on one: no {protocol} server granted a usable lease in time"
    assert caught.value.message == f"{start}: {reason}"


@on_a_node
def test_an_association_with_wrong_times_does_not_hide_another_one() -> None:
    wrong_times = association(assigned(2, 100, 1000), renew=200, rebind=100)
    start_server(wrong_times + association(assigned(1, 100, 1000), renew=20, rebind=30) + wrong_times)
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    assert (lease["address"], lease["renew"], lease["rebind"]) == ("fd00::1/128", 20, 30)


@on_a_node
def test_one_of_several_dhcpv6_addresses_is_used_and_kept() -> None:
    running = start_server(
        association(assigned(9, 100, 0), assigned(1, 100, 1000), assigned(2, 100, 1000)),
        association(assigned(2, 100, 1000), assigned(1, 100, 1000)),
        association(assigned(2, 100, 1000), assigned(1, 100, 1000)),
        association(assigned(1, 0, 0), assigned(2, 100, 1000)),
    )
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    requested = dhcpv6.option(5, socket.inet_pton(socket.AF_INET6, "fd00::1") + bytes(8))
    assert running.ipv6_requests[1][2] == struct.pack("!III", 1, 0, 0) + requested
    renewed = dhcp.renew(NODE_NETNS, lease, False, 3)
    assert [lease["address"], renewed["address"]] == ["fd00::1/128"] * 2
    assert dhcp.renew(NODE_NETNS, lease, False, 3)["address"] == "fd00::2/128"


@on_a_node
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (association(dhcpv6.option(13, b"\0\3")), "the server refused it: NoBinding"),
        (association(assigned(1, 0, 0)), "the server revoked it"),
    ],
    ids=["status", "valid for 0 s"],
)
def test_a_refused_renewal_says_so(reply: bytes, reason: str) -> None:
    granted = association(assigned(1, 100, 1000))
    start_server(granted, granted, reply)
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    with pytest.raises(Refusal) as caught:
        dhcp.renew(NODE_NETNS, lease, False, 3)
    assert caught.value.message == f"renew the ipv6 lease of one: {reason}"


@on_a_node
@pytest.mark.parametrize("rebind", [False, True], ids=["renew", "rebind"])
def test_a_lease_that_the_server_has_lost_is_requested_again(rebind: bool) -> None:
    granted = association(assigned(1, 100, 1000))
    running = start_server(granted, granted, association(dhcpv6.option(13, b"\0\3")), granted)
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    assert dhcp.renew(NODE_NETNS, lease, rebind, 3)["address"] == lease["address"]
    requests = [(kind, duid) for kind, _elapsed, _ia, duid in running.ipv6_requests]
    assert requests[2:] == [(6, b"") if rebind else (5, b"x"), (3, b"x")]
    assert running.ipv6_requests[3][2] == running.ipv6_requests[2][2]  # the same address


@on_a_node
@pytest.mark.parametrize("rebind", [False, True], ids=["renew", "rebind"])
def test_a_renewal_is_repeated_after_an_unspecified_failure(rebind: bool) -> None:
    granted = association(assigned(1, 100, 1000))
    failed = association(dhcpv6.option(13, b"\0\1busy"))
    start_server(granted, granted, failed, granted, failed)
    lease = dhcp.acquire(NODE_NETNS, "one", "ipv6", 3)
    assert dhcp.renew(NODE_NETNS, lease, rebind, 3)["address"] == lease["address"]
    with pytest.raises(NoLease, match=r"the server refused it: UnspecFail \(busy\)") as caught:
        dhcp.renew(NODE_NETNS, lease, rebind, 0.3)
    assert not isinstance(caught.value, Refusal)


@on_a_node
def test_dhcpv6_requests_say_how_long_the_exchange_has_taken() -> None:
    granted = association(assigned(1, 100, 1000))
    running = start_server(None, None, granted, None, granted)
    dhcp.acquire(NODE_NETNS, "one", "ipv6", 8)
    kinds, elapsed = [list(column) for column in list(zip(*running.ipv6_requests))[:2]]
    assert kinds == [1, 1, 1, 3, 3]
    assert elapsed[0] == elapsed[3] == 0  # the first message of each exchange
    # sent again after 1 and 3 seconds, in hundredths of a second, and up to a tenth later
    assert 100 <= elapsed[1] < 280 <= elapsed[2] < 800 and 100 <= elapsed[4] < 800


@on_a_node
@pytest.mark.parametrize(
    ("preferences", "server"),
    [((None, 10, 10), b"s1"), ((0, None), b"s0"), ((1, 255, 2), b"s1")],
    ids=["highest", "first", "maximum"],
)
def test_the_dhcpv6_server_with_the_highest_preference_is_used(
    preferences: tuple[int | None, ...], server: bytes
) -> None:
    granted = association(assigned(1, 100, 1000))
    advertises = [
        dhcpv6.option(2, b"s%d" % number) + (b"" if value is None else dhcpv6.option(7, bytes((value,)))) + granted
        for number, value in enumerate(preferences)
    ]
    running = start_server(advertises, granted)
    start = time.monotonic()
    dhcp.acquire(NODE_NETNS, "one", "ipv6", 8)
    assert [(kind, duid) for kind, _elapsed, _ia, duid in running.ipv6_requests] == [(1, b""), (3, server)]
    assert 255 in preferences or time.monotonic() - start >= 1  # the time in which other servers may answer


@on_a_node
def test_an_advertise_after_the_first_solicit_was_sent_again_is_used_at_once() -> None:
    granted = association(assigned(1, 100, 1000))
    running = start_server(None, granted, granted)
    start = time.monotonic()
    dhcp.acquire(NODE_NETNS, "one", "ipv6", 8)
    assert [kind for kind, *_rest in running.ipv6_requests] == [1, 1, 3] and time.monotonic() - start < 3


def test_the_pauses_of_dhcpv6_double_up_to_a_maximum() -> None:
    pauses = list(itertools.islice(dhcpv6._retry_pauses(), 12))
    assert 1.0 <= pauses[0] <= 1.1 and all(28 <= pause <= 32 for pause in pauses[7:])
    assert all(1.9 * pause - 0.001 <= later <= 2.1 * pause + 0.001 for pause, later in zip(pauses[:4], pauses[1:5]))


@on_a_node
@pytest.mark.parametrize(
    "replies",
    [(LEASE_TIME_0, LEASE_TIME_120, LEASE_TIME_120), (LEASE_TIME_120, LEASE_TIME_0, LEASE_TIME_120)],
    ids=["OFFER", "ACK"],
)
def test_a_dhcpv4_lease_of_0_seconds_is_ignored(replies: tuple[bytes, ...]) -> None:
    running = start_server(*replies)
    assert dhcp.acquire(NODE_NETNS, "one", "ipv4", 5)["lifetime"] == 120
    assert running.requests == 3


@on_a_node
@pytest.mark.parametrize("address", ["0.0.0.0", "224.0.0.5", "127.0.0.2", "255.255.255.255"])
def test_a_dhcpv4_offer_without_a_usable_address_is_ignored(address: str) -> None:
    running = start_server(LEASE_TIME_120)
    running.assigned_ipv4 = address
    with pytest.raises(NoLease, match="the server 10.1.0.1 assigned no usable address"):
        dhcp.acquire(NODE_NETNS, "one", "ipv4", 0.3)


@on_a_node
@pytest.mark.parametrize(("family", "server"), [("ipv4", "DHCP"), ("ipv6", "DHCPv6")])
def test_the_error_of_a_renewal_names_the_renewal(family: str, server: str) -> None:
    granted = LEASE_TIME_120 if family == "ipv4" else association(assigned(1, 100, 1000))
    start_server(granted, granted, None)
    lease = dhcp.acquire(NODE_NETNS, "one", family, 3)
    with pytest.raises(NoLease) as caught:
        dhcp.renew(NODE_NETNS, lease, True, 0.3)
    assert caught.value.message == f"renew the {family} lease of one: no {server} server answered in time"


def test_the_elapsed_time_of_dhcpv6_has_a_maximum() -> None:
    client = object.__new__(dhcpv6.Client6)
    client._duid = b"duid"
    options = dict(dhcpv6.parse_options(client._message(1, bytes(3), b"", b"", 700.0)[4:]))
    assert options[8] == b"\xff\xff"


@pytest.mark.parametrize(
    ("lifetime", "renew", "rebind", "expected"),
    [
        (120, 0, 0, (60, 96)),
        (120, 50, 0, (50, 96)),
        (120, 0, 100, (60, 100)),
        (120, 0, 50, (50, 50)),
        (120, 50, 100, (50, 100)),
        (120, 100, 100, (100, 100)),
        (120, 200, 100, (60, 96)),
        (120, 50, 2**32 - 1, (60, 96)),
        (1, 0, 0, (5, 5)),
        (0, 0, 0, (5, 5)),
    ],
)
def test_missing_and_invalid_renewal_times_of_a_lease_are_replaced(
    lifetime: int, renew: int, rebind: int, expected: tuple[int, int]
) -> None:
    lease = new_lease("ipv6", "net1", "fd00::1/128", lifetime, renew, rebind)
    assert (lease["renew"], lease["rebind"]) == expected and lease["lifetime"] == lifetime
