# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Renewing the DHCP leases of running pods, and requesting a new lease after one was lost.

All times are CLOCK_BOOTTIME, because the wall clock may be set while a lease is valid.
"""

from __future__ import annotations

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
#: The time until the next attempt if a lease that does not expire could not be renewed before T2 (REB_MAX_RT in RFC
#: 8415, section 7.6).
_REBIND_SECONDS = 600.0
#: The first and the maximum pause between requests for a new lease after one was lost.
_MIN_LOST_RETRY_SECONDS, _MAX_LOST_RETRY_SECONDS = 2.0, 60.0
#: Maximum number of concurrent renewals: a server that does not answer must not delay other pods' leases.
_MAX_RENEWALS = 8


@dataclass
class _Renewal:
    """A lease that is renewed. `next_attempt` is in seconds of CLOCK_BOOTTIME. `unreported` means that `on_update` is
    still to be called for `lease`. `failures` counts the failed requests for a new lease since it was lost."""

    netns: Path
    lease: Lease
    config: ObjectView
    next_attempt: float
    unreported: bool = False
    failures: int = 0


class LeaseRenewer:
    """Renews leases in threads, and configures the renewed ones on their interfaces.

    `on_update` is called in these threads, with a lease's key and the lease, after each renewal and when the lease is
    lost. It updates the record and, if the address has changed, the claim's status. The address of a lease with `lost`
    must not be used any more. If `on_update` raises Busy, it is called again a second later.
    """

    def __init__(self, on_update: t.Callable[[str, Lease], None]) -> None:
        self._on_update = on_update
        self._renewals: dict[str, _Renewal] = {}
        self._lock = threading.Condition()
        self._in_progress: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._workers = ThreadPoolExecutor(_MAX_RENEWALS, thread_name_prefix="dhcp")

    def start(self, key: str, netns: Path, lease: Lease, config: ObjectView) -> None:
        """Start renewing a lease, or replace the lease with the same key. If its renewal time has passed, for example
        while the driver restarted, it is renewed immediately. Raises RuntimeError if no thread can be started."""
        with self._lock:
            self._renewals[key] = _Renewal(netns, lease, config, _due_time(lease))
            if self._thread is None:
                thread = threading.Thread(target=self._schedule, name="dhcp", daemon=True)
                thread.start()
                self._thread = thread
            self._lock.notify_all()

    def stop(self, key: str, release_lease: bool = True) -> bool:
        """Stop renewing a lease, and release it if `release_lease` is set. Call this before detach.

        First waits until no thread uses the lease any more, for at most the duration of two renewals. Returns whether
        `start` had been called for the lease."""
        with self._lock:
            renewal = self._renewals.pop(key, None)
            self._lock.wait_for(lambda: key not in self._in_progress, timeout=2 * _RENEWAL_SECONDS + 1)
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
                waiting = [
                    (renewal.next_attempt, key)
                    for key, renewal in self._renewals.items()
                    if key not in self._in_progress
                ]
                next_attempt, key = min(waiting, default=(float("inf"), ""))
                timeout = next_attempt - addresses.boottime()
                if timeout > 0:
                    # at most a minute, because the condition's clock stops during suspend
                    self._lock.wait(min(timeout, 60.0))
                    continue
                self._in_progress.add(key)
                try:
                    self._workers.submit(self._process, key, self._renewals[key])
                except RuntimeError as error:  # a limit of threads is reached
                    self._in_progress.discard(key)
                    self._renewals[key].next_attempt = addresses.boottime() + 1
                    log.error("could not renew a lease, trying again: %s", error)

    def _process(self, key: str, renewal: _Renewal) -> None:
        with self._lock:
            # it may have been stopped or replaced while it waited for a worker
            stopped = self._renewals.get(key) is not renewal
        try:
            if stopped:
                return
            unreported_loss = renewal.unreported and renewal.lease.get("lost")
            if not unreported_loss and (not renewal.unreported or addresses.boottime() >= _due_time(renewal.lease)):
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
                self._in_progress.discard(key)
                self._lock.notify_all()

    def _renew(self, key: str, renewal: _Renewal) -> None:
        """Renew a lease, or request a new one if it is lost, and configure it. Raises DriverError and OSError if that
        fails."""
        lease = renewal.lease
        age = dhcp.age(lease)
        if not lease.get("lost") and age >= lease["lifetime"]:
            self._mark_lost(key, renewal, "it has expired")
        elif not lease.get("lost"):
            try:
                new = dhcp.renew(renewal.netns, lease, age >= lease["rebind"], _RENEWAL_SECONDS)
            except Refusal as error:
                self._mark_lost(key, renewal, error.message)
        if renewal.lease.get("lost"):
            new = dhcp.acquire(renewal.netns, lease["interface"], lease["family"], _RENEWAL_SECONDS)
        if new["address"] != lease["address"]:
            _remove_address(renewal.netns, lease)
        with Netlink(renewal.netns) as connection:
            link = links.get(connection, name=new["interface"])
            if link is not None:
                dhcp.apply_renewed(connection, link.index, new, lease, renewal.config)
                if renewal.lease.get("lost") or new["address"] != lease["address"]:
                    dhcp.add_configured_routes(connection, link.index, new["interface"], renewal.config)
        renewal.lease, renewal.failures = new, 0

    def _mark_lost(self, key: str, renewal: _Renewal, reason: str) -> None:
        """Remove the address from the interface and from the claim's status, because the pod must not use it any more
        (RFC 2131, section 4.4.5; RFC 8415, section 18.2.10.1)."""
        log.warning("the lease of %s is lost, requesting a new one: %s", renewal.lease["interface"], reason)
        _remove_address(renewal.netns, renewal.lease)
        renewal.lease, renewal.failures = {**renewal.lease, "lost": True}, 0
        try:
            self._on_update(key, renewal.lease)
        except Busy as error:
            renewal.unreported = True  # reported again a second later, unless a new lease follows immediately
            log.info("the loss of the lease of %s is not recorded yet: %s", renewal.lease["interface"], error.message)

    def _report(self, key: str, renewal: _Renewal) -> None:
        """Report the current lease, and schedule its renewal."""
        renewal.unreported, renewal.next_attempt = False, _due_time(renewal.lease)
        try:
            self._on_update(key, renewal.lease)
        except Busy as error:  # for example when the driver starts and many leases are due
            log.info("the renewed lease of %s is not recorded yet: %s", renewal.lease["interface"], error.message)
            renewal.unreported, renewal.next_attempt = True, min(renewal.next_attempt, addresses.boottime() + 1)

    def _reschedule(self, renewal: _Renewal, reason: str) -> None:
        """Schedule the next attempt: after half the time that remains until T2, or, after T2, half the lifetime that
        remains; but not within a minute unless less time remains (RFC 2131, section 4.4.5; also used for DHCPv6). A
        lease that does not expire has no end: after T2 the pause is constant. For a lost lease, the pause doubles with
        each failed request, up to a minute."""
        lease, now = renewal.lease, addresses.boottime()
        if lease.get("lost"):
            pause = min(_MIN_LOST_RETRY_SECONDS * 2 ** min(renewal.failures, 10), _MAX_LOST_RETRY_SECONDS)
            renewal.next_attempt = now + (1.0 if renewal.unreported else pause)
            renewal.failures += 1
        elif lease["lifetime"] == FOREVER and dhcp.age(lease) >= lease["rebind"]:
            renewal.next_attempt = now + _REBIND_SECONDS
        else:
            age = dhcp.age(lease)
            remaining = min((limit - age for limit in (lease["rebind"], lease["lifetime"]) if limit > age), default=0.0)
            renewal.next_attempt = now + max(remaining / 2, min(_RETRY_SECONDS, max(remaining, 1.0)))
        pause = renewal.next_attempt - now
        log.warning("could not renew the lease of %s, next attempt in %.0f s: %s", lease["interface"], pause, reason)


def _due_time(lease: Lease) -> float:
    """When a lease is due for renewal, in seconds of CLOCK_BOOTTIME.

    A lease that does not expire is renewed only if its address is preferred for a limited time, to extend that time."""
    if lease.get("lost"):
        return addresses.boottime()
    if lease["lifetime"] == FOREVER and lease.get("preferred", FOREVER) == FOREVER:
        return float("inf")
    return addresses.boottime() - dhcp.age(lease) + float(lease["renew"])


def _remove_address(netns: Path, lease: Lease) -> None:
    """Remove the leased address from its interface, if that still exists."""
    with Netlink(netns) as connection:
        link = links.get(connection, name=lease["interface"])
        if link is not None:
            addresses.remove(connection, link.index, {"address": lease["address"]})
