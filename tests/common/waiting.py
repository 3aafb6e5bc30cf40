# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waiting for what another process or the kernel does."""

from __future__ import annotations

import time
import typing as t

T = t.TypeVar("T")


def until(
    true: t.Callable[[], T], seconds: float = 20, pause: float = 0.02, why: t.Callable[[], object] = lambda: ""
) -> T:
    """Ask until the answer is true, and return it. AssertionError with ``why()`` when the seconds are over."""
    end = time.monotonic() + seconds
    while True:
        answer = true()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {seconds:g} s: {why() or getattr(true, '__name__', true)}"
        time.sleep(pause)
