# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ethtool settings through ioctl, which every kernel supports: features, private flags, rings, channels, flow rules and
RSS.

Commands and structures are those of linux/ethtool.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import typing as t

from . import netns as namespaces

# the names of linux/sockios.h and linux/ethtool.h
_SIOCETHTOOL = 0x8946
_ETHTOOL_GDRVINFO, _ETHTOOL_GRINGPARAM, _ETHTOOL_SRINGPARAM = 0x03, 0x10, 0x11
_ETHTOOL_GSTRINGS, _ETHTOOL_GPERMADDR = 0x1B, 0x20
_ETHTOOL_GPFLAGS, _ETHTOOL_SPFLAGS, _ETHTOOL_GSSET_INFO = 0x27, 0x28, 0x37
_ETHTOOL_GRXCLSRLCNT, _ETHTOOL_GRXCLSRULE, _ETHTOOL_GRXCLSRLALL = 0x2E, 0x2F, 0x30
_ETHTOOL_SRXCLSRLDEL, _ETHTOOL_SRXCLSRLINS = 0x31, 0x32
_ETHTOOL_GFEATURES, _ETHTOOL_SFEATURES = 0x3A, 0x3B
_ETHTOOL_GCHANNELS, _ETHTOOL_SCHANNELS = 0x3C, 0x3D
_ETHTOOL_GRSSH, _ETHTOOL_SRSSH = 0x46, 0x47
_ETH_SS_PRIV_FLAGS, _ETH_SS_FEATURES = 2, 4
_ETH_GSTRING_LEN = 32
#: The bit in the flow type of a rule that spreads its packets over the queues of an RSS context.
_FLOW_RSS = 0x20000000
#: struct ethtool_rxnfc: its size; the offset and size of `fs`, which is the rule; the offset of the rule's `location`
#: in `fs`; and the offset of the union of `rule_cnt` and `rss_context`.
_RXNFC_BYTES, _FS, _FS_BYTES, _FS_LOCATION, _RULE_CNT = 192, 16, 168, 160, 184
#: struct ethtool_rxfh
_RXFH = struct.Struct("=IIIIBB2xI")
_IFREQ = struct.Struct("@16sP16x")
#: The fields of struct ethtool_ringparam and ethtool_channels, in order. After the command, the structures contain the
#: maximum of each field, then the current value of each.
_RINGS = ("rx", "rxMini", "rxJumbo", "tx")
_CHANNELS = ("rx", "tx", "other", "combined")
#: Error numbers with which drivers report that they do not support something.
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL)

#: The kernel's feature names for each name of `ethtool -K`; a trailing * matches any suffix.
ALIASES: dict[str, tuple[str, ...]] = {
    "rx-checksumming": ("rx-checksum",),
    "tx-checksumming": ("tx-checksum-*",),
    "scatter-gather": ("tx-scatter-gather*",),
    "tcp-segmentation-offload": ("tx-tcp-*", "tx-tcp6-*"),
    "generic-segmentation-offload": ("tx-generic-segmentation",),
    "generic-receive-offload": ("rx-gro",),
    "large-receive-offload": ("rx-lro",),
    "rx-vlan-offload": ("rx-vlan-hw-parse",),
    "tx-vlan-offload": ("tx-vlan-hw-insert",),
    "ntuple-filters": ("rx-ntuple-filter",),
    "receive-hashing": ("rx-hashing",),
}
_SHORT = ("rx", "tx", "sg", "tso", "gso", "gro", "lro", "rxvlan", "txvlan", "ntuple", "rxhash")
ALIASES.update(dict(zip(_SHORT, list(ALIASES.values()))))
#: How many refused requests an error names.
_MAX_REFUSED = 8
#: Features of these names that only extend others of the same name: if the others are off, TSO is off.
_EXTENSIONS = (
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
    "tx-scatter-gather-fraglist",
    "tx-checksum-fcoe-crc",
    "tx-checksum-sctp",
)


class EthtoolState(t.TypedDict, total=False):
    """The settings of an interface in a host state.

    `features` are the requested states. `flowRules` are struct ethtool_rx_flow_spec in hexadecimal, and
    `flowRuleContexts` the RSS contexts of those that have one, both by location. `spreading` is the RSS configuration
    (`Ethtool.rss`). Records contain these keys, so they are never renamed. Records of old releases lack the last three.
    """

    features: dict[str, bool]
    privateFlags: dict[str, bool]
    rings: dict[str, int]
    channels: dict[str, int]
    flowRules: dict[str, str]
    flowRuleContexts: dict[str, int]
    spreading: str


