"""Agents that never pause: each sends its next turn when the last one has ended, and writes down what became of each."""

import contextlib
import http.client
import json
import threading
import time
import uuid
from dataclasses import dataclass, field

from client import CHAT, MESSAGES, text
from servers import MODEL

# Long enough that many turns are in a silent prefill at any time.
FIRST_MESSAGE_WORDS = 3000
LATER_MESSAGE_WORDS = 150
ANSWER_TOKENS = 24
TURNS = 4
# For each read; pings keep a turn's reads from timing out, so it is bounded as a whole too.
TIMEOUT_S = 90
TURN_TIMEOUT_S = 240


@dataclass
class Turn:
    """What a client has seen of one turn so far."""

    conversation: str
    path: str
    stream: bool
    began: float = field(default_factory=time.monotonic)
    ended: float = None
    status: int = None
    replica: str = None
    decision: str = None
    body: bytes = b""
    broke: str = None

    @property
    def has_content(self):
        """Whether anything of an answer had come, from its first generated event on."""
        if not self.stream:
            return self.status == 200
        return any(event.get("choices") or event.get("type", "").startswith("content_block") for event in self.events())

    @property
    def is_good(self):
        """Whether the answer came to its own proper end."""
        if self.status != 200 or self.broke:
            return False
        if not self.stream:
            return bool(json.loads(self.body).get("id"))
        events = self.events()
        if any("error" in event for event in events):
            return False
        return self.body.endswith(b"data: [DONE]\n\n") if self.path == CHAT else events[-1]["type"] == "message_stop"

    def events(self):
        # What was cut off amid an event is no event.
        whole = self.body[: self.body.rfind(b"\n\n") + 2].split(b"\n")
        lines = (line[len(b"data: "):] for line in whole if line.startswith(b"data: "))
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    def __str__(self):
        words = f"{self.path} {'streamed' if self.stream else 'whole'} at {self.replica} ({self.decision})"
        return f"{words}: {self.status}, {self.broke or 'ended'}, {self.body[-300:]!r}"


class Agent:
    """One conversation after the other, and of each conversation one turn after the other."""

    def __init__(self, number):
        self.path = MESSAGES if number % 2 else CHAT
        # One in four waits for the whole answer.
        self.stream = number % 4 != 3
        self.begin()

    def begin(self):
        self.id, self.messages = str(uuid.uuid4()), []

    def take_turn(self, address, turn):
        """Fills in `turn` while it goes on."""
        words = LATER_MESSAGE_WORDS if self.messages else FIRST_MESSAGE_WORDS
        self.messages.append({"role": "user", "content": text(f"{self.id}/{len(self.messages)}", words)})
        body = {"model": MODEL, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": self.stream}
        body["messages"] = self.messages
        try:
            _exchange(address, self.path, body, self.id, turn)
        except (OSError, http.client.HTTPException) as error:
            turn.broke = f"{type(error).__name__}: {error}"
        turn.ended = time.monotonic()
        self.messages.append({"role": "assistant", "content": "Then go on."})

    def new_turn(self):
        return Turn(self.id, self.path, self.stream)


def _exchange(address, path, body, session, turn):
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json", "X-Session-Id": session}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        turn.replica, turn.decision = answer.getheader("x-kvpin-replica"), answer.getheader("x-kvpin-decision")
        turn.status = answer.status
        while part := answer.read1():
            turn.body += part
            if time.monotonic() - turn.began > TURN_TIMEOUT_S:
                raise TimeoutError(f"the turn has lasted for {TURN_TIMEOUT_S} s")


class Load:
    """Agents on threads of their own."""

    def __init__(self, address, agents):
        self.address, self.turns, self.stopping = address, [], threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(Agent(number),)) for number in range(agents)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def _run(self, agent):
        while not self.stopping.is_set():
            agent.begin()
            for _ in range(TURNS):
                if self.stopping.is_set():
                    return
                turn = agent.new_turn()
                self.turns.append(turn)
                agent.take_turn(self.address, turn)

    def ended(self, replica=None, since=0.0):
        """The turns that began at `since` or later and have ended, at one replica or at all."""
        turns = [turn for turn in list(self.turns) if turn.ended and turn.began >= since]
        return [turn for turn in turns if replica in (None, turn.replica)]

    def silent(self):
        """The turns of which nothing has come yet."""
        return [turn for turn in list(self.turns) if not turn.ended and not turn.body]

    def failed(self):
        """The turns that failed before anything of an answer had come."""
        return [turn for turn in self.ended() if not turn.is_good and not turn.has_content]

    def cut(self):
        """The turns whose answer had begun and didn't come to its end."""
        return [turn for turn in self.ended() if not turn.is_good and turn.has_content]
