# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices that drivers published on real nodes, compared with the predictions for machines described after them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.tests.claims import recorded

Values = dict[str, t.Any]
DRIVERS: Values = {"gpu.nvidia.com": {"version": "0.4.0"}, "dra.net": {"version": "1.4.0"}}
#: Attributes that were removed from the records, and those that an interface has only with addresses or programs.
LEFT_OUT = {f"dra.net/{name}" for name in ("alias", "mac", "ipv4", "ipv6", "tcFilterNames", "tcxProgramNames")}
#: Attributes that a record lacks, too, although the same driver published them for such interfaces on other nodes.
MISSING = {"oke-gb200": {f"dra.net/{name}" for name in ("ebpf", "encapsulation", "pciSubsystem")}}
#: Names that a node chooses for its devices, which the descriptions do not copy.
NAMES = {"dra.net/ifName", "dra.net/rdmaDevice"}


@pytest.mark.parametrize("name", recorded.NODES)
def test_predicted_devices_equal_the_recorded_ones(name: str, tmp_path: Path) -> None:
    """The predictions for both drivers contain the recorded devices, with the attributes that pairs need."""
    compared = ("resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot", "dra.net/pciAddress")
    compared += ("dra.net/numaNode", "dra.net/rdma")

    def seen(given: list[Offer]) -> dict[tuple[str, str], Values]:
        return {
            (device.driver, device.address): {key: device.device["attributes"].get(key) for key in compared}
            for device in given
            if not device.possible
        }

    assert seen(offers(name, recorded.facts_of(name, tmp_path), DRIVERS)) == seen(recorded.offers_of(name))


@pytest.mark.parametrize("name", recorded.NODES)
def test_dranet_published_the_predicted_attributes(name: str, tmp_path: Path) -> None:
    """This compares the names, types and values of all attributes, except those from the cloud's metadata service."""
    predicted = offers(name, recorded.facts_of(name, tmp_path), {"dra.net": DRIVERS["dra.net"]})
    ours = {device.address: device for device in predicted if not device.possible}
    real = {device.address: device for device in recorded.offers_of(name) if device.driver == "dra.net"}
    assert ours.keys() == real.keys() and real
    for address, our in ours.items():
        given = {key: value for key, value in real[address].device["attributes"].items() if ".dra.net/" not in key}
        expected = our.device["attributes"]
        missing = (expected.keys() | our.unknown) - given.keys()
        assert our.device["name"] == real[address].device["name"]
        assert not given.keys() - expected.keys() - our.unknown and missing <= LEFT_OUT | MISSING.get(name, set())
        for key in given.keys() & expected.keys():
            same = given[key].keys() == expected[key].keys()
            assert same and (key in our.assumed | NAMES or given[key] == expected[key]), (address, key)
