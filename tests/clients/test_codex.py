"""Codex: `/v1/responses`, a conversation named by `thread-id`."""

from stage import assert_one_home_each


def test_a_resumed_session_goes_on_where_it_was_and_its_tool_call_is_carried_out(running, codex):
    first = codex.turn("GREET me")
    assert first.text == "Greetings from the model."
    last = codex.turn("MAKE-A-NOTE", "resume", "--last")
    assert last.text == "The note has been made."
    assert (codex.work / "note.txt").read_text() == "by-the-agent\n"
    by_id = codex.turn("GREET me again", "resume", first.session)
    assert by_id.text == "Greetings from the model."
    assert first.session == last.session == by_id.session
    homes = assert_one_home_each(running, codex.conversation, conversations=1)
    assert list(homes) == [first.session]


def test_two_sessions_are_two_conversations_on_two_replicas(running, codex):
    one, other = codex.turn("GREET me"), codex.turn("MAKE-A-NOTE")
    codex.turn("MAKE-A-NOTE", "resume", one.session)
    codex.turn("GREET me", "resume", other.session)
    homes = assert_one_home_each(running, codex.conversation, conversations=2)
    assert homes[one.session] != homes[other.session]


def test_a_subagent_is_a_conversation_of_its_own(running, codex):
    sent = codex.turn("SEND-A-HELPER")
    assert sent.text == "The helper has been sent."
    assert (codex.work / "seen.txt").read_text() == "by-the-helper\n"
    again = codex.turn("GREET me", "resume", sent.session)
    assert again.text == "Greetings from the model."
    homes = assert_one_home_each(running, codex.conversation, conversations=2)
    assert sent.session in homes
