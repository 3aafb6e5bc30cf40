# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fact sheets behave as dataclasses, though none of their methods is generated."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Gpu, Link, PciFunction, as_dict
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import healthy


def test_sheets_are_dataclasses(tmp_path):
    node = healthy(tmp_path / "machine").probe()
    assert dataclasses.is_dataclass(Gpu) and dataclasses.is_dataclass(node)
    assert [one.name for one in dataclasses.fields(Link)] == list(as_dict(Link())) == list(Link.__annotations__)
    assert dataclasses.asdict(node) == as_dict(node)
    assert pickle.loads(pickle.dumps(node)) == copy.deepcopy(node) == node


def test_sheets_are_equal_by_their_facts():
    link = Link(8.0, width=4)
    assert link == Link(speed_gts=8.0, width=4) != Link(8.0)
    assert dataclasses.replace(link, width=8) == Link(8.0, 8)
    assert repr(link).startswith("Link(speed_gts=8.0, width=4, max_speed_gts=None")
    assert PciFunction("a").bridges is not PciFunction("a").bridges


@pytest.mark.parametrize("make", [Gpu, lambda: Link(speed=1), lambda: Link(1, 2, 3, 4, 5, 6), lambda: Gpu("a")])
def test_sheet_with_other_fields_is_refused(make):
    with pytest.raises(TypeError, match="has the fields"):
        make()
