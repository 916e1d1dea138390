//! Conversations without ids, and forks.

use super::*;

const STICKY: Decision = Decision::Sticky;
const NEW: Decision = Decision::Placed { reason: Placement::New };
const FORKED: Decision = Decision::Placed { reason: Placement::Forked };

#[test]
fn turns_without_an_id_are_recognised_by_their_history() {
    let mut box_ = Rig::new(4, policy());
    let first = box_.serve(&unnamed(&history("u1", 100)));
    assert_eq!((first.decision, first.recognised), (NEW, Some(Recognised::Fingerprint)));
    for words in ["u1 a1 u2", "u1 a1 u2 a2 u3", "u1 a1 u2 a2 u3 a3 u4"] {
        let next = box_.serve(&unnamed(&history(words, 100)));
        assert_eq!(next, Done { decision: STICKY, ..first }, "{words}");
    }
    let other = box_.serve(&unnamed(&history("u9", 100)));
    assert_ne!((other.replica, other.conversation), (first.replica, first.conversation));
}

#[test]
fn a_turn_with_neither_id_nor_history_is_unpinned() {
    let mut box_ = Rig::new(2, policy());
    for chain in [None, Some(&Chain::default())] {
        let done = box_.serve(&Turn { conversation: None, chain, ..turn(0) });
        assert_eq!(done.decision, Decision::Unpinned { reason: Unpinned::NoSession });
        assert_eq!((done.conversation, done.recognised), (None, None));
    }
    assert_eq!(box_.balancer.snapshot(box_.now).histories, 0);
}

#[test]
fn a_repeated_turn_is_the_same_conversation() {
    let mut box_ = Rig::new(4, policy());
    let first = box_.serve(&unnamed(&history("u1 a1 u2", 100)));
    assert_eq!(box_.serve(&unnamed(&history("u1 a1 u2", 100))), Done { decision: STICKY, ..first });
}

#[test]
fn a_turn_that_was_not_served_registers_nothing() {
    let mut box_ = Rig::new(4, policy());
    box_.serve(&unnamed(&history("u1", 100)));
    let registered = |box_: &Rig| box_.balancer.snapshot(box_.now).histories;
    for outcome in [Outcome::Failed, Outcome::Abandoned, Outcome::Rejected, Outcome::MovedOn] {
        let ticket = box_.try_arrive(&unnamed(&history("u1 a1 u2", 100))).unwrap();
        box_.end(ticket, outcome);
        assert_eq!(registered(&box_), 1, "{outcome:?}");
    }
    // So another turn may still be the next one of its conversation.
    assert_eq!(box_.serve(&unnamed(&history("u1 a1 v2", 100))).decision, STICKY);
    // Its end and its answer.
    assert_eq!(registered(&box_), 3);
}

#[test]
fn a_long_history_that_goes_on_twice_is_forked_beside_its_origin() {
    let mut box_ = Rig::new(4, policy());
    let of = |box_: &mut Rig, words| box_.serve(&unnamed(&history(words, FORK_TEXT_BYTES_MIN / 2)));
    let origin = of(&mut box_, "u1");
    of(&mut box_, "u1 a1 u2");
    of(&mut box_, "u1 a1 u2 a2 u3");
    let fork = of(&mut box_, "u1 a1 u2 b2 v3");
    assert_eq!((fork.decision, fork.replica), (FORKED, origin.replica));
    assert_ne!(fork.conversation, origin.conversation);
    // Both go on, each as itself.
    assert_eq!(of(&mut box_, "u1 a1 u2 a2 u3 a3 u4"), Done { decision: STICKY, ..origin });
    assert_eq!(of(&mut box_, "u1 a1 u2 b2 v3 b3 v4"), Done { decision: STICKY, ..fork });
    let forks = box_.balancer.conversations(1, box_.now);
    assert_eq!((Some(forks[0].key), forks[0].parent), (fork.conversation, origin.conversation));
    assert_eq!(box_.balancer.snapshot(box_.now).replicas[origin.replica.index()].counters.forked, 1);
}

