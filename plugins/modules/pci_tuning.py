#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pci_tuning
short_description: Set PCIe read requests and ordering of NICs
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Changes single bits of a PF's PCI Express Device Control register, and nothing else of its configuration space.
  - The settings are lost at a reboot. M(lanewise.dra.fabric) makes them persistent.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.actiongroup_lanewise
  - lanewise.dra.fabric
  - lanewise.dra.fabric.part
  - lanewise.dra.fabric.select
  - lanewise.dra.settings.pci_of_nics
"""

EXAMPLES = r"""
- name: Set large read requests
  lanewise.dra.pci_tuning:
    select: {near_gpu: PIX}
    max_read_request_bytes: 4096
    relaxed_ordering: true
  become: true
"""

RETURN = r"""
changes: {description: "As M(lanewise.dra.fabric) returns them.", returned: success, type: list, elements: dict}
"""

from ansible_collections.lanewise.dra.plugins.module_utils import compiled_once

compiled_once.begin()

from ansible_collections.lanewise.dra.plugins.module_utils.fabric_module import run_on_nics
from ansible_collections.lanewise.dra.plugins.module_utils.fabric_options import PCI_OF_NICS


def main() -> None:
    run_on_nics(PCI_OF_NICS)


if __name__ == "__main__":
    main()
