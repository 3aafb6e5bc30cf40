#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric
short_description: Bring a node's RDMA, SR-IOV and kernel state to what the site asks for
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Takes the whole state that a node shall have, compares it with the kernel and the node's files, and changes what
    differs, in one call with one diff.
  - NICs are chosen by what they are and not by names, see O(nics[].select). A setting that is not given is left as it
    is.
  - What a reboot would forget is applied again at each boot, before the network and kubelet start, by a systemd unit of
    its own, C(lanewise-fabric.service); what needs the network by C(lanewise-fabric-network.service). What
    distributions have files for is written there.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
options:
  state:
    description:
      - V(present) makes the node as wanted.
      - V(absent) puts back what each setting was before this module first changed it, and removes what it has written.
    type: str
    choices: [present, absent]
    default: present
  nics:
    description:
      - Rules for NICs. Where several choose a NIC, a later one replaces what an earlier one says.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What messages call the rule.
        type: str
      count:
        description: How many NICs the rule must choose, no more and no fewer. A NIC that is missing is an error.
        type: int
      at_least:
        description: The fewest that it must choose.
        type: int
      profile:
        description: A profile of O(profiles), whose settings come before the rule's own.
        type: str
      unset:
        description:
          - Settings that the rule takes away from what its profile or an earlier rule says, such as V(mtu) or
            V(ethtool.pause).
          - A setting that is V(null) is the same, and the usual way to write it.
        type: list
        elements: str
      select:
        description:
          - Which NICs, by what they are. All that is given must hold, and of several values of one field any does.
            Texts are shell patterns.
          - PFs are chosen where neither O(nics[].select.type) nor O(nics[].select.address) says otherwise.
        type: dict
        required: true
        suboptions:
          address:
            description: PCI addresses, such as V(0000:3b:00.0).
            type: list
            elements: str
          interface:
            description: Names of interfaces.
            type: list
            elements: str
          driver:
            description: Kernel drivers, such as V(mlx5_core).
            type: list
            elements: str
          model:
            description: Models, such as V(*ConnectX-7*).
            type: list
            elements: str
          vendor_id:
            description: PCI vendors, four hexadecimal digits.
            type: list
            elements: str
          device_id:
            description: PCI devices, four hexadecimal digits.
            type: list
            elements: str
          slot:
            description: Slots of the machine, as its firmware names them.
            type: list
            elements: str
          link_layer:
            description: Link layers.
            type: list
            elements: str
            choices: [ethernet, infiniband]
          type:
            description: PFs, VFs, or interfaces without a PCI function (bonds, VLANs, bridges).
            type: list
            elements: str
            choices: [pf, vf, virtual]
          rail:
            description: Rails, as M(lanewise.dra.topology_info) counts them.
            type: list
            elements: int
          numa_node:
            description: NUMA nodes.
            type: list
            elements: int
          min_speed_mbps:
            description: The least link speed, in Mbit/s.
            type: int
          near_gpu:
            description: A GPU is at least as near as that. A distance that the machine does not tell is never near.
            type: str
            choices: [PIX, PXB, PHB, NODE]
      num_vfs:
        description: Number of VFs of a PF. VFs that someone uses are never taken away.
        type: int
      vfs_autoprobe:
        description: Whether the kernel binds a driver to each VF that appears.
        type: bool
      externally_managed:
        description: Whether others make the VFs. Then they are counted, and too few are an error.
        type: bool
      eswitch_mode:
        description: Mode of the switch between the PF and its VFs.
        type: str
        choices: [legacy, switchdev]
      vf:
        description: What each VF of the PF is set to.
        type: dict
        suboptions:
          driver:
            description: V(native) for the kernel's own driver, V(vfio-pci), the name of another one, or V(none).
            type: str
          mac:
            description: The address of a single VF, see O(nics[].vfs).
            type: str
          node_guid:
            description: The node GUID of a single InfiniBand VF.
            type: str
          port_guid:
            description: The port GUID of a single InfiniBand VF.
            type: str
          vlan:
            description: VLAN that the card adds and removes. V(0) for none.
            type: int
          qos:
            description: Priority in the VLAN tag.
            type: int
          vlan_protocol:
            description: Protocol of the tag.
            type: str
            choices: [802.1Q, 802.1ad]
          trust:
            description: Whether the VF may change its address and listen to all traffic.
            type: bool
          spoof_check:
            description: Whether the card drops what the VF sends with a false address.
            type: bool
          link_state:
            description: Link that the VF sees.
            type: str
            choices: [auto, enable, disable]
          min_rate:
            description: Guaranteed rate in Mbit/s. V(0) for none.
            type: int
          max_rate:
            description: Highest rate in Mbit/s. V(0) for none.
            type: int
      vfs:
        description: What single VFs are set to; it replaces what O(nics[].vf) says.
        type: list
        elements: dict
        suboptions:
          driver:
            description: V(native) for the kernel's own driver, V(vfio-pci), the name of another one, or V(none).
            type: str
          mac:
            description: The address of a single VF, see O(nics[].vfs).
            type: str
          node_guid:
            description: The node GUID of a single InfiniBand VF.
            type: str
          port_guid:
            description: The port GUID of a single InfiniBand VF.
            type: str
          vlan:
            description: VLAN that the card adds and removes. V(0) for none.
            type: int
          qos:
            description: Priority in the VLAN tag.
            type: int
          vlan_protocol:
            description: Protocol of the tag.
            type: str
            choices: [802.1Q, 802.1ad]
          trust:
            description: Whether the VF may change its address and listen to all traffic.
            type: bool
          spoof_check:
            description: Whether the card drops what the VF sends with a false address.
            type: bool
          link_state:
            description: Link that the VF sees.
            type: str
            choices: [auto, enable, disable]
          min_rate:
            description: Guaranteed rate in Mbit/s. V(0) for none.
            type: int
          max_rate:
            description: Highest rate in Mbit/s. V(0) for none.
            type: int
          index:
            description: Numbers of VFs, such as V(3) or V(0-3,6).
            type: str
            required: true
      mtu:
        description:
          - MTU of the interface.
          - Where systemd-networkd, a C(.link) file, NetworkManager or netplan sets another one, it is set in their own
            way; where that cannot be done the module fails with the file, and what to write there.
        type: int
      ethtool:
        description: What the driver's queues and the link are set to.
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
            description: Offloads, by the names of C(ethtool -k).
            type: dict
          private_flags:
            description: The driver's own flags, by the names of C(ethtool --show-priv-flags).
            type: dict
      irq_affinity:
        description:
          - CPUs that serve the NIC's interrupts. V(local) gives each interrupt all CPUs of the NIC's NUMA node,
            V(spread) one of them in turn.
        type: str
        choices: [local, spread]
      max_read_request_bytes:
        description: The largest read that the NIC sends over PCIe.
        type: int
        choices: [128, 256, 512, 1024, 2048, 4096]
      relaxed_ordering:
        description: Whether the NIC may let its writes overtake each other.
        type: bool
      roce:
        description: What connections over RDMA have.
        type: dict
        suboptions:
          mode:
            description: Version of RoCE that the RDMA connection manager takes.
            type: str
            choices: [v1, v2]
          tos:
            description: Type of service of its connections.
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
            description: Priorities by DSCP, where they are not the DSCP's upper three bits.
            type: dict
          pfc:
            description: Priorities that are paused by themselves.
            type: list
            elements: int
          ets:
            description: How traffic classes share the link.
            type: dict
          buffer:
            description: How the receive buffers are divided.
            type: dict
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
        description: A routing table of its own, so that what the NIC's address sends leaves by this NIC.
        type: dict
        suboptions:
          table:
            description: The table's number.
            type: int
            required: true
          priority:
            description: Priority of the rules that lead to it. V(1000) if it is not given.
            type: int
          gateway:
            description: Gateways of the rail, one a family.
            type: list
            elements: str
      firmware:
        description:
          - Settings of an NVIDIA NIC's firmware, by the names of C(mstconfig). They take effect when the card is
            reset.
        type: dict
  node:
    description: Settings of the node itself.
    type: dict
    default: {}
    suboptions:
      kernel_args:
        description:
          - Kernel arguments that the next boot shall have, in their order. They replace others of the same name, but
            for those of which each counts. What leaves the list leaves the boot loader's configuration.
        type: list
        elements: str
      kernel_args_absent:
        description: Kernel arguments that the next boot shall not have; without a value, whatever their value.
        type: list
        elements: str
      iommu:
        description: What the IOMMU does with the accesses of devices, in the arguments of the node's processor.
        type: str
        choices: [passthrough, translate, "off"]
      kernel_modules:
        description: Kernel modules to load, now and at each boot.
        type: list
        elements: str
      module_options:
        description: Options of kernel modules, each as C(NAME=VALUE) with blanks between.
        type: dict
      sysctl:
        description: Sysctls of the node, now and at each boot. Those of an interface stand with its NIC.
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
            description: How many each NUMA node shall have.
            type: int
            required: true
          numa_nodes:
            description: The NUMA nodes. By default all that have processors.
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
        description: Idle states that take longer to wake from, in microseconds, are switched off.
        type: int
      gpudirect:
        description: How NICs reach the memory of NVIDIA's GPUs. V(dma_buf) is looked for, V(peermem) is loaded.
        type: str
        choices: [dma_buf, peermem]
      acs:
        description:
          - V(gpudirect) lets GPUs and NICs below one switch reach each other directly, port by port, as their board
            needs it.
        type: str
        choices: [gpudirect]
      rdma_netns_mode:
        description:
          - Whether an RDMA device belongs to one network namespace. The kernel changes it only while there is none
            but the node's; else it waits for a reboot.
        type: str
        choices: [shared, exclusive]
      kubelet:
        description: How kubelet places pods on processors and memory.
        type: dict
        suboptions:
          cpu_manager_policy:
            description: Policy of the CPU manager.
            type: str
            choices: [none, static]
          cpu_manager_policy_options:
            description: Its options.
            type: dict
          reserved_system_cpus:
            description: CPUs that no pod gets, such as V(0-1).
            type: str
          memory_manager_policy:
            description: Policy of the memory manager.
            type: str
            choices: [None, Static]
          reserved_memory:
            description: Memory that no pod gets, as in kubelet's configuration.
            type: list
            elements: dict
          topology_manager_policy:
            description: Policy of the topology manager.
            type: str
            choices: [none, best-effort, restricted, single-numa-node]
          topology_manager_scope:
            description: What it places together.
            type: str
            choices: [container, pod]
          topology_manager_policy_options:
            description: Its options.
            type: dict
      runtime_cdi:
        description: Whether the container runtime takes devices by CDI.
        type: bool
      runtime_nri:
        description: Whether the container runtime offers NRI.
        type: bool
  profiles:
    description: Settings of NICs by name of a profile, each with the settings that a rule of O(nics) has.
    type: dict
    default: {}
  persist:
    description:
      - Whether the settings outlast a reboot. What is written into files of the distribution does anyway.
      - With V(false) what an earlier run wrote for the boot (C(/etc/lanewise/fabric.json) and units) stays as it is, so
        the next boot brings those settings back. O(state=absent) takes it away.
    type: bool
    default: true
  assume_drained:
    description: In check mode, take what only pods are in the way of for a reason to drain and not for an error.
    type: bool
    default: false
  root:
    description: The folder with a recorded machine's C(sys) and C(proc), to plan for it in check mode.
    type: path
    default: /
  confirm:
    description:
      - Confirm the changes of an earlier run, whose RV(rollback.id) this is, over a connection that was made since.
      - Nothing else is done then.
    type: str
