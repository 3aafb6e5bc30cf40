# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's Prometheus metrics."""

from __future__ import annotations

import contextlib
import time
import typing as t
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .errors import Busy, KernelError, Refused

#: The operations on claims.
PREPARE = "prepare"
UNPREPARE = "unprepare"
ATTACH = "attach"
DETACH = "detach"

#: The states by which devices are counted.
PUBLISHED = "published"
ALLOCATED = "allocated"
WITHHELD = "withheld"

_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass
class Measurement:
    """The measurement of one operation. It is recorded only if `recorded` is True when the operation ends."""

    recorded: bool = True


class Metrics:
    """All metrics of one driver."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._operations = Histogram(
            "lanewise_operation_seconds",
            "Duration of an operation on a claim, by outcome: ok, refused, busy, kernel or failed.",
            ["operation", "outcome"],
            buckets=_BUCKETS_SECONDS,
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
            "Unix time when the ResourceSlices last matched the node's devices, 0 if never.",
            registry=self.registry,
        )
        self._registered = Gauge("lanewise_registered", "1 if kubelet registered the driver.", registry=self.registry)
        self._errors = Counter(
            "lanewise_errors",
            "Errors outside operations on claims, by the part where they occurred.",
            ["part"],
            registry=self.registry,
        )
        for operation in (PREPARE, UNPREPARE, ATTACH, DETACH):
            self._operations.labels(operation, "ok")

    @contextlib.contextmanager
    def operation(self, name: str) -> t.Iterator[Measurement]:
        """Measure the block as operation `name`; the exception that it raises determines the outcome. If there was
        nothing to do, the block sets `recorded` of the yielded measurement to False."""
        start = time.monotonic()
        outcome = "failed"
        measurement = Measurement()
        try:
            yield measurement
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
            if measurement.recorded:
                self._operations.labels(name, outcome).observe(time.monotonic() - start)

    def devices(self, state: str, count: int) -> None:
        """Set the current number of devices in `state`."""
        self._devices.labels(state).set(count)

    def published(self) -> None:
        """Record that the slices match the node's devices now."""
        self._published.set_to_current_time()

    def registered(self, registered: bool) -> None:
        """Set whether kubelet has registered the driver."""
        self._registered.set(int(registered))

    def error(self, part: str) -> None:
        """Count an error of `part`, such as `publish`."""
        self._errors.labels(part).inc()

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)
