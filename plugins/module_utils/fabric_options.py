# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of the modules that configure a node, by resource. The module fabric has all, the others have some."""

from __future__ import annotations

import typing as t

from .host.engine.settings import Settings

#: The argument spec of one option, and the specs of several options by name (ansible.module_utils.common.arg_spec).
Option = dict[str, t.Any]
Spec = dict[str, Option]

SELECT: Spec = {
    **{
        name: {"type": "list", "elements": "str"}
        for name in ("address", "interface", "driver", "model", "vendor_id", "device_id", "slot")
    },
    "link_layer": {"type": "list", "elements": "str", "choices": ["ethernet", "infiniband"]},
    "type": {"type": "list", "elements": "str", "choices": ["pf", "vf", "virtual"]},
    "rail": {"type": "list", "elements": "int"},
    "numa_node": {"type": "list", "elements": "int"},
    "min_speed_mbps": {"type": "int"},
    "near_gpu": {"type": "str", "choices": ["PIX", "PXB", "PHB", "NODE"]},
}

#: The options in `vf` of a PF. With an `index` they are those of an entry in its `vfs`.
VF: Spec = {
    "driver": {"type": "str"},
    "mac": {"type": "str"},
    "node_guid": {"type": "str"},
    "port_guid": {"type": "str"},
    "vlan": {"type": "int"},
    "qos": {"type": "int"},
    "vlan_protocol": {"type": "str", "choices": ["802.1Q", "802.1ad"]},
    "trust": {"type": "bool"},
    "spoof_check": {"type": "bool"},
    "link_state": {"type": "str", "choices": ["auto", "enable", "disable"]},
    "min_rate": {"type": "int"},
    "max_rate": {"type": "int"},
}

SRIOV: Spec = {
    "num_vfs": {"type": "int"},
    "vfs_autoprobe": {"type": "bool"},
    "externally_managed": {"type": "bool"},
    "eswitch_mode": {"type": "str", "choices": ["legacy", "switchdev"]},
    "vf": {"type": "dict", "options": VF},
    "vfs": {"type": "list", "elements": "dict", "options": {**VF, "index": {"type": "str", "required": True}}},
}

TUNING: Spec = {
    "mtu": {"type": "int"},
    "ethtool": {
        "type": "dict",
        "options": {
            "channels": {"type": "dict"},
            "rings": {"type": "dict"},
            "coalesce": {"type": "dict"},
            "pause": {"type": "dict"},
            "features": {"type": "dict"},
            "private_flags": {"type": "dict"},
        },
    },
    "irq_affinity": {"type": "str", "choices": ["local", "spread"]},
    "sysctls": {"type": "dict", "options": {"ipv4": {"type": "dict"}, "ipv6": {"type": "dict"}}},
    "rail_routes": {
        "type": "dict",
        "options": {
            "table": {"type": "int", "required": True},
            "priority": {"type": "int"},
            "gateway": {"type": "list", "elements": "str"},
        },
    },
}

PCI_OF_NICS: Spec = {
    "max_read_request_bytes": {"type": "int", "choices": [128, 256, 512, 1024, 2048, 4096]},
    "relaxed_ordering": {"type": "bool"},
}

ROCE: Spec = {
    "roce": {
        "type": "dict",
        "options": {
            "mode": {"type": "str", "choices": ["v1", "v2"]},
            "tos": {"type": "int"},
            "traffic_class": {"type": "int"},
        },
    },
    "dcb": {
        "type": "dict",
        "options": {
            "trust": {"type": "str", "choices": ["dscp", "pcp"]},
            "dscp_priorities": {"type": "dict"},
            "pfc": {"type": "list", "elements": "int"},
            "ets": {"type": "dict"},
            "buffer": {"type": "dict"},
        },
    },
}

FIRMWARE: Spec = {"firmware": {"type": "dict"}}

KERNEL_ARGS: Spec = {
    "kernel_args": {"type": "list", "elements": "str"},
    "kernel_args_absent": {"type": "list", "elements": "str"},
    "iommu": {"type": "str", "choices": ["passthrough", "translate", "off"]},
}

KERNEL_MODULES: Spec = {"kernel_modules": {"type": "list", "elements": "str"}, "module_options": {"type": "dict"}}

SYSTEM: Spec = {
    "sysctl": {"type": "dict"},
    "hugepages": {
        "type": "list",
        "elements": "dict",
        "options": {
            "size": {"type": "str", "required": True},
            "count": {"type": "int", "required": True},
            "numa_nodes": {"type": "list", "elements": "int"},
        },
    },
    "memlock_unlimited": {"type": "bool"},
    "cpu_governor": {"type": "str"},
    "cpu_energy_preference": {"type": "str"},
    "cpu_idle_max_latency_us": {"type": "int"},
    "kubelet": {
        "type": "dict",
        "options": {
            "cpu_manager_policy": {"type": "str", "choices": ["none", "static"]},
            "cpu_manager_policy_options": {"type": "dict"},
            "reserved_system_cpus": {"type": "str"},
            "memory_manager_policy": {"type": "str", "choices": ["None", "Static"]},
            "reserved_memory": {"type": "list", "elements": "dict"},
            "topology_manager_policy": {
                "type": "str",
                "choices": ["none", "best-effort", "restricted", "single-numa-node"],
            },
            "topology_manager_scope": {"type": "str", "choices": ["container", "pod"]},
            "topology_manager_policy_options": {"type": "dict"},
        },
    },
    "runtime_cdi": {"type": "bool"},
    "runtime_nri": {"type": "bool"},
}

PCI_OF_NODE: Spec = {
    "gpudirect": {"type": "str", "choices": ["dma_buf", "peermem"]},
    "acs": {"type": "str", "choices": ["gpudirect"]},
}

RDMA: Spec = {"rdma_netns_mode": {"type": "str", "choices": ["shared", "exclusive"]}}

#: All settings of a NIC, and all settings of the node.
NIC: Spec = {**SRIOV, **TUNING, **PCI_OF_NICS, **ROCE, **FIRMWARE}
NODE: Spec = {**KERNEL_ARGS, **KERNEL_MODULES, **SYSTEM, **PCI_OF_NODE, **RDMA}

#: A rule of the module fabric.
RULE: Spec = {
    "name": {"type": "str"},
    "select": {"type": "dict", "required": True, "options": SELECT},
    "count": {"type": "int"},
    "at_least": {"type": "int"},
    "profile": {"type": "str"},
    "unset": {"type": "list", "elements": "str"},
    **NIC,
}

SAFETY: Spec = {
    "allow_management": {"type": "bool", "default": False},
    "rollback_after": {"type": "int", "default": 60},
}


def split_nulls(settings: Settings, prefix: str = "") -> tuple[Settings, list[str]]:
    """The settings that are not null, and the names of those that are null, such as `ethtool.pause`.

    Ansible refuses null for an option with choices, and sets every missing option to null.
    """
    found: Settings = {}
    unset: list[str] = []
    for name, value in settings.items():
        if value is None:
            unset.append(f"{prefix}{name}")
        elif isinstance(value, dict):
            found[name], inner_unset = split_nulls(value, f"{prefix}{name}.")
            unset += inner_unset
        else:
            found[name] = value
    return found, unset


def nulls(unset: t.Iterable[str]) -> Settings:
    """Settings with null for each name such as `ethtool.pause`."""
    found: Settings = {}
    for name in unset:
        *groups, last = name.split(".")
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
            if inner is None:
                break
        else:
            inner[last] = None
    return found
