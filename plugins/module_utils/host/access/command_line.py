# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The kernel's command line, argument by argument (lib/cmdline.c, kernel/params.c)."""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

#: Arguments that may be repeated, so that the site's arguments are added to the existing ones.
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
#: Arguments whose relative order matters: `hugepages` counts pages of the size in the preceding `hugepagesz`.
_GROUPED_WITH = {"hugepages": "hugepagesz"}


def quoted_arguments(text: str) -> list[str]:
    """The arguments of a command line as the kernel splits them, with their quotes."""
    complete: list[str] = []
    word, in_quotes = "", False
    for character in text:
        if character.isspace() and not in_quotes:
            if word:
                complete.append(word)
            word = ""
            continue
        in_quotes = in_quotes != (character == '"')
        word += character
    return [*complete, word] if word else complete


def split(text: str) -> list[str]:
    """The arguments without quotes, up to `--`."""
    return before_init([word.replace('"', "") for word in quoted_arguments(text)])


def before_init(arguments: list[str]) -> list[str]:
    """The arguments up to `--`. Those after `--` are for the init process."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def quoted(argument: str) -> str:
    """An argument, quoted for both GRUB and the kernel if needed: `;` and `&` would end GRUB's command."""
    return argument if re.match(r"^[\w.,:=/@+%-]+$", argument, re.ASCII) else f'"{argument}"'


def key(argument: str) -> str:
    """The name of an argument, with `_` instead of `-`, which the kernel treats as equal."""
    return argument.partition("=")[0].replace("-", "_")


def _group(name: str) -> str:
    return _GROUPED_WITH.get(name, name)


def equal(first: str, second: str) -> bool:
    """Whether two arguments have the same name and value."""
    return key(first) == key(second) and first.partition("=")[1:] == second.partition("=")[1:]


def matches(item: str, argument: str) -> bool:
    """Whether an item of the unwanted list matches an argument: `quiet` matches any `quiet` or `quiet=...`."""
    return key(item) == key(argument) if "=" not in item else equal(item, argument)


@dataclass(frozen=True)
class Arguments:
    """The wanted arguments (`present`), in order, and the items that unwanted arguments match (`absent`)."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def owns(self, argument: str) -> bool:
        """Whether the wanted arguments replace every other argument of that name."""
        name = _group(key(argument))
        return name not in _ADDITIVE and any(_group(key(wanted)) == name for wanted in self.present)

    def relevant(self, arguments: t.Sequence[str]) -> list[str]:
        """The arguments with the name of a wanted argument, in the wanted order, then the unwanted arguments.

        The result is equal to `ordered` if nothing needs to change. A repetition of a wanted argument, which another
        program may add, is left out, unless its position matters.
        """
        names = [_group(key(wanted)) for wanted in self.present]
        ranked: list[tuple[int, int, str]] = []
        for position, argument in enumerate(arguments):
            name = key(argument)
            if self.owns(argument):
                repeats = name not in _GROUPED_WITH and name not in _GROUPED_WITH.values()
                if not (repeats and argument in self.present and argument in arguments[:position]):
                    ranked.append((names.index(_group(name)), position, argument))
            elif any(equal(argument, wanted) for wanted in self.present):
                first = next(rank for rank, wanted in enumerate(self.present) if equal(argument, wanted))
                if not any(equal(argument, other) for _rank, _position, other in ranked):
                    ranked.append((first, position, argument))
            elif any(matches(item, argument) for item in self.absent):
                ranked.append((len(names), position, argument))
        return [argument for _rank, _position, argument in sorted(ranked)]

    def ordered(self) -> list[str]:
        """`present` in the order of `relevant`: arguments of one name together, at the position of the first."""
        names = [_group(key(wanted)) for wanted in self.present]
        return [
            argument
            for _rank, _position, argument in sorted(
                (names.index(_group(key(argument))) if self.owns(argument) else position, position, argument)
                for position, argument in enumerate(self.present)
            )
        ]

    def applied(self, text: str, old: Arguments, removed_before: t.Sequence[str] = ()) -> str:
        """A command line with these arguments, and without those that the `old` arguments added.

        `removed_before` are the arguments that the old ones removed. They are restored where these arguments allow it.
        """
        words = quoted_arguments(text)
        for_init = words[words.index("--") :] if "--" in words else []
        words = words[: len(words) - len(for_init)]
        replaced = (*old.present, *self.present)
        words = [
            word
            for word in words
            if not self.removes(_unquoted(word)) and not any(equal(_unquoted(word), argument) for argument in replaced)
        ]
        words += [
            quoted(argument)
            for argument in self.restored(removed_before)
            if not any(equal(argument, _unquoted(word)) for word in words)
        ]
        return " ".join([*words, *map(quoted, self.present), *for_init])

    def removes(self, argument: str) -> bool:
        """Whether an argument that is not the site's own is removed."""
        return self.owns(argument) or any(matches(item, argument) for item in self.absent)

    def conflicts_with(self, argument: str) -> bool:
        """Whether an argument that another program adds prevents that the command line has these arguments."""
        return self.removes(argument) and not any(equal(argument, wanted) for wanted in self.present)

    def restored(self, removed_before: t.Sequence[str]) -> list[str]:
        """The arguments in `removed_before` that these arguments neither remove nor contain."""
        return [
            argument
            for argument in removed_before
            if not self.removes(argument) and not any(equal(argument, wanted) for wanted in self.present)
        ]


def _unquoted(word: str) -> str:
    return word.replace('"', "")
