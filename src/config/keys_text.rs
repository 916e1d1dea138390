//! Changing a keys file as the text that it is, so that comments, order and layout of everything else stay.
//!
//! Every change is read back before it is handed out: if it doesn't mean what was wanted (because the file is written in a
//! way that lines can't be added to or cut out of, such as `{alice: {...}}`), it is refused and nothing is lost.

use thiserror::Error;

use super::error::ConfigError;
use super::keys::{self, KeyConfig};
use super::locate::{self, Path};
use super::secret::KeyHash;

/// A keys file's text, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysText {
    text: String,
    keys: Vec<KeyConfig>,
}

/// Why a keys file isn't changed.
#[derive(Debug, Error)]
pub enum EditError {
    #[error("there is a key of the name `{0}` already")]
    Exists(String),
    #[error("there is no key of the name `{0}`")]
    Missing(String),
    #[error("`{0}` has this key already")]
    Known(String),
    #[error("`{0}` has several keys already; end that with --end")]
    Rotating(String),
    #[error("`{0}` has one key only; there is nothing to end")]
    NotRotating(String),
    #[error("{0}")]
    Invalid(String),
    #[error("the file is written in a way that can't be changed line by line; change it by hand: {0}")]
    Layout(String),
}

impl KeysText {
    /// # Errors
    /// What is wrong with the file.
    pub fn parse(text: String) -> Result<Self, ConfigError> {
        let keys = keys::parse(&text)?;
        Ok(KeysText { text, keys })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn keys(&self) -> &[KeyConfig] {
        &self.keys
    }

    /// The file with one more key at its end.
    pub fn with(&self, key: KeyConfig) -> Result<Self, EditError> {
        if self.find(&key.name).is_ok() {
            return Err(EditError::Exists(key.name));
        }
        key.hashes.iter().try_for_each(|hash| self.check_new(*hash))?;
        check_alone(&key)?;
        let mut text = self.text.clone();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&entry(&key));
        self.changed(text, self.keys.iter().cloned().chain([key]).collect())
    }

    /// The file without a key.
    pub fn without(&self, name: &str) -> Result<Self, EditError> {
        let at = self.find(name)?;
        let lines: Vec<&str> = self.text.split_inclusive('\n').collect();
        let line_of = |key: &KeyConfig| locate::line_of(&self.text, &Path::default().key(&key.name));
        let start = line_of(&self.keys[at]).map_or(0, |line| line - 1);
        let next = self.keys.get(at + 1).and_then(line_of).map_or(lines.len(), |line| line - 1);
        // Comments right above an entry, or at the end of the file, are not about the entry before them.
        let is_of_entry = |line: &&str| line.starts_with([' ', '\t']) && !line.trim().is_empty();
        let body = lines.get(start + 1..next).unwrap_or_default();
        let end = start + 1 + body.iter().rposition(is_of_entry).map_or(0, |last| last + 1);
        let text = lines.iter().enumerate().filter(|(i, _)| !(start..end).contains(i)).map(|(_, line)| *line).collect();
        let keys = self.keys.iter().filter(|key| key.name != name).cloned().collect();
        self.changed(text, keys)
    }

    /// The file with another key beside the one that a name has.
    pub fn begin_rotation(&self, name: &str, new: KeyHash) -> Result<Self, EditError> {
        self.check_new(new)?;
        let at = self.find(name)?;
        let [old] = self.keys[at].hashes[..] else { return Err(EditError::Rotating(name.to_owned())) };
        self.with_hashes(at, &old.to_text(), vec![old, new])
    }

    /// The file with the newest of the keys that a name has, and without the others.
    pub fn end_rotation(&self, name: &str) -> Result<Self, EditError> {
        let at = self.find(name)?;
        match &self.keys[at].hashes[..] {
            [] | [_] => Err(EditError::NotRotating(name.to_owned())),
            [.., newest] => self.with_hashes(at, &value(&self.keys[at].hashes), vec![*newest]),
        }
    }

