# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A NIC that is divided among pods, according to the last probe."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.objects import Object
from ..topology.publish_shares import ShareRule
from .device import Device


@dataclass(frozen=True)
class Offer:
    """A divided NIC. `base` is the NIC's own device, `published` the Device of the API (v1) for the shares, and `rule`
    the rule of the settings. `physical` is the NIC's bandwidth in bit/s. `vfs` are the VFs for shares, both free and
    used ones."""

    base: Device
    published: Object
    rule: ShareRule
    physical: int
    vfs: tuple[Device, ...] = ()
