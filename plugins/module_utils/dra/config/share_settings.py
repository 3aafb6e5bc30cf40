# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Reads the driver's setting `shares`: the NICs that a node divides among pods.

shares:                         # the first entry that matches a NIC applies
  - select: {SELECTOR}          # as in include and exclude; virtual functions are never divided
    mechanism: vfs              # vfs (default) or macvlan
    namespace: team-a           # the only namespace whose pods may have shares of this NIC; required with macvlan
    mode: private               # mode of macvlan: private (default) or vepa
    factor: 1                   # the overcommitment factor: 1 (default) or more
    bandwidth: 100G             # at most this much is divided, in bit/s; default and upper bound: the speed of the link
    step: 1G                    # a share is min plus a multiple of step, in bit/s
    min: 1G                     # the smallest share; default: step
    default: 1G                 # the share of a claim without an amount; default: min
    ceiling: 100G               # the limit of one share when others are idle; default: bandwidth
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from ...topology.publish_shares import MACVLAN, MECHANISMS, MODES, VFS, ShareRule
from ..kube import limits, quantity
from ..kube.objects import Object
from ..kube.reader import Reader, child
from .selector_settings import read_selector

KEYS = ("select", "mechanism", "namespace", "mode", "factor", "bandwidth", "step", "min", "default", "ceiling")
#: The minimum rate in bit/s. Below it, one packet of 1500 bytes would take more than 12 ms.
MIN_RATE = 10**6
#: The highest factor. It catches typing errors.
MAX_FACTOR = 100
_MAX_RATE = 10**15
_RATES = ("bandwidth", "step", "min", "default", "ceiling")


def read_shares(reader: Reader, value: object, path: str) -> tuple[ShareRule, ...]:
    """The entries of the setting, in their order. Errors are recorded in `reader`; entries with errors are left out."""
    rules = [_rule(reader, item, item_path) for item, item_path in reader.items(value, path)]
    return tuple(rule for rule in rules if rule is not None)


def read_rate(
    reader: Reader, value: object, path: str, multiple: int = 1, maximum: tuple[int, str] = (_MAX_RATE, "1P")
) -> int | None:
    """A rate in bit/s, which is a multiple of `multiple` (1 or a million) from MIN_RATE to `maximum` (a number and its
    text), or None for any other value. Errors are recorded in `reader`."""
    text = reader.amount(value, path)
    if text is None:
        return None
    number = quantity.parse(text)
    if number % multiple or not MIN_RATE <= number <= maximum[0]:
        unit = "bit/s" if multiple == 1 else "Mbit/s"
        reader.problem(path, f"must be a whole number of {unit} from 1M to {maximum[1]}, not {text}", "out-of-range")
        return None
    return int(number)


def _rule(reader: Reader, value: object, path: str) -> ShareRule | None:
    """One entry of the setting, or None after recording its errors."""
    problems_before = len(reader.problems)
    entry = reader.mapping(value, path, KEYS, "an entry of shares")
    if entry is None:
        return None
    if "select" not in entry:
        reader.problem(child(path, "select"), "is missing", "missing", "select the NICs that are divided")
    fields: Object = {}
    for key, item in entry.items():
        item_path = child(path, key)
        if key == "select":
            fields[key] = read_selector(reader, item, item_path)
        elif key in _RATES:
            fields[key] = read_rate(reader, item, item_path)
        elif key == "factor":
            fields[key] = read_factor(reader, item, item_path)
        elif key == "namespace":
            fields[key] = reader.name(item, item_path, limits.dns_label)
        else:
            fields[key] = reader.choice(item, item_path, MECHANISMS if key == "mechanism" else MODES)
    if len(reader.problems) == problems_before:
        _check_mechanism(reader, fields, path)
        _set_default_rates(reader, fields, path)
    return ShareRule(**fields) if len(reader.problems) == problems_before else None


def read_factor(reader: Reader, value: object, path: str) -> Fraction | None:
    """A number from 1 to MAX_FACTOR with at most two decimals, or None for any other value. Errors are recorded in
    `reader`."""
    number = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            pass
    if number is None or not number.is_finite():
        reader.wrong_type(value, path, "a number such as 1 or 1.5")
        return None
    if not 1 <= number <= MAX_FACTOR or number * 100 != int(number * 100):
        rule = f"must be from 1 to {MAX_FACTOR}, with at most two decimals"
        reader.problem(path, f"{rule}, not {value}", "out-of-range")
        return None
    return Fraction(number)


def _check_mechanism(reader: Reader, fields: Object, path: str) -> None:
    """Check that macvlan has a namespace, and that no other mechanism has a mode."""
    mechanism = fields.get("mechanism", VFS)
    if mechanism == MACVLAN and "namespace" not in fields:
        reason = "a pod with NET_RAW can send with the address of another share, so only one tenant may"
        message = f"is missing: {reason} have shares of a NIC"
        reader.problem(child(path, "namespace"), message, "missing", "set the namespace of that tenant")
    if mechanism != MACVLAN and "mode" in fields:
        reader.problem(child(path, "mode"), "is for mechanism macvlan only", "contradiction", "leave it out")


def _set_default_rates(reader: Reader, fields: Object, path: str) -> None:
    """Add the defaults of the rates that are not set, and check how the rates relate to each other."""
    step: int = fields.setdefault("step", 10**9)
    minimum: int = fields.setdefault("min", step)
    default: int = fields.setdefault("default", minimum)
    bandwidth = fields.get("bandwidth")
    factor: Fraction = fields.get("factor", Fraction(1))
    if default < minimum or (default - minimum) % step:
        rule = f"must be min ({minimum}) plus a multiple of step ({step})"
        reader.problem(child(path, "default"), f"{rule}, not {default}", "out-of-range")
    if fields.get("ceiling", default) < default:
        reader.problem(child(path, "ceiling"), f"is less than the default share, {default}", "out-of-range")
    if bandwidth is not None and bandwidth * factor < minimum + step:
        least = math.ceil((minimum + step) / factor)
        rule = f"must be at least {least}, which is min plus step ({minimum + step}) divided by factor"
        reader.problem(child(path, "bandwidth"), f"{rule}, not {bandwidth}", "out-of-range")
    elif bandwidth is not None and bandwidth < default:
        message = f"{default} is more than the bandwidth that is divided, {bandwidth}"
        reader.problem(child(path, "default"), message, "out-of-range", "lower it, or raise bandwidth")
    fields["minimum"] = fields.pop("min")
