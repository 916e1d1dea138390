//! A modelled vLLM engine in virtual time: scheduler, prefix cache and the duration of a step.
//!
//! It follows `v1/core/sched/scheduler.py`: running requests come first, then the waiting ones in order of arrival; a step
//! computes at most `max_num_batched_tokens`; long prompts are computed in chunks; the hit is looked up when a request is
//! scheduled, not when it arrives; a request starts only if its whole prompt fits; when blocks run out the request that
//! started last is preempted and computed anew. A step is begun at one instant and ended at another, so that a caller
//! decides what passes in between: a sleep behind a socket, nothing in a simulation.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cache::BlockCache;
use super::config::{EngineConfig, EngineConfigError};
use super::request::{Completion, FinishReason, Request, RequestId, SubmitError, TokenEvent};
use super::sequence::Sequence;
use super::stats::{Counters, Gauges};

/// One engine. Deterministic: the same configuration and the same calls give the same events.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    cache: BlockCache,
    sequences: BTreeMap<RequestId, Sequence>,
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    batch: Option<Batch>,
    gauges: Gauges,
    counters: Counters,
    jitter: ChaCha8Rng,
    next_id: u64,
}

/// What is being computed in the step under way.
#[derive(Debug)]
struct Batch {
    slots: Vec<Slot>,
    budget: usize,
    decodes: u32,
    prefill_tokens: usize,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    request: RequestId,
    tokens: usize,
}

