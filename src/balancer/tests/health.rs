//! What a replica's health follows from, and what follows from it.

use super::*;

const REFUSED: Evidence = Evidence::Unreachable(DownReason::ConnectRefused);

impl Rig {
    fn see(&mut self, replica: usize, evidence: Evidence) -> Health {
        self.balancer.observe(id(replica), evidence, self.now);
        self.balancer.check_invariants();
        self.health(replica)
    }

    fn see_times(&mut self, times: usize, replica: usize, evidence: Evidence) {
        for _ in 0..times {
            self.see(replica, evidence);
        }
    }

    fn health(&self, replica: usize) -> Health {
        self.balancer.snapshot(self.now).replicas[replica].health
    }

    /// A scrape that shows so many requests and steps.
    fn scrape(&mut self, replica: usize, running: u32, steps: u64) -> Health {
        let signs = Signs { steps: Some(steps), start_s: Some(1.0), engines: 1, ..Signs::default() };
        self.scraped(replica, Scrape { running, signs, ..Scrape::default() })
    }

    fn scraped(&mut self, replica: usize, scrape: Scrape) -> Health {
        self.balancer.scrape_begins(id(replica));
        self.balancer.scraped(id(replica), Scrape { at: self.now, ..scrape });
        self.balancer.check_invariants();
        self.health(replica)
    }

    fn restarts(&self, replica: usize) -> u64 {
        self.balancer.snapshot(self.now).replicas[replica].counters.restarts
    }

    /// Brings a replica down and up again, with its cache as it was.
    fn recover(&mut self, replica: usize) {
        self.see_times(3, replica, Evidence::ProbeFailed);
        assert_eq!(self.health(replica), Health::Down(DownReason::ProbeFailed));
        self.see_times(2, replica, Evidence::Answered);
        assert_eq!(self.health(replica), Health::Up);
    }
}

fn probe_failed() -> (Health, Health) {
    (Health::Suspect(DownReason::ProbeFailed), Health::Down(DownReason::ProbeFailed))
}

#[test]
fn evidence_counts_in_a_row_both_ways() {
    use Evidence::{Answered, BrokeOff, Failing, ProbeFailed, Served};
    let (suspect, down) = probe_failed();
    let (broke, failing) = (DownReason::BrokeOff, DownReason::Failing);
    let tables: [&[(Evidence, Health)]; 5] = [
        &[(Answered, Health::Up), (ProbeFailed, suspect), (ProbeFailed, suspect), (Answered, Health::Up)],
        &[(ProbeFailed, suspect), (ProbeFailed, suspect), (ProbeFailed, down), (Answered, down), (ProbeFailed, down)],
        &[
            (ProbeFailed, suspect),
            (ProbeFailed, suspect),
            (ProbeFailed, down),
            (Answered, down),
            (Answered, Health::Up),
        ],
        // Probes that are answered well don't speak for an engine that breaks turns off, until there were enough of them.
        &[
            (BrokeOff, Health::Suspect(broke)),
            (Answered, Health::Suspect(broke)),
            (BrokeOff, Health::Suspect(broke)),
            (Answered, Health::Suspect(broke)),
            (Answered, Health::Up),
        ],
        &[
            (Failing, Health::Suspect(failing)),
            (Failing, Health::Suspect(failing)),
            (Failing, Health::Down(failing)),
            (Served, Health::Up),
        ],
    ];
    for table in tables {
        let mut rig = Rig::new(1, policy());
        for (evidence, health) in table {
            assert_eq!(rig.see(0, *evidence), *health, "after {evidence:?} of {table:?}");
        }
    }
}

#[test]
fn where_nothing_listens_a_replica_is_down_at_once_whatever_it_was_busy_with() {
    let mut rig = Rig::new(2, policy());
    let ticket = rig.arrive(0);
    let replica = ticket.replica.index();
    assert_eq!(rig.see(replica, REFUSED), Health::Down(DownReason::ConnectRefused));
    assert_eq!(rig.see(replica, Evidence::Served), Health::Down(DownReason::ConnectRefused), "what runs there may end");
    rig.end(ticket, Outcome::Failed);
}

