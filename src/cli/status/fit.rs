//! A status on a screen that may be too small for it: then models are a few lines each, and only replicas that something is
//! the matter with have one of their own.

use std::collections::BTreeMap;

use crate::admin::Status;
use crate::admin::status::{ModelStatus, ReplicaStatus};

use super::card::{self, Ink};

/// The cards, if there is room for them in so many rows; else what is most worth knowing, cut off with a word about the rest.
pub fn fit(status: &Status, ink: Ink, rows: usize) -> String {
    let cards = card::cards(status, ink);
    if cards.lines().count() <= rows {
        return cards;
    }
    let short = short(status, ink);
    let lines: Vec<_> = short.lines().collect();
    if lines.len() <= rows {
        return short;
    }
    let shown = rows.saturating_sub(1);
    let rest = format!("... {} more lines; `kvpin status` has all of them", lines.len() - shown);
    lines[..shown].iter().copied().chain([rest.as_str()]).map(|line| format!("{line}\n")).collect()
}

fn short(status: &Status, ink: Ink) -> String {
    let mut text = card::process(status);
    for model in &status.models {
        text.push_str(&format!("\n{}\n", card::heading(model, ink)));
        text.push_str(&format!("  {}\n", healths(model)));
        for replica in model.replicas.iter().filter(|replica| is_odd(replica)) {
            text.push_str(&format!("  {}\n", card::replica_line(replica, ink)));
        }
    }
    text
}

/// Such as `64 replicas: 62 up, 2 down`.
fn healths(model: &ModelStatus) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for replica in &model.replicas {
        *counts.entry(&replica.health).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(health, count)| format!("{count} {health}")).collect();
    format!("{} replicas: {}", model.replicas.len(), counts.join(", "))
}

fn is_odd(replica: &ReplicaStatus) -> bool {
    replica.health != "up" || replica.drain.is_some() || replica.retired
}

#[cfg(test)]
mod tests {
    use super::super::card::tests::status;
    use super::*;

    /// So many models of so many replicas, of which the last of each is down.
    fn many(models: usize, replicas: usize) -> Status {
        let mut status = status();
        let mut model = status.models.remove(0);
        model.replicas = (0..replicas)
            .map(|at| {
                let mut replica = model.replicas[0].clone();
                replica.name = format!("replica-{at}");
                replica.health = if at + 1 < replicas { "up" } else { "down" }.to_owned();
                replica
            })
            .collect();
        status.models = vec![model; models];
        status
    }

    #[test]
    fn what_has_room_is_shown_whole() {
        let status = many(1, 2);
        assert_eq!(fit(&status, Ink::Plain, 40), card::cards(&status, Ink::Plain));
    }

    #[test]
    fn without_room_a_model_says_how_many_are_well_and_names_those_that_are_not() {
        let text = fit(&many(20, 64), Ink::Plain, 100);
        assert!(text.lines().count() <= 100, "{text}");
        assert_eq!(text.matches("  64 replicas: 1 down, 63 up\n").count(), 20, "{text}");
        assert_eq!(text.matches("replica-63  down (connect refused)").count(), 20, "{text}");
        assert!(!text.contains("replica-0"), "{text}");
    }

    #[test]
    fn what_is_cut_off_is_said() {
        let text = fit(&many(20, 64), Ink::Plain, 10);
        assert_eq!(text.lines().count(), 10);
        assert!(text.ends_with("... 72 more lines; `kvpin status` has all of them\n"), "{text}");
    }
}
