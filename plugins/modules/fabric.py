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
  - lanewise.dra.settings.nics
  - lanewise.dra.settings.node
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
  node:
    description: Settings of the node itself.
    type: dict
    default: {}
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
