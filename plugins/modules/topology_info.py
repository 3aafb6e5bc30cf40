#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: topology_info
short_description: Read a node's PCIe, NUMA and RDMA topology
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Reads a node's topology from C(/sys) and C(/proc), its PCI functions with every bridge up to the root complex, NUMA
    nodes, GPUs and other accelerators, NICs with their interfaces and RDMA devices, SR-IOV functions and NVMe, and
    computes which GPU is near which NIC.
  - Facts that the machine does not report are V(null) or V(UNKNOWN), never guessed, and a finding reports them.
  - Needs only Python on the node. Works without root, but then ACS (PCI configuration space) and vital product data
    stay unknown.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  root:
    description:
      - Folder below which C(sys) and C(proc) are read. A tree that was recorded on another machine, for example with
        C(hwloc-gather-topology), is read like the machine itself.
    type: path
    default: /
  import_file:
    description:
      - An XML file to read instead of O(root). It is an NCCL topology file or the output of C(lstopo --of xml). Facts
        that such a file does not contain are unknown.
      - Read on the host that the module runs on.
    type: path
  import_format:
    description: The format of O(import_file). V(auto) detects it from the document's root element.
    type: str
    choices: [auto, nccl, hwloc]
    default: auto
  subset:
    description: The sections of RV(topology) to return, besides RV(topology.source) and RV(topology.fingerprint).
    type: list
    elements: str
    choices: [system, numa, functions, interfaces, rdma, devices, affinity, findings]
    default: [system, numa, functions, interfaces, rdma, devices, affinity, findings]
  pci_functions:
    description:
      - Which functions to return in RV(topology.functions).
      - V(relevant) means GPUs, accelerators, NICs and their VFs, NVMe, and every bridge above them.
    type: str
    choices: [relevant, all]
    default: relevant
  vpd:
    description:
      - Whether to read the vital product data (part number, serial number) of NICs.
      - Reading takes some milliseconds per card. Boards with a data-direct function (ConnectX-8) need it to pair GPUs
        with NICs, and HGX boards need it to distinguish the ConnectX functions that manage NVLink switches from NICs.
    type: bool
    default: true
  gids:
    description: Whether to read the GID tables of RDMA ports.
    type: bool
    default: true
  locality_overrides:
    description:
      - Overrides of locality, for machines that report no locality or a wrong one.
      - They do not change what Kubernetes would publish (RV(topology.functions.kubernetes)), which follows the kernel
        alone.
    type: list
    elements: dict
    default: []
    suboptions:
      address:
        description: PCI address of the function, such as V(0000:1b:00.0). Either this or O(locality_overrides[].slot).
        type: str
      slot:
        description: Physical slot as in C(/sys/bus/pci/slots). It applies to all functions of the card.
        type: str
      numa_node:
        description: The NUMA node that the function is local to.
        type: int
      switch:
        description: Any name. Functions with the same name count as being behind one PCIe switch.
        type: str
      rail:
        description: The rail of a NIC. If any rail is set, no rail is derived.
        type: int
  packed:
    description:
      - Whether to return RV(packed), which needs a tenth of the memory on the controller, instead of RV(topology).
        The action plugins of this collection read both.
    type: bool
    default: false
  plan:
    description:
      - Plan the node's configuration in the same call, with M(lanewise.dra.fabric) in check mode. Nothing is
        changed on the node. The result is in RV(plan).
      - RV(plan) is missing if the plan cannot be created. M(lanewise.dra.fabric) then reports the reason.
    type: dict
    suboptions:
      options:
        description: Options of M(lanewise.dra.fabric). Their C(root) must be O(root).
        type: dict
        required: true
      become:
        description: Whether the plan needs root. There is no plan if the task has another C(become).
        type: bool
        default: false
      complete:
        description: The value of RV(plan_complete), for example whether only the module configures the node.
        type: bool
        default: false
seealso:
  - name: The topology model
    description: How affinity, groups, rails and the fingerprint are computed.
    link: https://github.com/lanewise/dra/blob/main/docs/topology.md
"""

EXAMPLES = r"""
- name: Read the topology of a node
  lanewise.dra.topology_info:
  register: node
  become: true

