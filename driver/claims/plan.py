# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Derives the record of a claim: its devices with their merged configuration, or why the claim is refused.

Nothing here touches the node or the cluster. Whatever a claim contains, the result is a record or a DriverError that
names the field: tenants write claims, and only some fields are checked at admission.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass, field

from ..base.calls import Pod
from ..base.errors import Busy, Refused, bounded
from ..base.objects import Object
from ..dra.config import interface_config
from ..dra.kube import limits
from ..dra.kube.bounded_json import DEPTH, is_nested_deeper
from ..interface import rails
from ..publish.device import Device
from ..publish.offer import Offer
from . import claim_configs, pod_names, share_plan
from .claim_configs import Config, refusal
from .claim_fields import allocated, get, mapping
from .metadata import POD_CLAIM_NAME
from .records import DeviceRecord, Record

DRIVER = interface_config.DRIVER

#: Fields that must differ between the devices of a pod, so that one configuration with them cannot cover several.
_UNIQUE_FIELDS = ("name", "addresses", "mac")
_RESULTS = "status.allocation.devices.results"
_SHARE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")


@dataclass
class _Result:
    """A result of the allocation, with the device that it names and the configurations that cover it."""

    path: str
    request: str
    pool: str
    device: str
    admin: bool
    share_id: str
    known: Device
    consumed: t.Any = None
    configs: list[Config] = field(default_factory=list)


def consumer(claim: t.Any, uid: str) -> Pod | None:
    """The pod that a claim is for; None if all its devices of this driver are for admin access, which any pod may have.

    Raises Refused if the claim has another UID than `uid`, is not allocated, has no device of this driver, or is not
    reserved for exactly one pod.
    """
    _check_claim(claim, uid)
    results = _our_results(claim)
    if all(get(result, "adminAccess", bool, path, False) for path, result in results):
        return None
    status = get(claim, "status", dict, "", {})
    entries = get(status, "reservedFor", list, "status", [])
    if not entries:
        raise Refused("status.reservedFor: the claim is not reserved for a pod")
    if len(entries) > 1:
        raise Refused(
            f"status.reservedFor: the claim is reserved for {len(entries)} consumers, and a network device can be in "
            "one pod only; use a ResourceClaimTemplate to give each pod its own claim"
        )
    path = "status.reservedFor[0]"
    entry = mapping(entries[0], path)
    group = get(entry, "apiGroup", str, path, "")
    resource = get(entry, "resource", str, path)
    if group or resource != "pods":
        name = f"{resource}.{group}" if group else resource
        raise Refused(f"{path}.resource: the claim is reserved for an object of {name}; this driver serves only pods")
    metadata = get(claim, "metadata", dict, "")
    return Pod(
        namespace=get(metadata, "namespace", str, "metadata"),
        name=get(entry, "name", str, path),
        uid=get(entry, "uid", str, path),
    )


