//! A modelled vLLM engine in virtual time: scheduler, prefix cache and the duration of a step.
//!
//! It follows `v1/core/sched/scheduler.py`: running requests come first, then the waiting ones in order of arrival; a step
//! computes at most `max_num_batched_tokens`; long prompts are computed in chunks, so that the first unfinished prompt takes
//! what the decoding requests leave; the hit is looked up when a request is scheduled, not when it arrives; a request starts
//! only if its whole prompt fits; when blocks run out the request that started last is preempted and computed anew.
//!
//! A step is begun at one instant and ended at another, so that a caller decides what passes in between: a sleep behind a
//! socket, nothing in a simulation. Who wants no token of its own can have many steps at once: as long as every request of a
//! batch generates and none can join, the steps differ by their context only ([`Engine::begin_steps`]). What comes in the
//! meantime ends them with the step under way ([`Engine::interrupt`]), so that it makes no difference to anything but the effort.

use std::collections::VecDeque;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::batch::{Batch, StepCost};
use super::cache::BlockCache;
use super::config::{EngineConfig, EngineConfigError};
use super::request::{Completion, FinishReason, Outline, Request, RequestId, SubmitError, TokenEvent};
use super::sequence::Sequence;
use super::stats::{Counters, Gauges};

/// One engine. Deterministic: the same configuration and the same calls give the same events.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    cache: BlockCache,
    /// In the order in which they were started.
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    batch: Option<Batch>,
    gauges: Gauges,
    counters: Counters,
    jitter: ChaCha8Rng,
    next_id: u64,
}

impl Engine {
    /// An idle engine with an empty cache.
    pub fn new(config: EngineConfig) -> Result<Self, EngineConfigError> {
        config.validate()?;
        Ok(Self {
            cache: BlockCache::new(config.blocks()),
            running: Vec::new(),
            waiting: VecDeque::new(),
            batch: None,
            gauges: Gauges::default(),
            counters: Counters::default(),
            jitter: ChaCha8Rng::seed_from_u64(config.seed),
            next_id: 0,
            config,
        })
    }

