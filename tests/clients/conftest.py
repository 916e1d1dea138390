"""What all tests share: the installed clients, and for each test replicas of its own with a kvpin in front of them."""

import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The tests against the real vLLM know how to run kvpin and to wait for things.
sys.path.append(str(ROOT / "tests/vllm"))
# What it asserts is shown with its values too.
pytest.register_assert_rewrite("stage")

import agents  # noqa: E402
import engines  # noqa: E402
import network  # noqa: E402
import stage  # noqa: E402


def pytest_configure(config):
    # A test run that is told to end unwinds like one that fails, and so ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    network.require_loopback_alone()


def pytest_report_header(config):
    versions = ", ".join(f"{name} {version}" for name, version in agents.versions().items())
    return [f"clients: {versions}", f"real vLLM: {engines.missing() or 'installed'}"]


@pytest.fixture(scope="session")
def binary():
    return Path(os.environ.get("KVPIN_BIN", ROOT / "target/debug/kvpin"))


@pytest.fixture
def running(binary, tmp_path):
    with stage.set_up(binary, tmp_path) as on_stage:
        yield on_stage
        on_stage.fail_if_ended()


@pytest.fixture(scope="session")
def vllm_servers(tmp_path_factory):
    if missing := engines.missing():
        (pytest.fail if engines.are_required() else pytest.skip)(missing)
    with engines.started(tmp_path_factory.mktemp("real-vllm")) as servers:
        yield servers


@pytest.fixture
def real(vllm_servers, binary, tmp_path):
    with stage.kvpin_in_front_of(vllm_servers, binary, tmp_path) as kvpin:
        yield engines.RealStage(vllm_servers, kvpin)
        kvpin.child.fail_if_ended()


@pytest.fixture
def claude(running, tmp_path):
    with agents.ClaudeCode(running.kvpin.address, tmp_path) as agent:
        yield agent


@pytest.fixture
def codex(running, tmp_path):
    with agents.Codex(running.kvpin.address, tmp_path) as agent:
        yield agent


@pytest.fixture
def opencode(running, tmp_path):
    with agents.OpenCode(running.kvpin.address, tmp_path) as agent:
        yield agent
