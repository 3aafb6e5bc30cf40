# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Kubernetes API server: requests, the node's token, Events.

Objects are dictionaries as the API has them, always in the form of v1. It imports `base` and `dra.kube`. It knows
neither the kernel nor how a claim is prepared.
"""

from __future__ import annotations
