//! Facts and properties of the decision core, on a clock that the test holds.

mod accounts;
mod admission;
mod health;
mod histories;
mod holds;
mod kept;
mod names;
mod properties;
mod relatives;

use std::collections::BTreeMap;
use std::time::Duration;

use super::replicas::nanos;
use super::*;
use crate::conversation::{Chain, ChainKey, ConversationKey, Link};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn new_conversations_spread_over_equal_replicas_and_later_turns_stay() {
    let mut box_ = Rig::new(4, policy());
    let homes: Vec<_> = (0..8).map(|n| box_.turn(n).replica).collect();
    let mut counts = BTreeMap::<ReplicaId, u32>::new();
    for home in &homes {
        *counts.entry(*home).or_default() += 1;
    }
    assert_eq!(counts.values().copied().collect::<Vec<_>>(), [2; 4]);
    for _ in 0..5 {
        for (n, home) in homes.iter().enumerate() {
            let done = box_.turn(n as u64);
            assert_eq!((done.replica, done.decision), (*home, Decision::Sticky));
        }
    }
}

#[test]
fn placements_count_as_load_before_any_scrape_sees_them() {
    let mut box_ = Rig::new(3, policy());
    let tickets: Vec<_> = (0..3).map(|n| box_.arrive(n)).collect();
    let mut replicas: Vec<_> = tickets.iter().map(|ticket| ticket.replica).collect();
    replicas.sort();
    replicas.dedup();
    assert_eq!(replicas.len(), 3);
    tickets.into_iter().for_each(|ticket| box_.complete(ticket));
}

#[test]
fn a_sticky_turn_spills_over_the_threshold_and_the_next_one_returns_home() {
    let mut box_ = Rig::new(2, Policy { spill_threshold: SpillThreshold::Fixed(2), ..policy() });
    let home = box_.turn(0).replica;
    let held: Vec<_> = (0..2).map(|_| box_.arrive(0)).collect();
    assert!(held.iter().all(|ticket| ticket.replica == home && ticket.decision == Decision::Sticky));
    let spilled = box_.arrive(0);
    assert_eq!(spilled.decision, Decision::Spilled { from: home });
    assert_ne!(spilled.replica, home);
    box_.complete(spilled);
    held.into_iter().for_each(|ticket| box_.complete(ticket));
    let back = box_.turn(0);
    assert_eq!((back.replica, back.decision), (home, Decision::Sticky));
}

#[test]
fn a_turn_stays_over_the_threshold_when_no_other_replica_is_clearly_less_loaded() {
    let mut box_ = Rig::new(2, Policy { spill_threshold: SpillThreshold::Fixed(2), ..policy() });
    let home = box_.turn(0).replica;
    let other = box_.turn(1).replica;
    assert_ne!(home, other);
    let mut held: Vec<_> = (0..2).flat_map(|_| [0, 1]).map(|n| box_.arrive(n)).collect();
    // Home has 2 in flight and the other one has 2 too: both are at their thresholds.
    let stays = box_.arrive(0);
    assert_eq!((stays.replica, stays.decision), (home, Decision::Sticky));
    held.push(stays);
    held.into_iter().for_each(|ticket| box_.complete(ticket));
}

#[test]
fn the_threshold_is_a_quarter_of_max_num_seqs_from_config_engine_or_assumption() {
    let threshold = |policy, reported: Option<u32>| {
        let mut box_ = Rig::new(1, policy);
        if let Some(reported) = reported {
            box_.balancer.set_max_num_seqs(id(0), reported);
        }
        let replica = box_.balancer.snapshot(SECOND).replicas[0].clone();
        (replica.spill_threshold, replica.max_num_seqs_source)
    };
    let configured = Policy { max_num_seqs: Some(64), ..policy() };
    let unknown = Policy { max_num_seqs: None, ..policy() };
    assert_eq!(threshold(configured, Some(256)), (16, MaxNumSeqsSource::Configured));
    assert_eq!(threshold(unknown, Some(256)), (64, MaxNumSeqsSource::Engine));
    assert_eq!(threshold(unknown, None), (8, MaxNumSeqsSource::Assumed));
    assert_eq!(threshold(Policy { max_num_seqs: Some(2), ..policy() }, None).0, 1);
}

