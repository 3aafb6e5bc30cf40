# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the package `host` for Ansible modules."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import traceback
import typing as t

from ansible.module_utils.basic import AnsibleModule

from .fabric_options import SAFETY, SELECT, Spec, nulls
from .host.access.management import ssh_connection
from .host.access.system import HostError, System
from .host.engine.change import Change, State, stored
from .host.engine.converge import Outcome, converge, node_lock
from .host.engine.node import Node
from .host.engine.resource import Resource
from .host.engine.rules import Rule, Unfit, selector
from .host.engine.settings import Settings, merged, merged_with_nulls
from .host.engine.undo import Failed, describe
from .host.persist import guard, origin
from .host.persist.program import Boot
from .host.resources.catalogue import named, resources
from .topology.selector import like

if t.TYPE_CHECKING:  # so that AnsiballZ packs it, as the stored program starts with it
    from .host.persist import boot  # noqa: F401

#: Options of a rule that are not settings.
_RULE_OPTIONS = ("name", "select", "count", "at_least", "profile", "unset")


class Rollback(t.TypedDict, total=False):
    """The timer that undoes the changes unless they are confirmed; in check mode without `id`."""

    id: str
    seconds: int


def rules(nics: t.Sequence[Settings], profiles: t.Mapping[str, Settings]) -> list[Rule]:
    """The rules of a module's option. A rule's own settings override those of its profile. Raises Unfit."""
    nic_rules, problems = [], []
    for number, nic in enumerate(nics):
        name = nic.get("name") or f"nics[{number}]"
        profile = nic.get("profile")
        if profile and profile not in profiles:
            problems.append(
                f"{name}: the profile {profile!r} is not defined; defined profiles: {', '.join(sorted(profiles))}"
            )
            continue
        values = {key: value for key, value in nic.items() if key not in _RULE_OPTIONS}
        settings = merged_with_nulls(profiles[profile] if profile else {}, merged({}, values))
        settings = merged_with_nulls(settings, nulls(nic.get("unset") or ()))
        try:
            chosen = selector(nic.get("select") or {})
        except Unfit as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
            continue
        nic_rules.append(Rule(name, chosen, settings, nic.get("count"), nic.get("at_least")))
    if problems:
        raise Unfit(problems)
    return nic_rules


def run(
    module: AnsibleModule, wanted: t.Sequence[Rule], general: Settings, persist: bool = False, restore: bool = False
) -> t.NoReturn:
    """Converge the node and end the module.

    With `persist`, the settings are applied again at boot. With `restore`, the node gets the values that settings had
    before this collection first changed them.
    """
    params, general = module.params, merged({}, general)
    root = params.get("root") or "/"
    if root != "/" and not module.check_mode:
        module.fail_json(msg=f"root: the recorded tree {root} cannot be changed: use check mode")
    system = System(root, run=(lambda argv: _run(module, argv)) if root == "/" else None)
    rollback: Rollback | None = None
    changed = False
    node: Node
    seconds = (params.get("rollback_after") or 0) if params["allow_management"] else 0

    def prepare(changes: list[Change]) -> None:
        nonlocal rollback
        if not restore:
            origin.remember(system, changes)
        if seconds and guard.needed(node, changes):
            effects = guard.side_effects(node, chosen, changes)
            rollback = {"id": guard.arm(system, changes, seconds, effects), "seconds": seconds}

    try:
        with contextlib.nullcontext() if module.check_mode else node_lock():
            if system.live:
                guard.check_none_pending(system)
            node = Node(system, wanted, general, params["allow_management"], ssh_connection())
            chosen, before = _chosen(node, wanted, general, persist, restore)
            outcome = converge(node, chosen, module.check_mode, params.get("assume_drained", False), before, prepare)
            changed = not module.check_mode and bool(outcome.changes)
            if rollback:
                guard.restart_timer(system, rollback["id"], seconds)
            if restore and not module.check_mode:
                _forget_original_settings(system, rollback)
            if module.check_mode and seconds and guard.needed(node, outcome.changes):
                rollback = {"seconds": seconds}
    except Unfit as error:
        fail(module, error)
    except Failed as error:
        _fail_undone(module, system, error, rollback)
    except Exception as error:  # noqa: BLE001  # the message must state the node's state even after a bug
        _fail_unexpected(module, error, changed, rollback)
    module.exit_json(**result(outcome), **({"rollback": rollback} if rollback else {}), **nics_result(node))


def _chosen(
    node: Node, wanted: t.Sequence[Rule], general: Settings, persist: bool, restore: bool
) -> tuple[list[Resource], dict[str, State] | None]:
    """The resources of a run in their order; with `restore` also the state to restore, by resource."""
    before: dict[str, State] | None = None
    if restore:
        before = origin.wanted(node.system, node)
        chosen = named(node.system, before)[::-1]
        before["boot"] = Boot(node.system, {}).wanted(node)
    else:
        chosen = resources(node.system, (rule.settings for rule in wanted), general)
    if restore or persist:
        chosen.append(Boot(node.system, {} if restore else desired(node, wanted, general)))
    return chosen, before


def _forget_original_settings(system: System, rollback: Rollback | None) -> None:
    """Remove the record of the settings that were restored, unless they may still be rolled back. Raises HostError."""
    if rollback:
        origin.mark_restored(system, rollback["id"])
    else:
        origin.forget(system)


