# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DRANET in the place of our driver: what it publishes, and pods that get its devices by the claims of an inventory."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.cluster import dranet_node
from ansible_collections.lanewise.dra.tests.cluster.dranet_node import Dranet, MachineNode
from ansible_collections.lanewise.dra.tests.cluster.node import Node
from ansible_collections.lanewise.dra.tests.machines.description import names
from environment import Missing  # tools/cluster.py has put its folder on the path

Object = dict[str, t.Any]
DRIVERS = {"dra.net": {"version": dranet_node.VERSION}}
#: An interface has them only with addresses or with programs.
SOMETIMES = {f"dra.net/{name}" for name in ("ipv4", "ipv6", "tcFilterNames", "tcxProgramNames")}


@pytest.fixture(name="publish")
def _publish(node: Node, tmp_path: Path) -> t.Iterator[t.Callable[..., tuple[MachineNode, Dranet]]]:
    """Run DRANET on a machine; gives both. They end with the test."""
    with_machine: list[MachineNode] = []
    running: list[Dranet] = []

    def publish(name: str, filter_: str = dranet_node.FILTER) -> tuple[MachineNode, Dranet]:
        machine = MachineNode(node, name, tmp_path)
        with_machine.append(machine)
        try:
            driver = Dranet(node, machine.tree / "sys", filter_)
        except Missing as missing:
            pytest.skip(str(missing))
        driver.start()
        running.append(driver)
        return machine, driver

    yield publish
    for one in running:
        one.stop()
    for machine in with_machine:
        machine.close()
    for found in running[0].slices() if running else ():
        node.plane.expect("DELETE", f"{dranet_node.SLICES}/{found['metadata']['name']}")


def differences(predicted: t.Iterable[Offer], published: t.Mapping[str, Object]) -> list[str]:
    """Between what we predict and what DRANET publishes: devices, and attributes by name, type and value.

    The value of an assumed attribute may differ, and that of an unknown one is not predicted.
    """
    sure = {one.device["name"]: one for one in predicted if not one.possible}
    found = [f"{name}: not predicted" for name in sorted(published.keys() - sure.keys())]
    found += [f"{name}: not published" for name in sorted(sure.keys() - published.keys())]
    for name in sorted(published.keys() & sure.keys()):
        given, ours = published[name]["attributes"], sure[name]
        for key, value in ours.device["attributes"].items():
            same = given.get(key, {}).keys() == value.keys() if key in ours.assumed else given.get(key) == value
            found += [] if same else [f"{name}: {key} is {given.get(key)}, not {value}"]
        found += [
            f"{name}: {key} not predicted" for key in sorted(given.keys() - ours.device["attributes"] - ours.unknown)
        ]
        found += [f"{name}: {key} not published" for key in sorted(ours.unknown - given.keys() - SOMETIMES)]
        found += [f"{name}: has {sorted(published[name])}" for _once in "1" if set(published[name]) - {"name", "attributes"}]
    return found


#: The machine whose devices one slice cannot hold: of its VFs the 128 of one NIC are left out.
LARGE, MOST_OF_IT = "sriov", "0000:c9"


@pytest.mark.parametrize("machine", [name for name in names() if name != LARGE])
def test_our_prediction_is_what_dranet_publishes(publish: t.Callable[..., t.Any], machine: str) -> None:
    there, driver = publish(machine)
    published = there.node.plane.wait_for(driver.devices, "the devices of DRANET")
    assert not differences(offers(there.node.name, there.facts, DRIVERS), published)


def test_our_prediction_of_vfs_and_of_the_nics_below_a_vlan(publish: t.Callable[..., t.Any]) -> None:
    """Of the machine that has more devices than a slice, as far as a filter leaves them."""
    few = f'!attributes["dra.net/pciAddress"].StringValue.startsWith("{MOST_OF_IT}")'
    there, driver = publish(LARGE, f'({dranet_node.FILTER}) && (!("dra.net/pciAddress" in attributes) || {few})')
    published = there.node.plane.wait_for(driver.devices, "the devices of DRANET")
    for name in ("functions", "nics", "interfaces", "rdma_devices"):
        kept = there.facts[name]
        if isinstance(kept, dict):
            there.facts[name] = {key: one for key, one in kept.items() if not key.startswith(MOST_OF_IT)}
        else:
            there.facts[name] = [one for one in kept if not (one["address"] or "").startswith(MOST_OF_IT)]
    predicted = offers(there.node.name, there.facts, DRIVERS)
    assert any("dra.net/isSriovVf" in one.device["attributes"] for one in predicted)
    assert not differences(predicted, published)


def test_nothing_is_published_where_a_slice_cannot_hold_all(publish: t.Callable[..., t.Any]) -> None:
    there, driver = publish(LARGE)
    there.node.plane.wait_for(lambda: "spec.devices: Too many" in driver.log(), "the API server's refusal")
    assert not driver.slices() and not offers(there.node.name, there.facts, DRIVERS)


def test_a_wrong_prediction_is_found(publish: t.Callable[..., t.Any]) -> None:
    there, driver = publish("hgx-h100")
    published = there.node.plane.wait_for(driver.devices, "the devices of DRANET")
    first = sorted(published)[0]
    for wrong in (
        {**DRIVERS, "dra.net": {"version": "main"}},  # has one attribute more
        {"lanewise.dev": {}},
    ):
        assert differences(offers(there.node.name, there.facts, wrong), published)
    del published[first]["attributes"]["dra.net/ifName"]
    assert differences(offers(there.node.name, there.facts, DRIVERS), published)
