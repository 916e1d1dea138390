"""kvpin in front of the real vLLM: what only the engine itself can show.

A prefix cache is judged by the engine's own figures (usage of each answer, counters of each engine), never by time.
"""

import concurrent.futures
import dataclasses
import http.client
import json
import re
import time
import uuid

import pytest
from client import CHAT, MESSAGES, Conversation, Identity, OpenRequest, post, text
from fleet import RECORDED_MODEL, grown
from servers import ALIAS, MAX_NUM_SEQS, MODEL, PATIENCE_S, progress, wait_until

CONVERSATIONS = 12
TURNS = 6
# Not a multiple or a divisor of the four replicas: with affinity off, rotation would otherwise send every turn of a
# conversation to the same replica by arithmetic alone.
AT_ONCE = 5
REUSED_AT_LEAST = 0.90
MARGIN_AT_LEAST = 0.05


# --- Conversations ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_affinity(fleet):
    """The conversations, run once with affinity, and what each engine counted meanwhile."""
    before = fleet.prompt_tokens()
    conversations = run_conversations(fleet, "affinity")
    return conversations, {name: count - before[name] for name, count in fleet.prompt_tokens().items()}


def test_every_turn_of_a_conversation_is_served_by_the_same_replica(fleet, with_affinity):
    conversations, _ = with_affinity
    assert len(conversations) == CONVERSATIONS
    for conversation in conversations:
        decisions = [turn.decision for turn in conversation.turns]
        assert decisions == ["placed"] + ["sticky"] * (TURNS - 1), f"{conversation.name}: {decisions}"
        assert len({turn.replica for turn in conversation.turns}) == 1, f"{conversation.name}: {conversation.turns}"
    homes = [conversation.turns[0].replica for conversation in conversations]
    print("conversations by replica:", {name: homes.count(name) for name in fleet.engines})
    assert set(homes) == set(fleet.engines), "not every replica was used"


def test_the_engines_own_counters_agree_with_the_response_headers(with_affinity):
    conversations, counted = with_affinity
    claimed = dict.fromkeys(counted, 0)
    for conversation in conversations:
        for turn in conversation.turns:
            claimed[turn.replica] += turn.prompt_tokens
    print("prompt tokens by replica:", claimed)
    assert claimed == counted


def test_each_turn_reuses_nearly_all_of_the_previous_prompt(with_affinity):
    conversations, _ = with_affinity
    for conversation in conversations:
        for previous, turn in zip(conversation.turns, conversation.turns[1:]):
            reused = turn.cached_tokens / previous.prompt_tokens
            assert reused >= REUSED_AT_LEAST, f"{conversation.name}: {reused:.1%}; {conversation.turns}"


def test_without_affinity_less_comes_from_the_cache(fleet, with_affinity):
    on = cached_share(with_affinity[0])
    fleet.kvpin.reload(fleet.config(affinity=False))
    try:
        wait_until("the reload has turned affinity off", PATIENCE_S, lambda: not affinity_is_on(fleet))
        conversations = run_conversations(fleet, "no affinity")
    finally:
        fleet.kvpin.reload(fleet.config())
    wait_until("the reload has turned affinity on", PATIENCE_S, lambda: affinity_is_on(fleet))
    off = cached_share(conversations)
    assert {turn.decision for conversation in conversations for turn in conversation.turns} == {"unpinned"}
    progress(f"prompt tokens from the cache: {on:.1%} with affinity, {off:.1%} without, margin {on - off:.1%}")
    print(f"prompt tokens from the cache: {on:.1%} with affinity, {off:.1%} without, margin {on - off:.1%}")
    assert on - off >= MARGIN_AT_LEAST


def test_pins_survive_the_reloads(fleet, with_affinity):
    for conversation in with_affinity[0][:4]:
        home = conversation.turns[0].replica
        conversation.take_turn(fleet.kvpin.address)
        assert (conversation.turns[-1].decision, conversation.turns[-1].replica) == ("sticky", home)


def run_conversations(fleet, label):
    """Twelve agents at work at once, in four kinds that differ in dialect, streaming and how they name themselves."""
    conversations = [agent(label, number) for number in range(CONVERSATIONS)]

    def whole(conversation):
        for _ in range(TURNS):
            conversation.take_turn(fleet.kvpin.address)

    progress(f"{CONVERSATIONS} conversations of {TURNS} turns ({label})")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(whole, conversations))
    return conversations


def agent(label, number):
    session = str(uuid.uuid4())
    kinds = [
        (MESSAGES, False, Identity(headers={"X-Claude-Code-Session-Id": session})),
        (MESSAGES, True, Identity(fields={"metadata": {"user_id": claude_user_id(session)}})),
        (CHAT, False, Identity(headers={"x-session-affinity": session})),
        (CHAT, True, Identity(fields={"prompt_cache_key": session})),
    ]
    path, stream, identity = kinds[number % len(kinds)]
    return Conversation(f"{label} {number}", path, stream, identity)


