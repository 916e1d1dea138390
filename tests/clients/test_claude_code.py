"""Claude Code: `/v1/messages`, a conversation named by its session and, for a subagent, by the agent."""

from servers import wait_until
from stage import COUNT_TOKENS, assert_one_home_each
from terminal import Terminal

COUNTED_WITHIN_S = 20
# Stands before the line that is being typed.
PROMPT = "\u276f"


def test_a_continued_and_resumed_session_goes_on_where_it_was_and_its_tool_call_is_carried_out(running, claude):
    first = claude.turn("GREET me")
    assert first.text == "Greetings from the model."
    continued = claude.turn("MAKE-A-NOTE", "--continue")
    assert continued.text == "The note has been made."
    assert (claude.work / "note.txt").read_text() == "by-the-agent\n"
    resumed = claude.turn("GREET me again", "--resume", first.session)
    assert resumed.text == "Greetings from the model."
    assert first.session == continued.session == resumed.session
    homes = assert_one_home_each(running, claude.conversation, conversations=1)
    assert list(homes) == [(first.session, None)]


def test_two_sessions_are_two_conversations_on_two_replicas(running, claude):
    one, other = claude.turn("GREET me"), claude.turn("MAKE-A-NOTE")
    claude.turn("MAKE-A-NOTE", "--resume", one.session)
    claude.turn("GREET me", "--resume", other.session)
    homes = assert_one_home_each(running, claude.conversation, conversations=2)
    assert homes[one.session, None] != homes[other.session, None]


def test_a_forked_session_is_a_second_conversation_where_its_parent_is(running, claude):
    parent = claude.turn("MAKE-A-NOTE")
    fork = claude.turn("GREET me", "--resume", parent.session, "--fork-session")
    assert fork.session != parent.session
    homes = assert_one_home_each(running, claude.conversation, conversations=2, forks=1)
    assert homes[fork.session, None] == homes[parent.session, None]


def test_a_subagent_is_a_conversation_of_its_own(running, claude):
    sent = claude.turn("SEND-A-HELPER")
    assert sent.text == "The helper has been sent."
    assert (claude.work / "seen.txt").read_text() == "by-the-helper\n"
    claude.turn("GREET me", "--continue")
    homes = assert_one_home_each(running, claude.conversation, conversations=2)
    sessions, agents = zip(*homes)
    assert set(sessions) == {sent.session}
    assert agents.count(None) == 1, "the main agent has no id, the subagent has one"


def test_neither_a_title_nor_counting_tokens_makes_or_moves_a_pin(running, claude):
    with Terminal(claude.interactive_command(), claude.work, claude.env()) as terminal:
        terminal.await_text(PROMPT)
        terminal.enter("GREET me")
        terminal.await_text("Greetings from the model.")
        terminal.enter("/context")
        wait_until("tokens are counted", COUNTED_WITHIN_S, lambda: len(_counts(running)) > 10)
        terminal.enter("MAKE-A-NOTE")
        terminal.await_text("The note has been made.")
        terminal.enter("/exit")
        assert terminal.wait() == 0
    titles = [call for call in running.side_calls() if call.path != COUNT_TOKENS]
    assert titles, "an interactive session asks for a title"
    assert len({call.replica for call in _counts(running)}) > 1, "counting goes where there is room"
    assert_one_home_each(running, claude.conversation, conversations=1)


def _counts(running):
    return [call for call in running.side_calls() if call.path == COUNT_TOKENS]
