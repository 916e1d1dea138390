//! Conversations with more than one id.

use super::*;

/// Ids in the head and in the body of the same requests.
const HEAD: u64 = 1;
const BODY: u64 = 2;
/// An id that many conversations have in common.
const SHARED: u64 = 99;

#[test]
fn every_order_of_header_and_body_is_one_conversation() {
    let both: (u64, &[u64]) = (HEAD, &[BODY]);
    let head: (u64, &[u64]) = (HEAD, &[]);
    let body: (u64, &[u64]) = (BODY, &[]);
    let orders: [&[(u64, &[u64])]; 6] = [
        &[both, body],
        &[body, both],
        &[body, both, head, body],
        &[both, body, head, both],
        &[head, both, body],
        &[body, body, both, both, head, body],
    ];
    for order in orders {
        let mut box_ = Rig::new(4, policy());
        let done: Vec<_> = order.iter().map(|(id, others)| serve(&mut box_, *id, others)).collect();
        assert!(done.iter().all(|turn| turn.conversation == done[0].conversation), "{order:?}: {done:?}");
        assert!(done[1..].iter().all(|turn| turn.decision == Decision::Sticky), "{order:?}: {done:?}");
        assert_eq!(box_.balancer.snapshot(box_.now).conversations, 1, "{order:?}");
    }
}

#[test]
fn an_id_that_leads_elsewhere_is_recognised_as_an_alias() {
    let mut box_ = Rig::new(4, policy());
    assert_eq!(serve(&mut box_, HEAD, &[BODY]).recognised, Some(Recognised::Explicit));
    assert_eq!(serve(&mut box_, BODY, &[]).recognised, Some(Recognised::Alias));
    let mut box_ = Rig::new(4, policy());
    serve(&mut box_, BODY, &[]);
    assert_eq!(serve(&mut box_, HEAD, &[BODY]).recognised, Some(Recognised::Alias));
    assert_eq!(serve(&mut box_, HEAD, &[]).recognised, Some(Recognised::Alias));
}

#[test]
fn an_id_of_a_whole_application_does_not_make_its_conversations_one() {
    let mut box_ = Rig::new(4, policy());
    for round in 0..3 {
        for n in 1..=3 {
            let done = serve(&mut box_, n, &[SHARED]);
            assert_eq!(done.conversation, Some(ConversationKey(n)), "round {round}");
        }
    }
    assert_eq!(box_.balancer.snapshot(box_.now).conversations, 3);
}

#[test]
fn a_shared_id_that_came_alone_first_takes_in_one_conversation_at_most() {
    let mut box_ = Rig::new(4, policy());
    serve(&mut box_, SHARED, &[]);
    let tickets: Vec<_> =
        (1..=3).map(|n| box_.try_arrive(&Turn { aliases: &[ConversationKey(SHARED)], ..turn(n) }).unwrap()).collect();
    let conversations: Vec<_> = tickets.iter().filter_map(|ticket| ticket.conversation).collect();
    assert_eq!(conversations, [SHARED, 2, 3].map(ConversationKey));
    tickets.into_iter().for_each(|ticket| box_.complete(ticket));
}

#[test]
fn a_name_that_was_not_served_takes_up_no_join() {
    for outcome in [Outcome::Rejected, Outcome::Failed, Outcome::Abandoned, Outcome::MovedOn] {
        let mut box_ = Rig::new(4, policy());
        serve(&mut box_, BODY, &[]);
        let ticket = box_.try_arrive(&Turn { aliases: &[ConversationKey(BODY)], ..turn(7) }).unwrap();
        assert_eq!(ticket.conversation, Some(ConversationKey(BODY)));
        box_.end(ticket, outcome);
        assert_eq!(box_.balancer.snapshot(box_.now).conversation_aliases, 0, "{outcome:?}");
        assert_eq!(serve(&mut box_, 7, &[]).conversation, Some(ConversationKey(7)), "{outcome:?}");
        assert_eq!(serve(&mut box_, HEAD, &[BODY]).conversation, Some(ConversationKey(BODY)), "{outcome:?}");
        assert_eq!(serve(&mut box_, HEAD, &[]).conversation, Some(ConversationKey(BODY)), "{outcome:?}");
    }
}

#[test]
fn copies_of_a_turn_that_joins_are_one_conversation_whichever_is_served() {
    let mut box_ = Rig::new(4, policy());
    serve(&mut box_, BODY, &[]);
    let joins = Turn { aliases: &[ConversationKey(BODY)], ..turn(HEAD) };
    let mut copies: Vec<_> = (0..3).map(|_| box_.try_arrive(&joins).unwrap()).collect();
    assert!(copies.iter().all(|copy| copy.conversation == Some(ConversationKey(BODY))));
    box_.end(copies.remove(0), Outcome::Rejected);
    // The others still hold the place.
    let other = box_.try_arrive(&Turn { aliases: &[ConversationKey(BODY)], ..turn(7) }).unwrap();
    assert_eq!(other.conversation, Some(ConversationKey(7)));
    box_.complete(other);
    copies.into_iter().for_each(|copy| box_.complete(copy));
    assert_eq!(serve(&mut box_, HEAD, &[]).conversation, Some(ConversationKey(BODY)));
    assert_eq!(serve(&mut box_, 8, &[BODY]).conversation, Some(ConversationKey(8)));
}

