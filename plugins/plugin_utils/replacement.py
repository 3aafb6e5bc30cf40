# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks before and after a NIC is replaced: what depends on the old card, and whether the new card can replace it."""

from __future__ import annotations

import contextlib
import re
import typing as t
from dataclasses import dataclass

import yaml

from ..module_utils.dra.kube.objects import Object
from ..module_utils.host.engine.rules import Unfit, selector
from ..module_utils.topology.facts import NicFacts, NodeFacts
from ..module_utils.topology.selector import values_of
from .card import (
    Card,
    Function,
    Link,
    cards,
    function_addresses,
    guids,
    is_unique_serial,
    location,
    macs,
    same_card,
    title,
)
from .cluster_nodes import describe
from .report_compare import differences
from .report_facts import View, natural, read_facts
from .values import Variables

_MAX_DEPTH = 12  # of nested variables
#: Smaller whole numbers are not compared with identifiers, because they are usually something else.
_MIN_NUMBER = 10_000
#: Variables that are not searched: those of Ansible, internal ones (`__`), results of this collection's roles and
#: modules, and options of the playbook.
_NOT_IN_INVENTORY = re.compile(r"^(__|ansible_|topology_(facts|probe|report)$|replace_nic_|groups$|hostvars$|vars$)")


def management_reasons(card: Card, management: t.Mapping[str, str]) -> list[str]:
    """Why the node would be unreachable without the card. `management` maps an interface to the reason."""
    reasons = []
    for function in card["functions"]:
        names = [entry["name"] for entry in function["interfaces"]]
        of_function = [f"{name} ({function['address']}): {management[name]}" for name in names if name in management]
        if not of_function and function["default_route"]:
            of_function = [f"{function['address']}: it carries the default route"]
        reasons += of_function
    return reasons


def card_lines(card: Card, users: t.Mapping[str, str]) -> list[str]:
    """A card as lines, with one or more for each function. `users` maps a PCI address to what uses the function."""
    lines = [title(card)]
    for function in card["functions"]:
        facts = [entry["name"] + (f" {entry['mac']}" if entry["mac"] else "") for entry in function["interfaces"]]
        facts += [entry["name"] + (f" GUID {entry['guid']}" if entry["guid"] else "") for entry in function["rdma"]]
        facts += [f"{function['speed_mbps'] / 1000:g}G"] if function["speed_mbps"] else []
        facts += [{True: "up", False: "down"}[function["up"]]] if function["up"] is not None else []
        facts += [f"rail {function['rail']}"] if function["rail"] is not None else []
        if function["near"]["gpus"]:
            facts.append(f"{function['near']['level']} to GPU {', '.join(function['near']['gpus'])}")
        lines.append(f"    {function['address']}: {', '.join(facts) or 'nothing else is known'}")
        if function["vfs"]:
            lines.append(f"        its VFs: {', '.join(function['vfs'])}")
    addresses = sorted(function_addresses(card), key=natural)
    lines += [f"    in use: {address}: {users[address]}" for address in addresses if address in users]
    return lines


def inventory_lines(
    card: Card,
    facts: NodeFacts,
    rules: t.Sequence[Variables] = (),
    driver: Variables | None = None,
    variables: Variables | None = None,
) -> list[str]:
    """The parts of the inventory that concern a card, one line each.

    `facts` are those of the node with the card; `rules` are fabric_nics, `driver` the driver's settings, `variables`
    all variables of the host.
    """
    nics = [nic for nic in facts["nics"] if nic["address"] in function_addresses(card)]
    lines = []
    for number, rule in enumerate(rules):
        name = rule.get("name") or f"fabric_nics[{number}]"
        selected = _selected(rule.get("select") or {}, nics, facts, vfs_need_a_type=True)
        if selected:
            lines.append(f"fabric_nics: {name} selects {selected}")
    for kind in ("include", "exclude"):
        for number, select in enumerate((driver or {}).get(kind) or ()):
            selected = _selected(select, nics, facts)
            if selected:
                lines.append(f"dra_driver_settings.{kind}[{number}] selects {selected}")
    for kind, identifiers in _identifiers(card).items():
        for path, number in _matching_paths(variables or {}, identifiers):
            lines.append(
                f"{path} may be its {kind}, which YAML read as a number (put it in quotes)"
                if number
                else f"{path} contains its {kind}"
            )
    return lines


