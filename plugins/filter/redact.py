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
  - Replaces private keys, tokens, passwords and the credentials of kubeconfigs by V(REDACTED).
  - Replaces MAC addresses, GUIDs, IP addresses and serial numbers by names that are the same for the same value and
    O(salt), so that it can still be told which are one. Addresses of the loopback and the like stay.
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
_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_JWT = re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?")
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[\w.~+/=-]{8,}")
_NAMED = re.compile(
    r"(?i)((?:[\w-]*(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key)|token|client-key-data|"
    r"client-certificate-data|certificate-authority-data|identity-token)\\?[\"']?\s*[:=]\s*)"
    r"(\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|\\?'[^']*'|[^\s,;}\]\"']+)"
)
_SERIAL = re.compile(
    r"(?i)(\bserial(?:[_ -]?(?:number|no))?\\?[\"']?\s*[:=]\s*\\?[\"']?)(?!(?:null|none|unknown)\b)([\w-]{4,})"
)
_MAC = re.compile(r"(?<![0-9A-Fa-f:.-])(?:[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2})(?![0-9A-Fa-f:-])")
_INFINIBAND = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){19}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_GUID = re.compile(
    r"(?<![0-9A-Fa-f:])(?:(?:[0-9A-Fa-f]{4}:){3}[0-9A-Fa-f]{4}|(?:[0-9A-Fa-f]{2}:){7}[0-9A-Fa-f]{2}"
    r"|0x[0-9A-Fa-f]{16})(?![0-9A-Fa-f:])"
)
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\d{1,3}\.){3}\d{1,3})?(?![\w:]|\.\d)")


def redact(text: str, salt: str) -> str:
    """The text without secrets, and with names in place of addresses. See the documentation above."""

    def name(kind: str, value: str) -> str:
        digest = hashlib.blake2b(value.lower().encode(), key=hashlib.sha256(salt.encode()).digest(), digest_size=4)
        return f"<{kind}-{digest.hexdigest()}>"

    def address(found: re.Match[str]) -> str:
        try:
            one = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        if one.is_loopback or one.is_unspecified or one.is_multicast:
            return found[0]
        return name("ip", str(one))

    text = _BLOCK.sub(GONE, str(text))
    text = _JWT.sub(GONE, text)
    text = _BEARER.sub(rf"\1\2{GONE}", text)
    text = _NAMED.sub(rf"\1{GONE}", text)
    text = _SERIAL.sub(lambda found: found[1] + name("serial", found[2]), text)
    text = _INFINIBAND.sub(lambda found: name("mac", found[0]), text)
    text = _GUID.sub(lambda found: name("guid", re.sub("[:x]", "", found[0]).lower()[-16:]), text)
    text = _MAC.sub(lambda found: name("mac", found[0].replace("-", ":")), text)
    return _IPV6.sub(address, _IPV4.sub(address, text))


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        return {"redact": redact}