#[test]
fn requests_that_came_past_kvpin_count_as_load_while_the_scrape_is_fresh() {
    let mut box_ = Rig::new(2, policy());
    box_.balancer.scrape_begins(id(0));
    box_.balancer.scraped(id(0), Scrape { at: box_.now, running: 5, waiting: 1, ..Scrape::default() });
    for n in 0..4 {
        assert_eq!(box_.turn(n).replica, id(1), "conversation {n}");
    }
    box_.now += SCRAPE_AGE_MAX + SECOND;
    assert_eq!(box_.turn(9).replica, id(0), "an old scrape says nothing");
}

#[test]
fn kvpins_own_turns_in_a_scrape_are_not_counted_twice() {
    let mut box_ = Rig::new(2, policy());
    let first = box_.arrive(0);
    let busy = first.replica;
    box_.balancer.scrape_begins(busy);
    box_.balancer.scraped(busy, Scrape { at: box_.now, running: 1, ..Scrape::default() });
    let load = box_.balancer.replicas.rows()[busy.index()].pressure(nanos(box_.now));
    assert_eq!(load, 1);
    box_.complete(first);
}

#[test]
fn a_conversation_whose_home_is_down_gets_a_new_one_and_keeps_it() {
    let mut box_ = Rig::new(2, policy());
    let home = box_.turn(0).replica;
    box_.balancer.set_health(home, Health::Down(DownReason::ConnectRefused), box_.now);
    let moved = box_.turn(0);
    assert_eq!(moved.decision, Decision::Placed { reason: Placement::HomeDown });
    box_.balancer.set_health(home, Health::Up, box_.now);
    let stays = box_.turn(0);
    assert_eq!((stays.replica, stays.decision), (moved.replica, Decision::Sticky));
}

#[test]
fn a_server_that_is_down_takes_all_its_ranks_with_it() {
    let mut box_ = Rig::new(1, policy());
    let rank = |rank| ReplicaSpec { name: format!("ranked/{rank}"), rank: Some(rank), ..spec(1) };
    box_.balancer.reconfigure(policy(), vec![spec(0), rank(0), rank(1)], box_.now);
    assert!(box_.balancer.server_down(spec(1).address, DownReason::ConnectRefused, box_.now));
    assert!(!box_.balancer.server_down(spec(1).address, DownReason::ConnectRefused, box_.now));
    for n in 0..3 {
        assert_eq!(box_.turn(n).replica, id(0));
    }
}

#[test]
fn a_turn_that_was_never_served_leaves_no_pin_and_moves_none() {
    let mut box_ = Rig::new(2, policy());
    let ticket = box_.arrive(0);
    box_.balancer.finish(ticket, Outcome::Abandoned, box_.now);
    assert_eq!(box_.balancer.snapshot(box_.now).conversations, 0);

    let home = box_.turn(1).replica;
    box_.balancer.set_health(home, Health::Down(DownReason::ConnectRefused), box_.now);
    let ticket = box_.arrive(1);
    assert_ne!(ticket.replica, home);
    box_.balancer.finish(ticket, Outcome::Failed, box_.now);
    box_.balancer.set_health(home, Health::Up, box_.now);
    let back = box_.turn(1);
    assert_eq!((back.replica, back.decision), (home, Decision::Sticky));
}

#[test]
fn a_failed_replica_is_not_tried_again_for_that_turn() {
    let mut box_ = Rig::new(2, policy());
    let home = box_.turn(0).replica;
    let tried = [home];
    let ticket = box_.try_arrive(&Turn { tried: &tried, ..turn(0) }).expect("another replica");
    assert_eq!(ticket.decision, Decision::Placed { reason: Placement::HomeFailed });
    box_.complete(ticket);
    let both = [id(0), id(1)];
    assert_eq!(box_.try_arrive(&Turn { tried: &both, ..turn(0) }).err(), Some(Refusal::EveryReplicaFailed));
}

