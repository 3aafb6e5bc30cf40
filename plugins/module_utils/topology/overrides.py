# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Overrides: locality that a site states for machines that report none, or a wrong one."""

from __future__ import annotations

import typing as t

from .model import Finding, Nic, OverrideError, PciFunction
from .pci import ADDRESS

__all__ = ["OverrideError", "apply_locality", "apply_rails", "check_overrides"]

_KEYS = frozenset(("address", "slot", "numa_node", "switch", "rail"))


class Override(t.TypedDict, total=False):
    """One entry: which functions it applies to, and what the site states about them."""

    address: str | None
    slot: str | int | None
    numa_node: int | None
    switch: object  # any name
    rail: int | None


def check_overrides(overrides: t.Sequence[t.Mapping[str, object]]) -> list[Override]:
    """Check the form of overrides, and return them.

    Each is a dictionary with `address` or `slot` to select functions, and at least one of `numa_node` (a node number),
    `switch` (any name: devices with the same name share a switch) and `rail` (a number).

    Raises OverrideError for the first entry that is malformed.
    """
    for index, entry in enumerate(overrides):
        path = f"locality_overrides[{index}]"
        unknown = sorted(set(entry) - _KEYS)
        if unknown:
            raise OverrideError(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
        if (entry.get("address") is None) == (entry.get("slot") is None):
            raise OverrideError(f"{path}: give either 'address' or 'slot'")
        address = entry.get("address")
        if address is not None and not (isinstance(address, str) and ADDRESS.match(address)):
            raise OverrideError(
                f"{path}.address: {address!r} is not of the form 0000:1b:00.0 (lower case, quoted in YAML)"
            )
        if all(entry.get(key) is None for key in ("numa_node", "switch", "rail")):
            raise OverrideError(f"{path}: sets nothing; give 'numa_node', 'switch' or 'rail'")
        for key in ("numa_node", "rail"):
            value = entry.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise OverrideError(f"{path}.{key}: {value!r} is not a number from 0")
    return [t.cast("Override", entry) for entry in overrides]


def _selected(entry: Override, functions: dict[str, PciFunction]) -> list[PciFunction]:
    """The functions to which an entry applies."""
    address = entry.get("address")
    if address is not None:
        function = functions.get(address)
        return [function] if function else []
    return [function for function in functions.values() if function.slot == str(entry["slot"])]


def apply_locality(overrides: list[Override], functions: dict[str, PciFunction]) -> list[Finding]:
    """Set `numa_node` and `switch_label` of the selected functions. Returns findings about what was set, and about
    entries that match nothing."""
    findings = []
    stated: dict[str, None] = {}  # addresses, in order
    evidence = []
    for index, entry in enumerate(overrides):
        selected = _selected(entry, functions)
        selector = f"address {entry['address']}" if entry.get("address") is not None else f"slot {entry['slot']}"
        if not selected:
            findings.append(
                Finding(
                    id="override-unmatched",
                    severity="warning",
                    summary=f"A locality override is for {selector}, which this node does not have",
                    action="Correct the override, or limit it to the hosts that have the device.",
                    evidence=[f"locality_overrides[{index}]"],
                )
            )
            continue
        if entry.get("rail") is not None and all(function.kind != "nic" for function in selected):
            findings.append(
                Finding(
                    id="override-unmatched",
                    severity="warning",
                    summary=f"A locality override sets a rail for {selector}, which is not a NIC",
                    action="State rails for NICs only; GPUs get the rail of the NIC that serves them.",
                    devices=[function.address for function in selected],
                    evidence=[f"locality_overrides[{index}]"],
                )
            )
        for function in selected:
            if entry.get("numa_node") is not None:
                stated[function.address] = None
                evidence.append(f"{function.address}: NUMA node {function.numa_node} read, {entry['numa_node']} stated")
                function.numa_node, function.numa_source = entry["numa_node"], "override"
            if entry.get("switch") is not None:
                stated[function.address] = None
                evidence.append(f"{function.address}: shares switch {entry['switch']!r}")
                function.switch_label = str(entry["switch"])
    if stated:
        findings.append(
            Finding(
                id="override-applied",
                severity="info",
                summary=f"The site states the locality of {len(stated)} device(s)",
                action="Nothing to do. Remove the overrides once the machine reports its locality correctly.",
                devices=list(stated),
                evidence=evidence,
            )
        )
    return findings


def apply_rails(overrides: list[Override], functions: dict[str, PciFunction], nics: list[Nic]) -> None:
    """Set the rails that the site states."""
    by_address = {nic.address: nic for nic in nics}
    for entry in overrides:
        if entry.get("rail") is None:
            continue
        for function in _selected(entry, functions):
            nic = by_address.get(function.address)
            if nic is not None:
                nic.rail, nic.rail_source = entry["rail"], "override"
