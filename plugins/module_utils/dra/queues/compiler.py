# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles a site's queues to objects of Kueue, its configuration and variants of claim templates."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field
from datetime import datetime

from ..cel.engine import Engine
from ..claims.inventory import OWN_LABELS
from ..kube import versions
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problems
from ..kube.reader import Reader, child
from ..scheduler.published import Nodes
from ..vendors.server import Server
from . import configuration
from .inventory import Loan, Queues, TemplateChoice
from .language import parse
from .objects import LOANS
from .objects import objects as objects_of
from .sums import amount_text, check_fleet, quotas, split_loans
from .supply import Fleet, Supply, SupplyCounter, overcommitted
from .variants import ChargeCalculator, TeamTemplate, TemplateError, variant

_V1 = "resource.k8s.io/v1"
_TEMPLATES = "queues_templates"
#: The label app.kubernetes.io/managed-by of all objects of queues.
MANAGED_BY = "lanewise.dra.queues"


@dataclass
class CompileInput:
    """What queues are compiled for.

    `objects` are those rendered from the site's claims, of any DRA version; `nodes` are as for these claims, empty if
    none is known; `drivers` is dra_claims_drivers. `now` decides which loans are overdue. `engine` has the
    features of the cluster.
    """

    objects: t.Sequence[Object]
    nodes: Nodes
    drivers: ObjectView
    engine: Engine
    server: Server
    now: datetime
    site: str = "default"


@dataclass
class Compiled:
    """The result. `templates` has each claim template of a team, accepted by Kueue or not."""

    objects: list[Object] = field(default_factory=list)
    configuration: Object = field(default_factory=dict)
    templates: list[TeamTemplate] = field(default_factory=list)
    loans: list[str] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)


def compile_queues(variables: ObjectView, given: CompileInput) -> Compiled:
    """Compile the variables `queues_*`. Raises Problems, with every error found and the path of its variable."""
    reader = Reader()
    queues = parse(variables, reader, given.site)
    return _Compiler(queues, given, reader).compile()


