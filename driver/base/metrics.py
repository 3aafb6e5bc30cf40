# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Numbers for Prometheus."""

from __future__ import annotations

import contextlib
import time
import typing as t

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .errors import Busy, KernelError, Refused

#: The operations on claims.
PREPARE = "prepare"
UNPREPARE = "unprepare"
ATTACH = "attach"
DETACH = "detach"

#: What a device can be counted as.
PUBLISHED = "published"
ALLOCATED = "allocated"
WITHHELD = "withheld"

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """All numbers of one driver."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._operations = Histogram(
            "lanewise_operation_seconds",
            "Time that an operation on a claim took, by how it ended: ok, refused, busy, kernel or failed.",
            ["operation", "outcome"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._devices = Gauge(
            "lanewise_devices",
            "Devices of the node by state: published, allocated (to a claim on this node), withheld (never published).",
            ["state"],
            registry=self.registry,
        )
        self._published = Gauge(
            "lanewise_published_timestamp_seconds",
            "When the ResourceSlices were last found equal to the node's devices, 0 for not yet.",
            registry=self.registry,
        )
        self._registered = Gauge("lanewise_registered", "1 where kubelet has taken the driver.", registry=self.registry)
        self._errors = Counter(
            "lanewise_errors",
            "Errors outside operations on claims, by the part that met them.",
            ["part"],
            registry=self.registry,
        )
        for operation in (PREPARE, UNPREPARE, ATTACH, DETACH):
            self._operations.labels(operation, "ok")

    @contextlib.contextmanager
    def operation(self, name: str) -> t.Iterator[None]:
        """Time the block as operation C(name), its outcome told by the exception that leaves it."""
        start = time.monotonic()
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        except Refused:
            outcome = "refused"
            raise
        except Busy:
            outcome = "busy"
            raise
        except KernelError:
            outcome = "kernel"
            raise
        finally:
            self._operations.labels(name, outcome).observe(time.monotonic() - start)

    def devices(self, state: str, count: int) -> None:
        """How many devices are C(state) now."""
        self._devices.labels(state).set(count)

    def published(self) -> None:
        """The slices are as they should be, now."""
        self._published.set_to_current_time()

    def registered(self, registered: bool) -> None:
        """Whether kubelet has taken the driver."""
        self._registered.set(int(registered))

    def error(self, part: str) -> None:
        """An error of C(part), such as C(publish)."""
        self._errors.labels(part).inc()

    def text(self) -> bytes:
        """All numbers in Prometheus' text format."""
        return generate_latest(self.registry)
