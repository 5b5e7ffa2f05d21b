"""The command line: train, evaluate, reproduce, watch, sweep, analyse, inspect, serve and more."""

import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro

from expire_span import __version__
from expire_span.agent.commands import concern_agents, run_command, sweep, train_command, watch
from expire_span.agent.experiments import AGENT_EXPERIMENTS
from expire_span.agent.run import is_agent
from expire_span.analysis.commands import ANALYSES, release
from expire_span.analysis.commands import inspect as inspect_run
from expire_span.checks import require_at_least
from expire_span.demo import demo
from expire_span.experiments import EXPERIMENTS, TABLES
from expire_span.reproduce import reproduce
from expire_span.serve.command import serve
from expire_span.tasks import Split, Task
from expire_span.training.command import (
    OTHER_MEMORY,
    SCALE_HELP,
    TRAIN_ARGUMENTS,
    out_folder,
    parser_settings,
    print_result,
    same_kind,
    say_if_slow,
    take_scale,
)
from expire_span.training.distributed import join_ranks, restarted
from expire_span.training.evaluation import Bookmark, Evaluation, bookmark_in
from expire_span.training.experiment import Experiment, Scale
from expire_span.training.folder import EVALUATION, EXPERIMENT_FILE, load_run
from expire_span.training.guard import NotFinite
from expire_span.training.interruption import Interruption, Stopped
from expire_span.training.loop import train as train_experiment
from expire_span.training.records import load_experiment
from expire_span.training.release import check_spelling

DESCRIPTION = """Transformers that learn what to forget.

    expire-span demo                     see it work, in a minute or two on a CPU
    expire-span list                     what can be trained and reproduced
    expire-span train recall --help      every setting of an experiment
    expire-span train text --task.path FILE --out runs/mine
    expire-span train recall model.memory:fixed-span --model.memory.span 64 --out runs/window
                                         the same with another memory policy: expire-span,
                                         fixed-span, adaptive-span or compressive
    expire-span evaluate runs/mine --split test
    expire-span reproduce colliding --scale single
                                         a table of the paper, with its numbers beside ours
    expire-span train corridor smoke --out runs/agent
                                         an agent in a grid world; smoke, single or paper
    expire-span watch runs/agent         an episode of it as an animated picture
    expire-span sweep corridor --out runs/sweep
                                         performance against memory
    expire-span inspect runs/mine --text FILE --out report.html
                                         what is remembered of a text, in one HTML file;
                                         of an agent, of an episode
    expire-span serve runs/mine          the same with an editor, on this machine
    expire-span analyse --help           plots and tables of what is remembered
    torchrun --nproc-per-node 8 -m expire_span train text ...
                                         the same on several GPUs
"""

NO_ROOM = (
    "The GPU has no memory left: take fewer rows (of train: --batch) or runs at a time, or wait "
    "until others have left it."
)


