# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A hostile pod against its neighbour on one card and against machines on the network: exactly
the attempts that docs/security.md names succeed, and the driver takes everything back. tests/lab/test_hostile_pods.py
does the same with virtual functions."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.lanewise.dra.tests.common.places import COLLECTION
from ansible_collections.lanewise.dra.tests.driver import nodes
from ansible_collections.lanewise.dra.tests.driver.hostile import arena, attempts, table

PAGE = COLLECTION / "docs/security.md"


@pytest.mark.parametrize("column", [table.BRIDGE, table.PRIVATE, table.GUARDED, table.USERS])
def test_attempts_get_through_only_as_the_security_page_states(column: str) -> None:
    guarded = column in (table.GUARDED, table.USERS)
    if guarded and not shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        pytest.skip("needs nft")

    @nodes.on_a_node
    def test() -> None:
        place = arena.macvlan("bridge" if column == table.BRIDGE else "private")
        place.acls, place.user_namespaces = guarded, column == table.USERS
        found, left = {}, {}
        for one in attempts.ATTEMPTS:
            found[one.text], left[one.text] = attempts.outcome(place, one)
        assert not any(left.values()), left
        assert not (wrong := table.differences(PAGE, column, found)), "\n".join(wrong)

    test()


@nodes.on_a_node
def test_a_pod_that_takes_no_router_advertisements_gets_no_router() -> None:
    place = arena.macvlan("bridge")
    place.config["sysctls"] = {"net.ipv6.conf.IFNAME.accept_ra": 0}
    (one,) = (one for one in attempts.ATTEMPTS if one.does is attempts.becomes_the_neighbours_router)
    assert attempts.outcome(place, one) == ("stopped", [])


def test_the_security_page_has_a_row_for_each_attempt() -> None:
    rows = table.read(PAGE)
    assert list(rows) == [one.text for one in attempts.ATTEMPTS]
    assert all(set(cells) == set(table.COLUMNS) for cells in rows.values())
