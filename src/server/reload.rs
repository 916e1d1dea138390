//! SIGHUP: the configuration is read again and taken whole, or not at all.

use std::path::Path;

use log::{info, warn};

use crate::admin::lately::ReloadStatus;
use crate::config::{Config, ConfigError, Problem};
use crate::dispatch::{EventKind, Reloaded};
use crate::proxy::Target;

use super::Server;
use super::transfer::unix_ms;

/// Why nothing has changed.
struct Refused {
    /// What would have.
    changes: Vec<String>,
    problems: Vec<Problem>,
}

impl Server {
    /// Reads the configuration again and serves by it; on any error nothing changes. Blocks while it reads.
    pub fn reload(&self, path: &Path) {
        let applied = self.try_reload(path);
        let metrics = &self.routing.metrics;
        let (outcome, status) = match applied {
            Ok(changes) => {
                let said = if changes.is_empty() { "no changes".to_owned() } else { changes.join("; ") };
                info!("reloaded: {said}");
                self.routing.events.add(EventKind::Reload, "", "", format!("reloaded: {said}"));
                metrics.last_reload_success_at.set(unix_ms() as f64 / 1_000.0);
                ("applied", ReloadStatus::applied(changes))
            }
            Err(Refused { changes, problems }) => {
                let said: Vec<_> = problems.iter().map(ToString::to_string).collect();
                self.routing.events.add(EventKind::Reload, "", "", format!("reload refused: {}", said.join("; ")));
                warn!("reload refused, nothing has changed: {}: {}", path.display(), said.join("\n"));
                ("refused", ReloadStatus::refused(changes, &problems))
            }
        };
        *self.lately.reload.lock() = Some(status);
        metrics.last_reload_success.set(i64::from(outcome == "applied"));
        // The last one: who waits for it finds everything else done.
        metrics.reloads.with_label_values(&[outcome]).inc();
    }

    fn try_reload(&self, path: &Path) -> Result<Vec<String>, Refused> {
        let text = Config::read(path)?;
        let config = Config::from_text(path, &text)?;
        let running = self.routing.table();
        let known = running.config.warnings();
        let warnings = config.warnings();
        let (changes, problems) = (running.config.changes(&config), running.config.fixed(&config, &text));
        // Opened anew even where nothing has changed: the old file may have been put aside.
        let access_log = Target::open(&config.access_log.to);
        let access_log = access_log.map_err(|error| ConfigError::of_access_log(error.to_string()))?;
        match self.routing.reload(config) {
            Reloaded::NeedsRestart(_) => Err(Refused { changes, problems }),
            Reloaded::Applied(changes) => {
                self.access_log.switch(access_log);
                self.show_certificates();
                for warning in warnings.iter().filter(|warning| !known.contains(warning)) {
                    warn!("{warning}");
                }
                Ok(changes)
            }
        }
    }
}

impl From<ConfigError> for Refused {
    fn from(error: ConfigError) -> Self {
        Refused { changes: Vec::new(), problems: error.problems().to_vec() }
    }
}
