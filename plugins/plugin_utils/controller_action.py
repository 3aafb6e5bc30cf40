# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Base classes of all action plugins, of those that never connect to a target, and of those that write a report."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import traceback
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.lanewise.dra.plugins.plugin_utils.before_fork import load_filters
from ansible_collections.lanewise.dra.plugins.plugin_utils.core_version import require_supported_core
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_formats import Unusable
from ansible_collections.lanewise.dra.plugins.plugin_utils.site_variables import refusal, set_by_facts
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Variables
from jinja2 import TemplateError, TemplateSyntaxError

load_filters()

_ROLES = pathlib.Path(__file__).resolve().parents[2] / "roles"


class SiteAction(ActionBase):
    """Refuses to run with an ansible-core that is too old, and for a host whose facts replace site variables."""

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        require_supported_core()
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables.get("inventory_hostname", ""))
        names = set_by_facts(variables, host)
        if names:
            raise AnsibleActionFail(refusal(host, names))
        return dict(result)

    def _from_current_folder(self, path: str, variables: Variables) -> str:
        """`path` relative to the current folder, made absolute, if the playbook is part of the collection; else `path`.

        Ansible resolves paths relative to the playbook's folder, which is useless in an installed collection.
        """
        playbooks = pathlib.Path(__file__).resolve().parents[2] / "playbooks"
        if pathlib.Path(str(variables.get("playbook_dir") or "/")).resolve() != playbooks:
            return path
        return os.path.abspath(path)


class ControllerAction(SiteAction):
    """Never connects to a target."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False


class ReportAction(ControllerAction):
    """Writes a report. Templates of the site have priority over those of the collection."""

    def _templates(self, template_dir: str | None, *roles: str) -> list[str]:
        """The folders of templates in the order in which they are searched: the site's, then those of roles.

        Raises AnsibleActionFail if `template_dir`, the site's folder, is not a folder.
        """
        folders = [str(_ROLES / role / "templates" / "report") for role in roles]
        if template_dir:
            folders.insert(0, self._loader.path_dwim(template_dir))
            if not pathlib.Path(folders[0]).is_dir():
                raise AnsibleActionFail(f"template_dir {folders[0]!r} is not a folder")
        return folders

    @contextlib.contextmanager
    def _reporting_faults(self) -> t.Iterator[None]:
        """Raise AnsibleActionFail for a faulty template, with its file and line, and for files that cannot be used."""
        try:
            yield
        except TemplateError as error:
            raise AnsibleActionFail(f"A template of the report is faulty: {_location(error)}: {error}") from error
        except Unusable as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(f"Cannot read or write the files of the report: {error}") from error

    def _write_report(
        self, folder: pathlib.Path, name: str, data: Json, page: bytes, others: t.Mapping[str, bytes] | None = None
    ) -> Result:
        """Write NAME.json, NAME.html and other files. Returns the part of the result that all reports have."""
        files = dict(others or {})
        files[f"{name}.json"] = (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
        files[f"{name}.html"] = page
        written = self._write_files(folder, files)
        result: Result = {"changed": bool(written)}
        result.update(path=str(folder / f"{name}.html"), json=str(folder / f"{name}.json"))
        if self._task.diff and written:
            result["diff"] = {"prepared": "\n".join([f"{folder}:", *written]) + "\n"}
        return result

    def _write_files(self, folder: pathlib.Path, files: t.Mapping[str, bytes]) -> list[str]:
        """Replace the files of a folder that differ, each in one step. Returns their names. Check mode writes none."""
        changed = [name for name, content in files.items() if not _has(folder / name, content)]
        for name in () if self._task.check_mode else changed:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.write_bytes(files[name])
            os.replace(temporary, folder / name)
        return changed


def _location(error: TemplateError) -> str:
    """The file and line of a faulty template. Only syntax errors name them; for others, Jinja puts the templates into
    the traceback."""
    if isinstance(error, TemplateSyntaxError):
        return f"{error.filename or error.name or 'template'}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "template"


def _has(path: pathlib.Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content
