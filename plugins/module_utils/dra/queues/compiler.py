# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles a site's queues to objects of Kueue, its configuration and variants of claim templates."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

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
    """The data that the compiler needs besides the variables of the queues.

    `objects` are those rendered from the site's claims, in any version of the DRA API. `nodes` are as for these claims,
    empty if no node is known. `drivers` are dra_claims_drivers. `engine` has the features of the cluster. `now` decides
    which loans are overdue.
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
    """The result of compiling queues.

    `configuration` is a part of Kueue's configuration. `templates` has each claim template in the teams' namespaces,
    whether or not Kueue accepts it. `loans` and `overdue` describe the loans in effect and the overdue ones. `table` is
    a summary as lines of text.
    """

    objects: list[Object] = field(default_factory=list)
    configuration: Object = field(default_factory=dict)
    templates: list[TeamTemplate] = field(default_factory=list)
    loans: list[str] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)


def compile_queues(variables: ObjectView, compile_input: CompileInput) -> Compiled:
    """Compile the variables `queues_*`. Raises Problems with all errors and the paths of their variables."""
    reader = Reader()
    queues = parse(variables, reader, compile_input.site)
    return _Compiler(queues, compile_input, reader).compile()


class _Compiler:
    def __init__(self, queues: Queues, compile_input: CompileInput, reader: Reader) -> None:
        self.queues = queues
        self.input = compile_input
        self.reader = reader
        self.fleet = Fleet(compile_input.nodes, compile_input.drivers, compile_input.engine, compile_input.server)
        self.classes = {
            str(item["metadata"]["name"]): versions.convert(item, _V1)
            for item in compile_input.objects
            if item["kind"] == "DeviceClass"
        }
        # not the labels of the claims: pruning the claims would then remove these objects too
        self.labels = dict(zip(OWN_LABELS, (MANAGED_BY, compile_input.site)))
        self.compiled = Compiled()

    def compile(self) -> Compiled:
        queues, reader, compiled = self.queues, self.reader, self.compiled
        supplies = SupplyCounter(self.fleet, self.classes, reader).supplies(queues.resources)
        for resource in queues.resources:
            error = configuration.selector_error(resource, self.fleet.kueue)
            if error:
                reader.problem(child(resource.path, "selector"), f"Kueue cannot evaluate it: {error}", "bad-value")
        if self.input.nodes:
            check_fleet(queues, supplies, reader, compiled.warnings)
            self._check_shared_counters(supplies)
        elif queues.teams:
            compiled.warnings.append(
                "Guarantees were not compared with the fleet, because no node is known. Run lanewise.dra.probe first, "
                "or take the nodes from slices (dra_claims_nodes_from)."
            )
        in_effect, overdue = split_loans(queues.loans, self.input.now)
        compiled.loans = [self._loan_line(loan) for loan in in_effect]
        compiled.overdue = [self._loan_line(loan) for loan in overdue]
        team_quotas = quotas(queues, in_effect, reader)
        variants = self._templates(supplies)
        if reader.problems:
            raise Problems(list(dict.fromkeys(reader.problems)))
        compiled.objects = [*objects_of(queues, team_quotas, self.labels), *variants]
        self._annotate_loans(in_effect)
        compiled.configuration = configuration.fragment(queues)
        compiled.table = self._table(team_quotas, supplies)
        return compiled

    def _annotate_loans(self, loans: t.Sequence[Loan]) -> None:
        """Annotate each queue whose quota is changed by loans with these loans, so that the cluster shows them."""
        for item in self.compiled.objects:
            if item["kind"] == "ClusterQueue":
                name = item["metadata"]["name"]
                lines = [self._loan_line(loan) for loan in loans if name in (loan.lender, loan.borrower)]
                if lines:
                    item["metadata"]["annotations"] = {LOANS: "\n".join(lines)}

    def _loan_line(self, loan: Loan) -> str:
        def format_amount(name: str, amount: t.Any) -> str:
            short = next(resource.short for resource in self.queues.resources if resource.name == name)
            return f"{amount_text(amount, name in self.queues.binary)} {short}"

        return loan.line(format_amount)

    def _check_shared_counters(self, supplies: t.Mapping[str, Supply]) -> None:
        """Report guarantees that together need more than the counters that their devices share."""
        guaranteed = dict(self.queues.pool)
        for team in self.queues.teams:
            for name, amount in team.guaranteed.items():
                guaranteed[name] = guaranteed.get(name, Fraction()) + amount
        if any(supply.unclear for supply in supplies.values()):
            return  # there may be more devices
        for resource, message in overcommitted(self.queues.resources, supplies, guaranteed):
            self.reader.problem(resource.path, message, "over-fleet", "guarantee less of one of them")

    # templates

    def _templates(self, supplies: t.Mapping[str, Supply]) -> list[Object]:
        """The variants of templates. Adds all templates in the teams' namespaces to `compiled.templates`."""
        calculator = ChargeCalculator(self.queues.resources, supplies, self.classes, self.fleet)
        namespaces = {namespace for team in self.queues.teams for namespace in team.namespaces}
        templates = {
            (str(template["metadata"].get("namespace") or ""), str(template["metadata"]["name"])): template
            for template in self.input.objects
            if template["kind"] == "ResourceClaimTemplate"
        }
        choices = {(choice.namespace, choice.template): choice for choice in self.queues.choices}
        for key, choice in choices.items():
            if key not in templates or key[0] not in namespaces:
                scope = "in a namespace of a team" if key in templates else "among the claims of the site"
                message = f"there is no template {'/'.join(key)} {scope}"
                self.reader.problem(child(choice.path, "template"), message, "unknown-template")
        variants = []
        for key, template in sorted(templates.items()):
            if key[0] in namespaces:
                entry, new_variant = self._template(template, choices.get(key), calculator)
                self.compiled.templates.append(entry)
                if new_variant and (key[0], entry.name_in_queues) in templates:
                    message = f"its variant would have the name of another template, {entry.name_in_queues}"
                    self.reader.problem(_TEMPLATES, f"{'/'.join(key)}: {message}", "duplicate-name")
                variants += [new_variant] if new_variant else []
        return variants

    def _template(
        self, item: Object, choice: TemplateChoice | None, calculator: ChargeCalculator
    ) -> tuple[TeamTemplate, Object | None]:
        """The entry for a template, and its variant if it needs one and Kueue accepts it."""
        metadata = item["metadata"]
        entry = TeamTemplate(str(metadata.get("namespace") or ""), str(metadata["name"]))
        try:
            usable, entry.left_out = variant(versions.convert(item, _V1), choice, self.labels)
            entry.charges = calculator.charges(usable, entry.notes)
        except TemplateError as error:
            entry.reason, entry.left_out = str(error), []
            if choice:
                self.reader.problem(child(choice.path, "template"), f"{entry.name}: {error}", "refused-template")
            return entry, None
        entry.name_in_queues = str(usable["metadata"]["name"])
        if not entry.left_out:
            return entry, None
        return entry, versions.convert(usable, str(item["apiVersion"]))

    # text for people

    def _table(self, team_quotas: t.Mapping[tuple[str, str], t.Any], supplies: t.Mapping[str, Supply]) -> list[str]:
        """A line for each resource, each team's quota of it, and each template."""
        lines = []
        for resource in self.queues.resources:
            binary = resource.name in self.queues.binary
            supply = supplies.get(resource.name)
            available = f", {amount_text(supply.certain, binary)} on the fleet" if supply and self.input.nodes else ""
            lines.append(f"{resource.short}{available}")
            for team in self.queues.teams:
                quota = team_quotas[team.name, resource.name]
                parts = [f"  {team.name}: {amount_text(quota.nominal, binary)}"]
                parts += [f"borrows at most {amount_text(quota.borrow, binary)}"] if quota.borrow is not None else []
                parts += [f"lends at most {amount_text(quota.lend, binary)}"] if quota.lend is not None else []
                lines.append(", ".join(parts))
        return lines + [self._template_line(template) for template in self.compiled.templates]

    def _template_line(self, template: TeamTemplate) -> str:
        name = f"{template.namespace}/{template.name}"
        if not template.name_in_queues:
            return f"{name}: not for queues: {template.reason}"
        charged = ", ".join(
            f"{amount_text(template.charges[resource.name], resource.name in self.queues.binary)} {resource.short}"
            for resource in self.queues.resources
            if resource.name in template.charges
        )
        without = ", ".join(template.left_out)
        variant_text = f" as {template.name_in_queues}, without {without}" if without else ""
        return f"{name}: charged {charged or 'nothing'}{variant_text}"
