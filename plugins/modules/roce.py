#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: roce
short_description: Set up RDMA over Ethernet
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Sets the version and traffic class of RoCE, and the lossless Ethernet below it.
  - The settings are lost at a reboot. M(lanewise.dra.fabric) makes them persistent.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.part
  - lanewise.dra.fabric.select
  - lanewise.dra.settings.roce
"""

EXAMPLES = r"""
- name: RoCE v2, lossless on priority 3
  lanewise.dra.roce:
    select: {near_gpu: PIX, link_layer: ethernet}
    roce: {mode: v2, tos: 106}
    dcb:
      trust: dscp
      pfc: [3]
  become: true
"""

RETURN = r"""
changes: {description: "As M(lanewise.dra.fabric) returns them.", returned: success, type: list, elements: dict}
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_nics
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import ROCE


def main() -> None:
    run_on_nics(ROCE)


if __name__ == "__main__":
    main()