    fn with_hashes(&self, at: usize, old: &str, hashes: Vec<KeyHash>) -> Result<Self, EditError> {
        let mut keys = self.keys.clone();
        // A hash stands in the file once.
        let text = self.text.replacen(old, &value(&hashes), 1);
        keys[at].hashes = hashes;
        self.changed(text, keys)
    }

    fn find(&self, name: &str) -> Result<usize, EditError> {
        self.keys.iter().position(|key| key.name == name).ok_or_else(|| EditError::Missing(name.to_owned()))
    }

    fn check_new(&self, hash: KeyHash) -> Result<(), EditError> {
        match self.keys.iter().find(|key| key.hashes.contains(&hash)) {
            Some(key) => Err(EditError::Known(key.name.clone())),
            None => Ok(()),
        }
    }

    fn changed(&self, text: String, wanted: Vec<KeyConfig>) -> Result<Self, EditError> {
        let changed = KeysText::parse(text).map_err(|err| EditError::Layout(err.to_string()))?;
        if changed.keys != wanted {
            return Err(EditError::Layout("the change would have touched other entries".to_owned()));
        }
        Ok(changed)
    }
}

/// Whether an entry would do by itself.
fn check_alone(key: &KeyConfig) -> Result<(), EditError> {
    let Err(error) = keys::parse(&entry(key)) else { return Ok(()) };
    let said = error.problems().iter().map(|problem| match &*problem.path {
        "" => problem.reason.clone(),
        path => format!("{path}: {}", problem.reason),
    });
    Err(EditError::Invalid(said.collect::<Vec<_>>().join("; ")))
}

/// An entry as it is appended.
fn entry(key: &KeyConfig) -> String {
    let KeyConfig { name, hashes, models, may_pin, in_flight_max, requests_per_minute_max } = key;
    let mut entry = format!("{name}:\n  hash: {}\n", value(hashes));
    if let Some(models) = models {
        // Every JSON is YAML.
        let models: Vec<_> = models.iter().map(|model| serde_json::Value::from(&**model).to_string()).collect();
        entry.push_str(&format!("  models: [{}]\n", models.join(", ")));
    }
    if *may_pin {
        entry.push_str("  may_pin: true\n");
    }
    for (field, max) in [("in_flight_max", in_flight_max), ("requests_per_minute_max", requests_per_minute_max)] {
        if let Some(max) = max {
            entry.push_str(&format!("  {field}: {max}\n"));
        }
    }
    entry
}

