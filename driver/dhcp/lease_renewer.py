# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Renewing the DHCP leases of running pods, and requesting a new lease after a server revoked one.

All times are CLOCK_BOOTTIME, because the wall clock may be set while a lease is valid.
"""

from __future__ import annotations

import errno
import logging
import threading
import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import Busy, DriverError
from ..base.objects import ObjectView
from ..kernel import addresses, links
from ..kernel import netns as namespaces
from ..kernel.netlink import Netlink
from . import client as dhcp
from .exchange import Refusal
from .lease import FOREVER, Lease

log = logging.getLogger(__name__)

#: How long one renewal waits for a server, and the minimum time until the next attempt.
_RENEWAL_SECONDS, _RETRY_SECONDS = 5.0, 60.0
#: The first and the maximum pause between requests for a new lease after one was lost.
_MIN_LOST_RETRY_SECONDS, _MAX_LOST_RETRY_SECONDS = 2.0, 60.0
#: Maximum number of concurrent renewals: a server that does not answer must not delay other pods' leases.
_MAX_RENEWALS = 8


@dataclass
class _Renewal:
    netns: Path
    lease: Lease
    config: ObjectView
    next: float  # CLOCK_BOOTTIME
    unreported: bool = False
    failures: int = 0


class LeaseRenewer:
    """Renews all leases, and configures what has changed.

    After each renewal, `on_change` is called with the key and the new lease, to update the record and, if the address
    has changed, the claim's status. The address of a lease with `lost` must not be used any more. If `on_change` raises
    Busy, it is called again a second later.
    """

    def __init__(self, on_change: t.Callable[[str, Lease], None]) -> None:
        self._on_change = on_change
        self._leases: dict[str, _Renewal] = {}
        self._lock = threading.Condition()
        self._busy: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._workers = ThreadPoolExecutor(_MAX_RENEWALS, thread_name_prefix="dhcp")

    def start(self, key: str, netns: Path, lease: Lease, config: ObjectView) -> None:
        """Start renewing a lease. It may have been obtained before the driver restarted: it is renewed when it is
        due."""
        with self._lock:
            self._leases[key] = _Renewal(netns, lease, config, _due(lease))
            if self._thread is None:
                self._thread = threading.Thread(target=self._schedule, name="dhcp", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def stop(self, key: str, release_lease: bool = True) -> bool:
        """Stop renewing a lease, and release it if `release_lease` is set. Call this before detach.

        First waits until no thread uses the lease any more, for at most the duration of two renewals. Returns whether
        the lease was being renewed."""
        with self._lock:
            renewal = self._leases.pop(key, None)
            self._lock.wait_for(lambda: key not in self._busy, timeout=2 * _RENEWAL_SECONDS + 1)
        if renewal and release_lease:
            self.release(renewal.netns, renewal.lease)
        return renewal is not None

    @staticmethod
    def release(netns: Path, lease: Lease) -> None:
        """Release a lease that is not being renewed, unless it is lost or the namespace does not exist any more. Call
        this before detach."""
        if not lease.get("lost") and namespaces.alive(netns):
            dhcp.release(netns, lease)

    def close(self) -> None:
        """End the threads. Leases are not released."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._thread:
            self._thread.join(_RENEWAL_SECONDS + 1)
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _schedule(self) -> None:
        with self._lock:
            while not self._closed:
                waiting = [(renewal.next, key) for key, renewal in self._leases.items() if key not in self._busy]
                due, key = min(waiting, default=(float("inf"), ""))
                left = due - addresses.boottime()
                if left > 0:  # the condition's clock stops during suspend
                    self._lock.wait(min(left, 60.0))
                    continue
                self._busy.add(key)
                self._workers.submit(self._work, key, self._leases[key])

    def _work(self, key: str, renewal: _Renewal) -> None:
        with self._lock:
            stopped = self._leases.get(key) is not renewal  # while it waited for a worker
        try:
            if stopped:
                return
            unreported_loss = renewal.unreported and renewal.lease.get("lost")
            if not unreported_loss and (not renewal.unreported or addresses.boottime() >= _due(renewal.lease)):
                self._renew(key, renewal)
            self._report(key, renewal)
        except (DriverError, OSError) as error:
            self._reschedule(renewal, str(error))
        except Exception as error:
            # otherwise the error would be lost, and the lease renewed again immediately
            log.exception("unexpected error: this is a bug in the driver")
            self._reschedule(renewal, repr(error))
        finally:
            with self._lock:
                self._busy.discard(key)
                self._lock.notify_all()

    def _renew(self, key: str, renewal: _Renewal) -> None:
        """Renew a lease, or request a new one if it is lost, and configure it. Raises DriverError and OSError if that
        fails."""
        lease = renewal.lease
        if not lease.get("lost"):
            try:
                new = self._renewed(lease, renewal.netns)
            except Refusal as error:
                log.warning("the lease of %s was lost, requesting a new one: %s", lease["interface"], error.message)
                self._lose(key, renewal)
        if renewal.lease.get("lost"):
            new = dhcp.acquire(renewal.netns, lease["interface"], lease["family"], _RENEWAL_SECONDS)
        if new["address"] != lease["address"]:
            _remove(renewal.netns, lease)
        with Netlink(renewal.netns) as connection:
            link = links.get(connection, name=new["interface"])
            if link is not None:
                dhcp.apply(connection, link.index, new, renewal.config, previous=lease)
        renewal.lease, renewal.failures = new, 0

    @staticmethod
    def _renewed(lease: Lease, netns: Path) -> Lease:
        age = dhcp.age(lease)
        if age >= lease["lifetime"]:
            raise Refusal(f"renew the lease of {lease['interface']}", errno.ETIMEDOUT, "it has expired")
        return dhcp.renew(netns, lease, age >= lease["rebind"], _RENEWAL_SECONDS)

    def _lose(self, key: str, renewal: _Renewal) -> None:
        """Remove the address from the interface and from the claim's status, because the pod must not use it any more
        (RFC 2131, section 4.4.5)."""
        _remove(renewal.netns, renewal.lease)
        renewal.lease, renewal.failures = {**renewal.lease, "lost": True}, 0
        try:
            self._on_change(key, renewal.lease)
        except Busy as error:
            renewal.unreported = True  # reported again a second later, unless a new lease follows immediately
            log.info("the loss of the lease of %s is not recorded yet: %s", renewal.lease["interface"], error.message)

    def _report(self, key: str, renewal: _Renewal) -> None:
        """Report the current lease, and schedule its renewal."""
        renewal.unreported, renewal.next = False, _due(renewal.lease)
        try:
            self._on_change(key, renewal.lease)
        except Busy as error:  # for example when the driver starts and many leases are due
            log.info("the renewed lease of %s is not recorded yet: %s", renewal.lease["interface"], error.message)
            renewal.unreported, renewal.next = True, min(renewal.next, addresses.boottime() + 1)

    def _reschedule(self, renewal: _Renewal, reason: str) -> None:
        """Schedule the next attempt: after half the time until the lease is rebound or expires, as the RFCs say, but
        not too soon. For a lost lease, the pauses grow."""
        lease, now = renewal.lease, addresses.boottime()
        if lease.get("lost"):
            pause = min(_MIN_LOST_RETRY_SECONDS * 2 ** min(renewal.failures, 10), _MAX_LOST_RETRY_SECONDS)
            renewal.next = now + (1.0 if renewal.unreported else pause)
            renewal.failures += 1
        else:
            age = dhcp.age(lease)
            left = min((end - age for end in (lease["rebind"], lease["lifetime"]) if end > age), default=0.0)
            renewal.next = now + max(left / 2, min(_RETRY_SECONDS, max(left, 1.0)))
        wait = renewal.next - now
        log.warning("could not renew the lease of %s, next attempt in %.0f s: %s", lease["interface"], wait, reason)


def _due(lease: Lease) -> float:
    """When a lease is due for renewal, in seconds of CLOCK_BOOTTIME."""
    if lease.get("lost"):
        return addresses.boottime()
    if lease["lifetime"] == FOREVER:
        return float("inf")
    return addresses.boottime() - dhcp.age(lease) + float(lease["renew"])


def _remove(netns: Path, lease: Lease) -> None:
    """Remove the leased address from its interface, if that still exists."""
    with Netlink(netns) as connection:
        link = links.get(connection, name=lease["interface"])
        if link is not None:
            addresses.remove(connection, link.index, {"address": lease["address"]})
