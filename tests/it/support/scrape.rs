//! A scrape, taken apart: families with their kind, and series with their labels.

use std::collections::{BTreeMap, BTreeSet};

/// A page in the text format of Prometheus.
#[derive(Debug)]
pub struct Scrape {
    /// Name to kind.
    pub families: BTreeMap<String, String>,
    pub series: Vec<Series>,
}

#[derive(Debug)]
pub struct Series {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Scrape {
    pub fn parse(page: &str) -> Self {
        let mut scrape = Scrape { families: BTreeMap::new(), series: Vec::new() };
        for line in page.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').expect("a name and a kind");
                scrape.families.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                scrape.series.push(Series::parse(line));
            }
        }
        scrape
    }

    /// The sum of the series of that name that have all of these labels; `None` if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |series: &&Series| {
            series.name == name && labels.iter().all(|(label, value)| series.label(label) == Some(*value))
        };
        let found: Vec<_> = self.series.iter().filter(has).map(|series| series.value).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }

    /// The families of a kind that have series with the label.
    pub fn families_with(&self, kind: &str, label: &str) -> BTreeSet<&str> {
        let of = |series: &Series| {
            let name = series.name.as_str();
            let parts = ["", "_bucket", "_count", "_sum"];
            let family = parts.iter().find_map(|part| self.families.get_key_value(name.strip_suffix(part)?));
            family.unwrap_or_else(|| panic!("{name} is of a family")).0.as_str()
        };
        let series = self.series.iter().filter(|series| series.labels.contains_key(label)).map(of);
        series.filter(|family| self.families[*family] == kind).collect()
    }
}

impl Series {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// Names in tests have no quotes and commas.
    fn parse(line: &str) -> Self {
        let (series, value) = line.rsplit_once(' ').expect("a series and its value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let label = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or_else(|| panic!("a label in {line}"));
            (name.to_owned(), value.trim_matches('"').to_owned())
        };
        let labels = labels.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty()).map(label);
        Series { name: name.to_owned(), labels: labels.collect(), value: value.parse().expect("a number") }
    }
}
