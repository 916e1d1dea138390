"""The processes that the tests need: vLLM servers, kvpin, and a server that records what reaches it.

Each is a context manager's child: it is ended by its PID however the test ends, and if the test process itself is killed,
the kernel ends the child (`PR_SET_PDEATHSIG`).
"""

import contextlib
import ctypes
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

MODEL = "tiny-agent"
# A name that agents use. kvpin sends it on as it is, so the engine has to know it too.
ALIAS = "claude-sonnet-4-5"
MAX_NUM_SEQS = 24
MAX_MODEL_LEN = 32768
# Of the CPU build.
BLOCK_TOKENS = 128
# 66,560 tokens an engine: all the conversations of a test at once, so that nothing is evicted and a miss is the routing's
# doing.
KV_BLOCKS = 520

# About 100 s on two idle cores, three times that when others use them too.
VLLM_START_S = 480
KVPIN_START_S = 15
# How long a test waits for what must come, however slow the machine. The engines keep all cores busy: on two of them a
# server of vLLM has been seen to need over ten seconds to say how it is.
PATIENCE_S = 90
STOP_S = 20
LOG_TAIL_BYTES = 4000

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def progress(message):
    """Says what goes on, past pytest's capturing, for whoever watches a long run."""
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.__stderr__, flush=True)


def wait_until(what, seconds, poll, interval=0.05):
    """Returns the first true value of `poll()`; fails after `seconds`, naming what it waited for."""
    deadline = time.monotonic() + seconds
    while True:
        value = poll()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain until {what}")
        time.sleep(interval)


def get(url, timeout=PATIENCE_S):
    with urllib.request.urlopen(url, timeout=timeout) as response:
        return response.read()


class Child:
    """A process of ours with its log file."""

    def __init__(self, name, command, log, env=None):
        self.name, self.command, self.log, self.env = name, command, Path(log), env
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})}, start_new_session=True, preexec_fn=_die_with_parent,
            )

    @property
    def pid(self):
        return self.process.pid

    def ended(self):
        return self.process.poll() is not None

    def pids(self):
        """The process and all that it has started, parents first."""
        found = [self.pid]
        for pid in found:
            with contextlib.suppress(FileNotFoundError):
                found += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return found

    def log_tail(self):
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def fail_if_ended(self):
        if self.ended():
            raise AssertionError(f"{self.name} ended with {self.process.returncode}; its last words:\n{self.log_tail()}")

    def stop(self):
        """Asks it to end, then makes it. What it had started itself is in its own process group, and ends with it."""
        if not self.ended():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def _die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


# --- vLLM ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """One KV cache: what kvpin calls a replica."""

    server: str  # host:port
    rank: int
    ranked: bool

    @property
    def name(self):
        """The name that kvpin gives it by default."""
        return f"{self.server}/{self.rank}" if self.ranked else self.server

    @property
    def headers(self):
        """What a direct request needs to reach this engine."""
        return {"X-data-parallel-rank": str(self.rank)} if self.ranked else {}


@dataclass
class Vllm:
    """A running server with one or more data-parallel ranks."""

    server: str
    ranks: int
    child: Child
    engines: list = field(init=False)
    starts: int = 1

    def __post_init__(self):
        self.engines = [Engine(self.server, rank, self.ranks > 1) for rank in range(self.ranks)]

    @property
    def url(self):
        return f"http://{self.server}"

    @property
    def replica(self):
        """Its entry in kvpin's configuration."""
        return {"url": self.url, "data_parallel_size": self.ranks} if self.ranks > 1 else {"url": self.url}

    def start_again(self):
        """Starts it as it was started before, on the same port. It has to have ended."""
        old = self.child
        old.stop()
        self.starts += 1
        self.child = Child(old.name, old.command, old.log.with_suffix(f".{self.starts}.log"), old.env)
        progress(f"{old.name} starts again, PID {self.child.pid}")

    def healthy(self):
        self.child.fail_if_ended()
        try:
            get(f"{self.url}/health")
            return True
        except (urllib.error.URLError, OSError):
            return False

    def series(self, name):
        """A metric's value by rank, summed over its other labels."""
        values = dict.fromkeys(range(self.ranks), 0.0)
        line = re.compile(rf'^{re.escape(name)}\{{[^}}]*engine="(\d+)"[^}}]*\}} (\S+)$', re.MULTILINE)
        for rank, value in line.findall(get(f"{self.url}/metrics").decode()):
            values[int(rank)] += float(value)
        return values

    def at_work(self):
        """Requests that the engines run or hold in their queues."""
        return sum(sum(self.series(f"vllm:num_requests_{state}").values()) for state in ("running", "waiting"))


