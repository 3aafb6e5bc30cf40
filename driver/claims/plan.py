# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a claim asks of this node: its devices with their merged configuration, or why it cannot be had.

Nothing here touches the node or the cluster. Whatever a claim holds, the answer is a record or a DriverError that names
the field: a claim is written by others, and only some of it was checked at admission.
"""

from __future__ import annotations

import json
import re
import typing as t
from dataclasses import dataclass, field

from ..base.calls import Pod
from ..base.errors import Busy, Refused, bounded
from ..base.objects import Object
from ..dra.config import interface_config
from ..dra.config.field_checks import MISTAKES
from ..dra.kube import limits
from ..dra.kube.bounded_json import DEPTH, is_nested_deeper
from ..dra.kube.problems import Problem
from ..publish.inventory import Device
from .metadata import POD_CLAIM_NAME
from .records import DeviceRecord, Record

DRIVER = interface_config.DRIVER

#: What the container runtime calls the interface that the cluster's network gives to a pod.
CLUSTER_INTERFACE = "eth0"
#: Two devices of a pod cannot share these, so one configuration cannot give them to both.
_OWN = ("name", "addresses", "mac")
_HEAD = ("apiVersion", "kind")
#: Bytes of all our configurations of a claim together. The API takes 32 of the claim's own with 10 KiB each, and the
#: longest one that can be right has less than 20 KiB.
CONFIG_BYTES = 128 * 1024
_RESULTS = "status.allocation.devices.results"
_CONFIG = "status.allocation.devices.config"
#: Configurations that were found right, as JSON: the pods of one template bring the same one again and again.
_right: dict[str, None] = {}
_REMEMBERED = 256
_SHARE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")
_T = t.TypeVar("_T")


@dataclass
class _Config:
    """One InterfaceConfig of a claim that is for us: the requests that it names, and where it stands."""

    path: str
    requests: list[str]
    fields: Object
    of_class: bool

    def covers(self, request: str) -> bool:
        return not self.requests or request in self.requests or request.partition("/")[0] in self.requests


@dataclass
class _Result:
    path: str
    request: str
    pool: str
    device: str
    admin: bool
    share_id: str
    known: Device
    configs: list[_Config] = field(default_factory=list)


def consumer(claim: t.Any, uid: str) -> Pod | None:
    """The pod that a claim is for; None where all of our devices in it are for admin access, whoever looks at them.

    Raises Refused where the claim is not the one that is meant (C(uid)), is not allocated, holds no device of ours, or
    is not reserved for exactly one pod.
    """
    _check_claim(claim, uid)
    results = _ours(claim)
    if all(_get(result, "adminAccess", bool, path, False) for path, result in results):
        return None
    status = _get(claim, "status", dict, "", {})
    entries = _get(status, "reservedFor", list, "status", [])
    if not entries:
        raise Refused("status.reservedFor: the claim is not reserved for a pod")
    if len(entries) > 1:
        raise Refused(
            f"status.reservedFor: the claim is reserved for {len(entries)} consumers, and a network device can be in "
            "one pod only; give each pod a claim of its own by a ResourceClaimTemplate"
        )
    path = "status.reservedFor[0]"
    entry = _mapping(entries[0], path)
    group = _get(entry, "apiGroup", str, path, "")
    resource = _get(entry, "resource", str, path)
    if group or resource != "pods":
        name = f"{resource}.{group}" if group else resource
        raise Refused(f"{path}.resource: the claim is reserved for one of {name}; this driver serves pods only")
    metadata = _get(claim, "metadata", dict, "")
    return Pod(
        namespace=_get(metadata, "namespace", str, "metadata"),
        name=_get(entry, "name", str, path),
        uid=_get(entry, "uid", str, path),
    )


def plan(
    claim: t.Any,
    *,
    uid: str,
    node: str,
    known: t.Mapping[str, Device],
    others: t.Iterable[Record],
    boot: str,
    withheld: t.Mapping[str, str] | None = None,
) -> Record:
    """The record of a claim that can be prepared on this node.

    `claim` is a v1 ResourceClaim, whose pod :func:`check_pod` checks. `uid` is the claim that kubelet means, `known`
    the devices of the pool `node` by name, `withheld` why others are not published, `others` the records of other
    claims. Raises Refused, or Busy where trying again may help.
    """
    owner = consumer(claim, uid)
    results = _results(claim, node, known, withheld or {})
    configs = _configs(claim)
    _check_configs(results, configs)
    metadata = _get(claim, "metadata", dict, "")
    record = Record(
        uid=uid,
        namespace=_get(metadata, "namespace", str, "metadata"),
        name=_get(metadata, "name", str, "metadata"),
        pod=owner,
        boot=boot,
        devices=[],
        pod_claim_name=_pod_claim_name(metadata),
    )
    _check_shared(results, configs)
    others = [other for other in others if other.uid != uid]
    for result in results:
        record.devices.append(_device(result))
        _check_free(result, record, others)
    _check_names(record, results, [other for other in others if owner and other.pod and other.pod.uid == owner.uid])
    return record


def lost_devices(claim: t.Any, record: Record) -> str:
    """Why a claim no longer has all devices that its record holds; empty where it has. C(claim) is what the API server
    has by the name of the record, None where it has nothing."""
    if claim is None:
        return "the claim is gone"
    try:
        _check_claim(claim, record.uid)
        now = {(_get(one, "pool", str, path), _get(one, "device", str, path)) for path, one in _ours(claim)}
    except Refused as error:
        return f"the claim has lost its devices ({error.message})"
    lost = [device.device for device in record.devices if (device.pool, device.device) not in now]
    return f"{', '.join(lost)} is no longer allocated to the claim" if lost else ""


def refusal(problems: t.Sequence[Problem]) -> Refused:
    """The problems in one message, the first MISTAKES of them."""
    said = [str(problem) for problem in problems[:MISTAKES]]
    if len(problems) > len(said):
        said.append(f"and there are more mistakes than these {len(said)}")
    return Refused("; ".join(said))


# reading what others wrote


def _mapping(value: t.Any, path: str) -> Object:
    if not isinstance(value, dict):
        raise Refused(f"{path or 'claim'}: must be a mapping")
    return value


_WORDS = {str: "a string", bool: "true or false", list: "a list", dict: "a mapping"}


def _get(holder: Object, key: str, form: type[_T], path: str, default: _T | None = None) -> _T:
    """A field of the given type. Without a default it has to be there, and a string not empty. Raises Refused."""
    value = holder.get(key)
    where = f"{path}.{key}" if path else key
    if value is None or (value == "" and form is str):
        if default is None:
            raise Refused(f"{where}: is missing")
        return default
    if not isinstance(value, form):
        raise Refused(f"{where}: must be {_WORDS[form]}")
    return value


def _check_claim(claim: t.Any, uid: str) -> None:
    if is_nested_deeper(claim):
        raise Refused(f"claim: is nested deeper than {DEPTH} levels")
    metadata = _get(_mapping(claim, ""), "metadata", dict, "")
    found = _get(metadata, "uid", str, "metadata")
    if found != uid:
        raise Refused(f"metadata.uid: the claim is {found} now, and not {uid}: it was deleted and created again")
    status = _get(claim, "status", dict, "", {})
    if status.get("allocation") is None:
        raise Refused("status.allocation: the claim is not allocated")


def _devices(claim: Object) -> Object:
    allocation = _get(_get(claim, "status", dict, ""), "allocation", dict, "status")
    return _get(allocation, "devices", dict, "status.allocation", {})


def _ours(claim: Object) -> list[tuple[str, Object]]:
    """Our results with their paths, never none."""
    found = []
    for index, value in enumerate(_get(_devices(claim), "results", list, "status.allocation.devices", [])):
        path = f"{_RESULTS}[{index}]"
        if _get(_mapping(value, path), "driver", str, path) == DRIVER:
            found.append((path, value))
    if not found:
        raise Refused(f"{_RESULTS}: no device of {DRIVER} is allocated to the claim")
    return found


def _pod_claim_name(metadata: Object) -> str:
    """It becomes part of a path in containers, and whoever makes a claim can write this annotation. Raises Refused."""
    annotations = _get(metadata, "annotations", dict, "metadata", {})
    name = _get(annotations, POD_CLAIM_NAME, str, "metadata.annotations", "")
    if name and (wrong := limits.dns_label(name)):
        raise Refused(
            f"metadata.annotations['{POD_CLAIM_NAME}']: {bounded(repr(name), 80)} {wrong}; Kubernetes sets it on "
            "claims that it makes from templates, and on others it is to be left out"
        )
    return name


def _request(entry: Object, path: str) -> str:
    """A request or subrequest, which becomes part of paths and CDI names."""
    name = _get(entry, "request", str, path)
    parts = name.split("/")
    if len(parts) > 2 or any(map(limits.dns_label, parts)):
        raise Refused(f"{path}.request: {bounded(repr(name), 80)} is no name of a request")
    return name


def _share_id(entry: Object, path: str) -> str:
    share_id = _get(entry, "shareID", str, path, "")
    if share_id and (limits.size(share_id) > limits.DNS_LABEL_BYTES or not _SHARE_ID.fullmatch(share_id)):
        raise Refused(f"{path}.shareID: {bounded(repr(share_id), 80)} is no UID")
    return share_id


def check_pod(pod: t.Any, owner: Pod, node: str) -> None:
    """Raises Refused unless `pod`, a v1 Pod or None where there is none, is the `owner` of a claim, runs on `node` and
    has a network of its own."""
    if pod is None:
        raise Refused(f"status.reservedFor[0]: pod {owner.namespace}/{owner.name} does not exist")
    metadata = _get(_mapping(pod, "pod"), "metadata", dict, "pod")
    if _get(metadata, "uid", str, "pod.metadata") != owner.uid:
        raise Refused(f"status.reservedFor[0].uid: pod {owner.namespace}/{owner.name} was deleted and created again")
    spec = _get(pod, "spec", dict, "pod")
    bound = _get(spec, "nodeName", str, "pod.spec", "")
    if bound != node:
        raise Refused(f"pod.spec.nodeName: the pod is bound to {bound or 'no node'}, and this is {node}")
    if _get(spec, "hostNetwork", bool, "pod.spec", False):
        raise Refused(
            "pod.spec.hostNetwork: a pod in the node's network has nothing that a network device could be moved to"
        )


def _results(claim: Object, node: str, known: t.Mapping[str, Device], withheld: t.Mapping[str, str]) -> list[_Result]:
    found: list[_Result] = []
    for path, entry in _ours(claim):
        pool = _get(entry, "pool", str, path)
        device = _get(entry, "device", str, path)
        if pool != node:
            raise Refused(f"{path}.pool: the device is of {pool}, and this is {node}")
        if device not in known:
            reason = withheld.get(device)
            raise Busy(f"{path}.device: {device} is not given to pods {'as ' + reason if reason else 'by this node'}")
        found.append(
            _Result(
                path=path,
                request=_request(entry, path),
                pool=pool,
                device=device,
                admin=_get(entry, "adminAccess", bool, path, False),
                share_id=_share_id(entry, path),
                known=known[device],
            )
        )
    return found


def _configs(claim: Object) -> list[_Config]:
    """Our configurations in the order in which they count: those of classes, then those of the claim."""
    of_class: list[_Config] = []
    of_claim: list[_Config] = []
    written = _claim_configs(claim)
    number = 0  # of the claim's own, which the scheduler copies in their order
    for index, value in enumerate(_get(_devices(claim), "config", list, "status.allocation.devices", [])):
        path = f"{_CONFIG}[{index}]"
        entry = _mapping(value, path)
        source = _get(entry, "source", str, path)
        if source not in ("FromClass", "FromClaim"):
            raise Refused(f"{path}.source: must be FromClass or FromClaim")
        if source == "FromClaim":
            if number < len(written) and written[number] == entry.get("opaque"):
                path = f"spec.devices.config[{number}]"
            number += 1
        opaque = entry.get("opaque")
        if opaque is None:
            continue
        if _get(_mapping(opaque, f"{path}.opaque"), "driver", str, f"{path}.opaque") != DRIVER:
            continue
        requests = _get(entry, "requests", list, path, [])
        if not all(isinstance(request, str) for request in requests):
            raise Refused(f"{path}.requests: must be a list of requests")
        config = _Config(f"{path}.opaque.parameters", requests, opaque.get("parameters"), source == "FromClass")
        (of_class if config.of_class else of_claim).append(config)
    return of_class + of_claim


def _claim_configs(claim: Object) -> list[t.Any]:
    """The opaque parts of what the claim's author wrote; anything odd only costs the better path."""
    spec = claim.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    entries = devices.get("config") if isinstance(devices, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry.get("opaque") if isinstance(entry, dict) else None for entry in entries]