#[test]
fn a_name_that_was_given_a_pin_while_it_joined_keeps_it() {
    let mut box_ = Rig::new(4, policy());
    serve(&mut box_, BODY, &[]);
    let ticket = box_.try_arrive(&Turn { aliases: &[ConversationKey(BODY)], ..turn(HEAD) }).unwrap();
    assert_eq!(serve(&mut box_, HEAD, &[]).conversation, Some(ConversationKey(HEAD)));
    box_.complete(ticket);
    assert_eq!(serve(&mut box_, HEAD, &[]).conversation, Some(ConversationKey(HEAD)));
    assert_eq!(serve(&mut box_, 8, &[BODY]).conversation, Some(ConversationKey(BODY)));
}

#[test]
fn an_alias_overrides_no_pin_and_no_other_alias() {
    let mut box_ = Rig::new(4, policy());
    serve(&mut box_, 1, &[]);
    serve(&mut box_, 2, &[]);
    serve(&mut box_, 1, &[2, 10]);
    serve(&mut box_, 2, &[1, 10]);
    assert_eq!(serve(&mut box_, 1, &[]).conversation, Some(ConversationKey(1)));
    assert_eq!(serve(&mut box_, 2, &[]).conversation, Some(ConversationKey(2)));
    assert_eq!(serve(&mut box_, 10, &[]).conversation, Some(ConversationKey(1)));
}

#[test]
fn aliases_are_learned_from_served_turns_only() {
    let mut box_ = Rig::new(4, policy());
    let aliases = [ConversationKey(BODY)];
    let known = |box_: &Rig| box_.balancer.snapshot(box_.now).conversation_aliases;
    let ticket = box_.try_arrive(&Turn { aliases: &aliases, ..turn(HEAD) }).unwrap();
    box_.end(ticket, Outcome::Failed);
    for other in [TurnKind::Side, TurnKind::Stateless].map(|kind| Turn { kind, ..turn(HEAD) }) {
        box_.serve(&Turn { aliases: &aliases, ..other });
    }
    box_.serve(&Turn { client_pin: Some(id(0)), aliases: &aliases, ..turn(HEAD) });
    assert_eq!(known(&box_), 0);
    serve(&mut box_, HEAD, &[BODY]);
    assert_eq!(known(&box_), 1);
}

#[test]
fn a_side_call_neither_joins_nor_refreshes() {
    let mut box_ = Rig::new(4, policy());
    serve(&mut box_, BODY, &[]);
    let aliases = [ConversationKey(BODY)];
    box_.serve(&Turn { kind: TurnKind::Side, aliases: &aliases, ..turn(7) });
    // The one name that may join is still free.
    assert_eq!(serve(&mut box_, HEAD, &[BODY]).conversation, Some(ConversationKey(BODY)));
}

#[test]
fn an_alias_dies_with_its_conversation() {
    let bounds = Bounds { entries_max: 100, idle_max: Duration::from_secs(600) };
    let mut box_ = Rig::new(4, Policy { bounds, ..policy() });
    serve(&mut box_, HEAD, &[BODY]);
    // It lives as long as the conversation, even where only the other name is used.
    for _ in 0..5 {
        box_.now += Duration::from_secs(500);
        serve(&mut box_, HEAD, &[]);
    }
    assert_eq!(serve(&mut box_, BODY, &[]).conversation, Some(ConversationKey(HEAD)));
    box_.now += Duration::from_secs(700);
    let anew = serve(&mut box_, BODY, &[]);
    assert_eq!((anew.conversation, anew.recognised), (Some(ConversationKey(BODY)), Some(Recognised::Explicit)));
    assert_eq!(box_.balancer.snapshot(box_.now).conversation_aliases, 0);
}

#[test]
fn a_child_that_names_its_parent_too_does_not_become_it() {
    let mut box_ = Rig::new(4, policy());
    let parent = Some(ConversationKey(HEAD));
    serve(&mut box_, HEAD, &[]);
    let child = box_.serve(&Turn { aliases: &[ConversationKey(HEAD), ConversationKey(BODY)], parent, ..turn(7) });
    assert_eq!(child.conversation, Some(ConversationKey(7)));
    assert_eq!(serve(&mut box_, HEAD, &[]).conversation, parent);
    assert_eq!(serve(&mut box_, BODY, &[]).conversation, child.conversation);
    // Nor does it when the parent is yet to come.
    let mut box_ = Rig::new(4, policy());
    let child = box_.serve(&Turn { aliases: &[ConversationKey(HEAD)], parent, ..turn(7) });
    assert_eq!((child.conversation, serve(&mut box_, HEAD, &[]).conversation), (Some(ConversationKey(7)), parent));
}

#[test]
fn only_so_many_aliases_of_a_turn_are_looked_at() {
    let mut box_ = Rig::new(4, policy());
    serve(&mut box_, 50, &[]);
    let many: Vec<_> = (10..10 + ALIASES_MAX as u64).chain([50]).collect();
    assert_eq!(serve(&mut box_, HEAD, &many).conversation, Some(ConversationKey(HEAD)));
    assert_eq!(box_.balancer.snapshot(box_.now).conversation_aliases, ALIASES_MAX);
}

fn serve(box_: &mut Rig, name: u64, others: &[u64]) -> Done {
    let aliases: Vec<_> = others.iter().copied().map(ConversationKey).collect();
    box_.serve(&Turn { aliases: &aliases, ..turn(name) })
}
