# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Adds VFs that the inventory configures and the node does not have yet to its facts, so that claims can use them."""

from __future__ import annotations

import functools
import pathlib
import typing as t

import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Unfit, selector
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.settings import Settings, merged, overlaid
from ansible_collections.lanewise.dra.plugins.module_utils.topology.selector import values_of
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Variables

_VARS = pathlib.Path(__file__).resolve().parents[2] / "roles" / "fabric" / "vars" / "main.yml"


@functools.cache
def _fabric_vars() -> Json:
    found: Json = yaml.load(_VARS.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def rules_of(variables: Variables) -> list[Settings]:
    """The rules of a host's variables, those of its board first, each with the settings of its profile."""
    known = _fabric_vars()
    board = known["__fabric_boards"].get(variables.get("fabric_board") or "") or {}
    profiles = {**known["__fabric_profiles"], **(variables.get("fabric_profiles") or {})}
    found = []
    for rule in [*board.get("nics", ()), *(variables.get("fabric_nics") or ())]:
        if isinstance(rule, dict):
            profile = profiles.get(rule.get("profile") or "")
            found.append(overlaid(profile if isinstance(profile, dict) else {}, rule))
    return found


def with_planned_vfs(facts: Json, rules: t.Sequence[Variables]) -> Json:
    """Facts with the VFs that rules (`select`, `num_vfs`) configure on PFs that have fewer, up to the card's limit.

    A rule with errors adds no VFs; the error is reported when the node is configured. VFs have the locality of their
    PF. Their addresses follow from its VF offset and stride if the kernel reports these.
    """
    wanted = {pf: count for pf, count in _configured_counts(facts, rules).items() if count > _vf_count(facts, pf)}
    if not wanted:
        return facts
    found = {name: list(facts[name]) for name in ("nics", "interfaces", "rdma_devices")}
    functions: dict[str, Json] = dict(facts["functions"])
    for address, count in wanted.items():
        pf = next(nic for nic in facts["nics"] if nic["address"] == address)
        for number in range(_vf_count(facts, address), count):
            _add_vf(found, functions, pf, number)
    return {**facts, **found, "functions": functions}


def _vf_count(facts: Json, pf: str) -> int:
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
                one = {name: rule[name] for name in ("num_vfs", "externally_managed") if name in rule}
                chosen[nic["address"]] = merged(chosen.get(nic["address"], {}), one)
    found = {}
    for address, settings in chosen.items():
        sriov = facts["functions"][address]["sriov"] or {}
        count = str(settings.get("num_vfs", 0))
        if count.isdecimal() and not settings.get("externally_managed"):
            found[address] = min(int(count), sriov.get("total_vfs") or 0)
    return found


def _add_vf(found: dict[str, list[Json]], functions: dict[str, Json], pf: Json, number: int) -> None:
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
    own = {"interfaces": [name], "rdma_devices": [rdma] if rdma else [], "representors": [], "elsewhere": []}
    found["nics"].append({**pf, **own, "address": address, "physfn": pf["address"], "default_route": False})
    for kind, key, new in (("interfaces", "interfaces", name), ("rdma_devices", "rdma_devices", rdma)):
        like = next((one for one in found[kind] if pf[key] and one["name"] == pf[key][0]), None)
        if like and new:
            more = (
                {"kind": "vf", "lower": [], "default_route": False} if kind == "interfaces" else {"interfaces": [name]}
            )
            found[kind].append({**like, "name": new, "address": address, **more})


def _vf_address(pf: str, sriov: Json, number: int) -> str:
    """The address of a VF, from the PF's VF offset and stride (PCI Express, single root I/O virtualization, 3.3.9 and
    3.3.10). If they are unknown, VFs begin on the bus after the PF's."""
    domain, bus, rest = pf.split(":")
    device, function = rest.split(".")
    routing = (int(bus, 16) << 8) + (int(device, 16) << 3) + int(function)
    routing += (sriov.get("offset") or 0x100) + number * (sriov.get("stride") or 1)
    return f"{domain}:{routing >> 8 & 0xFF:02x}:{routing >> 3 & 0x1F:02x}.{routing & 7}"
