"""`numpyro.infer.SVI` with curvature: the same interface, no learning rate."""

import dataclasses
import warnings
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.example_libraries.optimizers import Optimizer
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree
from numpyro import infer
from numpyro.infer import Trace_ELBO
from numpyro.infer.elbo import ELBO
from numpyro.infer.svi import SVIState
from numpyro.optim import Minimize

from vpng.adaptive import AbstractGeometry, Adaptive, AdaptiveInfo, Linearised
from vpng.checks import positive_integer
from vpng.curvature import AbstractCurvature
from vpng.damping import AbstractDamping
from vpng.distributed.layout import Layout, as_layout
from vpng.distributed.processes import is_first
from vpng.errors import InputError, expected
from vpng.fisher import AbstractMetric, BayesianNetwork, Divergence, Exact, LogFactors
from vpng.numerics.jax_settings import settings
from vpng.numerics.trees import is_traced
from vpng.numpyro.causes import Cause, cause_at, remarks_on
from vpng.numpyro.evaluation import Losses
from vpng.numpyro.guides import (
    MOST_PARTICLES,
    default_particles,
    geometry_of,
    has_many_parameters,
)
from vpng.numpyro.loader import Epochs
from vpng.numpyro.network_rule import layers_of, network_rule
from vpng.numpyro.optimizer_rule import OptimizerRule, by_site_name, numpyro_as_optax
from vpng.numpyro.particles import with_either_map
from vpng.numpyro.problem import DISCRETE_REMEDY, Call, TracedProblem, traced_problem
from vpng.numpyro.result import Ending, RunResult
from vpng.numpyro.rule_as_optimizer import NOT_INITIALISED, Passing, RuleAsOptimizer
from vpng.numpyro.rules import (
    AbstractRule,
    AutomaticRule,
    NothingToLearn,
    Step,
    StepInputs,
    by_name,
)
from vpng.numpyro.source import AbstractSource, Whole, source_of
from vpng.numpyro.start import first_state
from vpng.numpyro.steps import (
    LONGEST,
    Carried,
    PureStep,
    StepInfo,
    StepProgram,
    SVISteps,
    capacity_of,
    mean_losses,
    with_strong_types,
)
from vpng.numpyro_names import (
    NumPyroOptim,
    is_handled,
    is_validating,
    names_in_order,
    without_vain_checks,
)
from vpng.objective import Schedule
from vpng.posterior import Budget, Posterior, guide_moments, log_density, posterior_of
from vpng.problem import Parameters
from vpng.random import written_out
from vpng.run.checkpoint import Checkpoints
from vpng.run.outcome import StopReason
from vpng.run.progress import compiling
from vpng.run.runner import Runner
from vpng.run.stopping import Converged
from vpng.runtime.compilation import USUAL_STEPS
from vpng.runtime.contents import Contents, contents
from vpng.runtime.programs import AtOnce
from vpng.transform.preconditioning import DEFAULT_DAMPING, precondition

NUM_CHUNKS = 20
"""Of a run of a fixed number of steps, unless they are too long."""

SAVED_CHUNK = 100
"""Most steps between two moments at which a run with checkpoints may save or be interrupted."""


ABSENT = (
    "numpyro.factor sites {names} have no predictive distribution: they count in the loss, and in "
    "the curvature only if LogFactors() is a term of `fisher`."
)


