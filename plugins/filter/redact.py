# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import typing as t

DOCUMENTATION = r"""
name: redact
short_description: Remove secrets and addresses from a text
version_added: 1.0.0
author:
  - The lanewise authors (@lanewise)
description:
  - Replaces private keys, tokens, passwords and the credentials of kubeconfigs and URLs with V(REDACTED).
  - "JSON is filtered by structure and stays JSON: every text below the name of a secret is removed. Other texts are
    filtered by patterns."
  - Replaces MAC addresses (also in names of interfaces), GUIDs, IP addresses, serial numbers and UUIDs of cards with
    placeholders. The same value and O(salt) always give the same placeholder, so values can still be correlated.
    Loopback, multicast and unspecified addresses are kept.
  - PCI addresses, host names and models are kept.
positional: _input
options:
  _input:
    description: The text.
    type: str
    required: true
  salt:
    description: A random secret that is not stored, so that placeholders cannot be traced back to values.
    type: str
    required: true
seealso:
  - plugin: lanewise.dra.dra_driver
    plugin_type: role
    description: The role whose data C(lanewise.dra.support_bundle) collects.
"""

EXAMPLES = r"""
- name: Write a log without secrets
  ansible.builtin.copy:
    content: "{{ log.stdout | lanewise.dra.redact(salt=lookup('ansible.builtin.password', '/dev/null')) }}"
    dest: log.txt
    mode: "0600"
"""

RETURN = r"""
_value:
  description: The redacted text.
  type: str
"""