#[test]
fn a_short_history_that_goes_on_twice_is_placed_by_load() {
    let mut box_ = Rig::new(2, policy());
    let of = |box_: &mut Rig, words| box_.serve(&unnamed(&history(words, FORK_TEXT_BYTES_MIN / 3)));
    let origin = of(&mut box_, "u1 a1 u2");
    of(&mut box_, "u1 a1 u2 a2 u3");
    let fork = of(&mut box_, "u1 a1 u2 b2 v3");
    assert_eq!(fork.decision, NEW);
    assert_ne!((fork.replica, fork.conversation), (origin.replica, origin.conversation));
    let newest = box_.balancer.conversations(1, box_.now);
    assert_eq!((Some(newest[0].key), newest[0].parent), (fork.conversation, origin.conversation));
}

#[test]
fn copies_of_one_fork_are_one_conversation() {
    let mut box_ = Rig::new(4, policy());
    let origin = box_.serve(&unnamed(&history("u1", 100)));
    box_.serve(&unnamed(&history("u1 a1 u2", 100)));
    let fork = history("u1 b1 v2", 100);
    let copies: Vec<_> = (0..3).map(|_| box_.try_arrive(&unnamed(&fork)).unwrap()).collect();
    assert_ne!(copies[0].conversation, origin.conversation);
    assert!(copies.iter().all(|copy| copy.conversation == copies[0].conversation));
    let conversation = copies[0].conversation;
    copies.into_iter().for_each(|copy| box_.complete(copy));
    assert_eq!(box_.serve(&unnamed(&fork)).conversation, conversation);
}

#[test]
fn conversations_that_begin_alike_and_go_on_at_once_end_as_one_each() {
    let mut box_ = Rig::new(4, policy());
    let begin: Vec<_> = (0..10).map(|_| box_.try_arrive(&unnamed(&history("u", 10))).unwrap()).collect();
    begin.into_iter().for_each(|ticket| box_.complete(ticket));
    let second = |n| history(&format!("u a{n} u{n}"), 10);
    let overlapping: Vec<_> = (0..10).map(|n| box_.try_arrive(&unnamed(&second(n))).unwrap()).collect();
    overlapping.into_iter().for_each(|ticket| box_.complete(ticket));
    let third = |n| history(&format!("u a{n} u{n} a v"), 10);
    let conversations: std::collections::BTreeSet<_> = (0..10)
        .map(|n| box_.serve(&unnamed(&third(n))))
        .inspect(|done| assert_eq!(done.decision, STICKY))
        .map(|done| done.conversation)
        .collect();
    assert_eq!((conversations.len(), box_.balancer.snapshot(box_.now).conversations), (10, 10));
}

#[test]
fn a_copy_of_a_turn_in_flight_is_no_fork() {
    let mut box_ = Rig::new(4, policy());
    let first = box_.serve(&unnamed(&history("u1", 10)));
    let second = history("u1 a1 u2", 10);
    let copies: Vec<_> = (0..3).map(|_| box_.try_arrive(&unnamed(&second)).unwrap()).collect();
    assert!(copies.iter().all(|copy| copy.conversation == first.conversation));
    let ends = [Outcome::Rejected, Outcome::Completed, Outcome::Failed];
    for (mut copy, outcome) in copies.into_iter().zip(ends) {
        if outcome == Outcome::Completed {
            box_.balancer.served(&mut copy, box_.now);
        }
        box_.end(copy, outcome);
    }
    // The one that was served counts, whatever became of the others.
    assert_ne!(box_.serve(&unnamed(&history("u1 b1 v2", 10))).conversation, first.conversation);
    assert_eq!(box_.serve(&unnamed(&history("u1 a1 u2 a2 u3", 10))).conversation, first.conversation);
}

#[test]
fn a_copy_that_is_served_late_does_not_undo_what_came_after_it() {
    let mut box_ = Rig::new(4, policy());
    let chain = history("u1", 10);
    let late = box_.try_arrive(&unnamed(&chain)).unwrap();
    let first = box_.serve(&unnamed(&chain));
    box_.serve(&unnamed(&history("u1 a1 u2", 10)));
    box_.complete(late);
    assert_ne!(box_.serve(&unnamed(&history("u1 b1 v2", 10))).conversation, first.conversation);
}