def plan(
    claim: t.Any,
    *,
    uid: str,
    node: str,
    known: t.Mapping[str, Device],
    records: t.Iterable[Record],
    boot: str,
    withheld: t.Mapping[str, str] | None = None,
    offers: t.Mapping[str, Offer] | None = None,
    unclean: t.Container[str] = (),
) -> Record:
    """The record of a claim that can be prepared on this node.

    - `claim` is a v1 ResourceClaim; its pod is checked by `check_pod`.
    - `uid` is the UID that kubelet requests.
    - `known` are the devices of the pool `node` by name, `withheld` has the reasons why others are not published.
    - `records` are those of all claims, including that of this claim if it has one.
    - `boot` is the ID of the node's current boot.
    - `offers` are the NICs that are divided into shares, by the name of the device published for their shares.
    - `unclean` are the names of devices that are withheld because their original state could not be restored.

    Raises Refused, or Busy if a retry may help.
    """
    owner = consumer(claim, uid)
    results = _results(claim, node, known, withheld or {})
    configs = claim_configs.read(claim)
    metadata = get(claim, "metadata", dict, "")
    namespace = get(metadata, "namespace", str, "metadata")
    claim_configs.check(_allocated_devices(claim), configs, namespace)
    record = Record(
        uid=uid,
        namespace=namespace,
        name=get(metadata, "name", str, "metadata"),
        pod=owner,
        boot=boot,
        devices=[],
        pod_claim_name=_pod_claim_name(metadata),
    )
    _add_configs(results, configs.settings)
    records = list(records)
    others = [other for other in records if other.uid != uid]
    already_held = [device for other in records if other.uid == uid for device in other.held]
    # including the new record, because a claim may have two shares of a NIC
    share_context = share_plan.ShareContext(offers or {}, [*others, record], already_held, unclean)
    for result in results:
        device = _device(result)
        if result.known.device.get("allowMultipleAllocations") and not result.admin:
            device = share_plan.assign(device, _share_request(result, device, record), share_context)
        record.devices.append(device)
        _check_free(result, device, record, others)
    named = [_named_device(device, result) for device, result in zip(record.devices, results, strict=True)]
    pod_names.check(named, [other for other in others if owner and other.is_for(owner.uid)])
    return record


def why_devices_lost(claim: t.Any, record: Record) -> str:
    """Why a claim no longer has all devices of its record, or an empty string. `claim` is the claim of the record's
    name in the API server, None if there is none."""
    if claim is None:
        return "the claim was deleted"
    try:
        _check_claim(claim, record.uid)
        allocated_now = {
            (get(result, "pool", str, path), get(result, "device", str, path)) for path, result in _our_results(claim)
        }
    except Refused as error:
        return f"the claim has lost its devices ({error.message})"
    lost = [device.device for device in record.devices if (device.pool, device.device) not in allocated_now]
    return f"no longer allocated to the claim: {', '.join(lost)}" if lost else ""


# reading fields that others wrote


def _check_claim(claim: t.Any, uid: str) -> None:
    if is_nested_deeper(claim):
        raise Refused(f"claim: is nested deeper than {DEPTH} levels")
    metadata = get(mapping(claim, ""), "metadata", dict, "")
    current = get(metadata, "uid", str, "metadata")
    if current != uid:
        raise Refused(f"metadata.uid: the claim has UID {current} instead of {uid}: it was deleted and created again")
    status = get(claim, "status", dict, "", {})
    if status.get("allocation") is None:
        raise Refused("status.allocation: the claim is not allocated")


def _our_results(claim: Object) -> list[tuple[str, Object]]:
    """The results with devices of this driver, and their paths. Raises Refused if there are none."""
    results = []
    for index, value in enumerate(get(allocated(claim), "results", list, "status.allocation.devices", [])):
        path = f"{_RESULTS}[{index}]"
        if get(mapping(value, path), "driver", str, path) == DRIVER:
            results.append((path, value))
    if not results:
        raise Refused(f"{_RESULTS}: no device of {DRIVER} is allocated to the claim")
    return results


def _allocated_devices(claim: Object) -> list[claim_configs.AllocatedDevice]:
    """The devices of any driver that are allocated to a claim. Raises Refused."""
    devices = []
    for index, value in enumerate(get(allocated(claim), "results", list, "status.allocation.devices", [])):
        path = f"{_RESULTS}[{index}]"
        entry = mapping(value, path)
        admin = get(entry, "adminAccess", bool, path, False)
        is_own = get(entry, "driver", str, path) == DRIVER
        devices.append(claim_configs.AllocatedDevice(path, get(entry, "request", str, path), admin, is_own))
    return devices


