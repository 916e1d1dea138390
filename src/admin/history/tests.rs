use std::net::SocketAddr;

use crate::balancer::{
    Admission, Balancer, Bounds, Cost, HealthPolicy, Mode, Outcome, Policy, ReplicaSpec, SpillThreshold, Turn,
};
use crate::conversation::ConversationKey;

use super::*;

/// A model of two replicas that is looked at whenever the test says so.
struct Rig {
    balancer: Balancer,
    history: History,
    now: SystemTime,
}

impl Rig {
    fn new() -> Self {
        let policy = Policy {
            mode: Mode::Affinity,
            spill_threshold: SpillThreshold::Auto,
            max_num_seqs: None,
            admission: Admission::OFF,
            bounds: Bounds { entries_max: 10, idle_max: Duration::from_secs(3600) },
            health: HealthPolicy::default(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let rig = Rig { balancer: Balancer::new(policy, specs(2), Duration::ZERO), history: History::default(), now };
        rig.look();
        rig
    }

    fn look(&self) {
        let snapshot = self.balancer.snapshot(Duration::ZERO);
        self.history.look(&[("m", snapshot)], self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.look();
    }

    /// A turn of a new conversation that finds `cached` of 1,000 tokens.
    fn turn(&mut self, conversation: u64, cached: u64) {
        let turn = Turn::of(Some(ConversationKey(conversation)));
        let mut ticket = self.balancer.arrive(&turn, Duration::ZERO).expect("a replica");
        self.balancer.served(&mut ticket, Duration::ZERO);
        self.balancer.note_first_byte(&ticket, Duration::from_secs(1));
        let cost =
            Cost { request_bytes: 4_000, prompt: Some(1_000), cached: Some(cached), completion: 50, asks: false };
        self.balancer.charge(&ticket, &cost, Duration::ZERO);
        self.balancer.finish(ticket, Outcome::Completed, Duration::ZERO);
    }

    fn points(&self, range: Range) -> Vec<Point> {
        let page = self.history.page(range, &[], self.now);
        page.models.into_iter().next().expect("the model").points
    }
}

fn specs(count: u16) -> Vec<ReplicaSpec> {
    let spec = |index| {
        let address = SocketAddr::from(([127, 0, 0, 1], 8000 + index));
        ReplicaSpec {
            name: format!("r{index}"),
            address,
            authority: address.to_string(),
            is_tls: false,
            rank: None,
            drain: false,
        }
    };
    (0..count).map(spec).collect()
}

#[test]
fn what_is_counted_stands_in_the_step_in_which_it_was_seen_and_nothing_is_lost_between_steps() {
    let mut rig = Rig::new();
    rig.turn(1, 0);
    rig.pass(3);
    rig.turn(2, 600);
    rig.turn(3, 700);
    rig.pass(8);
    let points = rig.points(Range::Hour);
    let tokens: Vec<_> =
        points.iter().map(|p| (p.turns, p.cached_tokens, p.computed_tokens, p.completion_tokens)).collect();
    assert_eq!(tokens, [(1, 0, 1_000, 50), (2, 1_300, 700, 100)]);
    assert_eq!((points[0].at_s, points[0].length_s), (1_000_000_000, 10.0));
    assert_eq!((points[1].at_s, points[1].length_s), (1_000_000_010, 1.0));
    let p95 = points[1].first_byte_p95_s.expect("turns");
    assert!((0.9..1.1).contains(&p95), "{p95}");
    let week = rig.points(Range::Week);
    assert_eq!(week.iter().map(|point| point.turns).sum::<u64>(), 3);
}

#[test]
fn busy_replicas_are_an_average_over_the_looks() {
    let mut rig = Rig::new();
    let turn = Turn::of(Some(ConversationKey(1)));
    let ticket = rig.balancer.arrive(&turn, Duration::ZERO).expect("a replica");
    rig.pass(1);
    rig.balancer.finish(ticket, Outcome::Completed, Duration::ZERO);
    rig.pass(1);
    rig.pass(1);
    rig.pass(1);
    let point = rig.points(Range::Hour).pop().expect("a point");
    assert_eq!((point.busy_replicas, point.in_flight), (0.25, 0.25));
}

#[test]
fn the_rings_are_bounded_and_a_pause_leaves_a_gap() {
    let mut rig = Rig::new();
    for _ in 0..1_000 {
        rig.pass(10);
    }
    let points = rig.points(Range::Hour);
    assert_eq!(points.len(), 360);
    rig.pass(600);
    assert_eq!(rig.points(Range::Hour).len(), 302);
    assert!(rig.points(Range::Week).len() <= 2_016);
    assert!(rig.points(Range::Week).len() >= 33);
}

#[test]
fn a_clock_that_is_set_back_loses_no_turn() {
    let mut rig = Rig::new();
    rig.turn(1, 0);
    rig.pass(30);
    rig.now -= Duration::from_secs(25);
    rig.turn(2, 0);
    rig.look();
    assert_eq!(rig.points(Range::Hour).iter().map(|point| point.turns).sum::<u64>(), 2);
}

#[test]
fn a_model_that_is_no_longer_served_is_forgotten_and_a_replica_that_is_removed_takes_no_count_away() {
    let mut rig = Rig::new();
    rig.turn(1, 0);
    rig.turn(2, 0);
    rig.pass(1);
    rig.balancer.reconfigure(*rig.balancer.policy(), specs(1), Duration::ZERO);
    rig.turn(3, 0);
    rig.pass(1);
    assert_eq!(rig.points(Range::Hour)[0].turns, 3);
    rig.history.look(&[], rig.now);
    assert!(rig.history.page(Range::Hour, &[], rig.now).models.is_empty());
}
