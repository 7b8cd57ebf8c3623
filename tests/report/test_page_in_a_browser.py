"""Pages in Chromium, where it is installed: no error, no horizontal scrolling, nothing overlaps,
light and dark; hovering, sorting and saving.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from example_sweep import Example, grid

from forge.report import run_page
from forge.report.comparison import compare_arms
from forge.report.inventory import find_runs
from forge.report.page import report_page
from forge.report.runs import read_source
from forge.rundir import files

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
WIDTHS = (1280, 390)
SMALLEST = 11  # pixels of a letter
MEASURE = """
const touching = (a, b) =>
  a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
// Each figure: whether something is told where the pointer is, inside the page; and as a file.
const use = (view, all) => {
  const cut = all("figure:not([hidden]) svg").flatMap((svg) => {
    const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")];
    const seen = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
    const isCut = ([, { left, right }]) => left < box.left - 1 || right > box.right + 1;
    return seen.filter(isCut).map(([name]) => name);
  });
  const told = all("figure:not([hidden])").map((figure) => {
    const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect(), found = [];
    for (let i = 1; i < 24; i++) for (let k = 1; k < 24; k++) {
      const [clientX, clientY] = [box.left + (i / 24) * box.width, box.top + (k / 24) * box.height];
      svg.dispatchEvent(new view.PointerEvent("pointermove", { clientX, clientY }));
      const tip = figure.querySelector(".tip"), place = tip.getBoundingClientRect();
      const inside = place.left >= 0 && place.right <= view.innerWidth;
      if (tip.style.display === "block") found.push(inside);
    }
    return found.length > 0 && found.every(Boolean);
  });
  const files = all("svg").map((svg) => {
    const text = view.alone(svg), parsed = new DOMParser().parseFromString(text, "image/svg+xml");
    return !parsed.querySelector("parsererror") && !text.includes("var(");
  });
  const values = () => all("#table-arms tbody tr").map((row) => row.cells[2].textContent);
  all("#table-arms thead th")[2]?.click();
  const up = values();
  all("#table-arms thead th")[2]?.click();
  return { told, files, cut, up, down: values() };
};
const measure = (frame) => {
  const page = frame.contentDocument, width = frame.contentWindow.innerWidth;
  const all = (selector) => [...page.querySelectorAll(selector)];
  const style = (element) => frame.contentWindow.getComputedStyle(element);
  const pairs = all("svg").flatMap((svg) => {
    const boxed = (text) => [text.textContent, text.getBoundingClientRect()];
    const texts = [...svg.querySelectorAll("text")].map(boxed);
    return texts.flatMap((one, i) => texts.slice(i + 1).map((other) => [one, other]));
  });
  const words = all("main *").filter((element) => element.textContent.trim());
  return {
    inner: width,
    scroll: page.documentElement.scrollWidth,
    outside: all("main *").map((e) => e.getBoundingClientRect())
      .filter(({ left, right }) => right > width + 1 || left < -1).length,
    overlaps: pairs.filter(([[, a], [, b]]) => touching(a, b)).map(([[a], [b]]) => [a, b]),
    smallest: Math.min(...words.map((element) => parseFloat(style(element).fontSize))),
    figures: all("svg").length,
    names: all("#arm-plot text").map((text) => text.textContent),
    chips: all(".legend button").length,
    pressed: all(".legend button[aria-pressed=true]").length,
    lines: all("#curves figure")[0].querySelectorAll("path[fill=none]").length,
    titles: all("svg text").map((text) => text.textContent),
    back: style(page.body).backgroundColor,
    ...use(frame.contentWindow, all),
  };
};
addEventListener("load", () => setTimeout(() => {
  const textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(measure));
  const made = Object.assign(document.createElement("pre"), { id: "measured", textContent });
  document.body.replaceChildren(made);
}, 500));
"""
FRAME = '<iframe style="width:{}px;height:900px;border:0" srcdoc="{}"></iframe>'

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = grid(tmp_path_factory.mktemp("sweeps") / "twenty", arms=20, seeds=3, steps=400).path
    return report_page(compare_arms(read_source([path])), path / "report")


def measure(text: str, folder: Path, *flags: str) -> list[dict]:
    """What the page looks like in frames of all widths. Fails at the first line on the console, and
    where something overlaps, is too small or lies outside.
    """
    frames = "".join(FRAME.format(width, html.escape(text)) for width in WIDTHS)
    (folder / "frames.html").write_text(f"<!doctype html><body>{frames}<script>{MEASURE}</script>")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder}/profile"]
    command += ["--virtual-time-budget=5000", "--dump-dom", *flags, f"file://{folder}/frames.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-2000:]
    measured = json.loads(html.unescape(found[1]))
    for width, one in zip(WIDTHS, measured, strict=True):
        assert one["inner"] == width >= one["scroll"]
        assert (one["outside"], one["overlaps"]) == (0, [])
        assert one["smallest"] >= SMALLEST
        assert one["cut"] == []
        assert one["told"] == [True] * one["figures"]
        assert one["files"] == [True] * one["figures"]
    return measured


@pytest.mark.parametrize(
    ("flags", "back"),
    [((), "rgb(255, 255, 255)"), (("--blink-settings=preferredColorScheme=0",), "rgb(20, 24, 28)")],
)
def test_it_is_legible(text: str, tmp_path: Path, flags: tuple[str, ...], back: str) -> None:
    for width, found in zip(WIDTHS, measure(text, tmp_path, *flags), strict=True):
        assert found["figures"] == 6
        means = [float(text) for text in found["up"] if text != "–"]
        assert (means, len(found["up"])) == (sorted(means), 20)
        assert [float(text) for text in found["down"]] == sorted(means, reverse=True)
        arms = [name for name in found["names"] if name.startswith("lr=0.")]
        assert len(arms) == (20 if width > 700 else 40)
        assert (found["chips"], found["pressed"], found["lines"]) == (20, 6, 20)
        assert {"eval/loss (nats a token)", "steps"} <= set(found["titles"])
        assert found["back"] == back


def long_names(example: Example) -> None:
    """Alike but for the last letter of 80; two arms compared, of a third no run is done."""
    for seed in (1, 2):
        for i in range(2):
            arm = f"{'the_same_long_words_' * 4}{i}"
            example.done([], seed=seed, gain=i / 10, arm=arm)
        example.failed([], seed=seed, at=50, why="out of memory", arm="failed")


def one_run(example: Example) -> None:
    example.done([], seed=1)


def search(example: Example) -> None:
    for i in range(60):
        example.done([], seed=1, gain=i / 100, arm=f"trial {i}")


def lengths(example: Example) -> None:
    """One curve is a single point."""
    for steps, arm in ((400, "whole"), (100, "short")):
        example.steps = steps
        example.done([], seed=1, arm=arm)
        example.done([], seed=2, arm=arm)


def three_options(example: Example) -> None:
    for i in range(24):
        overrides = [
            f"optimizer={'lion' if i % 2 else 'adamw'}",
            f"optimizer.lr={1e-4 * 10 ** (i % 3):g}",
        ]
        example.done([*overrides, f"train.grad_clip_norm={1 + i // 6}"], seed=1, gain=i / 100)


def random_points(example: Example) -> None:
    """A search over two numbers: no grid."""
    for i in range(20):
        rate, decay = 10 ** (-4 + 2 * (i * 0.37 % 1)), i * 0.61 % 1
        overrides = [f"optimizer.lr={rate:.6g}", f"optimizer.weight_decay={decay:.6g}"]
        example.done(overrides, seed=1, gain=i / 100)


@pytest.mark.parametrize(
    ("fill", "names", "figures"),
    [
        (long_names, 3, 3),
        (one_run, 1, 2),
        (search, 50, 2),
        (lengths, 2, 3),
        (three_options, 24, 5),
        (random_points, 20, 5),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_other_sweeps_are_legible_too(
    fill: Callable[[Example], None], names: int, figures: int, tmp_path: Path
) -> None:
    example = Example(tmp_path / "sweep", steps=400)
    fill(example)
    text = report_page(compare_arms(read_source([example.sweep.path])), tmp_path)
    for width, found in zip(WIDTHS, measure(text, tmp_path), strict=True):
        assert found["figures"] == figures
        assert found["chips"] == names
        arms = re.compile(r"the_same.*[01]$|failed|sweep|trial|whole|short|optimizer=|lr=")
        shown = list(filter(arms.match, found["names"]))
        assert len(shown) == names * (2 if figures == 3 and width < 700 else 1)
        assert len(set(shown)) == names


def test_a_run_is_legible_too(tmp_path: Path) -> None:
    """Also one that has only begun, and has logged once."""
    example = Example(tmp_path / "sweep", steps=400)
    for until in (400, 10):
        point = example.partial([], seed=until, at=until)
        sample = {"step": 10, "prompt": "def ", "text": "long_" * 200}
        files.append_row(point.path / "samples.jsonl", sample)
        (entry,), _ = find_runs([point.path])
        for found in measure(run_page.page_of_run(entry), tmp_path):
            assert (found["figures"], found["smallest"]) == (4, SMALLEST)


def test_an_error_would_be_seen(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nonsense"):
        measure(text.replace('"use strict";', '"use strict"; nonsense();'), tmp_path)
