//! Series as Prometheus reads them: <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.

use std::fmt::Write as _;

use super::Family;

/// The series of one family, while they are written.
pub(super) struct Series<'a, T> {
    family: &'a Family<T>,
    /// Labels in the order of their names, each with its place among the values.
    labels: Vec<(&'a str, usize)>,
    is_described: bool,
}

impl<T> Family<T> {
    /// Its series, with the names of the labels that say what each is of.
    pub(super) fn series<'a>(&'a self, of: &[&'a str]) -> Series<'a, T> {
        let own = Some(self.label).filter(|label| !label.is_empty());
        let mut labels: Vec<_> =
            of.iter().copied().chain(own).enumerate().map(|(place, label)| (label, place)).collect();
        labels.sort_unstable();
        Series { family: self, labels, is_described: false }
    }
}

impl<T> Series<'_, T> {
    /// Writes those of a source. A family is described before its first series; one without any isn't mentioned.
    pub(super) fn write(&mut self, page: &mut String, source: &T, of: &[&str]) {
        for (label, value) in (self.family.values)(source) {
            self.describe(page);
            page.push_str(self.family.name);
            self.write_labels(page, of, label);
            // Nearly all are counts, and a whole number is written in a tenth of the time.
            match value as i64 {
                whole if whole as f64 == value => push(page, format_args!(" {whole}\n")),
                _ => push(page, format_args!(" {value}\n")),
            }
        }
    }

    fn describe(&mut self, page: &mut String) {
        if !std::mem::replace(&mut self.is_described, true) {
            let Family { name, help, kind, .. } = self.family;
            push(page, format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.as_str()));
        }
    }

    fn write_labels(&self, page: &mut String, of: &[&str], own: &str) {
        let mut before = '{';
        for (label, place) in &self.labels {
            page.push(before);
            page.push_str(label);
            page.push_str("=\"");
            push_escaped(page, of.get(*place).copied().unwrap_or(own));
            page.push('"');
            before = ',';
        }
        if !self.labels.is_empty() {
            page.push('}');
        }
    }
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    // To write to a string can't fail.
    page.write_fmt(text).unwrap_or_default();
}

fn push_escaped(page: &mut String, value: &str) {
    for part in value.split_inclusive(['\\', '"', '\n']) {
        let plain = part.trim_end_matches(['\\', '"', '\n']);
        page.push_str(plain);
        match &part[plain.len()..] {
            "\n" => page.push_str("\\n"),
            "" => {}
            special => {
                page.push('\\');
                page.push_str(special);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    const FAMILY: Family<u64> = Family {
        name: "kvpin_things",
        kind: Kind::Gauge,
        help: "Things.",
        label: "kind",
        values: |count| (0..*count).map(|number| (["good", "bad"][number as usize], 0.5)).collect(),
    };

    #[test]
    fn a_family_is_described_once_and_its_labels_stand_in_order_and_escaped() {
        let mut page = String::new();
        let mut series = FAMILY.series(&["model", "gpu"]);
        series.write(&mut page, &0, &["nothing", "of it"]);
        assert_eq!(page, "");
        series.write(&mut page, &2, &["a\"b\\\\c\nd", ""]);
        series.write(&mut page, &1, &["m", "7"]);
        let expected = r#"# HELP kvpin_things Things.
# TYPE kvpin_things gauge
kvpin_things{gpu="",kind="good",model="a\"b\\\\c\nd"} 0.5
kvpin_things{gpu="",kind="bad",model="a\"b\\\\c\nd"} 0.5
kvpin_things{gpu="7",kind="good",model="m"} 0.5
"#;
        assert_eq!(page, expected);
    }
}
