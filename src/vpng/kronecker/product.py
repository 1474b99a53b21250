"""Products of activations with a weight: dense layers and convolutions.

Either kind reads its weight as a matrix W [in, out], its activations as a [..., in] and writes the
pre-activations s = a W [..., out]; the leading axes are the *examples*: data, particles, positions.
"""

from abc import abstractmethod
from dataclasses import dataclass
from math import prod

import jax
import numpy as np
from jaxtyping import Array, Float

from vpng.kronecker.layout import Index
from vpng.kronecker.program import Equation


@dataclass(frozen=True)
class AbstractProduct:
    """One use of a weight.

    Attributes:
        equation: the product.
        weight_position: which of its two inputs is the weight.
    """

    equation: Equation
    weight_position: int

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape in which the weight enters."""
        return self.equation.shape(self.weight_position)

    @property
    @abstractmethod
    def description(self) -> str:
        """The kind of layer, in words."""

    @abstractmethod
    def obstacle(self) -> str | None:
        """Why this product is not a layer; None if it is one."""

    @abstractmethod
    def matrix(self, weight: Index) -> Index:
        """The weight as a matrix [in, out]."""

    @abstractmethod
    def features(self) -> Index:
        """The output feature of each entry of the product."""

    @abstractmethod
    def inputs(self, activations: Float[Array, "..."]) -> Float[Array, "... in"]:
        """The activations that each example feeds to the weight."""

    @abstractmethod
    def outputs(self, cotangents: Float[Array, "..."]) -> Float[Array, "... out"]:
        """The cotangents of each example's pre-activations."""

    @property
    @abstractmethod
    def num_positions(self) -> int:
        """Examples that one datum contributes by being slid over: those of a convolution."""


class Dense(AbstractProduct):
    """`dot_general` without batch dimensions."""

    @property
    def description(self) -> str:
        return "dense"

    @property
    def num_positions(self) -> int:
        return 1

    def obstacle(self) -> str | None:
        if self._batch:
            return "is batched: every example has its own weight"
        return None if self._contracted else "enters an outer product"

    @property
    def _batch(self) -> tuple[int, ...]:
        return tuple(self.equation.params["dimension_numbers"][1][self.weight_position])

    @property
    def _contracted(self) -> tuple[int, ...]:
        return tuple(self.equation.params["dimension_numbers"][0][self.weight_position])

    @property
    def _free(self) -> tuple[int, ...]:
        ndim = len(self.weight_shape)
        return tuple(axis for axis in range(ndim) if axis not in self._contracted)

    def matrix(self, weight: Index) -> Index:
        sizes = [self.weight_shape[axis] for axis in self._contracted]
        return weight.transpose(self._contracted + self._free).reshape(prod(sizes), -1)

    def features(self) -> Index:
        sizes = tuple(self.weight_shape[axis] for axis in self._free)
        shape = self.equation.output_shape
        index = np.arange(prod(sizes)).reshape(sizes)
        if self.weight_position == 0:
            index = index.reshape(sizes + (1,) * (len(shape) - len(sizes)))
        return np.broadcast_to(index, shape)

    def inputs(self, activations: Float[Array, "..."]) -> Float[Array, "... in"]:
        contracted = tuple(self.equation.params["dimension_numbers"][0][1 - self.weight_position])
        examples = tuple(axis for axis in range(activations.ndim) if axis not in contracted)
        shape = tuple(activations.shape[axis] for axis in examples)
        return activations.transpose(examples + contracted).reshape(*shape, -1)

    def outputs(self, cotangents: Float[Array, "..."]) -> Float[Array, "... out"]:
        count = len(self._free)
        axes = tuple(range(cotangents.ndim))
        if self.weight_position == 0:
            axes = axes[count:] + axes[:count]
        moved = cotangents.transpose(axes)
        return moved.reshape(*moved.shape[: moved.ndim - count], -1)


class Convolution(AbstractProduct):
    """`conv_general_dilated` with one feature group: a weight shared by all positions."""

    @property
    def description(self) -> str:
        _, _, *window = self.equation.params["dimension_numbers"].rhs_spec
        return "x".join(str(self.weight_shape[axis]) for axis in window) + " convolution"

    @property
    def num_positions(self) -> int:
        _, _, *spatial = self.equation.params["dimension_numbers"].out_spec
        return prod(self.equation.output_shape[axis] for axis in spatial)

    def obstacle(self) -> str | None:
        if self.weight_position != 1:
            return "is the image of a convolution, not its kernel"
        params = self.equation.params
        if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
            return "is the kernel of a grouped convolution"
        return None

    def matrix(self, weight: Index) -> Index:
        out, into, *window = self.equation.params["dimension_numbers"].rhs_spec
        return weight.transpose(into, *window, out).reshape(-1, weight.shape[out])

    def features(self) -> Index:
        _, channel, *_ = self.equation.params["dimension_numbers"].out_spec
        shape = self.equation.output_shape
        sizes = [1] * len(shape)
        sizes[channel] = shape[channel]
        return np.broadcast_to(np.arange(shape[channel]).reshape(sizes), shape)

    def inputs(self, activations: Float[Array, "..."]) -> Float[Array, "... in"]:
        params = self.equation.params
        _, _, *window = params["dimension_numbers"].rhs_spec
        patches = jax.lax.conv_general_dilated_patches(
            activations,
            filter_shape=[self.weight_shape[axis] for axis in window],
            window_strides=params["window_strides"],
            padding=params["padding"],
            lhs_dilation=params["lhs_dilation"],
            rhs_dilation=params["rhs_dilation"],
            dimension_numbers=params["dimension_numbers"],
        )
        return self.outputs(patches)

    def outputs(self, cotangents: Float[Array, "..."]) -> Float[Array, "... out"]:
        batch, channel, *spatial = self.equation.params["dimension_numbers"].out_spec
        return cotangents.transpose(batch, *spatial, channel)


_KINDS: dict[str, type[AbstractProduct]] = {
    "dot_general": Dense,
    "conv_general_dilated": Convolution,
}


def product_of(equation: Equation, weight_position: int) -> AbstractProduct | None:
    """The product that `equation` is, if it is one."""
    kind = _KINDS.get(equation.name)
    return None if kind is None else kind(equation, weight_position)
