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

    `nodes` is the number of known nodes; if it is 0, nothing is certain. `reasons` say why other NICs are not divided,
    `unsure` names nodes that may have more divided NICs.
    """

    nodes: int = 0
    nics: list[DividedNic] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    @property
    def factors(self) -> list[str]:
        return sorted({one.factor for one in self.nics if one.factor})


def nics_of(nodes: Nodes) -> SiteNics:
    """The divided NICs of nodes, from their facts or slices. Unreadable facts are skipped; `reach` reports them."""
    found = SiteNics(len(nodes))
    for node in sorted(nodes):
        node_data = nodes[node]
        if isinstance(node_data, PublishedNode):
            found.nics += published_divided_nics(node, node_data.offers)
            found.unsure += [node] if node_data.unclear else []
            continue
        try:
            nics, reasons = divided_nics(node, node_data)
        except (KeyError, TypeError, AttributeError, ValueError):
            found.unsure.append(node)
            continue
        found.nics += nics
        found.reasons += [f"{node}: {reason}" for reason in reasons]
        found.unsure += [node] if any(nic.get("elsewhere") for nic in node_data["nics"]) else []
    return found


def without_unreadable_shares(nodes: Nodes, reader: Reader) -> Nodes:
    """The nodes without unreadable settings of shares. The errors of these settings go to the reader."""
    facts = {name: data for name, data in nodes.items() if not isinstance(data, PublishedNode)}
    problems, unreadable = setting_problems(facts)
    reader.problems += problems
    plain = {name: t.cast(NodeFacts, with_setting(facts[name], None)) for name in unreadable}
    return {**nodes, **plain} if plain else nodes


@dataclass(frozen=True)
class BandwidthCap:
    """The maximum bandwidth that a class allows for one share; `most` is empty for no limit."""

    name: str = ""
    most: str = ""


def nic_share(
    device: Device, kind: str, site: SiteNics, reader: Reader, unreachable: bool, cap: BandwidthCap | None = None
) -> Share | None:
    """What a share of a NIC is compiled to; None if it has errors, which go to the reader.

    With `unreachable`, it is not an error if no NIC can provide the share.
    """
    before = len(reader.problems)
    path, asked = child(device.path, "share"), device.share
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
            place = child(child(device.path, "interface"), "share")
            reader.problem(place, "is set by the share of the device", "contradiction", "leave it out")
    if site.nodes and not site.nics and not site.unsure and not unreachable:
        why = f": {'; '.join(site.reasons[:3])}" if site.reasons else ""
        message = f"no NIC of {site.nodes} node(s) is divided{why}"
        reader.problem(path, message, "unreachable", f"set {VARIABLE} for the hosts whose NICs to divide")
    factor = _factor(asked, path, site, reader, unreachable)
    _check_burst(asked, path, site, reader)
    _check_amount(asked, path, site, reader)
    _check_cap(asked, path, cap or BandwidthCap(), reader)
    return None if len(reader.problems) > before else _written(device, factor, cap or BandwidthCap())


def _factor(asked: Object, path: str, site: SiteNics, reader: Reader, unreachable: bool) -> str:
    """The factor of the NICs that can provide the share; empty for any."""
    known = site.factors
    named = str(asked.get("factor") or "")
    if named and known and named not in known and not site.unsure:
        message = f"no NIC is divided with a factor of {named}; there are {', '.join(known)}"
        reader.problem(child(path, "factor"), message, "unreachable", f"name one of them, or set it in {VARIABLE}")
    if named or not asked.get("hard"):
        return named
    if len(known) == 1:
        return known[0]
    place = child(path, "hard")
    if len(known) > 1:
        message = (
            f"the NICs of the site are divided with factors {', '.join(known)}, and a hard share is for one of them"
        )
        reader.problem(place, message, "contradiction", f"name it: {child(path, 'factor')}")
    elif not site.nodes or site.unsure or unreachable:
        message = "what a hard share takes depends on the factor of the NICs, which is unknown here"
        fix = f"probe the nodes, or name the factor: {child(path, 'factor')}"
        reader.problem(place, message, "missing", fix)
    return ""


def _check_burst(asked: Object, path: str, site: SiteNics, reader: Reader) -> None:
    ceilings = [one.ceiling for one in site.nics]
    known = [one for one in ceilings if one is not None]
    burst = asked.get("burst")
    if burst and known and len(known) == len(ceilings) and not site.unsure and quantity.parse(burst) > max(known):
        message = f"{burst} is more than one share may use of any NIC: {rate_text(max(known))}"
        reader.problem(child(path, "burst"), message, "out-of-range", f"lower it, or raise the ceiling in {VARIABLE}")


def _check_amount(asked: Object, path: str, site: SiteNics, reader: Reader) -> None:
    """Report an amount that no NIC has. The scheduler would allocate it if a NIC's factor promises that much."""
    known = [one.physical for one in site.nics if one.physical is not None]
    amount = asked.get("bandwidth", DEFAULT)
    if amount == DEFAULT or not known or len(known) < len(site.nics) or site.unsure:
        return
    promised = max(quantity.parse(one.bandwidth["value"]) for one in site.nics)
    if max(known) < quantity.parse(amount) <= promised:
        message = f"{amount} is more than the rate of any NIC: {rate_text(max(known))}, whatever its factor promises"
        reader.problem(child(path, "bandwidth"), message, "out-of-range", "lower it")


