# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Computes what a claim gets for an allocated share of a NIC: the rates, and a VF or a traffic class.

As in `plan`, nothing here touches the node or the cluster.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import dataclass, replace

from ..base.errors import Busy, Refused, bounded
from ..base.objects import Object
from ..dra.config.interface_config import SHARE_VF_FIELDS
from ..dra.kube import quantity
from ..kernel import htb
from ..publish.device import Device
from ..publish.offer import Offer
from ..shares.share import DividedBandwidth, ShareRecord, free_minor, mac_of
from ..topology.publish_shares import MACVLAN, VFS, ShareRule, factor_text
from .records import DeviceRecord, Record

#: Maximum bit/s that a claim can have consumed: no NIC has a higher rate.
_MAX_RATE = 10**15
#: The names of the capacity, without and with its domain.
_BANDWIDTH = ("bandwidth", "lanewise.dev/bandwidth")


@dataclass(frozen=True)
class ShareRequest:
    """One allocated share: the path of its result, the UID and the namespace of its claim, and the capacity that it
    consumes. `field_path` returns the path of a field of its configuration."""

    path: str
    uid: str
    namespace: str
    consumed: t.Any
    field_path: t.Callable[[str], str]


@dataclass(frozen=True)
class ShareContext:
    """The data for assigning shares.

    `offers` are the NICs that are divided into shares, by the name of the device published for their shares. `records`
    are those of other claims, and the claim's new record with the devices that it has so far. `already_held` are the
    devices of the claim's existing record. `unclean` are the names of withheld VFs.
    """

    offers: t.Mapping[str, Offer]
    records: t.Sequence[Record]
    already_held: t.Sequence[DeviceRecord] = ()
    unclean: t.Container[str] = ()


def divided(offer: Offer) -> DividedBandwidth:
    """The divided bandwidth of a NIC, according to the settings."""
    return DividedBandwidth(offer.physical, offer.rule.factor, offer.rule.share_ceiling(offer.physical))


def shares_of(base: str, records: t.Iterable[Record]) -> list[DeviceRecord]:
    """The shares, held by any claim, of the NIC whose device as a whole has the name `base`."""
    return [device for record in records for device in record.held if device.share and device.share.of == base]


def excludes(device: DeviceRecord, other: DeviceRecord) -> bool:
    """Whether two claims cannot have these devices at the same time: both are the same device as a whole, or shares
    with the same VF; or one is a share of a NIC, and the other is this NIC or one of its VFs."""
    if device.share and other.share:
        return device.own_name == other.own_name != device.share.of
    if device.share or other.share:
        with_share, without = (device, other) if device.share else (other, device)
        of_nic = bool(with_share.share and without.device in (with_share.share.of, with_share.own_name))
        return of_nic or without.lock == with_share.lock != ""
    return device.device == other.device


def assign(device: DeviceRecord, request: ShareRequest, context: ShareContext) -> DeviceRecord:
    """The device record of a request, with its share. A claim that already has its share keeps it.

    Raises Refused, or Busy if a retry may help.
    """
    for old in context.already_held:
        if old.share and (old.device, old.share_id) == (device.device, device.share_id):
            held = replace(device, lock=old.lock, share=old.share)
            return replace(held, known=old.known, config=old.config, interface=old.interface)
    offer = context.offers.get(device.device)
    if offer is None:
        raise Busy(
            f"{request.path}.device: the NIC of {device.device} cannot be divided into shares now: the node's settings "
            "do not divide it, its link is down, or another claim has the whole NIC"
        )
    _check_permitted(device, request, offer)
    share = _share_record(device, request, offer)
    others = shares_of(share.of, context.records)
    if divided(offer).totals([*(other.share for other in others if other.share), share]).debt:
        raise Busy(
            f"{request.path}.consumedCapacity: the shares of {share.of} would be promised more than "
            f"{factor_text(offer.rule.factor)} times its {offer.physical} bit/s; the claim waits until a share ends"
        )
    if share.mechanism == MACVLAN:
        known, config = _assign_class(device, request, offer, share, others)
    else:
        known, config = _assign_vf(device, request, offer, context)
    lock = offer.base.pf or offer.base.address or offer.base.name
    name = str(config.get("name") or known.interface or "")
    return replace(device, known=known, config=config, interface=name, lock=lock, share=share)


def _check_permitted(device: DeviceRecord, request: ShareRequest, offer: Offer) -> None:
    """Raises Refused if the claim may not have a share of this NIC, or not with its configuration."""
    if not device.share_id:
        raise Refused(f"{request.path}.shareID: is missing: {device.device} is allocated in shares only")
    if offer.rule.namespace and request.namespace != offer.rule.namespace:
        raise Refused(
            f"{request.path}.device: the node's settings reserve shares of {device.device} for the namespace "
            f"{offer.rule.namespace}, and the claim is in {request.namespace}"
        )
    if "child" in device.config:
        raise Refused(f"{request.field_path('child')}: is not allowed for shares, which have their own interfaces")
    for name in device.config.get("vf", {}):
        if name not in SHARE_VF_FIELDS or offer.rule.mechanism != VFS:
            allowed = f"may set {', '.join(SHARE_VF_FIELDS)} only" if offer.rule.mechanism == VFS else "has no VF"
            raise Refused(f"{request.field_path('vf')}.{name}: a share of {device.device} {allowed}")


