# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The probe against hwloc's lstopo."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.oracle import compare, lstopo, trees, variants

pytestmark = pytest.mark.skipif(lstopo.BINARY is None, reason="lstopo is not installed (Debian: hwloc-nox)")


def check(name: str, root: Path, tell: t.Callable[[t.Any], None]) -> compare.Comparison:
    seen = lstopo.look(root)
    result = compare.compare(name, root, probe(str(root)), seen)
    tell(result)
    assert result.facts, "nothing was compared"
    assert not result.unexplained, str(result)
    return result


@pytest.mark.parametrize("name", trees.ALL)
def test_tree(name: str, tell: t.Callable[[t.Any], None]) -> None:
    check(name, trees.root_of(name), tell)


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_variant(name: str, tmp_path: Path, tell: t.Callable[[t.Any], None]) -> None:
    result = check(f"variant:{name}", variants.make(name).write(tmp_path), tell)
    assert set(result.rules) == variants.VARIANTS[name][1]


def test_each_rule_is_provoked() -> None:
    assert set().union(*(rules for _change, rules in variants.VARIANTS.values())) == set(compare.RULES)
