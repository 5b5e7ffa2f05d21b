"""The worlds as Gymnasium environments; importing this file registers them.

    import gymnasium
    import expire_span.worlds.gym

    gymnasium.make("expire_span/Corridor-v0", longest=20)
    gymnasium.make_vec("expire_span/Portal-v0", num_envs=512)

Every setting of a world is a keyword. `limit` says how long episodes may be; Gymnasium's own
`max_episode_steps` can only make them shorter, since it counts outside the world.

Vectors are one tensor program, not many environments; an episode's end returns the first
observation of the next one, and the last one in `infos["final_obs"]`. Row n of a vector seeded with
s is the environment seeded with s + n.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError(
        "Gymnasium's environments need the package gymnasium, from 1.1 on: pip install gymnasium."
    ) from error

from expire_span.chance import hashed, whole_seed
from expire_span.checks import require_at_least, require_one_of
from expire_span.worlds import WORLDS, Game, World
from expire_span.worlds.render import as_pixels, as_text

RENDER_MODES = ["ansi", "rgb_array"]
_RENDERERS: dict[str, Callable[..., Any]] = {"ansi": as_text, "rgb_array": as_pixels}


class GridEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """One world, one row."""

    metadata = {"render_modes": RENDER_MODES, "render_fps": 8}  # noqa: RUF012, as Gymnasium has it

    def __init__(self, world: World, render_mode: str | None = None):
        self.world = world
        self.render_mode = _known_mode(render_mode)
        self.observation_space, self.action_space = _spaces(world)
        self._game = world.play()
        self._state: Any = None
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode: the first one of this seed, or the next one."""
        seed = None if seed is None else whole_seed(seed)
        super().reset(seed=seed)
        if seed is None and self._state is not None:
            self._state = self._game.next_episode(self._state)
        else:
            self._state = self._game.start_keys(_keys(_seeds(seed, 1, self.np_random)))
        self._over = False
        return _array(self._game.observe(self._state))[0], _info(self._state, 0)

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Make one step."""
        if self._over:
            raise ValueError("The episode is over: call reset() first.")
        actions = _actions(np.asarray(action)[None], 1)
        outcome = self._game.step(self._state, actions)
        self._state = outcome.last
        self._over = bool(outcome.done)
        seen = _array(self._game.observe(self._state))[0]
        reward, ended, cut = outcome.reward, outcome.terminated, outcome.truncated
        return seen, float(reward), bool(ended), bool(cut), _info(self._state, 0)

    def render(self) -> Any:
        """The world as text or as pixels."""
        return _renderer(self.render_mode, self._state)(self._game, self._state, 0)


class GridVectorEnv(VectorEnv[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]):
    """One world, many rows, in one tensor program."""

    metadata = {  # noqa: RUF012, as Gymnasium has it
        "render_modes": RENDER_MODES,
        "render_fps": 8,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, world: World, num_envs: int, render_mode: str | None = None):
        require_at_least(1, num_envs=num_envs)
        self.world = world
        self.num_envs = num_envs
        self.render_mode = _known_mode(render_mode)
        self.single_observation_space, self.single_action_space = _spaces(world)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._game: Game = world.play()
        self._state: Any = None

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode in every row: the first ones of these seeds, or the next ones.

        With `options={"reset_mask": ...}`, bool [num_envs], only in the rows that it marks.
        """
        given = _checked(seed)
        super().reset(seed=given if isinstance(given, int) else None)
        if given is None and self._state is not None:
            begun = self._game.next_episode(self._state)
        else:
            begun = self._game.start_keys(_keys(_seeds(given, self.num_envs, self.np_random)))
        mask = self._reset_mask(options)
        everywhere = mask is None or self._state is None
        self._state = begun if everywhere else begun.where(mask, self._state)
        return _array(self._game.observe(self._state)), _infos(self._state)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Make one step in every row; where it ends an episode, the next one begins."""
        if self._state is None:
            raise ValueError("Nothing has begun: call reset() first.")
        given = _actions(np.asarray(actions), self.num_envs)
        outcome = self._game.step(self._state, given)
        self._state = outcome.state
        infos = _infos(self._state)
        done = outcome.done.numpy()
        if done.any():
            infos |= self._final(outcome.last, done)
        return (
            _array(self._game.observe(self._state)),
            outcome.reward.double().numpy(),
            outcome.terminated.numpy(),
            outcome.truncated.numpy(),
            infos,
        )

    def render(self) -> tuple[Any, ...] | None:
        """Every row's world as text or as pixels."""
        draw = _renderer(self.render_mode, self._state)
        return tuple(draw(self._game, self._state, row) for row in range(self.num_envs))

    def _final(self, last: Any, done: NDArray[np.bool_]) -> dict[str, Any]:
        """What Gymnasium wants to know of episodes that have ended."""
        ended = np.flatnonzero(done)
        seen = _array(self._game.observe(last.select(torch.from_numpy(ended))))
        final_obs = np.full(self.num_envs, None, dtype=object)
        for place, row in enumerate(ended):
            final_obs[row] = seen[place]
        return {
            "final_obs": final_obs,
            "_final_obs": done.copy(),
            "final_info": _infos(last, done),
            "_final_info": done.copy(),
        }

    def _reset_mask(self, options: dict[str, Any] | None) -> Tensor | None:
        """The rows that are to begin anew, if not all."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return None
        mask = np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise ValueError(
                f"reset_mask must be one bool for each of the {self.num_envs} environments, but is "
                f"{mask.dtype} of shape {[*mask.shape]}."
            )
        if self._state is None and not mask.all():
            raise ValueError("Nothing has begun: call reset() without a reset_mask first.")
        return torch.from_numpy(mask)


def _spaces(world: World) -> tuple[Any, Any]:
    """What is seen and what can be done."""
    shape = (3, 3, len(world.words))
    return spaces.Box(0, 1, shape, np.uint8), spaces.Discrete(len(world.actions))


def _known_mode(mode: str | None) -> str | None:
    if mode is not None:
        require_one_of(tuple(_RENDERERS), render_mode=mode)
    return mode


def _renderer(mode: str | None, state: Any) -> Callable[..., Any]:
    """How to draw a row, if that was asked for and there is something to draw."""
    if mode is None:
        modes = " or ".join(map(repr, RENDER_MODES))
        raise ValueError(f"Nothing to render: make the environment with render_mode={modes}.")
    if state is None:
        raise ValueError("Nothing to render yet: call reset() first.")
    return _RENDERERS[mode]


def _keys(seeds: Sequence[int]) -> Tensor:
    """A key for each seed, int64 [B]."""
    return hashed(torch.tensor(list(seeds), dtype=torch.int64))


def _checked(seed: Any) -> int | list[int] | None:
    """A seed, or one for each row, if they can be."""
    if seed is None:
        return None
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        return [whole_seed(one) for one in seed]
    return whole_seed(seed)


def _seeds(seed: int | list[int] | None, count: int, source: np.random.Generator) -> list[int]:
    """A seed for each row: those given, one after another from the one given, or by chance."""
    if not isinstance(seed, list):
        first = int(source.integers(2**62)) if seed is None else seed
        seed = [whole_seed(one) for one in range(first, first + count)]
    if len(seed) != count:
        raise ValueError(
            f"A list of seeds needs one for each of the {count} environments, but has {len(seed)}."
        )
    return seed


def _actions(actions: NDArray[Any], count: int) -> Tensor:
    """Actions as a tensor, if they are whole numbers, one for each row."""
    if actions.shape != (count,) or not np.issubdtype(actions.dtype, np.integer):
        each = "" if count == 1 else f" for each of the {count} environments"
        raise ValueError(
            f"Actions must be one whole number{each}, but are {actions.dtype} of shape "
            f"{[*actions.shape]}."
        )
    return torch.from_numpy(actions.astype(np.int64))


def _array(seen: Tensor) -> NDArray[np.uint8]:
    return seen.numpy()


def _info(state: Any, row: int) -> dict[str, Any]:
    return {"steps": int(state.steps[row]), "total": float(state.total[row])}


def _infos(state: Any, given: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """The same for all rows as arrays, with masks of the rows for which they are given."""
    mask = np.ones(state.batch, dtype=np.bool_) if given is None else given
    steps, total = state.steps.numpy(), state.total.double().numpy()
    return {
        "steps": np.where(mask, steps, 0),
        "_steps": mask.copy(),
        "total": np.where(mask, total, 0.0),
        "_total": mask.copy(),
    }


def make_env(world: str, render_mode: str | None = None, **settings: Any) -> GridEnv:
    """The environment of that world; what `gymnasium.make` calls."""
    return GridEnv(WORLDS[world](**settings), render_mode)


def make_vector_env(
    world: str,
    num_envs: int,
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    **settings: Any,
) -> GridVectorEnv:
    """Many rows of that world; what `gymnasium.make_vec` calls."""
    made = WORLDS[world](**settings)
    if max_episode_steps is not None:  # of a single environment, Gymnasium counts them
        made = replace(made, limit=min(made.limit, max_episode_steps))
    return GridVectorEnv(made, num_envs, render_mode)


for _name in WORLDS:
    gymnasium.register(
        f"expire_span/{_name}-v0",
        entry_point=f"{__name__}:make_env",
        vector_entry_point=f"{__name__}:make_vector_env",
        kwargs={"world": _name},
    )
