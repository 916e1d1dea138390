"""Real vLLM servers that are killed, told to end, restarted and stopped under load: nobody's turn is lost for it.

An answer that had begun can't be saved: its client sees it cut, or with the engine's own error in it. Every other turn has
to be answered as if nothing had happened, those in a silent prefill included.

A server takes a minute and a half to come back, so these aren't run with the others:

    tests/vllm/run.sh tests/vllm/failures.py -k a_server_that
"""

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import servers
from load import Agent, Load
from servers import MODEL, progress, wait_until

AGENTS = 8
RESTING = 4
HUNG_S = 5
# Looks at a replica are a second apart, and on two cores everything is late.
FOUND_OUT_WITHIN_S = HUNG_S + 5
DOWN_WITHIN_S = 15
SHUTDOWN_TIMEOUT_S = 20
BUSY_WITHIN_S = 120
MOVED_WITHIN_S = 180

CONFIG = {"listen": ["127.0.0.1:0"], "admin": "127.0.0.1:0", "health": {"hung_s": HUNG_S, "ramp_s": 5}}


@dataclass
class Pair:
    """Two servers, of which the second one lets what runs finish when it is told to end."""

    servers: list
    kvpin: servers.Kvpin

    def replica(self, server):
        return next(entry for entry in self.kvpin.status(MODEL)["replicas"] if entry["name"] == server.server)

    def is_up(self, server):
        return self.replica(server)["health"] == "up"

    def other(self, server):
        return next(one for one in self.servers if one is not server)

    def retried(self):
        page = servers.get(f"http://{self.kvpin.admin}/metrics").decode().splitlines()
        return {line.split(" ")[0]: float(line.split(" ")[1]) for line in page if line.startswith("kvpin_retried_turns_total")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failures")
    vllm_dir = os.environ.get("KVPIN_VLLM_DIR", str(Path.home() / ".cache/kvpin-vllm"))
    root = Path(__file__).resolve().parents[2]
    binary = os.environ.get("KVPIN_BIN", str(root / "target/debug/kvpin"))
    lets_finish = ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)]
    progress(f"logs are in {folder}")
    with servers.vllm_fleet(vllm_dir, folder, ranks=[1, 1], options_of_last=lets_finish) as running:
        config = CONFIG | {"models": {MODEL: {"replicas": [server.replica for server in running]}}}
        with servers.running_kvpin(binary, folder, config) as kvpin:
            yield Pair(running, kvpin)
            kvpin.child.fail_if_ended()


@pytest.fixture(autouse=True)
def both_are_up(pair):
    for server in pair.servers:
        wait_until(f"{server.server} is up", BUSY_WITHIN_S, lambda server=server: pair.is_up(server))


def stop_engine(server):
    """Only the engine hangs: the API server goes on to say that it is well."""
    pids = server.child.pids()[1:]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def stop_all(server):
    """Nobody answers any more, but the kernel takes connections."""
    pids = server.child.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


@pytest.mark.parametrize("stop", [stop_engine, stop_all], ids=["engine", "server"])
def test_a_server_that_hangs_is_found_out_though_its_port_accepts_and_works_again_when_it_goes_on(pair, stop):
    victim = pair.servers[0]
    with Load(pair.kvpin.address, AGENTS) as load:
        until_silent_turns_at(pair, victim, load)
        stopped, pids = time.monotonic(), stop(victim)
        try:
            wait_until("it is found out", FOUND_OUT_WITHIN_S, lambda: pair.replica(victim)["health"] == "down")
            progress(f"down after {time.monotonic() - stopped:.1f} s: {pair.replica(victim)['health_reason']}")
            assert pair.replica(victim)["health_reason"] == "hung"
            host, port = victim.server.split(":")
            socket.create_connection((host, int(port)), timeout=5).close()
            # All of the others may be waiting there: a turn that hangs with its engine is let wait.
            with Load(pair.kvpin.address, AGENTS) as newcomers:
                wait_until("traffic has moved", MOVED_WITHIN_S, lambda: len(newcomers.ended()) >= 2 * AGENTS)
            assert {turn.replica for turn in newcomers.ended()} == {pair.other(victim).server}
            assert all(turn.is_good for turn in newcomers.ended())
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        continued = time.monotonic()
        wait_until("it is up again", BUSY_WITHIN_S, lambda: pair.is_up(victim))
        progress(f"up {time.monotonic() - continued:.1f} s after it went on")
        wait_until("it works again", BUSY_WITHIN_S, lambda: load.ended(victim.server, continued))
    report(load)
    assert not load.failed()
    # An answer that has begun is waited for about as long again.
    assert all(turn.replica == victim.server for turn in load.cut())
    assert_idle(pair)


