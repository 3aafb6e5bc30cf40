# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Evaluates a selector on a device of a shape once, whatever the number of claims."""

from __future__ import annotations

import re
import typing as t

from ..cel.engine import Engine
from ..cel.subject import Subject
from ..kube.objects import ObjectView
from ..vendors.offer import Offer

Texts = tuple[str, ...]


class SelectorMemory:
    """Evaluates a selector on a device of a shape once, whatever the number of claims."""

    # devices live as long as the shapes do, so an id always means the same device
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.subjects: dict[int, Subject] = {}
        self._like: dict[int, int] = {}
        self.known: dict[tuple[str, int], bool | Exception] = {}
        self.guessed: dict[int, set[str]] = {}
        self.words: dict[Texts, set[str]] = {}
        self.fits: dict[tuple[Texts, int], tuple[int, ...]] = {}

    def matches(self, expression: str, device: ObjectView, driver: str) -> bool:
        like = self._like.get(id(device), id(device))
        key = (expression, like)
        answer = self.known.get(key)
        if answer is None:
            subject = self.subjects.get(like)
            if subject is None:
                subject = self.subjects[like] = Subject(device, driver)
            try:
                answer = self.engine.selects(expression, subject)
            except Exception as error:  # noqa: BLE001  # pylint: disable=broad-exception-caught
                answer = error  # what was raised is raised again for the next claim
            self.known[key] = answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def alike(self, offered: t.Iterable[Offer], known: t.Iterable[Offer]) -> None:
        """Give each device the answers of a known one from which no selector can distinguish it."""
        for offer, other in zip(offered, known):
            self._like[id(offer.device)] = id(other.device)

    def unsure(self, offered: t.Sequence[Offer]) -> set[str]:
        """The names of values that a probe does not know of these devices, or only assumes."""
        if id(offered) not in self.guessed:
            names = {name for offer in offered for name in offer.unknown | offer.assumed}
            self.guessed[id(offered)] = {name.rpartition("/")[2] for name in names}
        return self.guessed[id(offered)]

    def mentioned(self, texts: Texts) -> set[str]:
        """The words of selectors, attributes' names among them."""
        if texts not in self.words:
            self.words[texts] = set(re.findall(r"\w+", " ".join(texts)))
        return self.words[texts]

    def fitting(self, texts: Texts, offered: t.Sequence[Offer]) -> tuple[int, ...]:
        """The positions of the devices that all the selectors match. Raises what `matches` raises.

        Selectors of the class come first, so that their result is known after the first claim.
        """
        if not texts:
            return tuple(range(len(offered)))
        key = (texts, id(offered))
        if key not in self.fits:
            text, left = texts[-1], self.fitting(texts[:-1], offered)
            self.fits[key] = tuple(i for i in left if self.matches(text, offered[i].device, offered[i].driver))
        return self.fits[key]
