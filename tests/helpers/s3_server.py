"""An S3 server of moto on this machine, with a bucket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

MISSING = "needs an S3 server: pip install -e '.[dev,remote-tests]'"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a fresh bucket; credentials and the endpoint are in the environment."""
    pytest.importorskip("s3fs", reason=MISSING)
    boto3 = pytest.importorskip("boto3", reason=MISSING)
    server = pytest.importorskip("moto.server", reason=MISSING)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    values = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_CONFIG_FILE": "/dev/null",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    boto3.session.Session().client("s3").create_bucket(Bucket="bucket")  # the default one is stale
    yield "s3://bucket"
    # The content of all servers of a process is one.
    reset = Request(f"http://{host}:{port}/moto-api/reset", method="POST")
    urlopen(reset).close()
    running.stop()
