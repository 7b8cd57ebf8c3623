"""Two models side by side: votes are counted, kept, and trained on."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.tiny import TWO_LAYERS
from serving import LIMITS, listening_at

from forge import cli, worker
from forge.rundir import directory
from forge.serve import __main__ as serve
from forge.serve import app
from forge.serve.app import Server
from forge.serve.asking import Refusal
from forge.serve.engine import Engine
from forge.serve.side_by_side import SideBySide
from forge.serve.votes import Votes

NAMES = ("one", "two")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
READER = """<script>
const until = async (holds) => { while (!holds()) await new Promise((go) => setTimeout(go, 20)) };
const who = () => [...document.querySelectorAll(".pair .who")].map((each) => each.textContent);
(async () => {
  await until(() => models.length === 2 && !$("tally").hidden);
  $("max_tokens").value = 8;
  $("text").value = "the sea";
  $("form").requestSubmit();
  await until(() => document.querySelector(".vote button"));
  const blind = who(), shown = [...document.querySelectorAll(".pair .said")];
  document.querySelectorAll(".vote button")[1].click();
  await until(() => !document.querySelector(".vote"));
  const seen = { blind, told: who(), tally: $("tally").textContent, second: shown[1].textContent };
  seen.goes_on_with = turns.at(-1).content;
  seen.wide = document.documentElement.scrollWidth - innerWidth;
  document.body.textContent = JSON.stringify(seen);
})();
</script>"""


@pytest.fixture
def votes(tmp_path: Path) -> Votes:
    return Votes(tmp_path / "votes.jsonl", NAMES, LIMITS)


@pytest.fixture
def http(loaded: Any, votes: Votes) -> Iterator[httpx.Client]:
    """A client of a server of two models, which are one model under two names."""
    engines = [Engine(loaded.model, loaded.tokenizer, loaded.device, slots=2) for _ in NAMES]
    started = zip(engines, NAMES, strict=True)
    servers = [Server(engine.start(), name, LIMITS, talks=False) for engine, name in started]
    with listening_at(SideBySide(servers, votes).app()) as url:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            yield client
        for engine in engines:
            engine.close()


def vote(better: Any, *, one: Any = "a", two: Any = "b", **more: Any) -> dict[str, Any]:
    return {"prompt": "say", "answers": {"one": one, "two": two}, "better": better} | more


def test_two_models_answer_and_are_voted_on(http: httpx.Client, votes: Votes) -> None:
    shown = [model["id"] for model in http.get("/v1/models").json()["data"]]
    assert shown == list(NAMES)
    answers = {}
    for seed, name in enumerate(NAMES):
        asked = {"model": name, "prompt": "the sea", "max_tokens": 6, "seed": seed}
        reply = http.post("/v1/completions", json=asked).json()
        assert reply["model"] == name
        answers[name] = reply["choices"][0]["text"]
    wrong = http.post("/v1/completions", json={"model": "three", "prompt": "a"})
    assert wrong.status_code == 404
    assert "models are 'one' and 'two'" in wrong.json()["error"]["message"]
    cast = {"prompt": "the sea", "answers": answers, "better": "two"}
    tally = http.post("/votes", json=cast).json()
    assert tally["wins"] == {"one": 0, "two": 1}
    assert tally["share"] == 0
    # Wilson's interval of 0 of 1 ends at z^2 / (1 + z^2).
    assert tally["interval"] == pytest.approx([0, 1.959964**2 / (1 + 1.959964**2)], rel=1e-6)
    assert http.get("/votes").json() == tally
    (row,) = map(json.loads, votes.path.read_text(encoding="utf-8").splitlines())
    assert row["chosen"] == answers["two"]
    assert row["rejected"] == answers["one"]
    labels = [line for line in http.get("/metrics").text.splitlines() if "slots{" in line]
    assert labels == ['forge_slots{model="one"} 2', 'forge_slots{model="two"} 2']


def test_the_tally_goes_on(votes: Votes) -> None:
    """Another server counts what the file has of its two models, and of no other."""
    for better in ("one", "one", "two", None):
        votes.add(vote(better))
    again = Votes(votes.path, NAMES, LIMITS).tally()
    assert again == votes.tally()
    assert (again["wins"], again["ties"]) == ({"one": 2, "two": 1}, 1)
    other = Votes(votes.path, ("one", "three"), LIMITS).tally()
    assert (other["wins"], other["ties"], other["share"]) == ({"one": 0, "three": 0}, 0, None)
    votes.path.write_text('{"prompt": "a"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"votes.jsonl, line 1: no vote of forge.serve"):
        Votes(votes.path, NAMES, LIMITS)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (vote("three"), "better: 'one' or 'two'"),
        (vote(["one"]), "better: 'one' or 'two'"),
        (vote("one", one="b"), "answers: both are the same"),
        (vote("one", one=3), "texts"),
        (vote("one", answers={"one": "a"}), "answers: the text of each"),
        (vote("one", more=1), "there is no field 'more'"),
        (vote("one", messages=[]), "give prompt, or messages"),
        (vote("one", one="\ud800"), "surrogate"),
        (vote("one", one="a" * 4000), "4,000 characters"),
    ],
)
def test_a_vote_that_cannot_be(votes: Votes, body: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        votes.add(body)
    assert said in refused.value.message
    assert not votes.path.exists()


def test_two_runs_that_cannot_be_compared(talker: Path, tmp_path: Path, capsys) -> None:
    for words, said in (
        ([str(talker), "--votes", "v.jsonl"], "--votes v.jsonl: give two runs"),
        ([str(talker), str(tmp_path)], str(tmp_path)),
        ([str(talker), str(talker)], "are one model: give two to compare"),
        (
            [str(talker), f"{talker}/checkpoints", "--votes", "v.txt"],
            "--votes v.txt: give a .jsonl",
        ),
    ):
        assert serve.main([*words, "--port", "0"]) == 2
        assert said in capsys.readouterr().err


def test_votes_are_trained_on(talker: Path, votes: Votes, tmp_path: Path) -> None:
    """DPO reads the file as it is, from the weights of one of the two."""
    for number in range(24):
        votes.add(vote("one", one=f"the sea {number}", two=f"a man {number}"))
    place = tmp_path / "preferred"
    own = ["objective=dpo", "data=preference", f"data.path={votes.path}", f"run.dir={place}"]
    own += [f"checkpoint.init_from={talker}", "tokenizer=file", "run.inline=true"]
    own += [word for word in TWO_LAYERS if not word.startswith("tokenizer.")]
    own += ["model.max_seq_len=128", "train.seq_len=64", "train.batch_size=4", "train.max_steps=2"]
    composition, resolution = cli.resolved([*own, "eval.enabled=false"])
    path, _ = directory.create(resolution, overrides=composition.overrides)
    assert worker.main([str(path)]) == 0
    assert json.loads((path / "result.json").read_text())["step"] == 2


@pytest.mark.nightly
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_vote_in_a_browser(http, votes: Votes, tmp_path: Path, monkeypatch) -> None:
    """The page names A and B after the vote alone; the talk continues with the better answer."""
    page = tmp_path / "page.html"
    page.write_text(app.PAGE.read_text("utf-8").replace("</body>", f"{READER}</body>"), "utf-8")
    monkeypatch.setattr(app, "PAGE", page)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--window-size=390,844", "--virtual-time-budget=60000", str(http.base_url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (text,) = re.findall(r"<body[^>]*>(\{.*?\})</body>", done.stdout, re.DOTALL)
    seen = json.loads(html.unescape(text))
    assert seen["blind"] == ["A", "B"]
    assert sorted(seen["told"]) in (["A: one", "B: two"], ["A: two", "B: one"])
    assert seen["wide"] <= 0
    (row,) = map(json.loads, votes.path.read_text(encoding="utf-8").splitlines())
    assert seen["told"][1] == f"B: {row['chosen_model']}"
    assert row["chosen"] == seen["second"] == seen["goes_on_with"]
    assert row["prompt"] == "the sea"
    assert seen["tally"] == ("1 : 0, 0 alike" if row["chosen_model"] == "one" else "0 : 1, 0 alike")