#[test]
fn a_suspect_keeps_its_conversations_and_gets_no_new_ones_while_another_is_up() {
    let mut rig = Rig::new(2, policy());
    let home = rig.turn(0).replica;
    rig.see(home.index(), Evidence::ProbeFailed);
    assert_eq!(rig.turn(0).decision, Decision::Sticky);
    for n in 1..8 {
        assert_ne!(rig.turn(n).replica, home);
    }
    for n in 0..2 {
        rig.balancer.set_health(id(n), Health::Suspect(DownReason::ProbeFailed), rig.now);
    }
    rig.turn(9);
}

#[test]
fn a_busy_replica_is_not_taken_down_by_probes_however_many_fail() {
    let mut rig = Rig::new(1, policy());
    let ticket = rig.arrive(0);
    for second in 0..600 {
        rig.now += SECOND;
        if second % 20 == 0 {
            rig.scrape(0, 1, second);
        }
        assert_eq!(rig.see(0, Evidence::ProbeFailed), Health::Suspect(DownReason::ProbeFailed));
    }
    // Its figures don't come either, but bytes do.
    for _ in 0..600 {
        rig.now += SECOND;
        rig.balancer.scrape_failed(id(0), rig.now);
        rig.see(0, Evidence::ProbeFailed);
        assert!(!matches!(rig.see(0, Evidence::Served), Health::Down(_)));
    }
    rig.end(ticket, Outcome::Completed);
    for _ in 0..3 {
        rig.see(0, Evidence::ProbeFailed);
    }
    rig.scrape(0, 0, 700);
    for _ in 0..3 {
        rig.see(0, Evidence::ProbeFailed);
    }
    assert_eq!(rig.health(0), Health::Down(DownReason::ProbeFailed), "idle, it is judged by its probes");
}

#[test]
fn a_replica_with_requests_and_neither_a_step_nor_a_byte_is_hung_though_its_probes_are_answered() {
    for scrapes_come in [true, false] {
        let mut rig = Rig::new(1, policy());
        rig.scrape(0, 0, 10);
        let ticket = rig.arrive(0);
        let mut healths = Vec::new();
        for _ in 0..31 {
            rig.now += SECOND;
            if scrapes_come {
                rig.scrape(0, 0, 10);
            } else {
                rig.balancer.scrape_failed(id(0), rig.now);
            }
            healths.push(rig.see(0, Evidence::Answered));
        }
        let (suspect, hung) = (Health::Suspect(DownReason::Hung), Health::Down(DownReason::Hung));
        assert_eq!((healths[13], healths[14], healths[28], healths[29]), (Health::Up, suspect, suspect, hung));
        (0..100).for_each(|_| assert_eq!(rig.see(0, Evidence::Answered), hung));
        assert_eq!(rig.scrape(0, 1, 11), Health::Up, "a step brings it back");
        assert_eq!(rig.restarts(0), 0);
        rig.end(ticket, Outcome::Completed);
    }
}

#[test]
fn a_long_prefill_is_not_hung_while_its_blocks_grow() {
    let mut rig = Rig::new(1, policy());
    let ticket = rig.arrive(0);
    for second in 0..100 {
        rig.now += SECOND;
        let signs = Signs { steps: Some(5), ..Signs::default() };
        let kv_use = f64::from(second / 5) / 100.0;
        let health = rig.scraped(0, Scrape { running: 1, kv_use, signs, ..Scrape::default() });
        assert!(!matches!(health, Health::Down(_) | Health::Suspect(_)), "{health:?}");
    }
    rig.end(ticket, Outcome::Completed);
}

