//! A quantity that differs from time to time: one number, or some of its quantiles.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

/// Where it stands between two quantiles it is drawn evenly, which takes no function but division: so that a seed gives the same on
/// every machine, which logarithms of a C library do not.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Spread {
    /// Percentages from 0 to 100, each with its value, both rising.
    quantiles: Vec<(f64, f64)>,
}

/// As a scenario has it: `400`, or `{0: 100, 50: 400, 99: 5000, 100: 9000}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Always(f64),
    Quantiles(BTreeMap<u8, f64>),
}

impl Spread {
    /// The same value always.
    pub fn always(value: f64) -> Self {
        Spread { quantiles: vec![(0.0, value), (100.0, value)] }
    }

    pub fn draw(&self, rng: &mut ChaCha8Rng) -> f64 {
        let percent = rng.random::<f64>() * 100.0;
        let upper = self.quantiles.partition_point(|(at, _)| *at <= percent).clamp(1, self.quantiles.len() - 1);
        let [(from, low), (to, high)] = [self.quantiles[upper - 1], self.quantiles[upper]];
        low + (high - low) * ((percent - from) / (to - from))
    }

    /// A count, at least 1.
    pub fn draw_count(&self, rng: &mut ChaCha8Rng) -> u32 {
        self.draw(rng).round().max(1.0) as u32
    }

    /// Seconds.
    pub fn draw_time(&self, rng: &mut ChaCha8Rng) -> Duration {
        Duration::from_nanos((self.draw(rng) * 1e9) as u64)
    }

    /// The largest value that can come.
    pub fn most(&self) -> f64 {
        self.quantiles.last().map_or(0.0, |(_, value)| *value)
    }
}

impl TryFrom<Written> for Spread {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let quantiles: Vec<(f64, f64)> = match written {
            Written::Always(value) => return checked(Spread::always(value)),
            Written::Quantiles(values) => values.into_iter().map(|(at, value)| (f64::from(at), value)).collect(),
        };
        let ends = [quantiles.first(), quantiles.last()].map(|end| end.map(|(at, _)| *at));
        if ends != [Some(0.0), Some(100.0)] {
            return Err("quantiles must begin with 0 and end with 100".into());
        }
        checked(Spread { quantiles })
    }
}

fn checked(spread: Spread) -> Result<Spread, String> {
    if spread.quantiles.windows(2).any(|pair| pair[0].1 > pair[1].1) {
        return Err("quantiles must not fall".into());
    }
    match spread.quantiles.iter().all(|(_, value)| (0.0..1e9).contains(value)) {
        true => Ok(spread),
        false => Err("a size or time must be from 0 to 1,000,000,000".into()),
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn read(text: &str) -> Result<Spread, String> {
        serde_yaml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn draws_have_the_quantiles_that_were_asked_for() {
        let spread = read("{0: 1, 50: 2, 99: 120, 100: 600}").expect("read");
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut drawn: Vec<f64> = (0..20_000).map(|_| spread.draw(&mut rng)).collect();
        drawn.sort_by(f64::total_cmp);
        assert!((drawn[10_000] - 2.0).abs() < 1.0, "{}", drawn[10_000]);
        assert!((drawn[19_800] - 120.0).abs() < 40.0, "{}", drawn[19_800]);
        assert!(drawn[0] >= 1.0 && drawn[19_999] < 600.0);
    }

    #[test]
    fn a_number_is_always_the_same() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(read("7").expect("read").draw(&mut rng), 7.0);
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for text in ["{50: 2, 100: 3}", "{0: 2, 90: 3}", "{0: 2, 100: 1}", "-1", "{}", "many"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
