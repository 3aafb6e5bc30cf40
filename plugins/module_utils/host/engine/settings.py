# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Settings of NICs and of the node, and how those of several rules are merged."""

from __future__ import annotations

import typing as t

#: Settings from a module's options or a file, before they are checked.
Settings = dict[str, t.Any]


class VfSettings(t.TypedDict, total=False):
    """`vf` of a PF, or an entry of its `vfs`, which also has an `index`. Rates are in Mbit/s."""

    index: str | int | list[str | int]
    driver: str
    mac: str
    node_guid: str
    port_guid: str
    vlan: int
    qos: int
    vlan_protocol: str
    trust: bool
    spoof_check: bool
    link_state: str
    min_rate: int
    max_rate: int


class RailRoutesSettings(t.TypedDict, total=False):
    """`rail_routes` of a NIC."""

    table: int
    priority: int
    gateway: str | list[str]


class DcbSettings(t.TypedDict, total=False):
    """`dcb` of a PF. Lists have one value for each priority or traffic class, but `pfc` lists priorities."""

    trust: str
    dscp_priorities: dict[str, int]
    pfc: list[int]
    ets: dict[str, list[int | str] | None]
    buffer: dict[str, list[int] | None]


class NicSettings(t.TypedDict, total=False):
    """The settings of a NIC. Settings that are left out are not changed."""

    num_vfs: int
    vfs_autoprobe: bool
    externally_managed: bool
    eswitch_mode: str
    vf: VfSettings
    vfs: list[VfSettings]
    mtu: int
    ethtool: dict[str, dict[str, int | bool | None]]
    irq_affinity: str
    sysctls: dict[str, dict[str, int | bool | str] | None]
    rail_routes: RailRoutesSettings
    max_read_request_bytes: int
    relaxed_ordering: bool
    roce: dict[str, int | str | None]
    dcb: DcbSettings
    firmware: dict[str, int | bool | str]


class HugepagesSettings(t.TypedDict, total=False):
    """An entry of `hugepages` of the node: the size such as `2M`, and the count for each NUMA node."""

    size: str
    count: int
    numa_nodes: list[int] | None


class NodeSettings(t.TypedDict, total=False):
    """The settings of the node itself."""

    kernel_args: list[str]
    kernel_args_absent: list[str]
    iommu: str
    kernel_modules: list[str]
    module_options: dict[str, str]
    sysctl: dict[str, int | bool | str]
    hugepages: list[HugepagesSettings]
    memlock_unlimited: bool
    cpu_governor: str
    cpu_energy_preference: str
    cpu_idle_max_latency_us: int
    gpudirect: str
    acs: str
    rdma_netns_mode: str
    kubelet: dict[str, object]
    runtime_cdi: bool
    runtime_nri: bool


def merged(base: Settings, override: t.Mapping[str, object]) -> Settings:
    """`base` with the values of `override`. Mappings are merged, None removes a setting, other values are replaced."""
    result = merged_with_nulls(base, override)
    return {
        key: merged({}, value) if isinstance(value, dict) else value
        for key, value in result.items()
        if value is not None
    }


def merged_with_nulls(base: Settings, override: t.Mapping[str, object]) -> Settings:
    """As `merged`, but a None in `override` is kept, so that a later merge still removes the setting."""
    result = dict(base)
    for key, value in override.items():
        if isinstance(value, dict):
            result[key] = merged_with_nulls(result[key] if isinstance(result.get(key), dict) else {}, value)
        else:
            result[key] = value
    return result