class SVI(infer.SVI):
    """Stochastic variational inference that follows the model's curvature.

    A drop-in for `numpyro.infer.SVI`. Without `optim` the step is automatic, see
    `vpng.adaptive.rule`: a natural gradient in the metric `fisher`, its length and damping found
    from the loss itself. With one, the gradient is preconditioned and handed to it.

    Args:
        model: the model.
        guide: the guide.
        optim: an optax transformation or a NumPyro optimizer that takes the preconditioned
            gradient; None for the automatic rule.
        loss: NumPyro's objective; `Trace_ELBO(num_particles=10)` unless given, with two particles
            for every latent of a normal guide where that is fewer, but four at least, and with two
            for models and guides that are mostly networks. The automatic rule needs two halves, and
            takes one more particle than an odd number.
        curvature: how the metric is represented; found from the guide and the number of parameters
            if left out.
        fisher: the metric; the Fisher of the whole Bayesian network and the curvature of the KL
            unless given, see `default_metric`.
        damping: with `optim`, per datum, a number, a schedule or a rule; without it a number,
            relative to the metric's diagonal, from which the rule starts.
        mesh: devices among which `run` divides the arguments that have the data along their first
            axis; plates that take subsamples gather them from all devices.
        **static_kwargs: arguments of model and guide that never change.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        optim: optax.GradientTransformation | Optimizer | NumPyroOptim | None = None,
        loss: ELBO | None = None,
        *,
        curvature: AbstractCurvature | AbstractGeometry | None = None,
        fisher: AbstractMetric | None = None,
        damping: AbstractDamping | Schedule | float | None = None,
        mesh: Mesh | Layout | None = None,
        **static_kwargs: Any,
    ) -> None:
        self._own_loss = loss is None
        loss = Trace_ELBO(num_particles=MOST_PARTICLES) if loss is None else loss
        super().__init__(model, guide, RuleAsOptimizer(), loss, **static_kwargs)
        self.transformation = _as_transformation(optim)
        if not isinstance(curvature, AbstractCurvature | AbstractGeometry | None):
            raise expected("curvature", "a curvature such as Dense()", type(curvature).__name__)
        if self.transformation is not None and isinstance(curvature, AbstractGeometry):
            raise expected(
                "curvature", "a curvature such as Dense(), since optim is given", curvature
            )
        if not isinstance(fisher, AbstractMetric | None):
            raise expected("fisher", "a metric such as Predictive()", type(fisher).__name__)
        if self.transformation is None and not isinstance(damping, float | int | None):
            raise expected("damping", "a number, since optim is left out", damping)
        self.curvature = curvature
        self.fisher = fisher
        self.damping = damping
        self.layout = as_layout(mesh)
        self.problem: TracedProblem | None = None
        self.rule: AbstractRule | None = None
        self._constrain: AtOnce | None = None
        self._begin: AtOnce | None = None
        self._programs: dict[Hashable, StepProgram] = {}
        self._held: list[Any] = []

    @without_vain_checks()
    def init(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        init_params: dict[str, PyTree] | None = None,
        **kwargs: Any,
    ) -> SVIState:
        """The state before the first step; see `numpyro.infer.SVI.init`."""
        with warnings.catch_warnings():
            # What NumPyro says about discrete latents is an error here, and clearer.
            warnings.filterwarnings("ignore", message="Currently, SVI with")
            try:
                found = infer.SVI(
                    self.model, self.guide, Passing(), self.loss, **self.static_kwargs
                )
                raw, mutable, key = first_state(found, rng_key, args, kwargs, init_params)
            except (RuntimeError, ValueError) as error:
                if "discrete sample site" not in str(error):
                    raise
                raise InputError(f"{str(error).rstrip('.')}. {DISCRETE_REMEDY}") from error
        self.constrain_fn = found.constrain_fn
        self._constrain = AtOnce(self._bound(), self._constrain)
        self.problem, parameters = traced_problem(
            self.model,
            self.guide,
            raw,
            self._bound().args[0],
            rng_key,
            args,
            {**kwargs, **self.static_kwargs},
            mutable,
            allow_discrete=self.loss.can_infer_discrete,
            multi_sample=getattr(self.loss, "multi_sample_guide", False),
        )
        called = partial(
            self.problem.call, rng_key, args, {**kwargs, **self.static_kwargs}, mutable
        )
        rule = self.rule = self._chosen_rule(parameters, called)
        self.optim = RuleAsOptimizer(rule, self.problem.model_names)
        self._begin = AtOnce(rule.init, self._begin)
        return SVIState(self._begin(parameters), mutable, key)

    def get_params(self, svi_state: SVIState) -> dict[str, PyTree]:
        """The constrained values of all parameters: of the last accepted step."""
        if self._constrain is None:
            raise InputError(NOT_INITIALISED)
        params = by_name(svi_state.optim_state.accepted)
        constrained = self._constrain(params)
        return {name: constrained[name] for name in params}

    def evaluate(self, svi_state: SVIState, *args: Any, **kwargs: Any) -> Array | dict[str, Array]:
        """The loss at the parameters and mutable state; see `numpyro.infer.SVI.evaluate`."""
        kwargs = {**kwargs, **self.static_kwargs}
        held = Call(args, kwargs, {}, svi_state.mutable_state or {}).fixed
        values = {**self.get_params(svi_state), **held}
        # The key of NumPyro's own `update`, given this state.
        _, key = jax.random.split(svi_state.rng_key)
        loss = with_either_map(self.loss)
        with names_in_order():
            return loss.loss(key, values, self.model, self.guide, *args, **kwargs)

    def update(
        self,
        svi_state: SVIState,
        *args: Any,
        forward_mode_differentiation: bool = False,
        **kwargs: Any,
    ) -> tuple[SVIState, Array]:
        """One step, none if its loss or the new state is not finite; see `numpyro.infer.SVI`."""
        state, loss, _ = self._step(svi_state, args, kwargs, forward_mode_differentiation)
        return state, loss

    def stable_update(
        self,
        svi_state: SVIState,
        *args: Any,
        forward_mode_differentiation: bool = False,
        **kwargs: Any,
    ) -> tuple[SVIState, Array]:
        """`update`, which drops what is not finite in any case."""
        return self.update(
            svi_state,
            *args,
            forward_mode_differentiation=forward_mode_differentiation,
            **kwargs,
        )

    def diagnostics(self, svi_state: SVIState, *args: Any, **kwargs: Any) -> AdaptiveInfo:
        """What the next step of the automatic rule would report."""
        if self.transformation is not None:
            raise expected("optim", "None, the automatic rule", type(self.transformation).__name__)
        info = self._step(svi_state, args, kwargs, False)[2].info
        if info is None:
            raise InputError(
                "model: this one is mostly networks, whose rule has no diagnostics; use "
                "vpng.diagnose, which looks at any model."
            )
        return info

    def run(
        self,
        rng_key: PRNGKeyArray,
        num_steps: int | Epochs | Converged | str,
        *args: Any,
        progress_bar: bool = True,
        stable_update: bool = False,
        forward_mode_differentiation: bool = False,
        init_state: SVIState | None = None,
        init_params: dict[str, PyTree] | None = None,
        checkpoints: Checkpoints | None = None,
        resume: bool = False,
        **kwargs: Any,
    ) -> RunResult:
        """Many steps in compiled chunks; see `numpyro.infer.SVI.run`.

        Inside `jit` or `vmap` all steps are one scan, without a progress bar and without warnings;
        `num_steps` is a number there.

        Args:
            rng_key: the key of the run.
            num_steps: how many; `Epochs(n)` for n times all batches; `Converged()`, or "auto" for
                short, until the ELBO no longer improves by more than its noise.
            *args: arguments of model and guide; `BatchesFrom(loader)` in the place of the first for
                a batch in every step.
            progress_bar: whether to show one.
            stable_update: as in NumPyro; what is not finite is dropped in any case.
            forward_mode_differentiation: differentiate the loss forwards.
            init_state: go on from here.
            init_params: values to start parameters from.
            checkpoints: where to keep the state while running. SIGINT and SIGTERM then finish a
                chunk, make a checkpoint and end the run; a second one interrupts at once.
            resume: go on from the newest checkpoint that is whole, if there is any, to the same
                bits as a run that was never stopped; `num_steps` counts from its start.
            **kwargs: keyword arguments of model and guide.
        """
        source = source_of(args, kwargs, self.loss, on_mesh=self.layout is not None)
        stop, total = _stopping(num_steps), _number_of_steps(num_steps, source)
        first, forward = source.first(), forward_mode_differentiation
        args, kwargs = source.called(first)
        state = init_state
        if state is None or self.problem is None or source.per_epoch is not None:
            shown = progress_bar and is_first() and not _is_traced((rng_key, jnp.zeros(())))
            with compiling(enabled=shown), source.counted(first):
                begun = self.init(rng_key, *args, init_params=init_params, **kwargs)
            state = begun if state is None else state
        layout, state = self.layout, with_strong_types(state)
        length = _chunk_length(stop, total, checkpoints, source)
        usual = total if stop is None else min(total, USUAL_STEPS)
        # Inside jit every new array is traced, whatever it is made of.
        traced = _is_traced((rng_key, state, jnp.zeros(())))
        key = None if traced else self._read_by_steps(source, state, length, forward_mode=forward)
        program = None if key is None else self._programs.get(key.key)
        if program is None or not program.run.suits(usual):
            program = None
            with compiling(enabled=progress_bar and is_first() and not traced):
                step, source = self._traced_step(source, state, forward_mode=forward)
                if not (traced or _is_traced(step)):
                    state = state if layout is None else layout.put_state(state)
                    program = StepProgram.of(step, state, source, layout, length, usual)
            if program is None:
                _check_traceable(stop, checkpoints, source)
                each = lambda state, _: step(state, source.first())
                state, infos = jax.lax.scan(each, state, length=total)
                return RunResult(self.get_params(state), state, infos.loss)
            if key is not None and isinstance(source, Whole):
                self._programs = {key.key: program}
                self._held = key.held
        outcome = Runner(
            SVISteps(program, self._initialised(), layout, source),
            length,
            stop=stop,
            progress=progress_bar,
            per_epoch=source.per_epoch if isinstance(num_steps, Epochs) else None,
            shown=mean_losses,
            checkpoints=checkpoints,
            resume=resume,
        ).run(Carried(state, state), total)

        def cause(state: SVIState) -> Cause:
            with source.counted(first):
                return self._cause(rng_key, state, args, kwargs)

        for remark in remarks_on(outcome, cause, self._traced()):
            warnings.warn(remark, RuntimeWarning, stacklevel=2)
        state = outcome.state.state
        params = self.get_params(state)
        if layout is not None:
            params = layout.local(layout.gathered(params))
        converged = None if stop is None else outcome.stop_reason is StopReason.CONVERGED
        ending = Ending(outcome.stop_reason, outcome.history, converged)
        return RunResult(params, state, jax.device_put(outcome.history.step_losses), ending)

    def posterior(
        self, result: RunResult, *args: Any, budget: Budget | None = None, **kwargs: Any
    ) -> Posterior:
        """The posterior that a run has led to, corrected and checked.

        Args:
            result: of `run`.
            *args: arguments of model and guide: all data.
            budget: what may be spent.
            **kwargs: keyword arguments of model and guide.
        """
        kwargs = {**kwargs, **self.static_kwargs}
        density = log_density(self.model, args, kwargs, result.params)
        guide = guide_moments(density, self.guide, result.params)
        return posterior_of(density, budget, guide)

    def _pure_step(self, source: AbstractSource, forward_mode: bool) -> PureStep:
        """One step of the state and what the source has for it, on a mesh if there is one."""
        layout, num_data = self.layout, self._traced().num_data

        def step(state: SVIState, given: PyTree) -> tuple[SVIState, StepInfo]:
            own, named = source.called(given)
            if layout is not None:
                state = layout.pin(state)
                own, named = layout.divide_data((own, named), num_data)
            with source.counted(given):
                state, info = self._updated(state, own, named, forward_mode)
            state = state if layout is None else layout.pin(state)
            return state, info

        return step

    def _updated(
        self, state: SVIState, args: tuple, kwargs: dict[str, Any], forward_mode: bool
    ) -> tuple[SVIState, StepInfo]:
        """A step of `run`: by `update`, as in NumPyro, if a subclass has its own."""
        if type(self).update is not SVI.update:
            kwargs = {**kwargs, "forward_mode_differentiation": forward_mode}
            state, loss = self.update(state, *args, **kwargs)
            return state, StepInfo(loss, jnp.zeros((), bool))
        state, loss, made = self._step(state, args, kwargs, forward_mode)
        return state, StepInfo(loss, made.exploded)

    def _traced_step(
        self, source: AbstractSource, state: SVIState, *, forward_mode: bool
    ) -> tuple[PureStep, AbstractSource]:
        """One step, traced, and its source: one that is held where the model reads values."""

        def traced(source: AbstractSource) -> PureStep:
            step = self._pure_step(source, forward_mode)
            with nullcontext() if self.layout is None else self.layout.active():
                return eqx.filter_closure_convert(step, state, source.first())

        if not isinstance(source, Whole):
            return traced(source), source
        try:
            return traced(source), source
        except Exception:
            # Whatever it is: if it is a fault of the model, it comes again.
            held = source.held()
            return traced(held), held

    def _read_by_steps(
        self, source: AbstractSource, state: SVIState, length: int, *, forward_mode: bool
    ) -> Contents | None:
        """All that the program of the steps depends on; None where that is not known."""
        if not isinstance(source, Whole) or self.layout is not None or is_handled():
            return None
        read = (self.model, self.guide, self.loss, self.static_kwargs, self.rule, self.problem)
        how = forward_mode, capacity_of(length), is_validating()
        found = contents(*read, source.rest, *how)
        if found is None:
            return None
        given = state, source.first()
        kinds = [(jax.typeof(leaf), leaf.sharding) for leaf in jax.tree.leaves(given)]
        return Contents((found.key, settings(), jax.tree.structure(given), *kinds), found.held)

    def _cause(
        self, rng_key: PRNGKeyArray, state: SVIState, args: tuple, kwargs: dict[str, Any]
    ) -> Cause:
        """What keeps the loss from being finite where the run is."""
        point = self._initialised().point(state.optim_state)
        if self.layout is not None:
            point = self.layout.local(self.layout.gathered(point))
        problem, mutable = self._traced(), state.mutable_state
        kwargs = {**kwargs, **self.static_kwargs}
        losses = Losses.drawn(rng_key, self.loss, problem, Call(args, kwargs, {}, mutable or {}))
        cause = cause_at(rng_key, losses, point, problem.call(rng_key, args, kwargs, mutable))
        if self.transformation is None:
            return cause
        return cause._replace(advice=f"Use a smaller learning rate. {cause.advice}")

    @without_vain_checks()
    def _step(
        self, svi_state: SVIState, args: tuple, kwargs: dict[str, Any], forward_mode: bool
    ) -> tuple[SVIState, Array, Step]:
        problem, rule = self._traced(), self._initialised()
        key, step_key = jax.random.split(svi_state.rng_key)
        # JAX draws some discrete values, which a guide then may have, with its own generator alone.
        if not self.loss.can_infer_discrete:
            step_key = written_out(step_key)
        loss_key, metric_key, plate_key = jax.random.split(step_key, 3)
        mutable = svi_state.mutable_state
        kwargs = {**kwargs, **self.static_kwargs}
        plain = Call(args, kwargs, {}, mutable or {})
        inputs = StepInputs(
            problem,
            problem.call(plate_key, args, kwargs, mutable),
            lambda: problem.call(jax.random.fold_in(plate_key, 1), args, kwargs, mutable),
            partial(Losses.drawn, loss_key, self.loss, problem, plain, forward_mode=forward_mode),
            metric_key,
        )
        # Who lets JAX refuse it means the model, which `init` and `evaluate` run as they are told.
        with jax.numpy_rank_promotion("allow"):
            step = rule.step(svi_state.optim_state, inputs)
        if mutable:
            mutable = _accepted(step.taken, step.written, mutable)
        return SVIState(step.state, mutable, key), step.loss * problem.num_data, step

    def _bound(self) -> partial:
        """From unconstrained to constrained parameters, as NumPyro's `init` bound it."""
        if not isinstance(self.constrain_fn, partial):
            raise InputError(NOT_INITIALISED)
        return self.constrain_fn

    def _initialised(self) -> AbstractRule:
        if self.rule is None:
            raise InputError(NOT_INITIALISED)
        return self.rule

    def _traced(self) -> TracedProblem:
        if self.problem is None:
            raise InputError(NOT_INITIALISED)
        return self.problem

    def _chosen_rule(self, parameters: Parameters, called: Callable[[], Call]) -> AbstractRule:
        """The user's, or the automatic one that fits, for which the loss gets its particles."""
        problem = self._traced()
        if problem.factor_names and self.fisher is not None:
            warnings.warn(ABSENT.format(names=list(problem.factor_names)), stacklevel=4)
        if self.transformation is not None:
            assert not isinstance(self.curvature, AbstractGeometry)
            preconditioner = precondition(
                problem,
                self._metric(max(3, getattr(self.loss, "num_particles", 1))),
                curvature=self.curvature,
                damping=DEFAULT_DAMPING if self.damping is None else self.damping,
            )
            own = by_site_name(self.transformation, problem.model_names)
            return OptimizerRule(optax.chain(preconditioner, own))
        if not jax.tree.leaves(parameters):
            return NothingToLearn()
        network = self._network(parameters, called)
        if network is not None:
            # Each has a minibatch of its own; one or four of them take longer to arrive.
            self._take_particles(2)
            return network
        geometry = self.curvature
        if geometry is None:
            here = lambda: self._metric(1).operator(
                problem, parameters, called(), jax.random.key(0)
            )
            geometry = geometry_of(self.guide, problem, parameters, here)
        elif isinstance(geometry, AbstractCurvature):
            geometry = Linearised(geometry, num_data=problem.num_data)
        self._take_particles(default_particles(geometry, parameters))
        adaptive = Adaptive(geometry, problem.num_data)
        if isinstance(self.damping, float | int):
            adaptive = dataclasses.replace(adaptive, initial_damping=float(self.damping))
        return AutomaticRule(adaptive, self._metric(geometry.num_draws))

    def _network(self, parameters: Parameters, called: Callable[[], Call]) -> OptimizerRule | None:
        """The rule for networks, where nothing else was asked for and they are most of it all."""
        problem = self._traced()
        if any(choice is not None for choice in (self.curvature, self.fisher, self.damping)):
            return None
        if not has_many_parameters(self.guide, problem, parameters):
            return None
        structure = layers_of(problem, parameters, called())
        return None if structure is None else network_rule(problem, structure)

    def _take_particles(self, count: int) -> None:
        if self._own_loss:
            self.loss = Trace_ELBO(num_particles=count)

    def _metric(self, num_particles: int) -> AbstractMetric:
        return default_metric(num_particles) if self.fisher is None else self.fisher


