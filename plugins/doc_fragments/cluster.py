# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    # For modules that read a cluster from the controller, with the package kubernetes.
    DOCUMENTATION = r"""
requirements:
  - kubernetes (Python client) >= 24.2.0 on the controller
options:
  kubeconfig:
    description: A kubeconfig file on the controller. By default that of C(kubectl).
    type: path
  context:
    description: The context of the kubeconfig, by default the current one.
    type: str
"""
