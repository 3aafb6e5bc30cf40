# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The kernel's command line in a boot loader's configuration: GRUB's own files, or entries of the Boot Loader
Specification (RHEL family with GRUB, systemd-boot)."""

from __future__ import annotations

import contextlib
import re
import shlex
import typing as t

from .command_line import Arguments, before_init, key, quoted, split
from .system import HostError, System

#: Its name sorts after the files of cloud images and packages (50-cloudimg-settings.cfg, kdump-tools.cfg).
GRUB_FILE = "/etc/default/grub.d/zz-lanewise.cfg"
ENTRIES_FILE = "/etc/lanewise/kernel-args"
_GRUB_CFG = "/boot/grub/grub.cfg"
_UPDATE_GRUB = ("/usr/sbin/update-grub", "/sbin/update-grub")
_ENTRIES = ("/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries")
_KERNEL_CMDLINE = "/etc/kernel/cmdline"
_GRUB_DEFAULT = "/etc/default/grub"
_GRUBENV = "/boot/grub2/grubenv"
_LOADER_INFO = "/sys/firmware/efi/efivars/{}-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_LINUX = re.compile(r"^\s*linux(?:16|efi)?\s+\S+\s+(.*)$")
_MENU_ENTRY = re.compile(r"^\s*menuentry\s.*?menuentry_id_option['\"]?\s+['\"]([^'\"]*)")
_OPTIONS = re.compile(r"^(options[ \t]+)(.*)$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
#: A variable that grub.cfg sets for all entries, such as tuned's. Those in functions and entries are indented.
_SET = re.compile(r"^set[ \t]+([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.MULTILINE)
_UNKNOWN = "it is not started by a known boot loader"
_GRUB_LINE = re.compile(r"^(GRUB_CMDLINE_LINUX=\")((?:[^\"$`\\\n]|\\\")*)\"[ \t]*$", re.MULTILINE)
_KERNELOPTS = re.compile(r"\$\{?kernelopts\b")


class BootLoader:
    """One boot loader's configuration. `name` is for messages; `file` records the site's arguments."""

    name = ""
    file = ""

    def __init__(self, system: System) -> None:
        self.system = system
        self._original: dict[str, str | None] = {}

    def lines(self) -> list[list[str]]:
        """The arguments of each boot entry, without recovery entries. Raises HostError."""
        raise NotImplementedError

    def change(self, new: Arguments | None) -> None:
        """Set the next boot's arguments; None removes those of the site. Raises HostError."""
        raise NotImplementedError

    def conflict(self, new: Arguments) -> tuple[str, str]:
        """Why these arguments cannot be set, and how to fix it; both empty if nothing is known to prevent it.

        Changes nothing. Raises HostError if a file cannot be read.
        """
        return "", ""

    def restore(self) -> None:
        """Restore what `change` has changed; may be called again if it failed. Raises HostError."""
        for path, content in reversed(list(self._original.items())):
            self.system.install(path, content, f"restore {path}")

    @property
    def changed(self) -> bool:
        """Whether `restore` has something to restore."""
        return bool(self._original)

    def recorded_arguments(self) -> Arguments:
        """The arguments that are recorded as the site's."""
        present, absent = [], []
        for kind, value in self._recorded():
            if kind == "present":
                present.append(value)
            elif kind == "absent":
                absent.append(value)
        return Arguments(tuple(present), tuple(absent))

    def booted_since(self) -> bool:
        """Whether the node was booted after the site's arguments were written."""
        boot_ids = [value for kind, value in self._recorded() if kind == "boot"]
        return bool(boot_ids) and boot_ids[0] != self._boot_id()

    def _boot_id(self) -> str:
        return self.system.text("/proc/sys/kernel/random/boot_id") or "unknown"

    def _recorded(self) -> t.Iterator[tuple[str, str]]:
        """The recorded kinds (`present`, `absent`, `was`, `boot`) and values, in the file's order."""
        for line in (self.system.content(self.file) or "").splitlines():
            fields = line.split()
            if len(fields) == 3 and fields[0] == "#:":
                yield fields[1], fields[2]

    def _recording(self, arguments: Arguments) -> str:
        """The lines that record the site's arguments and the current boot."""
        lines = ["# Written by the Ansible collection lanewise.dra, which owns this file."]
        lines += [f"#: present {argument}" for argument in arguments.present]
        lines += [f"#: absent {argument}" for argument in arguments.absent]
        return "\n".join([*lines, f"#: boot {self._boot_id()}", ""])

    def _install(self, path: str, content: str | None) -> None:
        if path not in self._original:
            self._original[path] = self.system.content(path)
        self.system.install(path, content, f"write the kernel arguments to {path}")


