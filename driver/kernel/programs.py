# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""BPF programs on an interface, listed and removed through bpf(2): those of tcx and netkit, and XDP programs that are
attached by a BPF link, which rtnetlink cannot remove. Numbers are those of linux/bpf.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import typing as t

#: The number of the system call bpf(2), by architecture.
_SYSTEM_CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_DETACH, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO, _PROG_QUERY = 9, 13, 15, 16
_LINK_GET_FD_BY_ID, _LINK_GET_NEXT_ID, _LINK_DETACH = 30, 31, 34
_XDP_LINK = 6
#: Attach types (enum bpf_attach_type); those of netkit exist only on netkit links.
ATTACH_TYPES = {"tcx ingress": 46, "tcx egress": 47}
_NETKIT = {"netkit primary": 54, "netkit peer": 55}
_MAX_PROGRAMS = 64
_INFO_BYTES = 256
_libc = ctypes.CDLL(None, use_errno=True)


def listed(index: int, kind: str = "") -> dict[str, list[int]]:
    """The IDs of the programs on a link of this thread's namespace, by attach type; without attach types that have no
    programs or that the kernel does not know."""
    by_attach_type = {}
    for attach_type, number in {**ATTACH_TYPES, **(_NETKIT if kind == "netkit" else {})}.items():
        programs = [program for program, _link in _query(index, number)]
        if programs:
            by_attach_type[attach_type] = programs
    return by_attach_type


def remove(index: int, kind: str = "", kept: t.Mapping[str, t.Sequence[int]] | None = None) -> None:
    """Remove the programs of tcx and netkit, except those in `kept`, which has the form of `listed`. Raises OSError."""
    for attach_type, number in {**ATTACH_TYPES, **(_NETKIT if kind == "netkit" else {})}.items():
        for program, link in _query(index, number):
            if program in (kept or {}).get(attach_type, ()):
                continue
            if link:
                _detach_link(link)
            else:
                descriptor = _call(_PROG_GET_FD_BY_ID, struct.pack("=III", program, 0, 0))
                try:
                    _call(_PROG_DETACH, struct.pack("=IIIII", index, descriptor, number, 0, 0) + bytes(12))
                finally:
                    os.close(descriptor)


def detach_xdp_links(index: int, programs: t.Collection[int]) -> None:
    """Detach the BPF links of the XDP programs with these IDs on this interface. Raises OSError.

    The kernel does not report the namespace of a BPF link's interface. So the program, too, has to match: otherwise it
    may be an interface with the same index in another namespace.
    """
    number = 0
    while True:
        request = ctypes.create_string_buffer(struct.pack("=III", number, 0, 0))
        try:
            _call(_LINK_GET_NEXT_ID, request)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOSYS, errno.EINVAL, errno.EPERM):
                return
            raise
        number = struct.unpack_from("=I", request, 4)[0]
        with contextlib.suppress(FileNotFoundError):
            descriptor = _call(_LINK_GET_FD_BY_ID, struct.pack("=I", number) + bytes(8))
            try:
                kind, program, target = _info(descriptor)
                if kind == _XDP_LINK and target == index and program in programs:
                    _call(_LINK_DETACH, struct.pack("=I", descriptor) + bytes(4))
            finally:
                os.close(descriptor)


def _info(descriptor: int) -> tuple[int, int, int]:
    """Type, program ID and interface index of a BPF link (struct bpf_link_info: type, id, prog_id, then for XDP the
    index)."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    _call(_OBJ_GET_INFO, struct.pack("=IIQ", descriptor, _INFO_BYTES, ctypes.addressof(info)))
    kind, _link, program = struct.unpack_from("=III", info)
    return kind, program, struct.unpack_from("=I", info, 16)[0]


def _detach_link(number: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = _call(_LINK_GET_FD_BY_ID, struct.pack("=I", number) + bytes(8))
        try:
            _call(_LINK_DETACH, struct.pack("=I", descriptor) + bytes(4))
        finally:
            os.close(descriptor)


def _query(index: int, attach_type: int) -> list[tuple[int, int]]:
    """The IDs of the programs of an attach type, each with the ID of its BPF link (0 for none)."""
    programs, bpf_links = (ctypes.c_uint32 * _MAX_PROGRAMS)(), (ctypes.c_uint32 * _MAX_PROGRAMS)()
    addresses = ctypes.addressof(programs), ctypes.addressof(bpf_links)
    request = ctypes.create_string_buffer(
        struct.pack("=IIIIQIIQQQQ", index, attach_type, 0, 0, addresses[0], _MAX_PROGRAMS, 0, 0, addresses[1], 0, 0)
    )
    try:
        _call(_PROG_QUERY, request)
    except OSError as error:
        # the kernel does not know this attach type, or the link does not support it
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENXIO, errno.ENODEV):
            return []
        raise
    count = struct.unpack_from("=I", request, 24)[0]
    return [(programs[number], bpf_links[number]) for number in range(min(count, _MAX_PROGRAMS))]


def _call(command: int, request: bytes | ctypes.Array[ctypes.c_char]) -> int:
    number = _SYSTEM_CALLS.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "the system call number of bpf(2) is not known for this architecture")
    buffer = ctypes.create_string_buffer(request, len(request)) if isinstance(request, bytes) else request
    result = _libc.syscall(ctypes.c_long(number), command, buffer, ctypes.c_uint(len(buffer)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf(2), command {command}: {os.strerror(code)}")
    return int(result)