REDACTED = "REDACTED"
#: The start of a word, also after an escaped newline, as in JSON.
_START = r"(?:\b|(?<=\\[nrt]))"
_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
# repetitions here and below are bounded, so that no text takes long
_JWT = re.compile(rf"(?:(?<![\w-])eyJ[\w-]{{5,}}|{_START}eyJ[\w-]{{5,1500}})\.[\w-]+(?:\.[\w-]*)?")
_BEARER = re.compile(rf"(?i){_START}(bearer|basic)(\s+)[\w.~+/=-]{{8,}}")
_SECRET = (
    r"(?i)(?:password|passwd|passphrase|passcode|(?<!imagepull)secret|token|credential"
    r"|(?:api|access|private|auth|pre-?shared|shared|encryption|signing|account|storage|sas?|m|sm)[_-]?key"
    r"|(?<![A-Za-z])(?:pass|psk|creds?|(?-i:pwd))(?![A-Za-z])"
    r"|client-key-data|client-certificate-data|certificate-authority-data)"
)
#: Secrets that are recognised by their prefix: those of NVMe over fabrics and of common services.
_PREFIXED = re.compile(
    r"(?:DHHC-1|NVMeTLSkey-1):[\da-fA-F]{2}:[\w+/=]{8,}:?"
    rf"|{_START}(?:gh[pousr]_|github_pat_|glpat-|hf_|nvapi-|xox[abeprs]-|sk-|AKIA|ASIA)[\w-]{{12,}}"
)
#: HTTP headers, to the end of the line or of the quotes. The scheme may be kept.
_HEADER = re.compile(
    rf"(?i){_START}((?:proxy-)?authorization|(?:set-)?cookie)(\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?)"
    r"((?:bearer|basic|token|digest|negotiate|ntlm|apikey|key|aws4-hmac-sha256)[ \t]+)?"
    r"(?!(?:REDACTED|webhook|rbac|node|alwaysallow)\b)[^\s\"'\\\[{][^\r\n\"'\\]*"
)
#: Credentials of dockerconfig and npm in Base64, unlike the words of messages.
_LOGIN_DATA = re.compile(
    rf"(?i){_START}(_?auth\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?)(?=[^\s\"'\\]*(?-i:[A-Z\d+/=]))[\w+/=-]{{8,}}"
)
_HEADERS = re.compile(r"(?i)(?:(?:proxy-)?authorization|(?:set-)?cookie|_?auth)\Z")
#: A YAML object of kind Secret, and its data.
_OBJECT = re.compile(r"(?m)^[ \t]*(?:- +)?kind:[ \t]*\\*[\"']?Secret(?:List)?\\*[\"']?[ \t]*(?:\0.*)?$")
_DOCUMENT = re.compile(r"(?m)^---.*$")
_DATA = re.compile(r"(?m)^([ \t]*(?:- +)?)(?:data|stringData):[ \t]*(?:[#\0][^\n]*)?\n")
#: An escaped newline. It becomes a real one while a text is searched.
_ESCAPED = re.compile(r"(?<!\\)\\+n")
_UNESCAPED = re.compile(r"\0(\\+n)\n")
_NAME = re.compile(_SECRET + r"([\w-]{0,64})")
_KEY = re.compile(_SECRET + r"([\w.-]{0,64})\Z")
_WHOLE_NAME = re.compile(_SECRET + r"\Z")
#: Endings of names that refer to a secret but do not contain it.
_REFERENCE = re.compile(
    r"(?i)(?:name|namespace|ref|type|kind|request|review|file|path|dir|audience|controller|error|statu|version)s?\Z"
    r"|(?:expir\w*|seconds|ttl|length|count|limit|policy|stdin|enabled|required|less|i[sz]er)\Z"
)
_QUOTE = r"(?:\\*[\"'])?"
_SPACE = r"(?:\s|\\+[nrt])*"
#: The text between a name and its value, also where both are values of `name` and `value`, but not in a message.
_ASSIGNMENT = re.compile(
    r"(?!\\*[\"'][ \t]+:[ \t]+[A-Za-z])"
    rf"(?:{_QUOTE}{_SPACE}(?:,{_SPACE})?{_QUOTE}value)?{_QUOTE}"
    r"[ \t]*(?::=|=>|==|[:=])[ \t]*(?:\r?\n[ \t]+(?=\\*[\"'\[{]))?"
)
#: The text between an option and its value, also in lists.
_OPTION_GAP = re.compile(rf"(?:[ \t]+|\\*[\"']{_SPACE},{_SPACE}|[ \t]*\n[ \t]*-[ \t]+)(?!{_QUOTE}--)")
_DASHES = re.compile(r"--[\w-]*\Z")
_OPTION = re.compile(r"--?[\w-]+")
_OPENING = re.compile(r"(\\*)([\"'])")
_CLOSING = {'"': re.compile(r"(\\*)(\")"), "'": re.compile(r"(\\*)(''?)")}
_END = r"(?=[\s,;}\])]|\\*[\"']|\\+[nrt]|\Z)"
#: Values that are not secrets, and words of messages.
_NOT_SECRET = re.compile(
    r"(?i)(?:null|none|<?nil>?|~|true|false|yes|no|not|is|was|unknown|expired|invalid|missing|permission|failed|unable"
    rf"|cannot|error|unauthorized|forbidden){_END}"
)
_NUMBER = re.compile(rf"-?\d[\d.]*(?:e[+-]?\d+)?{_END}")
# a value may contain commas or semicolons, but ends at one that another name follows
_BARE = re.compile(
    r"(?![,;}\])])(?:[^\s\"'\\,;}\])]|\\+(?![\\\"'])|'(?=\w)|[}\])](?=\w)"
    r"|[,;](?!\s|\\*[\"']|\\+[nrt]|[}\])]|\Z|[A-Za-z_][\w.-]{0,40}=))+"
)
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
_PIECE = re.compile(r"[\[{}\]]|\\*[\"']|\\+[nrt](?=[\s\\\"'\]}])|\\+|[:=]|[\s,]+|[^\s\"'\\\[\]{},:=]+")
_COLON = re.compile(r"\s*:")
#: The end of a YAML line whose value is in the lines below.
_BLOCK_START = re.compile(r"([|>][-+\d]*)?[ \t]*(?:#[^\n]*)?\n")
_LEAD = re.compile(r"([ \t]*(?:- +)*)[\"']?[\w./-]*")
_LINE = re.compile(r"([ \t]*)((?:- +)*(?:[\w./\"'-]+:(?=\s))?[ \t]*)([^\n]*)(\n?)")
# a user name without a password stays, except in HTTP, where it is often a token
_LOGIN = re.compile(
    r"(?i)(?:(?<=http://)|(?<=https://)|(?<=://)(?=[^\s/@\"'<>]*:))[^\s/\"'<>]*@"
    # options of dracut; not a time, a MAC address or an image
    r"|(?:(?<=iscsi:)|(?<==)(?!(?:iscsi|cifs):|[\dTZ:.+-]+@|(?:[\da-f]{2}:){5})|(?<==cifs:))"
    r"[^\s:/@\"'<>=]{1,255}:[^\s@\"'<>]{1,255}@(?!sha\d+:)"
)
# also attributes in a ResourceSlice: "serial": {"string": "..."}
_VALUE = r"\\?[\"']?\s*[:=]\s*(?:\{\s*\\?\"string\\?\"\s*:\s*)?"
_SERIAL = re.compile(
    rf"(?i)(serial(?:[_ -]?(?:number|no))?{_VALUE}\\?[\"'])(?!(?:null|none|unknown|true|false)\b)([^\"'\\\n]{{4,}})"
    rf"|(serial(?:[_ -]?(?:number|no))?{_VALUE}|serial[_ -]?(?:number|no)[ \t]+(?=[\w./-]*\d))"
    r"(?!(?:null|none|unknown|true|false)\b)(?=[\w./-]{4})(\w[\w./-]*\w)"
)
_UUID = re.compile(rf"(?i)(\"(?:system)?uuid{_VALUE}\\?\")([\da-f-]{{16,}})")
_GPU = re.compile(r"(GPU|MIG)-[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}")
# as in sysfs and in the output of 'ip'
_SWITCH = re.compile(r"(?i)((?:switch|port)_?id\\?[\"']?\s*(?:[:=]\s*)?\\?[\"']?)([\da-f]{8,})(?![\w.-])")
#: Names whose values may consist of digits only.
_DIGITS = re.compile(r"(?i)(?:serial(?:[_ -]?(?:number|no))?|(?:switch|port)_?id|uuid)\Z")
# systemd's interface names that contain a MAC address
_INTERFACE = re.compile(rf"(?i){_START}((?:en|ib|sl|wl|ww)x)([\da-f]{{12}})(?![\da-f])")
# 6 octets of a MAC address, 8 of a GUID, 14 as netfilter logs them, 20 of an InfiniBand interface
_OCTETS = re.compile(
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?<!::)(?<!\d-)"
    r"[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4,}[0-9A-Fa-f]{2}(?![0-9A-Fa-f])"
)
_GUID = re.compile(
    # not a part of an address that stays, such as a multicast address
    r"(?<![0-9A-Fa-f])(?<!::)(?<!:[0-9A-Fa-f]:)(?<!:[0-9A-Fa-f]{2}:)(?<!:[0-9A-Fa-f]{3}:)(?<![0-9A-Fa-f]{4}:)"
    r"(?:(?:[0-9A-Fa-f]{4}:){3}[0-9A-Fa-f]{4}|0x[0-9A-Fa-f]{16})"
    r"(?![0-9A-Fa-f]|:[0-9A-Fa-f:])"
)
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")
_IPV6 = re.compile(
    r"(?:(?<![\w:.])|(?<=\\[nrt])|(?<=[G-Zg-z]:))"
    r"[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\d{1,3}\.){3}\d{1,3})?(?!\w|:[\w:]|\.\d)"
)


