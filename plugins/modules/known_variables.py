#!/usr/bin/python

# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: known_variables
short_description: Refuse variables that nothing reads
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Fails where a host of the play has a variable whose name begins as those of this collection's roles do (C(fabric_),
    C(dra_driver_), C(dra_claims_), C(topology_), C(alignment_)) and that no role knows, or one that is nearly a
    playbook's (C(site_confrim)). Such a variable would be a wish that nobody hears.
  - A site's own variables with such names are named in the variable C(site_own_variables), a list of names and shell
    patterns.
  - Fails, too, where C(fabric_board) names no board. The playbooks and roles of this collection run it first.
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
  description: What is not known, with the hosts that have it.
  returned: always
  type: list
  elements: str
  sample: ["gpu-01, gpu-02: fabric_nic is not known: did you mean fabric_nics?"]
"""
