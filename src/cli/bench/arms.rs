//! What is compared: one kvpin with affinity and without, or several servers.

use anyhow::{Context as _, bail};

use crate::admin::affinity::{AffinityOrder, path_of};
use crate::admin::status::{ModelStatus, Status};
use crate::cli::drain::{Admin, PATIENCE};

use super::args::BenchArgs;
use super::web;

/// One of the things that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    pub name: String,
    pub base: String,
    /// What affinity is to be while it is measured, where kvpin is told.
    pub affinity: Option<bool>,
}

/// The kvpin that is told.
pub struct Switch {
    admin: Admin,
    model: String,
    /// What it was before.
    before: bool,
}

/// The name of what serves where nothing is compared.
const ONLY: &str = "as_is";

/// What is compared, and how it is told apart.
pub struct Compared {
    pub arms: Vec<Arm>,
    pub switch: Option<Switch>,
    /// Servers of engines, as kvpin knows them.
    pub engines: Vec<String>,
}

impl Compared {
    /// Finds out what the command line means.
    pub async fn of(args: &BenchArgs, model: Option<&str>) -> anyhow::Result<Compared> {
        let Some(url) = &args.url else {
            let arms = named(&args.arms)?;
            if arms.is_empty() {
                bail!("say what to measure: --url URL, or --arm NAME=URL for each of several servers");
            }
            return Ok(Compared { arms, switch: None, engines: Vec::new() });
        };
        let base = web::base(url)?;
        let Some(admin) = &args.admin else {
            let arm = Arm { name: ONLY.to_owned(), base, affinity: None };
            return Ok(Compared { arms: vec![arm], switch: None, engines: Vec::new() });
        };
        let admin = Admin { url: web::base(admin)?, token: args.token.token(None)? };
        let status = admin.status().await?;
        let model = the_model(&status, model)?;
        let off = if model.replicas.iter().any(|replica| replica.rank.is_some()) { "vllm" } else { "least_loaded" };
        let arm = |name: &str, affinity| Arm { name: name.to_owned(), base: base.clone(), affinity: Some(affinity) };
        let mut engines: Vec<String> =
            model.replicas.iter().map(|replica| format!("http://{}", replica.address)).collect();
        engines.sort();
        engines.dedup();
        Ok(Compared {
            arms: vec![arm(off, false), arm("affinity", true)],
            switch: Some(Switch { admin, model: model.name.clone(), before: model.affinity }),
            engines,
        })
    }
}

impl Switch {
    /// Has affinity be as it is to be for `arm`.
    pub async fn set(&self, arm: &Arm) -> anyhow::Result<()> {
        match arm.affinity {
            Some(affinity) => self.order(affinity).await,
            None => Ok(()),
        }
    }

    /// Puts affinity back as it was.
    pub async fn put_back(&self) -> anyhow::Result<()> {
        self.order(self.before).await
    }

    /// How many replicas the model has at this moment.
    pub async fn replicas(&self) -> anyhow::Result<usize> {
        let status = self.admin.status().await?;
        Ok(the_model(&status, Some(&self.model))?.replicas.iter().filter(|replica| !replica.retired).count())
    }

    async fn order(&self, affinity: bool) -> anyhow::Result<()> {
        let order = serde_json::to_vec(&AffinityOrder { affinity, balancing: None })?;
        let answer = self.admin.post(&path_of(&self.model), order, PATIENCE).await;
        answer.map(drop).context("kvpin doesn't switch affinity")
    }
}

fn the_model<'a>(status: &'a Status, name: Option<&str>) -> anyhow::Result<&'a ModelStatus> {
    let known = || status.models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, status.models.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => bail!("say which model with --model; kvpin serves {}", known()),
        (Some(name), models) => models
            .iter()
            .find(|model| model.name == name || model.aliases.iter().any(|alias| alias == name))
            .with_context(|| format!("kvpin serves no model `{name}`; it serves {}", known())),
    }
}

fn named(arms: &[String]) -> anyhow::Result<Vec<Arm>> {
    let mut named: Vec<Arm> = Vec::new();
    for text in arms {
        let Some((name, url)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            bail!("--arm `{text}` is not NAME=URL");
        };
        if named.iter().any(|arm| arm.name == name) {
            bail!("two arms have the name `{name}`");
        }
        named.push(Arm { name: name.to_owned(), base: web::base(url)?, affinity: None });
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_need_names_that_differ_and_urls() {
        let of = |texts: &[&str]| named(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let arms = of(&["a=127.0.0.1:1", "b=http://h:2/v1?"]);
        assert!(arms.is_err());
        let arms = of(&["a=127.0.0.1:1", "b=http://h:2/v1"]).unwrap();
        assert_eq!((arms[0].base.as_str(), arms[1].base.as_str()), ("http://127.0.0.1:1", "http://h:2"));
        for wrong in [&["a"][..], &["=http://a"], &["a=http://b", "a=http://c"], &["a=nothing here"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
