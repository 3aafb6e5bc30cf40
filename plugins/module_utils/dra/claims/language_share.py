# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads `share`, the part of a GPU or NIC that an entry of a claim requests."""

from __future__ import annotations

import typing as t

from ...topology.publish_shares import factor_text
from ..config.share_settings import read_factor, read_rate
from ..kube import quantity
from ..kube.objects import Object
from ..kube.reader import Reader, child
from ..vendors.sharing import INTERVALS
from .inventory import DEFAULT, NIC_SHARE

_GPU_KEYS = ("partition", "memory", "cores", "shares", "interval")
KEYS = (*_GPU_KEYS, *NIC_SHARE)
_MAX_SHARES = 1024
_MEGA, _GIGA = 10**6, 10**9
_MAX_RATE = 9999 * _GIGA


def read_share(reader: Reader, value: object, path: str) -> Object:
    """The valid parts of a share. Errors are recorded in `reader`.

    Rates of a NIC are strings that are valid both as a quantity and in an InterfaceConfig; `bandwidth` may also be
    DEFAULT. `factor` is a string in the form that NICs publish.
    """
    item = reader.mapping(value, path, KEYS, "a share")
    if item is None:
        return {}
    if not item and not any(key not in KEYS for key in t.cast("Object", value)):
        fix = f"for a GPU set one of {', '.join(_GPU_KEYS)}; for a NIC one of {', '.join(NIC_SHARE)}"
        reader.problem(path, "requests nothing", "missing", fix)
    if any(key in item for key in _GPU_KEYS) and any(key in item for key in NIC_SHARE):
        of_gpu, of_nic = [", ".join(key for key in keys if key in item) for keys in (_GPU_KEYS, NIC_SHARE)]
        message = f"{of_gpu} is for a share of a GPU, but {of_nic} for a share of a NIC"
        reader.problem(path, message, "contradiction", "use only one of these groups")
        return {}
    parts: Object = {}
    for key, part in item.items():
        parts[key] = _part(reader, key, part, child(path, key))
    parts = {key: part for key, part in parts.items() if part is not None}
    if "bandwidth" in parts or "bandwidth" not in item:
        _check_nic(reader, parts, path)
    return parts


def _part(reader: Reader, key: str, value: object, path: str) -> object:
    """The valid value of one key, or None after recording an error."""
    if key == "partition":
        return reader.string(value, path)
    if key == "memory":
        return reader.amount(value, path)
    if key == "cores":
        return reader.integer(value, path, 1, 100)
    if key == "shares":
        return reader.integer(value, path, 1, _MAX_SHARES)
    if key == "interval":
        return reader.choice(value, path, INTERVALS)
    if key == "hard":
        return reader.boolean(value, path)
    if key == "factor":
        factor = read_factor(reader, value, path)
        return None if factor is None else factor_text(factor)
    return DEFAULT if key == "bandwidth" and value == DEFAULT else _rate(reader, value, path)


def _rate(reader: Reader, value: object, path: str) -> str | None:
    """A rate in whole Mbit/s as a string: `25G`, `2500M`."""
    rate = read_rate(reader, value, path, _MEGA, (_MAX_RATE, "9999G"))
    if rate is None:
        return None
    return f"{rate // _GIGA}G" if rate % _GIGA == 0 else f"{rate // _MEGA}M"


def _check_nic(reader: Reader, parts: Object, path: str) -> None:
    """Check the rules between the parts of a share of a NIC."""
    bandwidth, burst = parts.get("bandwidth", DEFAULT), parts.get("burst")
    if parts.get("hard") and bandwidth == DEFAULT:
        reader.problem(
            child(path, "hard"), "needs a bandwidth with an amount", "missing", "set the bandwidth to reserve"
        )
    if burst is not None and bandwidth != DEFAULT and quantity.parse(burst) < quantity.parse(bandwidth):
        message = f"{burst} is less than the share itself, {bandwidth}"
        reader.problem(child(path, "burst"), message, "out-of-range", "raise it, or leave it out")
