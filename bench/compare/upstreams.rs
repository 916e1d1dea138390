//! Four stubs on a thread of their own.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use tokio::sync::oneshot;

use crate::rig::stub::{Answer, Stub};

/// Replicas of the model.
const STUBS: usize = 4;

/// The stubs. They end when this is dropped.
pub struct Upstreams {
    stubs: Vec<Stub>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Upstreams {
    pub fn start() -> anyhow::Result<Upstreams> {
        let (end, ended) = oneshot::channel();
        let (started, stubs) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("upstreams".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                started.send(start().await).map_err(|_| anyhow!("nobody waits for the stubs"))?;
                // An error too means that nobody needs them.
                ended.await.or(Ok(()))
            })
        })?;
        let stubs = stubs.recv().context("the thread of the stubs ended")??;
        Ok(Upstreams { stubs, end: Some(end), thread: Some(thread) })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.stubs.iter().map(|stub| stub.address).collect()
    }

    pub fn answer_with(&self, answer: Answer) {
        self.stubs.iter().for_each(|stub| stub.answer_with(answer));
    }

    pub fn release(&self) {
        self.stubs.iter().for_each(Stub::release);
    }

    /// What the times in events count from.
    pub fn epoch(&self) -> Option<Instant> {
        self.stubs.first().map(Stub::epoch)
    }
}

impl Drop for Upstreams {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("the thread of the stubs panicked");
        }
    }
}

async fn start() -> anyhow::Result<Vec<Stub>> {
    let epoch = Instant::now();
    let mut stubs = Vec::new();
    for _ in 0..STUBS {
        stubs.push(Stub::start(Answer::Json, epoch).await?);
    }
    Ok(stubs)
}
