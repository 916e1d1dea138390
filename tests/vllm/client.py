"""An agent's side of the wire: requests in both dialects, read to their last byte, and the conversations made of them."""

import contextlib
import http.client
import json
import random
import socket
from dataclasses import dataclass, field

from servers import MODEL, PATIENCE_S

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
COUNT_TOKENS = "/v1/messages/count_tokens"
TOKENIZE = "/tokenize"


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict  # names in lower case
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def replica(self):
        return self.headers.get("x-kvpin-replica")

    @property
    def decision(self):
        return self.headers.get("x-kvpin-decision")

    def events(self):
        """The JSON of each server-sent event."""
        lines = (line[len(b"data: "):] for line in self.body.split(b"\n") if line.startswith(b"data: "))
        return [json.loads(line) for line in lines if line != b"[DONE]"]


def post(address, path, body, headers=()):
    """`body` is bytes as they are, or something to be made JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("POST", path, raw, {"Content-Type": "application/json", **dict(headers)})
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, names, answer.read())


class OpenRequest:
    """A request whose answer is read bit by bit, and left at the end of its `with`."""

    def __init__(self, address, path, body):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        self.socket.sendall(head.encode() + raw)
        self.received = b""

    def read_until(self, words, count=1):
        while self.received.count(words) < count:
            part = self.socket.recv(65536)
            if not part:
                raise AssertionError(f"the answer ended before {count} x {words!r}: {self.received[-500:]!r}")
            self.received += part

    def read_what_is_there(self):
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while part := self.socket.recv(65536):
                self.received += part
        self.socket.setblocking(True)
        return self.received

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


# --- Text ---------------------------------------------------------------------------------------------------------------

WORDS = (
    "the return value self index path name list file line test class import from error string number key type data read "
    "write open close start end first last next count size time state call result object method module function"
).split()


def text(seed, words):
    """The same words for the same seed, about a token each, different from the first word on for another seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


# --- Conversations ------------------------------------------------------------------------------------------------------

SYSTEM_WORDS = 600
FIRST_MESSAGE_WORDS = 2400
LATER_MESSAGE_WORDS = 150
ANSWER_TOKENS = 16


@dataclass(frozen=True)
class Turn:
    replica: str
    decision: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Identity:
    """How an agent says which conversation a turn belongs to: headers, or fields of the body, or both."""

    headers: dict = field(default_factory=dict)
    fields: dict = field(default_factory=dict)


@dataclass
class Conversation:
    """A growing history that is sent whole with every turn, in the dialect and the way that its agent uses."""

    name: str
    path: str
    stream: bool
    identity: Identity
    messages: list = field(default_factory=list)
    turns: list = field(default_factory=list)

    def take_turn(self, address):
        words = LATER_MESSAGE_WORDS if self.messages else FIRST_MESSAGE_WORDS
        self.messages.append({"role": "user", "content": text(f"{self.name}/{len(self.messages)}", words)})
        response = post(address, self.path, self._body(), self.identity.headers)
        assert response.status == 200, f"{self.name}: {response.status} {response.body[:500]!r}"
        answer, prompt, cached = READERS[self.path, self.stream](response)
        self.messages.append({"role": "assistant", "content": answer})
        self.turns.append(Turn(response.replica, response.decision, prompt, cached))

    def _body(self):
        body = {"model": MODEL, "max_tokens": ANSWER_TOKENS, "temperature": 0, "seed": 1, "stream": self.stream}
        system = text("the system prompt that all agents share", SYSTEM_WORDS)
        if self.path == MESSAGES:
            body |= {"system": system, "messages": self.messages}
        else:
            body |= {"messages": [{"role": "system", "content": system}, *self.messages], "min_tokens": 1}
            if self.stream:
                body["stream_options"] = {"include_usage": True}
        return body | self.identity.fields


def _read_messages(response):
    answer = response.json
    texts = "".join(block.get("text", "") for block in answer["content"])
    return (texts, *_anthropic_usage(answer["usage"]))


def _read_messages_stream(response):
    events = response.events()
    assert events[-1]["type"] == "message_stop", events[-1]
    deltas = (event["delta"] for event in events if event["type"] == "content_block_delta")
    # The cache's figures stand in the last event only.
    usage = next(event["usage"] for event in events if event["type"] == "message_delta")
    return ("".join(delta.get("text", "") for delta in deltas), *_anthropic_usage(usage))


def _anthropic_usage(usage):
    read = usage.get("cache_read_input_tokens") or 0
    created = usage.get("cache_creation_input_tokens") or 0
    return usage["input_tokens"] + read + created, read


def _read_chat(response):
    answer = response.json
    return (answer["choices"][0]["message"]["content"] or "", *_openai_usage(answer["usage"]))


def _read_chat_stream(response):
    assert response.body.endswith(b"data: [DONE]\n\n"), response.body[-200:]
    events = response.events()
    deltas = (choice["delta"] for event in events for choice in event["choices"])
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    return ("".join(delta.get("content") or "" for delta in deltas), *_openai_usage(usage))


def _openai_usage(usage):
    return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


READERS = {
    (MESSAGES, False): _read_messages,
    (MESSAGES, True): _read_messages_stream,
    (CHAT, False): _read_chat,
    (CHAT, True): _read_chat_stream,
}
