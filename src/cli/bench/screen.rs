//! What is shown while it goes on: a line with a bar on a terminal, and a line for each measurement when it is done. All on
//! stderr; stdout is for what comes out.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use crate::report::{Column, Rung};

use super::plan::Cell;
use super::seen::Seen;

/// The state of a measurement.
pub struct Progress<'a> {
    pub arm: &'a str,
    pub cell: Cell,
    pub seen: &'a Seen,
    pub elapsed: Duration,
    pub length: Duration,
}

pub struct Screen {
    draws: bool,
    rounds: u32,
    /// Measurements that are done, and those there are in all.
    done: usize,
    all: usize,
    /// Whether a line stands there that the next goes over.
    is_drawn: bool,
}

const BAR: usize = 24;

impl Screen {
    pub fn new(rounds: u32, all: usize) -> Self {
        Screen { draws: std::io::stderr().is_terminal(), rounds, done: 0, all, is_drawn: false }
    }

    /// Draws how far it has come, where there is a terminal.
    pub fn show(&mut self, progress: &Progress<'_>) {
        if self.draws {
            self.is_drawn = true;
            let columns = terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0));
            let text: String =
                line(progress, self.done, self.all, self.rounds).chars().take(columns.max(20) - 1).collect();
            self.write(&format!("\r{text}\x1b[K"));
        }
    }

    /// A measurement is done.
    pub fn done(&mut self, round: u32, rung: &Rung) {
        self.done += 1;
        let (done, all) = (self.done, self.all);
        self.say(&format!("{done}/{all} round {} {}", round + 1, summary(rung)));
    }

    /// Writes a line that stays.
    pub fn say(&mut self, text: &str) {
        let over = if self.is_drawn { "\r\x1b[K" } else { "" };
        self.is_drawn = false;
        self.write(&format!("{over}{text}\n"));
    }

    /// Nobody can be told that stderr is closed, and the measurement goes on without.
    fn write(&self, text: &str) {
        let mut out = std::io::stderr();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
    }
}

fn line(progress: &Progress<'_>, done: usize, all: usize, rounds: u32) -> String {
    let Progress { arm, cell, seen, elapsed, length } = progress;
    let share = (elapsed.as_secs_f64() / length.as_secs_f64().max(0.001)).min(1.0);
    let full = (share * BAR as f64) as usize;
    let bar: String = (0..BAR).map(|place| if place < full { '#' } else { '.' }).collect();
    let wait = seen.median_wait().map_or("-".to_owned(), |wait| format!("{:.2} s", wait.as_secs_f64()));
    format!(
        "{}/{all} round {}/{rounds} {:>3} sessions {arm} [{bar}] {} s left, {} turns, first token {wait}, {} errors",
        done + 1,
        cell.round + 1,
        cell.sessions,
        length.saturating_sub(*elapsed).as_secs(),
        seen.complete,
        seen.errors,
    )
}

fn summary(rung: &Rung) -> String {
    let shown = |column: Column| {
        let value = rung.figures.get(column);
        value.map_or("-".to_owned(), |value| format!("{value:.*}", column.decimals()))
    };
    format!(
        "{:>3} sessions {:<12} {:>6} tokens/min, first token {} s (95th {} s), hits {} %, {} busy, {} waiting, {} errors",
        rung.sessions,
        rung.arm,
        shown(Column::OutputTokensPerMin),
        shown(Column::TtfbP50),
        shown(Column::TtfbP95),
        shown(Column::PrefixHits),
        shown(Column::ReplicasBusy),
        shown(Column::WaitingAtEnd),
        shown(Column::Errors),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_how_far_it_has_come() {
        let seen = Seen::default();
        let cell = Cell { round: 1, sessions: 8, arm: 0 };
        let at = |seconds| Progress {
            arm: "affinity",
            cell,
            seen: &seen,
            elapsed: Duration::from_secs(seconds),
            length: Duration::from_secs(60),
        };
        let text = line(&at(30), 2, 6, 2);
        assert!(text.starts_with("3/6 round 2/2   8 sessions affinity [############............] 30 s left"), "{text}");
        assert!(line(&at(90), 2, 6, 2).contains(&"#".repeat(BAR)));
    }
}
