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
            for key, wanted in expected_infos["final_info"].items():
                assert np.allclose(infos["final_info"][key], wanted)
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


@every_world
@pytest.mark.parametrize(("asked", "limit", "cut"), [(7, 30, 7), (50, 30, 30), (None, 30, 30)])
def test_one_and_many_are_cut_off_at_the_same_step(name, asked, limit, cut):
    settings = {"max_episode_steps": asked, "limit": limit}
    single = gymnasium.make(name, **settings)
    vector = gymnasium.make_vec(name, num_envs=2, **settings)
    single.reset(seed=0)
    vector.reset(seed=0)
    for step in range(1, cut + 1):
        *_, truncated, _ = single.step(0)  # up, into a wall
        *_, many, _ = vector.step(np.zeros(2, dtype=np.int64))
        assert [truncated, *many] == [step == cut] * 3


def test_only_marked_rows_begin_anew():
    vector = gymnasium.make_vec(NAMES[0], num_envs=3)
    vector.reset(seed=0)
    vector.step(np.full(3, 3))
    before = vector.unwrapped._state
    mask = np.array([True, False, True])
    seen, infos = vector.reset(options={"reset_mask": mask})
    after = vector.unwrapped._state
    assert infos["steps"].tolist() == [0, 1, 0]
    assert after.episode.tolist() == [1, 0, 1]
    assert after.length[1] == before.length[1]
    assert np.array_equal(seen, vector.unwrapped._game.observe(after).numpy())
    vector.reset(seed=[7, 8, 9], options={"reset_mask": mask})
    alone = gymnasium.make(NAMES[0]).unwrapped
    alone.reset(seed=9)
    assert vector.unwrapped._state.key[2] == alone._state.key[0]
    assert vector.unwrapped._state.key[1] == before.key[1]


def test_all_rows_may_be_marked_before_anything_has_begun():
    vector = gymnasium.make_vec(NAMES[0], num_envs=3)
    seen, _ = vector.reset(seed=5, options={"reset_mask": np.ones(3, dtype=bool)})
    assert np.array_equal(seen, vector.reset(seed=5)[0])


@pytest.mark.parametrize("mask", [[True, False], [1, 0, 1], np.ones((3, 1), dtype=bool)])
def test_a_mask_that_does_not_fit_is_refused(mask):
    vector = gymnasium.make_vec(NAMES[0], num_envs=3)
    with pytest.raises(ValueError, match="one bool for each of the 3 environments"):
        vector.reset(seed=0, options={"reset_mask": mask})
    with pytest.raises(ValueError, match="Nothing has begun"):
        vector.reset(seed=0, options={"reset_mask": np.array([True, False, True])})


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "three", [-1, 2, 3], [None, 2, 3], [2**63, 1, 2]])
def test_what_is_no_seed_is_refused_in_one_sentence(seed):
    vector = gymnasium.make_vec(NAMES[0], num_envs=3)
    with pytest.raises(ValueError, match=r"(A seed is a whole number from|A list of seeds needs)"):
        vector.reset(seed=seed)
    if not isinstance(seed, list):
        with pytest.raises(ValueError, match=r"A seed is a whole number from 0 to 2\*\*63 - 1"):
            gymnasium.make(NAMES[0]).reset(seed=seed)


def test_any_whole_number_is_a_seed():
    """Numpy's too; the last row's must still be one."""
    vector = gymnasium.make_vec(NAMES[0], num_envs=3)
    plain, _ = vector.reset(seed=3)
    for seed in (np.int64(3), np.array(3), [3, 4, 5], np.array([3, 4, 5])):
        seen, _ = vector.reset(seed=seed)
        assert np.array_equal(seen, plain)
    vector.reset(seed=2**63 - 3)
    with pytest.raises(ValueError, match="A seed is a whole number"):
        vector.reset(seed=2**63 - 2)


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