def _is_secret(name: str) -> bool:
    """Whether the value of this name is secret."""
    match = _KEY.search(name)
    return match is not None and not _REFERENCE.search(match[1])


def _refers(name: str) -> bool:
    """Whether a name refers to a secret, but its value is not secret, such as `secretName`."""
    match = _KEY.search(name)
    return match is not None and _REFERENCE.search(match[1]) is not None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _redact_json(value: object, redact_all: bool = False) -> object:
    """A JSON value without secrets; with `redact_all`, without any text."""
    if isinstance(value, str):
        return (value and REDACTED) if redact_all else _without_secrets(value)
    if isinstance(value, list):
        items, after_option = [], False
        for item in value:
            is_value = after_option and isinstance(item, str) and not item.startswith("--")
            items.append(_redact_json(item, redact_all or is_value))
            after_option = isinstance(item, str) and bool(_OPTION.fullmatch(item)) and _is_secret(item)
        return items
    if isinstance(value, dict):
        named = value.get("name", value.get("key"))
        pair = isinstance(named, str) and _is_secret(named)
        public = {key: member for key, member in value.items() if not _is_secret_data(value, key)}
        parts = {
            _without_secrets(key): _redact_named(key, member, redact_all, pair and key == "value")
            for key, member in public.items()
        }
        parts.update({key: _redact_values(member) for key, member in value.items() if key not in public})
        return {key: parts[key] for key in map(_without_secrets, value)}
    return value