def default_metric(num_particles: int = 10) -> AbstractMetric:
    """The Fisher of every conditional distribution, the KL's own curvature and that of factors."""
    estimator = Exact(with_misfit=True)
    network = BayesianNetwork(estimator, num_particles) + Divergence(estimator, num_particles)
    return network + LogFactors(num_particles)


def _as_transformation(
    optim: optax.GradientTransformation | Optimizer | NumPyroOptim | None,
) -> optax.GradientTransformation | None:
    if isinstance(optim, Minimize):
        raise expected("optim", "an optimizer that takes one gradient at a time", "Minimize")
    if optim is None or isinstance(optim, optax.GradientTransformation):
        return optim
    if isinstance(optim, Optimizer):
        optim = NumPyroOptim(lambda *args: args, *optim)
    if isinstance(optim, NumPyroOptim):
        return numpyro_as_optax(optim)
    raise expected(
        "optim", "an optax transformation, a NumPyro optimizer or None", type(optim).__name__
    )


def _number_of_steps(num_steps: int | Epochs | Converged | str, source: AbstractSource) -> int:
    """The most that a run may take."""
    if isinstance(num_steps, Epochs):
        if source.per_epoch is None:
            raise expected("num_steps", "a number, since there is no BatchesFrom", num_steps)
        return num_steps.count * source.per_epoch
    rule = _stopping(num_steps)
    return positive_integer("num_steps", num_steps) if rule is None else rule.max_steps