/// What stands behind `hash:`.
fn value(hashes: &[KeyHash]) -> String {
    match hashes {
        [one] => one.to_text(),
        several => format!("[{}]", several.iter().map(|hash| hash.to_text()).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> KeyConfig {
        KeyConfig::new(name, KeyHash::of(name.as_bytes()))
    }

    fn parse(text: &str) -> KeysText {
        KeysText::parse(text.to_owned()).unwrap_or_else(|err| panic!("{err}\nin\n{text}"))
    }

    fn names(text: &KeysText) -> Vec<&str> {
        text.keys().iter().map(|key| &*key.name).collect()
    }

    /// Three entries between comments.
    fn commented() -> String {
        let [a, b, c] = ["a", "b", "c"].map(|name| KeyHash::of(name.as_bytes()).to_text());
        format!(
            "# the keys\n\n# of a\na:\n  hash: {a}   # one\n  # within a\n  may_pin: true\n\n# of b\nb: {{hash: {b}}}\n# of \
             c\nc:\n  hash: {c}\n# the end"
        )
    }

    #[test]
    fn a_key_is_appended_whatever_it_may_do_and_the_rest_stays() {
        let full = KeyConfig {
            models: Some(vec!["m".to_owned(), "we: \"ird\", [x]".to_owned(), "7".to_owned()]),
            may_pin: true,
            in_flight_max: Some(3),
            requests_per_minute_max: Some(60),
            ..key("full")
        };
        for text in ["", "# none yet", "---\n", &commented()] {
            let before = parse(text);
            let after = before.with(full.clone()).unwrap().with(key("true")).unwrap();
            assert!(after.text().starts_with(text), "{}", after.text());
            assert_eq!(after.keys()[before.keys().len()..], [full.clone(), key("true")]);
        }
    }

    #[test]
    fn a_key_is_cut_out_and_comments_and_the_others_stay() {
        for (name, left) in [("a", ["b", "c"]), ("b", ["a", "c"]), ("c", ["a", "b"])] {
            let after = parse(&commented()).without(name).unwrap();
            assert_eq!(names(&after), left);
            for comment in ["# the keys", "# of a", "# of b", "# of c", "# the end"] {
                assert!(after.text().contains(comment), "{comment} without {name}:\n{}", after.text());
            }
        }
        let none = ["a", "b", "c"].into_iter().fold(parse(&commented()), |text, name| text.without(name).unwrap());
        assert_eq!(none.keys(), []);
        assert_eq!(none.with(key("d")).unwrap().keys(), [key("d")]);
    }

    #[test]
    fn a_key_is_replaced_with_a_time_in_which_both_hold() {
        let new = KeyHash::of(b"new");
        let both = parse(&commented()).begin_rotation("a", new).unwrap();
        assert_eq!(both.keys()[0].hashes, [KeyHash::of(b"a"), new]);
        assert!(both.text().contains("]   # one\n"), "{}", both.text());
        assert!(matches!(both.begin_rotation("a", KeyHash::of(b"newer")), Err(EditError::Rotating(_))));
        let after = both.end_rotation("a").unwrap();
        assert_eq!(after.keys()[0].hashes, [new]);
        assert_eq!(after.text().lines().count(), commented().lines().count());
        assert!(matches!(after.end_rotation("a"), Err(EditError::NotRotating(_))));
    }

    #[test]
    fn names_and_keys_come_once() {
        let text = parse(&commented());
        assert!(matches!(text.with(key("a")), Err(EditError::Exists(_))));
        assert!(
            matches!(text.with(KeyConfig { name: "d".to_owned(), ..key("a") }), Err(EditError::Known(name)) if name == "a")
        );
        assert!(matches!(text.begin_rotation("b", KeyHash::of(b"a")), Err(EditError::Known(_))));
        assert!(matches!(text.without("d"), Err(EditError::Missing(_))));
    }

    #[test]
    fn an_entry_that_would_not_do_is_refused_by_what_is_wrong_with_it() {
        for (key, expected) in [
            (key("a b"), "entry 1: a key's name has"),
            (key("kvp_x"), "entry 1: a name doesn't begin with kvp_"),
            (KeyConfig { in_flight_max: Some(0), ..key("d") }, "d.in_flight_max: 0 is not 1 to"),
            (KeyConfig { models: Some(vec![String::new()]), ..key("d") }, "d.models[0]: this is no name"),
        ] {
            let refusal = parse("").with(key).unwrap_err().to_string();
            assert!(refusal.starts_with(expected), "{refusal}");
        }
    }

    #[test]
    fn a_layout_that_lines_cannot_be_added_to_or_cut_out_of_is_refused() {
        let (a, b) = (KeyHash::of(b"a").to_text(), KeyHash::of(b"b").to_text());
        let flow = parse(&format!("{{a: {{hash: {a}}}, b: {{hash: {b}}}}}\n"));
        assert!(matches!(flow.with(key("c")), Err(EditError::Layout(_))));
        assert!(matches!(flow.without("b"), Err(EditError::Layout(_))));
        let broken = parse(&format!("a:\n  hash:\n    [{a},\n    {b}]\n"));
        assert!(matches!(broken.end_rotation("a"), Err(EditError::Layout(_))));
    }
}
