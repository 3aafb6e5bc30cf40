# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Locks of operations on claims and devices."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from lanewise_driver.base.errors import Busy
from lanewise_driver.base.lock import Locks


def test_a_lock_has_one_holder_at_a_time_and_leaves_no_file(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks", timeout=30)
    holders = highest = 0
    guard = threading.Lock()

    def hold_repeatedly(number: int) -> None:
        nonlocal holders, highest
        for _attempt in range(50):
            with locks.hold("b", f"c{number % 2}", "a/../a"):
                with guard:
                    holders += 1
                    highest = max(highest, holders)
                time.sleep(0.001)  # others would overlap here without the lock
                with guard:
                    holders -= 1

    threads = [threading.Thread(target=hold_repeatedly, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert highest == 1 and list((tmp_path / "locks").iterdir()) == []


def test_a_held_lock_is_reported_as_busy(tmp_path: Path) -> None:
    locks = Locks(tmp_path / "locks", timeout=0.05)
    with locks.hold("claim-x"), pytest.raises(Busy, match="claim-x"):
        with locks.hold("claim-x"):
            pass
    with locks.hold("claim-x"):
        pass
