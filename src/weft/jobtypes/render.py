"""What a job's template makes of one task: its variables and its command."""

from __future__ import annotations

from collections.abc import Sequence

from weft.model.job import TaskTemplate, Template
from weft.model.template import Facts, fill, fill_command

_NOTHING = TaskTemplate()


def render_env(template: Template | None, role: str, facts: Facts) -> dict[str, str]:
    """Variables without a value are left out."""
    if template is None:
        return {}
    own = template.roles.get(role, _NOTHING)
    filled = {name: fill(text, facts) for name, text in {**template.env, **own.env}.items()}
    return {name: value for name, value in filled.items() if value}


def render_command(template: Template | None, role: str, command: Sequence[str], facts: Facts) -> list[str]:
    own = template.roles.get(role, _NOTHING).command if template is not None else []
    wrapper = own or (template.command if template is not None else [])
    return fill_command(wrapper, command, facts) if wrapper else list(command)
