//! The report as pictures: waits, hits and busy replicas against the sessions at a time, a line an arm.

use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::element::{Circle, PathElement};
use plotters::prelude::{DrawingArea, DrawingBackend, IntoDrawingArea, IntoLogRange, RGBColor, SVGBackend};
use plotters::series::LineSeries;
use plotters::style::{BLACK, Color, ShapeStyle, WHITE};

use super::figures::Column;
use super::{Report, Rung};

/// Why there is no picture: nothing was measured that it could show, or the reason of the library.
#[derive(Debug, thiserror::Error)]
#[error("no plot of {what}: {reason}")]
pub struct NoPlot {
    what: &'static str,
    reason: String,
}

/// A picture that can be made of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// The median and the 95th percentile of the time to first byte, on a logarithmic scale.
    FirstByte,
    Hits,
    Busy,
}

const SIZE: (u32, u32) = (760, 460);

/// Told apart by eyes that see no difference between red and green (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The least wait that a logarithmic scale goes down to, in seconds.
const WAIT_LEAST_S: f64 = 0.01;
const WAIT_MOST_S: f64 = 1.0e6;

/// The fonts: the viewer's own.
const TITLE: (&str, u32) = ("sans-serif", 24);
const TEXT: (&str, u32) = ("sans-serif", 17);

/// A line of a picture.
struct Line {
    label: String,
    colour: RGBColor,
    /// Whether it is the main one of its arm.
    is_main: bool,
    points: Vec<(f64, f64)>,
}

impl Plot {
    pub const ALL: [Plot; 3] = [Plot::FirstByte, Plot::Hits, Plot::Busy];

    /// The name of its file.
    pub fn file(self) -> &'static str {
        match self {
            Plot::FirstByte => "ttfb.svg",
            Plot::Hits => "hits.svg",
            Plot::Busy => "busy.svg",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Plot::FirstByte => "Time to first byte, s",
            Plot::Hits => "Prompt tokens from the cache, %",
            Plot::Busy => "Replicas at work",
        }
    }

    /// Where its lines mostly aren't: waits and busy replicas grow with the sessions, hits become fewer.
    fn empty_corner(self) -> SeriesLabelPosition {
        match self {
            Plot::FirstByte => SeriesLabelPosition::UpperLeft,
            Plot::Hits => SeriesLabelPosition::LowerLeft,
            Plot::Busy => SeriesLabelPosition::LowerRight,
        }
    }

    /// The columns it shows, the main one first, each with the word that tells it from the other.
    fn columns(self) -> &'static [(Column, &'static str)] {
        match self {
            Plot::FirstByte => &[(Column::TtfbP50, " median"), (Column::TtfbP95, " 95th")],
            Plot::Hits => &[(Column::PrefixHits, "")],
            Plot::Busy => &[(Column::ReplicasBusy, "")],
        }
    }

    /// The picture as SVG.
    ///
    /// # Errors
    /// When the report has nothing of it.
    pub fn svg(self, report: &Report) -> Result<String, NoPlot> {
        let lines = self.lines(&report.rungs);
        let failed = |reason: String| NoPlot { what: self.title(), reason };
        if lines.iter().all(|line| line.points.is_empty()) {
            return Err(failed("nothing of it was seen".to_owned()));
        }
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            self.draw(&area, &lines).map_err(failed)?;
        }
        Ok(text)
    }

    fn lines(self, rungs: &[Rung]) -> Vec<Line> {
        let mut arms: Vec<&str> = Vec::new();
        for rung in rungs {
            if !arms.contains(&rung.arm.as_str()) {
                arms.push(&rung.arm);
            }
        }
        let of_arm = |(number, arm): (usize, &&str)| {
            let (arm, colour) = ((*arm).to_owned(), COLOURS[number % COLOURS.len()]);
            let line = move |(place, (column, word)): (usize, &(Column, &str))| {
                let points = rungs.iter().filter(|rung| rung.arm == arm);
                let points = points.filter_map(|rung| Some((f64::from(rung.sessions), rung.figures.get(*column)?)));
                Line { label: format!("{arm}{word}"), colour, is_main: place == 0, points: points.collect() }
            };
            self.columns().iter().enumerate().map(line).collect::<Vec<_>>()
        };
        arms.iter().enumerate().flat_map(of_arm).collect()
    }

    fn draw<B: DrawingBackend>(self, area: &DrawingArea<B, Shift>, lines: &[Line]) -> Result<(), String> {
        let points = || lines.iter().flat_map(|line| &line.points);
        let most = points().map(|point| point.1).fold(0.0, f64::max);
        let (from, to) = points().fold((f64::MAX, 0.0_f64), |(from, to), point| (from.min(point.0), to.max(point.0)));
        let (from, to) = if from < to { (from, to) } else { (from - 1.0, to + 1.0) };
        area.fill(&WHITE).map_err(words)?;
        let mut builder = ChartBuilder::on(area);
        builder.caption(self.title(), TITLE).margin(12).x_label_area_size(40).y_label_area_size(56);
        macro_rules! fill {
            ($range:expr) => {{
                let mut chart = builder.build_cartesian_2d(from..to, $range).map_err(words)?;
                let label = |value: &f64| format!("{value}");
                chart
                    .configure_mesh()
                    .x_desc("sessions at a time")
                    .x_label_formatter(&label)
                    .y_label_formatter(&label)
                    .label_style(TEXT)
                    .axis_desc_style(TEXT)
                    .max_light_lines(1)
                    .draw()
                    .map_err(words)?;
                for line in lines {
                    let style = ShapeStyle { color: line.colour.mix(line.opacity()), filled: false, stroke_width: 2 };
                    chart
                        .draw_series(LineSeries::new(line.points.iter().copied(), style))
                        .map_err(words)?
                        .label(&line.label)
                        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
                    let dots = line.points.iter().map(|point| Circle::new(*point, 3, style.filled()));
                    chart.draw_series(dots).map_err(words)?;
                }
                chart
                    .configure_series_labels()
                    .position(self.empty_corner())
                    .label_font(TEXT)
                    .background_style(WHITE.mix(0.85))
                    .border_style(BLACK.mix(0.3))
                    .draw()
                    .map_err(words)?;
            }};
        }
        match self {
            Plot::FirstByte => {
                let least = points().map(|point| point.1).filter(|wait| *wait > 0.0).fold(f64::MAX, f64::min);
                let from = decade(least.clamp(WAIT_LEAST_S, WAIT_MOST_S), f64::floor);
                fill!((from..decade(most, f64::ceil).max(from * 10.0)).log_scale());
            }
            Plot::Hits => fill!(0.0..100.0_f64),
            Plot::Busy => fill!(0.0..(most * 1.2).max(1.0)),
        }
        area.present().map_err(words)
    }
}