def _selected(select: Variables, nics: t.Sequence[NicFacts], facts: NodeFacts, vfs_need_a_type: bool = False) -> str:
    """The functions that a selector matches, and by which keys; empty if it matches none. With `vfs_need_a_type`, as in
    fabric_nics, it matches VFs only if it has a type or an address."""
    try:
        parsed = selector(select)
    except Unfit:
        return ""  # reported where the selector is used
    addresses = [nic["address"] for nic in nics if parsed.matches(values_of(nic, facts))]
    if vfs_need_a_type and not parsed.type and not parsed.address:
        addresses = [
            address for address in addresses if not any(nic["address"] == address and nic["physfn"] for nic in nics)
        ]
    return f"{', '.join(addresses)} by {', '.join(sorted(select)) or 'an empty selector'}" if addresses else ""


@dataclass(frozen=True)
class _Identifiers:
    """Identifiers of a card of one kind: a pattern that finds them in a text, and the numbers that YAML reads them as.

    The numbers are whole numbers or floats: `0123456` is octal, and `0000:59:00.0` a float in base 60.
    """

    pattern: re.Pattern[str]
    numbers: frozenset[tuple[type, float]]

    def in_text(self, value: object) -> bool:
        return isinstance(value, str) and bool(self.pattern.search(value))

    def in_number(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return (float if isinstance(value, float) else int, value) in self.numbers


def _identifiers(card: Card) -> dict[str, _Identifiers]:
    """The identifiers of a card by kind; kinds of which it has none are left out.

    MAC addresses and GUIDs are found with `:`, `-`, `.` or nothing between two bytes, PCI addresses with their domain,
    and all of them in upper and lower case.
    """
    hexadecimal = {"MAC address": macs(card), "GUID": guids(card)}
    serial = card["serial"] or ""
    plain = {
        "serial number": [serial] if is_unique_serial(serial) else [],
        "PCI address": sorted(function_addresses(card)),
    }
    searches = {}
    for kind, values in hexadecimal.items():
        digits = [value for value in (re.sub("[^0-9a-f]", "", value.lower()) for value in values) if value]
        patterns = ["[:.-]?".join(re.findall("..?", value)) for value in digits]
        texts = [*values, *digits, *(f"0x{value}" for value in digits)] if digits else []
        searches[kind] = (rf"(?<![0-9a-f])(?:{'|'.join(patterns)})(?![0-9a-f])", texts)
    serials, addresses = ("|".join(map(re.escape, values)) for values in plain.values())
    searches["serial number"] = (rf"\b(?:{serials})\b", plain["serial number"])
    searches["PCI address"] = (rf"(?<![0-9a-f])(?:{addresses})(?![0-9a-f])", plain["PCI address"])
    return {
        kind: _Identifiers(re.compile(pattern, re.IGNORECASE), frozenset(_numbers(texts)))
        for kind, (pattern, texts) in searches.items()
        if texts
    }


def _numbers(texts: t.Iterable[str]) -> t.Iterator[tuple[type, float]]:
    """The numbers that texts become in a file of variables without quotes, each with its type."""
    for text in texts:
        if not re.fullmatch("[0-9a-fx:.]+", text, re.IGNORECASE):
            continue
        values: list[object] = []
        with contextlib.suppress(ValueError, yaml.YAMLError):
            values.append(yaml.safe_load(text))
        with contextlib.suppress(ValueError):
            values.append(int(text))  # as other formats than YAML read it
        for value in values:
            if isinstance(value, float) or (isinstance(value, int) and value >= _MIN_NUMBER):
                yield type(value), value


def _matching_paths(
    value: object, identifiers: _Identifiers, path: str = "", depth: int = 0
) -> t.Iterator[tuple[str, bool]]:
    """The paths of variables that have an identifier, such as `name.key[0]`, and whether it is a number there.

    The values are not returned, because they may be secret.
    """
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if depth == 0 and _NOT_IN_INVENTORY.match(str(key)):
                continue
            inner_path = f"{path}.{key}" if path else str(key)
            if identifiers.in_text(key) or identifiers.in_number(key):
                yield inner_path, not isinstance(key, str)
            yield from _matching_paths(item, identifiers, inner_path, depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _matching_paths(item, identifiers, f"{path}[{number}]", depth + 1)
    elif identifiers.in_text(value) or identifiers.in_number(value):
        yield path, not isinstance(value, str)


def published_devices(card: Card, node: str, cluster: Variables) -> list[Object]:
    """The devices in a cluster that are functions of a card, as `cluster_nodes.describe` returns them.

    `cluster` has Nodes, ResourceSlices and ResourceClaims as `nodes`, `slices` and `claims`. Any attribute with a PCI
    address of the card identifies a device, because each driver names this attribute differently.
    """
    described = describe(cluster["nodes"], cluster["slices"], cluster["claims"]).get(node) or {"devices": []}
    published, addresses = [], function_addresses(card)
    for device in described["devices"]:
        # a VF's device may also have the address of its PF as an attribute
        values = [device["attributes"].get("resource.kubernetes.io/pciBusID"), *device["attributes"].values()]
        address = next((value for value in values if isinstance(value, str) and value in addresses), None)
        if address:
            published.append({**device, "address": address})
    return published


def cluster_lines(devices: t.Sequence[Object], claims: t.Sequence[Object]) -> list[str]:
    """What uses the card's devices in the cluster, one line each."""
    allocations = {}
    for claim in claims:
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        pods = ", ".join(f"{user['resource'].removesuffix('s')} {user['name']}" for user in reserved)
        allocations[name] = f"allocated to claim {name}" + (f", used by {pods}" if pods else "")
    return [
        f"{device['driver']} publishes {device['name']} ({device['address']})"
        + (": " + "; ".join(allocations[name] for name in device["claims"]) if device["claims"] else "")
        for device in devices
    ]


def replacement_problems(old: Card, new: Card, other_model: bool = False) -> list[str]:
    """The reasons why the new card cannot replace the old one, each with the fix; empty if it can."""
    allow = "insert the same model, or allow another model: -e replace_nic_other_model=true"
    problems = []
    if not other_model:
        with_subsystems = not (new["part_number"] and old["part_number"])
        new_model, old_model = (_model(card, with_subsystems) for card in (new, old))
        if new["part_number"] and old["part_number"] and new["part_number"] != old["part_number"]:
            problems.append(f"the new card is {_model_name(new)}, the old one was {_model_name(old)} ({allow})")
        elif new_model != old_model:
            problems.append(f"the new card is {', '.join(new_model)}, the old one was {', '.join(old_model)} ({allow})")
        elif len(new["functions"]) != len(old["functions"]):
            counts = f"{len(new['functions'])} PCI functions, the old one {len(old['functions'])}"
            problems.append(f"the new card has {counts} ({allow}; or restore the settings of the card's firmware)")
    for function, before in zip(new["functions"], old["functions"], strict=False):
        problems += _function_problems(function, before, other_model)
    return problems


def _model(card: Card, with_subsystems: bool) -> list[str]:
    """The IDs of a card's functions."""
    return sorted(
        {
            f"{function['id']} {function['subsystem']}" if with_subsystems else function["id"]
            for function in card["functions"]
        }
    )


def _model_name(card: Card) -> str:
    return f"{card['name']} ({card['part_number']})"


def _function_problems(new: Function, old: Function, other_model: bool) -> t.Iterator[str]:
    """In what a function of the new card is worse than that of the old one, each with the fix."""
    address = new["address"]
    if old["driver"] and not new["driver"]:
        check = "look in dmesg for errors of this device's driver or firmware"
        yield f"{address}: no driver is bound, the old one had {old['driver']} ({check})"
    new_link, old_link = new["link"], old["link"]
    slower = not other_model and (
        _less(new_link["gts"], old_link["gts"]) or _less(new_link["width"], old_link["width"])
    )
    reseat = "reseat it, and check the slot's speed and bifurcation in the firmware setup"
    if slower:
        yield f"{address}: its PCIe link is {_link_text(new_link)}, the old one's was {_link_text(old_link)} ({reseat})"
    elif new["degraded"] and new["degraded"] != old["degraded"]:
        yield f"{address}: its PCIe link lost speed: {new['degraded']} ({reseat})"
    if old["up"] and not new["up"]:
        names = ", ".join(entry["name"] for entry in new["interfaces"]) or "no interface"
        yield (
            f"{address} ({names}): the port is down, the old one's was up (plug the cable in; if it is in, look for "
            "the old MAC address or GUID in the network configuration of the node and the switch, and in the subnet "
            "manager)"
        )
    elif not other_model and old["speed_mbps"] and new["speed_mbps"] and new["speed_mbps"] < old["speed_mbps"]:
        yield (
            f"{address}: the port runs at {new['speed_mbps'] / 1000:g}G, the old one's ran at "
            f"{old['speed_mbps'] / 1000:g}G (check the cable, the transceiver and the switch port)"
        )


def _less(new: float | None, old: float | None) -> bool:
    """Whether the new value is below the old one. Unknown values are not compared."""
    return bool(new and old and new < old)


def _link_text(link: Link) -> str:
    return f"{link['gts'] or '?'} GT/s x{link['width'] or '?'}"


def other_differences(before: NodeFacts, after: NodeFacts, old: Card, new: Card | None) -> list[str]:
    """How the node's other devices differ, one sentence each. Their configuration (VFs, drivers) is ignored."""
    of_cards = function_addresses(old) | (function_addresses(new) if new else set())
    view_after = _without_card(after, function_addresses(new or old))
    view_before = _without_card(before, function_addresses(old))
    known = {device.address: device for device in view_before.devices}
    in_pods = {nic.address for view in (view_before, view_after) for nic in view.topology.nics if nic.elsewhere}
    for device in view_after.devices:
        device_before = known.get(device.address)
        # the state of an interface in a pod is unknown, as is that of a device without notes
        if device_before and (device.address in in_pods or not (device.notes and device_before.notes)):
            device.notes = device_before.notes = []
    lines = differences(view_after, view_before)
    cards_before = {card["functions"][0]["address"]: card for card in cards(before)}
    for card in cards(after):
        other_card = cards_before.get(card["functions"][0]["address"])
        if other_card and not function_addresses(card) & of_cards and same_card(card, other_card) is False:
            old_serial = other_card["serial"] or "unknown"
            differs = card["serial"] and card["serial"] != old_serial
            serials = f": serial {card['serial']} instead of {old_serial}" if differs else ""
            lines.append(f"{location(card)}: this card has been replaced, too{serials}")
    drives = {drive["address"]: drive["serial"] for drive in before["nvme"]}
    for drive in after["nvme"]:
        serial_before = drives.get(drive["address"])
        if serial_before and drive["serial"] and serial_before != drive["serial"]:
            lines.append(
                f"{drive['address']}: the NVMe drive has been replaced: serial {drive['serial']} instead of "
                f"{serial_before}"
            )
    return lines


def _without_card(facts: NodeFacts, functions: set[str]) -> View:
    """A node without the functions of a card (their PCI addresses), and without facts that depend on them or on
    configuration."""
    view = View(read_facts(facts))
    view.topology.groups = []
    view.devices = [device for device in view.devices if device.address not in functions]
    for device in view.devices:
        device.vfs, device.driver, device.rail = 0, "", None
        device.notes = [note for note in device.notes if note != "uplink"]
    return view


def card_changes(old: Card, new: Card) -> list[str]:
    """Changed names, identifiers and firmware, one line each, because other systems may refer to them."""
    lines = []
    if old["serial"] != new["serial"]:
        lines.append(f"serial number {old['serial'] or 'unknown'} -> {new['serial'] or 'unknown'}")
    for function, before in zip(new["functions"], old["functions"], strict=False):
        for port, old_port in zip(function["interfaces"], before["interfaces"], strict=False):
            lines += _changes_of_device(port["name"], old_port["name"], "MAC address", port["mac"], old_port["mac"])
        for device, old_device in zip(function["rdma"], before["rdma"], strict=False):
            lines += _changes_of_device(device["name"], old_device["name"], "GUID", device["guid"], old_device["guid"])
        for device, old_device in zip(function["rdma"], before["rdma"], strict=False):
            if device["firmware"] and old_device["firmware"] and device["firmware"] != old_device["firmware"]:
                lines.append(f"{device['name']}: firmware {old_device['firmware']} -> {device['firmware']}")
    return lines


def _changes_of_device(
    name: str, old_name: str, kind: str, identifier: str | None, old_identifier: str | None
) -> t.Iterator[str]:
    """The changes of an interface or RDMA device. `kind` is the kind of its identifier, such as `GUID`."""
    if identifier != old_identifier:
        yield f"{name}: {kind} {old_identifier or 'unknown'} -> {identifier or 'unknown'}"
    if name != old_name:
        yield f"{old_name} is now {name}"


def counterparts(old: Card, new: Card, addresses: t.Iterable[str]) -> list[str]:
    """The functions of the new card that correspond to those of the old one at `addresses`, VFs by their number."""
    pairs: dict[str, str] = {}
    for function, before in zip(new["functions"], old["functions"], strict=False):
        pairs[before["address"]] = function["address"]
        pairs.update(zip(before["vfs"], function["vfs"], strict=False))
    return [pairs[address] for address in addresses if address in pairs]


def stale_identifiers(old: Card, new: Card) -> list[str]:
    """MAC addresses and GUIDs that only the old card has. An object that refers to one of them is stale."""

    def identifiers(card: Card) -> set[str]:
        return {identifier.lower() for identifier in macs(card) + guids(card)}

    return sorted(identifiers(old) - identifiers(new))
