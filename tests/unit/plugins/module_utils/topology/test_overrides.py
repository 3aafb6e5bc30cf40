# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.overrides import OverrideError, check_overrides
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.topology.trees import GPU, NIC


@pytest.fixture
def vm(tree):
    """A virtual machine with a GPU and a NIC, without information about their locality."""
    tree.nodes("0-3", "4-7")
    tree.pci("pci0001:00/0001:00:00.0", GPU)
    tree.rdma("mlx5_0", tree.pci("pci0002:00/0002:00:00.0", NIC))
    return tree


def finding_ids(topology):
    return [finding.id for finding in topology.findings]


def test_an_override_by_address_sets_the_numa_node(vm):
    topology = vm.probe({"address": "0001:00:00.0", "numa_node": 1})
    function = topology.functions["0001:00:00.0"]
    assert (function.numa_node, function.numa_source) == (1, "override")
    assert topology.gpus[0].numa_node == 1


def test_an_override_is_reported_with_the_value_that_was_read(vm):
    topology = vm.probe({"address": "0001:00:00.0", "numa_node": 1})
    (finding,) = [finding for finding in topology.findings if finding.id == "override-applied"]
    assert finding.devices == ["0001:00:00.0"]
    assert finding.evidence == ["0001:00:00.0: NUMA node None read, 1 stated"]


def test_an_override_does_not_change_kubernetes_attributes(vm):
    function = vm.probe({"address": "0001:00:00.0", "numa_node": 1}).functions["0001:00:00.0"]
    assert "numaNode" not in function.kubernetes


def test_the_level_of_devices_that_overrides_put_on_one_numa_node_is_node(vm):
    topology = vm.probe({"address": "0001:00:00.0", "numa_node": 0}, {"address": "0002:00:00.0", "numa_node": 0})
    assert topology.gpus[0].nearest_nics.level == "NODE"


def test_the_level_of_devices_that_overrides_put_at_one_switch_is_pix(vm):
    topology = vm.probe({"address": "0001:00:00.0", "switch": "a"}, {"address": "0002:00:00.0", "switch": "a"})
    assert topology.gpus[0].nearest_nics.level == "PIX"
    assert [(group.level, group.common) for group in topology.groups] == [("PIX", "a")]


def test_an_override_by_slot_applies_to_every_function_of_the_card(tree):
    for number in range(2):
        tree.pci(f"pci0000:17/0000:17:01.0/0000:18:00.{number}", NIC)
    tree.write("sys/bus/pci/slots/3/address", "0000:18:00")
    functions = tree.probe({"slot": "3", "numa_node": 1}).functions
    assert [functions[f"0000:18:00.{number}"].numa_node for number in range(2)] == [1, 1]
    assert functions["0000:17:01.0"].numa_node is None


def test_a_stated_rail_disables_derived_rails(tree):
    for root in ("17", "27"):
        tree.pci(f"pci0000:{root}/0000:{root}:00.0/0000:{root[0]}8:00.0", GPU, 0)
        tree.pci(f"pci0000:{root}/0000:{root}:01.0/0000:{root[0]}9:00.0", NIC, 0)
    topology = tree.probe({"address": "0000:19:00.0", "rail": 5})
    assert {nic.address: (nic.rail, nic.rail_source) for nic in topology.nics} == {
        "0000:19:00.0": (5, "override"),
        "0000:29:00.0": (None, None),
    }
    assert [gpu.rail for gpu in topology.gpus] == [5, 5]


@pytest.mark.parametrize("entry", [{"address": "0009:00:00.0", "numa_node": 0}, {"slot": "7", "rail": 1}])
def test_an_override_that_matches_nothing_is_reported(vm, entry):
    assert "override-unmatched" in finding_ids(vm.probe(entry))


def test_an_override_of_the_rail_of_a_gpu_is_reported(vm):
    topology = vm.probe({"address": "0001:00:00.0", "rail": 1})
    (finding,) = [finding for finding in topology.findings if finding.id == "override-unmatched"]
    assert "not a NIC" in finding.summary


def test_an_override_that_matches_is_not_reported_as_unmatched(vm):
    assert "override-unmatched" not in finding_ids(vm.probe({"address": "0002:00:00.0", "rail": 1}))


def test_zero_is_a_valid_rail_and_numa_node(vm):
    topology = vm.probe({"address": "0002:00:00.0", "rail": 0, "numa_node": 0})
    assert (topology.nics[0].rail, topology.nics[0].numa_node) == (0, 0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"address": "0000:1b:00.0"}, "sets nothing"),
        ({"address": "0000:1b:00.0", "numa_node": None}, "sets nothing"),
        ({"numa_node": 0}, "either 'address' or 'slot'"),
        ({"address": "0000:1b:00.0", "slot": "1", "numa_node": 0}, "either 'address' or 'slot'"),
        ({"address": "1b:00.0", "numa_node": 0}, "'1b:00.0' is not of the form"),
        ({"address": "0000:1B:00.0", "numa_node": 0}, "lower case"),
        ({"address": 27, "numa_node": 0}, "27 is not of the form"),
        ({"address": "0000:1b:00.0", "numa_node": -1}, "-1 is not a number from 0"),
        ({"address": "0000:1b:00.0", "numa_node": "0"}, "'0' is not a number from 0"),
        ({"address": "0000:1b:00.0", "rail": True}, "True is not a number from 0"),
        ({"address": "0000:1b:00.0", "numa": 0}, "unknown key 'numa'"),
    ],
)
def test_malformed_overrides_are_refused(entry, message):
    with pytest.raises(OverrideError, match=r"locality_overrides\[1\]") as error:
        check_overrides([{"address": "0000:1b:00.0", "numa_node": 0}, entry])
    assert message in str(error.value)


def test_a_malformed_override_stops_the_probe(vm):
    with pytest.raises(OverrideError):
        vm.probe({"slot": "1"})
