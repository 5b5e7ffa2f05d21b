"""Every mistake in a configuration or in the use of a model is said in one clear sentence."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from expire_span import (
    AdaptiveSpan,
    Compressive,
    ExpireSpan,
    FixedSpan,
    Memory,
    Transformer,
    TransformerConfig,
)
from policies import VOCAB, Case, make_model, random_tokens

SIZES: dict[str, Any] = {
    "vocab": VOCAB,
    "layers": 2,
    "width": 8,
    "heads": 2,
    "feedforward": 12,
    "block": 6,
    "memory": FixedSpan(4),
}


def assert_one_sentence(message: str) -> None:
    assert message.endswith(".")
    assert "\n" not in message
    assert not re.search(r"\.\s", message)


def refused(attempt: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        attempt()
    assert_one_sentence(str(error.value))


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda: ExpireSpan(0, 4), "^max_span must be a whole number of at least 1, but is 0"),
        (lambda: ExpireSpan(8, 0), "^ramp must be a whole number of at least 1, but is 0"),
        (lambda: ExpireSpan(8, -2), "^ramp must be a whole number of at least 1, but is -2"),
        (lambda: ExpireSpan(8, 4, penalty=-1.0), "^penalty must not be negative, but is -1"),
        (lambda: ExpireSpan(8, 4, initial=0.0), "^initial is a share between 0 and 1, but is 0"),
        (lambda: ExpireSpan(8, 4, initial=1.0), "^initial is a share between 0 and 1, but is 1"),
        (lambda: ExpireSpan(8, 4, divisor=0.0), "^divisor must be above 0, but is 0"),
        (lambda: ExpireSpan(8, 4, budget=-1), "^budget must be a whole number of at least 0"),
        (
            lambda: ExpireSpan(8, 4, positions="far"),
            "^positions must be one of near, all, but is 'far'",
        ),
        (
            lambda: ExpireSpan(8, 4, charge="now"),
            "^charge must be one of ramp, block, but is 'now'",
        ),
        (lambda: FixedSpan(0), "^span must be a whole number of at least 1, but is 0"),
        (lambda: AdaptiveSpan(0, 4), "^max_span must be a whole number of at least 1, but is 0"),
        (lambda: AdaptiveSpan(8, 0), "^ramp must be a whole number of at least 1, but is 0"),
        (lambda: AdaptiveSpan(8, 4, penalty=-0.1), "^penalty must not be negative"),
        (lambda: AdaptiveSpan(8, 4, initial=1.1), "^initial is a share between 0 and 1"),
        (lambda: Compressive(0, 2, 2), "^span must be a whole number of at least 1, but is 0"),
        (
            lambda: Compressive(4, 0, 2),
            "^compressed must be a whole number of at least 1, but is 0",
        ),
        (lambda: Compressive(4, 2, 0), "^rate must be a whole number of at least 1, but is 0"),
        (
            lambda: Compressive(10, 2, 4),
            "^span must be a multiple of rate, but 10 is not one of 4",
        ),
    ],
)
def test_a_policy_with_impossible_settings_is_refused(
    attempt: Callable[[], Any], sentence: str
) -> None:
    refused(attempt, sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab": 0}, "^vocab must be a whole number of at least 1, but is 0"),
        ({"layers": 0}, "^layers must be a whole number of at least 1, but is 0"),
        ({"width": 0}, "^width must be a whole number of at least 1, but is 0"),
        ({"heads": 0}, "^heads must be a whole number of at least 1, but is 0"),
        ({"feedforward": 0}, "^feedforward must be a whole number of at least 1, but is 0"),
        ({"block": 0}, "^block must be a whole number of at least 1, but is 0"),
        ({"heads": 3}, "^heads must divide width, but 3 does not divide 8"),
        ({"dropout": 1.0}, "^dropout is a probability from 0 to below 1, but is 1.0"),
        ({"dropout": -0.1}, "^dropout is a probability from 0 to below 1, but is -0.1"),
        ({"layer_drop": 1.0}, "^layer_drop is a probability from 0 to below 1, but is 1.0"),
        ({"norm": "batch"}, "^norm must be one of post, pre, but is 'batch'"),
        ({"start": "ones"}, "^start must be one of empty, zeros, but is 'ones'"),
        ({"init": "he"}, "^init must be one of torch, glorot, but is 'he'"),
        ({"attention": "slow"}, "^attention must be one of .*reference.*, but is 'slow'"),
        (
            {"memory": Compressive(8, 2, 4)},
            "^block must be a multiple of the compression rate, but 6 is not one of 4",
        ),
    ],
    ids=str,
)
def test_a_model_with_impossible_settings_is_refused(
    changes: dict[str, Any], sentence: str
) -> None:
    refused(lambda: TransformerConfig(**SIZES | changes), sentence)


def model_of(memory: Any = SIZES["memory"], **settings: Any) -> Transformer:
    return make_model(Case(memory, block=6), **settings)


def call(model: Transformer, **changes: Any) -> Any:
    """A call that is right but for the changes."""
    arguments = {"tokens": random_tokens(2, 6), "memory": model.start(2)} | changes
    return model(**arguments)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": random_tokens(2, 7)}, r"^A call reads 1 to 6 steps .*, but got 7"),
        ({"tokens": random_tokens(2, 0)}, r"^A call reads 1 to 6 steps .*, but got 0"),
        (
            {"tokens": random_tokens(3, 6)},
            r"memory has 2 rows, but the tokens have 3: .*start\(3\)",
        ),
        (
            {"tokens": torch.full((2, 6), VOCAB)},
            "^Token ids must lie between 0 and 10, but range from 11 to 11",
        ),
        (
            {"tokens": torch.tensor([[3, -1], [2, 0]])},
            "^Token ids must lie between 0 and 10, but range from -1 to 3",
        ),
        (
            {"tokens": random_tokens(2, 6).to("meta")},
            "^The model is on cpu, but the tokens are on meta: move them to the model's device",
        ),
        (
            {"tokens": torch.zeros(2, 6).bool()},
            "^Token ids must be whole numbers, but are",
        ),
        ({"tokens": torch.zeros(2, 6, 1).long()}, r"^Token ids must be \[rows, steps\], but have"),
        ({"tokens": [[0] * 6] * 2}, "^tokens must be a tensor, but got list"),
        ({"starts": [[False] * 6] * 2}, "^starts must be a tensor, but got list"),
        ({"limit": -1}, "^limit is a whole distance of at least 0, but is -1"),
        (
            {"starts": torch.zeros(2, 5, dtype=torch.bool)},
            r"^starts must be a bool tensor of shape \[2, 6\], but is torch.bool of shape \[2, 5\]",
        ),
        (
            {"starts": torch.zeros(2, 6)},
            r"^starts must be a bool tensor of shape \[2, 6\], but is torch.float32 of shape",
        ),
    ],
)
def test_a_call_that_cannot_be_right_is_refused(changes: dict[str, Any], sentence: str) -> None:
    model = model_of()
    call(model)
    refused(lambda: call(model, **changes), sentence)


@pytest.mark.parametrize("shortlist", [None, 4])
def test_any_whole_numbers_are_token_ids(shortlist: int | None) -> None:
    model = model_of(shortlist=shortlist)
    tokens = torch.arange(12).view(2, 6) % model.config.vocab
    expected = call(model, tokens=tokens).hidden
    for dtype in (torch.uint8, torch.int32):
        assert torch.equal(call(model, tokens=tokens.to(dtype)).hidden, expected)


def test_tokens_without_a_row_for_each_stream_are_refused() -> None:
    model = model_of()
    refused(lambda: call(model, tokens=torch.zeros(6, dtype=torch.int64)), "tokens")


def test_memory_on_another_device_is_refused() -> None:
    model = model_of()
    elsewhere = model.start(2).to("meta")
    refused(lambda: call(model, memory=elsewhere), "^This memory is on meta, but the tokens are on")


def test_episodes_inside_a_block_need_an_empty_start() -> None:
    model = model_of(start="zeros")
    starts = torch.zeros(2, 6, dtype=torch.bool)
    refused(lambda: call(model, starts=starts), r"^Episodes inside a block need .*start='empty'")


@pytest.mark.parametrize("batch", [0, -1])
def test_a_memory_of_no_rows_is_refused(batch: int) -> None:
    refused(
        lambda: model_of().start(batch), f"^A memory needs at least 1 row, but batch is {batch}"
    )


OTHER_MODELS = {
    "another policy": lambda: model_of(ExpireSpan(8, 2)),
    "more layers": lambda: model_of(layers=3),
    "wider": lambda: model_of(width=16),
    "another block": lambda: make_model(Case(FixedSpan(4), block=5)),
    "another start": lambda: model_of(start="zeros"),
}
every_other_model = pytest.mark.parametrize("other", OTHER_MODELS.values(), ids=OTHER_MODELS.keys())


@every_other_model
def test_the_memory_of_another_model_is_refused(other: Callable[[], Transformer]) -> None:
    model = model_of()
    refused(
        lambda: call(model, memory=other().start(2)),
        r"^This memory belongs to another model \(.*\), but this one is FixedSpan, 2 layers",
    )


@every_other_model
def test_a_saved_memory_of_another_model_is_refused(
    other: Callable[[], Transformer], tmp_path: Path
) -> None:
    path = tmp_path / "memory.safetensors"
    other().start(2).save(path)
    refused(
        lambda: model_of().load_memory(path),
        r"memory of another model \(.*\), but this one is FixedSpan",
    )


def test_slots_of_another_compression_rate_are_refused() -> None:
    # A slot of 3 states read as a slot of 2 would be given to the wrong times.
    memory = model_of(Compressive(6, 2, 3)).start(2)
    refused(lambda: call(model_of(Compressive(6, 2, 2)), memory=memory), "another model")


@pytest.mark.parametrize("verb", [Memory.reset, Memory.select])
def test_a_mask_of_rows_that_does_not_fit_is_refused(
    verb: Callable[[Memory, torch.Tensor], Memory],
) -> None:
    memory = model_of().start(2)
    refused(
        lambda: verb(memory, torch.tensor([True, False, True])),
        r"^A mask of rows must have 2 entries, but has shape \[3\]",
    )


def test_settings_that_are_at_their_limits_are_accepted() -> None:
    ExpireSpan(1, 1, budget=0)
    AdaptiveSpan(1, 1, initial=1.0)
    Compressive(1, 1, 1)
    config = TransformerConfig(**SIZES)
    assert replace(config, heads=8).head_width == 1
    assert call(Transformer(replace(config, block=1)), tokens=random_tokens(2, 1), limit=0)


@pytest.mark.parametrize("rows", [[2], [-3], [0, 5]])
def test_rows_that_are_not_there_are_refused(rows: list[int]) -> None:
    memory = model_of().start(2)
    refused(lambda: memory.reset(rows), "^Rows are numbered 0 to 1, but")
    refused(lambda: memory.select(rows), "^Rows are numbered 0 to 1, but")


def test_parts_of_rows_are_refused_and_no_rows_are_not() -> None:
    memory = model_of().start(2)
    refused(lambda: memory.reset([0.7]), r"^Rows are whole numbers or a mask, but are \[0")
    assert memory.select([]).batch == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedSpan(2.5),  # type: ignore[arg-type]
        lambda: ExpireSpan(8, 2, penalty=math.nan),
        lambda: ExpireSpan(8, 2, divisor=math.nan),
    ],
)
def test_numbers_that_are_none_are_refused(make: Callable[[], Any]) -> None:
    refused(make, "but is (2.5|nan)")


def test_what_is_no_memory_or_policy_is_refused() -> None:
    model = model_of()
    step = call(model, memory=model.start(2))
    refused(lambda: call(model, memory=step), "^The second argument is a memory, .* but got Step")
    refused(lambda: model_of(None), "^memory must be a policy such as ExpireSpan")  # type: ignore[arg-type]
    refused(lambda: call(model, tokens=random_tokens(2, 6).float()), "^Token ids must be whole")
    refused(lambda: call(model, limit=2.5), "^limit is a whole distance")


def test_a_file_that_is_no_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no memory at all")
    refused(lambda: model_of().load_memory(tmp_path / "text"), "is not a memory that was saved")
