"""NumPyro's names without a promise: in one file, with the versions they were checked with."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import optim
from numpyro.distributions import distribution as distributions
from numpyro.distributions import transforms
from numpyro.infer import autoguide, elbo, svi
from numpyro.infer.autoguide import AutoNormal

from vpng.numpyro_names import (
    CHECKED_WITH,
    NumPyroOptim,
    Unit,
    first_looks,
    is_handled,
    is_validating,
    mask_of,
    optax_to_numpyro,
    without_vain_checks,
)

SOURCE = Path(__file__).parents[3] / "src" / "vpng"


def private_imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numpyro":
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))


def private_attributes(path):
    """Of other objects than the own one; those of named tuples are public."""
    public = {"_replace", "_fields", "_asdict", "_make"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[1] != "_":
            own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            if not own and node.attr not in public:
                yield node.attr


def names_of_numpyro():
    """Private methods and attributes of its distributions, guides, losses and optimizers."""
    modules = (distributions, autoguide, elbo, svi, optim, transforms)
    for module in modules:
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Attribute):
                yield node.attr


def test_one_file_imports_them():
    found = {path.name for path in SOURCE.rglob("*.py") if list(private_imports(path))}
    assert found == {"numpyro_names.py"}


def test_one_file_reads_them():
    theirs = {name for name in names_of_numpyro() if name.startswith("_")}
    ours = {
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    found = {
        (path.name, name)
        for path in SOURCE.rglob("*.py")
        for name in private_attributes(path)
        if name in theirs - ours
    }
    names = ("_mask", "_setup_prototype", "_validate_args")
    assert found == {("numpyro_names.py", name) for name in names}


def test_whether_distributions_check_and_handlers_are_around():
    assert not is_handled()
    with numpyro.handlers.seed(rng_seed=0):
        assert is_handled()
    before = is_validating()
    with numpyro.validation_enabled(not before):
        assert is_validating() is not before
    assert is_validating() is before


def test_this_version_was_checked():
    assert ".".join(numpyro.__version__.split(".")[:2]) in CHECKED_WITH


def test_what_is_relied_on():
    assert isinstance(numpyro.optim.Adam(0.1), NumPyroOptim)
    wrapped = optax_to_numpyro(optax.sgd(0.5))
    assert isinstance(wrapped, NumPyroOptim)
    state = wrapped.update({"a": jnp.ones(())}, wrapped.init({"a": jnp.zeros(())}), value=0.0)
    assert wrapped.get_params(state)["a"] == -0.5
    trace = numpyro.handlers.trace(lambda: numpyro.factor("f", 1.0)).get_trace()
    assert isinstance(trace["f"]["fn"], Unit)
    masked = dist.Normal(jnp.zeros(3), 1.0).mask(jnp.array([True, False, True]))
    assert mask_of(masked).tolist() == [True, False, True]
    assert mask_of(dist.Normal(jnp.zeros(2), 1.0).mask(False)).tolist() == [False, False]


def one_latent():
    numpyro.sample("z", dist.Normal(0.0, 1.0))


def test_first_looks_of_autoguides_are_noted():
    guide = AutoNormal(one_latent)
    with first_looks(repeated=True) as seen, numpyro.handlers.seed(rng_seed=0):
        guide()
        guide()
    [(noted, before)] = seen.guides
    assert noted is guide
    assert before["prototype_trace"] is None
    [found] = seen.found
    # The density at the point, and its gradient, which is the point itself.
    place = found.param_info.z["z"]
    assert jnp.allclose(found.param_info.z_grad["z"], place)


def test_a_value_that_is_known_is_checked_beside_one_that_is_not():
    with without_vain_checks(), pytest.raises(ValueError, match="invalid scale"):
        jax.make_jaxpr(lambda loc: dist.Normal(loc, -1.0).mean)(0.0)
    with without_vain_checks(), pytest.raises(ValueError, match="invalid scale"):
        dist.Normal(0.0, -1.0)


def test_vain_checks_are_left_out():
    checked = []

    class Noting(dist.constraints.Constraint):
        def __call__(self, value):
            checked.append(value)
            return value > 0

    class Watched(dist.HalfNormal):
        arg_constraints = {"scale": Noting()}  # noqa: RUF012

    # A function each: what was traced once is not traced again.
    with without_vain_checks():
        jax.make_jaxpr(lambda scale: Watched(scale).scale)(1.0)
    assert not checked
    jax.make_jaxpr(lambda scale: Watched(scale).scale)(1.0)
    assert len(checked) == 1
