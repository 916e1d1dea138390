"""kvpin's books against the engines' own counters: every token of every turn, exactly.

All figures are growth over what was counted before, so that what other requests have cost stands in neither.
"""

import concurrent.futures
import uuid
from dataclasses import dataclass

import pytest
from client import CHAT, MESSAGES, RESPONSES, Conversation, Identity, OpenRequest, post, text
from fleet import Tokens
from servers import MODEL, PATIENCE_S, wait_until

COMPLETIONS = "/v1/completions"
CONVERSATIONS = 3
TURNS = 10
# A turn that nobody measured is estimated from its bytes, by what others of the same words have come to.
ESTIMATE_WITHIN = 0.5


@dataclass(frozen=True)
class Books:
    """A replica's, as kvpin's status has them."""

    tokens: Tokens
    estimated: int
    measured: int
    unmeasured: int
    untold: int

    def __sub__(self, earlier):
        return Books(
            self.tokens - earlier.tokens,
            self.estimated - earlier.estimated,
            self.measured - earlier.measured,
            self.unmeasured - earlier.unmeasured,
            self.untold - earlier.untold,
        )


class Watch:
    """What grows, in kvpin's books and in the engines' counters, while turns are taken."""

    def __init__(self, fleet):
        self.fleet = fleet
        wait_until("all is idle", PATIENCE_S, fleet.is_idle)
        self.books, self.tokens, self.ended = books(fleet), fleet.tokens(), fleet.requests_ended()

    def grown(self, booked, ended=None):
        """The books' and the counters' growth by replica, once both know of so many turns.

        Either counts a turn when its last byte has gone out, so perhaps after its client has read it. The engines count no
        request as ended that was aborted.
        """
        ended = booked if ended is None else ended
        wait_until(f"the engines have counted {ended} requests", PATIENCE_S, lambda: self._ended() >= ended)
        wait_until(f"kvpin has booked {booked} turns", PATIENCE_S, lambda: self._booked() >= booked)
        wait_until("all is idle", PATIENCE_S, self.fleet.is_idle)
        assert (self._ended(), self._booked()) == (ended, booked)
        now, counted = books(self.fleet), self.fleet.tokens()
        return {name: now[name] - self.books[name] for name in now}, {name: counted[name] - self.tokens[name] for name in counted}

    def _ended(self):
        return self.fleet.requests_ended() - self.ended

    def _booked(self):
        now = books(self.fleet)
        return sum((now[name] - self.books[name]).measured + (now[name] - self.books[name]).unmeasured for name in now)


def books(fleet):
    def of(replica):
        tokens = replica["tokens"]
        prompt = tokens["cached"] + tokens["computed"]
        turns = (replica["turns_measured"], replica["turns_unmeasured"], replica["turns_untold"])
        return Books(Tokens(prompt, tokens["cached"], tokens["completion"]), tokens["estimated"], *turns)

    return {replica["name"]: of(replica) for replica in fleet.kvpin.status(MODEL)["replicas"]}


def session():
    return Identity(headers={"x-session-id": str(uuid.uuid4())})


# --- Turns that the engine measures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_ten_turns_of_three_conversations_stand_in_the_books_as_the_engines_counted_them(fleet, path, stream):
    conversations = [Conversation(f"books {path} {stream} {n}", path, stream, session()) for n in range(CONVERSATIONS)]
    watch = Watch(fleet)

    def whole(conversation):
        for _ in range(TURNS):
            conversation.take_turn(fleet.kvpin.address)

    with concurrent.futures.ThreadPoolExecutor(CONVERSATIONS) as pool:
        list(pool.map(whole, conversations))
    grown, counted = watch.grown(CONVERSATIONS * TURNS)
    print("booked, as counted, by replica:", counted)
    assert {name: book.tokens for name, book in grown.items()} == counted
    assert sum(book.measured for book in grown.values()) == CONVERSATIONS * TURNS
    assert all((book.estimated, book.unmeasured, book.untold) == (0, 0, 0) for book in grown.values()), grown
    # The comparison is of something: most of what was sent again was found, and every turn was answered.
    turns = [turn for conversation in conversations for turn in conversation.turns]
    assert sum(tokens.prompt for tokens in counted.values()) == sum(turn.prompt_tokens for turn in turns)
    assert sum(tokens.cached for tokens in counted.values()) == sum(turn.cached_tokens for turn in turns) > 0
    assert sum(tokens.completion for tokens in counted.values()) >= len(turns)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [RESPONSES, COMPLETIONS])
