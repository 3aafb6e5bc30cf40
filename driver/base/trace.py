# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logs the steps of an operation on a claim and their durations, at level debug.

with trace.operation("attach"):
    with trace.step("pin the namespace"):
        ...

At any other level a step costs one variable lookup.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
import typing as t

log = logging.getLogger(__name__)

_NOTHING: t.ContextManager[None] = contextlib.nullcontext()

#: Whether this thread is in a traced operation.
_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("tracing", default=False)


def operation(name: str) -> t.ContextManager[None]:
    """Trace the steps within the block, and log the total duration."""
    return _operation(name) if log.isEnabledFor(logging.DEBUG) else _NOTHING


def step(name: str, device: str = "") -> t.ContextManager[None]:
    """Trace the block as a step of this thread's operation; steps may be nested. Outside of operations nothing is
    logged."""
    return _TimedStep(name, device) if _tracing.get() else _NOTHING


@contextlib.contextmanager
def _operation(name: str) -> t.Iterator[None]:
    token = _tracing.set(True)
    try:
        with _TimedStep(f"{name}, total", ""):
            yield
    finally:
        _tracing.reset(token)


class _TimedStep:
    def __init__(self, name: str, device: str) -> None:
        self._name = name
        self._device = device

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: t.Any) -> None:
        elapsed_ms = (time.monotonic() - self._start) * 1000
        extra = {"step": self._name, **({"device": self._device} if self._device else {})}
        failure = f", failed: {error}" if error else ""
        log.debug("%.1f ms: %s%s", elapsed_ms, self._name, failure, extra=extra)
