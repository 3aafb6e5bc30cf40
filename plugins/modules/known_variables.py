#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: known_variables
short_description: Refuse unknown variables
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Fails if a host of the play has a variable with a prefix of this collection's roles (C(fabric_), C(dra_driver_),
    C(dra_claims_), C(queues_), C(topology_), C(alignment_)) that no role knows, or a name that is close to a playbook's
    variable (C(site_confrim)). Such a variable would have no effect.
  - List your own variables with such names in the variable C(site_own_variables), as names and shell patterns.
  - Also fails if C(fabric_board) is not a known board. The playbooks and roles of this collection run it first.
extends_documentation_fragment:
  - lanewise.dra.attributes
  - lanewise.dra.attributes.info_module
  - lanewise.dra.attributes.controller
  - lanewise.dra.attributes.actiongroup_lanewise
seealso:
  - module: lanewise.dra.rollout
"""

EXAMPLES = r"""
- name: Refuse misspelt variables
  lanewise.dra.known_variables:
  run_once: true
"""

RETURN = r"""
problems:
  description: The unknown variables, with the hosts that have them.
  returned: always
  type: list
  elements: str
  sample: ["gpu-01, gpu-02: fabric_nic is not known: did you mean fabric_nics?"]
"""
