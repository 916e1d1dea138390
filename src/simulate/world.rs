//! One run: agents, a balancer and engines, event by event.

use std::time::Duration;

use super::agent::{Agent, Role};
use super::arm::{self, Arm, Ask};
use super::detail::Detail;
use super::host::{Due, Ended, Host};
use super::queue::Queue;
use super::scenario::{ArmName, Scenario};
use crate::balancer::Cost;
use crate::report::{Ending, Figures, Tally, TurnSeen};
use crate::sim::engine::Engine;
use crate::sim::request::{Outline, TokenEvent};

/// How often replicas are looked at: kvpin's default.
const SCRAPES_APART: Duration = Duration::from_secs(1);
/// How often the line at the door is looked at.
const TICKS_APART: Duration = Duration::from_millis(100);

/// Bytes of a request's body for a token of its prompt.
const BYTES_PER_TOKEN: u64 = 4;

pub struct World<'a> {
    scenario: &'a Scenario,
    seed: u64,
    sessions: u32,
    arm: Box<dyn Arm>,
    hosts: Vec<Host>,
    /// One for each session at a time, and behind them those of subagents.
    seats: Vec<Seat>,
    vacant: Vec<usize>,
    queue: Queue<Event>,
    tally: Tally,
    detail: Detail,
    /// As it was when the measured time began, and how long it was within it.
    busy: Duration,
    /// No more turns begin.
    is_over: bool,
}

struct Seat {
    agent: Agent,
    turn: Option<Flight>,
}

/// A turn under way.
struct Flight {
    /// What the engine is going to be given.
    outline: Option<Outline>,
    arrived: Duration,
    seen: TurnSeen,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// An agent wants its next turn.
    Wish(usize),
    /// The turn has come to the balancer.
    Arrive(usize),
    /// A host's steps end.
    Steps { host: usize, announced: u32 },
    /// All replicas are looked at.
    Scrape,
    /// Time has passed.
    Tick,
    /// The measured time begins.
    Measure,
    /// It is over: no more turns begin.
    End,
    /// What still runs is cut off.
    Cut,
}

impl<'a> World<'a> {
    pub fn new(scenario: &'a Scenario, name: ArmName, sessions: u32, seed: u64) -> anyhow::Result<Self> {
        let engine = scenario.fleet.engine()?;
        let hosts = (0..scenario.fleet.replicas).map(|_| Engine::new(engine.clone()).map(Host::new));
        let window = scenario.window;
        let mut world = World {
            arm: arm::build(name, scenario, seed),
            hosts: hosts.collect::<Result<_, _>>()?,
            seats: Vec::new(),
            vacant: Vec::new(),
            queue: Queue::new(),
            tally: Tally::new(window.warmup(), window.end()).counting_until(window.drained()),
            detail: Detail::new(scenario.fleet.replicas),
            scenario,
            seed,
            sessions,
            busy: Duration::ZERO,
            is_over: false,
        };
        let times = [(window.warmup(), Event::Measure), (window.end(), Event::End), (window.drained(), Event::Cut)];
        times.into_iter().for_each(|(at, event)| world.queue.push(at, event));
        // They were looked at before anybody asked.
        world.queue.push(Duration::ZERO, Event::Scrape);
        world.queue.push(TICKS_APART, Event::Tick);
        let ramp = Duration::from_secs_f64(scenario.workload.ramp_s);
        for seat in 0..sessions {
            let begins = ramp * seat / sessions;
            let agent = Agent::root(&scenario.workload, seed, u64::from(seat), begins);
            world.seats.push(Seat { agent, turn: None });
            world.queue.push(begins, Event::Wish(seat as usize));
        }
        Ok(world)
    }