#[test]
fn silence_is_no_evidence_where_no_step_could_be_seen_or_nothing_is_asked() {
    let mut rig = Rig::new(1, policy());
    let ticket = rig.arrive(0);
    for _ in 0..600 {
        rig.now += SECOND;
        rig.scraped(0, Scrape { running: 1, ..Scrape::default() });
        assert_eq!(rig.see(0, Evidence::Answered), Health::Up, "a version whose series have other names");
    }
    rig.end(ticket, Outcome::Completed);
    for _ in 0..600 {
        rig.now += SECOND;
        assert_eq!(rig.scrape(0, 0, 3), Health::Up, "an idle engine makes no steps");
    }
}

#[test]
fn turns_that_are_given_up_one_after_the_other_show_a_hung_engine_too() {
    let mut rig = Rig::new(1, policy());
    rig.scrape(0, 0, 10);
    let mut turns = 0;
    while !matches!(rig.health(0), Health::Down(_)) {
        let ticket = rig.arrive(turns);
        rig.now += SECOND * 7;
        rig.scrape(0, 0, 10);
        rig.end(ticket, Outcome::Abandoned);
        rig.now += SECOND * 60;
        rig.scrape(0, 0, 10);
        turns += 1;
    }
    assert_eq!(turns, 5);
    // With nothing to wait for, it is tried again after a while.
    rig.see_times(2, 0, Evidence::Answered);
    assert_eq!(rig.health(0), Health::Up);
}

#[test]
fn one_that_goes_down_again_soon_has_to_show_itself_for_longer() {
    let mut rig = Rig::new(1, policy());
    rig.recover(0);
    rig.now += SECOND;
    rig.see_times(3, 0, Evidence::ProbeFailed);
    for _ in 0..3 {
        assert_eq!(rig.see(0, Evidence::Answered), Health::Down(DownReason::ProbeFailed));
    }
    assert_eq!(rig.see(0, Evidence::Answered), Health::Up);
    rig.now += SECOND * 61;
    rig.recover(0);
}

#[test]
fn a_restart_is_seen_by_start_time_by_counters_and_by_a_refused_connection() {
    let signs = |start_s, steps| Signs { start_s, steps, engines: 1, ..Signs::default() };
    let scrape = |signs| Scrape { signs, ..Scrape::default() };
    let (same, other) = (signs(Some(1.0), Some(50)), signs(Some(2.0), Some(60)));
    let nothing = |_: &mut Rig| {};
    let refuse = |rig: &mut Rig| rig.see_times(1, 0, REFUSED);
    type Meanwhile = dyn Fn(&mut Rig);
    let cases: [(&Meanwhile, Signs, u64); 7] = [
        (&nothing, same, 0),
        (&nothing, other, 1),
        (&nothing, signs(None, Some(49)), 1),
        (&nothing, signs(None, None), 0),
        (&nothing, signs(None, Some(51)), 0),
        (&refuse, signs(None, Some(51)), 1),
        (&refuse, same, 0),
    ];
    // Whichever comes first of a good probe and the new figures.
    for ((meanwhile, then, restarts), probes_before) in cases.iter().flat_map(|case| [(case, 0), (case, 2)]) {
        let mut rig = Rig::new(1, policy());
        rig.scraped(0, scrape(same));
        meanwhile(&mut rig);
        rig.see_times(probes_before, 0, Evidence::Answered);
        rig.scraped(0, scrape(*then));
        rig.see(0, Evidence::Answered);
        assert_eq!(rig.restarts(0), *restarts, "{then:?} after {probes_before} probes");
    }
    let mut rig = Rig::new(1, policy());
    rig.see(0, Evidence::Answered);
    rig.see(0, REFUSED);
    rig.see(0, Evidence::Answered);
    assert_eq!(rig.restarts(0), 1, "one without figures");
}

