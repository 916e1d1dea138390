//! Conversations that go on, turn after turn, and look at every byte: what a reload, a restart or an upgrade must not disturb.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::call::Call;
use super::client::Wire;
use super::recorder::sha256;
use super::storyteller::told_to;
use super::until;

/// After so many messages a history begins anew: that of a conversation with an id goes on under it, as after a compaction;
/// without one it is another conversation.
const MESSAGES_MAX: usize = 80;

/// How soon a client tries again that was refused.
const RETRY: Duration = Duration::from_millis(10);

/// What becomes of a client that can't connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusals {
    /// It tries again: nobody is there while a process is started anew.
    Expected,
    /// The test fails.
    Never,
}

/// Conversations under way.
pub struct Load {
    stop: Arc<AtomicBool>,
    shared: Arc<Shared>,
    conversations: JoinSet<()>,
}

/// What all clients have in common.
struct Shared {
    address: SocketAddr,
    model: &'static str,
    refusals: Refusals,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    turns: AtomicUsize,
    connects: AtomicUsize,
    refused: AtomicUsize,
    closes: AtomicUsize,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "what no test asks for is printed")]
pub struct Figures {
    pub turns: usize,
    pub connects: usize,
    pub refused: usize,
    /// Connections whose last answer said that they would close.
    pub closes: usize,
}

/// One client, with its one conversation.
struct Agent {
    number: usize,
    shared: Arc<Shared>,
    /// How often its history has begun.
    round: usize,
    messages: Vec<Value>,
    home: Option<String>,
    wire: Option<Wire>,
}

impl Load {
    /// Begins as many conversations, and waits until each has been served. Every second one has no id: it is known by its
    /// history only.
    pub async fn begin(address: SocketAddr, model: &'static str, conversations: usize, refusals: Refusals) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared { address, model, refusals, tally: Tally::default() });
        let mut running = JoinSet::new();
        for number in 0..conversations {
            let (stop, shared) = (Arc::clone(&stop), Arc::clone(&shared));
            running.spawn(async move {
                let mut agent = Agent { number, shared, round: 0, messages: Vec::new(), home: None, wire: None };
                while !stop.load(Ordering::Relaxed) {
                    agent.turn().await;
                }
            });
        }
        let load = Load { stop, shared, conversations: running };
        load.until_turns(conversations * 3).await;
        load
    }

    /// Waits for so many more turns, over all conversations.
    pub async fn until_turns(&self, more: usize) {
        let turns = &self.shared.tally.turns;
        let goal = turns.load(Ordering::Relaxed) + more;
        until("turns are served", async || (turns.load(Ordering::Relaxed) >= goal).then_some(())).await;
    }

    /// Ends every conversation with its turn. Fails if one had a turn that was lost, altered or served elsewhere.
    pub async fn end(mut self) -> Figures {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(conversation) = self.conversations.join_next().await {
            conversation.expect("every turn of the conversation was served as it should be");
        }
        self.figures()
    }

    pub fn figures(&self) -> Figures {
        let Tally { turns, connects, refused, closes } = &self.shared.tally;
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Figures { turns: read(turns), connects: read(connects), refused: read(refused), closes: read(closes) }
    }
}

impl Agent {
    /// A turn goes on from the one before, and is served where that was, byte for byte.
    async fn turn(&mut self) {
        let has_id = self.number.is_multiple_of(2);
        if self.messages.len() > MESSAGES_MAX {
            self.messages.clear();
            self.round += 1;
            self.home = self.home.take().filter(|_| has_id);
        }
        let said = format!("conversation {} goes on, {} {}", self.number, self.round, self.messages.len());
        self.messages.push(json!({ "role": "user", "content": said }));
        let body = json!({ "model": self.shared.model, "stream": true, "messages": self.messages }).to_string();
        let expected = told_to(body.as_bytes());
        let call = Call::post("/v1/chat/completions", body);
        let call = if has_id { call.of(&format!("conversation-{}", self.number)) } else { call };
        let mut wire = match self.wire.take() {
            Some(wire) => wire,
            None => self.shared.connect().await,
        };
        wire.send(&call.bytes()).await;
        let reply = wire.reply("POST").await;
        let number = self.number;
        let reply = reply.unwrap_or_else(|| panic!("conversation {number}: a request was lost on an open connection"));
        assert_eq!(reply.status(), 200, "conversation {number}: {}", reply.text());
        assert!(reply.is_whole && reply.text() == expected, "conversation {number}: {}", reply.text());
        self.note(reply.replica(), reply.decision());
        if reply.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.shared.tally.closes.fetch_add(1, Ordering::Relaxed);
        } else {
            self.wire = Some(wire);
        }
        self.messages.push(json!({ "role": "assistant", "content": sha256(expected.as_bytes()) }));
        self.shared.tally.turns.fetch_add(1, Ordering::Relaxed);
    }

    fn note(&mut self, replica: &str, decision: &str) {
        let (number, expected) = (self.number, if self.home.is_some() { "sticky" } else { "placed" });
        let home = self.home.get_or_insert_with(|| replica.to_owned());
        assert_eq!((decision, replica), (expected, home.as_str()), "conversation {number}");
    }
}

impl Shared {
    /// A new connection.
    async fn connect(&self) -> Wire {
        loop {
            match Wire::try_connect(self.address).await {
                Ok(wire) => {
                    self.tally.connects.fetch_add(1, Ordering::Relaxed);
                    return wire;
                }
                Err(error) => {
                    self.tally.refused.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(self.refusals, Refusals::Expected, "a connection was refused: {error}");
                    sleep(RETRY).await;
                }
            }
        }
    }
}
