"""What the tests look at: the running vLLM servers with their replicas, the recorder, and kvpin in front of them."""

from dataclasses import dataclass

import servers
from servers import ALIAS, MODEL

RECORDED_MODEL = "recorded"
# A name that the engine doesn't know: kvpin has to put the model's own in its place.
TRANSLATED_ALIAS = "claude-haiku-4-5"


@dataclass(frozen=True)
class Tokens:
    prompt: float
    cached: float  # of the prompt
    completion: float

    def __sub__(self, earlier):
        return Tokens(self.prompt - earlier.prompt, self.cached - earlier.cached, self.completion - earlier.completion)


@dataclass
class Fleet:
    servers: list
    recorder: servers.Recorder
    kvpin: servers.Kvpin

    @property
    def ranked(self):
        return next(server for server in self.servers if server.ranks > 1)

    @property
    def in_dev_mode(self):
        return self.servers[-1]

    @property
    def engines(self):
        return {engine.name: engine for server in self.servers for engine in server.engines}

    def server_of(self, name):
        """The server that a replica is an engine of."""
        return next(server for server in self.servers if any(engine.name == name for engine in server.engines))

    def prompt_tokens(self):
        """What each engine itself has counted so far, by the replica's name."""
        return self._counted("vllm:prompt_tokens_total")

    def prefix_cache_hits(self):
        """The tokens that each engine has found in its prefix cache so far, by the replica's name."""
        return self._counted("vllm:prefix_cache_hits_total")

    def generation_tokens(self):
        """The tokens that all engines together have computed for answers so far."""
        return sum(self._counted("vllm:generation_tokens_total").values())

    def tokens(self):
        """What each engine itself has counted so far, by the replica's name."""
        prompt = self._counted("vllm:prompt_tokens_total")
        cached = self._counted("vllm:prompt_tokens_cached_total")
        completion = self._counted("vllm:generation_tokens_total")
        return {name: Tokens(prompt[name], cached[name], completion[name]) for name in self.engines}

    def requests_ended(self):
        """Requests that the engines have brought to their end and counted."""
        return sum(self._counted("vllm:request_success_total").values())

    def is_idle(self):
        return self.kvpin.in_flight(MODEL) == 0 and all(server.at_work() == 0 for server in self.servers)

    def _counted(self, series):
        return {
            engine.name: counted[engine.rank]
            for server in self.servers
            for counted in [server.series(series)]
            for engine in server.engines
        }

    def config(self, affinity=True):
        return configuration(self.servers, self.recorder, affinity)


def grown(before, after):
    """What has become more, and by how much."""
    return {name: count - before[name] for name, count in after.items() if count != before[name]}


def configuration(vllm_servers, recorder, affinity=True):
    """kvpin's configuration: one model over all of vLLM, one that is only recorded."""
    return {
        "listen": ["127.0.0.1:0"],
        "admin": "127.0.0.1:0",
        # For bodies that kvpin doesn't look into.
        "default_model": MODEL,
        "models": {
            # Without `max_num_seqs`, so that the figure has to come from the engine that tells it.
            MODEL: {
                "aliases": [ALIAS, {"name": TRANSLATED_ALIAS, "upstream": MODEL}],
                "affinity": affinity,
                "replicas": [server.replica for server in vllm_servers],
            },
            RECORDED_MODEL: {"replicas": [{"url": recorder.url}]},
        },
    }
