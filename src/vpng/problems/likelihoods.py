"""The likelihood p(x | z) of each datum, given a decoder's outputs.

Outputs have the data along their first axis; the rest is reshaped to the shape of one datum, so
that a flat network can decode images. Data are checked once, by `check`, and not again in every
log-density: NumPyro's own validation is off.
"""

import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num, PyTree

from vpng.checks import counts, finite_array
from vpng.errors import InputError, expected
from vpng.numerics.trees import is_traced


class AbstractLikelihood(eqx.Module):
    """How a decoder's outputs become a distribution of data of shape `[B, *event_shape]`."""

    @abstractmethod
    def distribution(self, outputs: PyTree, event_shape: tuple[int, ...]) -> dist.Distribution:
        """p(x | z), batch shape [B] and event shape `event_shape`.

        Raises:
            InputError: if the outputs do not fill `event_shape`.
        """

    @abstractmethod
    def check(self, name: str, data: Num[ArrayLike, "..."]) -> Array:
        """`data`, refused with an `InputError` that calls it `name` if outside the support."""

    def num_outputs(self, event_shape: tuple[int, ...]) -> int:
        """The width of a flat decoder for data of shape `event_shape`."""
        return math.prod(event_shape)

    def observed(self, data: Array) -> Array:
        """`data` in the type that the distribution takes."""
        return data

    def features(self, data: Num[Array, "B ..."]) -> Float[Array, "B m"]:
        """`data` as the flat inputs of a perceptron."""
        return _floating(data).reshape(data.shape[0], -1)

    def mean(self, outputs: PyTree, event_shape: tuple[int, ...]) -> Float[Array, "B ..."]:
        """E[x | z], shape `[B, *event_shape]`."""
        return jnp.asarray(self.distribution(outputs, event_shape).mean)


class BernoulliLikelihood(AbstractLikelihood):
    """x ~ Bernoulli(logit = output).

    Attributes:
        fractions: whether data strictly between 0 and 1 are let through. The log-density is then
            the cross-entropy, not the logarithm of a probability.
    """

    fractions: bool = eqx.field(default=False, static=True)

    def distribution(self, outputs: PyTree, event_shape: tuple[int, ...]) -> dist.Distribution:
        logits = _shaped("decoder", outputs, event_shape)
        return dist.BernoulliLogits(logits, validate_args=False).to_event(len(event_shape))

    def check(self, name: str, data: Num[ArrayLike, "..."]) -> Array:
        data = finite_array(name, data)
        inside = (data >= 0) & (data <= 1) if self.fractions else (data == 0) | (data == 1)
        return _all(name, data, inside, "numbers in " + ("[0, 1]" if self.fractions else "{0, 1}"))


class NormalLikelihood(AbstractLikelihood):
    """x ~ N(output, scale^2) or, with a learned scale, x ~ N(loc, exp(log_scale)^2).

    Attributes:
        scale: the fixed standard deviation. If None it is learned: the decoder gives the pair
            (loc, log_scale), or both side by side along the last axis. A log-scale that is shared
            by all pixels or data need only broadcast.
    """

    scale: float | Float[Array, "..."] | None = 1.0

    def __check_init__(self) -> None:
        if self.scale is not None:
            scale = finite_array("scale", self.scale)
            _all("scale", scale, scale > 0, "positive numbers")

    def distribution(self, outputs: PyTree, event_shape: tuple[int, ...]) -> dist.Distribution:
        if self.scale is not None:
            loc, scale = _shaped("decoder", outputs, event_shape), self.scale
        else:
            loc, log_scale = pair("decoder", outputs)
            loc = _shaped("decoder", loc, event_shape)
            if log_scale.size == loc.size:
                log_scale = log_scale.reshape(loc.shape)
            scale = jnp.exp(jnp.broadcast_to(log_scale, loc.shape))
        return dist.Normal(loc, scale, validate_args=False).to_event(len(event_shape))

    def check(self, name: str, data: Num[ArrayLike, "..."]) -> Array:
        return finite_array(name, data)

    def num_outputs(self, event_shape: tuple[int, ...]) -> int:
        return math.prod(event_shape) * (2 if self.scale is None else 1)


