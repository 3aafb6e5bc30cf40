# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The kernel's command line, argument by argument (lib/cmdline.c, kernel/params.c)."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

#: Arguments of which each occurrence counts, so that the site's are added to the present ones.
_ADDITIVE = (
    "blacklist",
    "console",
    "dyndbg",
    "earlycon",
    "ip",
    "memmap",
    "module_blacklist",
    "modprobe.blacklist",
    "netconsole",
    "pci",
    "rd.driver.blacklist",
    "video",
)
#: Arguments whose relative order matters: `hugepages` is for the size of the `hugepagesz` before it.
_TOGETHER = {"hugepages": "hugepagesz"}


def words(text: str) -> list[str]:
    """The arguments of a command line as the kernel splits them, with their quotes."""
    found: list[str] = []
    word, quoted = "", False
    for letter in text:
        if letter.isspace() and not quoted:
            if word:
                found.append(word)
            word = ""
            continue
        quoted = quoted != (letter == '"')
        word += letter
    return [*found, word] if word else found


def split(text: str) -> list[str]:
    """The arguments without quotes, up to `--`. Those after it are for the init process."""
    found = [word.replace('"', "") for word in words(text)]
    return found[: found.index("--")] if "--" in found else found


def quoted(argument: str) -> str:
    """An argument, quoted for both GRUB and the kernel, as `;` and `&` would end GRUB's command."""
    return argument if re.match(r"^[\w.,:=/@+%-]+$", argument, re.ASCII) else f'"{argument}"'


def key(argument: str) -> str:
    """The name of an argument, with `_` for `-`, which are equal for the kernel."""
    return argument.partition("=")[0].replace("-", "_")


def _group(name: str) -> str:
    return _TOGETHER.get(name, name)


def equal(one: str, other: str) -> bool:
    return key(one) == key(other) and one.partition("=")[1:] == other.partition("=")[1:]


def matches(item: str, argument: str) -> bool:
    """Whether an item of the unwanted list matches an argument: `quiet` matches any `quiet` or `quiet=...`."""
    return key(item) == key(argument) if "=" not in item else equal(item, argument)


@dataclass(frozen=True)
class Arguments:
    """The wanted arguments, in order, and the items of unwanted ones."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def owns(self, argument: str) -> bool:
        """Whether the wanted arguments replace every other argument of that name."""
        name = _group(key(argument))
        return name not in _ADDITIVE and any(_group(key(one)) == name for one in self.present)

    def seen(self, arguments: t.Sequence[str]) -> list[str]:
        """The arguments that concern the site: those with the name of a wanted one, in the wanted order, then unwanted
        ones.

        Equal to `ordered` if nothing needs to change.
        """
        names = [_group(key(one)) for one in self.present]
        found: list[tuple[int, int, str]] = []
        for place, one in enumerate(arguments):
            if self.owns(one):
                found.append((names.index(_group(key(one))), place, one))
            elif any(equal(one, wanted) for wanted in self.present):
                first = next(n for n, wanted in enumerate(self.present) if equal(one, wanted))
                if not any(equal(one, other) for _n, _place, other in found):
                    found.append((first, place, one))
            elif any(matches(item, one) for item in self.absent):
                found.append((len(names), place, one))
        return [one for _n, _place, one in sorted(found)]

    def ordered(self) -> list[str]:
        """`present` in the order of `seen`: arguments of one name together, at the position of the first."""
        names = [_group(key(one)) for one in self.present]
        return [
            one
            for _n, _place, one in sorted(
                (names.index(_group(key(one))) if self.owns(one) else place, place, one)
                for place, one in enumerate(self.present)
            )
        ]

    def applied(self, text: str, old: Arguments, back: t.Sequence[str] = ()) -> str:
        """A command line with these arguments, and without those that the `old` arguments added.

        `back` are the arguments that the old ones removed; they are restored.
        """
        kept = words(text)
        rest = kept[kept.index("--") :] if "--" in kept else []
        kept = kept[: len(kept) - len(rest)]
        replaced = (*old.present, *self.present)
        kept = [
            word
            for word in kept
            if not self.removes(_unquoted(word)) and not any(equal(_unquoted(word), other) for other in replaced)
        ]
        kept += [quoted(one) for one in self.returned(back) if not any(equal(one, _unquoted(word)) for word in kept)]
        return " ".join([*kept, *map(quoted, self.present), *rest])

    def removes(self, argument: str) -> bool:
        """Whether an argument that is not the site's own is removed."""
        return self.owns(argument) or any(matches(item, argument) for item in self.absent)

    def returned(self, back: t.Sequence[str]) -> list[str]:
        """The arguments in `back` that these arguments allow again."""
        return [one for one in back if not self.removes(one) and not any(equal(one, other) for other in self.present)]


def _unquoted(word: str) -> str:
    return word.replace('"', "")
