//! Conversations that fit into no cache wait, and whoever waits gets in, leaves or is refused.

use super::*;

/// Tokens of cache on each replica: three conversations and what they may grow by.
const CAPACITY: u64 = 33_500;

/// Replicas of which each has room for three conversations of 10,000 tokens.
fn full_house(replicas: usize) -> Rig {
    let mut rig = Rig::new(replicas, Policy { admission: Admission::default(), ..policy() });
    for index in 0..replicas {
        scrape(&mut rig, index);
    }
    rig
}

fn scrape(rig: &mut Rig, index: usize) {
    let scrape = Scrape { at: rig.now, kv_capacity_tokens: CAPACITY, ..Scrape::default() };
    rig.balancer.scrape_begins(id(index));
    rig.balancer.scraped(id(index), scrape);
}

/// A turn whose body is taken for so many tokens.
fn asks(conversation: u64, tokens: u64) -> Turn<'static> {
    Turn { body_bytes: 4 * tokens, ..turn(conversation) }
}

fn admit(rig: &mut Rig, turn: &Turn<'_>) -> Entry {
    let entry = rig.balancer.admit(turn, rig.now).expect("let in or held");
    rig.balancer.check_invariants();
    entry
}

fn seated(rig: &mut Rig, conversation: u64) -> Ticket {
    match admit(rig, &asks(conversation, 10_000)) {
        Entry::Seated(ticket) => ticket,
        Entry::Held(_) => panic!("{conversation} is held"),
    }
}

fn held(rig: &mut Rig, conversation: u64) -> Place {
    match admit(rig, &asks(conversation, 10_000)) {
        Entry::Held(place) => place,
        Entry::Seated(_) => panic!("{conversation} is not held"),
    }
}

/// A turn of 10,000 tokens ends.
fn end(rig: &mut Rig, mut ticket: Ticket) {
    rig.balancer.served(&mut ticket, rig.now);
    let cost = Cost { request_bytes: 40_000, prompt: Some(9_900), cached: Some(0), completion: 100, asks: true };
    rig.balancer.charge(&ticket, &cost, rig.now);
    rig.balancer.finish(ticket, Outcome::Completed, rig.now);
    rig.balancer.check_invariants();
}

fn pass(rig: &mut Rig, time: Duration) {
    rig.now += time;
    rig.balancer.tick(rig.now);
    rig.balancer.check_invariants();
}

#[test]
fn whoever_would_not_fit_waits_until_somebody_is_silent_for_long_enough() {
    let mut rig = full_house(1);
    let tickets: Vec<_> = (0..3).map(|n| seated(&mut rig, n)).collect();
    let place = held(&mut rig, 3);
    pass(&mut rig, SECOND);
    assert_eq!(rig.balancer.take_let_in(), []);
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
    assert_eq!(rig.balancer.take_let_in(), [], "a resident that has only just ended its turn is waited for");
    pass(&mut rig, 6 * SECOND);
    assert_eq!(rig.balancer.take_let_in(), [place]);
    let ticket = rig.balancer.arrive(&asks(3, 10_000), rig.now).expect("a replica");
    assert_eq!(ticket.decision, Decision::Placed { reason: Placement::New });
    end(&mut rig, ticket);
}

