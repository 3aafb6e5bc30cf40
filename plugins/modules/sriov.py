#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sriov
short_description: Create and configure VFs
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Sets the number of VFs of the PFs that O(select) matches, the mode of their embedded switch, and the settings of
    each VF.
  - VFs that a pod, a guest or the node uses are never removed or changed.
  - The settings are lost at a reboot. M(lanewise.dra.fabric) makes them persistent.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.part
  - lanewise.dra.fabric.select
  - lanewise.dra.settings.sriov
"""

EXAMPLES = r"""
- name: Eight trusted VFs on each NIC beside a GPU
  lanewise.dra.sriov:
    select: {near_gpu: PIX}
    num_vfs: 8
    vf:
      trust: true
      spoof_check: false
  become: true
"""

RETURN = r"""
changes: {description: "As M(lanewise.dra.fabric) returns them.", returned: success, type: list, elements: dict}
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_nics
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import SRIOV


def main() -> None:
    run_on_nics(SRIOV)


if __name__ == "__main__":
    main()
