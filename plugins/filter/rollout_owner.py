# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.plugin_utils.rollout_owner import UNKNOWN, parse, state, this_run

DOCUMENTATION = r"""
name: rollout_owner
short_description: Find which run has cordoned a node
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Reads the annotation C(fabric.lanewise.dev/cordoned) of a Node, in which the role P(lanewise.dra.fabric#role)
    records which run has drained it, and reports whether that run still continues.
positional: _input
options:
  _input:
    description: The annotation; empty if the Node does not have it.
    type: str
seealso:
  - module: lanewise.dra.rollout
"""

EXAMPLES = r"""
- name: Show who has cordoned the node
  ansible.builtin.debug:
    msg: "{{ (node.metadata.annotations['fabric.lanewise.dev/cordoned'] | lanewise.dra.rollout_owner).name }}"
"""

RETURN = r"""
_value:
  description:
    - C(state) is one of V(nobody), V(ours) (this run), V(ended) (a run that has ended or was interrupted), V(runs)
      (another run that continues) and V(unknown) (a run of another controller, which this one cannot see).
    - C(name) names that run, C(text) is the annotation that this run writes.
  type: dict
"""


def rollout_owner(text: object) -> dict[str, str]:
    own = this_run()
    annotation = None if text is None or not str(text) else str(text)
    owner = parse(annotation) if annotation else None
    now = state(annotation, own)
    name = owner.name if owner else "of a newer release of lanewise.dra" if now == UNKNOWN else ""
    return {"state": now, "name": name, "text": own.text}


class FilterModule:
    """Filters about rollouts."""

    def filters(self) -> dict[str, t.Callable[[object], dict[str, str]]]:
        return {"rollout_owner": rollout_owner}