def _fail_undone(module: AnsibleModule, system: System, error: Failed, rollback: Rollback | None) -> t.NoReturn:
    """End the module after a step failed and the run was undone."""
    if rollback and not error.remaining:  # there is nothing left to undo
        with contextlib.suppress(HostError):
            guard.confirm(system, rollback["id"])
            rollback = None
    module.fail_json(
        msg=f"{error} {_rollback_note(rollback)}".rstrip(),
        failed_change=error.change.as_json() if error.change else None,
        undone=[change.as_json() for change in error.undone],
        remaining=[difference.as_json() for difference in error.remaining],
        rollback=rollback,
        **(_trace(error.__cause__) if error.unexpected and error.__cause__ else {}),
    )


def _fail_unexpected(module: AnsibleModule, error: Exception, changed: bool, rollback: Rollback | None) -> t.NoReturn:
    """End the module before its first change or after its last."""
    state = f"All changes were made and are in place. {_rollback_note(rollback)}" if changed else "Nothing was changed."
    known = isinstance(error, HostError)
    module.fail_json(
        msg=f"{describe(error)}. {state}".rstrip(),
        remaining=[{"reason": "all changes of this run"}] if changed else [],
        rollback=rollback,
        **({} if known or isinstance(error, OSError) else _trace(error)),
    )


def fail(module: AnsibleModule, error: Unfit) -> t.NoReturn:
    """End the module: nothing was changed."""
    module.fail_json(
        msg="\n".join(["nothing was changed:", *error.problems]), problems=error.problems, remaining=[], rollback=None
    )


def confirm(module: AnsibleModule, name: str) -> t.NoReturn:
    """Confirm the changes, so that the timer does not undo them, and end the module."""
    state = ""
    try:
        if not module.check_mode:
            system = System(run=lambda argv: _run(module, argv))
            restored = origin.restored_by(system, name)
            with node_lock() if restored else contextlib.nullcontext():  # another run may use the record
                guard.confirm(system, name)
                if restored:
                    state = ". The changes are confirmed. Run again with the state absent to remove the record."
                    origin.forget(system)
    except HostError as error:
        module.fail_json(msg=f"{error}{state}")
    module.exit_json(changed=True)


def desired(node: Node, wanted: t.Sequence[Rule], general: Settings) -> Settings:
    """The settings to apply at boot, as JSON; empty if all of them survive a reboot."""
    volatile = resources(node.system, (rule.settings for rule in wanted), general, boot=True)
    if not volatile:
        return {}
    network = any(resource.network for resource in volatile) or any(
        like("virtual", rule.select.type) for rule in wanted
    )
    nics = [
        {
            "name": rule.name,
            "select": {key: value for key, value in dataclasses.asdict(rule.select).items() if value},
            "settings": rule.settings,
            **({"fast": node.fast_pfs(rule)} if rule.select.min_speed_mbps else {}),
        }
        for rule in wanted
    ]
    content = {"nics": nics, "node": general, **({"network": True} if network else {})}
    return t.cast(Settings, json.loads(json.dumps(content)))


def _rollback_note(rollback: Rollback | None) -> str:
    if not rollback:
        return ""
    return f"Unless they are confirmed, systemd undoes the changes after {rollback['seconds']} seconds."


def _trace(error: BaseException) -> dict[str, str]:
    return {"exception": "".join(traceback.format_exception(type(error), error, error.__traceback__))}


def nics_result(node: Node) -> dict[str, object]:
    """The part of a module's result about the NICs that rules choose."""
    return {
        "settings": node.settings,
        "left_alone": [f"{key}: {why}" for key, why in node.left_alone.items()],
        "idle_rules": [f"{name}{f' ({hint})' if hint else ''}" for name, hint in node.idle.items()],
    }


def result(outcome: Outcome) -> dict[str, object]:
    """The part of a module's result about an outcome."""
    return {
        "changed": bool(outcome.changes),
        "changes": [change.as_json() for change in outcome.changes],
        "drain_reasons": outcome.drain,
        "not_recorded": outcome.not_recorded,
        "reboot_required": bool(outcome.reboot),
        "reboot_reasons": outcome.reboot,
        "diff": {"before": _text(outcome.before), "after": _text(outcome.after)},
    }


def _text(states: t.Mapping[str, State]) -> str:
    """States as lines that a diff can show."""
    lines = []
    for resource, state in states.items():
        for device, settings in state.items():
            lines.append(f"{resource}: {device}")
            for setting, value in settings.items():
                value = stored(value)
                text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
                lines += [f"  {setting}: {text}"] if "\n" not in text else [f"  {setting}:"]
                lines += [f"    {line}" for line in text.splitlines()] if "\n" in text else []
    return "\n".join(lines) + "\n" if lines else ""


def _run(module: AnsibleModule, argv: list[str]) -> tuple[int, str, str]:
    # by default, a missing program would end the module in the middle of its changes
    code, output, errors = module.run_command(argv, handle_exceptions=False)
    return code, output, errors


def run_on_nics(options: Spec) -> t.NoReturn:
    """Run a module with these `options` for the NICs that its option `select` chooses."""
    select = {"type": "dict", "required": True, "options": SELECT}
    module = AnsibleModule(argument_spec={"select": select, **options, **SAFETY}, supports_check_mode=True)
    settings = {name: module.params[name] for name in options}
    try:
        rule = Rule("select", selector(module.params["select"]), merged({}, settings), at_least=1)
    except Unfit as error:
        fail(module, error)
    run(module, [rule], {})


def run_on_node(options: Spec) -> t.NoReturn:
    """Run a module with these `options` for the node itself."""
    module = AnsibleModule(argument_spec={**options, **SAFETY}, supports_check_mode=True)
    run(module, [], {name: module.params[name] for name in options})
