# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Computes each team's quota while loans are in effect, and compares guarantees with the fleet."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from ..kube import quantity
from ..kube.reader import Reader, child
from .inventory import PREFIX, Loan, Queues, Resource, Team
from .supply import Supply

_ZERO = Fraction()


@dataclass(frozen=True)
class Quota:
    """A team's quota of a resource. `borrow` and `lend` are None without a limit."""

    nominal: Fraction
    borrow: Fraction | None
    lend: Fraction | None


#: By team and resource.
Quotas = dict[tuple[str, str], Quota]


def amount_text(amount: Fraction, binary: bool = False) -> str:
    """An amount as the API writes it; with binary suffixes if the site uses them."""
    return quantity.canonical(amount, quantity.BINARY_SI if binary else quantity.DECIMAL_SI)


def split_loans(loans: t.Sequence[Loan], now: datetime) -> tuple[list[Loan], list[Loan]]:
    """The loans in effect, and those that are overdue."""
    return [loan for loan in loans if loan.until > now], [loan for loan in loans if loan.until <= now]


def quotas(queues: Queues, loans: t.Sequence[Loan], reader: Reader) -> Quotas:
    """Each team's quota of each resource while the loans are in effect.

    A loan moves quota from one team to the other. Neither priorities nor reclaiming move it back before the loan ends.
    A loan counts against the limits of both teams, so a team never lends or borrows more than its limit.
    """
    teams = {team.name: team for team in queues.teams}
    lent_amounts, borrowed_amounts = _loaned_amounts(loans, "lender"), _loaned_amounts(loans, "borrower")
    for loan in loans:
        for name in loan.devices:
            _check_loan(loan, name, teams, lent_amounts, borrowed_amounts, queues, reader)
    team_quotas: Quotas = {}
    for team in queues.teams:
        for resource in queues.resources:
            key = (team.name, resource.name)
            lent, borrowed = lent_amounts.get(key, _ZERO), borrowed_amounts.get(key, _ZERO)
            nominal = team.guaranteed.get(resource.name, _ZERO) - lent + borrowed
            lend, borrow = team.lend.get(resource.name), team.borrow.get(resource.name)
            team_quotas[key] = Quota(
                max(nominal, _ZERO),
                None if borrow is None else max(borrow - borrowed, _ZERO),
                None if lend is None else max(lend - lent, _ZERO),
            )
    return team_quotas


def _loaned_amounts(loans: t.Sequence[Loan], side: str) -> dict[tuple[str, str], Fraction]:
    """The sums of loans by team and resource; `side` is `lender` or `borrower`."""
    sums: dict[tuple[str, str], Fraction] = {}
    for loan in loans:
        for name, amount in loan.devices.items():
            key = (getattr(loan, side), name)
            sums[key] = sums.get(key, _ZERO) + amount
    return sums


def _check_loan(
    loan: Loan,
    name: str,
    teams: t.Mapping[str, Team],
    lent_amounts: t.Mapping[tuple[str, str], Fraction],
    borrowed_amounts: t.Mapping[tuple[str, str], Fraction],
    queues: Queues,
    reader: Reader,
) -> None:
    """Report a loan of a resource that exceeds the guarantee or the limit of the lender, or the borrower's limit."""
    lender, borrower = teams[loan.lender], teams[loan.borrower]
    path = queues.amount_paths.get((f"loan {loan.path}", name), child(loan.path, "devices"))
    short = next(resource.short for resource in queues.resources if resource.name == name)
    binary = name in queues.binary
    lent, guaranteed = lent_amounts[loan.lender, name], lender.guaranteed.get(name, _ZERO)
    maximum = min(guaranteed, lender.lend.get(name, guaranteed))
    if lent > maximum:
        if maximum < guaranteed:
            limit, fix = "may lend at most", f"raise {child(lender.path, 'lend')}, or shorten the loans"
        else:
            limit, fix = "is guaranteed", "a team cannot lend what it has borrowed"
        message = (
            f"{lender.name} would lend {amount_text(lent, binary)} {short}, but {limit} {amount_text(maximum, binary)}"
        )
        reader.problem(path, message, "lends-too-much", fix)
    borrowed, borrow_limit = borrowed_amounts[loan.borrower, name], borrower.borrow.get(name)
    if borrow_limit is not None and borrowed > borrow_limit:
        message = (
            f"{borrower.name} would borrow {amount_text(borrowed, binary)} {short} by loans, but may borrow at most "
            f"{amount_text(borrow_limit, binary)}"
        )
        reader.problem(path, message, "borrows-too-much", f"raise {child(borrower.path, 'borrow')}")


def check_fleet(queues: Queues, supplies: t.Mapping[str, Supply], reader: Reader, warnings: list[str]) -> None:
    """Report guarantees of teams and the pool that exceed the fleet. Loans do not change the sum."""
    for resource in queues.resources:
        if resource.broken:
            continue
        supply = supplies.get(resource.name) or _stated_supply(resource)
        guarantees = [(team.name, team.guaranteed.get(resource.name, _ZERO)) for team in queues.teams]
        guarantees.append(("", queues.pool.get(resource.name, _ZERO)))
        guarantees = [(owner, amount) for owner, amount in guarantees if amount]
        if not guarantees or supply is None:
            continue
        total = sum((amount for _owner, amount in guarantees), _ZERO)
        binary = resource.name in queues.binary
        shares = ", ".join(f"{owner or 'the pool'} {amount_text(amount, binary)}" for owner, amount in guarantees)
        if total <= supply.certain:
            continue
        message = (
            f"guarantees of {resource.short} add up to {amount_text(total, binary)} ({shares}), but the fleet has "
            f"{amount_text(supply.maximum, binary)}"
        )
        if total > supply.maximum and not supply.unclear:
            path = _first_excess_path(queues, resource, guarantees, supply.maximum)
            reader.problem(path, message, "over-fleet", "guarantee less")
        elif supply.unclear:
            node, reason = next(iter(sorted(supply.unclear.items())))
            warnings.append(
                f"{resource.path}: guarantees of {resource.short} add up to {amount_text(total, binary)}, but only "
                f"{amount_text(supply.certain, binary)} is certain: the amount is unknown on {len(supply.unclear)} "
                f"node(s), such as {node} ({reason})"
            )
        else:
            warnings.append(
                f"{resource.path}: guarantees of {resource.short} add up to {amount_text(total, binary)}, but only "
                f"{amount_text(supply.certain, binary)} is certain: the probe does not know enough about the rest"
            )


def _stated_supply(resource: Resource) -> Supply | None:
    return Supply(certain=resource.total, maximum=resource.total) if resource.total is not None else None


def _first_excess_path(
    queues: Queues, resource: Resource, guarantees: list[tuple[str, Fraction]], maximum: Fraction
) -> str:
    """The path of the first guarantee with which the sum exceeds the fleet, in the order of the inventory."""
    total = _ZERO
    for owner, amount in guarantees:
        total += amount
        if total > maximum:
            return queues.amount_paths.get((owner, resource.name), PREFIX + "teams")
    return PREFIX + "teams"
