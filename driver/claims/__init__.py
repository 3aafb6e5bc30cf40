# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The life cycle of a claim on this node: prepared, attached, detached, removed.

Records on disk are the source of truth; the CDI spec, device metadata, the claim's status and device health are derived
from them. This package may import every other package of the driver except `hook` and `kubelet`; only `daemon` and
`cli` import it.
"""

from __future__ import annotations
