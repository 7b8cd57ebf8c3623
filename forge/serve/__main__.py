"""`python -m forge.serve RUN`: serve a trained model to scripts and browsers, by OpenAI's paths.

Examples:
    python -m forge.serve runs/mine
    python -m forge.serve runs/mine --port 9000 --slots 32 --best
    python -m forge.serve runs/mine --host 0.0.0.0
    python -m forge.serve runs/one runs/two --votes votes.jsonl
    python -m forge.serve runs/large --parallel tp4
    python -m forge.serve runs/large --draft runs/small
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from forge.compose.trust import for_run
from forge.config.eval import EMA, TRAINED
from forge.generate import checkpoint_path, reader
from forge.rundir import checkpoints, saved_config
from forge.rundir.saved_config import CONFIG
from forge.serve.names import run_name

NEEDED = ("starlette", "uvicorn")
LOCAL = "127.0.0.1"
MODES = ("raw_logprobs", "processed_logprobs")
"""Log-probabilities of the model itself, or after temperature and cuts, as tokens are drawn."""
CONNECTIONS = 1000  # open at once
OF_UVICORN: Any = {
    "http": "h11",
    "ws": "none",
    "lifespan": "off",
    "log_level": "warning",
    "limit_concurrency": CONNECTIONS,
    "timeout_graceful_shutdown": 2,
}
OF_RANKS = ("host", "port", "slots", "queue", "length", "max_body", "max_messages")
OF_RANKS += ("max_characters", "logprobs_mode", "weights_from")
LEAST = {
    "slots": 1,
    "drafts": 1,
    "queue": 0,
    "length": 2,
    "max_body": 1,
    "max_messages": 1,
    "max_characters": 1,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; exit 2 for a run without a usable checkpoint, or a taken port."""
    parser = reader("forge.serve", "Serve the newest checkpoint of a run over HTTP.")
    add = parser.add_argument
    other = "a second run: the page shows both answers, and takes blind votes"
    add("run2", type=Path, nargs="?", help=other)
    kept = "where votes are kept, as rows of data=preference (default votes.jsonl)"
    add("--votes", type=Path, metavar="FILE.jsonl", help=kept)
    host = f"address to listen at (default {LOCAL}); any other one is open to the network"
    add("--host", metavar="ADDRESS", help=host)
    add("--port", type=int, default=8000, help="port to listen at; 0 = a free one (default 8000)")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:N or mps (default: as in the run)")
    add("--slots", type=int, default=16, help="answers that are written at once (default 16)")
    add("--queue", type=int, default=64, help="requests that wait for a slot (default 64)")
    length = "tokens of a prompt with its answer, at most (default: as the model)"
    add("--length", type=int, help=length)
    add("--max-body", type=int, default=1 << 20, help="bytes of a request (default 1 MiB)")
    add("--max-messages", type=int, default=256, help="messages of a request (default 256)")
    characters = "characters of all messages, or of a prompt (default 200,000)"
    add("--max-characters", type=int, default=200_000, help=characters)
    others = "directory: /v1/load_weights reads weights of Hugging Face folders in it, on request"
    add("--weights-from", metavar="DIR", help=others)
    add("--logprobs-mode", choices=MODES, default=MODES[0], help=f"as vLLM's (default {MODES[0]})")
    spread = "read the model on several devices, as tp2 or tp2,fsdp2, of tp, fsdp and ep"
    add("--parallel", metavar="LAYOUT", help=spread)
    draft = "a run whose model drafts tokens; the texts stay those of the served model"
    add("--draft", type=Path, metavar="RUN", help=draft)
    add("--drafts", type=int, default=4, help="tokens drafted at a time (default 4)")
    try:
        return _serve(parser.parse_intermixed_args(argv))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _serve(options: argparse.Namespace) -> int:
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        fix = "pip install 'forge-lm[serve]'"
        raise ValueError(f"forge.serve needs {' and '.join(lacking)}: {fix}")
    for name, least in LEAST.items():
        if (value := getattr(options, name)) is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
    _check_together(options)
    if options.draft is not None:
        checkpoints.find_checkpoint(options.draft)
    path = checkpoint_path(options)
    listening = listening_socket(options.host or LOCAL, options.port)
    with listening:
        if options.parallel is None:
            run_server(*_loaded(path, options), listening, options)
            return 0
        options.port = listening.getsockname()[1]
    # The main rank listens at the port, which is free again.
    trust = for_run(path, options.trust)
    return checkpoints.read_checkpoint(path, partial(_on_ranks, trust, options))


