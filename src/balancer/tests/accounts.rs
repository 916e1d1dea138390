//! What turns cost is booked where they were served, and what came back colder than it was left has a reason.

use super::*;

fn measured(prompt: u64, cached: u64) -> Cost {
    Cost { request_bytes: 4 * prompt, prompt: Some(prompt), cached: Some(cached), completion: 100, asks: false }
}

/// One whole turn of a conversation, and what it was billed.
fn turn(rig: &mut Rig, n: u64, cost: Cost) -> (Decision, Bill) {
    let mut ticket = rig.arrive(n);
    rig.balancer.served(&mut ticket, rig.now);
    let decision = ticket.decision;
    let bill = rig.balancer.charge(&ticket, &cost, rig.now);
    rig.end(ticket, Outcome::Completed);
    (decision, bill)
}

fn cold(bill: &Bill) -> Option<ColdReason> {
    bill.cold.map(|cold| cold.reason)
}

/// A replica whose cache holds 50,000 tokens.
fn scraped(rig: &mut Rig, index: usize) {
    let scrape = Scrape { at: rig.now, kv_capacity_tokens: 50_000, ..Scrape::default() };
    rig.balancer.scraped(id(index), scrape);
}

#[test]
fn the_books_add_up_and_a_warm_turn_is_not_cold() {
    let mut rig = Rig::new(1, policy());
    scraped(&mut rig, 0);
    assert_eq!(turn(&mut rig, 0, measured(10_000, 0)).1.cold, None, "a first turn has lost nothing");
    let (decision, bill) = turn(&mut rig, 0, measured(10_500, 10_000));
    assert_eq!((decision, bill.cached, bill.computed, bill.cold), (Decision::Sticky, 10_000, 500, None));
    let ledger = rig.balancer.snapshot(rig.now).replicas[0].ledger;
    assert_eq!((ledger.cached, ledger.computed, ledger.completion), (10_000, 10_500, 200));
    assert_eq!((ledger.measured_turns, ledger.unmeasured_turns), (2, 0));
}

#[test]
fn a_history_that_had_room_was_changed_by_its_client_and_one_that_had_none_was_evicted() {
    let mut rig = Rig::new(1, policy());
    scraped(&mut rig, 0);
    turn(&mut rig, 0, measured(10_000, 0));
    let (_, changed) = turn(&mut rig, 0, measured(10_500, 2_000));
    assert_eq!(cold(&changed), Some(ColdReason::PrefixChanged));
    assert_eq!(changed.cold.map(|cold| (cold.tokens, cold.survived)), Some((8_000, 2_000)));
    for other in 1..5 {
        turn(&mut rig, other, measured(10_000, 0));
    }
    let (_, evicted) = turn(&mut rig, 0, measured(11_000, 0));
    assert_eq!(cold(&evicted), Some(ColdReason::Evicted));
}

#[test]
fn a_spill_costs_where_it_lands_and_again_at_home() {
    let mut rig = Rig::new(2, Policy { spill_threshold: SpillThreshold::Fixed(1), ..policy() });
    (0..2).for_each(|index| scraped(&mut rig, index));
    turn(&mut rig, 0, measured(10_000, 0));
    let held = rig.arrive(0);
    let (decision, away) = turn(&mut rig, 0, measured(10_500, 0));
    assert!(matches!(decision, Decision::Spilled { .. }));
    assert_eq!(cold(&away), Some(ColdReason::Spilled));
    rig.complete(held);
    let (decision, home) = turn(&mut rig, 0, measured(12_000, 5_000));
    assert_eq!((decision, cold(&home)), (Decision::Sticky, Some(ColdReason::Spilled)));
    let (_, warm) = turn(&mut rig, 0, measured(12_500, 12_000));
    assert_eq!(cold(&warm), None);
    let lines = rig.balancer.snapshot(rig.now).replicas.into_iter().flat_map(|replica| {
        replica.ledger.cold().filter(|(_, line)| line.turns > 0).map(|(_, line)| line.tokens).collect::<Vec<_>>()
    });
    assert_eq!(lines.sum::<u64>(), 10_000 + 5_500);
}

#[test]
fn a_turn_that_was_not_measured_is_estimated_from_its_bytes_and_leaves_no_length() {
    let mut rig = Rig::new(1, policy());
    scraped(&mut rig, 0);
    let silent = Cost { request_bytes: 40_000, completion: 7, ..Cost::default() };
    let (_, bill) = turn(&mut rig, 0, silent);
    assert_eq!(bill, Bill { computed: 10_000, completion: 7, ..Bill::default() });
    let (_, next) = turn(&mut rig, 0, measured(10_500, 0));
    assert_eq!(next.cold, None, "nobody knows how long it was");
    let untold = Cost { cached: None, ..measured(11_000, 0) };
    let (_, bill) = turn(&mut rig, 0, untold);
    assert_eq!((bill.computed, bill.is_measured, bill.cold), (11_000, true, None));
    let ledger = rig.balancer.snapshot(rig.now).replicas[0].ledger;
    assert_eq!((ledger.estimated, ledger.unmeasured_turns, ledger.untold_turns), (10_000, 1, 1));
}

#[test]
fn a_turn_that_belongs_to_no_conversation_is_paid_for_and_judged_by_none() {
    let mut rig = Rig::new(1, policy());
    scraped(&mut rig, 0);
    turn(&mut rig, 0, measured(10_000, 0));
    let side = Turn { kind: TurnKind::Side, ..super::turn(0) };
    let ticket = rig.balancer.arrive(&side, rig.now).expect("a replica");
    let bill = rig.balancer.charge(&ticket, &measured(300, 0), rig.now);
    rig.balancer.finish(ticket, Outcome::Completed, rig.now);
    assert_eq!(bill.cold, None);
    let (_, warm) = turn(&mut rig, 0, measured(10_500, 10_000));
    assert_eq!(warm.cold, None, "its length is still that of its last turn");
}