def cached_share(conversations):
    turns = [turn for conversation in conversations for turn in conversation.turns]
    return sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns)


def affinity_is_on(fleet):
    """A turn with a session says so by its decision."""
    response = post(fleet.kvpin.address, CHAT, small_chat(), {"x-session-id": str(uuid.uuid4())})
    assert response.status == 200, response.body
    return response.decision == "placed"


# --- The same answer ----------------------------------------------------------------------------------------------------


# vLLM reads no seed on /v1/messages, so a sampled answer can be repeated in the other dialect only.
@pytest.mark.parametrize("path, temperature", [(MESSAGES, 0), (CHAT, 0), (CHAT, 1)])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_seeded_answer_through_kvpin_equals_the_direct_one(fleet, path, stream, temperature):
    # The prompt stays below one block of the cache, so that both answers are computed from nothing.
    body = {"model": MODEL, "max_tokens": 48, "temperature": temperature, "seed": 7, "stream": stream}
    body["messages"] = [{"role": "user", "content": f"name list {path[-6:]}"}]
    if stream and path == CHAT:
        body["stream_options"] = {"include_usage": True}
    through = post(fleet.kvpin.address, path, body)
    engine = fleet.engines[through.replica]
    direct = post(engine.server, path, body, engine.headers)
    assert through.status == direct.status == 200
    assert said(through, stream) == said(direct, stream)
    assert passed_on(through.headers) == passed_on(direct.headers)


def test_the_engines_own_error_comes_through_unchanged(fleet):
    body = {"model": MODEL, "max_tokens": 4, "messages": "not a list"}
    through = post(fleet.kvpin.address, CHAT, body)
    direct = post(fleet.engines[through.replica].server, CHAT, body)
    assert (through.status, through.body) == (direct.status, direct.body)
    assert through.status == 400


def said(response, stream):
    """An answer but for ids and times. Of a stream: its text, and its kinds of events in their order.

    How many tokens share an event is the engine's own chance: it joins those that its front end had no time to send.
    """
    body = without_ids_and_times(response.body)
    if not stream:
        return body
    texts, kinds = [], []
    for event in dataclasses.replace(response, body=body).events():
        for delta in [event.get("delta", {})] + [choice["delta"] for choice in event.get("choices", [])]:
            texts.append(delta.pop("text", None) or delta.pop("content", None) or "")
        if event not in kinds[-1:]:
            kinds.append(event)
    return "".join(texts), kinds


def without_ids_and_times(body):
    body = re.sub(rb'"id":"(chatcmpl|msg)[^"]*"', b'"id":"..."', body)
    return re.sub(rb'"created":\d+', b'"created":0', body)


def passed_on(headers):
    """Those that are the engine's own and the same each time."""
    varying = {"date", "connection", "keep-alive", "content-length"}
    return {name: value for name, value in headers.items() if name not in varying and not name.startswith("x-kvpin-")}


# --- The same request ---------------------------------------------------------------------------------------------------

ODD_FIELDS = rb"""
  "temperature" : 1.50,"seed":7 ,
	"x_unknown": {"deep": [1e-7, -0.0, 1.0E+2, 100, "\u00e9\/", "\ud83d\ude00", null]},
  "x_big": 12345678901234567890123, "x_twice": 1, "x_twice": 2, "top_p":1.0, "top_p":0.90,
  "": "a key without a name",
  "max_tokens":3,  "messages":[ {"role":"user","content":"h\u00e9llo \t w\u00f6rld"} ]  } """ + b"\r\n\t "


def odd_body(model):
    return b'\n\t{  "model"\t:\n "%s" ,' % model.encode() + ODD_FIELDS


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("path", [MESSAGES + "?beta=true", CHAT])
def test_a_request_arrives_at_the_replica_byte_for_byte(fleet, path, framing):
    body = odd_body(RECORDED_MODEL)
    before = len(fleet.recorder.posts)
    # A body in pieces goes out chunked.
    sent = body if framing == "length" else iter([body[:3], body[3:20], body[20:21], body[21:]])
    response = post_raw(fleet.kvpin.address, path, sent)
    assert response == {"received_bytes": len(body)}
    (recorded,) = fleet.recorder.posts[before:]
    assert recorded.body == body
    assert recorded.path == path
    names = {name.lower(): value for name, value in recorded.headers}
    assert names["x-of-the-agent"] == "a  b;c"
    assert ("content-length" in names, "transfer-encoding" in names) == (framing == "length", framing == "chunked")


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_the_engine_serves_a_request_of_odd_but_valid_json(fleet, path):
    response = post(fleet.kvpin.address, path, odd_body(MODEL))
    assert response.status == 200, response.body