def _stopping(num_steps: int | Epochs | Converged | str) -> Converged | None:
    if isinstance(num_steps, Converged):
        return num_steps
    if isinstance(num_steps, str):
        if num_steps != "auto":
            raise expected("num_steps", 'a number, Converged() or "auto"', repr(num_steps))
        return Converged()
    return None


def _is_traced(tree: PyTree) -> bool:
    return any(is_traced(leaf) for leaf in jax.tree.leaves(tree))


def _check_traceable(
    rule: Converged | None, checkpoints: Checkpoints | None, source: AbstractSource
) -> None:
    """Refuse what needs the values of a run that is traced."""
    if source.per_epoch is not None:
        raise InputError(
            "args: expected arrays, since the run is inside jit, vmap or grad, where nothing can "
            "be loaded, got BatchesFrom. Call run outside."
        )
    if rule is not None:
        raise InputError(
            f"num_steps: expected a number, since the run is inside jit, vmap or grad, got {rule}. "
            "Whether the ELBO still improves is known only outside: give a number of steps, or "
            "call run outside."
        )
    if checkpoints is not None:
        raise InputError(
            "checkpoints: expected None, since the run is inside jit, vmap or grad, where no file "
            "can be written. Leave them out, or call run outside."
        )


def _accepted(accepted: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    if new is None or old is None:
        return old
    return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)


def _chunk_length(
    stop: Converged | None,
    num_steps: int,
    checkpoints: Checkpoints | None,
    source: AbstractSource,
) -> int:
    """Most steps between two moments at which a run is looked at."""
    if source.most_steps is not None:
        return source.most_steps
    if stop is not None:
        return stop.window
    longest = LONGEST if checkpoints is None else SAVED_CHUNK
    return min(max(1, -(-num_steps // NUM_CHUNKS)), longest)
