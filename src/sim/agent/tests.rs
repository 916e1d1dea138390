//! Agents against a simulated server over real sockets.

use std::collections::BTreeMap;

use super::*;
use crate::sim::config::EngineConfig;
use crate::sim::server::{Failure, ReplicaOptions, ReplicaServer};

const DEADLINE: Duration = Duration::from_secs(30);

async fn start(options: ReplicaOptions) -> ReplicaServer {
    ReplicaServer::start(ReplicaOptions { time_scale: 1000.0, ..options }).await.expect("starts")
}

fn workload(server: &ReplicaServer, sessions: usize) -> AgentWorkload {
    AgentWorkload {
        shape: Shape { reply_tokens: Span::of(16), ..Shape::AGENT },
        grace: Duration::from_secs(30),
        ..AgentWorkload::new(server.address(), ReplicaOptions::default().model, sessions)
    }
}

fn client() -> HttpClient {
    http_client("http://127.0.0.1").expect("a client")
}

/// Takes results until there are `count` of them, then lets the workload end.
async fn take(workload: AgentWorkload, count: usize) -> Vec<TurnResult> {
    let (sender, mut receiver) = mpsc::channel(1);
    let driving = tokio::spawn(workload.drive(client(), Instant::now() + DEADLINE, sender));
    let mut results = Vec::new();
    while results.len() < count {
        let result = timeout_at(Instant::now() + DEADLINE, receiver.recv()).await.expect("comes in time");
        results.push(result.expect("one more result"));
    }
    drop(receiver);
    timeout_at(Instant::now() + DEADLINE, driving).await.expect("ends in time").expect("ends well");
    results
}

#[tokio::test]
async fn a_session_grows_and_finds_its_history_in_the_cache() {
    for dialect in [AgentDialect::Messages, AgentDialect::Chat] {
        let server = start(ReplicaOptions::default()).await;
        let results = take(AgentWorkload { dialect, ..workload(&server, 1) }, 7).await;
        let usages: Vec<TurnUsage> = results.iter().map(|result| result.usage.expect("usage")).collect();
        assert!(results.iter().all(|result| result.outcome == TurnOutcome::Complete && result.status == Some(200)));
        assert_eq!(results.iter().map(|result| result.turn).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 0]);
        let tokens = 3400 + 7000;
        assert!((tokens..tokens + 50).contains(&usages[0].prompt_tokens), "{usages:?}");
        for pair in usages[..6].windows(2) {
            assert!(pair[1].prompt_tokens > pair[0].prompt_tokens + 400);
            assert!(pair[1].cached_tokens + 32 > pair[0].prompt_tokens + pair[0].completion_tokens, "{usages:?}");
        }
        let shared = usages[6].cached_tokens;
        assert!((3300..3500).contains(&shared), "the next session shares the system prompt alone: {shared}");
        for result in &results {
            assert!(result.first_token.is_some_and(|first| first > Duration::ZERO && first <= result.total));
        }
    }
}

#[tokio::test]
async fn two_runs_of_a_seed_ask_the_same() {
    let mut runs = Vec::new();
    for seed in [1, 1, 2] {
        let server = start(ReplicaOptions { data_parallel_size: 2, ..ReplicaOptions::default() }).await;
        take(AgentWorkload { seed, shape: Shape { turns: 2, ..Shape::AGENT }, ..workload(&server, 3) }, 12).await;
        let bodies: BTreeMap<String, Vec<String>> =
            server.arrivals().into_iter().fold(BTreeMap::new(), |mut by, arrival| {
                let id = arrival.headers.iter().find(|(name, _)| name == "x-claude-code-session-id").cloned();
                by.entry(id.expect("a session").1).or_default().push(arrival.body_sha256);
                by
            });
        // Which sessions come after the first three depends on who is quicker.
        runs.push(bodies.into_iter().filter(|(_, bodies)| bodies.len() == 2).collect::<BTreeMap<_, _>>());
    }
    let common =
        |one: usize, other: usize| runs[one].iter().filter(|(id, bodies)| runs[other].get(*id) == Some(bodies)).count();
    assert!(common(0, 1) >= 3);
    assert_eq!(common(0, 2), 0);
}

#[tokio::test]
async fn what_runs_at_the_deadline_is_cut_and_no_error() {
    let server = start(ReplicaOptions { failure: Failure::Frozen, ..ReplicaOptions::default() }).await;
    let (sender, mut receiver) = mpsc::channel(8);
    let workload = AgentWorkload { grace: Duration::from_millis(20), ..workload(&server, 2) };
    let driving = workload.drive(client(), Instant::now() + Duration::from_secs(1), sender);
    timeout_at(Instant::now() + DEADLINE, driving).await.expect("ends in time");
    let mut results = Vec::new();
    while let Some(result) = receiver.recv().await {
        results.push(result);
    }
    assert_eq!(results.len(), 2);
    for result in results {
        assert_eq!((result.outcome, result.first_token), (TurnOutcome::Cut, None));
        assert!(result.total > Duration::ZERO);
    }
}

#[tokio::test]
async fn every_way_to_fail_has_its_name() {
    let cases = [
        (Failure::Busy, TurnOutcome::Refused, Some(503)),
        (Failure::BusyInStream, TurnOutcome::Failed(TurnFailure::InStream), Some(200)),
        (Failure::CutAfter(3), TurnOutcome::Failed(TurnFailure::CutOff), Some(200)),
    ];
    for (failure, outcome, status) in cases {
        let server = start(ReplicaOptions { failure, ..ReplicaOptions::default() }).await;
        let results = take(workload(&server, 1), 1).await;
        assert_eq!((results[0].outcome, results[0].status), (outcome, status));
    }
    let server = start(ReplicaOptions::default()).await;
    let workload = workload(&server, 1);
    server.shutdown().await;
    let results = take(workload, 1).await;
    assert_eq!(results[0].outcome, TurnOutcome::Failed(TurnFailure::NoAnswer));
}

#[tokio::test]
async fn more_sessions_than_fit_spoil_each_others_cache() {
    let mut cached = Vec::new();
    for sessions in [2, 6] {
        let engine = EngineConfig::default();
        let server = start(ReplicaOptions { engine, ..ReplicaOptions::default() }).await;
        let results = take(workload(&server, sessions), sessions * 6).await;
        let of_later_turns = results.iter().filter(|result| result.turn > 0).filter_map(|result| result.usage);
        let (hits, prompts) = of_later_turns
            .fold((0, 0), |(hits, prompts), usage| (hits + usage.cached_tokens, prompts + usage.prompt_tokens));
        cached.push(hits * 100 / prompts);
    }
    assert!(cached[0] > 90 && cached[1] < 60, "cached percent with 2 and with 6 sessions: {cached:?}");
}
