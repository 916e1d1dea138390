//! A status as text: a card for each model, as the page shows it.

use std::fmt::Write as _;

use crate::admin::Status;
use crate::admin::books::{Books, Cold, WorkingSet};
use crate::admin::status::{Auto, ConfiguredThreshold, Engine, ModelStatus, ReplicaStatus};

use super::gpus;

/// Whether colours may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Plain,
    Coloured,
}

/// The headings of a replica's row; the first two are set to the left.
const COLUMNS: [&str; 12] = [
    "replica",
    "health",
    "in flight",
    "sticky",
    "spilled in",
    "client-pinned",
    "other",
    "running",
    "waiting",
    "KV used",
    "prefix hits",
    "conversations",
];
const LEFT: usize = 2;

/// What stands where a figure isn't known.
const UNKNOWN: &str = "-";

/// The whole status.
pub fn cards(status: &Status, ink: Ink) -> String {
    let mut text = process(status);
    for model in &status.models {
        text.push('\n');
        text.push_str(&card(model, ink));
    }
    if !status.gpus.is_empty() {
        text.push('\n');
    }
    for gpu in &status.gpus {
        text.push_str(&gpus::line(gpu, ink));
        text.push('\n');
    }
    text
}

/// The line of the process.
pub fn process(status: &Status) -> String {
    let process = &status.kvpin;
    let (version, up) = (&process.version, duration(process.uptime_s));
    format!("kvpin {version}, up {up}, {} open requests\n", process.open_requests)
}

/// The line that a model's card begins with.
pub fn heading(model: &ModelStatus, ink: Ink) -> String {
    let aliases = if model.aliases.is_empty() { String::new() } else { format!(" ({})", model.aliases.join(", ")) };
    let affinity = if model.affinity { "on" } else { "off" };
    format!(
        "{}{aliases}   affinity {affinity}   spill threshold {}   sticky {}   in flight {}",
        bold(&model.name, ink),
        threshold(model),
        percent(model.sticky_percent),
        model.in_flight
    )
}

/// A replica without its counts.
pub fn replica_line(replica: &ReplicaStatus, ink: Ink) -> String {
    let health = coloured_health(&health(replica), &replica.health, ink);
    format!("{}  {health}   in flight {}", replica.name, replica.in_flight)
}

fn card(model: &ModelStatus, ink: Ink) -> String {
    let mut text = String::new();
    // A String takes all that is written.
    let mut line = |line: String| writeln!(text, "{line}").unwrap_or_default();
    line(heading(model, ink));
    table(&model.replicas, ink).into_iter().for_each(&mut line);
    line(tokens(&model.books));
    let first_byte = &model.first_byte;
    if let (Some(p50), Some(p95)) = (first_byte.p50_s, first_byte.p95_s) {
        line(format!("  first byte p50 {p50:.2} s, p95 {p95:.2} s over {} turns", grouped(first_byte.count)));
    }
    if let Some(rule) = held(model) {
        line(format!("  {}", yellow(&rule, ink)));
    }
    if let Some(rule) = over_full(&model.working_set) {
        line(format!("  {}", yellow(&rule, ink)));
    }
    cold(&model.books).into_iter().for_each(&mut line);
    for (reason, count) in model.refused.iter().filter(|(_, count)| **count > 0) {
        line(format!("  {}", yellow(&format!("{} turns refused: {}", grouped(*count), words(reason)), ink)));
    }
    model.notes.iter().for_each(|note| line(format!("  note: {note}")));
    text
}

