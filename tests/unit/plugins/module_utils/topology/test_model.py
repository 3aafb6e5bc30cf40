# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The model's classes behave as dataclasses, though their methods are not generated."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology import facts, model
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import Gpu, Link, PciFunction, as_dict
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import healthy


def test_model_classes_are_dataclasses(tmp_path):
    node = healthy(tmp_path / "machine").probe()
    assert dataclasses.is_dataclass(Gpu) and dataclasses.is_dataclass(node)
    assert [one.name for one in dataclasses.fields(Link)] == list(as_dict(Link())) == list(Link.__annotations__)
    assert dataclasses.asdict(node) == as_dict(node)
    assert pickle.loads(pickle.dumps(node)) == copy.deepcopy(node) == node


def test_objects_of_the_model_are_equal_if_their_fields_are():
    link = Link(8.0, width=4)
    assert link == Link(speed_gts=8.0, width=4) != Link(8.0)
    assert dataclasses.replace(link, width=8) == Link(8.0, 8)
    assert repr(link).startswith("Link(speed_gts=8.0, width=4, max_speed_gts=None")
    assert PciFunction("a").bridges is not PciFunction("a").bridges


@pytest.mark.parametrize("make", [Gpu, lambda: Link(speed=1), lambda: Link(1, 2, 3, 4, 5, 6), lambda: Gpu("a")])
def test_unknown_or_missing_fields_are_refused(make):
    with pytest.raises(TypeError, match="has the fields"):
        make()


def test_the_types_of_facts_have_the_fields_of_the_model():
    """Field by field, as text: `Link | None` in the model is `LinkFacts | None` in the facts."""
    names = {"Topology": "NodeFacts", "PciFunction": "FunctionFacts"}
    described = {one.__name__: one for one in vars(model).values() if isinstance(one, type) and "_names" in vars(one)}
    names = {name: names.get(name, f"{name}Facts") for name in described}
    for name, one in described.items():
        expected = {
            field: re.sub(r"\w+", lambda word: names.get(word[0], word[0]), kind)
            for field, kind in one.__annotations__.items()
        }
        known = getattr(facts, names[name]).__annotations__
        assert {field: kind.__forward_arg__ for field, kind in known.items()} == expected, name
    assert len(described) > 20
