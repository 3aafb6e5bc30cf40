# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What kubelet asks by gRPC: registration, prepare, unprepare and device health.

It turns each request into a call of the service that `base.calls` describes. It imports `base` alone: neither
claims nor the kernel.
"""

from __future__ import annotations
