"""JAX's own settings, which it makes while it is imported: its types do not know their names."""

from typing import Any

import jax


def jax_setting(name: str) -> Any:
    """The value in force here and now, a surrounding `jax.enable_x64` and the like included."""
    return getattr(jax.config, name)


def settings() -> tuple:
    """Those on which it depends what is traced and compiled, in force here and now."""
    names = (
        *("jax_enable_x64", "jax_numpy_rank_promotion", "jax_numpy_dtype_promotion"),
        *("jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable"),
        *("jax_default_device", "jax_debug_nans", "jax_debug_infs", "jax_disable_jit"),
        *("jax_check_tracer_leaks", "jax_platforms"),
    )
    return tuple(str(jax_setting(name)) for name in names)
