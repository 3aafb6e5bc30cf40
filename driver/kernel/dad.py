# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Duplicate address detection (DAD) for a pod's IPv6 addresses: `dad` of the InterfaceConfig.

- `optimistic`, the default: the pod can use an address immediately, while the kernel probes the link for a second or
  two (RFC 4429). If the address is a duplicate, the kernel disables it, and the claim's status reports that. Until
  then, packets for one node may have gone to the other.
- `wait`: attach waits for the result, and the container does not start if the address is a duplicate.
- `none`: no detection.

In every mode, attach waits for addresses leased by DHCPv6, because a client declines a duplicate (RFC 8415, section
18.2.10.1).
"""

from __future__ import annotations

from ..base.objects import ObjectView
from . import addresses, netlink, sysctls

OPTIMISTIC, WAIT, NONE = "optimistic", "wait", "none"

#: The sysctl that enables optimistic DAD on an interface.
_OPTIMISTIC_DAD = "net.ipv6.conf.IFNAME.optimistic_dad"
#: The sysctl that lets programs use an optimistic address as a source address.
_USE_OPTIMISTIC = "net.ipv6.conf.IFNAME.use_optimistic"
_FLAGS = {OPTIMISTIC: addresses.OPTIMISTIC, WAIT: 0, NONE: addresses.NODAD}


def supported() -> bool:
    """Whether the kernel supports optimistic DAD (CONFIG_IPV6_OPTIMISTIC_DAD)."""
    return sysctls.get("lo", _OPTIMISTIC_DAD) is not None


def mode(config: ObjectView) -> str:
    """The mode of an InterfaceConfig. `optimistic` becomes `wait` if the kernel does not support optimistic DAD or a
    sysctl of the configuration disables it: without waiting, programs would start with an unusable address and fail."""
    requested = str(config.get("dad", OPTIMISTIC))
    disabled = str(config.get("sysctls", {}).get(_OPTIMISTIC_DAD, 1)) == "0"
    return WAIT if requested == OPTIMISTIC and (disabled or not supported()) else requested


def settings(dad_mode: str) -> dict[str, int]:
    """The sysctls that a mode needs on the interface before its addresses are added."""
    return {_OPTIMISTIC_DAD: 1, _USE_OPTIMISTIC: 1} if dad_mode == OPTIMISTIC else {}


def flags(dad_mode: str, address: addresses.AddressState) -> int:
    """The flags for adding an IPv6 address in a mode. An address that has the flag for no DAD keeps it in every
    mode."""
    current = int(address.get("flags", 0))
    return current if current & addresses.NODAD else current | _FLAGS[dad_mode]


def pending(address_flags: int) -> bool:
    """Whether an address with these kernel flags cannot be used yet."""
    return bool(address_flags & addresses.TENTATIVE) and not address_flags & addresses.OPTIMISTIC


def duplicates(connection: netlink.Netlink, index: int) -> list[str]:
    """The addresses of an interface that the kernel disabled because another node has them. Raises OSError."""
    listed = addresses.listed(connection, index)
    return [entry["address"] for entry, address_flags in listed if address_flags & addresses.DADFAILED]