@contextlib.contextmanager
def vllm_fleet(folder, logs, ranks, options=(), options_of_last=(), all_in_dev_mode=False):
    """Starts one server for each entry of `ranks`, all at once, and yields them when all are healthy. Of an option that is
    given here too, vLLM takes the value from `options`.

    The last one, or each, runs in vLLM's development mode, where `/server_info` tells `max_num_seqs` and `/reset_prefix_cache`
    empties the cache. The last one gets `options_of_last` too.
    """
    ports = free_ports(2 * len(ranks))
    servers = []
    try:
        for number, size in enumerate(ranks):
            port, rpc_port = ports[2 * number], ports[2 * number + 1]
            is_last = number == len(ranks) - 1
            env = dict(VLLM_ENV, VLLM_SERVER_DEV_MODE="1" if is_last or all_in_dev_mode else "0")
            command = [*_vllm_command(Path(folder), port), *options, *(options_of_last if is_last else ())]
            if size > 1:
                command += ["--data-parallel-size", str(size), "--data-parallel-rpc-port", str(rpc_port)]
            child = Child(f"vLLM on port {port}", command, Path(logs) / f"vllm-{port}.log", env)
            servers.append(Vllm(f"127.0.0.1:{port}", size, child))
            progress(f"vLLM with {size} rank(s) starts on port {port}, PID {child.pid}")
        for server in servers:
            wait_until(f"vLLM on {server.server} is healthy", VLLM_START_S, server.healthy, interval=0.5)
            progress(f"vLLM on {server.server} is healthy")
        yield servers
    finally:
        for server in servers:
            server.child.process.terminate()
        for server in servers:
            server.child.stop()


# One thread an engine and no binding to cores: the engines share whatever cores the machine has.
VLLM_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def _vllm_command(folder, port):
    return [
        str(folder / "venv/bin/python"), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(folder / "model"), "--served-model-name", MODEL, ALIAS,
        "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS),
        "--num-gpu-blocks-override", str(KV_BLOCKS), "--enforce-eager",
        "--enable-prompt-tokens-details", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        "--no-enable-log-requests",
    ]  # fmt: skip


def free_ports(count):
    """Ports that the kernel says are free, for servers that can't be told to take any."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


# --- kvpin --------------------------------------------------------------------------------------------------------------


class Kvpin:
    """A running kvpin: its addresses, its configuration file and its status."""

    def __init__(self, binary, folder, config):
        self.file = Path(folder) / "kvpin.yaml"
        self.write(config)
        self.child = Child("kvpin", [str(binary), "run", "--config", str(self.file)], Path(folder) / "kvpin.log")
        try:
            self.address = self._announced("listening on")
            self.admin = self._announced("admin on")
        except BaseException:
            self.child.stop()
            raise

    def write(self, config):
        # JSON is YAML.
        self.file.write_text(json.dumps(config, indent=2))

    def reload(self, config):
        """Gives it another configuration. It takes effect a little later: wait for what it changes."""
        self.write(config)
        os.kill(self.child.pid, signal.SIGHUP)

    def status(self, model):
        document = json.loads(get(f"http://{self.admin}/api/v1/status"))
        return next(entry for entry in document["models"] if entry["name"] == model)

    def in_flight(self, model):
        return sum(replica["in_flight"] for replica in self.status(model)["replicas"])

    def _announced(self, words):
        def found():
            self.child.fail_if_ended()
            return re.search(rf"{words} (127\.0\.0\.1:\d+)", self.child.log.read_text(errors="replace"))

        return wait_until(f"kvpin says what it is {words}", KVPIN_START_S, found).group(1)


@contextlib.contextmanager
def running_kvpin(binary, folder, config):
    kvpin = Kvpin(binary, folder, config)
    try:
        yield kvpin
    finally:
        kvpin.child.stop()


# --- A recording replica ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    path: str
    headers: list  # (name, value) as they came
    body: bytes


class Recorder(http.server.ThreadingHTTPServer):
    """Looks like a vLLM server to kvpin, keeps each POST as it came, and answers with its body's length."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _RecordingRequest)
        self.posts = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def recorder():
    server = Recorder()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _RecordingRequest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(b"" if self.path in ("/health", "/metrics") else b"{}")

    def do_POST(self):
        body = self._body()
        self.server.posts.append(Recorded(self.path, list(self.headers.items()), body))
        self._answer(json.dumps({"received_bytes": len(body)}).encode())

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