    /// Runs to the end. `progress` is told the time now and then.
    pub fn run(mut self, progress: &dyn Fn(Duration)) -> (Figures, Detail) {
        while let Some((now, event)) = self.queue.pop() {
            match event {
                Event::Wish(seat) => self.wish(seat, now),
                Event::Arrive(seat) => self.arrive(seat, now),
                Event::Steps { host, announced } => self.end_steps(host, announced, now),
                Event::Scrape => {
                    self.scrape(now);
                    progress(now);
                }
                Event::Tick => {
                    self.arm.tick(now);
                    self.queue.push(now + TICKS_APART, Event::Tick);
                }
                Event::Measure => {
                    self.busy = self.total_busy(now);
                }
                Event::End => {
                    self.busy = self.total_busy(now) - self.busy;
                    self.is_over = true;
                }
                Event::Cut => return self.cut(now),
            }
            self.let_in(now);
        }
        // The queue never runs dry before that: it was there from the start.
        (Figures::default(), Detail::default())
    }

    fn wish(&mut self, seat: usize, now: Duration) {
        if self.is_over {
            return;
        }
        let fleet = &self.scenario.fleet;
        let agent = &mut self.seats[seat].agent;
        let Some(outline) = agent.ask(&self.scenario.workload, fleet.max_model_len, fleet.block_size) else {
            return self.end_session(seat, now);
        };
        let seen = TurnSeen {
            session: agent.number,
            turn: agent.turn(),
            wished: now,
            first_byte: None,
            ended: now,
            ending: Ending::Cut,
            replica: None,
            is_held: Some(false),
            prompt_tokens: outline.prompt_tokens as u64,
            cached_tokens: None,
            output_tokens: u64::from(outline.generate),
        };
        let arrived = now + self.one_way();
        self.seats[seat].turn = Some(Flight { outline: Some(outline), arrived, seen });
        self.queue.push(arrived, Event::Arrive(seat));
    }

    fn arrive(&mut self, seat: usize, now: Duration) {
        let Seat { agent, turn: Some(turn) } = &self.seats[seat] else { return };
        let (key, role) = (agent.key(), agent.role);
        let body_bytes = turn.seen.prompt_tokens * BYTES_PER_TOKEN;
        let parent = match role {
            Role::Root => None,
            Role::Child { parent } => Some(self.seats[parent].agent.key()),
        };
        match self.arm.arrive(Ask { agent: seat, key, parent, body_bytes }, now) {
            Ok(Some(replica)) => self.submit(seat, replica, now),
            Ok(None) => {
                if let Some(turn) = &mut self.seats[seat].turn {
                    turn.seen.is_held = Some(true);
                }
            }
            Err(_) => self.fail(seat, now),
        }
    }

    /// Turns that were held go on.
    fn let_in(&mut self, now: Duration) {
        for (seat, replica) in self.arm.let_in(now) {
            match replica {
                Ok(replica) => self.submit(seat, replica, now),
                Err(_) => self.fail(seat, now),
            }
        }
    }

    fn submit(&mut self, seat: usize, replica: usize, now: Duration) {
        let outline = self.seats[seat].turn.as_mut().and_then(|turn| turn.outline.take());
        let submitted = outline.map(|outline| self.hosts[replica].submit(outline, seat, now));
        match submitted {
            Some(Ok(due)) => {
                if let Some(turn) = &mut self.seats[seat].turn {
                    turn.seen.replica = Some(replica as u32);
                }
                self.expect(replica, due);
            }
            Some(Err(_)) | None => self.fail(seat, now),
        }
    }

    fn end_steps(&mut self, host: usize, announced: u32, now: Duration) {
        let Some(Ended { tokens, due }) = self.hosts[host].end_steps(announced, now) else { return };
        self.expect(host, due);
        for (seat, event) in tokens {
            self.note(seat, &event, now);
        }
        let gauges = self.hosts[host].engine.gauges();
        self.arm.reported(host, gauges, now);
    }

