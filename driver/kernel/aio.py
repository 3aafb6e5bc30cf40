# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads and writes of files in /proc/sys for which the kernel needs the lock of all network configuration (RTNL).

If another process holds that lock, the kernel does not sleep: it restarts the system call immediately, inside the
kernel, until the lock is free. With ten pods starting together this busy loop took a third of the driver's CPU time.
The same request through asynchronous I/O (io_submit(2)) fails with EINTR instead, so the thread can sleep before it
retries.
Source: net/ipv6/addrconf.c (addrconf_sysctl_addr_gen_mode, restart_syscall), fs/aio.c (aio_rw_done).
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time

#: Pause between two attempts, and the time after which the usual system call is used instead.
_RETRY_SECONDS, _TIMEOUT_SECONDS = 0.001, 5.0
_MAX_BYTES = 4096
_PREAD, _PWRITE = 0, 1
#: Numbers of the system calls io_setup, io_getevents and io_submit, for which libc has no wrappers.
_CALLS = {
    "x86_64": (206, 208, 209),
    "aarch64": (0, 4, 2),
    "riscv64": (0, 4, 2),
    "loongarch64": (0, 4, 2),
    "ppc64le": (227, 229, 230),
    "s390x": (243, 245, 246),
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Request(ctypes.Structure):
    """struct iocb of linux/aio_abi.h on 64-bit machines; `key` and `flags` are not used."""

    _fields_ = [
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
        ("kind", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("file", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    ]


class _Event(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("second", ctypes.c_int64),
    ]


class _Context:
    """The kernel's AIO context for one request at a time. It is created once, because the kernel takes about 10 ms to
    destroy a context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._initialized = False
        self._number = 0
        self._context = ctypes.c_ulong()
        self._calls = _CALLS.get(os.uname().machine) if ctypes.sizeof(ctypes.c_void_p) == 8 else None

    def submit(self, request: _Request) -> int | None:
        """The result of one request, which is a negative errno for an error; None if this kernel does not support AIO,
        or a seccomp filter forbids it."""
        with self._lock:
            if not self._initialized:
                self._initialized = True
                if self._calls and _call(self._calls[0], 1, ctypes.byref(self._context)):
                    self._calls = None
            if self._calls is None:
                return None
            _setup, get, submit = self._calls
            self._number += 1
            request.data = self._number
            pointer = ctypes.pointer(request)
            if _call(submit, self._context, 1, ctypes.byref(pointer)) != 1:
                return None
            event = _Event()
            # these files have no asynchronous path: the request finished when it was submitted
            while event.data != self._number:  # an exception may have left the result of an earlier request
                if _call(get, self._context, 1, 1, ctypes.byref(event), None) != 1:
                    code = ctypes.get_errno()
                    if code != errno.EINTR:
                        self._calls = None  # from now on use the usual system calls
                        raise OSError(code, "io_getevents")
            return int(event.result)


def _call(number: int, *arguments: object) -> int:
    """A system call; -1 if it fails, with the reason in ctypes.get_errno."""
    converted = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *converted))


_context = _Context()


def read(descriptor: int) -> bytes:
    """The first 4 KiB of a file. Raises OSError."""
    buffer = ctypes.create_string_buffer(_MAX_BYTES)
    result = _retry(_PREAD, descriptor, buffer, _MAX_BYTES)
    return os.read(descriptor, _MAX_BYTES) if result is None else buffer.raw[:result]


def write(descriptor: int, content: bytes) -> None:
    """Write a file's content with one call. Raises OSError."""
    buffer = ctypes.create_string_buffer(content, len(content))
    if _retry(_PWRITE, descriptor, buffer, len(content)) is None:
        os.write(descriptor, content)


def _retry(kind: int, descriptor: int, buffer: ctypes.Array[ctypes.c_char], size: int) -> int | None:
    """The number of bytes that were read or written; None if the usual system call is to be used. Raises OSError."""
    end = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        request = _Request(kind=kind, file=descriptor, buffer=ctypes.addressof(buffer), size=size)
        result = _context.submit(request)
        if result is None or result >= 0:
            return result
        if result != -errno.EINTR:
            raise OSError(-result, os.strerror(-result))
        if time.monotonic() > end:
            return None
        time.sleep(_RETRY_SECONDS)