def _is_secret_data(value: dict[str, object], key: str) -> bool:
    """Whether the key has the data of a Kubernetes Secret, or the items of a list of Secrets."""
    kind = value.get("kind")
    return (kind == "Secret" and key in ("data", "stringData")) or (kind == "SecretList" and key == "items")


def _redact_values(value: object) -> object:
    """A JSON value with its texts and numbers replaced, except for keys and the metadata of objects."""
    if isinstance(value, dict):
        return {
            key: _redact_json(member) if key == "metadata" else _redact_values(member) for key, member in value.items()
        }
    if isinstance(value, list):
        return [_redact_values(item) for item in value]
    return value if value is None or isinstance(value, bool) or value == "" else REDACTED


def _without_secret_objects(text: str) -> str:
    """A YAML text without the data of Secrets."""
    text = _ESCAPED.sub(lambda match: f"\0{match[0]}\n", text.replace("\0", "\ufffd"))
    parts, at = [], 0
    for end in [*(separator.start() for separator in _DOCUMENT.finditer(text)), len(text)]:
        part, at = text[at:end], end
        parts.append(_without_data(part) if _OBJECT.search(part) else part)
    return _UNESCAPED.sub(r"\1", "".join(parts))


def _without_data(text: str) -> str:
    parts, at = [], 0
    while heading := _DATA.search(text, at):
        parts.append(text[at : heading.end()])
        at = heading.end()
        while at < len(text) and (row := _LINE.match(text, at)):
            indent, key, rest, newline = row.groups()
            if (key + rest) and len(indent) <= len(heading[1]):
                break
            value, mark, escaped = rest.partition("\0")
            parts.append(indent + key + (REDACTED if value else "") + mark + escaped + newline)
            at = row.end()
    return "".join(parts) + text[at:]


def _redact_named(name: str, value: object, redact_all: bool, is_secret: bool) -> object:
    """The value of a name in JSON without secrets."""
    if _is_number(value):
        # but not a count, such as max_tokens
        if is_secret or _WHOLE_NAME.search(name):
            return REDACTED
        # a string, because it is later replaced by a placeholder
        return str(value) if _DIGITS.search(name) and len(json.dumps(value)) >= 4 else value
    if isinstance(value, str) and _HEADERS.match(name):
        return value and REDACTED
    return _redact_json(value, not _refers(name) and (redact_all or is_secret or _is_secret(name)))


