//! What must hold whatever happens.

use proptest::prelude::*;

use super::*;

/// What can happen to a balancer.
#[derive(Clone, Debug)]
enum Event {
    Arrive(Request),
    LearnMore { ticket: usize, request: Request },
    Served { ticket: usize },
    Charge { ticket: usize, cost: Cost },
    Finish { ticket: usize, outcome: Outcome },
    See { replica: usize, evidence: Evidence },
    Scrape { replica: usize, running: u32, kv_use: f64, signs: Signs },
    ScrapeFailed { replica: usize },
    Order { replica: usize, order: Order },
    Reconfigure { replicas: u8, threshold: u32, affinity: bool, entries_max: usize },
    Wait { ms: u64 },
}

/// A turn, owned.
#[derive(Clone, Debug)]
struct Request {
    conversation: Option<u64>,
    aliases: Vec<u64>,
    parent: Option<u64>,
    chain: Option<Chain>,
    kind: TurnKind,
    client_pin: Option<usize>,
    ranks: Ranks,
    tried: Option<usize>,
}

/// Requests that have much in common: few ids, of which each may stand for a conversation, an alias or a parent, and
/// histories that begin alike.
fn request() -> impl Strategy<Value = Request> {
    let ids =
        (prop::option::weighted(0.7, 0..12u64), prop::collection::vec(0..16u64, 0..6), prop::option::of(0..12u64));
    let words = prop::collection::vec(prop_oneof![Just("u"), Just("a"), Just("v")], 1..6);
    let chain =
        (words, prop_oneof![Just(10u32), Just(3000)]).prop_map(|(words, bytes)| history(&words.join(" "), bytes));
    let kind = prop_oneof![
        9 => Just(TurnKind::Conversation),
        1 => Just(TurnKind::Side),
        1 => Just(TurnKind::Stateless),
    ];
    let ranks = prop_oneof![9 => Just(Ranks::Obeyed), 1 => Just(Ranks::Ignored)];
    let route = (kind, prop::option::weighted(0.05, 0..5usize), ranks, prop::option::weighted(0.1, 0..5usize));
    (ids, prop::option::of(chain), route).prop_map(|((conversation, aliases, parent), chain, route)| {
        let (kind, client_pin, ranks, tried) = route;
        Request { conversation, aliases, parent, chain, kind, client_pin, ranks, tried }
    })
}

fn evidence() -> impl Strategy<Value = Evidence> {
    prop_oneof![
        6 => Just(Evidence::Answered),
        2 => Just(Evidence::Served),
        1 => Just(Evidence::Unreachable(DownReason::ConnectRefused)),
        1 => Just(Evidence::Unreachable(DownReason::ConnectTimedOut)),
        4 => Just(Evidence::ProbeFailed),
        2 => Just(Evidence::BrokeOff),
        2 => Just(Evidence::Failing),
        1 => Just(Evidence::Draining),
    ]
}

/// Few values, so that counters often stand still and sometimes fall.
fn signs() -> impl Strategy<Value = Signs> {
    let start_s = prop::option::of((0..2u8).prop_map(f64::from));
    let is_asleep = prop::option::weighted(0.3, prop::bool::weighted(0.3));
    (start_s, prop::option::of(0..4u64), prop::option::of(0..4u64), is_asleep)
        .prop_map(|(start_s, steps, generated, is_asleep)| Signs { start_s, steps, generated, engines: 1, is_asleep })
}

