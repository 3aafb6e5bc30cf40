# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""CPU sets as Python integers (bit N is CPU N), and the kernel's two text formats for them."""

from __future__ import annotations

import functools
import re

_LIST = re.compile(r"^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$")
_MASK = re.compile(r"^(0x)?[0-9a-fA-F]{1,8}(,(0x)?[0-9a-fA-F]{8})*$")
#: Far above NR_CPUS: a damaged file must not result in a giant integer.
_MAX_CPUS = 1 << 16


@functools.lru_cache(maxsize=256)
def from_list(text: str) -> int | None:
    """Parse `0-3,8` (Documentation/admin-guide/cputopology.rst); an empty text is the empty set; None if malformed."""
    text = text.strip()
    if not _LIST.match(text):
        return None
    bits = 0
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if low > high or high >= _MAX_CPUS:
            return None
        bits |= ((1 << (high - low + 1)) - 1) << low
    return bits


@functools.lru_cache(maxsize=256)
def from_mask(text: str) -> int | None:
    """Parse `00000000,0000ffff`, 32-bit words from the highest to the lowest; None if malformed.

    Recordings that were edited by hand contain words with `0x`, which hwloc also accepts.
    """
    text = text.strip()
    if not _MASK.match(text) or len(text) > _MAX_CPUS // 4:
        return None
    bits = 0
    for word in text.split(","):
        bits = bits << 32 | int(word, 16)
    return bits


@functools.lru_cache(maxsize=256)
def to_list(bits: int) -> str:
    """A set in the kernel's list format, such as `0-3,8`."""
    parts = []
    cpu = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        cpu += skip
        run = (~bits & (bits + 1)).bit_length() - 1
        parts.append(str(cpu) if run == 1 else f"{cpu}-{cpu + run - 1}")
        bits >>= run
        cpu += run
    return ",".join(parts)
