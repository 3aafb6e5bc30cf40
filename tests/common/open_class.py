# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A policy for a DeviceClass that lets claims set all fields."""

from __future__ import annotations

from ansible_collections.lanewise.dra.plugins.module_utils.dra.config import tenancy
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import DRIVER
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object


def allow_everything() -> Object:
    """The `allow` of an InterfacePolicy that lets claims set every field."""
    allow: Object = {}
    for choice in tenancy.CHOICES:
        holder = allow
        for name in choice.path[:-1]:
            holder = holder.setdefault(name, {})
        holder[choice.path[-1]] = {}
    return allow


#: An entry for the `config` of a DeviceClass.
OPEN_CLASS_CONFIG: Object = {
    "opaque": {"driver": DRIVER, "parameters": tenancy.parameters([{"allow": allow_everything()}])}
}
