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
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import healthy_machine


def test_model_classes_are_dataclasses(tmp_path):
    node = healthy_machine(tmp_path / "machine").probe()
    assert dataclasses.is_dataclass(Gpu) and dataclasses.is_dataclass(node)
    assert [field.name for field in dataclasses.fields(Link)] == list(as_dict(Link())) == list(Link.__annotations__)
    assert dataclasses.asdict(node) == as_dict(node)
    assert pickle.loads(pickle.dumps(node)) == copy.deepcopy(node) == node


def test_objects_of_the_model_are_equal_if_their_fields_are_equal():
    link = Link(8.0, width=4)
    assert link == Link(speed_gts=8.0, width=4) != Link(8.0)
    assert dataclasses.replace(link, width=8) == Link(8.0, 8)
    assert repr(link).startswith("Link(speed_gts=8.0, width=4, max_speed_gts=None")
    assert PciFunction("a").bridges is not PciFunction("a").bridges


@pytest.mark.parametrize(
    "create",
    [
        Gpu,
        lambda: Link(speed=1),  # type: ignore[call-arg]
        lambda: Link(1, 2, 3, 4, 5, 6),  # type: ignore[call-arg]
        lambda: Gpu("a"),  # type: ignore[call-arg]
    ],
)
def test_unknown_or_missing_fields_are_refused(create):
    with pytest.raises(TypeError, match="has the fields"):
        create()


def test_the_types_of_facts_have_the_fields_of_the_model():
    """The annotations are compared as text: `Link | None` in the model is `LinkFacts | None` in the facts."""
    irregular_names = {"Topology": "NodeFacts", "PciFunction": "FunctionFacts"}
    model_classes = {
        model_class.__name__: model_class
        for model_class in vars(model).values()
        if isinstance(model_class, type) and "_names" in vars(model_class)
    }
    facts_names = {name: irregular_names.get(name, f"{name}Facts") for name in model_classes}
    for name, model_class in model_classes.items():
        expected = {
            field: re.sub(r"\w+", lambda word: facts_names.get(word[0], word[0]), annotation)
            for field, annotation in model_class.__annotations__.items()
        }
        described = getattr(facts, facts_names[name]).__annotations__
        assert {field: annotation.__forward_arg__ for field, annotation in described.items()} == expected, name
    assert len(model_classes) > 20
