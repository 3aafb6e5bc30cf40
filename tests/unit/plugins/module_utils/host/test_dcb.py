# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Rule, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import dcb
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.machine import Machine
from hypothesis import given
from hypothesis import strategies as st

PF = "0000:16:00.0"


def eight_integers(maximum: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, maximum), min_size=8, max_size=8)


dscp_tables = st.dictionaries(st.integers(0, 63), st.integers(0, 7), max_size=64)
wanted_ets_values = st.fixed_dictionaries(
    {},
    optional={
        "priority_tc": eight_integers(7),
        "bandwidth": eight_integers(100),
        "tsa": st.lists(st.sampled_from(["strict", "cb_shaper", "ets", "vendor"]), min_size=8, max_size=8),
    },
)
wanted_buffer_values = st.fixed_dictionaries(
    {}, optional={"priority_buffer": eight_integers(7), "size": eight_integers(2**32 - 1)}
)


@given(dscp_tables)
def test_a_dscp_table_is_parsed_from_its_text_form(table):
    assert dcb.Trust.parse(str(dcb.Trust(table))) == dcb.Trust(table)
    assert (str(dcb.Trust(table)) == "pcp") == (not table)


kernel_ets_values = st.fixed_dictionaries(
    {
        "willing": st.integers(0, 255),
        **{part: eight_integers(255) for part in ("priority_tc", "bandwidth", "tsa", "reco_tsa")},
    }
)
kernel_buffer_values = st.fixed_dictionaries(
    {"priority_buffer": eight_integers(255), "size": eight_integers(2**32 - 1), "total": st.just(7)}
)


@given(kernel_ets_values, wanted_ets_values, kernel_buffer_values, wanted_buffer_values, st.sets(st.integers(0, 7)))
def test_only_wanted_values_change_and_all_are_restored(raw_ets, wanted_ets, raw_buffer, wanted_buffer, pfc):
    raw = {"ets": raw_ets, "buffer": raw_buffer, "pfc": {"enabled": 0, "delay": 9}}
    before = dcb.decoded(raw)
    wanted = {"ets": wanted_ets, "buffer": wanted_buffer, "pfc": sorted(pfc)}
    parts = {name: dcb.changed(raw, name, value) for name, value in wanted.items()}
    after = dcb.decoded(parts)
    assert after["ets"] == {**before["ets"], **wanted_ets}
    assert after["buffer"] == {**before["buffer"], **wanted_buffer}
    assert after["pfc"] == sorted(pfc)
    restored = {name: dcb.changed(parts, name, before[name]) for name in parts}
    restored_lists = {
        name: {key: list(values) if isinstance(values, tuple) else values for key, values in restored[name].items()}
        for name in restored
    }
    assert restored_lists == raw


def test_a_buffer_size_that_the_card_rounds_down_to_cells_is_equal():
    resource = dcb.Dcb(System())
    wanted = {"size": [100000] * 8}
    assert resource.same("buffer", {"size": [99968] * 8, "priority_buffer": [0] * 8}, wanted)
    assert not resource.same("buffer", {"size": [99700] * 8}, wanted)
    assert not resource.same("buffer", {"size": [100001] * 8}, wanted)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([8], "priorities are 0 to 7"),
        (dcb.Trust({64: 1}), "not a DSCP"),
        (dcb.Trust({3: 8}), "not a DSCP"),
        (dcb.Trust({-1: 1}), "not a DSCP"),
        ({"size": [2**32] * 8}, "values of size are 0 to"),
        ({"priority_tc": [0] * 7}, "needs 8"),
        ({"bandwidth": [101] * 8}, "0 to 100"),
        ({"tsa": ["wrr"] * 8}, "wrr is not a tsa"),
        ({"tsa": ["ets"] * 8, "bandwidth": [12] * 8}, "adds up to 96"),
        ({"tsa": ["ets"] * 2 + ["strict"] * 6, "bandwidth": [50] * 2 + [0] * 6}, ""),
    ],
)
def test_impossible_dcb_values_are_invalid(value, reason):
    invalid = dcb._invalid(value)
    assert reason in invalid and bool(invalid) == bool(reason)


def _requested(machine, **settings):
    """The wanted state of the first PF of a machine."""
    system = System(str(machine.root))
    node = Node(system, [Rule("pf", selector({"address": PF}), {"dcb": settings})], allow_management=True)
    return dcb.Dcb(system).wanted(node)[PF]


def test_numbers_that_are_texts_are_numbers():
    """Before ansible-core 2.19, the value of a template is a text."""
    with Machine("sriov") as machine:
        requested = _requested(
            machine,
            ets={"priority_tc": ["1"] * 8, "tsa": ["ets"] * 8, "bandwidth": None},
            buffer={"size": ["100"] * 8},
            dscp_priorities={"8": "3"},
        )
    assert requested["ets"] == {"priority_tc": [1] * 8, "tsa": ["ets"] * 8}
    assert requested["buffer"] == {"size": [100] * 8} and requested["trust"].priorities[8] == 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dscp_priorities": {"af11": 1}}, "set dcb dscp_priorities of .*: 'af11' is not a number"),
        ({"ets": {"prio_tc": [0] * 8}}, "ets has no prio_tc .use priority_tc, tsa, bandwidth"),
        ({"ets": {"bandwidth": 12}}, "12 is not a list"),
        ({"buffer": {"size": [{}] * 8}}, "is not a number"),
    ],
)
def test_values_of_another_form_are_an_error(settings, reason):
    with Machine("sriov") as machine, pytest.raises(HostError, match=reason):
        _requested(machine, **settings)
