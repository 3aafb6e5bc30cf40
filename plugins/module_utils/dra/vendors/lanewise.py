# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""NICs, as the collection's own driver publishes them (`topology.publish`)."""

from __future__ import annotations

from ...topology import publish
from ...topology.facts import NodeFacts
from ...topology.publish_shares import rule_for, share_device, share_name
from ...topology.selector import values_of
from .divided_nics import rules_of
from .filters import flag, number, text
from .knowledge import (
    LANEWISE,
    NUMA_NODE,
    NUMA_NODE_DRANET,
    PCI_BUS_ID,
    PCIE_ROOT,
    DriverKnowledge,
    Kind,
    Published,
    Term,
)
from .offer import Offer, Options, Vendor, unknown_standard_attributes

_KNOWLEDGE = DriverKnowledge(
    name=LANEWISE,
    title="lanewise",
    kubernetes="1.34",
    oldest="1.0.0",
    newest="1.0.0",  # the collection's own version
    source="`plugins/module_utils/topology/publish.py`, which the driver also uses",
    tested_versions="1.0.0",
    kinds={
        kind: Kind(
            terms=terms,
            terms_by_filter={} if kind == "vf" else {"share": (Term("type", "share"), *terms[1:])},
            # the hardware does not fix the bandwidth of a VF
            capacities={} if kind == "vf" else {"bandwidth": "bandwidth"},
            filters={
                "min_speed": (number("linkSpeedMbps", "at_least", conversion="mbps"),),
                "link_layer": (text("linkLayer"),),
                "rail": (number("rail"),),
                "numa_node": (number(NUMA_NODE),),
                "model": (text("model", "contains"),),
                "min_firmware": (text("firmware", "at_least", conversion="semver"),),
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
    pf_address=f"{LANEWISE}/pfPciBusID",
)


def _offers(node: str, facts: NodeFacts, driver: DriverKnowledge, options: Options) -> list[Offer]:
    publication = publish.publication(facts, options["counters"], shares=rules_of(facts) if options["shares"] else ())
    sets = {entry["name"]: entry for entry in publication.counter_sets}
    result = []
    for device in publication.devices:
        address = publication.addresses[device["name"]]
        in_pod = publish.device_name(address) in publication.away
        unknown = _INTERFACE_ATTRIBUTES if in_pod else frozenset()
        standard = unknown_standard_attributes(facts["functions"][address], facts)
        consumed = tuple(sets[used["counterSet"]] for used in device.get("consumesCounters", ()))
        result.append(
            Offer(
                *(driver.name, node, node, device),
                address=address,
                counter_sets=consumed,
                unknown=frozenset(standard) | {driver.qualified(name) for name in unknown},
            )
        )
    return result + (_absent_nic_shares(node, facts, driver, publication) if options["shares"] else [])


_INTERFACE_ATTRIBUTES = frozenset(publish.INTERFACE_ATTRIBUTES)


def _absent_nic_shares(
    node: str, facts: NodeFacts, driver: DriverKnowledge, publication: publish.Publication
) -> list[Offer]:
    """The devices for shares of NICs that are in a pod. The speed of their links is unknown, and therefore also their
    capacity."""
    rules = rules_of(facts)
    bases = {device["name"]: device for device in publication.devices}
    result = []
    for nic in facts["nics"] if rules else ():
        name = publish.device_name(nic["address"])
        rule = rule_for(rules, values_of(nic, facts))
        if rule is None or name not in publication.away or share_name(name) in publication.shared:
            continue
        device = share_device(bases[name], rule, rule.minimum + rule.step, 1)
        del device["capacity"]
        unknown = {driver.qualified(attribute) for attribute in (*_INTERFACE_ATTRIBUTES, "vfs")}
        result.append(
            Offer(
                *(driver.name, node, node, device),
                address=nic["address"],
                unknown=frozenset(unknown),
                possible=True,
            )
        )
    return result


VENDOR = Vendor(_KNOWLEDGE, _offers)