# judging


def _check_configs(results: list[_Result], configs: list[_Config]) -> None:
    """Whether all configurations are right that our devices have to take; others are for what was not given."""
    problems: list[Problem] = []
    size = 0
    for config in configs:
        if any(config.covers(result.request) and not result.admin for result in results):
            size += limits.opaque_size(config.fields)
            if size > CONFIG_BYTES:
                raise Refused(f"{config.path}: the claim's configurations have more than {CONFIG_BYTES} bytes together")
            problems += _mistakes(config)
        if len(problems) > MISTAKES:
            break
    if problems:
        raise refusal(problems)


def _mistakes(config: _Config) -> list[Problem]:
    content = json.dumps(config.fields)
    if content in _right:
        return []
    found = interface_config.validate(config.fields, config.path)
    if not found:
        while len(_right) >= _REMEMBERED:
            _right.clear()  # at once, as other threads do the same
        _right[content] = None
    return found


def _check_shared(results: list[_Result], configs: list[_Config]) -> None:
    """Hand each result its configurations, and refuse what cannot be shared by several."""
    for config in configs:
        covered = [result for result in results if config.covers(result.request)]
        for result in covered:
            if result.admin and not config.of_class and config.requests:
                raise Refused(
                    f"{config.path}: is for request {result.request} with admin access, whose device stays as it is"
                )
            if not result.admin:
                result.configs.append(config)
        several = [result.device for result in covered if not result.admin]
        for name in _OWN if len(several) > 1 else ():
            if name in config.fields:
                raise Refused(
                    f"{config.path}.{name}: would be the same for {', '.join(several)}; "
                    "write a configuration for the request of each"
                )