class PoissonLikelihood(AbstractLikelihood):
    """x ~ Poisson(softplus(output)).

    The rate is kept at or above the smallest normal number, so that log-density and gradient stay
    finite for every output. A perceptron sees log(1 + x).
    """

    def distribution(self, outputs: PyTree, event_shape: tuple[int, ...]) -> dist.Distribution:
        outputs = _shaped("decoder", outputs, event_shape)
        rate = jnp.maximum(jax.nn.softplus(outputs), jnp.finfo(outputs.dtype).tiny)
        return dist.Poisson(rate, validate_args=False).to_event(len(event_shape))

    def check(self, name: str, data: Num[ArrayLike, "..."]) -> Array:
        return counts(name, data)

    def features(self, data: Num[Array, "B ..."]) -> Float[Array, "B m"]:
        return jnp.log1p(super().features(data))


class CategoricalLikelihood(AbstractLikelihood):
    """x ~ Categorical(logits = outputs), one of `num_classes` classes in each dimension.

    The decoder gives logits of shape `[B, *event_shape, num_classes]`, or as many numbers flat. A
    perceptron sees one-hot vectors.

    Attributes:
        num_classes: the number of classes.
    """

    num_classes: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if isinstance(self.num_classes, bool) or not self.num_classes >= 2:
            raise expected("num_classes", "a whole number of at least 2", repr(self.num_classes))

    def distribution(self, outputs: PyTree, event_shape: tuple[int, ...]) -> dist.Distribution:
        logits = _shaped("decoder", outputs, (*event_shape, self.num_classes))
        return dist.CategoricalLogits(logits, validate_args=False).to_event(len(event_shape))

    def check(self, name: str, data: Num[ArrayLike, "..."]) -> Array:
        data = counts(name, data)
        return _all(name, data, data < self.num_classes, f"classes below {self.num_classes}")

    def num_outputs(self, event_shape: tuple[int, ...]) -> int:
        return math.prod(event_shape) * self.num_classes

    def observed(self, data: Array) -> Int[Array, "B ..."]:
        return data.astype(jnp.int32)

    def features(self, data: Num[Array, "B ..."]) -> Float[Array, "B m"]:
        one_hot = jax.nn.one_hot(self.observed(data), self.num_classes, dtype=_floating(data).dtype)
        return one_hot.reshape(data.shape[0], -1)

    def mean(self, outputs: PyTree, event_shape: tuple[int, ...]) -> Float[Array, "B ..."]:
        """The probability of each class, shape `[B, *event_shape, num_classes]`."""
        return jax.nn.softmax(_shaped("decoder", outputs, (*event_shape, self.num_classes)))


def pair(name: str, outputs: PyTree) -> tuple[Array, Array]:
    """A network's (loc, log_scale): a pair as it is, one array halved along its last axis."""
    if isinstance(outputs, tuple | list):
        if len(outputs) != 2:
            raise expected(name, "the pair (loc, log_scale)", f"{len(outputs)} outputs")
        return outputs[0], outputs[1]
    width = jnp.shape(outputs)[-1] if jnp.ndim(outputs) else 1
    if width % 2:
        wanted = "the pair (loc, log_scale) or one array of even width"
        raise expected(name, wanted, f"shape {jnp.shape(outputs)}")
    return outputs[..., : width // 2], outputs[..., width // 2 :]


def _shaped(name: str, outputs: PyTree, event_shape: tuple[int, ...]) -> Array:
    if not isinstance(outputs, jax.Array | np.ndarray):
        raise expected(name, "one array of outputs", type(outputs).__name__)
    if outputs.ndim < 1 or outputs.size != outputs.shape[0] * math.prod(event_shape):
        raise InputError(
            f"{name}: expected {math.prod(event_shape)} outputs a datum for the shape "
            f"{event_shape}, got outputs of shape {outputs.shape}."
        )
    return jnp.reshape(outputs, (outputs.shape[0], *event_shape))


def _floating(data: Array) -> Array:
    floating = jnp.issubdtype(data.dtype, jnp.floating)
    return data if floating else data.astype(jnp.result_type(float))


def _all(name: str, data: Array, inside: Array, wanted: str) -> Array:
    if not is_traced(data) and not bool(inside.all()):
        where = tuple(int(i) for i in np.argwhere(~np.asarray(inside))[0])
        place = f" at index {where}" if where else ""
        raise expected(name, wanted, f"{float(data[where]):g}{place}")
    return data