def _share_record(device: DeviceRecord, request: ShareRequest, offer: Offer) -> ShareRecord:
    """The record of the share, from the claim's configuration and the consumed capacity. Raises Refused."""
    config, factor = device.config.get("share", {}), offer.rule.factor
    consumed = _consumed(request)
    hard = bool(config.get("hard", False))
    requested = int(quantity.parse(config["guarantee"])) if hard else consumed
    if hard and requested * factor > consumed:
        raise Refused(
            f"{request.field_path('share')}.guarantee: {config['guarantee']} with the factor {factor_text(factor)} "
            f"needs {math.ceil(requested * factor)} bit/s of the capacity, but only {consumed} were allocated; "
            "render the claim again"
        )
    available = offer.physical if hard else int(offer.physical * factor)
    if requested > available:
        path = f"{request.field_path('share')}.guarantee" if hard else f"{request.path}.consumedCapacity"
        raise Refused(f"{path}: {requested} bit/s exceed the {available} bit/s of {device.device}")
    burst = int(quantity.parse(config["burst"])) if "burst" in config else 0
    if burst and burst < requested:
        if hard or burst <= requested - _rounding(consumed, offer.rule):
            raise Refused(
                f"{request.field_path('share')}.burst: {config['burst']} is less than the share, {requested} bit/s"
            )
        requested = burst
    return ShareRecord(
        of=offer.base.name,
        mechanism=offer.rule.mechanism,
        asked=requested,
        consumed=consumed,
        physical=offer.physical,
        ceiling=offer.rule.share_ceiling(offer.physical),
        hard=hard,
        burst=burst,
        factor=factor_text(factor),
    )


def _rounding(consumed: int, rule: ShareRule) -> int:
    """The allocated bit/s exceed the requested ones by less than this: the scheduler rounds a request up to the minimum
    or to the next step (`requestPolicy.validRange` of KEP-5075)."""
    return rule.minimum if consumed == rule.minimum else rule.step


def _consumed(request: ShareRequest) -> int:
    """The bit/s that the scheduler has allocated. Raises Refused."""
    path = f"{request.path}.consumedCapacity"
    if not isinstance(request.consumed, dict):
        raise Refused(f"{path}: must be a mapping")
    value = next((request.consumed[name] for name in _BANDWIDTH if name in request.consumed), None)
    if value is None:
        raise Refused(f"{path}.bandwidth: is missing, so the size of the share is unknown")
    try:
        number = quantity.parse(value)
    except quantity.QuantityError as error:
        raise Refused(f"{path}.bandwidth: {bounded(repr(value), 80)} is not a quantity: {error}") from None
    if not 0 < number <= _MAX_RATE:
        raise Refused(f"{path}.bandwidth: {bounded(repr(value), 80)} is not a rate in bit/s")
    return quantity.integer(number)


def _assign_class(
    device: DeviceRecord, request: ShareRequest, offer: Offer, share: ShareRecord, others: t.Sequence[DeviceRecord]
) -> tuple[Device, Object]:
    """The parent of a share's macvlan interface, and the configuration. Adds the traffic class and the MAC address to
    the share. `others` are the other shares of the NIC. Raises Refused and Busy."""
    share.mac = str(device.config.get("mac") or mac_of(request.uid, device.share_id)).lower()
    for other in others:
        if other.share and other.share.mac == share.mac:
            raise Refused(f"{request.field_path('mac')}: another share of {share.of} has the address {share.mac}")
    minor = free_minor((other.share.minor for other in others if other.share), htb.FIRST_MINOR, htb.LAST_MINOR)
    if minor is None:
        raise Busy(f"{request.path}.device: {share.of} has no free traffic class for another share")
    share.minor = minor
    child = {"type": "macvlan", "mode": offer.rule.mode}
    known = replace(offer.base, name=device.device, device=offer.published, rdma_devices=())
    return known, {**device.config, "mac": share.mac, "child": child}


def _assign_vf(
    device: DeviceRecord, request: ShareRequest, offer: Offer, context: ShareContext
) -> tuple[Device, Object]:
    """A free VF, and the configuration. Raises Busy."""
    used = {held_device.known.address for record in context.records for held_device in record.held}
    for vf in offer.vfs:
        if vf.address not in used and vf.name not in context.unclean and vf.interface:
            known = replace(vf, name=device.device, device=offer.published)
            return known, {**device.config, "vf": {**device.config.get("vf", {}), "spoofchk": True}}
    raise Busy(f"{request.path}.device: {offer.base.name} has no free VF for another share")
