# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver on an example machine: it probes the machine's tree, and its NICs are veth pairs.

    python tree_driver.py --root TREE ARGUMENTS-OF-LANEWISE-DRIVER ...

A veth interface has no PCI function. So this program differs from the real driver in one way: it identifies an
interface only by the permanent MAC address that the tree has for the function, and not also by the kernel's parent
device.
"""

from __future__ import annotations

import sys
import typing as t

from lanewise_driver import cli
from lanewise_driver.interface import identity


def _matches(link: t.Any, expected: identity.Identity, *_rest: t.Any, **_more: t.Any) -> bool:
    return bool(expected.permanent_mac) and link.mac == expected.permanent_mac


if __name__ == "__main__":
    identity._matches = _matches
    sys.exit(cli.main())
