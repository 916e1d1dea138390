"""How kvpin knows who is speaking and what it changes for the engine, by what the real vLLM makes of it.

That a conversation was found again, or a fork put where its parent is, shows in the engine's own figures: the prompt comes
from the prefix cache of the one replica that has computed it before.
"""

import copy
import gzip
import json
import uuid

import pytest
from client import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, SYSTEM_WORDS, TOKENIZE, Conversation, Identity, post, text
from fleet import RECORDED_MODEL, TRANSLATED_ALIAS, grown
from servers import BLOCK_TOKENS, MODEL

TURNS = 3
# More than there are replicas: by load they would be spread.
FORKS = 5
REUSED_AT_LEAST = 0.90
# What all conversations have in common: the system prompt, at about a token a word, and at most a block of the cache more.
SHARED_TOKENS_MAX = SYSTEM_WORDS + BLOCK_TOKENS
DIALECTS = [(MESSAGES, False), (MESSAGES, True), (CHAT, False), (CHAT, True)]
TURN_PATHS = [MESSAGES, CHAT, RESPONSES]
NAMELESS = Identity()


# --- Without an id ------------------------------------------------------------------------------------------------------


def test_conversations_without_an_id_go_on_where_their_prompts_are_cached(fleet):
    """Four agents that name nothing, one after the other in each turn."""
    conversations = [Conversation(f"nameless {number}", *dialect, NAMELESS) for number, dialect in enumerate(DIALECTS)]
    for number in range(TURNS):
        before = fleet.prefix_cache_hits()
        for conversation in conversations:
            conversation.take_turn(fleet.kvpin.address)
        latest = [conversation.turns[number] for conversation in conversations]
        assert grown(before, fleet.prefix_cache_hits()) == cached_by_replica(latest)
    for conversation in conversations:
        first, *later = conversation.turns
        print(f"{conversation.name}: cached", [turn.cached_tokens for turn in conversation.turns], "on", first.replica)
        assert [turn.decision for turn in conversation.turns] == ["placed"] + ["sticky"] * len(later)
        assert {turn.replica for turn in conversation.turns} == {first.replica}
        assert first.cached_tokens <= SHARED_TOKENS_MAX
        for previous, turn in zip(conversation.turns, later):
            assert turn.cached_tokens >= REUSED_AT_LEAST * previous.prompt_tokens, conversation.turns


# --- Forks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path, stream", [(MESSAGES, True), (CHAT, False)])
def test_a_forked_session_begins_where_its_parents_prompt_is_cached_and_an_unrelated_one_does_not(fleet, path, stream):
    parent = Conversation(f"parent {path}", path, stream, session())
    for _ in range(2):
        parent.take_turn(fleet.kvpin.address)
    home, prompt_tokens = parent.turns[-1].replica, parent.turns[-1].prompt_tokens
    forks_before = forks_by_replica(fleet)

    forks = [fork_of(parent, f"fork {number} {path}") for number in range(FORKS)]
    for fork in forks:
        fork.take_turn(fleet.kvpin.address)
    begun = [fork.turns[0] for fork in forks]
    assert {(turn.decision, turn.replica) for turn in begun} == {("placed", home)}
    print(f"of {prompt_tokens} tokens of the parent, found by its forks:", [turn.cached_tokens for turn in begun])
    assert all(turn.cached_tokens >= REUSED_AT_LEAST * prompt_tokens for turn in begun), begun
    assert grown(forks_before, forks_by_replica(fleet)) == {home: FORKS}

    stranger = Conversation(f"stranger {path}", path, stream, session())
    stranger.take_turn(fleet.kvpin.address)
    assert stranger.turns[0].decision == "placed"
    print("found by an unrelated session:", stranger.turns[0].cached_tokens)
    assert stranger.turns[0].cached_tokens <= SHARED_TOKENS_MAX
    assert grown(forks_before, forks_by_replica(fleet)) == {home: FORKS}


def test_a_fork_is_a_conversation_of_its_own(fleet):
    parent = Conversation("parent of one", CHAT, False, session())
    parent.take_turn(fleet.kvpin.address)
    remembered = fleet.kvpin.status(MODEL)["conversations"]
    fork = fork_of(parent, "one fork")
    for _ in range(2):
        fork.take_turn(fleet.kvpin.address)
    assert [turn.decision for turn in fork.turns] == ["placed", "sticky"]
    assert fleet.kvpin.status(MODEL)["conversations"] == remembered + 1


def session():
    return Identity(headers={"x-session-id": str(uuid.uuid4())})


def fork_of(parent, name):
    """Another session with the same history, which goes on with words of its own."""
    return Conversation(name, parent.path, parent.stream, session(), copy.deepcopy(parent.messages))


def forks_by_replica(fleet):
    return {replica["name"]: replica["forked"] for replica in fleet.kvpin.status(MODEL)["replicas"]}


