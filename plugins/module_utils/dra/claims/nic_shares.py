# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles a share of a NIC's bandwidth to selectors, an amount and the field `share` of an InterfaceConfig."""

from __future__ import annotations

import copy
import math
import typing as t
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ...topology.facts import NodeFacts
from ...topology.publish_shares import quantity as rate_text
from ..config import interface_config
from ..kube import quantity
from ..kube.objects import Object
from ..kube.reader import Reader, child
from ..scheduler.capacity import Unrepresentable, consumed
from ..scheduler.published import Nodes, PublishedNode
from ..vendors.divided_nics import (
    BANDWIDTH,
    FACTOR,
    NAMESPACE,
    VARIABLE,
    DividedNic,
    divided_nics,
    published_divided_nics,
    setting_problems,
    with_setting,
)
from . import selectors
from .inventory import DEFAULT, SHARED_NICS, Claim, Device
from .shares import Share


@dataclass
class SiteNics:
    """The NICs of a site that are divided into shares.

    `nodes` is the number of known nodes; if it is 0, nothing is certain. `reasons` say why other NICs are not divided.
    `uncertain` are the names of nodes that may have further divided NICs.
    """

    nodes: int = 0
    nics: list[DividedNic] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)

    @property
    def factors(self) -> list[str]:
        return sorted({nic.factor for nic in self.nics if nic.factor})


def nics_of(nodes: Nodes) -> SiteNics:
    """The divided NICs of nodes, from their facts or slices. Invalid facts are skipped, because `reach` reports
    them."""
    site = SiteNics(len(nodes))
    for node in sorted(nodes):
        node_data = nodes[node]
        if isinstance(node_data, PublishedNode):
            site.nics += published_divided_nics(node, node_data.offers)
            site.uncertain += [node] if node_data.unclear else []
            continue
        try:
            nics, reasons = divided_nics(node, node_data)
            has_others = any(nic.get("elsewhere") for nic in node_data["nics"])
        except (KeyError, TypeError, AttributeError, ValueError):
            site.uncertain.append(node)
            continue
        site.nics += nics
        site.reasons += [f"{node}: {reason}" for reason in reasons]
        site.uncertain += [node] if has_others else []
    return site


def without_unreadable_shares(nodes: Nodes, reader: Reader) -> Nodes:
    """The nodes, with invalid settings of shares removed. The errors of these settings are recorded in `reader`."""
    # `reach` reports facts that are not a mapping
    facts = {name: data for name, data in nodes.items() if isinstance(data, dict)}
    problems, unreadable = setting_problems(facts)
    reader.problems += problems
    plain = {name: t.cast(NodeFacts, with_setting(facts[name], None)) for name in unreadable}
    return {**nodes, **plain} if plain else nodes


@dataclass(frozen=True)
class BandwidthCap:
    """The maximum bandwidth that a class (`name`) allows for one share; `maximum` is empty for no limit."""

    name: str = ""
    maximum: str = ""


def nic_share(
    device: Device, kind: str, site: SiteNics, reader: Reader, unreachable: bool, cap: BandwidthCap | None = None
) -> Share | None:
    """What a share of a NIC is compiled to, or None after recording its errors.

    With `unreachable`, it is not an error if no NIC can provide the share.
    """
    problems_before = len(reader.problems)
    path, requested = child(device.path, "share"), device.share
    if kind not in SHARED_NICS:
        kinds = " or ".join(SHARED_NICS)
        fix = "request kind nic: its share gets a VF" if kind == "vf" else f"request kind {kinds}"
        reader.problem(path, f"bandwidth shares need kind {kinds}, not {kind}", "contradiction", fix)
    for key, value in (("bandwidth", device.bandwidth), ("capacity", device.capacity), ("admin", device.admin)):
        if value:
            fix = "set the amount in share" if key != "admin" else "admin access uses no bandwidth: leave share out"
            reader.problem(child(device.path, key), "cannot be combined with a share of a NIC", "contradiction", fix)
    for config in device.configs:
        if config["driver"] == interface_config.DRIVER and "share" in config["parameters"]:
            config_path = child(child(device.path, "interface"), "share")
            reader.problem(config_path, "is set by the share of the device", "contradiction", "leave it out")
    if site.nodes and not site.nics and not site.uncertain and not unreachable:
        reasons = f": {'; '.join(site.reasons[:3])}" if site.reasons else ""
        message = f"no NIC of {site.nodes} node(s) is divided{reasons}"
        reader.problem(path, message, "unreachable", f"set {VARIABLE} for hosts whose NICs are to be divided")
    factor = _factor(requested, path, site, reader, unreachable)
    _check_burst(requested, path, site, reader)
    _check_amount(requested, path, site, reader)
    _check_cap(requested, path, cap or BandwidthCap(), reader)
    return None if len(reader.problems) > problems_before else _compiled(device, factor, cap or BandwidthCap())


