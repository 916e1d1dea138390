//! The report as text: a table that a terminal, a page of notes and a reader of Markdown all take.

use super::figures::Column;
use super::{Range, Report, Rung};

/// The rungs as a Markdown table, its columns padded. With ranges, a figure is followed by the least and the most of it.
pub fn table(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = vec![header()];
    rows.extend(report.rungs.iter().enumerate().map(|(index, rung)| row(rung, report.ranges.get(index))));
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut lines: Vec<String> = rows.iter().map(|row| line(row, &widths)).collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width.saturating_sub(1)) + ":").collect();
    lines.insert(1, line(&rule, &widths));
    lines.join("\n") + "\n"
}

fn header() -> Vec<String> {
    let columns = Column::ALL.iter().map(|column| column.title().join(" ").trim_end().to_owned());
    ["sessions".to_owned(), "arm".to_owned()].into_iter().chain(columns).collect()
}

fn row(rung: &Rung, range: Option<&Range>) -> Vec<String> {
    let cell = |column: &Column| {
        let shown = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.*}", column.decimals()));
        let middle = shown(rung.figures.get(*column));
        let Some(range) = range else { return middle };
        let (least, most) = (shown(range.least.get(*column)), shown(range.most.get(*column)));
        if least == most { middle } else { format!("{middle} ({least}..{most})") }
    };
    [rung.sessions.to_string(), rung.arm.clone()].into_iter().chain(Column::ALL.iter().map(cell)).collect()
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
    format!("| {} |", padded.collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::super::Figures;
    use super::*;

    #[test]
    fn what_was_not_seen_is_a_dash_and_never_a_zero() {
        let figures = Figures { ttfb_p50_s: Some(0.3456), errors: Some(0.0), ..Figures::default() };
        let report = Report::of(vec![Rung { sessions: 4, arm: "vllm".into(), figures }]);
        let text = table(&report);
        let cells: Vec<&str> = text.lines().last().expect("a row").split('|').map(str::trim).collect();
        assert_eq!(cells[1..6], ["4", "vllm", "-", "-", "0.35"]);
        assert_eq!(cells[16], "0");
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }

    #[test]
    fn rounds_that_differ_show_their_range() {
        let rung = |sessions_per_hour| Rung {
            sessions: 4,
            arm: "affinity".into(),
            figures: Figures { sessions_per_hour, errors: Some(0.0), ..Figures::default() },
        };
        let text = table(&Report::of_rounds(&[rung(Some(100.0)), rung(Some(140.0))]));
        assert!(text.contains("120 (100..140)"), "{text}");
        assert!(text.trim_end().ends_with(" 0 |"), "{text}");
    }
}