    /// A token has come for the turn at a seat.
    fn note(&mut self, seat: usize, event: &TokenEvent, now: Duration) {
        let one_way = self.one_way();
        let Some(turn) = &mut self.seats[seat].turn else { return };
        if event.index == 0 {
            turn.seen.first_byte = Some(now + one_way);
            turn.seen.cached_tokens = Some(u64::from(event.cached_tokens));
            self.arm.first_byte(seat, now - turn.arrived, now);
        }
        let Some(completion) = event.finished else { return };
        let asks = self.seats[seat].agent.is_asked(&self.scenario.workload);
        let Some(mut turn) = self.seats[seat].turn.take() else { return };
        self.arm.ended(
            seat,
            Cost {
                request_bytes: turn.seen.prompt_tokens * BYTES_PER_TOKEN,
                prompt: Some(u64::from(completion.prompt_tokens)),
                cached: Some(u64::from(completion.cached_tokens)),
                completion: u64::from(completion.completion_tokens),
                asks,
            },
            now,
        );
        turn.seen.ended = now + one_way;
        turn.seen.ending = Ending::Complete;
        self.tally.add(&turn.seen);
        self.detail.add(&turn.seen);
        self.go_on(seat, turn.seen.ended);
    }

    /// What an agent does after a turn.
    fn go_on(&mut self, seat: usize, now: Duration) {
        let workload = &self.scenario.workload;
        let agent = &mut self.seats[seat].agent;
        if !agent.hear(workload) {
            return self.end_session(seat, now);
        }
        let children = agent.burst(workload, seat, now);
        agent.children = children.len() as u32;
        if children.is_empty() {
            let thinks = agent.think(workload);
            self.queue.push(now + thinks, Event::Wish(seat));
        }
        for child in children {
            let seat = self.sit(child);
            self.queue.push(now, Event::Wish(seat));
        }
    }

    /// A session is over; another one takes its place, or its parent goes on.
    fn end_session(&mut self, seat: usize, now: Duration) {
        let Seat { agent, .. } = &mut self.seats[seat];
        match agent.role {
            Role::Root => {
                self.tally.add_session(agent.begun, now);
                // By the seat and not by the order in which sessions end, so that arms are asked the same.
                let number = agent.number + u64::from(self.sessions);
                *agent = Agent::root(&self.scenario.workload, self.seed, number, now);
                self.queue.push(now, Event::Wish(seat));
            }
            Role::Child { parent } => {
                self.vacant.push(seat);
                let agent = &mut self.seats[parent].agent;
                agent.children -= 1;
                if agent.children == 0 {
                    let thinks = agent.think(&self.scenario.workload);
                    self.queue.push(now + thinks, Event::Wish(parent));
                }
            }
        }
    }

    fn fail(&mut self, seat: usize, now: Duration) {
        if let Some(mut turn) = self.seats[seat].turn.take() {
            turn.seen.ended = now + self.one_way();
            turn.seen.ending = Ending::Failed;
            self.tally.add(&turn.seen);
        }
        self.end_session(seat, now + SCRAPES_APART);
    }

    fn sit(&mut self, agent: Agent) -> usize {
        let seat = Seat { agent, turn: None };
        match self.vacant.pop() {
            Some(vacant) => {
                self.seats[vacant] = seat;
                vacant
            }
            None => {
                self.seats.push(seat);
                self.seats.len() - 1
            }
        }
    }

    fn scrape(&mut self, now: Duration) {
        for (replica, host) in self.hosts.iter().enumerate() {
            let scrape = host.scrape(now);
            if !self.is_over {
                self.detail.look(replica, scrape.running, scrape.waiting);
            }
            self.arm.scraped(replica, scrape);
        }
        self.queue.push(now + SCRAPES_APART, Event::Scrape);
    }

    /// The figures, with what is still under way in them.
    fn cut(mut self, now: Duration) -> (Figures, Detail) {
        for turn in self.seats.iter_mut().filter_map(|seat| seat.turn.take()) {
            self.tally.add(&TurnSeen { ended: now, ..turn.seen });
        }
        let measured = self.scenario.window.end() - self.scenario.window.warmup();
        let busy = Some(self.busy.as_secs_f64() / measured.as_secs_f64());
        (self.tally.figures(busy), self.detail)
    }

    fn expect(&mut self, host: usize, due: Option<Due>) {
        if let Some(Due { at, announced }) = due {
            self.queue.push(at, Event::Steps { host, announced });
        }
    }

    fn total_busy(&self, now: Duration) -> Duration {
        self.hosts.iter().map(|host| host.busy(now)).sum()
    }

    fn one_way(&self) -> Duration {
        Duration::from_secs_f64(self.scenario.workload.round_trip_ms / 2000.0)
    }
}
