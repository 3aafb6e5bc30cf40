# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`align: nearest` for parts of devices: VFs of a NIC, published by one of two drivers, and MIG partitions of a GPU."""

from __future__ import annotations

import copy
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.allocator import Allocation, allocate
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map
from ansible_collections.lanewise.dra.plugins.plugin_utils.planned_vfs import with_planned_vfs
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

cel = pytest.importorskip("cel_expr_python")

Values = dict[str, t.Any]
SRIOV = "sriovnetwork.k8snetworkplumbingwg.io"
GPU = {"name": "gpu", "kind": "gpu"}


def machine(vfs: int = 0) -> Values:
    """An HGX H100 whose GPUs are nearest to the NIC three places on, so that the PCIe roots do not show the pairs."""
    found = copy.deepcopy(facts("hgx-h100"))
    board = board_map(found)
    # only the first port of a card, because the VFs of both ports would have the same addresses
    ports = [nic["address"] for nic in found["nics"] if nic["rdma_devices"] and not nic["default_route"]]
    fabric = [address for address in ports if address.endswith(".0")]
    position = {address: index for index, address in enumerate(found["affinity"]["devices"])}
    for number, gpu in enumerate(board.gpus):
        for nic in board.nics:
            level = "PIX" if nic == fabric[(number + 3) % len(board.gpus)] else "SYS"
            row, column = position[gpu], position[nic]
            found["affinity"]["levels"][row][column] = found["affinity"]["levels"][column][row] = level
    rules = [{"select": {"address": address}, "num_vfs": vfs} for address in fabric]
    for address in fabric if vfs else ():
        sriov = {
            "total_vfs": 16,
            "num_vfs": 0,
            "offset": 2,
            "stride": 1,
            "vf_device_id": "101e",
            "drivers_autoprobe": 1,
        }
        found["functions"][address]["sriov"] = {**(found["functions"][address]["sriov"] or {}), **sriov}
    return dict(with_planned_vfs(found, rules)) if vfs else found


class Site:
    """A site with one machine and one template. The template's claims are allocated one after the other."""

    def __init__(
        self, known: Values, devices: list[Values], drivers: Values, offered: list[Offer] | None = None
    ) -> None:
        groups = [{"align": "nearest", "devices": devices}]
        values = {
            "dra_claims_drivers": drivers,
            "dra_claims_templates": [{"name": "pair", "namespace": "ml", "groups": groups}],
            "dra_claims_allow_unreachable": True,
        }
        self.compiled = compile_site(values, {"node": known})
        self.classes = {
            item["metadata"]["name"]: item for item in self.compiled.objects if item["kind"] == "DeviceClass"
        }
        [self.spec] = [
            item["spec"]["spec"] for item in self.compiled.objects if item["kind"] == "ResourceClaimTemplate"
        ]
        self.offers = offers("node", known, drivers) if offered is None else offered
        self.board = board_map(known)
        self.pf_of = {nic["address"]: nic["physfn"] or nic["address"] for nic in known["nics"]}

    def pairs(self) -> list[tuple[str, str]]:
        """The GPU and the VF or NIC of each claim, until a claim is refused."""
        held: list[Result] = []
        found, engine = [], Engine()
        while isinstance(answer := allocate([self.spec], self.classes, self.offers, engine, held=held), Allocation):
            gpu, nic = (
                next(result for result in answer.results if result.request.startswith(name)) for name in ("gpu", "nic")
            )
            found.append((gpu.offer.address, nic.offer.address))
            held += answer.results
        return found

    def right(self, pairs: list[tuple[str, str]]) -> bool:
        return all(self.board.level(gpu, self.pf_of[nic]) == "PIX" for gpu, nic in pairs)


@pytest.mark.parametrize(
    ("driver", "form"), [("lanewise.dev", "published map"), (SRIOV, "address")], ids=["lanewise", "sriov"]
)
def test_each_gpu_gets_a_vf_of_its_nearest_nic(driver: str, form: str) -> None:
    drivers = {"gpu.nvidia.com": {"version": "0.5.0"}, driver: {"version": "1.0.0"}}
    site = Site(machine(vfs=2), [GPU, {"name": "nic", "kind": "vf"}], drivers)
    assert site.compiled.boards[0].form == form
    pairs = site.pairs()
    assert len(pairs) == 8 and site.right(pairs)
    assert len({nic for _gpu, nic in pairs}) == 8
    text = str(site.spec)
    assert "pfPciAddress" in text if driver == SRIOV else "nearestGPUs" in text


def test_mig_partitions_share_the_vfs_of_their_gpu() -> None:
    drivers = {"gpu.nvidia.com": {"version": "0.5.0"}, "lanewise.dev": {"version": "1.0.0"}}
    known = machine(vfs=3)
    partition = {**GPU, "where": {"partition": "1g.10gb"}}
    site = Site(known, [partition, {"name": "nic", "kind": "vf"}], drivers)
    # NVIDIA's driver publishes three partitions on each GPU
    site.offers = [
        _as_existing(offer) for offer in site.offers if not offer.possible or offer.device["name"][-1] in "012"
    ]
    pairs = site.pairs()
    assert len(pairs) == 24 and site.right(pairs)
    assert {len([1 for gpu, _nic in pairs if gpu == entry]) for entry in site.board.gpus} == {3}


def _as_existing(offer: Offer) -> Offer:
    """The offer of a possible partition, changed to that of an existing partition."""
    if not offer.possible:
        return offer
    attributes = {**offer.device["attributes"], "profile": {"string": "1g.10gb"}}
    return replace(offer, possible=False, unknown=frozenset(), device={**offer.device, "attributes": attributes})
