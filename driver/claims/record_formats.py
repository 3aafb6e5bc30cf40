# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The versions of the record format, by the rules of `topology.stored`.

Pods keep running while the driver is upgraded or rolled back, and a device cannot be returned to the node without a
readable record. tests/driver/test_record_releases.py contains the readers and records of all releases, and tests every
combination.
"""

from __future__ import annotations

from ..topology.stored import Formats

FORMATS = Formats("schema")
