//! Balancers that have been at work: replicas that are up, and as many pins as asked for.

// Each bench takes a part of it.
#![allow(dead_code)]

use std::time::Duration;

use kvpin::balancer::{
    Admission, Balancer, Bounds, Evidence, HealthPolicy, Mode, Outcome, PinRecord, Policy, Records, ReplicaSpec,
    SpillThreshold, Turn,
};
use kvpin::conversation::{Chain, ChainKey, ConversationKey, Link};

/// From which a replica is over-full. Low, so that few tickets make a home that is left.
pub const SPILL_THRESHOLD: u32 = 4;

/// Time between two turns in virtual time: a thousand turns a second, more than any box of engines can serve. A million
/// conversations that take turns then come back every 1,000 s, so that nearly all of them are idle, and each turn wakes
/// one and sends one to rest; of 100,000 most are active; of 1,000 all.
pub const TURN_GAP: Duration = Duration::from_millis(1);

/// Replicas and pins of the benches: each of the two grows to the most that anybody has.
pub const REPLICAS: [u16; 3] = [2, 64, 1_024];
pub const PINS: [u64; 3] = [1_000, 100_000, 1_000_000];

/// Conversations that are spoken with while the others only are remembered: as many as a busy box has at once.
pub const HOT: u64 = 1_000;

/// Whether figures are wanted. Without `--bench` (`cargo test --benches`) each bench runs once and small, so that it does not rot.
pub fn is_measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// A balancer with so many replicas and pins.
pub struct Filled {
    pub balancer: Balancer,
    pub now: Duration,
}

impl Filled {
    pub fn new(replicas: u16, pins: u64) -> Filled {
        let mut filled = Filled::with_room(replicas, pins);
        for number in 0..pins {
            filled.serve(&turn(Some(key(number))));
        }
        filled
    }

    /// One that remembers nothing yet, with room for so many pins, histories and aliases.
    pub fn with_room(replicas: u16, pins: u64) -> Filled {
        let mut balancer = Balancer::new(policy(pins), (0..replicas).map(spec).collect(), Duration::ZERO);
        for id in balancer.specs().map(|(id, _)| id).collect::<Vec<_>>() {
            balancer.observe(id, Evidence::Answered, Duration::ZERO);
        }
        Filled { balancer, now: Duration::ZERO }
    }

    /// One with pins that were restored, which does not weigh all replicas for each: the newest was used just now, each other
    /// one a [`TURN_GAP`] before the next.
    pub fn restored(replicas: u16, pins: u64) -> Filled {
        let mut filled = Filled::with_room(replicas, pins);
        filled.now = TURN_GAP * pins as u32;
        let records = filled.balancer.replica_records();
        let restore = filled.balancer.begin_restore(&records, Duration::ZERO, filled.now);
        let pin = |number: u64| PinRecord {
            key: key(number).into(),
            replica: (number % u64::from(replicas)) as u16,
            parent: None,
            joined: false,
            has_claim: true,
            tokens: None,
            age_ms: (TURN_GAP * (pins - 1 - number) as u32).as_millis() as u64,
        };
        let restored = filled.balancer.restore(&restore, &Records::Pins((0..pins).map(pin).collect()), filled.now);
        assert_eq!(restored.kept as u64, pins, "a pin was not restored");
        filled
    }

    /// One turn from its arrival to its end.
    pub fn serve(&mut self, turn: &Turn<'_>) {
        self.now += TURN_GAP;
        let mut ticket = self.balancer.arrive(turn, self.now).expect("a replica is up");
        self.balancer.served(&mut ticket, self.now);
        self.balancer.finish(ticket, Outcome::Completed, self.now);
    }
}

/// The key of a conversation: 64 bits that look random, as a keyed hash gives them.
pub fn key(number: u64) -> ConversationKey {
    // The finisher of SplitMix64, a bijection.
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ConversationKey(bits ^ (bits >> 31))
}

/// A history of so many links, another one for every number. It counts as begun with this turn.
pub fn history(number: u64, links: u64) -> Chain {
    let link = |index| Link { key: ChainKey(key(number << 20 | index).0), text_bytes: 1_000 * (index as u32 + 1) };
    Chain { links: (0..links).map(link).collect(), ..Chain::default() }
}

/// A turn of a conversation, or of none.
pub fn turn(conversation: Option<ConversationKey>) -> Turn<'static> {
    Turn::of(conversation)
}

/// The next of `count` numbers, far from the one before: each is visited once before any is visited again, because the
/// step is a prime that divides none of the counts.
pub fn after(number: u64, count: u64) -> u64 {
    (number + 611_953) % count
}

pub fn policy(entries_max: u64) -> Policy {
    Policy {
        mode: Mode::Affinity,
        spill_threshold: SpillThreshold::Fixed(SPILL_THRESHOLD),
        max_num_seqs: Some(32),
        admission: Admission::OFF,
        // A bench of seconds is hours of virtual time, and nothing is to run out meanwhile.
        bounds: Bounds { entries_max: entries_max as usize, idle_max: Duration::MAX },
        health: HealthPolicy::default(),
    }
}

pub fn spec(number: u16) -> ReplicaSpec {
    let authority = format!("127.0.0.1:{}", 8000 + number);
    let address = authority.parse().expect("an address");
    ReplicaSpec { name: authority.clone(), address, authority, is_tls: false, rank: None, drain: false }
}
