//! What is wrong with a file, and where.

use std::fmt::{self, Write as _};
use std::path::Path as FilePath;

use super::bounds::{Bound, Number};
use super::locate::{self, Path};

/// Every problem that was found. Displayed one a line, as `line 12: models.qwen3.replicas[1].url: reason`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

/// One reason why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Counted from 1; `None` where no one line is at fault, as for a key that is missing at the top level.
    pub line: Option<usize>,
    /// The keys that lead there, as `models.qwen3.replicas[1].url`; empty for the file as a whole.
    pub path: String,
    /// Why, and where it helps what to write instead.
    pub reason: String,
}

/// Problems as validation finds them: with a path, not yet with a line.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<(Path, String)>,
}

impl ConfigError {
    /// In the order of the file, never empty.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    pub(super) fn one(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }

    pub(super) fn unreadable(path: &FilePath, err: &std::io::Error) -> Self {
        Self::one(Problem { line: None, path: String::new(), reason: format!("{}: {err}", path.display()) })
    }

    /// The file of the access log can't be opened. The line that names it isn't at hand any more.
    pub fn of_access_log(reason: String) -> Self {
        Self::one(Problem { line: None, path: "access_log.to".to_owned(), reason })
    }

    /// serde_yaml shows path, message and position as one text only, so they are taken apart here.
    pub(super) fn from_yaml(err: &serde_yaml::Error) -> Self {
        let mut text = err.to_string();
        let location = err.location();
        if let Some(at) = &location {
            let position = format!(" at line {} column {}", at.line(), at.column());
            if let Some(rest) = text.strip_suffix(&position) {
                text.truncate(rest.len());
            }
        }
        // serde's own messages ("invalid type: ...") have a space before their first colon. A path has none, unless a model's name has
        // one: then the path stays in front of the reason, which reads the same.
        let (path, reason) = match text.split_once(": ") {
            Some((path, reason)) if !path.contains(' ') => (path, reason),
            Some(_) | None => ("", text.as_str()),
        };
        Self::one(Problem { line: location.map(|at| at.line()), path: path.to_owned(), reason: reason.to_owned() })
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write_in_line(f, &self.path)?;
            f.write_str(": ")?;
        }
        write_in_line(f, &self.reason)
    }
}

impl Problems {
    /// More than a reader goes through at once. Each one shown costs a parse of the file to find its line.
    const SHOWN_MAX: usize = 64;

    pub(super) fn add(&mut self, path: Path, reason: impl Into<String>) {
        self.found.push((path, reason.into()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The number given under `parent`, or its default.
    pub(super) fn number(&mut self, parent: &Path, number: &Number, given: Option<u64>) -> u64 {
        self.within(parent, &number.bound, given).unwrap_or(number.default)
    }

    /// The number given under `parent`; one out of bounds is a problem, and counts as not given so that the checks can go on.
    pub(super) fn within(&mut self, parent: &Path, bound: &Bound, given: Option<u64>) -> Option<u64> {
        let value = given?;
        if (bound.min..=bound.max).contains(&value) {
            return Some(value);
        }
        let reason = format!("{value} is not {} to {}", bound.min, bound.max);
        self.add(parent.key(bound.key), reason);
        None
    }

    /// The problems with their lines, in the order of the file.
    pub(super) fn locate(self, text: &str) -> ConfigError {
        let more = self.found.len().saturating_sub(Self::SHOWN_MAX);
        let mut problems: Vec<Problem> = self
            .found
            .into_iter()
            .take(Self::SHOWN_MAX)
            .map(|(path, reason)| Problem { line: locate::line_of(text, &path), path: path.to_string(), reason })
            .collect();
        problems.sort_by_key(|problem| problem.line);
        if more > 0 {
            problems.push(Problem { line: None, path: String::new(), reason: format!("and {more} more problems") });
        }
        ConfigError { problems }
    }
}

/// Paths and reasons quote the file, whose control characters must not break the line or reach a terminal.
fn write_in_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() {
            write!(f, "{}", c.escape_default())?;
        } else {
            f.write_char(c)?;
        }
    }
    Ok(())
}