class Feature(t.NamedTuple):
    """A feature of a device: its number, and its bits in struct ethtool_get_features_block.

    The kernel keeps the `requested` state even while the feature cannot have it, because the driver refuses it or
    because of another feature. `active` is the state that the feature has.
    """

    bit: int
    available: bool
    requested: bool
    active: bool
    never_changed: bool

    @property
    def changeable(self) -> bool:
        """Whether it can be turned on and off; `ethtool -k` shows the others as fixed."""
        return self.available and not self.never_changed


class FlowRule(t.NamedTuple):
    """A rule by which a device steers or drops packets: struct ethtool_rx_flow_spec in hexadecimal, and its RSS
    context. The context is None if the rule has none (no FLOW_RSS), or if an old record does not contain it."""

    spec: str
    rss_context: int | None = None


class Ethtool:
    """The settings of interfaces in one network namespace, as a context manager. `name` is always an interface's name.

    Errors are OSError, with the number that net/ethtool/ioctl.c or the interface's driver returns. Getters return
    nothing (an empty mapping or string) for what the driver does not support.
    """

    def __init__(self, netns: str | os.PathLike[str] | int | None = None) -> None:
        self._socket = namespaces.run(netns, socket.socket, socket.AF_INET, socket.SOCK_DGRAM)

    def __enter__(self) -> Ethtool:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def bus(self, name: str) -> str:
        """The device's name on its bus, such as a PCI address; empty if the driver does not report it."""
        try:
            reply = self._call(name, struct.pack("=I192x", _ETHTOOL_GDRVINFO))
        except OSError:
            return ""
        return reply[100:132].split(b"\0", 1)[0].decode(errors="replace")

    def permanent_mac(self, name: str) -> str:
        """The permanent MAC address; empty if the interface has none."""
        try:
            reply = self._call(name, struct.pack("=II32x", _ETHTOOL_GPERMADDR, 32))
        except OSError:
            return ""
        address = reply[8 : 8 + struct.unpack_from("=I", reply, 4)[0]]
        return address.hex(":") if any(address) else ""

    def feature_states(self, name: str) -> dict[str, Feature]:
        """All features that this kernel knows, by its names."""
        names = self._strings(name, _ETH_SS_FEATURES)
        size = (len(names) + 31) // 32
        reply = self._call(name, struct.pack("=II", _ETHTOOL_GFEATURES, size) + bytes(16 * size))
        blocks = [struct.unpack_from("=4I", reply, 8 + 16 * block) for block in range(size)]
        return {
            feature: Feature(bit, *(bool(mask >> bit % 32 & 1) for mask in blocks[bit // 32]))
            for bit, feature in enumerate(names)
            if feature
        }

    def features(self, name: str) -> dict[str, bool]:
        """The requested state of each feature that the driver can change."""
        return {feature: state.requested for feature, state in self.feature_states(name).items() if state.available}

    def set_features(self, name: str, wanted: t.Mapping[str, bool]) -> None:
        """Turn features on or off, by the names of the kernel or of `ethtool -K`.

        Raises OSError (EOPNOTSUPP) if a feature cannot be changed, or does not have the wanted state afterwards
        (ETHTOOL_F_WISH in linux/ethtool.h). Nothing is requested in the first case; in the second, the earlier states
        are requested again, which may fail.
        """
        before = self.feature_states(name)
        resolved, unchangeable = resolve(wanted, before)
        if unchangeable:
            reasons = "; ".join(f"{feature}: {reason}" for feature, reason in unchangeable.items())
            raise OSError(errno.EOPNOTSUPP, reasons)
        if not resolved:
            return
        self._request_features(name, before, resolved)
        refused = _refused(wanted, resolved, self.feature_states(name))
        if refused:
            # if this fails, detach restores the features
            with contextlib.suppress(OSError):
                self._request_features(name, before, {feature: before[feature].requested for feature in resolved})
            states = [f"{feature} of {name} is still {'off' if on else 'on'}" for feature, on in refused.items()]
            cause = "its driver refuses the change, or another feature or setting prevents it"
            raise OSError(errno.EOPNOTSUPP, f"{', '.join(states)}: {cause}")

    def request_features(self, name: str, wanted: t.Mapping[str, bool]) -> None:
        """Set the requested states of features, by the kernel's names. Whether they become active depends on the
        driver and on other features. Raises OSError (EOPNOTSUPP) if this kernel does not know a feature, or after the
        request, if the driver cannot change one."""
        states = self.feature_states(name)
        for feature in wanted:
            if feature not in states:
                raise OSError(errno.EOPNOTSUPP, f"unknown feature {feature}")
        self._request_features(name, states, wanted)
        for feature, on in wanted.items():
            if not states[feature].available:  # the kernel ignores it (ETHTOOL_F_UNSUPPORTED)
                raise OSError(errno.EOPNOTSUPP, f"feature {feature} cannot be turned {'on' if on else 'off'}")

    def _request_features(self, name: str, states: t.Mapping[str, Feature], wanted: t.Mapping[str, bool]) -> None:
        valid = [0] * (max(state.bit for state in states.values()) // 32 + 1)
        requested = list(valid)
        for feature, on in wanted.items():
            block, bit = divmod(states[feature].bit, 32)
            valid[block] |= 1 << bit
            requested[block] |= on << bit
        blocks = b"".join(struct.pack("=II", *block) for block in zip(valid, requested))
        self._call(name, struct.pack("=II", _ETHTOOL_SFEATURES, len(valid)) + blocks)

    def private_flags(self, name: str) -> dict[str, bool]:
        """The driver's private flags; empty if it has none."""
        try:
            names = self._strings(name, _ETH_SS_PRIV_FLAGS)
            if not names:
                return {}
            value = struct.unpack_from("=II", self._call(name, struct.pack("=II", _ETHTOOL_GPFLAGS, 0)))[1]
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return {}
            raise
        return {flag: bool(value >> bit & 1) for bit, flag in enumerate(names) if flag}

    def set_private_flags(self, name: str, wanted: t.Mapping[str, bool]) -> None:
        """Set the flags one by one. All are tried; then raises OSError with the refused ones."""
        names = self._strings(name, _ETH_SS_PRIV_FLAGS)
        refused: list[tuple[int, str]] = []
        for flag, on in wanted.items():
            if flag not in names:
                refused.append((errno.EOPNOTSUPP, f"unknown private flag {flag}"))
                continue
            value = struct.unpack_from("=II", self._call(name, struct.pack("=II", _ETHTOOL_GPFLAGS, 0)))[1]
            bit = 1 << names.index(flag)
            if bool(value & bit) is not on:
                try:
                    self._call(name, struct.pack("=II", _ETHTOOL_SPFLAGS, value & ~bit | (bit if on else 0)))
                except OSError as error:
                    refused.append((error.errno or 0, f"private flag {flag}: {error.strerror}"))
        _raise_refused(refused)

    def rings(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Current and maximum ring sizes in descriptors, without rings that the device does not have."""
        return self._numbers(name, _ETHTOOL_GRINGPARAM, _RINGS)

    def set_rings(self, name: str, wanted: t.Mapping[str, int]) -> None:
        """Set ring sizes in descriptors; the others stay."""
        self._set_numbers(name, _ETHTOOL_GRINGPARAM, _ETHTOOL_SRINGPARAM, _RINGS, wanted)

    def channels(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Current and maximum numbers of queues, without kinds that the device does not have."""
        return self._numbers(name, _ETHTOOL_GCHANNELS, _CHANNELS)

    def set_channels(self, name: str, wanted: t.Mapping[str, int]) -> None:
        """Set numbers of queues; the others stay."""
        self._set_numbers(name, _ETHTOOL_GCHANNELS, _ETHTOOL_SCHANNELS, _CHANNELS, wanted)

    def flow_rules(self, name: str) -> dict[str, FlowRule]:
        """The flow rules, by location."""
        try:
            reply = self._call(name, _rule_request(_ETHTOOL_GRXCLSRLCNT))
            count = struct.unpack_from("=I", reply, _RULE_CNT)[0]
            if not count:
                return {}
            request = _rule_request(_ETHTOOL_GRXCLSRLALL, last=count)[: _RULE_CNT + 4] + bytes(4 * count)
            reply = self._call(name, request.ljust(_RXNFC_BYTES, b"\0"))
            locations = struct.unpack_from(f"={count}I", reply, _RULE_CNT + 4)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return {}
            raise
        rules = {}
        for location in locations:
            reply = self._call(name, _rule_request(_ETHTOOL_GRXCLSRULE, location))
            (flow_type,) = struct.unpack_from("=I", reply, _FS)
            context = struct.unpack_from("=I", reply, _RULE_CNT)[0] if flow_type & _FLOW_RSS else None
            rules[str(location)] = FlowRule(reply[_FS : _FS + _FS_BYTES].hex(), context)
        return rules

    def set_flow_rules(self, name: str, wanted: t.Mapping[str, FlowRule]) -> None:
        """Remove the rules that are not wanted, then add the missing ones. If a context is None, the rule is kept
        whatever its context is; if it must be added and has FLOW_RSS, it gets context 0 (see `rss`). All are tried;
        then raises OSError with the refused ones."""
        now = self.flow_rules(name)
        kept = {
            location
            for location, rule in wanted.items()
            if location in now
            and rule.spec == now[location].spec
            and rule.rss_context in (None, now[location].rss_context)
        }
        requests = [
            (f"remove rule {location}", _rule_request(_ETHTOOL_SRXCLSRLDEL, int(location)))
            for location in now
            if location not in kept
        ]
        for location, rule in wanted.items():
            if location not in kept:
                request = bytearray(_rule_request(_ETHTOOL_SRXCLSRLINS, last=rule.rss_context or 0))
                request[_FS : _FS + _FS_BYTES] = bytes.fromhex(rule.spec)
                context = f", whose RSS context {rule.rss_context} may no longer exist" if rule.rss_context else ""
                requests.append((f"add rule {location}{context}", bytes(request)))
        refused: list[tuple[int, str]] = []
        for action, content in requests:
            try:
                self._call(name, content)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    raise
                refused.append((error.errno or 0, f"{action}: {error.strerror}"))
        _raise_refused(refused)

    def rss(self, name: str) -> str:
        """The RSS configuration (indirection table, key and hash function) of RSS context 0, which is for packets that
        no flow rule matches: struct ethtool_rxfh in hexadecimal; empty if there is none."""
        try:
            reply = self._call(name, _RXFH.pack(_ETHTOOL_GRSSH, 0, 0, 0, 0, 0, 0))
            indir_size, key_size = _RXFH.unpack_from(reply)[2:4]
            if not indir_size and not key_size:
                return ""
            request = _RXFH.pack(_ETHTOOL_GRSSH, 0, indir_size, key_size, 0, 0, 0) + bytes(4 * indir_size + key_size)
            return self._call(name, request).hex()
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return ""
            raise

    def set_rss(self, name: str, wanted: str) -> None:
        """Set the RSS configuration to what `rss` has returned. An empty one changes nothing."""
        if wanted and wanted != self.rss(name):
            reply = bytes.fromhex(wanted)
            self._call(name, struct.pack("=I", _ETHTOOL_SRSSH) + reply[4:])

    def read(self, name: str) -> EthtoolState:
        """All settings, as part of the host state."""
        rules = self.flow_rules(name)
        state: EthtoolState = {
            "features": self.features(name),
            "privateFlags": self.private_flags(name),
            "rings": self.rings(name)[0],
            "channels": self.channels(name)[0],
            "flowRules": {location: rule.spec for location, rule in rules.items()},
            "spreading": self.rss(name),
        }
        # absent if it is empty: releases that do not know it would report a difference
        contexts = {location: rule.rss_context for location, rule in rules.items() if rule.rss_context is not None}
        if contexts:
            state["flowRuleContexts"] = contexts
        return state

    def _numbers(self, name: str, command: int, fields: t.Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        try:
            reply = struct.unpack_from("=9I", self._call(name, struct.pack("=I32x", command)))
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return {}, {}
            raise
        maxima = {field: reply[1 + number] for number, field in enumerate(fields) if reply[1 + number]}
        return {field: reply[5 + number] for number, field in enumerate(fields) if field in maxima}, maxima

    def _set_numbers(self, name: str, get: int, put: int, fields: t.Sequence[str], wanted: t.Mapping[str, int]) -> None:
        reply = list(struct.unpack_from("=9I", self._call(name, struct.pack("=I32x", get))))
        before = list(reply)
        for number, field in enumerate(fields):
            reply[5 + number] = wanted.get(field, reply[5 + number])
        if reply != before:  # a change may restart the device
            reply[0] = put
            self._call(name, struct.pack("=9I", *reply))

    def _strings(self, name: str, kind: int) -> list[str]:
        reply = self._call(name, struct.pack("=IIQI", _ETHTOOL_GSSET_INFO, 0, 1 << kind, 0))
        if not struct.unpack_from("=Q", reply, 8)[0]:
            return []
        count = struct.unpack_from("=I", reply, 16)[0]
        reply = self._call(name, struct.pack("=III", _ETHTOOL_GSTRINGS, kind, count) + bytes(_ETH_GSTRING_LEN * count))
        texts = [
            reply[12 + _ETH_GSTRING_LEN * number : 12 + _ETH_GSTRING_LEN * (number + 1)] for number in range(count)
        ]
        return [text.split(b"\0", 1)[0].decode(errors="replace") for text in texts]

    def _call(self, name: str, request: bytes) -> bytes:
        buffer = ctypes.create_string_buffer(request, len(request))
        fcntl.ioctl(self._socket, _SIOCETHTOOL, _IFREQ.pack(os.fsencode(name), ctypes.addressof(buffer)))
        return buffer.raw


def _raise_refused(refused: t.Sequence[tuple[int, str]]) -> None:
    """Raise an OSError with the errors of refused requests, each a number and a text; of many only the first."""
    if refused:
        texts = [text for _code, text in refused[:_MAX_REFUSED]]
        if len(refused) > _MAX_REFUSED:
            texts.append(f"and {len(refused) - _MAX_REFUSED} more")
        raise OSError(refused[0][0], "; ".join(texts))


def recorded_flow_rules(state: EthtoolState) -> dict[str, FlowRule]:
    """The flow rules of a host state, by location."""
    contexts = state.get("flowRuleContexts", {})
    return {location: FlowRule(spec, contexts.get(location)) for location, spec in state["flowRules"].items()}


def resolve(
    wanted: t.Mapping[str, bool], states: t.Mapping[str, Feature], subject: str = "this interface"
) -> tuple[dict[str, bool], dict[str, str]]:
    """The wanted states under the kernel's names, and why other wanted features cannot be set, by their wanted names.
    `subject` begins these reasons.

    The names of `wanted` are those of the kernel or of `ethtool -K`. As in `ethtool -k`, a name for several features is
    on if one of them is on, and off if all of them are off. A feature that cannot be changed is no problem if it has
    the wanted state.
    """
    resolved: dict[str, bool] = {}
    unchangeable: dict[str, str] = {}
    for feature, on in wanted.items():
        members = _members(feature, states)
        changeable = [member for member in members if states[member].changeable]
        always_on = [member for member in members if states[member].active and member not in changeable]
        if not members:
            unchangeable[feature] = f"{subject} has no such feature"
        elif on and not changeable and not always_on:
            unchangeable[feature] = f"{subject} cannot turn it on"
        elif not on and always_on:
            unchangeable[feature] = f"{subject} cannot turn off {', '.join(always_on)}"
        else:
            resolved.update(dict.fromkeys(changeable, on))
    return resolved, unchangeable


def _refused(
    wanted: t.Mapping[str, bool], resolved: t.Mapping[str, bool], states: t.Mapping[str, Feature]
) -> dict[str, bool]:
    """The features that do not have the wanted state, under the kernel's names, with the wanted state. If a name for
    several features is wanted on, one of them suffices, as some exclude each other (checksums of netdev_fix_features in
    net/core/dev.c); an extension only suffices if nothing else was requested."""
    refused: dict[str, bool] = {}
    for feature, on in wanted.items():
        # without those that cannot be changed, and those for which another wanted name requests the opposite
        members = [member for member in _members(feature, states) if resolved.get(member) is on]
        differing = [member for member in members if states[member].active is not on]
        if on:
            needed = [member for member in members if member not in _EXTENSIONS] or members
            differing = needed if set(needed) <= set(differing) else []
        refused.update(dict.fromkeys(differing, on))
    return refused


def _members(feature: str, names: t.Collection[str]) -> list[str]:
    """The features that a name of the kernel or of `ethtool -K` stands for."""
    patterns = (feature,) if feature in names else ALIASES.get(feature, ())
    return [
        name
        for name in sorted(names)
        if any(name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])) for pattern in patterns)
    ]


def _rule_request(command: int, location: int = 0, last: int = 0) -> bytes:
    """A struct ethtool_rxnfc; `last` is its union of `rule_cnt` and `rss_context`."""
    request = bytearray(_RXNFC_BYTES)
    struct.pack_into("=I", request, 0, command)
    struct.pack_into("=I", request, _FS + _FS_LOCATION, location)
    struct.pack_into("=I", request, _RULE_CNT, last)
    return bytes(request)