def post_raw(address, path, body):
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", "X-Of-The-Agent": "a  b;c"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


# --- Claude Code --------------------------------------------------------------------------------------------------------


def test_claude_code_is_pinned_by_its_header_and_by_its_metadata(fleet):
    session = str(uuid.uuid4())
    messages = [claude_first_message()]

    def turn(headers):
        response = post(fleet.kvpin.address, MESSAGES + "?beta=true", claude_body(session, messages), headers)
        assert response.status == 200, response.body
        assert response.events()[-1]["type"] == "message_stop"
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "done"}]})
        messages.append({"role": "user", "content": [{"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]})
        usage = next(event["usage"] for event in response.events() if event["type"] == "message_delta")
        return response.decision, response.replica, usage["cache_read_input_tokens"]

    with_header = claude_headers(session)
    without_header = {name: value for name, value in with_header.items() if name != "X-Claude-Code-Session-Id"}
    first = turn(with_header)
    second = turn(with_header)
    third = turn(without_header)
    assert first[0] == "placed"
    assert second[:2] == third[:2] == ("sticky", first[1])
    print("tokens read from the cache, turn by turn:", first[2], second[2], third[2])
    assert second[2] > first[2] and third[2] >= second[2]


def test_a_subagent_is_a_conversation_of_its_own(fleet):
    session = str(uuid.uuid4())
    main = claude_headers(session)
    agent = main | {"x-claude-code-agent-id": "aab599ff076878530"}
    body = claude_body(session, [claude_first_message()])
    responses = [post(fleet.kvpin.address, MESSAGES, body, headers) for headers in (main, agent, main, agent)]
    assert {response.status for response in responses} == {200}
    assert [response.decision for response in responses] == ["placed", "placed", "sticky", "sticky"]


def claude_headers(session):
    return {
        "Accept": "application/json",
        "Authorization": "Bearer not-a-key",
        "User-Agent": "claude-cli/2.1.332 (external, sdk-cli)",
        "X-Claude-Code-Session-Id": session,
        "X-Stainless-Arch": "x64",
        "X-Stainless-Lang": "js",
        "X-Stainless-OS": "Linux",
        "X-Stainless-Package-Version": "0.128.0",
        "X-Stainless-Retry-Count": "0",
        "X-Stainless-Runtime": "node",
        "X-Stainless-Runtime-Version": "v26.12.1",
        "X-Stainless-Timeout": "600",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "anthropic-dangerous-direct-browser-access": "true",
        "anthropic-version": "2023-06-01",
        "x-app": "cli",
        "Connection": "keep-alive",
        "Accept-Encoding": "gzip, deflate, br, zstd",
    }


def claude_body(session, messages):
    """Claude Code's order of keys: the model first, who is speaking and whether to stream long after everything else."""
    return {
        "model": ALIAS,
        "messages": messages,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.bd3; cc_entrypoint=sdk-cli;"},
            {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": text("instructions", 800), "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [claude_tool(name) for name in ("Agent", "Bash", "Edit", "Glob", "Grep", "Read", "WebFetch", "Write")],
        "metadata": {"user_id": claude_user_id(session)},
        "max_tokens": 24,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


def claude_first_message():
    reminder = "<system-reminder>\n" + text("reminder", 300) + "\n</system-reminder>"
    return {"role": "user", "content": [{"type": "text", "text": reminder}, {"type": "text", "text": "mend the test"}]}


def claude_tool(name):
    properties = {word: {"type": "string", "description": text(word, 20)} for word in ("path", "pattern", "content")}
    schema = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
    return {"name": name, "description": text(name, 200), "input_schema": schema}


def claude_user_id(session):
    return json.dumps({"device_id": "0" * 64, "account_uuid": "", "session_id": session}, separators=(",", ":"))


# --- Clients that leave -------------------------------------------------------------------------------------------------


# As much as a context of 32,768 tokens holds, so that a slow look at the engine still finds it at work.
LONG_PREFILL_WORDS = 30_000
UNENDING = {"model": MODEL, "max_tokens": 32_000, "min_tokens": 32_000}


def test_a_client_that_leaves_during_a_silent_prefill_frees_the_engine(fleet):
    prompt = text(str(uuid.uuid4()), LONG_PREFILL_WORDS)
    body = {"model": MODEL, "max_tokens": 100, "stream": True, "messages": [{"role": "user", "content": prompt}]}
    before = sum(fleet.prompt_tokens().values())
    with OpenRequest(fleet.kvpin.address, MESSAGES, body) as request:
        wait_until("the engine has begun", PATIENCE_S, lambda: one_turn_goes_on(fleet))
        received = request.read_what_is_there()
        assert b"data:" not in received, "the prefill was over before the client could leave"
    wait_until_all_is_free(fleet)
    # The engine counts a prompt when it has read all of it.
    assert sum(fleet.prompt_tokens().values()) - before < LONG_PREFILL_WORDS


def test_a_client_that_leaves_amid_a_stream_frees_the_engine(fleet):
    body = UNENDING | {"stream": True, "messages": [{"role": "user", "content": "go on for ever"}]}
    before = fleet.generation_tokens()
    with OpenRequest(fleet.kvpin.address, CHAT, body) as request:
        request.read_until(b"data:", count=20)
        wait_until("the engine says that it is at work", PATIENCE_S, lambda: one_turn_goes_on(fleet))
    wait_until_all_is_free(fleet)
    assert fleet.generation_tokens() - before < UNENDING["min_tokens"]


def test_a_client_that_leaves_without_streaming_frees_the_engine(fleet):
    body = UNENDING | {"messages": [{"role": "user", "content": "go on"}]}
    before = fleet.generation_tokens()
    with OpenRequest(fleet.kvpin.address, CHAT, body) as request:
        wait_until("the engine has begun", PATIENCE_S, lambda: one_turn_goes_on(fleet))
        assert request.read_what_is_there() == b""
    wait_until_all_is_free(fleet)
    assert fleet.generation_tokens() - before < UNENDING["min_tokens"]


def one_turn_goes_on(fleet):
    """Whether kvpin has one turn in flight, and its engine is at work for it. Only that engine is asked: each may be slow."""
    at_work = [replica["name"] for replica in fleet.kvpin.status(MODEL)["replicas"] if replica["in_flight"]]
    return len(at_work) == 1 and fleet.server_of(at_work[0]).at_work() == 1


def wait_until_all_is_free(fleet):
    left = time.monotonic()
    wait_until("all is idle", PATIENCE_S, fleet.is_idle)
    print(f"free {(time.monotonic() - left) * 1000:.0f} ms after the client left")


# --- Clients that choose ------------------------------------------------------------------------------------------------


def test_a_rank_that_the_client_names_is_where_the_turn_lands(fleet):
    for engine in fleet.ranked.engines:
        before = fleet.prompt_tokens()
        response = post(fleet.kvpin.address, CHAT, small_chat(), {"X-data-parallel-rank": str(engine.rank)})
        assert (response.status, response.decision, response.replica) == (200, "client_pinned", engine.name)
        assert grown(before, fleet.prompt_tokens()) == {engine.name: response.json["usage"]["prompt_tokens"]}


def test_a_replica_that_the_client_names_is_where_the_turn_lands(fleet):
    for name in fleet.engines:
        before = fleet.prompt_tokens()
        response = post(fleet.kvpin.address, CHAT, small_chat(), {"x-kvpin-replica": name})
        assert (response.status, response.decision, response.replica) == (200, "client_pinned", name)
        assert grown(before, fleet.prompt_tokens()) == {name: response.json["usage"]["prompt_tokens"]}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("header", [{"X-data-parallel-rank": "7"}, {"x-kvpin-replica": "nobody"}], ids=["rank", "replica"])
def test_a_rank_or_replica_that_does_not_exist_is_refused_naming_those_that_do(fleet, header, stream):
    before = fleet.prompt_tokens()
    for path in (MESSAGES, CHAT):
        response = post(fleet.kvpin.address, path, small_chat() | {"stream": stream}, header)
        assert response.status == 400, response.body
        error = response.json["error"]
        assert error["type"] == "invalid_request_error"
        assert response.json.get("type") == ("error" if path == MESSAGES else None)
        for engine in fleet.ranked.engines:
            assert engine.name in error["message"]
    assert grown(before, fleet.prompt_tokens()) == {}


def small_chat():
    return {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}


# --- What the engine tells ----------------------------------------------------------------------------------------------


def test_the_engine_that_tells_its_max_num_seqs_is_believed(fleet):
    def figures():
        replicas = fleet.kvpin.status(MODEL)["replicas"]
        return {replica["name"]: (replica["max_num_seqs"], replica["max_num_seqs_source"]) for replica in replicas}

    (telling,) = (engine.name for engine in fleet.in_dev_mode.engines)
    wait_until("kvpin has asked the engine", PATIENCE_S, lambda: figures()[telling] == (MAX_NUM_SEQS, "engine"))
    others = {figure for name, figure in figures().items() if name != telling}
    assert others == {(32, "assumed")}
