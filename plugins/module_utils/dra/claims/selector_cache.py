# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A cache for the results of selectors on devices."""

from __future__ import annotations

import re
import typing as t

from ..cel.engine import Engine
from ..cel.subject import Subject
from ..kube.objects import ObjectView
from ..vendors.offer import Offer

Texts = tuple[str, ...]


class SelectorCache:
    """Evaluates each selector only once for all devices that no selector can distinguish.

    The caller must keep the devices alive, because they are identified by `id`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.subjects: dict[int, Subject] = {}
        self._equivalent: dict[int, int] = {}
        self.known: dict[tuple[str, int], bool | Exception] = {}
        self.uncertain_names: dict[int, set[str]] = {}
        self.words: dict[Texts, set[str]] = {}
        self.fits: dict[tuple[Texts, int], tuple[int, ...]] = {}

    def matches(self, expression: str, device: ObjectView, driver: str) -> bool:
        """Whether a selector matches a device. Raises what the evaluation raised, each time."""
        equivalent = self._equivalent.get(id(device), id(device))
        key = (expression, equivalent)
        answer = self.known.get(key)
        if answer is None:
            subject = self.subjects.get(equivalent)
            if subject is None:
                subject = self.subjects[equivalent] = Subject(device, driver)
            try:
                answer = self.engine.selects(expression, subject)
            except RecursionError:
                raise  # of the caller's stack, so it says nothing about the selector and the device
            except Exception as error:  # noqa: BLE001  # pylint: disable=broad-exception-caught
                answer = error
            self.known[key] = answer
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)  # otherwise each raise would add to the traceback, which keeps all frames
        return answer

    def reuse_results(self, offered: t.Iterable[Offer], known: t.Iterable[Offer]) -> None:
        """Use the results of known devices for other devices that no selector can distinguish from them."""
        for offer, other in zip(offered, known):
            self._equivalent[id(offer.device)] = id(other.device)

    def uncertain_values(self, offered: t.Sequence[Offer]) -> set[str]:
        """The unqualified names of attributes and capacities whose values on these devices are unknown or assumed."""
        if id(offered) not in self.uncertain_names:
            names = {name for offer in offered for name in offer.unknown | offer.assumed}
            self.uncertain_names[id(offered)] = {name.rpartition("/")[2] for name in names}
        return self.uncertain_names[id(offered)]

    def mentioned(self, texts: Texts) -> set[str]:
        """The words of selectors, including the names of attributes."""
        if texts not in self.words:
            self.words[texts] = set(re.findall(r"\w+", " ".join(texts)))
        return self.words[texts]

    def fitting(self, texts: Texts, offered: t.Sequence[Offer]) -> tuple[int, ...]:
        """The positions of the devices that match all of the selectors. Raises what `matches` raises.

        The selectors of the class must come first, so that their result is reused for all claims.
        """
        if not texts:
            return tuple(range(len(offered)))
        key = (texts, id(offered))
        if key not in self.fits:
            text, candidates = texts[-1], self.fitting(texts[:-1], offered)
            self.fits[key] = tuple(
                index for index in candidates if self.matches(text, offered[index].device, offered[index].driver)
            )
        return self.fits[key]
