# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a hostile pod can do to another pod on the same card and to machines on the network. Exactly the attempts that
succeed according to docs/security.md do, and the driver restores everything. tests/lab/test_hostile_pods.py tests the
same with virtual functions."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.driver import nodes
from ansible_collections.lanewise.dra.tests.driver.hostile import attempts, table, testbed

PAGE = COLLECTION / "docs/security.md"


@pytest.mark.parametrize("column", [table.BRIDGE, table.PRIVATE, table.WITH_ACLS, table.WITH_USER_NAMESPACES])
def test_attempts_succeed_exactly_as_the_security_page_states(column: str) -> None:
    guarded = column in (table.WITH_ACLS, table.WITH_USER_NAMESPACES)
    if guarded and not shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        pytest.skip("needs nft")

    @nodes.on_a_node
    def test() -> None:
        pods = testbed.macvlan("bridge" if column == table.BRIDGE else "private")
        pods.acls, pods.user_namespaces = guarded, column == table.WITH_USER_NAMESPACES
        outcomes, not_restored = {}, {}
        for attempt in attempts.ATTEMPTS:
            outcomes[attempt.text], not_restored[attempt.text] = attempts.outcome(pods, attempt)
        assert not any(not_restored.values()), not_restored
        differences = table.differences(PAGE, column, outcomes)
        assert not differences, "\n".join(differences)

    test()


@nodes.on_a_node
def test_a_hostile_pod_cannot_become_the_router_of_a_pod_that_ignores_router_advertisements() -> None:
    pods = testbed.macvlan("bridge")
    pods.config["sysctls"] = {"net.ipv6.conf.IFNAME.accept_ra": 0}
    (attempt,) = (entry for entry in attempts.ATTEMPTS if entry.run is attempts.becomes_the_neighbours_router)
    assert attempts.outcome(pods, attempt) == ("stopped", [])


def test_the_security_page_has_a_row_for_each_attempt() -> None:
    rows = table.read(PAGE)
    assert list(rows) == [attempt.text for attempt in attempts.ATTEMPTS]
    assert all(set(cells) == set(table.COLUMNS) for cells in rows.values())
