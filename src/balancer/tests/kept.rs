//! What outlives a process: taken out in parts, given to another balancer after some time, with what has changed since.

use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A process that begins: its clock has nothing to do with that of the one before it.
const BEGIN: Duration = Duration::from_secs(1_000_000);

/// Everything that is remembered, in parts of `max`, with `between` after each.
fn export(rig: &mut Rig, max: usize, mut between: impl FnMut(&mut Rig)) -> (Vec<ReplicaRecord>, Vec<Records>) {
    let replicas = rig.balancer.replica_records();
    let mut export = rig.balancer.begin_export(rig.now);
    let mut parts = Vec::new();
    while let Some(records) = rig.balancer.export(&mut export, max) {
        assert!(records.len() <= max);
        parts.push(records);
        between(rig);
    }
    (replicas, parts)
}

/// A new balancer with these replicas, to which everything was given.
fn restored(kept: &(Vec<ReplicaRecord>, Vec<Records>), specs: Vec<ReplicaSpec>, downtime: Duration) -> Rig {
    let mut rig = Rig { balancer: Balancer::new(policy(), specs, BEGIN), now: BEGIN };
    give(&mut rig, kept, downtime);
    rig
}

fn give(rig: &mut Rig, (replicas, parts): &(Vec<ReplicaRecord>, Vec<Records>), downtime: Duration) -> Restored {
    let restore = rig.balancer.begin_restore(replicas, downtime, rig.now);
    let mut sum = Restored::default();
    for records in parts {
        let Restored { kept, dropped } = rig.balancer.restore(&restore, records, rig.now);
        sum = Restored { kept: sum.kept + kept, dropped: sum.dropped + dropped };
        rig.balancer.check_invariants();
    }
    sum
}

fn specs(count: usize) -> Vec<ReplicaSpec> {
    (0..count).map(spec).collect()
}

fn scrape(rig: &mut Rig, replica: usize, start_s: Option<f64>, steps: u64) {
    let signs = Signs { start_s, steps: Some(steps), engines: 1, ..Signs::default() };
    rig.balancer.scraped(id(replica), Scrape { at: rig.now, signs, ..Scrape::default() });
}

#[test]
fn conversations_go_on_where_they_were_under_every_name_and_by_their_histories() {
    let mut before = Rig::new(3, policy());
    let homes: Vec<_> = (0..9).map(|number| before.turn(number).replica).collect();
    let alias = ConversationKey(100);
    let names = [alias];
    before.serve(&Turn { aliases: &names, ..turn(4) });
    let unnamed_before = before.serve(&unnamed(&history("u a u", 3000)));
    let forked_from = before.serve(&Turn { chain: Some(&history("v b v", 3000)), ..turn(7) });

    let mut after = restored(&export(&mut before, 2, |_| {}), specs(3), Duration::ZERO);
    for (number, home) in homes.iter().enumerate() {
        let done = after.turn(number as u64);
        assert_eq!((done.replica, done.decision), (*home, Decision::Sticky));
    }
    let by_alias = after.serve(&Turn::of(Some(alias)));
    assert_eq!((by_alias.replica, by_alias.recognised), (homes[4], Some(Recognised::Alias)));
    assert_eq!(by_alias.conversation, Some(ConversationKey(4)));
    let goes_on = after.serve(&unnamed(&history("u a u a u", 3000)));
    assert_eq!((goes_on.decision, goes_on.replica), (Decision::Sticky, unnamed_before.replica));
    let forked = after.serve(&Turn { chain: Some(&history("v b v b w", 3000)), ..turn(55) });
    let placement = Decision::Placed { reason: Placement::Forked };
    assert_eq!((forked.decision, forked.replica), (placement, forked_from.replica));
}

#[test]
fn the_time_without_a_process_counts_as_silence() {
    let mut before = Rig::new(1, policy());
    before.turn(1);
    before.now += HOUR / 2;
    before.turn(2);
    let kept = export(&mut before, 10, |_| {});
    let mut after = restored(&kept, specs(1), HOUR * 3 / 4);
    assert_eq!(after.turn(1).decision, Decision::Placed { reason: Placement::New });
    assert_eq!(after.turn(2).decision, Decision::Sticky);
    let mut at_once = restored(&kept, specs(1), Duration::ZERO);
    assert_eq!(at_once.turn(1).decision, Decision::Sticky);
    assert_eq!(restored(&kept, specs(1), Duration::MAX).balancer.snapshot(BEGIN).conversations, 0);
}