def test_the_other_endpoints_turns_stand_in_the_books_as_the_engines_counted_them(fleet, path, stream):
    words = text(f"{path} {stream}", 400)
    body = {"model": MODEL, "stream": stream, "temperature": 0}
    if path == RESPONSES:
        body |= {"input": words, "max_output_tokens": 12}
    else:
        body |= {"prompt": words, "max_tokens": 12, "min_tokens": 1}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
    watch = Watch(fleet)
    # A server that is one replica: of several ranks, vLLM itself chooses on /v1/responses. The second time it has the prompt
    # in its cache.
    (replica,) = (engine.name for engine in fleet.in_dev_mode.engines)
    for _ in range(2):
        response = post(fleet.kvpin.address, path, body, {"x-kvpin-replica": replica})
        assert (response.status, response.replica) == (200, replica), response.body
    grown, counted = watch.grown(2)
    assert {name: book.tokens for name, book in grown.items()} == counted
    assert grown[replica].tokens.prompt >= 2 * 400 and grown[replica].tokens.cached > 0
    assert sum(book.measured for book in grown.values()) == 2


# --- Turns that it doesn't ----------------------------------------------------------------------------------------------


def test_a_stream_without_usage_is_estimated_and_marked_so(fleet):
    """Chat streams tell no usage unless they are asked to."""
    turns = [{"role": "user", "content": text("nobody measures this", 1200)}]
    body = {"model": MODEL, "max_tokens": 12, "min_tokens": 12, "temperature": 0, "messages": turns}
    # What bytes come to is learnt from a turn that is measured.
    assert post(fleet.kvpin.address, CHAT, body).status == 200
    watch = Watch(fleet)
    response = post(fleet.kvpin.address, CHAT, body | {"stream": True})
    assert response.status == 200 and not any(event.get("usage") for event in response.events())
    grown, counted = watch.grown(1)
    booked, engine = grown[response.replica], counted[response.replica]
    print("estimated", booked.estimated, "of", engine)
    assert (booked.unmeasured, booked.measured) == (1, 0)
    assert (booked.tokens.prompt, booked.tokens.cached) == (0, 0), "an estimate stands apart from what was measured"
    assert booked.estimated == pytest.approx(engine.prompt, rel=ESTIMATE_WITHIN)
    # An event may carry several tokens, and none where they make no whole character yet.
    assert 0 < booked.tokens.completion <= engine.completion


def test_a_turn_that_its_client_left_is_estimated_whatever_it_said_before(fleet):
    """`message_start` tells the prompt, but only an answer that has come to its end tells the whole."""
    body = {"model": MODEL, "max_tokens": 20_000, "stream": True, "temperature": 1}
    body["messages"] = [{"role": "user", "content": text("left in the middle", 600)}]
    watch = Watch(fleet)
    with OpenRequest(fleet.kvpin.address, MESSAGES, body) as request:
        request.read_until(b"content_block_delta", count=2)
    grown, counted = watch.grown(1, ended=0)
    (booked,) = (book for book in grown.values() if book.measured or book.unmeasured)
    assert (booked.measured, booked.unmeasured) == (0, 1)
    assert booked.tokens.prompt == 0
    engine = sum(tokens.prompt for tokens in counted.values())
    assert booked.estimated == pytest.approx(engine, rel=ESTIMATE_WITHIN)


def test_side_calls_and_refused_requests_cost_nothing(fleet):
    watch = Watch(fleet)
    body = {"model": MODEL, "messages": [{"role": "user", "content": text("count", 50)}]}
    assert post(fleet.kvpin.address, "/v1/messages/count_tokens", body).status == 200
    assert post(fleet.kvpin.address, "/tokenize", body).status == 200
    assert post(fleet.kvpin.address, CHAT, body | {"messages": "not a list", "max_tokens": 1}).status == 400
    assert post(fleet.kvpin.address, CHAT, body | {"max_tokens": 1}).status == 200
    grown, counted = watch.grown(1)
    assert {name: (book.tokens, book.estimated) for name, book in grown.items()} == {
        name: (tokens, 0) for name, tokens in counted.items()
    }
