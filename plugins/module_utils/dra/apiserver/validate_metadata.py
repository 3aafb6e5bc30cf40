# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The rules for the metadata of objects (k8s.io/apimachinery/pkg/api/validation/objectmeta.go)."""

from __future__ import annotations

from ..kube import limits, versions
from ..kube.objects import Object
from .validate_base import Rules

_STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


# The server truncates the prefix to 58 characters and adds five letters or digits, such as these.
_PREFIX_LENGTH, _EXAMPLE_SUFFIX = 58, "bbbbb"


class MetadataRules(Rules):
    """Rules for names, labels, annotations, finalizers and owners."""

    def object_meta(self, obj: Object) -> None:
        """Check the metadata of an object."""
        meta, kind = obj.get("metadata", {}), obj["kind"]
        name, prefix = meta.get("name", ""), meta.get("generateName", "")
        # since 1.35 the server validates the generated name of a DeviceClass instead of its prefix
        validates_result = kind == "DeviceClass" and self._minor >= 35
        if prefix and validates_result:
            if "/" in prefix or "%" in prefix:
                self._add("metadata.generateName", "must not contain '/' or '%'", "name")
        elif prefix:
            masked = prefix[:-2] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
            self._name(masked, limits.dns_subdomain, "metadata.generateName")
        if name:
            self._name(name, limits.dns_subdomain, "metadata.name")
        elif not prefix:
            self._add("metadata.name", "name or generateName is required", "required")
        else:
            self._name(prefix[:_PREFIX_LENGTH] + _EXAMPLE_SUFFIX, limits.dns_subdomain, "metadata.name")
        if kind in versions.NAMESPACED and meta.get("namespace"):
            self._name(meta["namespace"], limits.dns_label, "metadata.namespace")
        self._labels(meta, "metadata")
        finalizers = meta.get("finalizers", [])
        for index, finalizer in enumerate(finalizers):
            self._name(finalizer, limits.label_key, "metadata.finalizers")
            if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
                self._add(f"metadata.finalizers[{index}]", f"{finalizer!r} must have a domain", "name")
        if {"orphan", "foregroundDeletion"} <= set(finalizers):
            self._add("metadata.finalizers", "orphan and foregroundDeletion exclude each other", "exactly-one")
        self._owners(meta.get("ownerReferences", []))

    def _labels(self, meta: Object, path: str) -> None:
        for key, value in meta.get("labels", {}).items():
            wrong = limits.label_key(key) or limits.label_value(value)
            if wrong:
                self._add(f"{path}.labels", f"{key}={value}: {wrong}", "label")
        annotations = meta.get("annotations", {})
        for key in annotations:
            wrong = limits.label_key(key.lower())
            if wrong:
                self._add(f"{path}.annotations", f"{key}: {wrong}", "label")
        total = sum(limits.size(key) + limits.size(value) for key, value in annotations.items())
        if total > limits.ANNOTATIONS_BYTES:
            limit = limits.ANNOTATIONS_BYTES
            self._add(f"{path}.annotations", f"has {total} bytes; at most {limit} are allowed", "too-long")

    def _owners(self, owners: list[Object]) -> None:
        for index, owner in enumerate(owners):
            path = "metadata.ownerReferences" + (f"[{index}]" if self._minor >= 35 else "")
            for name in ("apiVersion", "kind", "name", "uid"):
                if not owner.get(name):
                    self._add(f"{path}.{name}", "is required", "required")
            version = owner.get("apiVersion", "")
            if version and (version.count("/") > 1 or version.endswith("/")):
                self._add(f"{path}.apiVersion", "must be GROUP/VERSION or VERSION", "value")
            if (version, owner.get("kind")) == ("v1", "Event"):
                self._add(path, "an Event cannot own anything", "forbidden")
        if sum(bool(owner.get("controller")) for owner in owners) > 1:
            self._add("metadata.ownerReferences", "only one owner can be the controller", "exactly-one")
