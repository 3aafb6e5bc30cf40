# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Adds VFs to a node's facts that the inventory configures but that do not exist yet, so that claims can use them."""

from __future__ import annotations

import functools
import pathlib
import typing as t

import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Unfit, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.settings import (
    Settings,
    merged,
    merged_with_nulls,
)
from ansible_collections.lanewise.dra.plugins.module_utils.topology.selector import values_of
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Variables

_VARS = pathlib.Path(__file__).resolve().parents[2] / "roles" / "fabric" / "vars" / "main.yml"


@functools.cache
def _fabric_vars() -> Json:
    """The variables of the role fabric itself, such as its boards and profiles."""
    content: Json = yaml.load(_VARS.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


def rules_of(variables: Variables) -> list[Settings]:
    """The rules of a host's variables, those of its board first, each with the settings of its profile."""
    of_role = _fabric_vars()
    board = of_role["__fabric_boards"].get(variables.get("fabric_board") or "") or {}
    profiles = {**of_role["__fabric_profiles"], **(variables.get("fabric_profiles") or {})}
    rules = []
    for rule in [*board.get("nics", ()), *(variables.get("fabric_nics") or ())]:
        if isinstance(rule, dict):
            profile = profiles.get(rule.get("profile") or "")
            rules.append(merged_with_nulls(profile if isinstance(profile, dict) else {}, rule))
    return rules


def with_planned_vfs(facts: Json, rules: t.Sequence[Variables]) -> Json:
    """The facts, with added VFs for PFs that have fewer than the rules (`select`, `num_vfs`) configure.

    The number of VFs is at most the card's limit.

    A rule with errors adds no VFs; the error is reported when the node is configured. VFs have the locality of their
    PF. Their addresses follow from its VF offset and stride if the kernel reports these.
    """
    counts = {pf: count for pf, count in _configured_counts(facts, rules).items() if count > _vf_count(facts, pf)}
    if not counts:
        return facts
    lists = {name: list(facts[name]) for name in ("nics", "interfaces", "rdma_devices")}
    functions: dict[str, Json] = dict(facts["functions"])
    for address, count in counts.items():
        pf = next(nic for nic in facts["nics"] if nic["address"] == address)
        for number in range(_vf_count(facts, address), count):
            _add_vf(lists, functions, pf, number)
    return {**facts, **lists, "functions": functions}


def _vf_count(facts: Json, pf: str) -> int:
    """The number of existing VFs of a PF."""
    return sum(nic["physfn"] == pf for nic in facts["nics"])


def _configured_counts(facts: Json, rules: t.Sequence[Variables]) -> dict[str, int]:
    """The number of VFs that the rules configure, by the address of the PF."""
    chosen: dict[str, Settings] = {}
    for rule in rules:
        try:
            select = selector(rule.get("select") or {})
        except (Unfit, AttributeError, TypeError):
            continue
        for nic in facts["nics"]:
            values = values_of(nic, facts)
            if not nic["physfn"] and select.matches(values):
                settings = {name: rule[name] for name in ("num_vfs", "externally_managed") if name in rule}
                chosen[nic["address"]] = merged(chosen.get(nic["address"], {}), settings)
    counts = {}
    for address, settings in chosen.items():
        sriov = facts["functions"][address]["sriov"] or {}
        count = str(settings.get("num_vfs", 0))
        if count.isdecimal() and not settings.get("externally_managed"):
            counts[address] = min(int(count), sriov.get("total_vfs") or 0)
    return counts


def _add_vf(lists: dict[str, list[Json]], functions: dict[str, Json], pf: Json, number: int) -> None:
    """Add a VF to the functions, and to the lists of NICs, interfaces and RDMA devices."""
    parent = functions[pf["address"]]
    address = _vf_address(pf["address"], parent["sriov"] or {}, number)
    name = f"{pf['interfaces'][0] if pf['interfaces'] else pf['address']}v{number}"
    rdma = f"{pf['rdma_devices'][0]}-vf{number}" if pf["rdma_devices"] else ""
    functions[address] = {
        **parent,
        "address": address,
        "device_id": (parent["sriov"] or {}).get("vf_device_id") or parent["device_id"],
        "sriov": None,
        "physfn": pf["address"],
        "vf_number": number,
        "vpd": None,
        "kubernetes": {**parent["kubernetes"], "pciBusID": address},
    }
    own_values = {"interfaces": [name], "rdma_devices": [rdma] if rdma else [], "representors": [], "elsewhere": []}
    lists["nics"].append({**pf, **own_values, "address": address, "physfn": pf["address"], "default_route": False})
    for kind, key, new in (("interfaces", "interfaces", name), ("rdma_devices", "rdma_devices", rdma)):
        of_pf = next((entry for entry in lists[kind] if pf[key] and entry["name"] == pf[key][0]), None)
        if of_pf and new:
            changed = (
                {"kind": "vf", "lower": [], "default_route": False} if kind == "interfaces" else {"interfaces": [name]}
            )
            lists[kind].append({**of_pf, "name": new, "address": address, **changed})


def _vf_address(pf: str, sriov: Json, number: int) -> str:
    """The address of a VF, from the PF's VF offset and stride (PCI Express, single root I/O virtualization, 3.3.9 and
    3.3.10). If these are unknown, VFs are assumed to begin on the bus after the PF's."""
    domain, bus, rest = pf.split(":")
    device, function = rest.split(".")
    routing_id = (int(bus, 16) << 8) + (int(device, 16) << 3) + int(function)
    routing_id += (sriov.get("offset") or 0x100) + number * (sriov.get("stride") or 1)
    return f"{domain}:{routing_id >> 8 & 0xFF:02x}:{routing_id >> 3 & 0x1F:02x}.{routing_id & 7}"
