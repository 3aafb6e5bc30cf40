# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fields of an InterfaceConfig that an interface does not support, which only its node can check."""

from __future__ import annotations

from ..base.objects import ObjectView
from ..dra.kube.problems import Problem
from ..dra.kube.reader import child as below
from ..kernel import dad, links, sysctls, vf
from ..kernel import ethtool as driver_settings
from ..kernel.ethtool import Ethtool
from ..kernel.netlink import Netlink

_LEAST_MTU = 68


def problems(
    connection: Netlink, link: links.Link, address: str | None, config: ObjectView, path: str
) -> list[Problem]:
    """The problems, each with the field's path below `path`. Rules: `unsupported`, `bad-value`. `link` is on the node,
    `address` is its PCI address."""
    found: list[Problem] = []
    _check_link(link, config, path, found)
    if "ethtool" in config:
        _check_ethtool(link.name, config["ethtool"], below(path, "ethtool"), found)
    _check_ipv6(config, path, found)
    _check_sysctls(link, config, path, found)
    if "vf" in config:
        _check_vf(connection, address, config["vf"], below(path, "vf"), found)
    return found


def _check_link(link: links.Link, config: ObjectView, path: str, problems: list[Problem]) -> None:
    least, most = link.number(links.IFLA_MIN_MTU), link.number(links.IFLA_MAX_MTU)
    if "child" in config:
        # a child of either type is limited to its parent's current MTU
        least, most = _LEAST_MTU, link.mtu
    if "mtu" in config and ((most and config["mtu"] > most) or config["mtu"] < least):
        problems.append(Problem(below(path, "mtu"), f"this interface supports {least} to {most}", "bad-value"))
    for name, kind in links.SIZES.items():
        if name not in config:
            continue
        most = link.number(links.IFLA_TSO_MAX_SIZE) if name.startswith("gso") else 0
        if kind not in link.raw:
            problems.append(Problem(below(path, name), "this kernel does not have it", "unsupported"))
        elif most and config[name] > most:
            problems.append(Problem(below(path, name), f"this interface takes up to {most}", "bad-value"))
    ethernet = len(link.raw.get(links.IFLA_ADDRESS, b"")) == 6
    if not ethernet and "mac" in config:
        problems.append(Problem(below(path, "mac"), "this interface has no MAC address", "unsupported"))
    if not ethernet and config.get("child", {}).get("type") == "macvlan":
        message = "this interface is not an Ethernet interface; use ipvlan, which works on any"
        problems.append(Problem(below(below(path, "child"), "type"), message, "unsupported"))


def _check_ethtool(name: str, config: ObjectView, path: str, problems: list[Problem]) -> None:
    with Ethtool() as tool:
        wanted = config.get("features", {})
        lacking = driver_settings.resolve(wanted, tool.features(name), tool.fixed_features(name))[1] if wanted else []
        flags = tool.private_flags(name)
        _unused, most = tool.rings(name)
    for feature in lacking:
        at = below(below(path, "features"), feature)
        problems.append(Problem(at, "this interface has no such feature that can be changed", "unsupported"))
    for flag in config.get("privateFlags", {}):
        if flag not in flags:
            message = f"this interface has {', '.join(sorted(flags)) or 'no private flags'}"
            problems.append(Problem(below(below(path, "privateFlags"), flag), message, "unsupported"))
    for ring, size in config.get("rings", {}).items():
        at = below(below(path, "rings"), ring)
        if ring not in most:
            problems.append(Problem(at, "this interface has no such ring whose size can be set", "unsupported"))
        elif size > most[ring]:
            problems.append(Problem(at, f"this interface takes up to {most[ring]}", "bad-value"))


def _check_ipv6(config: ObjectView, path: str, problems: list[Problem]) -> None:
    if sysctls.have_ipv6():
        if config.get("dad") == dad.OPTIMISTIC and not dad.supported():
            message = "the node's kernel has no optimistic duplicate address detection; use wait, which works on any"
            problems.append(Problem(below(path, "dad"), message, "unsupported"))
        return
    for name, asked in (
        ("addresses", any(":" in one for one in config.get("addresses", ()))),
        ("dhcp", "ipv6" in config.get("dhcp", ())),
    ):
        if asked:
            problems.append(Problem(below(path, name), "the node's kernel has no IPv6", "unsupported"))


def _check_sysctls(link: links.Link, config: ObjectView, path: str, problems: list[Problem]) -> None:
    small = config.get("mtu", link.mtu) < 1280
    for key in config.get("sysctls", {}):
        if not (small and ".ipv6." in key) and sysctls.get(link.name, key) is None and sysctls.get("lo", key) is None:
            at = below(below(path, "sysctls"), key)
            problems.append(Problem(at, "this kernel does not have it", "unsupported"))


def _check_vf(connection: Netlink, address: str | None, config: ObjectView, path: str, problems: list[Problem]) -> None:
    function = vf.function(address) if address else None
    if function is None:
        problems.append(Problem(path, "this interface is not a virtual function", "unsupported"))
        return
    try:
        reported = vf.read(connection, function)
    except OSError as error:
        problems.append(Problem(path, str(error.args[1]), "unsupported"))
        return
    for name in config:
        if name not in reported:
            message = "the physical function's driver does not support this setting"
            problems.append(Problem(below(path, name), message, "unsupported"))
