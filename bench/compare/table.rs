//! A report as tables: the median over the rounds, with the least and the most.

use std::fmt::Write as _;

use crate::report::{Measured, Report};
use crate::rig::figures::Samples;
use crate::work::{Column, Shows};

const YARDSTICK: &str = "nginx";
const BASELINE: &str = "direct";

pub fn render(report: &Report) -> String {
    let mut text = format!("{}\n\n", report.machine.line());
    for proxy in report.proxies.iter().filter(|proxy| !proxy.version.is_empty()) {
        text += &format!("- {}: {}\n", proxy.name, proxy.version);
    }
    for case in &report.cases {
        text += &of_case(report, case);
    }
    if !report.failures.is_empty() {
        text += "\n### Failed\n\n";
        // A log's lines would end the list.
        text.extend(report.failures.iter().map(|failure| format!("- {}\n", failure.replace('\n', " / "))));
    }
    text
}

fn of_case(report: &Report, case: &Measured) -> String {
    let heads: Vec<&str> = case.columns.iter().flat_map(|column| heads(column)).collect();
    let mut text = format!("\n### {}: {}\n\n| proxy | {} |\n", case.scenario, case.name, heads.join(" | "));
    text += &format!("|---|{}\n", "---|".repeat(heads.len()));
    for (place, proxy) in report.proxies.iter().enumerate().filter(|(place, _)| case.rounds(*place) > 0) {
        let cells: Vec<String> =
            case.columns.iter().enumerate().flat_map(|(at, column)| cells(report, case, place, (at, column))).collect();
        // Writing to a string can't fail.
        writeln!(text, "| {} | {} |", proxy.name, cells.join(" | ")).unwrap_or_default();
    }
    text
}

fn heads(column: &Column) -> Vec<&'static str> {
    match column.shows {
        Shows::Itself => vec![column.name],
        Shows::OverNginx => vec![column.name, "over nginx"],
        Shows::Added => vec![column.name, "added"],
    }
}

fn cells(report: &Report, case: &Measured, proxy: usize, (at, column): (usize, &Column)) -> Vec<String> {
    let against = |other: &str, how: fn(f64, f64) -> f64| {
        let other = report.place_of(other);
        range(case, proxy, |round| Some(how(case.figure(proxy, round, at)?, case.figure(other?, round, at)?)))
    };
    let itself = range(case, proxy, |round| case.figure(proxy, round, at));
    match column.shows {
        Shows::Itself => vec![itself],
        Shows::OverNginx => vec![itself, against(YARDSTICK, |mine, theirs| mine / theirs)],
        Shows::Added => vec![itself, against(BASELINE, |mine, theirs| mine - theirs)],
    }
}

/// The median over the rounds and, where there are several, the least and the most.
fn range(case: &Measured, proxy: usize, figure: impl Fn(usize) -> Option<f64>) -> String {
    let mut samples = Samples::default();
    (0..case.rounds(proxy)).filter_map(figure).for_each(|figure| samples.push(figure));
    let [least, median, most] = [0.0, 0.5, 1.0].map(|q| samples.quantile(q));
    if median.is_nan() {
        "-".to_owned()
    } else if least == most {
        number(median)
    } else {
        format!("{} ({}..{})", number(median), number(least), number(most))
    }
}

/// With three digits or so.
pub fn number(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ if figure == 0.0 => "0".to_owned(),
        _ if figure.is_nan() => "-".to_owned(),
        _ => format!("{figure:.2}"),
    }
}
