# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares of NICs: the guaranteed rate of each share, and the kernel settings that enforce it.

Callers pass the shares. This package imports `base`, `kernel`, `interface`, `dra` and `topology`. It never imports
`claims`, and does not depend on records on disk or the API server.
"""

from __future__ import annotations
