//! kvpin in front of replicas that are played by hand.

use serde_json::{Value, json};

use super::call::Call;
use super::client::Wire;
use super::hand::{Hand, HandTurn};
use super::kvpin::{Kvpin, config};
use super::until;

pub struct Stage {
    pub hands: Vec<Hand>,
    pub kvpin: Kvpin,
}

impl Stage {
    /// So many replicas of a model `m`.
    pub async fn with(replicas: usize, limits: Value) -> Self {
        let hands: Vec<_> = (0..replicas).map(|_| Hand::start()).collect();
        let urls: Vec<_> = hands.iter().map(Hand::url).collect();
        let mut config = config(json!({ "m": { "replicas": urls } }));
        config["limits"] = limits;
        Stage { hands, kvpin: Kvpin::start(&config).await }
    }

    pub async fn of(replicas: usize) -> Self {
        Stage::with(replicas, json!({})).await
    }

    /// The next turn that reaches any replica, and whose it is.
    pub async fn arrives(&mut self) -> (String, HandTurn) {
        let at = until("a turn at one of the replicas", async || self.hands.iter_mut().position(Hand::has_turn)).await;
        let name = self.hands[at].name();
        (name, self.hands[at].turn().await)
    }

    pub fn nobody_has_more(&mut self) -> bool {
        !self.hands.iter_mut().any(Hand::has_turn)
    }

    pub async fn send(&self, call: &Call) -> Wire {
        let mut wire = self.kvpin.connect().await;
        wire.send(&call.bytes()).await;
        wire
    }

    pub async fn until_idle(&self) {
        until("every slot is free", async || (self.kvpin.in_flight().await == 0).then_some(())).await;
    }
}
