"""The commands for agents from the command line.

python -m expire_span.agent train corridor smoke --out runs/smoke
python -m expire_span.agent train corridor smoke --out runs/smoke --resume
python -m expire_span.agent evaluate runs/smoke
python -m expire_span.agent watch runs/smoke
python -m expire_span.agent sweep corridor --scale smoke --out runs/sweep
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from expire_span.agent.commands import default_experiment, evaluate, sweep, train_command, watch
from expire_span.agent.experiment import AgentExperiment

COMMANDS: dict[str, Callable[..., None]] = {"evaluate": evaluate, "watch": watch, "sweep": sweep}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a mistake in it ends with one sentence, not with a traceback."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if arguments[:1] == ["train"] and len(arguments) >= 2 and arguments[1][:1] != "-":
            _train(arguments[1], list(arguments[2:]))
        else:
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="python -m expire_span.agent", description=__doc__, args=arguments
            )
    except (ValueError, OSError) as error:
        print(f"expire-span: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        print(f"expire-span: {error or 'stopped before anything was saved'}.", file=sys.stderr)
        raise SystemExit(getattr(error, "exit_status", 130)) from None


def _train(name: str, options: list[str]) -> None:
    """`train NAME [SCALE] options`: every field of the experiment is an option."""
    scale: Any = options.pop(0) if options and options[0] in ("smoke", "single", "paper") else None
    folder = Path("runs") / name
    if "--out" in options[:-1]:
        folder = Path(options[options.index("--out") + 1])
    resumed = folder if "--resume" in options else None
    default = default_experiment(name, scale or "single", resumed)

    def train(
        experiment: Annotated[AgentExperiment, tyro.conf.arg(name="")] = default,
        out: Path = folder,
        resume: bool = False,
    ) -> None:
        train_command(experiment, out, resume)

    train.__doc__ = train_command.__doc__
    chosen = any(option.startswith("model.memory:") for option in options)
    settings: tuple[Any, ...] = (tyro.conf.CascadeSubcommandArgs,)
    if not chosen:
        settings = (*settings, tyro.conf.AvoidSubcommands)
    tyro.cli(train, prog=f"python -m expire_span.agent train {name}", args=options, config=settings)


if __name__ == "__main__":
    main()
