"""Experiments survive the way to JSON and back."""

import json
from dataclasses import replace

import pytest

from expire_span.experiments import EXPERIMENTS
from expire_span.training.records import (
    changed_settings,
    differences,
    from_record,
    load_experiment,
    save_experiment,
    to_record,
)
from expire_span.worlds import Portal
from small_runs import MEMORIES, small_experiment


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_comes_back_equal(name, tmp_path):
    experiment = EXPERIMENTS[name]()
    save_experiment(experiment, tmp_path / "experiment.json")
    assert load_experiment(tmp_path / "experiment.json") == experiment


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
def test_every_memory_comes_back_equal(memory):
    experiment = small_experiment(memory=memory)
    assert from_record(json.loads(json.dumps(to_record(experiment)))) == experiment


def test_differences_are_named_by_their_path():
    one = small_experiment()
    memory = replace(one.model.memory, ramp=9)
    other = replace(one, batch=3, model=replace(one.model, memory=memory))
    found = differences(to_record(one), to_record(other))
    assert sorted(found) == ["batch", "model.memory.ramp"]
    assert differences(to_record(one), to_record(one)) == []


def test_a_setting_that_came_later_has_its_default_in_older_records():
    experiment = small_experiment()
    older = to_record(experiment)
    del older["penalty"]["while_band"]
    assert changed_settings(older, experiment, free=()) == []
    banded = replace(experiment.penalty, while_metric=0.5, while_band=0.1)
    other = replace(experiment, penalty=banded)
    changed = changed_settings(older, other, free=())
    assert changed == ["penalty.while_metric", "penalty.while_band"]


def test_a_setting_that_there_is_no_longer_differs():
    experiment = small_experiment()
    older = {**to_record(experiment), "colour": "red"}
    assert changed_settings(older, experiment, free=()) == ["colour"]


def test_only_known_settings_can_come_out_of_a_file(tmp_path):
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps({"kind": "Popen", "args": ["true"]}))
    with pytest.raises(ValueError, match=r"There are no settings of the kind 'Popen'"):
        load_experiment(path)
    path.write_text("{not json")
    with pytest.raises(ValueError, match="cannot be read as an experiment"):
        load_experiment(path)
    path.write_text(json.dumps({"kind": "FixedSpan", "span": 3}))
    with pytest.raises(
        ValueError,
        match="holds FixedSpan, but this needs a sequence model: give the folder of one",
    ):
        load_experiment(path)
    (tmp_path / "file").write_text("no folder")
    for folder in ("nowhere", "file"):
        with pytest.raises(ValueError, match=r"is not a run: it has no experiment\.json\.$"):
            load_experiment(tmp_path / folder / "experiment.json")


def test_a_record_is_what_json_gives_back():
    record = to_record(Portal(spawn=(1, 2)))
    assert json.loads(json.dumps(record)) == record