class Grub(BootLoader):
    """Debian's and Ubuntu's GRUB: a shell drop-in that grub-mkconfig sources last."""

    name = "GRUB's configuration"
    file = GRUB_FILE

    def lines(self) -> list[list[str]]:
        lines = grub_lines(self.system.content(_GRUB_CFG) or "")
        if not lines:
            fix = "install a kernel in /boot, and run update-grub"
            raise HostError(
                f"read the kernel arguments of {_GRUB_CFG}", "it contains no entry with a Linux kernel", fix
            )
        return lines

    def change(self, new: Arguments | None) -> None:
        self._install(GRUB_FILE, None if new is None else self._recording(new) + grub_shell(new))
        self._update()
        if new is None:
            return
        for line in self.lines():
            if new.relevant(line) != new.ordered():
                step = "set the kernel arguments for the next boot"
                reason = f"{_GRUB_CFG} contains '{' '.join(line)}', but {GRUB_FILE} sets '{' '.join(new.present)}'"
                raise HostError(step, reason, self._override_advice())

    def conflict(self, new: Arguments) -> tuple[str, str]:
        """As for any boot loader: another program's variable, such as tuned's, contains arguments to be removed."""
        text = self.system.content(_GRUB_CFG) or ""
        return _conflict(new, [line for _number, line in _linux_lines(text)], _set_variables(text), _GRUB_CFG)

    def restore(self) -> None:
        super().restore()
        self._update()

    def _update(self) -> None:
        program = next((path for path in _UPDATE_GRUB if self.system.exists(path)), _UPDATE_GRUB[0])
        self.system.command([program], "rebuild GRUB's menu", "look at /etc/default/grub and grub.d for errors")

    def _override_advice(self) -> str:
        folder = GRUB_FILE.rpartition("/")[0]
        later = [name for name in self.system.names(folder) if name.endswith(".cfg") and name > "zz-lanewise.cfg"]
        if later:
            return f"{folder}/{later[-1]} is sourced later: give it a name that sorts before {GRUB_FILE}"
        return "look in /etc/grub.d for scripts that write command lines, and for other files with GRUB_CMDLINE_LINUX"


