# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.manifest_yaml import to_manifest

DOCUMENTATION = r"""
name: to_manifest
short_description: Write a value as YAML that Kubernetes tools read correctly
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Writes an object as YAML, or a single string or number for use in a template.
  - Quotes text that C(kubectl), Flux and Argo CD would not read as text, such as V(08), V(7e2), V(0o17) or V(y).
    The filter P(ansible.builtin.to_nice_yaml#filter) does not, because Ansible itself reads these as text.
positional: _input
options:
  _input:
    description: The value.
    type: raw
    required: true
seealso:
  - module: lanewise.dra.dra_render
"""

EXAMPLES = r"""
- name: Show an object as YAML
  ansible.builtin.debug:
    msg: "{{ {'metadata': {'labels': {'rack': '08'}}} | lanewise.dra.to_manifest }}"
"""

RETURN = r"""
_value:
  description: The YAML. That of an object ends with a line break, that of a single string or number does not.
  type: str
"""


class FilterModule:
    """The filter to_manifest."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        return {"to_manifest": to_manifest}
