# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""The types of a node's facts as dictionaries, for JSON and Ansible: the results of :func:`model.as_dict`.

Each class has the fields of the class of `model` with the same name without `Facts` (`FunctionFacts` those of
`PciFunction`, `NodeFacts` those of `Topology`), which documents them. No key is required, because readers use an empty
dictionary for a function or interface that a probe did not see.
"""

from __future__ import annotations

import typing as t

if t.TYPE_CHECKING:
    from .kubernetes import StandardAttributes


class LinkFacts(t.TypedDict, total=False):
    speed_gts: float | None
    width: int | None
    max_speed_gts: float | None
    max_width: int | None
    gb_per_s: float | None


class AcsFacts(t.TypedDict, total=False):
    capable: list[str]
    enabled: list[str]


class SriovFacts(t.TypedDict, total=False):
    total_vfs: int | None
    num_vfs: int | None
    offset: int | None
    stride: int | None
    vf_device_id: str | None
    drivers_autoprobe: bool | None
    vfs: list[str]


class VpdFacts(t.TypedDict, total=False):
    name: str | None
    part_number: str | None
    serial_number: str | None
    nvlink_management: bool
    uuid: str | None


class FunctionFacts(t.TypedDict, total=False):
    address: str
    kind: str
    class_code: str | None
    vendor_id: str | None
    device_id: str | None
    subsystem_vendor_id: str | None
    subsystem_device_id: str | None
    revision: str | None
    name: str | None
    driver: str | None
    slot: str | None
    root_complex: str | None
    bridges: list[str]
    numa_node: int | None
    numa_source: str | None
    local_cpus: str | None
    link: LinkFacts | None
    iommu_group: int | None
    iommu_group_type: str | None
    acs: AcsFacts | None
    sriov: SriovFacts | None
    physfn: str | None
    vf_number: int | None
    vpd: VpdFacts | None
    switch_label: str | None
    kubernetes: StandardAttributes


class NumaNodeFacts(t.TypedDict, total=False):
    id: int
    cpus: str | None
    memory_bytes: int | None
    package: int | None
    distances: dict[str, int]


class PackageFacts(t.TypedDict, total=False):
    id: int
    cpus: str
    numa_nodes: list[int]


class InterfaceFacts(t.TypedDict, total=False):
    name: str
    kind: str
    address: str | None
    link_layer: str | None
    ifindex: int | None
    mac: str | None
    permanent_mac: str | None
    mtu: int | None
    operstate: str | None
    carrier: bool | None
    speed_mbps: int | None
    dev_port: int | None
    phys_port_name: str | None
    phys_switch_id: str | None
    alias: str | None
    master: str | None
    lower: list[str]
    default_route: bool


class GidFacts(t.TypedDict, total=False):
    index: int
    gid: str
    type: str | None
    interface: str | None


class RdmaPortFacts(t.TypedDict, total=False):
    port: int
    link_layer: str | None
    state: str | None
    phys_state: str | None
    rate_gbps: float | None
    lid: str | None
    sm_lid: str | None
    interfaces: list[str]
    gids: list[GidFacts]


class RdmaDeviceFacts(t.TypedDict, total=False):
    name: str
    address: str | None
    node_type: str | None
    node_guid: str | None
    sys_image_guid: str | None
    firmware: str | None
    board_id: str | None
    interfaces: list[str]
    ports: list[RdmaPortFacts]
    char_devices: list[str]


class NearestFacts(t.TypedDict, total=False):
    level: str
    devices: list[str]
    via: dict[str, str]


class GpuFacts(t.TypedDict, total=False):
    address: str
    index: int
    kind: str
    vendor: str | None
    model: str | None
    driver: str | None
    numa_node: int | None
    rail: int | None
    nearest_nics: NearestFacts


class NicFacts(t.TypedDict, total=False):
    address: str
    vendor: str | None
    model: str | None
    driver: str | None
    numa_node: int | None
    physfn: str | None
    interfaces: list[str]
    representors: list[str]
    rdma_devices: list[str]
    elsewhere: list[str]
    link_layer: str | None
    speed_mbps: int | None
    up: bool | None
    default_route: bool
    data_direct: str | None
    rail: int | None
    rail_source: str | None
    nearest_gpus: NearestFacts


class NvmeFacts(t.TypedDict, total=False):
    address: str
    controllers: list[str]
    model: str | None
    serial: str | None
    driver: str | None
    numa_node: int | None


class AffinityFacts(t.TypedDict, total=False):
    devices: list[str]
    levels: list[list[str]]


class GroupFacts(t.TypedDict, total=False):
    level: str
    common: str | None
    gpus: list[str]
    nics: list[str]


class FindingFacts(t.TypedDict, total=False):
    id: str
    severity: str
    summary: str
    action: str
    devices: list[str]
    evidence: list[str]


class SystemFacts(t.TypedDict, total=False):
    architecture: str | None
    vendor: str | None
    product: str | None
    board: str | None
    bios_version: str | None
    cpu_model: str | None
    cpu_vendor: str | None
    cpu_family: int | None
    cpu_model_number: int | None
    kernel: str | None
    virtual: bool | None
    iommu_enabled: bool | None
    iommu_arguments: list[str]


class SourceFacts(t.TypedDict, total=False):
    kind: str
    path: str
    config_space: bool | None
    unreadable: list[str]
    unreadable_count: int


class NodeFacts(t.TypedDict, total=False):
    """A whole node. The module topology_info leaves out the sections that are not in its option `subset`."""

    schema_version: str
    source: SourceFacts
    system: SystemFacts
    numa_nodes: list[NumaNodeFacts]
    packages: list[PackageFacts]
    functions: dict[str, FunctionFacts]
    interfaces: list[InterfaceFacts]
    rdma_devices: list[RdmaDeviceFacts]
    gpus: list[GpuFacts]
    nics: list[NicFacts]
    nvme: list[NvmeFacts]
    affinity: AffinityFacts
    groups: list[GroupFacts]
    findings: list[FindingFacts]
    fingerprint: str | None
