# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Add the result of a replay to a report, on the controller.

The documentation is in plugins/modules/queue_replay_report.py.
"""

from __future__ import annotations

import json
import pathlib

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Formats
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ReportAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.queue_pages import replay_page
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Spec, Variables

FORMATS = Formats()
_SPEC: Spec = {
    "dest": {"type": "path", "required": True},
    "name": {"type": "str", "required": True},
    "result": {"type": "dict", "required": True},
    "source": {"type": "str", "default": ""},
    "title": {"type": "str", "default": "Replayed jobs"},
    "template_dir": {"type": "path"},
}
_FIELDS = frozenset(("jobs", "started", "gpu_hours", "waits", "curve"))


class ActionModule(ReportAction):
    """Adds a result to those in replay.json. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        if any(name not in options["result"] for name in _FIELDS):
            raise AnsibleActionFail("result is not a result of lanewise.dra.queue_replay")
        dest = pathlib.Path(self._loader.path_dwim(options["dest"]))
        folders = self._templates(options["template_dir"], "queues", "topology")
        with self._reporting_faults():
            new = {"name": options["name"], "source": options["source"], **options["result"]}
            results = [old for old in _stored(dest / "replay.json") if old.get("name") != options["name"]] + [new]
            page = replay_page(folders, options["title"], results)
            result.update(self._write_report(dest, "replay", FORMATS.write({"results": results}), page))
        result["lines"] = [_line(replay) for replay in results]
        return result


def _stored(path: pathlib.Path) -> list[Json]:
    """The results of earlier runs. Raises AnsibleActionFail if the file has another content."""
    if not path.exists():
        return []
    try:
        results = FORMATS.read(json.loads(path.read_text(encoding="utf-8")))["results"]
        if any(not isinstance(result, dict) or not _FIELDS <= result.keys() for result in results):
            raise ValueError("a result lacks a field")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AnsibleActionFail(
            f"{path} was not written by lanewise.dra.queue_replay_report: {error}. Nothing was changed. "
            "Move the file away, or set another dest"
        ) from None
    return list(results)


def _line(result: Json) -> str:
    """A result as a line of text."""
    hours = result["gpu_hours"]
    return (
        f"{result['name']}: {hours['useful']} of {hours['there']} GPU-hours were useful, {hours['lost']} were lost; "
        f"{result['started']} of {result['jobs']} jobs started, {result.get('unaligned', 0)} without alignment"
    )