#[test]
fn nothing_is_given_when_every_replica_is_down() {
    let mut box_ = Rig::new(2, policy());
    for n in 0..2 {
        box_.balancer.set_health(id(n), Health::Down(DownReason::ConnectRefused), box_.now);
    }
    assert_eq!(box_.try_arrive(&turn(0)).err(), Some(Refusal::NoReplicaUp));
    assert_eq!(box_.balancer.snapshot(box_.now).refused[0], (Refusal::NoReplicaUp, 1));
    assert!(!box_.balancer.is_ready());
}

#[test]
fn a_client_pin_goes_where_it_says_and_touches_no_pin() {
    let mut box_ = Rig::new(3, policy());
    let home = box_.turn(0).replica;
    let other = if home == id(2) { id(1) } else { id(2) };
    let ticket = box_.try_arrive(&Turn { client_pin: Some(other), ..turn(0) }).expect("it is up");
    assert_eq!((ticket.replica, ticket.decision), (other, Decision::ClientPinned));
    box_.complete(ticket);
    assert_eq!(box_.turn(0).replica, home);
    box_.balancer.set_health(other, Health::Down(DownReason::ProbeFailed), box_.now);
    let refused = box_.try_arrive(&Turn { client_pin: Some(other), ..turn(0) });
    assert_eq!(refused.err(), Some(Refusal::ClientPinDown));
}

#[test]
fn side_calls_go_to_the_idlest_replica_and_make_no_pin() {
    let mut box_ = Rig::new(2, policy());
    let busy = box_.arrive(0);
    let side = box_.try_arrive(&Turn { kind: TurnKind::Side, ..turn(7) }).expect("a replica");
    assert_eq!(side.decision, Decision::Side);
    assert_ne!(side.replica, busy.replica);
    box_.complete(side);
    assert_eq!(box_.balancer.snapshot(box_.now).conversations, 1);
    box_.complete(busy);
}

#[test]
fn without_affinity_turns_follow_load_and_rotate_among_equals() {
    let mut box_ = Rig::new(4, Policy { mode: Mode::LeastLoaded, ..policy() });
    let mut replicas: Vec<_> = (0..4)
        .map(|_| box_.turn(0))
        .map(|done| {
            assert_eq!(done.decision, Decision::Unpinned { reason: Unpinned::AffinityOff });
            done.replica
        })
        .collect();
    replicas.sort();
    assert_eq!(replicas, (0..4).map(id).collect::<Vec<_>>());
}

#[test]
fn a_turn_whose_rank_header_is_ignored_is_not_pinned_to_a_rank() {
    let mut box_ = Rig::new(1, policy());
    let mut ranked = spec(0);
    ranked.rank = Some(0);
    box_.balancer.reconfigure(policy(), vec![ranked], box_.now);
    let ticket = box_.try_arrive(&Turn { ranks: Ranks::Ignored, ..turn(0) }).expect("a replica");
    assert_eq!(ticket.decision, Decision::Unpinned { reason: Unpinned::RankIgnored });
    box_.complete(ticket);
    assert_eq!(box_.balancer.snapshot(box_.now).conversations, 0);
}

#[test]
fn idle_conversations_are_no_load_and_are_forgotten_at_their_age() {
    let bounds = Bounds { entries_max: 100, idle_max: Duration::from_secs(600) };
    let mut box_ = Rig::new(2, Policy { bounds, ..policy() });
    let home = box_.turn(0).replica;
    assert_eq!(box_.balancer.memory.pins.held(home), Held { active: 1, ..Held::default() });
    box_.now += ACTIVE_WINDOW + SECOND;
    let other = box_.turn(1).replica;
    let held = box_.balancer.memory.pins.held(home);
    assert_eq!(held.idle, 1);
    assert_eq!(held.active, u32::from(other == home));
    box_.now += Duration::from_secs(700);
    assert_eq!(box_.turn(0).decision, Decision::Placed { reason: Placement::New });
}

