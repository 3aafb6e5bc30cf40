# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How much work the refusal of a plan may be: the looks at devices of all its searches together are bounded.

The time of such a refusal is measured by `make bench`. LANEWISE_REFUSALS says how many pods are tried.
"""

from __future__ import annotations

import os
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.states import BUDGET
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.search import Search
from ansible_collections.lanewise.dra.tests.common.engine import made_engine
from ansible_collections.lanewise.dra.tests.common.hard_questions import Questions

REFUSALS = int(os.environ.get("LANEWISE_REFUSALS", "8"))
SEED = 3
HARD = [
    ("mig", "hgx-h100", ["small-part", "four-near", "small-part"]),
    ("mig", "hgx-h100", ["large-part", "four-near"]),
    ("mig", "hgx-h100", ["part-and-nic", "large-part", "one-pair"]),
    ("mig", "hgx-h100", ["four-near", "four-any", "large-part"]),
]
#: Looks of the search itself, of one that takes uncertain devices for certain, and of all searches of the diagnosis.
MOST = BUDGET + BUDGET // 4 + BUDGET // 4
#: Looks of a search between two checks of its budget, and searches at most.
SLACK = 100 * 40


def test_a_refusal_looks_at_few_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Search] = []
    begin = Search.__init__

    def recorded(self: Search, *arguments: t.Any, **more: t.Any) -> None:
        begun.append(self)
        begin(self, *arguments, **more)

    monkeypatch.setattr(Search, "__init__", recorded)
    questions = Questions(SEED, made_engine())
    most, long = 0, 0

    def ask(question: t.Callable[[], t.Any]) -> t.Any:
        begun.clear()
        return question()

    for turn in range(REFUSALS):
        asked, refusal = questions.one(ask, HARD[turn % len(HARD)])
        looks = sum(one.looks for one in begun)
        assert looks <= MOST + SLACK, (asked, refusal.reason, looks)
        most = max(most, looks)
        long += looks > BUDGET // 4
    assert long and most > BUDGET // 2, "no question was hard"
