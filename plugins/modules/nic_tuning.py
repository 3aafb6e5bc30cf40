#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_tuning
short_description: Set MTU, queues, interrupts, sysctls and routes of NICs
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Configures the network interfaces of NICs.
  - The settings are lost at a reboot. M(lanewise.dra.fabric) makes them persistent.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.part
  - lanewise.dra.fabric.select
  - lanewise.dra.settings.tuning
"""

EXAMPLES = r"""
- name: Set jumbo frames, and interrupts on the NIC's own socket
  lanewise.dra.nic_tuning:
    select: {near_gpu: PIX}
    mtu: 9000
    irq_affinity: local
  become: true
"""

RETURN = r"""
changes: {description: "As M(lanewise.dra.fabric) returns them.", returned: success, type: list, elements: dict}
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_nics
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import TUNING


def main() -> None:
    run_on_nics(TUNING)


if __name__ == "__main__":
    main()
