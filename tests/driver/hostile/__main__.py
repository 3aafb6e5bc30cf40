# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""python3 -m hostile CARD [CONFIG]: make each attempt between two VFs of a card, and print a line of JSON for each.
CONFIG is the InterfaceConfig of both pods."""

from __future__ import annotations

import json
import sys

from . import attempts, testbed

vfs = testbed.virtual_functions(sys.argv[1])
vfs.config = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
for attempt in attempts.ATTEMPTS:
    if attempt.machines == 1:
        result, left = attempts.outcome(vfs, attempt)
        print(json.dumps([attempt.text, result, left]), flush=True)
