# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ethtool settings through ioctl, which every kernel supports: features, private flags, rings, channels, flow rules and
RSS.

Commands and structures are those of linux/ethtool.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import typing as t

from . import netns as namespaces

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GRINGPARAM, _SRINGPARAM, _GSTRINGS, _GPERMADDR = 0x03, 0x10, 0x11, 0x1B, 0x20
_GPFLAGS, _SPFLAGS, _GSSET_INFO, _GFEATURES, _SFEATURES = 0x27, 0x28, 0x37, 0x3A, 0x3B
_GCHANNELS, _SCHANNELS = 0x3C, 0x3D
_RULE_COUNT, _GET_RULE, _ALL_RULES, _DELETE_RULE, _INSERT_RULE = 0x2E, 0x2F, 0x30, 0x31, 0x32
_GRSSH, _SRSSH = 0x46, 0x47
#: struct ethtool_rxnfc: its size, the offset and size of the rule, and the offset of the rule's location
_RXNFC, _RULE, _RULE_BYTES, _LOCATION, _COUNT = 192, 16, 168, 160, 184
#: struct ethtool_rxfh
_RXFH = struct.Struct("=IIIIBB2xI")
_SS_PRIVATE_FLAGS, _SS_FEATURES = 2, 4
_STRING = 32
_IFREQ = struct.Struct("@16sP16x")
#: The fields of struct ethtool_ringparam and ethtool_channels, in order. After the command, the structures contain the
#: maximum of each field, then the current value of each.
_RINGS = ("rx", "rxMini", "rxJumbo", "tx")
_CHANNELS = ("rx", "tx", "other", "combined")

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


class EthtoolState(t.TypedDict, total=False):
    """The settings of an interface in a host state. `flowRules` are hexadecimal, by location. `spreading` is the RSS
    configuration (`Ethtool.rss`). Host states of old releases contain neither."""

    features: dict[str, bool]
    privateFlags: dict[str, bool]
    rings: dict[str, int]
    channels: dict[str, int]
    flowRules: dict[str, str]
    spreading: str


