# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The built-in drivers, and what claims can request from the version of a driver that a site runs."""

from __future__ import annotations

import re
from dataclasses import replace

from ..kube.objects import ObjectView
from ..kube.problems import Problem, Problems
from ..kube.reader import nearest
from . import amd, cpu, dranet, furiosa, gaudi, hami, intel, lanewise, nvidia, nvidia_domains, qat, sriov, tpu
from .knowledge import LANEWISE, NEWEST, DriverKnowledge, Kind, Term, version_order
from .options import enabled_gates, problems_of, unavailable_options
from .site_knowledge import SiteKnowledge

#: One line per driver; its module defines what the driver publishes in general, and for a probed node.
VENDORS = (
    nvidia.VENDOR,
    nvidia_domains.VENDOR,
    hami.VENDOR,
    amd.VENDOR,
    intel.VENDOR,
    gaudi.VENDOR,
    qat.VENDOR,
    tpu.VENDOR,
    furiosa.VENDOR,
    cpu.VENDOR,
    dranet.VENDOR,
    sriov.VENDOR,
    lanewise.VENDOR,
)

#: Built-in tables by driver name, for all versions; :func:`knowledge` gives those of a site's version.
DRIVERS: dict[str, DriverKnowledge] = {vendor.knowledge.name: vendor.knowledge for vendor in VENDORS}


#: The checks of opaque configurations, for drivers whose checks are known.
REFUSES = {vendor.knowledge.name: vendor.refuses for vendor in VENDORS if vendor.refuses}


_DRIVER_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")


def knowledge(name: str, options: ObjectView | None = None) -> DriverKnowledge:
    """What claims can request from the version of driver `name` that the site runs.

    `options` is the driver's entry in dra_claims_drivers: `version`, and `knowledge`, a dictionary that adds to the
    built-in tables or describes a driver that has none::

        knowledge:
          kinds:
            gpu:
              terms: [{name: type, value: gpu}]         # attribute, value, compare: equals or not_equals
              capacities: {memory: memory}
              filters: {min_memory: {name: memory, source: capacity, type: quantity, compare: at_least}}
          align: {pcie_root: [resource.kubernetes.io/pcieRoot]}
          vendors: ["10de"]

    Every name in the result is qualified, and it contains only what that version publishes. Raises `Problems` with
    paths below dra_claims_drivers.
    """
    path = f"dra_claims_drivers.{name}"
    problems: list[Problem] = []
    options = dict(options or {})
    if len(name) > 63 or not _DRIVER_NAME.match(name):
        problems.append(
            Problem(
                path, f"{name!r} is not a driver name: it must be a DNS subdomain of at most 63 characters", "driver"
            )
        )
    problems += problems_of(options, path)
    driver = DRIVERS.get(name)
    site_tables = options.get("knowledge")
    if driver is None and not site_tables:
        near = nearest(name, sorted(DRIVERS))
        near = f"{near} Otherwise " if near else ""
        problems.append(
            Problem(
                path,
                "there is no built-in knowledge of this driver",
                "driver",
                f"{near}describe its devices in {path}.knowledge; built-in drivers: {', '.join(sorted(DRIVERS))}",
            )
        )
        raise Problems(problems)
    built_in = driver is not None
    if driver is None:
        driver = DriverKnowledge(name=name, title=name, kinds={})
    if site_tables is not None:
        driver = SiteKnowledge(path + ".knowledge", problems).merge(driver, site_tables)
    driver = replace(driver, version=_check_version(driver, built_in, options.get("version"), path, problems))
    problems += unavailable_options(driver, options, path)
    driver = replace(driver, enabled=enabled_gates(driver, options, path, problems))
    if problems:
        raise Problems(problems)
    return _resolve(driver)


def _check_version(driver: DriverKnowledge, built_in: bool, version: object, path: str, problems: list[Problem]) -> str:
    if version is None:
        if built_in and driver.name != LANEWISE:
            problems.append(
                Problem(
                    path,
                    f"the version of {driver.title} is not set, but its attributes depend on it",
                    "version",
                    'write version: "X.Y.Z", or main for the newest',
                )
            )
        return "main"
    text = str(version)
    where = f"{path}.version"
    if not isinstance(version, str):
        # YAML reads 1.10 as the number 1.1
        problems.append(Problem(where, f"must be a string, not {version}", "version", 'quote it: "1.10.0"'))
        return "main"
    if text in NEWEST:
        return "main"
    try:
        order = version_order(text, driver.epochs)
    except ValueError as error:
        problems.append(Problem(where, str(error), "version", "quote it, and write all three numbers"))
        return "main"
    if driver.oldest and order < version_order(driver.oldest, driver.epochs):
        hint = driver.hint("version")
        problems.append(
            Problem(
                where,
                f"{driver.title} {text} is too old: {driver.oldest} is the oldest version that claims can be made for",
                "version",
                f"upgrade the driver{'; ' + hint if hint else ''}",
            )
        )
    return text[1:] if text.startswith("v") else text


def _resolve(driver: DriverKnowledge) -> DriverKnowledge:
    """Reduce the tables to the driver's version, with qualified names."""

    def terms(given: tuple[Term, ...]) -> tuple[Term, ...]:
        return tuple(replace(term, name=driver.qualified(term.name)) for term in given)

    align = {
        level: tuple(
            replace(way, name=driver.qualified(way.name), list=way.list or way.list_gate in driver.enabled)
            for way in ways
            if driver.has(way.since, way.until)
        )
        for level, ways in driver.align.items()
    }
    # a filter compares one value
    lists = {way.name for ways in align.values() for way in ways if way.list}
    kinds = {}
    for kind, served in driver.kinds.items():
        filters = {}
        for name, ways in served.filters.items():
            kept = tuple(
                replace(way, name=driver.qualified(way.name))
                for way in ways
                if driver.has(way.since, way.until) and driver.qualified(way.name) not in lists
            )
            if kept:
                filters[name] = kept
        kinds[kind] = Kind(
            terms=terms(served.terms),
            filters=filters,
            instead={name: terms(given) for name, given in served.instead.items()},
            capacities=served.capacities,
        )
    return replace(driver, kinds=kinds, align=align)
