"""Real vLLM servers with kvpin, and perhaps other balancers, in front of them; and `kvpin bench` on what they serve."""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "vllm"))
from servers import MODEL, Child, free_ports, progress, running_kvpin, vllm_fleet, wait_until  # noqa: E402

MAX_NUM_SEQS = 32
PEER_START_S = 90


def main():
    options = arguments()
    folder, binary = Path(os.environ["KVPIN_VLLM_DIR"]), Path(os.environ["KVPIN_BIN"])
    if not binary.exists():
        sys.exit(f"there is no kvpin at {binary}: run cargo build --release, or say with KVPIN_BIN where it is")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = [1] * options.separate if options.separate else [options.ranks]
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvpin-bench-")))
        vllm = stack.enter_context(fleet(folder, logs, sizes, options))
        kvpin = stack.enter_context(running_kvpin(binary, logs, configuration(vllm, options.admission)))
        wait_until("kvpin has seen every replica up", PEER_START_S, lambda: all_up(kvpin))
        peers = [stack.enter_context(peer(text, vllm, logs)) for text in options.peer]
        if options.overload:
            admitting = stack.enter_context(running_kvpin(binary, folder_in(logs, "admission"), configuration(vllm, "auto")))
            wait_until("the other kvpin has seen every replica up", PEER_START_S, lambda: all_up(admitting))
            ways = [("vllm", vllm[0].url), ("affinity", url_of(kvpin)), ("admission", url_of(admitting))]
            arms = [word for name, url in ways for word in ("--arm", f"{name}={url}")]
        else:
            arms = arms_of(kvpin, peers)
        command = [str(binary), "bench", "--model", MODEL, *arms, *engines(vllm), *options.arguments]
        progress(shlex.join(command))
        if options.hold:
            progress(f"held: end this process ({os.getpid()}) to end them all")
            signal.pause()
        sys.exit(subprocess.run(command).returncode)


def arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="data-parallel ranks of the one server (default: %(default)s)")
    parser.add_argument("--separate", type=int, default=0, metavar="N", help="N servers of one engine each, in the place of ranks")
    parser.add_argument("--admission", default="off", help="kvpin's: off, auto or fair (default: %(default)s)")
    parser.add_argument(
        "--overload", action="store_true",
        help="three arms side by side: vLLM's own balancer, kvpin without admission, kvpin with it",
    )
    parser.add_argument("--kv-blocks", type=int, default=260, help="KV blocks of 128 tokens an engine (default: %(default)s)")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND",
        help="another balancer as one more arm; {port} is where it listens, {urls} the servers, {metrics_port} one more free port",
    )
    parser.add_argument("--hold", action="store_true", help="only start everything, print the command, and wait")
    parser.add_argument("arguments", nargs="*", help="for kvpin bench, after --")
    return parser.parse_args()


def fleet(folder, logs, sizes, options):
    flags = ["--num-gpu-blocks-override", str(options.kv_blocks), "--max-num-seqs", str(MAX_NUM_SEQS)]
    return vllm_fleet(folder, logs, sizes, flags, all_in_dev_mode=True)


def configuration(vllm, admission):
    replicas = [server.replica for server in vllm]
    return {
        "listen": ["127.0.0.1:0"],
        "admin": "127.0.0.1:0",
        "models": {MODEL: {"max_num_seqs": MAX_NUM_SEQS, "admission": admission, "replicas": replicas}},
    }


def all_up(kvpin):
    kvpin.child.fail_if_ended()
    return all(replica["health"] == "up" for replica in kvpin.status(MODEL)["replicas"])


@contextlib.contextmanager
def peer(text, vllm, logs):
    """Starts a balancer and yields its name and URL once it serves the model."""
    name, command = text.split("=", 1)
    port, metrics_port = free_ports(2)
    urls = " ".join(server.url for server in vllm)
    words = shlex.split(command.format(port=port, metrics_port=metrics_port, urls=urls))
    child = Child(name, words, Path(logs) / f"{name}.log", {"RUST_LOG": "warn"})
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(f"{name} serves", PEER_START_S, lambda: serves(child, url), interval=0.5)
        yield name, url
    finally:
        child.stop()


def serves(child, url):
    child.fail_if_ended()
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Are you there?"}]}
    head = {"Content-Type": "application/json", "X-Session-Id": "start"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def folder_in(parent, name):
    folder = parent / name
    folder.mkdir()
    return folder


def url_of(kvpin):
    return f"http://{kvpin.address}"


def arms_of(kvpin, peers):
    if not peers:
        return ["--url", url_of(kvpin), "--admin", f"http://{kvpin.admin}"]
    everyone = [("kvpin", url_of(kvpin)), *peers]
    return [word for name, url in everyone for word in ("--arm", f"{name}={url}")]


def engines(vllm):
    return [word for server in vllm for word in ("--engine", server.url)]


if __name__ == "__main__":
    main()
