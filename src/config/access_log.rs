//! `access_log`: where a line for each request goes, and what it looks like.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

use super::error::Problems;
use super::locate::Path;
use super::{AccessLogConfig, Surroundings};

/// Where the lines of the access log go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogTo {
    Off,
    Stderr,
    /// From the working directory on, or absolute. Its directory exists.
    File(PathBuf),
}

/// What a line of the access log looks like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessLogFormat {
    /// `key=value`, separated by spaces.
    #[default]
    Text,
    /// One object.
    Json,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AccessLogFile {
    to: Option<String>,
    format: AccessLogFormat,
}

const STDERR: &str = "stderr";
const OFF: &str = "off";

/// The file itself is opened, and made where there is none, by the process that writes to it: a check by another account must
/// not leave one that this account can't write to.
pub(super) fn validate(file: AccessLogFile, around: Surroundings<'_>, problems: &mut Problems) -> AccessLogConfig {
    let to = match file.to.as_deref() {
        None | Some(STDERR) => AccessLogTo::Stderr,
        Some(OFF) => AccessLogTo::Off,
        Some(named) => {
            let path = around.path(named);
            if let Some(reason) = problem(named, &path) {
                problems.add(Path::default().key("access_log").key("to"), reason);
            }
            AccessLogTo::File(path)
        }
    };
    AccessLogConfig { to, format: file.format }
}

fn problem(named: &str, path: &std::path::Path) -> Option<String> {
    if named.is_empty() || named.ends_with('/') || path.is_dir() {
        return Some(format!("`{named}` is not stderr, off or a file"));
    }
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty())?;
    (!directory.is_dir()).then(|| format!("{}: there is no such directory", directory.display()))
}

/// As the file has it.
impl fmt::Display for AccessLogTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessLogTo::Off => f.write_str(OFF),
            AccessLogTo::Stderr => f.write_str(STDERR),
            AccessLogTo::File(path) => path.display().fmt(f),
        }
    }
}

/// The word of the file.
impl fmt::Display for AccessLogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessLogFormat::Text => "text",
            AccessLogFormat::Json => "json",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn with(keys: &str) -> Result<AccessLogConfig, String> {
        let text =
            format!("access_log: {keys}\nmodels: {{m: {{max_num_seqs: 8, replicas: [http://127.0.0.1:8000]}}}}\n");
        Config::from_yaml(&text).map(|config| config.access_log).map_err(|error| error.to_string())
    }

    #[test]
    fn the_log_goes_where_the_file_says() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("access.log");
        for (keys, to, format) in [
            ("{}", AccessLogTo::Stderr, AccessLogFormat::Text),
            ("{to: off}", AccessLogTo::Off, AccessLogFormat::Text),
            ("{to: stderr, format: json}", AccessLogTo::Stderr, AccessLogFormat::Json),
            ("{to: access.log}", AccessLogTo::File("access.log".into()), AccessLogFormat::Text),
            (&format!("{{to: {}}}", file.display()), AccessLogTo::File(file.clone()), AccessLogFormat::Text),
        ] {
            assert_eq!(with(keys), Ok(AccessLogConfig { to, format }), "{keys}");
        }
        assert!(!file.exists(), "whoever reads a configuration writes nothing");
    }

    #[test]
    fn what_can_be_no_file_is_refused() {
        for (keys, reason) in [
            ("{to: /nonexistent/access.log}", "line 1: access_log.to: /nonexistent: there is no such directory"),
            ("{to: /tmp}", "access_log.to: `/tmp` is not stderr, off or a file"),
            ("{to: new/}", "access_log.to: `new/` is not stderr, off or a file"),
            ("{format: xml}", "unknown variant `xml`, expected `text` or `json`"),
            ("{file: x}", "unknown field `file`, expected `to` or `format`"),
        ] {
            let error = with(keys).expect_err(keys);
            assert!(error.contains(reason), "{keys}: {error}");
        }
    }
}