#[test]
fn after_a_restart_each_conversation_is_placed_anew_with_its_next_turn_and_the_replica_is_not_stampeded() {
    let mut rig = Rig::new(4, Policy { max_num_seqs: Some(64), ..policy() });
    let homes: Vec<_> = (0..400).map(|n| rig.turn(n).replica).collect();
    rig.scrape(0, 0, 10);
    rig.scrape(0, 0, 3);
    let held = |rig: &Rig| rig.balancer.snapshot(rig.now).replicas[0].held;
    assert_eq!((held(&rig).active, held(&rig).lost), (0, 100));
    let lost: Vec<_> = (0..400).filter(|n| homes[*n as usize] == id(0)).collect();
    let mut running = Vec::new();
    for n in &lost {
        let ticket = rig.arrive(*n);
        assert_eq!(ticket.decision, Decision::Placed { reason: Placement::HomeRestarted });
        running.push(ticket);
    }
    let back = running.iter().filter(|ticket| ticket.replica == id(0)).count();
    assert!((1..=3).contains(&back), "{back} of 100 cold prefills at once");
    running.into_iter().for_each(|ticket| rig.complete(ticket));
    assert_eq!(held(&rig).lost, 0);
    for n in lost {
        assert_eq!(rig.turn(n).decision, Decision::Sticky);
    }
    // When it is as warm as any, it is the one with the fewest conversations, and gets new ones.
    rig.now += SECOND * 30;
    assert!((1000..1010).all(|n| rig.turn(n).replica == id(0)));
}

#[test]
fn a_replica_that_came_back_gets_a_growing_share_of_what_is_new() {
    let mut rig = Rig::new(2, Policy { max_num_seqs: Some(64), ..policy() });
    rig.recover(0);
    let mut shares = Vec::new();
    for _ in 0..4 {
        let running: Vec<_> = (0..20).map(|n| rig.arrive(rig.now.as_secs() * 100 + n)).collect();
        shares.push(running.iter().filter(|ticket| ticket.replica == id(0)).count());
        running.into_iter().for_each(|ticket| rig.end(ticket, Outcome::Abandoned));
        rig.now += SECOND * 10;
    }
    assert!(shares.is_sorted() && shares[0] <= 2 && shares[1] > 2 && shares[3] == 10, "{shares:?}");
}

#[test]
fn a_sleeping_engine_is_asked_nothing_and_has_no_cache_when_it_wakes() {
    let mut rig = Rig::new(2, policy());
    let home = rig.turn(0).replica.index();
    let asleep =
        |is_asleep| Scrape { signs: Signs { is_asleep: Some(is_asleep), ..Signs::default() }, ..Scrape::default() };
    assert_eq!(rig.scraped(home, asleep(true)), Health::Sleeping);
    (0..5).for_each(|_| assert_eq!(rig.see(home, Evidence::Answered), Health::Sleeping));
    let moved = rig.turn(0);
    assert_eq!(moved.decision, Decision::Placed { reason: Placement::HomeSleeping });
    assert_eq!(rig.scraped(home, asleep(false)), Health::Up);
    assert_eq!(rig.restarts(home), 0);
    assert!(rig.balancer.snapshot(rig.now).replicas[home].ramp_percent < 100);
}

#[test]
fn an_engine_that_shuts_down_is_left_alone_until_it_is_another_one() {
    let mut rig = Rig::new(2, policy());
    rig.scrape(0, 0, 10);
    let draining = Health::Draining(DrainReason::ShuttingDown);
    assert_eq!(rig.see(0, Evidence::Draining), draining);
    (0..5).for_each(|_| assert_eq!(rig.see(0, Evidence::Answered), draining));
    assert_eq!(rig.see(0, Evidence::Served), draining, "what runs there goes on");
    let signs = Signs { start_s: Some(2.0), ..Signs::default() };
    assert_eq!(rig.scraped(0, Scrape { signs, ..Scrape::default() }), Health::Up);
    rig.see(0, Evidence::Draining);
    rig.now += SECOND * 61;
    assert_eq!(rig.see(0, Evidence::Answered), Health::Suspect(DownReason::Failing), "it goes on to live");
}