def list_experiments() -> None:
    """List the experiments that `train` knows and the tables that `reproduce` knows."""
    known: dict[str, Callable[..., Any]] = {**EXPERIMENTS, **AGENT_EXPERIMENTS}
    width = max(map(len, [*known, *TABLES]))
    print("To train:")
    for name, experiment in known.items():
        print(f"  {name:{width}}  {(inspect.getdoc(experiment) or '').splitlines()[0]}")
    print("To reproduce:")
    for name, table in TABLES.items():
        print(f"  {name:{width}}  {table.title} ({table.label})")


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    split: Split = "valid",
    batch: int | None = None,
    blocks: int | Literal["all"] | None = None,
    limit: int | None = None,
    data: str | None = None,
    device: str = "auto",
    resume: bool = False,
) -> None:
    """Judge a trained model on a stream, carrying its memory along; prints JSON.

    An agent is judged on whole episodes, by other options: `evaluate AGENT --help` shows them.

    Args:
        run: folder that `train` or `release` wrote.
        split: which part of the data.
        batch: rows read side by side; as in training if left out.
        blocks: blocks read of each row, or all of them; as in training if left out.
        limit: cut every memory at this distance, to find out what longer memory is worth.
        data: where the data lie, if not where they lay in training: a file, or its folder.
        device: auto, cpu, cuda ...
        resume: go on with the same evaluation from where it was stopped; without this, that is
            forgotten.
    """
    require_at_least(0, limit=limit)
    with join_ranks(device) as ranks, Interruption(patient=not ranks.alone) as interruption:
        experiment, model, step = load_run(run, device)
        if data is not None:
            experiment = replace(experiment, task=experiment.task.with_data(data))
        check_spelling(run, experiment.task)
        with _asking_for_data() if data is None else nullcontext():
            evaluation = Evaluation.of(
                experiment, model, split, batch=batch, blocks=blocks, limit=limit, ranks=ranks
            )
        with bookmark_in(run / f"{EVALUATION}-{split}", ranks) as bookmark:
            _go_on_or_forget(bookmark, evaluation, resume or restarted())
            try:
                result = evaluation.run(ranks.first, bookmark, interruption)
            except Stopped as stop:
                hint = "" if bookmark is None else "; go on with the same command and --resume"
                raise stop.saying(f"{stop}{hint}") from None
            if ranks.first:
                about = {"run": str(run), "step": step, "split": split, "limit": limit}
                print_result({**about, **_said_of(experiment.task), **result})
            if bookmark is not None:
                bookmark.remove()


@contextmanager
def _asking_for_data() -> Iterator[None]:
    """Data that are not where they were in training may lie elsewhere."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} Say with --data where it lies.") from None


def _said_of(task: Task) -> dict[str, str]:
    """What has to be said wherever a number is shown: that the data are a part of a public set."""
    part = task.subset()
    return {"subset": part} if part else {}


def _go_on_or_forget(bookmark: Bookmark | None, evaluation: Evaluation, resume: bool) -> None:
    """Go on from where an evaluation was stopped, or forget it."""
    if bookmark is None and resume:
        raise ValueError("Another process is at that evaluation: wait for it.")
    if bookmark is None:
        warnings.warn(
            "Another evaluation of the same data is under way, so where this one stands is not "
            "kept: stopped, it would begin anew.",
            stacklevel=2,
        )
    elif resume:
        bookmark.resume(evaluation)
    else:
        bookmark.remove()


def _train_command(
    name: str, scale: Scale | None = None, options: Sequence[str] = ()
) -> Callable[..., None]:
    """The command `train NAME [SCALE]`: every field of the experiment is an option.

    A run that is resumed starts from its own settings, so that they need not be repeated.
    """
    default = _resumed(name, scale, options) or _experiment(name, scale)

    def train(
        experiment: Annotated[Experiment, tyro.conf.arg(name="")] = default,
        out: Path = Path("runs") / name,
        resume: bool = False,
    ) -> None:
        # torchrun starts ranks again with the very command that it was given.
        again = resume or (restarted() and (out / EXPERIMENT_FILE).exists())
        with join_ranks(experiment.device) as ranks:
            if ranks.first and not again:
                rows_of_blocks = experiment.batch * experiment.steps
                say_if_slow(experiment.device, experiment.model, rows_of_blocks)
            result = train_experiment(experiment, out, resume=again, ranks=ranks)
            if ranks.first:
                print_result({"run": str(out), **_said_of(experiment.task), **result})

    about = [inspect.getdoc(EXPERIMENTS[name]) or "", *([SCALE_HELP] if _has_scales(name) else [])]
    train.__doc__ = "\n\n".join([*about, OTHER_MEMORY, TRAIN_ARGUMENTS])
    return train


def _experiment(name: str, scale: Scale | None) -> Experiment:
    """The experiment of this name in the size that is asked for, or in its usual one."""
    if scale is None:
        return EXPERIMENTS[name]()
    if not _has_scales(name):
        raise ValueError(f"{name} comes in one size: leave out {scale}.")
    return EXPERIMENTS[name](scale=scale)


def _has_scales(name: str) -> bool:
    return "scale" in inspect.signature(EXPERIMENTS[name]).parameters


def _resumed(name: str, scale: Scale | None, options: Sequence[str]) -> Experiment | None:
    """The experiment of the run that these options resume, if there is one, of whatever scale."""
    if "--resume" not in options and not restarted():
        return None
    folder = out_folder(options, name)
    if not (folder / EXPERIMENT_FILE).exists():
        return None
    if is_agent(folder):
        raise ValueError(
            f"The run in {folder} is an agent's: resume it by the name it was begun with, or "
            "choose another folder with --out."
        )
    saved = load_experiment(folder / EXPERIMENT_FILE)
    scales = get_args(Scale) if scale is None and _has_scales(name) else (scale,)
    named = [_experiment(name, one) for one in scales]
    alike = (one for one in named if type(one.task) is type(saved.task))
    return same_kind(saved, next(alike, named[0]), "task", folder)


def train() -> None:
    """Train an experiment; `train NAME --help` shows its settings, every one an option."""


def analyse() -> None:
    """Plots and tables of what a model remembers; `analyse NAME --help` shows the settings."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a mistake in it ends with one sentence, not with a traceback."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            _dispatch(arguments)
    except BrokenPipeError:  # whoever read our output has seen enough
        raise SystemExit(141) from None
    except (ValueError, OSError, NotFinite) as error:
        print(f"expire-span: {_sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except torch.OutOfMemoryError:
        print(f"expire-span: {NO_ROOM}", file=sys.stderr)
        raise SystemExit(2) from None
    except Stopped as stop:
        print(f"expire-span: {stop}.", file=sys.stderr)
        raise SystemExit(stop.exit_status) from None
    except KeyboardInterrupt:
        hint = ": what has been saved, if anything, goes on with --resume" * ("train" in arguments)
        print(f"expire-span: stopped{hint}.", file=sys.stderr)
        raise SystemExit(130) from None


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "list": list_experiments,
    "reproduce": reproduce,
    "watch": watch,
    "sweep": sweep,
    "analyse": analyse,
    "inspect": inspect_run,
    "serve": serve,
    "release": release,
}


