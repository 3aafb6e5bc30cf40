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
from ..kube.reader import Reader, nearest
from . import amd, cpu, dranet, furiosa, gaudi, hami, intel, lanewise, nvidia, nvidia_domains, qat, sriov, tpu
from .knowledge import LANEWISE, NEWEST_BUILD, DriverKnowledge, Kind, Term, version_order
from .options import enabled_gates, problems_of, unavailable_options
from .site_knowledge import SiteKnowledge

#: The built-in drivers: the tables of each, the prediction of its devices, and the check of its opaque configurations.
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

#: The built-in tables by driver name, for all versions. :func:`knowledge` returns those for a site's version.
DRIVERS: dict[str, DriverKnowledge] = {vendor.knowledge.name: vendor.knowledge for vendor in VENDORS}


#: The checks of opaque configurations, by the name of the driver.
CONFIG_CHECKS = {vendor.knowledge.name: vendor.check_config for vendor in VENDORS if vendor.check_config}


_DRIVER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


def knowledge(name: str, options: ObjectView | None = None) -> DriverKnowledge:
    """What claims can request from the version of the driver `name` that the site runs.

    `options` is the driver's entry in dra_claims_drivers. Its `knowledge` is a mapping that adds to the built-in
    tables, or describes a driver that has none::

        knowledge:
          kinds:
            gpu:
              terms: [{name: type, value: gpu}]         # attribute, value, compare: equals or not_equals
              capacities: {memory: memory}
              filters: {min_memory: {name: memory, source: capacity, type: quantity, compare: at_least}}
          align: {pcie_root: [resource.kubernetes.io/pcieRoot]}
          vendors: ["10de"]

    The result contains only what this version publishes. The names in its terms, filters and alignment levels have
    their domain (`gpu.nvidia.com/uuid`). Those in `Kind.capacities` are as the driver publishes them, because a
    capacity request must use the same name. Raises Problems, with paths below dra_claims_drivers.
    """
    path = f"dra_claims_drivers.{name}"
    if options is not None and not isinstance(options, dict):
        reader = Reader()
        reader.wrong_type(options, path, "a mapping", "write {version: ...}")
        raise Problems(reader.problems)
    problems: list[Problem] = []
    options = dict(options or {})
    if len(name) > 63 or not _DRIVER_NAME.fullmatch(name):
        problems.append(
            Problem(
                path, f"{name!r} is not a driver name: it must be a DNS subdomain of at most 63 characters", "driver"
            )
        )
    problems += problems_of(options, path)
    driver = DRIVERS.get(name)
    site_tables = options.get("knowledge")
    if driver is None and not site_tables:
        suggestion = nearest(name, sorted(DRIVERS))
        suggestion = f"{suggestion} Otherwise " if suggestion else ""
        problems.append(
            Problem(
                path,
                "there is no built-in knowledge of this driver",
                "driver",
                f"{suggestion}describe its devices in {path}.knowledge; built-in drivers: {', '.join(sorted(DRIVERS))}",
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
    """The version without a leading `v`, or `main` for the newest. Errors are added to `problems`."""
    if version is None:
        if built_in and driver.name != LANEWISE:
            problems.append(
                Problem(
                    path,
                    f"the version of {driver.title} is not set, but its attributes depend on it",
                    "version",
                    'write version: "X.Y.Z", or main for the newest build',
                )
            )
        return "main"
    text = str(version)
    version_path = f"{path}.version"
    if not isinstance(version, str):
        # YAML reads 1.10 as the number 1.1
        fix = 'write all numbers in quotes: "X.Y.Z"'
        problems.append(Problem(version_path, f"must be a string, not {version}", "version", fix))
        return "main"
    if text in NEWEST_BUILD:
        return "main"
    try:
        order = version_order(text, driver.version_series)
    except ValueError as error:
        fix = 'write "X.Y" or "X.Y.Z", or main for the newest build'
        problems.append(Problem(version_path, str(error), "version", fix))
        return "main"
    if driver.oldest and order < version_order(driver.oldest, driver.version_series):
        hint = driver.hint("version")
        problems.append(
            Problem(
                version_path,
                f"{driver.title} {text} is too old; the oldest supported version is {driver.oldest}",
                "version",
                f"upgrade the driver{'; ' + hint if hint else ''}",
            )
        )
    return text[1:] if text.startswith("v") else text


def _resolve(driver: DriverKnowledge) -> DriverKnowledge:
    """Reduce the tables to the driver's version. Names without a domain get the driver's, except in `capacities`."""

    def qualified(terms: tuple[Term, ...]) -> tuple[Term, ...]:
        return tuple(replace(term, name=driver.qualified(term.name)) for term in terms)

    align = {
        level: tuple(
            replace(
                attribute,
                name=driver.qualified(attribute.name),
                list=attribute.list or attribute.list_gate in driver.enabled,
            )
            for attribute in attributes
            if driver.version_in_range(attribute.since, attribute.until)
        )
        for level, attributes in driver.align.items()
    }
    # filters compare single values, so they cannot use attributes that are lists
    lists = {attribute.name for attributes in align.values() for attribute in attributes if attribute.list}
    kinds = {}
    for kind, tables in driver.kinds.items():
        filters = {}
        for name, tests in tables.filters.items():
            available = tuple(
                replace(test, name=driver.qualified(test.name))
                for test in tests
                if driver.version_in_range(test.since, test.until) and driver.qualified(test.name) not in lists
            )
            if available:
                filters[name] = available
        kinds[kind] = Kind(
            terms=qualified(tables.terms),
            filters=filters,
            terms_by_filter={name: qualified(terms) for name, terms in tables.terms_by_filter.items()},
            capacities=tables.capacities,
        )
    return replace(driver, kinds=kinds, align=align)
