#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_users_info
short_description: List what uses a node's NICs
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Returns which interfaces carry the node's own traffic, and which NICs and VFs are used by pods, guests and programs.
  - M(lanewise.dra.fabric) uses the same check before it changes NICs.
notes:
  - Needs root (C(become)). Without it, the sockets of SSH servers cannot be read, and every interface with an address
    counts.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.actiongroup_lanewise
options:
  root:
    description:
      - The folder with the node's C(sys) and C(proc). In a recorded tree, only the default route, the records of claims
        and the bound drivers are known.
    type: path
    default: /
seealso:
  - module: lanewise.dra.fabric
  - module: lanewise.dra.nic_replacement
"""

EXAMPLES = r"""
- name: List what uses the node's NICs
  lanewise.dra.nic_users_info:
  become: true
  register: users

- name: Show the interfaces that the node needs
  ansible.builtin.debug:
    var: users.management
"""

RETURN = r"""
management:
  description: Why the node needs an interface, by the interface's name.
  returned: success
  type: dict
  sample:
    bond0: it carries the default route
    eno1: "it is below bond0: it carries the default route"
    ens2f0: it is on the route to the iSCSI server 192.0.2.9
users:
  description: The user of each NIC or VF in use, by PCI address.
  returned: success
  type: dict
  sample: {"0000:3b:00.2": a pod has it through the resource claim with UID 3f0c2f4e-6a58-4b1c-9d9e-7f3f3f0d7b11}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.management import ssh_connection
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import HostError, System
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.usage import users
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    try:
        system = System(module.params["root"])
        node = Node(system, connection=ssh_connection())
        addresses = [device.address for device in node.devices.values() if device.address]
        users_by_address = {address: user for address in addresses if (user := users(system, address))}
        management = node.management
    except (HostError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, management=management, users=users_by_address)


if __name__ == "__main__":
    main()