#[test]
fn the_table_is_bounded_and_the_oldest_goes_first() {
    let bounds = Bounds { entries_max: 10, idle_max: Duration::from_secs(3600) };
    let mut box_ = Rig::new(2, Policy { bounds, ..policy() });
    for n in 0..11 {
        box_.turn(n);
        box_.now += SECOND;
    }
    assert_eq!(box_.balancer.snapshot(box_.now).conversations, 10);
    assert_eq!(box_.turn(10).decision, Decision::Sticky);
    assert_eq!(box_.turn(0).decision, Decision::Placed { reason: Placement::New });
}

#[test]
fn a_reload_keeps_what_stays_and_a_removed_replica_finishes_what_it_holds() {
    let mut box_ = Rig::new(3, policy());
    let homes: Vec<_> = (0..3).map(|n| box_.turn(n).replica).collect();
    let gone = homes[0];
    let running = box_.arrive(0);
    let stays: Vec<_> = (0..3).filter(|n| id(*n) != gone).map(spec).collect();
    box_.balancer.reconfigure(policy(), stays.clone(), box_.now);
    box_.balancer.check_invariants();
    assert_eq!(box_.turn(1).decision, Decision::Sticky);
    assert_eq!(box_.turn(0).decision, Decision::Placed { reason: Placement::HomeRemoved });
    let retired = box_.balancer.snapshot(box_.now).replicas.into_iter().find(|replica| replica.id == gone);
    assert_eq!(retired.map(|replica| (replica.membership, replica.in_flight)), Some((Membership::Retired, 1)));
    box_.complete(running);
    let mut all = stays;
    all.push(spec(9));
    box_.balancer.reconfigure(policy(), all, box_.now);
    assert!(box_.balancer.replica_named("r9").is_some());
    assert_eq!(box_.turn(2).replica, homes[2]);
}

#[test]
fn a_replica_that_comes_back_finds_its_conversations() {
    let mut box_ = Rig::new(2, policy());
    let home = box_.turn(0).replica;
    let without: Vec<_> = (0..2).filter(|n| id(*n) != home).map(spec).collect();
    box_.balancer.reconfigure(policy(), without, box_.now);
    box_.balancer.reconfigure(policy(), (0..2).map(spec).collect(), box_.now);
    let back = box_.turn(0);
    assert_eq!((back.replica, back.decision), (home, Decision::Sticky));
}

#[test]
fn a_pin_never_falls_back_to_a_replica_that_a_reload_has_dropped() {
    let mut box_ = Rig::new(2, policy());
    let away = (0..2).find(|n| box_.turn(*n).replica == id(1)).expect("two conversations on two replicas");
    box_.balancer.set_health(id(1), Health::Down(DownReason::ConnectRefused), box_.now);
    let moved = box_.arrive(away);
    assert_eq!(moved.replica, id(0));
    box_.balancer.reconfigure(policy(), vec![spec(0)], box_.now);
    box_.balancer.reconfigure(policy(), vec![spec(0), spec(7)], box_.now);
    box_.balancer.finish(moved, Outcome::Abandoned, box_.now);
    box_.balancer.check_invariants();
    let next = box_.turn(away);
    assert_eq!(next.decision, Decision::Placed { reason: Placement::HomeRemoved });
}

#[test]
fn a_client_pin_to_a_rank_that_the_endpoint_ignores_counts_as_unpinned() {
    let mut box_ = Rig::new(1, policy());
    let ranked = ReplicaSpec { rank: Some(0), ..spec(0) };
    box_.balancer.reconfigure(policy(), vec![ranked], box_.now);
    let turn = Turn { client_pin: Some(id(0)), ranks: Ranks::Ignored, ..turn(0) };
    let ticket = box_.try_arrive(&turn).expect("a replica");
    assert_eq!(ticket.decision, Decision::Unpinned { reason: Unpinned::RankIgnored });
    box_.complete(ticket);
}