#[test]
fn recent_conversations_count_as_load_and_old_ones_are_only_remembered() {
    let mut before = Rig::new(1, policy());
    before.turn(1);
    before.now += HOUR / 2;
    before.turn(2);
    let held = |rig: &Rig| rig.balancer.snapshot(rig.now).replicas[0].held;
    let after = restored(&export(&mut before, 10, |_| {}), specs(1), Duration::ZERO);
    assert_eq!((held(&after).active, held(&after).idle), (1, 1));
    let later = restored(&export(&mut before, 10, |_| {}), specs(1), ACTIVE_WINDOW * 2);
    assert_eq!((held(&later).active, held(&later).idle), (0, 2));
}

#[test]
fn what_was_pinned_to_a_replica_that_is_gone_is_forgotten_and_a_new_name_makes_no_new_engine() {
    let mut before = Rig::new(3, policy());
    let homes: Vec<_> = (0..6).map(|number| before.turn(number).replica).collect();
    let renamed = ReplicaSpec { name: "other".into(), ..spec(1) };
    let kept = export(&mut before, 100, |_| {});
    let mut after = restored(&kept, vec![renamed, spec(2)], Duration::ZERO);
    assert_eq!(after.balancer.conversations(100, after.now).len(), 4, "two were on the first one");
    for (number, home) in homes.into_iter().enumerate().filter(|(_, home)| *home != id(0)) {
        let done = after.turn(number as u64);
        assert_eq!((done.replica.index(), done.decision), (home.index() - 1, Decision::Sticky));
    }
}

#[test]
fn a_replica_at_another_address_keeps_its_conversations_only_if_its_engine_is_the_same() {
    let moved = || ReplicaSpec { name: spec(0).name, ..spec(9) };
    for (start_s, told, decision) in [
        (Some(5.0), Some(5.0), Decision::Sticky),
        (Some(5.0), Some(6.0), Decision::Placed { reason: Placement::HomeRestarted }),
        (None, None, Decision::Placed { reason: Placement::HomeRestarted }),
    ] {
        let mut before = Rig::new(1, policy());
        scrape(&mut before, 0, start_s, 10);
        before.turn(1);
        let mut after = restored(&export(&mut before, 100, |_| {}), vec![moved()], Duration::ZERO);
        scrape(&mut after, 0, told, 11);
        assert_eq!(after.turn(1).decision, decision, "{start_s:?} {told:?}");
    }
}

#[test]
fn a_restart_that_nobody_watched_costs_the_pins_their_claim() {
    let restarted = Decision::Placed { reason: Placement::HomeRestarted };
    for (was, is, decision) in [
        ((Some(5.0), 100), (Some(5.0), 120), Decision::Sticky),
        ((Some(5.0), 100), (Some(7.0), 120), restarted),
        ((None, 100), (None, 120), Decision::Sticky),
        ((None, 100), (None, 20), restarted),
    ] {
        let mut before = Rig::new(1, policy());
        scrape(&mut before, 0, was.0, was.1);
        before.turn(1);
        let kept = export(&mut before, 100, |_| {});
        let mut looked_at_later = restored(&kept, specs(1), Duration::ZERO);
        scrape(&mut looked_at_later, 0, is.0, is.1);
        assert_eq!(looked_at_later.turn(1).decision, decision, "{was:?} {is:?}");
        let mut looked_at_before = restored(&(Vec::new(), Vec::new()), specs(1), Duration::ZERO);
        scrape(&mut looked_at_before, 0, is.0, is.1);
        give(&mut looked_at_before, &kept, Duration::ZERO);
        assert_eq!(looked_at_before.turn(1).decision, decision, "{was:?} {is:?}");
    }
}

#[test]
fn a_replica_that_was_not_looked_at_since_is_still_known_by_what_it_was_known_by() {
    let mut before = Rig::new(1, policy());
    scrape(&mut before, 0, Some(5.0), 100);
    before.turn(1);
    let mut between = restored(&export(&mut before, 100, |_| {}), specs(1), Duration::ZERO);
    let mut after = restored(&export(&mut between, 100, |_| {}), specs(1), Duration::ZERO);
    scrape(&mut after, 0, Some(6.0), 100);
    assert_eq!(after.turn(1).decision, Decision::Placed { reason: Placement::HomeRestarted });
}

#[test]
fn a_lost_claim_stays_lost() {
    let mut before = Rig::new(1, policy());
    scrape(&mut before, 0, Some(5.0), 100);
    before.turn(1);
    scrape(&mut before, 0, Some(6.0), 1);
    before.turn(2);
    let mut after = restored(&export(&mut before, 100, |_| {}), specs(1), Duration::ZERO);
    assert_eq!(after.balancer.snapshot(after.now).replicas[0].held.lost, 1);
    assert_eq!(after.turn(1).decision, Decision::Placed { reason: Placement::HomeRestarted });
    assert_eq!(after.turn(2).decision, Decision::Sticky);
}