seealso:
  - module: lanewise.dra.topology_info
"""

EXAMPLES = r"""
- name: Eight rails with VFs, jumbo frames and exclusive RDMA namespaces
  lanewise.dra.fabric:
    nics:
      - name: rails
        select:
          near_gpu: PIX
          min_speed_mbps: 400000
        count: 8
        num_vfs: 8
        mtu: 9000
  become: true
  register: fabric

- name: Show what a reboot is needed for
  ansible.builtin.debug:
    var: fabric.reboot_reasons
  when: fabric.reboot_required
"""

RETURN = r"""
changes:
  description: What was changed, in order, or would be in check mode.
  returned: success
  type: list
  elements: dict
  contains:
    resource:
      description: The part of the configuration, such as V(sriov).
      type: str
      returned: always
    device:
      description: A PCI address, an interface, V(ADDRESS vf NUMBER), or V(node).
      type: str
      returned: always
    setting:
      description: The setting.
      type: str
      returned: always
    before:
      description: Its value before.
      type: raw
      returned: always
    after:
      description: Its value after.
      type: raw
      returned: always
    interrupts:
      description: What stops working for a moment, or empty.
      type: str
      returned: always
drain_reasons:
  description: Why pods on the node would notice. Empty where they would not.
  returned: success
  type: list
  elements: str
