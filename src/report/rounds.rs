//! Several rounds of the same: the median of each figure, and how far apart the rounds lie.

use serde::{Deserialize, Serialize};

use super::figures::{Column, Figures};
use super::{Report, Rung};

/// The least and the most of each figure over the rounds of a rung.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    pub sessions: u32,
    pub arm: String,
    pub rounds: usize,
    pub least: Figures,
    pub most: Figures,
}

/// The median of each figure for itself: a round that is the middle one in one column needn't be in another. Figures that no
/// round has stay absent.
pub fn summarise(rungs: &[Rung]) -> Report {
    let mut report = Report::default();
    let mut seen: Vec<(u32, &str)> = Vec::new();
    for rung in rungs {
        let name = (rung.sessions, rung.arm.as_str());
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let rounds: Vec<&Figures> = rungs
            .iter()
            .filter(|other| (other.sessions, other.arm.as_str()) == name)
            .map(|rung| &rung.figures)
            .collect();
        add(&mut report, rung, &rounds);
    }
    if report.ranges.iter().all(|range| range.rounds < 2) {
        report.ranges.clear();
    }
    report
}

fn add(report: &mut Report, rung: &Rung, rounds: &[&Figures]) {
    let [mut median, mut least, mut most] = [Figures::default(); 3];
    for column in Column::ALL {
        let mut values: Vec<f64> = rounds.iter().filter_map(|figures| figures.get(column)).collect();
        values.sort_by(f64::total_cmp);
        median.set(column, middle(&values));
        least.set(column, values.first().copied());
        most.set(column, values.last().copied());
    }
    let (sessions, arm) = (rung.sessions, rung.arm.clone());
    report.ranges.push(Range { sessions, arm: arm.clone(), rounds: rounds.len(), least, most });
    report.rungs.push(Rung { sessions, arm, figures: median });
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    // To a thousandth, as the figures themselves are.
    Some(((lower + upper) * 500.0).round() / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(sessions: u32, arm: &str, hits: Option<f64>, errors: f64) -> Rung {
        let figures = Figures { prefix_hit_percent: hits, errors: Some(errors), ..Figures::default() };
        Rung { sessions, arm: arm.into(), figures }
    }

    #[test]
    fn each_figure_has_its_own_median_and_range_over_the_rounds() {
        let rounds = [
            rung(4, "a", Some(80.0), 3.0),
            rung(4, "b", Some(50.0), 0.0),
            rung(4, "a", Some(90.0), 0.0),
            rung(4, "b", None, 1.0),
            rung(4, "a", Some(70.0), 1.0),
        ];
        let report = summarise(&rounds);
        assert_eq!(report.rungs, [rung(4, "a", Some(80.0), 1.0), rung(4, "b", Some(50.0), 0.5)]);
        let range = &report.ranges[0];
        assert_eq!(
            (range.rounds, range.least.prefix_hit_percent, range.most.prefix_hit_percent),
            (3, Some(70.0), Some(90.0))
        );
        assert_eq!((range.least.errors, range.most.errors), (Some(0.0), Some(3.0)));
        assert_eq!(range.least.ttfb_p50_s, None);
    }

    #[test]
    fn one_round_has_no_ranges() {
        let rounds = [rung(4, "a", Some(80.0), 3.0), rung(8, "a", Some(50.0), 0.0)];
        assert_eq!(summarise(&rounds), Report::of(rounds.to_vec()));
    }
}
