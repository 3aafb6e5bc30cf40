# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fields of an InterfaceConfig that an interface does not support, which only its node can check."""

from __future__ import annotations

import typing as t

from ..base.objects import ObjectView
from ..dra.kube.problems import Problem
from ..dra.kube.reader import child as below
from ..kernel import dad, links, sysctls, vf
from ..kernel.ethtool import Ethtool, Feature, resolve
from ..kernel.netlink import Netlink

#: RFC 791: every IPv4 link carries packets of 68 bytes.
_MIN_MTU = 68
#: The features that can be changed on a child of each type: those that the kernel implements itself (net/core/dev.c,
#: register_netdevice), and for a macvlan LRO (drivers/net/macvlan.c).
_KERNEL_FEATURES = frozenset(
    ("tx-generic-segmentation", "rx-gro", "rx-gro-list", "rx-udp-gro-forwarding", "tx-nocache-copy")
)
_CHILD_FEATURES = {"macvlan": _KERNEL_FEATURES | {"rx-lro"}, "ipvlan": _KERNEL_FEATURES}
#: What messages call a future child.
_CHILD = "a child of this interface"
#: Features that every child has while its parent has them.
_INHERITED_FEATURES = frozenset(
    ("tx-scatter-gather", "tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation", "rx-checksum")
)


def problems(
    connection: Netlink, link: links.Link, address: str | None, config: ObjectView, path: str
) -> list[Problem]:
    """The fields of `config` that the interface does not support, each with the field's path below `path`.

    `link` is on the node, and `address` is its PCI address. Rules: `unsupported`, `bad-value`."""
    unsupported: list[Problem] = []
    _check_link(link, config, path, unsupported)
    if "ethtool" in config:
        child_type = config.get("child", {}).get("type", "")
        _check_ethtool(link.name, config["ethtool"], child_type, below(path, "ethtool"), unsupported)
    _check_ipv6(config, path, unsupported)
    _check_sysctls(link, config, path, unsupported)
    if "vf" in config:
        _check_vf(connection, address, config["vf"], below(path, "vf"), unsupported)
    return unsupported


def _check_link(link: links.Link, config: ObjectView, path: str, problems: list[Problem]) -> None:
    min_mtu, max_mtu = link.number(links.IFLA_MIN_MTU), link.number(links.IFLA_MAX_MTU)
    if "child" in config:
        # a child of either type is limited to its parent's current MTU
        min_mtu, max_mtu = _MIN_MTU, link.mtu
    if "mtu" in config and ((max_mtu and config["mtu"] > max_mtu) or config["mtu"] < min_mtu):
        subject = _CHILD if "child" in config else "this interface"
        problems.append(Problem(below(path, "mtu"), f"{subject} supports {min_mtu} to {max_mtu}", "bad-value"))
    for name, attribute in links.SIZES.items():
        if name not in config:
            continue
        max_size = link.number(links.IFLA_TSO_MAX_SIZE) if name.startswith("gso") else 0
        if attribute not in link.raw:
            problems.append(Problem(below(path, name), "this kernel does not support it", "unsupported"))
        elif max_size and config[name] > max_size:
            problems.append(Problem(below(path, name), f"this interface supports up to {max_size}", "bad-value"))
    ethernet = len(link.raw.get(links.IFLA_ADDRESS, b"")) == 6
    if not ethernet and "mac" in config:
        problems.append(Problem(below(path, "mac"), "this interface has no MAC address", "unsupported"))
    if not ethernet and config.get("child", {}).get("type") == "macvlan":
        message = "this interface is not an Ethernet interface; use ipvlan, which works on any interface"
        problems.append(Problem(below(below(path, "child"), "type"), message, "unsupported"))


def _check_ethtool(name: str, config: ObjectView, child_type: str, path: str, problems: list[Problem]) -> None:
    """`child_type` is the type of the child that will get the settings, or empty."""
    subject = _CHILD if child_type else "this interface"
    with Ethtool() as tool:
        wanted = config.get("features", {})
        states = tool.feature_states(name) if wanted else {}
        flags = {} if child_type else tool.private_flags(name)
        max_sizes = {} if child_type else tool.rings(name)[1]
    unchangeable = _unchangeable_on_child(wanted, states, child_type) if child_type else resolve(wanted, states)[1]
    for feature, reason in unchangeable.items():
        problems.append(Problem(below(below(path, "features"), feature), reason, "unsupported"))
    for flag in config.get("privateFlags", {}):
        if flag not in flags:
            message = f"{subject} has {', '.join(sorted(flags)) or 'no private flags'}"
            problems.append(Problem(below(below(path, "privateFlags"), flag), message, "unsupported"))
    for ring, size in config.get("rings", {}).items():
        at = below(below(path, "rings"), ring)
        if ring not in max_sizes:
            problems.append(Problem(at, f"{subject} has no such ring whose size can be set", "unsupported"))
        elif size > max_sizes[ring]:
            problems.append(Problem(at, f"this interface supports up to {max_sizes[ring]}", "bad-value"))


def _unchangeable_on_child(
    wanted: t.Mapping[str, bool], states: t.Mapping[str, Feature], child_type: str
) -> dict[str, str]:
    """Why a future child of an interface will not have the wanted features, by their names; `states` are those of the
    interface. Without features for which only the existing child can tell."""
    changeable = _CHILD_FEATURES[child_type]
    on = {name: state._replace(available=name in changeable) for name, state in states.items()}
    off = {name: state._replace(active=state.active and name in _INHERITED_FEATURES) for name, state in on.items()}
    return {
        **resolve({name: True for name, value in wanted.items() if value}, on, _CHILD)[1],
        **resolve({name: False for name, value in wanted.items() if not value}, off, _CHILD)[1],
    }


def _check_ipv6(config: ObjectView, path: str, problems: list[Problem]) -> None:
    if sysctls.have_ipv6():
        if config.get("dad") == dad.OPTIMISTIC and not dad.supported():
            message = (
                "the node's kernel has no optimistic duplicate address detection; use wait, which works on every kernel"
            )
            problems.append(Problem(below(path, "dad"), message, "unsupported"))
        return
    for name, requested in (
        ("addresses", any(":" in address for address in config.get("addresses", ()))),
        ("dhcp", "ipv6" in config.get("dhcp", ())),
    ):
        if requested:
            problems.append(Problem(below(path, name), "the node's kernel has no IPv6", "unsupported"))


def _check_sysctls(link: links.Link, config: ObjectView, path: str, problems: list[Problem]) -> None:
    without_ipv6 = config.get("mtu", link.mtu) < 1280  # the kernel then removes the IPv6 sysctls
    for key in config.get("sysctls", {}):
        if without_ipv6 and ".ipv6." in key:
            continue
        if sysctls.get(link.name, key) is None and sysctls.get("lo", key) is None:
            at = below(below(path, "sysctls"), key)
            problems.append(Problem(at, "this kernel does not have this sysctl", "unsupported"))


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
