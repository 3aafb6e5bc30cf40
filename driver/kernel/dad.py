# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a pod's IPv6 addresses are proven unique: `dad` of the InterfaceConfig.

`optimistic`, the default: the pod can use an address at once, while the kernel asks the link for a second or two
whether another node has it (RFC 4429). Where one has, the kernel takes the address out of use, and the claim's status
tells; until then both nodes had it, so packets of one may have gone to the other. `wait`: attach waits for the proof,
and the container does not start where another node has the address. `none`: nobody asks.

Addresses that a DHCPv6 server leased are waited for in any case: a client declines one that is taken (RFC 8415,
18.2.10.1).
"""

from __future__ import annotations

import typing as t

from . import addresses, netlink, sysctls

OPTIMISTIC, WAIT, NONE = "optimistic", "wait", "none"

_ALLOW = "net.ipv6.conf.IFNAME.optimistic_dad"
#: That programs get such an address as the source of what they send.
_USE = "net.ipv6.conf.IFNAME.use_optimistic"
_FLAGS = {OPTIMISTIC: addresses.OPTIMISTIC, WAIT: 0, NONE: addresses.NODAD}


def supported() -> bool:
    """Whether the kernel has optimistic detection (CONFIG_IPV6_OPTIMISTIC_DAD)."""
    return sysctls.get("lo", _ALLOW) is not None


def mode(config: t.Mapping[str, t.Any]) -> str:
    """What an InterfaceConfig asks for. It is `wait` where the kernel has no optimistic detection, or the
    configuration switches it off: an address that cannot be used yet fails the programs that start with it."""
    asked = str(config.get("dad", OPTIMISTIC))
    switched_off = str(config.get("sysctls", {}).get(_ALLOW, 1)) == "0"
    return WAIT if asked == OPTIMISTIC and (switched_off or not supported()) else asked


def settings(kind: str) -> dict[str, int]:
    """The sysctls of an interface that a mode needs before its addresses are added."""
    return {_ALLOW: 1, _USE: 1} if kind == OPTIMISTIC else {}


def flags(kind: str, address: t.Mapping[str, t.Any]) -> int:
    """The flags to add an IPv6 address with; one that is not to be proven stays so."""
    own = int(address.get("flags", 0))
    return own if own & addresses.NODAD else own | _FLAGS[kind]


def pending(told: int) -> bool:
    """Whether an address with these flags of the kernel cannot be used yet."""
    return bool(told & addresses.TENTATIVE) and not told & addresses.OPTIMISTIC


def duplicates(connection: netlink.Netlink, index: int) -> list[str]:
    """The addresses of an interface that another node has, so that the kernel took them out of use."""
    return [entry["address"] for entry, told in addresses.listed(connection, index) if told & addresses.DADFAILED]
