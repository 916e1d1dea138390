"""The agents in front of the real vLLM: what it computes for them, by its own count. Skipped where it is not installed."""

import engines
import pytest
from agents import ClaudeCode, Codex, OpenCode
from stage import Counted

# Of a later turn's prompt: it is the first one's, the answer and a few words more.
REUSED_AT_LEAST = 0.90


@pytest.mark.parametrize(
    "kind, go_on",
    [(ClaudeCode, ["--continue"]), (Codex, ["resume", "--last"]), (OpenCode, ["--continue"])],
    ids=["claude", "codex", "opencode"],
)
def test_a_continued_session_stays_on_its_replica_and_finds_its_prompt_in_the_cache_there(real, tmp_path, kind, go_on):
    with kind(real.kvpin.address, tmp_path) as agent:
        first, begun = real.computed_for(lambda: agent.turn("Read this."))
        later, continued = real.computed_for(lambda: agent.turn("And this.", *go_on))
    counted = Counted.by(real.kvpin)
    print("first turn:", begun)
    print("later turn:", continued)
    print(counted)
    assert (first.text.strip(), later.text.strip()) == (engines.answer(), engines.answer())
    assert first.session == later.session
    assert len(begun.replicas) == 1 and continued.replicas == begun.replicas
    assert (counted.pins, counted.first_turns, counted.sticky_turns, counted.elsewhere) == (1, 1, 1, 0)
    assert continued.cached_tokens > begun.cached_tokens
    assert continued.cached_tokens >= REUSED_AT_LEAST * continued.prompt_tokens


def test_a_fork_finds_its_parents_prompt_in_the_cache_of_its_parents_replica(real, tmp_path):
    """By load it would begin on the other one."""
    with ClaudeCode(real.kvpin.address, tmp_path) as claude:
        parent, begun = real.computed_for(lambda: claude.turn("Read this."))
        fork, forked = real.computed_for(lambda: claude.turn("Or this.", "--continue", "--fork-session"))
    counted = Counted.by(real.kvpin)
    print("the parent:", begun)
    print("its fork:", forked)
    print(counted)
    assert (parent.text.strip(), fork.text.strip()) == (engines.answer(), engines.answer())
    assert fork.session != parent.session
    assert len(begun.replicas) == 1 and forked.replicas == begun.replicas
    assert (counted.pins, counted.first_turns, counted.forks, counted.elsewhere) == (2, 2, 1, 0)
    assert forked.cached_tokens >= REUSED_AT_LEAST * forked.prompt_tokens
