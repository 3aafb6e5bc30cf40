# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The work for a refusal is bounded: all searches of a plan together examine a limited number of devices.

The time of such a refusal is measured by `make bench`. LANEWISE_REFUSALS sets the number of pods that are tried.
"""

from __future__ import annotations

import os
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.states import SEARCH_BUDGET
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search import Search
from ansible_collections.lanewise.dra.tests.common.engine import require_engine
from ansible_collections.lanewise.dra.tests.common.hard_refusals import HardRefusals

REFUSALS = int(os.environ.get("LANEWISE_REFUSALS", "8"))
SEED = 3
HARD = [
    ("mig", "hgx-h100", ["small-part", "four-near", "small-part"]),
    ("mig", "hgx-h100", ["large-part", "four-near"]),
    ("mig", "hgx-h100", ["part-and-nic", "large-part", "one-pair"]),
    ("mig", "hgx-h100", ["four-near", "four-any", "large-part"]),
]
#: Devices that the search examines, one that assumes that uncertain devices exist, and all searches of the diagnosis.
MOST = SEARCH_BUDGET + SEARCH_BUDGET // 4 + SEARCH_BUDGET // 4
#: Devices that a search examines between two checks of its budget, times the largest number of searches.
SLACK = 100 * 40


def test_a_refusal_examines_few_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Search] = []
    begin = Search.__init__

    def recorded(self: Search, *arguments: t.Any, **more: t.Any) -> None:
        begun.append(self)
        begin(self, *arguments, **more)

    monkeypatch.setattr(Search, "__init__", recorded)
    refusals = HardRefusals(SEED, require_engine())
    most, long = 0, 0

    def counted(place: t.Callable[[], t.Any]) -> t.Any:
        begun.clear()
        return place()

    for turn in range(REFUSALS):
        asked, refusal = refusals.refusal(counted, HARD[turn % len(HARD)])
        examined = sum(one.examined for one in begun)
        assert examined <= MOST + SLACK, (asked, refusal.reason, examined)
        most = max(most, examined)
        long += examined > SEARCH_BUDGET // 4
    assert long and most > SEARCH_BUDGET // 2, "no refusal was hard"
