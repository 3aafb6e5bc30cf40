# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Moving one network interface into a pod and back.

It finds a device's interface, reads the host state, moves the interface into a pod and configures it there. Later it
takes the interface back, restores the host state, and compares the result with it. This package imports `base`,
`kernel`, `dhcp` and `dra`, never `claims` or `publish`: it stores nothing, and talks only to the kernel.
"""

from __future__ import annotations
