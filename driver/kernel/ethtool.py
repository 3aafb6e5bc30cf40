# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Settings of an interface's driver: features, private flags, rings, channels. By ioctl, which every kernel has.

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
#: struct ethtool_rxnfc: its size, where its rule is, how long that is, and where in that its place stands
_RXNFC, _RULE, _RULE_BYTES, _PLACE, _COUNT = 192, 16, 168, 160, 184
#: struct ethtool_rxfh
_RXFH = struct.Struct("=IIIIBB2xI")
_SS_PRIVATE_FLAGS, _SS_FEATURES = 2, 4
_STRING = 32
_IFREQ = struct.Struct("@16sP16x")
#: Where the fields begin that can be set, after the command and as many maxima.
_RINGS = ("rx", "rxMini", "rxJumbo", "tx")
_CHANNELS = ("rx", "tx", "other", "combined")

#: What ethtool -K calls a feature or several of them, in the kernel's names; a trailing * stands for any ending.
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


class Ethtool:
    """The driver settings of interfaces in one network namespace, as a context manager. Errors are OSError."""

    def __init__(self, netns: str | os.PathLike[str] | int | None = None) -> None:
        self._socket = namespaces.run(netns, socket.socket, socket.AF_INET, socket.SOCK_DGRAM)

    def __enter__(self) -> Ethtool:
        return self

    def __exit__(self, *_unused: object) -> None:
        self._socket.close()

    def bus(self, name: str) -> str:
        """The device's name on its bus, such as a PCI address; empty where the driver does not tell."""
        try:
            told = self._call(name, struct.pack("=I192x", _GDRVINFO))
        except OSError:
            return ""
        return told[100:132].split(b"\0", 1)[0].decode(errors="replace")

    def permanent_mac(self, name: str) -> str:
        """Empty where there is none."""
        try:
            told = self._call(name, struct.pack("=II32x", _GPERMADDR, 32))
        except OSError:
            return ""
        address = told[8 : 8 + struct.unpack_from("=I", told, 4)[0]]
        return address.hex(":") if any(address) else ""

    def features(self, name: str) -> dict[str, bool]:
        """What is asked for, of each feature that can be changed."""
        names, blocks = self._features(name)
        return {
            feature: bool(blocks[bit // 32][1] >> bit % 32 & 1)
            for bit, feature in enumerate(names)
            if feature and blocks[bit // 32][0] >> bit % 32 & 1
        }

    def fixed_features(self, name: str) -> dict[str, bool]:
        """Those that cannot be changed, and whether they are on."""
        names, blocks = self._features(name)
        can = self.features(name)
        return {
            feature: bool(blocks[place // 32][2] >> place % 32 & 1)
            for place, feature in enumerate(names)
            if feature and feature not in can
        }

    def set_features(self, name: str, wanted: t.Mapping[str, bool]) -> None:
        """Asks for features by the kernel's names; raises EOPNOTSUPP where the driver did not take one as asked."""
        names, blocks = self._features(name)
        request = [[0, 0] for _unused in blocks]
        for feature, on in wanted.items():
            if feature not in names:
                raise OSError(errno.EOPNOTSUPP, f"no feature {feature}")
            bit = names.index(feature)
            request[bit // 32][0] |= 1 << bit % 32
            request[bit // 32][1] |= on << bit % 32
        self._call(
            name, struct.pack("=II", _SFEATURES, len(blocks)) + b"".join(struct.pack("=II", *r) for r in request)
        )
        after = self.features(name)
        for feature, on in wanted.items():
            if after.get(feature) is not on:
                raise OSError(errno.EOPNOTSUPP, f"feature {feature} did not become {'on' if on else 'off'}")

    def private_flags(self, name: str) -> dict[str, bool]:
        """The driver's own switches; empty where it has none."""
        try:
            names = self._strings(name, _SS_PRIVATE_FLAGS)
            value = struct.unpack_from("=II", self._call(name, struct.pack("=II", _GPFLAGS, 0)))[1] if names else 0
        except OSError as error:
            if error.errno in _NOT_THERE:
                return {}
            raise
        return {flag: bool(value >> bit & 1) for bit, flag in enumerate(names) if flag}

    def set_private_flags(self, name: str, wanted: t.Mapping[str, bool]) -> None:
        """One by one, so that an error names the flag."""
        names = self._strings(name, _SS_PRIVATE_FLAGS)
        for flag, on in wanted.items():
            if flag not in names:
                raise OSError(errno.EOPNOTSUPP, f"no private flag {flag}")
            value = struct.unpack_from("=II", self._call(name, struct.pack("=II", _GPFLAGS, 0)))[1]
            bit = 1 << names.index(flag)
            if bool(value & bit) is not on:
                try:
                    self._call(name, struct.pack("=II", _SPFLAGS, value & ~bit | (bit if on else 0)))
                except OSError as error:
                    raise OSError(error.errno, f"private flag {flag}") from error

    def rings(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Sizes now and at most; without those that the device does not have."""
        return self._numbers(name, _GRINGPARAM, _RINGS)

    def set_rings(self, name: str, wanted: t.Mapping[str, int]) -> None:
        self._set_numbers(name, _GRINGPARAM, _SRINGPARAM, _RINGS, wanted)

    def channels(self, name: str) -> tuple[dict[str, int], dict[str, int]]:
        """Numbers of queues now and at most; without those that the device does not have."""
        return self._numbers(name, _GCHANNELS, _CHANNELS)

    def set_channels(self, name: str, wanted: t.Mapping[str, int]) -> None:
        self._set_numbers(name, _GCHANNELS, _SCHANNELS, _CHANNELS, wanted)

    def flow_rules(self, name: str) -> dict[str, str]:
        """The rules by which the device steers or drops packets, by their place, in hexadecimal."""
        try:
            told = self._call(name, self._rule_request(_RULE_COUNT))
            count = struct.unpack_from("=I", told, _COUNT)[0]
            if not count:
                return {}
            request = self._rule_request(_ALL_RULES, count=count)[: _COUNT + 4] + bytes(4 * count)
            places = struct.unpack_from(f"={count}I", self._call(name, request.ljust(_RXNFC, b"\0")), _COUNT + 4)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return {}
            raise
        found = {}
        for place in places:
            told = self._call(name, self._rule_request(_GET_RULE, place))
            found[str(place)] = told[_RULE : _RULE + _RULE_BYTES].hex()
        return found

    def set_flow_rules(self, name: str, wanted: t.Mapping[str, str]) -> None:
        """Removes what is not wanted, then adds what is."""
        now = self.flow_rules(name)
        for place, rule in now.items():
            if wanted.get(place) != rule:
                self._call(name, self._rule_request(_DELETE_RULE, int(place)))
        for place, rule in wanted.items():
            if now.get(place) != rule:
                request = bytearray(self._rule_request(_INSERT_RULE))
                request[_RULE : _RULE + _RULE_BYTES] = bytes.fromhex(rule)
                self._call(name, bytes(request))

    @staticmethod
    def _rule_request(command: int, place: int = 0, count: int = 0) -> bytes:
        request = bytearray(_RXNFC)
        struct.pack_into("=I", request, 0, command)
        struct.pack_into("=I", request, _RULE + _PLACE, place)
        struct.pack_into("=I", request, _COUNT, count)
        return bytes(request)

    def spreading(self, name: str) -> str:
        """How received packets are spread over queues: the table, key and function of RSS, in hexadecimal."""
        try:
            sizes = self._call(name, _RXFH.pack(_GRSSH, 0, 0, 0, 0, 0, 0))
            _unused, _unused, table, key, _unused, _unused, _unused = _RXFH.unpack_from(sizes)
            if not table and not key:
                return ""
            return self._call(name, _RXFH.pack(_GRSSH, 0, table, key, 0, 0, 0) + bytes(4 * table + key)).hex()
        except OSError as error:
            if error.errno in _NOT_THERE:
                return ""
            raise

    def set_spreading(self, name: str, wanted: str) -> None:
        if wanted and wanted != self.spreading(name):
            told = bytes.fromhex(wanted)
            self._call(name, struct.pack("=I", _SRSSH) + told[4:])

    def read(self, name: str) -> dict[str, t.Any]:
        """All that can be set, as part of the host state."""
        return {
            "features": self.features(name),
            "privateFlags": self.private_flags(name),
            "rings": self.rings(name)[0],
            "channels": self.channels(name)[0],
            "flowRules": self.flow_rules(name),
            "spreading": self.spreading(name),
        }

    def _numbers(self, name: str, command: int, fields: t.Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        try:
            told = struct.unpack_from("=9I", self._call(name, struct.pack("=I32x", command)))
        except OSError as error:
            if error.errno in _NOT_THERE:
                return {}, {}
            raise
        most = {field: told[1 + place] for place, field in enumerate(fields) if told[1 + place]}
        return {field: told[5 + place] for place, field in enumerate(fields) if field in most}, most

    def _set_numbers(self, name: str, get: int, put: int, fields: t.Sequence[str], wanted: t.Mapping[str, int]) -> None:
        told = list(struct.unpack_from("=9I", self._call(name, struct.pack("=I32x", get))))
        before = list(told)
        for place, field in enumerate(fields):
            told[5 + place] = wanted.get(field, told[5 + place])
        if told != before:  # a change may restart the device
            told[0] = put
            self._call(name, struct.pack("=9I", *told))

    def _features(self, name: str) -> tuple[list[str], list[tuple[int, ...]]]:
        names = self._strings(name, _SS_FEATURES)
        size = (len(names) + 31) // 32
        told = self._call(name, struct.pack("=II", _GFEATURES, size) + bytes(16 * size))
        return names, [struct.unpack_from("=4I", told, 8 + 16 * block) for block in range(size)]

    def _strings(self, name: str, kind: int) -> list[str]:
        told = self._call(name, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << kind, 0))
        if not struct.unpack_from("=Q", told, 8)[0]:
            return []
        count = struct.unpack_from("=I", told, 16)[0]
        told = self._call(name, struct.pack("=III", _GSTRINGS, kind, count) + bytes(_STRING * count))
        texts = [told[12 + _STRING * place : 12 + _STRING * (place + 1)] for place in range(count)]
        return [text.split(b"\0", 1)[0].decode(errors="replace") for text in texts]

    def _call(self, name: str, request: bytes) -> bytes:
        buffer = ctypes.create_string_buffer(request, len(request))
        fcntl.ioctl(self._socket, _SIOCETHTOOL, _IFREQ.pack(os.fsencode(name), ctypes.addressof(buffer)))
        return buffer.raw


#: How drivers say that they do not have something.
_NOT_THERE = (errno.EOPNOTSUPP, errno.EINVAL)


def resolve(
    wanted: t.Mapping[str, bool], known: t.Collection[str], fixed: t.Mapping[str, bool]
) -> tuple[dict[str, bool], list[str]]:
    """What was asked for in the kernel's names, of the features `known` of an interface that can be changed, and what
    it cannot be given. What `fixed` features are already is nothing to ask for: of several that one word means, one is
    enough for on, and off means all (as `ethtool -k` shows it)."""
    found: dict[str, bool] = {}
    unknown = []
    for feature, on in wanted.items():
        patterns = (feature,) if feature in known or feature in fixed else ALIASES.get(feature, ())
        matches = _matching(patterns, known)
        found.update(dict.fromkeys(matches, on))
        states = [fixed[name] for name in _matching(patterns, fixed)]
        if not matches and not (states and any(states) is on):
            unknown.append(feature)
    return found, unknown


def _matching(patterns: t.Collection[str], names: t.Collection[str]) -> list[str]:
    return [
        name
        for name in sorted(names)
        if any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in patterns)
    ]
