# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The DRA driver lanewise.dev: gives claimed NICs and RDMA devices to pods.

Installed as the package `lanewise_driver`. It includes the collection's packages `topology`, `uplinks`, `dra.config`
and `dra.kube`.
"""

from __future__ import annotations