def _merged(result: _Result) -> Object:
    """The fields of all configurations of a device, of classes or of claims a later one's in the place of an earlier
    one's. What a class sets no claim can change. Raises Refused."""
    fields: Object = {}
    of_class: Object = {}
    path = result.path
    for config in result.configs:
        if not config.of_class:
            for name in interface_config.changed_by_claim(of_class, config.fields):
                raise Refused(
                    f"{config.path}.{name}: the DeviceClass of request {result.request} sets {name}, which a claim "
                    f"cannot change nor add to; leave {name} out of the claim, or use another class"
                )
        fields.update({name: value for name, value in config.fields.items() if name not in _HEAD})
        path = config.path
        if config.of_class:
            of_class = dict(fields)
    if len(result.configs) > 1:
        # each is right by itself, and together they may contradict each other
        problems = interface_config.validate(fields, path, complete=False)
        if problems:
            others = ", ".join(config.path for config in result.configs[:-1])
            raise Refused(f"{refusal(problems)}, together with {others}")
    if "vrf" in fields:
        fields["vrf"] = {"table": interface_config.vrf_table(fields["vrf"]["name"]), **fields["vrf"]}
    return fields


def _device(result: _Result) -> DeviceRecord:
    known = result.known
    config = {} if result.admin else _merged(result)
    interface = known.interface
    if config and not interface:
        where = _place(result, next(iter(config)))
        raise Refused(f"{where}: {result.device} has no network interface that could be configured")
    if "vf" in config and known.pf is None:
        raise Refused(f"{_place(result, 'vf')}: {result.device} is no virtual function")
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


