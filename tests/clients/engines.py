"""Real vLLM servers as replicas, with a model that has one answer, and what their engines count meanwhile."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import servers
from agents import CONTEXT_TOKENS
from servers import BLOCK_TOKENS, MODEL
from stage import Counted

SERVERS = 2


def are_required():
    return os.environ.get("KVPIN_CLIENTS_REAL_VLLM") == "1"


def missing():
    """Why there is no real vLLM to test with; None where there is one."""
    installed = any(_folder().glob("installed-vllm-*")) and _answer_file().exists()
    return None if installed else f"not installed in {_folder()}: tests/vllm/setup.sh does it (KVPIN_VLLM_DIR says where)"


def answer():
    """What the model says, whatever it is asked."""
    return _answer_file().read_text().strip()


def started(logs):
    """Starts the servers, each with room for the longest conversation."""
    options = [
        "--model", str(_answer_file().parent), "--max-model-len", str(CONTEXT_TOKENS),
        "--num-gpu-blocks-override", str(2 * CONTEXT_TOKENS // BLOCK_TOKENS),
    ]  # fmt: skip
    return servers.vllm_fleet(_folder(), logs, ranks=[1] * SERVERS, options=options)


def _folder():
    return Path(os.environ.get("KVPIN_VLLM_DIR", Path.home() / ".cache/kvpin-vllm"))


def _answer_file():
    # The mark that setup.sh leaves when the model is there.
    return _folder() / "answering-model/complete"


@dataclass(frozen=True)
class Computed:
    """What the replicas that served an agent's turns did meanwhile, by their engines' own count."""

    replicas: list
    prompt_tokens: int
    cached_tokens: int


@dataclass
class RealStage:
    servers: list
    kvpin: servers.Kvpin

    def computed_for(self, run):
        """What `run` returns, and what was computed for it."""
        turns, tokens = self._turns(), self._tokens()
        returned = run()
        Counted.by(self.kvpin)  # Waits for the end of the last turn.
        replicas = [name for name, count in self._turns().items() if count > turns[name]]
        now = self._tokens()
        prompt, cached = (sum(now[name][kind] - tokens[name][kind] for name in replicas) for kind in (0, 1))
        return returned, Computed(replicas, int(prompt), int(cached))

    def _turns(self):
        """By replica. A side call is none."""
        replicas = self.kvpin.status(MODEL)["replicas"]
        kinds = ("placed", "sticky", "spilled_in", "unpinned")
        return {replica["name"]: sum(replica[kind] for kind in kinds) for replica in replicas}

    def _tokens(self):
        """Of prompts, and those of them that were found in the cache, by replica."""
        series = ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total")
        return {server.server: [server.series(name)[0] for name in series] for server in self.servers}