reboot_required:
  description: Whether some of what is wanted takes effect at a reboot only.
  returned: success
  type: bool
reboot_reasons:
  description: What waits for it.
  returned: success
  type: list
  elements: str
rollback:
  description: The timer that takes the changes back. Confirm them with O(confirm) in time.
  returned: where a NIC is changed that the node is reached by
  type: dict
  contains:
    id:
      description: What to confirm with.
      type: str
      returned: when not in check mode
    seconds:
      description: How long the timer runs.
      type: int
      returned: always
not_recorded:
  description: Of a recorded machine, what could not be planned, each with what the recording lacks.
  returned: success
  type: list
  elements: str
idle_rules:
  description: The rules that choose no NIC of this node, each with what may be meant.
  returned: success
  type: list
  elements: str
remaining:
  description:
    - After a step that failed, all that is not as it was before the run, each with C(resource), C(device), C(setting),
      its value C(before) and C(now), and the C(reason) why it was not put back. Empty where the node is as it was.
  returned: failure
  type: list
  elements: dict
left_alone:
  description: The NICs that were chosen and have no settings, as a pod has them, each with who that is.
  returned: success
  type: list
  elements: str
settings:
  description: The settings of each NIC that a rule chooses, by PCI address or interface.
  returned: success
  type: dict
