"""An illegal action is never taken, never bootstrapped from and never has probability."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from masked_envs import DISCRETE, MULTI, MaskedEnv, MethodEnv, NativeMasked, TupleEnv, mask_of
from rl_training.algorithms.base import ActResult, mask_illegal
from rl_training.algorithms.c51 import c51_loss
from rl_training.algorithms.dqn import dqn_loss
from rl_training.algorithms.drqn import drqn_loss
from rl_training.algorithms.functional.distributions import Categorical, distribution
from rl_training.algorithms.qr_dqn import qr_dqn_loss
from rl_training.algorithms.value_based import EpsilonGreedy
from rl_training.api.algorithms import DQN, SAC
from rl_training.data.masks import check_stored, packed, unpacked
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.types import Batch, EnvSpec, SequenceBatch, Transitions
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.masks import HideActionMask, legal_action
from rl_training.envs.peg_solitaire import PegSolitaire
from rl_training.envs.snapshots.vector import resume_level
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import CheckpointError, EnvError, IncompatibleEnv, UsageError
from rl_training.experiment.registry import get_spec, train_config
from rl_training.fast import losses
from rl_training.runtime.collector import Collector
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.tree import tree_hash
from rl_training.testing import resume_is_exact, short_config
from rl_training.tools.doctor.contract import contract_findings, random_play
from training import TINY, tiny_config
from value_batches import make_batch

MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
MASKED = ("dqn", "qr_dqn", "c51", "drqn", "ppo", "recurrent_ppo")
SPEC = EnvSpec(env_id="toy", obs_shape=(3,), action_kind="discrete", num_actions=5, masked=True)
MULTI_SPEC = EnvSpec(
    env_id="toy",
    obs_shape=(3,),
    action_kind="multi_discrete",
    action_dim=2,
    action_sizes=MULTI,
    masked=True,
)


# Collecting


def makers(kind: type[gym.Env[Any, Any]], num_envs: int, **kwargs: Any) -> list[Callable[[], Any]]:
    return [partial(kind, number, **kwargs) for number in range(num_envs)]


def gymnasium_sync(mode: AutoresetMode, num_envs: int) -> Any:
    return SyncVectorEnv(makers(MaskedEnv, num_envs), autoreset_mode=mode)


def ours(vectorization: str, num_envs: int, kind: Any = MaskedEnv) -> Any:
    return make_vector_env(kind, num_envs=num_envs, vectorization=vectorization)


VECTORS: dict[str, Callable[[int], Any]] = {
    **{f"gymnasium {mode.name}": partial(gymnasium_sync, mode) for mode in MODES},
    **{f"native {mode.name}": partial(lambda m, n: NativeMasked(n, m), mode) for mode in MODES},
    "sync": partial(ours, "sync"),
    "async": partial(ours, "async"),
    "sync method": partial(ours, "sync", kind=MethodEnv),
}


def collect(envs: Any, steps: int, seed: int, *stores: Any) -> list[Transitions]:
    """Random legal steps, added to the stores; the environments raise if one is illegal."""
    spaces = envs.single_observation_space, envs.single_action_space
    collector = Collector(envs, SpaceAdapter("toy", *spaces, masked=True))
    rng = np.random.default_rng(seed)

    def act(obs: np.ndarray, state: Any, first: np.ndarray, legal: np.ndarray) -> ActResult:
        exploration = EpsilonGreedy(5, int(rng.integers(2**31)))
        return ActResult(exploration.act(1.0, len(obs), lambda: np.zeros(0), legal), state)

    taken = []
    try:
        collector.reset([seed + i for i in range(envs.num_envs)], state=())
        for _ in range(steps):
            taken.append(collector.step(act))
            for store in stores:
                store.add(taken[-1])
    finally:
        collector.close()
    return taken


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", VECTORS)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000))
def test_each_observation_has_its_own_mask(name: str, num_envs: int, seed: int) -> None:
    replay = ReplayBuffer(SPEC, capacity=30, num_envs=num_envs, gamma=0.9, n_step=3, seed=seed)
    for step in collect(VECTORS[name](num_envs), 40, seed, replay):
        assert step.legal is not None
        assert step.next_legal is not None
        for row in np.flatnonzero(step.valid):
            legal = mask_of(step.obs[row], DISCRETE)
            assert np.array_equal(step.legal[row], legal)
            assert legal[step.action[row]]
            # In a terminated state no action is taken: all count as legal.
            following = step.terminated[row] | mask_of(step.next_obs[row], DISCRETE)
            assert np.array_equal(step.next_legal[row], following)
    # The mask of the state that an n-step target bootstraps from, in a ring that has come round.
    batch = replay.sample(64)
    assert batch.legal is not None
    assert batch.next_legal is not None
    for row in range(64):
        assert np.array_equal(batch.legal[row], mask_of(batch.obs[row].numpy(), DISCRETE))
        if batch.discount[row]:
            following = mask_of(batch.next_obs[row].numpy(), DISCRETE)
            assert np.array_equal(batch.next_legal[row], following)


def first_legal(obs: np.ndarray, state: Any, first: np.ndarray, legal: np.ndarray) -> ActResult:
    parts = np.split(legal, [MULTI[0]], 1)
    return ActResult(np.stack([part.argmax(1) for part in parts], 1), state)


def test_masks_of_several_parts_come_flat_or_in_a_tuple() -> None:
    for kind in (partial(MaskedEnv, multi=True), TupleEnv):
        envs = SyncVectorEnv([kind, kind], autoreset_mode=AutoresetMode.NEXT_STEP)
        spaces = envs.single_observation_space, envs.single_action_space
        collector = Collector(envs, SpaceAdapter("toy", *spaces, masked=True))
        collector.reset([0, 1], ())

        seen = 0
        for _ in range(10):
            step = collector.step(first_legal)
            assert step.legal is not None
            for row in np.flatnonzero(step.valid):
                assert np.array_equal(step.legal[row], mask_of(step.obs[row], MULTI))
                seen += 1
        assert seen > 10


def test_sequences_and_rollouts_have_the_mask_of_each_row() -> None:
    sequences = RecurrentReplayBuffer(
        SPEC, capacity=60, sequence_length=3, burn_in=1, overlap=1, state_sizes=(1,), num_envs=3
    )
    rollout = RolloutBuffer(SPEC, num_steps=20, num_envs=3)
    for step in collect(VECTORS["sync"](3), 20, 0):
        state = (np.zeros((3, 1), np.float32),)
        sequences.add(step._replace(state=state, next_state=state))
        rollout.add(step)
    batch = sequences.sample(50)
    assert batch.legal is not None
    assert batch.legal.shape == (5, 50, 5)
    for t, b in zip(*np.nonzero(batch.mask.numpy()), strict=True):
        assert np.array_equal(batch.legal[t, b], mask_of(batch.obs[t, b].numpy(), DISCRETE))
        if batch.discount[t, b]:
            following = mask_of(batch.obs[t + 1, b].numpy(), DISCRETE)
            assert np.array_equal(batch.legal[t + 1, b], following)
    assert batch.legal.any(-1).all()  # padding allows every action: nothing is infinite there
    taken = rollout.take()
    assert taken.legal is not None
    for t in range(20):
        for n in range(3):
            assert np.array_equal(taken.legal[t, n], mask_of(taken.obs[t, n].numpy(), DISCRETE))


@given(choices=st.integers(1, 70), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_packing_keeps_every_bit_in_an_eighth_of_the_memory(choices: int, seed: int) -> None:
    legal = np.random.default_rng(seed).random((4, choices)) < 0.5
    stored = packed(legal, slice(None))
    assert stored.shape == (4, -(-choices // 8))
    assert np.array_equal(unpacked(stored, choices), legal)


def test_without_masks_nothing_is_stored() -> None:
    plain = EnvSpec(env_id="toy", obs_shape=(3,), action_kind="discrete", num_actions=5)
    assert "illegal" not in ReplayBuffer(plain, capacity=10).storage
    per_row = [ReplayBuffer.bytes_per_row(spec) for spec in (plain, SPEC)]
    assert per_row[1] - per_row[0] == 1  # five bits
    for spec in (plain, SPEC):
        buffer = ReplayBuffer(spec, capacity=10, num_envs=2)
        assert buffer.nbytes == ReplayBuffer.predicted_bytes(spec, 10, 2)


def test_a_stored_mask_that_allows_nothing_is_refused() -> None:
    check_stored(SPEC, packed(np.eye(5, dtype=np.bool_), slice(None)))
    for spec, legal in ((SPEC, [0, 0, 0, 0, 0]), (MULTI_SPEC, [0, 0, 1, 1, 1, 1])):
        with pytest.raises(CheckpointError, match="expected masks that allow an action"):
            check_stored(spec, packed(np.array([legal], np.bool_), slice(None)))


# Wrong masks

WRONG = {
    "missing": r"expected info\['action_mask'\], as at other steps, found none",
    "none": "expected at least one legal action where the episode goes on, found none",
    "size": "expected a mask of 5 choices, as many as the action space has, found bool of shape",
    "float": "expected bool or integers 0 and 1, found float32",
    "two": "expected 0 and 1 alone, found",
}


@pytest.mark.parametrize("spoil", WRONG)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_wrong_mask_is_an_error_that_says_what_was_expected(
    vectorization: str, spoil: str
) -> None:
    envs = make_vector_env(
        MaskedEnv, num_envs=1, vectorization=vectorization, env_kwargs={"spoil": spoil}
    )
    with pytest.raises(EnvError, match=f"action mask in environment 0 at .*: {WRONG[spoil]}"):
        collect(envs, 20, 0)


def test_a_mask_that_comes_late_is_refused(tmp_path: Path) -> None:
    class Late(MaskedEnv):
        def info(self) -> dict[str, Any]:
            return super().info() if self.episode else {}

    with pytest.raises(EnvError, match="and none with an earlier observation"):
        train_config(tiny_config("dqn", tmp_path, env_id=Late, env_kwargs={"all_legal": True}))


def test_one_of_several_environments_without_a_mask_is_named() -> None:
    envs = SyncVectorEnv(
        [MaskedEnv, partial(MaskedEnv, 1, spoil="missing")],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    with pytest.raises(EnvError, match="wrong action mask in environment 1"):
        collect(envs, 20, 0)


def test_a_method_behind_a_built_vector_environment_is_not_overlooked(tmp_path: Path) -> None:
    envs = SyncVectorEnv([MethodEnv])
    config = tiny_config("dqn", tmp_path, env_id=envs, final_eval_episodes=0, eval_interval=0)
    with pytest.raises(EnvError, match="put the wrapper ActionMaskInfo around each"):
        train_config(config)


# Losses, by hand

NEXT_Q = torch.tensor([[9.0, 2.0, 4.0]])
LEGAL = torch.tensor([[False, True, True]])


def batch_with(legal: Tensor) -> Batch:
    return make_batch([0], [1.0], [0.5])._replace(legal=legal, next_legal=legal)


def targets(**options: Any) -> tuple[float, float]:
    """The target of DQN by its definition and by its kernel."""
    batch, q = batch_with(LEGAL), torch.zeros(1, 3)
    defined = dqn_loss(q, NEXT_Q, batch, **options).metrics["target_mean"]
    arrays = losses.BatchArrays(*(x.numpy() if isinstance(x, Tensor) else x for x in batch))
    selector = options.get("selector")
    options = {"temperature": 0.0} | options
    options["selector"] = None if selector is None else selector.numpy()
    kernel = losses.dqn_loss(q.numpy(), NEXT_Q.numpy(), arrays, **options, huber=True)
    return float(defined), float(kernel.metrics[2])


def test_dqn_takes_the_largest_legal_value() -> None:
    assert targets() == (1 + 0.5 * 4, 1 + 0.5 * 4)


def test_double_dqn_chooses_among_legal_actions() -> None:
    # The online network prefers the illegal action 0, then action 1, whose target value is 2.
    assert targets(selector=torch.tensor([[7.0, 5.0, 3.0]])) == (1 + 0.5 * 2, 1 + 0.5 * 2)


def test_a_soft_target_is_the_logsumexp_over_legal_actions() -> None:
    expected = 1 + 0.5 * 2.0 * log(np.exp(2 / 2) + np.exp(4 / 2))
    assert targets(temperature=2.0) == pytest.approx((expected, expected), rel=1e-6)


def test_qr_dqn_chooses_by_the_mean_of_legal_quantiles() -> None:
    # Means 9, 2 and 4: the third action, with the quantiles 3 and 5, gives the samples 2.5, 3.5.
    quantiles = torch.tensor([[[9.0, 9.0], [0.0, 4.0], [3.0, 5.0]]])
    batch = batch_with(LEGAL)
    result = qr_dqn_loss(torch.zeros(1, 3, 2), quantiles, batch)
    assert float(result.metrics["target_mean"]) == 3.0
    arrays = losses.BatchArrays(*(x.numpy() if isinstance(x, Tensor) else x for x in batch))
    zeros = np.zeros((1, 3, 2), np.float32)
    options: dict[str, Any] = {"selector": None, "temperature": 0.0}
    kernel = losses.qr_dqn_loss(zeros, quantiles.numpy(), arrays, **options)
    assert float(kernel.metrics[2]) == 3.0


def test_c51_chooses_by_the_expectation_of_legal_actions() -> None:
    # On the returns 0, 1, 2: all at 2 (illegal), all at 0, all at 1. So 1 + 0.5 * 1 = 1.5.
    support = torch.tensor([0.0, 1.0, 2.0])
    logits = torch.full((1, 3, 3), -1e4)
    logits[0, [0, 1, 2], [2, 0, 1]] = 0.0
    batch = batch_with(LEGAL)
    result = c51_loss(torch.zeros(1, 3, 3), logits, batch, support)
    assert float(result.metrics["target_mean"]) == pytest.approx(1.5)
    arrays = losses.BatchArrays(*(x.numpy() if isinstance(x, Tensor) else x for x in batch))
    options: dict[str, Any] = {"selector": None, "temperature": 0.0}
    zeros = np.zeros((1, 3, 3), np.float32)
    kernel = losses.c51_loss(zeros, logits.numpy(), arrays, support=support.numpy(), **options)
    assert float(kernel.metrics[2]) == pytest.approx(1.5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@given(seed=st.integers(0, 2**20))
@settings(max_examples=20, deadline=None)
def test_no_loss_depends_on_what_is_expected_of_illegal_actions(
    double: bool, temperature: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    legal = torch.from_numpy(rng.random((3, 4)) < 0.4)
    legal[:, 1] = True
    batch = make_batch([1, 1, 1], [0.0, 1.0, 2.0], [0.9, 0.9, 0.0])._replace(next_legal=legal)
    rows = SequenceBatch(
        obs=torch.zeros(4, 1, 1),
        action=torch.ones(3, 1, dtype=torch.int64),
        reward=numbers(3, 1),
        discount=torch.full((3, 1), 0.9),
        first=torch.zeros(4, 1, dtype=torch.bool),
        mask=torch.ones(3, 1, dtype=torch.bool),
        state=(),
        legal=torch.cat([legal[:1], legal])[:, None],
    )
    q, after, online = numbers(3, 4, 5), numbers(3, 4, 5), numbers(3, 4)
    support = torch.linspace(-2.0, 2.0, 5)

    def values(illegal: float) -> list[float]:
        other = torch.where(legal[..., None], after, illegal * torch.ones_like(after))
        chosen = torch.where(legal, online, illegal * torch.ones_like(online))
        options: dict[str, Any] = {"selector": chosen if double else None}
        options["temperature"] = temperature
        sequence = torch.cat([q[:1, :, 0], chosen])[:, None]
        found = [
            dqn_loss(q[..., 0], other[..., 0], batch, **options),
            qr_dqn_loss(q, other, batch, **options),
            c51_loss(q, other, batch, support, **options),
            drqn_loss(
                sequence if double else q[..., 0][:, None],
                torch.cat([q[:1, :, 0], other[..., 0]])[:, None],
                rows,
                double=double,
                temperature=temperature,
                n_step=2,
            ),
        ]
        return [float(loss.value) for loss in found]

    # The online values of legal rows are the same; C51's logits of illegal actions stay finite.
    assert values(50.0) == values(-50.0)
    assert all(map(np.isfinite, values(50.0)))


# Policies


def test_log_probabilities_and_entropy_are_over_legal_actions() -> None:
    logits = torch.tensor([[5.0, 0.0, log(3.0)]], requires_grad=True)
    policy = Categorical(mask_illegal(logits, LEGAL))
    # Of the legal two, the softmax of (0, log 3) is 1/4 and 3/4.
    assert policy.logits.softmax(-1)[0, 0] == 0
    assert_close(policy.log_prob(torch.tensor([2])), torch.tensor([log(0.75)]))
    entropy = policy.entropy()
    assert_close(entropy, torch.tensor([log(4) - 0.75 * log(3)]))
    total = policy.log_prob(torch.tensor([2])) + entropy
    (gradient,) = torch.autograd.grad(total.sum(), logits)
    # d log p_2 = (-1/4, 1/4); dH/dl_i = -p_i (log p_i + H).
    slope = [-p * (log(p) + log(4) - 0.75 * log(3)) for p in (0.25, 0.75)]
    assert_close(gradient, torch.tensor([[0.0, -0.25 + slope[0], 0.25 + slope[1]]]))
    arrays = losses.CategoricalArrays(logits.detach().numpy(), LEGAL.numpy())
    assert_close(torch.from_numpy(arrays.entropy()), entropy.detach())
    (kernel,) = arrays.gradient(np.array([2]), np.ones(1, np.float32), 1.0)
    assert_close(torch.from_numpy(kernel), gradient)


@pytest.mark.parametrize("spec", [SPEC, MULTI_SPEC], ids=["discrete", "multi"])
@given(seed=st.integers(0, 2**20), scale=st.sampled_from([1.0, 80.0]))
@settings(max_examples=30, deadline=None)
def test_a_policy_never_gives_an_illegal_action_probability(
    spec: EnvSpec, seed: int, scale: float
) -> None:
    rng, rows = np.random.default_rng(seed), 50
    sizes = spec.action_sizes or (spec.num_actions,)
    legal = np.stack([mask_of(np.array([seed, row]), sizes) for row in range(rows)])
    output = (scale * rng.normal(size=legal.shape)).astype(np.float32)
    noise = rng.gumbel(size=legal.shape).astype(np.float32)
    logits = torch.from_numpy(output).requires_grad_()
    policy = distribution(spec, mask_illegal(logits, torch.from_numpy(legal)), None)
    kernel = losses.distribution(spec, output, None, legal)
    starts = np.cumsum((0, *sizes[:-1]))
    for action in (policy.sample(torch.from_numpy(noise)), policy.mode()):
        chosen = starts + action.numpy().reshape(rows, len(sizes))
        assert np.take_along_axis(legal, chosen, 1).all()
    assert np.array_equal(kernel.sample(noise), policy.sample(torch.from_numpy(noise)))
    total = (policy.log_prob(policy.mode()) + 0.1 * policy.entropy()).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    assert torch.isfinite(gradient).all()
    assert (gradient[~torch.from_numpy(legal)] == 0).all()
    (mine,) = kernel.gradient(kernel.mode(), np.ones(rows, np.float32), 0.1)
    assert_close(torch.from_numpy(mine), gradient, rtol=1e-4, atol=1e-4 * scale)


def test_random_actions_are_uniform_over_the_legal_ones() -> None:
    exploration, legal = EpsilonGreedy(4, 0), np.array([[True, False, True, True]])
    drawn = exploration.act(1.0, 30_000, lambda: np.zeros(0), np.repeat(legal, 30_000, 0))
    shares = np.bincount(drawn, minlength=4) / 30_000
    # Six standard deviations of a share of 1/3: 6 * sqrt(2 / 9 / 30000) = 0.016.
    assert shares[1] == 0
    assert np.abs(shares[[0, 2, 3]] - 1 / 3).max() < 0.017


# Runs


def masked_config(algo: str, directory: Path, **changes: Any) -> Any:
    return short_config(
        get_spec(algo), TINY[algo] | {"env_id": "masked_envs:MaskedEnv"}, directory, **changes
    )


@pytest.mark.parametrize("algo", MASKED)
def test_with_all_actions_legal_a_run_equals_one_without_masks(algo: str, tmp_path: Path) -> None:
    agents = []
    for wrappers in ([], ["HideActionMask"]):
        config = masked_config(
            algo,
            tmp_path,
            env_kwargs={"all_legal": True},
            wrappers=wrappers,
            num_envs=2,
            total_timesteps=120,
        )
        result = train_config(config)
        agents.append(tree_hash(find_checkpoint(result.run_dir).read("agent")))
        masks = find_checkpoint(result.run_dir).read("spaces").get("masked", False)
        assert masks is not bool(wrappers)
    assert agents[0] == agents[1]


@pytest.mark.parametrize(
    ("algo", "vectorization"),
    [*((algo, "sync") for algo in MASKED), ("dqn", "async"), ("recurrent_ppo", "async")],
)
def test_a_run_takes_no_illegal_action(algo: str, vectorization: str, tmp_path: Path) -> None:
    # The environment raises at the first one, in training and in evaluation.
    config = masked_config(
        algo,
        tmp_path,
        vectorization=vectorization,
        num_envs=3,
        env_kwargs={"multi": algo.endswith("ppo")},
        total_timesteps=90,
        final_eval_episodes=5,
    )
    assert np.isfinite(train_config(config).eval_return_mean or 0.0)


@pytest.mark.parametrize("algo", ["dqn", "drqn", "ppo", "recurrent_ppo"])
def test_resume_with_masks_is_exact(algo: str, tmp_path: Path) -> None:
    settings_ = TINY[algo] | {"env_id": "masked_envs:MaskedEnv", "total_timesteps": 150}
    resume_is_exact(get_spec(algo), settings_, tmp_path, cuts=1)


def test_predict_takes_a_mask(tmp_path: Path) -> None:
    agent = DQN(MaskedEnv, output_dir=str(tmp_path), algo_kwargs={"hidden_sizes": [8]})
    rows = np.array([[0, 0, 0], [1, 2, 3]], np.float32)
    for choice in range(5):
        only = np.eye(5, dtype=np.int8)[choice]
        assert agent.predict(rows[0], action_mask=only)[0] == choice
        both = agent.predict(rows, action_mask=np.stack([only, only]))[0]
        assert both.tolist() == [choice, choice]
    with pytest.raises(UsageError, match="expected a mask of 5 choices"):
        agent.predict(rows[0], action_mask=[True, False])
    with pytest.raises(UsageError, match="expected a mask for each of 2 rows"):
        agent.predict(rows, action_mask=np.ones((3, 5), bool))
    with pytest.raises(UsageError, match="expected at least one legal action"):
        agent.predict(rows[0], action_mask=np.zeros(5, bool))
    with pytest.raises(UsageError, match="does not choose among discrete actions"):
        SAC("Pendulum-v1").predict([0.0, 0.0, 0.0], action_mask=[True])
    assert agent.evaluate(episodes=3).returns  # untrained, and no illegal action


def test_an_algorithm_that_knows_no_masks_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    from rl_training.algorithms import DQN as Update
    from rl_training.runtime import DQN_SPEC

    class Maskless(Update):
        def act(self, obs: Any, state: Any, first: Any, clock: Any, *, explore: bool) -> Any:  # type: ignore[override]
            return super().act(obs, state, first, clock, explore=explore)

    spec = replace(DQN_SPEC, name="maskless", algorithm=Maskless)
    config = short_config(spec, TINY["dqn"] | {"env_id": "masked_envs:MaskedEnv"}, tmp_path)
    with pytest.raises(IncompatibleEnv, match=r"Maskless.act has no argument legal"):
        train_config(config)


# Environments


def test_peg_solitaire_has_36_jumps_and_ends_when_none_is_left() -> None:
    env = PegSolitaire()
    assert env.action_space.n == 36
    obs, info = env.reset(seed=0)
    assert obs.sum() == 14
    total, terminated = 0.0, False
    while not terminated:
        obs, reward, terminated, _, info = env.step(int(info["action_mask"].argmax()))
        total += reward
        assert obs.sum() == 14 - total
    assert not info["action_mask"].any()


def test_an_illegal_jump_changes_nothing_and_ends_the_episode() -> None:
    env = PegSolitaire()
    before, info = env.reset(seed=0)
    after, reward, terminated, _, _ = env.step(int(info["action_mask"].argmin()))
    assert (reward, terminated) == (0.0, True)
    assert np.array_equal(before, after)


def test_jumps_of_a_small_board_are_those_written_down() -> None:
    # Holes 0 / 1 2 / 3 4 5: from a corner along each side, and back.
    env = PegSolitaire(rows=3)
    jumps = set(zip(env._start.tolist(), env._over.tolist(), env._landing.tolist(), strict=True))
    assert jumps == {(0, 1, 3), (3, 1, 0), (0, 2, 5), (5, 2, 0), (3, 4, 5), (5, 4, 3)}


def test_doctor_says_that_masks_were_found() -> None:
    play = random_play(PegSolitaire(), seconds=10, most_steps=100)
    (found,) = [finding for finding in contract_findings(play) if finding.topic == "masks"]
    assert found.mark == "ok"
    assert found.text.startswith("action masks found with every observation")


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_resume_probe_keeps_to_the_masks(vectorization: str) -> None:
    # The environment raises if it does not, and the level would be statistical.
    make = partial(make_vector_env, MaskedEnv, num_envs=2, vectorization=vectorization)
    assert resume_level(make, seed=0).level == "exact"


@pytest.mark.parametrize(("spoil", "text"), [("none", "at least one legal"), ("missing", "none")])
def test_doctor_finds_wrong_masks(spoil: str, text: str) -> None:
    play = random_play(MaskedEnv(spoil=spoil), seconds=10, most_steps=40)
    (found,) = [finding for finding in contract_findings(play) if finding.topic == "masks"]
    assert found.mark == "error"
    assert text in found.text


def test_scripted_play_keeps_to_the_mask() -> None:
    space = gym.spaces.Discrete(5, start=10)
    mask = {"action_mask": np.array([0, 1, 0, 1, 0], np.int8)}
    assert [int(legal_action(space, a, mask)) for a in range(10, 15)] == [11, 11, 11, 13, 11]
    assert legal_action(space, 12, {}) == 12


def test_a_hidden_mask_is_gone_from_every_info() -> None:
    env = make_env(MaskedEnv, wrappers=["HideActionMask"], env_kwargs={"all_legal": True})
    assert isinstance(env, HideActionMask)
    assert "action_mask" not in env.reset(seed=0)[1]
    assert "action_mask" not in env.step(0)[-1]
