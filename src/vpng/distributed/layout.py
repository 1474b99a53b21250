"""Where the parts of a run live on a mesh of devices."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from vpng.errors import expected
from vpng.numerics.trees import is_key
from vpng.runtime.blas_threads import limit_blas_threads
from vpng.runtime.compilation import USUAL_STEPS
from vpng.runtime.programs import CompiledProgram, compiled_program


class AbstractPlacement(eqx.Module):
    """How parameters, and the optimizer's state with them, are placed."""

    @abstractmethod
    def axis(self, shape: tuple[int, ...], num_devices: int) -> int | None:
        """The axis of an array of this shape that is divided; None for a copy on every device."""


class Replicated(AbstractPlacement):
    """A copy on every device: the least communication."""

    def axis(self, shape: tuple[int, ...], num_devices: int) -> None:
        return None


class Sharded(AbstractPlacement):
    """Divided along the longest axis that the devices divide: the least memory.

    Attributes:
        min_size: arrays with fewer entries are copied.
    """

    min_size: int = eqx.field(default=2**14, static=True)

    def axis(self, shape: tuple[int, ...], num_devices: int) -> int | None:
        fitting = [axis for axis, size in enumerate(shape) if size % num_devices == 0]
        if int(np.prod(shape)) < self.min_size or not fitting:
            return None
        return max(fitting, key=lambda axis: shape[axis])