@pytest.mark.parametrize(
    "which, how",
    [(0, signal.SIGKILL), (0, signal.SIGTERM), (1, signal.SIGTERM)],
    ids=["SIGKILL", "SIGTERM", "SIGTERM with a shutdown timeout"],
)
def test_a_server_that_ends_under_load_costs_no_turn_that_had_not_begun_and_comes_back(pair, which, how):
    victim = pair.servers[which]
    restarts, retried = pair.replica(victim)["restarts"], pair.retried()
    resting = conversations_at(pair, victim)
    with Load(pair.kvpin.address, AGENTS) as load:
        until_silent_turns_at(pair, victim, load)
        ended = time.monotonic()
        end(victim, how)
        wait_until("it is seen", DOWN_WITHIN_S, lambda: pair.replica(victim)["health"] in ("down", "draining"))
        progress(f"{pair.replica(victim)['health']} after {time.monotonic() - ended:.2f} s")
        wait_until("all go on elsewhere", MOVED_WITHIN_S, lambda: len(load.ended(since=ended)) >= 2 * AGENTS)
        assert {turn.replica for turn in load.ended(since=ended + DOWN_WITHIN_S)} <= {pair.other(victim).server}
        wait_until("it has ended", SHUTDOWN_TIMEOUT_S + 30, victim.child.ended)
        victim.start_again()
        wait_until("it is up again", servers.VLLM_START_S, lambda: pair.is_up(victim), interval=0.5)
        back = time.monotonic()
        progress(f"up {back - ended:.0f} s after its end; {len(load.ended())} turns so far")
        wait_until("it works again", BUSY_WITHIN_S, lambda: load.ended(victim.server, back))
        progress(f"works again {time.monotonic() - back:.1f} s later")
    report(load)
    now = pair.retried()
    print("retried:", {key: value - retried.get(key, 0) for key, value in now.items()})
    assert not load.failed()
    assert all(turn.replica == victim.server for turn in load.cut())
    assert sum(now.values()) > sum(retried.values()), "no turn was in its silent prefill there"
    assert pair.replica(victim)["restarts"] == restarts + 1
    assert_moved_once(load, victim, ended)
    assert [turn_of(pair, agent).decision for agent in resting] == ["placed"] * len(resting)
    assert_idle(pair)


# --- Steps --------------------------------------------------------------------------------------------------------------


def end(server, how):
    """SIGKILL takes all of its processes, as the kernel does when memory runs out; SIGTERM goes to the server only."""
    for pid in server.child.pids() if how == signal.SIGKILL else [server.child.pid]:
        os.kill(pid, how)


def until_silent_turns_at(pair, victim, load):
    """Waits until at least one turn of which nothing has come is at the replica: more are silent than the other one has."""

    def some():
        elsewhere = pair.replica(pair.other(victim))["in_flight"]
        return load.ended(victim.server) and pair.replica(victim)["in_flight"] >= 2 and len(load.silent()) > elsewhere

    wait_until("silent turns are at the replica", BUSY_WITHIN_S, some, interval=0.01)


def conversations_at(pair, server):
    """Conversations that are pinned to the server and do nothing for now."""
    at_home = []

    def enough():
        agent = Agent(len(at_home))
        if turn_of(pair, agent).replica == server.server:
            at_home.append(agent)
        return len(at_home) == RESTING

    # After a test that had all its conversations there, new ones go elsewhere until those count as idle.
    wait_until("conversations are placed there", BUSY_WITHIN_S, enough)
    return at_home


def turn_of(pair, agent):
    turn = agent.new_turn()
    agent.take_turn(pair.kvpin.address, turn)
    assert turn.is_good, str(turn)
    return turn


def assert_moved_once(load, victim, ended):
    """Whoever was at the replica that ended goes on elsewhere with the next turn, and stays there."""
    by_conversation = {}
    for turn in load.ended():
        by_conversation.setdefault(turn.conversation, []).append(turn)
    moved = 0
    for turns in by_conversation.values():
        before = [turn for turn in turns if turn.ended < ended]
        after = [turn for turn in turns if turn.began > ended]
        if before and after and before[-1].replica == victim.server:
            moved += 1
            assert after[0].replica != victim.server, "\n".join(map(str, turns))
            assert {turn.decision for turn in after[1:]} <= {"sticky"}, "\n".join(map(str, turns))
    print(f"{moved} conversations went on elsewhere")


def report(load):
    turns = load.ended()
    replicas = [turn.replica for turn in turns]
    line = f"{len(turns)} turns, {len(load.failed())} failed, {len(load.cut())} cut after their beginning"
    progress(f"{line}; by replica {({name: replicas.count(name) for name in set(replicas)})}")
    for turn in load.failed() + load.cut():
        progress(f"  {turn}")
    print(line)


def assert_idle(pair):
    wait_until("no turn is in flight", BUSY_WITHIN_S, lambda: pair.kvpin.in_flight(MODEL) == 0)
    for server in pair.servers:
        wait_until("the engine is idle", BUSY_WITHIN_S, lambda server=server: server.at_work() == 0)
