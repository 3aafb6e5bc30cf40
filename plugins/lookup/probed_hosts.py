# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: probed_hosts
short_description: List the hosts that a play must still act on after the probe
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Returns the hosts of a pattern on which a play must still act after the role P(lanewise.dra.topology#role), so that
    Ansible starts no processes for other hosts.
  - If some hosts are left out, the first of them is returned as well. Ansible ends the whole run when all hosts of a
    play have failed, and this host prevents that.
options:
  _terms:
    description: A pattern of hosts, or a list of patterns.
    type: list
    elements: raw
    required: true
  but:
    description:
      - The hosts to leave out.
      - V(probed) are those whose probe succeeded; V(unchanged) those whose probe also returned a complete plan of
        the host without changes.
    type: str
    choices: [probed, unchanged]
    required: true
"""

EXAMPLES = r"""
- name: Report failed probes
  hosts: "{{ query('lanewise.dra.probed_hosts', 'all', but='probed') or 'all:!all' }}"
  tasks: []
"""

RETURN = r"""
_raw:
  description:
    - The names of the hosts in the order of the inventory, or the pattern if no host is left out. Empty if all hosts
      are left out.
  type: list
  elements: str
"""

import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase
from ansible_collections.lanewise.dra.plugins.plugin_utils.host_facts import needs_no_change, probe_of


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: dict[str, t.Any] | None = None, **kwargs: t.Any) -> list[str]:
        self.set_options(var_options=variables, direct=kwargs)
        if len(terms) != 1:
            raise AnsibleError("probed_hosts takes one pattern")
        task_vars = variables or {}
        pattern = terms[0] if isinstance(terms[0], list) else terms
        if "hostvars" not in task_vars:  # in a syntax check
            return pattern
        lookup = lookup_loader.get("ansible.builtin.inventory_hostnames", loader=self._loader, templar=self._templar)
        hosts: list[str] = lookup.run(pattern, variables=task_vars)
        is_left_out = needs_no_change if self.get_option("but") == "unchanged" else _probed
        left_out = [host for host in hosts if is_left_out(probe_of(task_vars, host))]
        if not left_out:
            return pattern
        remaining = [host for host in hosts if host not in {*left_out[1:]}]
        return remaining if len(remaining) > 1 else []


def _probed(probe: t.Mapping[str, t.Any]) -> bool:
    return "probed" in probe
