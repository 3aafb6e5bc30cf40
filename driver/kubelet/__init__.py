# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gRPC services for kubelet: registration, prepare, unprepare and device health.

Each request becomes a call of the service that `base.calls` defines. This package imports `base` and `dra.config`, and
neither `claims` nor `kernel`.
"""

from __future__ import annotations
