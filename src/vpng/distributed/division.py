"""Work that is done once and not on every device: each task on one of them, the results shared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PyTree

from vpng.distributed.layout import Layout, active_layout


def _same(tree: PyTree) -> PyTree:
    return tree


@dataclass(frozen=True)
class Task:
    """One piece of work.

    Attributes:
        function: operands -> result, a pytree of floating arrays.
        operands: whole on every device.
        cost: in any unit, to share the work evenly.
        pack: result -> what has to be sent.
        unpack: what was sent -> the result.
    """

    function: Callable[..., PyTree]
    operands: tuple
    cost: float
    pack: Callable[[PyTree], PyTree] = _same
    unpack: Callable[[PyTree], PyTree] = _same


def divided(tasks: Sequence[Task]) -> list[PyTree]:
    """The results of all tasks: on one device done in turn, on a mesh each by one device."""
    layout = active_layout()
    if layout is None or layout.num_devices == 1 or len(tasks) < 2:
        return [task.function(*task.operands) for task in tasks]
    packed = lambda task: task.pack(task.function(*task.operands))
    shapes = [jax.eval_shape(partial(packed, task)) for task in tasks]
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(shape)) for shape in shapes]
    shares = balanced([task.cost for task in tasks], layout.num_devices)
    results = {}
    for share, flat in zip(shares, _shared(layout, tasks, shares, sizes), strict=True):
        start = 0
        for i in share:
            results[i] = tasks[i].unpack(_unravel(flat[start : start + sizes[i]], shapes[i]))
            start += sizes[i]
    return [results[i] for i in range(len(tasks))]


def balanced(costs: Sequence[float], count: int) -> list[list[int]]:
    """Shares of the tasks for `count` devices: the dearest first, each to the least busy."""
    shares: list[list[int]] = [[] for _ in range(min(count, len(costs)))]
    busy = [0.0] * len(shares)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        chosen = busy.index(min(busy))
        shares[chosen].append(i)
        busy[chosen] += costs[i]
    return shares


def _shared(
    layout: Layout, tasks: Sequence[Task], shares: list[list[int]], sizes: Sequence[int]
) -> list[Float[Array, " size"]]:
    """The packed results of every share, on all devices.

    Shares differ in length. Their beginnings, all of one length, go to all devices at once
    (all-gather). What is left of each is cut into as many pieces as there are devices, every device
    gets one piece of each (all-to-all, as much as the longest rest), and then all pieces go to all
    (all-gather, as much as all rests together).
    """
    count = layout.num_devices
    lengths = [sum(sizes[i] for i in share) for share in shares]
    begin = _beginning(lengths, count)
    widths = _widths(lengths, begin, count)
    operands = tuple(task.operands for task in tasks)
    dtype = jnp.result_type(*jax.tree.leaves(operands))

    def work(share: list[int], operands: tuple) -> tuple[Float[Array, " begin"], Array]:
        results = [tasks[i].pack(tasks[i].function(*operands[i])) for i in share]
        flat = ravel_pytree(results)[0].astype(dtype) if results else jnp.zeros(0, dtype)
        flat = jnp.pad(flat, (0, max(0, begin - flat.size)))
        rest = jnp.pad(flat[begin:], (0, (begin - flat.size) % count)).reshape(count, -1)
        return flat[:begin], jnp.pad(rest, ((0, 0), (0, max(widths) - rest.shape[1])))

    # A device without a share has nothing to do.
    branches = [partial(work, share) for share in [*shares, []]]

    def on_device(operands: tuple) -> tuple[Float[Array, "devices begin"], Array]:
        mine = jnp.minimum(jax.lax.axis_index(layout.axes), len(shares))
        first, rest = jax.lax.switch(mine, branches, operands)
        received = jax.lax.all_to_all(rest, layout.axes, 0, 0, tiled=True)
        used = [received[owner, :width] for owner, width in enumerate(widths)]
        gathered = partial(jax.lax.all_gather, axis_name=layout.axes)
        return gathered(first), gathered(jnp.concatenate(used))

    whole = PartitionSpec()
    firsts, rests = jax.shard_map(
        on_device, mesh=layout.mesh, in_specs=(whole,), out_specs=(whole, whole), check_vma=False
    )(operands)
    ends = list(accumulate(widths, initial=0))
    return [
        jnp.concatenate([firsts[owner], rests[:, start:end].reshape(-1)])
        for owner, (start, end) in enumerate(pairwise(ends))
    ]


def _beginning(lengths: Sequence[int], count: int) -> int:
    """How much of every share goes at once, such that the least is sent in all."""

    def sent(begin: int) -> int:
        widths = _widths(lengths, begin, count)
        return begin + max(widths) + sum(widths)

    return min([0, *lengths], key=sent)


def _widths(lengths: Sequence[int], begin: int, count: int) -> list[int]:
    """The lengths of the pieces into which the rests of the shares are cut."""
    return [-(-max(0, length - begin) // count) for length in lengths]


def _unravel(flat: Float[Array, " size"], shapes: PyTree) -> PyTree:
    leaves, start = [], 0
    for leaf in jax.tree.leaves(shapes):
        leaves.append(flat[start : start + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
        start += leaf.size
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)
