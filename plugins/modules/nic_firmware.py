#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_firmware
short_description: Set firmware settings of NVIDIA NICs
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Compares the firmware's values after the next reset with the desired ones. Needs C(mstconfig) on the node.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.part
  - lanewise.dra.fabric.select
  - lanewise.dra.settings.firmware
"""

EXAMPLES = r"""
- name: Allow 16 VFs per port
  lanewise.dra.nic_firmware:
    select: {near_gpu: PIX}
    firmware:
      SRIOV_EN: true
      NUM_OF_VFS: 16
  become: true
  register: firmware
"""

RETURN = r"""
changes: {description: "As M(lanewise.dra.fabric) returns them.", returned: success, type: list, elements: dict}
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_nics
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import FIRMWARE


def main() -> None:
    run_on_nics(FIRMWARE)


if __name__ == "__main__":
    main()
