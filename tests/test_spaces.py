"""`Source` in every place where Gymnasium touches a space."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.spaces import SharedTexts, Source

AWKWARD = ["", "x", "Größe 日本 🚀", "nul\0inside", "line\nline\r\n", "z" * 64]


class Echo(gym.Env[dict[str, object], str]):
    """Says what it was told, and how long that was."""

    def __init__(self) -> None:
        self.action_space = Source(64)
        self.observation_space = Dict({"said": Source(64), "length": Box(0, 64, (), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe("hello"), {}

    def step(self, action):
        return self._observe(action), float(len(action)), False, False, {}

    def _observe(self, text):
        return {"said": text, "length": np.array(len(text), np.float32)}


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        ("", True),
        ("a" * 8, True),
        ("a" * 9, False),
        ("é" * 4, True),
        ("é" * 5, False),
        ("\ud800", False),
        (b"bytes", False),
        (None, False),
        (np.str_("ok"), True),
    ],
)
def test_contains_counts_utf8_bytes(value: object, inside: bool) -> None:
    assert (value in Source(8)) is inside


@given(st.text(alphabet=st.characters(codec=None), max_size=40), st.integers(1, 30))
def test_fit_returns_a_member_that_starts_the_text(text: str, size: int) -> None:
    space = Source(size)
    fitted = space.fit(text)
    assert fitted in space
    assert text.encode(errors="replace").decode().startswith(fitted)


def test_refuses_an_empty_bound_and_masks() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Source(0)
    with pytest.raises(ValueError, match="mask"):
        Source(8).sample(mask=1)


def test_samples_are_reproducible_members() -> None:
    first, second = Source(500, seed=3), Source(500, seed=3)
    texts = [first.sample() for _ in range(5)]
    assert texts == [second.sample() for _ in range(5)]
    assert len(set(texts)) > 1
    assert all(text in first and "__global__" in text for text in texts)
    assert len(Source(10).sample()) == 10


def test_pickle_is_small_and_equal_even_after_sampling() -> None:
    space = Source(1 << 20)
    assert len(pickle.dumps(space)) < 150
    assert pickle.loads(pickle.dumps(space)) == space
    space.seed(5)
    twin = pickle.loads(pickle.dumps(space))
    assert twin.sample() == space.sample()
    assert copy.deepcopy(space) == space != Source(8)
    assert hash(Source(8)) == hash(Source(8))
    assert repr(space) == "Source(1048576)"


def test_shared_memory_view_is_live_and_its_copy_is_not() -> None:
    space = Source(64)
    memory = create_shared_memory(space, n=2)
    texts = read_from_shared_memory(space, memory, n=2)
    assert isinstance(texts, SharedTexts)
    assert texts == ("", "")
    for awkward in AWKWARD:
        write_to_shared_memory(space, 1, awkward, memory)
        assert list(texts) == ["", awkward]
        assert texts[1] == awkward and texts[-1] == awkward and texts[:2] == ("", awkward)
    snapshot = copy.deepcopy(texts)
    write_to_shared_memory(space, 1, "later", memory)
    assert snapshot == ("", AWKWARD[-1])
    with pytest.raises(ValueError, match="65 bytes does not fit"):
        write_to_shared_memory(space, 0, "z" * 65, memory)


@pytest.mark.parametrize("vectorize", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_environments_deliver_the_texts_with_default_settings(vectorize) -> None:
    envs = vectorize([Echo, Echo, Echo])
    try:
        observation, _ = envs.reset(seed=1)
        assert observation["said"] == ("hello",) * 3
        for actions in (AWKWARD[:3], AWKWARD[3:], ["short", "", "z" * 64]):
            observation, rewards, *_ = envs.step(tuple(actions))
            assert observation["said"] == tuple(actions)
            assert observation["said"] in envs.observation_space["said"]
            assert rewards.tolist() == [len(action) for action in actions]
    finally:
        envs.close()


def test_async_without_copies_shows_the_present_texts() -> None:
    envs = AsyncVectorEnv([Echo, Echo], copy=False)
    try:
        first, _ = envs.reset()
        assert list(first["said"]) == ["hello", "hello"]
        second, *_ = envs.step(("a", "b"))
        assert list(second["said"]) == ["a", "b"]
    finally:
        envs.close()
