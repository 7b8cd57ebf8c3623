"""rollout=openai: completions by a server beside the run, such as vLLM or forge.serve."""

from __future__ import annotations

from typing import Any

from forge.config.field import Condition, opt, section
from forge.config.rollouts.rollout import SampledRollout
from forge.config.rule import Findings, rule

SCHEMES = ("http://", "https://")
FOLDER = "{folder}"
HANDS_OVER = Condition(lambda config, ranks: config.rollout.weights_interval > 0, "with 0")


@section
class OpenAIRollout(SampledRollout):
    """Completions by an OpenAI-compatible server that returns token ids and log-probabilities."""

    schema_name = "openai"
    url: str = opt("http://127.0.0.1:8000/v1", "its address, up to /completions", free=True)
    model: str | None = opt(
        None, "name of the model at the server; null = the only one it lists", free=True
    )
    key_variable: str = opt(
        "OPENAI_API_KEY",
        "environment variable with the key of the server, if it has one",
        free=True,
    )
    batch_size: int = opt(64, "completions that are asked for at a time", gt=0, free=True)
    timeout: float = opt(600.0, "seconds until a request fails", gt=0, free=True)
    retries: int = opt(3, "further tries of a request that fails", ge=0, free=True)
    weights_interval: int = opt(
        1,
        "rollouts between two hand-overs of the weights, as a Hugging Face folder in weights/ of "
        "the run directory; 0 = the server keeps its own",
        ge=0,
    )
    reload: list[str] = opt(
        ["http://127.0.0.1:8000/v1/load_weights"],
        "addresses to POST to in turn, when a folder is there",
        free=True,
        acts_when=HANDS_OVER,
    )
    reload_body: dict[str, Any] = opt(
        {},
        "fields of that request, where {folder} stands for the path; empty = folder: {folder}",
        free=True,
        acts_when=HANDS_OVER,
    )


@rule("rollout.url", "rollout.url", "rollout.reload")
def url(rollout: OpenAIRollout) -> Findings:
    """The addresses of a server begin with http:// or https://."""
    if not rollout.url.startswith(SCHEMES):
        yield "rollout.url", "rollout.url=http://127.0.0.1:8000/v1"
    if not all(address.startswith(SCHEMES) for address in rollout.reload):
        yield "rollout.reload", "rollout.reload=[http://127.0.0.1:8000/v1/load_weights]"


@rule("rollout.reload", "rollout.weights_interval", "rollout.reload")
def reload(rollout: OpenAIRollout) -> Findings:
    """A server is told of new weights: rollout.reload has an address."""
    if rollout.weights_interval and not rollout.reload:
        address = "http://127.0.0.1:8000/v1/load_weights"
        yield "rollout.reload", f"rollout.reload=[{address}], or rollout.weights_interval=0"
