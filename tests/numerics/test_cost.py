"""Costs known from shapes: their algebra, their limits, and the choices that follow from them."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpng.adaptive.units import PRODUCTS_PER_STEP, by_shape
from vpng.curvature import Automatic, ConjugateGradient, Dense, Dual
from vpng.kronecker.structure import DENSE_LIMIT
from vpng.numerics import cost
from vpng.numerics.cost import Cost, cheapest, forming_pays, largest_formed

SIZES = st.integers(1, 100_000)


def test_costs_one_after_the_other_add_their_time_and_keep_the_larger_memory():
    first, second = Cost(time=3.0, memory=5.0), Cost(time=4.0, memory=2.0)
    assert cost.in_turn(first, second, first) == Cost(10.0, 5.0)
    assert first.times(3) == cost.in_turn(first, first, first)
    assert first.batched(3) == Cost(9.0, 15.0)


def test_an_operation_takes_as_long_as_the_slower_of_arithmetic_and_memory():
    balance = cost.FLOPS_PER_BYTE * cost.ITEM
    assert Cost.of(operations=balance + 1.0, moved=1.0, kept=0.0).time == balance + 1.0
    assert Cost.of(operations=balance - 1.0, moved=1.0, kept=0.0).time == balance


@pytest.mark.parametrize("fitting", [2, 1, 0])
def test_the_quickest_that_fits_is_the_cheapest_and_else_the_smallest(fitting):
    costs = [Cost(1.0, 30.0), Cost(2.0, 20.0), Cost(3.0, 10.0)]
    large = [
        each._replace(memory=each.memory * (1.0 if place >= fitting else cost.MEMORY_BUDGET))
        for place, each in enumerate(costs)
    ]
    assert cheapest(*large) == fitting
    assert cheapest(*[each._replace(memory=each.memory * 2**31) for each in costs]) == 2


@given(SIZES, SIZES, st.integers(2, 5))
def test_more_rows_columns_or_products_are_never_cheaper(rows, columns, more):
    assert cost.products(more, rows, columns).time > cost.products(1, rows, columns).time
    for of in (cost.product, cost.jacobian, cost.gram_at_once, cost.dual):
        for larger in (of(more * rows, columns), of(rows, more * columns)):
            assert larger.time > of(rows, columns).time
            assert larger.memory >= of(rows, columns).memory
    for of in (cost.cholesky, cost.eigenvalues, cost.solve):
        assert of(more * columns).time > of(columns).time


@pytest.mark.parametrize(
    ("name", "compute", "shapes"),
    [
        ("matrix_product", jnp.matmul, [(40, 70), (70, 30)]),
        ("product", lambda R, v: R.T @ (R @ v), [(40, 70), (70,)]),
        ("jacobian", lambda R, v: jax.jacfwd(lambda v: R @ v)(v), [(90, 70), (70,)]),
    ],
)
def test_operations_are_those_that_the_compiler_counts(name, compute, shapes, monkeypatch):
    monkeypatch.setattr(cost, "FLOPS_PER_BYTE", 0.0)
    given_shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    counted = jax.jit(compute).lower(*given_shapes).cost_analysis()["flops"]
    sizes = (*shapes[0], shapes[1][1]) if name == "matrix_product" else shapes[0]
    assert getattr(cost, name)(*sizes).time == pytest.approx(counted, rel=0.05)


@given(st.integers(8, 300))
def test_the_largest_matrix_that_is_formed_is_the_largest(num_products):
    size = largest_formed(num_products)
    assert forming_pays(size, num_products)
    assert not any(forming_pays(size + more, num_products) for more in (1, 2, 10, size))


def test_memory_bounds_what_is_formed(monkeypatch):
    assert forming_pays(1000, 100)
    monkeypatch.setattr(cost, "MEMORY_BUDGET", 4 * 1000**2)
    assert not forming_pays(1000, 100)


def test_a_factor_that_does_not_fit_is_not_formed():
    rows = 2**21
    assert not cost.gram_at_once(rows, 100).fits
    assert cost.gram(rows, 100).fits
    assert cost.gram(rows, 100).time == pytest.approx(cost.gram_at_once(rows, 100).time, rel=0.5)


@pytest.mark.parametrize(
    ("rows", "parameters", "wanted"),
    [
        (100, 10, Dense),
        (10, 100, Dual),
        (10_000, 1_400, Dense),
        (10_000, 2_500, ConjugateGradient),
        (1_300, 100_000, Dual),
        (3_000, 100_000, ConjugateGradient),
        (256, 500_000, Dual),
        (256, 5_000_000, ConjugateGradient),
        (10**7, 200, Dense),
    ],
)
def test_the_curvature_chosen_by_shape(rows, parameters, wanted):
    operator = SimpleNamespace(num_rows=rows, num_parameters=parameters)
    assert type(Automatic().chosen(operator)) is wanted


def test_fewer_products_leave_less_to_matrices():
    operator = SimpleNamespace(num_rows=10_000, num_parameters=700)
    assert type(Automatic().chosen(operator)) is Dense
    assert type(by_shape().chosen(operator)) is ConjugateGradient
    exact = Automatic(ConjugateGradient(max_steps=None))
    assert type(exact.chosen(SimpleNamespace(num_rows=4_000, num_parameters=4_000))) is Dense


def test_limits_that_were_set_by_hand_are_reproduced():
    """1,500 for a hundred products, 500 for thirty, 1,200 for a step of the automatic rule."""
    for by_hand, products in ((1500, 100), (500, cost.SHORT_SOLVE), (1200, PRODUCTS_PER_STEP)):
        assert math.isclose(largest_formed(products), by_hand, rel_tol=0.25)
    assert largest_formed(cost.SHORT_SOLVE) == DENSE_LIMIT
