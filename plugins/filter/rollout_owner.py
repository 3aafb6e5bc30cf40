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
    records which run has drained the node, and reports whether that run is still running.
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
      (another run that is still running) and V(unknown) (a run that this controller cannot check).
    - C(name) is the name of that run, C(text) the annotation that this run writes.
  type: dict
"""


def rollout_owner(text: object) -> dict[str, str]:
    """The state and name of the run in an annotation. See the documentation above."""
    this = this_run()
    annotation = None if text is None or not str(text) else str(text)
    owner = parse(annotation) if annotation else None
    run_state = state(annotation, this)
    name = owner.name if owner else "of a newer release of lanewise.dra" if run_state == UNKNOWN else ""
    return {"state": run_state, "name": name, "text": this.text}


class FilterModule:
    """Filters about rollouts."""

    def filters(self) -> dict[str, t.Callable[[object], dict[str, str]]]:
        return {"rollout_owner": rollout_owner}
