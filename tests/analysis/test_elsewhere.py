"""Released models are looked at where their data are not."""

import json
import shutil
from pathlib import Path

import pytest

from expire_span.cli import main
from expire_span.serve.command import open_all
from expire_span.tasks import PG19, Documents, Instruction, Task, WikiText
from expire_span.training.loop import train
from expire_span.training.release import release
from reading_models import byte_level_tokenizer
from small_runs import small_experiment

TEXT = "the rose of the café is red\nthe rose is a rose\n"


def wikitext(data: Path) -> WikiText:
    for split in ("train", "valid", "test"):
        (data / f"{split}.txt").write_text(TEXT * 9)
    return WikiText(str(data), vocabulary=12)


def pg19(data: Path) -> PG19:
    for split in ("train", "valid", "test"):
        (data / split).mkdir()
        (data / split / "1.txt").write_text(TEXT * 9)
    return PG19(str(data), vocabulary=30)


def light(data: Path) -> Instruction:
    people = [{"name": f"rose {n}", "persona": [TEXT], "description": ""} for n in range(16)]
    (data / "characters.json").write_text(json.dumps(people))
    (data / "rooms.json").write_text(json.dumps([{"name": "café", "description": TEXT}]))
    (data / "objects.json").write_text(json.dumps([{"name": "x", "descripton": [TEXT]}]))
    (data / "light_utterances.tsv").write_text(TEXT)
    return Instruction(text="light", path=str(data), vocabulary=60, distance=20)


def documents(data: Path) -> Documents:
    (data / "some.jsonl").write_text(json.dumps({"text": TEXT * 20}))
    size = byte_level_tokenizer(data / "tokenizer.json")
    return Documents(
        str(data / "some.jsonl"), tokenizer=str(data / "tokenizer.json"), vocabulary=size
    )


TASKS = {"wikitext": wikitext, "pg19": pg19, "light": light, "documents": documents}


class Place:
    """A run and its release, whose data can go away and come back."""

    def __init__(self, root: Path, name: str):
        self.root, self.data, self.moved = root, root / "data", root / "moved"
        self.data.mkdir()
        (root / "text.txt").write_text(TEXT)
        self.task: Task = TASKS[name](self.data)
        train(small_experiment(self.task, steps=1), root / "run", progress=False)
        release(root / "run", root / "released")

    def move_data(self) -> None:
        self.data.rename(self.moved)
        shutil.rmtree(self.root / "cache", ignore_errors=True)

    def inspect(self, name: str, *options: str) -> dict:
        path = self.root / "report.html"
        path.unlink(missing_ok=True)
        main(["inspect", str(self.root / name), "--out", str(path), "--device", "cpu", *options])
        data = path.read_text().split('type="application/json">')[1].split("</script>")[0]
        (version,) = json.loads(data)["versions"]
        del version["name"]
        return version


@pytest.fixture(params=TASKS)
def place(request, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))
    return Place(tmp_path, request.param)


def test_runs_and_releases_read_texts_without_their_data(place):
    text = ["--text", str(place.root / "text.txt")]
    before = place.inspect("run", *text)
    place.move_data()
    assert place.inspect("run", *text) == before
    assert place.inspect("released", *text) == before
    release(place.root / "run", place.root / "late")
    assert place.inspect("late", *text) == before
    release(place.root / "released", place.root / "again")
    assert place.inspect("again", *text) == before
    (subject,) = open_all([place.root / "released"], "cpu").values()
    assert "".join(subject.codec.pieces(subject.codec.encode(TEXT).tolist())).startswith("the rose")


def test_data_may_lie_elsewhere(place, capsys):
    short = ["--split", "valid", "--length", "40"]
    before = place.inspect("run", *short)
    place.move_data()
    moved = place.moved / "some.jsonl" if isinstance(place.task, Documents) else place.moved
    assert place.inspect("released", *short, "--data", str(moved)) == before
    capsys.readouterr()
    with pytest.raises(SystemExit):
        place.inspect("released", *short)
    said = capsys.readouterr().err
    assert "There is no" in said
    assert "Say with --data where it lies, or give another text with --text." in said
    main(["evaluate", str(place.root / "released"), "--blocks", "2", "--data", str(moved)])


@pytest.mark.parametrize("name", ["wikitext", "pg19", "light"])
@pytest.mark.parametrize("folder", ["run", "released"])
def test_data_of_other_words_are_refused(name, folder, tmp_path, monkeypatch, capsys):
    """A token would stand for another word than the one that the model has learned."""
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))
    place = Place(tmp_path, name)
    place.move_data()
    others = shutil.copytree(place.moved, tmp_path / "others")
    for path in others.rglob("*.*"):
        path.write_text(path.read_text().replace("is red", "xylophone"))
    run = str(place.root / folder)
    for command in (
        ["evaluate", run, "--blocks", "2"],
        ["inspect", run, "--split", "valid", "--length", "40", "--out", str(tmp_path / "r.html")],
    ):
        main([*command, "--device", "cpu", "--data", str(place.moved)])
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([*command, "--device", "cpu", "--data", str(others)])
        assert "was trained on other data than those at hand" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["wikitext", "pg19", "light"])
def test_an_older_run_whose_data_are_gone_says_what_helps(name, tmp_path, monkeypatch, capsys):
    """Older versions did not keep in a run what its tokens stand for."""
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))
    place = Place(tmp_path, name)
    (place.root / "run" / "vocabulary.json").unlink()
    text = ["--text", str(place.root / "text.txt")]
    before = place.inspect("run", *text)
    place.move_data()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        place.inspect("run", *text)
    said = capsys.readouterr().err
    assert "put it there, or name its place by --data where that is an option" in said
    assert "EXPIRE_SPAN_DATA" not in said  # for the run has named a path of its own
    assert "Or look at a release of it" in said
    assert place.inspect("run", *text, "--data", str(place.moved)) == before
    with pytest.raises(FileNotFoundError, match=r"There is no .* in .*data"):
        release(place.root / "run", place.root / "late")
    assert not (place.root / "late").exists()
