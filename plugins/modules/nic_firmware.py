#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_firmware
short_description: Set what an NVIDIA NIC's firmware starts with
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Compares what the firmware starts with next with what is wanted. Needs C(mstconfig) on the node.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.select
  - lanewise.dra.settings.firmware
seealso:
  - module: lanewise.dra.fabric
    description: Takes all of a node's settings in one call.
"""

EXAMPLES = r"""
- name: Let the card have 16 VFs
  lanewise.dra.nic_firmware:
    select: {near_gpu: PIX}
    firmware:
      SRIOV_EN: true
      NUM_OF_VFS: 16
  become: true
  register: firmware
"""

RETURN = r"""
changes:
  description: What was changed, in order, or would be in check mode, as M(lanewise.dra.fabric) returns it.
  returned: success
  type: list
  elements: dict
drain_reasons:
  description: Why pods on the node would notice.
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
  description: The timer that takes the changes back, with C(id) and C(seconds). In check mode without C(id).
  returned: where a NIC is changed that the node is reached by
  type: dict
left_alone:
  description: The NICs that were chosen and have no settings, as a pod has them, each with who that is.
  returned: success
  type: list
  elements: str
settings:
  description: The settings of each NIC that was chosen.
  returned: success
  type: dict
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once  # noqa: F401 - finds the others
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_nics
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import FIRMWARE


def main() -> None:
    run_on_nics(FIRMWARE)


if __name__ == "__main__":
    main()
