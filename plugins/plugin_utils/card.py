# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NIC cards of a node, from its topology facts, and the search for one of them by slot, address or serial number.

A card is plain JSON data, because it is stored while a NIC is replaced.
"""

from __future__ import annotations

import typing as t

from ..module_utils.topology.facts import FunctionFacts, NicFacts, NodeFacts
from ..module_utils.topology.pci import slot_of
from .report_facts import View, natural, read_facts


class Link(t.TypedDict):
    """A PCIe link: transfers a second in GT/s and lanes, null if unknown."""

    gts: float | None
    width: int | None


class Near(t.TypedDict):
    """The nearest GPUs and their affinity level."""

    level: str
    gpus: list[str]


class Interface(t.TypedDict):
    name: str
    mac: str | None


class RdmaDevice(t.TypedDict):
    name: str
    guid: str | None
    firmware: str | None


class Function(t.TypedDict):
    """A PF of a card. `degraded` describes what its PCIe link lost; `vfs` are PCI addresses."""

    address: str
    id: str
    subsystem: str
    driver: str | None
    link: Link
    degraded: str
    speed_mbps: int | None
    up: bool | None
    rail: int | None
    near: Near
    default_route: bool
    interfaces: list[Interface]
    rdma: list[RdmaDevice]
    vfs: list[str]


class Card(t.TypedDict):
    """A card.

    `slots`, `devices` (addresses without the function) and `ports` (the bridges above) are its location, `functions`
    its PFs in the order of their addresses, and `dma` its functions that only carry data.
    """

    slots: list[str]
    devices: list[str]
    ports: list[str]
    serial: str | None
    part_number: str | None
    name: str
    functions: list[Function]
    dma: list[str]


class NoUniqueCard(ValueError):
    """No card, or more than one, matches the request."""


#: NICs with an equal key are functions of one card: a device address, or part number and serial number.
_Key = t.Union[str, tuple[t.Optional[str], str]]


def cards(facts: NodeFacts) -> list[Card]:
    """All NIC cards of a node in the order of their addresses, from its topology facts (see `model.as_dict`)."""
    view = View(read_facts(facts))
    groups: list[tuple[set[_Key], list[NicFacts]]] = []
    for nic in sorted(facts["nics"], key=lambda nic: natural(nic["address"])):
        if nic["physfn"]:
            continue
        vpd = facts["functions"][nic["address"]]["vpd"] or {}
        keys: set[_Key] = {slot_of(nic["address"])}
        serial = (vpd.get("serial_number") or "").strip()
        if is_unique_serial(serial):
            keys.add((vpd.get("part_number"), serial))
        members = [nic]
        for group in [group for group in groups if group[0] & keys]:
            groups.remove(group)
            keys |= group[0]
            members = group[1] + members
        groups.append((keys, members))
    return [_card(members, facts, view) for _keys, members in groups]


def _card(nics: list[NicFacts], facts: NodeFacts, view: View) -> Card:
    functions = [facts["functions"][nic["address"]] for nic in nics]
    vpds = [function["vpd"] or {} for function in functions]

    def of_vpd(key: str) -> str | None:
        return next((vpd[key].strip() for vpd in vpds if vpd.get(key)), None)

    return {
        "slots": sorted({function["slot"] for function in functions if function["slot"]}),
        "devices": sorted({slot_of(nic["address"]) for nic in nics}),
        "ports": sorted({function["bridges"][-1] for function in functions if function["bridges"]}),
        "serial": of_vpd("serial_number"),
        "part_number": of_vpd("part_number"),
        "name": nics[0]["model"] or of_vpd("name") or _ids(functions[0]) or "a NIC",
        "functions": [_function(nic, facts, view) for nic in nics],
        "dma": sorted({nic["data_direct"] for nic in nics if nic["data_direct"]}),
    }


def _function(nic: NicFacts, facts: NodeFacts, view: View) -> Function:
    address = nic["address"]
    function = facts["functions"][address]
    link = function["link"] or {}
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    rdma = {entry["name"]: entry for entry in facts["rdma_devices"]}
    sriov = function["sriov"] or {}
    in_view = view.by_address.get(address)
    virtual = facts["system"]["virtual"]  # the links of emulated bridges are not real
    near = nic["nearest_gpus"]
    return {
        "address": address,
        "id": _ids(function),
        "subsystem": f"{function['subsystem_vendor_id']}:{function['subsystem_device_id']}",
        "driver": nic["driver"],
        "link": {"gts": None, "width": None} if virtual else {"gts": link.get("speed_gts"), "width": link.get("width")},
        "degraded": in_view.degraded if in_view else "",
        "speed_mbps": nic["speed_mbps"],
        "up": nic["up"],
        "rail": nic["rail"],
        "near": {"level": near["level"], "gpus": near["devices"]},
        "default_route": nic["default_route"],
        "interfaces": [
            {"name": name, "mac": interfaces[name]["permanent_mac"] or interfaces[name]["mac"]}
            for name in nic["interfaces"]
            if name in interfaces
        ],
        "rdma": [
            {"name": name, "guid": rdma[name]["node_guid"], "firmware": rdma[name]["firmware"]}
            for name in nic["rdma_devices"]
            if name in rdma
        ],
        "vfs": sriov.get("vfs") or [vf["address"] for vf in facts["nics"] if vf["physfn"] == address],
    }


def _ids(function: FunctionFacts) -> str:
    vendor, device = function["vendor_id"], function["device_id"]
    return f"{vendor}:{device}" if vendor and device else ""


def find(candidates: t.Sequence[Card], slot: str = "", address: str = "", serial: str = "") -> Card:
    """The only card with this slot, PCI address (of any function or VF) and serial number. Empty values are ignored.

    Raises NoUniqueCard with a list of the matching cards, or of all cards if none matches.
    """
    requested = [
        f"{name} {value}" for name, value in (("slot", slot), ("address", address), ("serial", serial)) if value
    ]
    matching = [
        card
        for card in candidates
        if (not slot or slot in card["slots"])
        and (not address or address.lower() in function_addresses(card))
        and (not serial or (card["serial"] or "").lower() == serial.strip().lower())
    ]
    if len(matching) == 1:
        return matching[0]
    reason = "more than one card has" if matching else "no NIC has"
    if slot and not any(card["slots"] for card in candidates):
        reason = "this machine reports no slots of NICs (set replace_nic_address instead), so no NIC has"
    listed = "".join(f"\n    {title(card)}" for card in matching or candidates) or " none"
    raise NoUniqueCard(
        f"{reason} {' and '.join(requested)}; {'these' if matching else 'the NICs of this node'} are:{listed}"
    )


def function_addresses(card: Card) -> set[str]:
    """The addresses of all functions of a card, including its VFs."""
    return {
        *card["dma"],
        *(function["address"] for function in card["functions"]),
        *(vf for function in card["functions"] for vf in function["vfs"]),
    }


def title(card: Card) -> str:
    """A card in one line: its location, addresses and model."""
    model = [card["name"]]
    model += [card["part_number"]] if card["part_number"] else []
    model += [f"serial {card['serial']}"] if card["serial"] else []
    addresses = ", ".join(function["address"] for function in card["functions"])
    located = f"{location(card)}: {addresses}" if card["slots"] else addresses
    return f"{located}: {', '.join(model)}"


def location(card: Card) -> str:
    """The slot of a card, or the addresses of its functions, for messages."""
    if card["slots"]:
        return f"slot {', '.join(card['slots'])}"
    return ", ".join(function["address"] for function in card["functions"])


def card_at(candidates: t.Sequence[Card], old: Card) -> Card | None:
    """The card in the slot of `old`, else at its address, else below its port; None if no single card is there."""
    for number in range(len(_locations(old))):
        matching = [card for card in candidates if set(_locations(card)[number]) & set(_locations(old)[number])]
        if len(matching) == 1:
            return matching[0]
    return None


def _locations(card: Card) -> tuple[list[str], list[str], list[str]]:
    return card["slots"], card["devices"], card["ports"]


def same_card(first: Card, second: Card) -> bool | None:
    """Whether both are the same physical card; None if they have no kind of identifier in common."""
    if is_unique_serial(first["serial"]) and is_unique_serial(second["serial"]):
        return first["serial"] == second["serial"]
    for identities in (guids, macs):
        of_first, of_second = set(identities(first)), set(identities(second))
        if of_first and of_second:
            return bool(of_first & of_second)
    return None


def is_unique_serial(serial: str | None) -> bool:
    """Whether a serial number identifies a card. Some cards report only zeros, or another repeated character."""
    return len(set(serial or "")) > 1


def guids(card: Card) -> list[str]:
    return [device["guid"] for function in card["functions"] for device in function["rdma"] if device["guid"]]


def macs(card: Card) -> list[str]:
    return [
        interface["mac"] for function in card["functions"] for interface in function["interfaces"] if interface["mac"]
    ]


def with_stored_values(card: Card, stored: Card | None) -> Card:
    """The card, with missing values taken from `stored`. Values are missing, for example, if a pod has an interface."""
    if not stored or same_card(card, stored) is False:
        return card
    known = {function["address"]: function for function in stored["functions"]}
    return {
        **card,
        "serial": card["serial"] or stored["serial"],
        "part_number": card["part_number"] or stored["part_number"],
        "functions": [_filled(function, known.get(function["address"])) for function in card["functions"]],
    }


def _filled(function: Function, stored: Function | None) -> Function:
    """A function whose missing values are those of `stored`."""
    known: t.Mapping[str, object] = stored or {}
    missing = {key: known[key] for key, value in function.items() if value in (None, [], "") and known.get(key)}
    return t.cast(Function, {**function, **missing})
