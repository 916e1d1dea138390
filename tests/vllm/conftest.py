"""The fleet that all tests share: a server with two ranks, two more servers, and kvpin in front of the four replicas."""

import os
import signal
from pathlib import Path

import pytest
import servers
from fleet import Fleet, configuration

ROOT = Path(__file__).resolve().parents[2]


def pytest_configure(config):
    # A test run that is told to end unwinds like one that fails, and so ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    vllm_dir = os.environ.get("KVPIN_VLLM_DIR", str(Path.home() / ".cache/kvpin-vllm"))
    binary = os.environ.get("KVPIN_BIN", str(ROOT / "target/debug/kvpin"))
    folder = tmp_path_factory.mktemp("real-vllm")
    servers.progress(f"logs are in {folder}")
    with servers.recorder() as recorder, servers.vllm_fleet(vllm_dir, folder, ranks=[2, 1, 1]) as running:
        config = configuration(running, recorder)
        with servers.running_kvpin(binary, folder, config) as kvpin:
            servers.progress(f"kvpin listens on {kvpin.address}, admin on {kvpin.admin}, PID {kvpin.child.pid}")
            yield Fleet(running, recorder, kvpin)
            kvpin.child.fail_if_ended()
