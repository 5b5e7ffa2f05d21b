"""What lies in examples/ works as its README says."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from expire_span.agent.dense import start_full
from expire_span.agent.episodes import play_episodes
from expire_span.agent.evaluation import evaluate_agent
from expire_span.agent.experiments import corridor, portal
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


def test_the_agent_remembers_fifty_rooms_with_half_a_loop_and_was_made_as_the_readme_says():
    assert load_agent_experiment(EXAMPLES / "portal-fifty") == replace(portal("single"), seed=1)
    experiment, model = load_agent(EXAMPLES / "portal-fifty", "cpu")
    found = evaluate_agent(model, experiment.world, rows=64, seed=5)
    assert found["return"] > 660  # 344 for a window with as much memory, 709 for a walker
    assert found["live"] < 60  # 97 for whoever remembers a whole loop


def test_the_agent_finds_its_door_with_half_the_memory_and_was_made_as_the_readme_says():
    assert load_agent_experiment(EXAMPLES / "corridor") == corridor("single")
    experiment, model = load_agent(EXAMPLES / "corridor", "cpu")
    found = evaluate_agent(model, experiment.world, rows=64, seed=5)
    assert found["success"] > 0.95  # 0.5 for whoever remembers nothing
    assert found["live"] < 45  # 67 for whoever forgets nothing


@pytest.mark.parametrize(("time", "knowing"), [(120, 0), (133, 0), (135, 1), (190, 1)])
@torch.no_grad()
def test_the_first_layer_hands_the_colour_on_to_the_second(time, knowing):
    """A memory that has seen the other colour decides, in the layer that knows it at that time."""
    experiment, model = load_agent(EXAMPLES / "corridor", "cpu")
    words = experiment.world.words
    played = play_episodes(model, experiment.world, rows=16)
    episode = played.first_of(played.best())
    assert episode.steps == 200
    red, blue = words.index("red"), words.index("blue")
    exchanged = episode.observations.clone()
    exchanged[:, 0, ..., [red, blue]] = episode.observations[:, 0, ..., [blue, red]]

    def read(views, memory, first, end):
        for now in range(first, end):
            step = model(views[:, [now]], memory, starts=episode.starts[:, [now]])
            memory = step.memory
        return memory, step

    mine, _ = read(episode.observations, start_full(model, 1), 0, time)
    others, _ = read(exchanged, start_full(model, 1), 0, time)
    moves = []
    for layer in range(2):
        layers = [others.layers[n] if n == layer else mine.layers[n] for n in range(2)]
        mixed = replace(mine, layers=tuple(layers))
        _, last = read(episode.observations, mixed, time, episode.steps)
        moves.append(int(model.head(last.hidden).logits[0, -1].argmax()))
    taken = int(episode.actions[0, -1])
    assert moves[1 - knowing] == taken
    assert moves[knowing] == 1 - taken  # the other one of up and down