#[test]
fn a_draining_replica_finishes_what_runs_and_its_conversations_move_with_their_next_turn() {
    let mut rig = Rig::new(2, policy());
    let home = rig.turn(0).replica;
    let running = rig.arrive(0);
    assert_eq!(rig.balancer.order(home, Order::Drain, rig.now), Ordered::Done);
    assert_eq!(rig.health(home.index()), Health::Draining(DrainReason::Ordered));
    for n in 1..9 {
        assert_ne!(rig.turn(n).replica, home);
    }
    let moved = rig.turn(0);
    assert_eq!(moved.decision, Decision::Placed { reason: Placement::HomeDraining });
    rig.balancer.take_news();
    let spec = Arc::clone(&rig.balancer.snapshot(rig.now).replicas[home.index()].spec);
    rig.complete(running);
    assert_eq!(rig.balancer.take_news(), [News::Drained { replica: spec }]);
    let pinned = rig.try_arrive(&Turn { client_pin: Some(home), ..turn(0) });
    assert_eq!(pinned.err(), Some(Refusal::ClientPinDown));
    // A reload that says nothing of it leaves the order as it is.
    rig.balancer.reconfigure(policy(), vec![spec_of(0, false), spec_of(1, false)], rig.now);
    assert_eq!(rig.health(home.index()), Health::Draining(DrainReason::Ordered));
    assert_eq!(rig.balancer.order(home, Order::Undrain, rig.now), Ordered::Done);
    assert_eq!(rig.health(home.index()), Health::Up);
    assert_eq!(rig.turn(0).replica, moved.replica, "it stays where it was served");
}

#[test]
fn what_the_configuration_drains_only_the_configuration_takes_back() {
    let mut rig = Rig::new(2, policy());
    rig.balancer.reconfigure(policy(), vec![spec_of(0, true), spec_of(1, false)], rig.now);
    assert_eq!(rig.health(0), Health::Draining(DrainReason::Configured));
    assert_eq!(rig.balancer.order(id(0), Order::Undrain, rig.now), Ordered::Configured);
    assert_eq!(rig.balancer.order(id(7), Order::Drain, rig.now), Ordered::NoReplica);
    rig.balancer.reconfigure(policy(), vec![spec_of(0, false), spec_of(1, false)], rig.now);
    assert_eq!(rig.health(0), Health::Unknown);
}

#[test]
fn an_outage_says_what_is_wrong_with_each_replica() {
    let mut rig = Rig::new(4, policy());
    rig.see(0, REFUSED);
    rig.balancer.order(id(1), Order::Drain, rig.now);
    rig.balancer.set_health(id(2), Health::Down(DownReason::Hung), rig.now);
    rig.balancer.set_health(id(3), Health::Sleeping, rig.now);
    rig.now += SECOND * 12;
    assert_eq!(rig.try_arrive(&turn(0)).err(), Some(Refusal::NoReplicaUp));
    let said = rig.balancer.outage(rig.now).to_string();
    assert_eq!(said, "r0 down (connection refused) for 12 s, r1 draining, r2 down (hung) for 12 s, r3 sleeping");
}

#[test]
fn every_change_is_news_once_with_how_long_it_was_otherwise() {
    let mut rig = Rig::new(1, policy());
    rig.see(0, Evidence::Answered);
    rig.balancer.take_news();
    rig.now += SECOND * 5;
    rig.see(0, REFUSED);
    rig.see(0, REFUSED);
    let news = rig.balancer.take_news();
    let [News::Changed { was: Health::Up, is: Health::Down(DownReason::ConnectRefused), after, .. }] = news.as_slice()
    else {
        panic!("{news:?}")
    };
    assert_eq!(*after, SECOND * 5);
    assert_eq!(rig.balancer.take_news(), []);
}

#[test]
fn a_kv_gauge_that_is_stuck_without_requests_is_not_believed() {
    let mut rig = Rig::new(2, policy());
    for replica in 0..2 {
        rig.scraped(replica, Scrape { kv_use: if replica == 0 { 0.9 } else { 0.0 }, ..Scrape::default() });
    }
    assert_eq!(rig.turn(0).replica, id(0));
}

fn spec_of(index: usize, drain: bool) -> ReplicaSpec {
    ReplicaSpec { drain, ..spec(index) }
}
