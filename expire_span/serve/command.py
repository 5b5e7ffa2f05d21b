"""The command `serve`."""

import os
import socket
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from expire_span.analysis.subject import Subject, open_reader
from expire_span.serve.limits import Limits

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MOST_CONNECTIONS = 200


@dataclass(frozen=True)
class Address:
    """Where the page is found."""

    host: str = "127.0.0.1"
    """Where to listen; anything but loopback lets others in."""
    port: int = 8765
    """Port to listen on; 0 takes any that is free."""
    names: tuple[str, ...] = ()
    """Further names under which the page may be opened, such as the machine's own."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must lie between 0 and 65535, but is {self.port}.")

    def hosts(self) -> list[str]:
        """All names with their port, as browsers send them."""
        named = (*LOOPBACK, *map(_in_a_url, (self.host, *self.names)))
        return [f"{name.lower()}:{self.port}" for name in named]

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"http://{_in_a_url(self.host)}:{self.port}/"

    def listen(self) -> tuple["Address", socket.socket]:
        """Take the port, any free one if it is 0; gives the address with the port taken."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ValueError(
                f"Nothing can listen on {self.host}, port {self.port} ({reason}): choose others "
                "with --host and --port, or end what is there."
            ) from error
        return replace(self, port=listening.getsockname()[1]), listening


def _in_a_url(host: str) -> str:
    """Numbers of IPv6 stand in brackets there."""
    return f"[{host}]" if ":" in host else host


THIS_MACHINE, USUAL = Address(), Limits()


def serve(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    address: Annotated[Address, tyro.conf.arg(name="")] = THIS_MACHINE,
    limits: Annotated[Limits, tyro.conf.arg(name="")] = USUAL,
    device: str = "cpu",
    browser: bool = False,
) -> None:
    """A page on this machine: type a text, and see what one or several models remember of it.

    Args:
        runs: folders that `train` or `release` wrote, one or several to compare.
        address: where the page is found.
        limits: how much a visitor may ask for.
        device: auto, cpu, cuda ...
        browser: open the page in a browser.
    """
    try:
        import uvicorn

        from expire_span.serve.app import create_app
    except ImportError as error:
        raise ValueError(
            f"The page needs FastAPI and uvicorn ({error}): install this package with its extra "
            "serve, in its folder with pip install '.[serve]'."
        ) from error
    if not runs:
        raise ValueError("Which model is to be looked at? Give the folder of a run.")
    torch.set_num_threads(max((os.cpu_count() or 1) // limits.at_once, 1))
    subjects = open_all(runs, device)
    taken, listening = address.listen()
    config = uvicorn.Config(
        create_app(subjects, limits, taken.hosts()),
        log_level="warning",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
    )
    print(f"What is remembered: {taken.url}  (Ctrl-C stops)", flush=True)
    if browser:
        webbrowser.open(taken.url)
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def open_all(runs: Sequence[Path], device: str) -> dict[str, Subject]:
    """Models by name; those that have the same are told apart by the folders they are in."""
    readers = [open_reader(run, device) for run in runs]
    names = [reader.name for reader in readers]
    unique = [
        name if names.count(name) == 1 else str(run) for name, run in zip(names, runs, strict=True)
    ]
    return dict(zip(unique, readers, strict=True))
