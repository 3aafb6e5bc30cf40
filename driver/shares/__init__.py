# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares of NICs: what each is promised, and the kernel's settings that keep it.

It is told which shares there are. It must not know claims, records on disk, or the API server.
"""

from __future__ import annotations
