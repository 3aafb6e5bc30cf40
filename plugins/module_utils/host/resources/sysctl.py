# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The node's own sysctls (Documentation/admin-guide/sysctl; sysctl.d(5)).

`interface_sysctls` sets sysctls of single interfaces.
"""

from __future__ import annotations

import re

from ..access.system import HostError
from ..engine.change import NODE, Change, Refusal, State
from ..engine.node import Node
from ..engine.resource import Resource

PATH = "/etc/sysctl.d/90-lanewise.conf"
#: The folders of systemd-sysctl. A file in an earlier folder hides files of the same name in later ones.
_FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
_KEY = re.compile(r"^[a-z][A-Za-z0-9_-]*([./][A-Za-z0-9_:-]+)+$", re.ASCII)
_OF_INTERFACE = re.compile(r"^net\.ipv[46]\.(conf|neigh)\.(?!all\.|default\.)")
_AT_BOOT = " at boot"
_HEADER = "# Written by the Ansible collection lanewise.dra, which owns this file.\n"


def _path(key: str) -> str:
    return "/proc/sys/" + (key if "/" in key.split(".")[0] else key.replace(".", "/"))


def _name(key: str) -> str:
    """A key with dots. In sysctl.d, a key may have dots or slashes as separators; the first one decides which."""
    return key.replace("/", ".") if "/" in key.split(".")[0] else key


def parse(text: str) -> dict[str, str]:
    """The settings of a sysctl.d file, as systemd-sysctl reads them."""
    settings = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and key[:1] not in ("#", ";", ""):
            settings[_name(key.strip().lstrip("-").strip())] = value.strip()
    return settings


class Sysctl(Resource):
    """`sysctl` of the node: a mapping of keys to values, now and at boot.

    If a key is removed from the mapping, it is removed from the file, but keeps its value until the next boot. Other
    keys are never changed.
    """

    name = "sysctl"
    recorded_in = ("/etc/sysctl.d",)
    boot = False

    def wanted(self, node: Node) -> State:
        requested = node.general.get("sysctl")
        if requested is None:
            return {}
        settings: dict[str, object] = {}
        for key, value in requested.items():
            settings[_name(key)] = settings[_name(key) + _AT_BOOT] = _text(value)
        for key in self._stored():
            settings.setdefault(key + _AT_BOOT, None)
        return {NODE: settings} if settings else {}

    def _stored(self) -> dict[str, str]:
        """The settings in this collection's file."""
        return parse(self.system.content(PATH) or "")

    def read(self, node: Node, wanted: State) -> State:
        settings = self._stored()
        current: dict[str, object] = {}
        for setting in wanted.get(NODE, {}):
            if setting.endswith(_AT_BOOT):
                current[setting] = settings.get(setting[: -len(_AT_BOOT)])
            else:
                value = self.system.text(_path(setting))
                current[setting] = None if value is None else _text(value)
        return {NODE: current}

    def same(self, setting: str, before: object, after: object) -> bool:
        return before == after if before is None or after is None else _text(before) == _text(after)

    def check(self, node: Node, change: Change) -> Refusal | None:
        at_boot = change.setting.endswith(_AT_BOOT)
        key = change.setting[: -len(_AT_BOOT)] if at_boot else change.setting
        if change.after is None:
            return None
        if at_boot or self._stored().get(key) == str(change.after):
            override = self._override(key, str(change.after))
            if override:
                return Refusal(NODE, change.setting, f"{'' if at_boot else 'at boot '}{override}", "remove it there")
        if at_boot:
            return None  # the other checks are made for the live value
        if not _KEY.match(key):
            return Refusal(NODE, change.setting, "is not a valid sysctl name")
        if "\n" in str(change.after):
            return Refusal(NODE, change.setting, "the value has several lines", "write it in one line")
        if _OF_INTERFACE.match(key):
            fix = "set it in the NIC's sysctls, as an interface that appears later would not get it from here"
            return Refusal(NODE, change.setting, "belongs to one interface", fix)
        if not self.system.exists(_path(key)):
            return Refusal(
                NODE, change.setting, "this kernel has no such sysctl", "load the kernel module that provides it"
            )
        if change.before is None:
            return Refusal(NODE, change.setting, "cannot be read, so a change could not be checked")
        return None

    def _override(self, key: str, value: str) -> str:
        """Why another file overrides this collection's file at boot; empty if none does."""
        files: dict[str, str] = {}
        for folder in _FOLDERS:
            for name in self.system.names(folder):
                if name.endswith(".conf"):
                    files.setdefault(name, f"{folder}/{name}")
        for name in sorted(files, reverse=True):
            if name <= PATH.rpartition("/")[2]:
                break
            try:
                other_value = parse(self.system.content(files[name]) or "").get(key)
            except HostError:
                continue  # a broken link, or not text: systemd-sysctl skips it as well
            if other_value is not None:
                return (
                    ""
                    if _text(other_value) == _text(value)
                    else f"{files[name]} sets it to {other_value}, after {PATH}"
                )
        return ""

    def apply(self, node: Node, change: Change) -> None:
        if not change.setting.endswith(_AT_BOOT):
            if change.after is not None:
                self.system.write(_path(change.setting), str(change.after), f"set {change.setting} to {change.after}")
            return
        settings = self._stored()
        key = change.setting[: -len(_AT_BOOT)]
        settings.pop(key, None)
        if change.after is not None:
            settings[key] = str(change.after)
        text = _HEADER + "".join(f"{name} = {settings[name]}\n" for name in sorted(settings)) if settings else None
        self.system.install(PATH, text, f"write {key} to {PATH}")


def _text(value: object) -> str:
    """A value as text with single spaces, as the kernel separates multiple values with tabs."""
    return " ".join(str(int(value) if isinstance(value, bool) else value).split())
