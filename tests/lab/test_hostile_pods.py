# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A hostile pod with a VF of the lab's card attacks another VF and the PF. Only the attempts that docs/security.md
lists succeed. Compare tests/driver/test_hostile_pods.py."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.driver.hostile import attempts, table
from ansible_collections.lanewise.dra.tests.lab.node import Node
from ansible_collections.lanewise.dra.tests.lab.test_driver_kernel import _vm, make_vfs

__all__ = ["_vm"]

#: The InterfaceConfig of both pods, by column of the page.
CONFIGS: dict[str, dict[str, t.Any]] = {table.VF: {}, table.OPEN_VF: {"vf": {"spoofchk": False, "trust": True}}}


@pytest.mark.parametrize("column", list(CONFIGS))
def test_attempts_succeed_exactly_as_the_security_page_states(vm: Node, column: str) -> None:
    card, _address, _name = make_vfs(vm)
    vm.copy(COLLECTION / "tests/driver/hostile", "/opt/hostile")
    python = "cd /opt && PYTHONDONTWRITEBYTECODE=1 python3 -m hostile"
    reported = vm.ssh(f"{python} {card} '{json.dumps(CONFIGS[column])}'", timeout=1800)
    lines = [json.loads(line) for line in reported.splitlines()]
    leftovers = {attempt: unlike for attempt, _found, unlike in lines if unlike}
    found = {attempt: outcome for attempt, outcome, _left in lines}
    found.update({entry.text: table.NOT_RUN for entry in attempts.ATTEMPTS if entry.machines > 1})
    print(column, json.dumps(found, indent=1))
    assert not leftovers
    assert not (wrong := table.differences(COLLECTION / "docs/security.md", column, found)), "\n".join(wrong)