# --- A name that the engine doesn't know --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", TURN_PATHS)
def test_an_alias_that_the_engine_does_not_know_is_served_under_the_models_name(fleet, path, stream):
    body = turn_body(path, TRANSLATED_ALIAS) | {"stream": stream}
    for engine in fleet.engines.values():
        assert post(engine.server, path, body, engine.headers).status == 404
    response = post(fleet.kvpin.address, path, body)
    assert response.status == 200, response.body
    assert finished(path, response) if stream else response.json["model"] == MODEL


def finished(path, response):
    """Whether a stream came to its proper end."""
    if path == CHAT:
        return response.body.endswith(b"data: [DONE]\n\n")
    last = {MESSAGES: {"message_stop"}, RESPONSES: {"response.completed", "response.incomplete"}}
    return response.events()[-1]["type"] in last[path]


# --- The session that the engine is told ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", TURN_PATHS)
def test_the_engine_takes_the_session_id_that_kvpin_gives_it(fleet, path, stream):
    """The recorder shows what kvpin sends for such a turn, and the engine is given the same."""
    thread = {"thread-id": str(uuid.uuid4())}
    before = len(fleet.recorder.posts)
    assert post(fleet.kvpin.address, path, turn_body(path, RECORDED_MODEL), thread).status == 200
    (recorded,) = fleet.recorder.posts[before:]
    (told,) = (value for name, value in recorded.headers if name.lower() == "x-session-id")
    assert told not in ("", thread["thread-id"]), "the client's own id stays with kvpin"

    body = turn_body(path, MODEL) | {"stream": stream}
    through = post(fleet.kvpin.address, path, body, thread)
    assert through.status == 200, through.body
    engine = fleet.engines[through.replica]
    direct = post(engine.server, path, body, engine.headers | {"X-Session-ID": told})
    assert direct.status == 200, direct.body


# --- Side calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [MODEL, TRANSLATED_ALIAS])
def test_what_counts_tokens_is_a_side_call_and_counts_what_the_turn_then_has(fleet, model):
    messages = [{"role": "user", "content": text(f"how many are these, {model}", 300)}]
    body = {"model": model, "messages": messages}
    remembered = fleet.kvpin.status(MODEL)["conversations"]
    before = fleet.prompt_tokens()
    # A session's own id makes no turn of it.
    headers = session().headers
    counted = post(fleet.kvpin.address, COUNT_TOKENS + "?beta=true", body, headers)
    tokenized = post(fleet.kvpin.address, TOKENIZE, body, headers)
    assert [(counted.status, counted.decision), (tokenized.status, tokenized.decision)] == [(200, "side")] * 2
    assert grown(before, fleet.prompt_tokens()) == {}, "nothing was computed"
    assert fleet.kvpin.status(MODEL)["conversations"] == remembered

    turn = post(fleet.kvpin.address, CHAT, body | {"max_tokens": 1}, headers)
    assert turn.decision == "placed"
    prompt_tokens = turn.json["usage"]["prompt_tokens"]
    assert counted.json["input_tokens"] == tokenized.json["count"] == len(tokenized.json["tokens"]) == prompt_tokens
    assert grown(before, fleet.prompt_tokens()) == {turn.replica: prompt_tokens}


# --- Compressed bodies --------------------------------------------------------------------------------------------------


def zstd_stored(raw):
    """A Zstandard frame (RFC 8878) with one block, stored as it is: Python 3.11 has no compressor for it."""
    assert 256 <= len(raw) < 256 + 2**16
    single_segment_with_two_bytes_of_size = 0x60
    head = bytes([single_segment_with_two_bytes_of_size]) + (len(raw) - 256).to_bytes(2, "little")
    last_raw_block = 1 | len(raw) << 3
    return b"\x28\xb5\x2f\xfd" + head + last_raw_block.to_bytes(3, "little") + raw


@pytest.mark.parametrize("path", TURN_PATHS)
@pytest.mark.parametrize("encoding, compress", [("gzip", gzip.compress), ("zstd", zstd_stored)], ids=["gzip", "zstd"])
def test_a_compressed_body_goes_to_the_engine_whose_own_error_comes_back_unchanged(fleet, path, encoding, compress):
    """This vLLM decompresses nothing."""
    body = compress(json.dumps(turn_body(path, MODEL) | {"padding": "x" * 256}).encode())
    headers = {"Content-Encoding": encoding}
    through = post(fleet.kvpin.address, path, body, headers)
    assert through.replica in fleet.engines, f"it was not sent on: {through.body}"
    direct = post(fleet.engines[through.replica].server, path, body, headers)
    assert (through.status, through.body) == (direct.status, direct.body)
    assert through.status == 400


# --- What several tests need --------------------------------------------------------------------------------------------


def turn_body(path, model):
    if path == RESPONSES:
        return {"model": model, "max_output_tokens": 4, "input": "name the list"}
    return {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "name the list"}]}


def cached_by_replica(turns):
    cached = {}
    for turn in turns:
        if turn.cached_tokens:
            cached[turn.replica] = cached.get(turn.replica, 0) + turn.cached_tokens
    return cached