#[test]
fn an_operators_order_outlives_the_process() {
    let mut before = Rig::new(2, policy());
    before.balancer.order(id(1), Order::Drain, before.now);
    let after = restored(&export(&mut before, 100, |_| {}), specs(2), Duration::ZERO);
    let drains = after.balancer.snapshot(after.now).replicas.iter().map(|replica| replica.drain).collect::<Vec<_>>();
    assert_eq!(drains, [None, Some(DrainReason::Ordered)]);
}

#[test]
fn a_conversation_whose_first_turn_is_still_running_is_taken_along() {
    let mut before = Rig::new(2, policy());
    let running = before.arrive(1);
    let home = running.replica;
    let mut after = restored(&export(&mut before, 100, |_| {}), specs(2), Duration::ZERO);
    before.complete(running);
    let next = after.turn(1);
    assert_eq!((next.replica, next.decision), (home, Decision::Sticky));
}

#[test]
fn what_the_old_process_serves_meanwhile_reaches_the_new_one_and_what_that_knows_better_stays() {
    let mut old = Rig::new(3, policy());
    for number in 0..3 {
        old.turn(number);
    }
    let kept = export(&mut old, 100, |_| {});
    let mut new = restored(&kept, specs(3), Duration::ZERO);
    let restore = new.balancer.begin_restore(&kept.0, Duration::ZERO, new.now);
    let since = old.now;
    old.now += SECOND;
    new.now += SECOND;
    let begun = old.turn(50);
    let in_flight = new.arrive(1);
    old.turn(1);
    for records in old.balancer.export_since(since, 100, old.now) {
        new.balancer.restore(&restore, &records, new.now);
        new.balancer.check_invariants();
    }
    assert_eq!(new.turn(50).replica, begun.replica);
    assert_eq!(new.turn(50).decision, Decision::Sticky);
    new.complete(in_flight);
    let newest = new.balancer.conversations(1, new.now);
    assert_eq!(newest[0].in_flight, 0, "its own turn was counted on");
}

#[test]
fn a_smaller_table_keeps_what_was_used_last() {
    let mut before = Rig::new(2, policy());
    for number in 0..100 {
        before.now += SECOND;
        before.turn(number);
    }
    let kept = export(&mut before, 7, |_| {});
    let small = Policy { bounds: Bounds { entries_max: 10, ..policy().bounds }, ..policy() };
    let mut after = Rig { balancer: Balancer::new(small, specs(2), BEGIN), now: BEGIN };
    give(&mut after, &kept, Duration::ZERO);
    let newest: Vec<_> = after.balancer.conversations(100, after.now).iter().map(|pin| pin.key.0).collect();
    assert_eq!(newest, (90..100).rev().collect::<Vec<_>>());
}

#[test]
fn a_record_comes_out_as_it_went_in() {
    let mut before = Rig::new(1, policy());
    let home = before.turn(1).replica;
    *before.balancer.replicas.books(home).computed = 1_000;
    let tokens = Some(Tokens { prompt: 9_000, completion: 300, mark: 400, was_spilled: true });
    let pin = PinRecord {
        key: RawKey::from(ConversationKey(9)),
        replica: 0,
        parent: Some(RawKey::from(ConversationKey(1))),
        joined: true,
        has_claim: true,
        tokens,
        age_ms: 5,
    };
    let (replicas, mut parts) = export(&mut before, 100, |_| {});
    parts.insert(0, Records::Pins(vec![pin]));
    let mut after = restored(&(replicas, parts), specs(1), Duration::ZERO);
    assert_eq!(after.balancer.snapshot(after.now).replicas[0].held.active_tokens, 9_300);
    let (replicas, parts) = export(&mut after, 100, |_| {});
    assert_eq!(replicas[0].computed, 1_000);
    assert!(parts.iter().any(|records| matches!(records, Records::Pins(pins) if pins.contains(&pin))), "{parts:?}");
}

#[test]
fn every_change_of_what_is_kept_shows() {
    let mut rig = Rig::new(2, policy());
    let mut last = rig.balancer.changes();
    let mut changed = |rig: &Rig| std::mem::replace(&mut last, rig.balancer.changes()) != last;
    scrape(&mut rig, 0, Some(1.0), 1);
    assert!(!changed(&rig), "a scrape");
    rig.turn(1);
    assert!(changed(&rig), "a turn");
    rig.balancer.order(id(0), Order::Drain, rig.now);
    assert!(changed(&rig), "an order");
    scrape(&mut rig, 0, Some(2.0), 1);
    assert!(changed(&rig), "a restart");
    rig.balancer.reconfigure(policy(), specs(1), rig.now);
    assert!(changed(&rig), "a reload");
}

