# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which events are kept and sent, whatever tenants put into them. With an API server: test_claims_faults."""

from __future__ import annotations

import threading
import tracemalloc
import typing as t

from lanewise_driver.api import events
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Refused


class Api:
    """Records what would be sent to the API server. Blocks until `open` is set."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.open = threading.Event()

    def event(self, regarding: t.Any, reason: str, note: str, warning: bool = False, action: str = "") -> None:
        assert self.open.wait(60)
        self.sent.append((regarding["metadata"]["namespace"], note))


def report(reporter: events.Reporter, namespace: str, number: int, reason: str = "") -> None:
    about = events.claim(ClaimRef(namespace, f"claim-{number}", f"uid-{namespace}-{number}"))
    reporter.send(about, events.PREPARE, reason or f"reason {number}", Refused.fix)


def test_long_words_are_neither_kept_nor_sent() -> None:
    api = Api()
    reporter = events.Reporter(api)
    tracemalloc.start()
    for number in range(25):
        report(reporter, f"tenant-{number}", number, f"{number}: " + "\N{GREEK SMALL LETTER ALPHA}" * 1_000_000)
    kept, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    api.open.set()
    reporter.start()
    reporter.stop(30)
    assert len(api.sent) == 25
    for _namespace, note in api.sent:
        assert len(note.encode()) <= events.NOTE_BYTES and note.endswith(f" .... {Refused.fix}")


def test_texts_that_are_not_utf_8_are_sent() -> None:
    api = Api()
    api.open.set()
    reporter = events.Reporter(api)
    reporter.start()
    report(reporter, "tenant", 1, "half a character \ud800")
    reporter.stop(30)
    assert api.sent == [("tenant", f"half a character ?. {Refused.fix}")]


def test_a_namespace_leaves_room_for_others() -> None:
    api = Api()
    reporter = events.Reporter(api)
    for number in range(500):
        report(reporter, "noisy", number)
    report(reporter, "quiet", 1)
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
        report(reporter, f"tenant-{number}", number)
    for number in range(50):
        report(reporter, "late", number)
    bucket = reporter._namespaces["late"]
    assert bucket.tokens == events.NAMESPACE_BURST


def test_equal_events_are_sent_once() -> None:
    api = Api()
    api.open.set()
    reporter = events.Reporter(api)
    for _time in range(5):
        report(reporter, "tenant", 1)
    report(reporter, "tenant", 1, "another reason")
    reporter.start()
    reporter.stop(30)
    assert len(api.sent) == 2
