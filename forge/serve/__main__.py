"""`python -m forge.serve RUN`: serve a trained model to scripts and browsers, by OpenAI's paths.

Examples:
    python -m forge.serve runs/mine
    python -m forge.serve runs/mine --port 9000 --slots 32 --best
    python -m forge.serve runs/mine --host 0.0.0.0
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.compose.trust import for_run
from forge.config.eval import EMA, TRAINED
from forge.generate import checkpoint_path, reader

NEEDED = ("starlette", "uvicorn")
LOCAL = "127.0.0.1"
MODES = ("raw_logprobs", "processed_logprobs")
"""Log-probabilities of the model itself, or after temperature and cuts, as tokens are drawn."""
CONNECTIONS = 1000  # open at once
LEAST = {"slots": 1, "queue": 0, "length": 2, "max_body": 1, "max_messages": 1, "max_characters": 1}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; exit 2 for a run without a usable checkpoint, or a taken port."""
    parser = reader("forge.serve", "Serve the newest checkpoint of a run over HTTP.")
    add = parser.add_argument
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
    try:
        return _serve(parser.parse_args(argv))
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
    if options.weights_from is not None and not Path(options.weights_from).is_dir():
        raise ValueError(f"--weights-from {options.weights_from}: there is no such directory")
    path = checkpoint_path(options)
    listening = _listening(options.host or LOCAL, options.port)
    with listening:
        import uvicorn

        from forge.serve.loading import load_server

        server = load_server(path, for_run(path, options.trust), _weights(options), options)
        server.engine.start()
        config = uvicorn.Config(
            server.app(any_host=options.host is not None and options.host != LOCAL),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        print(f"serving {server.name} at {_address(listening)}; Ctrl-C ends it", flush=True)
        try:
            uvicorn.Server(config).run([listening])
        except KeyboardInterrupt:
            pass
        finally:
            server.engine.close()
    return 0


def _weights(options: argparse.Namespace) -> str:
    return EMA if options.ema else TRAINED


def _listening(host: str, port: int) -> socket.socket:
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