def _dispatch(arguments: list[str]) -> None:
    """The command that these arguments begin with."""
    if arguments == ["--version"]:
        print(f"expire-span {__version__}")
    elif concern_agents(arguments):
        run_command(arguments)
    elif arguments[:1] == ["train"] and arguments[1:2] and arguments[1] in EXPERIMENTS:
        name, (scale, options) = arguments[1], take_scale(arguments[2:])
        tyro.cli(
            _train_command(name, scale, options),
            prog=" ".join(["expire-span train", name, *([scale] if scale else [])]),
            args=options,
            config=parser_settings(options),
        )
    elif arguments[:1] == ["train"]:
        _refuse_unknown(arguments[1:2])
        experiments = {name: _train_command(name) for name in EXPERIMENTS}
        experiments |= {name: train_command(name) for name in AGENT_EXPERIMENTS}
        _run(experiments, arguments[1:], "expire-span train", inspect.getdoc(train))
    elif arguments[:1] == ["analyse"]:
        _run(ANALYSES, arguments[1:], "expire-span analyse", inspect.getdoc(analyse))
    else:
        _run(COMMANDS, arguments, "expire-span", DESCRIPTION)


def _refuse_unknown(names: Sequence[str]) -> None:
    """Refuse what is no experiment, with the one that may have been meant."""
    known = [*EXPERIMENTS, *AGENT_EXPERIMENTS]
    for name in names:
        if not name.startswith("-") and name not in known:
            close = get_close_matches(name, known, n=1)
            meant = f"Perhaps you meant {close[0]}: choose" if close else "Choose"
            raise ValueError(f"There is no experiment {name!r}. {meant} one of {', '.join(known)}.")


def _sentence(error: Exception) -> str:
    """What is wrong, and what to do; the system's own errors are made to say that."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used ({error.strerror}): choose another path."
    return str(error)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one plain line, which a progress bar makes way for."""
    logging.getLogger("expire_span").warning("%s", message)


def _run(
    commands: dict[str, Callable[..., None]],
    arguments: Sequence[str],
    name: str,
    description: str | None,
) -> None:
    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog=name,
        description=description,
        args=arguments,
        config=parser_settings(arguments),
    )
