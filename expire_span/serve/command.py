"""The command `serve`."""

import os
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
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
    """Port to listen on."""
    names: tuple[str, ...] = ()
    """Further names under which the page may be opened, such as the machine's own."""

    def hosts(self) -> list[str]:
        """All names with their port, as browsers send them."""
        return [f"{name.lower()}:{self.port}" for name in (*LOOPBACK, self.host, *self.names)]


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
            f"The page needs FastAPI and uvicorn ({error}): pip install 'expire-span[serve]'."
        ) from error
    if not runs:
        raise ValueError("Which model is to be looked at? Give the folder of a run.")
    torch.set_num_threads(max((os.cpu_count() or 1) // limits.at_once, 1))
    app = create_app(open_all(runs, device), limits, address.hosts())
    url = f"http://{address.host}:{address.port}/"
    print(f"What is remembered: {url}  (Ctrl-C stops)", flush=True)
    if browser:
        webbrowser.open(url)
    uvicorn.run(
        app,
        host=address.host,
        port=address.port,
        log_level="warning",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
    )


def open_all(runs: Sequence[Path], device: str) -> dict[str, Subject]:
    """Models by name; those that have the same are told apart by the folders they are in."""
    readers = [open_reader(run, device) for run in runs]
    names = [reader.name for reader in readers]
    unique = [
        name if names.count(name) == 1 else str(run) for name, run in zip(names, runs, strict=True)
    ]
    return dict(zip(unique, readers, strict=True))
