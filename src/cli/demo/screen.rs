//! The demo's table on a terminal, redrawn in place.

use std::io::{self, Write};
use std::time::Duration;

use crate::balancer::{ReplicaSnapshot, Snapshot};

use super::tally::Figures;

/// What is drawn of one arm.
pub struct Picture {
    pub title: &'static str,
    pub snapshot: Snapshot,
    pub figures: Figures,
}

/// A terminal that the table is drawn on, over what was drawn before.
pub struct Screen<W> {
    out: W,
    /// Lines that the next drawing goes over.
    drawn: usize,
}

/// Width of one arm's table, and of the gap between two.
const WIDTH: usize = 58;
const GAP: &str = "   ";

impl<W: Write> Screen<W> {
    pub fn new(out: W) -> Self {
        Screen { out, drawn: 0 }
    }

    /// Draws both arms, side by side if there is room for it.
    pub fn draw(&mut self, pictures: &[Picture], left: Duration, columns: usize) -> io::Result<()> {
        let mut lines = vec![format!("kvpin demo: {} s left", left.as_secs()), String::new()];
        let tables: Vec<_> = pictures.iter().map(table).collect();
        if columns >= 2 * WIDTH + GAP.len() {
            lines.extend(beside(&tables));
        } else {
            for table in tables {
                lines.extend(table);
                lines.push(String::new());
            }
        }
        if self.drawn > 0 {
            // Up to the first line of the last drawing.
            write!(self.out, "\x1b[{}A", self.drawn)?;
        }
        for line in &lines {
            let cut: String = line.chars().take(columns.max(20)).collect();
            writeln!(self.out, "{cut}\x1b[K")?;
        }
        self.drawn = lines.len();
        self.out.flush()
    }
}

/// The figures of both arms as the last word, for a terminal and for a file alike.
pub fn summary(arms: &[Figures]) -> String {
    let row = |name: &str, value: &dyn Fn(&Figures) -> String| {
        let cells: String = arms.iter().map(|arm| format!("{:>16}", value(arm))).collect();
        format!("{name:<34}{cells}\n")
    };
    [
        row("", &|arm| arm.arm.to_owned()),
        row("turns", &|arm| arm.turns.to_string()),
        row("errors", &|arm| arm.errors.to_string()),
        row("turns that stayed", &|arm| format!("{:.1} %", arm.sticky_percent)),
        row("prompt tokens from the cache", &|arm| format!("{:.1} %", arm.prefix_hit_percent)),
        row("time to first token, median", &|arm| format!("{:.2} s", arm.ttfb_p50_s)),
        row("time to first token, 95th", &|arm| format!("{:.2} s", arm.ttfb_p95_s)),
        row("output tokens a minute", &|arm| format!("{:.0}", arm.output_tokens_per_min)),
    ]
    .concat()
}

fn beside(tables: &[Vec<String>]) -> Vec<String> {
    let height = tables.iter().map(Vec::len).max().unwrap_or(0);
    (0..height)
        .map(|n| {
            let cells = tables.iter().map(|table| table.get(n).map_or("", String::as_str));
            cells.map(|cell| format!("{cell:<WIDTH$}")).collect::<Vec<_>>().join(GAP).trim_end().to_owned()
        })
        .collect()
}

fn table(picture: &Picture) -> Vec<String> {
    let figures = &picture.figures;
    let mut lines = vec![
        format!(
            "{}: {} turns, {:.0} % stayed, {:.0} % from the cache",
            picture.title, figures.turns, figures.sticky_percent, figures.prefix_hit_percent
        ),
        "replica  in flight  sticky  spilled in  other   KV   hits".to_owned(),
    ];
    lines.extend(picture.snapshot.replicas.iter().enumerate().map(|(n, replica)| row(n, replica)));
    lines.push(format!(
        "first token {:.2} s (95th {:.2} s), {:.0} tokens/min",
        figures.ttfb_p50_s, figures.ttfb_p95_s, figures.output_tokens_per_min
    ));
    lines
}

fn row(number: usize, replica: &ReplicaSnapshot) -> String {
    let counters = &replica.counters;
    let scrape = replica.scrape.as_ref().map(|(scrape, _)| scrape);
    let kv = scrape.map_or(0.0, |scrape| scrape.kv_use * 100.0);
    let hits = scrape
        .filter(|scrape| scrape.prefix_queries_tokens > 0)
        .map_or(0.0, |scrape| scrape.prefix_hits_tokens as f64 * 100.0 / scrape.prefix_queries_tokens as f64);
    format!(
        "{:<8} {:>9} {:>7} {:>11} {:>6} {kv:>3.0}%  {hits:>4.0}%",
        format!("r{number}"),
        replica.in_flight,
        counters.sticky,
        counters.spilled_in,
        counters.placed + counters.unpinned,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balancer::{Admission, Balancer, Bounds, HealthPolicy, Mode, Policy, ReplicaSpec, SpillThreshold};

    fn picture() -> Picture {
        let policy = Policy {
            mode: Mode::Affinity,
            spill_threshold: SpillThreshold::Auto,
            max_num_seqs: None,
            admission: Admission::OFF,
            bounds: Bounds { entries_max: 10, idle_max: Duration::from_secs(1) },
            health: HealthPolicy::default(),
        };
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let spec = ReplicaSpec {
            name: "a".into(),
            address,
            authority: String::new(),
            is_tls: false,
            rank: None,
            drain: false,
        };
        let snapshot = Balancer::new(policy, vec![spec], Duration::ZERO).snapshot(Duration::ZERO);
        let figures = super::super::tally::Tally::default().figures("affinity", Duration::from_secs(1));
        Picture { title: "affinity", snapshot, figures }
    }

    #[test]
    fn a_second_drawing_goes_over_the_first() {
        let mut bytes = Vec::new();
        let mut screen = Screen::new(&mut bytes);
        screen.draw(&[picture(), picture()], Duration::from_secs(9), 200).unwrap();
        let height = screen.drawn;
        screen.draw(&[picture(), picture()], Duration::from_secs(8), 200).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(&format!("\x1b[{height}A")));
        assert_eq!(text.matches("replica  in flight").count(), 4);
    }

    #[test]
    fn a_narrow_terminal_gets_the_arms_one_under_the_other() {
        let mut bytes = Vec::new();
        Screen::new(&mut bytes).draw(&[picture(), picture()], Duration::ZERO, 70).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.lines().all(|line| line.trim_end_matches("\x1b[K").chars().count() <= 70), "{text}");
        assert!(!text.lines().any(|line| line.matches("in flight").count() > 1));
    }
}