#[test]
fn a_history_that_comes_after_the_decision_is_learned_with_the_turn() {
    let mut box_ = Rig::new(4, policy());
    for n in 90..93 {
        box_.turn(n);
    }
    let mut ticket = box_.arrive(1);
    let decided = Foreseen::of(&ticket);
    let late = history("u1 a1 u2", 100);
    let aliases = [ConversationKey(7)];
    box_.balancer.learn_more(&mut ticket, &Turn { chain: Some(&late), aliases: &aliases, ..turn(1) }, box_.now);
    assert_eq!(Foreseen::of(&ticket), decided);
    assert_eq!(box_.balancer.snapshot(box_.now).histories, 0);
    box_.complete(ticket);
    let snapshot = box_.balancer.snapshot(box_.now);
    assert_eq!((snapshot.histories, snapshot.conversation_aliases), (1, 1));
    assert_eq!(box_.turn(7).conversation, decided.conversation);
    let fork = box_.serve(&Turn { chain: Some(&history("u1 a1 u2 a2 u3", 100)), ..turn(2) });
    assert_eq!((fork.decision, fork.replica), (FORKED, decided.replica));
}

#[test]
fn what_comes_late_takes_the_place_of_what_came_with_the_turn() {
    let mut box_ = Rig::new(4, policy());
    let first = box_.serve(&unnamed(&history("u1", 100)));
    let mut ticket = box_.try_arrive(&unnamed(&history("u1 a1 u2", 100))).unwrap();
    box_.balancer.learn_more(&mut ticket, &unnamed(&history("u1 b1 v2", 100)), box_.now);
    box_.complete(ticket);
    assert_eq!(box_.serve(&unnamed(&history("u1 b1 v2 b2 v3", 100))).conversation, first.conversation);
    assert_ne!(box_.serve(&unnamed(&history("u1 a1 u2", 100))).conversation, first.conversation);
}

#[test]
fn a_turn_that_is_in_no_conversation_or_was_served_learns_nothing_late() {
    let mut box_ = Rig::new(2, policy());
    let chain = history("u1", 100);
    let late = Turn { chain: Some(&chain), aliases: &[ConversationKey(7)], ..turn(1) };
    let pinned = Turn { client_pin: Some(id(1)), ..turn(1) };
    for early in [Turn { conversation: None, ..turn(0) }, Turn { kind: TurnKind::Side, ..turn(1) }, pinned] {
        let mut ticket = box_.try_arrive(&early).unwrap();
        box_.balancer.learn_more(&mut ticket, &late, box_.now);
        box_.complete(ticket);
    }
    let mut ticket = box_.arrive(1);
    box_.balancer.served(&mut ticket, box_.now);
    box_.balancer.learn_more(&mut ticket, &late, box_.now);
    box_.complete(ticket);
    let snapshot = box_.balancer.snapshot(box_.now);
    assert_eq!((snapshot.histories, snapshot.conversation_aliases), (0, 0));
}

#[test]
fn a_turn_that_is_asked_again_after_its_conversation_went_on_is_a_fork_of_it() {
    let mut box_ = Rig::new(2, policy());
    let origin = box_.serve(&unnamed(&history("u1", 100)));
    box_.serve(&unnamed(&history("u1 a1 u2", 100)));
    let again = box_.serve(&unnamed(&history("u1", 100)));
    assert_ne!(again.conversation, origin.conversation);
    assert_eq!(box_.serve(&unnamed(&history("u1 b1 v2", 100))).conversation, again.conversation);
    assert_eq!(box_.serve(&unnamed(&history("u1 a1 u2 a2 u3", 100))).conversation, origin.conversation);
}