- name: Show which NICs are near each GPU
  ansible.builtin.debug:
    msg: "{{ item.address }}: {{ item.nearest_nics.level }} {{ item.nearest_nics.devices | join(', ') }}"
  loop: "{{ node.topology.gpus }}"
  loop_control:
    label: "{{ item.address }}"

- name: Plan for a cloud machine type from its NCCL topology file
  lanewise.dra.topology_info:
    import_file: files/p4d-24xl-topo.xml
  delegate_to: localhost
  register: planned

- name: Override the locality of a virtual machine
  lanewise.dra.topology_info:
    locality_overrides:
      - address: "0001:00:00.0"
        numa_node: 0
        switch: sw0
      - address: "0101:00:00.0"
        numa_node: 0
        switch: sw0
"""

RETURN = r"""
topology:
  description:
    - The node. A value that the machine does not report is V(null).
    - PCI addresses are in lower case with their domain. Link speeds are in GT/s per lane, network speeds in Mbit/s.
  type: dict
  returned: success
  contains:
    schema_version:
      description: Version of this structure. The first number changes if a key is removed or changes its meaning.
      type: str
      sample: "1.0"
    fingerprint:
      description:
        - A digest that is equal for nodes with the same topology, regardless of serial numbers and link states.
      type: str
      sample: 99e71f8d090cba70
    source:
      description: Where the facts come from.
      type: dict
      contains:
        kind:
          description: V(sysfs), V(nccl_xml) or V(hwloc_xml).
          type: str
        path:
          description: The root folder or the file that was read.
          type: str
        config_space:
          description: Whether PCI configuration space beyond its first 64 bytes was readable.
          type: bool
        unreadable:
          description: The first hundred files that could not be read, with the reason.
          type: list
          elements: str
        unreadable_count:
          description: How many files could not be read.
          type: int
    system:
      description:
        - C(architecture), C(vendor), C(product), C(board), C(bios_version), C(cpu_model), C(cpu_vendor), C(cpu_family),
          C(cpu_model_number), C(kernel), whether it is C(virtual), C(iommu_enabled) and the C(iommu_arguments) of the
          kernel's command line.
      type: dict
    numa_nodes:
      description: C(id), C(cpus), such as V(0-31), C(memory_bytes), C(package) and SLIT C(distances) of NUMA nodes.
      type: list
      elements: dict
    packages:
      description: C(id), C(cpus) and C(numa_nodes) of each CPU socket.
      type: list
      elements: dict
    functions:
      description: PCI functions by address.
      type: dict
      contains:
        address:
          description: The PCI address.
          type: str
        kind:
          description:
            - V(gpu), V(accelerator), V(nic), V(nvme), V(bridge), V(data_direct), V(nvlink_management) or V(other).
          type: str
        class_code:
          description: Base class, subclass and programming interface, six hexadecimal digits.
          type: str
          sample: "020700"
        vendor_id:
          description: The vendor, four hexadecimal digits.
          type: str
          sample: "15b3"
        device_id:
          description: The device of the vendor, four hexadecimal digits.
          type: str
        subsystem_vendor_id:
          description: The vendor of the card, four hexadecimal digits.
          type: str
        subsystem_device_id:
          description: The device of the card's vendor, four hexadecimal digits.
          type: str
        revision:
          description: The revision, two hexadecimal digits.
          type: str
        name:
          description: The short name of a well-known device.
          type: str
          sample: NVIDIA ConnectX-7
        driver:
          description: The bound driver.
          type: str
        slot:
          description: The physical slot as in C(/sys/bus/pci/slots).
          type: str
        root_complex:
          description: The outermost host bridge above the function.
          type: str
          sample: pci0000:17
        bridges:
          description: Addresses of the bridges from the root complex down to the function, without the function.
          type: list
          elements: str
        numa_node:
          description: The NUMA node that the function is local to.
          type: int
        numa_source:
          description: The source of C(numa_node), V(kernel), V(local_cpus), V(override) or V(import).
          type: str
        local_cpus:
          description: The CPUs that the machine reports as local to the function, such as V(0-31).
          type: str
        link:
          description: C(speed_gts), C(width), C(max_speed_gts), C(max_width) and C(gb_per_s) of the link above.
          type: dict
        iommu_group:
          description: Number of the IOMMU group.
          type: int
        iommu_group_type:
          description: The DMA mode of the group as the kernel reports it, such as V(identity) or V(DMA-FQ).
          type: str
        acs:
          description: The C(capable) and C(enabled) access control services of a bridge.
          type: dict
        sriov:
          description: C(total_vfs), C(num_vfs), C(offset), C(stride), C(vf_device_id), C(drivers_autoprobe) and C(vfs).
          type: dict
        physfn:
          description: The address of the PF if the function is a VF.
          type: str
        vf_number:
          description: The index of a VF among the VFs of its PF, from 0.
          type: int
        vpd:
          description: C(name), C(part_number), C(serial_number) and C(uuid) (NVIDIA's V3 field).
          type: dict
        switch_label:
          description: The switch that O(locality_overrides[].switch) sets.
          type: str
        kubernetes:
          description:
            - The standard attributes C(pciBusID), C(pcieRoot) and C(numaNode) as Kubernetes' own helper computes them.
              A key is missing if Kubernetes would not publish it.
          type: dict
          sample: {pciBusID: "0000:1b:00.0", pcieRoot: "pci0000:17", numaNode: 0}
    interfaces:
      description:
        - Network interfaces with C(name), C(kind), PCI C(address), C(mac), C(permanent_mac), C(mtu), C(carrier),
          C(speed_mbps), C(phys_port_name), C(phys_switch_id), C(master), C(lower) and C(default_route).
      type: list
      elements: dict
    rdma_devices:
      description:
        - RDMA devices with C(name), PCI C(address), C(node_guid), C(sys_image_guid), C(firmware), C(char_devices) and
          C(ports) with their C(link_layer), C(state), C(rate_gbps), C(interfaces) and C(gids).
      type: list
      elements: dict
    gpus:
      description:
        - GPUs and accelerators in the order of their addresses, with C(model), C(driver), C(numa_node), C(rail) and
          C(nearest_nics).
      type: list
      elements: dict
      sample:
        - address: "0000:1b:00.0"
          index: 0
          model: NVIDIA H100 80GB HBM3
          numa_node: 0
          rail: 0
          nearest_nics: {level: PIX, devices: ["0000:18:00.0"], via: {}}
    nics:
      description:
        - NICs, PFs and VFs, with C(model), C(interfaces), C(rdma_devices), C(link_layer), C(speed_mbps), C(up), which
          of these are C(elsewhere) (in a pod's network namespace), whether they carry the C(default_route), C(rail),
          C(data_direct), C(physfn), C(representors) and C(nearest_gpus).
      type: list
      elements: dict
    nvme:
      description: NVMe functions with C(controllers), C(model), C(serial) and C(numa_node).
      type: list
      elements: dict
    affinity:
      description:
        - The C(levels) between all GPUs, NICs that are not VFs, and NVMe functions, a square matrix in the order of
          C(devices). It is empty if there are more than 256 devices.
        - V(SELF), V(PIX) (one switch between), V(PXB) (several switches), V(PHB) (same root complex), V(NODE) (same
          NUMA node), V(SYS) (other NUMA node), V(UNKNOWN).
      type: dict
    groups:
      description: GPUs and NICs that are nearest to each other, with their C(level) and what they have in C(common).
      type: list
      elements: dict
    findings:
      description:
        - Findings for operators, with C(id), C(severity), C(summary), C(action), C(devices) and C(evidence).
      type: list
      elements: dict
packed:
  description: RV(topology), compressed as text.
  returned: with O(packed)
  type: str
probed:
  description: Always V(true).
  returned: with O(packed)
  type: bool
plan:
  description: What M(lanewise.dra.fabric) returns in check mode.
  returned: if O(plan) is set and the plan could be created
  type: dict
plan_complete:
  description: The value of O(plan.complete).
  returned: with RV(plan)
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.topology_module import OPTIONS, Unreadable, read


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "import_file": {"type": "path"},
            "import_format": {"type": "str", "choices": ["auto", "nccl", "hwloc"], "default": "auto"},
            # both are for the action plugin
            "packed": {"type": "bool", "default": False},
            "plan": {
                "type": "dict",
                "options": {
                    "options": {"type": "dict", "required": True},
                    "become": {"type": "bool", "default": False},
                    "complete": {"type": "bool", "default": False},
                },
            },
            **OPTIONS,
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        topology = read(params["root"], params, params["import_file"], params["import_format"])
    except Unreadable as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, topology=topology)


if __name__ == "__main__":
    main()