class Entries(BootLoader):
    """Boot Loader Specification entries, and the files from which the entries of new kernels are made.

    The entries are written directly: grubby replaces arguments by name, so it cannot set two sizes of huge pages.
    """

    name = "the boot loader's entries"
    file = ENTRIES_FILE

    def __init__(self, system: System, folder: str) -> None:
        super().__init__(system)
        self.folder = folder
        self._original_kernelopts: str | None = None  # the variable in GRUB's environment before `change`

    def _entries(self) -> list[str]:
        """The paths of the entries with options, without rescue entries."""
        return [
            f"{self.folder}/{name}"
            for name in self.system.names(self.folder)
            if name.endswith(".conf") and "rescue" not in name and _OPTIONS.search(self._text(f"{self.folder}/{name}"))
        ]

    def _text(self, path: str) -> str:
        return self.system.content(path) or ""

    def _variables(self) -> dict[str, str]:
        """The variables in GRUB's environment block."""
        lines = [line for line in self._text(_GRUBENV).splitlines() if not line.startswith("#")]
        return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}

    def lines(self) -> list[list[str]]:
        variables = self._variables()
        lines = []
        for path in self._entries():
            text = " ".join(match.group(2) for match in _OPTIONS.finditer(self._text(path)))
            lines.append(split(_VARIABLE.sub(lambda match: variables.get(match.group(1), match.group(0)), text)))
        if not lines:
            raise HostError(f"read the kernel arguments of {self.folder}", "it contains no entry with a Linux kernel")
        return lines

    def change(self, new: Arguments | None) -> None:
        arguments, recorded = new or Arguments(), self.recorded_arguments()
        removed_before = [value for kind, value in self._recorded() if kind == "was"]
        variables = self._variables()
        texts = {path: self._text(path) for path in self._entries()}
        self._require_no_conflict(arguments)
        removed = [argument for argument in removed_before if argument not in arguments.restored(removed_before)]
        for argument in dict.fromkeys(argument for line in self.lines() for argument in line):
            replaced = arguments.removes(argument) or argument in arguments.present
            if replaced and argument not in removed and argument not in recorded.present:
                removed.append(argument)

        def changed(match: re.Match[str]) -> str:
            return match.group(1) + arguments.applied(match.group(2), recorded, removed_before)

        record = None
        if new is not None:
            lines = [f"#: was {argument}" for argument in removed if " " not in argument]
            record = self._recording(new) + "".join(f"{line}\n" for line in lines)
            self._install(ENTRIES_FILE, record)
        for path, text in texts.items():
            if not _KERNELOPTS.search(text):
                self._install(path, _OPTIONS.sub(changed, text, count=1))
        if "kernelopts" in variables and any(_KERNELOPTS.search(text) for text in texts.values()):
            self._set_kernelopts(arguments.applied(variables["kernelopts"], recorded, removed_before))
        content = self.system.content(_KERNEL_CMDLINE)
        if content is not None:  # kernel-install makes a new kernel's entry from this
            self._install(_KERNEL_CMDLINE, arguments.applied(content.strip(), recorded, removed_before) + "\n")
        content = self.system.content(_GRUB_DEFAULT)
        if content is not None:  # grub2-mkconfig makes the entries' defaults from this

            def in_shell(match: re.Match[str]) -> str:
                value = arguments.applied(match.group(2).replace('\\"', '"'), recorded, removed_before)
                return f"{match.group(1)}{value}".replace('"', '\\"').replace('\\"', '"', 1) + '"'

            self._install(_GRUB_DEFAULT, _GRUB_LINE.sub(in_shell, content))
        if new is None:
            self._install(ENTRIES_FILE, None)

    def conflict(self, new: Arguments) -> tuple[str, str]:
        """As for any boot loader: another program's variable, such as tuned's, contains arguments to be removed."""
        variables = {name: value for name, value in self._variables().items() if name != "kernelopts"}
        return _conflict(new, [self._text(path) for path in self._entries()], variables, _GRUBENV)

    def _require_no_conflict(self, new: Arguments) -> None:
        """Raises HostError if there is a conflict, which may have appeared since the change was planned."""
        reason, fix = self.conflict(new)
        if reason:
            raise HostError("set the kernel arguments for the next boot", reason, fix)

    def _set_kernelopts(self, value: str) -> None:
        step = "write the kernel arguments to GRUB's environment"
        if self._original_kernelopts is None:
            self._original_kernelopts = self._variables()["kernelopts"]
        self.system.command(["grub2-editenv", "-", "set", f"kernelopts={value}"], step)

    def restore(self) -> None:
        if self._original_kernelopts is not None:
            self._set_kernelopts(self._original_kernelopts)
        super().restore()

    @property
    def changed(self) -> bool:
        return super().changed or self._original_kernelopts is not None


def find_boot_loader(system: System) -> BootLoader | None:
    """The boot loader that starts the node's kernel; None if this package cannot configure it."""
    if why_unsupported(system)[0] != _UNKNOWN:
        return None
    entries = next(
        (folder for folder in _ENTRIES if any(name.endswith(".conf") for name in system.names(folder))), None
    )
    if entries and (_efi_text(system, "LoaderInfo").startswith("systemd-boot") or not system.exists(_GRUB_CFG)):
        return Entries(system, entries)
    if system.exists(_GRUB_CFG) and any(system.exists(path) for path in _UPDATE_GRUB):
        return Grub(system)
    return None


def why_unsupported(system: System) -> tuple[str, str]:
    """Why the node's boot loader cannot be configured, and how to fix it."""
    if system.exists("/run/ostree-booted"):
        return "this node is managed by OSTree", "use rpm-ostree kargs"
    if _efi_text(system, "StubInfo"):
        return "the kernel is a unified image with its arguments inside", "build the image with them"
    if system.exists("/etc/zipl.conf"):
        return "zipl boots this node", "use grubby and zipl"
    return (
        _UNKNOWN,
        "set the arguments where the node is booted from: another boot loader (SUSE's), a hypervisor, a netboot server",
    )