#[test]
fn a_burst_of_equal_requests_shares_a_pin_and_spreads_over_the_threshold() {
    let mut box_ = Rig::new(4, Policy { spill_threshold: SpillThreshold::Fixed(4), ..policy() });
    let same = history("u1", 100);
    let burst: Vec<_> = (0..16).map(|_| box_.try_arrive(&unnamed(&same)).unwrap()).collect();
    assert!(burst.iter().all(|ticket| ticket.conversation == burst[0].conversation));
    let snapshot = box_.balancer.snapshot(box_.now);
    assert_eq!(snapshot.conversations, 1);
    // A replica takes over only while it has half of home's requests, so home ends above its threshold.
    let in_flight: Vec<_> = snapshot.replicas.iter().map(|replica| replica.in_flight).collect();
    assert!(in_flight.iter().all(|turns| *turns <= 7 && *turns >= 2), "{in_flight:?}");
    burst.into_iter().for_each(|ticket| box_.complete(ticket));
}

#[test]
fn a_named_fork_goes_where_its_origin_is() {
    let mut box_ = Rig::new(4, policy());
    for n in 90..93 {
        box_.turn(n);
    }
    let origin = box_.serve(&Turn { chain: Some(&history("u1", 100)), ..turn(1) });
    // Its later turns come without a history, and load alone would choose another replica.
    box_.turn(1);
    let fork = box_.serve(&Turn { chain: Some(&history("u1 a1 u2 a2 u3", 100)), ..turn(2) });
    assert_eq!((fork.decision, fork.replica), (FORKED, origin.replica));
    assert_eq!((fork.conversation, fork.recognised), (Some(ConversationKey(2)), Some(Recognised::Explicit)));
    assert_eq!(box_.turn(1), Done { decision: STICKY, ..origin });
    assert_eq!(box_.turn(2), Done { decision: STICKY, ..fork });
    let newest = box_.balancer.conversations(1, box_.now);
    assert_eq!((newest[0].key, newest[0].parent), (ConversationKey(2), Some(ConversationKey(1))));
}

#[test]
fn sessions_that_begin_alike_are_no_forks() {
    let mut box_ = Rig::new(4, policy());
    let same = history("u1", 100_000);
    let replicas: std::collections::BTreeSet<_> = (0..4)
        .map(|n| box_.serve(&Turn { chain: Some(&same), ..turn(n) }))
        .inspect(|done| assert_eq!(done.decision, NEW))
        .map(|done| done.replica)
        .collect();
    assert_eq!(replicas.len(), 4);
}

#[test]
fn a_fork_goes_elsewhere_when_its_origins_replica_cannot_take_it() {
    let fork_after = |disturb: fn(&mut Rig, ReplicaId) -> Vec<Ticket>, ranks, tries_home: bool| {
        let mut box_ = Rig::new(2, Policy { spill_threshold: SpillThreshold::Fixed(2), ..policy() });
        let home = box_.serve(&Turn { chain: Some(&history("u1", 100)), ..turn(1) }).replica;
        let held = disturb(&mut box_, home);
        let tried = if tries_home { vec![home] } else { vec![] };
        let chain = history("u1 a1 u2", 100);
        let ticket = box_.try_arrive(&Turn { chain: Some(&chain), ranks, tried: &tried, ..turn(2) }).unwrap();
        let found = (ticket.decision, ticket.replica == home);
        box_.complete(ticket);
        held.into_iter().for_each(|ticket| box_.complete(ticket));
        found
    };
    let nothing = |_: &mut Rig, _| Vec::new();
    assert_eq!(fork_after(nothing, Ranks::Obeyed, false), (FORKED, true));
    assert_eq!(fork_after(nothing, Ranks::Obeyed, true), (NEW, false));
    let down = |box_: &mut Rig, home| {
        box_.balancer.set_health(home, Health::Down(DownReason::ConnectRefused), box_.now);
        Vec::new()
    };
    assert_eq!(fork_after(down, Ranks::Obeyed, false), (NEW, false));
    let busy = |box_: &mut Rig, home| {
        let pinned = Turn { client_pin: Some(home), ..turn(7) };
        (0..2).map(|_| box_.try_arrive(&pinned).unwrap()).collect()
    };
    assert_eq!(fork_after(busy, Ranks::Obeyed, false), (NEW, false));
}

