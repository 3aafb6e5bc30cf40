# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""Reading files of a node. No other module of this package accesses the file system, except for XML files."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
import typing as t

#: The kernel's errors for an attribute that a device lacks, or that has no value in the device's current state. They
#: are not reported.
_NO_VALUE = frozenset(
    (errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP, errno.ENODATA, errno.ENXIO, errno.ENODEV, errno.ENETDOWN)
)

_MAX_REPORTED = 100
#: How many folders a path may have, more than any path of sysfs: links of a recorded tree may contain anything. Of a
#: longer path, only the beginning is reported.
_MAX_FOLDERS, _MAX_REPORTED_PATH = 100, 200
_PAGE_BYTES = 4096
_UP = "../" * (_PAGE_BYTES // 3)
#: If the first read returns at most this many bytes, it has returned the whole file: the kernel fills most of a page if
#: it can.
_SHORT_READ_BYTES = 1024
#: As the kernel prints numbers: no leading zeros, no negative zero, at most 20 digits.
_INTEGER = re.compile(r"^(?:0|-?[1-9]\d{0,19})$", re.ASCII)


#: O_NONBLOCK: a FIFO or a tty in a damaged tree must not hang the probe (and pread refuses it). O_NOFOLLOW: an
#: attribute is never a link, and a link in a recorded tree could lead out of it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW


def _with_rest(data: bytes, handle: int, size: int, offset: int = 0) -> bytes:
    """The bytes of a file from `offset`, up to `size`: `data` is the result of the first read, and each further read
    returns about a page."""
    while _SHORT_READ_BYTES < len(data) < size:
        chunk = os.pread(handle, size - len(data), offset + len(data))
        if not chunk:
            break
        data += chunk
    return data


class Reader:
    """Reads a node's /sys and /proc below `root`, which may be a recorded tree.

    Paths are absolute as on the node (`/sys/bus/pci/devices`). No method raises for a file that is missing, broken or
    forbidden: the result is `None`, and a file that exists but cannot be read is listed in `unreadable` as
    `path: reason`.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = posixpath.normpath(root)
        self._prefix = "" if self.root == "/" else self.root
        self._real_root: str | None = None
        self._inside: dict[str, bool] = {"": True}
        self._links: dict[str, dict[str, str | None]] = {}
        self._numbers: dict[str, int] = {}
        self.unreadable: list[str] = []
        self.unreadable_count = 0

    @property
    def live(self) -> bool:
        """Whether this is the running node, and not a recorded tree."""
        return not self._prefix

    def report(self, path: str, reason: str) -> None:
        """Record that `path` exists but could not be used."""
        self.unreadable_count += 1
        if len(self.unreadable) < _MAX_REPORTED:
            self.unreadable.append(f"{path}: {reason}")

    def _report_error(self, path: str, error: OSError) -> None:
        if error.errno not in _NO_VALUE:
            self.report(path, error.strerror or str(error))

    def folder(self, path: str) -> Folder:
        """The folder at `path`, as a context manager that keeps it open while several of its files are read."""
        return Folder(self, path)

    def _is_inside(self, folder: str) -> bool:
        """Whether a directory is below the root: links in a recorded tree could lead to files of this machine."""
        if not self._prefix:
            return True
        inside = self._inside.get(folder)
        if inside is None:
            if folder.count("/") > _MAX_FOLDERS:
                self.report(f"{folder[:_MAX_REPORTED_PATH]}...", f"has more than {_MAX_FOLDERS} folders")
                return False
            parent, _slash, name = folder.rpartition("/")
            inside = name != ".." and self._is_inside(parent)
            if inside and self._is_link(folder):
                inside = self._leads_inside(folder)
                if not inside:
                    self.report(folder, "leads out of the root")
            self._inside[folder] = inside
        return inside

    def _leads_inside(self, folder: str) -> bool:
        if self._real_root is None:
            self._real_root = os.path.realpath(self.root)
        real = os.path.realpath(self._prefix + folder)
        return real == self._real_root or real.startswith(self._real_root + "/")

    def _is_link(self, folder: str) -> bool:
        try:
            return stat.S_ISLNK(os.lstat(self._prefix + folder).st_mode)
        except OSError:
            return False

    def data(self, path: str, size: int, offset: int = 0) -> bytes | None:
        """Up to `size` bytes from `offset` of a file, or None."""
        handle = self._open(path)
        return None if handle is None else self._read(handle, path, size, offset)

    def _open(self, path: str) -> int | None:
        if "\0" in path or not self._is_inside(path.rpartition("/")[0]):
            return None
        try:
            return os.open(self._prefix + path, _FLAGS)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report_error(path, error)
            return None

    def _read(self, handle: int, path: str, size: int, offset: int = 0) -> bytes | None:
        """Read the open file `handle`, and close it. `path` is its name in reports."""
        try:
            data = os.pread(handle, min(size, _PAGE_BYTES), offset)
            return _with_rest(data, handle, size, offset) if size > _PAGE_BYTES else data
        except OSError as error:
            self._report_error(path, error)
            return None
        finally:
            os.close(handle)

    def opened(self, path: str, no_value: int | None = None) -> _Opened:
        """The file at `path`, as a context manager, for reading several parts of the file.

        `no_value` is an error number that means, for this file, that the device has no value.
        """
        return _Opened(self, path, no_value)

    def text(self, path: str, size: int = _PAGE_BYTES, whole: bool = False) -> str | None:
        """The stripped text of a file, or None. An empty file is an empty string.

        With `whole`, a text without the kernel's final line feed counts as truncated, and the result is None: part of a
        number or of a CPU set would be a different value.
        """
        raw = self.data(path, size)
        return None if raw is None else self._decoded(raw, path, size, whole)

    def _decoded(self, raw: bytes, path: str, size: int, whole: bool) -> str | None:
        if raw[-2:] == b"\n\0":  # kernels around 5.15 include the terminator of CPU masks
            raw = raw[:-1]
        if whole and raw[-1:] != b"\n":
            self.report(path, "truncated: no line end")
            return None
        try:
            return raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and len(raw) == size:  # cut in the middle of a character
                return raw[: error.start].decode("utf-8").strip()
            self.report(path, "not UTF-8 text")
            return None

    def number(self, path: str, text: str | None) -> int | None:
        """The decimal number in `text`, which was read from `path`, or None."""
        if not text:  # in a recording, a file that could not be read is empty
            return None
        value = self._numbers.get(text)
        if value is None:
            if not _INTEGER.match(text):
                self.report(path, f"not a number: {text[:40]!r}")
                return None
            value = self._numbers[text] = int(text)
        return value

    def integer(self, path: str, whole: bool = False) -> int | None:
        """The decimal number in a file, or None."""
        return self.number(path, self.text(path, whole=whole))

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory; empty if it does not exist."""
        if "\0" in path or not self._is_inside(path):
            return []
        try:
            names = os.listdir(self._prefix + path)
        except OSError as error:
            self._report_error(path, error)
            return []
        return self._sorted(path, names)

    def _sorted(self, path: str, names: list[str]) -> list[str]:
        if not all(map(str.isascii, names)):
            names = [name for name in names if self._is_text(path, name)]
        names.sort()
        return names

    def _is_text(self, path: str, name: str) -> bool:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            self.report(path, f"contains a name that is not UTF-8 text: {os.fsencode(name)[:40]!r}")
            return False
        return True

    def links(self, path: str) -> dict[str, str | None]:
        """The sorted names in a directory of links such as /sys/class/net, each with the target of the link (see
        `link`).

        A directory is read once; later calls return the first result.
        """
        targets = self._links.get(path)
        if targets is None:
            names = self.names(path)
            with self.folder(path) as folder:
                targets = self._links[path] = {name: folder.link(name, expected=False) for name in names}
        return targets

    def link(self, path: str, expected: bool = True) -> str | None:
        """The target of a symbolic link, as an absolute path of the node; None if it is not a link.

        If a link is `expected`, anything else is reported. It is not expected if recorded trees may contain plain
        directories instead, as below /sys/class and /sys/bus.

        The links of sysfs lead to directories below /sys/devices without further links on the path, so one step
        resolves them.
        """
        folder = path.rpartition("/")[0]
        if "\0" in path or not self._is_inside(folder):
            return None
        try:
            target = os.readlink(self._prefix + path)
        except OSError as error:
            self._report_no_link(path, error, expected)
            return None
        return self._resolved(path, target)

    def _report_no_link(self, path: str, error: OSError, expected: bool) -> None:
        if expected and error.errno == errno.EINVAL:
            self.report(path, "not a symbolic link")
        else:
            self._report_error(path, error)

    def _resolved(self, path: str, target: str) -> str | None:
        """The absolute path of `target`, which is the text of the link at `path`."""
        if not target.isascii() and not self._is_text(path, target):
            return None
        end = target.rfind("../") + 3  # 2 if there is none
        up, rest = target[:end], target[end:]
        unusual = (
            end == 2 or rest[:1] in ("", "/", ".") or rest[-1] == "/" or "./" in rest or "/." in rest or "//" in rest
        )
        if unusual or up != _UP[:end]:
            return posixpath.normpath(posixpath.join(path.rpartition("/")[0], target))
        return f"{path.rsplit('/', end // 3 + 1)[0]}/{rest}"

    def entered(self, path: str) -> list[str]:
        """The sorted names in a directory, as `names`, for callers that then open each entry as a folder.

        Entries that are not links are below the root if the directory is, so one check covers all entries.
        """
        if not self._prefix or "\0" in path or not self._is_inside(path):
            return self.names(path)
        try:
            with os.scandir(self._prefix + path) as entries:
                links = {entry.name: entry.is_symlink() for entry in entries}
        except OSError as error:
            self._report_error(path, error)
            return []
        self._inside.update((f"{path}/{name}", True) for name, is_link in links.items() if not is_link)
        return self._sorted(path, list(links))

    def architecture(self) -> str | None:
        """The machine's architecture; None for a recorded tree."""
        return os.uname().machine if self.live else None

    def permanent_macs(self, names: t.Iterable[str]) -> dict[str, str]:
        """Permanent MAC addresses of the running node's interfaces, from ETHTOOL_GPERMADDR (linux/ethtool.h).

        Sysfs does not contain the permanent address once the address was changed, for example that of a bond's port.
        Empty for a recorded tree.
        """
        if not self.live:
            return {}
        import array
        import fcntl
        import socket
        import struct

        size = 32  # MAX_ADDR_LEN
        macs: dict[str, str] = {}
        try:
            control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        except OSError as error:
            self._report_error("socket(AF_INET)", error)
            return {}
        with control:
            for name in names:
                command = array.array("B", struct.pack("=II", 0x20, size) + bytes(size))
                request = struct.pack("16sP16x", name.encode()[:15], command.buffer_info()[0])
                try:
                    fcntl.ioctl(control, 0x8946, request)  # SIOCETHTOOL
                except OSError:
                    continue  # the driver does not report it
                length = struct.unpack_from("=I", command, 4)[0]
                address = bytes(command[8 : 8 + min(length, size)])
                if any(address):
                    macs[name] = ":".join(f"{byte:02x}" for byte in address)
        return macs


class Folder:
    """One folder of a node. It is open while the context lasts, so that the kernel need not look up the path of each
    file.

    The methods return the same as those of :class:`Reader` with the same names; a `name` has no slash. If the folder
    cannot be opened, its files are read by their paths, so that missing or forbidden files are reported in the same
    way.
    """

    __slots__ = ("_above", "_handle", "_reader", "path")

    def __init__(self, reader: Reader, path: str, above: int | None = None) -> None:
        """`above` is an open file of the parent folder."""
        self.path = path
        self._reader = reader
        self._above = above
        self._handle: int | None = None

    def __enter__(self) -> Folder:
        reader, path = self._reader, self.path
        try:
            if self._above is not None:
                self._handle = os.open(self.name, _FOLDER_FLAGS, dir_fd=self._above)
            elif "\0" not in path and reader._is_inside(path.rpartition("/")[0]):
                self._handle = os.open(reader._prefix + path, _FOLDER_FLAGS)
        except OSError:  # also for a link, which may lead anywhere
            return self
        if self._handle is not None:
            reader._inside[path] = True
        return self

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def folder(self, name: str) -> Folder:
        """A folder in this one, as a context manager."""
        return Folder(self._reader, f"{self.path}/{name}", self._handle)

    def __exit__(self, *exception: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def data(self, name: str, size: int) -> bytes | None:
        """Up to `size` bytes of a file, or None."""
        handle = self._open(name)
        return None if handle is None else self._reader._read(handle, f"{self.path}/{name}", size)

    def _open(self, name: str) -> int | None:
        if self._handle is None:
            return self._reader._open(f"{self.path}/{name}")
        try:
            return os.open(name, _FLAGS, dir_fd=self._handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._reader._report_error(f"{self.path}/{name}", error)
            return None

    def text(self, name: str, whole: bool = False, size: int = _PAGE_BYTES) -> str | None:
        """The stripped text of a file, or None."""
        if self._handle is None:
            return self._reader.text(f"{self.path}/{name}", size, whole)
        # most of a probe's time is spent here, so method calls are inlined
        try:
            handle = os.open(name, _FLAGS, dir_fd=self._handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._reader._report_error(f"{self.path}/{name}", error)
            return None
        try:
            raw = os.pread(handle, min(size, _PAGE_BYTES), 0)
            if size > _PAGE_BYTES:
                raw = _with_rest(raw, handle, size)
        except OSError as error:
            self._reader._report_error(f"{self.path}/{name}", error)
            return None
        finally:
            os.close(handle)
        if raw[-1:] == b"\n" and raw.isascii():
            return raw.decode().strip()
        return self._reader._decoded(raw, f"{self.path}/{name}", size, whole)

    def number(self, name: str, text: str | None) -> int | None:
        """The decimal number in `text`, which was read from the file `name`, or None."""
        if not text:
            return None
        value = self._reader._numbers.get(text)
        return self._reader.number(f"{self.path}/{name}", text) if value is None else value

    def integer(self, name: str, whole: bool = False) -> int | None:
        """The decimal number in a file, or None."""
        return self.number(name, self.text(name, whole))

    def names(self) -> list[str]:
        """The sorted names in the folder."""
        if self._handle is None:
            return self._reader.names(self.path)
        try:
            names = os.listdir(self._handle)
        except OSError as error:
            self._reader._report_error(self.path, error)
            return []
        return self._reader._sorted(self.path, names)

    def link(self, name: str, expected: bool = True) -> str | None:
        """The target of a symbolic link, as an absolute path of the node, or None."""
        reader, path = self._reader, f"{self.path}/{name}"
        if self._handle is None:
            return reader.link(path, expected)
        try:
            target = os.readlink(name, dir_fd=self._handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            reader._report_no_link(path, error, expected)
            return None
        return reader._resolved(path, target)

    def opened(self, name: str, no_value: int | None = None) -> _Opened:
        """A file for reading several parts of it, see :meth:`Reader.opened`."""
        return _Opened(self._reader, f"{self.path}/{name}", no_value, self)


class _Opened:
    """One open file. `read` returns up to `size` bytes from `offset`, or None."""

    def __init__(self, reader: Reader, path: str, no_value: int | None, folder: Folder | None = None) -> None:
        self._reader = reader
        self._path = path
        self._no_value = no_value
        self._folder = folder
        self._handle: int | None = None

    def __enter__(self) -> _Opened:
        if self._folder is not None:
            self._handle = self._folder._open(self._path.rpartition("/")[2])
        else:
            self._handle = self._reader._open(self._path)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def read(self, offset: int, size: int) -> bytes | None:
        if self._handle is None:
            return None
        try:
            return os.pread(self._handle, size, offset)
        except OSError as error:
            if error.errno != self._no_value:
                self._reader._report_error(self._path, error)
            return None
