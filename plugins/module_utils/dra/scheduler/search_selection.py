# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Evaluates selectors on devices, of which a probe may not know all published values."""

from __future__ import annotations

import typing as t

from ..cel.errors import EvaluationError, Uncheckable
from ..cel.selector_text import conjuncts, mentioned
from ..kube.objects import ObjectView
from ..vendors.offer import Offer

#: The result of a selector on a device. FAILS is an error, which makes scheduling of the pod fail.
YES, NO, MAYBE, FAILS = "yes", "no", "maybe", "fails"


class Engine(t.Protocol):
    """The evaluator of selectors, such as `cel.Engine`."""

    def matches(self, expression: str, device: ObjectView, driver: str) -> bool:
        """Whether a device matches. Raises EvaluationError, and Uncheckable if this cannot be evaluated."""


class Selection:
    """Caches the verdicts of selectors on devices.

    The caller must keep the offers alive, because they are identified by `id`. By selector and offer, `assumed` are the
    attributes whose likely value matched, and `unknown_values` those that are unknown.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.verdicts: dict[tuple[str, int], str | EvaluationError] = {}
        self.assumed: dict[tuple[str, int], frozenset[str]] = {}
        self.unknown_values: dict[tuple[str, int], set[str]] = {}

    def judge(self, expression: str, offer: Offer) -> str:
        """Whether one selector matches a device: YES, NO, MAYBE or FAILS."""
        key = (expression, id(offer))
        verdict = self.verdicts.get(key)
        if verdict is None:
            try:
                verdict = self._match(expression, offer)
            except EvaluationError as error:
                verdict = error
            self.verdicts[key] = verdict
        return FAILS if isinstance(verdict, Exception) else verdict

    def error(self, expression: str, offer: Offer) -> str:
        """Why a selector fails on a device."""
        return str(self.verdicts[expression, id(offer)])

    def _match(self, expression: str, offer: Offer) -> str:
        """Whether a selector matches a device: YES, NO or MAYBE. Raises EvaluationError if scheduling would fail."""
        if not offer.unknown and not offer.assumed:
            try:
                return YES if self.engine.matches(expression, offer.device, offer.driver) else NO
            except Uncheckable as error:
                self.unknown_values.setdefault((expression, id(offer)), set()).add(str(error))
                return MAYBE
        return self._likely(expression, offer)

    def _likely(self, expression: str, offer: Offer) -> str:
        """Like `_match`, for a device of which a probe does not know every value."""
        key = (expression, id(offer))
        unknown = mentioned(expression, offer.unknown)
        assumed = mentioned(expression, offer.assumed)
        try:
            matches = self.engine.matches(expression, offer.device, offer.driver)
        except Uncheckable as error:
            self.unknown_values.setdefault(key, set()).add(str(error))
            return MAYBE
        except EvaluationError:
            if not unknown:
                raise
            matches = False
        if matches and not unknown:
            self.assumed[key] = assumed
            return YES
        if not unknown and not assumed:
            return NO
        # An operand that is false without any unknown value decides: the order of CEL's && does not matter.
        for part in conjuncts(expression):
            if not mentioned(part, unknown | assumed):
                try:
                    if not self.engine.matches(part, offer.device, offer.driver):
                        return NO
                except (EvaluationError, Uncheckable):
                    pass
        self.unknown_values.setdefault(key, set()).update(unknown | assumed)
        return MAYBE
