# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One network interface on its way into a pod and back.

Which interface belongs to a device, its state on the node, moving it into a pod, configuring it there, taking it
back and comparing it. It imports `base`, `kernel`, `dhcp` and `dra`. It never imports `claims` or `publish`: it
stores nothing, and speaks to nobody but the kernel.
"""

from __future__ import annotations
