# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wait until the kernel has accepted the IPv6 addresses of interfaces that came up."""

from __future__ import annotations

import json
import time
import typing as t


def wait(ip: t.Callable[[str], str], name: str = "", seconds: float = 20, pause: float = 0.005) -> None:
    """Wait at most `seconds` until the kernel has accepted the addresses of one or all interfaces and has created their
    routes. `ip` returns the output of the program of that name."""
    end = time.monotonic() + seconds
    while not _settled(ip, name) and time.monotonic() < end:
        time.sleep(pause)


def _settled(ip: t.Callable[[str], str], name: str) -> bool:
    interfaces = [entry for entry in json.loads(ip("-json address show")) if name in ("", entry["ifname"])]
    up = [entry for entry in interfaces if {"UP", "LOWER_UP"} <= set(entry["flags"])]
    # the kernel adds the address only when it has handled the new carrier
    if any(entry["operstate"] not in ("UP", "UNKNOWN") for entry in up):
        return False
    addresses = [address for entry in up for address in entry["addr_info"] if address["family"] == "inet6"]
    if any(address.get("tentative") and not address.get("dadfailed") for address in addresses):
        return False
    # the kernel adds the route after it has cleared the flag
    routes = {route["dst"] for route in json.loads(ip("-json -6 route show table all type local") or "[]")}
    return routes >= {address["local"] for address in addresses if not address.get("tentative")}
