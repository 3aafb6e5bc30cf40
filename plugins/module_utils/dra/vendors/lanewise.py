# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""NICs, as our own driver publishes them (`topology.publish`)."""

from __future__ import annotations

from ...topology import publish
from ...topology.facts import NodeFacts
from .knowledge import (
    NUMA_NODE,
    NUMA_NODE_DRANET,
    OWN,
    PCI_BUS_ID,
    PCIE_ROOT,
    DriverKnowledge,
    Kind,
    Published,
    Term,
    flag,
    number,
    text,
)
from .offer import Offer, Options, Vendor, unpublished

_KNOWLEDGE = DriverKnowledge(
    name=OWN,
    title="lanewise",
    kubernetes="1.34",
    oldest="1.0.0",
    newest="1.0.0",  # the collection's own version
    source="topology.publish, which the driver itself uses",
    ran="1.0.0",
    kinds={
        kind: Kind(
            terms=terms,
            # how much of the port a VF gets is not a fact of the hardware
            capacities={} if kind == "vf" else {"bandwidth": "bandwidth"},
            filters={
                "min_speed": (number("linkSpeedMbps", "at_least", unit="mbps"),),
                "link_layer": (text("linkLayer"),),
                "rail": (number("rail"),),
                "numa_node": (number(NUMA_NODE),),
                "model": (text("model", "contains"),),
                "min_firmware": (text("firmware", "at_least", unit="semver"),),
                "interface": (text("ifName"),),
                "pci_address": (text(PCI_BUS_ID),),
                "pcie_root": (text(PCIE_ROOT),),
                "min_mtu": (number("mtu", "at_least"),),
                "rdma": (flag("rdma"),),
            },
        )
        for kind, terms in {
            "nic": (Term("type", "pf"),),
            "rdma": (Term("type", "pf"), Term("rdma", True)),
            "vf": (Term("type", "vf"),),
        }.items()
    },
    align={
        "pcie_root": (Published(PCIE_ROOT),),
        "numa_node": (Published(NUMA_NODE), Published(NUMA_NODE_DRANET)),
    },
    pf_address=f"{OWN}/pfPciBusID",
)


def _offers(node: str, facts: NodeFacts, known: DriverKnowledge, options: Options) -> list[Offer]:
    publication = publish.publication(facts, options["counters"])
    sets = {entry["name"]: entry for entry in publication.counter_sets}
    away = frozenset(known.qualified(name) for name in publish.INTERFACE_ATTRIBUTES)
    return [
        Offer(
            known.name,
            node,
            node,
            device,
            address=publication.addresses[device["name"]],
            counter_sets=tuple(sets[used["counterSet"]] for used in device.get("consumesCounters", ())),
            unknown=frozenset(unpublished(facts["functions"][publication.addresses[device["name"]]], facts))
            | (away if device["name"] in publication.away else frozenset()),
        )
        for device in publication.devices
    ]


VENDOR = Vendor(_KNOWLEDGE, _offers)