@dataclass(frozen=True)
class Layout:
    """A mesh, and what is placed how: batches by rows over all of its devices.

    Attributes:
        mesh: the devices, of one process or of many; with several axes, rows go over all of them.
        parameters: how parameters and the optimizer's state are placed.
    """

    mesh: Mesh
    parameters: AbstractPlacement = Replicated()

    def __post_init__(self) -> None:
        if not isinstance(self.mesh, Mesh):
            raise expected("mesh", "a jax.sharding.Mesh", type(self.mesh).__name__)
        if not isinstance(self.parameters, AbstractPlacement):
            wanted = "a placement such as Replicated()"
            raise expected("parameters", wanted, type(self.parameters).__name__)
        if any(kind != AxisType.Auto for kind in self.mesh.axis_types):
            # The compiler finds the shardings of intermediates.
            names = self.mesh.axis_names
            automatic = Mesh(self.mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))
            object.__setattr__(self, "mesh", automatic)

    @property
    def num_devices(self) -> int:
        """Devices in the mesh."""
        return self.mesh.size

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes of the mesh, as one."""
        return tuple(map(str, self.mesh.axis_names))

    @property
    def everywhere(self) -> NamedSharding:
        """A copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def divided_along(self, axis: int) -> NamedSharding:
        """The sharding of an array whose `axis` is divided among the devices."""
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, self.axes))

    def divide(self, array: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
        """The same values, divided along `axis`; inside a compiled function.

        An axis that the devices do not divide is filled up first, and cut again: the compiler keeps
        what is left divided.
        """
        size = array.shape[axis]
        missing = -size % self.num_devices
        if missing:
            widths = [(0, missing if i == axis else 0) for i in range(array.ndim)]
            array = jnp.pad(array, widths)
        placed = jax.lax.with_sharding_constraint(array, self.divided_along(axis))
        return jax.lax.slice_in_dim(placed, 0, size, axis=axis) if missing else placed

    def divide_rows(self, batch: PyTree) -> PyTree:
        """A batch with its rows divided among the devices; inside a compiled function."""
        return jax.tree.map(self.divide, batch)

    def divide_data(self, arguments: PyTree, num_data: int) -> PyTree:
        """Arguments with the arrays of `num_data` rows divided; inside a compiled function."""

        def placed(leaf: Any) -> Any:
            is_data = jnp.ndim(leaf) > 0 and jnp.shape(leaf)[0] == num_data
            return self.divide(jnp.asarray(leaf)) if is_data else leaf

        is_array = lambda leaf: isinstance(leaf, jax.Array | np.ndarray)
        return jax.tree.map(lambda leaf: placed(leaf) if is_array(leaf) else leaf, arguments)

    def state_shardings(self, state: PyTree) -> PyTree:
        """The sharding of every array of a state: as `parameters` says."""

        def sharding(leaf: Any) -> NamedSharding:
            axis = self.parameters.axis(jnp.shape(leaf), self.num_devices)
            return self.everywhere if axis is None else self.divided_along(axis)

        return jax.tree.map(sharding, state)

    def pin(self, state: PyTree) -> PyTree:
        """The state placed as it should be; inside a compiled function."""
        return jax.lax.with_sharding_constraint(state, self.state_shardings(state))

    def put(self, tree: PyTree, shardings: PyTree) -> PyTree:
        """Arrays that every process holds whole, placed on the mesh."""
        return jax.tree.map(_put, tree, shardings)

    def put_state(self, state: PyTree) -> PyTree:
        """A state that every process holds whole, or that is placed already, on the mesh."""
        return self.put(state, self.state_shardings(state))

    def gathered(self, tree: PyTree) -> PyTree:
        """The whole of every array on every device, so that each process can read it."""
        return jax.jit(lambda tree: tree, out_shardings=self.everywhere)(tree)

    def local(self, tree: PyTree) -> PyTree:
        """Of arrays that are whole on every device the copy on this process's first one."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)

    @contextmanager
    def active(self) -> Iterator[None]:
        """What is traced inside may divide its work among the devices, see `divided`."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: ContextVar[Layout | None] = ContextVar("vpng_layout", default=None)


def active_layout() -> Layout | None:
    """The layout for which is being traced; None on one device."""
    return _ACTIVE.get()


def by_columns(matrix: Float[Array, "m n"]) -> Float[Array, "m n"]:
    """A matrix with its columns divided on a mesh: products of its rows are sums over devices."""
    layout = active_layout()
    return matrix if layout is None else layout.divide(matrix, axis=1)


def by_rows(batch: PyTree) -> PyTree:
    """A part of a batch with its rows divided anew on a mesh: a part may lie on few devices."""
    layout = active_layout()
    return batch if layout is None else layout.divide_rows(batch)


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with the single axis `data` over `devices`, by default all of all processes."""
    chosen = jax.devices() if devices is None else list(devices)
    if not chosen:
        raise expected("devices", "at least one device", "none")
    return Mesh(np.array(chosen), ("data",), axis_types=(AxisType.Auto,))


def as_layout(mesh: Mesh | Layout | None) -> Layout | None:
    """A mesh as a layout with a copy of the parameters on every device.

    Every run asks here when it is set up, so this also limits SciPy's BLAS to one thread, see
    `vpng.runtime.blas_threads`.
    """
    limit_blas_threads()
    if mesh is None or isinstance(mesh, Layout):
        return mesh
    return Layout(mesh)


def compiled(
    layout: Layout | None,
    function: Callable[..., PyTree],
    *arguments: PyTree,
    results: Callable[[Layout, PyTree], PyTree] = lambda layout, shapes: layout.everywhere,
    num_steps: int = USUAL_STEPS,
) -> CompiledProgram:
    """`function` compiled for the shapes of `arguments`, on one device or on a mesh.

    Args:
        layout: None for one device.
        function: what is compiled; see `compiled_program`.
        *arguments: placed already.
        results: layout, shapes of the results -> their shardings; a copy everywhere by default.
        num_steps: as in `compiled_program`.
    """
    if layout is None:
        return compiled_program(function, *arguments, num_steps=num_steps)
    with layout.active():
        return compiled_program(
            function,
            *arguments,
            out_shardings=lambda shapes: results(layout, shapes),
            num_steps=num_steps,
        )


def _put(leaf: Any, sharding: NamedSharding) -> Array:
    if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
        return leaf
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.jit(lambda array: array, out_shardings=sharding)(leaf)
    if is_key(leaf):
        data = _put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