impl Line {
    fn opacity(&self) -> f64 {
        if self.is_main { 1.0 } else { 0.45 }
    }
}

/// The power of ten at or beside a value.
fn decade(value: f64, round: fn(f64) -> f64) -> f64 {
    10_f64.powf(round(value.max(WAIT_LEAST_S).log10()))
}

fn words(error: impl std::error::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::Figures;
    use super::*;

    fn report() -> Report {
        let rung = |sessions, arm: &str, p50: f64| Rung {
            sessions,
            arm: arm.into(),
            figures: Figures {
                ttfb_p50_s: Some(p50),
                ttfb_p95_s: Some(p50 * 20.0),
                prefix_hit_percent: Some(60.0),
                ..Figures::default()
            },
        };
        Report::of(vec![rung(4, "vllm", 2.0), rung(4, "affinity", 0.3), rung(8, "vllm", 3.0), rung(8, "affinity", 0.5)])
    }

    #[test]
    fn both_percentiles_of_every_arm_are_drawn() {
        let svg = Plot::FirstByte.svg(&report()).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for label in ["vllm median", "vllm 95th", "affinity median", "affinity 95th"] {
            assert_eq!(svg.matches(label).count(), 1, "{label}");
        }
        assert_eq!(svg.matches("<circle").count(), 8);
    }

    #[test]
    fn one_rung_is_drawn_too_and_what_was_not_seen_is_no_picture() {
        let mut report = report();
        report.rungs.truncate(2);
        assert!(Plot::Hits.svg(&report).unwrap().contains("affinity"));
        assert_eq!(
            Plot::Busy.svg(&report).unwrap_err().to_string(),
            "no plot of Replicas at work: nothing of it was seen"
        );
    }
}
