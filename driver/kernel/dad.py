# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Duplicate address detection (DAD) for a pod's IPv6 addresses: `dad` of the InterfaceConfig.

`optimistic`, the default: the pod can use an address immediately, while the kernel probes the link for a second or two
(RFC 4429). If the address is a duplicate, the kernel disables it, and the claim's status reports that; until then,
packets for one node may have gone to the other. `wait`: attach waits for the result, and the container does not start
if the address is a duplicate. `none`: no detection.

Attach always waits for addresses leased by DHCPv6: a client declines a duplicate (RFC 8415, 18.2.10.1).
"""

from __future__ import annotations

from ..base.objects import ObjectView
from . import addresses, netlink, sysctls

OPTIMISTIC, WAIT, NONE = "optimistic", "wait", "none"

_ALLOW = "net.ipv6.conf.IFNAME.optimistic_dad"
#: The sysctl that lets programs use such an address as a source.
_USE = "net.ipv6.conf.IFNAME.use_optimistic"
_FLAGS = {OPTIMISTIC: addresses.OPTIMISTIC, WAIT: 0, NONE: addresses.NODAD}


def supported() -> bool:
    """Whether the kernel supports optimistic DAD (CONFIG_IPV6_OPTIMISTIC_DAD)."""
    return sysctls.get("lo", _ALLOW) is not None


def mode(config: ObjectView) -> str:
    """The mode of an InterfaceConfig. It is `wait` if the kernel does not support optimistic DAD or the configuration
    disables it, because programs that start with an unusable address fail."""
    asked = str(config.get("dad", OPTIMISTIC))
    switched_off = str(config.get("sysctls", {}).get(_ALLOW, 1)) == "0"
    return WAIT if asked == OPTIMISTIC and (switched_off or not supported()) else asked


def settings(kind: str) -> dict[str, int]:
    """The sysctls that a mode needs on the interface before its addresses are added."""
    return {_ALLOW: 1, _USE: 1} if kind == OPTIMISTIC else {}


def flags(kind: str, address: addresses.AddressState) -> int:
    """The flags for adding an IPv6 address; an address marked for no DAD keeps that flag."""
    own = int(address.get("flags", 0))
    return own if own & addresses.NODAD else own | _FLAGS[kind]


def pending(state: int) -> bool:
    """Whether an address with these kernel flags cannot be used yet."""
    return bool(state & addresses.TENTATIVE) and not state & addresses.OPTIMISTIC


def duplicates(connection: netlink.Netlink, index: int) -> list[str]:
    """The addresses of an interface that the kernel disabled because another node has them."""
    return [entry["address"] for entry, state in addresses.listed(connection, index) if state & addresses.DADFAILED]
