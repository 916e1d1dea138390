"""What the tests look at: the running vLLM servers with their replicas, the recorder, and kvpin in front of them."""

from dataclasses import dataclass

import servers
from servers import ALIAS, MODEL

RECORDED_MODEL = "recorded"


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

    def prompt_tokens(self):
        """What each engine itself has counted so far, by the replica's name."""
        return {
            engine.name: counted[engine.rank]
            for server in self.servers
            for counted in [server.series("vllm:prompt_tokens_total")]
            for engine in server.engines
        }

    def config(self, affinity=True):
        return configuration(self.servers, self.recorder, affinity)


def configuration(vllm_servers, recorder, affinity=True):
    """kvpin's configuration: one model over all of vLLM, one that is only recorded."""
    return {
        "listen": ["127.0.0.1:0"],
        "admin": "127.0.0.1:0",
        "models": {
            # Without `max_num_seqs`, so that the figure has to come from the engine that tells it.
            MODEL: {
                "aliases": [ALIAS],
                "affinity": affinity,
                "replicas": [server.replica for server in vllm_servers],
            },
            RECORDED_MODEL: {"replicas": [{"url": recorder.url}]},
        },
    }
