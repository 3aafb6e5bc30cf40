# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The settings of NICs and of the node, in the groups of module_utils/fabric_options.py. Smaller modules document one
# group; the module fabric documents all groups. ansible-test compares the result with each module's argument spec.

from __future__ import annotations

import re
import textwrap

from ansible_collections.lanewise.dra.plugins.doc_fragments import fabric


def _nested(option: str, prefix: str, groups: list[str], own: str = "") -> str:
    """The options `own` and those of `groups` as suboptions of `option`. O(NAME) in groups becomes O(prefixNAME)."""
    options = "".join(group.partition("options:\n")[2] for group in groups)
    options = own.partition("options:\n")[2] + re.sub(r"O\((?=[a-z_.]+\))", f"O({prefix}", options)
    return f"options:\n  {option}:\n    suboptions:\n{textwrap.indent(options, '    ')}"


class ModuleDocFragment:
    # The options of a rule of the module fabric, except its settings.
    RULE = r"""
options:
  name:
    description: The name of the rule in messages.
    type: str
  count:
    description: The exact number of NICs that the rule must match. A missing NIC is an error.
    type: int
  at_least:
    description: The minimum number of NICs that the rule must match.
    type: int
  profile:
    description: A profile of O(profiles), whose settings come before the rule's own.
    type: str
  unset:
    description:
      - Settings of its profile or of an earlier rule that the rule removes, such as V(mtu) or V(ethtool.pause).
      - Setting them to V(null) has the same effect, and is the usual way.
    type: list
    elements: str
"""

    SRIOV = r"""
options:
  num_vfs:
    description: Number of VFs of a PF. VFs in use are never removed.
    type: int
  vfs_autoprobe:
    description: Whether the kernel binds a driver to new VFs.
    type: bool
  externally_managed:
    description: Whether another program manages the VFs. Then the module only counts them, and too few are an error.
    type: bool
  eswitch_mode:
    description: Mode of the embedded switch between the PF and its VFs.
    type: str
    choices: [legacy, switchdev]
  vf:
    description: Settings of all VFs of the PF.
    type: dict
    suboptions: &vf
      driver:
        description: V(native) for the kernel's default driver, V(vfio-pci), the name of another driver, or V(none).
        type: str
      mac:
        description: The MAC address of a single VF, see O(vfs).
        type: str
      node_guid:
        description: The node GUID of a single InfiniBand VF.
        type: str
      port_guid:
        description: The port GUID of a single InfiniBand VF.
        type: str
      vlan:
        description: VLAN that the card adds and removes. V(0) for no VLAN.
        type: int
      qos:
        description: Priority in the VLAN tag.
        type: int
      vlan_protocol:
        description: Protocol of the VLAN tag.
        type: str
        choices: [802.1Q, 802.1ad]
      trust:
        description: Whether the VF may change its MAC address and receive all traffic (promiscuous mode).
        type: bool
      spoof_check:
        description: Whether the card drops packets of the VF with a wrong source address.
        type: bool
      link_state:
        description: Link state that the VF sees.
        type: str
        choices: [auto, enable, disable]
      min_rate:
        description: Guaranteed rate in Mbit/s. V(0) for no guarantee.
        type: int
      max_rate:
        description: Maximum rate in Mbit/s. V(0) for no limit.
        type: int
  vfs:
    description: Settings of single VFs, which override O(vf).
    type: list
    elements: dict
    suboptions:
      <<: *vf
      index:
        description: Numbers of VFs, such as V(3) or V(0-3,6).
        type: str
        required: true
"""

    TUNING = r"""
options:
  mtu:
    description:
      - MTU of the interface.
      - If systemd-networkd, a C(.link) file, NetworkManager or netplan sets another MTU, it is changed there, too. If
        that is not possible, the module fails and names the file and what to write there.
    type: int
  ethtool:
    description: Settings of the driver's queues and the link.
    type: dict
    suboptions:
      channels:
        description: Number of queues, with C(rx), C(tx), C(other) and C(combined).
        type: dict
      rings:
        description: Entries of a queue, with C(rx), C(rx_mini), C(rx_jumbo) and C(tx).
        type: dict
      coalesce:
        description:
          - When an interrupt is raised, with C(rx_usecs), C(tx_frames) and the other names of C(ethtool -c), and
            with C(adaptive_rx) and C(adaptive_tx).
        type: dict
      pause:
        description: Global pause frames, with C(autoneg), C(rx) and C(tx).
        type: dict
      features:
        description: Offloads, by the kernel's names, such as C(rx-gro).
        type: dict
      private_flags:
        description: The driver's own flags, by the names of C(ethtool --show-priv-flags).
        type: dict
  irq_affinity:
    description:
      - CPUs that serve the NIC's interrupts. V(local) assigns all CPUs of the NIC's NUMA node to each
        interrupt, V(spread) one of these CPUs in turn.
    type: str
    choices: [local, spread]
  sysctls:
    description: Sysctls of the interface.
    type: dict
    suboptions:
      ipv4:
        description: Those of C(net.ipv4.conf), by name.
        type: dict
      ipv6:
        description: Those of C(net.ipv6.conf), by name.
        type: dict
  rail_routes:
    description: A separate routing table, so that packets from the NIC's addresses leave by this NIC.
    type: dict
    suboptions:
      table:
        description: The table's number.
        type: int
        required: true
      priority:
        description: Priority of the rules for the table. V(1000) by default.
        type: int
      gateway:
        description: Gateways of the rail, one per address family.
        type: list
        elements: str
"""

    PCI_OF_NICS = r"""
options:
  max_read_request_bytes:
    description: The maximum size of a read request that the NIC sends over PCIe.
    type: int
    choices: [128, 256, 512, 1024, 2048, 4096]
  relaxed_ordering:
    description: Whether the NIC may reorder its writes.
    type: bool
"""

    ROCE = r"""
options:
  roce:
    description: Settings of RDMA connections.
    type: dict
    suboptions:
      mode:
        description: Version of RoCE that the RDMA connection manager uses.
        type: str
        choices: [v1, v2]
      tos:
        description: Type of service (TOS) of connections of the RDMA connection manager.
        type: int
      traffic_class:
        description: Traffic class forced on all connections. Only with the drivers of DOCA or MLNX_OFED.
        type: int
  dcb:
    description: Lossless Ethernet of a PF.
    type: dict
    suboptions:
      trust:
        description: Whether priorities come from the DSCP of a packet or from its VLAN tag.
        type: str
        choices: [dscp, pcp]
      dscp_priorities:
        description: Priorities by DSCP, if they differ from the DSCP's upper three bits.
        type: dict
      pfc:
        description: Priorities with priority flow control.
        type: list
        elements: int
      ets:
        description: How traffic classes share the link.
        type: dict
      buffer:
        description: How the receive buffers are divided.
        type: dict
"""

    FIRMWARE = r"""
options:
  firmware:
    description:
      - Settings of an NVIDIA NIC's firmware, by the names of C(mstconfig). They take effect when the card is
        reset.
    type: dict
"""

    KERNEL_ARGS = r"""
options:
  kernel_args:
    description:
      - Kernel arguments for the next boot, in this order. They replace arguments of the same name, except those that
        may be repeated. Arguments removed from the list are removed from the boot loader's configuration.
    type: list
    elements: str
  kernel_args_absent:
    description: Kernel arguments to remove for the next boot. An entry without a value matches any value.
    type: list
    elements: str
  iommu:
    description: The IOMMU mode, set by the kernel arguments for the node's processor.
    type: str
    choices: [passthrough, translate, "off"]
"""

    KERNEL_MODULES = r"""
options:
  kernel_modules:
    description: Kernel modules to load, now and at each boot.
    type: list
    elements: str
  module_options:
    description: Options by kernel module, each a text with C(NAME=VALUE) pairs separated by spaces.
    type: dict
"""

    SYSTEM = r"""
options:
  sysctl:
    description: Sysctls of the node, now and at each boot. Set those of an interface with its NIC.
    type: dict
  hugepages:
    description: Huge pages of the NUMA nodes.
    type: list
    elements: dict
    suboptions:
      size:
        description: Size of a page, such as V(2M).
        type: str
        required: true
      count:
        description: Number of pages of each NUMA node.
        type: int
        required: true
      numa_nodes:
        description: The NUMA nodes. By default those with processors.
        type: list
        elements: int
  memlock_unlimited:
    description: Whether container runtimes, kubelet and logins may lock all memory.
    type: bool
  cpu_governor:
    description: Governor of the processors' frequency, such as V(performance).
    type: str
  cpu_energy_preference:
    description: Preference between energy and speed, by name or from 0 to 255.
    type: str
  cpu_idle_max_latency_us:
    description: The maximum wake-up latency in microseconds. Deeper idle states are disabled.
    type: int
  kubelet:
    description: How kubelet places pods on processors and memory.
    type: dict
    suboptions:
      cpu_manager_policy:
        description: Policy of the CPU manager.
        type: str
        choices: [none, static]
      cpu_manager_policy_options:
        description: Options of the CPU manager's policy.
        type: dict
      reserved_system_cpus:
        description: CPUs that are reserved for the system, such as V(0-1).
        type: str
      memory_manager_policy:
        description: Policy of the memory manager.
        type: str
        choices: [None, Static]
      reserved_memory:
        description: Memory that is reserved for the system, in the form of kubelet's configuration.
        type: list
        elements: dict
      topology_manager_policy:
        description: Policy of the topology manager.
        type: str
        choices: [none, best-effort, restricted, single-numa-node]
      topology_manager_scope:
        description: The scope of the topology manager's placement.
        type: str
        choices: [container, pod]
      topology_manager_policy_options:
        description: Options of the topology manager's policy.
        type: dict
  runtime_cdi:
    description: Whether the container runtime supports CDI.
    type: bool
  runtime_nri:
    description: Whether the container runtime offers NRI.
    type: bool
"""

    PCI_OF_NODE = r"""
options:
  gpudirect:
    description: How NICs access the memory of NVIDIA's GPUs. V(dma_buf) checks the requirements, V(peermem) loads the
      module.
    type: str
    choices: [dma_buf, peermem]
  acs:
    description:
      - With V(gpudirect), GPUs and NICs below one switch reach each other directly. Only the ports where the board
        needs it are changed.
    type: str
    choices: [gpudirect]
"""

    RDMA = r"""
options:
  rdma_netns_mode:
    description:
      - Whether an RDMA device belongs to one network namespace. The kernel can only change this while no other network
        namespace exists; otherwise a reboot is needed.
    type: str
    choices: [shared, exclusive]
"""

    # with type annotations, because ansible-test reads all other attributes of the class as literal YAML
    NICS: str = _nested(
        "nics", "nics[].", [fabric.ModuleDocFragment.SELECT, SRIOV, TUNING, PCI_OF_NICS, ROCE, FIRMWARE], own=RULE
    )

    NODE: str = _nested("node", "node.", [KERNEL_ARGS, KERNEL_MODULES, SYSTEM, PCI_OF_NODE, RDMA])