    /// The sizes and speeds that the engine was built with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Queues a request. It is scheduled by a later `begin_step`.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, SubmitError> {
        self.check(request.prompt.len(), request.generate)?;
        let id = self.name();
        let sequence = Sequence::new(id, request, self.config.block_size as usize, self.config.seed);
        self.waiting.push_back(sequence);
        Ok(id)
    }

    /// The same for a request of which only the outline is known.
    pub fn submit_outline(&mut self, outline: Outline) -> Result<RequestId, SubmitError> {
        self.check(outline.prompt_tokens, outline.generate)?;
        let id = self.name();
        self.waiting.push_back(Sequence::outlined(id, outline, self.config.block_size as usize));
        Ok(id)
    }

    /// Forgets a request, wherever it is; one that has ended is ignored. No event is emitted and no counter moves, as in
    /// vLLM, where an aborted request never reaches the statistics.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            let mut sequence = self.running.remove(index);
            self.cache.release(&mut sequence.holding);
        }
        self.waiting.retain(|sequence| sequence.id != id);
        // vLLM reports at the end of a step, and after an abort that leaves it idle.
        if self.batch.is_none() {
            self.report();
        }
    }

    /// Schedules a step at `now` and says when it ends; None while there is nothing to do. `end_step` must be called before
    /// the next one begins; until then this answers None.
    pub fn begin_step(&mut self, now: Duration) -> Option<Duration> {
        if self.batch.is_some() {
            return None;
        }
        let mut batch = Batch::new(self.config.max_num_batched_tokens);
        let preempted = self.schedule_running(&mut batch);
        batch.is_settled = preempted == 0;
        if batch.is_settled {
            self.schedule_waiting(&mut batch);
        }
        self.counters.preemptions += preempted;
        if batch.is_empty() {
            return None;
        }
        let deviation = match self.config.step_jitter {
            0.0 => 0.0,
            jitter => self.jitter.random_range(-jitter..=jitter),
        };
        let ends = batch.set_off(now, StepCost::of(&batch, &self.config, deviation));
        self.batch = Some(batch);
        Some(ends)
    }

    /// Begins as many steps at once as are sure to differ in nothing but their context, and says when the last of them ends.
    /// At least one, or None as in `begin_step`.
    pub fn begin_steps(&mut self, now: Duration) -> Option<Duration> {
        let ends = self.begin_step(now)?;
        // With jitter every step has a duration of its own.
        let repeats = self.batch.as_ref().is_some_and(Batch::repeats) && self.config.step_jitter == 0.0;
        if !repeats || self.may_admit_later() {
            return Some(ends);
        }
        let mut most = self.running.iter().map(|sequence| sequence.to_generate()).min().unwrap_or(1).max(1);
        // The first step has its blocks; the others must find theirs.
        let lacking = |steps: usize| -> usize {
            self.running.iter().map(|sequence| sequence.blocks_lacking(sequence.computed + steps)).sum()
        };
        let free = self.cache.free_blocks();
        if lacking(most) > free {
            let (mut enough, mut too_many) = (1, most);
            while too_many - enough > 1 {
                let middle = enough + (too_many - enough) / 2;
                *(if lacking(middle) > free { &mut too_many } else { &mut enough }) = middle;
            }
            most = enough;
        }
        self.batch.as_mut().map(|batch| batch.stretch(most))
    }

    /// Something comes at `now`: of the steps under way, the one that is being computed is the last. Says when it ends.
    pub fn interrupt(&mut self, now: Duration) -> Option<Duration> {
        self.batch.as_mut().map(|batch| batch.cut(now))
    }

    /// Ends the steps under way and returns the tokens that came out of them, in batch order.
    pub fn end_step(&mut self) -> Vec<TokenEvent> {
        let mut events = Vec::new();
        if let Some(batch) = self.batch.take() {
            self.end(&batch, &mut events);
        }
        events
    }

    /// What the engine reported last: the state at the end of its last step. A request that has just arrived isn't in it.
    pub fn gauges(&self) -> Gauges {
        self.gauges
    }

    /// Steps that have ended by `now` of those under way, and the tokens generated in them, which no counter has yet.
    pub fn progress(&self, now: Duration) -> (u64, u64) {
        self.batch.as_ref().map_or((0, 0), |batch| {
            let steps = batch.steps_ended(now).min(batch.steps - 1) as u64;
            (steps, steps * u64::from(batch.decodes))
        })
    }

    /// Requests in the engine at this moment, running and waiting.
    pub fn load(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// What the engine has counted since it started.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn check(&self, prompt_tokens: usize, generate: u32) -> Result<(), SubmitError> {
        let length = prompt_tokens as u64 + u64::from(generate);
        if prompt_tokens == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if generate == 0 {
            return Err(SubmitError::NothingToGenerate);
        }
        if length > u64::from(self.config.max_model_len) {
            return Err(SubmitError::TooLong(length));
        }
        Ok(())
    }

    fn name(&mut self) -> RequestId {
        let id = RequestId::new(self.next_id);
        self.next_id += 1;
        id
    }

    /// Gives every running request its tokens of this step; returns how many were preempted to make that possible.
    fn schedule_running(&mut self, batch: &mut Batch) -> u64 {
        let mut preempted = 0;
        let mut index = 0;
        while index < self.running.len() && batch.budget > 0 {
            while !self.compute(index, batch) {
                preempted += 1;
                self.preempt_last();
                if index == self.running.len() {
                    return preempted;
                }
            }
            index += 1;
        }
        preempted
    }

    /// Starts waiting requests in order until one doesn't fit: nobody overtakes the head of the queue.
    fn schedule_waiting(&mut self, batch: &mut Batch) {
        while batch.budget > 0 && self.running.len() < self.config.max_num_seqs && self.admit() {
            self.compute(self.running.len() - 1, batch);
        }
    }

    /// Lets the first of the waiting requests run and hold its hit, provided that the rest of its prompt fits too.
    fn admit(&mut self) -> bool {
        let Some(mut sequence) = self.waiting.pop_front() else {
            return false;
        };
        let hit = self.cache.lookup(sequence.matchable());
        let lacking = sequence.blocks_lacking(sequence.len()) - hit.blocks;
        if lacking + hit.idle > self.cache.free_blocks() {
            self.waiting.push_front(sequence);
            return false;
        }
        sequence.holding = self.cache.hold(sequence.matchable());
        sequence.computed = hit.blocks * self.config.block_size as usize;
        if sequence.cached.is_none() {
            sequence.cached = Some(sequence.computed);
            self.counters.prefix_queries += sequence.prompt_tokens() as u64;
            self.counters.prefix_hits += sequence.computed as u64;
        }
        self.running.push(sequence);
        true
    }

    /// Whether the first of the waiting requests might start without any other ending: what it lacks may be what a running
    /// one is about to compute.
    fn may_admit_later(&self) -> bool {
        self.running.len() < self.config.max_num_seqs
            && self.waiting.front().is_some_and(|head| {
                let hit = self.cache.lookup(head.matchable());
                self.running.iter().any(|sequence| hit.may_grow_by(&sequence.holding))
            })
    }

    /// Puts as many of a running request's tokens into the batch as the budget allows; false, and nothing done, without
    /// blocks for them.
    fn compute(&mut self, index: usize, batch: &mut Batch) -> bool {
        let sequence = &mut self.running[index];
        let tokens = sequence.uncomputed().min(batch.budget);
        if !provide(&mut self.cache, sequence, sequence.computed + tokens) {
            return false;
        }
        sequence.scheduled = tokens;
        batch.add(tokens, sequence.computed + tokens, sequence.is_decoding());
        true
    }

    /// Throws the request that started last out of the batch, to the head of the queue.
    fn preempt_last(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            self.cache.release(&mut sequence.holding);
            sequence.computed = 0;
            sequence.scheduled = 0;
            self.waiting.push_front(sequence);
        }
    }

    /// Books what the steps of a batch have computed.
    fn end(&mut self, batch: &Batch, events: &mut Vec<TokenEvent>) {
        for index in 0..self.running.len() {
            events.extend(self.advance(index, batch.steps));
        }
        for _ in 0..batch.steps {
            self.counters.count_iteration(batch.tokens());
        }
        for mut sequence in self.running.extract_if(.., |sequence| sequence.is_complete()) {
            match sequence.finish {
                FinishReason::Stop => self.counters.finished_stop += 1,
                FinishReason::Length => self.counters.finished_length += 1,
            }
            self.cache.release(&mut sequence.holding);
        }
        self.report();
    }

    /// Books what was computed for one request, and the tokens sampled if its last token was among it.
    fn advance(&mut self, index: usize, steps: usize) -> Option<TokenEvent> {
        let sequence = &mut self.running[index];
        let scheduled = std::mem::take(&mut sequence.scheduled);
        if scheduled == 0 {
            return None;
        }
        // More than one step is one token a step. Those after the first have no blocks yet, and are sure to find them.
        sequence.computed += scheduled + (steps - 1);
        if steps > 1 {
            sequence.sample(steps - 1);
            let computed = sequence.computed;
            provide(&mut self.cache, sequence, computed);
        }
        if sequence.uncomputed() > 0 {
            return None;
        }
        let is_first = sequence.generated() == 0;
        let cached_tokens = sequence.cached.unwrap_or(0) as u32;
        if is_first {
            self.counters.prompt_tokens += sequence.prompt_tokens() as u64;
            self.counters.prompt_tokens_cached += u64::from(cached_tokens);
        }
        let token = sequence.sample(1);
        self.counters.generation_tokens += steps as u64;
        let index = sequence.generated() as u32 - 1;
        let finished = sequence.is_complete().then(|| Completion {
            prompt_tokens: sequence.prompt_tokens() as u32,
            cached_tokens,
            completion_tokens: index + 1,
            reason: sequence.finish,
        });
        Some(TokenEvent { request: sequence.id, token, index, cached_tokens, finished })
    }

    fn report(&mut self) {
        self.gauges = Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_usage: self.cache.held_blocks() as f64 / f64::from(self.config.blocks()),
        };
    }
}

