# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The policy of a DeviceClass that lets claims set everything."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import tenancy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import DRIVER

Object = dict[str, t.Any]


def everything() -> Object:
    """What a class allows that lets claims set everything."""
    allow: Object = {}
    for choice in tenancy.CHOICES:
        holder = allow
        for name in choice.path[:-1]:
            holder = holder.setdefault(name, {})
        holder[choice.path[-1]] = {}
    return allow


#: An entry of a DeviceClass's `config`.
OPEN_CLASS: Object = {"opaque": {"driver": DRIVER, "parameters": tenancy.parameters([{"allow": everything()}])}}
