"""JAX's Threefry generator written without a loop: the same bits, sooner on a processor.

On a CPU JAX compiles every draw and every split of a key to a loop of five iterations. For small
models these loops are most of a step, and the compiler does not see that two draws with the same
key are one. Written out, a draw is elementwise arithmetic that is fused with what uses it, and
draws with common random numbers are made once.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl
from jaxtyping import Array, PRNGKeyArray, UInt32

from vpng.numerics.jax_settings import jax_setting
from vpng.numerics.trees import is_key

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def written_out(key: PRNGKeyArray) -> PRNGKeyArray:
    """The same key for the generator without a loop; keys of other generators as they are."""
    data = jax.random.key_data(key) if is_key(key) else key
    on_processor = jax.default_backend() == "cpu" and jax_setting("jax_threefry_partitionable")
    if data.shape[-1:] != (2,) or not on_processor:
        return key
    return jax.random.wrap_key_data(data, impl=_IMPLEMENTATION)


def with_loop(key: PRNGKeyArray) -> PRNGKeyArray:
    """The same key for JAX's own generator, which some samplers insist on, as that of a Poisson."""
    if jax.random.key_impl(key) != _IMPLEMENTATION:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


@jax.jit
def threefry(
    key: tuple[Array, Array], counter: tuple[Array, Array]
) -> tuple[UInt32[Array, "..."], UInt32[Array, "..."]]:
    """Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, 2011)."""
    schedule = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    left, right = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            left = left + right
            right = (right << distance) | (right >> (32 - distance))
            right = left ^ right
        left = left + schedule[(group + 1) % 3]
        right = right + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return left, right


def _counter(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The position in an array of this shape, as two words."""
    if math.prod(shape) >= 2**32:
        raise ValueError(f"cannot draw more than 2**32 numbers at once, got the shape {shape}")
    position = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return jnp.zeros_like(position), position


def _seed(seed: Array) -> UInt32[Array, " 2"]:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _split(key: UInt32[Array, " 2"], shape: tuple[int, ...]) -> UInt32[Array, "... 2"]:
    return jnp.stack(threefry((key[0], key[1]), _counter(shape)), axis=-1)


def _fold_in(key: UInt32[Array, " 2"], data: Array) -> UInt32[Array, " 2"]:
    number = jnp.asarray(data).astype(jnp.uint32)
    return jnp.stack(threefry((key[0], key[1]), (jnp.zeros_like(number), number)))


def _random_bits(key: UInt32[Array, " 2"], bit_width: int, shape: tuple[int, ...]) -> Array:
    high, low = threefry((key[0], key[1]), _counter(shape))
    if bit_width == 64:
        return _kept((high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64))
    return _kept(high ^ low).astype(getattr(jnp, f"uint{bit_width}"))


def _kept(bits: Array) -> Array:
    """The same bits, by a product that is never fused.

    A draw that is broadcast would otherwise be made again for every place where it is used.
    """
    return jnp.dot(jnp.stack([bits, bits ^ 1], axis=-1), jnp.array([1, 0], bits.dtype))


_IMPLEMENTATION = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,  # pyright: ignore[reportArgumentType]
    name="threefry2x32_written_out",
    tag="twr",
)
