"""One self-contained HTML file that shows what is remembered of a text; it needs no network."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expire_span.analysis.counterfactual import Counterfactual
from expire_span.analysis.recording import Recording
from expire_span.analysis.subject import Subject
from expire_span.analysis.view import view_data
from expire_span.training.disk import written_whole

PAGE = Path(__file__).parent / "page"


@dataclass(frozen=True)
class Report:
    """A text as it was read, and its other versions."""

    subject: Subject
    recording: Recording
    versions: Sequence[Counterfactual] = ()


def write_report(report: Report, path: Path) -> Path:
    """Write the file."""
    subject = report.subject
    config = subject.model.config
    heads = {"title": f"{subject.name} · {report.recording.steps:,} {subject.codec.unit}s"}
    heads["about"] = (
        f"{type(config.memory).__name__}, {config.layers} layers of width {config.width}, "
        f"blocks of {config.block} steps. Darker (in dark colours: brighter) is kept longer. "
        f"{subject.codec.note}"
    )
    filled = {
        **{name: html.escape(text) for name, text in heads.items()},
        "style": page_file("view.css"),
        "script": view_script() + page_file("report.js"),
        "data": script_json({"versions": _versions(report)}),
    }
    with written_whole(path) as unfinished:
        unfinished.write_text(fill(page_file("report.html"), filled), encoding="utf-8")
    return path


def view_script() -> str:
    """The program of the view, to which a page adds its own."""
    return page_file("differ.js") + page_file("view.js")


def page_file(name: str) -> str:
    """One of the files that pages are made of."""
    return (PAGE / name).read_text(encoding="utf-8")


def fill(template: str, parts: dict[str, str]) -> str:
    """Put parts in the place of their @names@; what is in a part is left as it is."""
    return re.sub("@(" + "|".join(parts) + ")@", lambda found: parts[found[1]], template)


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end one."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _versions(report: Report) -> list[dict[str, Any]]:
    codec = report.subject.codec

    def version(recording: Recording, heading: str) -> dict[str, Any]:
        pieces = codec.pieces(recording.tokens[0].tolist())
        return {**view_data(recording, pieces, codec), "heading": heading}

    first = version(report.recording, codec.whole.capitalize())
    others = [
        {
            **version(other.after, f"With {other.replacement}"),
            "passages": [
                [p.before.start, p.before.stop, p.after.start, p.after.stop] for p in other.passages
            ],
        }
        for other in report.versions
    ]
    return [first, *others]
