# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Access to the Kubernetes API server: credentials, requests, the node's token, Events.

Objects are dictionaries as in the API; those of resource.k8s.io are always v1. This package imports only `base` and
`dra.kube` of the driver. It depends neither on the kernel nor on how a claim is prepared.
"""

from __future__ import annotations