/// Gives a request the blocks for its first `computed` tokens; false, and nothing done, if there are too few. Full blocks
/// become findable here, when they are scheduled, so that a request later in the same batch may hit them.
fn provide(cache: &mut BlockCache, sequence: &mut Sequence, computed: usize) -> bool {
    let lacking = sequence.blocks_lacking(computed);
    if !cache.allocate(&mut sequence.holding, lacking) {
        return false;
    }
    let full = sequence.publishable(computed);
    if !full.is_empty() {
        let mut holding = std::mem::take(&mut sequence.holding);
        cache.publish(&mut holding, &sequence.chain()[full]);
        sequence.holding = holding;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::cache::BlockHash;
    use super::*;

    fn small() -> EngineConfig {
        EngineConfig {
            block_size: 4,
            kv_tokens: 64,
            max_model_len: 48,
            max_num_seqs: 3,
            max_num_batched_tokens: 16,
            ..EngineConfig::default()
        }
    }

    fn engine(config: EngineConfig) -> Engine {
        Engine::new(config).expect("a valid configuration")
    }

    fn request(prompt: impl IntoIterator<Item = u32>, generate: u32) -> Request {
        Request { prompt: prompt.into_iter().collect(), generate, ..Request::default() }
    }

    /// Runs until idle; returns the instant of the end and all events, each with the instant of its step's end.
    fn run(engine: &mut Engine, mut now: Duration) -> (Duration, Vec<(Duration, TokenEvent)>) {
        let mut events = Vec::new();
        while let Some(ends) = engine.begin_step(now) {
            now = ends;
            events.extend(engine.end_step().into_iter().map(|event| (now, event)));
            assert_sound(engine);
        }
        (now, events)
    }

    fn assert_sound(engine: &Engine) {
        let holdings = engine.running.iter().chain(&engine.waiting).map(|sequence| &sequence.holding);
        engine.cache.assert_sound(&holdings.collect::<Vec<_>>());
        assert!(engine.running.len() <= engine.config.max_num_seqs);
        let counters = engine.counters();
        assert!(counters.prefix_hits <= counters.prefix_queries);
        assert!(counters.prompt_tokens_cached <= counters.prompt_tokens);
    }

    fn completions(events: &[(Duration, TokenEvent)]) -> Vec<Completion> {
        events.iter().filter_map(|(_, event)| event.finished).collect()
    }

    #[test]
    fn a_second_turn_hits_prompt_and_reply_of_the_first() {
        let mut engine = engine(EngineConfig::default());
        engine.submit(request(0..9000, 64)).expect("accepted");
        let (now, first) = run(&mut engine, Duration::ZERO);
        let reply = first.iter().map(|(_, event)| event.token);
        let history: Vec<u32> = (0..9000).chain(reply).chain(0..400).collect();
        engine.submit(request(history, 64)).expect("accepted");
        let (_, second) = run(&mut engine, now);
        assert_eq!(completions(&first)[0].cached_tokens, 0);
        // The last sampled token is never computed, so its block isn't full: 9063 / 16 whole blocks.
        assert_eq!(completions(&second)[0].cached_tokens, 9056);
    }

    #[test]
    fn a_prompt_in_the_cache_is_computed_in_its_last_block_only() {
        let mut engine = engine(small());
        for cached in [0, 12] {
            engine.submit(request(0..16, 1)).expect("accepted");
            let (_, events) = run(&mut engine, Duration::ZERO);
            assert_eq!(completions(&events)[0].cached_tokens, cached);
        }
    }

    #[test]
    fn the_first_token_comes_after_the_prefill_at_its_rate() {
        let mut engine = engine(EngineConfig::default());
        engine.submit(request(0..8192, 2)).expect("accepted");
        let (_, events) = run(&mut engine, Duration::ZERO);
        // Four chunks of 2048 tokens, each 20 ms and 256 ms of prefill; then a decode step.
        assert_eq!(events[0].0, Duration::from_millis(4 * 276));
        assert_eq!(events[1].0 - events[0].0, Duration::from_micros(20_100));
    }

    #[test]
    fn a_long_prompt_is_computed_in_chunks_between_decodes() {
        let mut engine = engine(small());
        let decoding = engine.submit(request(0..4, 8)).expect("accepted");
        let ends = engine.begin_step(Duration::ZERO).expect("work");
        engine.end_step();
        engine.submit(request(100..140, 1)).expect("accepted");
        let (_, events) = run(&mut engine, ends);
        let steps_with_decode = events.iter().filter(|(_, event)| event.request == decoding).count();
        assert_eq!(steps_with_decode, 7, "the running request gets a token in every step");
        // 40 tokens at 15 a step: the third step ends the prefill.
        let position = events.iter().position(|(_, event)| event.request != decoding);
        assert_eq!(position, Some(3));
    }

    #[test]
    fn a_big_prompt_at_the_head_blocks_the_queue() {
        let mut engine = engine(small());
        engine.submit(request(0..40, 8)).expect("accepted");
        engine.begin_step(Duration::ZERO).expect("work");
        engine.end_step();
        engine.submit(request(100..140, 1)).expect("accepted");
        engine.submit(request(200..204, 1)).expect("accepted");
        engine.begin_step(Duration::ZERO).expect("work");
        assert_eq!(engine.load(), (1, 2));
    }

    #[test]
    fn preemption_recomputes_and_loses_no_token() {
        let mut engine = engine(EngineConfig { kv_tokens: 48, ..small() });
        for start in [0, 100, 200] {
            engine.submit(request(start..start + 12, 30)).expect("accepted");
        }
        let (_, events) = run(&mut engine, Duration::ZERO);
        assert!(engine.counters().preemptions > 0);
        assert_eq!(completions(&events).len(), 3);
        assert_eq!(events.len(), 90);
        assert_eq!(engine.counters().prefix_queries, 36, "a recomputation isn't a second query");
    }

    #[test]
    fn usage_counts_held_blocks_only() {
        let mut engine = engine(small());
        engine.submit(request(0..16, 2)).expect("accepted");
        engine.begin_step(Duration::ZERO).expect("work");
        assert_eq!(engine.gauges(), Gauges::default(), "nothing is reported before the end of a step");
        engine.end_step();
        assert_eq!(engine.gauges(), Gauges { running: 1, waiting: 0, kv_usage: 0.25 });
        run(&mut engine, Duration::ZERO);
        assert_eq!(engine.gauges(), Gauges::default());
    }

    #[test]
    fn what_can_never_run_is_refused() {
        let mut engine = engine(small());
        assert_eq!(engine.submit(request([], 1)), Err(SubmitError::EmptyPrompt));
        assert_eq!(engine.submit(request([1], 0)), Err(SubmitError::NothingToGenerate));
        assert_eq!(engine.submit(request(0..48, 1)), Err(SubmitError::TooLong(49)));
        let config = EngineConfig { max_model_len: 65, ..small() };
        assert!(Engine::new(config).is_err());
    }

    #[derive(Debug, Clone)]
    enum Act {
        Submit { conversation: u32, prompt: u32, generate: u32 },
        Abort { nth: usize },
        Begin,
        End,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            3 => (0..3u32, 1..40u32, 1..8u32)
                .prop_map(|(conversation, prompt, generate)| Act::Submit { conversation, prompt, generate }),
            1 => (0..20usize).prop_map(|nth| Act::Abort { nth }),
            4 => Just(Act::Begin),
            4 => Just(Act::End),
        ];
        proptest::collection::vec(act, 1..120)
    }

    fn play(engine: &mut Engine, acts: &[Act]) -> Vec<TokenEvent> {
        let (mut ids, mut events, mut now) = (Vec::new(), Vec::new(), Duration::ZERO);
        for act in acts {
            match act {
                Act::Submit { conversation, prompt, generate } => {
                    let start = conversation * 1000;
                    ids.push(engine.submit(request(start..start + prompt, *generate)).expect("accepted"));
                }
                Act::Abort { nth } if ids.is_empty() => assert!(*nth < 20),
                Act::Abort { nth } => engine.abort(ids[nth % ids.len()]),
                Act::Begin => now = engine.begin_step(now).unwrap_or(now),
                Act::End => events.extend(engine.end_step()),
            }
            assert_sound(engine);
        }
        events
    }

    /// A prompt that begins as others of its conversation do, and a reply that is like no other.
    fn outline(conversation: u64, number: u64, prompt: u32, generate: u32) -> Outline {
        let whole = |tokens: u32| u64::from(tokens / small().block_size);
        let shared = (0..whole(prompt)).map(|index| BlockHash::named(conversation, index));
        let own = (whole(prompt)..whole(prompt + generate)).map(|index| BlockHash::named(1000 + number, index));
        Outline {
            prompt_tokens: prompt as usize,
            generate,
            chain: Arc::new(shared.chain(own).collect()),
            ..Outline::default()
        }
    }

    /// Submits each arrival so many milliseconds after the one before; returns when each request had its first and its last
    /// token, and what it found in the cache.
    fn drive(
        engine: &mut Engine,
        arrivals: &[(u32, u32, u32, u64)],
        begin: fn(&mut Engine, Duration) -> Option<Duration>,
    ) -> Vec<(Duration, TokenEvent)> {
        let (mut now, mut seen, mut ends) = (Duration::ZERO, Vec::new(), None);
        let mut end = |engine: &mut Engine, now: Duration| {
            let events = engine.end_step().into_iter().filter(|event| event.index == 0 || event.finished.is_some());
            seen.extend(events.map(|event| (now, event)));
            assert_sound(engine);
        };
        for (number, (conversation, prompt, generate, pause)) in arrivals.iter().enumerate() {
            now += Duration::from_millis(*pause);
            while let Some(due) = ends.filter(|due| *due < now) {
                end(engine, due);
                ends = begin(engine, due);
            }
            let outline = outline(u64::from(*conversation), number as u64, *prompt, *generate);
            engine.submit_outline(outline).expect("accepted");
            ends = engine.interrupt(now).or_else(|| begin(engine, now));
        }
        while let Some(due) = ends {
            end(engine, due);
            ends = begin(engine, due);
        }
        seen
    }

    proptest! {
        #[test]
        fn blocks_are_conserved_and_every_request_ends(acts in acts()) {
            let mut engine = engine(EngineConfig { kv_tokens: 52, step_jitter: 0.2, ..small() });
            let mut events = play(&mut engine, &acts);
            events.extend(engine.end_step());
            events.extend(run(&mut engine, Duration::ZERO).1.into_iter().map(|(_, event)| event));
            prop_assert_eq!(engine.load(), (0, 0));
            prop_assert_eq!(engine.cache.held_blocks(), 0);
            for completion in events.iter().filter_map(|event| event.finished) {
                prop_assert!(completion.cached_tokens < completion.prompt_tokens);
            }
        }

        #[test]
        fn many_steps_at_once_come_to_the_same_as_one_after_the_other(
            arrivals in proptest::collection::vec((0..4u32, 1..40u32, 1..9u32, 0..400u64), 1..30),
        ) {
            let config = EngineConfig {
                kv_tokens: 88,
                context: Duration::from_micros(70),
                max_num_batched_tokens: 12,
                ..small()
            };
            let [mut one, mut other] = [engine(config.clone()), engine(config)];
            prop_assert_eq!(drive(&mut one, &arrivals, Engine::begin_step), drive(&mut other, &arrivals, Engine::begin_steps));
            prop_assert_eq!(one.counters(), other.counters());
            prop_assert_eq!(one.gauges(), other.gauges());
        }

        #[test]
        fn an_aborted_request_frees_its_blocks(acts in acts()) {
            let mut engine = engine(small());
            play(&mut engine, &acts);
            for id in engine.running.iter().chain(&engine.waiting).map(|sequence| sequence.id).collect::<Vec<_>>() {
                engine.abort(id);
                assert_sound(&engine);
            }
            prop_assert_eq!(engine.cache.free_blocks(), 16);
        }

        #[test]
        fn the_same_calls_give_the_same_run(acts in acts(), seed: u64) {
            let config = EngineConfig { seed, step_jitter: 0.2, ..small() };
            let (mut one, mut other) = (engine(config.clone()), engine(config));
            prop_assert_eq!(play(&mut one, &acts), play(&mut other, &acts));
            let next = Duration::from_secs(1);
            prop_assert_eq!(one.begin_step(next), other.begin_step(next));
            prop_assert_eq!(one.counters(), other.counters());
        }
    }
}
