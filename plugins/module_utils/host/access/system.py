# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The class through which resources read and change the node."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import tempfile
import typing as t
from dataclasses import dataclass

from ...topology.reader import Reader
from .pyroute2_types import Message, Socket

if t.TYPE_CHECKING:
    Runner = t.Callable[[list[str]], tuple[int, str, str]]

T = t.TypeVar("T")

#: The netlink flag of a list that changed while it was read, and the error code for it of pyroute2 before 0.9.
_INTERRUPTED, _INTERRUPTED_CODE = 0x10, -1

#: Folders that only contain files of the collection, inner folders first.
_COLLECTION_FOLDERS = ("/opt/lanewise/fabric", "/opt/lanewise", "/etc/lanewise")
#: Parents of drop-in folders. These are removed when they are empty.
_DROP_INS = ("/etc/systemd/system/", "/etc/systemd/network/")

#: What the kernel's error numbers usually mean here, and how to fix it.
_MEANING = {
    errno.EBUSY: "a program or pod is using it: stop that, then run again",
    errno.EPERM: "the kernel forbids it even to root: look for Secure Boot lockdown or missing capabilities",
    errno.EACCES: "run as root ('become: true')",
    errno.EROFS: "the file system is mounted read-only, as in a container: run on the node itself",
    errno.ENODEV: "the device has disappeared: look at 'dmesg', then run again",
    errno.ENOENT: "this kernel or driver has no such setting",
    errno.EOPNOTSUPP: "the driver does not support it: leave the setting out for this NIC",
    errno.ERANGE: "the value is outside the range that the device supports",
    errno.EINVAL: "the driver rejects this value in the device's current state: look at 'dmesg'",
    errno.ENOMEM: "the machine has too little memory or PCI address space: look at 'dmesg'",
    errno.ENOSPC: "no space is left: look at 'df' and 'dmesg'",
    errno.EIO: "the device did not answer: look at 'dmesg' for PCIe or firmware errors",
    errno.ETIMEDOUT: "the device did not answer in time: look at 'dmesg' for firmware errors",
}


class HostError(Exception):
    """A failed `step`, the `reason`, and the `fix`. `code` is the error number, if there is one."""

    def __init__(self, step: str, reason: str, fix: str = "", code: int | None = None) -> None:
        self.step = step
        self.reason = reason
        self.fix = fix
        self.code = code
        super().__init__(f"cannot {step}: {reason}" + (f" ({fix})" if fix else ""))


class NotRecorded(HostError):
    """The step needs something that only a running node has, and a recorded tree does not."""


def refused(step: str, code: int, detail: str = "", fix: str = "") -> HostError:
    """The error of a step for which the kernel returned the error number `code`."""
    name = errno.errorcode.get(code, str(code))
    text = f"{os.strerror(code)} [{name}]" + (f": {detail}" if detail else "")
    return HostError(step, text, fix or _MEANING.get(code, ""), code)


@dataclass(frozen=True)
class Original:
    """The original content of a file that a run writes, or of some bytes of a kernel attribute.

    `content` is None if there was no file, or if the attribute cannot be read (such as `bind` of a driver).
    """

    path: str
    content: bytes | None
    mode: int = 0o644
    attribute: bool = False
    offset: int = 0


@dataclass(frozen=True)
class Difference:
    """A file or attribute that differs from its state before the run, and why it could not be restored."""

    path: str
    before: str | None
    now: str | None
    reason: str = ""


