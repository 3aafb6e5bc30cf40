# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""python3 -m hostile CARD [CONFIG]: each attempt between two VFs of a card, a line of JSON for each. CONFIG is an
InterfaceConfig of both."""

from __future__ import annotations

import json
import sys

from . import arena, attempts

place = arena.virtual_functions(sys.argv[1])
place.config = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
for one in attempts.ATTEMPTS:
    if one.machines == 1:
        result, left = attempts.outcome(place, one)
        print(json.dumps([one.text, result, left]), flush=True)