fn cost() -> impl Strategy<Value = Cost> {
    let tokens = prop_oneof![4 => 0..100_000u64, 1 => Just(u64::from(u32::MAX) + 5)];
    (0..10_000u64, prop::option::of(tokens), prop::option::of(0..100_000u64), 0..100_000u64).prop_map(
        |(request_bytes, prompt, cached, completion)| Cost {
            request_bytes,
            prompt,
            cached,
            completion,
            asks: completion % 2 == 0,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let outcome = prop_oneof![
        Just(Outcome::Completed),
        Just(Outcome::Rejected),
        Just(Outcome::Failed),
        Just(Outcome::Abandoned),
        Just(Outcome::MovedOn),
    ];
    prop_oneof![
        8 => request().prop_map(Event::Arrive),
        2 => (0..40usize, request()).prop_map(|(ticket, request)| Event::LearnMore { ticket, request }),
        5 => (0..40usize).prop_map(|ticket| Event::Served { ticket }),
        3 => (0..40usize, cost()).prop_map(|(ticket, cost)| Event::Charge { ticket, cost }),
        7 => (0..40usize, outcome).prop_map(|(ticket, outcome)| Event::Finish { ticket, outcome }),
        4 => (0..5usize, evidence()).prop_map(|(replica, evidence)| Event::See { replica, evidence }),
        2 => (0..5usize, 0..3u32, 0.0..1.0f64, signs())
            .prop_map(|(replica, running, kv_use, signs)| Event::Scrape { replica, running, kv_use, signs }),
        1 => (0..5usize).prop_map(|replica| Event::ScrapeFailed { replica }),
        1 => (0..5usize, prop_oneof![Just(Order::Drain), Just(Order::Undrain)])
            .prop_map(|(replica, order)| Event::Order { replica, order }),
        1 => (1..32u8, 1..4u32, prop::bool::weighted(0.8), prop_oneof![Just(1000usize), 1..8usize]).prop_map(
            |(replicas, threshold, affinity, entries_max)| Event::Reconfigure { replicas, threshold, affinity, entries_max }
        ),
        2 => prop_oneof![9 => 0..90_000u64, 1 => 0..5_000_000u64].prop_map(|ms| Event::Wait { ms }),
    ]
}

/// Applies an event and checks what must hold whatever happens.
fn step(rig: &mut Rig, tickets: &mut Vec<Ticket>, event: &Event) {
    match event {
        Event::Arrive(request) => arrive(rig, tickets, request),
        Event::LearnMore { ticket, request } if *ticket < tickets.len() => {
            let aliases: Vec<_> = request.aliases.iter().copied().map(ConversationKey).collect();
            let late = Turn { aliases: &aliases, chain: request.chain.as_ref(), ..turn(0) };
            rig.balancer.learn_more(&mut tickets[*ticket], &late, rig.now);
        }
        Event::Served { ticket } if *ticket < tickets.len() => rig.balancer.served(&mut tickets[*ticket], rig.now),
        Event::Finish { ticket, outcome } if *ticket < tickets.len() => {
            rig.balancer.finish(tickets.swap_remove(*ticket), *outcome, rig.now);
        }
        Event::Charge { ticket, cost } if *ticket < tickets.len() => {
            let bill = rig.balancer.charge(&tickets[*ticket], cost, rig.now);
            assert!(cost.prompt.is_none_or(|prompt| bill.cached + bill.computed == prompt), "tokens are missing");
        }
        Event::LearnMore { .. } | Event::Served { .. } | Event::Charge { .. } | Event::Finish { .. } => {}
        Event::See { replica, evidence } => {
            let (was, told) = (health(rig, *replica), rig.balancer.observe(id(*replica), *evidence, rig.now));
            let is = health(rig, *replica);
            assert!(told || was == is, "a change that nobody was told of");
            check_change(*evidence, was, is);
        }
        Event::Scrape { replica, running, kv_use, signs } => {
            rig.balancer.scrape_begins(id(*replica));
            let scrape = Scrape { at: rig.now, running: *running, kv_use: *kv_use, signs: *signs, ..Scrape::default() };
            rig.balancer.scraped(id(*replica), scrape);
        }
        Event::ScrapeFailed { replica } => rig.balancer.scrape_failed(id(*replica), rig.now),
        Event::Order { replica, order } => {
            rig.balancer.order(id(*replica), *order, rig.now);
        }
        Event::Reconfigure { replicas, threshold, affinity, entries_max } => {
            let specs = (0..5).filter(|index| replicas & (1 << index) != 0).map(spec).collect();
            let mode = if *affinity { Mode::Affinity } else { Mode::LeastLoaded };
            let bounds = Bounds { entries_max: *entries_max, ..policy().bounds };
            let policy = Policy { mode, spill_threshold: SpillThreshold::Fixed(*threshold), bounds, ..policy() };
            rig.balancer.reconfigure(policy, specs, rig.now);
        }
        Event::Wait { ms } => rig.now += Duration::from_millis(*ms),
    }
    rig.balancer.check_invariants();
    check_leases(rig, tickets);
    check_in_flight(rig, tickets);
    let joining = tickets.iter().filter(|ticket| ticket.lesson.as_ref().is_some_and(|lesson| lesson.joining.is_some()));
    assert_eq!(rig.balancer.memory.aliases.joining(), joining.count(), "turns that join");
}

fn health(rig: &Rig, replica: usize) -> Option<Health> {
    rig.balancer.snapshot(rig.now).replicas.into_iter().find(|other| other.id == id(replica)).map(|other| other.health)
}

/// What one piece of evidence can and can't do.
fn check_change(evidence: Evidence, was: Option<Health>, is: Option<Health>) {
    let (Some(was), Some(is)) = (was, is) else { return };
    let gets_worse = |health: Health| matches!(health, Health::Down(_));
    match evidence {
        Evidence::Answered => assert!(was == is || !gets_worse(is), "a good probe took it down: {was:?}, {is:?}"),
        Evidence::Served => {
            let is_well = matches!(is, Health::Up | Health::Draining(DrainReason::Ordered));
            assert!(was == is || is_well, "a good turn left it at {is:?}");
        }
        Evidence::Unreachable(DownReason::ConnectRefused) => {
            assert_eq!(is, Health::Down(DownReason::ConnectRefused));
        }
        Evidence::Draining => assert!(!is.serves()),
        Evidence::Unreachable(_) | Evidence::ProbeFailed | Evidence::BrokeOff | Evidence::Failing => {
            assert_ne!(is, Health::Up, "a failure left it at up");
        }
    }
}

fn arrive(rig: &mut Rig, tickets: &mut Vec<Ticket>, request: &Request) {
    let tried: Vec<_> = request.tried.iter().map(|index| id(*index)).collect();
    let aliases: Vec<_> = request.aliases.iter().copied().map(ConversationKey).collect();
    let turn = Turn {
        conversation: request.conversation.map(ConversationKey),
        aliases: &aliases,
        parent: request.parent.map(ConversationKey),
        chain: request.chain.as_ref(),
        kind: request.kind,
        client_pin: request.client_pin.map(id),
        ranks: request.ranks,
        body_bytes: 0,
        tried: &tried,
    };
    let before = rig.balancer.snapshot(rig.now);
    if let Ok(ticket) = rig.try_arrive(&turn) {
        check_decision(&before, &turn, &ticket);
        tickets.push(ticket);
    }
}

fn check_decision(before: &Snapshot, turn: &Turn<'_>, ticket: &Ticket) {
    let chosen = before.replicas.iter().find(|replica| replica.id == ticket.replica).expect("it is configured");
    assert_eq!(chosen.membership, Membership::Configured);
    assert!(chosen.health.serves(), "a turn was given to a replica that is {:?}", chosen.health);
    let is_chosen_freely = match ticket.decision {
        Decision::Placed { reason } => reason != Placement::Forked,
        Decision::Unpinned { .. } | Decision::Side => turn.client_pin.is_none(),
        Decision::Sticky | Decision::Spilled { .. } | Decision::ClientPinned => false,
    };
    let is_better = |replica: &&ReplicaSnapshot| {
        let is_open = replica.membership == Membership::Configured && !turn.tried.contains(&replica.id);
        is_open && replica.ramp_percent == 100 && matches!(replica.health, Health::Up | Health::Unknown)
    };
    if is_chosen_freely && matches!(chosen.health, Health::Suspect(_)) {
        assert!(!before.replicas.iter().any(|replica| is_better(&replica)), "a suspect was given what is new");
    }
    assert!(!turn.tried.contains(&ticket.replica), "a turn was given back to the replica that failed it");
    if turn.kind != TurnKind::Conversation {
        assert_eq!((ticket.conversation, ticket.recognised), (None, None), "it belongs to no conversation");
    }
    if let Decision::Placed { reason: Placement::Forked } = ticket.decision {
        assert!(turn.chain.is_some(), "a fork without a history");
        assert!(chosen.in_flight < chosen.spill_threshold, "a fork went to a replica over its threshold");
    }
    if let Decision::Spilled { from } = ticket.decision {
        let home = before.replicas.iter().find(|replica| replica.id == from).expect("home is configured");
        assert!(home.in_flight >= home.spill_threshold, "a turn left a replica that was under its threshold");
        assert!(chosen.in_flight < chosen.spill_threshold, "a turn went to a replica over its threshold");
    }
}

fn check_leases(rig: &Rig, tickets: &[Ticket]) {
    for replica in rig.balancer.snapshot(rig.now).replicas {
        assert!(replica.held.relatives <= replica.held.active, "more relatives than conversations");
        let out = tickets.iter().filter(|ticket| ticket.replica == replica.id).count();
        assert_eq!(replica.in_flight as usize, out, "leases of {:?}", replica.id);
    }
}

/// Turns in flight of one conversation are never fewer than its tickets that are out, unless the table was full.
fn check_in_flight(rig: &Rig, tickets: &[Ticket]) {
    for conversation in rig.balancer.conversations(usize::MAX, rig.now) {
        let holds = |ticket: &&Ticket| ticket.bound() == Some(conversation.key);
        let out = tickets.iter().filter(holds).count();
        assert!(usize::from(conversation.in_flight) <= out, "{} turns of {}", out, conversation.key);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_parts_agree_after_every_step_of_any_run(events in prop::collection::vec(event(), 1..200)) {
        let mut rig = Rig::new(3, Policy { spill_threshold: SpillThreshold::Fixed(2), ..policy() });
        let mut tickets = Vec::new();
        for event in &events {
            step(&mut rig, &mut tickets, event);
        }
        for ticket in tickets.drain(..) {
            rig.balancer.finish(ticket, Outcome::Completed, rig.now);
        }
        check_leases(&rig, &tickets);
        rig.balancer.check_invariants();
        prop_assert!(rig.balancer.conversations(usize::MAX, rig.now).iter().all(|pin| pin.in_flight == 0));
    }

    #[test]
    fn what_is_foreseen_happens_and_foreseeing_changes_nothing(
        events in prop::collection::vec(event(), 1..60),
        request in request(),
        later_ms in 0..5_000_000u64,
    ) {
        let mut rig = Rig::new(3, Policy { spill_threshold: SpillThreshold::Fixed(2), ..policy() });
        let mut tickets = Vec::new();
        for event in &events {
            step(&mut rig, &mut tickets, event);
        }
        rig.now += Duration::from_millis(later_ms);
        let before = format!("{:?}", rig.balancer);
        let aliases: Vec<_> = request.aliases.iter().copied().map(ConversationKey).collect();
        let turn = Turn { conversation: None, aliases: &aliases, chain: request.chain.as_ref(), ..turn(0) };
        let turn = Turn { conversation: request.conversation.map(ConversationKey), kind: request.kind, ..turn };
        let foreseen = rig.balancer.foresee(&turn, rig.now);
        prop_assert_eq!(&before, &format!("{:?}", rig.balancer));
        let arrived = rig.balancer.arrive(&turn, rig.now);
        prop_assert_eq!(foreseen, arrived.as_ref().map(Foreseen::of).map_err(|refusal| *refusal));
        for ticket in arrived.into_iter().chain(tickets) {
            rig.balancer.finish(ticket, Outcome::Abandoned, rig.now);
        }
    }

    #[test]
    fn the_same_events_give_the_same_decisions(events in prop::collection::vec(event(), 1..100)) {
        let run = || {
            let mut rig = Rig::new(3, policy());
            let mut tickets = Vec::new();
            for event in &events {
                step(&mut rig, &mut tickets, event);
            }
            let decided: Vec<_> = tickets.iter().map(|ticket| (ticket.replica, ticket.decision)).collect();
            tickets.into_iter().for_each(|ticket| rig.balancer.finish(ticket, Outcome::Abandoned, rig.now));
            decided
        };
        prop_assert_eq!(run(), run());
    }
}
