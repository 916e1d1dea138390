//! Recorded sessions, without a word of what was said in them: who asked when, and how much.
//!
//! A trace is JSON Lines, one turn a line, in any order:
//!
//! ```json
//! {"session": "s1", "at_s": 12.5, "prompt_tokens": 10800, "output_tokens": 256}
//! ```
//!
//! `at_s` counts from the beginning of the trace. A prompt has everything that was said before; what it is longer than the turn
//! before came to is what is said in this turn. One that is shorter began anew, as after a compaction.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::sim::agent::{SessionPlan, TurnPlan};

/// A turn of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceTurn {
    pub session: String,
    pub at_s: f64,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
}

/// What is read of a line of kvpin's JSON access log.
#[derive(Deserialize)]
struct Access {
    /// Of the request's end.
    time: String,
    model: Option<String>,
    decision: Option<String>,
    total_ms: f64,
    cached: Option<u64>,
    computed: Option<u64>,
    completion: Option<u64>,
    conversation: Option<String>,
}

/// What a recording has left out, and what it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pub turns: usize,
    pub sessions: usize,
    /// Lines of side calls, of requests without a conversation, of other models, and of what came to nothing.
    pub passed_over: usize,
}

/// A trace that is longer than a month is a mistake.
const LONGEST_S: f64 = 31.0 * 86_400.0;

/// Reads a trace. `system_tokens` of each prompt are what all sessions share.
pub fn read(lines: impl BufRead, system_tokens: u32) -> anyhow::Result<Vec<SessionPlan>> {
    let mut sessions: BTreeMap<String, Vec<TraceTurn>> = BTreeMap::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line.context("the trace can't be read")?;
        if line.trim().is_empty() {
            continue;
        }
        let turn: TraceTurn = serde_json::from_str(&line).with_context(|| format!("line {} is no turn", number + 1))?;
        if !(0.0..=LONGEST_S).contains(&turn.at_s) {
            bail!("line {}: `at_s` is {}, which is no time of a trace", number + 1, turn.at_s);
        }
        sessions.entry(turn.session.clone()).or_default().push(turn);
    }
    if sessions.is_empty() {
        bail!("the trace has no turn");
    }
    Ok(sessions.into_values().map(|turns| plan(turns, system_tokens)).collect())
}

/// The time of a trace's last turn.
pub fn length(plans: &[SessionPlan]) -> Duration {
    let dues = plans.iter().flat_map(|plan| &plan.turns).map(|turn| turn.due);
    dues.max().unwrap_or_default()
}

fn plan(mut turns: Vec<TraceTurn>, system_tokens: u32) -> SessionPlan {
    turns.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
    // What the history comes to after a turn.
    let mut history = None;
    let plans = turns.iter().map(|turn| {
        let grown = history.and_then(|history| turn.prompt_tokens.checked_sub(history)).filter(|grown| *grown > 0);
        history = Some(turn.prompt_tokens.saturating_add(turn.output_tokens));
        TurnPlan {
            due: Duration::from_secs_f64(turn.at_s),
            pause: Duration::ZERO,
            message_tokens: grown.unwrap_or(turn.prompt_tokens.saturating_sub(system_tokens)).max(1),
            reply_tokens: turn.output_tokens.max(1),
            starts_over: grown.is_none(),
            subagents: 0,
        }
    });
    SessionPlan { turns: plans.collect() }
}

/// Makes a trace of kvpin's JSON access log. Conversations get numbers in the place of their hashes. Of turns whose engine told
/// no usage, the sizes are kvpin's estimates. `model`: of that one only.
pub fn record(log: impl BufRead, model: Option<&str>, out: &mut impl Write) -> anyhow::Result<Recorded> {
    let mut turns: Vec<(Timestamp, String, u32, u32)> = Vec::new();
    let mut recorded = Recorded::default();
    for (number, line) in log.lines().enumerate() {
        let line = line.context("the access log can't be read")?;
        if line.trim().is_empty() {
            continue;
        }
        let access: Access = serde_json::from_str(&line)
            .with_context(|| format!("line {} is none of kvpin's JSON access log", number + 1))?;
        match turn(access, model) {
            Some(turn) => turns.push(turn),
            None => recorded.passed_over += 1,
        }
    }
    turns.sort();
    let Some(begin) = turns.first().map(|turn| turn.0) else { bail!("the log has no turn of a conversation") };
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for (at, conversation, prompt_tokens, output_tokens) in turns {
        let next = names.len() + 1;
        let number = *names.entry(conversation).or_insert(next);
        let at_s = at.duration_since(begin).as_millis() as f64 / 1_000.0;
        let turn = TraceTurn { session: format!("s{number}"), at_s, prompt_tokens, output_tokens };
        writeln!(out, "{}", serde_json::to_string(&turn)?).context("the trace can't be written")?;
        recorded.turns += 1;
    }
    recorded.sessions = names.len();
    Ok(recorded)
}