#[test]
fn a_fork_whose_origin_is_on_a_rank_it_cannot_name_is_not_bound_to_it() {
    let mut box_ = Rig::new(1, policy());
    box_.balancer.reconfigure(policy(), vec![ReplicaSpec { rank: Some(0), ..spec(0) }], box_.now);
    box_.serve(&Turn { chain: Some(&history("u1", 100)), ..turn(1) });
    let chain = history("u1 a1 u2", 100);
    let fork = box_.serve(&Turn { chain: Some(&chain), ranks: Ranks::Ignored, ..turn(2) });
    assert_eq!(fork.decision, Decision::Unpinned { reason: Unpinned::RankIgnored });
    assert_eq!(box_.balancer.snapshot(box_.now).histories, 1);
}

#[test]
fn a_named_fork_does_not_end_what_it_was_forked_from() {
    let mut box_ = Rig::new(4, policy());
    let origin = box_.serve(&unnamed(&history("u1", 100)));
    let fork = box_.serve(&Turn { chain: Some(&history("u1 b1 v2", 100)), ..turn(1) });
    assert_eq!((fork.decision, fork.replica), (FORKED, origin.replica));
    assert_eq!(box_.serve(&unnamed(&history("u1 a1 u2", 100))), Done { decision: STICKY, ..origin });
}

#[test]
fn a_client_without_an_id_is_never_taken_for_a_conversation_with_one() {
    let mut box_ = Rig::new(4, policy());
    let named = box_.serve(&Turn { chain: Some(&history("u1", FORK_TEXT_BYTES_MIN)), ..turn(1) });
    let of = |box_: &mut Rig, words| box_.serve(&unnamed(&history(words, FORK_TEXT_BYTES_MIN)));
    let own = of(&mut box_, "u1");
    assert_eq!((own.decision, own.recognised), (NEW, Some(Recognised::Fingerprint)));
    assert_ne!((own.conversation, own.replica), (named.conversation, named.replica));
    // Others with ids begin alike, and each goes on as itself.
    let other = box_.serve(&Turn { chain: Some(&history("u1", FORK_TEXT_BYTES_MIN)), ..turn(2) });
    assert_eq!(of(&mut box_, "u1 a1 u2"), Done { decision: STICKY, ..own });
    assert_eq!(of(&mut box_, "u1 a1 u2 a2 u3"), Done { decision: STICKY, ..own });
    assert_eq!(box_.turn(1), Done { decision: STICKY, ..named });
    assert_eq!(box_.turn(2), Done { decision: STICKY, ..other });
}

#[test]
fn a_client_that_drops_its_id_goes_on_beside_what_it_was() {
    let mut box_ = Rig::new(4, policy());
    let named = box_.serve(&Turn { chain: Some(&history("u1 a1 u2", FORK_TEXT_BYTES_MIN)), ..turn(1) });
    let without = box_.serve(&unnamed(&history("u1 a1 u2 a2 u3", FORK_TEXT_BYTES_MIN)));
    assert_eq!((without.decision, without.replica), (FORKED, named.replica));
    assert_ne!(without.conversation, named.conversation);
    let next = box_.serve(&unnamed(&history("u1 a1 u2 a2 u3 a3 u4", FORK_TEXT_BYTES_MIN)));
    assert_eq!(next, Done { decision: STICKY, ..without });
}

#[test]
fn a_conversation_whose_newest_message_is_worded_anew_in_its_next_turn_is_recognised() {
    let mut box_ = Rig::new(4, policy());
    // A reminder stands in the newest message only.
    let turns = ["u1r", "u1 a1 u2r", "u1 a1 u2 a2 u3r", "u1 a1 u2 a2 u3 a3 u4r", "u1 a1 u2 a2 u3 a3 u4 a4 u5r"];
    let done = turns.map(|words| box_.serve(&unnamed(&history(words, 100))));
    for later in &done[2..] {
        assert_eq!(*later, Done { decision: STICKY, ..done[1] });
    }
    // The first turn has no answer to be found by.
    assert_eq!(box_.balancer.snapshot(box_.now).conversations, 2);
}

