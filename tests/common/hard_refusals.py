# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random pods that the allocator takes long to refuse or to explain. They have several claims for many devices that
depend on each other, on example machines with some devices in use."""

from __future__ import annotations

import random
import typing as t
from functools import cache, partial

from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.fleet import Fleet, Node, Workload
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.states import States, allocate_pod
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.answers import Refusal, Result
from ansible_collections.lanewise.dra.plugins.module_utils.dra.scheduler.node_cache import NodeCache, SuitabilityCache
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.server import Server
from ansible_collections.lanewise.dra.tests.cluster import fleets


def _several(gpus: int, nics: int, align: str) -> Object:
    devices = [{"name": "gpu", "kind": "gpu", "count": gpus}, {"name": "nic", "kind": "rdma", "count": nics}]
    return {"align": align, "devices": devices}


def _pairs(count: int, *levels: str) -> Object:
    nic = {"name": "nic", "kind": "rdma"}
    return {"count": count, "align": list(levels), "devices": [{"name": "gpu", "kind": "gpu"}, nic]}


_SINGLE_PAIR = {"align": "pcie_root", "devices": [{"name": "g", "kind": "gpu"}, {"name": "n", "kind": "rdma"}]}


_GROUPS: dict[str, list[Object]] = {
    "four": [_pairs(4, "pcie_root")],
    "four-near": [_pairs(4, "pcie_root", "numa_node")],
    "four-any": [_pairs(4, "pcie_root", "numa_node", "any")],
    "eight": [_pairs(8, "pcie_root")],
    "five-numa": [_pairs(5, "numa_node")],
    "gpus4-numa": [_several(4, 3, "numa_node")],
    "mix": [_several(3, 2, "numa_node"), _SINGLE_PAIR],
}
_SPECS = {
    manifest["metadata"]["name"]: manifest["spec"]["spec"]
    for manifest in compile_site(
        {
            "dra_claims_drivers": {"gpu.nvidia.com": fleets.OPTIONS["plain"], "lanewise.dev": {}},
            "dra_claims_templates": [
                {"name": name, "namespace": "plan", "groups": groups} for name, groups in _GROUPS.items()
            ],
        }
    ).objects
    if manifest["kind"] == "ResourceClaimTemplate"
}


@cache
def _offers(kind: str, machine: str) -> tuple[Offer, ...]:
    site = fleets.Site.__new__(fleets.Site)
    site.kind, site.machines = kind, {"a": machine}
    return tuple(site.offers("a"))


class HardRefusals:
    """Random pods on random machines. Each kind of pod is allocated again and again until it is refused."""

    def __init__(self, seed: int, engine: Engine) -> None:
        self._chance, self._engine = random.Random(seed), engine

    def refusal(
        self, place: t.Callable[[t.Callable[[], t.Any]], t.Any], known: tuple[str, str, list[str]] | None = None
    ) -> tuple[str, Refusal]:
        """A description of the claims of one pod, and the pod's refusal.

        place: calls the function that it gets, which allocates the pod's devices once, and returns the result.
        known: the kind of the fleet, the machine and the names of the pod's claims; all are random by default.
        """
        chance = self._chance
        kind = known[0] if known else chance.choice(["plain", "mig", "mig", "shares", "nics"])
        machine = known[1] if known else chance.choice(fleets.MACHINES[kind])
        offers = _offers(kind, machine)
        specs = {**{name: fleets.SPECS[name] for name in fleets.COUNTED[kind]}, **_SPECS}
        drawn = [chance.choice(sorted(specs)) for _index in range(chance.randint(1, 3))]
        names = known[2] if known else drawn
        workload = Workload("w", tuple(specs[name] for name in names), namespace="plan")
        fleet = Fleet({"a": Node("a", offers=offers)}, fleets.CLASSES, Server())
        used_share = chance.random()
        held = [
            Result(0, "r", offer)
            for offer in offers
            if chance.random() < used_share
            and not offer.device.get("allowMultipleAllocations")
            and not (kind == "mig" and offer.device.get("consumesCounters"))
        ]
        cache = NodeCache(offers, States(fleet, [workload], self._engine).cache, SuitabilityCache())
        while True:
            answer = place(partial(allocate_pod, fleet, workload, cache, held))
            if isinstance(answer, Refusal):
                return f"{' + '.join(names)} on {machine} ({kind})", answer
            held += answer.results
