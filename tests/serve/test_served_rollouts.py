"""rollout=openai, by forge's own server: rollouts have the trained weights, and runs continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving import serving

import forge
from forge.serve.new_weights import WeightReader
from forge.train import main

OPTIONS = """
objective=dr_grpo data=prompts tokenizer=bytes model.dim=32 model.n_layers=2 model.n_heads=2
model.max_seq_len=64 train.seq_len=24 train.batch_size=8 train.global_batch_size=8
optimizer=adamw optimizer.lr=0.01 rollout.num_generations=4 rollout.max_new_tokens=10
objective.num_iterations=2 checkpoint.interval=6 rollout.temperature=0.8
+rewards.signs._target_=helpers.rollout_rewards.signs run.trust=[helpers.] run.inline=true
run.num_threads=1 scheduler=constant scheduler.warmup_steps=0
"""


def train(path: Path, *more: str) -> int:
    rows = path.parent / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}+{n}="}) + "\n" for n in range(9)))
    return main([*OPTIONS.split(), f"data.path={rows}", f"run.dir={path}", *more])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served_rollouts")


@pytest.fixture(scope="module")
def base(place: Path) -> Any:
    """A model of the same shape with other weights, to serve."""
    assert train(place / "base", "train.max_steps=1", "seed=5") == 0
    return forge.load(place / "base")


def options(address: str, steps: int, *more: str) -> list[str]:
    url = f"{address}/v1"
    words = ["rollout=openai", f"rollout.url={url}", f"rollout.reload=[{url}/load_weights]"]
    return [*words, f"train.max_steps={steps}", "rollout.retries=0", *more]


def rollouts(path: Path) -> list[list[dict[str, Any]]]:
    files = sorted((path / "rollouts").glob("*.jsonl"))
    return [[json.loads(line) for line in file.open()][1:] for file in files]


def serving_base(base: Any, place: Path) -> Any:
    how = {"weights": WeightReader(base.model, place), "processed_logprobs": True}
    return serving(base, slots=3, waiting=4, **how)


def test_a_run_goes_on(base: Any, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With the weights in training at each rollout; in the middle of a rollout without a server;
    not without a server into the next; and there with a new one.
    """
    path = place / "run"
    with serving_base(base, place) as (address, _):
        assert train(path, *options(address, 3)) == 0
    written = rollouts(path)
    assert train(path, *options(address, 4)) == 0
    assert rollouts(path) == written, "step 4 learns from the rollout that was stored"
    capfd.readouterr()
    assert train(path, *options(address, 8)) != 0
    said = capfd.readouterr().err
    assert said.count("rollout.url: the server at") == 1
    assert "Connection refused" in said
    assert "Traceback" not in said
    with serving_base(base, place) as (address, _):
        assert train(path, *options(address, 8)) == 0
    written = rollouts(path)
    assert len(written) == 4
    for rows in written:
        assert len({tuple(row["ids"]) for row in rows}) > 4
        assert {row["finish"] for row in rows} <= {"stop", "length"}
        for row in rows:
            # Of the server's cache at the temperature, and of whole rows in training.
            assert row["logprobs"] == pytest.approx(row["old"], abs=2e-5)
    folders = sorted(entry.name for entry in (path / "weights").iterdir())
    assert [name[:6] for name in folders] == ["000002", "000003", "curren"]


def test_the_folder_has_the_weights_of_the_rollout(place: Path) -> None:
    """By the checkpoint at its beginning: rollout 3 is written by the weights of step 6."""
    folder = load_file(place / "run" / "weights" / "current" / "model.safetensors")
    trained = forge.load(place / "run" / "checkpoints" / "step_6").model.state_dict()
    name = "model.layers.1.self_attn.o_proj.weight"
    torch.testing.assert_close(
        folder[name], trained["blocks.1.attention.wo.weight"], atol=0, rtol=0
    )


def test_other_weights_are_read_from_named_places_alone(
    base: Any, place: Path, tmp_path: Path
) -> None:
    """A folder elsewhere, behind a link, torn, or of another model changes nothing."""
    for parameter in base.model.parameters():
        parameter.data.add_(0.5)
    before = {name: value.clone() for name, value in base.model.state_dict().items()}
    folder = place / "run" / "weights" / "current"
    (elsewhere := tmp_path / "folder").mkdir()
    for path in folder.iterdir():
        (elsewhere / path.name).write_bytes(path.read_bytes())
    (place / "link").symlink_to(elsewhere)
    shutil.copytree(folder, place / "torn")
    content = (folder / "model.safetensors").read_bytes()
    (place / "torn" / "model.safetensors").write_bytes(content[:-1000])
    shutil.copytree(folder, place / "wider")
    tensors = load_file(folder / "model.safetensors") | {"model.norm.weight": torch.ones(33)}
    save_file(tensors, place / "wider" / "model.safetensors")
    wrong = {
        elsewhere: "it is no folder in",
        place / "link": "it is no folder in",
        place / "absent": "it is no folder in",
        place / "torn": "torn",
        place / "wider": "does not fit the model",
    }
    with serving_base(base, place) as (address, _):
        for path, message in wrong.items():
            reply = posted(address, str(path))
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "folder")
            assert message in reply.json()["error"]["message"]
            after = base.model.state_dict()
            assert all(torch.equal(after[name], before[name]) for name in before), path
        assert posted(address, str(folder)).status_code == 200
        expected = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(base.model.state_dict()["embedding.weight"], expected)
    with serving(base) as (address, _):
        assert posted(address, str(folder)).status_code == 404


def posted(address: str, folder: str) -> httpx.Response:
    body = {"folder": folder}
    return httpx.post(f"{address}/v1/load_weights", json=body, timeout=60, trust_env=False)
