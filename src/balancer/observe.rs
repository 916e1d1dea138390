//! What is seen of the replicas and ordered for them, and what follows for their conversations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::evidence::Evidence;
use super::health::{DownReason, DrainReason, Health, News, Outage};
use super::load::Scrape;
use super::policy::HealthPolicy;
use super::replica::{Membership, Order, Replica, ReplicaId};
use super::{Balancer, NEWS_MAX};

/// What came of an order to drain, or to drain no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordered {
    /// It holds, whether it is news or not.
    Done,
    /// There is no configured replica of that id.
    NoReplica,
    /// The configuration wants it to drain, and only the configuration can take that back.
    Configured,
}

impl Balancer {
    /// Something was seen of a replica. Returns whether its health is another one now; [`Balancer::take_news`] says which.
    pub fn observe(&mut self, id: ReplicaId, evidence: Evidence, now: Duration) -> bool {
        let Some(address) = self.replicas.get(id.index()).map(|replica| replica.spec.address) else { return false };
        match evidence {
            Evidence::Unreachable(_) | Evidence::Draining => self.observe_server(address, evidence, now),
            Evidence::Answered | Evidence::Served | Evidence::ProbeFailed | Evidence::BrokeOff | Evidence::Failing => {
                self.tend(id, now, |replica, policy| replica.vitals.observe(evidence, policy, now))
            }
        }
    }

    /// A server can't be reached: every replica behind its address is down. Returns whether that is news.
    pub fn server_down(&mut self, address: SocketAddr, reason: DownReason, now: Duration) -> bool {
        self.observe_server(address, Evidence::Unreachable(reason), now)
    }

    /// A scrape of the replica is being asked for.
    pub fn scrape_begins(&mut self, id: ReplicaId) {
        self.replicas.change(id, &self.policy, |replica| replica.load.scrape_begins());
    }

    /// What the replica's engine said of itself.
    pub fn scraped(&mut self, id: ReplicaId, scrape: Scrape) {
        self.tend(id, scrape.at, |replica, policy| replica.scraped(scrape, policy));
    }

    /// The replica's server did not answer when it was asked for its figures.
    pub fn scrape_failed(&mut self, id: ReplicaId, now: Duration) {
        self.tend(id, now, |replica, policy| replica.vitals.scrape_failed(policy, now));
    }

    /// An operator wants a replica to take nothing new, or to serve again.
    pub fn order(&mut self, id: ReplicaId, order: Order, now: Duration) -> Ordered {
        let replica = self.replicas.get(id.index()).filter(|replica| replica.membership == Membership::Configured);
        match replica.map(Replica::drain_reason) {
            None => Ordered::NoReplica,
            Some(Some(DrainReason::Configured)) if order == Order::Undrain => Ordered::Configured,
            Some(_) => {
                self.changes += 1;
                self.tend(id, now, |replica, _| replica.order_drain(order, now));
                self.note_drained(id);
                Ordered::Done
            }
        }
    }

    /// What has happened since this was asked last, the oldest first.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// What is known of a replica's health.
    pub fn health_of(&self, id: ReplicaId) -> Option<Health> {
        self.replicas.get(id.index()).map(Replica::health)
    }

    /// Why none of the replicas takes a turn.
    pub fn outage(&self, now: Duration) -> Outage {
        let described = |(_, replica): (_, &Replica)| {
            (Arc::clone(&replica.spec), replica.health(), now.saturating_sub(replica.health_since()))
        };
        Outage(self.configured().map(described).collect())
    }

    /// Says so once the last turn of a replica has ended that is to take nothing new, or that a reload took out.
    pub(super) fn note_drained(&mut self, id: ReplicaId) {
        let replica = &self.replicas[id.index()];
        let is_leaving = replica.membership == Membership::Retired || replica.drain_reason().is_some();
        if is_leaving && replica.load.in_flight() == 0 {
            let replica = Arc::clone(&replica.spec);
            self.tell(News::Drained { replica });
        }
    }

    fn observe_server(&mut self, address: SocketAddr, evidence: Evidence, now: Duration) -> bool {
        let mut is_news = false;
        for index in 0..self.replicas.len() {
            if self.replicas[index].spec.address != address {
                continue;
            }
            let Some(id) = ReplicaId::from_index(index) else { continue };
            is_news |= self.tend(id, now, |replica, policy| replica.vitals.observe(evidence, policy, now));
        }
        is_news
    }

    /// Lets something happen to a replica, and draws the conclusions. Returns whether its health is another one.
    fn tend(&mut self, id: ReplicaId, now: Duration, event: impl FnOnce(&mut Replica, &HealthPolicy)) -> bool {
        let policy = &self.policy;
        let happened = self.replicas.change(id, policy, |replica| {
            let (was, since) = (replica.health(), replica.health_since());
            event(replica, &policy.health);
            let restart = replica.vitals.take_restart();
            if restart.is_some() {
                replica.counters.restarts += 1;
                replica.vitals.begin_ramp(now);
            }
            (was, since, replica.health(), restart)
        });
        let Some((was, since, is, restart)) = happened else { return false };
        // vLLM discards its KV cache when it is put to sleep, at either level (`docs/features/sleep_mode.md`).
        let fell_asleep = is == Health::Sleeping && was != is;
        if restart.is_some() || fell_asleep {
            self.changes += 1;
            self.memory.pins.lose_claims(id);
            self.door.rooms.empty(id);
        }
        if let Some(cause) = restart {
            self.tell(News::Restarted { replica: Arc::clone(&self.replicas[id.index()].spec), cause });
        }
        if was != is {
            let replica = Arc::clone(&self.replicas[id.index()].spec);
            self.tell(News::Changed { replica, was, is, after: now.saturating_sub(since) });
        }
        was != is
    }

    fn tell(&mut self, news: News) {
        if self.news.len() < NEWS_MAX {
            self.news.push(news);
        }
    }
}