/// A balancer, its clock and the tickets that are out, so that the parts can be checked against each other.
struct Rig {
    balancer: Balancer,
    now: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Done {
    replica: ReplicaId,
    decision: Decision,
    conversation: Option<ConversationKey>,
    recognised: Option<Recognised>,
}

impl Rig {
    fn new(replicas: usize, policy: Policy) -> Self {
        let now = Duration::from_secs(1000);
        Rig { balancer: Balancer::new(policy, (0..replicas).map(spec).collect(), now), now }
    }

    fn try_arrive(&mut self, turn: &Turn<'_>) -> Result<Ticket, Refusal> {
        let foreseen = self.balancer.foresee(turn, self.now);
        let result = self.balancer.arrive(turn, self.now);
        assert_eq!(result.as_ref().map(Foreseen::of).map_err(|refusal| *refusal), foreseen, "foreseen");
        self.balancer.check_invariants();
        result
    }

    fn arrive(&mut self, conversation: u64) -> Ticket {
        self.try_arrive(&turn(conversation)).expect("a replica is up")
    }

    fn complete(&mut self, mut ticket: Ticket) {
        self.balancer.served(&mut ticket, self.now);
        self.balancer.check_invariants();
        self.end(ticket, Outcome::Completed);
    }

    fn end(&mut self, ticket: Ticket, outcome: Outcome) {
        self.balancer.finish(ticket, outcome, self.now);
        self.balancer.check_invariants();
    }

    fn turn(&mut self, conversation: u64) -> Done {
        self.serve(&turn(conversation))
    }

    /// A whole turn that is served.
    fn serve(&mut self, turn: &Turn<'_>) -> Done {
        let ticket = self.try_arrive(turn).expect("a replica is up");
        let Ticket { replica, decision, conversation, recognised, .. } = ticket;
        self.complete(ticket);
        Done { replica, decision, conversation, recognised }
    }
}

impl Foreseen {
    fn of(ticket: &Ticket) -> Foreseen {
        let &Ticket { replica, decision, conversation, recognised, .. } = ticket;
        Foreseen { replica, decision, conversation, recognised }
    }
}

fn id(index: usize) -> ReplicaId {
    ReplicaId::from_index(index).expect("a small index")
}

fn spec(index: usize) -> ReplicaSpec {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 8000 + index as u16));
    ReplicaSpec {
        name: format!("r{index}"),
        address,
        authority: address.to_string(),
        is_tls: false,
        rank: None,
        drain: false,
    }
}

fn policy() -> Policy {
    Policy {
        mode: Mode::Affinity,
        spill_threshold: SpillThreshold::Auto,
        max_num_seqs: Some(32),
        admission: Admission::OFF,
        bounds: Bounds { entries_max: 1000, idle_max: Duration::from_secs(3600) },
        health: HealthPolicy::default(),
    }
}

fn turn(conversation: u64) -> Turn<'static> {
    Turn::of(Some(ConversationKey(conversation)))
}

/// The history of a turn, a word a message; those of the assistant begin with `a` or `b`. Every message has so many bytes.
fn history(words: &str, bytes_each: u32) -> Chain {
    let mut key = 0;
    let links = words.split(' ').zip(1..).map(|(word, count)| {
        // Any injective fold will do; this one is also what makes keys spread.
        key = word.bytes().fold(key, |key, byte| histories_key(key, u64::from(byte)));
        Link { key: ChainKey(key), text_bytes: count * bytes_each }
    });
    let links = links.collect();
    let answers = words.split(' ').enumerate().filter(|(_, word)| word.starts_with(['a', 'b']));
    let last_answer = answers.map(|(index, _)| index).last();
    Chain { links, is_continued: last_answer.is_some(), last_answer }
}

fn histories_key(before: u64, byte: u64) -> u64 {
    super::histories::fork_of(ConversationKey(before), ChainKey(byte)).0
}

/// A turn without an id.
fn unnamed(chain: &Chain) -> Turn<'_> {
    Turn { conversation: None, chain: Some(chain), ..turn(0) }
}
