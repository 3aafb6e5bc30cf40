# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The work for a refusal is bounded: all searches of a plan together examine a limited number of devices.

`make bench` measures the time of such a refusal. LANEWISE_REFUSALS sets the number of tested pods.
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
#: The maximum number of devices that are examined by the search, by a second search that assumes that uncertain devices
#: exist, and by all searches of the diagnosis.
MAX_EXAMINED = SEARCH_BUDGET + SEARCH_BUDGET // 4 + SEARCH_BUDGET // 4
#: Devices that a search examines between two checks of its budget, times the largest number of searches.
SLACK = 100 * 40


def test_a_refusal_examines_few_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Search] = []
    original = Search.__init__

    def recorded(self: Search, *arguments: t.Any, **more: t.Any) -> None:
        searches.append(self)
        original(self, *arguments, **more)

    monkeypatch.setattr(Search, "__init__", recorded)
    refusals = HardRefusals(SEED, require_engine())
    max_examined, long = 0, 0

    def counted(allocate: t.Callable[[], t.Any]) -> t.Any:
        searches.clear()
        return allocate()

    for number in range(REFUSALS):
        description, refusal = refusals.refusal(counted, HARD[number % len(HARD)])
        examined = sum(search.examined for search in searches)
        assert examined <= MAX_EXAMINED + SLACK, (description, refusal.reason, examined)
        max_examined = max(max_examined, examined)
        long += examined > SEARCH_BUDGET // 4
    assert long and max_examined > SEARCH_BUDGET // 2, "no refusal was hard"
