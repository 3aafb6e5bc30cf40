# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    # For modules that compile variables of a site into manifests, in a folder on the controller.
    DOCUMENTATION = r"""
notes:
  - Runs on the controller. Use it with C(run_once), after all hosts were probed, and with C(delegate_to=localhost) if
    O(kubeconfig) is set.
requirements:
  - cel-expr-python >= 0.1.3 on the controller
attributes:
  diff_mode:
    support: full
options:
  variables:
    description: The variables of the site that the description of the module names, as a dictionary.
    type: dict
    required: true
  prune:
    description: Whether to remove files that an earlier run wrote for the same site and that are no longer rendered.
    type: bool
    default: true
  feature_gates:
    description: Feature gates of the cluster that differ from the default of its version, by name.
    type: dict
    default: {}
  context:
    description: The context of the kubeconfig, by default the current one.
    type: str
"""
