//! Where in the text a key path is, and whether the text has the form that serde's own types don't insist on.
//!
//! serde_yaml says positions only in its errors. So the text is read once more by a seed that descends to a path and fails there on
//! purpose: the error's position is the answer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::{ConfigError, Problem};

/// The keys and indices that lead to a value, from the top. Displayed as `models.qwen3.replicas[1].url`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// The line, counted from 1, of the key or item that a path leads to; of the nearest that exists, where the path goes on to a missing
/// one. `None` if not even its first step exists.
pub(super) fn line_of(text: &str, path: &Path) -> Option<usize> {
    (1..=path.0.len()).rev().find_map(|steps| {
        let target = Descend(&path.0[..steps]);
        let err = target.deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
        err.location().map(|at| at.line())
    })
}

/// Refuses what serde would pass over in silence: a key that comes twice (the last would win), a key without a value (which reads as
/// absent), and tags. Errors of YAML itself come to light here too.
pub(super) fn check_form(text: &str) -> Result<(), ConfigError> {
    let refused = RefCell::new(None);
    let form = Form { path: Path::default(), refused: &refused };
    let Err(err) = form.deserialize(serde_yaml::Deserializer::from_str(text)) else {
        return Ok(());
    };
    let Some(refused) = refused.into_inner() else {
        return Err(ConfigError::from_yaml(&err));
    };
    let (line, path, reason) = match refused {
        Refused::Twice(path) => {
            let second = err.location().map(|at| at.line());
            (second, path, "the key comes twice")
        }
        // An absent value has its position where the next thing begins.
        Refused::Absent(path) if path != Path::default() => {
            let reason = "there is no value; remove the key to get its default";
            (line_of(text, &path), path, reason)
        }
        Refused::Absent(path) => (None, path, "the file is empty"),
    };
    Err(ConfigError::one(Problem { line, path: path.to_string(), reason: reason.to_owned() }))
}

impl Path {
    pub(super) fn key(&self, key: &str) -> Path {
        self.with(Step::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Path {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> Path {
        let mut steps = self.0.clone();
        steps.push(step);
        Path(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if i == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Reads a value and fails at the end of the steps; succeeds if they lead nowhere.
struct Descend<'a>(&'a [Step]);

/// Reads a key and says whether it is the wanted one; fails there if no steps are left after it.
struct WantedKey<'a> {
    key: &'a str,
    rest: &'a [Step],
}

/// What the fabricated errors say. Nobody sees it.
const FOUND: &str = "found";

impl<'de> DeserializeSeed<'de> for Descend<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Descend<'_> {
    fn scalar<E: Error>(self) -> Result<(), E> {
        if self.0.is_empty() {
            return Err(E::custom(FOUND));
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Descend<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.0.split_first() else {
            return Err(A::Error::custom(FOUND));
        };
        let Step::Key(key) = step else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        };
        while let Some(wanted) = map.next_key_seed(WantedKey { key, rest })? {
            if wanted {
                map.next_value_seed(Descend(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.0.split_first() else {
            return Err(A::Error::custom(FOUND));
        };
        if let Step::Index(index) = step {
            for _ in 0..*index {
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(());
                }
            }
            seq.next_element_seed(Descend(rest))?;
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.scalar()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.scalar()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.scalar()
    }
}

impl<'de> DeserializeSeed<'de> for WantedKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for WantedKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        if key != self.key {
            return Ok(false);
        }
        if self.rest.is_empty() {
            return Err(E::custom(FOUND));
        }
        Ok(true)
    }
}

/// Reads a value of any shape; what it refuses, it leaves in `refused`.
struct Form<'a> {
    path: Path,
    refused: &'a RefCell<Option<Refused>>,
}

/// What is wrong with the form, and where.
enum Refused {
    Twice(Path),
    Absent(Path),
}

/// Reads a key that must not be among those seen in its mapping.
struct NewKey<'a> {
    seen: &'a mut BTreeSet<String>,
    form: &'a Form<'a>,
}

impl Form<'_> {
    fn refuse<E: Error>(&self, why: Refused) -> E {
        self.refused.replace(Some(why));
        E::custom(FOUND)
    }

    fn below(&self, path: Path) -> Form<'_> {
        Form { path, refused: self.refused }
    }
}

impl<'de> DeserializeSeed<'de> for Form<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Form<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key_seed(NewKey { seen: &mut seen, form: &self })? {
            map.next_value_seed(self.below(self.path.key(&key)))?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0;
        while seq.next_element_seed(self.below(self.path.index(index)))?.is_some() {
            index += 1;
        }
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    /// How serde_yaml shows a text without any value.
    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.refuse(Refused::Absent(self.path.clone())))
    }
}

impl<'de> DeserializeSeed<'de> for NewKey<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NewKey<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<String, E> {
        if !self.seen.insert(key.to_owned()) {
            return Err(self.form.refuse(Refused::Twice(self.form.path.key(key))));
        }
        Ok(key.to_owned())
    }
}
