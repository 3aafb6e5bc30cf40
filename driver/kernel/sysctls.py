# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sysctls of one interface, read and written under /proc/sys/net of the calling thread's network namespace."""

from __future__ import annotations

import errno
import os
import typing as t

from . import aio

ROOT = "/proc/sys/net"
#: The placeholder for the interface's name, as in dra/config/interface_config.py.
IFNAME = "IFNAME"
_FOLDERS = ("ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh")
#: Sysctls that are read-only, or contain the value of another sysctl in coarser units.
_EXCLUDED = ("mc_forwarding", "base_reachable_time", "retrans_time", "unres_qlen")
#: Sysctls that the kernel reads under the RTNL lock (aio.py).
_UNDER_RTNL = ("addr_gen_mode", "stable_secret")


def read(name: str) -> dict[str, str]:
    """All sysctls of an interface by name, such as `net.ipv4.conf.IFNAME.rp_filter`; without those that have no
    value. Raises OSError."""
    values = {}
    for folder in _FOLDERS:
        start = f"net.{folder.replace('/', '.')}.{IFNAME}."
        try:
            opened = os.open(f"{ROOT}/{folder}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # no IPv6, or an MTU too small for it
            continue
        try:
            for entry in sorted(os.listdir(opened)):
                if entry not in _EXCLUDED:
                    try:
                        values[start + entry] = _read(entry, opened)
                    except OSError as error:
                        if error.errno not in (errno.EIO, errno.EACCES, errno.ENOENT):  # EIO: a secret that is not set
                            raise
        finally:
            os.close(opened)
    return values


def have_ipv6() -> bool:
    """Whether the kernel has IPv6, which can be disabled at boot."""
    return os.path.isdir(f"{ROOT}/ipv6/conf")


def get(name: str, key: str) -> str | None:
    """The value of one sysctl; None if it cannot be read, as when this interface does not have it."""
    try:
        return _read(_path(name, key))
    except OSError:
        return None


def write(name: str, values: t.Mapping[str, str | int]) -> None:
    """Write the sysctls that differ. Raises OSError with the name of the sysctl."""
    for key, value in values.items():
        path = _path(name, key)
        try:
            if _read(path) == str(value):
                continue
        except OSError:  # write-only, or no value yet
            pass
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                aio.write(descriptor, str(value).encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OSError(error.errno, f"{key.replace(IFNAME, name)} = {value}") from error


def _path(name: str, key: str) -> str:
    family, kind, _unused, entry = key.removeprefix("net.").split(".", 3)
    return f"{ROOT}/{family}/{kind}/{name}/{entry}"


def _read(path: str, folder: int | None = None) -> str:
    """The content of the file `path`, relative to the open `folder` if there is one, because looking up a whole path
    takes longer. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        content = aio.read(descriptor) if path.endswith(_UNDER_RTNL) else os.read(descriptor, 4096)
        return content.decode().strip()
    finally:
        os.close(descriptor)
