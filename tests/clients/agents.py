"""The three agents, each with a home and a working folder of its own and pointed at kvpin.

An agent is run with a clean environment and a time limit. How its answer and its session's id are read is here too; what
is expected of them is in the tests.
"""

import contextlib
import ctypes
import functools
import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stage import MODEL

RUN_S = 60
STOP_S = 5
TAIL = 3000
KEY = "not-a-real-key"
# What the smallest of the models here can do.
CONTEXT_TOKENS, OUTPUT_TOKENS = 65536, 4096

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Answer:
    session: str  # what the agent calls the conversation, None where it doesn't say
    text: str


class Agent:
    """What all agents have in common. A context manager, because the folder for temporary files is outside the test's: the
    path of a socket in that one could be too long."""

    name = program = None

    def __init__(self, address, folder):
        self.address = address
        # A test may use several agents.
        self.home = Path(tempfile.mkdtemp(prefix=f"{self.program}-home-", dir=folder))
        self.work = Path(tempfile.mkdtemp(prefix=f"{self.program}-work-", dir=folder))
        self.temporary = tempfile.TemporaryDirectory(prefix="kvpin-", ignore_cleanup_errors=True)
        self.configure()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.temporary.cleanup()

    def configure(self):
        pass

    def env(self):
        return _clean_env(self.home, self.temporary.name)

    def run(self, *arguments):
        """Runs it to its end and returns its standard output."""
        return _run([str(_program(self.program)), *arguments], self.work, self.env())


class ClaudeCode(Agent):
    name, program = "Claude Code", "claude"
    FLAGS = ("--model", MODEL, "--allowedTools", "Bash")

    @staticmethod
    def conversation(headers):
        return headers["x-claude-code-session-id"], headers.get("x-claude-code-agent-id")

    def configure(self):
        # Asked once by an interactive session: the look, and whether the folder is trusted.
        folders = {str(self.work): {"hasTrustDialogAccepted": True}}
        settings = {"hasCompletedOnboarding": True, "theme": "dark", "projects": folders}
        (self.home / ".claude.json").write_text(json.dumps(settings))

    def env(self):
        return super().env() | {
            "ANTHROPIC_BASE_URL": f"http://{self.address}",
            "ANTHROPIC_AUTH_TOKEN": KEY,
            "CLAUDE_CODE_TMPDIR": self.temporary.name,
            # The 32,000 that it would ask for leave too little of a small context for the prompt.
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(OUTPUT_TOKENS),
        }

    def turn(self, prompt, *flags):
        output = self.run("-p", prompt, "--output-format", "json", *self.FLAGS, *flags)
        result = json.loads(output)
        assert not result["is_error"], result
        return Answer(result["session_id"], result["result"])

    def interactive_command(self):
        return [str(_program(self.program)), *self.FLAGS]


class Codex(Agent):
    name, program = "Codex", "codex"

    @staticmethod
    def conversation(headers):
        return headers["thread-id"]

    def configure(self):
        (self.home / "config.toml").write_text(f"""
model = "{MODEL}"
model_provider = "kvpin"
approval_policy = "never"
# The namespace around the tests is the sandbox; Codex's own needs more than a container may grant.
sandbox_mode = "danger-full-access"

[model_providers.kvpin]
name = "kvpin"
base_url = "http://{self.address}/v1"
wire_api = "responses"
env_key = "KVPIN_KEY"

[projects."{self.work}"]
trust_level = "trusted"

# Without it every run ends with 5 s of trying to deliver them.
[analytics]
enabled = false
""")

    def env(self):
        return super().env() | {"CODEX_HOME": str(self.home), "KVPIN_KEY": KEY}

    def turn(self, prompt, *resume):
        output = self.run("exec", "--json", "--skip-git-repo-check", *resume, prompt)
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        session = next(event["thread_id"] for event in events if event["type"] == "thread.started")
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        texts = [item["text"] for item in items if item["type"] == "agent_message"]
        return Answer(session, texts[-1] if texts else output)


class OpenCode(Agent):
    name, program = "OpenCode", "opencode"

    @staticmethod
    def conversation(headers):
        return headers["x-session-id"]

    def configure(self):
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "kvpin",
            "options": {"baseURL": f"http://{self.address}/v1", "apiKey": KEY},
            "models": {MODEL: {"name": MODEL, "limit": {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS}}},
        }
        config = {
            "autoupdate": False,
            "share": "disabled",
            "permission": {"bash": "allow"},
            "model": f"kvpin/{MODEL}",
            "provider": {"kvpin": provider},
        }
        folder = self.home / ".config/opencode"
        folder.mkdir(parents=True)
        (folder / "opencode.json").write_text(json.dumps(config))

    def turn(self, prompt, *flags):
        output = self.run("run", "--format", "json", *flags, prompt)
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        texts = [event["part"]["text"] for event in events if event["type"] == "text"]
        return Answer(events[0]["sessionID"], texts[-1] if texts else output)


# --- Running ------------------------------------------------------------------------------------------------------------


@functools.cache
def versions():
    """What the installed programs say of themselves."""
    with tempfile.TemporaryDirectory() as home:
        env = _clean_env(home, home) | {"CODEX_HOME": home}
        said = {kind: _run([str(_program(kind.program)), "--version"], home, env) for kind in (ClaudeCode, Codex, OpenCode)}
    words = {kind: [word for word in text.split() if word[0].isdigit()] for kind, text in said.items()}
    return {kind.name: found[0] if found else said[kind].strip() for kind, found in words.items()}


def _program(name):
    folder = os.environ.get("KVPIN_CLIENTS_DIR", str(Path.home() / ".cache/kvpin-clients"))
    return Path(folder) / "npm/node_modules/.bin" / name


def _clean_env(home, temporary):
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | {"HOME": str(home), "TMPDIR": str(temporary), "TERM": "xterm-256color"}


def _run(command, folder, env):
    process = subprocess.Popen(
        command, cwd=folder, env=env, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        end_group(process)
        output, errors = process.communicate()
        raise AssertionError(f"{command[0]} did not end within {RUN_S} s:\n{output[-TAIL:]}\n{errors[-TAIL:]}") from None
    finally:
        end_group(process)
    shown = f"{' '.join(command)}\nended with {process.returncode}:\n{output[-TAIL:]}\n{errors[-TAIL:]}"
    assert process.returncode == 0, shown
    return output


def die_with_parent():
    """In a child: has the kernel end it if the tests are killed without a chance to do so."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_group(process):
    """Ends a process that we started in a session of its own, and what it started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)