#[test]
fn a_turn_that_is_worded_anew_after_calls_of_tools_is_recognised() {
    let mut box_ = Rig::new(4, policy());
    let turns = [
        "u1",
        "u1 a1 t1 t2 t3 r",
        "u1 a1 t1 t2 t3 a2 t4 r",
        "u1 a1 t1 t2 t3 a2 t4 a3 u2",
        "u1 a1 t1 t2 t3 a2 t4 a3 u2 a4 u3",
    ];
    let done = turns.map(|words| box_.serve(&unnamed(&history(words, 100))));
    for (later, words) in done[1..].iter().zip(&turns[1..]) {
        assert_eq!(*later, Done { decision: STICKY, ..done[0] }, "{words}");
    }
}

#[test]
fn an_edited_question_is_a_fork_even_where_its_answer_is_known() {
    let mut box_ = Rig::new(4, policy());
    let of = |box_: &mut Rig, words| box_.serve(&unnamed(&history(words, FORK_TEXT_BYTES_MIN)));
    let origin = of(&mut box_, "u1 a1 u2");
    let edited = of(&mut box_, "u1 a1 v2");
    assert_eq!((edited.decision, edited.replica), (FORKED, origin.replica));
    assert_ne!(edited.conversation, origin.conversation);
    assert_eq!(of(&mut box_, "u1 a1 u2 a2 u3"), Done { decision: STICKY, ..origin });
    assert_eq!(of(&mut box_, "u1 a1 v2 b2 v3"), Done { decision: STICKY, ..edited });
}

#[test]
fn who_leaves_a_conversation_before_its_newest_turn_is_a_fork_however_far_it_goes() {
    let mut box_ = Rig::new(4, policy());
    let of = |box_: &mut Rig, words| box_.serve(&unnamed(&history(words, 100)));
    let origin = of(&mut box_, "u1 a1 u2");
    of(&mut box_, "u1 a1 u2 a2 u3");
    // The answer was passed by the turn that went on from the end behind it.
    let fork = of(&mut box_, "u1 a1 v2 b2 v3 b3 v4");
    assert_ne!(fork.conversation, origin.conversation);
    // So it is by one that went on from the answer itself.
    let mut box_ = Rig::new(4, policy());
    let origin = of(&mut box_, "u1 a1 u2r");
    assert_eq!(of(&mut box_, "u1 a1 u2 a2 u3r").conversation, origin.conversation);
    assert_ne!(of(&mut box_, "u1 a1 v2 b2 v3r").conversation, origin.conversation);
}

#[test]
fn two_questions_without_an_answer_between_them_are_one_conversation() {
    let as_they_were = ["u1 a1 u2", "u1 a1 u2 u3", "u1 a1 u2 u3 a3 u4"];
    let worded_anew = ["u1 a1 u2r", "u1 a1 u2 u3r", "u1 a1 u2 u3 a3 u4r"];
    for turns in [as_they_were, worded_anew] {
        let mut box_ = Rig::new(4, policy());
        let done = turns.map(|words| box_.serve(&unnamed(&history(words, 100))));
        assert!(done[1..].iter().all(|later| *later == Done { decision: STICKY, ..done[0] }), "{done:?}");
    }
}

#[test]
fn conversations_that_merely_begin_alike_spread_out() {
    let mut box_ = Rig::new(2, policy());
    let mut counts = BTreeMap::<ReplicaId, u32>::new();
    for n in 0..12 {
        let first = box_.serve(&unnamed(&history("u", 5000)));
        assert_eq!(first.decision, NEW, "conversation {n}");
        let second = box_.serve(&unnamed(&history(&format!("u a{n} u{n}"), 5000)));
        assert_eq!(second, Done { decision: STICKY, ..first });
        *counts.entry(first.replica).or_default() += 1;
    }
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [6, 6]);
    assert!(box_.balancer.conversations(20, box_.now).iter().all(|one| one.parent.is_none()));
}

#[test]
fn so_many_links_of_a_history_are_looked_up() {
    let mut box_ = Rig::new(4, policy());
    let long = |links: u64| {
        let links: Vec<_> = (1..=links).map(|n| Link { key: ChainKey(n << 8), text_bytes: n as u32 }).collect();
        Chain { links, is_continued: true, last_answer: None }
    };
    let first = box_.serve(&unnamed(&long(10)));
    let lookups = super::super::histories::LOOKUPS_MAX as u64;
    let foresee = |box_: &Rig, links| box_.balancer.foresee(&unnamed(&long(links)), box_.now).unwrap().conversation;
    assert_eq!(foresee(&box_, 9 + lookups), first.conversation);
    assert_ne!(foresee(&box_, 10 + lookups), first.conversation);
}

