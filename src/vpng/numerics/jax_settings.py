"""JAX's own settings, which it makes while it is imported: its types do not know their names."""

from typing import Any

import jax


def jax_setting(name: str) -> Any:
    """The value in force here and now, a surrounding `jax.enable_x64` and the like included."""
    return getattr(jax.config, name)