def _redact_json_text(text: str) -> str | None:
    """JSON without secrets, in its original format; None for anything else."""
    body = text.strip()
    if body[:1] not in ("{", "["):
        return None
    try:
        value = _redact_json(json.loads(body))
        indent = re.match(r"[\[{]\r?\n([ \t]+)", body)
        dense = " " not in _STRING.sub("", body)
        dumped = json.dumps(
            value,
            indent=indent and indent[1],
            ensure_ascii=body.isascii() or "\\u" in body,
            separators=(",", ":") if dense and not indent else None,
        )
    except (ValueError, RecursionError):
        return None
    return text[: len(text) - len(text.lstrip())] + dumped + text[len(text.rstrip()) :]


def _redact_quoted(text: str, opening: re.Match[str]) -> tuple[str, int]:
    """A quoted text with its content replaced, and where it ends."""
    depth = len(opening[1])
    for closing in _CLOSING[opening[2]].finditer(text, opening.end()):
        extra_escapes = len(closing[1]) - depth
        if extra_escapes < 0:  # the closing quote of the text around this one
            return opening[0] + REDACTED, closing.start()
        # nested quotes have one more level of escapes
        if extra_escapes // (depth + 1) % 2 == 0 and len(closing[2]) == 1:
            empty = closing.start() == opening.end() and not extra_escapes
            return opening[0] + ("" if empty else REDACTED) + opening[0], closing.end()
    end = text.find("\n", opening.end())
    return opening[0] + REDACTED, len(text) if end < 0 else end


def _redact_bracketed(text: str, at: int) -> tuple[str, int]:  # noqa: C901  # a branch per kind of token
    """The bracketed text that begins at `at`, with its values replaced, and where it ends."""
    parts: list[str] = []
    depth, is_public = 0, False
    while piece := _PIECE.match(text, at):
        start, at = at, piece.end()
        shown = piece[0]
        if shown in "[{":
            depth += 1
        elif shown in "]}":
            depth -= 1
        elif opening := _OPENING.match(text, start):
            shown, at = _redact_quoted(text, opening)
            line = text.find("\n", start, at)
            if line >= 0:  # the quotes belong to a text around the bracket
                return "".join(parts) + opening[0] + REDACTED, line
            if _COLON.match(text, at):
                shown = text[start:at]
                is_public = _refers(shown.strip("\\\"'"))
            elif is_public:
                shown = text[start:at]
        elif shown[0] == "\\" and len(shown) > 1 and shown[-1] in "nrt":
            pass  # an escaped newline
        elif not shown.strip(", \t\r\n"):
            if shown.endswith("\n") and text[at : at + 1] not in ("]", "}"):
                return "".join(parts) + shown, at  # the bracket is never closed
        elif shown not in ":=":
            if text[at : at + 1] == ":" and text[at + 1 : at + 2].isspace():
                is_public = _refers(shown)
            elif not (is_public or _NOT_SECRET.match(text, start) or _NUMBER.match(text, start)):
                shown = REDACTED
        parts.append(shown)
        if not depth:
            break
    return "".join(parts), at


def _redact_block(text: str, name: int, end: re.Match[str]) -> tuple[str, int]:
    """The YAML lines below a name, with their values replaced, and where they end."""
    line = text.rfind("\n", 0, name) + 1
    lead = _LEAD.match(text, line)
    if lead is None or lead.end() < name:  # the name is part of a message
        return "", end.start()
    block, at = end[0], end.end()
    while at < len(text) and (row := _LINE.match(text, at)):
        indent, key, rest, newline = row.groups()
        below = len(indent) > len(lead[1]) or (len(indent) == len(lead[1]) and key.startswith("- ") and not end[1])
        if not below and key + rest:
            break
        is_public = not end[1] and (
            _refers(key.strip(" :-\"'")) or _NOT_SECRET.fullmatch(rest) or _NUMBER.fullmatch(rest)
        )
        if is_public or (not rest and not end[1]):
            block += row[0]
        else:
            block += indent + ("" if end[1] else key) + REDACTED + newline
        at = row.end()
    return block, at