fn table(replicas: &[ReplicaStatus], ink: Ink) -> Vec<String> {
    let rows: Vec<_> = replicas.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([COLUMNS[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let set = |cells: [&str; COLUMNS.len()], health: Option<&str>| {
        let cells = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            let set = if column < LEFT { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            match health {
                Some(health) if column == 1 => coloured_health(&set, health, ink),
                Some(_) | None => set,
            }
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let mut lines = vec![set(COLUMNS, None)];
    lines.extend(
        rows.iter().zip(replicas).map(|(row, replica)| {
            set(std::array::from_fn(|column| row[column].as_str()), Some(replica.health.as_str()))
        }),
    );
    lines
}

fn row(replica: &ReplicaStatus) -> [String; COLUMNS.len()] {
    let engine = replica.engine.as_ref();
    let of_engine = |value: fn(&Engine) -> String| engine.map_or_else(|| UNKNOWN.to_owned(), value);
    [
        replica.name.clone(),
        health(replica),
        replica.in_flight.to_string(),
        grouped(replica.sticky),
        grouped(replica.spilled_in),
        grouped(replica.client_pinned),
        grouped(replica.placed + replica.unpinned + replica.side),
        of_engine(|engine| engine.running.to_string()),
        of_engine(|engine| engine.waiting.to_string()),
        of_engine(|engine| format!("{:.0} %", engine.kv_use_percent)),
        of_engine(|engine| percent(engine.prefix_hit_percent)),
        (replica.conversations.active + replica.conversations.idle).to_string(),
    ]
}

fn health(replica: &ReplicaStatus) -> String {
    let reason = replica.health_reason.as_deref().map_or(String::new(), |reason| format!(" ({})", words(reason)));
    let drained = if replica.drain.is_some() && replica.health != "draining" { ", draining" } else { "" };
    let retired = if replica.retired { ", removed" } else { "" };
    format!("{}{reason}{drained}{retired}", replica.health)
}

/// What the model's turns cost.
fn tokens(books: &Books) -> String {
    let tokens = &books.tokens;
    let prompt = tokens.cached + tokens.computed + tokens.estimated;
    let mut line = format!(
        "  prompt tokens {}: {} cached, {} computed",
        short(prompt),
        short(tokens.cached),
        short(tokens.computed + tokens.estimated)
    );
    if let Some(share) = books.cached_percent {
        line.push_str(&format!(" ({share:.1} % from the cache)"));
    }
    if tokens.estimated > 0 {
        line.push_str(&format!(", {} of them estimated", short(tokens.estimated)));
    }
    line.push_str(&format!("; {} generated", short(tokens.completion)));
    line
}

/// Why turns found less in the cache than they should have, the costliest reason first.
fn cold(books: &Books) -> Vec<String> {
    let mut reasons: Vec<_> = books.cold.iter().filter(|(_, cold)| cold.turns > 0).collect();
    reasons.sort_by_key(|(_, cold)| std::cmp::Reverse(cold.tokens));
    let line = |(reason, cold): (&String, &Cold)| {
        let (turns, tokens) = (grouped(cold.turns), short(cold.tokens));
        format!("  cold: {turns} turns {}, {tokens} tokens computed again", words(reason))
    };
    reasons.into_iter().map(line).collect()
}

/// The rule of thumb, where it says that the caches are too small.
fn over_full(set: &WorkingSet) -> Option<String> {
    let capacity = set.capacity_tokens?;
    if set.tokens <= capacity || set.conversations == 0 {
        return None;
    }
    Some(format!(
        "{} conversations of about {} tokens need {}; the replicas hold {}",
        set.conversations,
        short(set.tokens / set.conversations),
        short(set.tokens),
        short(capacity)
    ))
}

/// Who waits, and for what.
fn held(model: &ModelStatus) -> Option<String> {
    let admission = &model.admission;
    if admission.held_turns == 0 {
        return None;
    }
    let of_residents: u64 = model.replicas.iter().filter_map(|replica| replica.resident_tokens).sum();
    let limit: u64 = model.replicas.iter().filter_map(|replica| replica.admission_limit_tokens).sum();
    Some(format!(
        "{}, the first for {}: the conversations at work need {} tokens, the replicas hold {}",
        counted(u64::from(admission.held_turns), "turn waits", "turns wait"),
        duration(admission.longest_hold_s),
        short(of_residents + admission.needed_tokens),
        short(limit)
    ))
}

/// `1 turn waits`, `7 turns wait`.
fn counted(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { several })
}

fn threshold(model: &ModelStatus) -> String {
    match model.spill_threshold.configured {
        ConfiguredThreshold::Turns(turns) => turns.to_string(),
        ConfiguredThreshold::Word(Auto::Auto) => {
            let of_replicas = || model.replicas.iter().map(|replica| replica.spill_threshold);
            match (of_replicas().min(), of_replicas().max()) {
                (Some(least), Some(most)) if least == most => format!("{most} (auto)"),
                (Some(least), Some(most)) => format!("{least} to {most} (auto)"),
                _ => "auto".to_owned(),
            }
        }
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| UNKNOWN.to_owned(), |share| format!("{share:.1} %"))
}

/// A word of the status as people read it.
fn words(word: &str) -> String {
    word.replace('_', " ")
}

/// `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `850`, `58.2k`, `1.5M`.
fn short(tokens: u64) -> String {
    let tokens = tokens as f64;
    match tokens {
        _ if tokens < 1e3 => format!("{tokens:.0}"),
        _ if tokens < 1e6 => format!("{:.1}k", tokens / 1e3),
        _ if tokens < 1e9 => format!("{:.1}M", tokens / 1e6),
        _ => format!("{:.1}G", tokens / 1e9),
    }
}

/// In the two largest units that are not 0.
fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

fn coloured_health(set: &str, health: &str, ink: Ink) -> String {
    match health {
        "up" => painted(set, "32", ink),
        "down" => painted(set, "31", ink),
        _ => painted(set, "33", ink),
    }
}

fn bold(text: &str, ink: Ink) -> String {
    painted(text, "1", ink)
}

pub fn yellow(text: &str, ink: Ink) -> String {
    painted(text, "33", ink)
}

/// By the codes of ECMA-48 (SGR).
fn painted(text: &str, code: &str, ink: Ink) -> String {
    match ink {
        Ink::Plain => text.to_owned(),
        Ink::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub fn status() -> Status {
        let replica = json!({
            "name": "r0", "address": "127.0.0.1:1", "rank": null, "health": "down", "health_reason": "connect_refused",
            "health_age_s": 1.0, "drain": null, "ramp_percent": 100, "restarts": 0, "in_flight": 3,
            "conversations": {"active": 2, "relatives": 0, "idle": 1, "lost": 0},
            "sticky": 1200, "placed": 7, "replaced": 0, "forked": 0, "spilled_in": 4, "client_pinned": 0, "unpinned": 1, "side": 2,
            "outcomes": {"completed": 1, "rejected": 0, "failed": 0, "abandoned": 0, "moved_on": 0},
            "tokens": {"cached": 81_000, "computed": 19_000, "estimated": 500, "completion": 900},
            "turns_measured": 9, "turns_unmeasured": 1, "turns_untold": 0, "cached_percent": 81.0,
            "cold": {"prefix_changed": {"turns": 3, "tokens": 8_100, "survived": 5}, "evicted": {"turns": 0, "tokens": 0, "survived": 0}},
            "working_set_tokens": 1_500_000, "spill_threshold": 8, "max_num_seqs": 32, "max_num_seqs_source": "assumed",
            "retired": false, "engine": null
        });
        let books = ["tokens", "turns_measured", "turns_unmeasured", "turns_untold", "cached_percent", "cold"];
        let mut model = json!({
            "name": "qwen", "aliases": ["sonnet"], "affinity": true, "mode": "affinity",
            "spill_threshold": {"configured": "auto"}, "conversations": 3, "sticky_percent": 99.6,
            "prefix_hit_percent": null, "in_flight": 3, "refused": {"no_replica_up": 2},
            "first_byte": {"p50_s": 0.42, "p95_s": 3.1, "count": 1203},
            "working_set": {"conversations": 26, "tokens": 1_508_000, "capacity_tokens": 900_000},
            "notes": ["max_num_seqs is not configured: 32 is assumed"], "replicas": [replica.clone()]
        });
        for book in books {
            model[book] = replica[book].clone();
        }
        let process = json!({"version": "1.2.3", "uptime_s": 11_520.0, "open_requests": 14});
        serde_json::from_value(json!({"kvpin": process, "models": [model]})).expect("a status")
    }

    #[test]
    fn a_card_says_what_the_page_says() {
        let text = cards(&status(), Ink::Plain);
        for line in [
            "kvpin 1.2.3, up 3 h 12 min, 14 open requests",
            "qwen (sonnet)   affinity on   spill threshold 8 (auto)   sticky 99.6 %   in flight 3",
            "  prompt tokens 100.5k: 81.0k cached, 19.5k computed (81.0 % from the cache), 500 of them estimated; 900 generated",
            "  first byte p50 0.42 s, p95 3.10 s over 1,203 turns",
            "  26 conversations of about 58.0k tokens need 1.5M; the replicas hold 900.0k",
            "  cold: 3 turns prefix changed, 8.1k tokens computed again",
            "  2 turns refused: no replica up",
            "  note: max_num_seqs is not configured: 32 is assumed",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nin\n{text}");
        }
        assert!(!text.contains("evicted"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }

    #[test]
    fn a_card_says_who_waits_and_for_what() {
        let mut status = status();
        assert!(!cards(&status, Ink::Plain).contains("wait,"), "nobody waits");
        let model = &mut status.models[0];
        model.admission.held_turns = 7;
        model.admission.longest_hold_s = 40.2;
        model.admission.needed_tokens = 620_000;
        model.replicas[0].resident_tokens = Some(880_000);
        model.replicas[0].admission_limit_tokens = Some(900_000);
        let line =
            "  7 turns wait, the first for 40 s: the conversations at work need 1.5M tokens, the replicas hold 900.0k";
        let text = cards(&status, Ink::Plain);
        assert!(text.lines().any(|found| found == line), "{text}");
        status.models[0].admission.held_turns = 1;
        assert!(cards(&status, Ink::Plain).contains("  1 turn waits, the first for 40 s"));
    }

    #[test]
    fn the_columns_of_the_table_stand_under_their_headings() {
        let text = cards(&status(), Ink::Plain);
        let rows: Vec<_> = text.lines().skip_while(|line| !line.starts_with("  replica")).take(2).collect();
        let end = |line: &str, cell: &str| line.find(cell).map(|at| at + cell.len());
        assert_eq!(end(rows[0], "sticky"), end(rows[1], "1,200"));
        assert!(rows[1].contains("down (connect refused)"), "{text}");
    }

    #[test]
    fn colours_change_nothing_but_the_colour() {
        let coloured = cards(&status(), Ink::Coloured);
        let mut plain = String::new();
        for piece in coloured.split('\x1b') {
            plain.push_str(piece.split_once('m').filter(|_| piece.starts_with('[')).map_or(piece, |(_, rest)| rest));
        }
        assert_eq!(plain, cards(&status(), Ink::Plain));
        assert!(coloured.contains("\x1b[31mdown"));
    }

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([999, 58_200, 1_500_000, 2_000_000_000].map(short), ["999", "58.2k", "1.5M", "2.0G"]);
        assert_eq!([59.9, 61.0, 3_600.0, 90_000.0].map(duration), ["59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
    }
}
