"""A run that is stopped continues in any other layout: the same checkpoint to the bit, the same
batches, the same curve.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from layouts import LAYOUTS, OF_EXPERTS, Train, trains
from run_helpers import assert_bit_equal, logged, meta, step_of, stored

MOE = """
    model.moe.num_experts=8 model.moe.ffn_hidden_dim=18 model.moe.bias_update_rate=0.01
    model.moe.sequence_aux_loss_weight=0.01
"""
QLORA = """
    adapter=qlora adapter.rank=2 adapter.dropout=0.1 optimizer=adamw optimizer.lr=0.001
    model.dim=128 model.n_heads=4 model.ffn_hidden_dim=256
"""
DRAWN = """
    objective=sft objective.weighting=example objective.neftune_alpha=5 model.dropout=0.2
    data.pack_sequences=true
"""
OF_LORA = "adapter=lora adapter.rank=3 adapter.dropout=0.1 adapter.dora=true optimizer=adamw"
LORA = f"{DRAWN} {OF_LORA}"
PISSA = f"{OF_LORA} adapter.init=pissa adapter.dropout=0 adapter.dora=false optimizer.lr=0.001"
IA3 = "adapter=ia3 optimizer=adamw"
PAIRS = "data=preference data.path={rows} objective=dpo"
UNDER = f"{PAIRS} objective.reference=adapter optimizer.lr=0.0005"
LABELS = "data=labelled data.path={rows} objective=kto"
FROZEN = "optimizer.freeze_parameters=[embedding,w_up]"
LAST, SEQ, IGNORED = 12, 16, -100


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


def responses(path: Path) -> Path:
    """Prompts with two responses, and with one that has a label."""
    rows = []
    for number in range(200):
        row: dict[str, object] = {"prompt": f"{number}+{number % 7}="}
        row |= {"chosen": f" {number + number % 7}", "rejected": f" no {number * 3 % 11}"}
        liked = number % 3 > 0
        rows.append(row | {"completion": row["chosen" if liked else "rejected"], "label": liked})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rows_of_step(path: Path, number: int) -> np.ndarray:
    """The global batch of a step in its order: [sequences, tokens]; ranks that read the same rows
    have written the same file.
    """
    files = (path / "batches").glob(f"{number}_*.npy")
    ordered = sorted(files, key=lambda file: int(file.stem.partition("_")[2]))
    batch = np.concatenate([np.load(file) for file in ordered], axis=1)
    rows = batch.reshape(-1, batch.shape[-1])
    # Some layouts cut rows of responses to the longest; nothing after a response counts.
    return np.pad(np.where(rows == IGNORED, 0, rows), ((0, 0), (0, SEQ + 1 - rows.shape[1])))


STOPS = (("fsdp2 x tp2", 3), ("single", 5), ("fsdp4", 7), ("pp2", 9), ("fsdp2 x tp2", LAST))
"""Where the travelling run is stopped: out, over every kind of layout, and back."""
NO_PIPELINE = (("fsdp2 x tp2", 3), ("single", 5), ("hsdp 2x2", 8), ("fsdp2", LAST))
STOPS_OF_EXPERTS = (
    ("ep2 x fsdp2", 3),
    ("single", 5),
    ("ep4", 7),
    ("pp2 x ep2", 9),
    ("ep2 x tp2", 11),
    ("ep2 x fsdp2", LAST),
)


@pytest.mark.parametrize(
    ("model", "stops"),
    [
        ("", STOPS),
        pytest.param(MOE, STOPS_OF_EXPERTS, marks=pytest.mark.nightly),
        pytest.param(DRAWN, STOPS, marks=pytest.mark.nightly),
        pytest.param(LORA, STOPS, marks=pytest.mark.nightly),
        pytest.param(PISSA, STOPS[:4], marks=pytest.mark.nightly),
        pytest.param(IA3, STOPS[:4], marks=pytest.mark.nightly),
        pytest.param(FROZEN, STOPS, marks=pytest.mark.nightly),
        pytest.param(QLORA, STOPS, marks=pytest.mark.nightly),
        pytest.param(f"{QLORA} {MOE}", STOPS_OF_EXPERTS, marks=pytest.mark.nightly),
        pytest.param(PAIRS, STOPS, marks=pytest.mark.nightly),
        pytest.param(f"{UNDER} {OF_LORA}", NO_PIPELINE, marks=pytest.mark.nightly),
        pytest.param(f"{UNDER} {QLORA}", NO_PIPELINE, marks=pytest.mark.nightly),
        pytest.param(LABELS, STOPS, marks=pytest.mark.nightly),
    ],
    ids=[
        "dense",
        "experts",
        "sft with dropout",
        "sft with adapters",
        "adapters taken out of weights",
        "vectors",
        "a part",
        "qlora",
        "qlora of experts",
        "dpo",
        "dpo with adapters",
        "dpo with qlora",
        "kto",
    ],
)
def test_a_run_that_changes_its_layout_at_every_stop_equals_one_that_never_stops(
    train, model, stops, tmp_path
):
    model = model.replace("{rows}", str(responses(tmp_path / "rows.jsonl")))
    travels(train, model, stops)


FURTHER = [
    (f"{DRAWN} {QLORA}", "sft, qlora"),
    *((f"{LABELS} {one}", f"kto, {name}") for one, name in ((OF_LORA, "lora"), (QLORA, "qlora"))),
    *(
        (f"{PAIRS.replace('dpo', objective)} optimizer.lr=0.0005 {one}", f"{objective}, {name}")
        for objective in ("orpo", "simpo", "cpo")
        for one, name in (("", "no adapter"), (OF_LORA, "lora"), (QLORA, "qlora"))
    ),
]


@pytest.mark.nightly
@pytest.mark.parametrize("model", [pytest.param(one, id=name) for one, name in FURTHER])
def test_every_objective_goes_on_elsewhere_with_every_adapter(train, model, tmp_path):
    model = model.replace("{rows}", str(responses(tmp_path / "rows.jsonl")))
    travels(train, model, (("fsdp2 x tp2", 2), ("single", 4), ("fsdp4", 6)))


def travels(train: Train, model: str, stops: tuple[tuple[str, int], ...]) -> None:
    """A run that stops and continues in another layout has the curve and the batches of one that
    never stops.
    """
    rows = 16 if "data.path" in model else 8  # an example has two
    last = stops[-1][1]
    whole = train("whole", "single", last, model)
    for layout, step in stops:
        path = train("travelling", layout, step, model)
    # A loss below 1 is a difference of log-probabilities of some nats, which are rounded to 2e-7.
    for key, bound, least in (("train/loss", 2e-6, 1), ("train/grad_norm", 1e-5, 0), ("lr", 0, 0)):
        expected, found = logged(whole, key), logged(path, key)
        assert list(found) == list(expected) == list(range(1, last + 1))
        for step, value in expected.items():
            assert abs(found[step] - value) <= bound * max(abs(value), least), (key, step)
    batches = [rows_of_step(whole, number) for number in range(1, last + 1)]
    for number, expected in enumerate(batches, start=1):
        assert expected.shape == (rows, SEQ + 1)
        assert np.array_equal(rows_of_step(path, number), expected), number
    assert len({batch.tobytes() for batch in batches}) == last


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("source", "model"),
    [
        pytest.param("fsdp2 x tp2", "", marks=pytest.mark.nightly),
        pytest.param("pp2", "", marks=pytest.mark.nightly),
        ("ep2 x fsdp2", MOE),
    ],
    ids=["fsdp2 x tp2", "pp2", "ep2 x fsdp2"],
)
def test_a_checkpoint_is_the_same_on_every_layout(train, source, model):
    """Loaded on another layout and saved again at once, it has every name and bit of weights,
    optimizer and data state.
    """
    original = step_of(train("first", source, 3, model), 3)
    theirs, expected = meta(original), stored(original)
    layouts = ["single", "hsdp 2x2", *OF_EXPERTS] if model else LAYOUTS
    for number, layout in enumerate(layout for layout in layouts if layout != source):
        path = train(f"copy_{number}", layout, 3, f"checkpoint.resume_from={original}", model)
        assert_bit_equal(stored(step_of(path, 3)), expected)
        ours = meta(step_of(path, 3))
        assert all(ours[key] == theirs[key] for key in ("train", "data", "step"))
    assert {name.partition("/")[0] for name in expected} == {"model", "optimizer"}
    assert any(name.endswith("selection_bias") for name in expected) == bool(model)