class _Compiler:
    def __init__(self, queues: Queues, given: CompileInput, reader: Reader) -> None:
        self.queues = queues
        self.given = given
        self.reader = reader
        self.fleet = Fleet(given.nodes, given.drivers, given.engine, given.server)
        self.classes = {
            str(one["metadata"]["name"]): versions.convert(one, _V1)
            for one in given.objects
            if one["kind"] == "DeviceClass"
        }
        # not the labels of the claims: pruning the claims would then remove these objects too
        self.labels = dict(zip(OWN_LABELS, (MANAGED_BY, given.site)))
        self.made = Compiled()

    def compile(self) -> Compiled:
        queues, reader, made = self.queues, self.reader, self.made
        supplies = SupplyCounter(self.fleet, self.classes, reader).supplies(queues.resources)
        for resource in queues.resources:
            wrong = configuration.selector_error(resource, self.fleet.kueue)
            if wrong:
                reader.problem(child(resource.path, "selector"), f"Kueue cannot evaluate it: {wrong}", "bad-value")
        if self.given.nodes:
            check_fleet(queues, supplies, reader, made.warnings)
            self._check_shared_counters(supplies)
        elif queues.teams:
            made.warnings.append(
                "Guarantees were not compared with the fleet, because no node is known. Run lanewise.dra.probe first, "
                "or take the nodes from slices (dra_claims_nodes_from)."
            )
        holding, late = split_loans(queues.loans, self.given.now)
        made.loans, made.overdue = ([self._loan_line(one) for one in some] for some in (holding, late))
        shares = quotas(queues, holding, reader)
        variants = self._templates(supplies)
        if reader.problems:
            raise Problems(list(dict.fromkeys(reader.problems)))
        made.objects = [*objects_of(queues, shares, self.labels), *variants]
        self._annotate_loans(holding)
        made.configuration = configuration.fragment(queues)
        made.table = self._table(shares, supplies)
        return made

    def _annotate_loans(self, loans: t.Sequence[Loan]) -> None:
        """Annotate each queue whose quota a loan changes with its loans, so that the cluster shows them."""
        for one in self.made.objects:
            if one["kind"] == "ClusterQueue":
                name = one["metadata"]["name"]
                lines = [self._loan_line(loan) for loan in loans if name in (loan.lender, loan.borrower)]
                if lines:
                    one["metadata"]["annotations"] = {LOANS: "\n".join(lines)}

    def _loan_line(self, loan: Loan) -> str:
        def form(name: str, amount: t.Any) -> str:
            short = next(one.short for one in self.queues.resources if one.name == name)
            return f"{amount_text(amount, name in self.queues.binary)} {short}"

        return loan.line(form)

    def _check_shared_counters(self, supplies: t.Mapping[str, Supply]) -> None:
        guaranteed = dict(self.queues.pool)
        for team in self.queues.teams:
            for name, amount in team.guaranteed.items():
                guaranteed[name] = guaranteed.get(name, amount - amount) + amount
        if any(supply.unclear for supply in supplies.values()):
            return  # there may be more devices
        for resource, message in overcommitted(self.queues.resources, supplies, guaranteed):
            self.reader.problem(resource.path, message, "over-fleet", "guarantee less of one of them")

    # templates

    def _templates(self, supplies: t.Mapping[str, Supply]) -> list[Object]:
        """The variants of templates; `made.templates` gets all templates of the teams."""
        charging = ChargeCalculator(self.queues.resources, supplies, self.classes, self.fleet)
        teams = {namespace for team in self.queues.teams for namespace in team.namespaces}
        templates = {
            (str(one["metadata"].get("namespace") or ""), str(one["metadata"]["name"])): one
            for one in self.given.objects
            if one["kind"] == "ResourceClaimTemplate"
        }
        choices = {(one.namespace, one.template): one for one in self.queues.choices}
        for key, choice in choices.items():
            if key not in templates or key[0] not in teams:
                where = "in a namespace of a team" if key in templates else "among the claims of the site"
                message = f"there is no template {'/'.join(key)} {where}"
                self.reader.problem(child(choice.path, "template"), message, "unknown-template")
        made = []
        for key, template in sorted(templates.items()):
            if key[0] in teams:
                entry, other = self._template(template, choices.get(key), charging)
                self.made.templates.append(entry)
                if other and (key[0], entry.use) in templates:
                    message = f"its variant would have the name of another template, {entry.use}"
                    self.reader.problem(_TEMPLATES, f"{'/'.join(key)}: {message}", "duplicate-name")
                made += [other] if other else []
        return made

    def _template(
        self, item: Object, choice: TemplateChoice | None, charging: ChargeCalculator
    ) -> tuple[TeamTemplate, Object | None]:
        metadata = item["metadata"]
        entry = TeamTemplate(str(metadata.get("namespace") or ""), str(metadata["name"]))
        try:
            form, entry.left_out = variant(versions.convert(item, _V1), choice, self.labels)
            entry.charges = charging.charges(form, entry.notes)
        except TemplateError as refused:
            entry.reason, entry.left_out = str(refused), []
            if choice:
                self.reader.problem(child(choice.path, "template"), f"{entry.template}: {refused}", "refused-template")
            return entry, None
        entry.use = str(form["metadata"]["name"])
        if not entry.left_out:
            return entry, None
        return entry, versions.convert(form, str(item["apiVersion"]))

    # text for people

    def _table(self, shares: t.Mapping[tuple[str, str], t.Any], supplies: t.Mapping[str, Supply]) -> list[str]:
        """A line for each team and resource, and one for each template."""
        lines = []
        for resource in self.queues.resources:
            binary = resource.name in self.queues.binary
            supply = supplies.get(resource.name)
            has = f", {amount_text(supply.sure, binary)} on the fleet" if supply and self.given.nodes else ""
            lines.append(f"{resource.short}{has}")
            for team in self.queues.teams:
                quota = shares[team.name, resource.name]
                words = [f"  {team.name}: {amount_text(quota.nominal, binary)}"]
                words += [f"borrows at most {amount_text(quota.borrow, binary)}"] if quota.borrow is not None else []
                words += [f"lends at most {amount_text(quota.lend, binary)}"] if quota.lend is not None else []
                lines.append(", ".join(words))
        return lines + [self._template_line(one) for one in self.made.templates]

    def _template_line(self, one: TeamTemplate) -> str:
        name = f"{one.namespace}/{one.template}"
        if not one.use:
            return f"{name}: not for queues: {one.reason}"
        charged = ", ".join(
            f"{amount_text(one.charges[resource.name], resource.name in self.queues.binary)} {resource.short}"
            for resource in self.queues.resources
            if resource.name in one.charges
        )
        instead = f" as {one.use}, without {', '.join(one.left_out)}" if one.left_out else ""
        return f"{name}: charged {charged or 'nothing'}{instead}"
