"""Runs that learn from a teacher: a run of another size, a folder, or what is stored of it."""

from __future__ import annotations

import json
import shutil

import pytest
from run_helpers import assert_bit_equal, built, logged, step_of, stored

from forge import export, worker
from forge.teach.__main__ import main as teach
from forge.training import teaching

STUDENT = "objective=distill model.dim=8 model.n_layers=1 model.ffn_hidden_dim=16 seed=5"
MOVING = (
    "objective.hard.end=0 objective.hard.schedule=linear objective.jsd.value=0.3 "
    "objective.temperature.value=2 objective.temperature.end=1 "
    "objective.temperature.schedule=cosine"
)


def test_a_teacher_of_another_size_and_a_run_that_goes_on(tiny_run, trained) -> None:
    teacher = f"{STUDENT} objective.teacher={tiny_run} checkpoint.interval=3 {MOVING}"
    path = trained(teacher)
    losses = {name: logged(path, f"train/{name}") for name in ("loss", "forward_kl", "jsd")}
    assert all(len(values) == 6 for values in losses.values())
    total = logged(path, "train/distill_loss")
    for step, hard, temperature in ((1, 0.5, 2.0), (4, 0.25, 1.5)):
        soft = 0.5 * losses["forward_kl"][step] + 0.3 * losses["jsd"][step]
        by_hand = hard * losses["loss"][step] + temperature**2 * soft
        assert total[step] == pytest.approx(by_hand, rel=1e-6)

    weights, metrics = stored(step_of(path, 6)), (path / "metrics.jsonl").read_text()
    shutil.rmtree(step_of(path, 6))
    (path / "result.json").unlink()
    assert worker.main([str(path)]) == 0
    assert_bit_equal(stored(step_of(path, 6)), weights)
    assert (path / "metrics.jsonl").read_text() == metrics


def test_a_student_that_writes_goes_on_with_the_same_bits(trained, tmp_path) -> None:
    """Half the rows are written by the student; the steps after a checkpoint are made again."""
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"def f{n}(", "response": f"x{n}): return {n}"} for n in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    student = STUDENT.replace("=distill", "=gkd")
    data = f"data=pairs data.path={file} data.packing=none"
    teacher = trained(f"{data} objective=sft train.max_steps=1")
    path = trained(
        f"{student} {data} objective.teacher={teacher} objective.max_new_tokens=6 "
        "checkpoint.interval=3 model.dropout=0.1"
    )
    written = logged(path, "train/on_policy/rows")
    assert 0 < sum(written.values()) < 4 * len(written)
    assert max(logged(path, "train/on_policy/mean_length").values()) <= 6
    seconds = logged(path, "writing_seconds", file="performance.jsonl")
    assert min(seconds.values()) > 0
    weights, metrics = stored(step_of(path, 6)), (path / "metrics.jsonl").read_text()
    shutil.rmtree(step_of(path, 6))
    (path / "result.json").unlink()
    assert worker.main([str(path)]) == 0
    assert_bit_equal(stored(step_of(path, 6)), weights)
    assert (path / "metrics.jsonl").read_text() == metrics


def test_a_folder_of_hugging_face_teaches_as_its_run(tiny_run, trained, tmp_path) -> None:
    folder = tmp_path / "folder"
    assert export.main([str(tiny_run), str(folder), "--format", "hf", "--dtype", "float32"]) == 0
    options = f"{STUDENT} train.max_steps=2 checkpoint.enabled=false"
    of_run, of_folder = (
        logged(trained(f"{options} objective.teacher={place}"), "train/forward_kl")
        for place in (tiny_run, folder)
    )
    assert of_run == pytest.approx(of_folder, rel=1e-6)


def test_stored_probabilities_teach_as_the_teacher(
    tiny_run, trained, new_run, text_file, tmp_path, capsys
) -> None:
    out, text = tmp_path / "out", ["data=text", f"data.path={text_file}"]
    sizes = ["tokenizer.vocab_size=300", "model.vocab_size=300", "train.seq_len=16", "seed=5"]
    sizes += ["run.device=cpu", "train.batch_size=4", "model.max_seq_len=32", *text]
    words = [str(out), f"objective.teacher={tiny_run}", *sizes]
    assert teach([*words, "--k", "300", "--format", "float32"]) == 0
    options = f"{STUDENT} train.max_steps=3 checkpoint.enabled=false objective.jsd.value=0.3"
    online = trained(f"{options} objective.teacher={tiny_run}")
    offline = trained(f"{options} objective.offline={out} data.num_workers=1")
    for name in ("loss", "forward_kl", "jsd", "distill_loss"):
        ours, theirs = (logged(path, f"train/{name}") for path in (offline, online))
        assert ours == pytest.approx(theirs, rel=2e-5), name

    assert teach([str(tmp_path / "few"), *words[1:], "--k", "8"]) == 0
    assert "8 of 300 tokens at each of" in capsys.readouterr().out
    few = trained(f"{options} objective.offline={tmp_path / 'few'}")
    bound, whole = (logged(path, "train/forward_kl")[1] for path in (few, online))
    assert 0.2 * whole < bound < whole

    capsys.readouterr()
    for options, message in (
        ("train.seq_len=8", "it is of another text, or of other sequences of it"),
        ("objective.temperature.value=2", "it is of temperature 1.0"),
        ("tokenizer.vocab_size=290", "its teacher read with another tokenizer"),
    ):
        path = new_run(f"{STUDENT} objective.offline={out} {options}")
        with pytest.raises(ValueError, match=message):
            built(path)
    longer = f"{STUDENT} objective.teacher={tiny_run} train.seq_len=64 model.max_seq_len=64"
    path = new_run(longer)
    with pytest.raises(ValueError, match=r"fewer than train\.seq_len=64"):
        built(path)


