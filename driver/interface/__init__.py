# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Moving one network interface into a pod and back.

Finding a device's interface, reading its state on the node, moving it into a pod, configuring it there, taking it back
and comparing its state. This package imports `base`, `kernel`, `dhcp` and `dra`, never `claims` or `publish`: it stores
nothing, and talks only to the kernel.
"""

from __future__ import annotations
