"""What lies in examples/ works as its README says."""

import re
from pathlib import Path

import numpy as np

from expire_span.agent.evaluation import evaluate_agent
from expire_span.agent.experiments import corridor
from expire_span.agent.run import load_agent, load_agent_experiment
from expire_span.analysis.counterfactual import Replacement, counterfactual
from expire_span.analysis.recording import record_tokens
from expire_span.analysis.subject import open_reader
from expire_span.cli import main
from expire_span.training.records import load_experiment

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MODEL = EXAMPLES / "enwik8-small"
TEXT = (EXAMPLES / "egypt.txt").read_text()


def test_the_small_model_has_learned_to_read():
    subject = open_reader(MODEL)
    assert (MODEL / "model.safetensors").stat().st_size < 8_000_000
    recording = record_tokens(subject.model, subject.codec.encode(TEXT))
    bits = np.nanmean(recording.loss) / np.log(2)
    assert bits < 3.5  # 8 for whoever knows nothing
    assert recording.spans.std() > 10  # not everything is kept equally long


def test_generic_words_are_forgotten_sooner_than_names():
    found = counterfactual(open_reader(MODEL), TEXT, Replacement("Egypt", "somewhere"))
    before, after = found.passage_spans()
    assert after.mean() < before.mean()


def test_the_command_in_the_readme_makes_this_model(tmp_path, monkeypatch):
    readme = (EXAMPLES / "README.md").read_text()
    command = re.search(r"expire-span (train text .*?)\nexpire-span", readme, re.DOTALL)[1]
    words = command.replace("\\\n", " ").split()
    monkeypatch.chdir(tmp_path)
    caught = []
    monkeypatch.setattr(
        "expire_span.cli.train_experiment",
        lambda experiment, out, **_: caught.append(experiment) or {},
    )
    main(words)
    assert caught == [load_experiment(MODEL / "experiment.json")]


def test_the_agent_finds_its_way_through_rooms_and_was_made_as_the_readme_says(
    tmp_path, monkeypatch
):
    readme = (EXAMPLES / "README.md").read_text()
    command = re.search(r"expire-span (train portal .*?)\n```", readme, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    caught = []
    monkeypatch.setattr(
        "expire_span.agent.commands.train_agent",
        lambda experiment, out, **_: caught.append(experiment) or {},
    )
    main(command.replace("\\\n", " ").split())
    experiment, model = load_agent(EXAMPLES / "portal", "cpu")
    assert caught == [load_agent_experiment(EXAMPLES / "portal")]
    found = evaluate_agent(model, experiment.world, rows=512, seed=5)
    assert found["return"] > 37  # 0.6 for whoever remembers nothing, 39.5 for a walker
    assert found["live"] < 15  # 27 for whoever remembers from one passage to the next


def test_the_agent_finds_its_door_with_half_the_memory_and_was_made_as_the_readme_says():
    assert load_agent_experiment(EXAMPLES / "corridor") == corridor("single")
    experiment, model = load_agent(EXAMPLES / "corridor", "cpu")
    found = evaluate_agent(model, experiment.world, rows=64, seed=5)
    assert found["success"] > 0.95  # 0.5 for whoever remembers nothing
    assert found["live"] < 45  # 67 for whoever forgets nothing
