# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The devices of the node's inventory, and the ResourceSlices that publish them.

This package imports `base`, `kernel`, `api`, `interface` (for `Identity`), `dra.kube`, `topology` and `uplinks`. It
never imports `claims`: callers pass the devices that claims hold.
"""

from __future__ import annotations