impl Engine {
    /// An idle engine with an empty cache.
    pub fn new(config: EngineConfig) -> Result<Self, EngineConfigError> {
        config.validate()?;
        Ok(Self {
            cache: BlockCache::new(config.blocks()),
            sequences: BTreeMap::new(),
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
        let length = request.prompt.len() as u64 + u64::from(request.generate);
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if request.generate == 0 {
            return Err(SubmitError::NothingToGenerate);
        }
        if length > u64::from(self.config.max_model_len) {
            return Err(SubmitError::TooLong(length));
        }
        let id = RequestId::new(self.next_id);
        self.next_id += 1;
        let sequence = Sequence::new(request, self.config.block_size as usize, self.config.seed);
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
        Ok(id)
    }

    /// Forgets a request, wherever it is; one that has ended is ignored. No event is emitted and no counter moves, as in
    /// vLLM, where an aborted request never reaches the statistics.
    pub fn abort(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.remove(&id) else {
            return;
        };
        self.cache.release(&sequence.blocks);
        self.running.retain(|running| *running != id);
        self.waiting.retain(|waiting| *waiting != id);
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
        if preempted == 0 {
            self.schedule_waiting(&mut batch);
        }
        self.counters.preemptions += preempted;
        if batch.slots.is_empty() {
            return None;
        }
        let ends = now + self.duration(&batch);
        self.batch = Some(batch);
        Some(ends)
    }

    /// Ends the step under way and returns the tokens that came out of it, in batch order.
    pub fn end_step(&mut self) -> Vec<TokenEvent> {
        let Some(batch) = self.batch.take() else {
            return Vec::new();
        };
        let events = batch.slots.iter().filter_map(|slot| self.advance(*slot)).collect();
        self.counters.count_iteration(batch.tokens());
        self.report();
        events
    }

    /// What the engine reported last: the state at the end of its last step. A request that has just arrived isn't in it.
    pub fn gauges(&self) -> Gauges {
        self.gauges
    }

    /// Requests in the engine at this moment, running and waiting.
    pub fn load(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// What the engine has counted since it started.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Gives every running request its tokens of this step; returns how many were preempted to make that possible.
    fn schedule_running(&mut self, batch: &mut Batch) -> u64 {
        let mut preempted = 0;
        let mut index = 0;
        while index < self.running.len() && batch.budget > 0 {
            let id = self.running[index];
            while !self.compute(id, batch) {
                preempted += 1;
                if self.preempt_last() == Some(id) {
                    return preempted;
                }
            }
            index += 1;
        }
        preempted
    }

    /// Starts waiting requests in order until one doesn't fit: nobody overtakes the head of the queue.
    fn schedule_waiting(&mut self, batch: &mut Batch) {
        while batch.budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(&id) = self.waiting.front() else {
                return;
            };
            if !self.admit(id) {
                return;
            }
            self.waiting.pop_front();
            self.running.push(id);
            self.compute(id, batch);
        }
    }

    /// Lets a waiting request hold its hit, provided that the rest of its prompt fits too.
    fn admit(&mut self, id: RequestId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return false;
        };
        let hit = self.cache.lookup(sequence.matchable());
        let lacking = sequence.blocks_lacking(sequence.len()) - hit.len();
        if lacking + self.cache.idle_among(&hit) > self.cache.free_blocks() {
            return false;
        }
        self.cache.hold(&hit);
        sequence.computed = hit.len() * self.config.block_size as usize;
        sequence.published = hit.len();
        sequence.blocks = hit;
        if sequence.cached.is_none() {
            sequence.cached = Some(sequence.computed);
            self.counters.prefix_queries += sequence.prompt_tokens() as u64;
            self.counters.prefix_hits += sequence.computed as u64;
        }
        true
    }

    /// Puts as many of the request's tokens into the batch as the budget allows; false, and nothing done, without blocks
    /// for them. Full blocks become findable here, when they are scheduled, so that a request later in the same batch may
    /// hit them.
    fn compute(&mut self, id: RequestId, batch: &mut Batch) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return true;
        };
        let tokens = sequence.uncomputed().min(batch.budget);
        let computed = sequence.computed + tokens;
        let Some(blocks) = self.cache.allocate(sequence.blocks_lacking(computed)) else {
            return false;
        };
        sequence.blocks.extend(blocks);
        for (block, hash) in sequence.publishable(computed) {
            self.cache.publish(block, hash);
        }
        sequence.published = computed / self.config.block_size as usize;
        batch.add(Slot { request: id, tokens }, sequence.is_decoding());
        true
    }

    /// Throws the request that started last out of the batch, to the head of the queue.
    fn preempt_last(&mut self) -> Option<RequestId> {
        let id = self.running.pop()?;
        let sequence = self.sequences.get_mut(&id)?;
        self.cache.release(&std::mem::take(&mut sequence.blocks));
        sequence.computed = 0;
        sequence.published = 0;
        self.waiting.push_front(id);
        Some(id)
    }

    fn duration(&mut self, batch: &Batch) -> Duration {
        let prefill = batch.prefill_tokens as f64 / self.config.prefill_tokens_per_s;
        let exact = self.config.step + self.config.decode * batch.decodes + Duration::from_secs_f64(prefill);
        if self.config.step_jitter == 0.0 {
            return exact;
        }
        let deviation = self.jitter.random_range(-self.config.step_jitter..=self.config.step_jitter);
        exact.mul_f64(1.0 + deviation)
    }

    /// Books what the step computed for one request, and the token sampled if its last token was among it.
    fn advance(&mut self, slot: Slot) -> Option<TokenEvent> {
        let sequence = self.sequences.get_mut(&slot.request)?;
        sequence.computed += slot.tokens;
        if sequence.uncomputed() > 0 {
            return None;
        }
        let index = sequence.generated() as u32;
        let cached_tokens = sequence.cached.unwrap_or(0) as u32;
        if index == 0 {
            self.counters.prompt_tokens += sequence.prompt_tokens() as u64;
            self.counters.prompt_tokens_cached += u64::from(cached_tokens);
        }
        let token = sequence.sample();
        self.counters.generation_tokens += 1;
        let finished = sequence.is_complete().then(|| Completion {
            prompt_tokens: sequence.prompt_tokens() as u32,
            cached_tokens,
            completion_tokens: index + 1,
            reason: sequence.finish,
        });
        if let Some(completion) = finished {
            self.retire(slot.request, completion.reason);
        }
        Some(TokenEvent { request: slot.request, token, index, cached_tokens, finished })
    }

    fn retire(&mut self, id: RequestId, reason: FinishReason) {
        match reason {
            FinishReason::Stop => self.counters.finished_stop += 1,
            FinishReason::Length => self.counters.finished_length += 1,
        }
        self.running.retain(|running| *running != id);
        if let Some(sequence) = self.sequences.remove(&id) {
            self.cache.release(&sequence.blocks);
        }
    }

    fn report(&mut self) {
        self.gauges = Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_usage: self.cache.held_blocks() as f64 / f64::from(self.config.blocks()),
        };
    }
}

impl Batch {
    fn new(budget: usize) -> Self {
        Self { slots: Vec::new(), budget, decodes: 0, prefill_tokens: 0 }
    }

    fn add(&mut self, slot: Slot, decoding: bool) {
        self.budget -= slot.tokens;
        self.slots.push(slot);
        if decoding {
            self.decodes += 1;
        } else {
            self.prefill_tokens += slot.tokens;
        }
    }

    fn tokens(&self) -> u64 {
        self.prefill_tokens as u64 + u64::from(self.decodes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        engine.cache.assert_sound();
        let held: usize = engine.sequences.values().map(|sequence| sequence.blocks.len()).sum();
        assert_eq!(held, engine.cache.holds(), "every reference belongs to a live request");
        assert_eq!(engine.sequences.len(), engine.running.len() + engine.waiting.len());
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
        fn an_aborted_request_frees_its_blocks(acts in acts()) {
            let mut engine = engine(small());
            play(&mut engine, &acts);
            for id in engine.sequences.keys().copied().collect::<Vec<_>>() {
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
