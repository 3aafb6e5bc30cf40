# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which events are queued and sent, and how they are shortened. Events on a real API server are in
test_claims_faults.py."""

from __future__ import annotations

import threading
import tracemalloc
import typing as t

from lanewise_driver.api import events
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Refused


class Api:
    """Records the events that would be sent to the API server. Blocks until `open` is set."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.open = threading.Event()

    def event(self, regarding: t.Any, reason: str, note: str, warning: bool = False, action: str = "") -> None:
        assert self.open.wait(60)
        self.sent.append((regarding["metadata"]["namespace"], note))


def send(reporter: events.Reporter, namespace: str, number: int, reason: str = "") -> None:
    """Send an event about claim `number` of the namespace."""
    regarding = events.claim(ClaimRef(namespace, f"claim-{number}", f"uid-{namespace}-{number}"))
    reporter.send(regarding, events.PREPARE, reason or f"reason {number}", Refused.fix)


def test_long_reasons_are_shortened_before_they_are_queued() -> None:
    api = Api()
    reporter = events.Reporter(api)
    tracemalloc.start()
    for number in range(25):
        send(reporter, f"tenant-{number}", number, f"{number}: " + "\N{GREEK SMALL LETTER ALPHA}" * 1_000_000)
    allocated, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated < 1_000_000
    api.open.set()
    reporter.start()
    reporter.stop(30)
    assert len(api.sent) == 25
    for _namespace, note in api.sent:
        assert len(note.encode()) <= events.NOTE_BYTES and note.endswith(f" .... {Refused.fix}")


def test_a_character_that_utf_8_cannot_encode_is_replaced() -> None:
    api = Api()
    api.open.set()
    reporter = events.Reporter(api)
    reporter.start()
    send(reporter, "tenant", 1, "half a character \ud800")
    reporter.stop(30)
    assert api.sent == [("tenant", f"half a character ?. {Refused.fix}")]


def test_many_events_of_one_namespace_do_not_displace_those_of_others() -> None:
    api = Api()
    reporter = events.Reporter(api)
    for number in range(500):
        send(reporter, "noisy", number)
    send(reporter, "quiet", 1)
    api.open.set()
    reporter.start()
    reporter.stop(30)
    namespaces = [namespace for namespace, _note in api.sent]
    assert namespaces.count("quiet") == 1
    assert events.NAMESPACE_BURST <= namespaces.count("noisy") <= events.NAMESPACE_BURST + 2


def test_an_event_beyond_the_total_limit_does_not_count_for_its_namespace() -> None:
    api = Api()
    reporter = events.Reporter(api)
    for number in range(events.BURST + 20):
        send(reporter, f"tenant-{number}", number)
    for number in range(50):
        send(reporter, "late", number)
    bucket = reporter._namespaces["late"]
    assert bucket.tokens == events.NAMESPACE_BURST


def test_equal_events_are_sent_once() -> None:
    api = Api()
    api.open.set()
    reporter = events.Reporter(api)
    for _attempt in range(5):
        send(reporter, "tenant", 1)
    send(reporter, "tenant", 1, "another reason")
    reporter.start()
    reporter.stop(30)
    assert len(api.sent) == 2
