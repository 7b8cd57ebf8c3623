"""The latest value of each metric, for Prometheus."""

from __future__ import annotations

import re
from pathlib import Path


class Prometheus:
    """Gauges `forge_train_loss{run="..."}`, ... and `forge_step{run="..."}`.

    port: of http://HOST:PORT/metrics while the run continues; 0 = no server. address: of the
    network allowed to ask. textfile: a file for the textfile collector of node_exporter, written
    again at every log; a relative path is inside the run directory; null = none.
    """

    def __init__(
        self,
        run_dir: Path,
        port: int = 0,
        address: str = "127.0.0.1",
        textfile: str | None = "metrics.prom",
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            message = "prometheus_client is not installed; pip install 'forge-lm[prometheus]'"
            raise ImportError(message) from error
        self._library = prometheus_client
        self._registry = prometheus_client.CollectorRegistry()
        self._gauges: dict[str, prometheus_client.Gauge] = {}
        self._run = run_dir.resolve().name
        self._textfile = run_dir / textfile if textfile else None
        self._server = None
        if port:
            self._server, _ = prometheus_client.start_http_server(port, address, self._registry)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Set the gauges."""
        for name, value in {"step": step, **values}.items():
            self._gauge(name).labels(self._run).set(value)
        if self._textfile is not None:
            self._library.write_to_textfile(str(self._textfile), self._registry)

    def close(self) -> None:
        """Stop serving; the file stays."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _gauge(self, metric: str):
        name = "forge_" + re.sub(r"\W", "_", metric, flags=re.ASCII)
        if name not in self._gauges:
            make = self._library.Gauge
            self._gauges[name] = make(name, metric, ["run"], registry=self._registry)
        return self._gauges[name]
