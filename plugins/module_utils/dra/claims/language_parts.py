# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The parts that classes and claims have in common: names, labels, filters and configurations."""

from __future__ import annotations

import typing as t

from ..config import interface_config
from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import Reader, child
from .inventory import INDEX, OWN_LABELS
from .language_filters import read_where


class PartParser:
    """Reads the parts that classes and claims have in common."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def option(self, item: Object, key: str, path: str, read: t.Callable[[t.Any, str], t.Any]) -> t.Any:
        """What `read` returns for the value of a key and its path; None if `item` does not have the key."""
        return read(item[key], child(path, key)) if key in item else None

    def name(self, item: Object, path: str, check: t.Callable[[str], str]) -> str:
        """The name of an entry; empty after recording that it is missing or invalid."""
        if "name" not in item:
            self.reader.problem(child(path, "name"), "is missing", "missing")
            return ""
        return self.reader.name(item["name"], child(path, "name"), check) or ""

    def labels(self, item: Object, path: str, key: str) -> dict[str, str]:
        """The valid entries of `labels` or `annotations`, which `key` names. Errors are recorded."""
        labels: dict[str, str] = {}
        if key not in item:
            return labels
        place = child(path, key)
        for name, value in self.reader.any_mapping(item[key], place).items():
            # annotations may be empty or long; values of labels must be valid
            if not isinstance(value, str):
                self.reader.wrong_type(value, child(place, name), "a string", "put it in quotes")
                continue
            wrong = limits.label_key(name.lower() if key == "annotations" else name)
            wrong = wrong or (limits.label_value(value) if key == "labels" else "")
            if wrong:
                self.reader.problem(child(place, name), wrong, "bad-name")
            elif name in OWN_LABELS:
                self.reader.problem(child(place, name), "is set by the collection itself", "reserved")
            else:
                labels[name] = value
        return labels

    def cel(self, item: Object, path: str) -> list[str]:
        """The CEL expressions of an entry, which are not checked here."""
        return self.option(item, "cel", path, self.reader.strings) or []

    def where(self, item: Object, path: str, kind: str) -> Object:
        """The filters of an entry: the valid ones of its kind, or all if `kind` is empty."""
        if "where" not in item:
            return {}
        place = child(path, "where")
        # without a kind, or with a wrong one, the filters are read once the kind is known, or not at all
        return (
            read_where(self.reader, item["where"], place, kind)
            if kind
            else self.reader.any_mapping(item["where"], place)
        )

    def configs(self, item: Object, path: str) -> list[Object]:
        """The opaque configurations, `{driver, parameters}`. The one for `interface` comes first."""
        configs = []
        if "interface" in item:
            interface = item["interface"]
            if isinstance(interface, dict) and isinstance(interface.get("name"), str):
                # any number can replace {index} here, because only the syntax is checked
                interface = {**interface, "name": interface["name"].replace(INDEX, "0")}
            wrong = interface_config.validate(interface, child(path, "interface"), complete=False)
            self.reader.problems += wrong
            if not wrong:
                parameters: t.Any = interface_config.parameters(item["interface"])
                configs.append({"driver": interface_config.DRIVER, "parameters": parameters})
        place = child(path, "config")
        for value, entry in self.reader.items(item["config"], place) if "config" in item else []:
            config = self.reader.mapping(value, entry, ("driver", "parameters"), "a config")
            if config is None:
                continue
            driver = self.option(config, "driver", entry, lambda v, p: self.reader.name(v, p, limits.driver_name))
            if "driver" not in config:
                self.reader.problem(child(entry, "driver"), "is missing", "missing")
            parameters = config.get("parameters")
            if not isinstance(parameters, dict):
                self.reader.wrong_type(parameters, child(entry, "parameters"), "a mapping")
                continue
            json_error = limits.json_error(parameters)
            if json_error:
                self.reader.problem(child(entry, "parameters"), json_error, "wrong-type")
                continue
            if limits.opaque_size(parameters) > limits.OPAQUE_BYTES:
                message = f"is longer than {limits.OPAQUE_BYTES} bytes"
                self.reader.problem(child(entry, "parameters"), message, "too-long")
            elif driver == interface_config.DRIVER:
                self.reader.problems += interface_config.validate(parameters, child(entry, "parameters"))
            if driver:
                configs.append({"driver": driver, "parameters": parameters})
        return configs
