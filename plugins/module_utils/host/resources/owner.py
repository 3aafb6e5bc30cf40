# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Programs that would override settings of an interface: systemd-networkd, udev, NetworkManager, netplan.

Each program records which of its files it uses: `/run/systemd/netif/links` (sd-network.c), `/run/udev/data`
(`ID_NET_LINK_FILE`), `/run/NetworkManager/devices` (nm-config.c). For the files see systemd.network(5),
systemd.link(5), nm-settings-keyfile(5). ifcfg files of NetworkManager and values from DHCP are not read.
"""

from __future__ import annotations

import re
import time
import typing as t
import uuid
from dataclasses import dataclass

from ..access.system import HostError, System
from ..engine.change import Refusal

NETWORKD, UDEV, NETWORK_MANAGER = "systemd-networkd", "udev", "NetworkManager"

_ETC = "/etc/systemd/network"
_FOLDERS = (_ETC, *(f"{root}/systemd/network" for root in ("/run", "/usr/local/lib", "/usr/lib", "/lib")))
_DROP_IN = "lanewise.conf"
_DROP_IN_TEXT = "# Written by the Ansible collection lanewise.dra, which owns this file.\n[Link]\nMTUBytes={}\n"
_PROFILES = tuple(f"{root}/NetworkManager/system-connections" for root in ("/etc", "/run", "/usr/lib"))
#: Sections of a profile that can contain an MTU, with their names in nmcli.
_SECTIONS = {"ethernet": "802-3-ethernet", "802-3-ethernet": "802-3-ethernet", "infiniband": "infiniband"}
#: The namespace for the UUIDs of profiles that have none in their file, such as netplan's (nm-uuid.c, nm_uuid_ns_1).
_NAMESPACE = uuid.UUID("b425e9fb-7598-44b4-9e3b-5a2e3aaa4905")
_NETPLAN_FILE = re.compile(r"(?:10-netplan-(.+)\.(?:network|link)|netplan-(.+)\.nmconnection)")
_NETPLAN_FOLDERS = tuple(f"{root}/netplan" for root in ("/etc", "/run", "/usr/lib", "/lib"))
_MTU_IN = "mtu in "
_RECONFIGURE_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Manager:
    """A program that manages an interface, the `file` that it uses, and the UUID of NetworkManager's `profile`.

    `file` is empty if the profile is not in a keyfile.
    """

    program: str
    file: str
    profile: str = ""

    @property
    def netplan(self) -> str:
        """The interface's name in netplan's YAML, if netplan has written the file; otherwise empty."""
        match = _NETPLAN_FILE.fullmatch(self.file.rpartition("/")[2])
        return (match.group(1) or match.group(2)) if match else ""


def entries(text: str, continued: bool = False) -> list[tuple[str, str, str]]:
    """Section, key and value of each line. For a section's header, key and value are empty.

    With `continued`, a backslash joins a line with the next, as in systemd's files (systemd.syntax(7)).
    """
    lines = []
    section = continued_line = ""
    for raw in (*text.split("\n"), ""):
        line = raw.strip()
        if line.startswith(("#", ";")):
            continue
        line, continued_line = continued_line + line, ""
        if continued and (len(line) - len(line.rstrip("\\"))) % 2:
            continued_line = f"{line[:-1]} "
        elif line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            lines.append((section, "", ""))
        elif "=" in line:
            key, _equals, value = line.partition("=")
            lines.append((section, key.strip(), value.strip()))
    return lines


def parse_mtu(text: str) -> int | str | None:
    """An MTU in a file, in bytes; systemd's suffixes K, M and G are allowed. None if it is empty or 0.

    Other text is returned unchanged.
    """
    match = re.fullmatch(r"(\d{1,10})\s*([BKMG]?)", text, re.ASCII)
    if not match:
        return text or None
    return int(match.group(1)) * 1024 ** "BKMG".index(match.group(2) or "B") or None


def managers(system: System, interface: str) -> list[Manager]:
    """The programs that manage an interface, according to their own records. Raises HostError."""
    index = system.integer(f"/sys/class/net/{interface}/ifindex")
    if index is None:
        return []
    programs = []
    state = _values(system, f"/run/systemd/netif/links/{index}")
    if state.get("NETWORK_FILE") and state.get("ADMIN_STATE") != "unmanaged":
        programs.append(Manager(NETWORKD, re.sub(r"\\(.)", r"\1", state["NETWORK_FILE"].strip('"'))))
    link = _values(system, f"/run/udev/data/n{index}").get("E:ID_NET_LINK_FILE")
    if link:
        programs.append(Manager(UDEV, link))
    state = _values(system, f"/run/NetworkManager/devices/{index}")
    profile = state.get("connection-uuid", "")
    if profile and state.get("managed") != "false":
        programs.append(Manager(NETWORK_MANAGER, _keyfile(system, profile), profile))
    return programs


def mtu_settings(system: System, interface: str, mtu: int) -> dict[str, object]:
    """The settings that prevent other programs from setting another MTU, as `mtu in PATH`.

    A value is the MTU, or None if the collection's file is no longer needed. Raises HostError.
    """
    settings: dict[str, object] = {}
    for manager in managers(system, interface):
        differs = _mtu(system, manager)[0] not in (None, mtu)
        if manager.program == NETWORK_MANAGER:
            settings.update({_MTU_IN + manager.file: mtu} if differs else {})
        elif differs or system.exists(_drop_in(manager)):
            settings[_MTU_IN + _drop_in(manager)] = mtu if differs else None
    return settings


def is_manager_setting(setting: str) -> bool:
    """Whether a setting is one of `mtu_settings`."""
    return setting.startswith(_MTU_IN)


def reconfigures(setting: str) -> bool:
    """Whether changing a setting of `mtu_settings` makes systemd-networkd reconfigure the interface."""
    return is_manager_setting(setting) and setting.endswith(f".network.d/{_DROP_IN}")


def is_orphaned(system: System, setting: str) -> bool:
    """Whether a setting of `mtu_settings` is in a profile that no longer exists, so that it cannot be restored."""
    path = setting[len(_MTU_IN) :]
    return is_manager_setting(setting) and not path.startswith(_ETC) and not system.exists(path)


def read(system: System, setting: str) -> int | str | None:
    """The current value of a setting of `mtu_settings`. Raises HostError."""
    path = setting[len(_MTU_IN) :]
    sections = ("Link",) if path.startswith(_ETC) else _SECTIONS
    return _last_value(system, path, sections, "MTUBytes" if path.startswith(_ETC) else "mtu")


def write(system: System, setting: str, value: int | None, interface: str) -> None:
    """Change a setting of `mtu_settings` and notify its program. This may interrupt the interface. Raises HostError."""
    path = setting[len(_MTU_IN) :]
    step = f"set the MTU of {interface} in {path} to {value}"
    if path.startswith(_ETC):
        if read(system, setting) == value:
            return  # already written for another interface that uses the same file
        system.install(path, None if value is None else _DROP_IN_TEXT.format(value), step)
        if path.endswith(f".link.d/{_DROP_IN}"):
            if system.exists("/run/udev/control"):
                system.command(["udevadm", "control", "--reload"], step)
        elif any(
            system.text(f"/proc/{process}/comm") == "systemd-network"
            for process in system.names("/proc")
            if process.isdigit()
        ):
            system.command(["networkctl", "reload"], step)  # without the check above, this would start networkd
            values = [_mtu(system, manager)[0] for manager in managers(system, interface) if _drop_in(manager) == path]
            _wait_for_mtu(system, interface, values[0] if value is None and values else value, step)
        return
    lines = entries(_text(system, path))
    profile = next((text for section, key, text in lines if (section, key) == ("connection", "uuid")), "")
    section = next((_SECTIONS[line[0]] for line in lines if line[0] in _SECTIONS), "")
    if not profile or not section:
        raise HostError(step, "it is no longer a profile with a UUID and an MTU", "look at 'nmcli connection show'")
    properties = [f"{section}.mtu", str(value or 0)]
    # without this, nmcli would overwrite lines that were edited by hand
    system.command(["nmcli", "connection", "load", path], step)
    system.command(["nmcli", "connection", "modify", "uuid", profile, *properties], step)
    if Manager(NETWORK_MANAGER, path, profile) in managers(system, interface):
        # applies only this property, not other changes of the profile since it was activated
        system.command(["nmcli", "device", "modify", interface, *properties], step)


def _wait_for_mtu(system: System, interface: str, mtu: int | str | None, step: str) -> None:
    """Wait until systemd-networkd has applied the change, as `networkctl` does not wait for it."""
    deadline = time.monotonic() + _RECONFIGURE_TIMEOUT_SECONDS
    while isinstance(mtu, int) and system.integer(f"/sys/class/net/{interface}/mtu") != mtu:
        if time.monotonic() >= deadline:
            reason = f"systemd-networkd has not set {mtu} after {_RECONFIGURE_TIMEOUT_SECONDS:.0f} s"
            raise HostError(step, reason, "look at 'journalctl --unit=systemd-networkd'")
        time.sleep(0.02)


def mtu_refusals(system: System, device: str, interface: str, mtu: int, requested: t.Container[str]) -> list[Refusal]:
    """The refusals of an MTU that another program would override, if that cannot be prevented.

    `requested` are all interfaces that get this MTU. Raises HostError.
    """
    refusals = []
    for manager in managers(system, interface):
        message = fix = ""
        value, source = _mtu(system, manager)
        if manager.program == NETWORK_MANAGER and not manager.file:
            message = (
                f"NetworkManager's profile {manager.profile} of {interface} is not in a keyfile, so its MTU is unknown"
            )
            fix = f"'nmcli connection migrate uuid {manager.profile}' converts an ifcfg file to a keyfile"
        elif value in (None, mtu):
            continue
        elif manager.program == NETWORK_MANAGER:
            message = f"NetworkManager sets {value} again, because of {source}"
            if manager.netplan:
                fix = f"write mtu: {mtu} for {manager.netplan} in {_yaml(system, manager.netplan)}, and 'netplan apply'"
            elif not source.startswith("/etc/"):
                fix = f"set the MTU {mtu} in the profile {manager.profile} with nmcli, or change what writes this file"
            elif not system.exists("/usr/bin/nmcli"):
                fix = f"write mtu={mtu} there: this node has no nmcli"
        elif source != manager.file and source.rpartition("/")[2] > _DROP_IN:
            message = f"{manager.program} sets {value} again, because of {source}, which overrides {_drop_in(manager)}"
            fix = f"write MTUBytes={mtu} there, or remove the line"
        if not fix:
            others = [
                name
                for name in system.names("/sys/class/net")
                if name not in requested and manager in managers(system, name)
            ]
            if others:
                names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
                message = f"{manager.program} sets {value} again, because of {source}, which is for {names} too"
                fix = f"give {interface} a separate file, or request {mtu} for them too"
        if fix:
            refusals.append(Refusal(device, "mtu", message, fix))
    return refusals


def vfs_refusals(system: System, device: str, interface: str, number: int) -> list[Refusal]:
    """The refusals of a number of VFs if another program creates a different number. Raises HostError."""
    counts: dict[str, int | str | None] = {}
    names = set()
    for manager in managers(system, interface):
        names.add(manager.netplan)
        if manager.program == UDEV:
            counts[manager.file] = _vfs_of_link(system, manager.file)
        elif manager.program == NETWORK_MANAGER and manager.file:
            sriov = {key: value for part, key, value in entries(_text(system, manager.file)) if part == "sriov"}
            counts[manager.file] = _number(sriov.get("total-vfs") or "0") if sriov else None
    for name in sorted(names - {""}) if system.live else ():
        counts[_yaml(system, name)] = _vfs_of_netplan(system, name)
    fix = "write {} there or remove it, or leave the VFs to that program: externally_managed: true"
    return [
        Refusal(device, "num_vfs", f"{path} creates {count} VFs of {interface}, not {number}", fix.format(number))
        for path, count in counts.items()
        if count not in (None, number)
    ]


def _vfs_of_link(system: System, file: str) -> int | str | None:
    """The number of VFs that a .link file creates; None if it does not set a number."""
    lines = [line for path in _files(system, file) for line in entries(_text(system, path), True)]
    counts = [value for section, key, value in lines if (section, key) == ("Link", "SR-IOVVirtualFunctions")]
    if counts and counts[-1]:
        return _number(counts[-1])
    functions = [value for section, key, value in lines if (section, key) == ("SR-IOV", "VirtualFunction")]
    numbers = [int(value) + 1 for value in functions if re.fullmatch(r"\d{1,10}", value, re.ASCII)]
    return max(numbers) if numbers else None


def _vfs_of_netplan(system: System, name: str) -> int | str | None:
    """The number of VFs that netplan creates; None if it creates none. Raises HostError."""
    step = f"read netplan's number of VFs of {name}"
    path = name.replace(".", "\\.")
    count = system.query(["netplan", "get", f"ethernets.{path}.virtual-function-count"], step).strip()
    if count not in ("", "null"):
        return _number(count)
    link_line = re.compile(rf"""^\s+link:\s*["']?{re.escape(name)}["']?\s*$""", re.MULTILINE)
    return len(link_line.findall(system.query(["netplan", "get", "ethernets"], step))) or None


def _mtu(system: System, manager: Manager) -> tuple[int | str | None, str]:
    """The MTU that the program sets without the collection's drop-in, and the file that sets it."""
    if manager.program == NETWORK_MANAGER:
        return _last_value(system, manager.file, _SECTIONS, "mtu") if manager.file else None, manager.file
    result: tuple[int | str | None, str] = (None, manager.file)
    for path in _files(system, manager.file):
        value = _last_value(system, path, ("Link",), "MTUBytes") if path != _drop_in(manager) else None
        result = (value, path) if value is not None else result
    return result


def _last_value(system: System, path: str, sections: t.Container[str], key: str) -> int | str | None:
    lines = entries(_text(system, path), continued=key == "MTUBytes")
    values = [value for section, name, value in lines if section in sections and name == key]
    return parse_mtu(values[-1]) if values else None


def _drop_in(manager: Manager) -> str:
    """The path of the collection's drop-in for a systemd file."""
    return f"{_ETC}/{manager.file.rpartition('/')[2]}.d/{_DROP_IN}"


def _files(system: System, file: str) -> list[str]:
    """A systemd file and its drop-ins, in the order in which they are applied."""
    drop_ins: dict[str, str] = {}
    for folder in (f"{parent}/{file.rpartition('/')[2]}.d" for parent in _FOLDERS):
        for name in system.names(folder):
            if name.endswith(".conf"):
                drop_ins.setdefault(name, f"{folder}/{name}")
    return [file, *(drop_ins[name] for name in sorted(drop_ins))]


def _keyfile(system: System, profile: str) -> str:
    """The keyfile of the NetworkManager profile with a UUID; empty if there is none."""
    for folder in _PROFILES:
        for name in system.names(folder):
            values = {line[:2]: line[2] for line in entries(_text(system, f"{folder}/{name}"))}
            recorded_uuid = values.get(("connection", "uuid"))
            if recorded_uuid == profile or (not recorded_uuid and profile == _computed_uuid(name)):
                return f"{folder}/{name}"
    return ""


def _computed_uuid(name: str) -> str:
    """The UUID that NetworkManager computes for a profile that has none in its file (nm-keyfile.c,
    nm_keyfile_read_ensure_uuid)."""
    return str(uuid.uuid3(_NAMESPACE, f"keyfile\0{_PROFILES[0]}/{name}\0"))


def _yaml(system: System, name: str) -> str:
    """The netplan files that contain a name, joined by `or`; the main folder if there is none."""
    paths = [
        f"{folder}/{file}" for folder in _NETPLAN_FOLDERS for file in system.names(folder) if file.endswith(".yaml")
    ]
    return " or ".join(path for path in paths if name in _text(system, path)) or _NETPLAN_FOLDERS[0]


def _values(system: System, path: str) -> dict[str, str]:
    return {key: value for _section, key, value in entries(_text(system, path))}


def _text(system: System, path: str) -> str:
    return (system.data(path) or b"").decode("utf-8", "replace")


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"\d{1,10}", text, re.ASCII) else text