/// When a request began, whose it was, and its prompt and reply in tokens; `None` for what is no turn of a conversation.
fn turn(access: Access, model: Option<&str>) -> Option<(Timestamp, String, u32, u32)> {
    let is_wanted = model.is_none_or(|model| access.model.as_deref() == Some(model));
    let is_side = access.decision.as_deref() == Some("side");
    let conversation = access.conversation.filter(|_| is_wanted && !is_side)?;
    let prompt = u32::try_from(access.cached.unwrap_or(0) + access.computed?).ok().filter(|prompt| *prompt > 0)?;
    let reply = u32::try_from(access.completion.unwrap_or(0)).ok()?;
    let took = Duration::try_from_secs_f64(access.total_ms / 1_000.0).ok()?;
    let ended: Timestamp = access.time.parse().ok()?;
    Some((ended.checked_sub(took).ok()?, conversation, prompt, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_says_what_its_prompt_is_longer_by() {
        let text = r#"
            {"session": "a", "at_s": 5, "prompt_tokens": 1500, "output_tokens": 10}
            {"session": "a", "at_s": 0, "prompt_tokens": 1000, "output_tokens": 100}
            {"session": "b", "at_s": 1, "prompt_tokens": 50, "output_tokens": 0}
            {"session": "a", "at_s": 9.5, "prompt_tokens": 700, "output_tokens": 20}
        "#;
        let plans = read(text.as_bytes(), 300).unwrap();
        let turns = |plan: &SessionPlan| {
            let of =
                |turn: &TurnPlan| (turn.due.as_secs_f64(), turn.message_tokens, turn.reply_tokens, turn.starts_over);
            plan.turns.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(turns(&plans[0]), [(0.0, 700, 100, true), (5.0, 400, 10, false), (9.5, 400, 20, true)]);
        assert_eq!(turns(&plans[1]), [(1.0, 1, 1, true)]);
        assert_eq!(length(&plans), Duration::from_millis(9_500));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let refused = |text: &str| format!("{:#}", read(text.as_bytes(), 0).unwrap_err());
        let good = r#"{"session": "a", "at_s": 0, "prompt_tokens": 1, "output_tokens": 1}"#;
        assert!(refused(&format!("{good}\n{{\"session\": 1}}")).starts_with("line 2 is no turn"));
        assert!(refused(&good.replace("\"at_s\": 0", "\"at_s\": -1")).contains("line 1: `at_s` is -1"));
        assert_eq!(refused("\n"), "the trace has no turn");
    }

    #[test]
    fn a_log_becomes_a_trace_without_hashes_in_which_turns_stand_by_their_begin() {
        let line = |time: &str, total: f64, decision: &str, conversation: &str| {
            format!(
                r#"{{"time":"2026-01-01T00:00:{time}Z","model":"m","replica":"r","decision":"{decision}","total_ms":{total},"cached":100,"computed":50,"completion":7,"conversation":{conversation},"client":"10.0.0.1"}}"#
            )
        };
        let log = [
            line("09.000", 1_000.0, "placed", "\"feed\""),
            line("09.500", 5_500.0, "placed", "\"cafe\""),
            line("09.600", 1.0, "side", "\"cafe\""),
            line("09.700", 1.0, "unpinned", "null"),
            line("09.900", 400.0, "sticky", "\"cafe\"").replace("\"computed\":50", "\"computed\":null"),
        ]
        .join("\n");
        let mut out = Vec::new();
        let recorded = record(log.as_bytes(), Some("m"), &mut out).unwrap();
        assert_eq!(recorded, Recorded { turns: 2, sessions: 2, passed_over: 3 });
        let text = String::from_utf8(out).unwrap();
        let expected = [
            r#"{"session":"s1","at_s":0.0,"prompt_tokens":150,"output_tokens":7}"#,
            r#"{"session":"s2","at_s":4.0,"prompt_tokens":150,"output_tokens":7}"#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        assert_eq!(read(text.as_bytes(), 100).unwrap().len(), 2);
        let refused = record("model=m".as_bytes(), None, &mut Vec::new()).unwrap_err();
        assert!(format!("{refused:#}").starts_with("line 1 is none of kvpin's JSON access log"));
    }
}
