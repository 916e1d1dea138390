"""OpenCode: `/v1/chat/completions`, a conversation named by `x-session-id`, and a call for a title before its first turn."""

from stage import assert_one_home_each


def test_a_continued_session_goes_on_where_it_was_and_its_tool_call_is_carried_out(running, opencode):
    first = opencode.turn("GREET me")
    assert first.text == "Greetings from the model."
    last = opencode.turn("MAKE-A-NOTE", "--continue")
    assert last.text == "The note has been made."
    assert (opencode.work / "note.txt").read_text() == "by-the-agent\n"
    assert first.session == last.session
    homes = assert_one_home_each(running, opencode.conversation, conversations=1)
    assert list(homes) == [first.session]


def test_the_title_call_before_a_first_turn_makes_no_pin(running, opencode):
    session = opencode.turn("GREET me").session
    titles = running.side_calls()
    assert [opencode.conversation(title.headers) for title in titles] == [session]
    assert_one_home_each(running, opencode.conversation, conversations=1)


def test_two_sessions_are_two_conversations_on_two_replicas(running, opencode):
    one, other = opencode.turn("GREET me"), opencode.turn("MAKE-A-NOTE")
    opencode.turn("MAKE-A-NOTE", "--session", one.session)
    opencode.turn("GREET me", "--session", other.session)
    homes = assert_one_home_each(running, opencode.conversation, conversations=2)
    assert homes[one.session] != homes[other.session]


def test_a_forked_session_is_a_second_conversation_where_its_parent_is(running, opencode):
    parent = opencode.turn("MAKE-A-NOTE")
    fork = opencode.turn("GREET me", "--continue", "--fork")
    assert fork.session != parent.session
    homes = assert_one_home_each(running, opencode.conversation, conversations=2, forks=1)
    assert homes[fork.session] == homes[parent.session]


def test_a_subagent_is_a_conversation_of_its_own(running, opencode):
    sent = opencode.turn("SEND-A-HELPER")
    assert sent.text == "The helper has been sent."
    assert (opencode.work / "seen.txt").read_text() == "by-the-helper\n"
    again = opencode.turn("GREET me", "--session", sent.session)
    assert again.text == "Greetings from the model."
    homes = assert_one_home_each(running, opencode.conversation, conversations=2)
    assert sent.session in homes
