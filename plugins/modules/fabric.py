#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric
short_description: Configure RDMA, SR-IOV and kernel settings of a node
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Compares the complete desired state of a node with the kernel and the node's files, and changes what differs, in one
    call with one diff.
  - NICs are selected by properties, not by names, see O(nics[].select). Settings that are not set stay unchanged.
  - Settings that are lost at a reboot are applied again at each boot, before the network and kubelet start, by the
    systemd unit C(lanewise-fabric.service); those that need the network by C(lanewise-fabric-network.service). Other
    settings are written to the distribution's own files.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.settings.nics
  - lanewise.dra.settings.node
options:
  state:
    description:
      - V(present) configures the node.
      - V(absent) restores the original value of each setting that this module changed, and removes the files that it
        has written.
    type: str
    choices: [present, absent]
    default: present
  nics:
    description:
      - Rules for NICs. If several rules match a NIC, settings of later rules replace those of earlier ones.
    type: list
    elements: dict
    default: []
  node:
    description: Settings of the node itself.
    type: dict
    default: {}
  profiles:
    description: Profiles by name, each with the settings of a rule of O(nics).
    type: dict
    default: {}
  persist:
    description:
      - Whether the settings are applied again at boot. Settings in files of the distribution always survive a reboot.
      - With V(false), what an earlier run wrote for the boot (C(/etc/lanewise/fabric.json) and units) stays, so the
        next boot applies those settings. O(state=absent) removes it.
    type: bool
    default: true
  assume_drained:
    description: Whether check mode reports changes that only pods block as reasons to drain, not as errors.
    type: bool
    default: false
  root:
    description: The folder with a recorded machine's C(sys) and C(proc), to plan for it in check mode.
    type: path
    default: /
  topology:
    description:
      - Options of M(lanewise.dra.topology_info), to read the node's topology in the same call, before any change. The
        result is in RV(topology).
    type: dict
    suboptions:
      subset:
        description: See O(lanewise.dra.topology_info#module:subset).
        type: list
        elements: str
        choices: [system, numa, functions, interfaces, rdma, devices, affinity, findings]
        default: [system, numa, functions, interfaces, rdma, devices, affinity, findings]
      pci_functions:
        description: See O(lanewise.dra.topology_info#module:pci_functions).
        type: str
        choices: [relevant, all]
        default: relevant
      vpd:
        description: See O(lanewise.dra.topology_info#module:vpd).
        type: bool
        default: true
      gids:
        description: See O(lanewise.dra.topology_info#module:gids).
        type: bool
        default: true
      locality_overrides:
        description: See O(lanewise.dra.topology_info#module:locality_overrides). They do not affect what rules match.
        type: list
        elements: dict
        default: []
        suboptions:
          address:
            description: PCI address of the function.
            type: str
          slot:
            description: Physical slot.
            type: str
          numa_node:
            description: The NUMA node that the function is local to.
            type: int
          switch:
            description: Any name of a switch.
            type: str
          rail:
            description: The rail of a NIC.
            type: int
  planned:
    description:
      - RV(lanewise.dra.topology_info#module:plan) of the same run. In check mode, the module returns it without
        connecting to the node. Otherwise it is ignored.
    type: dict
  confirm:
    description:
      - Confirms the changes of the earlier run with this RV(rollback.id), over a new connection. The module then does
        nothing else.
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

- name: Show why a reboot is needed
  ansible.builtin.debug:
    var: fabric.reboot_reasons
  when: fabric.reboot_required
"""

RETURN = r"""
changes:
  description: The changes in order. In check mode, those that would be made.
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
      description: The value before the change.
      type: raw
      returned: always
    after:
      description: The value after the change.
      type: raw
      returned: always
    interrupts:
      description: What the change interrupts briefly, or empty.
      type: str
      returned: always
drain_reasons:
  description: Why the changes affect pods on the node. Empty if they do not.
  returned: success
  type: list
  elements: str
reboot_required:
  description: Whether some settings need a reboot to take effect.
  returned: success
  type: bool
reboot_reasons:
  description: The settings that need a reboot.
  returned: success
  type: list
  elements: str
rollback:
  description: The timer that rolls the changes back. Confirm them with O(confirm) before it expires.
  returned: if the run changes a NIC through which the node is reached; null on failure if no timer runs
  type: dict
  contains:
    id:
      description: The identifier for O(confirm).
      type: str
      returned: when not in check mode
    seconds:
      description: Duration of the timer in seconds.
      type: int
      returned: always
not_recorded:
  description: On a recorded machine, settings that could not be planned, each with what the recording lacks.
  returned: success
  type: list
  elements: str
idle_rules:
  description: The rules that match no NIC of this node, some with a suggestion.
  returned: success
  type: list
  elements: str
remaining:
  description:
    - After a failed step, everything that differs from the state before the run, each with C(resource), C(device),
      C(setting), its value C(before) and C(now), and the C(reason) why it was not restored. Empty if the node has its
      previous state.
    - After an unexpected error at the end, one entry with only a C(reason), because all changes are in place.
  returned: failure
  type: list
  elements: dict
left_alone:
  description: Selected NICs that were not configured because they are in use by a pod, each with its user.
  returned: success
  type: list
  elements: str
settings:
  description: The settings of each NIC that a rule matches, by PCI address or interface.
  returned: success
  type: dict
problems:
  description: The reasons why nothing was changed.
  returned: if the options do not fit the node
  type: list
  elements: str
topology:
  description: See RV(lanewise.dra.topology_info#module:topology).
  returned: if O(topology) is set and the topology could be read
  type: dict
"""

import types
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import confirm, fail, rules, run
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import (
    NIC,
    NODE,
    RULE,
    SAFETY,
    nulls,
    split_nulls,
)
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.rules import Unfit
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.settings import merged, merged_with_nulls
from ansible_collections.lanewise.dra.plugins.module_utils.topology_module import OPTIONS, Unreadable, read


class Module(AnsibleModule):
    """An AnsibleModule that adds the topology, if it was read, to every result."""

    topology: t.Mapping[str, object] = types.MappingProxyType({})

    def exit_json(self, **result: object) -> t.NoReturn:
        super().exit_json(**result, **self.topology)

    def fail_json(self, msg: str, **result: object) -> t.NoReturn:
        super().fail_json(msg, **result, **self.topology)


def profiles(module: AnsibleModule) -> dict[str, dict[str, object]]:
    """The profiles, validated like the settings of a rule. Fails the module if one is invalid."""
    validated, problems = {}, []
    for name, settings in (module.params["profiles"] or {}).items():
        if settings is not None and not isinstance(settings, dict):
            problems.append(f"profiles.{name}: must be a mapping of settings, not {settings!r}")
            continue
        values, unset = split_nulls(settings or {})
        checked = ArgumentSpecValidator(NIC).validate(values)
        problems += [f"profiles.{name}: {message}" for message in checked.error_messages]
        validated[name] = merged_with_nulls(merged({}, checked.validated_parameters), nulls(unset))
    if problems:
        fail(module, Unfit(problems))
    return validated


def main() -> None:
    module = Module(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "nics": {"type": "list", "elements": "dict", "default": [], "options": RULE},
            "node": {"type": "dict", "default": {}, "options": NODE},
            "profiles": {"type": "dict", "default": {}},
            "persist": {"type": "bool", "default": True},
            "assume_drained": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
            "topology": {"type": "dict", "options": OPTIONS},
            "planned": {"type": "dict"},  # for the action plugin
            "confirm": {"type": "str"},
            **SAFETY,
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["confirm"] is not None:  # first: a timer runs
        if not params["confirm"]:
            module.fail_json("confirm: is empty. Give the id that the result of the run has in rollback")
        confirm(module, params["confirm"])
    if params["topology"]:
        try:
            module.topology = {"topology": read(params["root"], params["topology"])}
        except Unreadable as error:
            module.fail_json(str(error))
    if params["state"] == "absent":
        run(module, [], {}, restore=True)
    try:
        wanted = rules(params["nics"] or [], profiles(module))
    except Unfit as error:
        fail(module, error)
    run(module, wanted, params["node"] or {}, persist=params["persist"])


if __name__ == "__main__":
    main()