def _without_named_values(text: str) -> str:
    """A text without the values that follow the names of secrets."""
    parts, at = [], 0
    while name := _NAME.search(text, at):
        start, end = name.span()
        assignment = _ASSIGNMENT.match(text, end)
        if not assignment and _DASHES.search(text[max(0, start - 42) : start]):
            assignment = _OPTION_GAP.match(text, end)
        if not assignment or _REFERENCE.search(name[1]):
            parts.append(text[at:end])
            at = end
            continue
        parts.append(text[at : assignment.end()])
        at = assignment.end()
        shown = ""
        if opening := _OPENING.match(text, at):
            shown, at = _redact_quoted(text, opening)
        elif text[at : at + 1] in ("[", "{"):
            shown, at = _redact_bracketed(text, at)
        elif below := _BLOCK_START.match(text, at):
            shown, at = _redact_block(text, start, below)
        elif not _NOT_SECRET.match(text, at) and (_WHOLE_NAME.search(name[0]) or not _NUMBER.match(text, at)):
            if bare := _BARE.match(text, at):
                # a number in JSON is replaced by a string
                mark = _OPENING.match(assignment[0])
                shown = f"{mark[0]}{REDACTED}{mark[0]}" if mark and _NUMBER.match(text, at) else REDACTED
                at = bare.end()
        parts.append(shown)
    return "".join(parts) + text[at:]


def _without_secrets(text: str) -> str:
    redacted_json = _redact_json_text(text)
    if redacted_json is not None:
        return redacted_json
    text = _without_secret_objects(_BLOCK.sub(REDACTED, text))
    text = _PREFIXED.sub(REDACTED, _JWT.sub(REDACTED, text))
    text = _HEADER.sub(lambda match: f"{match[1]}{match[2]}{match[3] or ''}{REDACTED}", text)
    text = _LOGIN_DATA.sub(rf"\1{REDACTED}", _BEARER.sub(rf"\1\2{REDACTED}", text))
    return _LOGIN.sub(f"{REDACTED}@", _without_named_values(text))


def redact(text: str, salt: str) -> str:
    """The text without secrets, and with placeholders for addresses. See the documentation above."""

    def placeholder(kind: str, value: str) -> str:
        digest = hashlib.blake2b(value.lower().encode(), key=hashlib.sha256(salt.encode()).digest(), digest_size=4)
        return f"<{kind}-{digest.hexdigest()}>"

    def address(match: re.Match[str]) -> str:
        original = match[0]
        if _OCTETS.fullmatch(original):  # a GUID
            return original
        for end in ("", ":"):  # a colon may follow, as in "ADDRESS: unreachable"
            try:
                parsed = ipaddress.ip_address(original[: len(original) - len(end)])
            except ValueError:
                continue
            if parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast:
                return original
            return placeholder("ip", str(parsed)) + end
        return original

    def octets(match: re.Match[str]) -> str:
        digits = match[0].replace(match[1], "")
        return placeholder("guid", digits) if len(digits) == 16 else mac(digits)

    def mac(digits: str) -> str:
        return placeholder("mac", ":".join(re.findall("..", digits)))

    text = _without_secrets(str(text))
    text = _SERIAL.sub(lambda match: (match[1] or match[3]) + placeholder("serial", match[2] or match[4]), text)
    text = _GPU.sub(lambda match: placeholder(match[1].lower(), match[0]), text)
    text = _UUID.sub(lambda match: match[1] + placeholder("uuid", match[2]), text)
    text = _SWITCH.sub(lambda match: match[1] + placeholder("id", match[2]), text)
    text = _INTERFACE.sub(lambda match: match[1] + mac(match[2]), text)
    text = _IPV6.sub(address, _IPV4.sub(address, text))
    text = _OCTETS.sub(octets, text)
    return _GUID.sub(lambda match: placeholder("guid", re.sub("[:x]", "", match[0])[-16:]), text)


class FilterModule:
    """The filter redact."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        return {"redact": redact}
