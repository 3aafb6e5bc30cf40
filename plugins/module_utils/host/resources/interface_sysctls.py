# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Sysctls of single interfaces (Documentation/networking/ip-sysctl.rst, conf/interface)."""

from __future__ import annotations

import ipaddress
import re

from ..access.system import HostError
from ..engine.change import Change, Plan, Refusal, State, shown
from ..engine.node import Node
from ..engine.resource import Resource

_FAMILIES = ("ipv4", "ipv6")
_NAME = re.compile(r"[a-z0-9_]+", re.ASCII)
#: IPv4 settings for which the larger value of the interface's and `all`'s counts (include/linux/inetdevice.h, MAXCONF).
_LARGER = ("rp_filter", "arp_announce", "arp_ignore", "arp_accept", "arp_notify")
#: Settings that are on if either value is on (ORCONF; disable_policy and disable_xfrm since Linux 5.11), and those that
#: are on only if both are (ANDCONF).
_EITHER = (
    *("accept_local", "arp_filter", "disable_policy", "disable_xfrm"),
    *("drop_gratuitous_arp", "drop_unicast_in_l2_multicast"),
    *("ignore_routes_with_linkdown", "log_martians", "promote_secondaries", "proxy_arp", "proxy_arp_pvlan"),
    *("route_localnet", "secure_redirects", "send_redirects", "shared_media", "src_valid_mark"),
)
_BOTH = ("accept_source_route", "arp_evict_nocarrier", "bc_forwarding", "bootp_relay")
#: An IPv6 address that cannot be read before it is set, and cannot be unset (net/ipv6/addrconf.c).
_SECRET = "ipv6.stable_secret"


class InterfaceSysctls(Resource):
    """`sysctls` of a NIC's interface, by family and name: `net.FAMILY.conf.INTERFACE.NAME`.

    A value that would have no effect because of `all` is refused.
    """

    name = "interface_sysctls"
    recorded_in = ("/proc/sys/net",)

    def wanted(self, node: Node) -> State:
        state: State = {}
        for key, settings in node.settings.items():
            for family in _FAMILIES:
                for name, value in (settings.get("sysctls", {}).get(family) or {}).items():
                    setting = f"{family}.{name}"
                    state.setdefault(key, {})[setting] = self.from_stored(setting, value)
        return state

    def read(self, node: Node, wanted: State) -> State:
        state: State = {}
        for key, settings in wanted.items():
            interface = node.device(key).interface
            state[key] = {setting: self.from_stored(setting, self._text(interface, setting)) for setting in settings}
        return state

    def from_stored(self, setting: str, value: object) -> object:
        """A value in the form in which values are compared: a number if possible, else text."""
        if setting == _SECRET and value is not None:
            try:
                return str(ipaddress.IPv6Address(str(value).strip()))
            except ValueError:
                pass  # the kernel refuses it
        return _parsed(value)

    def plan(self, node: Node, wanted: State | None = None) -> Plan:
        plan = super().plan(node, wanted)
        unset_by_reboot = [change for change in plan.changes if change.after is None]
        plan.changes = [change for change in plan.changes if change.after is not None]
        plan.reboot += [
            f"{change.setting} of {change.device} was not set, and only a reboot unsets it"
            for change in unset_by_reboot
        ]
        refused = {(refusal.device, refusal.setting) for refusal in plan.refusals}
        for key, settings in (self.wanted(node) if wanted is None else {}).items():
            for setting, value in settings.items():
                refusal = self._overridden(node, key, setting, value)
                if refusal and (key, setting) not in refused:
                    plan.refusals.append(refusal)
        return plan

    def _overridden(self, node: Node, key: str, setting: str, value: object) -> Refusal | None:
        """The refusal of a value that the setting for all interfaces overrides."""
        interface = node.device(key).interface
        family, _dot, name = setting.partition(".")
        if not _NAME.fullmatch(name) or not self.system.exists(_path(interface, setting)):
            message = f"{interface} has no net.{family}.conf.{interface}.{name}"
            fix = "check the name, and whether " + ("IPv6 is on" if family == "ipv6" else "this kernel has it")
            return Refusal(key, setting, message, fix)
        if family != "ipv4" or name not in (*_LARGER, *_EITHER, *_BOTH):
            return None
        for_all = f"net.ipv4.conf.all.{name}"
        planned = (node.general.get("sysctl") or {}).get(for_all)
        for_all_value = _parsed(planned if planned is not None else self._text("all", setting))
        if not isinstance(for_all_value, int) or not isinstance(value, int):
            return None
        if name in _BOTH:
            overridden, needed = value > 0 and not for_all_value, 1
        else:
            overridden = for_all_value > value if name in _LARGER else bool(for_all_value) and not value
            needed = value
        if not overridden:
            return None
        message = f"{value} has no effect on {interface}, since {for_all} is {for_all_value}"
        return Refusal(key, setting, message, f"set {for_all} to {needed} in the node's sysctl")

    def apply(self, node: Node, change: Change) -> None:
        device = node.device(change.device)
        step = f"set {change.setting} of {device} to {shown(change.after)}"
        if change.after is None:
            raise HostError(step, "the kernel cannot unset it", "reboot the node")
        self.system.write(_path(device.interface, change.setting), str(change.after), step)

    def _text(self, interface: str, setting: str) -> str | None:
        return self.system.text(_path(interface, setting))


def _path(interface: str, setting: str) -> str:
    family, _dot, name = setting.partition(".")
    return f"/proc/sys/net/{family}/conf/{interface}/{name}"


def _parsed(value: object) -> int | str | None:
    """A number if possible, else text."""
    if value is None:
        return None
    text = str(int(value)) if isinstance(value, bool) else str(value).strip()
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else text