def test_a_teacher_with_another_tokenizer_is_refused(tiny_run, new_run, tmp_path, capsys) -> None:
    folder = tmp_path / "folder"
    assert export.main([str(tiny_run), str(folder), "--format", "hf"]) == 0
    for place in (tiny_run, folder):
        path = new_run(f"{STUDENT} objective.teacher={place} tokenizer.vocab_size=290")
        capsys.readouterr()
        assert worker.main([str(path)]) == 2
        said = capsys.readouterr().err
        assert "objective, its model 'teacher'" in said
        assert "it was trained with another tokenizer" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("kind", ["cosine", "l2"])
def test_every_term_has_its_weight(kind: str, tiny_run, trained, assembled) -> None:
    """The first loss by hand, from the two models of the first batch."""
    weights = {"hard": 0.1, "forward_kl": 0.2, "reverse_kl": 0.3, "jsd": 0.4, "tvd": 0.5}
    weights["feature"] = 0.6
    options = " ".join(f"objective.{name}.value={value}" for name, value in weights.items())
    options += f" objective.feature_loss={kind} objective.feature_layers=[0,1] seed=5"
    options += f" objective.teacher_layers=[1,0] objective.teacher={tiny_run} train.max_steps=1"
    path = trained(f"objective=distill {options} checkpoint.enabled=false")
    terms = {name: logged(path, f"train/{name}")[1] for name in weights if name != "hard"}
    terms["hard"] = logged(path, "train/loss")[1]
    by_hand = sum(weight * terms[name] for name, weight in weights.items())
    assert logged(path, "train/distill_loss")[1] == pytest.approx(by_hand, rel=1e-6)

    loop = assembled(f"objective=distill {options} checkpoint.enabled=false")
    batch, states = next(iter(loop.loader)).batches[0], {}
    for name, model in (
        ("student", loop.model),
        ("teacher", loop.session.objective.models["teacher"]),
    ):
        x, states[name] = model.embed(batch["tokens"], 0), []
        rotations = model._rotations(0, batch["tokens"].shape[1], None)
        for layer, block in model.blocks.items():
            x = block(x, rotations.get(model.kinds[int(layer)]), None)
            states[name].append(x.detach())
    distances = []
    for ours, theirs in zip(states["student"], reversed(states["teacher"]), strict=True):
        cosines = (ours * theirs).sum(-1) / (ours.norm(dim=-1) * theirs.norm(dim=-1))
        distances.append(
            (1 - cosines if kind == "cosine" else ((ours - theirs) ** 2).mean(-1)).mean()
        )
    assert terms["feature"] == pytest.approx(sum(map(float, distances)) / 2, rel=1e-5)


def test_teaching_goes_on_where_it_was_stopped(tiny_run, text_file, tmp_path, capsys, monkeypatch):
    words = [f"objective.teacher={tiny_run}", "data=text", f"data.path={text_file}"]
    words += ["tokenizer.vocab_size=300", "model.vocab_size=300", "train.seq_len=16"]
    words += ["run.device=cpu", "train.batch_size=16", "model.max_seq_len=32", "--k", "3"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert teach([str(whole), *words]) == 0
    monkeypatch.setattr(teaching, "BATCHES_A_PART", 2)
    likeliest, calls = teaching._likeliest, []

    def stopped(*args):
        calls.append(args)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return likeliest(*args)

    monkeypatch.setattr(teaching, "_likeliest", stopped)
    assert teach([str(parts), *words]) == 130
    (done,) = json.loads((parts / "teacher.json").read_text())["texts"].values()
    assert done["done"] == 4 * 16 < done["samples"]
    assert teach([str(parts), *words]) == 0
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert len(files) == 3
    assert [(parts / name).read_bytes() for name in files] == [
        (whole / name).read_bytes() for name in files
    ]
    capsys.readouterr()
    for more, message in (
        (["--k", "4"], "is of another k"),
        (["objective.temperature.value=2"], "is of another temperature"),
        ([f"objective.teacher={tiny_run}/checkpoints/step_2"], "is of another teacher"),
    ):
        assert teach([str(whole), *words, *more]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert teach([str(tmp_path / "other"), *words]) == 2
    assert "has other files in it" in capsys.readouterr().err