def _check_cap(asked: Object, path: str, cap: BandwidthCap, reader: Reader) -> None:
    for key in ("bandwidth", "burst"):
        amount = asked.get(key, DEFAULT)
        if cap.most and amount != DEFAULT and quantity.parse(amount) > quantity.parse(cap.most):
            message = f"{amount} is more than class {cap.name!r} allows for one share: {cap.most}"
            reader.problem(child(path, key), message, "out-of-range", "lower it, or use another class")
            return


def _written(device: Device, factor: str, cap: BandwidthCap) -> Share:
    asked, path = device.share, child(device.path, "share")
    amount = asked.get("bandwidth", DEFAULT)
    hard = bool(asked.get("hard"))
    fields: Object = {"burst": asked["burst"]} if "burst" in asked else {}
    if hard:
        fields.update({"hard": True, "guarantee": amount})
    found = Share(_description(asked, factor, cap))
    if amount != DEFAULT:
        taken = quantity.parse(amount) * (Fraction(factor) if hard else 1)
        found.capacity[BANDWIDTH] = rate_text(math.ceil(taken)) if hard else amount
    if factor:
        found.selectors.append((selectors.equals(FACTOR, factor), child(path, "factor")))
    if device.namespace:
        found.selectors.append((selectors.absent_or_equals(NAMESPACE, device.namespace), path))
    found.configs = _configs(device, fields)
    return found


def _configs(device: Device, fields: Object) -> list[Object]:
    """The device's configurations, with the fields of its share added to its InterfaceConfig."""
    if not fields:
        return device.configs
    found, rest = [], {"share": fields}
    for config in device.configs:
        if rest and config["driver"] == interface_config.DRIVER:
            config, rest = {**config, "parameters": {**config["parameters"], **rest}}, {}
        found.append(config)
    own = {"driver": interface_config.DRIVER, "parameters": interface_config.parameters(rest)}
    return [*found, own] if rest else found


def _description(asked: Object, factor: str, cap: BandwidthCap) -> str:
    """A description of the bandwidth that the driver reserves for the share, and of what it lends to it."""
    amount = asked.get("bandwidth", DEFAULT)
    what = "the NIC's default share" if amount == DEFAULT else f"{amount}bit/s"
    if asked.get("hard") or factor == "1":
        kept = "kept for it"
    else:
        by = factor or "the NIC's factor"
        kept = f"kept for it, and while the shares of the NIC ask for more than it has at least that divided by {by}"
    most = asked.get("burst", cap.most)
    burst = f"{most}bit/s" if most else "the ceiling of the NIC"
    return f"{what} of a NIC: {kept}; idle bandwidth: lent up to {burst}"


def rounding_warnings(device: Device, capacity: t.Mapping[str, str], site: SiteNics) -> list[str]:
    """A warning if the server charges more than a share requests, because of the steps of the NICs."""
    asked = capacity.get(BANDWIDTH)
    if not device.divided or asked is None:
        return []
    charged: dict[str, list[DividedNic]] = {}
    for nic in site.nics:
        try:
            taken = consumed(asked, nic.bandwidth)
        except Unrepresentable:
            continue
        if taken != quantity.parse(asked):
            charged.setdefault(rate_text(math.ceil(taken)), []).append(nic)
    found = []
    for taken_text, nics in charged.items():
        span = (nics[0].bandwidth.get("requestPolicy") or {}).get("validRange") or {}
        steps = f"from {span.get('min')} in steps of {span.get('step')}"
        place = child(child(device.path, "share"), "bandwidth")
        found.append(f"{place}: {asked} is charged as {taken_text} on {len(nics)} NIC(s), which are divided {steps}")
    return found


def split_by_namespace(claim: Claim) -> list[Claim]:
    """The claim, or one for each namespace if it has shares of NICs, because some NICs are for one namespace only."""
    if not any(choice.divided for group in claim.groups for one in group.devices for choice in one.choices()):
        return [claim]
    found = []
    for namespace in claim.namespaces:
        groups = copy.deepcopy(claim.groups)
        for device in (one for group in groups for one in group.devices):
            for choice in device.choices():
                choice.namespace = namespace
        found.append(replace(claim, namespaces=[namespace], groups=groups))
    return found
