//! `--set key=value`: one value of a scenario, put over what its file says.

use std::str::FromStr;

use anyhow::bail;
use serde_yaml::Value;

/// A value and the path of its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    path: String,
    value: Value,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((path, value)) = text.split_once('=').filter(|(path, _)| !path.is_empty()) else {
            return Err("expected key=value, as in fleet.replicas=8".into());
        };
        let value = serde_yaml::from_str(value).map_err(|error| format!("{path}: {error}"))?;
        Ok(Setting { path: path.to_owned(), value })
    }
}

/// Puts a value where its path leads. Sections on the way must be there; whether the key exists is for who reads the scenario.
pub fn put(tree: &mut Value, setting: &Setting) -> anyhow::Result<()> {
    let (sections, key) = match setting.path.rsplit_once('.') {
        Some((sections, key)) => (sections, key),
        None => ("", setting.path.as_str()),
    };
    let mut at = tree;
    for section in sections.split('.').filter(|section| !section.is_empty()) {
        let Some(next) = at.get_mut(section) else {
            bail!("{}: the scenario has no section {section:?}", setting.path);
        };
        at = next;
    }
    match at.as_mapping_mut() {
        Some(mapping) => {
            mapping.insert(key.into(), setting.value.clone());
            Ok(())
        }
        None => bail!("{}: {sections:?} is no section", setting.path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_goes_over_what_the_file_says() {
        let mut tree = serde_yaml::from_str("{fleet: {replicas: 4}, sessions: [4]}").expect("YAML");
        for text in ["fleet.replicas=8", "sessions=[1, 2]", "fleet.new=x=y"] {
            put(&mut tree, &text.parse().expect("a setting")).expect("put");
        }
        let expected: Value = serde_yaml::from_str("{fleet: {replicas: 8, new: x=y}, sessions: [1, 2]}").expect("YAML");
        assert_eq!(tree, expected);
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        let mut tree = serde_yaml::from_str("{fleet: {replicas: 4}}").expect("YAML");
        for text in ["flet.replicas=8", "fleet.replicas.more=8"] {
            assert!(put(&mut tree, &text.parse().expect("a setting")).is_err(), "{text}");
        }
        assert!("replicas".parse::<Setting>().is_err());
        assert!("a=[1".parse::<Setting>().is_err());
    }
}
