"""Servers on this machine: files over HTTP, with and without ranges, and a store that speaks S3."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

START_SECONDS = 60


class _Files(http.server.SimpleHTTPRequestHandler):
    """Serves files, silently; the standard handler ignores the ranges it is asked for."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Ranges(_Files):
    """Answers requests for a part of a file, as every server for data does."""

    def send_head(self) -> Any:
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            return super().send_head()
        size = path.stat().st_size
        first = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
        file = path.open("rb")
        file.seek(first)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self._left = last - first + 1
        return file

    def copyfile(self, source: Any, outputfile: Any) -> None:
        outputfile.write(source.read(getattr(self, "_left", -1)))
        self._left = -1


@contextlib.contextmanager
def http_server(folder: Path, *, ranges: bool = True) -> Iterator[str]:
    """Serve a folder and yield its address."""
    handler = partial(_Ranges if ranges else _Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def s3_server(bucket: str) -> Iterator[dict[str, str]]:
    """Run a store that speaks S3 with one empty bucket, and yield the environment that leads to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _await(port, server)
            make = "import boto3; boto3.client('s3').create_bucket(Bucket='" + bucket + "')"
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", make], check=True, env=os.environ | environment, timeout=60
            )
            yield environment
        finally:
            server.terminate()


def _await(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"The server ended with code {server.returncode}.")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        threading.Event().wait(0.05)
    raise TimeoutError(f"The server does not listen on port {port}.")
