# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NIC of a node that is replaced: which card it is, what depends on it, and whether the new one is as good.

A card is a dictionary that JSON can hold: C(slots), C(devices) (addresses without the function number) and C(ports)
(the bridges above it) say where it is; C(serial), C(part_number) and C(name) what it is; C(functions) are its PFs in
the order of their addresses, each with C(address), C(id), C(subsystem), C(driver), C(link) with C(gts) and C(width),
C(degraded), C(speed_mbps), C(up), C(rail), C(near), C(interfaces) with their C(name) and C(mac), C(rdma) with their
C(name), C(guid) and C(firmware), and C(vfs); C(dma) are its functions that carry data only.
"""

from __future__ import annotations

import re
import typing as t

from ..module_utils.host.engine.rules import Unfit, selector
from ..module_utils.topology.pci import slot_of
from ..module_utils.topology.selector import values_of
from .cluster_nodes import describe
from .report_compare import differences
from .report_facts import View, natural, read_facts

Card = dict[str, t.Any]
Facts = t.Mapping[str, t.Any]

_DEPTH = 12
#: Variables that hold what was read from the node or is of Ansible itself, and nothing that a person wrote.
_NOT_WRITTEN = re.compile(r"^(__|ansible_|topology_(facts|probe|report)$|replace_nic_|groups$|hostvars$|vars$)")


class Unknown(ValueError):
    """No card, or more than one, is what was asked for."""


def cards(facts: Facts) -> list[Card]:
    """All cards with NICs of a node, by address, from its topology facts (see C(model.as_dict))."""
    view = View(read_facts(facts))
    groups: list[tuple[set[t.Any], list[Facts]]] = []
    for nic in sorted(facts["nics"], key=lambda one: natural(one["address"])):
        if nic["physfn"]:
            continue
        vpd = facts["functions"][nic["address"]]["vpd"] or {}
        keys: set[t.Any] = {slot_of(nic["address"])}
        serial = (vpd.get("serial_number") or "").strip()
        if len(set(serial)) > 1:  # some cards have a row of zeros
            keys.add((vpd.get("part_number"), serial))
        members = [nic]
        for group in [one for one in groups if one[0] & keys]:
            groups.remove(group)
            keys |= group[0]
            members = group[1] + members
        groups.append((keys, members))
    return [_card(members, facts, view) for _keys, members in groups]


def _card(nics: list[Facts], facts: Facts, view: View) -> Card:
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


def _function(nic: Facts, facts: Facts, view: View) -> dict[str, t.Any]:
    address = nic["address"]
    function = facts["functions"][address]
    link = function["link"] or {}
    interfaces = {entry["name"]: entry for entry in facts["interfaces"]}
    rdma = {entry["name"]: entry for entry in facts["rdma_devices"]}
    sriov = function["sriov"] or {}
    shown = view.by_address.get(address)
    virtual = facts["system"]["virtual"]  # links of emulated bridges say nothing
    near = nic["nearest_gpus"]
    return {
        "address": address,
        "id": _ids(function),
        "subsystem": f"{function['subsystem_vendor_id']}:{function['subsystem_device_id']}",
        "driver": nic["driver"],
        "link": {"gts": None, "width": None} if virtual else {"gts": link.get("speed_gts"), "width": link.get("width")},
        "degraded": shown.degraded if shown else "",
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
        "vfs": sriov.get("vfs") or [one["address"] for one in facts["nics"] if one["physfn"] == address],
    }


def _ids(function: Facts) -> str:
    vendor, device = function["vendor_id"], function["device_id"]
    return f"{vendor}:{device}" if vendor and device else ""


def find(among: t.Sequence[Card], slot: str = "", address: str = "", serial: str = "") -> Card:
    """The one card that all given say: its slot, the PCI address of one of its functions or VFs, its serial number.

    Raises Unknown, with the cards that there are.
    """
    asked = [f"{word} {value}" for word, value in (("slot", slot), ("address", address), ("serial", serial)) if value]
    found = [
        card
        for card in among
        if (not slot or slot in card["slots"])
        and (not address or address.lower() in owned(card))
        and (not serial or (card["serial"] or "").lower() == serial.strip().lower())
    ]
    if len(found) == 1:
        return found[0]
    reason = "more than one card has" if found else "no NIC has"
    if slot and not any(card["slots"] for card in among):
        reason = "this machine names no slots of NICs (give replace_nic_address), so none has"
    listed = "".join(f"\n    {title(card)}" for card in found or among) or " none"
    raise Unknown(f"{reason} {' and '.join(asked)}; {'these' if found else 'the NICs of this node'} are:{listed}")


def owned(card: Card) -> set[str]:
    """The addresses of all functions of a card, its VFs among them."""
    return {
        *card["dma"],
        *(function["address"] for function in card["functions"]),
        *(vf for function in card["functions"] for vf in function["vfs"]),
    }


def title(card: Card) -> str:
    """A card in one line: where it is and what it is."""
    known = [card["name"]]
    known += [card["part_number"]] if card["part_number"] else []
    known += [f"serial {card['serial']}"] if card["serial"] else []
    addresses = ", ".join(function["address"] for function in card["functions"])
    where = f"{place(card)}: {addresses}" if card["slots"] else addresses
    return f"{where}: {', '.join(known)}"


def place(card: Card) -> str:
    """Where a card is, as a person says it."""
    if card["slots"]:
        return f"slot {', '.join(card['slots'])}"
    return ", ".join(function["address"] for function in card["functions"])


def there(among: t.Sequence[Card], old: Card) -> Card | None:
    """The card that is where C(old) was: in its slot, at its address, or below its port."""
    for key in ("slots", "devices", "ports"):
        found = [card for card in among if set(card[key]) & set(old[key])]
        if len(found) == 1:
            return found[0]
    return None


def same(one: Card, other: Card) -> bool | None:
    """Whether two are the same card; None where nothing that would tell is known of both."""
    if one["serial"] and other["serial"]:
        return bool(one["serial"] == other["serial"])
    for kind, key in (("rdma", "guid"), ("interfaces", "mac")):
        ours, theirs = ({entry[key] for entry in _all(card, kind) if entry[key]} for card in (one, other))
        if ours and theirs:
            return bool(ours & theirs)
    return None


def _all(card: Card, kind: str) -> list[dict[str, t.Any]]:
    return [entry for function in card["functions"] for entry in function[kind]]


def completed(card: Card, stored: Card | None) -> Card:
    """A card as it was read now, with what only C(stored) knows, as of a card whose interface a pod has."""
    if not stored or same(card, stored) is False:
        return card
    known = {function["address"]: function for function in stored["functions"]}
    functions = []
    for function in card["functions"]:
        before = known.get(function["address"]) or {}
        more = {key: before[key] for key, value in function.items() if value in (None, [], "") and before.get(key)}
        functions.append({**function, **more})
    more = {key: stored[key] for key in ("serial", "part_number") if not card[key]}
    return {**card, **more, "functions": functions}


# -- before: what depends on it


def needed(card: Card, management: t.Mapping[str, str]) -> list[str]:
    """Why the node would be lost with the card. C(management) has reasons by interface."""
    reasons = []
    for function in card["functions"]:
        names = [entry["name"] for entry in function["interfaces"]]
        told = [f"{name} ({function['address']}): {management[name]}" for name in names if name in management]
        if not told and function["default_route"]:
            told = [f"{function['address']}: it carries the default route"]
        reasons += told
    return reasons


def card_lines(card: Card, users: t.Mapping[str, str]) -> list[str]:
    """A card for a person, a line a function; C(users) tells by address who has a function."""
    found = [title(card)]
    for function in card["functions"]:
        words = [entry["name"] + (f" {entry['mac']}" if entry["mac"] else "") for entry in function["interfaces"]]
        words += [entry["name"] + (f" GUID {entry['guid']}" if entry["guid"] else "") for entry in function["rdma"]]
        words += [f"{function['speed_mbps'] / 1000:g}G"] if function["speed_mbps"] else []
        words += [{True: "up", False: "down"}[function["up"]]] if function["up"] is not None else []
        words += [f"rail {function['rail']}"] if function["rail"] is not None else []
        if function["near"]["gpus"]:
            words.append(f"{function['near']['level']} to GPU {', '.join(function['near']['gpus'])}")
        found.append(f"    {function['address']}: {', '.join(words) or 'nothing is known of it'}")
        if function["vfs"]:
            found.append(f"        its VFs: {', '.join(function['vfs'])}")
    found += [
        f"    in use: {address}: {users[address]}" for address in sorted(owned(card), key=natural) if address in users
    ]
    return found


def inventory_lines(
    card: Card,
    facts: Facts,
    rules: t.Sequence[Facts] = (),
    driver: Facts | None = None,
    variables: Facts | None = None,
) -> list[str]:
    """What the inventory says of a card, a line each.

    C(facts) are those of the node with the card in it; C(rules) are as the role fabric takes them (fabric_nics),
    C(driver) are the driver's settings, C(variables) all that the inventory says of the host.
    """
    nics = [nic for nic in facts["nics"] if nic["address"] in owned(card)]
    found = []
    for number, rule in enumerate(rules):
        name = rule.get("name") or f"fabric_nics[{number}]"
        chosen = _chosen(rule.get("select") or {}, nics, facts)
        if chosen:
            found.append(f"fabric_nics: {name} chooses {chosen}")
    for kind in ("include", "exclude"):
        for number, select in enumerate((driver or {}).get(kind) or ()):
            chosen = _chosen(select, nics, facts)
            if chosen:
                found.append(f"dra_driver_settings.{kind}[{number}] chooses {chosen}")
    for word, patterns in _identities(card).items():
        for path in _places(variables or {}, re.compile("|".join(patterns), re.IGNORECASE)) if patterns else ():
            found.append(f"{path} names its {word}")
    return found


def _chosen(select: Facts, nics: t.Sequence[Facts], facts: Facts) -> str:
    """The functions that a selector chooses, and by what; empty for none."""
    try:
        chosen = selector(select)
    except Unfit:
        return ""  # whoever uses the selector says what is wrong with it
    addresses = [nic["address"] for nic in nics if chosen.matches(values_of(nic, facts))]
    if not chosen.type and not chosen.address:
        addresses = [one for one in addresses if not any(nic["address"] == one and nic["physfn"] for nic in nics)]
    return f"{', '.join(addresses)} by {', '.join(sorted(select)) or 'nothing'}" if addresses else ""


def _identities(card: Card) -> dict[str, list[str]]:
    """Patterns of what names this one card, however it is written, by what it is called."""

    def spelled(value: str) -> str:
        digits = re.sub("[^0-9a-f]", "", value.lower())
        pairs = [digits[at : at + 2] for at in range(0, len(digits), 2)]
        return "(?<![0-9a-f])" + "[:.-]?".join(pairs) + "(?![0-9a-f])"

    macs = [entry["mac"] for entry in _all(card, "interfaces") if entry["mac"]]
    return {
        "MAC address": [spelled(mac) for mac in macs],
        "GUID": [spelled(entry["guid"]) for entry in _all(card, "rdma") if entry["guid"]],
        "serial number": [rf"\b{re.escape(card['serial'])}\b"] if card["serial"] else [],
        "PCI address": [re.escape(address) + "(?![0-9a-f])" for address in sorted(owned(card))],
    }


def _places(value: t.Any, pattern: re.Pattern[str], path: str = "", depth: int = 0) -> t.Iterator[str]:
    """Where a text stands in variables, as C(name.key[0]). Never the value: it may be a secret."""
    if depth > _DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if depth == 0 and _NOT_WRITTEN.match(str(key)):
                continue
            here = f"{path}.{key}" if path else str(key)
            if pattern.search(str(key)):
                yield here
            yield from _places(item, pattern, here, depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _places(item, pattern, f"{path}[{number}]", depth + 1)
    elif isinstance(value, str) and pattern.search(value):
        yield path


def published(card: Card, node: str, cluster: Facts) -> list[dict[str, t.Any]]:
    """The devices in a cluster that are functions of a card, as C(cluster_nodes.describe) tells them.

    C(cluster) has Nodes, ResourceSlices and ResourceClaims as C(nodes), C(slices) and C(claims). A device is found by
    any attribute that is a PCI address, as every driver has one of its own.
    """
    told = describe(cluster["nodes"], cluster["slices"], cluster["claims"]).get(node) or {"devices": []}
    found, mine = [], owned(card)
    for device in told["devices"]:
        # a VF's device may name its PF, too
        values = [device["attributes"].get("resource.kubernetes.io/pciBusID"), *device["attributes"].values()]
        address = next((one for one in values if isinstance(one, str) and one in mine), None)
        if address:
            found.append({**device, "address": address})
    return found


def cluster_lines(devices: t.Sequence[Facts], claims: t.Sequence[Facts]) -> list[str]:
    """Who has devices of the card in the cluster, a line each."""
    said = {}
    for claim in claims:
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        pods = ", ".join(f"{one['resource'].removesuffix('s')} {one['name']}" for one in reserved)
        said[name] = f"claim {name} has it" + (f", for {pods}" if pods else "")
    return [
        f"{one['driver']} publishes {one['name']} ({one['address']})"
        + (": " + "; ".join(said[name] for name in one["claims"]) if one["claims"] else "")
        for one in devices
    ]


# -- after: whether the new one is as good


def unlike(old: Card, new: Card, other_model: bool = False) -> list[str]:
    """Why the new card shall not take the place of the old one, with the way out; empty where it may."""
    allow = "put in the same model, or allow another one: -e replace_nic_other_model=true"
    found = []
    if not other_model:
        ours, theirs = (_model(card) for card in (new, old))
        if new["part_number"] and old["part_number"] and new["part_number"] != old["part_number"]:
            found.append(f"the new card is {_called(new)}, the old one was {_called(old)} ({allow})")
        elif ours != theirs:
            found.append(f"the new card is {', '.join(ours)}, the old one was {', '.join(theirs)} ({allow})")
        elif len(new["functions"]) != len(old["functions"]):
            counts = f"{len(new['functions'])} ports, the old one {len(old['functions'])}"
            found.append(f"the new card has {counts} ({allow}; or set the card's firmware as it was)")
    for function, before in zip(new["functions"], old["functions"], strict=False):
        found += _worse(function, before, other_model)
    return found


def _model(card: Card) -> list[str]:
    """The ids of a card's functions; with the card maker's where no part number tells more."""
    return sorted(
        {one["id"] if card["part_number"] else f"{one['id']} {one['subsystem']}" for one in card["functions"]}
    )


def _called(card: Card) -> str:
    return f"{card['name']} ({card['part_number']})"


def _worse(new: Facts, old: Facts, other_model: bool) -> t.Iterator[str]:
    address = new["address"]
    if old["driver"] and not new["driver"]:
        yield f"{address}: no driver takes it, the old one had {old['driver']} (look at 'dmesg' for its firmware)"
    ours, theirs = new["link"], old["link"]
    slower = [
        key for key in ("gts", "width") if ours[key] and theirs[key] and ours[key] < theirs[key] and not other_model
    ]
    reseat = "reseat it, and look at the slot's speed and bifurcation in the firmware setup"
    if slower:
        yield f"{address}: its PCIe link is {_link(ours)}, the old one's was {_link(theirs)} ({reseat})"
    elif new["degraded"] and new["degraded"] != old["degraded"]:
        yield f"{address}: its PCIe link lost speed: {new['degraded']} ({reseat})"
    if old["up"] and not new["up"]:
        names = ", ".join(entry["name"] for entry in new["interfaces"]) or "no interface"
        yield (
            f"{address} ({names}): the port is down, the old one's was up (put the cable in; if it is in, look for the "
            "old card's MAC address or GUID in the node's network configuration, on the switch, in the subnet manager)"
        )
    elif not other_model and old["speed_mbps"] and new["speed_mbps"] and new["speed_mbps"] < old["speed_mbps"]:
        yield (
            f"{address}: the port runs at {new['speed_mbps'] / 1000:g}G, the old one's ran at "
            f"{old['speed_mbps'] / 1000:g}G (look at cable and transceiver, and at the switch's port)"
        )


def _link(link: Facts) -> str:
    return f"{link['gts'] or '?'} GT/s x{link['width'] or '?'}"


def elsewhere(before: Facts, after: Facts, old: Card, new: Card | None) -> list[str]:
    """How the rest of the node differs, a sentence each; what the configuration makes (VFs, drivers) is left out."""
    mine = owned(old) | (owned(new) if new else set())
    ours, theirs = _rest(after, owned(new or old)), _rest(before, owned(old))
    known = {device.address: device for device in theirs.devices}
    for device in ours.devices:
        other = known.get(device.address)
        if other and not (device.notes and other.notes):  # a pod may have the interface that would tell
            device.notes = other.notes = []
    found = differences(ours, theirs)
    then = {card["functions"][0]["address"]: card for card in cards(before)}
    for card in cards(after):
        other_card = then.get(card["functions"][0]["address"])
        if other_card and not owned(card) & mine and same(card, other_card) is False:
            serials = f": serial {card['serial']} instead of {other_card['serial']}" if card["serial"] else ""
            found.append(f"{place(card)}: another card than before, too{serials}")
    drives = {drive["address"]: drive["serial"] for drive in before["nvme"]}
    for drive in after["nvme"]:
        had = drives.get(drive["address"])
        if had and drive["serial"] and had != drive["serial"]:
            found.append(f"{drive['address']}: another NVMe drive: serial {drive['serial']} instead of {had}")
    return found


def _rest(facts: Facts, own: set[str]) -> View:
    """A node without the functions of a card, and without what follows from them or from configuration."""
    view = View(read_facts(facts))
    view.topology.groups = []
    view.devices = [device for device in view.devices if device.address not in own]
    for device in view.devices:
        device.vfs, device.driver, device.rail = 0, "", None
        device.notes = [note for note in device.notes if note != "uplink"]
    return view


def exchanged(old: Card, new: Card) -> list[str]:
    """What the new card is called by instead of the old one, a line each: it may stand in places outside the site."""
    found = []
    if old["serial"] != new["serial"]:
        found.append(f"serial number {old['serial'] or 'unknown'} -> {new['serial'] or 'unknown'}")
    for function, before in zip(new["functions"], old["functions"], strict=False):
        for kind, key, word in (("interfaces", "mac", "MAC address"), ("rdma", "guid", "GUID")):
            for one, other in zip(function[kind], before[kind], strict=False):
                if one[key] != other[key]:
                    found.append(f"{one['name']}: {word} {other[key] or 'unknown'} -> {one[key] or 'unknown'}")
                if one["name"] != other["name"]:
                    found.append(f"{other['name']} is now {one['name']}")
        for one, other in zip(function["rdma"], before["rdma"], strict=False):
            if one["firmware"] and other["firmware"] and one["firmware"] != other["firmware"]:
                found.append(f"{one['name']}: firmware {other['firmware']} -> {one['firmware']}")
    return found


def counterparts(old: Card, new: Card, addresses: t.Iterable[str]) -> list[str]:
    """The functions of the new card for those of the old one, VFs by their number."""
    pairs: dict[str, str] = {}
    for function, before in zip(new["functions"], old["functions"], strict=False):
        pairs[before["address"]] = function["address"]
        pairs.update(zip(before["vfs"], function["vfs"], strict=False))
    return [pairs[address] for address in addresses if address in pairs]


def gone(old: Card, new: Card) -> list[str]:
    """MAC addresses and GUIDs that went with the old card: whoever still names them has not seen the new one."""

    def names(card: Card) -> set[str]:
        entries = [
            entry.get("mac") or entry.get("guid") for kind in ("interfaces", "rdma") for entry in _all(card, kind)
        ]
        return {entry.lower() for entry in entries if entry}

    return sorted(names(old) - names(new))
