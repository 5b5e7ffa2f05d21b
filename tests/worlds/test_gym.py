"""The worlds as Gymnasium environments: its own checks, and vectors equal to single ones."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from expire_span.worlds import Corridor
from expire_span.worlds.gym import GridEnv, GridVectorEnv  # which registers the worlds

NAMES = ["expire_span/Corridor-v0", "expire_span/Portal-v0"]
SHORT = {"expire_span/Corridor-v0": {"longest": 6}, "expire_span/Portal-v0": {"rooms": 4}}
every_world = pytest.mark.parametrize("name", NAMES)


@every_world
@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
def test_gymnasium_checks_pass(name, render_mode):
    check_env(gymnasium.make(name, render_mode=render_mode).unwrapped)


@every_world
def test_a_vector_equals_gymnasiums_vector_of_single_ones(name):
    count, settings = 5, SHORT[name] | {"limit": 30}
    ours = gymnasium.make_vec(name, num_envs=count, **settings)
    theirs = SyncVectorEnv(
        [lambda: gymnasium.make(name, **settings)] * count, autoreset_mode=AutoresetMode.SAME_STEP
    )
    assert isinstance(ours, GridVectorEnv)
    assert ours.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    (seen, infos), (expected, _) = ours.reset(seed=11), theirs.reset(seed=11)
    assert np.array_equal(seen, expected)
    theirs.action_space.seed(0)
    ended = 0
    for _ in range(200):
        actions = theirs.action_space.sample()
        seen, reward, terminated, truncated, infos = ours.step(actions)
        expected, *rest, expected_infos = theirs.step(actions)
        assert np.array_equal(seen, expected)
        assert seen in ours.observation_space
        for found, wanted in zip((reward, terminated, truncated), rest, strict=True):
            assert np.allclose(found, wanted)
            assert found.dtype == wanted.dtype
        assert infos.keys() == expected_infos.keys()
        for row in np.flatnonzero(terminated | truncated):
            ended += 1
            assert np.array_equal(infos["final_obs"][row], expected_infos["final_obs"][row])
            for key in ("steps", "total"):
                wanted = expected_infos["final_info"][key][row]
                assert infos["final_info"][key][row] == pytest.approx(wanted)
        if "final_obs" in infos:
            assert np.array_equal(infos["_final_obs"], expected_infos["_final_obs"])
            assert np.array_equal(infos["_final_info"], expected_infos["_final_info"])
            missing = [one is None for one in infos["final_obs"]]
            assert np.array_equal(missing, ~infos["_final_obs"])
    assert ended > 10


@every_world
def test_gymnasium_statistics_can_wrap_a_vector(name):
    vector = gymnasium.make_vec(name, num_envs=3, **SHORT[name], limit=20)
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector)
    wrapped.reset(seed=0)
    episodes = []
    for _ in range(100):
        *_, infos = wrapped.step(wrapped.action_space.sample())
        if "episode" in infos:
            episodes += list(infos["episode"]["l"][infos["_episode"]])
    assert episodes
    assert max(episodes) <= 20


@every_world
def test_a_second_reset_goes_on_to_the_next_episode(name):
    env = gymnasium.make(name).unwrapped
    env.reset(seed=4)
    first = env._state.tensors()
    env.reset()
    assert env._state.episode.item() == first["episode"].item() + 1
    env.reset(seed=4)
    assert all((tensor == first[name]).all() for name, tensor in env._state.tensors().items())


@every_world
def test_without_a_seed_two_environments_differ(name):
    keys = set()
    for _ in range(2):
        env = gymnasium.make(name).unwrapped
        env.reset()
        keys.add(int(env._state.key))
    assert len(keys) == 2


def test_a_corridor_as_text():
    env = gymnasium.make("expire_span/Corridor-v0", longest=3, render_mode="ansi")
    env.reset(seed=0)
    upper, middle, lower, caption, _ = env.render().split("\n")
    assert {upper, lower} == {"###R#", "###B#"}
    assert middle[0] in "rb"
    assert middle[1:] == "A..#"
    assert caption == "length 3, step 0"
    env.step(3)
    assert env.render().split("\n")[1][1:] == ".A.#"


def test_a_portal_as_text():
    env = gymnasium.make("expire_span/Portal-v0", render_mode="ansi")
    env.reset(seed=0)
    picture = "#####\n#...#\nR.A.B\n#...#\n#####\nroom 1 of 50, step 0, reward 0.0\n"
    assert env.render() == picture


@every_world
def test_pixels_have_one_size_and_show_the_move(name):
    vector = gymnasium.make_vec(name, num_envs=2, render_mode="rgb_array")
    vector.reset(seed=0)
    before = vector.render()
    vector.step(np.array([3, 3]))
    after = vector.render()
    assert len(before) == 2
    assert before[0].shape == after[1].shape
    assert before[0].dtype == np.uint8
    assert not np.array_equal(before[0], after[0])


def test_mistakes_are_told_in_one_sentence():
    vector = gymnasium.make_vec(NAMES[0], num_envs=3)
    with pytest.raises(ValueError, match=r"call reset\(\) first"):
        vector.step(np.zeros(3, dtype=np.int64))
    vector.reset(seed=0)
    with pytest.raises(ValueError, match="one whole number for each of the 3 environments"):
        vector.step(np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="Actions are 0 to 3"):
        vector.step(np.full(3, 7))
    with pytest.raises(ValueError, match="needs one for each of the 3"):
        vector.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="num_envs must be a whole number of at least 1"):
        gymnasium.make_vec(NAMES[0], num_envs=0)
    with pytest.raises(ValueError, match="render_mode must be one of"):
        gymnasium.make_vec(NAMES[0], num_envs=1, render_mode="human")
    single = gymnasium.make(NAMES[0], longest=3).unwrapped
    single.reset(seed=0)
    for action in (3, 3, 0):
        *_, ended, _, _ = single.step(action)
    assert ended
    with pytest.raises(ValueError, match="The episode is over"):
        single.step(0)


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        (None, r"make the environment with render_mode='ansi' or 'rgb_array'\.$"),
        ("ansi", r"call reset\(\) first\.$"),
    ],
)
def test_rendering_says_what_it_needs(mode, sentence):
    for env in (GridEnv(Corridor(), mode), GridVectorEnv(Corridor(), 2, mode)):
        with pytest.raises(ValueError, match=sentence):
            env.render()
