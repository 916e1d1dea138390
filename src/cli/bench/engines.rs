//! The engines behind what is measured: how many of them work, what their caches were good for, and emptying those.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::replica::{EngineSeries, parse};

use super::web::Web;

/// The servers of the engines. None: what they know stays unknown.
#[derive(Clone, Debug)]
pub struct Engines {
    web: Web,
    urls: Vec<String>,
}

/// Tokens that were looked up in prefix caches, and found there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    pub queries: u64,
    pub hits: u64,
}

/// What became of the caches before a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// Every engine says that it has emptied its own.
    Emptied,
    /// They hold what they held; all text is new to them.
    Kept,
}

/// Between two looks at whether they have come to rest.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl Engines {
    pub fn new(web: Web, urls: Vec<String>) -> Self {
        Engines { web, urls }
    }

    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// What each engine says of itself; `None` where one of the servers can't be asked.
    async fn series(&self) -> Option<Vec<EngineSeries>> {
        let mut all = Vec::new();
        for url in &self.urls {
            let page = self.web.get(&format!("{url}/metrics"), None).await.ok()?;
            let engines: BTreeMap<u16, EngineSeries> = parse(&String::from_utf8_lossy(&page));
            all.extend(engines.into_values());
        }
        (!all.is_empty()).then_some(all)
    }

    /// How many there are.
    pub async fn count(&self) -> Option<usize> {
        Some(self.series().await?.len())
    }

    /// How many have a request in their batch.
    pub async fn busy(&self) -> Option<usize> {
        Some(self.series().await?.iter().filter(|engine| engine.running > 0).count())
    }

    pub async fn lookups(&self) -> Option<Lookups> {
        let series = self.series().await?;
        let sum = |count: fn(&EngineSeries) -> u64| series.iter().map(count).sum();
        Some(Lookups {
            queries: sum(|engine| engine.prefix_queries_tokens),
            hits: sum(|engine| engine.prefix_hits_tokens),
        })
    }

    /// Waits until no engine has a request, and for no longer than `patience`; false if one still has.
    pub async fn rest(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let Some(series) = self.series().await else { return true };
            if series.iter().all(|engine| engine.running + engine.waiting == 0) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Has the engines forget what they hold. vLLM offers that in its development mode only.
    pub async fn empty_caches(&self) -> Caches {
        let mut caches = if self.urls.is_empty() { Caches::Kept } else { Caches::Emptied };
        for url in &self.urls {
            let answer = self.web.post(&format!("{url}/reset_prefix_cache")).await;
            if !answer.is_ok_and(|status| status.is_success()) {
                caches = Caches::Kept;
            }
        }
        caches
    }
}

impl Lookups {
    /// What was found of what was looked up since `before`, in percent.
    pub fn hit_percent_since(self, before: Lookups) -> Option<f64> {
        let queries = self.queries.checked_sub(before.queries).filter(|queries| *queries > 0)?;
        let hits = self.hits.checked_sub(before.hits)?;
        Some((hits as f64 * 100_000.0 / queries as f64).round() / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_those_since_and_none_of_an_engine_that_was_restarted() {
        let before = Lookups { queries: 100, hits: 90 };
        assert_eq!(Lookups { queries: 300, hits: 130 }.hit_percent_since(before), Some(20.0));
        assert_eq!(Lookups { queries: 100, hits: 90 }.hit_percent_since(before), None);
        assert_eq!(Lookups { queries: 50, hits: 10 }.hit_percent_since(before), None);
    }
}