#[test]
fn side_calls_and_client_pins_register_no_history() {
    let mut box_ = Rig::new(2, policy());
    let chain = history("u1", 100);
    box_.serve(&Turn { kind: TurnKind::Side, ..unnamed(&chain) });
    let pinned = box_.serve(&Turn { client_pin: Some(id(1)), ..unnamed(&chain) });
    assert_eq!((pinned.decision, pinned.recognised), (Decision::ClientPinned, Some(Recognised::Fingerprint)));
    assert!(pinned.conversation.is_some());
    let snapshot = box_.balancer.snapshot(box_.now);
    assert_eq!((snapshot.histories, snapshot.conversations), (0, 0));
}

#[test]
fn a_stateless_turn_is_unpinned_whatever_it_carries() {
    let mut box_ = Rig::new(2, policy());
    box_.turn(1);
    let done = box_.serve(&Turn { kind: TurnKind::Stateless, chain: Some(&history("u1", 100)), ..turn(1) });
    assert_eq!(done.decision, Decision::Unpinned { reason: Unpinned::NoHistory });
    assert_eq!((done.conversation, done.recognised), (None, None));
}

#[test]
fn histories_are_forgotten_with_their_conversation_and_not_before() {
    let bounds = Bounds { entries_max: 100, idle_max: Duration::from_secs(600) };
    let mut box_ = Rig::new(2, Policy { bounds, ..policy() });
    let first = box_.serve(&Turn { chain: Some(&history("u1", 100)), ..turn(1) });
    // The conversation lives on for hours, and its turns come without their histories.
    for _ in 0..20 {
        box_.now += Duration::from_secs(500);
        assert_eq!(box_.turn(1).decision, STICKY);
    }
    let fork = box_.serve(&Turn { chain: Some(&history("u1 a1 u2", 100)), ..turn(2) });
    assert_eq!((fork.decision, fork.replica), (FORKED, first.replica));
    box_.now += Duration::from_secs(700);
    let late = box_.serve(&Turn { chain: Some(&history("u1 a1 u2 a2 u3", 100)), ..turn(3) });
    assert_eq!(late.decision, NEW);
    assert_eq!(box_.balancer.snapshot(box_.now).histories, 1);
}

#[test]
fn the_histories_are_bounded_and_the_oldest_goes_first() {
    let bounds = Bounds { entries_max: 10, idle_max: Duration::from_secs(3600) };
    let mut box_ = Rig::new(2, Policy { bounds, ..policy() });
    for n in 0..30 {
        box_.serve(&unnamed(&history(&format!("u{n}"), 100)));
        box_.now += SECOND;
    }
    assert_eq!(box_.balancer.snapshot(box_.now).histories, 10);
    box_.balancer.reconfigure(
        Policy { bounds: Bounds { entries_max: 3, ..bounds }, ..policy() },
        vec![spec(0)],
        box_.now,
    );
    box_.serve(&unnamed(&history("u29 a29 v", 100)));
    assert_eq!(box_.balancer.snapshot(box_.now).histories, 3);
}

#[test]
fn without_affinity_histories_are_not_looked_at() {
    let mut box_ = Rig::new(2, Policy { mode: Mode::LeastLoaded, ..policy() });
    let done = box_.serve(&unnamed(&history("u1", 100)));
    assert_eq!(done.decision, Decision::Unpinned { reason: Unpinned::AffinityOff });
    assert_eq!((done.conversation, box_.balancer.snapshot(box_.now).histories), (None, 0));
}

#[test]
fn a_forks_key_is_neither_its_origins_nor_that_of_its_history() {
    for n in 0..1000 {
        let (parent, last) = (ConversationKey(n), ChainKey(n));
        let fork = crate::balancer::histories::fork_of(parent, last);
        assert_ne!(fork, parent);
        assert_eq!(fork, crate::balancer::histories::fork_of(parent, last));
    }
}
