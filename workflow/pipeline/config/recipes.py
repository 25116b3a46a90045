"""Recipes that take the keys of another one."""

from typing import Any

from swiftkv.section import undefined


def with_inherited_keys(recipes: Any) -> Any:
    """Complete each recipe by the keys of the one that it names under `like`; leave what are no mappings to later checks.

    Raises:
        ValueError: there is no such recipe, or recipes name each other in a circle.
    """

    def complete(name: str, heirs: tuple[str, ...] = ()) -> Any:
        keys = recipes[name]
        if not isinstance(keys, dict) or "like" not in keys:
            return keys
        parent = keys["like"]
        if not isinstance(parent, str | int) or parent not in recipes:
            raise ValueError(
                f"{name!r} has another recipe under `like`, but {undefined(str(parent), 'recipes', recipes)}"
            )
        if parent in (name, *heirs):
            raise ValueError(f"{name!r} is like {parent!r}, which is itself like {name!r}")
        own = {key: value for key, value in keys.items() if key != "like"}
        inherited = complete(parent, (name, *heirs))
        return inherited | own if isinstance(inherited, dict) else inherited

    return {name: complete(name) for name in recipes} if isinstance(recipes, dict) else recipes