class Ethtool:
    """The driver settings of interfaces in one network namespace, as a context manager. Errors are OSError."""

    def __init__(self, netns: str | os.PathLike[str] | int | None = None) -> None:
        self._socket = namespaces.run(netns, socket.socket, socket.AF_INET, socket.SOCK_DGRAM)

    def __enter__(self) -> Ethtool:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def bus(self, name: str) -> str:
        """The device's name on its bus, such as a PCI address; empty if the driver does not report it."""
        try:
            reply = self._call(name, struct.pack("=I192x", _GDRVINFO))
        except OSError:
            return ""
        return reply[100:132].split(b"\0", 1)[0].decode(errors="replace")

    def permanent_mac(self, name: str) -> str:
        """The permanent MAC address; empty if the interface has none."""
        try:
            reply = self._call(name, struct.pack("=II32x", _GPERMADDR, 32))
        except OSError:
            return ""
        address = reply[8 : 8 + struct.unpack_from("=I", reply, 4)[0]]
        return address.hex(":") if any(address) else ""

    def features(self, name: str) -> dict[str, bool]:
        """The requested state of each feature that can be changed."""
        names, blocks = self._features(name)
        return {
            feature: bool(blocks[bit // 32][1] >> bit % 32 & 1)
            for bit, feature in enumerate(names)
            if feature and blocks[bit // 32][0] >> bit % 32 & 1
        }

    def fixed_features(self, name: str) -> dict[str, bool]:
        """The features that cannot be changed, and whether they are on."""
        names, blocks = self._features(name)
        changeable = self.features(name)
        return {
            feature: bool(blocks[bit // 32][2] >> bit % 32 & 1)
            for bit, feature in enumerate(names)
            if feature and feature not in changeable
        }

    def set_features(self, name: str, wanted: t.Mapping[str, bool]) -> None:
        """Set features by the kernel's names. Raises OSError (EOPNOTSUPP) if the driver did not apply one as
        requested."""
        names, blocks = self._features(name)
        request = [[0, 0] for _unused in blocks]
        for feature, on in wanted.items():
            if feature not in names:
                raise OSError(errno.EOPNOTSUPP, f"unknown feature {feature}")
            bit = names.index(feature)
            request[bit // 32][0] |= 1 << bit % 32
            request[bit // 32][1] |= on << bit % 32
        self._call(
            name, struct.pack("=II", _SFEATURES, len(blocks)) + b"".join(struct.pack("=II", *r) for r in request)
        )
        after = self.features(name)
        for feature, on in wanted.items():
            if after.get(feature) is not on:
                raise OSError(errno.EOPNOTSUPP, f"feature {feature} could not be turned {'on' if on else 'off'}")

    def private_flags(self, name: str) -> dict[str, bool]:
        """The driver's private flags; empty if it has none."""
        try:
            names = self._strings(name, _SS_PRIVATE_FLAGS)
            value = struct.unpack_from("=II", self._call(name, struct.pack("=II", _GPFLAGS, 0)))[1] if names else 0
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return {}
            raise
        return {flag: bool(value >> bit & 1) for bit, flag in enumerate(names) if flag}

    def set_private_flags(self, name: str, wanted: t.Mapping[str, bool]) -> None:
        """Set the flags one by one, so that an error can name the flag."""
        names = self._strings(name, _SS_PRIVATE_FLAGS)
        for flag, on in wanted.items():
            if flag not in names:
                raise OSError(errno.EOPNOTSUPP, f"unknown private flag {flag}")
            value = struct.unpack_from("=II", self._call(name, struct.pack("=II", _GPFLAGS, 0)))[1]
            bit = 1 << names.index(flag)
            if bool(value & bit) is not on:
                try:
                    self._call(name, struct.pack("=II", _SPFLAGS, value & ~bit | (bit if on else 0)))
                except OSError as error:
                    raise OSError(error.errno, f"private flag {flag}") from error

    def rings(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Current and maximum ring sizes, without rings that the device does not have."""
        return self._numbers(name, _GRINGPARAM, _RINGS)

    def set_rings(self, name: str, wanted: t.Mapping[str, int]) -> None:
        self._set_numbers(name, _GRINGPARAM, _SRINGPARAM, _RINGS, wanted)

    def channels(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Current and maximum numbers of queues, without kinds that the device does not have."""
        return self._numbers(name, _GCHANNELS, _CHANNELS)

    def set_channels(self, name: str, wanted: t.Mapping[str, int]) -> None:
        self._set_numbers(name, _GCHANNELS, _SCHANNELS, _CHANNELS, wanted)

    def flow_rules(self, name: str) -> dict[str, str]:
        """The rules by which the device steers or drops packets, by location, in hexadecimal."""
        try:
            reply = self._call(name, self._rule_request(_RULE_COUNT))
            count = struct.unpack_from("=I", reply, _COUNT)[0]
            if not count:
                return {}
            request = self._rule_request(_ALL_RULES, count=count)[: _COUNT + 4] + bytes(4 * count)
            locations = struct.unpack_from(f"={count}I", self._call(name, request.ljust(_RXNFC, b"\0")), _COUNT + 4)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return {}
            raise
        found = {}
        for location in locations:
            reply = self._call(name, self._rule_request(_GET_RULE, location))
            found[str(location)] = reply[_RULE : _RULE + _RULE_BYTES].hex()
        return found

    def set_flow_rules(self, name: str, wanted: t.Mapping[str, str]) -> None:
        """Remove the rules that are not wanted, then add the missing ones."""
        now = self.flow_rules(name)
        for location, rule in now.items():
            if wanted.get(location) != rule:
                self._call(name, self._rule_request(_DELETE_RULE, int(location)))
        for location, rule in wanted.items():
            if now.get(location) != rule:
                request = bytearray(self._rule_request(_INSERT_RULE))
                request[_RULE : _RULE + _RULE_BYTES] = bytes.fromhex(rule)
                self._call(name, bytes(request))

    @staticmethod
    def _rule_request(command: int, location: int = 0, count: int = 0) -> bytes:
        request = bytearray(_RXNFC)
        struct.pack_into("=I", request, 0, command)
        struct.pack_into("=I", request, _RULE + _LOCATION, location)
        struct.pack_into("=I", request, _COUNT, count)
        return bytes(request)

    def rss(self, name: str) -> str:
        """The RSS configuration (indirection table, key and hash function) as the kernel returns it, in hexadecimal;
        empty if there is none."""
        try:
            sizes = self._call(name, _RXFH.pack(_GRSSH, 0, 0, 0, 0, 0, 0))
            _unused, _unused, table, key, _unused, _unused, _unused = _RXFH.unpack_from(sizes)
            if not table and not key:
                return ""
            return self._call(name, _RXFH.pack(_GRSSH, 0, table, key, 0, 0, 0) + bytes(4 * table + key)).hex()
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return ""
            raise

    def set_rss(self, name: str, wanted: str) -> None:
        if wanted and wanted != self.rss(name):
            reply = bytes.fromhex(wanted)
            self._call(name, struct.pack("=I", _SRSSH) + reply[4:])

    def read(self, name: str) -> EthtoolState:
        """All settings, as part of the host state."""
        return {
            "features": self.features(name),
            "privateFlags": self.private_flags(name),
            "rings": self.rings(name)[0],
            "channels": self.channels(name)[0],
            "flowRules": self.flow_rules(name),
            "spreading": self.rss(name),
        }

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

    def _features(self, name: str) -> tuple[list[str], list[tuple[int, ...]]]:
        names = self._strings(name, _SS_FEATURES)
        size = (len(names) + 31) // 32
        reply = self._call(name, struct.pack("=II", _GFEATURES, size) + bytes(16 * size))
        return names, [struct.unpack_from("=4I", reply, 8 + 16 * block) for block in range(size)]

    def _strings(self, name: str, kind: int) -> list[str]:
        reply = self._call(name, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << kind, 0))
        if not struct.unpack_from("=Q", reply, 8)[0]:
            return []
        count = struct.unpack_from("=I", reply, 16)[0]
        reply = self._call(name, struct.pack("=III", _GSTRINGS, kind, count) + bytes(_STRING * count))
        texts = [reply[12 + _STRING * number : 12 + _STRING * (number + 1)] for number in range(count)]
        return [text.split(b"\0", 1)[0].decode(errors="replace") for text in texts]

    def _call(self, name: str, request: bytes) -> bytes:
        buffer = ctypes.create_string_buffer(request, len(request))
        fcntl.ioctl(self._socket, _SIOCETHTOOL, _IFREQ.pack(os.fsencode(name), ctypes.addressof(buffer)))
        return buffer.raw


#: Error numbers with which drivers report that they do not support something.
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL)


def resolve(
    wanted: t.Mapping[str, bool], known: t.Collection[str], fixed: t.Mapping[str, bool]
) -> tuple[dict[str, bool], list[str]]:
    """The wanted features under the kernel's names, and the names of those that cannot be applied. `known` are the
    features that can be changed. A feature of `fixed` that has the wanted state needs no change. If one name stands for
    several features, it is on if one of them is on, and off if all are off (as in `ethtool -k`)."""
    resolved: dict[str, bool] = {}
    unknown = []
    for feature, on in wanted.items():
        patterns = (feature,) if feature in known or feature in fixed else ALIASES.get(feature, ())
        matches = _matching(patterns, known)
        resolved.update(dict.fromkeys(matches, on))
        states = [fixed[name] for name in _matching(patterns, fixed)]
        if not matches and not (states and any(states) is on):
            unknown.append(feature)
    return resolved, unknown


def _matching(patterns: t.Collection[str], names: t.Collection[str]) -> list[str]:
    return [
        name
        for name in sorted(names)
        if any(name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])) for pattern in patterns)
    ]
