# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.holds import hold, swap
from ansible_collections.lanewise.dra.plugins.modules.dra_holds_info import list_holds

NOW = datetime(2026, 11, 24, 8, tzinfo=timezone.utc)
DEVICE = ("gpu.example.com", "node-1", "gpu-0")
V1 = "resource.k8s.io/v1"


def expired_hold(purpose: str) -> hold.Hold:
    """A hold that expired an hour ago, of one device."""
    return hold.Hold("gold", "team a", "training", NOW - timedelta(hours=1), (DEVICE,), purpose)


@pytest.mark.parametrize(
    ("purpose", "advice"),
    [
        (hold.RESERVE, "release or extend it with lanewise.dra.reserve"),
        (hold.DEFRAGMENT, "release it with lanewise.dra.reserve"),
        (hold.SWAP, "return or extend the swap with lanewise.dra.swap"),
    ],
)
def test_the_advice_for_an_overdue_hold_depends_on_its_purpose(purpose: str, advice: str) -> None:
    (line,) = list_holds([hold.rule(expired_hold(purpose), DEVICE, V1)], NOW)["overdue"]
    assert line.endswith(f" (training), is overdue: 1 device is still held: {advice}")


def test_a_swap_without_a_hold_is_overdue() -> None:
    rules = [swap.rule(expired_hold(hold.SWAP), DEVICE, effect, V1) for effect in (swap.EVICT, swap.COUNT)]
    (line,) = list_holds(rules, NOW)["overdue"]
    rules_text = "1 rule still evicts pods and 1 rule counts pods"
    assert line == f"swap gold has no hold, but {rules_text}: return it with lanewise.dra.swap"