def _pod_claim_name(metadata: Object) -> str:
    """The value of the annotation POD_CLAIM_NAME. Tenants can set it, and it becomes part of a path in containers.
    Raises Refused."""
    annotations = get(metadata, "annotations", dict, "metadata", {})
    name = get(annotations, POD_CLAIM_NAME, str, "metadata.annotations", "")
    if name and (wrong := limits.dns_label(name)):
        raise Refused(
            f"metadata.annotations['{POD_CLAIM_NAME}']: {bounded(repr(name), 80)} {wrong}. Kubernetes sets this "
            "annotation on claims that it creates from templates; other claims must not have it"
        )
    return name


def _request(entry: Object, path: str) -> str:
    """The request or subrequest of a result, which becomes part of paths and CDI names. Raises Refused."""
    name = get(entry, "request", str, path)
    parts = name.split("/")
    if len(parts) > 2 or any(map(limits.dns_label, parts)):
        raise Refused(f"{path}.request: {bounded(repr(name), 80)} is not a valid request name")
    return name


def _share_id(entry: Object, path: str) -> str:
    share_id = get(entry, "shareID", str, path, "")
    if share_id and (limits.size(share_id) > limits.DNS_LABEL_BYTES or not _SHARE_ID.fullmatch(share_id)):
        raise Refused(f"{path}.shareID: {bounded(repr(share_id), 80)} is not a valid share ID")
    return share_id


def check_pod(pod: t.Any, owner: Pod, node: str) -> None:
    """Check that `pod` is the `owner` of a claim, is bound to `node` and does not use the node's network. `pod` is a v1
    Pod, or None if the owner does not exist. Raises Refused."""
    if pod is None:
        raise Refused(f"status.reservedFor[0]: pod {owner.namespace}/{owner.name} does not exist")
    metadata = get(mapping(pod, "pod"), "metadata", dict, "pod")
    if get(metadata, "uid", str, "pod.metadata") != owner.uid:
        raise Refused(f"status.reservedFor[0].uid: pod {owner.namespace}/{owner.name} was deleted and created again")
    spec = get(pod, "spec", dict, "pod")
    bound = get(spec, "nodeName", str, "pod.spec", "")
    if bound != node:
        raise Refused(f"pod.spec.nodeName: the pod is bound to {bound or 'no node'}, not to this node {node}")
    if get(spec, "hostNetwork", bool, "pod.spec", False):
        raise Refused(
            "pod.spec.hostNetwork: the pod uses the node's network, so no network device can be moved into it"
        )


def _results(claim: Object, node: str, known: t.Mapping[str, Device], withheld: t.Mapping[str, str]) -> list[_Result]:
    results: list[_Result] = []
    for path, entry in _our_results(claim):
        pool = get(entry, "pool", str, path)
        device = get(entry, "device", str, path)
        if pool != node:
            raise Refused(f"{path}.pool: the device is in pool {pool}, not in the pool {node} of this node")
        if device not in known:
            reason = withheld.get(device)
            problem = f"is withheld from pods: {reason}" if reason else "is not published by this node"
            raise Busy(f"{path}.device: {device} {problem}")
        results.append(
            _Result(
                path=path,
                request=_request(entry, path),
                pool=pool,
                device=device,
                admin=get(entry, "adminAccess", bool, path, False),
                share_id=_share_id(entry, path),
                known=known[device],
                consumed=entry.get("consumedCapacity"),
            )
        )
    return results


# checks


def _add_configs(results: list[_Result], configs: list[Config]) -> None:
    """Add to each result the configurations that cover it. Raises Refused for a field that several devices cannot
    share, and for a configuration of a request with admin access."""
    for config in configs:
        covered = [result for result in results if config.covers(result.request)]
        for result in covered:
            if result.admin and not config.of_class and config.requests:
                raise Refused(
                    f"{config.path}: request {result.request} has admin access, and cannot configure its device"
                )
            if not result.admin:
                result.configs.append(config)
        devices = [result.device for result in covered if not result.admin]
        for name in _UNIQUE_FIELDS if len(devices) > 1 else ():
            if name in config.fields:
                raise Refused(
                    f"{config.path}.{name}: would be the same for {', '.join(devices)}; "
                    "write a separate configuration for each request"
                )


