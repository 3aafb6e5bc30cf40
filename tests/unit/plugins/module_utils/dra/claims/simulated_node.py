# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Machines with other levels between their GPUs and NICs, and a simulated node that allocates `align: nearest`."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import Site, compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler import allocator
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Allocation, Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.affinity import RANK
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map

Values = dict[str, t.Any]
GPU, NIC = {"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": "rdma"}
NVIDIA = {"gpu.nvidia.com": {"version": "0.5.0"}}
LANEWISE = {"lanewise.dev": {"version": "1.0.0"}}
DRANET = {"dra.net": {"version": "1.4.0"}}


def site(devices: list[Values], drivers: Values | None = None, align: t.Any = "nearest", **group: t.Any) -> Values:
    """The variables of a site with the template `pair`, which has one group of aligned devices."""
    groups = [{"align": align, "devices": devices, **group}]
    return {
        "dra_claims_drivers": drivers or {**NVIDIA, **LANEWISE},
        "dra_claims_templates": [{"name": "pair", "namespace": "ml", "groups": groups}],
    }


def templates(compiled: Site) -> dict[str, Values]:
    """The requests, constraints and configurations of each ResourceClaimTemplate, by its name."""
    found = [item for item in compiled.objects if item["kind"] == "ResourceClaimTemplate"]
    return {item["metadata"]["name"]: item["spec"]["spec"]["devices"] for item in found}


def with_levels(facts: Values, levels: t.Callable[[int, int], str]) -> Values:
    """Change the level between each GPU and NIC to `levels(GPU number, NIC number)`. Returns the changed facts."""
    board = board_map(facts)
    position = {address: index for index, address in enumerate(facts["affinity"]["devices"])}
    rows = facts["affinity"]["levels"]
    for i, gpu in enumerate(board.gpus):
        for j, nic in enumerate(board.nics):
            level = levels(i, j)
            rows[position[gpu]][position[nic]] = rows[position[nic]][position[gpu]] = level
    return facts


def with_near_nics(facts: Values, nics_of: t.Callable[[int], t.Collection[int]], level: str = "PIX") -> Values:
    """Change the levels so that each GPU has the fabric NICs `nics_of(its number)` at `level`, others at SYS."""
    nics = board_map(facts).nics
    fabric = [nic["address"] for nic in facts["nics"] if nic["rdma_devices"] and not nic["default_route"]]
    return with_levels(facts, lambda i, j: level if nics[j] in [fabric[k] for k in nics_of(i)] else "SYS")


def with_shuffled_nics(facts: Values) -> Values:
    """Change the levels so that each GPU has one near NIC, which is not the NIC at its PCIe root."""
    gpu_count = len(board_map(facts).gpus)
    return with_near_nics(facts, lambda i: [(3 * i + 1) % gpu_count])


class SimulatedNode:
    """A node on which claims of one template of a site are allocated, without a cluster.

    `allocated` has the results of each claim by a number that the test chooses.
    """

    def __init__(self, values: Values, nodes: Values, node: str = "node", template: str = "pair") -> None:
        facts = nodes[node]
        self.site = compile_site(values, nodes)
        self.claim = {"devices": templates(self.site)[template]}
        self.classes = {item["metadata"]["name"]: item for item in self.site.objects if item["kind"] == "DeviceClass"}
        self.offers = offers("node", facts, values["dra_claims_drivers"])
        self.engine = Engine()
        self.board = board_map(facts)
        self.pf_of = {nic["address"]: nic["physfn"] or nic["address"] for nic in facts["nics"]}
        self.allocated: dict[int, list[Result]] = {}
        self.rdma_addresses = {
            offer.address for offer in self.offers if offer.device["name"] in _rdma_device_names(self.offers)
        }

    def allocate(self, claim_number: int) -> bool:
        """Allocate another claim beside the others. Returns whether that is possible."""
        held_results = [result for results in self.allocated.values() for result in results]
        answer = allocator.allocate([self.claim], self.classes, self.offers, self.engine, held=held_results)
        if isinstance(answer, Allocation):
            self.allocated[claim_number] = list(answer.results)
            return True
        assert answer.kind in ("count", "constraint", "used", "selector", "absent"), answer
        return False

    def allocate_all(self) -> None:
        """Allocate claims until one is refused."""
        while self.allocate(len(self.allocated)):
            pass

    def unavailable_devices(self) -> set[str]:
        """Addresses of devices that cannot be allocated: those of allocated claims, and NICs whose link is down."""
        tainted = {offer.address for offer in self.offers if offer.device.get("taints")}
        return tainted | {result.offer.address for results in self.allocated.values() for result in results}

    def nearest_nics(self, at_least: str) -> dict[str, set[str]]:
        """The nearest published NICs of each GPU on the board's map, unless they are farther than `at_least`."""
        nics = [nic for nic in self.board.nics if nic in self.rdma_addresses]
        found = {}
        for gpu in self.board.gpus:
            levels = {nic: RANK[self.board.level(gpu, nic)] for nic in nics}
            best = min(levels.values(), default=RANK["UNKNOWN"])
            found[gpu] = {nic for nic, level in levels.items() if level == best} if best <= RANK[at_least] else set()
        return found

    def allocated_pairs(self) -> t.Iterator[tuple[str, str]]:
        """Each GPU with each NIC that was allocated together with it, or the PF of that NIC."""
        for results in self.allocated.values():
            gpus = {
                result.request.partition("/")[0]: result.offer.address for result in results if "gpu" in result.request
            }
            for result in results:
                request = result.request.partition("/")[0]
                if request.startswith("nic"):
                    index = request.rpartition("-")[2]
                    gpu = gpus.get("gpu") or gpus[f"gpu-{index}"]
                    yield gpu, self.pf_of[result.offer.address]


def _rdma_device_names(node_offers: list[Offer]) -> set[str]:
    """The names of the devices of kind rdma: PFs with an RDMA device."""
    found = set()
    for offer in node_offers:
        values = {name.rpartition("/")[2]: value for name, value in offer.device["attributes"].items()}
        if (
            values.get("rdma") == {"bool": True}
            and values.get("isSriovVf") is None
            and offer.driver != "gpu.nvidia.com"
        ):
            found.add(offer.device["name"])
    return found
