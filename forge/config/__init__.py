"""The configuration: its groups and their schemas. A package of the user's own adds schemas by
`register`. Never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.config.field import Section


def register(group: str, name: str, schema: type[Section]) -> None:
    """Add the schema of an option of a group, for `defaults: [/schema/GROUP@_here_: NAME, _self_]`.

    schema: a dataclass(kw_only=True) below the group's base class, such as forge.api.ModelSection,
    with a default for `_target_` and options by forge.api.opt. Call `register` in
    mine/conf/__init__.py, imported by `hydra.searchpath=[pkg://mine.conf]`. Raises ValueError for a
    class or name that does not fit.
    """
    from forge.config import schemas

    schemas.add(group, name, schema)
