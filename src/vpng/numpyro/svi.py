"""`numpyro.infer.SVI` with curvature: the same interface, no learning rate."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.example_libraries.optimizers import Optimizer
from jax.sharding import Mesh
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree
from numpyro import infer
from numpyro.infer import Trace_ELBO
from numpyro.infer.elbo import ELBO
from numpyro.infer.svi import SVIRunResult, SVIState
from numpyro.optim import Minimize, _NumPyroOptim, optax_to_numpyro

from vpng.adaptive import AbstractGeometry, Adaptive, AdaptiveInfo, Linearised
from vpng.checks import is_traced, positive_integer
from vpng.curvature import AbstractCurvature
from vpng.damping import AbstractDamping
from vpng.distributed.faults import stopping_if_lost
from vpng.distributed.layout import Layout, as_layout
from vpng.distributed.processes import in_any_process, is_first
from vpng.errors import InputError, expected
from vpng.fisher import AbstractMetric, BayesianNetwork, Divergence, Exact
from vpng.interrupts import Interrupt, deferred_interrupts, wait_for
from vpng.numpyro.causes import Cause, cause_at, far_off
from vpng.numpyro.evaluation import Losses
from vpng.numpyro.guides import (
    MOST_PARTICLES,
    default_particles,
    geometry_of,
    has_many_parameters,
)
from vpng.numpyro.network_rule import NetworkRule, layers_of
from vpng.numpyro.problem import DISCRETE_REMEDY, Call, TracedProblem, traced_problem
from vpng.numpyro.rules import AbstractRule, AutomaticRule, Here, PreconditionedRule, by_name
from vpng.objective import Schedule
from vpng.problem import Parameters
from vpng.random import written_out
from vpng.stopping import Converged
from vpng.training.checkpoint import Checkpoints, Keeper
from vpng.training.history import History
from vpng.training.identity import Identity
from vpng.transform.precondition import DEFAULT_DAMPING, precondition

MAX_REJECTIONS = 30
"""Steps in a row that cannot be taken, after which a run stops."""

STUCK = (
    "The run stopped after {done} steps: something was not finite in the last of them, and no step "
    "could be taken. What is not finite: the {cause.parts}. The parameters returned are the last "
    "good ones. {cause.advice}."
)

DROPPED = (
    "{count} of {done} steps had a loss that was not finite and were dropped. What is not finite: "
    "the {cause.parts}. {cause.advice}."
)

SAVED_CHUNK = 100
"""Most steps between two moments at which a run with checkpoints may save or be interrupted."""


class RunResult(SVIRunResult):
    """An `SVIRunResult` that knows how the run ended.

    Attributes:
        converged: whether a rule for stopping found that the ELBO no longer improves; None for a
            run of a fixed number of steps.
        interrupted: whether a signal ended the run before its end; its checkpoint is the place to
            go on from.
    """

    converged: bool | None = None
    interrupted: bool = False


_CONVERGED = "CONVERGED"

_NOT_INITIALISED = (
    "svi_state: expected an SVI that was initialised; call svi.init(rng_key, *args) or "
    "svi.run(...) on this object first."
)


class _Holder(_NumPyroOptim):
    """Hands the parameters that NumPyro's `init` finds through, for the real rule to take up."""

    def __init__(self) -> None:
        super().__init__(lambda: (lambda params: params, lambda *_: None, lambda params: params))

    def init(self, params: PyTree) -> PyTree:
        return params


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
        optim: optax.GradientTransformation | Optimizer | _NumPyroOptim | None = None,
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
        _check_loss(loss)
        super().__init__(model, guide, _Holder(), loss, **static_kwargs)
        self.rule = _as_optimizer(optim)
        if not isinstance(curvature, AbstractCurvature | AbstractGeometry | None):
            raise expected("curvature", "a curvature such as Dense()", type(curvature).__name__)
        if self.rule is not None and isinstance(curvature, AbstractGeometry):
            raise expected(
                "curvature", "a curvature such as Dense(), since optim is given", curvature
            )
        if not isinstance(fisher, AbstractMetric | None):
            raise expected("fisher", "a metric such as Predictive()", type(fisher).__name__)
        if self.rule is None and not isinstance(damping, float | int | None):
            raise expected("damping", "a number, since optim is left out", damping)
        self.curvature = curvature
        self.fisher = fisher
        self.damping = damping
        self.layout = as_layout(mesh)
        self.problem: TracedProblem | None = None
        self.stepping: AbstractRule | None = None

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
                raw, mutable, key = super().init(rng_key, *args, init_params=init_params, **kwargs)
            except (RuntimeError, ValueError) as error:
                if "discrete sample site" not in str(error):
                    raise
                raise InputError(f"{str(error).rstrip('.')}. {DISCRETE_REMEDY}") from error
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
        )
        called = partial(
            self.problem.call, rng_key, args, {**kwargs, **self.static_kwargs}, mutable
        )
        self.stepping = self._chosen_rule(parameters, called)
        return SVIState(self.stepping.init(parameters), mutable, key)

    def get_params(self, svi_state: SVIState) -> dict[str, PyTree]:
        """The constrained values of all parameters: of the last accepted step."""
        return self._bound()(by_name(self._initialised().answer(svi_state.optim_state)))

    def evaluate(self, svi_state: SVIState, *args: Any, **kwargs: Any) -> Array:
        """The loss at the parameters and mutable state; see `numpyro.infer.SVI.evaluate`."""
        kwargs = {**kwargs, **self.static_kwargs}
        held = Call(args, kwargs, {}, svi_state.mutable_state or {}).fixed
        values = {**self.get_params(svi_state), **held}
        # The key of NumPyro's own `update`, given this state.
        _, key = jax.random.split(svi_state.rng_key)
        return self.loss.loss(key, values, self.model, self.guide, *args, **kwargs)

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
        if self.rule is not None:
            raise expected("optim", "None, the automatic rule", type(self.rule).__name__)
        info = self._step(svi_state, args, kwargs, False)[2]
        if info is None:
            raise InputError(
                "model: this one is mostly networks, whose rule has no diagnostics; use "
                "vpng.diagnose, which looks at any model."
            )
        return info

    def run(
        self,
        rng_key: PRNGKeyArray,
        num_steps: int | Converged | str,
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
            num_steps: how many; `Converged()`, or "auto" for short, until the ELBO no longer
                improves by more than its noise.
            *args: arguments of model and guide.
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
        rule = _stopping(num_steps)
        total = rule.max_steps if rule is not None else positive_integer("num_steps", num_steps)
        state = init_state
        if state is None:
            state = self.init(rng_key, *args, init_params=init_params, **kwargs)
        elif self.problem is None:
            self.init(rng_key, *args, init_params=init_params, **kwargs)
        size = rule.window if rule is not None else max(1, min(total, -(-total // 20)))
        if checkpoints is not None and rule is None:
            size = min(size, SAVED_CHUNK)

        layout, stepping, problem = self.layout, self._initialised(), self._traced()
        place = lambda state: (
            state if layout is None or _is_traced(state) else layout.put_state(state)
        )
        whole = lambda state: state if layout is None else layout.gathered(state)
        state = place(state)
        advance = self._advance(args, kwargs, forward_mode_differentiation)
        with nullcontext() if layout is None else layout.active():
            program = jax.make_jaxpr(advance)(state)
            # Inside jit every new array is traced, whatever it is made of.
            if _is_traced((rng_key, state, program.consts, jnp.zeros(()))):
                _check_traceable(rule, checkpoints)
                return self._scan(advance, state, total)

        def body(i: Array, carry: tuple[SVIState, Array]) -> tuple[SVIState, Array]:
            state, losses = carry
            state, loss = advance(state)
            return state, losses.at[i].set(loss)

        buffer = jnp.zeros((size,), program.out_avals[-1].dtype)
        # The length is traced: the last, shorter chunk needs no second compilation.
        run = lambda state, length: jax.lax.fori_loop(0, length, body, (state, buffer))
        chunk = jax.jit(run) if layout is None else layout.jitted(run, state)

        keeper, history, ending = None, History(), None
        if checkpoints is not None:
            about = {"arguments": (args, kwargs)}
            identity = Identity.of(state, about, advance, state)
            keeper = Keeper(checkpoints, identity, whole(state), resume=resume)
            if keeper.found is not None:
                found, history, _, ending = keeper.found
                state = place(found)
            else:
                # The first one shows that the others can be written too.
                keeper.write(0, whole(state), 0.0)
        done = len(history.step_losses)
        converged = None if rule is None else ending == _CONVERGED
        signals = nullcontext(Interrupt()) if keeper is None else deferred_interrupts()
        shown = _bar(total, disable=not progress_bar or not is_first())
        with stopping_if_lost(), signals as interrupt, shown as bar:
            bar.update(done)
            lost = halted = False
            good = state
            while done < total and not (converged or halted or lost):
                length = min(size, total - done)
                begun, (state, filled) = state, chunk(state, length)
                wait_for(filled)
                history.losses.append(np.asarray(filled[:length]))
                good = begun if np.isfinite(history.losses[-1][0]) else good
                done += length
                bar.update(length)
                bar.set_postfix_str(
                    f"init loss: {history.losses[0][0]:.4f}, "
                    f"avg. loss [{done - length + 1}-{done}]: {np.mean(history.losses[-1]):.4f}",
                    refresh=False,
                )
                lost = self._stuck(state, history.latest(MAX_REJECTIONS))
                if lost:
                    cause = self._cause(rng_key, state, args, kwargs)
                    warnings.warn(
                        STUCK.format(done=done, cause=cause), RuntimeWarning, stacklevel=2
                    )
                    state = state if stepping.keeps_good_points else good
                if rule is not None and not lost:
                    converged = rule.reached_between(done - length, done, history.latest)
                if keeper is not None:
                    halted = in_any_process(bool(interrupt))
                    keeper.note([], history.losses[-1])
                    if converged or halted or lost or done >= total or keeper.due(done):
                        keeper.save(done, whole(state), 0.0, _CONVERGED if converged else None)
        dropped = np.count_nonzero(~np.isfinite(history.step_losses))
        if dropped and not lost:
            cause = self._cause(rng_key, state, args, kwargs)
            said = DROPPED.format(count=dropped, done=done, cause=cause)
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        said = "" if lost or halted else far_off(state.optim_state, problem)
        if said:
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        params = self.get_params(state)
        if layout is not None:
            params = layout.local(layout.gathered(params))
        result = RunResult(params, state, jnp.asarray(history.step_losses))
        result.interrupted = halted and done < total and not converged
        result.converged = converged
        return result

    def _advance(
        self, args: tuple, kwargs: dict[str, Any], forward_mode: bool
    ) -> Callable[[SVIState], tuple[SVIState, Array]]:
        """One step as a function of the state alone, on a mesh if there is one."""
        layout, num_data = self.layout, self._traced().num_data

        # Compiled within a loop; as a function of its own it is traced once and not twice.
        @jax.jit
        def advance(state: SVIState) -> tuple[SVIState, Array]:
            own, named = args, kwargs
            if layout is not None:
                state = layout.pin(state)
                own, named = layout.divide_data((args, kwargs), num_data)
            return self.update(state, *own, forward_mode_differentiation=forward_mode, **named)

        return advance

    def _scan(
        self,
        advance: Callable[[SVIState], tuple[SVIState, Array]],
        state: SVIState,
        num_steps: int,
    ) -> RunResult:
        """A run inside a transformation: nothing is known of it before it is over."""
        state, losses = jax.lax.scan(lambda state, _: advance(state), state, length=num_steps)
        return RunResult(self.get_params(state), state, losses)

    def _stuck(self, state: SVIState, losses: np.ndarray) -> bool:
        """Whether step after step was rejected: nothing else than what is not finite does that."""
        rejections = getattr(state.optim_state, "rejections", None)
        if rejections is None:
            return len(losses) == MAX_REJECTIONS and not np.any(np.isfinite(losses))
        return int(rejections) >= MAX_REJECTIONS

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
        if self.rule is None:
            return cause
        return cause._replace(advice=f"Use a smaller learning rate. {cause.advice}")

    def _step(
        self, svi_state: SVIState, args: tuple, kwargs: dict[str, Any], forward_mode: bool
    ) -> tuple[SVIState, Array, AdaptiveInfo | None]:
        problem, stepping = self._traced(), self._initialised()
        key, step_key = jax.random.split(svi_state.rng_key)
        # JAX draws some discrete values, which a guide then may have, with its own generator alone.
        if not self.loss.can_infer_discrete:
            step_key = written_out(step_key)
        loss_key, metric_key, plate_key = jax.random.split(step_key, 3)
        mutable = svi_state.mutable_state
        kwargs = {**kwargs, **self.static_kwargs}
        plain = Call(args, kwargs, {}, mutable or {})
        here = Here(
            problem,
            problem.call(plate_key, args, kwargs, mutable),
            lambda: problem.call(jax.random.fold_in(plate_key, 1), args, kwargs, mutable),
            partial(Losses.drawn, loss_key, self.loss, problem, plain, forward_mode=forward_mode),
            metric_key,
        )
        step = stepping.step(svi_state.optim_state, here)
        if mutable:
            mutable = _accepted(step.taken, step.losses.written[0], mutable)
        return SVIState(step.state, mutable, key), step.loss * problem.num_data, step.info

    def _bound(self) -> partial:
        """From unconstrained to constrained parameters, as NumPyro's `init` bound it."""
        if not isinstance(self.constrain_fn, partial):
            raise InputError(_NOT_INITIALISED)
        return self.constrain_fn

    def _initialised(self) -> AbstractRule:
        if self.stepping is None:
            raise InputError(_NOT_INITIALISED)
        return self.stepping

    def _traced(self) -> TracedProblem:
        if self.problem is None:
            raise InputError(_NOT_INITIALISED)
        return self.problem

    def _chosen_rule(self, parameters: Parameters, called: Callable[[], Call]) -> AbstractRule:
        """The user's, or the automatic one that fits, for which the loss gets its particles."""
        problem = self._traced()
        if self.rule is not None:
            preconditioner = precondition(
                problem,
                self._metric(max(3, getattr(self.loss, "num_particles", 1))),
                curvature=self.curvature,
                damping=DEFAULT_DAMPING if self.damping is None else self.damping,
            )
            return PreconditionedRule(self.rule, preconditioner, problem.model_names)
        network = self._network(parameters, called)
        if network is not None:
            # Each has a minibatch of its own; one or four of them take longer to arrive.
            self._take_particles(2)
            return network
        geometry = self.curvature
        if geometry is None:
            geometry = geometry_of(self.guide, problem, parameters)
        elif isinstance(geometry, AbstractCurvature):
            geometry = Linearised(geometry, num_data=problem.num_data)
        self._take_particles(default_particles(geometry, parameters))
        options = {} if self.damping is None else {"initial_damping": float(self.damping)}
        adaptive = Adaptive(geometry, problem.num_data, **options)
        return AutomaticRule(adaptive, self._metric(geometry.num_draws))

    def _network(self, parameters: Parameters, called: Callable[[], Call]) -> NetworkRule | None:
        """The rule for networks, where nothing else was asked for and they are most of it all."""
        problem = self._traced()
        if any(choice is not None for choice in (self.curvature, self.fisher, self.damping)):
            return None
        if not has_many_parameters(self.guide, problem, parameters):
            return None
        structure = layers_of(problem, parameters, called())
        return None if structure is None else NetworkRule.of(problem, structure)

    def _take_particles(self, count: int) -> None:
        if self._own_loss:
            self.loss = Trace_ELBO(num_particles=count)

    def _metric(self, num_particles: int) -> AbstractMetric:
        return default_metric(num_particles) if self.fisher is None else self.fisher


def default_metric(num_particles: int = 10) -> AbstractMetric:
    """The Fisher of every conditional distribution, and the KL's own curvature."""
    estimator = Exact(with_misfit=True)
    return BayesianNetwork(estimator, num_particles) + Divergence(estimator, num_particles)


def _as_optimizer(
    optim: optax.GradientTransformation | Optimizer | _NumPyroOptim | None,
) -> _NumPyroOptim | None:
    if isinstance(optim, Minimize):
        raise expected("optim", "an optimizer that takes one gradient at a time", "Minimize")
    if optim is None or isinstance(optim, _NumPyroOptim):
        return optim
    if isinstance(optim, Optimizer):
        return _NumPyroOptim(lambda *args: args, *optim)
    if isinstance(optim, optax.GradientTransformation):
        return optax_to_numpyro(optim)
    raise expected(
        "optim", "an optax transformation, a NumPyro optimizer or None", type(optim).__name__
    )


def _check_loss(loss: ELBO) -> None:
    if getattr(loss, "multi_sample_guide", False):
        raise InputError(
            "loss: expected multi_sample_guide=False, got True. The metric is that of one draw: "
            "let the guide draw every latent once, and take as many particles as it drew samples, "
            "for instance Trace_ELBO(num_particles=10)."
        )


def _stopping(num_steps: int | Converged | str) -> Converged | None:
    if isinstance(num_steps, Converged):
        return num_steps
    if isinstance(num_steps, str):
        if num_steps != "auto":
            raise expected("num_steps", 'a number, Converged() or "auto"', repr(num_steps))
        return Converged()
    return None


def _is_traced(tree: PyTree) -> bool:
    return any(is_traced(leaf) for leaf in jax.tree.leaves(tree))


def _check_traceable(rule: Converged | None, checkpoints: Checkpoints | None) -> None:
    """Refuse what needs the values of a run that is traced."""
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


def _bar(total: int, *, disable: bool):
    import tqdm

    return tqdm.tqdm(total=total, disable=disable)