#[test]
fn a_resident_is_never_held_and_who_lost_its_room_is() {
    let mut rig = full_house(1);
    for n in 0..3 {
        let ticket = seated(&mut rig, n);
        end(&mut rig, ticket);
    }
    let place = held(&mut rig, 3);
    let mut tickets: Vec<_> = (1..3).map(|n| seated(&mut rig, n)).collect();
    pass(&mut rig, 6 * SECOND);
    assert_eq!(rig.balancer.take_let_in(), [place], "the one that was silent made room");
    tickets.push(rig.balancer.arrive(&asks(3, 10_000), rig.now).expect("a replica"));
    held(&mut rig, 0);
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

#[test]
fn a_new_conversation_takes_the_first_room_anywhere_and_is_not_overtaken() {
    let mut rig = full_house(2);
    let mut tickets: Vec<_> = (0..6).map(|n| seated(&mut rig, n)).collect();
    let places: Vec<_> = (6..9).map(|n| held(&mut rig, n)).collect();
    let leaves = tickets.pop().expect("one of six");
    let replica = leaves.replica;
    rig.balancer.finish(leaves, Outcome::Abandoned, rig.now);
    assert_eq!(rig.balancer.take_let_in(), places[..1]);
    let ticket = rig.balancer.arrive(&asks(6, 10_000), rig.now).expect("a replica");
    assert_eq!(ticket.replica, replica);
    tickets.push(ticket);
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
    pass(&mut rig, 6 * SECOND);
    assert_eq!(rig.balancer.take_let_in(), places[1..]);
}

#[test]
fn those_who_are_let_in_at_once_are_spread_over_the_replicas() {
    let mut rig = full_house(2);
    let tickets: Vec<_> = (0..6).map(|n| seated(&mut rig, n)).collect();
    let places: Vec<_> = (6..10).map(|n| held(&mut rig, n)).collect();
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
    pass(&mut rig, 6 * SECOND);
    assert_eq!(rig.balancer.take_let_in(), places);
    let arrive = |n| rig.balancer.arrive(&asks(n, 10_000), rig.now).expect("a replica");
    let tickets: Vec<_> = (6..10).map(arrive).collect();
    let on_first = tickets.iter().filter(|ticket| ticket.replica == id(0)).count();
    assert_eq!(on_first, 2, "each replica has room for three");
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

#[test]
fn a_new_conversation_waits_a_moment_longer_for_a_replica_with_less_load() {
    let mut rig = full_house(2);
    let tickets: Vec<_> = (0..6).map(|n| seated(&mut rig, n)).collect();
    let (mut busy, idle): (Vec<_>, Vec<_>) = tickets.into_iter().partition(|ticket| ticket.replica == id(0));
    let place = held(&mut rig, 6);
    end(&mut rig, busy.remove(0));
    let moment = Duration::from_millis(50);
    pass(&mut rig, moment);
    idle.into_iter().for_each(|ticket| end(&mut rig, ticket));
    pass(&mut rig, 5 * SECOND - moment);
    assert_eq!(rig.balancer.take_let_in(), [], "the busy replica has room, and the idle one in a moment");
    pass(&mut rig, moment);
    assert_eq!(rig.balancer.take_let_in(), [place]);
    busy.push(rig.balancer.arrive(&asks(6, 10_000), rig.now).expect("a replica"));
    assert_eq!(busy[2].replica, id(1));
    busy.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

#[test]
fn a_replica_with_less_load_is_not_waited_for_again_and_again() {
    let mut rig = full_house(2);
    let tuning = Tuning { stay: Stay::Fixed(Duration::from_millis(100)), ..Tuning::default() };
    let admission = Admission { tuning, ..Admission::default() };
    rig.balancer.reconfigure(Policy { admission, ..policy() }, vec![spec(0), spec(1)], rig.now);
    let tickets: Vec<_> = (0..6).map(|n| (n, seated(&mut rig, n))).collect();
    let (mut busy, idle): (Vec<_>, Vec<_>) = tickets.into_iter().partition(|(_, ticket)| ticket.replica == id(0));
    let place = held(&mut rig, 6);
    end(&mut rig, busy.remove(0).1);
    let come_and_go: Vec<_> = idle.iter().map(|(conversation, _)| *conversation).collect();
    idle.into_iter().for_each(|(_, ticket)| end(&mut rig, ticket));
    let let_in_after = (1..10).find(|_| {
        pass(&mut rig, Duration::from_millis(80));
        for conversation in &come_and_go {
            let ticket = seated(&mut rig, *conversation);
            assert_eq!(ticket.replica, id(1));
            end(&mut rig, ticket);
        }
        rig.balancer.take_let_in() == [place]
    });
    // The busy replica has room from the second look on.
    assert!(let_in_after.is_some_and(|looks| looks <= 4), "{let_in_after:?}");
    busy.into_iter().for_each(|(_, ticket)| end(&mut rig, ticket));
}

#[test]
fn children_of_a_resident_are_let_in_over_the_line() {
    let mut rig = full_house(1);
    let tickets: Vec<_> = (0..3).map(|n| seated(&mut rig, n)).collect();
    held(&mut rig, 3);
    let child = Turn { parent: Some(ConversationKey(0)), ..asks(10, 10_000) };
    let Entry::Seated(child) = admit(&mut rig, &child) else { panic!("a child is held, and its parent waits for it") };
    end(&mut rig, child);
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

#[test]
fn the_longest_hold_ends_over_the_line() {
    let mut rig = full_house(1);
    let tickets: Vec<_> = (0..3).map(|n| seated(&mut rig, n)).collect();
    let place = held(&mut rig, 3);
    let hold_max = Admission::default().hold_max;
    pass(&mut rig, hold_max - SECOND);
    assert_eq!(rig.balancer.take_let_in(), []);
    pass(&mut rig, SECOND);
    assert_eq!(rig.balancer.take_let_in(), [place]);
    let snapshot = rig.balancer.snapshot(rig.now);
    assert_eq!((snapshot.door.counters.held, snapshot.door.counters.forced, snapshot.door.held), (1, 1, 0));
    assert!(snapshot.replicas[0].room.expect("it is known").working_set_tokens > CAPACITY);
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

#[test]
fn a_line_that_is_full_refuses() {
    let admission = Admission { held_max: 1, ..Admission::default() };
    let mut rig = Rig::new(1, Policy { admission, ..policy() });
    scrape(&mut rig, 0);
    let tickets: Vec<_> = (0..3).map(|n| seated(&mut rig, n)).collect();
    let place = held(&mut rig, 3);
    assert_eq!(rig.balancer.admit(&asks(4, 10_000), rig.now).err(), Some(Refusal::LineFull));
    rig.balancer.leave_line(place, rig.now);
    held(&mut rig, 4);
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

#[test]
fn a_retry_of_a_held_turn_finds_its_place_again() {
    let mut rig = full_house(1);
    let mut tickets: Vec<_> = (0..3).map(|n| seated(&mut rig, n)).collect();
    let first = held(&mut rig, 3);
    let second = held(&mut rig, 4);
    rig.balancer.leave_line(first, rig.now);
    pass(&mut rig, 10 * SECOND);
    assert_eq!(held(&mut rig, 3), first);
    let leaves = tickets.pop().expect("one of three");
    rig.balancer.finish(leaves, Outcome::Abandoned, rig.now);
    assert_eq!(rig.balancer.take_let_in(), [first]);
    tickets.push(rig.balancer.arrive(&asks(3, 10_000), rig.now).expect("a replica"));
    rig.balancer.leave_line(second, rig.now);
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
    assert!(!rig.balancer.has_line());
}

#[test]
fn whoever_waits_is_let_go_when_nobody_can_serve_and_when_admission_or_affinity_is_turned_off() {
    for change in ["admission", "affinity", "health"] {
        let mut rig = full_house(1);
        let tickets: Vec<_> = (0..3).map(|n| seated(&mut rig, n)).collect();
        let place = held(&mut rig, 3);
        match change {
            "admission" => rig.balancer.reconfigure(policy(), vec![spec(0)], rig.now),
            "affinity" => {
                let policy = Policy { mode: Mode::LeastLoaded, ..*rig.balancer.policy() };
                rig.balancer.reconfigure(policy, vec![spec(0)], rig.now);
            }
            _ => rig.balancer.set_health(id(0), Health::Down(DownReason::ProbeFailed), rig.now),
        }
        pass(&mut rig, SECOND);
        assert_eq!(rig.balancer.take_let_in(), [place]);
        tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
    }
}

#[test]
fn a_restarted_engine_has_room_again() {
    let mut rig = full_house(1);
    for n in 0..3 {
        let ticket = seated(&mut rig, n);
        end(&mut rig, ticket);
    }
    let signs = |start_s| Signs { start_s: Some(start_s), ..Signs::default() };
    for start_s in [1.0, 2.0] {
        let scrape = Scrape { at: rig.now, kv_capacity_tokens: CAPACITY, signs: signs(start_s), ..Scrape::default() };
        rig.balancer.scraped(id(0), scrape);
    }
    assert_eq!(rig.balancer.snapshot(rig.now).replicas[0].room.map(|room| room.residents), Some(0));
    for n in 3..6 {
        let ticket = seated(&mut rig, n);
        end(&mut rig, ticket);
    }
}

#[test]
fn as_long_as_the_size_of_a_cache_is_not_known_nobody_is_held_for_it() {
    let mut rig = Rig::new(1, Policy { admission: Admission::default(), ..policy() });
    let tickets: Vec<_> = (0..50).map(|n| seated(&mut rig, n)).collect();
    tickets.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

#[test]
fn in_rotation_who_was_in_for_long_makes_room_for_who_has_waited_long() {
    let admission = Admission { mode: AdmissionMode::Fair, ..Admission::default() };
    let mut rig = Rig::new(1, Policy { admission, ..policy() });
    scrape(&mut rig, 0);
    let mut busy: Vec<_> = (0..3).map(|n| seated(&mut rig, n)).collect();
    let place = held(&mut rig, 3);
    let after = admission.tuning.rotate_after;
    pass(&mut rig, after + SECOND);
    assert_eq!(rig.balancer.take_let_in(), [], "a turn in flight is not cut");
    let first = busy.remove(0);
    end(&mut rig, first);
    assert_eq!(rig.balancer.take_let_in(), [place], "who was in first made room with the end of its turn");
    let ticket = rig.balancer.arrive(&asks(3, 10_000), rig.now).expect("a replica");
    held(&mut rig, 0);
    busy.push(ticket);
    busy.into_iter().for_each(|ticket| end(&mut rig, ticket));
}

mod storm {
    //! Whatever happens, in whatever order: nothing leaks, nobody starves, the order is kept.

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Ask { conversation: u64, parent: Option<u64>, tokens: u64 },
        Serve(usize),
        End { turn: usize, outcome: Outcome, tokens: u64 },
        Leave(usize),
        Pass(u64),
        Health { replica: usize, is_up: bool },
        Restart(usize),
        Drain(usize, Order),
        Reload { mode: AdmissionMode, replicas: usize },
    }

    /// A turn as its client sees it.
    struct Asked {
        turn: (u64, Option<u64>, u64),
        since: Duration,
        place: Place,
    }

    #[derive(Default)]
    struct Clients {
        waiting: Vec<Asked>,
        seated: Vec<Ticket>,
    }

    fn event() -> impl Strategy<Value = Event> {
        let outcome = prop::sample::select(vec![Outcome::Completed, Outcome::Failed, Outcome::Abandoned]);
        let mode = prop::sample::select(vec![AdmissionMode::Off, AdmissionMode::Auto, AdmissionMode::Fair]);
        let order = prop::sample::select(vec![Order::Drain, Order::Undrain]);
        prop_oneof![
            12 => (0..24_u64, prop::option::weighted(0.2, 0..24_u64), 100..40_000_u64)
                .prop_map(|(conversation, parent, tokens)| Event::Ask { conversation, parent, tokens }),
            8 => (0..16_usize).prop_map(Event::Serve),
            10 => (0..16_usize, outcome, 0..40_000_u64)
                .prop_map(|(turn, outcome, tokens)| Event::End { turn, outcome, tokens }),
            3 => (0..16_usize).prop_map(Event::Leave),
            6 => (1..40_000_u64).prop_map(Event::Pass),
            1 => (0..3_usize, any::<bool>()).prop_map(|(replica, is_up)| Event::Health { replica, is_up }),
            1 => (0..3_usize).prop_map(Event::Restart),
            1 => (0..3_usize, order).prop_map(|(replica, order)| Event::Drain(replica, order)),
            1 => (mode, 1..4_usize).prop_map(|(mode, replicas)| Event::Reload { mode, replicas }),
        ]
    }

    fn turn_of(&(conversation, parent, tokens): &(u64, Option<u64>, u64)) -> Turn<'static> {
        Turn { parent: parent.map(ConversationKey), ..asks(conversation, tokens) }
    }

    fn apply(rig: &mut Rig, clients: &mut Clients, event: &Event) {
        match event {
            Event::Ask { conversation, parent, tokens } => {
                let turn = (*conversation, *parent, *tokens);
                match rig.balancer.admit(&turn_of(&turn), rig.now) {
                    Ok(Entry::Seated(ticket)) => clients.seated.push(ticket),
                    Ok(Entry::Held(place)) => clients.waiting.push(Asked { turn, since: rig.now, place }),
                    Err(_) => {}
                }
            }
            Event::Serve(index) if *index < clients.seated.len() => {
                rig.balancer.served(&mut clients.seated[*index], rig.now);
            }
            Event::End { turn, outcome, tokens } if *turn < clients.seated.len() => {
                let ticket = clients.seated.swap_remove(*turn);
                let prompt = (*outcome == Outcome::Completed).then_some(*tokens);
                let cost =
                    Cost { request_bytes: 4 * tokens, prompt, cached: Some(tokens / 2), completion: 9, asks: true };
                rig.balancer.charge(&ticket, &cost, rig.now);
                rig.balancer.finish(ticket, *outcome, rig.now);
            }
            Event::Leave(index) if *index < clients.waiting.len() => {
                let gone = clients.waiting.swap_remove(*index);
                rig.balancer.leave_line(gone.place, rig.now);
            }
            Event::Serve(_) | Event::End { .. } | Event::Leave(_) => {}
            Event::Pass(millis) => {
                rig.now += Duration::from_millis(*millis);
                rig.balancer.tick(rig.now);
            }
            // One that a reload took out may be gone altogether.
            Event::Health { replica, .. } if rig.balancer.health_of(id(*replica)).is_none() => {}
            Event::Health { replica, is_up } => {
                let health = if *is_up { Health::Up } else { Health::Down(DownReason::ProbeFailed) };
                rig.balancer.set_health(id(*replica), health, rig.now);
            }
            Event::Restart(replica) => {
                for start_s in [rig.now.as_secs_f64(), rig.now.as_secs_f64() + 1.0] {
                    let signs = Signs { start_s: Some(start_s), ..Signs::default() };
                    let scrape = Scrape { at: rig.now, kv_capacity_tokens: CAPACITY, signs, ..Scrape::default() };
                    rig.balancer.scraped(id(*replica), scrape);
                }
            }
            Event::Drain(replica, order) => {
                rig.balancer.order(id(*replica), *order, rig.now);
            }
            Event::Reload { mode, replicas } => {
                let admission = Admission { mode: *mode, held_max: 10, ..Admission::default() };
                let specs = (0..*replicas).map(spec).collect();
                rig.balancer.reconfigure(Policy { admission, ..policy() }, specs, rig.now);
            }
        }
        enter(rig, clients);
        rig.balancer.check_invariants();
    }

    /// Whoever may goes in.
    fn enter(rig: &mut Rig, clients: &mut Clients) {
        // One that goes in may end another one's wait, so this goes on until nobody is called.
        loop {
            let let_in = rig.balancer.take_let_in();
            if let_in.is_empty() {
                return;
            }
            let (may, wait): (Vec<_>, Vec<_>) =
                std::mem::take(&mut clients.waiting).into_iter().partition(|asked| let_in.contains(&asked.place));
            clients.waiting = wait;
            for asked in may {
                let waited = rig.now.saturating_sub(asked.since);
                assert!(waited <= Admission::default().hold_max + 41 * SECOND, "held for {waited:?}");
                if let Ok(ticket) = rig.balancer.arrive(&turn_of(&asked.turn), rig.now) {
                    clients.seated.push(ticket);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        #[test]
        fn every_hold_ends_and_nothing_is_left_behind(events in prop::collection::vec(event(), 1..250)) {
            let mut rig = full_house(3);
            let mut clients = Clients::default();
            for event in &events {
                apply(&mut rig, &mut clients, event);
                let door = rig.balancer.snapshot(rig.now).door;
                prop_assert_eq!(door.held as usize, clients.waiting.len(), "who waits");
            }
            // Whoever still waits gets in, whatever the others do.
            for _ in 0..8 {
                apply(&mut rig, &mut clients, &Event::Pass(40_000));
            }
            prop_assert_eq!(clients.waiting.len(), 0, "somebody is held for ever");
            for ticket in clients.seated.drain(..) {
                rig.balancer.finish(ticket, Outcome::Abandoned, rig.now);
                rig.balancer.check_invariants();
            }
            prop_assert!(rig.balancer.take_let_in().is_empty() && !rig.balancer.has_line());
            for index in 0..3 {
                let room = rig.balancer.snapshot(rig.now).replicas.get(index).map(|replica| replica.room);
                let in_flight = rig.balancer.claimed(id(index));
                prop_assert_eq!(in_flight, 0, "turns have ended and their room is not free: {:?}", room);
            }
        }
    }
}
