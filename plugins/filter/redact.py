# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import ipaddress
import re
import typing as t

DOCUMENTATION = r"""
name: redact
short_description: Take secrets and addresses out of a text
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Replaces private keys, tokens, passwords and the credentials of kubeconfigs and URLs by V(REDACTED).
  - Replaces MAC addresses, also in names of interfaces, GUIDs, IP addresses, serial numbers and UUIDs of cards by names
    that are the same for the same value and O(salt), so that it can still be told which are one. Addresses of the
    loopback and the like stay.
  - PCI addresses, names of hosts and models stay.
positional: _input
options:
  _input:
    description: The text.
    type: str
    required: true
  salt:
    description: Something secret that nobody keeps, so that nobody can try which value a name stands for.
    type: str
    required: true
seealso:
  - plugin: lanewise.dra.dra_driver
    plugin_type: role
    description: What the bundle of C(lanewise.dra.support_bundle) tells of.
"""

EXAMPLES = r"""
- name: Keep a log without secrets
  ansible.builtin.copy:
    content: "{{ log.stdout | lanewise.dra.redact(salt=lookup('ansible.builtin.password', '/dev/null')) }}"
    dest: log.txt
    mode: "0600"
"""

RETURN = r"""
_value:
  description: The text without them.
  type: str
"""

GONE = "REDACTED"
#: Where a word begins, also behind the escaped end of a line, as in JSON.
_START = r"(?:\b|(?<=\\[nrt]))"
_SECRET = r"password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key"
# as a text, as a text in a text of JSON, and further in
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|\\\"(?:[^\"\\]|\\\\(?:\\.|[^\"\\])|\\[^\"\\])*\\\"|\\{2,}\"[^\"]*\"|\\?'[^']*'"
_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_JWT = re.compile(_START + r"eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?")
_BEARER = re.compile(rf"(?i){_START}(bearer|basic)(\s+)[\w.~+/=-]{{8,}}")
_NAMED = re.compile(
    rf"(?i)((?:{_SECRET}|client-key-data|client-certificate-data|certificate-authority-data)\\*[\"']?\s*[:=]\s*"
    rf"|--[\w-]{{0,40}}(?:{_SECRET})[ \t]+(?!-))"
    rf"({_QUOTED}|[^\s,;}}\]\"']+)"
)
# the name of a user alone stays, but with HTTP, where it is often a token
_LOGIN = re.compile(r"(?i)(?:(?<=http://)|(?<=https://)|(?<=://)(?=[^\s/@\"'<>]*:))[^\s/\"'<>]*@")
# of attributes in a ResourceSlice too: "serial": {"string": "..."}
_VALUE = r"\\?[\"']?\s*[:=]\s*(?:\{\s*\\?\"string\\?\"\s*:\s*)?"
_SERIAL = re.compile(
    rf"(?i)(serial(?:[_ -]?(?:number|no))?{_VALUE}\\?[\"'])(?!(?:null|none|unknown)\b)([^\"'\\\n]{{4,}})"
    rf"|(serial(?:[_ -]?(?:number|no))?{_VALUE}|serial[_ -]?(?:number|no)[ \t]+(?=[\w./-]*\d))"
    r"(?!(?:null|none|unknown)\b)(?=[\w./-]{4})(\w[\w./-]*\w)"
)
_UUID = re.compile(rf"(?i)(\"(?:system)?uuid{_VALUE}\\?\")([\da-f-]{{16,}})")
_GPU = re.compile(r"(GPU|MIG)-[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}")
# of sysfs, and as 'ip' writes them
_SWITCH = re.compile(r"(?i)((?:switch|port)_?id\\?[\"']?\s*[:=]?\s*\\?[\"']?)([\da-f]{8,})(?![\w.-])")
# systemd's names of interfaces by their address
_INTERFACE = re.compile(rf"(?i){_START}((?:en|ib|sl|wl|ww)x)([\da-f]{{12}})(?![\da-f])")
# 6 of a MAC address, 8 of a GUID, 14 as netfilter logs them, 20 of an interface of InfiniBand
_OCTETS = re.compile(
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?<!::)(?<!\d-)"
    r"[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4,}[0-9A-Fa-f]{2}(?![0-9A-Fa-f])"
)
_GUID = re.compile(
    # not a part of an address that stays, as of multicast
    r"(?<![0-9A-Fa-f])(?<!::)(?<!:[0-9A-Fa-f]:)(?<!:[0-9A-Fa-f]{2}:)(?<!:[0-9A-Fa-f]{3}:)(?<![0-9A-Fa-f]{4}:)"
    r"(?:(?:[0-9A-Fa-f]{4}:){3}[0-9A-Fa-f]{4}|0x[0-9A-Fa-f]{16})"
    r"(?![0-9A-Fa-f]|:[0-9A-Fa-f:])"
)
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")
_IPV6 = re.compile(
    r"(?:(?<![\w:.])|(?<=\\[nrt])|(?<=[G-Zg-z]:))"
    r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\d{1,3}\.){3}\d{1,3})?(?!\w|:[\w:]|\.\d)"
)


def redact(text: str, salt: str) -> str:
    """The text without secrets, and with names in place of addresses. See the documentation above."""

    def name(kind: str, value: str) -> str:
        digest = hashlib.blake2b(value.lower().encode(), key=hashlib.sha256(salt.encode()).digest(), digest_size=4)
        return f"<{kind}-{digest.hexdigest()}>"

    def address(found: re.Match[str]) -> str:
        given = found[0]
        if _OCTETS.fullmatch(given):  # a GUID
            return given
        for end in ("", ":"):  # a colon may end it as in "ADDRESS: unreachable"
            try:
                one = ipaddress.ip_address(given[: len(given) - len(end)])
            except ValueError:
                continue
            if one.is_loopback or one.is_unspecified or one.is_multicast:
                return given
            return name("ip", str(one)) + end
        return given

    def octets(found: re.Match[str]) -> str:
        digits = found[0].replace(found[1], "")
        return name("guid", digits) if len(digits) == 16 else mac(digits)

    def mac(digits: str) -> str:
        return name("mac", ":".join(re.findall("..", digits)))

    text = _BLOCK.sub(GONE, str(text))
    text = _JWT.sub(GONE, text)
    text = _BEARER.sub(rf"\1\2{GONE}", text)
    text = _NAMED.sub(rf"\1{GONE}", text)
    text = _LOGIN.sub(f"{GONE}@", text)
    text = _SERIAL.sub(lambda found: (found[1] or found[3]) + name("serial", found[2] or found[4]), text)
    text = _GPU.sub(lambda found: name(found[1].lower(), found[0]), text)
    text = _UUID.sub(lambda found: found[1] + name("uuid", found[2]), text)
    text = _SWITCH.sub(lambda found: found[1] + name("id", found[2]), text)
    text = _INTERFACE.sub(lambda found: found[1] + mac(found[2]), text)
    text = _IPV6.sub(address, _IPV4.sub(address, text))
    text = _OCTETS.sub(octets, text)
    return _GUID.sub(lambda found: name("guid", re.sub("[:x]", "", found[0])[-16:]), text)


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        return {"redact": redact}
