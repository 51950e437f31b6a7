"""The ring stores true transitions once, samples them uniformly and survives a save."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.config.hyper_parameters import TransitionHyperParameters
from rl_training.data import memory
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import EnvSpec, Transitions
from rl_training.errors import CheckpointError, ReplayTooLarge, UsageError
from rl_training.storage.tree import join, split, tree_hash

SPEC = EnvSpec(env_id="toy", obs_shape=(2,), action_kind="discrete", num_actions=9)


def one_step(
    obs: float, following: float, *, first: bool = False, terminated: bool = False, action: int = 0
) -> Transitions:
    """A step of one environment whose observations are (value, -value)."""
    return steps([(obs, following, first, terminated, True)], action=action)


def steps(rows: list[tuple[float, float, bool, bool, bool]], action: int = 0) -> Transitions:
    obs, following, first, terminated, valid = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    return Transitions(
        obs=np.stack([obs, -obs], 1).astype(np.float32),
        action=np.full(len(rows), action),
        reward=obs.astype(np.float32),
        next_obs=np.stack([following, -following], 1).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros(len(rows), np.bool_),
        first=first,
        valid=valid,
    )


def everything(buffer: ReplayBuffer) -> set[tuple[float, float, float]]:
    """Every (observation, successor, discount) the buffer can give."""
    batch = buffer.sample(4000)
    return set(
        zip(
            batch.obs[:, 0].tolist(),
            batch.next_obs[:, 0].tolist(),
            batch.discount.tolist(),
            strict=True,
        )
    )


def test_discount_is_gamma_and_zero_only_after_termination() -> None:
    buffer = ReplayBuffer(SPEC, capacity=10, gamma=0.5)
    buffer.add(one_step(1, 2, first=True))
    buffer.add(one_step(2, 3, terminated=True))
    buffer.add(one_step(7, 8, first=True))  # the episode before was ended by termination
    buffer.add(one_step(20, 21, first=True))  # the one before was truncated: 7 -> 8 bootstraps
    assert everything(buffer) == {(1, 2, 0.5), (2, 3, 0.0), (7, 8, 0.5), (20, 21, 0.5)}
    assert len(buffer) == 4


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncation_bootstraps_from_the_true_last_observation(n_step: int) -> None:
    """1 -> 2 -> 3, cut off there; the environment then starts again at 50."""
    buffer = ReplayBuffer(SPEC, capacity=10, gamma=0.5, n_step=n_step)
    buffer.add(one_step(1, 2, first=True))
    cut = one_step(2, 3)
    buffer.add(cut._replace(truncated=np.array([True])))
    buffer.add(one_step(50, 51, first=True))
    batch = buffer.sample(500)
    rows = batch.obs[:, 0] == 2
    assert rows.sum() > 50
    assert set(batch.discount[rows].tolist()) == {0.5}  # gamma, as if the episode went on
    assert torch.equal(batch.next_obs[rows], torch.tensor([[3.0, -3.0]]).expand(rows.sum(), 2))
    assert set(batch.reward[rows].tolist()) == {2.0}  # and no reward of the next episode
    # A termination there would end the sum.
    ended = ReplayBuffer(SPEC, capacity=10, gamma=0.5, n_step=n_step)
    ended.add(one_step(1, 2, first=True))
    ended.add(one_step(2, 3, terminated=True))
    assert set(ended.sample(500).discount.tolist()) == ({0.5, 0.0} if n_step == 1 else {0.0})


def test_the_first_step_of_all_needs_no_flag() -> None:
    buffer = ReplayBuffer(SPEC, capacity=10, gamma=0.5)
    buffer.add(one_step(1, 2))  # fed by hand, from the middle of an episode
    buffer.add(one_step(2, 3))
    assert everything(buffer) == {(1, 2, 0.5), (2, 3, 0.5)}


def test_batch_rows_belong_together() -> None:
    buffer = ReplayBuffer(SPEC, capacity=100)
    for t in range(50):
        buffer.add(one_step(t, t + 1, first=t == 0, action=t % 9))
    batch = buffer.sample(64)
    assert torch.equal(batch.reward, batch.obs[:, 0])
    assert torch.equal(batch.next_obs[:, 0], batch.obs[:, 0] + 1)
    assert torch.equal(batch.next_obs[:, 1], -batch.next_obs[:, 0])
    assert torch.equal(batch.action, (batch.obs[:, 0] % 9).long())
    assert torch.equal(batch.weight, torch.ones(64))


def test_the_ring_keeps_the_newest_and_never_joins_old_and_new() -> None:
    buffer = ReplayBuffer(SPEC, capacity=4)
    for t in range(11):
        buffer.add(one_step(t, t + 1, first=t == 0))
    assert {row[:2] for row in everything(buffer)} == {(7, 8), (8, 9), (9, 10), (10, 11)}
    buffer.add(one_step(50, 51, first=True))  # takes the row after the tail of 10 -> 11
    assert {row[:2] for row in everything(buffer)} == {(9, 10), (10, 11), (50, 51)}


def test_rows_that_only_reset_are_not_stored() -> None:
    buffer = ReplayBuffer(SPEC, capacity=20, num_envs=2)
    buffer.add(steps([(1, 2, True, False, True), (11, 12, True, True, True)]))
    buffer.add(steps([(2, 3, False, False, True), (12, 90, False, False, False)]))
    buffer.add(steps([(3, 4, False, False, True), (90, 91, True, False, True)]))
    pairs = {row[:2] for row in everything(buffer)}
    assert pairs == {(1, 2), (2, 3), (3, 4), (11, 12), (90, 91)}
    assert len(buffer) == 5


def test_sampling_is_uniform_over_transitions() -> None:
    buffer = ReplayBuffer(SPEC, capacity=60, num_envs=3)
    for t in range(8):  # episodes of two steps, so a third of the rows are tails
        rows = [(10.0 * env + t, 10 * env + t + 0.5, t % 2 == 0, False, True) for env in range(3)]
        buffer.add(steps(rows))
    drawn = buffer.sample(48_000).obs[:, 0].numpy()
    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == 24
    # 2000 expected each, standard deviation 44: five of them either way.
    assert counts.min() > 1780
    assert counts.max() < 2220


def test_the_same_seed_draws_the_same_batches() -> None:
    buffers = [ReplayBuffer(SPEC, capacity=50, seed=seed) for seed in (3, 3, 4)]
    for buffer in buffers:
        for t in range(40):
            buffer.add(one_step(t, t + 1, first=t == 0))
    first, same, other = (buffer.sample(32).obs for buffer in buffers)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_batch_lasts_until_the_next_of_its_size() -> None:
    """The memory of a batch is used again, as its docstring says; each size has its own."""
    buffer = ReplayBuffer(SPEC, capacity=50)
    for t in range(40):
        buffer.add(one_step(t, t + 1, first=t == 0))
    small = buffer.sample(8)
    kept = [torch.as_tensor(field).clone() for field in small[:7]]
    other = buffer.sample(16)
    assert len(other.obs) == len(other.slots) == 16
    assert all(torch.equal(torch.as_tensor(x), y) for x, y in zip(small[:7], kept, strict=True))
    again = buffer.sample(8)
    assert all(mine is earlier for mine, earlier in zip(again, small, strict=True))
    assert not torch.equal(small.obs, kept[0])
    for batch in (again, other):  # whichever came later, rows belong together
        assert torch.equal(batch.reward, batch.obs[:, 0])
        assert torch.equal(batch.next_obs[:, 0], batch.obs[:, 0] + 1)
        assert np.array_equal(batch.slots, batch.obs[:, 0].numpy())


def test_the_batch_does_not_share_memory_with_the_rings() -> None:
    buffer = ReplayBuffer(SPEC, capacity=5, gamma=0.5)
    buffer.add(one_step(1, 2, first=True))
    for field in buffer.sample(4)[:6]:
        field.fill_(0)
    assert everything(buffer) == {(1, 2, 0.5)}


def test_environments_of_unequal_progress_are_drawn_from_alike() -> None:
    """One environment only resets for most of the time; its few transitions count as any other."""
    buffer = ReplayBuffer(SPEC, capacity=60, num_envs=2)
    for t in range(12):
        ahead, behind = (t, t + 1, t == 0, False, True), (100 + t, 101 + t, t == 9, False, t >= 9)
        buffer.add(steps([ahead, behind]))
    assert len(buffer) == 15
    values, counts = np.unique(buffer.sample(30_000).obs[:, 0].numpy(), return_counts=True)
    assert values.tolist() == [*range(12), 109, 110, 111]
    # 2000 expected each, standard deviation 43: five of them either way.
    assert counts.min() > 1780
    assert counts.max() < 2220


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(2, 6),
    num_envs=st.integers(1, 3),
    offset=st.integers(-2, 3),
    episode=st.integers(1, 9),
    lame=st.booleans(),
)
def test_saved_where_a_ring_becomes_full_or_begins_again_it_goes_on_alike(
    rows: int, num_envs: int, offset: int, episode: int, lame: bool
) -> None:
    """`lame`: the last of several environments makes every other step only."""
    capacity = (rows - 1) * num_envs

    def build(seed: int) -> ReplayBuffer:
        return ReplayBuffer(SPEC, capacity=capacity, num_envs=num_envs, seed=seed)

    def vector_step(t: int) -> Transitions:
        at, first = float(t), t % episode == 0
        return steps(
            [
                (100.0 * n + at, 100.0 * n + at + 1, first or t < 2, False, not skips(n, t))
                for n in range(num_envs)
            ]
        )

    def skips(env: int, t: int) -> bool:
        return lame and env == num_envs - 1 > 0 and t % 2 == 0

    straight, saved = build(1), build(1)
    cut = max(1, rows + offset)
    for t in range(cut):
        straight.add(vector_step(t))
        saved.add(vector_step(t))
    resumed = build(2)
    resumed.load_state_dict(join(*split(saved.state_dict())))
    assert tree_hash(resumed.state_dict()) == tree_hash(straight.state_dict())
    for t in range(cut, cut + 2 * rows):
        for buffer in (straight, resumed):
            buffer.add(vector_step(t))
        mine, other = resumed.sample(16), straight.sample(16)
        assert all(np.array_equal(x, y) for x, y in zip(mine, other, strict=True))
        assert tree_hash(resumed.state_dict()) == tree_hash(straight.state_dict())


def test_memory_is_known_before_allocation() -> None:
    # 101 rows of 2 float32, one int64, two float32 and one flag: 25 bytes each.
    assert ReplayBuffer.predicted_bytes(SPEC, 100, 1) == 101 * 25
    for num_envs in (1, 3):
        buffer = ReplayBuffer(SPEC, capacity=100, num_envs=num_envs)
        assert buffer.nbytes == ReplayBuffer.predicted_bytes(SPEC, 100, num_envs)


def test_a_buffer_that_does_not_fit_is_refused_before_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 10_000)
    hyper = TransitionHyperParameters(buffer_size=1_000_000)
    with pytest.raises(ReplayTooLarge, match=r"needs 23.8 MiB, and 9.8 KiB are available"):
        ReplayBuffer.build(SPEC, hyper, num_envs=1, seed=0, device=torch.device("cpu"))
    monkeypatch.setattr(memory, "available_memory", lambda: 10**9)
    built = ReplayBuffer.build(SPEC, hyper, num_envs=1, seed=0, device=torch.device("cpu"))
    assert built.nbytes == 1_000_001 * 25


def test_replay_memory_sets_the_capacity() -> None:
    hyper = TransitionHyperParameters(replay_memory="2500B")
    buffer = ReplayBuffer.build(SPEC, hyper, num_envs=1, seed=0, device=torch.device("cpu"))
    assert buffer.nbytes == 100 * 25  # 99 transitions and the newest observation


def test_sampling_an_empty_buffer_is_an_error() -> None:
    with pytest.raises(UsageError, match="empty"):
        ReplayBuffer(SPEC, capacity=4).sample(1)


def test_a_saved_buffer_of_another_size_is_refused() -> None:
    saved = ReplayBuffer(SPEC, capacity=4).state_dict()
    with pytest.raises(CheckpointError, match=r"rows 5, this one has 9"):
        ReplayBuffer(SPEC, capacity=8).load_state_dict(saved)


class ListModel:
    """The obvious replay memory: a list of transitions per environment, newest last."""

    def __init__(self, rows: int, num_envs: int) -> None:
        self.rows = rows
        # Per environment, what lies in its ring, oldest first: transitions and tails (None).
        self.rings: list[list[tuple[float, float, float] | None]] = [[] for _ in range(num_envs)]

    def add(self, env: int, row: tuple[float, float, float], first: bool) -> None:
        ring = self.rings[env]
        if ring:
            ring.pop()  # the open row that held the newest observation ...
            if first:
                ring.append(None)  # ... stays as a tail when a new episode begins
        ring += [row, None]
        del ring[: max(0, len(ring) - self.rows)]

    def content(self) -> set[tuple[float, float, float]]:
        return {row for ring in self.rings for row in ring if row is not None}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_sequence_of_steps_and_saves_equals_a_list(data: st.DataObject) -> None:
    num_envs = data.draw(st.integers(1, 3))
    capacity = data.draw(st.integers(3, 12))
    gamma = 0.5

    def build(seed: int) -> ReplayBuffer:
        return ReplayBuffer(SPEC, capacity=capacity, num_envs=num_envs, gamma=gamma, seed=seed)

    buffer, model = build(0), ListModel(ReplayBuffer.rows_per_env(capacity, num_envs), num_envs)
    fresh = [True] * num_envs
    current = [float(1000 * env) for env in range(num_envs)]
    for _ in range(data.draw(st.integers(1, 25))):
        rows = []
        for env in range(num_envs):
            valid, ends = data.draw(st.booleans()) or env == 0, data.draw(st.integers(0, 3))
            terminated = ends == 1
            following = current[env] + 1
            rows.append((current[env], following, fresh[env] and valid, terminated, valid))
            if valid:
                discount = 0.0 if terminated else gamma
                model.add(env, (current[env], following, discount), fresh[env])
                fresh[env] = ends in (1, 2)
                current[env] = following + (10 if fresh[env] else 0)
        buffer.add(steps(rows))
        if data.draw(st.integers(0, 4)) == 0:
            restored = build(99)
            restored.load_state_dict(join(*split(buffer.state_dict())))
            assert tree_hash(restored.state_dict()) == tree_hash(buffer.state_dict())
            buffer = restored
    assert len(buffer) == len(model.content())
    assert everything(buffer) == model.content()
    others = data.draw(st.integers(1, 4))
    other = ReplayBuffer(
        SPEC, capacity=others * data.draw(st.integers(30, 40)), num_envs=others, gamma=0.25
    )
    other.take_over(join(*split(buffer.state_dict())))
    assert everything(other) == {
        (obs, after, gone and 0.25) for obs, after, gone in model.content()
    }


def test_a_smaller_buffer_takes_over_the_newest_transitions() -> None:
    buffer = ReplayBuffer(SPEC, capacity=40, num_envs=2)
    for t in range(20):  # of both environments, the ends of whose episodes differ
        ends = [t % 5 == 4, t % 3 == 2]
        begins = [t % 5 == 0, t % 3 == 0]
        buffer.add(
            steps([(100 * i + t, 100 * i + t + 1, begins[i], ends[i], True) for i in range(2)])
        )
    single = ReplayBuffer(SPEC, capacity=10, gamma=0.5)
    single.take_over(buffer.state_dict())
    # Newest are 15-19 and 118-119, before them 115-117; each episode has a row more.
    held = {obs for obs, _, _ in everything(single)}
    assert held <= {*range(15, 20), *range(115, 120)}
    assert {118, 119} <= held
    again = ReplayBuffer(SPEC, capacity=10, gamma=0.25)
    again.take_over(single.state_dict())
    kept = ReplayBuffer(SPEC, capacity=10, gamma=0.25)
    kept.load_state_dict(join(*split(again.state_dict())))
    assert {discount for _, _, discount in everything(kept)} == {0.0, 0.25}


def test_a_forged_shape_to_take_over_is_refused() -> None:
    buffer = ReplayBuffer(SPEC, capacity=8)
    buffer.add(one_step(1, 2, first=True))
    saved = buffer.state_dict()
    for forged in ({"rows": 1}, {"num_envs": 0}, {"rows": "9"}, {"num_envs": 3}):
        with pytest.raises(CheckpointError):
            ReplayBuffer(SPEC, capacity=20).take_over(saved | forged)
    with pytest.raises(ReplayTooLarge):
        ReplayBuffer(SPEC, capacity=20).take_over(saved | {"rows": 2**50, "extent": 2**50})


# n-step sums.


def sums(buffer: ReplayBuffer) -> set[tuple[float, float, float, float]]:
    """Every (observation, summed reward, discount, observation to bootstrap from)."""
    batch = buffer.sample(4000)
    columns = (batch.obs[:, 0], batch.reward, batch.discount, batch.next_obs[:, 0])
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_rewards_are_summed_up_to_the_end_of_the_episode_by_hand() -> None:
    # The reward is the observation; gamma is 1/2, so that every sum is exact.
    buffer = ReplayBuffer(SPEC, capacity=20, gamma=0.5, n_step=3)
    for t in (1, 2, 3):
        buffer.add(one_step(t, t + 1, first=t == 1))
    buffer.add(one_step(4, 5, terminated=True))
    for t in (10, 11):  # truncated after 11 -> 12
        buffer.add(one_step(t, t + 1, first=t == 10))
    buffer.add(one_step(20, 21, first=True))  # the newest: its episode goes on
    assert sums(buffer) == {
        (1, 1 + 2 / 2 + 3 / 4, 1 / 8, 4),
        (2, 2 + 3 / 2 + 4 / 4, 0, 5),
        (3, 3 + 4 / 2, 0, 5),
        (4, 4, 0, 5),
        (10, 10 + 11 / 2, 1 / 4, 12),
        (11, 11, 1 / 2, 12),
        (20, 20, 1 / 2, 21),
    }


def test_a_sum_of_one_reward_is_the_transition() -> None:
    one, plain = (ReplayBuffer(SPEC, capacity=9, gamma=0.5, **k) for k in ({"n_step": 1}, {}))
    for t in range(20):
        for buffer in (one, plain):
            buffer.add(one_step(t, t + 1, first=t % 6 == 0, terminated=t % 6 == 5))
    assert sums(one) == sums(plain)


def sums_of_a_list(
    rows: list[tuple[float, bool, bool]], n_step: int, gamma: float
) -> dict[float, tuple[float, float, float]]:
    """The same from a plain list of one environment's (reward, terminated, cut), oldest first."""
    found = {}
    for start, (name, _, _) in enumerate(rows):
        total, factor, t = 0.0, 1.0, start
        while True:
            reward, terminated, cut = rows[t]
            total += factor * reward
            factor *= 0.0 if terminated else gamma
            if terminated or cut or t + 1 == len(rows) or t + 1 == start + n_step:
                break
            t += 1
        found[name] = (total, factor, rows[t][0] + 1)
    return found


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.sampled_from(["", "", "", "terminated", "cut"]), min_size=1, max_size=40),
    n_step=st.integers(1, 6),
    capacity=st.integers(2, 30),
    save_at=st.integers(0, 40),
)
def test_sums_agree_with_a_plain_list(
    ends: list[str], n_step: int, capacity: int, save_at: int
) -> None:
    buffer = ReplayBuffer(SPEC, capacity=capacity, gamma=0.5, n_step=n_step)
    first, rows = True, []
    for t, end in enumerate(ends):
        name = float(t + 1)
        buffer.add(one_step(name, name + 1, first=first, terminated=end == "terminated"))
        rows.append((name, end == "terminated", end == "cut"))
        first = end != ""
        if t == save_at:
            saved = buffer.state_dict()
            buffer = ReplayBuffer(SPEC, capacity=capacity, gamma=0.5, n_step=n_step, seed=1)
            buffer.load_state_dict(saved)
    expected = sums_of_a_list(rows, n_step, 0.5)
    found = sums(buffer)
    assert {row[0] for row in found} == {row[0] for row in rows[len(rows) - len(buffer) :]}
    for name, total, discount, following in found:
        assert (total, discount, following) == expected[name]
