"""Chunks of episodes: what lies in them by hand, and any sequence of steps against plain lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_model import MOST_ENVS, SEQUENCES
from rl_training.config.value_based import DRQNConfig
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer, bytes_per_chunk
from rl_training.data.types import EnvSpec, SequenceBatch, Transitions
from rl_training.errors import CheckpointError, ConfigError, ReplayTooLarge, UsageError
from rl_training.storage.tree import join, split, tree_hash

SPEC = EnvSpec(env_id="toy", obs_shape=(2,), action_kind="discrete", num_actions=9)
GAMMA = 0.5


class Row(NamedTuple):
    """A step from `obs` to `obs + 1`: reward `2 * obs`, action `obs % 9`, state by `memory`."""

    obs: int
    first: bool = False
    ends: str = ""
    valid: bool = True


def memory(obs: float) -> tuple[float, float, float]:
    """The policy state before the step from `obs`: a part of one number, and one of two."""
    return (obs + 0.25, obs + 0.5, obs + 0.75)


def vector_step(*rows: Row) -> Transitions:
    obs = np.array([row.obs for row in rows], np.float32)
    state = np.array([memory(row.obs) for row in rows], np.float32)
    return Transitions(
        obs=np.stack([obs, -obs], 1),
        action=np.array([row.obs % 9 for row in rows]),
        reward=2 * obs,
        next_obs=np.stack([obs + 1, -obs - 1], 1),
        terminated=np.array([row.ends == "termination" for row in rows]),
        truncated=np.array([row.ends == "truncation" for row in rows]),
        first=np.array([row.first for row in rows]),
        valid=np.array([row.valid for row in rows]),
        state=(state[:, :1], state[:, 1:]),
    )


def make(sequence_length: int = 3, seed: int = 0, **options: Any) -> RecurrentReplayBuffer:
    shape: dict[str, Any] = {"capacity": 1000, "state_sizes": (1, 2), "gamma": GAMMA} | options
    return RecurrentReplayBuffer(SPEC, sequence_length=sequence_length, seed=seed, **shape)


def play(
    buffer: RecurrentReplayBuffer, start: int, length: int, ends: str = "termination"
) -> RecurrentReplayBuffer:
    """One episode in the one environment; its observations count from `start`."""
    for t in range(length):
        over = ends if t == length - 1 else ""
        buffer.add(vector_step(Row(start + t, first=t == 0, ends=over)))
    return buffer


class Chunk(NamedTuple):
    """A stored sequence as plain numbers, oldest row first."""

    obs: tuple[Any, ...]
    action: tuple[Any, ...]
    reward: tuple[Any, ...]
    discount: tuple[Any, ...]
    first: tuple[Any, ...]
    mask: tuple[Any, ...]
    state: tuple[Any, ...]


def chunks_in(batch: SequenceBatch) -> set[Chunk]:
    """The columns of a batch; of those with the same observations one."""
    assert torch.equal(batch.obs[..., 1], -batch.obs[..., 0])
    _, columns = np.unique(batch.obs[..., 0].numpy(), axis=1, return_index=True)
    fields = [batch.obs[..., 0], *batch[1:6], torch.cat(batch.state, 1).T]
    by_column = zip(*(field.T[columns].tolist() for field in fields), strict=True)
    return {Chunk(*map(tuple, column)) for column in by_column}


def stored(buffer: RecurrentReplayBuffer) -> list[Chunk]:
    """Every chunk the buffer can give, in order of their observations."""
    return sorted(chunks_in(buffer.sample(400)))


T, F = True, False
NO_STATE = (0.0, 0.0, 0.0)

# What lies in a chunk.


def test_an_episode_is_cut_into_chunks_and_the_last_one_is_padded() -> None:
    buffer = play(make(), 1, 5)
    assert stored(buffer) == [
        Chunk(
            obs=(1, 2, 3, 4),
            action=(1, 2, 3),
            reward=(2, 4, 6),
            discount=(0.5, 0.5, 0.5),
            first=(T, F, F, F),
            mask=(T, T, T),
            state=NO_STATE,
        ),
        Chunk(
            obs=(4, 5, 6, 0),
            action=(4, 5, 0),
            reward=(8, 10, 0),
            discount=(0.5, 0.0, 0.0),
            first=(F, F, F, F),
            mask=(T, T, F),
            state=memory(4),
        ),
    ]
    assert len(buffer) == 5


def test_a_truncated_episode_bootstraps_from_its_last_observation() -> None:
    (chunk,) = stored(play(make(), 1, 2, "truncation"))
    assert chunk.obs == (1, 2, 3, 0)
    assert chunk.discount == (0.5, 0.5, 0.0)
    assert chunk.mask == (T, T, F)


@pytest.mark.parametrize(("ends", "discount"), [("truncation", 0.5), ("termination", 0.0)])
def test_an_episode_that_fills_its_chunk_leaves_no_second_one(ends: str, discount: float) -> None:
    for options in ({}, {"overlap": 2}, {"burn_in": 2}):
        (chunk,) = stored(play(make(**options), 1, 3, ends))
        assert chunk.obs[-4:] == (1, 2, 3, 4)
        assert chunk.discount[-3:] == (0.5, 0.5, discount)


def test_the_state_at_an_episodes_start_is_zeros_whatever_the_policy_was_in() -> None:
    buffer = make()
    play(buffer, 1, 3)
    play(buffer, 10, 3)
    assert [chunk.state for chunk in stored(buffer)] == [NO_STATE, NO_STATE]


def test_the_rows_before_a_chunk_are_its_context() -> None:
    buffer = play(make(burn_in=2), 1, 8)
    start, middle, end = stored(buffer)
    # Before the first chunk there is nothing: two rows of padding, then the episode's first.
    assert start == Chunk(
        obs=(0, 0, 1, 2, 3, 4),
        action=(0, 0, 1, 2, 3),
        reward=(0, 0, 2, 4, 6),
        discount=(0, 0, 0.5, 0.5, 0.5),
        first=(F, F, T, F, F, F),
        mask=(F, F, T, T, T),
        state=NO_STATE,
    )
    # Rows 2 and 3 lead up to 4, 5 and 6; the state is the one before row 2.
    assert middle.obs == (2, 3, 4, 5, 6, 7)
    assert middle.action == (2, 3, 4, 5, 6)
    assert middle.reward == (4, 6, 8, 10, 12)
    assert middle.discount == (0.5,) * 5
    assert middle.first == (F,) * 6
    assert middle.mask == (F, F, T, T, T)
    assert middle.state == memory(2)
    assert end.obs == (5, 6, 7, 8, 9, 0)
    assert end.discount == (0.5, 0.5, 0.5, 0.0, 0.0)
    assert end.mask == (F, F, T, T, F)
    assert end.state == memory(5)
    assert len(buffer) == 8


def test_context_longer_than_a_chunk_reaches_back_to_the_episodes_start() -> None:
    first, second, third = stored(play(make(2, burn_in=3), 1, 6))
    assert first.obs == (0, 0, 0, 1, 2, 3)
    assert second.obs == (0, 1, 2, 3, 4, 5)
    assert second.first == (F, T, F, F, F, F)
    assert (second.mask, second.state) == ((F, F, F, T, T), NO_STATE)
    assert third.obs == (2, 3, 4, 5, 6, 7)
    assert (third.mask, third.state) == ((F, F, F, T, T), memory(2))


def test_overlapping_chunks_share_their_rows() -> None:
    buffer = play(make(overlap=1), 1, 6)
    assert [chunk.obs for chunk in stored(buffer)] == [(1, 2, 3, 4), (3, 4, 5, 6), (5, 6, 7, 0)]
    assert [chunk.mask for chunk in stored(buffer)] == [(T, T, T), (T, T, T), (T, T, F)]
    assert [chunk.state for chunk in stored(buffer)] == [NO_STATE, memory(3), memory(5)]
    assert [chunk.discount for chunk in stored(buffer)][-1] == (0.5, 0.0, 0.0)
    assert len(buffer) == 8


def test_overlap_with_context() -> None:
    first, second, third = stored(play(make(burn_in=1, overlap=2), 1, 5))
    assert first.obs == (0, 1, 2, 3, 4)
    assert second.obs == (1, 2, 3, 4, 5)
    assert (second.first, second.mask) == ((T, F, F, F, F), (F, T, T, T))
    assert second.state == NO_STATE
    assert third.obs == (2, 3, 4, 5, 6)
    assert (third.state, third.discount) == (memory(2), (0.5, 0.5, 0.5, 0.0))


def test_an_episode_cut_without_an_end_keeps_its_rows_and_bootstraps() -> None:
    buffer = make(burn_in=1)
    play(buffer, 1, 5, ends="")
    assert [chunk.obs for chunk in stored(buffer)] == [(0, 1, 2, 3, 4)]  # 4 and 5 wait
    play(buffer, 20, 1)
    _, new, cut = stored(buffer)
    assert cut.obs == (3, 4, 5, 6, 0)
    assert cut.discount == (0.5, 0.5, 0.5, 0.0)
    assert (cut.mask, cut.state) == ((F, T, T, F), memory(3))
    assert new.obs == (0, 20, 21, 0, 0)
    assert new.first == (F, T, F, F, F)


def test_environments_have_chunks_of_their_own_and_reset_rows_are_in_none() -> None:
    buffer = make(2, num_envs=2)
    nothing = Row(77, valid=False)
    buffer.add(vector_step(Row(1, first=True), Row(11, first=True, ends="truncation")))
    assert stored(buffer)[0].obs == (11, 12, 0)  # an end is there at once
    buffer.add(vector_step(Row(2), nothing))
    buffer.add(vector_step(nothing, Row(21, first=True)))
    buffer.add(vector_step(Row(3), Row(22)))
    assert [chunk.obs for chunk in stored(buffer)] == [(1, 2, 3), (11, 12, 0), (21, 22, 23)]
    assert [chunk.first for chunk in stored(buffer)] == [(T, F, F)] * 3
    assert len(buffer) == 5  # 3 waits in a chunk that is not finished
    buffer.add(vector_step(Row(4), nothing))
    assert stored(buffer)[1] == Chunk(
        (3, 4, 5), (3, 4), (6, 8), (0.5, 0.5), (F, F, F), (T, T), memory(3)
    )


def test_the_newest_chunks_stay() -> None:
    buffer = make(2, capacity=5)  # three chunks
    play(buffer, 1, 6)
    assert [chunk.obs[0] for chunk in stored(buffer)] == [1, 3, 5]
    play(buffer, 20, 3)
    assert [chunk.obs[0] for chunk in stored(buffer)] == [5, 20, 22]
    assert len(buffer) == 2 + 2 + 1


# Sampling.


def test_a_sample_is_time_first_and_of_the_types_a_network_takes() -> None:
    buffer = play(make(4, burn_in=2), 1, 12)
    batch = buffer.sample(5)
    shapes = [tuple(field.shape) for field in batch[:6]]
    assert shapes == [(7, 5, 2), (6, 5), (6, 5), (6, 5), (7, 5), (6, 5)]
    assert [tuple(part.shape) for part in batch.state] == [(5, 1), (5, 2)]
    types = [field.dtype for field in (*batch[:6], *batch.state)]
    number, flag = torch.float32, torch.bool
    assert types == [number, torch.int64, number, number, flag, flag, number, number]
    assert all(field.is_contiguous() for field in batch[:6])


def test_sampling_is_uniform_over_chunks_and_a_function_of_the_seed() -> None:
    buffers = [play(make(seed=seed), 1, 30) for seed in (3, 3, 4)]
    mine, same, other = (buffer.sample(5000).obs[0, :, 0].numpy() for buffer in buffers)
    assert np.array_equal(mine, same)
    assert not np.array_equal(mine, other)
    _, counts = np.unique(mine, return_counts=True)
    assert len(counts) == 10
    # 500 expected each, standard deviation 21: five of them either way.
    assert counts.min() > 390
    assert counts.max() < 610


def test_an_empty_buffer_says_what_it_waits_for() -> None:
    buffer = make()
    with pytest.raises(UsageError, match="a sequence has to be finished first"):
        buffer.sample(1)
    play(buffer, 1, 2, ends="")
    assert len(buffer) == 0
    with pytest.raises(UsageError, match="empty"):
        buffer.sample(1)


# Refusals and memory.


def build(num_envs: int = 1, **hyper: Any) -> RecurrentReplayBuffer:
    settings = DRQNConfig(**hyper)
    return RecurrentReplayBuffer.build(
        SPEC, settings, num_envs=num_envs, seed=0, device=torch.device("cpu")
    )


def test_a_first_update_before_a_sequence_can_be_finished_is_refused() -> None:
    hyper = {"buffer_size": 100, "sequence_length": 8}
    expected = r"learning_starts.* num_envs \* sequence_length = 24, found 23"
    with pytest.raises(ConfigError, match=expected):
        build(3, learning_starts=23, **hyper)
    buffer = build(3, learning_starts=24, **hyper)
    # The latest that a first sequence can be finished: all environments side by side.
    for t in range(8):
        assert len(buffer) == 0
        state = (np.zeros((3, 128), np.float32), np.zeros((3, 128), np.float32))
        step = vector_step(*(Row(100 * env + t, first=t == 0) for env in range(3)))
        buffer.add(step._replace(state=state))
    assert len(buffer) == 24


@pytest.mark.parametrize(
    "numbers",
    [(0, 0, 0), (3, -1, 0), (3, 0, 3), (3, 0, -1)],
    ids=["no length", "burn-in", "overlap of all", "overlap"],
)
def test_sequences_that_cannot_be_are_refused(numbers: tuple[int, int, int]) -> None:
    length, burn_in, overlap = numbers
    found = f"found burn_in {burn_in}, overlap {overlap}, sequence_length {length}"
    with pytest.raises(UsageError, match=found):
        make(length, burn_in=burn_in, overlap=overlap)


def test_the_hyper_parameters_shape_the_buffer() -> None:
    hyper = DRQNConfig(
        gamma=0.5, sequence_length=4, overlap=1, burn_in=2, core="gru", core_size=3, buffer_size=100
    )
    buffer = RecurrentReplayBuffer.build(
        SPEC, hyper, num_envs=1, seed=0, device=torch.device("cpu")
    )
    for t in range(7):
        row = vector_step(Row(t, first=t == 0))
        buffer.add(row._replace(state=(np.full((1, 3), t, np.float32),)))
    batch = buffer.sample(64)
    assert set(batch.discount[batch.mask].tolist()) == {0.5}
    learned = {tuple(obs[2:6]) for obs in batch.obs[:, :, 0].T.tolist()}
    assert learned == {(0, 1, 2, 3), (3, 4, 5, 6)}  # a stride of three
    assert {tuple(row) for row in batch.state[0].tolist()} == {(0, 0, 0), (1, 1, 1)}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"burn_in": 2}, "rows"),
        ({"num_envs": 1}, "num_envs"),
        ({"capacity": 50}, "room"),
        ({"state_sizes": (1,)}, "state_size"),
    ],
)
def test_a_saved_buffer_of_another_shape_is_refused(changed: dict[str, Any], name: str) -> None:
    options = {"num_envs": 2, "capacity": 100}
    saved = make(**options).state_dict()
    other = make(**(options | changed))
    before = tree_hash(other.state_dict())
    with pytest.raises(CheckpointError, match=rf"has {name} \d+, this one has \d+; resume with"):
        other.load_state_dict(saved)
    assert tree_hash(other.state_dict()) == before


def test_chunks_are_taken_over_by_another_number_of_environments() -> None:
    buffer = make(num_envs=2, gamma=0.5)
    for t in range(7):
        buffer.add(vector_step(Row(t, first=t == 0), Row(100 + t, first=t == 0)))
    other = make(num_envs=1, gamma=0.25)
    other.take_over(join(*split(buffer.state_dict())))
    assert len(other) == len(buffer) == 12  # two chunks of three each; the rest was not finished
    batch = other.sample(64)
    assert set(batch.discount[batch.mask].tolist()) == {0.25}
    other.add(vector_step(Row(7, first=True)))
    assert len(other) == 12
    with pytest.raises(CheckpointError, match="rows"):
        make(num_envs=1, sequence_length=4).take_over(buffer.state_dict())


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    "hyper",
    [
        {"sequence_length": 5},
        {"sequence_length": 7, "burn_in": 4, "overlap": 2, "core_size": 9},
        {"sequence_length": 1, "core": "gru"},
        {"replay_memory": "2MiB", "buffer_size": None},
    ],
)
def test_the_memory_is_known_before_it_is_taken(hyper: dict[str, Any], num_envs: int) -> None:
    settings = {"buffer_size": 501} | hyper
    needed = RecurrentReplayBuffer.needed_bytes(SPEC, DRQNConfig(**settings), num_envs)
    assert needed == build(num_envs, **settings).nbytes


def test_the_memory_of_a_chunk_by_hand() -> None:
    # Five rows and a successor: 6 * (2 * 4 + 1) of observations and flags, 5 * (8 + 4 + 4 + 1) of
    # actions, rewards, discounts and masks, and two states of three numbers.
    hyper = DRQNConfig(sequence_length=3, burn_in=2, core_size=3, buffer_size=30)
    assert bytes_per_chunk(SPEC, hyper) == 54 + 85 + 24
    # Ten chunks, and one being made with a state before each of its five rows.
    assert RecurrentReplayBuffer.needed_bytes(SPEC, hyper, 1) == 11 * 163 + 4 * 24


def test_a_replay_memory_is_filled_but_not_exceeded() -> None:
    hyper = DRQNConfig(replay_memory="1MiB", sequence_length=10, core_size=4)
    chunks = RecurrentReplayBuffer.capacity_for(SPEC, hyper, 1) / 10
    assert chunks == 2**20 // bytes_per_chunk(SPEC, hyper)
    hyper = hyper.model_copy(update={"replay_memory": "10B"})
    with pytest.raises(ConfigError, match=r"expected at least .* bytes, room for a sequence, foun"):
        RecurrentReplayBuffer.capacity_for(SPEC, hyper, 1)


def test_a_replay_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ReplayTooLarge, match="buffer_size"):
        build(buffer_size=10**10)


# Any sequence of steps, samples and saves, against plain lists.


class PlainChunks:
    """The obvious memory: whole episodes as lists, and chunks cut out of them."""

    def __init__(self, room: int, length: int, burn_in: int, overlap: int, num_envs: int) -> None:
        self.room, self.length, self.burn_in = room, length, burn_in
        self.stride = length - overlap
        self.chunks: list[Chunk] = []
        self.episodes: list[list[Row]] = [[] for _ in range(num_envs)]
        self.begins = [0] * num_envs  # where the next chunk of the episode begins
        self.saved = [0] * num_envs  # rows of the episode that are in a chunk

    def add(self, rows: list[Row]) -> None:
        valid = [(env, row) for env, row in enumerate(rows) if row.valid]
        for env, row in valid:
            if row.first:
                if self.saved[env] < len(self.episodes[env]):
                    self.store(env)
                self.episodes[env], self.begins[env], self.saved[env] = [], 0, 0
        for env, row in valid:
            self.episodes[env].append(row)
            full = len(self.episodes[env]) == self.begins[env] + self.length
            if full or row.ends:
                self.store(env)
            if full:
                self.begins[env] += self.stride

    def store(self, env: int) -> None:
        episode, begin = self.episodes[env], self.begins[env]
        places = range(begin - self.burn_in, begin + self.length)
        rows = [episode[t] if 0 <= t < len(episode) else None for t in places]
        following = episode[-1].obs + 1
        observations = [0 if row is None else row.obs for row in rows] + [0]
        observations[len(episode) - places[0]] = following
        self.chunks.append(
            Chunk(
                obs=tuple(map(float, observations)),
                action=tuple(row.obs % 9 if row else 0 for row in rows),
                reward=tuple(2.0 * row.obs if row else 0.0 for row in rows),
                discount=tuple(GAMMA if row and row.ends != "termination" else 0.0 for row in rows),
                first=(*(row is not None and row.first for row in rows), False),
                mask=tuple(
                    row is not None and t >= begin for t, row in zip(places, rows, strict=True)
                ),
                state=memory(rows[0].obs) if rows[0] and not rows[0].first else NO_STATE,
            )
        )
        del self.chunks[: -self.room]
        self.saved[env] = len(episode)

    def __len__(self) -> int:
        return sum(sum(chunk.mask) for chunk in self.chunks)


class Played(NamedTuple):
    """One vector step, and what is done after it."""

    rows: list[Row]
    saves: bool
    samples: bool


def played(sequence: bytes, num_envs: int) -> Iterator[Played]:
    """Episodes that terminate, are truncated or just cut, and rows in which one only resets."""
    fresh, current = [True] * num_envs, [1000 * env + 1 for env in range(num_envs)]
    for start in range(0, len(sequence), 1 + MOST_ENVS):
        rows = []
        for env in range(num_envs):
            event = sequence[start + 1 + env] % 12
            ends = {9: "termination", 10: "truncation"}.get(event, "")
            rows.append(Row(current[env], fresh[env], ends, valid=event != 11))
            if event != 11:
                fresh[env] = event >= 8
                current[env] += 10 if fresh[env] else 1
        yield Played(rows, saves=sequence[start] % 8 == 7, samples=sequence[start] % 8 == 6)


def sampled_alike(buffers: list[RecurrentReplayBuffer], size: int) -> set[Chunk]:
    """Chunks of the first buffer, which its restored twin gives to the last bit too."""
    batch, *others = (buffer.sample(size) for buffer in buffers)
    for other in others:
        pairs = zip((*batch[:6], *batch.state), (*other[:6], *other.state), strict=True)
        assert all(torch.equal(mine, restored) for mine, restored in pairs)
    return chunks_in(batch)


@settings(max_examples=500, deadline=None)
@given(
    length=st.integers(1, 5),
    burn_in=st.integers(0, 6),
    overlap=st.integers(0, 4),
    num_envs=st.integers(1, MOST_ENVS),
    capacity=st.integers(1, 40),
    sequence=SEQUENCES,
)
def test_any_sequence_of_operations_equals_plain_lists(
    length: int, burn_in: int, overlap: int, num_envs: int, capacity: int, sequence: bytes
) -> None:
    overlap = min(overlap, length - 1)
    options = {"capacity": capacity, "burn_in": burn_in, "overlap": overlap, "num_envs": num_envs}
    buffers = [make(length, **options)]
    model = PlainChunks(-(-capacity // length), length, burn_in, overlap, num_envs)
    for step in played(sequence, num_envs):
        for buffer in buffers:
            buffer.add(vector_step(*step.rows))
        model.add(step.rows)
        if step.samples and model.chunks:
            assert len(buffers[0]) == len(model)
            assert sampled_alike(buffers, 8) <= set(model.chunks)
        if step.saves:
            twin = make(length, seed=99, **options)
            twin.load_state_dict(join(*split(buffers[0].state_dict())))
            buffers = [buffers[0], twin]
    assert len({tree_hash(buffer.state_dict()) for buffer in buffers}) == 1
    assert len(buffers[0]) == len(model)
    if model.chunks:
        # Of at most 40 chunks each is missing from so many with a chance below 1e-9.
        assert sampled_alike(buffers, 1000) == set(model.chunks)


def test_a_restored_buffer_forgets_what_was_in_it() -> None:
    saved = play(make(), 1, 4, ends="")
    other = play(make(), 500, 50, ends="")
    other.load_state_dict(saved.state_dict())
    assert tree_hash(other.state_dict()) == tree_hash(saved.state_dict())
    for buffer in (saved, other):
        buffer.add(vector_step(Row(5, ends="truncation")))
    assert stored(other) == stored(saved)
    assert [chunk.obs for chunk in stored(other)] == [(1, 2, 3, 4), (4, 5, 6, 0)]