class System:
    """Reads and changes one node.

    A `root` other than `/` is a recorded tree, for which only plans can be made. `run` runs a command line and returns
    exit status, output and error output, as AnsibleModule.run_command does.
    """

    def __init__(self, root: str = "/", run: Runner | None = None) -> None:
        self.reader = Reader(root)
        self._prefix = "" if root == "/" else root.rstrip("/")
        self._run = run
        self._sockets: dict[str, Socket] = {}
        self._originals: dict[tuple[str, int], Original] = {}
        self._created_folders: list[str] = []

    @property
    def live(self) -> bool:
        """Whether this is the running node itself rather than a recorded tree."""
        return self.reader.live

    # -- reading

    def text(self, path: str) -> str | None:
        """The stripped text of a small file, or None if it is missing or unreadable."""
        return self.reader.text(path)

    def integer(self, path: str) -> int | None:
        """The number in a small file, or None if it is missing, unreadable or not a number."""
        return self.reader.integer(path)

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory; empty if it does not exist."""
        return self.reader.names(path)

    def link(self, path: str) -> str | None:
        """The last part of a symbolic link's target, such as the name of a driver; None if it is not a link."""
        target = self.reader.link(path, expected=False)
        return target.rpartition("/")[2] if target else None

    def exists(self, path: str) -> bool:
        """Whether a path exists. A dangling symbolic link counts as existing."""
        return os.path.lexists(self._prefix + path)

    def mode(self, path: str) -> int | None:
        """The permissions of a file; None if it does not exist."""
        try:
            return os.stat(self._prefix + path).st_mode & 0o7777
        except OSError:
            return None

    def content(self, path: str) -> str | None:
        """The whole text of a configuration file; None if it does not exist. Raises HostError."""
        try:
            with open(self._prefix + path, encoding="utf-8", newline="") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise HostError(f"read {path}", str(error)) from None

    def data(self, path: str) -> bytes | None:
        """The whole content of a binary file; None if it does not exist. Raises HostError."""
        try:
            with open(self._prefix + path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HostError(f"read {path}", str(error)) from None

    # -- changing: only these methods change the node

    def write(self, path: str, value: str, step: str, fix: str = "") -> None:
        """Write an attribute of sysfs, procfs or configfs in one write(2).

        Raises HostError with `step`, the error number and the `fix`.
        """
        self._record_attribute(path)
        try:
            handle = os.open(self._prefix + path, os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC)
            try:
                os.write(handle, value.encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise refused(step, error.errno or 0, path, fix) from None

    def write_at(self, path: str, offset: int, data: bytes, step: str, fix: str = "") -> None:
        """Write bytes at `offset`, such as a register in a device's configuration space. Raises HostError."""
        self._record_attribute(path, offset, len(data))
        try:
            handle = os.open(self._prefix + path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(handle, data, offset)
            finally:
                os.close(handle)
        except OSError as error:
            raise refused(step, error.errno or 0, path, fix) from None

    def make_folder(self, path: str, step: str) -> None:
        """Create a directory if it does not exist, as configfs requires. Raises HostError."""
        try:
            os.mkdir(self._prefix + path)
        except FileExistsError:
            pass
        except OSError as error:
            raise refused(step, error.errno or 0, path) from None

    def remove_folder(self, path: str, step: str) -> None:
        """Remove a directory of configfs, with the files and directories that the kernel created in it. Raises
        HostError."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self._prefix + path)
        except OSError as error:
            raise refused(step, error.errno or 0, path) from None

    def install(self, path: str, content: str | bytes | None, step: str, mode: int = 0o644) -> None:
        """Write a configuration file atomically; None removes it. Raises HostError."""
        target = os.path.realpath(self._prefix + path)
        if os.path.lexists(target) and not os.path.isfile(target):  # such as /dev/null, to which masked files lead
            fix = f"remove {path} if nothing needs it, then run again"
            raise HostError(step, f"{path} leads to {target}, which is not a regular file", fix)
        try:
            self._record_file(path, target)
            if content is None:
                if os.path.lexists(target):
                    os.unlink(target)
                self._remove_empty(path)
                return
            if os.path.exists(target):
                mode = os.stat(target).st_mode & 0o7777
            self._make_folders(os.path.dirname(target))
            handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content.encode() if isinstance(content, str) else content)
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                os.rename(temporary, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise refused(step, error.errno or 0, path) from None

    def remove(self, path: str, step: str) -> None:
        """Remove a file that its program creates again. An undo does not restore it. Raises HostError."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._prefix + path)
        except OSError as error:
            raise refused(step, error.errno or 0, path) from None

    def _make_folders(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for missing_folder in reversed(missing):
            os.mkdir(missing_folder, 0o755)
            self._created_folders.append(missing_folder)

    def _remove_empty(self, path: str) -> None:
        """Remove the collection's folder or the drop-in folder of `path` if it is empty now."""
        inner = [
            folder for folder in (os.path.dirname(path),) if folder.endswith(".d") and folder.startswith(_DROP_INS)
        ]
        owned = [folder for folder in _COLLECTION_FOLDERS if path.startswith(f"{folder}/")]
        for folder in (*inner, *owned):
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(self._prefix + folder)

    # -- original content, to compare the node with it after an undo

    def begin(self) -> None:
        """Start a run: discard the original content of an earlier run."""
        self._originals.clear()
        self._created_folders.clear()

    def _record_attribute(self, path: str, offset: int = 0, size: int = 4096) -> None:
        """Remember the original value of a kernel attribute, or of some of its bytes."""
        if (path, offset) not in self._originals:
            content = self._bytes(path, offset, size)
            self._originals[path, offset] = Original(path, content, attribute=True, offset=offset)

    def _bytes(self, path: str, offset: int, size: int) -> bytes | None:
        try:
            handle = os.open(self._prefix + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                data = os.pread(handle, size, offset)
                return data if offset else data.strip()
            finally:
                os.close(handle)
        except OSError:
            return None

    def _record_file(self, path: str, target: str) -> None:
        """Remember the original content of a file. Raises OSError if the file exists and cannot be read."""
        if (path, 0) not in self._originals:
            self._originals[path, 0] = _file_state(path, target)

    def differences(self) -> list[Difference]:
        """Restore the files that differ from their original content, and return what still differs.

        Attributes are only compared, because their resources restore them. A missing attribute is ignored, as its
        device no longer exists. Never raises OSError or HostError.
        """
        differences = [
            difference for difference in map(self._difference, reversed(list(self._originals.values()))) if difference
        ]
        for folder in reversed(self._created_folders):
            with contextlib.suppress(OSError):  # not empty: another program has put a file into it
                os.rmdir(folder)
        return differences

    def _difference(self, original: Original) -> Difference | None:
        if original.attribute:
            now = (
                None
                if original.content is None
                else self._bytes(original.path, original.offset, len(original.content) if original.offset else 4096)
            )
            if now is None or now == original.content:
                return None
            return Difference(original.path, _shown(original.content, original.offset), _shown(now, original.offset))
        target = os.path.realpath(self._prefix + original.path)
        reason = ""
        try:
            if _file_state(original.path, target) == original:
                return None
            self.install(original.path, original.content, f"restore {original.path}", original.mode)
            if original.content is not None:
                os.chmod(target, original.mode)
        except (HostError, OSError) as error:
            reason = str(error)
        try:
            file = _file_state(original.path, target)
        except OSError as error:
            return Difference(original.path, _shown(original.content), None, reason or f"cannot read it: {error}")
        return (
            None
            if file == original
            else Difference(original.path, _shown(original.content), _shown(file.content), reason)
        )

    def command(self, argv: list[str], step: str, fix: str = "") -> str:
        """The output of a program that changes something. Raises HostError if it fails."""
        return self._command(argv, step, fix)

    def request_change(self, step: str, request: t.Callable[[], object], fix: str = "") -> None:
        """Send the kernel a `request` that changes something, usually by netlink. Raises HostError."""
        try:
            self._request(step, request, fix)
        except HostError as error:
            if error.code != 0:  # pyroute2 before 0.9 also raises for messages of a successful request
                raise

    # -- reading with programs and netlink

    def query(self, argv: list[str], step: str, fix: str = "") -> str:
        """The output of a program that only reads. Raises HostError if it fails."""
        return self._command(argv, step, fix)

    def read(self, step: str, request: t.Callable[[], T]) -> T:
        """The kernel's reply to a netlink `request` that only reads. Raises HostError."""
        return self._request(step, request, "")

    def dump(self, step: str, request: t.Callable[[], t.Iterable[Message]]) -> list[Message]:
        """All entries that a netlink `request` lists. The request is repeated if the list changed while it was read.

        Raises HostError.
        """

        def complete_list() -> list[Message]:
            for _unused in range(8):
                try:
                    entries = list(request())
                except Exception as error:
                    if getattr(error, "code", None) != _INTERRUPTED_CODE:
                        raise
                    continue
                if not any(entry["header"]["flags"] & _INTERRUPTED for entry in entries):
                    return entries
            raise OSError(errno.EAGAIN, "the list kept changing while it was read")

        return self._request(step, complete_list, "")

    def socket(self, name: str) -> Socket:
        """A socket of pyroute2, which is opened once: `IPRoute`, or the socket of a netlink family (`ROUTE`, `RDMA`, or
        the name of a generic family).

        Raises HostError if pyroute2 is missing, or if the kernel lacks the family (with the code ENOENT).
        """
        if not self.reader.live:
            raise NotRecorded("query the kernel", "a recorded tree has no kernel")
        if name not in self._sockets:
            from . import messages

            if messages.IMPORT_ERROR:
                fix = (
                    "install python3-pyroute2 from the distribution, or pyroute2 for the interpreter that Ansible uses"
                )
                raise HostError("use netlink", f"pyroute2 (0.7.2 or later) is missing: {messages.IMPORT_ERROR}", fix)
            self._sockets[name] = self._request(
                f"open a netlink socket ({name})", lambda: messages.open_socket(name), ""
            )
        return self._sockets[name]

    def close(self) -> None:
        """Close all netlink sockets."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()

    def _command(self, argv: list[str], step: str, fix: str) -> str:
        if self._run is None:
            raise NotRecorded(step, "programs are not run for a recorded tree")
        try:
            code, output, errors = self._run(argv)
        except OSError as error:
            fix = fix or (f"is {argv[0]} installed?" if error.errno == errno.ENOENT else "")
            raise HostError(step, f"cannot run {argv[0]}: {error.strerror or error}", fix, error.errno) from None
        except subprocess.SubprocessError as error:
            raise HostError(step, str(error), fix) from None
        if code:
            message = (errors.strip() or output.strip() or f"exit status {code}")[-2000:]
            raise HostError(step, f"{' '.join(argv)}: {message}", fix)
        return output

    @staticmethod
    def _request(step: str, request: t.Callable[[], T], fix: str) -> T:
        """The result of `request`. Raises HostError for an OSError or an error of pyroute2."""
        try:
            return request()
        except HostError:
            raise
        except OSError as error:
            number = error.errno or 0
            detail = error.strerror or ""
            raise refused(step, number, "" if detail == os.strerror(number) else detail, fix) from None
        except Exception as error:  # pyroute2's NetlinkError is not an OSError; its code is the error number
            code = getattr(error, "code", None)
            if not isinstance(code, int):
                raise
            detail = str(error.args[-1])  # the kernel's own message, if it has one
            raise refused(step, abs(code), "" if detail == os.strerror(abs(code)) else detail, fix) from None


def _file_state(path: str, target: str) -> Original:
    """The current content and permissions of a file. Raises OSError if it cannot be read."""
    try:
        with open(target, "rb") as file:
            return Original(path, file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
    except FileNotFoundError:
        return Original(path, None)


def _shown(content: bytes | None, offset: int = 0) -> str | None:
    """Content for a message: text, or bytes of a register."""
    if content is None:
        return None
    return content.hex(" ") if offset else content.decode("utf-8", "replace")
