# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wait for another process or the kernel."""

from __future__ import annotations

import time
import typing as t

T = t.TypeVar("T")


def until(
    condition: t.Callable[[], T], seconds: float = 20, pause: float = 0.02, why: t.Callable[[], object] = lambda: ""
) -> T:
    """Evaluate `condition` until its result is true, and return the result. Raises AssertionError with `why()` on
    timeout."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"not within {seconds:g} s: {why() or getattr(condition, '__name__', condition)}"
        time.sleep(pause)
