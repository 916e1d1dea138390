//! What is told of turns that wait, and that all of them are called.

use super::*;

/// Room for two conversations as [`asks`] has them, and not for a third one.
fn full() -> (Rig, Vec<Ticket>) {
    let admission = Admission { capacity_tokens: Some(3_500), ..Admission::default() };
    let mut rig = Rig::new(1, Policy { admission, ..policy() });
    let tickets = (0..2).map(|number| seated(&mut rig, number)).collect();
    (rig, tickets)
}

/// A turn of about a thousand tokens.
fn asks(conversation: u64) -> Turn<'static> {
    Turn { body_bytes: 4_000, ..turn(conversation) }
}

fn admit(rig: &mut Rig, conversation: u64) -> Entry {
    rig.balancer.admit(&asks(conversation), rig.now).expect("let in or held")
}

fn seated(rig: &mut Rig, conversation: u64) -> Ticket {
    match admit(rig, conversation) {
        Entry::Seated(ticket) => ticket,
        Entry::Held(_) => panic!("{conversation} is held"),
    }
}

fn held(rig: &mut Rig, conversation: u64) -> Place {
    match admit(rig, conversation) {
        Entry::Held(place) => place,
        Entry::Seated(_) => panic!("{conversation} is not held"),
    }
}

#[test]
fn who_waits_is_called_too_if_another_turn_of_its_conversation_gets_in_at_once() {
    let (mut rig, tickets) = full();
    let place = held(&mut rig, 7);
    tickets.into_iter().for_each(|ticket| rig.complete(ticket));
    assert_eq!(rig.balancer.take_let_in(), []);
    // Their stay runs out, and before anybody looks the other turn comes.
    rig.now += 60 * SECOND;
    let second = seated(&mut rig, 7);
    assert_eq!(rig.balancer.take_let_in(), [place]);
    assert!(!rig.balancer.has_line());
    let first = rig.balancer.arrive(&asks(7), rig.now).expect("a replica");
    [first, second].into_iter().for_each(|ticket| rig.complete(ticket));
    rig.balancer.check_invariants();
}

#[test]
fn the_snapshot_tells_who_waits_for_how_much_and_how_long_turns_were_held() {
    let (mut rig, _tickets) = full();
    let place = held(&mut rig, 7);
    assert_eq!(held(&mut rig, 7), place);
    held(&mut rig, 8);
    rig.now += 40 * SECOND;
    let door = rig.balancer.snapshot(rig.now).door;
    assert_eq!((door.held, door.longest, door.needed_tokens), (3, 40 * SECOND, 4_000));
    rig.now += 300 * SECOND;
    rig.balancer.tick(rig.now);
    let door = rig.balancer.snapshot(rig.now).door;
    assert_eq!(
        (door.held, door.needed_tokens, door.holds.count(), door.counters.forced),
        (0, 0, 3, 3),
        "of turns, not of places"
    );
}

#[test]
fn room_is_told_only_where_somebody_would_be_held_for_it() {
    let room = |admission: Admission, mode: Mode| {
        let rig = Rig::new(1, Policy { admission, mode, ..policy() });
        rig.balancer.snapshot(rig.now).replicas[0].room
    };
    let known = Admission { capacity_tokens: Some(3_500), ..Admission::default() };
    let empty = RoomSnapshot { residents: 0, working_set_tokens: 0, limit_tokens: 3_500 };
    assert_eq!(room(known, Mode::Affinity), Some(empty));
    assert_eq!(room(known, Mode::LeastLoaded), None);
    assert_eq!(room(Admission { mode: AdmissionMode::Off, ..known }, Mode::Affinity), None);
    assert_eq!(room(Admission::default(), Mode::Affinity), None, "nobody tells how large the cache is");
}