/// Few keys, so that records meet each other.
fn records() -> impl Strategy<Value = Records> {
    let key = || (0..12u64).prop_map(|key| RawKey::from(ConversationKey(key)));
    let age = || prop_oneof![0..200_000u64, Just(u64::MAX), 0..9_000_000u64];
    let tokens = prop::option::of(
        (any::<u32>(), any::<u16>(), any::<u32>(), any::<bool>())
            .prop_map(|(prompt, completion, mark, was_spilled)| Tokens { prompt, completion, mark, was_spilled }),
    );
    let pin = (key(), 0..6u16, prop::option::of(key()), any::<bool>(), any::<bool>(), tokens, age()).prop_map(
        |(key, replica, parent, joined, has_claim, tokens, age_ms)| PinRecord {
            key,
            replica,
            parent,
            joined,
            has_claim,
            tokens,
            age_ms,
        },
    );
    let alias =
        (key(), key(), age()).prop_map(|(name, conversation, age_ms)| AliasRecord { name, conversation, age_ms });
    let part = prop_oneof![Just(PartRecord::Beginning), Just(PartRecord::End), Just(PartRecord::Answer)];
    let history = (key(), key(), prop::option::of(key()), any::<u32>(), any::<bool>(), part, any::<u8>(), age())
        .prop_map(|(link, conversation, extended_by, text_bytes, is_named, part, behind_answer, age_ms)| {
            HistoryRecord { link, conversation, extended_by, text_bytes, is_named, part, behind_answer, age_ms }
        });
    prop_oneof![
        prop::collection::vec(pin, 0..20).prop_map(Records::Pins),
        prop::collection::vec(alias, 0..20).prop_map(Records::Aliases),
        prop::collection::vec(history, 0..20).prop_map(Records::Histories),
    ]
}

fn signs() -> impl Strategy<Value = Option<Signs>> {
    let signs = (prop::option::of(0..3u8), prop::option::of(0..4u64), 0..2u16).prop_map(|(start, steps, engines)| {
        Signs { start_s: start.map(f64::from), steps, engines, ..Signs::default() }
    });
    prop::option::of(signs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn whatever_records_say_the_parts_agree_and_turns_are_served(
        names in prop::collection::vec((0..6usize, 0..6usize, any::<bool>(), signs()), 0..6),
        parts in prop::collection::vec(records(), 0..12),
        downtime_ms in prop_oneof![Just(0), 0..5_000_000u64, Just(u64::MAX)],
        seen in signs(),
        requests in prop::collection::vec((0..12u64, 0..100_000u64), 0..30),
    ) {
        let replicas: Vec<_> = names
            .into_iter()
            .map(|(name, address, is_ordered_to_drain, signs)| {
                let address = spec(address).address;
                ReplicaRecord { name: spec(name).name, address, rank: None, is_ordered_to_drain, computed: 5, signs }
            })
            .collect();
        let bounds = Bounds { entries_max: 8, ..policy().bounds };
        let mut rig = Rig { balancer: Balancer::new(Policy { bounds, ..policy() }, specs(3), BEGIN), now: BEGIN };
        if let Some(signs) = seen {
            rig.balancer.scraped(id(0), Scrape { at: rig.now, signs, ..Scrape::default() });
        }
        give(&mut rig, &(replicas, parts), Duration::from_millis(downtime_ms));
        prop_assert!(rig.balancer.snapshot(rig.now).conversations <= 8);
        for (conversation, later_ms) in requests {
            rig.now += Duration::from_millis(later_ms);
            if let Ok(ticket) = rig.try_arrive(&turn(conversation)) {
                rig.complete(ticket);
            }
        }
    }

    #[test]
    fn an_export_among_turns_has_every_conversation_that_stays(
        turns in prop::collection::vec((0..40u64, 0..90_000u64), 1..120),
        max in 1..20usize,
        // Less than a minute in all.
        meanwhile in prop::collection::vec((0..40u64, 1..1_000u64), 0..59),
    ) {
        let mut before = Rig::new(3, policy());
        for (conversation, later_ms) in turns {
            before.now += Duration::from_millis(later_ms);
            before.turn(conversation);
        }
        let pins = |rig: &Rig| {
            let pins = rig.balancer.conversations(usize::MAX, rig.now);
            let known = pins.iter().filter(|pin| rig.balancer.knows(pin.key, rig.now));
            known.map(|pin| (pin.key, pin.replica)).collect::<BTreeMap<_, _>>()
        };
        let at_first = pins(&before);
        let mut meanwhile = meanwhile.into_iter();
        let kept = export(&mut before, max, |rig| {
            for (conversation, later_ms) in meanwhile.by_ref().take(2) {
                rig.now += Duration::from_millis(later_ms);
                rig.turn(conversation);
            }
        });
        let after = pins(&restored(&kept, specs(3), Duration::ZERO));
        // One that was forgotten meanwhile may have begun anew elsewhere.
        for (key, replica) in pins(&before).into_iter().filter(|(key, replica)| at_first.get(key) == Some(replica)) {
            prop_assert_eq!(after.get(&key), Some(&replica), "{}", key);
        }
    }
}