def _factor(requested: Object, path: str, site: SiteNics, reader: Reader, unreachable: bool) -> str:
    """The factor of the NICs that can provide the share; empty for any factor."""
    known = site.factors
    factor = str(requested.get("factor") or "")
    if factor and known and factor not in known and not site.uncertain:
        message = f"no NIC is divided with a factor of {factor}; the factors of the site are {', '.join(known)}"
        reader.problem(child(path, "factor"), message, "unreachable", f"use one of them, or change {VARIABLE}")
    if factor or not requested.get("hard"):
        return factor
    if len(known) == 1:
        return known[0]
    hard_path = child(path, "hard")
    if len(known) > 1:
        factors = ", ".join(known)
        message = f"the NICs of the site are divided with factors {factors}, but a hard share needs one of them"
        reader.problem(hard_path, message, "contradiction", f"set {child(path, 'factor')}")
    elif not site.nodes or site.uncertain or unreachable:
        message = "the capacity that a hard share consumes depends on the factor of the NICs, which is unknown"
        fix = f"probe the nodes, or set {child(path, 'factor')}"
        reader.problem(hard_path, message, "missing", fix)
    return ""


def _check_burst(requested: Object, path: str, site: SiteNics, reader: Reader) -> None:
    """Record a burst that is above the ceiling of every NIC."""
    ceilings = [nic.ceiling for nic in site.nics]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    burst = requested.get("burst")
    if burst and known and len(known) == len(ceilings) and not site.uncertain and quantity.parse(burst) > max(known):
        message = f"{burst}bit/s is more than one share may use of any NIC: {rate_text(max(known))}bit/s"
        reader.problem(child(path, "burst"), message, "out-of-range", f"lower it, or raise the ceiling in {VARIABLE}")


def _check_amount(requested: Object, path: str, site: SiteNics, reader: Reader) -> None:
    """Record an amount above the rate of every NIC. With a factor above 1, the scheduler could still allocate it."""
    known = [nic.physical for nic in site.nics if nic.physical is not None]
    amount = requested.get("bandwidth", DEFAULT)
    if amount == DEFAULT or not known or len(known) < len(site.nics) or site.uncertain:
        return
    promised = max(quantity.parse(nic.bandwidth["value"]) for nic in site.nics)
    if max(known) < quantity.parse(amount) <= promised:
        message = (
            f"{amount}bit/s is more than the rate of any NIC, {rate_text(max(known))}bit/s, which no factor raises"
        )
        reader.problem(child(path, "bandwidth"), message, "out-of-range", "lower it")


def _check_cap(requested: Object, path: str, cap: BandwidthCap, reader: Reader) -> None:
    """Record an amount or burst that is above the maximum of the class."""
    for key in ("bandwidth", "burst"):
        amount = requested.get(key, DEFAULT)
        if cap.maximum and amount != DEFAULT and quantity.parse(amount) > quantity.parse(cap.maximum):
            message = f"{amount}bit/s is more than class {cap.name!r} allows for one share: {cap.maximum}bit/s"
            reader.problem(child(path, key), message, "out-of-range", "lower it, or use another class")
            return