problems:
  description: All that is wrong, where nothing was changed because of it.
  returned: failure
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once  # noqa: F401 - finds the others
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import confirm, fail, rules, run
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import (
    NIC,
    NODE,
    RULE,
    SAFETY,
    nulls,
    without_nulls,
)
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Unfit
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.settings import merged, overlaid


def profiles(module: AnsibleModule) -> dict[str, dict[str, object]]:
    """The profiles, checked as a rule's settings are."""
    found, problems = {}, []
    for name, settings in module.params["profiles"].items():
        own, unset = without_nulls(settings or {})
        checked = ArgumentSpecValidator(NIC).validate(own)
        problems += [f"profiles.{name}: {message}" for message in checked.error_messages]
        found[name] = overlaid(merged({}, checked.validated_parameters), nulls(unset))
    if problems:
        fail(module, Unfit(problems))
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "nics": {"type": "list", "elements": "dict", "default": [], "options": RULE},
            "node": {"type": "dict", "default": {}, "options": NODE},
            "profiles": {"type": "dict", "default": {}},
            "persist": {"type": "bool", "default": True},
            "assume_drained": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
            "confirm": {"type": "str"},
            **SAFETY,
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["confirm"]:
        confirm(module, params["confirm"])
    if params["state"] == "absent":
        run(module, [], {}, restore=True)
    try:
        wanted = rules(params["nics"], profiles(module))
    except Unfit as error:
        fail(module, error)
    run(module, wanted, params["node"] or {}, persist=params["persist"])


if __name__ == "__main__":
    main()
