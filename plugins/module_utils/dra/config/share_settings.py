# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Reads the driver's setting `shares`: the NICs that a node divides among pods.

shares:                         # the first entry that matches a NIC applies
  - select: {SELECTOR}          # as in include and exclude; virtual functions are never divided
    mechanism: vfs              # vfs (default) or macvlan
    namespace: team-a           # macvlan: the only namespace whose pods may have shares of this NIC
    mode: private               # macvlan: private (default) or vepa
    factor: 1                   # the overcommitment factor: 1 (default) or more
    bandwidth: 100G             # what is divided; default: the speed of the link
    step: 1G                    # a share is min plus a multiple of step, in bit/s
    min: 1G                     # the smallest share; default: step
    default: 1G                 # the share of a claim without an amount; default: min
    ceiling: 100G               # the limit of one share when others are idle; default: bandwidth
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction

from ...topology.publish_shares import MACVLAN, MECHANISMS, MODES, VFS, ShareRule
from ..kube import limits, quantity
from ..kube.objects import Object
from ..kube.reader import Reader, child
from .selector_settings import read_selector

KEYS = (*("select", "mechanism", "namespace", "mode", "factor", "bandwidth", "step", "min", "default", "ceiling"),)
#: The minimum rate in bit/s: below it, one packet would be sent every few milliseconds.
MIN_RATE = 10**6
#: The highest factor, to catch typing errors.
MAX_FACTOR = 100
_MAX_RATE = 10**15
_RATES = ("bandwidth", "step", "min", "default", "ceiling")


def read_shares(reader: Reader, value: object, path: str) -> tuple[ShareRule, ...]:
    """The entries of the setting, in their order. Errors go to the reader."""
    found = [_rule(reader, item, place) for item, place in reader.items(value, path)]
    return tuple(one for one in found if one is not None)


def read_rate(reader: Reader, value: object, path: str) -> int | None:
    """A quantity in bit/s, whole and at least MIN_RATE; None if it is something else. Errors go to the reader."""
    text = reader.amount(value, path)
    if text is None:
        return None
    number = quantity.parse(text)
    if number.denominator != 1 or not MIN_RATE <= number <= _MAX_RATE:
        reader.problem(path, f"must be a whole number of bit/s from 1M to 1P, not {text}", "out-of-range")
        return None
    return int(number)


def _rule(reader: Reader, value: object, path: str) -> ShareRule | None:
    before = len(reader.problems)
    given = reader.mapping(value, path, KEYS, "an entry of shares")
    if given is None:
        return None
    if "select" not in given:
        reader.problem(child(path, "select"), "is missing", "missing", "select the NICs that are divided")
    found: Object = {}
    for key, item in given.items():
        place = child(path, key)
        if key == "select":
            found[key] = read_selector(reader, item, place)
        elif key in _RATES:
            found[key] = read_rate(reader, item, place)
        elif key == "factor":
            found[key] = read_factor(reader, item, place)
        elif key == "namespace":
            found[key] = reader.name(item, place, limits.dns_label)
        else:
            found[key] = reader.choice(item, place, MECHANISMS if key == "mechanism" else MODES)
    if len(reader.problems) == before:
        _check_mechanism(reader, found, path)
        _complete(reader, found, path)
    return ShareRule(**found) if len(reader.problems) == before else None


def read_factor(reader: Reader, value: object, path: str) -> Fraction | None:
    """A number from 1 to MAX_FACTOR with at most two decimals; None if it is something else. Errors go to the
    reader."""
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
        wanted = f"must be from 1 to {MAX_FACTOR}, with at most two decimals"
        reader.problem(path, f"{wanted}, not {value}", "out-of-range")
        return None
    return Fraction(number)


def _check_mechanism(reader: Reader, found: Object, path: str) -> None:
    mechanism = found.get("mechanism", VFS)
    if mechanism == MACVLAN and "namespace" not in found:
        reason = "a pod with NET_RAW can send with the address of another share, so only one tenant may"
        message = f"is missing: {reason} have shares of a NIC"
        reader.problem(child(path, "namespace"), message, "missing", "name its namespace")
    if mechanism != MACVLAN and "mode" in found:
        reader.problem(child(path, "mode"), "is for mechanism macvlan only", "contradiction", "leave it out")


def _complete(reader: Reader, found: Object, path: str) -> None:
    """Add the defaults of the rates, which follow from each other, and check them."""
    step: int = found.setdefault("step", 10**9)
    least: int = found.setdefault("min", step)
    default: int = found.setdefault("default", least)
    bandwidth = found.get("bandwidth")
    if default < least or (default - least) % step:
        wanted = f"must be min ({least}) plus a multiple of step ({step})"
        reader.problem(child(path, "default"), f"{wanted}, not {default}", "out-of-range")
    if found.get("ceiling", default) < default:
        reader.problem(child(path, "ceiling"), f"is less than the default share, {default}", "out-of-range")
    if bandwidth is not None and bandwidth < least + step:
        wanted = f"must be at least min plus step ({least + step})"
        reader.problem(child(path, "bandwidth"), f"{wanted}, not {bandwidth}", "out-of-range")
    found["least"] = found.pop("min")
