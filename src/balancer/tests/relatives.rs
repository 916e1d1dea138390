//! Subagents and child sessions, and the list of conversations.

use super::*;

#[test]
fn parallel_subagents_spread_out_and_their_parent_stays() {
    let mut box_ = Rig::new(4, policy());
    let parent = box_.turn(0);
    let children: Vec<_> = (1..=7).map(|n| box_.try_arrive(&child(n)).unwrap()).collect();
    let mut counts = BTreeMap::<ReplicaId, u32>::new();
    for ticket in &children {
        assert_eq!(ticket.decision, Decision::Placed { reason: Placement::New });
        *counts.entry(ticket.replica).or_default() += 1;
    }
    assert!(counts.len() == 4 && counts.values().all(|count| *count <= 2), "{counts:?}");
    assert_eq!(box_.turn(0), Done { decision: Decision::Sticky, ..parent });
    let relatives = |box_: &Rig| -> u32 {
        box_.balancer.snapshot(box_.now).replicas.iter().map(|replica| replica.held.relatives).sum()
    };
    assert_eq!(relatives(&box_), 7);
    children.into_iter().for_each(|ticket| box_.complete(ticket));
    // At rest they are no relatives that hold anything.
    box_.now += ACTIVE_WINDOW + SECOND;
    box_.turn(0);
    assert_eq!(relatives(&box_), 0);
}

#[test]
fn a_pin_keeps_its_parent_over_moves_and_later_turns() {
    let mut box_ = Rig::new(2, policy());
    let home = box_.serve(&child(1)).replica;
    box_.serve(&Turn { parent: Some(ConversationKey(8)), ..turn(1) });
    box_.balancer.set_health(home, Health::Down(DownReason::ConnectRefused), box_.now);
    box_.turn(1);
    let newest = box_.balancer.conversations(1, box_.now);
    assert_eq!((newest[0].key, newest[0].parent), (ConversationKey(1), Some(ConversationKey(0))));
    assert_ne!(newest[0].replica, home);
}

#[test]
fn no_conversation_is_its_own_parent() {
    let mut box_ = Rig::new(2, policy());
    box_.serve(&Turn { parent: Some(ConversationKey(1)), ..turn(1) });
    assert_eq!(box_.balancer.conversations(1, box_.now)[0].parent, None);
}

#[test]
fn conversations_are_listed_from_the_newest_and_so_many_at_most() {
    let mut box_ = Rig::new(2, policy());
    for n in 0..5 {
        box_.turn(n);
        box_.now += SECOND;
    }
    // Two lists stand behind this one.
    box_.now += ACTIVE_WINDOW;
    box_.turn(2);
    let ticket = box_.arrive(7);
    box_.now += SECOND;
    let listed = box_.balancer.conversations(3, box_.now);
    let facts: Vec<_> = listed.iter().map(|one| (one.key.0, one.in_flight, one.is_proven)).collect();
    assert_eq!(facts, [(7, 1, false), (2, 0, true), (4, 0, true)]);
    assert_eq!(listed[0].idle, SECOND);
    assert_eq!((listed[0].replica, &listed[0].spec), (ticket.replica, box_.balancer.spec(&ticket)));
    assert_eq!(box_.balancer.conversations(100, box_.now).len(), 6);
    box_.complete(ticket);
}

fn child(conversation: u64) -> Turn<'static> {
    Turn { parent: Some(ConversationKey(0)), ..turn(conversation) }
}
