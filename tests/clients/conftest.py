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
import network  # noqa: E402
import stage  # noqa: E402


def pytest_configure(config):
    # A test run that is told to end unwinds like one that fails, and so ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    network.require_loopback_alone()


def pytest_report_header(config):
    versions = ", ".join(f"{name} {version}" for name, version in agents.versions().items())
    return f"clients: {versions}"


@pytest.fixture
def running(tmp_path):
    binary = Path(os.environ.get("KVPIN_BIN", ROOT / "target/debug/kvpin"))
    with stage.set_up(binary, tmp_path) as on_stage:
        yield on_stage
        on_stage.fail_if_ended()


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