def _compiled(device: Device, factor: str, cap: BandwidthCap) -> Share:
    """What a share without errors is compiled to."""
    requested, path = device.share, child(device.path, "share")
    amount = requested.get("bandwidth", DEFAULT)
    hard = bool(requested.get("hard"))
    fields: Object = {"burst": requested["burst"]} if "burst" in requested else {}
    if hard:
        fields.update({"hard": True, "guarantee": amount})
    share = Share(_description(requested, factor, cap))
    if amount != DEFAULT:
        consumed_rate = quantity.parse(amount) * (Fraction(factor) if hard else 1)
        share.capacity[BANDWIDTH] = rate_text(math.ceil(consumed_rate)) if hard else amount
    if factor:
        share.selectors.append((selectors.equals(FACTOR, factor), child(path, "factor")))
    if device.namespace:
        share.selectors.append((selectors.absent_or_equals(NAMESPACE, device.namespace), path))
    share.configs = _configs(device, fields)
    return share


def _configs(device: Device, fields: Object) -> list[Object]:
    """The device's configurations, with the fields of its share added to its InterfaceConfig."""
    if not fields:
        return device.configs
    configs, added = [], {"share": fields}
    for config in device.configs:
        if added and config["driver"] == interface_config.DRIVER:
            config, added = {**config, "parameters": {**config["parameters"], **added}}, {}
        configs.append(config)
    new_config = {"driver": interface_config.DRIVER, "parameters": interface_config.parameters(added)}
    return [*configs, new_config] if added else configs


def _description(requested: Object, factor: str, cap: BandwidthCap) -> str:
    """A description of the bandwidth that the driver reserves for a share, and of its use of idle bandwidth."""
    amount = requested.get("bandwidth", DEFAULT)
    rate = "the NIC's default share" if amount == DEFAULT else f"{amount}bit/s"
    if requested.get("hard") or factor == "1":
        guarantee = "reserved"
    else:
        divisor = factor or "the NIC's factor"
        guarantee = (
            f"reserved, or at least this rate divided by {divisor} while all shares request more than the NIC has"
        )
    maximum = requested.get("burst", cap.maximum)
    burst = f"{maximum}bit/s" if maximum else "the ceiling of the NIC"
    return f"{rate} of a NIC: {guarantee}; idle bandwidth: lent up to {burst}"


def rounding_warnings(device: Device, capacity: t.Mapping[str, str], site: SiteNics) -> list[str]:
    """A warning if a share consumes more capacity than it requests, because NICs are divided in steps."""
    requested = capacity.get(BANDWIDTH)
    if not device.divided or requested is None:
        return []
    rounded: dict[str, list[DividedNic]] = {}
    for nic in site.nics:
        try:
            rate = consumed(requested, nic.bandwidth)
        except Unrepresentable:
            continue
        if rate != quantity.parse(requested):
            rounded.setdefault(rate_text(math.ceil(rate)), []).append(nic)
    warnings = []
    for rounded_text, nics in rounded.items():
        valid_range = (nics[0].bandwidth.get("requestPolicy") or {}).get("validRange") or {}
        steps = f"from {valid_range.get('min')} in steps of {valid_range.get('step')}"
        path = child(child(device.path, "share"), "bandwidth")
        message = f"{requested} consumes {rounded_text} of {len(nics)} NIC(s), which are divided {steps}"
        warnings.append(f"{path}: {message}")
    return warnings


def split_by_namespace(claim: Claim) -> list[Claim]:
    """The claim itself, or a claim for each namespace if it has shares of NICs: some NICs are for only one
    namespace."""
    if not any(choice.divided for group in claim.groups for device in group.devices for choice in device.choices()):
        return [claim]
    claims = []
    for namespace in claim.namespaces:
        groups = copy.deepcopy(claim.groups)
        for device in (device for group in groups for device in group.devices):
            for choice in device.choices():
                choice.namespace = namespace
        claims.append(replace(claim, namespaces=[namespace], groups=groups))
    return claims