def _efi_text(system: System, name: str) -> str:
    """A text variable of the Boot Loader Interface. It consists of four bytes of attributes, then UTF-16."""
    data = system.reader.data(_LOADER_INFO.format(name), 512) or b""
    return data[4:].decode("utf-16-le", errors="replace").rstrip("\0")


def _conflict(new: Arguments, texts: t.Sequence[str], variables: t.Mapping[str, str], path: str) -> tuple[str, str]:
    """Why the variables of a file that boot entries contain conflict with arguments, and how to fix it."""
    for name in sorted({match.group(1) for text in texts for match in _VARIABLE.finditer(text)}):
        conflicts = [argument for argument in split(variables.get(name, "")) if new.conflicts_with(argument)]
        if conflicts:
            owner = "the tuned profile" if name.startswith("tuned_") else f"what sets ${name}"
            return f"${name} of {path} contains {' '.join(conflicts)}", f"change {owner}"
    return "", ""


def _linux_lines(text: str) -> t.Iterator[tuple[int, str]]:
    """Number and arguments of the lines in a grub.cfg that start Linux, without recovery entries or other systems."""
    ordinary = True
    for number, line in enumerate(text.splitlines(), 1):
        entry = _MENU_ENTRY.match(line)
        if entry:
            ordinary = "-recovery-" not in entry.group(1) and not entry.group(1).startswith("osprober")
            continue
        linux = _LINUX.match(line)
        if linux and ordinary:
            yield number, linux.group(1)


def _set_variables(text: str) -> dict[str, str]:
    """The variables that a grub.cfg sets for all entries, without those whose values are not whole arguments."""
    variables = {}
    for match in _SET.finditer(text):
        with contextlib.suppress(ValueError):
            value = next(iter(shlex.split(match.group(2), comments=True)), "")
            shlex.split(value)
            variables[match.group(1)] = value
    return variables


def grub_lines(text: str) -> list[list[str]]:
    """The arguments of the entries in a grub.cfg, without those for recovery or other systems. Raises HostError."""
    variables = _set_variables(text)
    lines = []
    for number, line in _linux_lines(text):
        expanded = _VARIABLE.sub(lambda match: variables.get(match.group(1), match.group(0)), line)
        try:
            lines.append(before_init(shlex.split(expanded)))
        except ValueError as error:
            raise HostError(f"read {_GRUB_CFG}", f"line {number}: {error}") from None
    return lines


def grub_shell(arguments: Arguments) -> str:
    """Shell code for grub-mkconfig that removes the arguments that conflict with the site's, then adds the site's."""
    patterns = []
    for item in (*arguments.absent, *arguments.present):
        name, equals, value = item.partition("=")
        start = re.sub("[-_]", "[-_]", re.sub(r"[^\w.-]", lambda match: f"\\{match.group()}", name, flags=re.ASCII))
        if arguments.owns(item) or (not equals and item in arguments.absent):
            patterns += [start, f"{start}=*"]
        else:
            patterns.append(f"{start}={shlex.quote(value)}" if equals else start)
    if any(key(argument) in ("hugepages", "hugepagesz") for argument in arguments.present):
        patterns += ["hugepages", "hugepages=*", "hugepagesz", "hugepagesz=*"]
    if not patterns:
        return ""
    either = " | ".join(
        f'{pattern} | \\"{pattern}' + ("" if pattern[-1] == "*" else '\\"') for pattern in dict.fromkeys(patterns)
    )
    added = shlex.quote("".join(f" {quoted(argument)}" for argument in arguments.present))
    return f"""set -f
for lanewise_name in GRUB_CMDLINE_LINUX GRUB_CMDLINE_LINUX_DEFAULT; do
  lanewise_kept=
  eval "lanewise_words=\\$$lanewise_name"
  for lanewise_word in $lanewise_words; do
    case $lanewise_word in
      {either}) ;;
      *) lanewise_kept="$lanewise_kept${{lanewise_kept:+ }}$lanewise_word" ;;
    esac
  done
  eval "$lanewise_name=\\$lanewise_kept"
done
set +f
GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT"{added}
"""
