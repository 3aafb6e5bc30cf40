# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Network namespaces: which one a path is, pins that keep one alive, and work done inside one.

A pin is a bind mount of a namespace's file. It keeps the namespace, and so the interfaces in it, after the pod's last
process has ended: the driver can then take them back itself, before the kernel drops them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import stat
import threading
import typing as t
from pathlib import Path

from ..base.errors import Busy, KernelError

#: The namespace that the driver runs in: the node's.
HOST = "/proc/self/ns/net"
#: That of a thread.
_OWN = "/proc/thread-self/ns/net"

_CLONE_FS = 0x00000200
_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
#: NS_GET_NSTYPE of linux/nsfs.h: which kind of namespace a file of nsfs is
_NS_GET_NSTYPE = 0xB703

_libc = ctypes.CDLL(None, use_errno=True)
log = logging.getLogger(__name__)

T = t.TypeVar("T")
PathLike = t.Union[str, "os.PathLike[str]"]


def identity(path: PathLike) -> tuple[int, int]:
    """The device and inode that tell one living namespace from another; raises KernelError where it is gone."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise KernelError(f"look at the network namespace {os.fspath(path)}", error.errno or 0) from error
    return status.st_dev, status.st_ino


def same(one: PathLike, other: PathLike) -> bool:
    """Whether both are one namespace; no where either of them is gone."""
    try:
        first, second = os.stat(one), os.stat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def is_host(path: PathLike) -> bool:
    """Whether it is the namespace that the driver runs in."""
    return same(path, HOST)


def alive(path: PathLike) -> bool:
    """Whether the path is a network namespace now: a pin that was not mounted, or is left of another boot, is not."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return is_open(descriptor)
    finally:
        os.close(descriptor)


def is_open(descriptor: int) -> bool:
    """Whether an open file is a network namespace."""
    try:
        return fcntl.ioctl(descriptor, _NS_GET_NSTYPE) == _CLONE_NEWNET
    except OSError:  # no file of nsfs
        return False


def processes(path: PathLike) -> list[int]:
    """The processes in a namespace. Where there are none, only pins, open files and sockets keep it."""
    wanted = identity(path)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = os.stat(f"/proc/{entry}/ns/net")
            except OSError:  # it ended meanwhile
                continue
            if (status.st_dev, status.st_ino) == wanted:
                found.append(int(entry))
    return sorted(found)


def pin(source: PathLike, at: Path, mounts: str | None = None) -> None:
    """Mounts the namespace `source`, such as `/proc/1234/ns/net`, at the file `at`. Idempotent.

    `mounts` is the mount namespace to do it in (`/proc/1/ns/mnt`), for a driver that has one of its own: a pin in
    that would go with the driver. Raises Busy where another living namespace is pinned there, KernelError for the rest.
    """
    step = f"pin the network namespace {os.fspath(source)}"
    descriptor = _open(source, step)
    try:
        status = os.fstat(descriptor)
        if alive(at):
            if identity(at) == (status.st_dev, status.st_ino):
                return
            raise Busy(f"{step}: another namespace is pinned at {at}")

        def mount() -> None:
            at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(at, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o400))
            # by descriptor: the process may end, and its number be given to another, at any moment
            inside = f"/proc/{os.getpid()}/fd/{descriptor}"
            if _libc.mount(inside.encode(), os.fsencode(at), b"none", _MS_BIND, None):
                raise OSError(ctypes.get_errno(), "mount")

        _mounting(mount, mounts, step)
        if not alive(at):
            raise KernelError(step, errno.EINVAL, f"{at} is no network namespace after mounting it")
    finally:
        os.close(descriptor)


def unpin(at: Path, mounts: str | None = None) -> None:
    """Removes a pin, with its file. Idempotent."""

    def unmount() -> None:
        while _libc.umount2(os.fsencode(at), _MNT_DETACH) == 0:  # a pin may have been mounted twice by two drivers
            pass
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOENT):
            raise OSError(code, "umount")
        at.unlink(missing_ok=True)

    _mounting(unmount, mounts, f"unpin the network namespace {at}")


def run(path: PathLike | int | None, function: t.Callable[..., T], *args: t.Any) -> T:
    """Calls the function in a namespace, in which this thread is meanwhile. None is the driver's own namespace.

    The first thread of the process never leaves its namespace, as `/proc/self` means it for all threads: for it
    another one goes there, which costs a millisecond on a busy machine. What `function` raises is raised; KernelError
    where the namespace cannot be entered. Where a thread could not come back the process ends: nothing may go on in a
    pod's network as if it was the node's.
    """
    if path is None:
        return function(*args)
    step = "enter the pod's network namespace"
    descriptor = path if isinstance(path, int) else _open(path, step)

    def inside() -> T:
        own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                _setns(descriptor, _CLONE_NEWNET)
            except OSError as error:
                raise KernelError(step, error.errno or 0) from error
            try:
                return function(*args)
            finally:
                _return(own)
        finally:
            os.close(own)

    try:
        return _in_thread(inside) if threading.get_native_id() == os.getpid() else inside()
    finally:
        if descriptor is not path:
            os.close(descriptor)


def new() -> int:
    """A new network namespace as an open file, which alone keeps it. Raises OSError."""

    def make() -> int:
        if _libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def _return(own: int) -> None:
    """Back to the thread's own namespace. The kernel refuses that for want of memory or of rights alone."""
    try:
        _setns(own, _CLONE_NEWNET)
    except OSError:
        log.critical("a thread cannot leave a pod's network namespace: the driver ends, to be started again")
        os.abort()


def _open(path: PathLike, step: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelError(step, error.errno or 0) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise KernelError(step, errno.EINVAL)
    return descriptor


def _setns(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind):
        raise OSError(ctypes.get_errno(), "setns")


def _mounting(function: t.Callable[[], None], mounts: str | None, step: str) -> None:
    """Calls it in the mount namespace `mounts`, from a thread of its own that no longer shares the process's root."""

    def inside() -> None:
        if _libc.unshare(_CLONE_FS):
            raise OSError(ctypes.get_errno(), "unshare")
        assert mounts is not None
        descriptor = os.open(mounts, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(descriptor, _CLONE_NEWNS)
        finally:
            os.close(descriptor)
        function()

    try:
        if mounts is None or same(mounts, "/proc/self/ns/mnt"):
            function()
        else:
            _in_thread(inside)
    except OSError as error:
        raise KernelError(step, error.errno or 0) from error


def _in_thread(function: t.Callable[[], T]) -> T:
    result: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(function())
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work, name="netns", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
