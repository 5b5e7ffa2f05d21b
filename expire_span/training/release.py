"""A trained model for others to look at: a folder with what is needed for it, no more.

experiment.json        every setting
model.safetensors      the weights, and the step at which they were saved
vocabulary.json, or tokenizer.json: what tokens stand for, if only the data say it

Whatever loads the model of a run loads a released one as well.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from expire_span.tasks import Task
from expire_span.tasks.files import TOKENIZER_FILE, VOCABULARY_FILE
from expire_span.tensors import save_tensors
from expire_span.training import checkpoint as checkpoints
from expire_span.training.disk import flush, make_folder, write_text, writing, written_whole
from expire_span.training.records import load_experiment

EXPERIMENT_FILE, CHECKPOINTS, WEIGHTS_FILE = "experiment.json", "checkpoints", "model.safetensors"
STEP, UNFINISHED = "step", ".unfinished"


def load_weights(folder: Path, model: nn.Module) -> int | None:
    """Give a model the weights of a run as last saved, or of a release.

    Returns:
        The step at which they were saved; None if a release does not tell.
    """
    weights, step = read_weights(folder)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"The weights in {folder} are not those of the model in its {EXPERIMENT_FILE} "
            f"({' '.join(str(error).split())}): fetch both again."
        ) from error
    return step


def read_weights(folder: Path) -> tuple[dict[str, Tensor], int | None]:
    """Weights by name, and the step at which they were saved, if that is known."""
    released = folder / WEIGHTS_FILE
    if released.exists():
        return _read_release(released)
    newest = checkpoints.latest(folder / CHECKPOINTS)
    if newest is None:
        raise ValueError(f"{folder} has no checkpoint yet: train it first.")
    saved = checkpoints.load_shared(newest)
    return saved.part("model"), saved.values["step"]


def release(run: Path, out: Path) -> None:
    """Keep what is needed to look at a run's model, whatever kind of run it is."""
    _check_out(out)
    if not (run / EXPERIMENT_FILE).exists():
        raise ValueError(f"{run} is not a run: it has no {EXPERIMENT_FILE}.")
    weights, step = read_weights(run)
    spelling = read_spelling(run)
    for name in spelling:
        if (out / name).exists():
            raise ValueError(
                f"{out / name} would be overwritten: move it away, or choose another folder."
            )
    with writing(f"The release in {out}"), _filling(out) as unfinished:
        _write_weights(weights, step, unfinished / WEIGHTS_FILE)
        write_text(unfinished / EXPERIMENT_FILE, (run / EXPERIMENT_FILE).read_text())
        for name, contents in spelling.items():
            (unfinished / name).write_bytes(contents)
            flush(unfinished / name)


def keep_spelling(folder: Path, task: Task) -> None:
    """Keep in a run's folder what its tokens stand for, if only its data say it."""
    for name, contents in task.spelling().items():
        if not (folder / name).exists():
            with written_whole(folder / name) as unfinished:
                unfinished.write_bytes(contents)


def check_spelling(folder: Path, task: Task) -> None:
    """Refuse data whose tokens stand for something else than those that the model has learned."""
    if read_spelling(folder, task) != task.spelling():
        raise ValueError(
            f"The model in {folder} was trained on other data than those at hand, in which tokens "
            "stand for other words or characters: say with --data where its own lie."
        )


def read_spelling(folder: Path, task: Task | None = None) -> dict[str, bytes]:
    """Files that say what the tokens of a model stand for: its folder's own, else of its data.

    Args:
        folder: a run or a release.
        task: what it learned, if its data are no longer where they lay in training.
    """
    names = (VOCABULARY_FILE, TOKENIZER_FILE)
    kept = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
    if kept:
        return kept
    if task is None and "task" in json.loads((folder / EXPERIMENT_FILE).read_text()):
        task = load_experiment(folder / EXPERIMENT_FILE).task
    return {} if task is None else task.spelling()  # agents see worlds, whose words are known


def _check_out(out: Path) -> None:
    """Refuse a folder in which something else would be overwritten."""
    if (out / WEIGHTS_FILE).exists():
        raise ValueError(f"{out} already holds a model: remove it first, or choose another folder.")
    if (out / EXPERIMENT_FILE).exists() or (out / CHECKPOINTS).exists():
        raise ValueError(
            f"{out} holds a run, whose settings a release would overwrite: choose another folder."
        )


@contextmanager
def _filling(out: Path) -> Iterator[Path]:
    """A folder for files that come to stand in `out` once all of them are whole.

    Weights come first: without settings beside them nobody takes them for a run.
    """
    unfinished = out / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)  # of a release that was killed
    make_folder(unfinished)
    try:
        yield unfinished
        for file in sorted(unfinished.iterdir(), key=lambda file: file.name != WEIGHTS_FILE):
            file.rename(out / file.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    flush(out)


def _write_weights(weights: dict[str, Tensor], step: int | None, path: Path) -> None:
    about = {} if step is None else {STEP: str(step)}
    save_tensors(weights, path, about)
    flush(path)


def _read_release(path: Path) -> tuple[dict[str, Tensor], int | None]:
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step = (file.metadata() or {}).get(STEP)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}): fetch it again.") from error
    return weights, None if step is None else int(step)
