# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Protocols for the API client and the inventory that claims use, so that tests can pass other implementations; and a
check of claims' devices that both prepare and attach need."""

from __future__ import annotations

import typing as t

from ..base import trace
from ..base.errors import Busy
from ..base.objects import Object
from ..base.settings import Settings
from ..publish.device import Device
from ..publish.offer import Offer
from ..publish.places import Places
from ..topology import publish
from . import claim_status
from .records import Record


class Cluster(claim_status.Api, t.Protocol):
    """The part of `api.cluster.Cluster` that claims use."""

    node: str

    def claim(self, namespace: str, name: str, meanwhile: t.Callable[[], None] | None = None) -> Object | None: ...

    def pod(self, namespace: str, name: str) -> Object | None: ...

    def slices_of(self, driver: str) -> list[Object]: ...


class Inventory(t.Protocol):
    """The part of `publish.inventory.Inventory` that claims use."""

    def refresh(self) -> publish.Publication: ...

    def device(self, name: str) -> Device | None: ...

    def offer(self, name: str) -> Offer | None: ...

    def withheld(self, name: str) -> str: ...

    def needed_by_node(self, names: t.Iterable[str]) -> dict[str, str]: ...

    def prefetch(self) -> None: ...

    @property
    def publication(self) -> publish.Publication: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def places(self) -> Places: ...


def check_not_needed_by_node(inventory: Inventory, record: Record) -> None:
    """Check that the node itself does not need a claim's devices now. Raises Busy for the first device that it needs,
    and DriverError if the kernel does not answer."""
    with trace.step("check if the node needs the devices"):
        needed = inventory.needed_by_node([device.device for device in record.held])
    for name, reason in needed.items():
        raise Busy(f"{name} is withheld from pods now: {reason}")
