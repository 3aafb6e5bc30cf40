# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Rules: selectors of NICs, and the settings for the NICs that they choose."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ...topology.selector import NEAR, NUMBERS, TEXTS, DeviceValues, Selector
from .device import Device
from .settings import NicSettings, Settings, merged


@dataclass(frozen=True)
class Rule:
    """Settings for the NICs that a selector chooses. It must choose exactly `count`, or `at_least` that many.

    `fast` are the addresses of PFs that are known to have at least the selector's rate, as have their VFs. At boot, no
    link is up yet, and the kernel reports no rate (speed_show in net/core/net-sysfs.c).
    """

    name: str
    select: Selector
    settings: NicSettings = field(default_factory=NicSettings)
    count: int | None = None
    at_least: int | None = None
    fast: tuple[str, ...] = ()


class Unfit(ValueError):
    """The site's settings do not fit the node; `problems` lists all the reasons."""

    def __init__(self, problems: t.Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


def selector(values: t.Mapping[str, object]) -> Selector:
    """A selector from a mapping of fields to values or lists of values. Raises Unfit."""
    fields: Settings = {}
    for key, value in values.items():
        if value is None:
            continue
        if key in TEXTS or key in NUMBERS:
            fields[key] = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        elif key in ("min_speed_mbps", "near_gpu"):
            if key == "near_gpu" and value not in NEAR:
                raise Unfit([f"near_gpu must be one of {', '.join(NEAR)}, not {value!r}"])
            fields[key] = value
        else:
            raise Unfit([f"{key} is not a field of a selector"])
    return Selector(**fields)


class Candidate(t.NamedTuple):
    """A device that a rule may choose, with the values that selectors compare.

    If a pod has the device, it may not be `visible`: its interface, link layer and rate are then unknown.
    """

    device: Device
    values: DeviceValues  #: see `topology.selector.values_of`
    visible: bool = True


def choose(
    rules: t.Iterable[Rule], candidates: t.Mapping[str, Candidate]
) -> tuple[dict[str, NicSettings], dict[str, str]]:
    """Apply the rules in order to the devices, by key.

    Returns the merged settings of each chosen device, and the rules that choose nothing, each with a hint that may be
    empty. Raises Unfit.
    """
    chosen: dict[str, NicSettings] = {}
    idle: dict[str, str] = {}
    problems = []
    values = [candidate.values for candidate in candidates.values()]
    for rule in rules:
        keys = [
            key for key, candidate in candidates.items() if _chooses(_selector_for(rule, candidate), candidate.values)
        ]
        wrong_count = rule.count is not None and len(keys) != rule.count
        if wrong_count or len(keys) < (rule.at_least or 0):
            wanted = rule.count if wrong_count else f"at least {rule.at_least}"
            devices = ": " + ", ".join(str(candidates[key].device) for key in keys) if keys else ""
            problems.append(f"{rule.name}: chooses {len(keys)} NICs of this node, not {wanted}{devices}")
        if not keys:
            hint = _partial_name_hint(rule.select, values)
            if hint:
                problems.append(f"{rule.name}: chooses no NIC of this node: {hint}")
            elif not wrong_count:
                idle[rule.name] = _type_hint(rule.select, values)
        for key in keys:
            before = t.cast(Settings, chosen.get(key, {}))
            chosen[key] = t.cast(NicSettings, merged(before, rule.settings))
    if problems:
        raise Unfit(problems)
    return chosen, idle


def _selector_for(rule: Rule, candidate: Candidate) -> Selector:
    """A rule's selector without the fields that are unknown for a device or that are known to match it."""
    if not candidate.visible:
        return replace(rule.select, interface=(), link_layer=(), min_speed_mbps=None)
    fast = {candidate.device.key, candidate.device.physfn}.intersection(rule.fast)
    return replace(rule.select, min_speed_mbps=None) if fast else rule.select


def _chooses(select: Selector, values: DeviceValues) -> bool:
    """Whether a selector chooses a device. Devices other than PFs are chosen only by a `type` or an `address`."""
    return select.matches(values) and (values["type"] == "pf" or bool(select.type) or bool(select.address))


def _partial_name_hint(select: Selector, values: t.Iterable[DeviceValues]) -> str:
    """A hint if a selector chooses nothing because it contains only part of a name; otherwise empty."""
    wider: Settings = {}
    parts = []
    for name in ("model", "driver"):
        patterns = getattr(select, name)
        exact = [pattern for pattern in patterns if not set("*?[") & set(pattern)]
        if exact:
            wider[name] = tuple(f"*{pattern}*" if pattern in exact else pattern for pattern in patterns)
            parts += [f"{name} {pattern!r} must match the whole name: write '*{pattern}*'" for pattern in exact]
    if not parts or not any(_chooses(replace(select, **wider), device_values) for device_values in values):
        return ""
    return " and ".join(parts)


def _type_hint(select: Selector, values: t.Iterable[DeviceValues]) -> str:
    """A hint if a selector without a type matches only devices of other types than PF; otherwise empty."""
    if select.type or select.address:
        return ""
    kinds = sorted({str(device_values["type"]) for device_values in values if select.matches(device_values)})
    return f"without type it chooses PFs only, but it matches others: set type: [{', '.join(kinds)}]" if kinds else ""