def _merged(result: _Result) -> Object:
    """The merged fields of a device's configurations. Raises Refused."""
    fields = interface_config.merge_configs(config.fields for config in result.configs)
    if len(result.configs) > 1:
        # each configuration is valid by itself, but they may contradict each other
        problems = interface_config.validate(fields, result.configs[-1].path, complete=False)
        if problems:
            others = ", ".join(config.path for config in result.configs[:-1])
            raise Refused(f"{refusal(problems)}, together with {others}")
    if fields.get(rails.FIELD) is False:
        del fields[rails.FIELD]
    if "vrf" in fields:
        fields["vrf"] = {"table": interface_config.vrf_table(fields["vrf"]["name"]), **fields["vrf"]}
    return fields


def _device(result: _Result) -> DeviceRecord:
    known = result.known
    config = {} if result.admin else _merged(result)
    interface = known.interface
    if config and not interface:
        path = _field_path(result, next(iter(config)))
        raise Refused(f"{path}: {result.device} has no network interface to configure")
    divided = bool(known.device.get("allowMultipleAllocations"))
    if "share" in config and not divided:
        raise Refused(f"{_field_path(result, 'share')}: {result.device} is allocated as a whole, not in shares")
    if "vf" in config and known.pf is None and not divided:
        raise Refused(f"{_field_path(result, 'vf')}: {result.device} is not a virtual function")
    if known.link_layer == "infiniband":
        _check_infiniband(result, config)
    return DeviceRecord(
        device=result.device,
        pool=result.pool,
        request=result.request,
        known=known,
        config=config,
        interface="" if result.admin or not interface else str(config.get("name", interface)),
        admin=result.admin,
        share_id=result.share_id,
        lock=known.pf or known.address or result.device,
    )


def _field_path(result: _Result, name: str) -> str:
    """The path of a field in the configuration that sets it, the last one of those that cover the result."""
    return next(f"{config.path}.{name}" for config in reversed(result.configs) if name in config.fields)


def _check_infiniband(result: _Result, config: Object) -> None:
    """Refuse what IP over InfiniBand does not support: its hardware addresses have 20 bytes."""
    if "mac" in config:
        raise Refused(f"{_field_path(result, 'mac')}: {result.device} is InfiniBand, which has no MAC address to set")
    if config.get("child", {}).get("type") == "macvlan":
        path = _field_path(result, "child")
        raise Refused(f"{path}.type: {result.device} is InfiniBand, which does not support macvlan; use ipvlan")


def _share_request(result: _Result, device: DeviceRecord, record: Record) -> share_plan.ShareRequest:
    def field_path(name: str) -> str:
        return _field_path(result, name) if name in device.config else result.path

    return share_plan.ShareRequest(result.path, record.uid, record.namespace, result.consumed, field_path)


def _check_free(result: _Result, device: DeviceRecord, record: Record, others: t.Iterable[Record]) -> None:
    """Check that no other claim and no other request of the claim has the device. Raises Refused and Busy."""
    if result.admin:
        return
    if sum(held_device.key == device.key for held_device in record.held) > 1:
        raise Refused(f"{result.path}.device: {result.device} is allocated to the claim twice")
    for other in others:
        for other_device in other.held:
            if share_plan.excludes(other_device, device):
                share = None if device.share else other_device.share
                what = f"a share of {share.of}" if share else other_device.device
                raise Busy(f"{result.path}.device: claim {other.claim} ({other.uid}) still has {what}")


def _named_device(device: DeviceRecord, result: _Result) -> pod_names.NamedDevice:
    name_path = _field_path(result, "name") if "name" in device.config else f"{result.path}.device"
    return pod_names.NamedDevice(device, name_path, _field_path(result, "vrf") if "vrf" in device.config else "")
