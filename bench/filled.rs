//! Balancers that have been at work: replicas that are up, and as many pins as asked for.

use std::time::Duration;

use kvpin::balancer::{Balancer, Bounds, Health, Mode, Outcome, Policy, Ranks, ReplicaSpec, SpillThreshold};
use kvpin::balancer::{Turn, TurnKind};
use kvpin::conversation::ConversationKey;

/// From which a replica is over-full. Low, so that few tickets make a home that is left.
pub const SPILL_THRESHOLD: u32 = 4;

/// Time between two turns in virtual time: a thousand turns a second, more than any box of engines can serve. A million
/// conversations that take turns then come back every 1,000 s, so that nearly all of them are idle, and each turn wakes
/// one and sends one to rest; of 100,000 most are active; of 1,000 all.
pub const TURN_GAP: Duration = Duration::from_millis(1);

/// A balancer with so many replicas and pins.
pub struct Filled {
    pub balancer: Balancer,
    pub now: Duration,
}

impl Filled {
    pub fn new(replicas: u16, pins: u64) -> Filled {
        // A bench of seconds is hours of virtual time, and no pin is to run out meanwhile.
        let bounds = Bounds { entries_max: pins as usize, idle_max: Duration::MAX };
        let policy = Policy {
            mode: Mode::Affinity,
            spill_threshold: SpillThreshold::Fixed(SPILL_THRESHOLD),
            max_num_seqs: Some(32),
            bounds,
        };
        let mut balancer = Balancer::new(policy, (0..replicas).map(spec).collect(), Duration::ZERO);
        for id in balancer.specs().map(|(id, _)| id).collect::<Vec<_>>() {
            balancer.set_health(id, Health::Up, Duration::ZERO);
        }
        let mut filled = Filled { balancer, now: Duration::ZERO };
        for number in 0..pins {
            filled.serve(&turn(Some(key(number))));
        }
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

/// A turn of a conversation, or of none.
pub fn turn(conversation: Option<ConversationKey>) -> Turn<'static> {
    Turn {
        conversation,
        aliases: &[],
        parent: None,
        chain: None,
        kind: TurnKind::Conversation,
        client_pin: None,
        ranks: Ranks::Obeyed,
        tried: &[],
    }
}

fn spec(number: u16) -> ReplicaSpec {
    let authority = format!("127.0.0.1:{}", 8000 + number);
    ReplicaSpec { name: authority.clone(), address: authority.parse().expect("an address"), authority, rank: None }
}