def _place(result: _Result, name: str) -> str:
    """The path of a field of the merged configuration, in the configuration that it is from."""
    return next(f"{config.path}.{name}" for config in reversed(result.configs) if name in config.fields)


def _check_infiniband(result: _Result, config: Object) -> None:
    """What IP over InfiniBand cannot do: its hardware addresses have 20 bytes."""
    if "mac" in config:
        raise Refused(f"{_place(result, 'mac')}: {result.device} is InfiniBand, and has no MAC address to set")
    if config.get("child", {}).get("type") == "macvlan":
        where = _place(result, "child")
        raise Refused(f"{where}.type: {result.device} is InfiniBand, which has no macvlan; ipvlan works")


def _check_free(result: _Result, record: Record, others: t.Iterable[Record]) -> None:
    """A device goes to one claim, and to one request of it."""
    if result.admin:
        return
    if sum(device.device == result.device for device in record.held) > 1:
        raise Refused(f"{result.path}.device: {result.device} is allocated to the claim twice")
    for other in others:
        if any(device.device == result.device for device in other.held):
            raise Busy(f"{result.path}.device: claim {other.namespace}/{other.name} ({other.uid}) has {result.device}")


def _check_names(record: Record, results: list[_Result], others: list[Record]) -> None:  # noqa: C901
    """No two interfaces of a pod have one name, be they of one claim or of two."""
    taken = {CLUSTER_INTERFACE: "that of the cluster's network"}
    tables: dict[str, int] = {}
    for other in others:
        for device in other.held:
            said = f"that of {device.device} of claim {other.namespace}/{other.name}"
            if device.interface:
                taken[device.interface] = said
            if "vrf" in device.config:
                taken[device.config["vrf"]["name"]] = f"that of the VRF of {device.device}"
                tables[device.config["vrf"]["name"]] = device.config["vrf"]["table"]
    for device, result in zip(record.devices, results):
        if not device.interface:
            continue
        if device.interface in taken:
            where = _place(result, "name") if "name" in device.config else f"{result.path}.device"
            raise Refused(
                f"{where}: the pod would have two interfaces {device.interface}: that of {device.device} and "
                f"{taken[device.interface]}; give one of them another name"
            )
        taken[device.interface] = f"that of {device.device}"
    for device, result in zip(record.devices, results):
        vrf = device.config.get("vrf")
        if vrf is None:
            continue
        where = _place(result, "vrf")
        if vrf["name"] in tables:
            if tables[vrf["name"]] != vrf["table"]:
                raise Refused(f"{where}.table: VRF {vrf['name']} of the pod has table {tables[vrf['name']]} already")
        elif vrf["name"] in taken:
            raise Refused(
                f"{where}.name: the pod would have two interfaces {vrf['name']}: a VRF and {taken[vrf['name']]}"
            )
        tables[vrf["name"]] = vrf["table"]
