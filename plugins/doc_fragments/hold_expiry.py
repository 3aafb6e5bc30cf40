# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    # When a hold of devices expires, for modules that create one.
    DOCUMENTATION = r"""
options:
  hours:
    description:
      - The hours from now until the hold expires, from 1 to 8784 (366 days). Ignored if O(expires) is set.
      - A hold that exists and has not expired keeps its expiry.
    type: int
    default: 24
  expires:
    description:
      - When the hold expires, as a time with its zone, such as C(2026-12-01T08:00:00Z), or a date, such as
        C(2026-12-01), which means the start of that day in UTC.
      - This also changes the expiry of a hold that exists.
    type: str
"""
