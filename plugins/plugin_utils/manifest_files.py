# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes a site's manifests to a folder, and removes files of manifests that are no longer rendered."""

from __future__ import annotations

import os
import pathlib
import re
import tempfile

import yaml
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.plugin_utils.apply_set import diff_sides, title

_MARK = "# Rendered by lanewise.dra for site {site}. Edit the inventory, not this file."
_MARKED = re.compile(r"^# Rendered by lanewise\.dra for site ([^\n]+)\. Edit the inventory, not this file\.\n")
_SECRET = re.compile(r"""\bkind["']?\s*:\s*["']?Secret\b""")


def manifest_path(manifest: Object) -> str:
    """The path of an object's file below the folder. Each namespace has a folder with one file for each kind.

    Namespaces and cluster-wide kinds are in `cluster/`. A namespace's folder is `namespaces/NAME/`, so that its name
    cannot collide with `cluster`.
    """
    namespace = (manifest.get("metadata") or {}).get("namespace")
    kind = str(manifest["kind"]).lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"namespaces/{namespace}/{plural}.yaml" if namespace else f"cluster/{plural}.yaml"


class ManifestFolder:
    """The folder with a site's manifests.

    `written` and `removed` are the paths that changed, or would change in a dry run. `diff` is what Ansible shows for
    these paths, without the values of Secrets. Files with a Secret are readable only by their owner.
    Files without the mark of the same site in their first line are never touched: `write` raises FileExistsError if
    such a file is at the path of a manifest.
    """

    def __init__(self, dest: str, site: str, *, dry: bool) -> None:
        self._dest = pathlib.Path(dest)
        self._site = site
        self._dry = dry
        self.written: list[str] = []
        self.removed: list[str] = []
        self.diff: list[dict[str, str]] = []

    @property
    def changed(self) -> bool:
        return bool(self.written or self.removed)

    def write(self, files: dict[str, str], *, prune: bool) -> list[str]:
        """Write the files, and with `prune` remove stale ones. Returns the stale files that remain in the folder.

        `files` maps a path below the folder to its text. Every file is replaced in one step.
        """
        for path in files:  # check all files before the first is written
            target = self._dest / path
            if target.exists() and self._owner(target) != self._site:
                raise FileExistsError(
                    f"{target} is not a file rendered for site {self._site!r}; move it, or choose another folder"
                )
        for path, text in sorted(files.items()):
            self._replace(path, f"{_MARK.format(site=self._site)}\n{text}")
        stale = [path for path in self._site_files() if path not in files]
        if not prune:
            return stale
        for path in stale:
            self._remove(path)
        return []

    def _site_files(self) -> list[str]:
        """The paths of all files in the folder that were rendered for the site."""
        candidates = sorted([*self._dest.rglob("*.yaml"), *self._dest.glob("boards/*.csv")])
        files = (path for path in candidates if path.is_file() and not path.is_symlink())
        return [str(path.relative_to(self._dest)) for path in files if self._owner(path) == self._site]

    def _owner(self, path: pathlib.Path) -> str | None:
        """The site in the mark of a file; None without a mark."""
        with path.open(encoding="utf-8", errors="replace") as file:
            match = _MARKED.match(file.readline(1000))
        return match.group(1) if match else None

    def _replace(self, path: str, text: str) -> None:
        target = self._dest / path
        before = _content(target) if target.exists() else None
        if before == text:
            return
        self.written.append(path)
        self._note(path, before or "", text)
        if self._dry:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            umask = os.umask(0)
            os.umask(umask)
            if not _has_secret(text):
                os.chmod(name, 0o666 & ~umask)  # mkstemp sets 0600, but a folder for GitOps is shared
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise

    def _remove(self, path: str) -> None:
        target = self._dest / path
        self.removed.append(path)
        self._note(path, _content(target), "")
        if self._dry:
            return
        target.unlink()
        if not os.listdir(target.parent):
            target.parent.rmdir()

    def _note(self, path: str, before: str, after: str) -> None:
        header = str(self._dest / path)
        if _has_secret(before) or _has_secret(after):
            before, after = _masked(before, after)
        self.diff.append({"before_header": header, "after_header": header, "before": before, "after": after})


def _content(path: pathlib.Path) -> str:
    """The text of a file; U+FFFD replaces what is not UTF-8, which somebody has added."""
    return path.read_text(encoding="utf-8", errors="replace")


def _has_secret(text: str) -> bool:
    """Whether a text contains a Secret, or may contain one because it cannot be parsed."""
    if not _SECRET.search(text):
        return False
    try:
        return any(item["kind"] == "Secret" for item in _objects(text).values())
    except ValueError:
        return True


def _objects(text: str) -> dict[str, Object]:
    """The objects of a file by name. Raises ValueError if the file has anything else."""
    try:
        return {title(item): item for item in yaml.safe_load_all(text) if item}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ValueError("the file has other content than manifests") from error


def _masked(before: str, after: str) -> tuple[str, str]:
    """Both texts with asterisks for values of Secrets; only asterisks if the objects in the texts cannot be read."""
    masked = ["", ""]
    try:
        old, new = _objects(before), _objects(after)
        for name, item in {**old, **new}.items():
            for number, side in enumerate(diff_sides(item, old.get(name), new.get(name))):
                masked[number] += f"---\n{yaml.safe_dump(side, sort_keys=False)}" if side else ""
    except (ValueError, AttributeError, TypeError, yaml.YAMLError):
        masked = ["*** (before)\n" if before else "", "*** (after)\n" if after else ""]
    return masked[0], masked[1]