def _check_together(options: argparse.Namespace) -> None:
    """Raise ValueError for options that exclude each other."""
    if options.votes and not options.run2:
        raise ValueError(f"--votes {options.votes}: give two runs to choose between")
    if options.weights_from is not None and not Path(options.weights_from).is_dir():
        raise ValueError(f"--weights-from {options.weights_from}: there is no such directory")
    if options.weights_from is not None and options.run2:
        raise ValueError("--weights-from: one run alone, not two side by side, reads new weights")
    for name, value in (("parallel", options.parallel), ("draft", options.draft)):
        if value is not None and options.run2:
            raise ValueError(f"--{name} {value}: with one run alone, not with two side by side")
        if value is not None and options.weights_from is not None:
            raise ValueError(f"--{name} {value}: without --weights-from, for one device alone")
    if options.parallel is not None and options.draft is not None:
        raise ValueError(f"--draft {options.draft}: drafts are made on one device, not --parallel")
    if options.parallel is not None and options.device is not None:
        raise ValueError(f"--device {options.device}: --parallel takes the devices of the run")


def run_server(
    server: Any, engines: Sequence[Any], listening: socket.socket, options: argparse.Namespace
) -> None:
    """Answer requests until interrupted, or until an engine ends by an error."""
    import uvicorn

    any_host = options.host is not None and options.host != LOCAL
    runner = uvicorn.Server(uvicorn.Config(server.app(any_host=any_host), **OF_UVICORN))

    def leave() -> None:
        runner.should_exit = True

    for engine in engines:
        engine.when_over = leave
        engine.start()
    print(f"serving {server.name} at {_address(listening)}; Ctrl-C ends it", flush=True)
    try:
        runner.run([listening])
    except KeyboardInterrupt:
        pass
    finally:
        for engine in engines:
            engine.close()


def _on_ranks(trust: Sequence[str], options: argparse.Namespace, saved: checkpoints.Saved) -> int:
    """Start the ranks of a layout, of which the main one serves; return the exit code."""
    from forge.launch.local.verb_ranks import run_on_ranks
    from forge.resolve.reading import reading_config

    checkpoint_dir = saved.path.resolve()
    run_config = saved_config.load_config(checkpoint_dir / CONFIG, trust=trust)
    config = reading_config(run_config, options.parallel)
    config = replace(config, eval=replace(config.eval, weights=_weights(options)))
    plain = {name: getattr(options, name) for name in OF_RANKS}
    request = {"path": str(checkpoint_dir), "name": run_name(options.run), "options": plain}
    module = "forge.serve.rank"
    return run_on_ranks(module, config, request, saved, words="--parallel", trust=trust)[0]


def _loaded(path: Path, options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """The server of a run, or of two, and its engines."""
    from forge.serve.loading import load_server

    trusted = for_run(path, options.trust)
    if options.run2 is None:
        server = load_server(path, trusted, _weights(options), options)
        return server, [server.engine]
    from forge.serve.side_by_side import load_both

    options.votes = options.votes or Path("votes.jsonl")
    options.run = options.run2
    second = checkpoint_path(options)
    paths = [(path, trusted), (second, for_run(second, options.trust))]
    both = load_both(paths, _weights(options), options)
    return both, both.engines


def _weights(options: argparse.Namespace) -> str:
    return EMA if options.ema else TRAINED


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound to the address, before the model is loaded. Raises ValueError."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"--port {port}: from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        reason = error.strerror or error
        message = f"cannot listen at {host}, port {port}: {reason}"
        raise ValueError(f"{message}; give another --port or --host") from None
    return listening


def _address(listening: socket.socket) -> str:
    name: Any = listening.getsockname()
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"


if __name__ == "__main__":
    sys.exit(main())
